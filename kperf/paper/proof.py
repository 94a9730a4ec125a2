"""`make proof`: does `kperf diagnose` name planted faults, at their lines, and are its estimates right? A row a kernel.

The kernels are scripts in folders `planted` and `drafts`, where `# planted: rule` marks the line of the fault, and
`clean`; `fixed` has copies of faulty ones in which the advice is followed by hand. Each runs under `kperf diagnose
--try` in a process of its own. Several compile side by side, and take the GPU in turn.
"""

import math
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter
from rich.console import Console
from rich.table import Table

from kperf.diagnose.finding import Diagnosis
from kperf.errors import UsageError
from kperf.record.files import from_json_once
from kperf.record.store import Frozen, recorded_folder
from kperf.studies import child
from kperf.studies.records import Common, Row, measured_or_recorded, recorded
from kperf.trace.analyze.finding import Finding
from kperf.trace.capture.trial import interval

Kind = Literal["planted", "drafts", "clean"]
CLOSE = 1.5
"""By which factor a gain may differ from its estimate."""
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
        return Gain(by="a fixed copy", speedup=statistics.median(ratios), low=low, high=high)


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


class ProofRow(Row):
    """A kernel of the proof set under `kperf diagnose --try`.

    name: its script's. fault, line: the rule that is to be named, and where; empty and 0 in a clean one. kernels: what
    was found, in order, `source.file` from the folder of the set. fixed: the fixed copy beside it; why: why there is no
    measurement of what failed. took_s, waited_s: as in `Outcome`.
    """

    kind: Kind
    name: str
    fault: str = ""
    line: int = Field(default=0, ge=0)
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
        """What the finding's advice gives: the best configuration that was tried, else the fixed copy."""
        tried = self.finding.tried if self.finding is not None else []
        if tried:
            best = max(tried, key=lambda one: one.low)
            return Gain(by=best.change, speedup=best.speedup, low=best.low, high=best.high)
        return self.fixed.gain if self.fixed is not None else None

    @property
    def off(self) -> float | None:
        """Measured gain over its estimate; None where one of them is missing."""
        estimate = self.finding.estimate if self.finding is not None else None
        return self.gain.speedup / estimate.speedup if self.gain is not None and estimate is not None else None

    def _named(self) -> list[tuple[int, Finding]]:
        """The places at which the fault is named, and what is said there."""
        return [
            (place, finding)
            for kernel in self.kernels
            for place, finding in enumerate(kernel.findings, 1)
            if (finding.id, finding.source.line) == (self.fault, self.line)
        ]


ROWS: TypeAdapter[ProofRow] = TypeAdapter(ProofRow)


def run(console: Console, results: Path, kernels: Path, names: Sequence[str], *, require_gpu: bool) -> None:
    """Diagnose the kernels of a folder (or those of these names), or show what is recorded without a GPU.

    Raises `UsageError` if the folder has none, or none of a name, and if nothing is recorded.
    """
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
    rows = in_order(found.rows)
    console.print(table(rows, found.stamp))
    for line in said(rows):
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
    at_once = min(_MOST_AT_ONCE, len(os.sched_getaffinity(0)))
    with tempfile.TemporaryDirectory(prefix="kperf-proof-") as folder:
        answers = [Path(folder) / f"{place}.json" for place in range(len(paths))]
        commands = [
            [*SESSION, path, fixed if (fixed := kernels / "fixed" / path.name).is_file() else "-", answer]
            for path, answer in zip(paths, answers, strict=True)
        ]
        for ended in child.side_by_side(commands, at_once, _LIMIT_S):
            row = row_of(common, kernels, paths[ended.place], answers[ended.place], ended)
            console.print(one_line(row), highlight=False)
            yield row


def row_of(common: Common, kernels: Path, path: Path, answer: Path, ended: child.Ended) -> ProofRow:
    """The record of a script, by what its process left."""
    fault, line = planted(path)
    about = {**common, "kind": path.parent.name, "name": path.stem, "fault": fault, "line": line}
    if ended.status is None:
        return ProofRow(**about, why=f"it took more than {_LIMIT_S} s")
    lines = ended.printed.strip().splitlines()
    last = ([line for line in lines if not line.startswith("kperf: ")] or lines or ["-"])[-1]
    if ended.status or not answer.is_file():
        return ProofRow(**about, why=f"exit status {ended.status}: {last}")
    outcome = Outcome.model_validate(from_json_once(answer.read_bytes()))
    failed = f"the script ends with exit status {outcome.status}: {last}" if outcome.status else ""
    return ProofRow(
        **about,
        kernels=[_from(kernels, kernel) for kernel in outcome.kernels],
        fixed=outcome.fixed,
        why=outcome.why or failed,
        took_s=outcome.took_s,
        waited_s=outcome.waited_s,
    )


def planted(path: Path) -> tuple[str, int]:
    """The rule and the line of a script's fault; "" and 0 if it has none."""
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := _PLANTED.search(line):
            return match[1], number
    return "", 0


def _from(kernels: Path, diagnosis: Diagnosis) -> Diagnosis:
    """With files as from the folder of the set: where that lies is nobody's business."""
    folder = f"{kernels.absolute()}{os.sep}"
    findings = [
        one.model_copy(update={"source": one.source.model_copy(update={"file": one.source.file.removeprefix(folder)})})
        for one in diagnosis.findings
    ]
    return diagnosis.model_copy(update={"findings": findings})


def one_line(row: ProofRow) -> str:
    """What is printed as a kernel ends."""
    rank = "" if row.kind == "clean" else f", {row.fault} {f'at place {row.rank}' if row.rank else 'not found'}"
    gain = f", {row.gain.speedup:.2f} x by {row.gain.by}" if row.gain is not None else ""
    why = f": {row.why}" if row.why else ""
    return f"{row.kind}/{row.name}{rank}{gain} ({row.took_s:.0f} s, waited {row.waited_s:.0f} s){why}"


def table(rows: Sequence[ProofRow], stamp: str) -> Table:
    """A row a kernel."""
    made = Table(title=f"the proof set under kperf diagnose --try; {stamp}", title_justify="left")
    for column in HEAD:
        made.add_column(column, justify="right" if column in ("line", "place", "estimated", "measured") else "left")
    for row in rows:
        made.add_row(*cells(row))
    return made


HEAD = ("kernel", "fault", "line", "place", "severity", "estimated", "measured", "by")


def cells(row: ProofRow) -> tuple[str, ...]:
    """The row of a kernel, in words; of a clean one what is found of severity high."""
    if row.kind == "clean":
        return row.name, "none", "", "", f"{len(row.severe)} high" if row.severe else "none high", "", "", ""
    finding, gain = row.finding, row.gain
    if finding is None:
        return row.name, row.fault, str(row.line), "-", "", "", "", row.why
    estimate = finding.estimate
    return (
        row.name,
        row.fault,
        str(row.line),
        str(row.rank),
        finding.severity,
        f"{estimate.speedup:.2g} x, {estimate.low:.2g} to {estimate.high:.2g}" if estimate is not None else "",
        f"{gain.speedup:.2f} x, {gain.low:.2f} to {gain.high:.2f}" if gain is not None else "",
        gain.by if gain is not None else row.why,
    )


def markdown(results: Path) -> str:
    """The section of docs/proof.md: totals, and a row a faulty kernel. Raises `UsageError` for a broken record."""
    if not any(results.glob("*/diagnose.jsonl")):
        return "Nothing is recorded yet: `make proof` records it on a Hopper GPU."
    found = recorded(recorded_folder(results, "diagnose.jsonl"), "diagnose", ROWS)
    faulty = [cells(row) for row in in_order(found.rows) if row.kind != "clean"]
    lines = [f"{found.stamp[0].upper()}{found.stamp[1:]}.", "", *(f"- {line}" for line in said(found.rows)), ""]
    lines += [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in faulty)])


def in_order(rows: Sequence[ProofRow]) -> list[ProofRow]:
    """Faulty kernels first, then by name."""
    return sorted(rows, key=lambda row: (get_args(Kind).index(row.kind), row.name))


def said(rows: Sequence[ProofRow]) -> list[str]:
    """The totals, and by name what misses them."""
    rows = in_order(rows)
    faulty = [row for row in rows if row.kind != "clean"]
    clean = [row for row in rows if row.kind == "clean" and row.kernels]
    missed = [f"{row.name} ({row.fault}, {_instead(row)})" for row in faulty if row.rank is None or row.rank > 2]
    severe = [f"{row.name} ({one.id} at line {one.source.line})" for row in clean for one in row.severe]
    estimated = [(row, row.off) for row in faulty if row.off is not None]
    off = [_off(row) for row, factor in estimated if not 1 / CLOSE <= factor <= CLOSE]
    gains = [row.gain.speedup for row in faulty if row.gain is not None]
    without = [f"{row.name} ({row.why or 'nothing was tried'})" for row in faulty if row.gain is None]
    failed = [f"{row.name} ({row.why})" for row in rows if row.kind == "clean" and row.why]
    lines = [
        f"{len(faulty) - len(missed)} of {len(faulty)} faults are named first or second at their line"
        f"{_named('; not', missed)}.",
        f"Findings of severity high in {len(clean)} clean kernels: {', '.join(severe) or 'none'}.",
    ]
    if estimated:
        close, count = len(estimated) - len(off), len(estimated)
        share = f"{close} of {count} estimates ({close / count:.0%})"
        lines.append(f"{share} are within {CLOSE} x of what was measured{_named('; not', off)}.")
    if gains:
        mean = math.exp(statistics.fmean(map(math.log, gains)))
        lines.append(f"The advice makes {len(gains)} faulty kernels {mean:.2f} x as fast in the geometric mean.")
    if without:
        lines.append(f"Without a measured gain: {', '.join(without)}.")
    return [*lines, f"Failed: {', '.join(failed)}."] if failed else lines


def _named(word: str, names: Sequence[str]) -> str:
    return f"{word} {', '.join(names)}" if names else ""


def _instead(row: ProofRow) -> str:
    """What is found of a kernel before its fault, or in its place."""
    found = [f"{one.id} at line {one.source.line}" for kernel in row.kernels for one in kernel.findings]
    if row.rank is not None:
        return f"place {row.rank} after {' and '.join(found[: row.rank - 1])}"
    return f"found is {' and '.join(found[:3])}" if found else row.why or "nothing is found"


def _off(row: ProofRow) -> str:
    assert row.finding is not None
    assert row.finding.estimate is not None
    assert row.gain is not None
    one = row.finding.estimate
    inside = "inside" if one.low <= row.gain.speedup <= one.high else "outside"
    return (
        f"{row.name} ({row.fault}: estimated {one.speedup:.2f}, measured {row.gain.speedup:.2f} by {row.gain.by}, "
        f"{inside} of {one.low:.2g} to {one.high:.2g})"
    )
