"""Iterations behind a length that is read from memory: named where they do nothing, and the loop runs them."""

import pytest

from kperf.arch import GFX942, SM_80, SM_90A
from tests.diagnose.test_severities import found as found_in_script
from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

POOL = """
def pool(x, lens, out, n, d, MAX: tl.constexpr, B: tl.constexpr, D: tl.constexpr):
    seq, cols, i = tl.program_id(0), tl.arange(0, D), tl.arange(0, B)
    length = tl.load(lens + seq)
    BEFORE
    acc = tl.full((D,), BEGIN, tl.float32)
    for start in range(RANGE):
        at = start + i
        v = tl.load(x + (seq * n + at[:, None]) * d + cols, mask=(MASK)[:, None], other=OTHER).to(tl.float32)
        acc = STEP
    tl.store(out + seq * D + cols, acc)
"""
SUM, KEEP = "acc + tl.sum(v, 0)", "at < length"


def idle(folder, where="0, n, B", mask=KEEP, step=SUM, *, other="0.0", begin="0.0", before="pass", **options):
    """(before, behind) of the finding on pooling that is written so; None without one."""
    source = POOL
    texts = {"RANGE": where, "MASK": mask, "STEP": step, "OTHER": other, "BEFORE": before, "BEGIN": begin}
    for name, text in texts.items():
        source = source.replace(name, text)
    one = found(folder, source, "*bf16,*i32,*fp32,i32,i32", "MAX=512", "B=16", "D=64", **options).get("masked-tiles")
    if one is None:
        return None
    assert (one.severity, one.confidence, one.source.line) == ("medium", "low", 9 + before.count("\n"))
    assert (one.estimate.speedup, one.estimate.low, one.estimate.high) == (1.6, 1.0, 8.0)
    assert one.message.startswith("iterations ")
    assert "by the mask of lin" in one.message
    return one.evidence["before"], one.evidence["behind"]


@pytest.mark.parametrize(
    ("where", "mask"),
    [
        ("0, n, B", KEEP),
        ("0, MAX, B", KEEP),
        ("0, n, B", "length > at"),
        ("0, n, B", "at <= length - 1"),
        ("0, n, B", "~(at >= length)"),
        ("0, n, B", "i < length - start"),
        ("0, n, B", "(at < n) & (at < length)"),
        ("0, n, B", "at.to(tl.int64) < length"),
        ("0, n, B", "at < tl.minimum(length, n)"),
        ("0, n, B", "at * 2 + 1 < length"),
        ("0, tl.cdiv(n, B)", "start * B + i < length"),
        ("0, n, B", "tl.load(lens + n + seq) + at < length"),
        ("length, length + n, B", "at < tl.load(lens + 1 + seq)"),
        ("tl.program_id(1) * MAX, (tl.program_id(1) + 1) * MAX, B", KEEP),
    ],
)
def test_iterations_behind_a_loaded_length_are_found(tmp_path, where, mask):
    assert idle(tmp_path, where, mask) == (0, 1)


@pytest.mark.parametrize(
    ("where", "mask"),
    [
        ("0, length, B", KEEP),
        ("0, tl.minimum(n, length), B", KEEP),
        ("0, tl.cdiv(length, B)", "start * B + i < length"),
        ("length, tl.load(lens + 1 + seq), B", "at < tl.load(lens + 1 + seq)"),
        ("0, tl.load(lens + n + seq), B", KEEP),
        ("length, length + n, B", "at < length + n"),
        ("0, n, B", "at < n"),
        ("0, n, B", "at < MAX"),
        ("0, n", KEEP),  # a window beside each position
        ("0, n", "tl.program_id(1) + start + i * 0 < length"),
        ("0, n, B", "tl.load(lens + at) < length"),
        ("0, n, B", "(at < length) | (i == 0)"),
        ("0, n, B", "at % MAX < length"),
        ("0, n, B", "i < length"),
    ],
)
def test_loops_that_end_with_it_and_masks_of_other_numbers_are_not(tmp_path, where, mask):
    assert idle(tmp_path, where, mask) is None


@pytest.mark.parametrize(
    ("mask", "sides"),
    [
        ("length + at >= 0", None),
        ("length - MAX + 1 + at > -1", None),
        ("0 <= length + at", None),
        ("(length + at >= 0) & (length + at < tl.load(lens + n + seq))", (0, 1)),  # the end of the keys
        ("at - length >= 0", (1, 0)),
        ("0 <= at - length", (1, 0)),
        ("length + at >= n", (1, 0)),  # n may be larger than the length
        ("length - at > 0", (0, 1)),
    ],
)
def test_positions_that_count_on_from_a_loaded_one_begin_behind_0(tmp_path, mask, sides):
    """Only negative positions are left out, of CTAs at the beginning of a sequence."""
    assert idle(tmp_path, mask=mask) == sides


@pytest.mark.parametrize(
    ("step", "other", "begin", "is_found"),
    [
        ("acc + tl.sum(v * 0.5, 0)", "0.0", "0.0", True),
        ("acc + tl.sum(v * tl.load(x + at)[:, None], 0)", "0.0", "0.0", True),
        ("acc + tl.sum(tl.where((at < length)[:, None], tl.exp(v), 0.0), 0)", "0.0", "0.0", True),
        ("acc + tl.sum(tl.exp(v) * (at < length)[:, None].to(tl.float32), 0)", "0.0", "0.0", True),
        ("tl.maximum(acc, tl.max(v, 0))", "-float('inf')", "-1.0e30", True),
        ("acc + tl.sum(tl.exp(v), 0)", "-float('inf')", "0.0", True),
        ("acc + tl.sum(tl.exp(v), 0)", "0.0", "0.0", False),
        ("tl.maximum(acc, tl.max(v, 0))", "0.0", "-1.0e30", False),
        ("acc + tl.sum(v, 0) + 1.0", "0.0", "0.0", False),
        ("acc * 0.5 + tl.sum(v, 0)", "0.0", "0.0", False),
        ("acc + tl.sum(v, 0)", "1.0", "0.0", False),
        ("acc * tl.sum(v, 0)", "1.0", "1.0", False),
        ("tl.sum(v, 0)", "0.0", "0.0", False),
        ("tl.minimum(acc + tl.sum(v, 0), 0.5)", "0.0", "0.0", False),
        ("tl.fma(tl.sum(v, 0), 0.5, acc)", "0.0", "0.0", True),
        ("acc - tl.sum(-v, 0) / 3", "0.0", "0.0", True),
        ("acc - tl.sum(1.0 - v, 0)", "0.0", "0.0", False),
    ],
)
def test_iterations_do_nothing_only_if_what_they_mask_is_neutral(tmp_path, step, other, begin, is_found):
    assert (idle(tmp_path, step=step, other=other, begin=begin) is not None) == is_found


@pytest.mark.parametrize(
    ("before", "is_found"),
    [
        ("if length == 0:\n        return", True),
        ("if tl.program_id(1) * B >= length:\n        return", False),
        ("tl.store(out + seq, length)", True),
    ],
)
def test_a_branch_on_the_ctas_positions_is_a_bound(tmp_path, before, is_found):
    assert (idle(tmp_path, before=before) is not None) == is_found


def test_a_branch_in_the_loop_is_a_bound(tmp_path):
    step = "acc\n        if start < length:\n            acc += tl.sum(v, 0)"
    assert idle(tmp_path, step=step) is None


@pytest.mark.parametrize(("where", "is_found"), [("0, length, B", True), ("length - MAX, length, B", False)])
def test_iterations_before_a_window_are_found(tmp_path, where, is_found):
    assert idle(tmp_path, where, "at >= length - MAX") == ((1, 0) if is_found else None)


@pytest.mark.parametrize("arch", [SM_80, SM_90A, GFX942], ids=lambda arch: arch.name)
@pytest.mark.parametrize("num_stages", [1, 4])
def test_pipelines_and_targets_make_no_difference(tmp_path, arch, num_stages):
    assert idle(tmp_path, num_stages=num_stages, arch=arch) == (0, 1)
    assert idle(tmp_path, "0, length, B", num_stages=num_stages, arch=arch) is None


ATTENTION = """
def decode(q, k, v, table, lens, out, pages, G: tl.constexpr, P: tl.constexpr, D: tl.constexpr):
    seq = tl.program_id(0)
    length = tl.load(lens + seq)
    g, d, r = tl.arange(0, G), tl.arange(0, D), tl.arange(0, P)
    x = tl.load(q + (seq * G + g[:, None]) * D + d)
    m, l = tl.full((G,), -float("inf"), tl.float32), tl.zeros((G,), tl.float32)
    acc = tl.zeros((G, D), tl.float32)
    for page in range(0, END):
        at = tl.load(table + seq * pages + page) * P + r
        keep = page * P + r < length
        y = tl.load(k + at[:, None] * D + d, mask=keep[:, None], other=0.0)
        s = MASKED
        top = tl.maximum(m, tl.max(s, 1))
        base = BASE
        p = tl.exp2(s - base[:, None])
        scale = tl.exp2(m - base)
        l = l * scale + tl.sum(p, 1)
        acc = acc * scale[:, None] + tl.dot(p.to(tl.bfloat16), tl.load(v + at[:, None] * D + d))
        m = top
    tl.store(out + (seq * G + g[:, None]) * D + d, acc / l[:, None])
"""
SCORES = "tl.dot(x, tl.trans(y))"
WHERE = f"tl.where(keep[None, :], {SCORES}, -float('inf'))"


@pytest.mark.parametrize(
    ("masked", "base", "end", "is_found"),
    [
        (f"tl.where(keep[None, :], {SCORES} * 0.5, -float('inf'))", "top", "pages", True),
        (f"tl.where(keep[None, :], {SCORES}, -1.0e30) * 0.5", "top", "pages", True),
        (f"{SCORES} + tl.where(keep, 0.0, -float('inf'))[None, :]", "top", "pages", True),
        (f"{SCORES} - tl.where(keep, 0.0, 1.0e6)[None, :]", "top", "pages", True),
        (
            f"tl.where(keep[None, :], {SCORES}, -float('inf'))",
            "tl.where(top == -float('inf'), 0.0, top)",
            "pages",
            True,
        ),
        (WHERE, "top", "tl.cdiv(length, P)", False),
        (f"tl.where(keep[None, :], {SCORES}, 0.0)", "top", "pages", False),
        (SCORES, "top", "pages", False),
        (WHERE, "top + 1", "pages", False),
    ],
)
def test_attention_over_pages_keeps_its_softmax_behind_the_length(tmp_path, masked, base, end, is_found):
    source = ATTENTION.replace("MASKED", masked).replace("BASE", base).replace("END", end)
    rules = found(tmp_path, source, "*bf16,*bf16,*bf16,*i32,*i32,*fp32,i32", "G=16", "P=64", "D=64")
    assert ("masked-tiles" in rules) == is_found


ARGMAX = """
def best(x, lens, out, at_out, n, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    length = tl.load(lens + row)
    most, where = -float("inf"), 0
    for start in range(0, n, B):
        v = tl.load(x + row * n + start + i, mask=start + i < length, other=-float("inf"))
        top, place = tl.max(v, 0, return_indices=True)
        where = tl.where(top > most, start + place, where)
        most = tl.maximum(most, top)
    tl.store(out + row, most)
    tl.store(at_out + row, where COUNT)
"""


def test_the_place_of_a_maximum_is_kept_too(tmp_path):
    source, shape = ARGMAX.replace("COUNT", ""), ("*fp32,*i32,*fp32,*i32,i32", "B=256")
    assert found(tmp_path, source, *shape)["masked-tiles"].source.line == 8
    assert "masked-tiles" not in found(tmp_path, source.replace("top > most", "top <= most"), *shape)


COPY = """
def copy(x, lens, y, n, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    length = tl.load(lens + row)
    for start in range(0, n, B):
        keep = start + i < length
        for part in range(3):
            tl.store(y + (row * 3 + part) * n + start + i, tl.load(x + row * n + start + i, mask=keep, other=0), MASK)
"""


@pytest.mark.parametrize(("mask", "is_found"), [("keep", True), ("start + i < n", False), ("None", False)])
def test_iterations_that_write_do_something(tmp_path, mask, is_found):
    assert ("masked-tiles" in found(tmp_path, COPY.replace("MASK", mask), "*i32,*i32,*i32,i32", "B=256")) == is_found


PADDED = """
def padded(x, out, n, most, B: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    for start in range(0, most, B):
        acc += tl.load(x + row * most + start + i, mask=start + i < n, other=0.0)
    tl.store(out + row, tl.sum(acc, 0))

"""


@pytest.mark.parametrize(
    ("n", "most", "expected"),
    [
        (1000, 8192, (28, 32, "high", 4.0)),  # 4 of 32 iterations have one of the 1000 positions
        (6000, 8192, (8, 32, "medium", 1.2114)),
        (8000, 8192, None),
        (0, 8192, (32, 32, "high", 10.0794)),
    ],
)
def test_numbers_of_a_launch_say_how_many_iterations_do_nothing(tmp_path, n, most, expected):
    launch = f"""
x, out = torch.empty(512, 8192, device="cuda"), torch.empty(512, device="cuda")
padded[(512,)](x, out, {n}, {most}, B=256)
"""
    one = found_in_script(tmp_path, PADDED, launch).get("masked-tiles")
    if expected is None:
        assert one is None
        return
    number, count, severity, gain = expected
    assert (one.evidence["idle"], one.evidence["iterations"], one.severity) == (number, count, severity)
    assert one.estimate.speedup == pytest.approx(gain, rel=1e-3)
    assert one.estimate.high == count / max(count - number, 1)
    assert one.message == f"{number} of {count} iterations do nothing, by the mask of line 8"


def test_a_branch_leaves_out_iterations_that_a_launch_counts(tmp_path):
    launch = """
x, out = torch.empty(512, 8192, device="cuda"), torch.empty(512, device="cuda")
padded[(512,)](x, out, 1000, 8192, B=256)
"""
    source = PADDED.replace("acc += ", "if start < n:\n            acc += ")
    assert "masked-tiles" in found_in_script(tmp_path, PADDED, launch)
    assert "masked-tiles" not in found_in_script(tmp_path, source, launch)


def test_numbers_that_no_launch_says_may_be_the_same(tmp_path):
    assert "masked-tiles" not in found(tmp_path, PADDED, "*fp32,*fp32,i32,i32", "B=256")
