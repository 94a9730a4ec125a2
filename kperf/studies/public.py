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
from typing import Literal, get_args

import torch
from rich.console import Console
from rich.table import Table

from kperf.arch import of
from kperf.bench.turns import FLUSH_BYTES, capture_graph, timed_replay
from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.launches import LaunchCall, intercepted_launches
from kperf.console import agreeing
from kperf.diagnose.engine import diagnose
from kperf.diagnose.inputs import of_launch
from kperf.diagnose.script.history import Histories
from kperf.errors import UsageError
from kperf.record import markdown as md
from kperf.record.files import write_sections
from kperf.record.store import recorded_folder
from kperf.studies import collection_pages, followed, sped_up
from kperf.studies.public_rows import (
    FASTER,
    ROWS,
    PublicRow,
    came_of,
    gain,
    in_order,
    is_faster,
    named_kernel,
    recorded,
    stamped,
)
from kperf.studies.records import Common, measured_or_recorded
from kperf.trace.analyze.finding import Finding
from kperf.trace.capture.copies import Likeness, likeness

ROUNDS = 31
_WARM = 10
"""Rounds before those that are timed."""


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
    follows: str = ""
    collection: int = 1


def run(console: Console, results: Path, pairs: Path | None) -> None:
    """Measure the pairs of a file, or show the recorded ones. Raises `UsageError` if there are none, or no GPU."""
    if pairs is None:
        shown = recorded(recorded_folder(results, "public.jsonl"))
    else:
        measure_here = partial(measure, console, read_pairs(pairs))
        shown = measured_or_recorded(console, results, "public", ROWS, measure_here, require_gpu=True)
    if advised := _of_ours(shown.rows):
        console.print(table(advised, shown.stamp))
    if any(row.faults for row in shown.rows):
        console.print(sped_up.table([row for row in shown.rows if row.faults], shown.stamp))
    if any(row.follows for row in shown.rows):
        console.print(followed.table(shown.rows, shown.stamp))


def read_pairs(path: Path) -> Sequence[Pair]:
    """`PAIRS` of a Python file. Raises `UsageError` if it has none."""
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    pairs = runpy.run_path(str(path)).get("PAIRS")
    if not isinstance(pairs, list | tuple) or not all(isinstance(pair, Pair) for pair in pairs):
        raise UsageError(f"{path} has no PAIRS: a list of kperf.studies.public.Pair")
    return pairs


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
    found = [] if pair.follows else findings_of(original, pair.kernel)
    findings = [_from_its_repository(finding, pair) for finding in found]
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
        rule=pair.rule if pair.follows or any(finding.id == pair.rule for finding in findings) else "",
        faults=tuple(pair.faults),
        lines=tuple(pair.lines),
        follows=pair.follows,
        collection=pair.collection,
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


def sections(folder: Path) -> dict[str, str]:
    """What pages show of a record, by the names of their marks: changes of ours, and others'."""
    return {"public": markdown(folder), **collection_pages.sections(folder)}


def write(document: Path, folder: Path) -> None:
    """Fill the marks of a page and of those below it (docs/sped_up.md and docs/sped_up/) with what is recorded.

    Raises `UsageError` if a page cannot be read or written, or if there are no marks.
    """
    collection_pages.begin(document, folder)
    write_sections(document, sections(folder))


HEAD = (
    "kernel", "finding", "change", "input shape", "time before, ms", "time after, ms", "estimated gain",
    "measured gain", "outputs before and after",
)  # fmt: skip


def table(rows: Sequence[PublicRow], stamp: str) -> Table:
    """A row a kernel, the largest gain first."""
    made = Table(*HEAD, title=f"public kernels before and after a change; {stamp}", title_justify="left")
    for row in in_order(rows):
        made.add_row(*cells(row))
    return made


def markdown(folder: Path) -> str:
    """The section of docs/public.md: gains, what findings say, and the commits."""
    shown = recorded(folder)
    rows = in_order(_of_ours(shown.rows))
    advised = [row for row in rows if row.rule]
    gained = [row for row in rows if is_faster(row)]
    found_on = sum(bool(row.findings) for row in gained)
    lines = [
        stamped(shown, rows),
        "",
        f"- {len(rows)} {agreeing(len(rows), 'change was', 'changes were')} timed. {came_of(rows)}",
        f"- `kperf diagnose` reports a finding on {found_on} of the {len(gained)} operators that became at least "
        f"{FASTER - 1:.0%} faster.",
        f"- {len(advised)} of the {len(rows)} changes {agreeing(len(advised), 'follows', 'follow')} a finding of "
        "`kperf diagnose`. "
        f"{came_of(advised)}",
        "",
        *md.table(HEAD, map(cells, rows)),
    ]
    return "\n".join(lines)


def _of_ours(rows: Sequence[PublicRow]) -> list[PublicRow]:
    """Kernels and changes that were chosen by hand."""
    return [row for row in rows if not row.faults and not row.follows]


def cells(row: PublicRow) -> tuple[str, ...]:
    """Of a row of the table."""
    alone = "; the kernel alone" if row.timed == "kernel" else ""
    of = _followed(row)
    return (
        named_kernel(row),
        f"{of.id}, {of.severity}" if of else "none",
        row.change,
        f"{row.shape}{alone}",
        f"{statistics.median(row.original_samples_ms):.4f}",
        f"{statistics.median(row.changed_samples_ms):.4f}",
        _estimated(of),
        gain(row),
        row.outputs,
    )


def _followed(row: PublicRow) -> Finding | None:
    """The finding that the change follows, if there is one."""
    return next((finding for finding in row.findings if finding.id == row.rule), None)


def _estimated(finding: Finding | None) -> str:
    """The gain that a finding estimates, with its interval."""
    if finding is None or finding.estimate is None:
        return "none"
    estimate = finding.estimate
    return f"{estimate.speedup:.2g} x ({estimate.low:.2g} to {estimate.high:.2g})"
