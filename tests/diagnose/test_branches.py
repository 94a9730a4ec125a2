"""Loops whose MMAs are in a branch."""

import pytest

from tests.diagnose.test_severities import BF16, found

pytestmark = pytest.mark.kernels

LOOP = """
def product(a, b, c, least, K: tl.constexpr, B: tl.constexpr):
    m, n = tl.program_id(0) * 64, tl.program_id(1) * 64
    rows, columns = m + tl.arange(0, 64)[:, None], n + tl.arange(0, 64)[None, :]
    acc = tl.zeros((64, 64), tl.float32)
    for i in range(K // B):
        at = i * B + tl.arange(0, B)
        x, y = LOADS
        SUM
    tl.store(c + rows * 4096 + columns, acc)
"""
POINTERS = "tl.load(a + rows * K + at[None, :]), tl.load(b + at[:, None] * 4096 + columns)"
BY_TMA = "a.load([m, i * B]), b.load([i * B, n])"
ALWAYS = "acc += tl.where(i >= least, tl.dot(x, y), 0.0)"
SUMS = {
    "one branch": "if i >= least:\n            acc += tl.dot(x, y)",
    "both branches": "if i >= least:\n            acc += tl.dot(x, y)\n        else:\n            acc -= tl.dot(x, y)",
}
TENSORS = f"""
from triton.tools.tensor_descriptor import TensorDescriptor
a, c = torch.empty(4096, 4096, {BF16}), torch.empty(4096, 4096, device="cuda")
"""
OPERANDS = {POINTERS: "a, a", BY_TMA: "*[TensorDescriptor.from_tensor(a, [64, 64])] * 2"}


def rows(folder, loads, sums):
    launch = f"{TENSORS}product[(64, 64)]({OPERANDS[loads]}, c, 0, 4096, 64, num_stages=3)"
    return found(folder, LOOP.replace("LOADS", loads).replace("SUM", sums), launch)


@pytest.mark.parametrize("loads", [POINTERS, BY_TMA], ids=["pointers", "TMA"])
@pytest.mark.parametrize("sums", SUMS)
def test_tiles_of_an_mma_in_a_branch_are_not_pipelined_for_the_branch(tmp_path, loads, sums):
    finding = rows(tmp_path, loads, SUMS[sums])["loads-not-pipelined"]
    assert "the tl.dot that takes it is in a branch of the loop" in finding.message
    assert f"as {ALWAYS}" in finding.advice.replace("condition, tl.dot(a, b)", "i >= least, tl.dot(x, y)")


@pytest.mark.parametrize("loads", [POINTERS, BY_TMA], ids=["pointers", "TMA"])
@pytest.mark.parametrize("sums", [ALWAYS, "acc += tl.dot(x, y)\n        if i >= least:\n            acc *= 0.5"])
def test_the_advice_lets_the_compiler_pipeline_them(tmp_path, loads, sums):
    assert "loads-not-pipelined" not in rows(tmp_path, loads, sums)


EITHER = """
def either(a, b, c, first, N, K, WIDE: tl.constexpr, D: tl.constexpr):
    m, n = tl.program_id(0) * 128, tl.program_id(1) * 128
    rows, columns, k = m + tl.arange(0, 128)[:, None], n + tl.arange(0, 128)[None, :], tl.arange(0, 32)
    wide, start = WIDE, tl.load(first)
    acc = tl.zeros((128, 128), tl.float32)
    for i in range(0, D // 32):
        if CONDITION:
            x = tl.load(a + rows * D + (i * 32 + k)[None, :])
        else:
            x = tl.load(a + rows * D + (i * 32 + k)[None, :], mask=columns < N, other=0.0)
        if SECOND:
            y = tl.load(b + (i * 32 + k)[:, None] * 4096 + columns)
        else:
            y = tl.load(b + (i * 32 + k)[:, None] * 4096 + columns, mask=columns < N, other=0.0)
        acc = tl.dot(x, y, acc)
    tl.store(c + rows * 4096 + columns, acc)
""".replace("mask=columns < N, other=0.0)\n        if", "mask=rows < N, other=0.0)\n        if")


def either(folder, condition, second=None):
    kernel = EITHER.replace("CONDITION", condition).replace("SECOND", second or condition)
    tensors = TENSORS + 'first = torch.empty(1, device="cuda", dtype=torch.int32)\n'
    return found(folder, kernel, f"{tensors}either[(32, 32)](a, a, c, first, 4093, 4096, 1, 4096, num_warps=4)")


@pytest.mark.parametrize(
    ("condition", "advice"),
    [
        ("N % 128 == 0", "make N tl.constexpr: "),
        ("K - N > 64", "make K and N tl.constexpr: "),
        ("start > 0", "load before the branch"),  # a loaded number
        ("m + 128 <= N", "load before the branch"),  # a CTA's tile
        ("i * 32 < N", "load before the branch"),  # an iteration's
    ],
)
def test_a_branch_that_arguments_alone_decide_can_be_the_compilers(tmp_path, condition, advice):
    finding = either(tmp_path, condition)["loads-not-pipelined"]
    assert finding.message.endswith("it is in a branch of the loop")
    assert finding.advice.startswith(advice)


def test_an_iteration_waits_once_more_for_each_branch_with_loads(tmp_path):
    """Two CTAs of an SM multiply for 394 cycles, and load for 256, after 1200 of waiting. The launch takes little."""
    once, twice = (either(tmp_path, "N % 128 == 0", f"{one} % 128 == 0")["loads-not-pipelined"] for one in "NK")
    assert once.severity == twice.severity == "high"
    assert once.estimate.speedup == pytest.approx((1200 + 394 + 256) / (2 * 394), rel=0.02)
    assert twice.estimate.speedup == pytest.approx((2 * 1200 + 394 + 256) / (2 * 394), rel=0.02)


def test_the_two_sides_of_a_branch_load_no_bytes_twice(tmp_path):
    assert "redundant-load" not in either(tmp_path, "N % 128 == 0")


def test_the_compiler_pipelines_the_loads_of_a_branch_that_it_decides(tmp_path):
    assert "loads-not-pipelined" not in either(tmp_path, "wide == 1")
