"""Searches that compare with each entry of a table, and loops that need all entries."""

import pytest

from tests.diagnose.test_severities import found as found_in_script
from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

LOOP = """
def search(x_ptr, table, weights, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    n = tl.zeros((BLOCK,), tl.KIND)
    for i in range(N):
        t = tl.load(table + FIRST + i)
        n = GROWN
    tl.store(y_ptr + at, n)
"""
TILE = """
def search(x_ptr, table, weights, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.arange(0, N)
    x = tl.load(x_ptr + at)
    t = tl.load(TABLE + i)
    tl.store(y_ptr + at, tl.sum((COMPARED).to(tl.int32), axis=1))
"""


def rules_of(folder, source, entries=256):
    return found(folder, source, "*fp32,*fp32,*fp32,*fp32", f"N={entries}", "BLOCK=1024")


def loop(grown, *, kind="int32", first="0"):
    return LOOP.replace("GROWN", grown).replace("KIND", kind).replace("FIRST", first)


@pytest.mark.parametrize(
    ("grown", "kind"),
    [
        ("n + (x > t).to(tl.int32)", "int32"),
        ("n + (t <= x).to(tl.float32)", "float32"),
        ("n + tl.where(x >= t, 1, 0)", "int32"),
        ("tl.where(x > t, n + 1, n)", "int32"),
    ],
)
def test_a_count_of_smaller_entries_is_a_search(tmp_path, grown, kind):
    rules = rules_of(tmp_path, loop(grown, kind=kind))
    finding = rules["linear-search"]
    assert (finding.severity, finding.source.line) == ("high", 9)
    assert (finding.evidence["entries"], finding.evidence["elements"]) == (256, 1024)
    assert "9 steps" in finding.advice
    assert "scalar-loop" not in rules


@pytest.mark.parametrize(
    ("grown", "kind", "first"),
    [
        ("n + (x == t).to(tl.int32)", "int32", "0"),
        ("n + ((x - t) * (x - t) < 0.1).to(tl.int32)", "int32", "0"),
        ("n + tl.where(x > t, tl.load(weights + i), 0.0)", "float32", "0"),
        ("n + (tl.load(weights + i * BLOCK + at) > t).to(tl.int32)", "int32", "0"),
        ("n + (x > t).to(tl.int32)", "int32", "tl.program_id(0) * N"),
        ("tl.where(x > t, 1, n)", "int32", "0"),
        ("tl.minimum(n, tl.abs(x - t))", "float32", "0"),
    ],
)
def test_a_loop_that_needs_all_entries_is_no_search(tmp_path, grown, kind, first):
    rules = rules_of(tmp_path, loop(grown, kind=kind, first=first))
    assert "linear-search" not in rules
    assert "scalar-loop" not in rules  # each thread has elements of its own


def test_a_short_table_is_searched_as_fast_entry_by_entry(tmp_path):
    assert "linear-search" not in rules_of(tmp_path, loop("n + (x > t).to(tl.int32)"), entries=16)


@pytest.mark.parametrize(
    ("table", "compared", "is_found"),
    [
        ("table", "x[:, None] > t[None, :]", True),
        ("table", "t[None, :] <= x[:, None]", True),
        ("table", "x[:, None] == t[None, :]", False),
        ("x_ptr", "x[:, None] > t[None, :]", False),
        ("table + tl.program_id(0) * N", "x[:, None] > t[None, :]", False),
        ("table", "x[:, None] + i[None, :] > t[None, :]", False),
    ],
)
def test_a_tile_of_all_comparisons_is_a_search(tmp_path, table, compared, is_found):
    source = TILE.replace("TABLE", table).replace("COMPARED", compared)
    assert ("linear-search" in rules_of(tmp_path, source)) == is_found


CHUNKS = """
def search(x_ptr, table, y_ptr, N, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at)
    n = tl.zeros((BLOCK,), tl.int32)
    seen = tl.zeros((BLOCK,), tl.float32)
    for c in range(0, N, CHUNK):
        t = tl.load(table + c + tl.arange(0, CHUNK))
        n GROWN
    tl.store(y_ptr + at, n + seen)
"""
SEARCHED = """
x, table = torch.empty(1 << 20, device="cuda"), torch.empty(2048, device="cuda")
search[(1 << 12,)](x, table, torch.empty_like(x), 2048, 32, 256)
"""


@pytest.mark.parametrize(
    ("grown", "is_found"),
    [
        ("+= tl.sum((x[:, None] > t[None, :]).to(tl.int32), axis=1)", True),
        ("= tl.sum((t[None, :] <= x[:, None]).to(tl.int32), axis=1) + n", True),
        ("+= tl.sum((x[:, None] > t[None, :]).to(tl.int32), axis=1) * c", False),
        ("= tl.maximum(n, tl.sum((x[:, None] > t[None, :]).to(tl.int32), axis=1))", False),
        ("+= tl.sum((x[:, None] > t[None, :]).to(tl.int32), axis=1)\n        seen += tl.sum(t, 0)", False),
    ],
)
def test_a_search_of_a_table_in_chunks_replaces_the_loop_over_them(tmp_path, grown, is_found):
    one = found_in_script(tmp_path, CHUNKS.replace("GROWN", grown), SEARCHED).get("linear-search")
    assert (one is not None) == is_found
    if one is not None:
        assert (one.evidence["entries"], one.evidence["elements"]) == (2048, 256)
        assert "in 12 steps in place of the loop" in one.advice


OF_CTAS = """
def search(keys, order, bounds, out, N, BLOCK: tl.constexpr):
    own = OWN
    n, first, least = 0, -1, float("inf")
    counts = tl.zeros((BLOCK,), tl.int32)
    for start in range(BEGIN, N, BLOCK):
        at = start + tl.arange(0, BLOCK)
        key = tl.load(keys + LIST, mask=at < N, other=1 << 20)
        COUNTED
    tl.store(out + tl.program_id(0), n + tl.sum(counts, 0) + first + least)
"""
OWN = "tl.program_id(0)"
ADDED = "n += tl.sum((key == own).to(tl.int32), 0)"
FIRST = """hit = own == key
        if tl.sum(hit.to(tl.int32)) > 0 and first < 0:
            first = start + tl.argmax(hit.to(tl.int32), axis=0)"""
"""Of a scalar, as the place of the first hit."""


def of_ctas(folder, counted, own=OWN, at="at", begin="0", kind="int64", entries=1 << 15):
    texts = {"COUNTED": counted, "OWN": own, "LIST": at, "BEGIN": begin}
    source = OF_CTAS
    for name, text in texts.items():
        source = source.replace(name, text)
    launch = f"""
keys, order = (torch.empty({entries}, device="cuda", dtype=kind) for kind in (torch.{kind}, torch.int32))
search[(256,)](keys, order, torch.empty(257, device="cuda", dtype=keys.dtype), torch.empty(256, device="cuda"),
               {entries}, 128)
"""
    return found_in_script(folder, source, launch).get("linear-search")


@pytest.mark.parametrize(
    ("counted", "own", "at", "kind"),
    [
        (ADDED, OWN, "at", "int64"),
        (f"{ADDED}\n        {FIRST}", OWN, "tl.load(order + at, mask=at < N, other=0)", "int64"),
        ("counts += tl.where(own == key, 1, 0)", "tl.load(bounds + tl.program_id(0))", "at", "int32"),
        ("n += tl.sum((key < own).to(tl.int32))", "tl.load(bounds + tl.program_id(0))", "at", "float32"),
    ],
)
def test_each_cta_that_walks_through_one_list_for_a_number_of_its_own_searches_it(tmp_path, counted, own, at, kind):
    one = of_ctas(tmp_path, counted, own, at, kind=kind)
    assert (one.severity, one.source.line) == ("high", 10)
    assert (one.evidence["entries"], one.evidence["iterations"]) == (1 << 15, 256)
    assert one.estimate.speedup == pytest.approx(4, abs=0.01)
    assert ("tl.atomic_add 1 at each entry's counter" in one.advice) == ("==" in counted)
    assert "in 16 steps in place of 256 iterations" in one.advice


@pytest.mark.parametrize(
    ("counted", "changed"),
    [
        ("least = tl.minimum(least, tl.min(key, 0))", {}),
        ("n += tl.sum(tl.where(key == own, key, 0), 0)", {"kind": "int32"}),
        (ADDED, {"own": "5"}),
        (ADDED, {"at": "tl.program_id(0) * N + at"}),
        (ADDED, {"at": "tl.load(order + tl.program_id(0) * N + at)"}),
        (ADDED, {"begin": "tl.program_id(0) * BLOCK"}),
        (ADDED, {"own": "tl.load(keys + tl.program_id(0))"}),
        (ADDED, {"entries": 1 << 10}),
        ("n += tl.sum((key == own + start).to(tl.int32), 0)", {}),
    ],
)
def test_ctas_that_need_all_entries_or_have_a_list_each_search_nothing(tmp_path, counted, changed):
    assert of_ctas(tmp_path, counted, **changed) is None
