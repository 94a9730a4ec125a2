"""Public kernels as they are recorded: the times of each before and after a change, and what was found of it."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kperf.console import agreeing
from kperf.record.store import RecordStore
from kperf.studies.records import Row, Run, stamp
from kperf.trace.analyze.finding import Finding
from kperf.trace.capture.copies import Likeness
from kperf.trace.capture.trial import interval

FASTER = 1.1
"""A gain that counts: the lower end of its interval."""

NEAR_LINES = 5
"""A finding this many lines from a fault names its line: an author who names a loop may mean a load in it."""

SHORT_COMMIT = 10
"""Digits of a commit that name it on a page; the record has all."""

Samples = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=6)]


class PublicRow(Row):
    """A kernel of a public package, its operator timed with the kernel as it is and with a change.

    repository: owner/name; commit: its commit; source: path:line in it; shape, change: in words. rule: the finding
    whose advice the change follows, empty if none says so. faults: why the original is slow as those say who made it
    faster, before kperf read it: the rules of which each looks for that, or their words if no rule does; empty of a
    change of ours. lines: those of the fault in the source, none if it is how the kernel is launched. follows: the row
    of the author's change, if somebody who did not know that made this one by what `kperf diagnose` finds on a GPU;
    then that row has the findings. findings: what static rules say of the original kernel. timed: the whole operator,
    or the kernel alone where the operator waits for the host. outputs: of both calls. collection: of kernels that
    others made faster; kperf's rules were changed because of those of earlier ones, before a later one was measured.
    """

    name: str
    repository: str
    commit: str
    source: str
    kernel: str
    shape: str
    change: str
    rule: str
    faults: tuple[str, ...] = ()
    lines: tuple[int, ...] = ()
    follows: str = ""
    collection: int = 1
    findings: list[Finding]
    timed: Literal["operator", "kernel"]
    outputs: Likeness
    original_samples_ms: Samples
    changed_samples_ms: Samples

    @property
    def ratios(self) -> list[float]:
        """How many times as fast the changed kernel is, of each round."""
        return [a / b for a, b in zip(self.original_samples_ms, self.changed_samples_ms, strict=True)]

    @property
    def rank(self) -> int | None:
        """The place of the finding that names the fault near its lines, among all findings; None if none does."""
        named = [one.id in self.faults and self._is_near(one.source.line) for one in self.findings]
        return named.index(True) + 1 if any(named) else None

    def _is_near(self, line: int) -> bool:
        return not self.lines or min(abs(line - one) for one in self.lines) <= NEAR_LINES


ROWS: TypeAdapter[PublicRow] = TypeAdapter(PublicRow)


def recorded(folder: Path) -> Run[PublicRow]:
    """Of each pair what was measured last: a run has some of them. The newest come first."""
    store = RecordStore(folder, "public", ROWS)
    rows = list({row.name: row for row in store.points()}.values())
    rows.sort(key=lambda row: row.recorded_at, reverse=True)
    return Run(store.folder, rows, stamp(store, rows, "recorded"))


def stamped(shown: Run[PublicRow], rows: Sequence[PublicRow]) -> str:
    """Where and when some of a record's rows were measured."""
    text = stamp(RecordStore(shown.folder, "public", ROWS), rows, "recorded")
    return f"{text[0].upper()}{text[1:]}."


def named_kernel(row: PublicRow) -> str:
    """The kernel, and where the version that was changed stands: repository, commit if there is one, file and line."""
    commit = f" {row.commit[:SHORT_COMMIT]}" if row.commit else ""
    return f"`{row.kernel}` ({row.repository}{commit}, {row.source})"


def in_order(rows: Sequence[PublicRow]) -> list[PublicRow]:
    """The largest gain first."""
    return sorted(rows, key=lambda row: statistics.median(row.ratios), reverse=True)


def is_faster(row: PublicRow) -> bool:
    """Whether the change gains a tenth and more, and computes the same."""
    return interval(row.ratios)[0] >= FASTER and row.outputs != "different"


def is_slower(row: PublicRow) -> bool:
    """Whether the change costs time for sure, and computes the same."""
    return interval(row.ratios)[1] < 1 and row.outputs != "different"


def came_of(rows: Sequence[PublicRow]) -> str:
    """How many changes make an operator faster, slower or neither, and by how much, in sentences."""
    same = [row for row in rows if row.outputs != "different"]
    gained = [row for row in same if is_faster(row)]
    slower = [row for row in same if is_slower(row)]
    little = [row for row in same if not is_faster(row) and not is_slower(row)]
    parts = [
        f"{len(gained)} {agreeing(len(gained), 'change makes its', 'changes make their')} operator at least "
        f"{FASTER - 1:.0%} faster"
        f"{_gains(gained)}",
        f"{len(slower)} {agreeing(len(slower), 'makes', 'make')} it slower{_gains(slower)}",
        f"{len(little)} {agreeing(len(little), 'makes', 'make')} it neither faster by {FASTER - 1:.0%} nor slower"
        f"{_gains(little)}",
    ]
    counts = f"By the 95% intervals of the gains, {', '.join(parts[:2])}, and {parts[2]}."
    different = len(rows) - len(same)
    if not different:
        return counts
    not_counted = agreeing(
        different, "change is not counted, because it changes", "changes are not counted, because they change"
    )
    return f"{counts} {different} {not_counted} the operator's outputs."


def _gains(rows: Sequence[PublicRow]) -> str:
    gains = sorted(statistics.median(row.ratios) for row in rows)
    if not gains:
        return ""
    return f" ({gains[0]:.2f} x)" if len(gains) == 1 else f" ({gains[0]:.2f} to {gains[-1]:.2f} x)"


def gain(row: PublicRow) -> str:
    """How many times as fast the changed kernel is, with its interval."""
    low, high = interval(row.ratios)
    return f"{statistics.median(row.ratios):.2f} x ({low:.2f} to {high:.2f})"
