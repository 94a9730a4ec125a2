"""`make proof`: does `kperf diagnose` name planted faults, at their lines, and are its estimates right? A row a kernel.

The kernels are scripts in folders `planted` and `drafts`, where `# planted: rule` marks the line of the fault, `clean`,
and `heldout`, which has both kinds, written without knowledge of the rules; `fixed` has copies of faulty ones in which
the advice is followed by hand. Each runs under `kperf diagnose --try` in a process of its own. Several compile side by
side, and take the GPU in turn.
"""

import math
import os
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import Field, TypeAdapter
from rich.console import Console
from rich.table import Table

from kperf.console import agreeing, titled_table
from kperf.diagnose.finding import Diagnosis
from kperf.errors import UsageError
from kperf.record import device
from kperf.record.files import from_json_once
from kperf.record.store import Frozen, RecordStore
from kperf.studies import child
from kperf.studies.records import Common, Row, Run, measured_or_recorded, stamp
from kperf.trace.analyze.finding import LEVELS, Finding, Source
from kperf.trace.capture.trial import interval

Kind = Literal["planted", "drafts", "clean", "heldout"]
HELD_OUT: Kind = "heldout"
CLOSE = 1.5
"""By which factor a gain may differ from its estimate."""
FASTER = 1.1
"""A gain that counts."""
SLOWER_BY = 0.99
"""A loss that counts."""
BY_HAND = "a fixed copy"
"""The change that was timed, where it is none of `--try`."""
SESSION = (sys.executable, "-m", "kperf.paper.proof_session")
_LIMIT_S = 600
"""Of a process: its compilers, its launches, and waiting for the others that have the GPU before it."""
_MOST_AT_ONCE = 8
_PLANTED = re.compile(r"# planted: (\S+)")

Samples = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]


class Gain(Frozen):
    """How many times as fast a kernel is `by` a change: the median of interleaved rounds, and its 95 % interval."""

    by: str
    speedup: float
    low: float
    high: float

    @property
    def in_words(self) -> str:
        """The median and the interval."""
        return f"{self.speedup:.2f} x, {self.low:.2f} to {self.high:.2f}"

    @property
    def is_slower(self) -> bool:
        """Whether the kernel takes longer for sure, and by more than is lost in the rounding to two digits."""
        return self.high < 1 and self.speedup < SLOWER_BY


class Beside(Frozen):
    """Launches of a script and of its fixed copy, in turn. compared: their tensors that hold the same numbers."""

    compared: list[str] = Field(min_length=1)
    original_ms: Samples
    fixed_ms: Samples

    @property
    def gain(self) -> Gain:
        """Original over fixed, the median of the rounds' ratios."""
        ratios = [before / after for before, after in zip(self.original_ms, self.fixed_ms, strict=True)]
        low, high = interval(ratios)
        return Gain(by=BY_HAND, speedup=statistics.median(ratios), low=low, high=high)


class Outcome(Frozen):
    """What a process of `kperf.paper.proof_session` writes.

    status: the script's exit status. why: why there is nothing beside a fixed copy. took_s: of which it had the GPU, or
    compiled; waited_s: for the GPU.
    """

    status: int
    kernels: list[Diagnosis]
    fixed: Beside | None
    why: str
    took_s: float = Field(ge=0)
    waited_s: float = Field(ge=0)


class KernelRow(Row):
    """A kernel of the proof set.

    name: its script's. fault, line: the rule that is to be named, and where; empty and 0 in a clean one.
    """

    kind: Kind
    name: str
    fault: str = ""
    line: int = Field(default=0, ge=0)

    @property
    def is_held_out(self) -> bool:
        """Whether it was written without knowledge of the rules."""
        return self.kind == HELD_OUT

    @property
    def is_clean(self) -> bool:
        """Whether no fault is marked in it."""
        return not self.fault


class ProofRow(KernelRow):
    """A kernel under `kperf diagnose --try`.

    kernels: what was found, in order, `source.file` from the folder of the set. fixed: the fixed copy beside it; why:
    why there is no measurement of what failed. took_s, waited_s: as in `Outcome`.
    """

    kernels: list[Diagnosis] = Field(default_factory=list)
    fixed: Beside | None = None
    why: str = ""
    took_s: float = Field(default=0.0, ge=0)
    waited_s: float = Field(default=0.0, ge=0)

    @property
    def rank(self) -> int | None:
        """The place of the fault among its kernel's findings, from 1; None if it is not found at its line."""
        return min((place for place, _ in self._named()), default=None)

    @property
    def finding(self) -> Finding | None:
        """What was found of the fault."""
        return min(self._named(), key=lambda one: one[0], default=(0, None))[1]

    @property
    def severe(self) -> list[Finding]:
        """Findings of severity high."""
        return [one for kernel in self.kernels for one in kernel.findings if one.severity == "high"]

    @property
    def gain(self) -> Gain | None:
        """What the finding's advice gives: the faster of the best configuration that was tried and the fixed copy."""
        by_hand = self.fixed.gain if self.fixed is not None else None
        tried = best_of(self.finding) if self.finding is not None else None
        return max((one for one in (tried, by_hand) if one is not None), key=lambda one: one.low, default=None)

    @property
    def off(self) -> float | None:
        """Measured gain over its estimate; None where one of them is missing."""
        estimate = self.finding.estimate if self.finding is not None else None
        return self.gain.speedup / estimate.speedup if self.gain is not None and estimate is not None else None

    def _named(self) -> list[tuple[int, Finding]]:
        """The places at which the fault is named, each with its finding."""
        return [
            (place, finding)
            for kernel in self.kernels
            for place, finding in enumerate(kernel.findings, 1)
            if (finding.id, finding.source.line) == (self.fault, self.line)
        ]


def best_of(finding: Finding) -> Gain | None:
    """Of the configurations that were tried; None where none was."""
    best = max(finding.tried, key=lambda one: one.low, default=None)
    return Gain(by=best.change, speedup=best.speedup, low=best.low, high=best.high) if best is not None else None


K = TypeVar("K", bound=KernelRow)
ROWS: TypeAdapter[ProofRow] = TypeAdapter(ProofRow)


def run(console: Console, results: Path, kernels: Path, names: Sequence[str], *, require_gpu: bool) -> None:
    """Diagnose the kernels of a folder (or those of these names), or show what is recorded without a GPU.

    Raises `UsageError` if the folder has none, or none of a name, and if nothing is recorded of them.
    """
    if names:
        scripts(kernels, names)
    found = measured_or_recorded(
        console,
        results,
        "diagnose",
        ROWS,
        partial(measure, console, kernels, names),
        require_gpu=require_gpu,
        in_children=True,
        command="proof",
    )
    parts = list(_parts(found, measured=device.why_static() is None, names=names))
    if not parts:
        raise UsageError(f"nothing is recorded of {', '.join(names)}")
    for title, part in parts:
        heading = f"{title} under kperf diagnose --try; {part.stamp}"
        console.print(_table(heading, HEAD, map(cells, in_order(part.rows))))
        if made_slower := slower(part.rows):
            console.print(_table(SLOWER, SLOWER_HEAD, made_slower))
        for line in sentences(part.rows):
            console.print(line, highlight=False)


def scripts(kernels: Path, names: Sequence[str]) -> list[Path]:
    """The set's scripts, all or those that are named. Raises `UsageError` if there are none, or none of a name."""
    found = [path for kind in get_args(Kind) for path in sorted((kernels / kind).glob("*.py"))]
    if not found:
        raise UsageError(f"{kernels} has no kernels: give the folder of the proof set with --kernels")
    if unknown := set(names) - {path.stem for path in found}:
        raise UsageError(f"{kernels} has no kernel {min(unknown)}")
    return [path for path in found if not names or path.stem in names]


def measure(console: Console, kernels: Path, names: Sequence[str], common: Common) -> Iterator[ProofRow]:
    """The row of each script as it ends; of one that fails why."""
    paths = scripts(kernels, names)
    with tempfile.TemporaryDirectory(prefix="kperf-proof-") as folder:
        answers = [Path(folder) / f"{place}.json" for place in range(len(paths))]
        commands = [
            [*SESSION, path, fixed if (fixed := kernels / "fixed" / path.name).is_file() else "-", answer]
            for path, answer in zip(paths, answers, strict=True)
        ]
        for ended in child.side_by_side(commands, at_once(), _LIMIT_S):
            row = row_of(common, kernels, paths[ended.place], answers[ended.place], ended)
            console.print(one_line(row), highlight=False)
            yield row


def at_once() -> int:
    """How many scripts compile side by side."""
    return min(_MOST_AT_ONCE, len(os.sched_getaffinity(0)))


def row_of(common: Common, kernels: Path, path: Path, answer: Path, ended: child.Ended) -> ProofRow:
    """The record of a script, by what its process left."""
    about = {**common, **about_script(path)}
    outcome, why = left_by(answer, ended, _LIMIT_S)
    if outcome is None:
        return ProofRow(**about, why=why)
    return ProofRow(
        **about,
        kernels=[seen_from(kernels, kernel) for kernel in outcome.kernels],
        fixed=outcome.fixed,
        why=why,
        took_s=outcome.took_s,
        waited_s=outcome.waited_s,
    )


def left_by(answer: Path, ended: child.Ended, limit_s: float) -> tuple[Outcome | None, str]:
    """What a process of `SESSION` left, None if nothing; and why something is missing."""
    if ended.status is None:
        return None, f"it took more than {limit_s:.0f} s"
    lines = ended.printed.strip().splitlines()
    last = ([line for line in lines if not line.startswith("kperf: ")] or lines or ["-"])[-1]
    if ended.status or not answer.is_file():
        return None, f"exit status {ended.status}: {last}"
    outcome = Outcome.model_validate(from_json_once(answer.read_bytes()))
    failed = f"the script ends with exit status {outcome.status}: {last}" if outcome.status else ""
    return outcome, outcome.why or failed


def about_script(path: Path) -> dict[str, Any]:
    """The fields of `KernelRow` that it has beside those of `Row`."""
    fault, line = planted(path)
    return {"kind": path.parent.name, "name": path.stem, "fault": fault, "line": line}


def planted(path: Path) -> tuple[str, int]:
    """The rule and the line of a script's fault; "" and 0 if it has none."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := _PLANTED.search(line):
            return match[1], number
    return "", 0


def seen_from(root: Path, diagnosis: Diagnosis) -> Diagnosis:
    """With files as from a folder, or from that of the packages: where these lie is nobody's business."""
    folder = f"{root.absolute()}{os.sep}"

    def of(source: Source) -> Source:
        file = source.file.removeprefix(folder).rpartition("/site-packages/")[2]
        return source.model_copy(update={"file": file})

    findings = [one.model_copy(update={"source": of(one.source)}) for one in diagnosis.findings]
    return diagnosis.model_copy(update={"findings": findings, "source": of(diagnosis.source)})


def one_line(row: ProofRow) -> str:
    """What is printed as a kernel ends."""
    rank = "" if row.is_clean else f", {row.fault} {f'at place {row.rank}' if row.rank else 'not found'}"
    gain = f", {row.gain.speedup:.2f} x by {row.gain.by}" if row.gain is not None else ""
    why = f": {row.why}" if row.why else ""
    return f"{row.kind}/{row.name}{rank}{gain} ({row.took_s:.0f} s, waited {row.waited_s:.0f} s){why}"


HEAD = (
    "kernel", "fault", "line", "rank of the finding", "severity", "estimated gain", "measured gain",
    "change that was timed",
)  # fmt: skip
SLOWER = (
    "Findings whose advice makes the kernel slower than before (if several changes follow the advice, the table shows "
    "the fastest)"
)
SLOWER_HEAD = ("kernel", "finding", *HEAD[2:])


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    made = titled_table(title, *head, left=set(head) - {*HEAD[2:4], *HEAD[5:7]})
    for row in rows:
        made.add_row(*row)
    return made


def cells(row: ProofRow) -> tuple[str, ...]:
    """The row of a kernel, in words; of a clean one what is found of severity high."""
    if row.is_clean:
        return row.name, "none", "", "", f"{len(row.severe)} high" if row.severe else "none high", "", "", ""
    if row.finding is None:
        return row.name, row.fault, str(row.line), "-", "", "", *_in_words(row.gain, row)
    return _of_finding(row, row.rank, row.finding, row.gain)


def slower(rows: Sequence[ProofRow]) -> list[tuple[str, ...]]:
    """A row of each finding whose advice makes its kernel slower, by the best change that was tried."""
    found = [
        (row, place, finding, row.gain if finding is row.finding else best_of(finding))
        for row in in_order(rows)
        for kernel in row.kernels
        for place, finding in enumerate(kernel.findings, 1)
    ]
    return [_of_finding(*one) for one in found if one[-1] is not None and one[-1].is_slower]


def estimated(finding: Finding) -> str:
    """The gain that a finding estimates, with its interval; empty without one."""
    estimate = finding.estimate
    return f"{estimate.speedup:.2g} x, {estimate.low:.2g} to {estimate.high:.2g}" if estimate is not None else ""


def _of_finding(row: ProofRow, place: int | None, finding: Finding, gain: Gain | None) -> tuple[str, ...]:
    return (
        row.name,
        finding.id,
        str(finding.source.line),
        str(place),
        finding.severity,
        estimated(finding),
        *_in_words(gain, row),
    )


def _in_words(gain: Gain | None, row: ProofRow) -> tuple[str, str]:
    """A measured gain, and the change that was timed; else why there is none."""
    checked = row.finding.checked if row.finding is not None else None
    if checked is not None and checked.different:
        return "", f"the results of {checked.different} of {checked.launches} launches are wrong"
    if gain is None:
        return "", row.why.partition(":")[0] or "no change was timed"
    return gain.in_words, gain.by


def _parts(found: Run[ProofRow], *, measured: bool, names: Sequence[str]) -> Iterator[tuple[str, Run[ProofRow]]]:
    """What is counted apart: kernels that were written together with the rules, and those that were not.

    measured: whether the run is this machine's. names: of the kernels that are asked for; if none, with what is
    recorded of the part that the run lacks. Held-out kernels become drafts as soon as a rule was changed for one of
    them, so the newest run need not have any.
    """
    for title, held_out in (("the proof set", False), ("held-out kernels", True)):
        part = [row for row in found.rows if row.is_held_out is held_out]
        if part and measured:
            yield title, replace(found, rows=part)
        elif not (measured and names):
            with suppress(UsageError):
                known = recorded_run(found.folder, held_out=held_out)
                if rows := [row for row in known.rows if not names or row.name in names]:
                    yield title, replace(known, rows=rows)


def recorded_run(folder: Path, *, held_out: bool) -> Run[ProofRow]:
    """What is recorded of a GPU: the last run of held-out kernels, and of the others each kernel's newest row.

    Kernels do not depend on each other, nor do runs; but rules may be changed for a held-out kernel after its run.
    Raises `UsageError` if the record is broken or has none of them.
    """
    store = RecordStore(folder, "diagnose", ROWS)
    if held_out:
        points = store.points()
        last = next((row.run for row in reversed(points) if row.is_held_out), "")
        rows = [row for row in points if row.run == last and row.is_held_out]
        return Run(folder, in_order(rows), stamp(store, rows, "recorded"))
    rows = newest_of_each(row for row in store.points() if not row.is_held_out)
    return Run(folder, rows, stamp(store, rows, "recorded"))


def newest_of_each(rows: Iterable[K], is_whole: Callable[[K], bool] = lambda _: True) -> list[K]:
    """Of each kernel the last row that is whole, else its first, in order."""
    found: dict[str, K] = {}
    for row in rows:
        if is_whole(row) or row.name not in found:
            found[row.name] = row
    return in_order(list(found.values()))


def in_order(rows: Sequence[K]) -> list[K]:
    """Faulty kernels first, then by name."""
    return sorted(rows, key=lambda row: (get_args(Kind).index(row.kind), row.name))


def sentences(rows: Sequence[ProofRow]) -> list[str]:
    """The totals, and by name what misses them."""
    rows = in_order(rows)
    faulty = [row for row in rows if not row.is_clean]
    clean = [row for row in rows if row.is_clean and row.kernels]
    missed = [f"{row.name} ({row.fault}, {_instead(row)})" for row in faulty if row.rank is None or row.rank > 2]
    ranks = Counter(row.rank for row in faulty)
    without = [row.name for row in faulty if row.gain is None]
    failed = [f"{row.name} ({row.why})" for row in rows if row.is_clean and row.why]
    faults = agreeing(len(faulty), "fault and its line", "faults and their lines")
    lines = [
        f"kperf's first or second finding names {ranks[1] + ranks[2]} of {len(faulty)} {faults}: the first finding "
        f"names {ranks[1]}, and the second finding names {ranks[2]}.",
        *([f"Neither the first nor the second finding names the fault of {', '.join(missed)}."] if missed else []),
        _of_clean(clean),
        *_of_estimates(faulty),
        *_of_gains(faulty),
        *_of_results(rows),
    ]
    if without:
        lines.append(f"Kernels whose gain was not measured: {', '.join(without)}.")
    return [*lines, f"Failed: {', '.join(failed)}."] if failed else lines


def _of_clean(rows: Sequence[ProofRow]) -> str:
    """How severe what is found of clean kernels is, and whether anything says that it is wrong."""
    found = {row.name: [one for kernel in row.kernels for one in kernel.findings] for row in rows}
    worst = Counter(min((LEVELS.index(one.severity) for one in findings), default=None) for findings in found.values())
    severe = [f"{row.name}: {one.id} at line {one.source.line}" for row in rows for one in row.severe]
    levels = [f"{level} in {worst[place]}" for place, level in enumerate(LEVELS)]
    if severe:
        levels[0] += f" ({', '.join(severe)})"
    tried = sum(any(one.tried for one in findings) for findings in found.values())
    return (
        f"Of {len(rows)} clean {agreeing(len(rows), 'kernel', 'kernels')}, {worst[None]} "
        f"{agreeing(worst[None], 'has', 'have')} no finding. The severest finding of a clean kernel has severity "
        f"{', '.join(levels)} kernels. `--try` timed candidates on {tried or 'none'} of the clean kernels."
    )


def _of_estimates(faulty: Sequence[ProofRow]) -> list[str]:
    """How many are near to what was measured, how many gains lie in their intervals, and which do not."""
    estimated = [row for row in faulty if row.off is not None]
    if not estimated:
        return []
    off = [row.name for row in estimated if not is_close(row)]
    outside = [row.name for row in estimated if not is_inside(row)]
    count = len(estimated)
    close, inside, kernels = count - len(off), count - len(outside), agreeing(count, "kernel", "kernels")
    apart = f". The two gains differ by a factor above {CLOSE} for"
    return [
        f"For {close} of {count} faulty {kernels} ({close / count:.0%}), the estimated gain differs from the measured "
        f"gain by a factor of at most {CLOSE}{_named(apart, off)}.",
        f"For {inside} of {count} faulty {kernels}, the measured gain lies in the interval of the estimate"
        f"{_named('. The measured gain lies outside of the interval for', outside)}.",
    ]


def _of_gains(faulty: Sequence[ProofRow]) -> list[str]:
    """How many kernels the advice makes faster, and by how much; one large gain moves a mean."""
    gains = sorted(((row.gain, row.name) for row in faulty if row.gain is not None), key=lambda one: one[0].speedup)
    if not gains:
        return []
    speedups = [gain.speedup for gain, _ in gains]
    by_hand = sum(gain.by == BY_HAND for gain, _ in gains)
    faster = sum(speedup >= FASTER for speedup in speedups)
    worse = [name for gain, name in gains if gain.is_slower]
    little = len(gains) - faster - len(worse)
    lines = [
        f"The advice was timed on {len(gains)} faulty {agreeing(len(gains), 'kernel', 'kernels')}: `--try` made "
        f"{len(gains) - by_hand} of the changes, and {by_hand} {agreeing(by_hand, 'was', 'were')} made by hand.",
        f"With the advised change, {faster} of {len(gains)} {agreeing(len(gains), 'kernel', 'kernels')} "
        f"{agreeing(faster, 'becomes', 'become')} at least {FASTER - 1:.0%} faster, {little} "
        f"{agreeing(little, 'gains', 'gain')} less than {FASTER - 1:.0%}, and {len(worse)} "
        f"{agreeing(len(worse), 'becomes', 'become')} slower{_named(':', worse)}.",
    ]
    if len(gains) > 1:
        lines.append(
            f"The median of the {len(gains)} measured gains is {statistics.median(speedups):.2f} x, and the geometric "
            f"mean {_mean(speedups):.2f} x; without {gains[-1][1]} ({speedups[-1]:.0f} x) the geometric mean is "
            f"{_mean(speedups[:-1]):.2f} x."
        )
    return lines


def _of_results(rows: Sequence[ProofRow]) -> list[str]:
    """Of the kernels whose results a finding doubts, how many launches computed wrong ones."""
    found = {row.name: one.checked for row in rows for kernel in row.kernels for one in kernel.findings if one.checked}
    if not found:
        return []
    of_each = [f"{one.different} of {one.launches} launches of {name}" for name, one in found.items()]
    return [
        "Findings say that these kernels may compute wrong results. `--try` compared the results of several launches: "
        f"wrong results came from {', '.join(of_each)}."
    ]


def _mean(factors: Sequence[float]) -> float:
    """Their geometric mean."""
    return math.exp(statistics.fmean(map(math.log, factors)))


def _named(word: str, names: Sequence[str]) -> str:
    return f"{word} {', '.join(names)}" if names else ""


def _instead(row: ProofRow) -> str:
    """What is found of a kernel before its fault, or in its place."""
    found = [f"{one.id} at line {one.source.line}" for kernel in row.kernels for one in kernel.findings]
    if row.rank is not None:
        return f"finding {row.rank}, after {' and '.join(found[: row.rank - 1])}"
    return f"kperf reports {' and '.join(found[:3])}" if found else row.why or "kperf reports nothing"


def is_close(row: ProofRow) -> bool:
    """Whether the estimated gain is near to the measured one."""
    return row.off is not None and 1 / CLOSE <= row.off <= CLOSE


def is_inside(row: ProofRow) -> bool:
    """Whether the measured gain lies in the interval of its estimate."""
    estimate = row.finding.estimate if row.finding is not None else None
    return row.gain is not None and estimate is not None and estimate.low <= row.gain.speedup <= estimate.high
