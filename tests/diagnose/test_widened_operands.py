"""Operands that a kernel widens for the functions it calls, and the CTAs that their bytes take from an SM."""

import pytest

from tests.diagnose.test_severities import found

pytestmark = pytest.mark.kernels

POWER = """
def step(v, m):
    CAST
    return tl.dot(v, m)

@triton.jit
def powers(v_ptr, m_ptr, out, steps, R: tl.constexpr, D: tl.constexpr):
    r, d = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, D)
    v = tl.load(v_ptr + r[:, None] * D + d[None, :])
    m = tl.load(m_ptr + tl.program_id(0) * D * D + d[:, None] * D + d[None, :])LOADED
    for _ in range(steps):
        v = CALL
        v = v / (1.0 + tl.sum(tl.abs(v), 1)[:, None])
    tl.store(out + r[:, None] * D + d[None, :], v)
"""
LAUNCH = """
v, out = torch.empty(1 << 16, SIDE, device="cuda"), torch.empty(1 << 16, SIDE, device="cuda")
m = torch.empty(1024, SIDE, SIDE, device="cuda", dtype=torch.M_DTYPE)
powers[(1024,)](v, m, out, 20, 64, SIDE, num_warps=4)
"""


def powers(folder, loaded=".to(tl.float32)", cast="", call="step(v, m)", side=128, dtype="bfloat16"):
    kernel = POWER.replace("LOADED", loaded).replace("CAST", cast or "v = v * 1.0").replace("CALL", call)
    return found(folder, kernel, LAUNCH.replace("SIDE", str(side)).replace("M_DTYPE", dtype))


def line_of(folder, text):
    lines = (folder / "script.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_a_caller_widens_is_at_the_callers_line(tmp_path, dtype):
    finding = powers(tmp_path, dtype=dtype)["widened-operands"]
    assert finding.source.line == line_of(tmp_path, "m = tl.load")
    assert f"an operand of the MMA on line {line_of(tmp_path, 'return tl.dot')} is {dtype} in memory" in finding.message
    assert finding.advice == (
        f"if {dtype} is precise enough, leave out this conversion, convert the other operand to {dtype}, and give "
        "tl.dot both"
    )


@pytest.mark.parametrize(
    ("loaded", "cast", "call"),
    [
        ("", "m = m.to(tl.float32)", "step(v, m)"),  # the function itself
        (".to(tl.float32)", "", "tl.dot(v, m)"),  # without a function
    ],
)
def test_what_a_function_widens_itself_is_at_its_mma(tmp_path, loaded, cast, call):
    finding = powers(tmp_path, loaded, cast, call)["widened-operands"]
    assert finding.source.line == line_of(tmp_path, "return tl.dot" if cast else "v = tl.dot")
    assert "leave out" not in finding.advice


def test_a_cta_more_on_an_sm_without_the_conversion_makes_it_severe(tmp_path):
    """64 KB of 96 KB are the widened matrix: two CTAs fit on an SM, and of half of it three."""
    finding = powers(tmp_path)["widened-operands"]
    assert finding.severity == "high"
    assert finding.evidence["more_ctas"] == 1.5
    assert finding.message.endswith("and without which 1.5 times as many CTAs fit on an SM")
    assert finding.estimate.speedup == pytest.approx(1.8 * 1.5)


def test_small_tiles_take_no_ctas_from_an_sm(tmp_path):
    finding = powers(tmp_path, side=32)["widened-operands"]
    assert (finding.severity, finding.estimate.speedup, finding.evidence["more_ctas"]) == ("medium", 1.8, 1.0)


@pytest.mark.parametrize("loaded", ["", ".to(tl.bfloat16)"])
def test_operands_as_wide_as_in_memory_are_no_finding(tmp_path, loaded):
    call = "tl.dot(v.to(tl.bfloat16), m)"
    assert "widened-operands" not in powers(tmp_path, loaded, call=call)
