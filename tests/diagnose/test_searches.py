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
