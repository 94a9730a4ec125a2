"""Launches of many CTAs that work for less time than a GPU takes to start them."""

from pathlib import Path
from statistics import median

import pytest

from kperf.arch import H200_CTA_NS
from kperf.paper import proof
from kperf.record.store import RecordStore
from tests.diagnose.test_severities import BF16, found

pytestmark = pytest.mark.kernels

ROWS = """
def rows(x, w, y, D: tl.constexpr, R: tl.constexpr):
    row = tl.program_id(0) * R + tl.arange(0, R)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    one = tl.load(x + at).to(tl.float32)
    tl.store(y + at, WORK)
"""
ROW = """
def row(x, y, D: tl.constexpr):
    at = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * D + tl.arange(0, D)
    one = tl.load(x + at)
    tl.store(y + at, one / tl.max(one, 0))
"""
COPY = """
def copy(x, y, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + at, tl.load(x + at))
"""
HEADS = """
def rotated(x, y, N, stride, B: tl.constexpr):
    columns = tl.arange(0, B)
    at = tl.program_id(0) * stride + columns
    tl.store(y + at, tl.load(x + at, mask=columns < N), mask=columns < N)
"""
PARTS = """
def parts(x, y, N, stride, B: tl.constexpr):
    columns = tl.program_id(1) * B + tl.arange(0, B)
    at = tl.program_id(0) * stride + columns
    tl.store(y + at, tl.load(x + at, mask=columns < N), mask=columns < N)
"""
SUM = """
def rows(x, y, N, B: tl.constexpr):
    row, acc = tl.program_id(0), tl.zeros((B,), tl.float32)
    for start in range(0, N, B):
        at = start + tl.arange(0, B)
        acc += tl.load(x + row * N + at, mask=at < N, other=0).to(tl.float32)
    tl.store(y + row, tl.sum(acc, 0))
"""
GATHERED = """
def gathered(x, which, y, D: tl.constexpr):
    d = tl.arange(0, D)
    at = tl.load(which + tl.program_id(0)) * D + d
    tl.store(y + tl.program_id(0), tl.sum(tl.load(x + at).to(tl.float32), 0))
"""
SEARCHED = """
def searched(x, table, y, n, S: tl.constexpr, D: tl.constexpr):
    item, each, d = tl.program_id(0), tl.arange(0, S), tl.arange(0, D)
    ends = tl.load(table + each, mask=each < n, other=1 << 30)
    at = PLACE * D + d
    tl.store(y + item * D + d, tl.load(x + at))  # here
"""
PLACES = [
    "tl.sum((ends <= item).to(tl.int32), 0)",
    "tl.max(tl.where(ends <= item, each, 0), 0)",
    "tl.argmin(tl.where(ends > item, ends, 1 << 30), 0)",
    "tl.load(table + tl.max(ends, 0))",
]
SINES = "tl.sin(" * 8 + "one" + ")" * 8
RESULTS = Path(__file__).parents[2] / "results"
STARTED = 1 << 19
TENSORS = f"x = torch.empty(1 << 27, {BF16})\ny = torch.empty_like(x)\n"
COPIED_NS = 512 / 3900  # of a row of 128 numbers of 2 bytes, loaded and stored
LATENCY_NS = 646


@pytest.mark.parametrize(
    ("kernel", "launch", "advice"),
    [
        (ROW, f"row[(1 << 10, {STARTED >> 10})](x, y, 128, num_warps=1)", "let a CTA work on 16 rows at once"),
        (COPY, f"copy[({STARTED},)](x, y, 128, num_warps=1)", "let a CTA work on 16 times as many elements (B=2048"),
    ],
    ids=["a row a program", "a few elements a program"],
)
def test_ctas_that_start_for_longer_than_they_work_are_found(tmp_path, kernel, launch, advice):
    one = found(tmp_path, kernel, TENSORS + launch)["program-per-item"]
    assert one.severity == "medium"
    assert one.message == (
        f"each CTA does too little work: starting {STARTED} CTAs takes 317 us (an H200 starts one in 0.6 ns), and "
        "their loads, stores and arithmetic take 68.8 us"
    )
    assert one.advice.startswith(advice)
    assert one.estimate.speedup == pytest.approx(H200_CTA_NS / (COPIED_NS + LATENCY_NS / STARTED), rel=0.01)


@pytest.mark.parametrize(
    ("kernel", "launch"),
    [
        (ROWS.replace("WORK", "one"), f"rows[({STARTED >> 4},)](x, x, y, 128, 16, num_warps=4)"),
        (ROWS.replace("WORK", "one"), "rows[(4096,)](x, x, y, 128, 1, num_warps=1)"),
        (ROWS.replace("WORK", SINES), f"rows[({STARTED},)](x, x, y, 128, 1, num_warps=1)"),
        (COPY, f"copy[({STARTED >> 4},)](x, y, 2048, num_warps=4)"),
    ],
    ids=["16 rows a program", "few programs", "a row with long arithmetic", "a large block"],
)
def test_ctas_that_work_for_longer_are_not(tmp_path, kernel, launch):
    assert "program-per-item" not in found(tmp_path, kernel, TENSORS + launch)


@pytest.mark.parametrize(
    ("kernel", "launch", "advice"),
    [
        (HEADS, f"rotated[({STARTED},)](x, y, 100, 100, 128, num_warps=1)", "16 rows (heads, items) at once, a tile"),
        (HEADS, f"rotated[({STARTED},)](x, y, 128, 128, 128, num_warps=1)", "16 rows (heads, items) at once, a tile"),
        (
            PARTS,
            f"parts[({STARTED >> 3}, 8)](x, y, 1000, 1000, 128, num_warps=1)",
            "many elements (B=1024, and several rows)",
        ),
        (HEADS.replace("* stride", "* B"), f"rotated[({STARTED},)](x, y, 100, 128, 128, num_warps=1)", "16 rows (head"),
    ],
    ids=["a part of the tile", "the whole tile", "several tiles a row", "a row as long as the tile"],
)
def test_of_a_tile_that_holds_a_whole_row_a_longer_one_is_no_advice(tmp_path, kernel, launch, advice):
    one = found(tmp_path, kernel, TENSORS + launch)["program-per-item"]
    assert advice in one.advice
    assert ("now the tile holds one whole row" in one.advice) == (kernel != PARTS)
    assert ({"B": 256} in one.candidates) == (kernel == PARTS)


@pytest.mark.parametrize(("place", "waits"), [*zip(PLACES, [2, 2, 2, 3], strict=True)])
def test_rows_whose_place_is_searched_in_a_table_are_found_too(tmp_path, place, waits):
    """Each CTA reads the whole table, which L2 keeps: what is to grow is the tile of its own row."""
    kernel = SEARCHED.replace("PLACE", place)
    launch = "table = torch.empty(256, dtype=torch.int32, device='cuda')\n"
    launch += f"searched[({STARTED},)](x, table, y, 256, 256, 128, num_warps=4)"
    one = found(tmp_path, kernel, TENSORS + launch)["program-per-item"]
    assert kernel.strip().splitlines()[one.source.line - 4].endswith("# here")
    assert one.severity == "medium"
    assert one.estimate.speedup == pytest.approx(H200_CTA_NS / (COPIED_NS + waits * LATENCY_NS / STARTED), rel=0.005)


@pytest.mark.parametrize(("ctas", "table", "row"), [(1 << 12, 256, 128), (STARTED, 4096, 128), (STARTED, 256, 2048)])
def test_few_searches_long_ones_and_those_of_long_rows_are_not(tmp_path, ctas, table, row):
    launch = "table = torch.empty(4096, dtype=torch.int32, device='cuda')\n"
    launch += f"searched[({ctas},)](x, table, y, {table}, {table}, {row}, num_warps=4)"
    assert "program-per-item" not in found(tmp_path, SEARCHED.replace("PLACE", PLACES[0]), TENSORS + launch)


def test_bytes_that_l2_keeps_leave_more_to_gain(tmp_path):
    """Rows of a tensor that is smaller than what is gathered: nobody knows how many of them L2 still has."""
    gains = []
    for rows in (1 << 12, 1 << 20):
        launch = f"x = torch.empty({rows} * 128, {BF16})\n"
        launch += f"which = torch.empty({STARTED}, dtype=torch.int32, device='cuda')\n"
        launch += f"y = torch.empty({STARTED}, device='cuda')\n"
        launch += f"gathered[({STARTED},)](x, which, y, 128, num_warps=1)"
        gains.append(found(tmp_path, GATHERED, launch)["program-per-item"].estimate.speedup)
    assert gains[0] > 1.5 * gains[1]


@pytest.mark.parametrize(("width", "rule"), [(64, "idle-threads"), (128, "few-bytes-in-flight")])
def test_the_rule_that_names_the_cause_says_how_long_the_starts_take(tmp_path, width, rule):
    findings = found(tmp_path, ROW, TENSORS + f"row[(1 << 10, {STARTED >> 10})](x, y, {width}, num_warps=4)")
    assert "program-per-item" not in findings
    assert f"starting {STARTED} CTAs takes 317 us" in findings[rule].message
    assert findings[rule].evidence["explains"].endswith("program-per-item")
    assert findings[rule].estimate.speedup == pytest.approx(H200_CTA_NS / (COPIED_NS * width / 128), rel=0.02)


SHORT = """
def short(x, y, N, whole, B: tl.constexpr):
    row, cols = tl.program_id(0), tl.program_id(1) * B + tl.arange(0, B)
    BODY
"""
MASKED = "tl.store(y + row * N + cols, tl.load(x + row * N + cols, mask=MASK), mask=MASK)"
WHOLE = "tl.store(y + row * N + cols, tl.load(x + row * N + cols))"
BRANCH = f"if WHOLE:\n        {WHOLE}\n    else:\n        {MASKED}"


@pytest.mark.parametrize(
    ("body", "condition", "mask", "launch", "elements"),
    [
        (MASKED, "", "cols < N", "(1 << 19, 1)](x, y, 16, 0", 16),
        (MASKED, "", "cols < N", "(1 << 19, 1)](x, y, 40, 0", 40),
        (MASKED, "", "cols < N", "(1 << 18, 2)](x, y, 16, 0", None),
        (MASKED, "", "cols < N", "(1 << 19, 1)](x, y, 500, 0", None),
        (MASKED, "", "cols < row", "(1 << 19, 1)](x, y, 16, 0", None),
        (BRANCH, "tl.program_id(1) < (N // B)", "cols < N", "(1 << 19, 1)](x, y, 16, 0", 16),
        (BRANCH, "whole > 0", "cols < N", "(1 << 19, 1)](x, y, 16, 0", 16),
        (BRANCH, "whole > 0", "cols < N", "(1 << 19, 1)](x, y, 16, 2", None),
        (BRANCH, "row > N", "cols < N", "(1 << 19, 1)](x, y, 16, 0", None),
    ],
    ids=[
        "a short row", "an odd one", "two CTAs a row", "a long row", "a row that grows", "a branch of another CTA",
        "a branch of another launch", "the branch of the launch", "a branch of some CTAs",
    ],
)  # fmt: skip
def test_threads_that_a_number_of_the_launch_leaves_without_work_are_idle(
    tmp_path, body, condition, mask, launch, elements
):
    kernel = SHORT.replace("BODY", body.replace("WHOLE", condition).replace("MASK", mask))
    one = found(tmp_path, kernel, TENSORS + f"short[{launch}, 512, num_warps=4)").get("idle-threads")
    assert (one and one.evidence["elements"]) == elements
    if one is not None:
        row = 1 << (elements - 1).bit_length()
        assert f" x {row}: now the tile holds one whole row" in one.advice
        assert one.advice.endswith("or launch with num_warps=1")
        copied = elements * 2 * 2 / 3900
        assert one.estimate.speedup == pytest.approx(H200_CTA_NS / (copied + LATENCY_NS / STARTED), rel=0.04)


@pytest.mark.parametrize(
    ("kernel", "launch"), [(COPY, "copy[(4,)](x, y, 4, num_warps=4)"), (SUM, "rows[(4,)](x, y, 4, 16, num_warps=4)")]
)
def test_a_launch_of_a_few_ctas_gains_nothing_by_fewer(tmp_path, kernel, launch):
    """They start together, and wait for memory once: more work for each leaves more SMs without any."""
    one = found(tmp_path, kernel, TENSORS + launch)["idle-threads"]
    assert one.severity == "low"
    assert (one.estimate.speedup, one.estimate.low) == (1.0, 1.0)
    assert one.estimate.high >= 1.0
    assert "starting" not in one.message
    assert one.advice == "launch with num_warps=1"


def test_a_launch_of_a_few_ctas_waits_in_each_iteration(tmp_path):
    one = found(tmp_path, SUM, TENSORS + "rows[(4,)](x, y, 1 << 16, 16, num_warps=4)")["idle-threads"]
    assert one.severity == "medium"
    assert one.advice.startswith("let a CTA work on several rows, or on a larger BLOCK")


@pytest.mark.parametrize(
    ("gpu", "kernel", "ctas", "written"),
    [("h200", "edge_scores", 1 << 21, "0.603"), ("h100-80gb-hbm3", "beam_kv_reorder", 1 << 20, "0.604")],
)
def test_a_cta_starts_as_soon_as_in_recorded_launches(gpu, kernel, ctas, written):
    (*_, row) = (one for one in RecordStore(RESULTS / gpu, "diagnose", proof.ROWS).points() if one.name == kernel)
    assert row.fixed is not None
    of_each = median(row.fixed.original_ms) * 1e6 / ctas
    assert of_each == pytest.approx(H200_CTA_NS, rel=0.01)
    assert f"{of_each:.3f}" == written
    assert written in (RESULTS.parent / "docs/rules/program-per-item.md").read_text()


SLOTS = """
def slots(x, y, count, width, n, divisor, B: tl.constexpr):
    row, found = tl.program_id(0), 0
    for start in range(0, n, B):
        cols = start + tl.arange(0, B)
        v = tl.load(x + row * width + cols, mask=cols < n, other=-1)
        tl.store(y + row * width + cols, WORK, mask=cols < n)
        found += tl.sum((v >= 0).to(tl.int32), 0)
    tl.store(count + row, found)
"""
AT_ONCE = SLOTS.replace("for start in range(0, n, B):", "if n > 0:").replace("start + ", "")
PAGE = "tl.load(count + v // divisor, mask=(cols < n) & (v >= 0), other=0) * divisor + v % divisor"


@pytest.mark.parametrize(
    ("kernel", "work", "n", "elements"),
    [
        (SLOTS, PAGE, 256, 256),
        (SLOTS, PAGE, 200, 200),
        (AT_ONCE, "(v // divisor) * 3 + v % divisor", 256, 256),
        (SLOTS, PAGE, 600, None),
        (SLOTS, PAGE, 1280, None),
        (SLOTS, "v + 1", 256, None),
    ],
    ids=["a loop of one iteration", "an odd row", "no loop", "a long row", "several tiles", "little arithmetic"],
)
def test_a_tile_that_is_longer_than_a_row_is_computed_in_vain(tmp_path, kernel, work, n, elements):
    launch = (
        "x, count = (torch.empty(size, device='cuda', dtype=torch.int32) for size in (1 << 26, 1 << 15))\n"
        f"slots[(1 << 15,)](x, torch.empty_like(x), count, 2048, {n}, 48, 1024, num_warps=4)"
    )
    one = found(tmp_path, kernel.replace("WORK", work), launch).get("idle-threads")
    assert (one and one.evidence["elements"]) == elements
    if one is not None:
        assert (one.severity, one.candidates) == ("medium", [{"B": 256}])
        assert one.advice.startswith("choose a tile of 256 elements")
        assert one.advice.endswith("a tile of 4 x 256")
        assert 1.2 < one.estimate.speedup < 2.2
