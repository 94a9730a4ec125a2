"""A tensor that one launch stores and the next one loads: named where one kernel could keep it, else silence."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import FAILED, diagnose

pytestmark = pytest.mark.kernels

HEAD = """
import torch, triton, triton.language as tl

def floats(*shape):
    return torch.empty(*shape, device="cuda")

"""


def found(folder, source):
    """What the rule says of the kernels of a script; it finds at most one handover there."""
    script = folder / "script.py"
    script.write_text(HEAD + source)
    diagnoses = [diagnose(kernel) for kernel in inputs.read(str(script), (), SM_90A)]
    assert not [name for one in diagnoses for name, why in one.skipped.items() if FAILED in why]
    findings = [one for diagnosis in diagnoses for one in diagnosis.findings if one.id == "intermediate-in-memory"]
    assert len(findings) <= 1
    return findings[0] if findings else None


def line_of(source, text):
    return next(number for number, line in enumerate((HEAD + source).splitlines(), 1) if text in line)


ELEMENTS = """
@triton.jit
def first(x, t, parts, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(t + FIRST_AT, tl.load(x + i, mask=i < n), mask=i < n)

@triton.jit
def second(t, z, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(t + SECOND_AT, mask=i < n) + Z, mask=i < n)

n = LENGTH
x, t, y, z, parts = floats(n), floats(n), floats(n), floats(n), floats(1 << 16)
first[(triton.cdiv(n, 1024),)](x, t, parts, n, 1024)
BETWEEN
second[(triton.cdiv(n, 2048),)](GIVEN, n, 2048)
AFTER
"""
N = 40_000_000


def elements(first_at="i", second_at="i", z="tl.load(z + i, mask=i < n)", n=N, between="", given="t, z, y", after=""):
    source = ELEMENTS.replace("FIRST_AT", first_at).replace("SECOND_AT", second_at).replace("LENGTH", str(n))
    return source.replace("Z, mask", f"{z}, mask").replace("BETWEEN", between).replace("GIVEN", given) \
        .replace("AFTER", after)  # fmt: skip


def test_an_elementwise_kernel_can_be_the_epilogue_of_another_one(tmp_path):
    source = elements()
    one = found(tmp_path, source)
    assert (one.severity, one.source.line) == ("high", line_of(source, "tl.store(t"))
    moved, least, added = 5 * 4 * N, 3 * 4 * N, N / SM_90A.fp32_per_cycle
    assert one.evidence == {"bytes": 4 * N, "moved_gb": moved / 1e9, "least_gb": least / 1e9}
    rate = SM_90A.memory_bytes_per_cycle
    assert one.estimate.speedup == pytest.approx((moved / rate + added) / (least / rate + added), rel=1e-3)
    assert (one.estimate.low, one.estimate.high) == (1.0, pytest.approx(moved / least, rel=1e-3))
    assert one.message.startswith("the next launch, second, loads the 0.16 GB of t that this launch stores, and each")
    assert one.advice == (
        "if nothing else reads t, compute here what second computes from each element, and store the results in place "
        "of t; if t has to stay in memory, float16 or bfloat16 halves its bytes"
    )


@pytest.mark.parametrize(
    "source",
    [
        elements(given="t, z, t"),  # in place
        elements(between="y = torch.empty_like(x)"),
        elements(after="first[(triton.cdiv(n, 1024),)](x, t, parts, n, 1024)"),  # as a benchmark begins again
    ],
)
def test_a_result_may_be_new_or_in_place(tmp_path, source):
    assert found(tmp_path, source) is not None


@pytest.mark.parametrize(
    "source",
    [
        elements(n=15_000_000),
        elements(given="x, z, y"),
        elements(given="t, z, x"),
        elements(given="t[:n // 2], z, y"),
        elements(between="t.mul_(2)"),
        elements(between="z = t.mean() + z"),
        elements(between="z.copy_(t)"),
        elements(between="first[(1,)](z, y, parts, 5, 1024)"),
        elements(after="first[(triton.cdiv(n, 512),)](t, y, parts, n, 512)"),
        elements(first_at="(n - 1 - i) // 2"),  # some elements twice, and others not at all
        elements(second_at="i // 4"),
        elements(z="tl.load(t + n - 1 - i, mask=i < n)"),
    ],
    ids=[
        "L2 keeps it", "another tensor", "the first's operand is overwritten", "a part", "torch writes it",
        "torch computes an operand", "torch writes an operand", "a launch between", "a launch reads it later",
        "stored twice", "loaded again and again", "two elements for each",
    ],
)  # fmt: skip
def test_what_something_else_needs_stays_in_memory(tmp_path, source):
    assert found(tmp_path, source) is None


def test_partial_sums_of_all_ctas_wait_for_the_first_launch(tmp_path):
    source = elements(given="t, parts, y", z="tl.sum(tl.load(z + tl.arange(0, 32768)), 0)")
    assert found(tmp_path, source) is not None
    store = "tl.store(t + i"
    source = source.replace(store, f"tl.store(parts + tl.program_id(0), 1.0)\n    {store}", 1)
    assert found(tmp_path, source) is None


ROWS = """
@triton.jit
def norm(x, t, rows, N: tl.constexpr):
    c = tl.arange(0, N)
    row = tl.program_id(0)
    v = tl.load(x + row * N + c)
    tl.store(t + row * N + c, v * tl.rsqrt(tl.sum(v * v) / N))

@triton.jit
def softmax(t, y, rows, N: tl.constexpr):
    c = tl.arange(0, N)
    row = ROW
    e = tl.exp(tl.load(t + AT))
    tl.store(y + row * N + c, e / tl.sum(e))

rows, length = SHAPE
x, t, y = (floats(rows, length) for _ in range(3))
norm[(rows,)](x, t, rows, N=length)
softmax[(GRID,)](t, y, rows, N=length)
"""


def rows(row="tl.program_id(0)", at="row * N + c", shape="16384, 2048", grid="rows"):
    return ROWS.replace("ROW", row).replace("AT", at).replace("SHAPE", shape).replace("GRID", grid)


@pytest.mark.parametrize("row", ["tl.program_id(0)", "rows - 1 - tl.program_id(0)", "tl.program_id(0) ^ 5"])
def test_a_cta_can_go_on_with_its_row_whichever_that_is(tmp_path, row):
    one = found(tmp_path, rows(row))
    assert "each of its CTAs loads only what one CTA of this launch stores" in one.message
    assert "a CTA keeps its part of t in registers, computes what softmax computes" in one.advice


@pytest.mark.parametrize(
    "source",
    [
        rows(at="(row + c // (N // 2)) % rows * N + c"),  # half of another row
        rows(at="c * N + row", shape="4096, 4096"),
        rows(row="tl.program_id(0) % (rows // 2)"),
        rows(grid="rows // 2"),
    ],
    ids=["neighbours", "columns", "half of the rows, twice", "half of the CTAs"],
)
def test_elements_of_several_ctas_wait_for_the_first_launch(tmp_path, source):
    assert found(tmp_path, source) is None


@pytest.mark.parametrize(("length", "is_found"), [(32768, True), (65536, False)])
def test_a_row_that_registers_cannot_keep_stays_in_memory(tmp_path, length, is_found):
    kernel, _, rest = rows(shape=f"2048, {length}").partition("    e = ")
    total = """
    total = tl.zeros((1024,), tl.float32)
    for k in range(0, N, 1024):
        total += tl.load(t + row * N + k + tl.arange(0, 1024))
    tl.store(y + row, tl.sum(total))
"""
    launches = rest.partition("tl.sum(e))\n")[2]
    assert (found(tmp_path, f"{kernel}{total}{launches}") is not None) == is_found


def test_ctas_that_go_from_row_to_row_are_followed(tmp_path):
    loop = "for row in range(tl.program_id(0), rows, tl.num_programs(0)):"
    source = rows().replace("row = tl.program_id(0)", loop).replace("(rows,)", "(1056,)")
    lines = source.splitlines()
    inner = ("    v = ", "    tl.store(", "    e = ")
    source = "\n".join(f"    {line}" if line.startswith(inner) else line for line in lines)
    one = found(tmp_path, source)
    assert one.evidence["moved_gb"] == pytest.approx(4 * 16384 * 2048 * 4 / 1e9, rel=0.05)  # some take a row more
    assert found(tmp_path, source.replace("softmax[(1056,)]", "softmax[(1055,)]")) is None


PROLOGUE = """
@triton.jit
def dequantise(q, s, t, N: tl.constexpr, B: tl.constexpr):
    r, c = tl.program_id(1) * B + tl.arange(0, B), tl.program_id(0) * B + tl.arange(0, B)
    v = tl.load(q + LOADED).to(tl.float32) * tl.load(s + r)[:, None]
    tl.store(t + r[:, None] * N + c[None, :], v)

@triton.jit
def largest(t, y, N: tl.constexpr, B: tl.constexpr):
    m = tl.full((B,), float("-inf"), tl.float32)
    for k in range(0, N, B):
        m = tl.maximum(m, tl.load(t + tl.program_id(ROW) * N + k + tl.arange(0, B)))
    tl.store(y + tl.program_id(0), tl.max(m))

n = 8192
q, s, t, y = torch.empty(n, n, device="cuda", dtype=torch.int8), floats(n), floats(n, n), floats(n)
dequantise[(n // 64, n // 64)](q, s, t, N=n, B=64)
largest[GRID](t, y, N=n, B=1024)
"""


@pytest.mark.parametrize(
    ("loaded", "row", "grid", "is_found"),
    [
        ("r[:, None] * N + c[None, :]", "0", "(n,)", True),
        ("c[None, :] * N + r[:, None]", "0", "(n,)", False),  # a transposition, after which rows are side by side
        ("r[:, None] * N + c[None, :]", "1", "(1, n, 2)", False),  # it would be computed twice
    ],
)
def test_elements_that_are_loaded_once_can_be_computed_there(tmp_path, loaded, row, grid, is_found):
    one = found(tmp_path, PROLOGUE.replace("LOADED", loaded).replace("ROW", row).replace("GRID", grid))
    assert (one is not None) == is_found
    assert one is None or "compute the elements of t in largest, where it loads them now" in one.advice


SPLIT = """
@triton.jit
def multiply(a, b, p, M, N, K, PART: tl.constexpr, B: tl.constexpr, BK: tl.constexpr):
    rm, rn = tl.program_id(1) * B + tl.arange(0, B), tl.program_id(0) * B + tl.arange(0, B)
    rk = tl.program_id(2) * PART + tl.arange(0, BK)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, PART, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        acc = tl.dot(x, tl.load(b + (k + rk)[:, None] * N + rn[None, :]), acc)
    tl.store(p + tl.program_id(2) * M * N + rm[:, None] * N + rn[None, :], acc)

@triton.jit
def add(p, y, MN, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for part in range(PARTS):
        acc += tl.load(p + part * MN + i)
    tl.store(y + i, acc)

m, n, k, parts = 4096, 4096, 512, PARTS_OF_K
a, b, p, y = floats(m, k), floats(k, n), floats(parts, m, n), floats(m, n)
multiply[(n // 64, m // 64, parts)](a, b, p, m, n, k, PART=k // parts, B=64, BK=32)
add[(m * n // 1024,)](p, y, m * n, PARTS=parts, BLOCK=1024)
"""


def test_parts_of_split_k_are_of_several_ctas(tmp_path):
    assert found(tmp_path, SPLIT.replace("PARTS_OF_K", "4")) is None


TWICE = """
@triton.jit
def rows(x, y, N: tl.constexpr):
    at = tl.program_id(0) * N + tl.arange(0, N)
    v = tl.load(x + at)
    tl.store(y + at, v / tl.sum(v))

x, y, z = (floats(16384, 2048) for _ in range(3))
rows[(16384,)](x, y, N=2048)
rows[(16384,)](y, z, N=2048)
"""


def test_launches_of_one_kernel_are_a_pair_and_not_a_chain(tmp_path):
    assert found(tmp_path, TWICE) is not None
    assert found(tmp_path, f"{TWICE}rows[(16384,)](z, y, N=2048)\n") is None  # of which repeated-launch speaks
