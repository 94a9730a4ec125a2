"""The ladder: a kernel's levels from TTIR to machine code, linked by line of source, with findings in the margin."""

import linecache
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from kperf.errors import UsageError
from kperf.ir.levels import Line
from kperf.ir.locations import Frame
from kperf.report.styles import STYLES
from kperf.trace.analyze.finding import Finding


@dataclass(frozen=True)
class Ladder:
    """One kernel.

    file: of its `def`; empty if unknown. levels: from the source down, by name. notes: sentences on levels that it
    has not.
    """

    kernel: str
    target: str
    file: str
    levels: Mapping[str, Sequence[Line]]
    findings: Sequence[Finding] = ()
    notes: Sequence[str] = ()


@dataclass
class Rung:
    """A line of source and what each level makes of it. callers: lines at which it was inlined."""

    file: str
    number: int
    text: str
    lines: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    callers: set[tuple[str, int]] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)

    @property
    def name(self) -> str:
        """File and number, as they are printed."""
        return place(self.file, self.number)


def place(file: str, number: int) -> str:
    """A line of source, as it is printed."""
    return f"{Path(file).name}:{number}"


def source_text(file: str, number: int) -> str:
    """A line of a file; empty where there is none."""
    return linecache.getline(file, number).rstrip("\n")


def rungs(ladder: Ladder) -> list[Rung]:
    """Lines of source that have something: the kernel's file first, Triton's library last, each in its order.

    What was inlined is of the line that it was written at; library code is of the line that called it.
    """
    by_line: dict[tuple[str, int], Rung] = {}

    def rung(file: str, number: int) -> Rung:
        return by_line.setdefault((file, number), Rung(file, number, source_text(file, number)))

    for level, lines in ladder.levels.items():
        for line in lines:
            if line.frame is not None:
                entry = rung(line.frame.file, line.frame.line)
                entry.lines[level].append(line)
                entry.callers |= {(frame.file, frame.line) for frame in callers(line)}
    for finding in ladder.findings:
        if finding.source.line:
            rung(finding.source.file, finding.source.line).findings.append(finding)

    def order(entry: Rung) -> tuple[bool, bool, str, int]:
        return entry.file != ladder.file, Frame(entry.file, entry.number).in_library, entry.file, entry.number

    return sorted(by_line.values(), key=order)


def callers(line: Line) -> list[Frame]:
    """The frames around the one that a line is of, outside of Triton's library."""
    own = line.frames.index(line.frame) if line.frame is not None else 0
    return [frame for frame in line.frames[own + 1 :] if not frame.in_library]


def restricted(ladders: Sequence[Ladder], first: int, last: int) -> list[Ladder]:
    """What comes of these lines of the kernels' files alone, what they call included; kernels that have some.

    Raises `UsageError` if none has.
    """
    parts = [_restricted(ladder, first, last) for ladder in ladders]
    if not any(any(part.levels.values()) for part in parts):
        part = ladders[0]
        numbers = sorted(rung.number for rung in rungs(part) if rung.file == part.file)
        has = f"it has lines {numbers[0]} to {numbers[-1]}" if numbers else "it has no locations"
        asked = f"line {first}" if first == last else f"lines {first} to {last}"
        raise UsageError(f"{part.kernel} makes nothing of {asked} of {Path(part.file).name}: {has}")
    return [part for part in parts if any(part.levels.values())]


def _restricted(ladder: Ladder, first: int, last: int) -> Ladder:
    def within(frames: Iterable[Frame]) -> bool:
        return any(frame.file == ladder.file and first <= frame.line <= last for frame in frames)

    levels = {level: [line for line in lines if within(line.frames)] for level, lines in ladder.levels.items()}
    findings = [finding for finding in ladder.findings if within([Frame(finding.source.file, finding.source.line)])]
    return replace(ladder, levels=levels, findings=findings)


def show(console: Console, ladder: Ladder) -> None:
    """Print each line of source, what every level makes of it, and what was found there."""
    has = ", ".join(f"{len(lines)} of {level}" for level, lines in ladder.levels.items())
    console.print(Text(f"{ladder.kernel} for {ladder.target}, lines: {has}", style="bold"))
    for note in ladder.notes:
        console.print(Text(f"  {note}"))
    for finding in ladder.findings:
        if not finding.source.line:
            _show_finding(console, finding)
    width = max(map(len, ladder.levels), default=0)
    for rung in rungs(ladder):
        head = Text(f"{rung.name}  {rung.text.strip()}", style="bold")
        if rung.callers:
            head.append(f"  (inlined at {', '.join(place(*at) for at in sorted(rung.callers))})", style="not bold")
        console.print(head)
        for finding in rung.findings:
            _show_finding(console, finding)
        for level in ladder.levels:
            for number, line in enumerate(rung.lines.get(level, ())):
                console.print(Text(f"  {level if not number else '':<{width}}  {line.text.strip()}"))
    placeless = {level: sum(line.frame is None for line in lines) for level, lines in ladder.levels.items()}
    if any(placeless.values()):
        counts = ", ".join(f"{count} of {level}" for level, count in placeless.items() if count)
        console.print(Text(f"without a line of source: {counts}"))


def _show_finding(console: Console, finding: Finding) -> None:
    head = Text("  ")
    head.append(finding.severity, style=STYLES[finding.severity])
    head.append(f"  {finding.message} [{finding.id}]; {finding.advice}")
    console.print(head)
