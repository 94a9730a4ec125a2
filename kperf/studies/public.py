"""Public kernels before and after a change: what `kperf diagnose` says of each, and how much faster it becomes.

The code of public packages is not in this repository. Who has it writes a file of pairs (`PAIRS`) and gives it to
`kperf public`: on a GPU both calls of a pair take turns, replayed from CUDA graphs with the L2 flushed, and their
outputs are compared.
"""

import runpy
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

import torch
from pydantic import Field, TypeAdapter
from rich.console import Console
from rich.table import Table

from kperf.arch import of
from kperf.bench.turns import FLUSH_BYTES, capture_graph, timed_replay
from kperf.compat.triton import CompiledKernel, LaunchCall, intercepted_launches
from kperf.console import agreeing
from kperf.diagnose.engine import diagnose
from kperf.diagnose.history import Histories
from kperf.diagnose.inputs import of_launch
from kperf.diagnose.rule import all_rules
from kperf.errors import UsageError
from kperf.record import markdown as md
from kperf.record.store import RecordStore, recorded_folder
from kperf.studies.records import Common, Row, Run, measured_or_recorded, stamp
from kperf.trace.analyze.finding import Finding
from kperf.trace.capture.copies import Likeness, likeness
from kperf.trace.capture.trial import interval

NEAR_LINES = 5
"""A finding this many lines from a fault names its line: an author who names a loop may mean a load in it."""

ROUNDS = 31
_WARM = 10
"""Rounds before those that are timed."""

Samples = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=6)]


class PublicRow(Row):
    """A kernel of a public package, its operator timed with the kernel as it is and with a change.

    repository: owner/name; commit: its commit; source: path:line in it; shape, change: in words. rule: the finding
    whose advice the change follows, empty if none says so. faults: why the original is slow as those say who made it
    faster, before kperf read it: the rules of which each looks for that, or their words if no rule does; empty of a
    change of ours. lines: those of the fault in the source, none if it is how the kernel is launched. findings: what
    static rules say of the original kernel. timed: the whole operator, or the kernel alone where the operator waits for
    the host. outputs: of both calls.
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


@dataclass(frozen=True)
class Pair:
    """A kernel and a changed copy; fields as in `PublicRow`. The `rule` is recorded if it finds something.

    make: gives the call, changed or not, with the same inputs; a call returns its outputs.
    """

    name: str
    repository: str
    commit: str
    source: str
    kernel: str
    shape: str
    change: str
    rule: str
    make: Callable[[bool], Callable[[], Sequence[torch.Tensor | None]]]
    timed: Literal["operator", "kernel"] = "operator"
    faults: Sequence[str] = ()
    lines: Sequence[int] = ()


def run(console: Console, results: Path, pairs: Path | None) -> None:
    """Measure the pairs of a file, or show the recorded ones. Raises `UsageError` if there are none, or no GPU."""
    if pairs is None:
        shown = _recorded(recorded_folder(results, "public.jsonl"))
    else:
        measure_here = partial(measure, console, read_pairs(pairs))
        shown = measured_or_recorded(console, results, "public", ROWS, measure_here, require_gpu=True)
    if advised := [row for row in shown.rows if not row.faults]:
        console.print(table(advised, shown.stamp))
    if faulty := [row for row in shown.rows if row.faults]:
        console.print(table_of_faults(faulty, shown.stamp))


def read_pairs(path: Path) -> Sequence[Pair]:
    """`PAIRS` of a Python file. Raises `UsageError` if it has none."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    pairs = runpy.run_path(str(path)).get("PAIRS")
    if not isinstance(pairs, list | tuple) or not all(isinstance(pair, Pair) for pair in pairs):
        raise UsageError(f"{path} has no PAIRS: a list of kperf.studies.public.Pair")
    return pairs


def _recorded(folder: Path) -> Run[PublicRow]:
    """Of each pair what was measured last: a run has some of them. The newest come first."""
    store = RecordStore(folder, "public", ROWS)
    rows = list({row.name: row for row in store.points()}.values())
    rows.sort(key=lambda row: row.recorded_at, reverse=True)
    return Run(store.folder, rows, stamp(store, rows, "recorded"))


def _stamp(shown: Run[PublicRow], rows: Sequence[PublicRow]) -> str:
    """Where and when some of a record's rows were measured."""
    text = stamp(RecordStore(shown.folder, "public", ROWS), rows, "recorded")
    return f"{text[0].upper()}{text[1:]}."


def measure(console: Console, pairs: Sequence[Pair], common: Common) -> Iterator[PublicRow]:
    """A row a pair; of one that fails the reason is printed."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for pair in pairs:
        try:
            yield _row(pair, flush, common)
        except torch.AcceleratorError:
            raise
        except Exception as error:  # somebody's code, which may raise anything
            console.print(f"{pair.name}: {type(error).__name__}: {error}")


def _row(pair: Pair, flush: torch.Tensor, common: Common) -> PublicRow:
    original, changed = pair.make(False), pair.make(True)
    outputs = compared(_tensors(original()), _tensors(changed()))
    findings = [_from_its_repository(finding, pair) for finding in findings_of(original, pair.kernel)]
    samples = interleaved([capture_graph(call, 1)[0] for call in (original, changed)], flush)
    return PublicRow(
        **common,
        name=pair.name,
        repository=pair.repository,
        commit=pair.commit,
        source=pair.source,
        kernel=pair.kernel,
        shape=pair.shape,
        change=pair.change,
        rule=pair.rule if any(finding.id == pair.rule for finding in findings) else "",
        faults=tuple(pair.faults),
        lines=tuple(pair.lines),
        findings=findings,
        timed=pair.timed,
        outputs=outputs,
        original_samples_ms=samples[0],
        changed_samples_ms=samples[1],
    )


def _from_its_repository(finding: Finding, pair: Pair) -> Finding:
    """With the file as the repository names it: a record names no folder of the machine that it was made on."""
    own, file = pair.source.rpartition(":")[0], finding.source.file
    named = own if file.endswith(f"/{own}") else Path(file).name
    return finding.model_copy(update={"source": finding.source.model_copy(update={"file": named})})


def findings_of(call: Callable[[], object], name: str) -> list[Finding]:
    """What static rules say of the kernels of this name that a call launches."""
    histories = Histories()
    launched: dict[str, tuple[CompiledKernel, tuple[int, int, int]]] = {}

    def note(kernel: CompiledKernel) -> Callable[[LaunchCall], None]:
        def noted(launch: LaunchCall) -> None:
            launched.setdefault(kernel.hash, (kernel, launch.grid))
            histories.note(kernel, launch)
            histories.note_arguments(kernel, launch)
            launch()

        return noted

    with intercepted_launches(note):
        call()
    kernels = [
        of_launch(kernel, of(kernel.metadata.target), grid, histories)
        for kernel, grid in launched.values()
        if kernel.name == name
    ]
    return [finding for kernel in kernels for finding in diagnose(kernel).findings]


def _tensors(outputs: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
    return [output.clone() for output in outputs if isinstance(output, torch.Tensor)]


def compared(expected: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Likeness:
    """How alike the least alike pair of outputs is."""
    each = {likeness(b, a) for a, b in zip(expected, outputs, strict=True)}
    return max(each, key=get_args(Likeness).index, default="equal bits")


def interleaved(graphs: Sequence[torch.cuda.CUDAGraph], flush: torch.Tensor) -> list[list[float]]:
    """Milliseconds of each graph's replays, a round after the other, each round in the other order."""
    ends = []
    for number in range(_WARM + ROUNDS):
        order = range(len(graphs)) if number % 2 else reversed(range(len(graphs)))
        ends.append({place: timed_replay(graphs[place], flush) for place in order})
    torch.cuda.synchronize()
    return [[ended[place]() for ended in ends[_WARM:]] for place in range(len(graphs))]


FASTER = 1.1
"""A gain that counts: the lower end of its interval."""

NAMED = 2
"""How many findings of a kernel count: a user reads the first ones."""

HEAD = ("kernel", "finding", "change", "size", "before, ms", "after, ms", "estimated gain", "gain", "outputs")


def table(rows: Sequence[PublicRow], stamp: str) -> Table:
    """A row a kernel, the largest gain first."""
    made = Table(*HEAD, title=f"public kernels before and after a change; {stamp}", title_justify="left")
    for row in in_order(rows):
        made.add_row(*cells(row))
    return made


def markdown(folder: Path) -> str:
    """The section of docs/public.md: gains, what findings say, and the commits."""
    shown = _recorded(folder)
    rows = in_order([row for row in shown.rows if not row.faults])
    advised = [row for row in rows if row.rule]
    gained = [row for row in rows if is_faster(row)]
    found_on = sum(bool(row.findings) for row in gained)
    lines = [
        _stamp(shown, rows),
        "",
        f"- {len(rows)} {agreeing(len(rows), 'change was', 'changes were')} timed. {_came_of(rows)}",
        f"- `kperf diagnose` reports a finding on {found_on} of the {len(gained)} operators that became at least "
        f"{FASTER - 1:.0%} faster.",
        f"- {len(advised)} of the {len(rows)} changes {agreeing(len(advised), 'follows', 'follow')} a finding of "
        "`kperf diagnose`. "
        f"{_came_of(advised)}",
        "",
        *md.table(HEAD, map(cells, rows)),
        "",
        *_commits(rows),
    ]
    return "\n".join(lines)


def _commits(rows: Sequence[PublicRow]) -> list[str]:
    named = sorted({(row.repository, row.commit) for row in rows if row.commit})
    return ["Commits:", "", *(f"- {repository} {commit}" for repository, commit in named)]


FAULTS_HEAD = ("kernel", "what its author changed", "fault", "rank", "first two findings", "size", "gain", "outputs")


def table_of_faults(rows: Sequence[PublicRow], stamp: str) -> Table:
    """A row a kernel that others made faster, the largest gain first."""
    made = Table(*FAULTS_HEAD, title=f"public kernels that others made faster; {stamp}", title_justify="left")
    for row in in_order(rows):
        made.add_row(*cells_of_fault(row))
    return made


def faults_markdown(folder: Path) -> str | None:
    """What findings say of kernels that others made faster, and the commits; None if there is no such record."""
    shown = _recorded(folder)
    rows = in_order([row for row in shown.rows if row.faults])
    if not rows:
        return None
    gained = [row for row in rows if is_faster(row)]
    names = {rule.id for rule in all_rules()}
    unruled = sum(names.isdisjoint(row.faults) for row in rows)
    lines = [
        _stamp(shown, rows),
        "",
        f"- kperf's first or second finding names {_named(rows)}. kperf had no rule for {unruled} of the {len(rows)} "
        "faults.",
        f"- {_came_of(rows)} Of the kernels that become at least {FASTER - 1:.0%} faster, kperf's first or second "
        f"finding names {_named(gained)}.",
        "",
        *md.table(FAULTS_HEAD, map(cells_of_fault, rows)),
        "",
        *_commits(rows),
    ]
    return "\n".join(lines)


def _named(rows: Sequence[PublicRow]) -> str:
    named = sum(row.rank is not None and row.rank <= NAMED for row in rows)
    return f"the fault of {named} of {len(rows)} kernels"


def cells_of_fault(row: PublicRow) -> tuple[str, ...]:
    """Of a row of the table of kernels that others made faster."""
    first = ", ".join(f"{one.id} ({one.severity}, line {one.source.line})" for one in row.findings[:NAMED])
    return (
        f"`{row.kernel}` ({row.repository}, {row.source})",
        row.change,
        " or ".join(row.faults),
        str(row.rank or "-"),
        first or "none",
        row.shape,
        _gain(row),
        row.outputs,
    )


def in_order(rows: Sequence[PublicRow]) -> list[PublicRow]:
    """The largest gain first."""
    return sorted(rows, key=lambda row: statistics.median(row.ratios), reverse=True)


def is_faster(row: PublicRow) -> bool:
    """Whether the change gains a tenth and more, and computes the same."""
    return interval(row.ratios)[0] >= FASTER and row.outputs != "different"


def is_slower(row: PublicRow) -> bool:
    """Whether the change costs time for sure, and computes the same."""
    return interval(row.ratios)[1] < 1 and row.outputs != "different"


def _came_of(rows: Sequence[PublicRow]) -> str:
    """How many changes make an operator faster, slower or neither, and by how much, in sentences."""
    same = [row for row in rows if row.outputs != "different"]
    gained = [row for row in same if is_faster(row)]
    slower = [row for row in same if is_slower(row)]
    little = [row for row in same if not is_faster(row) and not is_slower(row)]
    parts = [
        f"{len(gained)} {agreeing(len(gained), 'makes its', 'make their')} operator at least {FASTER - 1:.0%} faster"
        f"{_gains(gained)}",
        f"{len(slower)} {agreeing(len(slower), 'makes', 'make')} it slower{_gains(slower)}",
        f"{len(little)} {agreeing(len(little), 'does', 'do')} neither{_gains(little)}",
    ]
    counts = f"By the 95% intervals of their gains, {', '.join(parts[:2])}, and {parts[2]}."
    different = len(rows) - len(same)
    if not different:
        return counts
    whose = agreeing(different, "change does not count, because its", "changes does not count, because their")
    return f"{counts} The gain of {different} {whose} outputs differ."


def _gains(rows: Sequence[PublicRow]) -> str:
    gains = sorted(statistics.median(row.ratios) for row in rows)
    if not gains:
        return ""
    return f" ({gains[0]:.2f} x)" if len(gains) == 1 else f" ({gains[0]:.2f} to {gains[-1]:.2f} x)"


def cells(row: PublicRow) -> tuple[str, ...]:
    """Of a row of the table."""
    alone = "; the kernel alone" if row.timed == "kernel" else ""
    followed = _followed(row)
    return (
        f"`{row.kernel}` ({row.repository}, {row.source})",
        f"{followed.id}, {followed.severity}" if followed else "none",
        row.change,
        f"{row.shape}{alone}",
        f"{statistics.median(row.original_samples_ms):.4f}",
        f"{statistics.median(row.changed_samples_ms):.4f}",
        _estimated(followed),
        _gain(row),
        row.outputs,
    )


def _gain(row: PublicRow) -> str:
    low, high = interval(row.ratios)
    return f"{statistics.median(row.ratios):.2f} x ({low:.2f} to {high:.2f})"


def _followed(row: PublicRow) -> Finding | None:
    """The finding that the change follows, if there is one."""
    return next((finding for finding in row.findings if finding.id == row.rule), None)


def _estimated(finding: Finding | None) -> str:
    """The gain that a finding estimates, with its interval."""
    if finding is None or finding.estimate is None:
        return "none"
    estimate = finding.estimate
    return f"{estimate.speedup:.2g} x ({estimate.low:.2g} to {estimate.high:.2g})"
