"""Sliding windows whose elements each output loads and reduces anew, and sums of which no neighbour has a part."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import FAILED, diagnose
from tests.diagnose.test_kernels import KERNELS
from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

RULE = "window-summed-anew"
LOOP = """
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for j in range(W):
        x = tl.load(x_ptr + t + j)
        acc += x
    tl.store(y_ptr + t, acc / W)
"""
TILE = """
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.arange(0, W)
    x = tl.load(x_ptr + t[:, None] + j[None, :])
    tl.store(y_ptr + t, tl.sum(x, axis=1))
"""
ROWS = """
    row, col = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for r in range(FIRST, LAST):
        x = tl.load(x_ptr + r * n + col, mask=(r >= 0) & (r < 2000) & (col < n), other=0.0)
        acc += x
    tl.store(y_ptr + row * n + col, acc, mask=col < n)
"""
CAUSAL = """
    col = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    for row in range(4000):
        acc = tl.zeros((BLOCK,), tl.float32)
        p = x_ptr + row * n + col
        for back in range(W):
            x = tl.load(p)
            acc += x
            p += n
        tl.store(y_ptr + row * n + col, acc)
"""
SQUARE = """
    row, col = tl.program_id(1), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.full((BLOCK,), 0.0, tl.float32)
    for dy in LOOP(W):
        for dx in LOOP(W):
            x = tl.load(x_ptr + (row + dy) * n + col + dx)
            acc = tl.maximum(acc, x)
    tl.store(y_ptr + row * n + col, acc)
"""
ONE = """
    i = tl.program_id(0)
    x = tl.load(x_ptr + i + tl.arange(0, W))
    tl.store(y_ptr + i, tl.min(x, axis=0))
"""
SCALARS = """
    i, acc = tl.program_id(0), 0.0
    for j in range(n):
        x = tl.load(x_ptr + i + j)
        acc += x
    tl.store(y_ptr + i, acc)
"""
STEPS = """
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float32)
    for j in range(0, W, 16):
        at = t[:, None] - W + 1 + j + tl.arange(0, 16)[None, :]
        x = tl.load(x_ptr + at, mask=at >= 0, other=0.0)
        acc += tl.sum(x, axis=1)
    tl.store(y_ptr + t, acc)
"""
ENERGIES = TILE.replace("t[:, None]", "t[:, None] * 16").replace("tl.sum(x", "tl.sum(x * x")
CHOSEN = "acc = tl.where(x > acc, x, acc)"


def diagnosed(folder, body, window=64, block=1024, n=2000, grid=(2000, 3), dtype="float32"):
    """The diagnosis of a kernel in a script that launches it."""
    path = folder / "script.py"
    path.write_text(
        "import torch, triton, triton.language as tl\n\n@triton.jit\n"
        f"def kernel(x_ptr, z_ptr, y_ptr, n, W: tl.constexpr, BLOCK: tl.constexpr):{body}\n"
        f"x, z = (torch.zeros(1 << 24, device='cuda', dtype=torch.{dtype}) for _ in range(2))\n"
        f"y = torch.zeros(1 << 24, device='cuda')\nkernel[{grid}](x, z, y, {n}, {window}, {block})\n"
    )
    (kernel,) = inputs.read(str(path), (), SM_90A)
    diagnosis = diagnose(kernel)
    assert not [rule for rule, why in diagnosis.skipped.items() if FAILED in why]
    return diagnosis


def finding(*arguments, **options):
    return next((one for one in diagnosed(*arguments, **options).findings if one.id == RULE), None)


@pytest.mark.parametrize(
    ("body", "line", "window", "kinds"),
    [
        (LOOP, 8, 64, "sum"),
        (LOOP.replace("x_ptr + t + j", "x_ptr + t - j, mask=(t >= j) & (t < n), other=0.0"), 8, 64, "sum"),
        (LOOP.replace("range(W)", "range(n)"), 8, 2000, "sum"),
        (LOOP.replace("range(W)", "tl.static_range(W)").replace("acc += x", CHOSEN), 8, 64, "maximum"),
        (LOOP.replace("range(W)", "tl.range(W, loop_unroll_factor=4)"), 8, 64, "sum"),
        (LOOP.replace("acc += x", "acc += x * tl.load(z_ptr + t + j)"), 8, 64, "sum"),
        (LOOP.replace("x_ptr + t + j)", "x_ptr + tl.where(t + j < n * 1024, t + j, 0))"), 8, 64, "sum"),
        (ROWS.replace("FIRST, LAST", "row - W // 2, row + W // 2"), 8, 64, "sum"),
        (ROWS.replace("FIRST, LAST", "tl.maximum(row - W + 1, 0), row + 1"), 8, 64, "sum"),
        (CAUSAL, 10, 64, "sum"),
    ],
)
def test_a_window_in_a_loop_is_found(tmp_path, body, line, window, kinds):
    one = finding(tmp_path, body)
    assert (one.severity, one.source.line) == ("high", line)
    assert f"its window of {window} elements of x_ptr anew, for their {kinds}," in one.message
    assert f"{window} neighbouring windows from two chunks of {window} elements" in one.advice
    assert ("tl.cumsum(b, axis) - b" in one.advice) == (kinds == "sum")
    assert ("tl.associative_scan(b" in one.advice) == (kinds != "sum")


def test_two_sums_of_one_window_are_one_finding(tmp_path):
    """A tile of 1024 outputs asks for 64 of 2 bytes: L1 gives a warp no more than 32 of them in a cycle."""
    body = LOOP.replace("acc += x", "acc += x\n        square += x * x").replace(
        "    for", "    square = tl.zeros((BLOCK,), tl.float32)\n    for"
    )
    body = body.replace("acc / W", "square - acc").replace("+ t + j)", "+ t + j).to(tl.float32)")
    diagnosis = diagnosed(tmp_path, body, dtype="bfloat16")
    (one,) = [one for one in diagnosis.findings if one.id == RULE]
    assert one.evidence["load_cycles"] == 1024 * 64 / 32


@pytest.mark.parametrize(
    ("body", "window", "block", "line", "hop"),
    [(TILE, 128, 64, 7, 1), (STEPS, 256, 128, 9, 1), (ENERGIES, 1024, 16, 7, 16), (ONE, 512, 1, 6, 1)],
)
def test_a_window_that_is_an_axis_of_a_tile_is_found(tmp_path, body, window, block, line, hop):
    one = finding(tmp_path, body, window, block, grid=(1 << 14,))
    assert (one.source.line, one.evidence["window"], one.evidence["hop"]) == (line, window, hop)
    assert f"two chunks of {window // hop} elements" in one.advice
    assert one.advice.startswith("reduce each 16 elements to one first; ") == (hop > 1)


@pytest.mark.parametrize("loop", ["range", "tl.static_range"])
def test_a_square_is_reduced_along_one_direction_after_the_other(tmp_path, loop):
    one = finding(tmp_path, SQUARE.replace("LOOP", loop), 7, 256, grid=(4, 900))
    assert (one.source.line, one.evidence["window"]) == (9, 49)
    assert "its window of 7 x 7 elements" in one.message
    assert one.advice.startswith("reduce along one direction, and then the results along the other one; ")


def test_two_sums_of_a_square_are_one_finding(tmp_path):
    body = SQUARE.replace("tl.maximum(acc, x)", "acc + x\n            total += x * x").replace("LOOP", "range")
    body = body.replace("    acc = tl.full", "    total = tl.zeros((BLOCK,), tl.float32)\n    acc = tl.full")
    one = finding(tmp_path, body.replace("col, acc)", "col, acc + total)"), 15, 256, grid=(4, 900))
    assert (one.source.line, one.evidence["window"]) == (10, 225)
    assert one.evidence["arithmetic_cycles"] == 3 * 225 * 256 / 128  # a multiplication and two additions


def test_a_window_of_single_numbers_is_no_scalar_loop(tmp_path):
    rules = {one.id for one in diagnosed(tmp_path, SCALARS, n=200, grid=(1 << 16,)).findings}
    assert RULE in rules
    assert rules.isdisjoint({"scalar-loop", "program-per-item", "few-bytes-in-flight"})


@pytest.mark.parametrize(
    "body",
    [
        LOOP.replace("acc += x", "acc += x * tl.load(z_ptr + j)"),  # a convolution
        LOOP.replace("acc += x", "acc += x * tl.exp(-0.1 * j)"),
        LOOP.replace("range(W)", "tl.static_range(W)").replace("acc += x", "acc += x * (0.505 + 0.01 * j)"),
        LOOP.replace("acc += x", "acc += tl.exp(x * tl.load(z_ptr + t))"),  # attention
        LOOP.replace("acc += x", "acc += tl.abs(x - tl.load(z_ptr + t))"),
        LOOP.replace("acc += x", "acc += x * tl.load(x_ptr + j)"),  # an autocorrelation
        LOOP.replace("acc += x", "acc = acc * 0.9 + x"),
        LOOP.replace("acc += x", "acc = acc + x * acc"),
        LOOP.replace("acc += x", "acc += x\n        tl.store(y_ptr + j * 4096 + t, acc)"),  # all prefixes
        LOOP.replace("+ t + j", "+ t * W + j"),  # windows that do not overlap
        LOOP.replace("+ t + j", "+ t + j * 2048000"),
        LOOP.replace("+ t + j", "+ j"),
        LOOP.replace("range(W)", "range(4)"),
        LOOP.replace("+ t + j", "+ tl.load(z_ptr + t).to(tl.int32) + j"),  # n-grams
        LOOP.replace("+ t + j", "+ tl.load(z_ptr + t + j).to(tl.int32)"),
        LOOP.replace("+ t + j", "+ t + j, mask=j < tl.load(z_ptr + t), other=0.0"),
        ROWS.replace("FIRST, LAST", "row * W, row * W + W"),
        ONE.replace("x_ptr + i +", "x_ptr + i * W +"),
    ],
)
def test_other_sums_have_nothing_in_common(tmp_path, body):
    assert finding(tmp_path, body) is None


@pytest.mark.parametrize(
    "body",
    [
        TILE.replace("tl.sum(x", "tl.sum(x * tl.load(z_ptr + j)[None, :]"),
        TILE.replace("x_ptr + t[:, None]", "x_ptr + t[:, None] * 128"),
        TILE.replace("x_ptr + t[:, None]", "x_ptr + t[:, None] * 64"),  # half of a window is the next one's
        TILE.replace("y_ptr + t, tl.sum(x, axis=1)", "y_ptr + tl.program_id(0), tl.sum(x)"),
    ],
)
def test_other_tiles_have_nothing_in_common(tmp_path, body):
    assert finding(tmp_path, body, 128, 64, grid=(1 << 14,)) is None


def test_a_window_whose_length_nothing_says_is_not_known(tmp_path):
    arguments = "x_ptr, z_ptr, y_ptr, n, W: tl.constexpr, BLOCK: tl.constexpr"
    for length, is_found in (("W", True), ("n", False)):
        source = f"def kernel({arguments}):{LOOP.replace('range(W)', f'range({length})')}"
        rules = found(tmp_path, source, "*fp32,*fp32,*fp32,i32", "W=64", "BLOCK=1024")
        assert (RULE in rules) == is_found


def test_columns_have_a_sum_each_whatever_the_grid_is(tmp_path):
    """Without a launch a CTA some places further could have the next row."""
    body = LOOP.replace("+ t + j", "+ t + j * 4096")
    assert finding(tmp_path, body, grid=(4,)) is None
    source = f"def kernel(x_ptr, y_ptr, W: tl.constexpr, BLOCK: tl.constexpr):{body}"
    assert RULE not in found(tmp_path, source, "*fp32,*fp32", "W=64", "BLOCK=1024")


def test_the_estimate_is_near_what_was_measured():
    """`rolling_mean` is 20.26 times as fast with two scans (H200)."""
    kernel, *_ = inputs.read(str(KERNELS / "drafts/rolling_mean.py"), (), SM_90A)
    (one,) = diagnose(kernel).findings
    assert (one.id, one.severity, one.source.line) == (RULE, "high", 24)
    assert one.evidence["load_cycles"] == 1024 * 256 * 4 / 128
    assert one.estimate.speedup == pytest.approx(20.26, rel=0.15)


@pytest.mark.parametrize("name", ["rolling_mean", "moving_maximum"])
def test_scans_of_chunks_are_no_windows(name):
    kernel, *_ = inputs.read(str(KERNELS / f"fixed/{name}.py"), (), SM_90A)
    assert diagnose(kernel).findings == []
