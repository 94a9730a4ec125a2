"""Sorts of which few elements are used, and sorts that are needed."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

SORT = """
def sort(x_ptr, k_ptr, y_ptr, k, N: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, N)
    x = tl.load(x_ptr + rows[:, None] * N + i[None, :])
    s = SORTED
    USE
"""
LAUNCHED = """
import torch, triton, triton.language as tl

@triton.jit
def sort(x_ptr, y_ptr, k, K: tl.constexpr, N: tl.constexpr, ROWS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    i = tl.arange(0, N)
    s = tl.sort(tl.load(x_ptr + rows[:, None] * N + i[None, :]))
    tl.store(y_ptr + rows, tl.sum(tl.where(i[None, :] == PLACE, s, 0.0), axis=1))

x, y = torch.randn(4096, 256, device="cuda"), torch.empty(4096, device="cuda")
sort[(1024,)](x, y, 7, 7, 256, 4)
"""
TILE = "tl.store(y_ptr + rows[:, None] * N + i[None, :], RESULT)"
ROW = "tl.store(y_ptr + rows, RESULT)"


def full_sort(folder, sorted_rows, use, *, length=256):
    source = SORT.replace("SORTED", sorted_rows).replace("USE", use)
    rules = found(folder, source, "*fp32,*i32,*fp32,i32", f"N={length}", f"ROWS={max(1024 // length, 4)}")
    return rules.get("full-sort")


def of_row(result):
    return ROW.replace("RESULT", result)


def of_tile(result):
    return TILE.replace("RESULT", result)


@pytest.mark.parametrize(
    ("sorted_rows", "use", "used", "advice"),
    [
        ("tl.sort(x)", of_row("tl.max(s, axis=1)"), 1, "tl.max(x, axis)"),
        ("tl.sort(x)", of_row("tl.sum(tl.where(i[None, :] == N - 1, s, 0.0), axis=1)"), 1, "tl.max(x, axis)"),
        ("tl.sort(x)", of_row("tl.sum(s * (i[None, :] == 0), axis=1)"), 1, "tl.max(x, axis)"),
        ("tl.sort(x)", of_row("tl.max(s, 1) - tl.sum(tl.where(i[None, :] == 255, s, 0.0), 1)"), 2, "and tl.min(x"),
        ("tl.topk(x, 16)", of_row("tl.max(s, axis=1)"), 1, "tl.max(x, axis)"),
        ("tl.sort(x)", of_tile("s, mask=(i < 6)[None, :]"), 6, "tl.topk(x, 8)"),
        ("tl.sort(x)", of_tile("x > tl.sum(tl.where(i[None, :] == 7, s, 0.0), axis=1)[:, None]"), 1, "tl.topk(x, 8)"),
        ("tl.sort(x)", of_row("tl.sum(tl.gather(s, tl.full((ROWS, 1), 3, tl.int32), 1), 1)"), 1, "tl.topk(x, 4)"),
    ],
)  # fmt: skip
def test_a_sort_of_which_few_elements_are_used_is_found(tmp_path, sorted_rows, use, used, advice):
    finding = full_sort(tmp_path, sorted_rows, use)
    assert (finding.severity, finding.source.line, finding.evidence["used"]) == ("high", 8, used)
    assert advice in finding.advice


def test_the_median_of_a_short_row_needs_no_sort(tmp_path):
    median = of_row("tl.sum(tl.where(i[None, :] == N // 2, s, 0.0), axis=1)")
    assert "tl.minimum" in full_sort(tmp_path, "tl.sort(x)", median, length=16).advice
    assert full_sort(tmp_path, "tl.sort(x)", median, length=256) is None


@pytest.mark.parametrize(
    ("sorted_rows", "use"),
    [
        ("tl.sort(x)", of_tile("s")),
        ("tl.sort(x)", of_tile("s, mask=(i < 250)[None, :]")),
        ("tl.sort(x)", of_tile("s, mask=(i < k)[None, :]")),
        ("tl.sort(x)", of_row("tl.sum(tl.where((i[None, :] > 1) & (i[None, :] < N - 2), s, 0.0), axis=1)")),
        ("tl.sort(x)", of_row("tl.max(tl.where(tl.cumsum(s, axis=1) > 0.9, s, 0.0), axis=1)")),
        ("tl.sort(x)", of_row("tl.sum(tl.where(i[None, :] == tl.load(k_ptr + rows)[:, None], s, 0.0), axis=1)")),
        ("tl.sort(x)", of_row("tl.sum(tl.where(i[None, :] == tl.program_id(1) * 4, s, 0.0), axis=1)")),
        ("tl.topk(x, 8)", of_tile("x >= tl.min(s, axis=1)[:, None]")),
        ("tl.sort(x)", "for j in range(k):\n        " + of_row("tl.sum(tl.where(i[None, :] == j, s, 0.0), axis=1)")),
    ],
)  # fmt: skip
def test_a_sort_of_which_all_may_be_used_is_right(tmp_path, sorted_rows, use):
    assert full_sort(tmp_path, sorted_rows, use) is None


def test_a_place_that_an_argument_of_the_launch_gives_may_be_another_next_time(tmp_path):
    script = tmp_path / "script.py"
    for place, names in (("k", []), ("K", ["full-sort"])):
        script.write_text(LAUNCHED.replace("PLACE", place))
        kernel, *_ = inputs.read(str(script), (), SM_90A)
        assert [one.id for one in diagnose(kernel).findings if one.id == "full-sort"] == names
