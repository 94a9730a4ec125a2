"""`make lines`: samples and stalled samples by line of source, and what each profiler costs on one and the same script.

Samples come from Proton's instruction sampling and from Nsight Compute's source counters. ncu gives them by
instruction; the lines are those of the machine code that ran (`nvdisasm`). Every profiler has a process of its own.
"""

import html
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, TypeAdapter, model_validator
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kperf.compat.triton.tools import binary_tool
from kperf.console import announce, titled_table
from kperf.errors import UsageError
from kperf.installation import EXAMPLES, require_checkout
from kperf.ir.machine import read_machine_code
from kperf.record.files import write_atomically
from kperf.record.provenance import Provenance, Summary
from kperf.record.store import RecordStore
from kperf.report.samples import Place
from kperf.report.samples import Samples as ReportedSamples
from kperf.studies import child, foreign, ncu
from kperf.studies.hatchet import Tree, read_tree
from kperf.studies.records import Common, Row, measured_or_recorded, newest, stamp
from kperf.studies.sampled import KERNELS

LAUNCHES = 20
PROFILERS = {
    "plain": "no profiler",
    "proton": "Proton",
    "proton_sampling": "Proton, instruction sampling",
    "torch_profiler": "torch.profiler",
    "trace": "kperf trace, one pass",
    "trace_passes": "kperf trace, several passes",
    "ncu": "ncu, SourceCounters",
}
"""In the order of the table."""
SLIDES = {"proton_sampling": "about 20x", "ncu": "above 1000x"}
"""What the slides on Proton (2024) say of instruction sampling, on a script of theirs."""
_SECONDS: TypeAdapter[float] = TypeAdapter(foreign.Positive)
_LIMIT_S = 150
_LINE_LEFT = re.compile(r"(?P<file>.+):(?P<line>\d+)@(?P<function>.*)")
_LINE_RIGHT = re.compile(r"(?P<file>.+):(?P<function>[^:]*)@(?P<line>\d+)")
_PADDING = re.compile(r"(@!?U?P\w+\s+)?(NOP|BRA)\b")
"""What fills the end of a kernel up: not every tool counts it."""
_ALL, _STALLED = "Warp Stall Sampling (All Samples)", "Warp Stall Sampling (Not-issued Samples)"

Samples = dict[Place, tuple[int, int]]
"""Place -> samples, and those of them in which the warp was stalled."""


class CostRow(Row):
    """The script under one profiler. launches_s: from the first timed launch until the profiler was done with them.

    process_s: of the whole process. `message` says why there is neither, or why it gave no samples.
    """

    what: Literal["cost"] = "cost"
    profiler: str
    launches: int
    launches_s: Annotated[float, Field(gt=0)] | None
    process_s: Annotated[float, Field(gt=0)] | None
    message: str = ""

    @model_validator(mode="after")
    def _has_times_or_a_reason(self) -> Self:
        missing = [self.launches_s is None, self.process_s is None]
        if any(missing) and not (all(missing) and self.message):
            raise ValueError("launches_s: both times, or a message that says why not")
        return self


class LineRow(Row):
    """A line of source that was sampled. file: as the repository has it; text: the line as it was.

    samples, stalled: as the profiler has them (`as_taken`).
    """

    what: Literal["line"] = "line"
    profiler: str
    kernel: str
    file: str
    line: Annotated[int, Field(ge=0)]
    text: str
    samples: Annotated[int, Field(ge=0)]
    stalled: Annotated[int, Field(ge=0)]

    @model_validator(mode="after")
    def _no_more_stalled_than_samples(self) -> Self:
        if self.stalled > self.samples:
            raise ValueError("stalled: more than there are samples")
        return self


LinesRow = CostRow | LineRow
ROWS: TypeAdapter[LinesRow] = TypeAdapter(Annotated[LinesRow, Field(discriminator="what")])
Draw = Callable[[Sequence[LinesRow], str, Path], list[Path]]


def run(console: Console, results: Path, draw: Draw, *, ncu_path: Path | None, require_gpu: bool) -> None:
    """Measure, or read what is recorded; print costs and annotated source.

    Raises `UsageError` without a record, and without a checkout.
    """
    require_checkout("what `kperf lines` profiles, examples/,")
    measure_here = partial(measure, ncu_path=ncu_path)
    shown = measured_or_recorded(
        console, results, "lines", ROWS, measure_here, require_gpu=require_gpu, in_children=True
    )
    console.print(costs_table(shown.rows, shown.stamp))
    rows = as_taken(shown.rows)
    for profiler, kernel in _sampled(rows):
        console.print(annotated(rows, profiler, kernel))
    page = shown.folder / "lines.html"  # versioned: the same bytes whether the rows were measured now or before
    of_record = stamp(RecordStore(shown.folder, "lines", ROWS), shown.rows, "recorded")
    write_atomically(page, html_page(rows, of_record))
    console.print(f"written: {page}")
    announce(console, draw(rows, shown.stamp, shown.folder / "lines"), shown.stamp)


def measure(common: Common, *, ncu_path: Path | None) -> Iterator[LinesRow]:
    """A row for the cost of each profiler, and one for each line that was sampled."""
    for profiler, words in PROFILERS.items():
        samples: Samples = {}
        seconds = process_s = None
        message = ""
        with tempfile.TemporaryDirectory(prefix="kperf-lines-") as name:
            folder = Path(name)
            begin = time.perf_counter()
            try:
                printed = _profile(profiler, folder, ncu_path)
                took = time.perf_counter() - begin
                seconds, process_s = foreign.read_json(folder / "seconds.json", _SECONDS, words), took
                samples = _samples(profiler, printed, folder)
            except UsageError as error:
                message = str(error)
        fields = {"profiler": profiler, "launches": LAUNCHES * len(KERNELS), "message": message}
        yield CostRow(**common, **fields, launches_s=seconds, process_s=process_s)
        for (kernel, file, line), (all_, stalled) in sorted(samples.items()):
            place = {"kernel": kernel, "file": file, "line": line, "text": _text(file, line)}
            yield LineRow(**common, profiler=profiler, **place, samples=all_, stalled=stalled)


def _profile(profiler: str, folder: Path, ncu_path: Path | None) -> str:
    """Run the script once under a profiler; what ncu printed, if it is that. Raises `UsageError` that says why not."""
    script = ["kperf.studies.sampled", profiler, str(LAUNCHES), str(folder)]
    if profiler == "ncu":
        options = ["--section", "SourceCounters", "--print-source", "sass"]
        command = [sys.executable, "-m", *script]
        return ncu.run(ncu.find(ncu_path), options, command, limit_s=_LIMIT_S, page="source")
    if profiler.startswith("trace"):
        passes = ["--passes", "auto" if profiler == "trace_passes" else "1"]
        script[1] = "plain"
        _run([sys.executable, "-m", "kperf", "trace", "--out", str(folder), *passes, "-m", *script])
    else:
        _run([sys.executable, "-m", *script])
    return ""


def _samples(profiler: str, printed: str, folder: Path) -> Samples:
    if profiler == "ncu":
        return ncu_samples(printed, folder)
    if profiler != "proton_sampling":
        return {}
    samples = proton_samples(read_tree(folder / "lines.hatchet"), _as_in_repository)
    if not samples:
        raise UsageError("Proton took no samples: CUPTI wants the right to read the GPU's counters")
    return samples


def _run(command: Sequence[str]) -> None:
    try:
        done = child.run(command, _LIMIT_S)
    except subprocess.TimeoutExpired:
        raise UsageError(f"it took more than {_LIMIT_S} s") from None
    if done.returncode:
        last = child.last_line(done.stderr)
        why = "; CUPTI wants the right to read the GPU's counters" if "PCSampling" in last else ""
        raise UsageError(f"it failed: {last[:200]}{why}")


def proton_samples(tree: Tree, named: Callable[[str], str] = str) -> Samples:
    """Samples by line, from a profile with `pcsampling`: frames of lines lie below their kernel's.

    named: what a file is called here.
    """
    samples: Counter[Place] = Counter()
    stalled: Counter[Place] = Counter()
    for frame, above in _with_parents(tree, ""):
        match = _LINE_LEFT.fullmatch(frame.name) or _LINE_RIGHT.fullmatch(frame.name)
        if match and "num_samples" in frame.metrics:
            place = (match["function"] or above, named(match["file"]), int(match["line"]))
            samples[place] += _whole(frame.metrics["num_samples"], "Proton")
            stalled[place] += _whole(frame.metrics.get("num_stalled_samples", 0.0), "Proton")
    return {place: (samples[place], min(stalled[place], samples[place])) for place in samples}


def _protons(samples: int, stalled: int) -> tuple[int, int]:
    """Samples, and those in which no warp issued, of Proton's `num_samples` and `num_stalled_samples`.

    CUPTI counts each sample by its reason, and where no warp issued once more by the reason's `_not_issued`. Proton
    adds both up as `num_samples`, and calls the first alone stalled (CuptiPCSampling.cpp).
    """
    return stalled, min(max(samples - stalled, 0), stalled)


def as_taken(rows: Sequence[LinesRow]) -> list[LinesRow]:
    """Rows in which each sample counts once, whoever took it, and `stalled` are those in which no warp issued."""
    return [
        row.model_copy(update=dict(zip(("samples", "stalled"), _protons(row.samples, row.stalled), strict=True)))
        if isinstance(row, LineRow) and row.profiler == "proton_sampling"
        else row
        for row in rows
    ]


def _with_parents(tree: Tree, above: str) -> Iterator[tuple[Tree, str]]:
    yield tree, above
    for below in tree.children:
        yield from _with_parents(below, tree.name)


def ncu_samples(printed: str, folder: Path) -> Samples:
    """Samples by line, from `--page source --csv` and the machine code in `folder`; all launches of a kernel added up.

    Raises `UsageError` if ncu's instructions are not those of the machine code, or it printed no such table.
    """
    samples: Counter[Place] = Counter()
    stalled: Counter[Place] = Counter()
    lines: list[tuple[str, int]] = []
    kernel, place = "", 0
    header: dict[str, int] = {}
    places: dict[str, list[tuple[str, int]]] = {}
    for cells in foreign.read_csv(printed.splitlines(), "ncu"):
        if len(cells) > 1 and cells[0] == "Kernel Name":
            _all_seen(kernel, place, lines)
            kernel, place, header = re.split(r"[ (]", cells[1])[0], 0, {}
            if kernel not in places and kernel in KERNELS:
                places[kernel] = lines_of(folder / f"{kernel}.cubin", kernel)
            lines = places.get(kernel, [])
        elif _ALL in cells and "Source" in cells:
            header = {name: number for number, name in enumerate(cells)}
        elif header and lines and len(cells) >= len(header):
            if place < len(lines):
                file, line = lines[place]
                samples[kernel, file, line] += _count(cells, header[_ALL])
                stalled[kernel, file, line] += _count(cells, header.get(_STALLED))
            place += place < len(lines) or not _PADDING.match(cells[header["Source"]].strip())
    _all_seen(kernel, place, lines)
    if not samples.total():
        raise UsageError("ncu printed no samples by instruction: SourceCounters wants a newer version")
    return {key: (count, min(stalled[key], count)) for key, count in samples.items() if count}


def _all_seen(kernel: str, count: int, lines: Sequence[tuple[str, int]]) -> None:
    if lines and count != len(lines):
        raise UsageError(f"ncu has {count} instructions of {kernel}, and the machine code that ran has {len(lines)}")


def _count(cells: Sequence[str], column: int | None) -> int:
    text = cells[column] if column is not None and column < len(cells) else ""
    return _whole(foreign.number(text, "ncu"), "ncu") if text.strip() else 0


def _whole(samples: float, program: str) -> int:
    if not 0 <= samples < 1 << 53:
        raise UsageError(f"{program} has {samples:g} samples of a line")
    return round(samples)


def lines_of(cubin: Path, kernel: str) -> list[tuple[str, int]]:
    """File and line of each instruction of a kernel by address, without what fills its end up; ("", 0) where unknown.

    Raises `UsageError` if the file is no machine code.
    """
    done = subprocess.run([binary_tool("nvdisasm"), "-g", "-c", cubin], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UsageError(f"the machine code of {kernel} cannot be read: {(done.stderr.splitlines() or ['no word'])[0]}")
    instructions = list(read_machine_code(done.stdout, kernel).instructions)
    while instructions and _PADDING.match(instructions[-1].opcode):
        del instructions[-1]
    places = (instruction.frames[:1] for instruction in instructions)
    return [(_as_in_repository(frame[0].file), frame[0].line) if frame else ("", 0) for frame in places]


def _as_in_repository(file: str) -> str:
    """`examples/gemm.py`: a record names no folder of one machine."""
    path = Path(file)
    return f"examples/{path.name}" if (EXAMPLES / path.name).is_file() else "/".join(path.parts[-2:])


def _text(file: str, line: int) -> str:
    path = EXAMPLES.parent / file
    source = path.read_text().splitlines() if path.is_file() else []
    return source[line - 1] if 0 < line <= len(source) else ""


def _sampled(rows: Sequence[LinesRow]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((row.profiler, row.kernel) for row in rows if isinstance(row, LineRow)))


def label(profiler: str) -> str:
    """What a profiler is called; its key for one that this program does not know."""
    return PROFILERS.get(profiler, profiler)


def factors(rows: Sequence[LinesRow], *, of_process: bool = False) -> dict[str, float]:
    """Profiler -> how many times as long the launches, or the whole process, took as without one."""
    costs = {row.profiler: row.process_s if of_process else row.launches_s for row in rows if isinstance(row, CostRow)}
    seconds = {name: cost for name, cost in costs.items() if cost is not None}
    return {name: own / seconds["plain"] for name, own in seconds.items()} if "plain" in seconds else {}


def costs_table(rows: Sequence[LinesRow], stamp: str) -> Table:
    """A row a profiler."""
    title = f"one and the same script under each profiler; {stamp}"
    headers = ("profiler", "launches, s", "times plain", "process, s", "the slides", "why not")
    made = titled_table(title, *headers, left={"profiler", "the slides", "why not"})
    times = factors(rows)
    for row in rows:
        if isinstance(row, CostRow):
            factor = f"{times[row.profiler]:.1f}" if row.profiler in times else "-"
            seconds = ("-" if value is None else f"{value:.3g}" for value in (row.launches_s, row.process_s))
            launches, process = seconds
            cells = (launches, factor, process, SLIDES.get(row.profiler, ""), row.message)
            made.add_row(label(row.profiler), *cells)
    return made


def annotated(rows: Sequence[LinesRow], profiler: str, kernel: str) -> Table:
    """The sampled lines of a kernel in the order of the source, with bars; stalled samples are their dark part."""
    of_kernel = [row for row in rows if isinstance(row, LineRow) and (row.profiler, row.kernel) == (profiler, kernel)]
    samples = sum(row.samples for row in of_kernel)
    total = samples or 1
    headers = ("samples", "stalled", "share", "", "line", "source")
    made = titled_table(f"{kernel} by {label(profiler)}: {samples} samples", *headers, left={"", "source"})
    for row in sorted(of_kernel, key=lambda row: (row.file, row.line)):
        dark, light = round(20 * row.stalled / total), round(20 * (row.samples - row.stalled) / total)
        counts = (str(row.samples), str(row.stalled), f"{row.samples / total:.1%}", "█" * dark + "░" * light)
        made.add_row(*counts, f"{row.file}:{row.line}", Text(row.text.rstrip()))
    return made


def html_page(rows: Sequence[LinesRow], stamp: str) -> str:
    """All samples as one page: a table a kernel and profiler, each line the redder the more samples it has."""
    parts = [
        "<!DOCTYPE html><html><head><meta charset='utf-8'><title>samples by line</title><style>",
        "body{font-family:sans-serif}pre{margin:0}td{padding:0 .6em}td.n{text-align:right}</style></head><body>",
        f"<h1>Samples by line</h1><p>{html.escape(stamp)}</p>",
    ]
    for profiler, kernel in _sampled(rows):
        of_kernel = [
            row for row in rows if isinstance(row, LineRow) and (row.profiler, row.kernel) == (profiler, kernel)
        ]
        most = max((row.samples for row in of_kernel), default=1) or 1
        parts.append(f"<h2>{html.escape(kernel)} by {html.escape(label(profiler))}</h2><table>")
        parts.append("<tr><th>samples</th><th>stalled</th><th>line</th><th>source</th></tr>")
        for row in sorted(of_kernel, key=lambda row: (row.file, row.line)):
            parts.append(
                f"<tr style='background:rgba(213,94,0,{0.7 * row.samples / most:.2f})'><td class='n'>{row.samples}</td>"
                f"<td class='n'>{row.stalled}</td><td>{html.escape(row.file)}:{row.line}</td>"
                f"<td><pre>{html.escape(row.text)}</pre></td></tr>"
            )
        parts.append("</table>")
    return "\n".join([*parts, "</body></html>", ""])


def read_samples(path: Path) -> list[ReportedSamples]:
    """Samples of a profile of Proton's with `pcsampling` (`.hatchet`), or of a `lines.jsonl`, by profiler.

    Raises `UsageError` if the file is missing, damaged, or holds no samples.
    """
    if path.suffix == ".hatchet":
        samples = {place: _protons(*counts) for place, counts in proton_samples(read_tree(path)).items()}
        if not any(count for count, _ in samples.values()):
            how = 'triton.profiler.start("NAME", backend="cupti", mode="pcsampling")'  # `proton -m` is lost before 3.8
            raise UsageError(f"{path} has no samples by line: profile with `{how}`")
        return [ReportedSamples("Proton", samples, str(path))]
    if path.name != "lines.jsonl":
        raise UsageError(f"{path} is no file of samples: give a .hatchet of Proton's, or a lines.jsonl")
    if not path.is_file():
        raise UsageError(f"{path} is missing: `kperf lines` writes it")
    by_profiler: dict[str, Samples] = defaultdict(dict)
    for row in as_taken(newest(RecordStore(path.parent, "lines", ROWS).points())):
        if isinstance(row, LineRow):
            by_profiler[row.profiler][row.kernel, row.file, row.line] = (row.samples, row.stalled)
    if not by_profiler:
        raise UsageError(f"{path} holds no samples by line: `kperf lines` takes some on a GPU")
    return [ReportedSamples(label(profiler), places, str(path)) for profiler, places in by_profiler.items()]


def summary(folder: Path) -> Summary:
    """For the table of claims: how many times as long the script takes under each profiler."""
    store = RecordStore(folder, "lines", ROWS)
    rows = newest(store.points())
    return Summary(factors(rows), Provenance.of_records(store, rows))
