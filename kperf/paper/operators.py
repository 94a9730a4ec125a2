"""`kperf operators`: `kperf diagnose --try` on the operators of TritonBench-G, which nobody wrote for kperf.

The operators are public code, which this repository does not hold: who has a checkout of TritonBench gives its folder.
Each runs in a process of its own, as a kernel of the proof set does, on inputs of the benchmark's own. Findings are
recorded, and how much faster the configurations are that `--try` timed.
"""

import hashlib
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import Field, TypeAdapter
from rich.console import Console
from rich.table import Table

from kperf.console import agreeing
from kperf.diagnose.finding import Diagnosis
from kperf.errors import UsageError
from kperf.paper import proof
from kperf.paper.operator_call import OPERATORS, files_of, names
from kperf.paper.proof import FASTER, Gain
from kperf.record import markdown as md
from kperf.record.store import RecordStore, recorded_folder
from kperf.studies import child
from kperf.studies.records import Common, Row, Run, measured_or_recorded, stamp
from kperf.trace.analyze.finding import LEVELS, Finding

_LIMIT_S = 300
"""Of a process, waiting for the others that have the GPU before it included."""
_DRIVER = "from kperf.paper.operator_call import call\n\ncall({checkout!r}, {name!r})\n"


class OperatorRow(Row):
    """An operator under `kperf diagnose --try`.

    sha256: of its file and of that of its inputs, one behind the other. kernels: what is found of each of its Triton
    kernels, `source.file` from the checkout. why: why there is nothing. took_s: of which it had the GPU, or compiled;
    waited_s: for the GPU.
    """

    name: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    kernels: list[Diagnosis] = Field(default_factory=list)
    why: str = ""
    took_s: float = Field(default=0.0, ge=0)
    waited_s: float = Field(default=0.0, ge=0)


ROWS: TypeAdapter[OperatorRow] = TypeAdapter(OperatorRow)


@dataclass(frozen=True)
class Tried:
    """A kernel of which configurations were timed: the finding whose configuration is the fastest, and its gain."""

    operator: str
    kernel: str
    finding: Finding
    gain: Gain

    @property
    def is_faster(self) -> bool:
        """Whether the kernel gains a tenth for sure."""
        return self.gain.low >= FASTER


def run(console: Console, results: Path, checkout: Path | None, chosen: Sequence[str]) -> None:
    """Diagnose the operators of a checkout (or those of these names), or show what is recorded.

    Raises `UsageError` if the folder has none, or none of a name; without a GPU; and if nothing is recorded.
    """
    if checkout is None:
        shown = recorded_run(recorded_folder(results, "operators.jsonl"))
    else:
        measure_here = partial(measure, console, checkout, chosen)
        shown = measured_or_recorded(
            console, results, "operators", ROWS, measure_here, require_gpu=True, in_children=True
        )
    console.print(_table(f"operators of TritonBench-G under kperf diagnose --try; {shown.stamp}", shown.rows))
    for line in sentences(shown.rows):
        console.print(line, highlight=False)


def measure(console: Console, checkout: Path, chosen: Sequence[str], common: Common) -> Iterator[OperatorRow]:
    """The row of each operator as it ends; of one that fails why."""
    checkout = checkout.absolute()
    known = names(checkout)
    if not known:
        raise UsageError(f"{checkout} is no checkout of TritonBench: it has no operators in {OPERATORS}")
    if unknown := set(chosen) - set(known):
        raise UsageError(f"TritonBench-G has no operator {min(unknown)}")
    operators = [name for name in known if not chosen or name in chosen]
    with tempfile.TemporaryDirectory(prefix="kperf-operators-") as folder:
        answers = [Path(folder) / f"{name}.json" for name in operators]
        for name in operators:
            (Path(folder) / f"{name}.py").write_text(_DRIVER.format(checkout=str(checkout), name=name))
        commands: list[list[str | Path]] = [
            [*proof.SESSION, answer.with_suffix(".py"), "-", answer] for answer in answers
        ]
        for ended in child.side_by_side(commands, proof.at_once(), _LIMIT_S):
            row = row_of(common, checkout, operators[ended.place], answers[ended.place], ended)
            console.print(_one_line(row), highlight=False)
            yield row


def row_of(common: Common, checkout: Path, name: str, answer: Path, ended: child.Ended) -> OperatorRow:
    """The record of an operator, by what its process left."""
    content = b"".join(path.read_bytes() for path in files_of(checkout, name))
    about = {**common, "name": name, "sha256": hashlib.sha256(content).hexdigest()}
    outcome, why = proof.left_by(answer, ended, _LIMIT_S)
    if outcome is None:
        return OperatorRow(**about, why=why)
    kernels = [proof.seen_from(checkout, kernel) for kernel in outcome.kernels]
    return OperatorRow(**about, kernels=kernels, why=why, took_s=outcome.took_s, waited_s=outcome.waited_s)


def _one_line(row: OperatorRow) -> str:
    """What is printed as an operator ends."""
    worst = Counter(_severity(kernel) for kernel in row.kernels)
    levels = ", ".join(f"{worst[level]} {level}" for level in (*LEVELS, "none") if worst[level])
    gains = ", ".join(f"{one.kernel} {one.gain.speedup:.2f} x by {one.gain.by}" for one in _tried([row]))
    why = f": {row.why}" if row.why else ""
    return f"{row.name} {levels} {gains} ({row.took_s:.0f} s, waited {row.waited_s:.0f} s){why}"


def recorded_run(folder: Path) -> Run[OperatorRow]:
    """Of each operator the newest row. Raises `UsageError` if the record is broken or has none."""
    store = RecordStore(folder, "operators", ROWS)
    rows = sorted({row.name: row for row in store.points()}.values(), key=lambda row: row.name)
    return Run(folder, rows, stamp(store, rows, "recorded"))


def _tried(rows: Sequence[OperatorRow]) -> list[Tried]:
    """Of each kernel of which configurations were timed the fastest one, the largest gain first."""
    tried = []
    for row in rows:
        for kernel in row.kernels:
            best = [(gain, finding) for finding in kernel.findings if (gain := proof.best_of(finding)) is not None]
            if best:
                gain, finding = max(best, key=lambda one: one[0].low)
                tried.append(Tried(row.name, kernel.kernel, finding, gain))
    return sorted(tried, key=lambda one: one.gain.speedup, reverse=True)


def _severity(kernel: Diagnosis) -> str:
    """Of its severest finding; "none" without one."""
    return min((finding.severity for finding in kernel.findings), key=LEVELS.index, default="none")


HEAD = ("kernel", "finding", "line", "severity", "estimated gain", "measured gain", "fastest configuration timed")


def _cells(one: Tried) -> tuple[str, ...]:
    """The row of a kernel."""
    return (
        one.kernel,
        one.finding.id,
        f"{Path(one.finding.source.file).name}:{one.finding.source.line}",
        one.finding.severity,
        proof.estimated(one.finding),
        one.gain.in_words,
        one.gain.by,
    )


def _table(title: str, rows: Sequence[OperatorRow]) -> Table:
    made = Table(*HEAD, title=title, title_justify="left")
    for one in _tried(rows):
        made.add_row(*_cells(one))
    return made


def markdown(folder: Path) -> str:
    """The section of docs/public.md: totals, and a row a kernel that a configuration makes a tenth faster."""
    found = recorded_run(folder)
    lines = [f"{found.stamp[0].upper()}{found.stamp[1:]}.", "", *(f"- {line}" for line in sentences(found.rows)), ""]
    return "\n".join(lines + md.table(HEAD, [_cells(one) for one in _tried(found.rows) if one.is_faster]))


def sentences(rows: Sequence[OperatorRow]) -> list[str]:
    """The totals, and by name which operators failed."""
    kernels = [kernel for row in rows for kernel in row.kernels]
    failed = [row.name for row in rows if not row.kernels]
    worst = Counter(map(_severity, kernels))
    tried = _tried(rows)
    faster = [one.gain.speedup for one in tried if one.is_faster]
    slower = [one for one in tried if one.gain.is_slower]
    estimated = [one.gain.speedup / one.finding.estimate.speedup for one in tried if one.finding.estimate is not None]
    close = sum(1 / proof.CLOSE <= factor <= proof.CLOSE for factor in estimated)
    ran = len(rows) - len(failed)
    range_of_gains = (
        f" ({min(faster):.2f} to {max(faster):.2f} x, median {statistics.median(faster):.2f} x)" if faster else ""
    )
    lines = [
        f"{ran} of {len(rows)} operators ran, and launched {_kernels(len(kernels))}.",
        f"The severest finding has severity {', '.join(f'{level} in {_kernels(worst[level])}' for level in LEVELS)}; "
        f"{_kernels(worst['none'])} {agreeing(worst['none'], 'has', 'have')} no finding.",
        f"`--try` timed other configurations of {_kernels(len(tried))}. The fastest configuration makes "
        f"{_kernels(len(faster))} at least {FASTER - 1:.0%} faster{range_of_gains}; {_kernels(len(slower))} "
        f"{agreeing(len(slower), 'becomes', 'become')} slower with every configuration that was timed.",
    ]
    if estimated:
        lines.append(
            f"For {close} of {_kernels(len(estimated))}, the estimated gain differs from the measured gain by a factor "
            f"of at most {proof.CLOSE}."
        )
    if failed:
        lines.append(f"{agreeing(len(failed), 'An operator', 'Operators')} that did not run: {', '.join(failed)}.")
    return lines


def _kernels(count: int) -> str:
    return f"{count} {agreeing(count, 'kernel', 'kernels')}"
