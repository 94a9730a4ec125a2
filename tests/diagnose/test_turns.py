"""Kernels without loops of which one CTA fills an SM: no other CTA computes while it waits for memory."""

import pytest

from tests.diagnose.test_severities import BF16, found

pytestmark = pytest.mark.kernels

ROW = """
def activated(x, w, y, N, stride, B: tl.constexpr):
    columns = tl.arange(0, B)
    at = tl.program_id(0) * stride + columns
    value = tl.load(x + at, mask=columns < N).to(tl.float32) * tl.load(w + columns, mask=columns < N)
    tl.store(y + at, WORK, mask=columns < N)
"""
TILE = """
def tile(x, y, stride, R: tl.constexpr, B: tl.constexpr):
    rows = tl.program_id(0) * R + tl.arange(0, R)
    at = rows[:, None] * stride + tl.arange(0, B)[None, :]
    value = tl.load(x + at).to(tl.float32)
    tl.store(y + at, WORK)
"""
FLAT = """
def flat(a, b, y, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(a + at).to(tl.float32) + tl.load(b + at)
    tl.store(y + at, WORK)
"""
SWEPT = """
def swept(x, y, N, B: tl.constexpr):
    for start in range(0, N, B):
        at = tl.program_id(0) * N + start + tl.arange(0, B)
        value = tl.load(x + at).to(tl.float32)
        tl.store(y + at, WORK)
"""
ERF = "0.5 * value * (1.0 + tl.erf(value * 0.7071))"
TENSORS = f"x = torch.empty(1 << 27, {BF16})\nw, y = torch.empty(16384, {BF16}), torch.empty_like(x)\n"
PART = "give a CTA a quarter of the tile, 4096 elements with num_warps="
WHOLE = f"{PART}4, and the grid an axis for the parts of a row, so that an SM holds several CTAs"


@pytest.mark.parametrize(
    ("kernel", "work", "launch", "advice"),
    [
        (ROW, ERF, "activated[(4096,)](x, w, y, 16000, 16000, 16384, num_warps=16)", WHOLE),
        (ROW, ERF, "activated[(512,)](x, w, y, 16384, 16384, 16384, num_warps=16)", WHOLE),
        (TILE, ERF, "tile[(1024,)](x, y, 2048, 8, 2048, num_warps=8)", f"{PART}2, so that an SM"),
        (FLAT, ERF, "flat[(4096,)](x, x, y, 16384, num_warps=16)", "halve the tile: B=8192, with fewer warps"),
    ],
    ids=["a row with a mask", "a row without one", "rows", "elements"],
)
def test_a_cta_that_fills_an_sm_loads_and_computes_in_turn(tmp_path, kernel, work, launch, advice):
    one = found(tmp_path, kernel.replace("WORK", work), TENSORS + launch)["low-occupancy"]
    assert one.message.startswith(
        "one CTA fills an SM, because of its registers: it loads, computes and stores in turn"
    )
    assert one.advice.startswith(advice)
    assert (one.severity, one.evidence["ctas_per_sm"]) == ("medium", 1)
    assert 1.2 < one.estimate.speedup < 2.5


@pytest.mark.parametrize(
    ("kernel", "work", "launch"),
    [
        (ROW, ERF, "activated[(4096,)](x, w, y, 2000, 2000, 2048, num_warps=4)"),
        (ROW, ERF, "activated[(200,)](x, w, y, 16000, 16000, 16384, num_warps=16)"),
        (ROW, "value", "activated[(4096,)](x, w, y, 16000, 16000, 16384, num_warps=32)"),
        (ROW, "value / tl.sum(tl.erf(value), 0)", "activated[(4096,)](x, w, y, 16000, 16000, 16384, num_warps=16)"),
        (SWEPT, ERF, "swept[(4096,)](x, y, 32768, 16384, num_warps=16)"),
    ],
    ids=["several CTAs on an SM", "little more than one wave", "a copy", "a row that is summed", "a loop"],
)
def test_where_ctas_overlap_and_where_no_smaller_tile_is_possible_they_do_not(tmp_path, kernel, work, launch):
    one = found(tmp_path, kernel.replace("WORK", work), TENSORS + launch).get("low-occupancy")
    assert one is None or not one.message.startswith("one CTA fills an SM")
