"""The console of all commands, as wide as the terminal. In its tables no word and no number is cut short."""

import copy
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table

PIPED = 160
"""Columns where there is no terminal and COLUMNS says nothing."""


class WholeConsole(Console):
    """Of a table that is wider than the console, cells are wrapped; where that is not enough, columns go below."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """As rich's."""
        parts = [fit(one, self) if isinstance(one, Table) else [one] for one in objects]
        super().print(*chain.from_iterable(parts), **settings)


def of_standard_output() -> WholeConsole:
    """As wide as the terminal, or as COLUMNS says."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    width = None if terminal or "COLUMNS" in os.environ else PIPED
    return WholeConsole(width=width, highlight=False, soft_wrap=True)


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
        if max(lacks) > 0:
            widths[lacks.index(max(lacks))] += 1
    part = copy.copy(table)
    part.columns = [
        replace(table.columns[index], _index=place, width=given, overflow="fold")
        for place, (index, given) in enumerate(zip(chosen, widths, strict=True))
    ]
    return part
