"""Tables of Markdown."""

from kperf.record.markdown import row, table


def test_a_cell_does_not_end_its_cell_or_its_line():
    assert row(["a | b", "two\nlines"]) == r"| a \| b | two lines |"


def test_a_table_has_a_rule_below_its_head():
    assert table(("x", "y"), [("1", "2")]) == ["| x | y |", "|---|---|", "| 1 | 2 |"]
