"""Rows whose loaded flag drops what was computed of them, and flags that leave out no byte."""

import pytest

from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

RULE = "zeroed-after-reading"
ROWS = """
def rows(x, w, flags, out, n, B: tl.constexpr, D: tl.constexpr):
    row, col = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, D)
    at = row[:, None] * D + col[None, :]
    v = tl.load(x + at).to(tl.float32)
    flag = FLAG
    STORE
"""
LOADED = "tl.load(flags + row)"
FLAG = f"{LOADED} != 0"
SUM = "tl.store(out + row, tl.sum(v * v, 1) * flag)"


def finding(folder, flag=FLAG, store=SUM, kind="i32"):
    source = ROWS.replace("FLAG", flag).replace("STORE", store)
    return found(folder, source, f"*bf16,*fp32,*{kind},*fp32,i32:16", "B=16", "D=256").get(RULE)


@pytest.mark.parametrize(
    ("flag", "store", "kind"),
    [
        (FLAG, SUM, "i32"),
        (LOADED, SUM, "i1"),
        (LOADED, SUM, "u8"),
        (LOADED, SUM, "i8"),
        (f"({LOADED} > 0.5) & (row < n)", SUM, "fp32"),
        (FLAG, "tl.store(out + row, tl.where(flag, tl.sum(v * v, 1), 0.0))", "i32"),
        (FLAG, "tl.store(out + row, tl.where(flag, -1.0, tl.max(v, 1)))", "i32"),
        (FLAG, "tl.atomic_add(out, tl.sum(tl.where(flag, tl.sum(v * v, 1), 0.0), 0))", "i32"),
        (FLAG, "tl.atomic_add(out + col, tl.sum(v * flag[:, None], 0))", "i32"),
    ],
)
def test_a_row_that_its_flag_drops_need_not_be_loaded(tmp_path, flag, store, kind):
    one = finding(tmp_path, flag, store, kind)
    assert (one.severity, one.source.line) == ("medium", 9)
    assert one.message.startswith("x is loaded whole")
    assert "mask=(flag != 0)[:, None]" in one.advice
    assert one.estimate.speedup == pytest.approx(2, rel=0.1)
    assert one.estimate.low == 1


def test_one_flag_of_a_cta_is_a_branch(tmp_path):
    one = finding(
        tmp_path, "tl.load(flags + tl.program_id(0)) > 3", "tl.store(out + tl.program_id(0), tl.sum(v) * flag)"
    )
    assert "a CTA whose flag drops the result" in one.message
    assert one.advice.startswith("branch before the loads")


def test_a_loop_may_lie_between(tmp_path):
    source = """
def looped(x, lens, out, n, D: tl.constexpr):
    acc = tl.zeros((D,), tl.float32)
    for i in range(0, n, D):
        at = i + tl.arange(0, D)
        acc += tl.load(x + tl.program_id(0) * n + at, mask=at < n, other=0.0)
    total = tl.sum(acc) * (tl.load(lens + tl.program_id(0)) > 0)
    tl.store(out + tl.program_id(0), total)
"""
    assert found(tmp_path, source, "*fp32,*i32,*fp32,i32:16", "D=1024")[RULE].source.line == 9


@pytest.mark.parametrize(
    ("flag", "store", "kind"),
    [
        (LOADED, SUM, "fp32"),  # a weight
        (LOADED, SUM, "i32"),  # a count
        (LOADED, "tl.atomic_add(out + col, tl.sum(v * flag[:, None].to(tl.float32), 0))", "u8"),  # numbers of 8 bits
        (LOADED, "tl.store(out + at, v * flag[:, None].to(tl.float32))", "u8"),
        ("row % 2 == 0", SUM, "i32"),
        ("tl.max(v, 1) > 0.0", SUM, "i32"),
        ("tl.load(flags + col) != 0", "tl.store(out + row, tl.sum(v * flag[None, :], 1))", "i32"),
        (FLAG, "tl.store(out + row, tl.sum(v, 1) * flag + tl.max(v, 1))", "i32"),
        (FLAG, "tl.store(out + row, tl.sum(v, 1) * tl.where(flag, 2.0, 1.0))", "i32"),
        (FLAG, "tl.store(out + row, tl.sum(tl.load(x + at + 1, mask=flag[:, None], other=0.0), 1) * flag)", "i32"),
        ("tl.load(flags + tl.program_id(0)) != 0", "if flag:\n        tl.store(out + row, tl.sum(v, 1) * flag)", "i32"),
        (FLAG, "tl.store(out + at, tl.where(flag[:, None], v, 0.0))", "i32"),  # both-sides-loaded
    ],
)
def test_what_a_flag_does_not_drop_is_loaded_for_something(tmp_path, flag, store, kind):
    assert finding(tmp_path, flag, store, kind) is None
