"""The console of all commands: text is printed as it is, and in tables no word and no number is cut short.

What users, files and other programs supply is text and nothing else: square brackets are no markup, `:bug:` is no
picture, and what would move a terminal's cursor or turn its writing around is left out.
"""

import copy
import os
import shlex
import sys
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table

PIPED = 160
"""Columns where there is no terminal and COLUMNS says nothing."""


_NARROWEST, _WIDEST = 20, 10**4
"""Columns that COLUMNS can ask for: with fewer there is no table, and nothing printed here is wider."""
_TURNS_AROUND = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Unicode's bidirectional controls, with which a text reads as another than it is."""


class WholeConsole(Console):
    """Of a table that is wider than the console, cells are wrapped; where that is not enough, columns go below."""

    def __init__(self, **settings: Any) -> None:
        """As rich's, which itself reads COLUMNS and LINES, whatever they say: here `of_standard_output` does."""
        environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        text = {"markup": False, "emoji": False, "highlight": False, "soft_wrap": True}
        super().__init__(_environ=environment, **text | settings)

    def print(self, *objects: Any, **settings: Any) -> None:
        """As rich's."""
        parts = [fit(each, self) if isinstance(each, Table) else [each] for each in objects]
        super().print(*chain.from_iterable(parts), **settings)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's, of what a terminal shows alone; rich's own moves of the cursor stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def of_standard_output() -> WholeConsole:
    """As wide as COLUMNS says, or as the terminal is."""
    return WholeConsole(width=_columns(sys.stdout))


def of_standard_error() -> WholeConsole:
    """Likewise; for what is printed beside a result."""
    return WholeConsole(stderr=True, width=_columns(sys.stderr))


def complain(sentence: str) -> None:
    """Say on stderr what is wrong; where that is closed or full, the exit status says it alone."""
    if sys.stderr is None:
        return
    try:
        print(f"kperf: {printable(sentence)}", file=sys.stderr, flush=True)
    except ValueError:  # a script closed it
        return
    except OSError:
        with suppress(OSError, AttributeError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stderr.fileno())  # the interpreter would try once more


def printable(text: str) -> str:
    """Without the characters that are none: a terminal would obey them. Ends of lines and tabs stay."""
    if text.isprintable():
        return text
    return "".join(sign for sign in text if sign in "\n\t" or not _is_control(sign))


def agreeing(number: int, one: str, many: str) -> str:
    """The words that agree with a number before them, which they do not contain: 1 `kernel has`, 3 `kernels have`."""
    return one if number == 1 else many


def shell_word(path: Path) -> str:
    """For a shell to read again; $'...' where a name has what no terminal shows, or what is no text at all."""
    text = str(path)
    if text.isascii() and text.isprintable():
        return shlex.quote(text)
    return (
        "$'"
        + "".join(
            f"\\x{byte:02x}" if not 32 < byte < 127 or byte in b"\\'" else chr(byte) for byte in os.fsencode(path)
        )
        + "'"
    )


def _is_control(sign: str) -> bool:
    return unicodedata.category(sign) == "Cc" or sign in _TURNS_AROUND


def _columns(stream: TextIO | None) -> int | None:
    """None: as wide as the terminal is at the moment."""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isdecimal() and (columns := int(wanted[:9])):
        return min(max(columns, _NARROWEST), _WIDEST)
    return None if stream is not None and stream.isatty() else PIPED


def titled_table(title: str, *headers: str, left: Collection[str] = ()) -> Table:
    """A table without rows, whose columns are aligned right but for those that `left` names."""
    columns = (Column(header, justify="left" if header in left else "right") for header in headers)
    return Table(*columns, title=title, title_justify="left")


def announce(console: Console, drawn: Iterable[Path], stamp: str) -> list[Path]:
    """Name the files of a figure and where its numbers are from; returns the files."""
    files = list(drawn)
    for path in files:
        console.print(f"drawn: {path} ({stamp})")
    return files


def fit(table: Table, console: Console) -> list[Table]:
    """The table in parts that the console has room for; each begins with the first column, which names the rows."""
    needs = [_needs(column, console) for column in table.columns]
    chosen: list[list[int]] = [[0]]
    for index in range(1, len(needs)):
        wider = [*chosen[-1], index]
        if len(wider) > 2 and _width([needs[i].minimum for i in wider]) > console.width:
            wider = [0, index]
            chosen.append(wider)
        chosen[-1] = wider
    parts = [_part(table, part, [needs[index] for index in part], console.width) for part in chosen]
    for later in parts[1:]:
        later.title = None
    for earlier in parts[:-1]:
        earlier.caption = None
    return parts


def _needs(column: Column, console: Console) -> Measurement:
    """Characters of the longest word, and of the longest line; the same where nothing may be wrapped."""
    unbounded = console.options.update(width=10**4)
    cells = [Measurement.get(console, unbounded, cell) for cell in (column.header, *column.cells)]
    longest = max(cell.maximum for cell in cells)
    return Measurement(longest if column.no_wrap else max(cell.minimum for cell in cells), longest)


def _width(columns: Sequence[int]) -> int:
    """Of a table, with a blank on each side of a cell and the lines between."""
    return sum(columns) + 3 * len(columns) + 1


def _part(table: Table, chosen: Sequence[int], needs: Sequence[Measurement], width: int) -> Table:
    """A table of the chosen columns; what is left of the width goes, one by one, to the column that lacks most."""
    widths = [need.minimum for need in needs]
    for _ in range(width - _width(widths)):
        lacks = [need.maximum - given for need, given in zip(needs, widths, strict=True)]
        if max(lacks) <= 0:
            break
        widths[lacks.index(max(lacks))] += 1
    part = copy.copy(table)
    part.columns = [
        replace(table.columns[index], _index=place, width=given, overflow="fold")
        for place, (index, given) in enumerate(zip(chosen, widths, strict=True))
    ]
    return part
