"""Launches with one CTA, or with one along an axis, and loops whose addresses are data from the second iteration on."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose

pytestmark = pytest.mark.kernels

ROWS = """
import torch, triton, triton.language as tl

@triton.jit
def row_maxima(x, y, M, N, K, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    k = tl.program_id(1)
    best = tl.full((BM, BN), float("-inf"), tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        at = m[:, None] * N * K + n[None, :] * K
        at += k
        best = tl.maximum(best, tl.load(x + at, mask=(m[:, None] < M) & (n[None, :] < N)).to(tl.float32))
    tl.store(y + m * K + k, tl.max(best, 1), mask=m < M)

x, y = torch.empty(4096, 8192, device="cuda", dtype=torch.bfloat16), torch.empty(4096, device="cuda")
"""
ONE = "row_maxima[(1024, 1)](x, y, 4096, 8192, 1, 4, 512)\n"
TWO = "row_maxima[(512, 2)](x, y, 2048, 8192, 2, 4, 512)\n"


def found(tmp_path, text):
    script = tmp_path / "script.py"
    script.write_text(text)
    (kernel,) = inputs.read(str(script), (), SM_90A)
    return {one.id: one for one in diagnose(kernel).findings}


def test_the_number_of_the_only_cta_along_an_axis_is_unknown_to_the_compiler(tmp_path):
    """As of a dimension behind the one that is reduced, whose length is 1 where that one is the last."""
    one = found(tmp_path, ROWS + ONE)["narrow-access"]
    assert one.message == (
        "a thread loads 2 bytes at a time where 16 bytes are contiguous: the compiler does not know that "
        "tl.program_id(1) is 0 at this launch, whose grid has one CTA along that axis, so that rows may begin anywhere"
    )
    assert one.advice.startswith("leave tl.program_id(1) out of the address at such a launch, under an `if` of")
    advised = ROWS.replace("        at += k", "        if K != 1:\n            at += k")
    assert "narrow-access" not in found(tmp_path, advised + ONE)


def test_where_an_axis_has_two_ctas_their_rows_do_begin_elsewhere(tmp_path):
    beside = ROWS.replace("n[None, :] * K", "n[None, :]").replace("* N * K", "* N").replace("at += k", "at += 3 * k")
    one = found(tmp_path, beside + TWO)["narrow-access"]
    assert "bytes after a multiple of 16 bytes" in one.message
    assert one.advice.startswith("begin rows at multiples of 16 bytes")


def test_one_cta_with_a_long_sum_is_too_few(tmp_path):
    """A matrix of one tile: its iterations are work for the other SMs."""
    text = """
import torch, triton, triton.language as tl

@triton.jit
def one_tile(a, b, c, K, B: tl.constexpr, BK: tl.constexpr):
    r, k = tl.arange(0, B), tl.arange(0, BK)
    acc = tl.zeros((B, B), tl.float32)
    for s in range(0, K, BK):
        acc = tl.dot(tl.load(a + r[:, None] * K + s + k[None, :]), tl.load(b + (s + k)[:, None] * B + r[None, :]), acc)
    tl.store(c + r[:, None] * B + r[None, :], acc)

a, b = torch.empty(2, 128 * 8192, device="cuda", dtype=torch.bfloat16)
one_tile[(1,)](a, b, torch.empty(128, 128, device="cuda"), LENGTH, 128, 64)
"""
    one = found(tmp_path, text.replace("LENGTH", "8192"))["launch-too-small"]
    assert (one.message, one.severity) == ("1 CTA leaves 131 of 132 SMs without work", "high")
    assert "launch-too-small" not in found(tmp_path, text.replace("LENGTH", "256"))


SUMS = """
import torch, triton, triton.language as tl

@triton.jit
def sums(x, y, LENGTH, B: tl.constexpr):
    first = tl.program_id(0) * LENGTH
    total = tl.zeros((B,), tl.float32)
    for start in range(0, LENGTH, B):
        total += tl.load(x + first + start + tl.arange(0, B)).to(tl.float32)
    tl.store(y + tl.program_id(0), tl.sum(total, 0))

x, y = torch.empty(1 << 26, device="cuda", dtype=torch.bfloat16), torch.empty(128, device="cuda")
"""


@pytest.mark.parametrize(
    ("ctas", "length", "severity"),
    [
        (32, 1 << 20, "high"),  # 2 MB a CTA: 53 us, and with all SMs 21 us and a launch
        (32, 1 << 14, "medium"),  # 0.8 us: the sum of the parts takes longer
        (2, 1 << 16, "medium"),  # 3.3 us, and 0.2 us with all SMs
        (100, 1 << 20, "medium"),  # a quarter of the SMs
        (118, 1 << 20, "low"),
    ],
)
def test_few_ctas_are_severe_where_they_work_for_longer_than_launches_take(tmp_path, ctas, length, severity):
    text = f"{SUMS}sums[({ctas},)](x, y, {length}, 1024)"
    assert found(tmp_path, text)["launch-too-small"].severity == severity


SCALED = """
import torch, triton, triton.language as tl

@triton.jit
def scaled(x, y, LENGTH, B: tl.constexpr):
    for start in range(0, LENGTH, B):
        at = tl.program_id(0) * LENGTH + start + tl.arange(0, B)
        tl.store(y + at, 2.0 * tl.load(x + at))

x, y = torch.empty(2, 1 << 26, device="cuda", dtype=torch.bfloat16)
"""


@pytest.mark.parametrize(
    ("text", "severity", "speedup"),
    [
        (SUMS + "sums[(64,)](x, y, 1 << 18, 1024)", "medium", (132 / 64) ** 0.65),  # 13 us, and their sums
        (SCALED + "scaled[(64,)](x, y, 1 << 18, 1024)", "high", (132 / 64) ** 0.9),  # 26 us, and nothing to sum
        (SCALED + "scaled[(64,)](x, y, 1 << 13, 1024)", "medium", (132 / 64) ** 0.9),  # 0.8 us: less than a launch
    ],
)
def test_iterations_that_store_their_own_results_need_no_second_launch(tmp_path, text, severity, speedup):
    one = found(tmp_path, text)["launch-too-small"]
    assert one.severity == severity
    assert one.estimate.speedup == pytest.approx(speedup, rel=0.01)


@pytest.mark.parametrize(("elements", "severity"), [(1 << 26, "high"), (1 << 16, "medium")])
def test_a_loop_that_data_ends_may_load_a_share_of_its_tensor(tmp_path, elements, severity):
    """As attention over a cache whose rows are counted on the GPU."""
    text = SUMS.replace("LENGTH, B:", "ends, LENGTH, B:").replace("(0, LENGTH, B)", "(0, tl.load(ends), B)")
    text = text.replace("1 << 26", str(elements))
    text += 'ends = torch.empty(1, device="cuda", dtype=torch.int32)\n'
    text += f"sums[(32,)](x, y, ends, {elements // 32}, 1024)"
    assert found(tmp_path, text)["launch-too-small"].severity == severity


FLIPPED = """
import torch, triton, triton.language as tl

@triton.jit
def flipped(x, y, last, stride: int, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + last + i * stride))

x, y = torch.empty(2, 1 << 20, device="cuda")
flipped[(1024,)](x, y, (1 << 20) - 1, -1, 1024)
"""


def test_a_stride_of_minus_1_moves_nothing_more_from_memory(tmp_path):
    one = found(tmp_path, FLIPPED)["uncoalesced-access"]
    assert "between the SM and its cache" in one.message
    assert one.severity == "medium"


SEARCH = """
import torch, triton, triton.language as tl

@triton.jit
def search(x, table, y, LENGTH: tl.constexpr, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i)
    low, high = tl.zeros_like(i), tl.zeros_like(i) + LENGTH
    for _ in range(STEPS):
        middle = (low + high) // 2
        below = tl.load(table + middle) < v
        low = tl.where(below, middle + 1, low)
        high = tl.where(below, high, middle)
    tl.store(y + i, low)

x, table = torch.empty(1 << 20, device="cuda", dtype=DTYPE), torch.empty(4096, device="cuda", dtype=DTYPE)
search[(2048,)](x, table, torch.empty(1 << 20, device="cuda", dtype=torch.int32), 4096, 12, 512)
"""


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_a_search_begins_at_one_element_and_goes_where_the_data_say(tmp_path, dtype):
    """In the first iteration all threads load the same number, and in no later one."""
    rules = set(found(tmp_path, SEARCH.replace("DTYPE", f"torch.{dtype}")))
    assert not {"redundant-load", "uncoalesced-access"} & rules


SPLITS = """
import torch, triton, triton.language as tl

@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for s in range(0, K, BK):
        left = tl.load(a + m[:, None] * K + s + k[None, :])
        acc = tl.dot(left, tl.load(b + (s + k)[:, None] * N + n[None, :]), acc)
    tl.store(c + m[:, None] * N + n[None, :], acc.to(tl.bfloat16))

@triton.jit
def sampled(x, y, rows, N, ROWS: tl.constexpr, B: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    before, at = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.int32)
    for start in range(0, N, B):
        one = tl.load(x + r[:, None] * N + start + tl.arange(0, B)[None, :]).to(tl.float32)
        reached = before[:, None] + tl.cumsum(one, 1) > 0.5
        at += tl.sum(reached.to(tl.int32), 1)
        before += tl.sum(one, 1)
    tl.store(y + r, at)

@triton.jit
def parts(x, ends, y, N, PARTS: tl.constexpr, B: tl.constexpr):
    length = tl.load(ends + tl.program_id(0))
    each = tl.cdiv(length, PARTS)
    begin = tl.program_id(1) * each
    total = tl.zeros((B,), tl.float32)
    for start in range(begin, tl.minimum(begin + each, length), B):
        i = start + tl.arange(0, B)
        total += tl.load(x + tl.program_id(0) * N + i, mask=i < length, other=0).to(tl.float32)
    tl.store(y + tl.program_id(0) * PARTS + tl.program_id(1), tl.sum(total, 0))

@triton.jit
def added(x, y, N, D: tl.constexpr, B: tl.constexpr):
    d = tl.arange(0, D)
    for start in range(0, N, B):
        i = (start + tl.arange(0, B))[:, None] * D + d[None, :]
        tl.store(y + i, tl.load(y + i) + tl.load(x + tl.program_id(0) * N * D + i))

@triton.jit
def twice(x, y, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i) * 2)

@triton.jit
def normed(x, y, D: tl.constexpr):
    i = tl.program_id(0) * D + tl.arange(0, D)
    one = tl.load(x + i).to(tl.float32)
    tl.store(y + i, one / tl.sum(one, 0))

@triton.jit
def walked(x, y, steps, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    for _ in range(steps):
        i = tl.load(x + i)
    tl.store(y + tl.program_id(0) * B + tl.arange(0, B), i)

@triton.jit
def counted(x, y, N, E: tl.constexpr, ROWS: tl.constexpr):
    e = tl.arange(0, E)
    total = tl.zeros((E,), tl.float32)
    for row in range(ROWS):
        at = tl.program_id(0) * ROWS + row
        if at < N:
            one = tl.load(x + at * E + e).to(tl.float32)
            power = tl.exp(one - tl.max(one, 0))
            total += power / tl.sum(power, 0)
    tl.store(y + tl.program_id(0) * E + e, total)

@triton.jit
def rescaled(x, y, N, E: tl.constexpr):
    e = tl.arange(0, E)
    most, total = tl.full((E,), float("-inf"), tl.float32), tl.zeros((E,), tl.float32)
    for row in range(N):
        one = tl.load(x + (tl.program_id(0) * N + row) * E + e).to(tl.float32)
        higher = tl.maximum(most, one)
        total = total * tl.exp(most - higher) + tl.exp(one - higher)
        most = higher
    tl.store(y + tl.program_id(0) * E + e, most + tl.log(total))

x = torch.empty(1 << 26, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)
ends = torch.empty(1 << 20, device="cuda", dtype=torch.int32)
"""
GENERAL = "use smaller tiles, or let several CTAs share one sum (split-K)"


@pytest.mark.parametrize(
    ("launch", "advice"),
    [
        (
            "gemm[(1, 32)](x, x, y, 64, 4096, 4096, 64, 128, 64)",
            "5 times as many CTAs: let 5 CTAs take parts of the loop on line 8 and add their results; "
            "or use smaller tiles: BM=32, BN=32",
        ),
        ("gemm[(1, 64)](x, x, y, 16, 1024, 64, 16, 16, 64)", f"3 times as many CTAs: {GENERAL}"),
        ("sampled[(32,)](x, y, 256, 32000, 8, 128)", "5 times as many CTAs: use smaller tiles: ROWS=1"),
        ("parts[(2, 4)](x, ends, y, 1 << 16, 4, 1024)",
         "17 times as many CTAs: let more of them share the loop on line 30, with PARTS=68"),
        ("parts[(2, 1)](x, ends, y, 1 << 16, 1, 1024)",
         "66 times as many CTAs: let 66 CTAs take parts of the loop on line 30 and add their results"),
        ("added[(32,)](x, y, 4096, 64, 16)",
         "5 times as many CTAs: let 5 CTAs take parts of the loop on line 38, and add to y by tl.atomic_add"),
        ("twice[(16,)](x, y, 8192)", "9 times as many CTAs: use smaller tiles: B=512"),
        ("normed[(16,)](x, y, 8192)", f"9 times as many CTAs: {GENERAL}"),  # a row is as long as it is
        ("for i in range(8):\n    twice[(16,)](x[i << 17:], y[i << 17:], 8192)",
         "9 times as many CTAs: use smaller tiles: B=512; or do the work of several launches in one"),
        ("counted[(29,)](x, y, 7200, 128, 256)",
         "5 times as many CTAs: let each take fewer iterations of the loop on line 64, with ROWS=32"),
        ("counted[(29,)](x, y, 4321, 128, 256)",  # no number of rows of which 29 CTAs take 256 each
         "5 times as many CTAs: let 5 CTAs take parts of the loop on line 64 and add their results"),
        ("rescaled[(29,)](x, y, 4096, 128)",
         "5 times as many CTAs: let 5 CTAs take parts of the loop on line 76 and combine their results, with sums "
         "rescaled to the largest maximum"),
        ("walked[(16,)](ends, ends, 256, 128)", f"9 times as many CTAs: {GENERAL}"),
    ],
    ids=["a sum", "a short sum", "a scan", "parts of a sum", "one part", "sums in memory", "elements", "a row",
         "launches", "rows in turn", "rows of no number", "a running maximum", "a walk"],
)  # fmt: skip
def test_few_ctas_are_split_in_the_way_that_fits_the_kernel(tmp_path, launch, advice):
    written = found(tmp_path, SPLITS + launch)["launch-too-small"].advice
    assert written.partition("; 16 CTAs fit")[0] == f"launch {advice}"


SHARED_KEYS = """
@triton.jit
def begin_of(part, each):
    return part * each

@triton.jit
def shared(x, ends, y, N, GROUP: tl.constexpr, PARTS: tl.constexpr, B: tl.constexpr):
    key = tl.program_id(0) // GROUP
    end = tl.load(ends + key)
    each = tl.cdiv(end, PARTS)
    start = BEGIN
    total = tl.zeros((B,), tl.float32)
    for at in range(start, tl.minimum(start + each, end), B):
        i = at + tl.arange(0, B)
        total += tl.load(x + key * N + i, mask=i < end, other=0).to(tl.float32)
    tl.store(y + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1), tl.sum(total, 0))

"""


@pytest.mark.parametrize("begin", ["tl.program_id(1) * each", "begin_of(tl.program_id(1), each=each)"])
def test_a_ratio_of_heads_is_no_number_of_parts(tmp_path, begin):
    kernel = SPLITS.replace("@triton.jit\ndef twice", SHARED_KEYS.replace("BEGIN", begin) + "@triton.jit\ndef twice")
    advice = found(tmp_path, kernel + "shared[(4, 4)](x, ends, y, 1 << 16, 4, 4, 1024)")["launch-too-small"].advice
    assert "PARTS=36" in advice
    assert "GROUP" not in advice
    alone = kernel.replace("PARTS: tl.constexpr", "PARTS") + "shared[(4, 4)](x, ends, y, 1 << 16, 4, 4, 1024)"
    advice = found(tmp_path, alone)["launch-too-small"].advice
    assert "let 9 CTAs take parts of the loop" in advice
    assert "GROUP" not in advice


TABLE = """
import torch, triton, triton.language as tl

@triton.jit
def first_of_pages(table, lengths, out, stride, PAGE: tl.constexpr, B: tl.constexpr):
    row = tl.program_id(0)
    pages = tl.load(lengths + row) // PAGE
    for start in range(0, pages, B):
        i = start + tl.arange(0, B)
        page = tl.load(table + row * stride * PAGE + i * PAGE, mask=i < pages) // PAGE
        tl.store(out + row * stride + i, page, mask=i < pages)

table = torch.empty(ROWS, LENGTH, device="cuda", dtype=torch.int32)
lengths = torch.empty(ROWS, device="cuda", dtype=torch.int32)
out = torch.empty(ROWS, LENGTH // 64, device="cuda", dtype=torch.int32)
first_of_pages[(ROWS,)](table, lengths, out, LENGTH // 64, 64, 64)
"""


@pytest.mark.parametrize(("length", "severity"), [(1 << 18, "high"), (1 << 13, None)])
def test_one_cta_that_walks_through_a_long_table_is_too_few(tmp_path, length, severity):
    """However many take its part, the launch stays, and the estimate has it. A short table is one CTA's work."""
    one = found(tmp_path, TABLE.replace("ROWS", "1").replace("LENGTH", str(length))).get("launch-too-small")
    assert (one and one.severity) == severity
    if one is not None:
        assert one.message == "1 CTA leaves 131 of 132 SMs without work"
        assert 5 < one.estimate.speedup < 10
        assert one.estimate.high < 20


WALK = """
import torch, triton, triton.language as tl

@triton.jit
def walk(x, out, n, B: tl.constexpr):
    i = tl.arange(0, B)
    h, t = tl.zeros((B,), tl.float32), tl.zeros((B,), tl.float32)
    for r in range(0, n):
        LINE
    tl.store(out + i, h)

x = torch.empty(1 << 18, device="cuda")
walk[(1,)](x, torch.empty(256, device="cuda"), 1024, 256)
"""


@pytest.mark.parametrize(
    ("line", "shared"),
    [
        ("h += tl.load(x + r * B + i)", True),
        ("h = tl.maximum(h, tl.load(x + r * B + i))", True),
        ("h = tl.sigmoid(h * 0.5 + tl.load(x + r * B + i))", False),  # a recurrence whose last state is stored
        ("h = h * 0.5 + tl.load(x + r * B + i)", False),
        ("t += tl.load(x + r * B + i); h += t", False),  # each sum so far is read
        ("tl.store(x + r * B + i, tl.load(x + tl.maximum(r - 1, 0) * B + i) + 1)", False),  # of the row before
    ],
)
def test_iterations_that_need_the_last_ones_are_not_to_be_shared_by_ctas(tmp_path, line, shared):
    assert ("launch-too-small" in found(tmp_path, WALK.replace("LINE", line))) == shared


def test_a_scan_of_one_cta_is_not_to_be_shared(tmp_path):
    """Each iteration stores what it computes of what the last one computed."""
    scan = TABLE.replace("    for start", "    total = 0.0\n    for start")
    scan = scan.replace("        tl.store(", "        total = total * 0.5 + 1.0\n        tl.store(").replace(
        "i, page,", "i, page + total,"
    )
    assert "launch-too-small" not in found(tmp_path, scan.replace("ROWS", "1").replace("LENGTH", str(1 << 18)))
