"""Values that go through memory where a CTA could keep them: counters of few bins, and a tile that a loop stores."""

import pytest

from kperf.arch import H200, SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from tests.command import kperf

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
COUNT = """
@triton.jit
def count(x, counts, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(x + i), 1)  # line 8

x = torch.empty(1 << 24, device="cuda", dtype=torch.int32)
count[(1 << 14,)](x, torch.zeros({bins}, device="cuda", dtype=torch.int32), BLOCK=1024)
"""
SUM = """
@triton.jit
def total(x, out, steps, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    mine = out + tl.program_id(0) * BLOCK
    for step in range(steps):
        old = tl.load(mine + i)  # line 10
        tl.store({place}, old + tl.load(x + step * BLOCK + i))

x = torch.empty(1 << 20, device="cuda")
total[(4096,)](x, torch.zeros(4096, 1024, device="cuda"), 1024, BLOCK=1024)
"""


def findings(tmp_path, source):
    script = tmp_path / "script.py"
    script.write_text(HEAD + source)
    (kernel,) = inputs.read(str(script), (), SM_90A)
    return {(one.id, one.source.line): one for one in diagnose(kernel).findings}


@pytest.mark.parametrize(("bins", "each"), [(256, "65536 times each"), (1 << 20, None)])
def test_bins_that_are_data_are_few_by_the_tensor_that_is_launched(tmp_path, bins, each):
    found = findings(tmp_path, COUNT.format(bins=bins)).get(("atomic-contention", 8))
    assert (found is not None) == (each is not None)
    if found is not None and each is not None:
        assert f"the launch updates the {bins} elements of counts by atomics, {each} on average" in found.message
        assert (found.evidence["elements"], found.evidence["addresses"]) == (1 << 24, bins)
        assert "tl.histogram" in found.advice


@pytest.mark.parametrize(("place", "is_found"), [("mine + i", True), ("mine + (i ^ 1)", False)])
def test_a_tile_that_each_iteration_stores_and_the_next_one_loads_is_carried(tmp_path, place, is_found):
    found = findings(tmp_path, SUM.format(place=place)).get(("redundant-load", 10))
    assert (found is not None) == is_found
    if found is not None:
        assert found.message.startswith("each iteration loads the 4096 bytes of out that the iteration before stored")
        assert found.advice.startswith("keep them in a variable that the loop carries")
        cycles, moved = 2 * 4096 / H200.l2_bytes_per_cycle, 4096 / SM_90A.memory_bytes_per_cycle
        assert found.estimate.speedup == pytest.approx(1 + cycles / moved)


def test_a_tile_that_only_goes_to_memory_and_back_is_most_of_the_loop(tmp_path):
    alone = SUM.format(place="mine + i").replace("tl.load(x + step * BLOCK + i)", "step")
    estimate = findings(tmp_path, alone)["redundant-load", 10].estimate
    assert (estimate.speedup, estimate.high) == (3.0, 10.0)


STORED = """
@triton.jit
def products(a, b, out, steps, D: tl.constexpr):
    i = tl.arange(0, D)
    tile = i[:, None] * D + i[None, :]
    b = tl.load(b + tile)
    for step in range(steps):
        x = tl.dot(tl.load(a + step * D * D + tile), b)
        tl.store(out + step * D * D + tile, x.to(tl.bfloat16))  # line 12

a = torch.empty(256, 64, 64, device="cuda", dtype=torch.bfloat16)
products[(1,)](a, a, torch.empty_like(a), 256, D=64)
"""


def test_a_conversion_for_a_store_is_a_hint(tmp_path):
    found = findings(tmp_path, STORED)["conversion-in-loop", 12]
    assert (found.severity, found.estimate.high) == ("low", 1.5)
    assert found.advice.startswith("store by a tensor descriptor (desc.store)")


SLOTS = """
@triton.jit
def write(k, cache, slots, D: tl.constexpr, SLOTS: tl.constexpr):
    t, d = tl.program_id(0), tl.arange(0, D)
    slot = tl.load(slots + t)
    tl.store(cache + slot // SLOTS * D * SLOTS + d * SLOTS + slot % SLOTS, tl.load(k + t * D + d))  # line 9

k = torch.empty(8192, 128, device="cuda", dtype=torch.bfloat16)
write[(8192,)](k, torch.empty_like(k), torch.empty(8192, device="cuda", dtype=torch.int32), D=128, SLOTS=16)
"""


def test_a_column_that_is_stored_is_stored_with_those_beside_it(tmp_path):
    found = findings(tmp_path, SLOTS)["uncoalesced-access", 9]
    assert found.advice.startswith("let a CTA store the 15 elements between two of them as well")


ONE_BY_ONE = """
@triton.jit
def largest(x, out, n):
    m = -1
    for i in range(n):
        m = tl.maximum(m, tl.load(x + tl.program_id(0) * n + i))
    tl.store(out + tl.program_id(0), m)

x = torch.empty(4096, 4096, device="cuda", dtype=torch.int32)
largest[(4096,)](x, torch.empty(4096, device="cuda", dtype=torch.int32), 4096)
"""


def test_an_estimate_is_printed_without_powers_of_ten(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(HEAD + ONE_BY_ONE)
    assert "(estimated 32 x, 11 to 95)" in kperf("diagnose", "--static", script).stdout


ONCE = """
@triton.jit
def scaled(x, tmp, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    half = tl.load(x + i, mask=mask) * 0.5
    STORE
    tl.store(y + i, tl.exp(tl.load(AGAIN)), mask=mask)  # again

x, y = (torch.empty(1 << 24, device="cuda") for _ in range(2))
scaled[(4096,)](x, TENSOR, y, 1 << 24, BLOCK=4096)
"""
ROW = """
@triton.jit
def added(x, rest, y, n, BLOCK: tl.constexpr):
    row, squares = tl.program_id(0) * n, tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        one = tl.load(x + row + at, mask=at < n) + tl.load(rest + row + at, mask=at < n)
        tl.store(rest + row + STORED, one, mask=at < n)
        squares += one * one
    total = tl.sum(squares, 0)
    for k in range(0, n, BLOCK):
        at = k + tl.arange(0, BLOCK)
        tl.store(y + row + at, tl.load(rest + row + at, mask=at < n) / total, mask=at < n)  # again

x, rest, y = (torch.empty(4096, 8000, device="cuda") for _ in range(3))
added[(4096,)](x, rest, y, 8000, BLOCK=1024)
"""
STATES = """
@triton.jit
def shifted(states, slots, x, y, n, stride, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    state = states + tl.load(slots + tl.program_id(0)) * stride + i
    k = 0
    while k < n - 1:
        tl.store(state + k * BLOCK, tl.load(state + (k + 1) * BLOCK))
        k += 1
    tl.store(state + (n - 1) * BLOCK, tl.load(x + tl.program_id(0) * BLOCK + i))
    total, k = tl.zeros([BLOCK], tl.float32), 0
    while k < n:
        total += tl.load(state + STEP * BLOCK)  # again
        k += 1
    tl.store(y + tl.program_id(0) * BLOCK + i, total)

states, slots = torch.empty(512, 4, 256, device="cuda"), torch.empty(512, device="cuda", dtype=torch.int32)
x, y = (torch.empty(512, 256, device="cuda") for _ in range(2))
shifted[(512,)](states, slots, x, y, 4, 1024, BLOCK=256)
"""
STORE = "tl.store(tmp + i, half, mask=mask)"
APART = "keep what the earlier loop stores in registers"


def of_stored(tmp_path, source):
    """The finding of the load that is marked."""
    line = (HEAD + source).splitlines().index(next(one for one in source.splitlines() if one.endswith("# again"))) + 1
    return findings(tmp_path, source).get(("redundant-load", line))


@pytest.mark.parametrize(
    ("source", "advice", "least", "most"),
    [
        (ONCE.replace("STORE", STORE).replace("AGAIN", "tmp + i, mask=mask"), "use the tensor that was", 1.05, 1.3),
        (ONCE.replace("STORE", STORE).replace("AGAIN", "tmp + i, mask=i < n"), "use the tensor that was", 1.05, 1.3),
        (ONCE.replace("STORE", STORE[:-11] + ")").replace("AGAIN", "tmp + i, mask=mask"), "use the tensor", 1.05, 1.3),
        (ROW.replace("STORED", "at"), APART, 1.05, 1.3),
        (
            ROW.replace("STORED", "at").replace("[BLOCK]", "[1, BLOCK]").replace(", BLOCK)", ", BLOCK)"),
            APART,
            1.05,
            1.3,
        ),
        (STATES.replace("STEP", "k"), APART, 1.2, 3.0),
    ],
    ids=["a tile", "a mask made again", "a store without a mask", "a row", "a row of results", "states"],
)
def test_what_the_cta_stored_before_is_in_registers(tmp_path, source, advice, least, most):
    source = source.replace("TENSOR", "torch.empty_like(x)")
    finding = of_stored(tmp_path, source)
    assert "is read at the addresses at which line" in finding.message
    assert finding.advice.startswith(advice)
    assert least < finding.estimate.speedup < most


@pytest.mark.parametrize(
    "source",
    [
        ONCE.replace("STORE", STORE).replace("AGAIN", "tmp + (i ^ 1), mask=mask"),
        ONCE.replace("STORE", STORE + "; tl.debug_barrier()").replace("AGAIN", "tmp + (n - 1 - i), mask=mask"),
        ONCE.replace("STORE", STORE).replace("AGAIN", "tmp + i"),
        ONCE.replace("STORE", f"if n > 5: {STORE}").replace("AGAIN", "tmp + i, mask=mask"),
        ONCE.replace("STORE", f"{STORE}; tl.store(tmp + (i ^ 1), half)").replace("AGAIN", "tmp + i, mask=mask"),
        ONCE.replace("STORE", f"{STORE}; tl.atomic_add(tmp + i, half)").replace("AGAIN", "tmp + i, mask=mask"),
        ONCE.replace("STORE", f"{STORE}; tl.store(y + i, half)")
        .replace("AGAIN", "tmp + i, mask=mask")
        .replace("TENSOR", "y"),
        ONCE.replace("STORE", STORE).replace("AGAIN", "tmp + i, mask=mask, volatile=True"),
        ROW.replace("STORED", "(at ^ 1)"),
        ROW.replace("STORED", "at").replace("k + tl.arange", "n - BLOCK - k + tl.arange"),
        STATES.replace("STEP", "(k * 2)"),
    ],
    ids=[
        "neighbours", "backwards", "no mask", "a branch", "stored again", "added to", "another name", "volatile",
        "neighbours of a row", "a row backwards", "other steps",
    ],
)  # fmt: skip
def test_what_it_stored_elsewhere_or_others_may_have_changed_is_not(tmp_path, source):
    finding = of_stored(tmp_path, source.replace("TENSOR", "torch.empty_like(x)"))
    assert finding is None or "stored it" not in finding.message


def test_a_row_that_is_too_long_for_registers_is_a_hint(tmp_path):
    finding = of_stored(tmp_path, ROW.replace("STORED", "at").replace("8000", "80000"))
    assert (finding.severity, finding.estimate.speedup) == ("low", 1.05)
    assert finding.advice.startswith("let this loop run from the end to the beginning")
