"""Consoles of any width, and text of anybody's: nothing is cut short, no line is wider, and all is shown as it is."""

import ast
import io
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kperf.console import PIPED, WholeConsole, complain, of_standard_output, printable, shell_word
from kperf.record.store import RECORDED
from tests.command import kperf

ROOT = Path(__file__).resolve().parents[1]

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
    WholeConsole(file=said, width=width).print(*objects)
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
    Console(file=plain, width=160, soft_wrap=True).print(table)  # rich's own
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


MARKUP = ("[v2]", "[/b]", "[red]", "[link=file:///etc]", ":bug:", "\\[")
CONTROL = ("\x1b[31m", "\x1b]0;title\x07", "\r", "\x08", "\x7f", "\x9b2J", "\u202e", "\x00")
ANY = st.lists(st.sampled_from((*MARKUP, *CONTROL, "run", "ü", "7")), min_size=1, max_size=6).map("".join)


def test_what_a_terminal_would_obey_is_left_out():
    assert printable("a\x1b[31mb\x1b]0;t\x07c\rd\x9b2J\x7f\u202ee\n\tf") == "a[31mb]0;tcd2Je\n\tf"
    assert printable("größer ≥ 🙂 \udcff") == "größer ≥ 🙂 \udcff"


@given(ANY)
def test_text_of_others_is_shown_as_it_is_wherever_it_stands(text):
    expected = printable(text)
    assert printed(400, text) == f"{expected}\n"
    table = Table(text, "b", title=text, caption=text)
    table.add_row(text, Text(text))
    shown = printed(400, table)
    assert shown.count(expected) >= 5
    assert printable(shown) == shown
    assert len({cell_len(line) for line in shown.splitlines() if line[:1] in set("┏┃┡│├└")}) == 1


@pytest.mark.parametrize(
    ("columns", "width"),
    [("0", PIPED), ("00", PIPED), ("-5", PIPED), ("wide", PIPED), ("²", PIPED), ("", PIPED), ("1", 20), ("100", 100)]
    + [(digits, 10**4) for digits in ("99999", "9" * 30, "9" * 6000)],
)
def test_columns_say_a_width_or_nothing(monkeypatch, columns, width):
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", "²")
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert of_standard_output().width == width


@pytest.mark.parametrize("columns", ["0", "1", "999999999999"])
def test_a_command_answers_at_any_width(columns):
    done = kperf("claims", COLUMNS=columns)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) > (20 if columns == "1" else 100)
    assert "Improved" in done.stdout if columns != "1" else "claim" in done.stdout


@pytest.mark.parametrize("name", ["exp[v2]", "[/b]", ":bug:", "a\x1b[31mb"])
def test_names_of_folders_and_what_is_recorded_are_printed_as_they_are(tmp_path, name, unrendered):
    folder = tmp_path / name / "h200"
    folder.mkdir(parents=True)
    for file in ("proton.jsonl", "environment.json"):
        shutil.copy(RECORDED / "h200" / file, folder)
    rows = (folder / "proton.jsonl").read_text()
    escaped = name.replace("\x1b", "\\u001b")
    (folder / "proton.jsonl").write_text(rows.replace('"session":"full', f'"session":"{escaped}full'))
    done = kperf("proton", "--results", tmp_path / name)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"drawn: {printable(str(folder))}/proton_tflops.pdf" in done.stdout
    assert f" {printable(name)}full " in done.stdout
    assert "\x1b" not in done.stdout


def test_a_sentence_on_stderr_has_no_control_characters(tmp_path):
    done = kperf("claims", "--results", tmp_path / "a\x1b[31mb[/b]")
    assert (done.returncode, done.stderr.count("\x1b")) == (2, 0)
    assert f"{tmp_path}/a[31mb[/b] holds no recorded fig12.jsonl" in done.stderr


@pytest.mark.parametrize("name", [b"plain", b"with space", b"it's", b"\xff\xfe", "größer".encode(), b"a\x1b[31m\nb\\"])
def test_a_shell_reads_a_printed_path_again(tmp_path, name):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.mkdir()
    word = shell_word(path)
    assert word.isascii()
    assert word.isprintable()
    done = subprocess.run(["bash", "-c", f"cd {word} && pwd -P"], capture_output=True, check=True)
    assert done.stdout == os.fsencode(path.resolve()) + b"\n"


def test_a_sentence_costs_nothing_where_stderr_is_closed_or_full(monkeypatch):
    """A stream that a script closed raises, one that is full is no longer written to; neither leaks a descriptor."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    complain("nobody hears it")
    before = len([*Path("/proc/self/fd").iterdir()])
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr("sys.stderr", full)
        complain("it does not fit")
        assert Path(f"/proc/self/fd/{full.fileno()}").readlink() == Path(os.devnull)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


class Refusing(io.StringIO):
    """As a script may replace stderr with: it has no descriptor."""

    def write(self, text):
        raise OSError(text)


class Bare:
    """As another script may: it has nothing else."""

    write = Refusing().write


@pytest.mark.parametrize("stream", [Refusing(), Bare()])
def test_a_stream_without_a_descriptor_that_refuses_a_sentence_costs_nothing(monkeypatch, stream):
    monkeypatch.setattr("sys.stderr", stream)
    complain("nobody hears it")


def test_an_override_is_staged_where_the_printed_setting_says(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    done = kperf("override", "stage", "improved", "--to", folder)
    assert done.returncode == 0
    settings = done.stdout.rpartition(" python -m ")[0]
    shown = subprocess.run(
        ["bash", "-c", f"{settings} bash -c 'ls \"$TRITON_OVERRIDE_DIR\"/*'"], capture_output=True, check=True
    )
    assert shown.stdout == b"attn_fwd.ttgir\n"


def test_all_text_goes_through_this_console():
    """No other is made, no markup is asked for, and what is printed beside is not text of ours."""
    beside = {"kperf/console.py", "kperf/trace/capture/script.py", "kperf/bench/commands.py"}
    beside |= {"kperf/integrations/tritonbench.py", "kperf/record/machine.py", "kperf/trace/command.py"}
    for path in (*ROOT.glob("kperf/**/*.py"), *ROOT.glob("plots/*.py")):
        name = str(path.relative_to(ROOT))
        for node in ast.walk(ast.parse(path.read_text())):
            assert not (isinstance(node, ast.ImportFrom) and node.module == "rich.markup"), name
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called != "Console", name
                assert called != "print" or name in beside, name
                settings = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                assert called != "TextColumn" or settings.get("markup") == "False", name
                assert settings.get("markup", "False") == "False", name
