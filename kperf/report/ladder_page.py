"""The ladder as one self-contained HTML page: a pane a level, and a line's place in one shows it in all."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kperf.ir.levels import Line
from kperf.report.ladder import Ladder, callers, rungs, source_text
from kperf.report.templates import inside, render
from kperf.trace.analyze.finding import Finding

LINES_AROUND = 2
"""Lines of source that are shown around those of which something is made."""


@dataclass(frozen=True)
class Row:
    """A line of a pane. at: the places of source that it belongs to, its own first; empty where there is none."""

    text: str
    at: str = ""
    number: int | None = None
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Pane:
    """A level, or a source file."""

    name: str
    rows: Sequence[Row]


def page(ladders: Sequence[Ladder]) -> str:
    """The page's text."""
    return render(
        "ladder.html.jinja",
        ladders=ladders,
        panes=[panes(ladder) for ladder in ladders],
        style=inside("page.css") + inside("ladder.css"),
        controls=inside("ladder.js"),
    )


def panes(ladder: Ladder) -> list[Pane]:
    """The source files that have lines, the kernel's first, then the levels."""
    by_file: dict[str, dict[int, tuple[Finding, ...]]] = defaultdict(dict)
    for rung in rungs(ladder):
        by_file[rung.file][rung.number] = tuple(rung.findings)
        for file, number in rung.callers:
            by_file[file].setdefault(number, ())
    names = {file: str(number) for number, file in enumerate(by_file)}

    def of_source(file: str) -> list[Row]:
        rows: list[Row] = []
        linked = by_file[file]
        shown = sorted({n for at in linked for n in range(max(at - LINES_AROUND, 1), at + LINES_AROUND + 1)})
        for before, number in zip([0, *shown], shown, strict=False):
            text = source_text(file, number)
            if number in linked or text:
                rows += [Row("…")] if number > before + 1 and before else []
                at = f"{names[file]}:{number}" if number in linked else ""
                rows.append(Row(text, at, number, linked.get(number, ())))
        return rows

    def of_level(line: Line) -> Row:
        own = [line.frame] if line.frame is not None else []
        return Row(line.text, " ".join(f"{names[frame.file]}:{frame.line}" for frame in (*own, *callers(line))))

    sources = [Pane(Path(file).name, of_source(file)) for file in by_file]
    return [*sources, *(Pane(level, [of_level(line) for line in lines]) for level, lines in ladder.levels.items())]
