"""Tables on consoles of any width: nothing in them is cut short, and no line is wider."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from kperf.console import WholeConsole
from tests.command import kperf

WORDS = st.text(st.sampled_from("abc019.,-_/é"), min_size=1, max_size=9)
CELLS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)


@st.composite
def tables(draw):
    columns = draw(st.integers(1, 9))
    table = Table(title=draw(st.sampled_from([None, "title"])), caption=draw(st.sampled_from([None, "caption"])))
    for _ in range(columns):
        table.add_column(draw(CELLS), no_wrap=draw(st.booleans()), justify=draw(st.sampled_from(["left", "right"])))
    for _ in range(draw(st.integers(0, 3))):
        table.add_row(*(draw(CELLS) for _ in range(columns)))
    return table


def printed(width, *objects):
    said = io.StringIO()
    WholeConsole(file=said, width=width, highlight=False, soft_wrap=True).print(*objects)
    return said.getvalue()


@given(tables(), st.integers(85, 160))  # two columns that may not be wrapped have room
def test_every_word_is_whole_and_no_line_is_wider(table, width):
    words = [word for column in table.columns for cell in (column.header, *column.cells) for word in cell.split()]
    shown = printed(width, table)
    assert all(cell_len(line.rstrip()) <= width for line in shown.splitlines())
    said = shown.split()
    assert all(said.count(word) >= words.count(word) for word in words)
    assert said.count("title") == (table.title is not None)
    assert said.count("caption") == (table.caption is not None)


def test_columns_that_have_no_room_go_below_and_rows_keep_their_names():
    table = Table(title="times")
    for name in ("shape", "fast", "slow"):
        table.add_column(name, no_wrap=True)
    table.add_row("16 x 4096", "123.456 ms", "234.567 ms")
    shown = printed(30, "before", table, "after").splitlines()
    assert [line for line in shown if "16 x 4096" in line] == [
        "│ 16 x 4096 │ 123.456 ms │",
        "│ 16 x 4096 │ 234.567 ms │",
    ]
    assert (shown[0], shown[1].strip(), shown[-1]) == ("before", "times", "after")


def test_a_table_that_has_room_is_left_as_it_is():
    table = Table("shape", "time", title="times")
    table.add_row("16 x 4096", "123.456 ms")
    plain = io.StringIO()
    Console(file=plain, width=160, soft_wrap=True).print(table)
    assert printed(160, table) == plain.getvalue()


@pytest.mark.parametrize("columns", [None, 80, 60])
@pytest.mark.parametrize(
    "command", [("claims",), ("sweep", "seq_len", "--only", "fa3,cudnn,improved_plus,improved,vanilla,fa2,triton")]
)
def test_the_commands_tables_are_as_wide_as_the_terminal(command, columns):
    """And 160 columns wide where there is none."""
    done = kperf(*command, **({"COLUMNS": str(columns)} if columns else {}))
    table = [line for line in done.stdout.splitlines() if line[:1] in set("┏┃┡│├└")]
    assert table
    assert max(map(cell_len, table)) <= (columns or 160)
    assert "…" not in done.stdout
