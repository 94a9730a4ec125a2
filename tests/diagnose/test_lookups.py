"""Lookups and tests of membership that compare with each entry of a table, and comparisons that need all entries."""

import pytest

from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

RULE = "lookup-by-comparison"
LOOP = """
def looked_up(x_ptr, table, values, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    y = tl.full((BLOCK,), 0, tl.KIND)
    for i in range(N):
        y = NEXT
    tl.store(y_ptr + at, y.to(tl.int32))
"""
TILE = """
def looked_up(x_ptr, table, values, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.arange(0, N)
    x, t, v = tl.load(x_ptr + at), tl.load(table + i), tl.load(values + i)
    own = tl.load(x_ptr + i)
    tl.store(y_ptr + at, (RESULT).to(tl.int32))
"""
ENTRY = "tl.load(table + i)"


def finding(folder, source, entries=256):
    return found(folder, source, "*i32,*i32,*fp32,*i32", f"N={entries}", "BLOCK=1024").get(RULE)


@pytest.mark.parametrize(
    ("following", "kind", "is_membership"),
    [
        (f"y | (x == {ENTRY})", "int1", True),
        (f"y | (at == {ENTRY})", "int1", True),
        ("y | (tl.load(table + tl.program_id(1) * N + i) == x)", "int1", True),
        (f"tl.where(x == {ENTRY}, 1, y)", "int32", True),
        (f"tl.maximum(y, (x == {ENTRY}).to(tl.int32))", "int32", True),
        ("tl.where(x == i, tl.load(values + i), y)", "float32", False),
        ("y + tl.where(x == i, tl.load(values + i), 0.0)", "float32", False),
        ("y + (i == x).to(tl.float32) * tl.load(values + i)", "float32", False),
    ],
)
def test_a_loop_of_comparisons_is_a_lookup(tmp_path, following, kind, is_membership):
    one = finding(tmp_path, LOOP.replace("NEXT", following).replace("KIND", kind))
    assert (one.severity, one.source.line) == ("high", 9)
    assert (one.evidence["entries"], one.evidence["elements"]) == (256, 1024)
    assert ("marks.scatter_" in one.advice) == is_membership
    assert ("tl.load(table + code, mask=" in one.advice) != is_membership


@pytest.mark.parametrize(
    ("following", "kind"),
    [
        (f"y + (x == {ENTRY}).to(tl.int32)", "int32"),  # how often
        (f"y + tl.where(at == {ENTRY}, tl.load(values + i), 0.0)", "float32"),  # a sum by groups
        (f"y + tl.where(x == {ENTRY}, tl.load(values + i), 0.0)", "float32"),  # likewise
        ("y + tl.where(at == i, tl.load(values + i), 0.0)", "float32"),  # a diagonal
        ("y + tl.where(x == i, tl.load(values + i * BLOCK + at), 0.0)", "float32"),  # a value of its own
        (f"y | (x > {ENTRY})", "int1"),
        (f"y ^ (x == {ENTRY})", "int1"),
        (f"y | (x.to(tl.float32) == {ENTRY}.to(tl.float32))", "int1"),  # a float is no place in a table of marks
        (f"y | (x == {ENTRY} + at)", "int1"),
        (f"y & (x == {ENTRY})", "int1"),
    ],
)
def test_a_loop_that_needs_all_entries_is_none(tmp_path, following, kind):
    assert finding(tmp_path, LOOP.replace("NEXT", following).replace("KIND", kind)) is None


def test_few_entries_are_compared_as_fast(tmp_path):
    assert finding(tmp_path, LOOP.replace("NEXT", f"y | (x == {ENTRY})").replace("KIND", "int1"), entries=4) is None


@pytest.mark.parametrize(
    ("result", "is_membership"),
    [
        ("tl.sum(tl.where(x[:, None] == i[None, :], v[None, :], 0.0), axis=1)", False),
        ("tl.sum((i[:, None] == x[None, :]).to(tl.float32) * v[:, None], axis=0)", False),
        ("tl.max(tl.where(x[:, None] == i[None, :], v[None, :], -1e9), axis=1)", False),
        ("tl.max((x[:, None] == t[None, :]).to(tl.int32), axis=1)", True),
        ("tl.sum((at[:, None] == t[None, :]).to(tl.int32), axis=1) > 0", True),
        ("tl.reduce_or((t[:, None] == at[None, :]).to(tl.int32), axis=0)", True),
    ],
)
def test_a_tile_of_comparisons_is_a_lookup(tmp_path, result, is_membership):
    one = finding(tmp_path, TILE.replace("RESULT", result), entries=64)
    assert (one.source.line, one.evidence["entries"], one.evidence["elements"]) == (9, 64, 1024)
    assert ("marks.scatter_" in one.advice) == is_membership


@pytest.mark.parametrize(
    "result",
    [
        "tl.sum((x[:, None] == t[None, :]).to(tl.int32), axis=1)",  # how often
        "tl.sum((x[:, None] == i[None, :]).to(tl.int32), axis=0).sum() + at",  # a histogram
        "tl.sum(tl.where(at[:, None] == t[None, :], v[None, :], 0.0), axis=1)",  # an embedding's gradient
        "tl.sum(tl.where(at[:, None] == i[None, :], v[None, :], 0.0), axis=1)",  # a diagonal
        "tl.max((x[:, None] == own[None, :]).to(tl.int32), axis=1)",  # duplicates
        "tl.sum(tl.where(x[:, None] >= i[None, :], v[None, :], 0.0), axis=1)",  # a prefix
        "tl.sum(tl.where(x[:, None] == i[None, :], x[:, None] * v[None, :], 0.0), axis=1)",
    ],
)
def test_a_tile_that_needs_all_entries_is_none(tmp_path, result):
    assert finding(tmp_path, TILE.replace("RESULT", result), entries=64) is None


PRODUCT = """
def copied(code, table, w, out, n, R: tl.constexpr, K: tl.constexpr, C: tl.constexpr, N: tl.constexpr):
    row, col = tl.program_id(0) * R + tl.arange(0, R), tl.arange(0, C)
    x = tl.load(code + row)
    acc = tl.zeros((R, C), tl.float32)
    for first in range(0, N, K):
        i = first + tl.arange(0, K)
        t, e = tl.load(table + i[:, None] * C + col[None, :]), tl.load(w + i)
        hot = HOT
        acc = DOT
    tl.store(out + row[:, None] * C + col[None, :], acc.to(tl.float16))
"""
DOT = "tl.dot(hot.to(tl.float16), t, acc)"
EQUAL = "x[:, None] == i[None, :]"
BETWEEN = "(row[:, None] >= e[None, :]) & (row[:, None] < tl.load(w + i + 1)[None, :])"


def product(folder, hot, dot=DOT, entries=1024):
    source = PRODUCT.replace("HOT", hot).replace("DOT", dot)
    sizes = ("R=128", "K=64", "C=128", f"N={entries}")
    return found(folder, source, "*i32,*fp16,*i32,*fp16,i32:16", *sizes, num_stages=3).get(RULE)


@pytest.mark.parametrize(
    ("hot", "dot"),
    [
        (EQUAL, DOT),
        (f"({EQUAL}) & (x < n)[:, None]", DOT),
        (f"tl.where({EQUAL}, e[None, :].to(tl.float32), 0.0)", DOT),
        (f"({EQUAL}).to(tl.float16) * 2.0", DOT),
        ("tl.trans((i[:, None] == x[None, :]).to(tl.float16))", "tl.dot(hot, t, acc)"),
        ("i[:, None] == x[None, :]", "acc + tl.trans(tl.dot(tl.trans(t), hot.to(tl.float16)))"),
    ],
)
def test_a_product_with_one_1_a_row_copies_rows(tmp_path, hot, dot):
    one = product(tmp_path, hot, dot)
    assert (one.severity, one.confidence, one.source.line) == ("high", "medium", 12)
    assert (one.evidence["entries"], one.evidence["elements"]) == (1024, 128)
    assert "tl.load(table + index[:, None]" in one.advice


def test_nothing_says_that_intervals_do_not_overlap(tmp_path):
    one = product(tmp_path, BETWEEN)
    assert (one.severity, one.confidence) == ("medium", "low")
    assert "nothing in the code says that the intervals do not overlap" in one.advice


@pytest.mark.parametrize(
    ("hot", "dot"),
    [
        ("row[:, None] == e[None, :]", DOT),  # a sum by groups
        ("x[:, None] == e[None, :]", DOT),
        ("x[:, None] != i[None, :]", DOT),
        ("x[:, None] >= i[None, :]", DOT),  # a prefix
        ("(row[:, None] >= i[None, :]) & (row[:, None] < i[None, :] + 16)", DOT),  # a band
        ("x[:, None] >= e[None, :]", DOT),
        (f"({EQUAL}) | (x[:, None] == i[None, :] + 1)", DOT),
        (f"({EQUAL}).to(tl.float16) + (x[:, None] == i[None, :] + 1).to(tl.float16)", DOT),
        (EQUAL, "tl.dot(hot.to(tl.float16), tl.exp(t.to(tl.float32)).to(tl.float16), acc)"),
        (EQUAL, "tl.dot(tl.trans(hot.to(tl.float16)), tl.load(out + row[:, None] * C + col)).sum(0)[None, :] + acc"),
    ],
)
def test_a_product_that_adds_up_rows_is_none(tmp_path, hot, dot):
    assert product(tmp_path, hot, dot) is None


def test_a_short_product_hides_behind_memory(tmp_path):
    assert product(tmp_path, EQUAL, entries=64) is None


PICKED = """
def inverted(x_ptr, steps, z_ptr, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.arange(0, N)
    at = tl.program_id(0) * N * N + rows[:, None] * N + rows[None, :]
    tile = tl.load(x_ptr + at)
    start = tl.dot(tile, tile, input_precision="ieee")
    kept = start
    s = tl.zeros((N,), tl.float32)
    for i in range(1, N):
        mask = rows == i
        NEXT
    tl.store(y_ptr + at, kept + s[:, None])
"""
SUBSTITUTED = "row += tl.sum(row[:, None] * kept, 0) * (rows < i); kept = tl.where(mask[:, None], row[None, :], kept)"


def picked(folder, following):
    source = PICKED.replace("NEXT", following)
    return found(folder, source, "*fp32,*i32,*fp32,*fp32", "N=32", "BLOCK=32").get(RULE)


@pytest.mark.parametrize(
    ("following", "what", "is_loaded"),
    [
        (f"row = tl.sum(tl.where(mask[:, None], kept, 0.0), 0); {SUBSTITUTED}", "row", False),
        (f"row = tl.sum(mask[:, None].to(tl.float32) * kept, 0); {SUBSTITUTED}", "row", False),
        (f"row = tl.sum(tl.where((rows[:, None] == i), start, 0.0), 0); {SUBSTITUTED}", "row", False),
        (f"row = tl.max(tl.where((i == rows)[:, None], start, -1e9), 0); {SUBSTITUTED}", "row", False),
        ("s += tl.sum(tl.where(mask[None, :], start, 0.0), 1) * s", "column", False),
        ("s = tl.exp(s * tl.sum(tl.where(mask[:, None], tile, 0.0), 0))", "row", True),
    ],
)
def test_a_row_that_a_masked_sum_takes_from_a_tile_is_a_lookup(tmp_path, following, what, is_loaded):
    one = picked(tmp_path, following)
    assert (one.source.line, one.evidence["entries"]) == (13, 32)
    assert one.message.startswith(f"each iteration takes one {what} of a tile of 32 x 32 in registers by a reduction")
    assert ("by its address" in one.advice, "scratch buffer" in one.advice) == (is_loaded, not is_loaded)


@pytest.mark.parametrize(
    "following",
    [
        # the loop changes all rows, as an elimination does
        "row = tl.sum(tl.where(mask[:, None], kept, 0.0), 0); kept -= kept * row[None, :]",
        # of the row before, which the last iteration changed
        f"row = tl.sum(tl.where((rows == i - 1)[:, None], kept, 0.0), 0); {SUBSTITUTED}",
        # several rows
        f"row = tl.sum(tl.where((rows <= i)[:, None], start, 0.0), 0); {SUBSTITUTED}",
        # a tile of each iteration
        "s += tl.sum(tl.where(mask[:, None], tl.load(z_ptr + i * N * N + at), 0.0), 0)",
        # a diagonal
        "s += tl.sum(tl.where(rows[:, None] + i == rows[None, :], start, 0.0), 0)",
    ],
)
def test_rows_that_the_loop_computes_are_no_lookup(tmp_path, following):
    assert picked(tmp_path, following) is None


def test_a_row_beside_much_other_work_is_no_lookup(tmp_path):
    other = "s = " + "tl.exp(" * 12 + "start" + ")" * 12
    one = f"row = tl.sum(tl.where(mask[:, None], start, 0.0), 0); {SUBSTITUTED}; kept += {other.removeprefix('s = ')}"
    assert picked(tmp_path, one) is None
