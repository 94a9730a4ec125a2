"""A `tl.dot` that is made of several MMAs, by what its operands were in memory."""

from pathlib import Path

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import FAILED, diagnose

pytestmark = pytest.mark.kernels

KERNELS = Path(__file__).parent / "kernels"
RULE = "emulated-float32"
SCRIPT = """
import torch, triton, triton.language as tl

@triton.jit
def gemm(a_ptr, b_ptr, s_ptr, c_ptr, K, N, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        a = tl.load(a_ptr + rm[:, None] * K + rk[None, :], mask=rk[None, :] < K, other=0)
        b = tl.load(b_ptr + rk[:, None] * N + rn[None, :], mask=rk[:, None] < K, other=0)
        BODY
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc)

a = torch.randn(4096, 4096, device="cuda").to(torch.A_DTYPE)
b = torch.randn(4096, 4096, device="cuda").to(torch.B_DTYPE)
s, c = torch.ones(4096, device="cuda"), torch.empty(4096, 4096, device="cuda")
gemm[(4096 // BLOCK, 64)](a, b, s, c, 4096, 4096, BLOCK, 64, 32)
"""
WIDE = "acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision='tf32x3')"
SUMMED = "acc += tl.dot(a.to(tl.float32), b.to(tl.float32), out_dtype=tl.float32, input_precision='tf32x3')"
SWAPPED = "acc += tl.trans(tl.dot(tl.trans(b.to(tl.float32)), tl.trans(a.to(tl.float32)), input_precision='tf32x3'))"
SCALED = "acc = tl.dot(a.to(tl.float32) * tl.load(s_ptr + rk)[None, :], b, acc, input_precision='tf32x3')"
ROWS_SCALED = "acc = tl.dot(a.to(tl.float32) * tl.load(s_ptr + rm)[:, None], b, acc, input_precision='tf32x3')"


def findings(tmp_path, body, a="float32", b="float32", block=64, script=SCRIPT):
    path = tmp_path / "script.py"
    script = script.replace("BODY", body).replace("A_DTYPE", a).replace("B_DTYPE", b).replace("BLOCK", str(block))
    path.write_text(script)
    (kernel,) = inputs.read(str(path), (), SM_90A)
    found = diagnose(kernel)
    assert not [rule for rule, why in found.skipped.items() if FAILED in why]
    return {finding.id: finding for finding in found.findings}


@pytest.mark.parametrize(
    ("body", "a", "b", "block", "severity", "gain"),
    [
        (WIDE, "float32", "float32", 64, "low", 2),  # of four parts through shared memory, two are left
        (WIDE.replace("tf32x3", "bf16x3"), "float32", "float32", 64, "low", 1.5),
        (WIDE.replace("tf32x3", "bf16x6"), "float32", "float32", 64, "low", 3),
        (SUMMED, "bfloat16", "float32", 16, "medium", 3),
        (WIDE, "float32", "float16", 64, "medium", 2),
        (SWAPPED, "bfloat16", "bfloat16", 64, "high", 6),
        (SUMMED, "float16", "float16", 128, "high", 6),
        (WIDE, "float16", "bfloat16", 64, "high", 10.7),  # to transpose the float32 parts takes longer than the MMAs
    ],
)
def test_what_several_mmas_cost_depends_on_the_operands_in_memory(tmp_path, body, a, b, block, severity, gain):
    finding = findings(tmp_path, body, a, b, block)[RULE]
    assert (finding.severity, finding.estimate.speedup) == (severity, pytest.approx(gain, rel=0.1))
    assert finding.source.line == 13
    assert f"makes {6 if 'x6' in body else 3} MMAs of this tl.dot" in finding.message


def test_parts_of_operands_that_are_transposed_take_longer_than_the_mmas():
    """1536 cycles of MMAs, 512 of arithmetic, 4672 of shared memory, 16 lanes in a bank; then 256. 17.95 x (H200)."""
    (kernel,) = inputs.read(str(KERNELS / "drafts/channel_covariance.py"), (), SM_90A)
    (finding,) = (one for one in diagnose(kernel).findings if one.id == RULE)
    assert finding.estimate.speedup == pytest.approx((1536 + 512 + 4672) / (256 / 0.65), rel=0.01)


def test_the_advice_says_which_operand_loses_nothing(tmp_path):
    one = findings(tmp_path, WIDE, "bfloat16", "float32")[RULE]
    assert "although one operand is bfloat16 in memory" in one.message
    assert one.advice.endswith("it rounds the other operand alone, as TF32 holds all bits of bfloat16")
    both = findings(tmp_path, WIDE, "bfloat16", "bfloat16")[RULE]
    assert both.advice == "give tl.dot the bfloat16 operands without a conversion: tl.dot sums in float32 anyway"
    none = findings(tmp_path, WIDE)[RULE]
    assert none.advice == "if 10 bits of mantissa are enough, pass input_precision='tf32', which makes one MMA"


@pytest.mark.parametrize("body", [SCALED, ROWS_SCALED])
def test_a_scaled_operand_has_more_bits_than_in_memory(tmp_path, body):
    assert "rounds the other" not in findings(tmp_path, body, "bfloat16", "float32")[RULE].advice


@pytest.mark.parametrize("precision", ["tf32x3", "bf16x3", "bf16x6"])
def test_that_the_mmas_wait_for_each_other_has_this_cause(tmp_path, precision):
    """MMAs of bfloat16 that the compiler makes have the lines on which their operands are loaded."""
    found = findings(tmp_path, WIDE.replace("tf32x3", precision))
    assert "wgmma-serialised" not in found
    assert found[RULE].evidence["explains"] == "wgmma-serialised"


@pytest.mark.parametrize(
    ("body", "a"),
    [
        (WIDE.replace("tf32x3", "tf32"), "float32"),
        (WIDE.replace("tf32x3", "ieee"), "float32"),
        ("acc = tl.dot(a, b.to(a.dtype), acc, input_precision='tf32x3')", "bfloat16"),  # of 16 bits one MMA is made
        (  # three products of other operands
            "acc = tl.dot(a, b, tl.dot(a + 1, b, tl.dot(a, b * 2, acc)))",
            "float32",
        ),
    ],
)
def test_a_single_mma_is_no_finding(tmp_path, body, a):
    assert RULE not in findings(tmp_path, body, a)


def test_a_launch_that_memory_bounds_gains_nothing_of_fewer_mmas(tmp_path):
    few_columns = SCRIPT.replace("64)](a, b, s, c, 4096, 4096, BLOCK, 64", "1)](a, b, s, c, 4096, 16, BLOCK, 16")
    assert RULE not in findings(tmp_path, WIDE, "bfloat16", "bfloat16", 64, few_columns)
    assert RULE in findings(tmp_path, WIDE, "bfloat16", "bfloat16", 64)
