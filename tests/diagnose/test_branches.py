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
    assert finding.message.endswith("the tl.dot that takes it is in a branch of the loop")
    assert f"as {ALWAYS}" in finding.advice.replace("condition, tl.dot(a, b)", "i >= least, tl.dot(x, y)")


@pytest.mark.parametrize("loads", [POINTERS, BY_TMA], ids=["pointers", "TMA"])
@pytest.mark.parametrize("sums", [ALWAYS, "acc += tl.dot(x, y)\n        if i >= least:\n            acc *= 0.5"])
def test_the_advice_lets_the_compiler_pipeline_them(tmp_path, loads, sums):
    assert "loads-not-pipelined" not in rows(tmp_path, loads, sums)
