"""`make timers`: one call, ten timers. How far they disagree, and what each of them counts besides the kernel.

The timers of this process take turns, in a shuffled order in every round; each profiler has a process of its own, as
CUPTI takes one subscriber. What a timer or an operation lacks on a machine is a row that says why.
"""

import importlib.util
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Self

import torch
import triton.testing
from pydantic import Field, TypeAdapter, model_validator
from rich.console import Console
from rich.table import Table

from kperf.bench.turns import FLUSH_BYTES, capture_graph, timed_replay
from kperf.console import announce, titled_table
from kperf.errors import MeasurementError, UsageError, first_line
from kperf.record import device
from kperf.record.files import write_atomically
from kperf.record.provenance import Provenance, Summary
from kperf.record.store import RecordStore
from kperf.studies import child, foreign, ncu
from kperf.studies.operations import OPERATIONS, N, Samples, made
from kperf.studies.records import Common, Row, folder_of, measured_or_recorded, newest
from kperf.trace.capture.gpu import Gpu
from kperf.trace.capture.interceptor import Interceptor
from kperf.trace.capture.kernels import WARM, TraceOptions
from kperf.trace.instrument.events import read_rules
from kperf.trace.results import decoded

ROUNDS = 5
LAUNCHES = 20
"""Of an operation under a profiler."""
REFERENCE = "graph_flushed"
"""The timer of Fig. 12, against which the others are held."""
GOAL = 0.02
SWEEP = tuple(1 << power for power in (12, 17, 22, 27))
"""Sizes of y = x * x for do_bench, from what L2 holds to what it does not."""
_REPLAYED = 10
_WARM_S = 0.5
_CHILD_LIMIT_S = 120


@dataclass(frozen=True)
class Timer:
    """What a timer is called, whether it sees the device alone, and what it counts."""

    label: str
    device_side: bool
    includes: str


TIMERS = {
    "host": Timer("host clock", False, "Python, the launch, the kernel, and the wait for it"),
    "event": Timer("torch.cuda.Event", False, "the launch where the GPU waits for it; L2 as the last call left it"),
    "graph": Timer("CUDA graph", True, "10 calls after each other and the gaps between; L2 as the last call left it"),
    REFERENCE: Timer("ours: graph, flushed", True, "one call and the graph's start; L2 flushed; GPU busy before"),
    "do_bench": Timer("triton do_bench", False, "the launch where the GPU waits for it; L2 flushed"),
    "trace": Timer("ours: CTAs' timers", True, "first CTA's begin to last CTA's end, with events"),
    "proton": Timer("Proton (CUPTI)", True, "the kernel alone; L2 as the last call left it"),
    "torch_profiler": Timer("torch.profiler", True, "the kernel alone; L2 as the last call left it"),
    "autograd_profiler": Timer("torch.autograd.profiler", True, "the kernel alone, operators recorded beside"),
    "ncu": Timer("ncu gpu__time_duration", True, "the kernel alone; caches flushed, clocks as they are"),
}
"""In the order of the table."""
_DEVICE_SIDE = {key for key, timer in TIMERS.items() if timer.device_side}


class TimerRow(Row):
    """One operation of `n` numbers under one timer. Microseconds a call; or `message` says why there are none."""

    operation: str
    timer: str
    n: int
    flops: int
    bytes: int
    samples_us: list[Annotated[float, Field(gt=0)]]
    message: str = ""

    @model_validator(mode="after")
    def _has_samples_or_a_reason(self) -> Self:
        if bool(self.samples_us) == bool(self.message):
            raise ValueError("samples_us: samples or a message, and not both")
        return self

    @property
    def median_us(self) -> float | None:
        """None where there are no samples."""
        return statistics.median(self.samples_us) if self.samples_us else None

    @property
    def gb_per_s(self) -> float | None:
        """Bytes that have to be moved, over the median."""
        return self.bytes / self.median_us / 1e3 if self.median_us else None


ROWS: TypeAdapter[TimerRow] = TypeAdapter(TimerRow)
_SAMPLES: TypeAdapter[Samples] = TypeAdapter(dict[str, list[foreign.Positive]])
Draw = Callable[[Sequence[TimerRow], str, Path], list[Path]]


def run(console: Console, results: Path, draw: Draw, *, ncu_path: Path | None, require_gpu: bool) -> None:
    """Measure, or read what is recorded; print the tables and draw them. Raises `UsageError` if nothing is recorded."""
    measure_here = partial(measure, ncu_path=ncu_path, results=results)
    shown = measured_or_recorded(console, results, "timers", ROWS, measure_here, require_gpu=require_gpu)
    console.print(table(shown.rows, shown.stamp))
    for line in sentences(shown.rows):
        console.print(line)
    announce(console, draw(shown.rows, shown.stamp, shown.folder / "timers"), shown.stamp)


def measure(common: Common, *, ncu_path: Path | None, results: Path) -> Iterator[TimerRow]:
    """A row for every operation and timer, and for do_bench one for every size of `SWEEP` too."""
    calls, reasons = _calls()

    def row(operation: str, timer: str, samples: Sequence[float], message: str = "", n: int = N) -> TimerRow:
        item = OPERATIONS[operation]
        counts = {"flops": item.flops(n), "bytes": item.bytes(n)}
        samples_us, message = list(samples), "" if samples else message
        fields = {"operation": operation, "timer": timer, "n": n, "samples_us": samples_us, "message": message}
        return TimerRow(**common, **fields, **counts)

    for key, reason in reasons.items():
        for timer in TIMERS:
            yield row(key, timer, [], reason)
    for timer, samples in _in_turn(calls).items():
        for key in calls:
            yield row(key, timer, samples[key])
    for key in calls:
        if key == "triton":
            yield row(key, "trace", _traced(calls[key]))
        else:
            yield row(key, "trace", [], "traced are Triton kernels that the JIT launches; overrides by `make fig11`")
    yield from _sweep(row, calls)
    del calls["copy"]  # torch's copy is no kernel to a profiler, but a memcpy
    for timer in ("proton", "torch_profiler", "autograd_profiler", "ncu"):
        samples, reason = _by_profiler(timer, [*calls], ncu_path, results)
        for key in calls:
            yield row(key, timer, samples.get(key, []), reason)
        yield row("copy", timer, [], "a copy is no kernel to a profiler")


def _calls() -> tuple[dict[str, Callable[[], object]], dict[str, str]]:
    """The operations that run on this machine, and why the others do not."""
    calls: dict[str, Callable[[], object]] = {}
    reasons: dict[str, str] = {}
    for key, operation in OPERATIONS.items():
        if reason := operation.missing():
            reasons[key] = reason
            continue
        try:
            call = made(key, N)
            capture_graph(call, 1)  # what cannot be captured is told apart before the others are timed
            calls[key] = call
        except torch.AcceleratorError:
            raise
        except Exception as error:  # whatever a compiler raises is this operation's failure
            reasons[key] = f"{operation.label} failed: {first_line(error)[:200]}"
    return calls, reasons


def _in_turn(calls: dict[str, Callable[[], object]]) -> dict[str, Samples]:
    """Microseconds by timer and operation, of the timers that live in this process."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    ten = {key: capture_graph(call, _REPLAYED)[0] for key, call in calls.items()}
    single = {key: capture_graph(call, 1)[0] for key, call in calls.items()}

    def host(key: str) -> float:
        begin = time.perf_counter()
        calls[key]()
        torch.cuda.synchronize()
        return (time.perf_counter() - begin) * 1e6

    def event(call: Callable[[], object]) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) * 1e3

    def flushed(key: str) -> float:
        elapsed = timed_replay(single[key], flush)
        torch.cuda.synchronize()
        return elapsed() * 1e3

    timers: dict[str, Callable[[str], float]] = {
        "host": host,
        "event": lambda key: event(calls[key]),
        "graph": lambda key: event(ten[key].replay) / _REPLAYED,
        REFERENCE: flushed,
        "do_bench": lambda key: 1e3 * triton.testing.do_bench(calls[key], warmup=5, rep=20, return_mode="median"),
    }
    samples: dict[str, Samples] = {timer: {key: [] for key in calls} for timer in timers}
    turns = [(timer, key) for timer in timers for key in calls]
    begin = time.perf_counter()
    while time.perf_counter() - begin < _WARM_S:
        for key in calls:
            flushed(key)
    for _ in range(ROUNDS):
        random.shuffle(turns)
        for timer, key in turns:
            for _ in range(1 if timer == "do_bench" else 4):
                samples[timer][key].append(timers[timer](key))
    return samples


def _traced(call: Callable[[], object]) -> list[float]:
    """From the first CTA's begin to the last one's end, by the timers in the events of a traced launch."""
    with Interceptor(TraceOptions(passes=1, ctas="all"), read_rules(), Gpu(), lambda _: None) as launches:
        for _ in range(WARM):
            call()
        (kernel,) = launches.scheduler.chosen
    if kernel.taken is None:
        raise kernel.problem or MeasurementError(f"{kernel.name} was not traced")
    timers = decoded(kernel.taken).events
    return [float(timers.end_ns.max() - timers.start_ns.min()) / 1e3]


def _sweep(row: Callable[..., TimerRow], calls: dict[str, Callable[[], object]]) -> Iterator[TimerRow]:
    for n in SWEEP:
        for key in calls:
            if key != "attention":
                yield row(key, "do_bench", bench_quantiles(n, key), n=n)


def bench_quantiles(n: int, key: str) -> list[float]:
    """Microseconds of do_bench: median, fifth and four fifths."""
    times = triton.testing.do_bench(made(key, n), warmup=5, rep=20, quantiles=[0.5, 0.2, 0.8])
    return [1e3 * value for value in times]


def perf_report(folder: Path) -> None:
    """Triton's own benchmark of y = x * x over the sizes: a table on the console, `square.png` and `.csv` in `folder`.

    Raises `UsageError` without a Hopper GPU, or without pandas, in which Triton keeps its table.
    """
    if reason := device.why_static():
        raise UsageError(reason)
    if importlib.util.find_spec("pandas") is None:
        raise UsageError("triton.testing.perf_report wants pandas: pip install pandas")
    folder.mkdir(parents=True, exist_ok=True)
    keys = [key for key, item in OPERATIONS.items() if key != "attention" and item.missing() is None]
    _report(keys).run(print_data=True, save_path=str(folder))


def _report(keys: Sequence[str]) -> triton.testing.Mark:
    """GB/s over the sizes, a line an operation, for `triton.testing`."""

    def gb_per_s(n: int, provider: str) -> tuple[float, float, float]:
        median, fast, slow = (OPERATIONS[provider].bytes(n) / us / 1e3 for us in bench_quantiles(n, provider))
        return median, slow, fast

    return triton.testing.perf_report(
        triton.testing.Benchmark(
            x_names=["n"],
            x_vals=[*SWEEP],
            x_log=True,
            line_arg="provider",
            line_vals=[*keys],
            line_names=[OPERATIONS[key].label for key in keys],
            ylabel="GB/s",
            plot_name="square",
            args={},
        )
    )(gb_per_s)


def _by_profiler(timer: str, keys: Sequence[str], ncu_path: Path | None, results: Path) -> tuple[Samples, str]:
    """The samples of a process of its own under a profiler, and why there are none."""
    with tempfile.TemporaryDirectory(prefix="kperf-timers-") as folder:
        out = Path(folder, f"{timer}.json")
        command = [sys.executable, "-m", "kperf.studies.operations", timer, ",".join(keys), str(N), str(LAUNCHES)]
        try:
            if timer == "ncu":
                return _by_ncu(keys, [*command, str(out)], ncu.find(ncu_path)), "ncu saw nothing of it"
            done = child.run([*command, str(out)], _CHILD_LIMIT_S)
            if done.returncode:
                return {}, f"{TIMERS[timer].label} failed: {child.last_line(done.stderr)[:200]}"
            trace = out.with_suffix(".chrome_trace.json")
            if trace.exists():
                write_atomically(folder_of(results) / "timers.chrome_trace.json", trace.read_bytes())
            samples = foreign.read_json(out, _SAMPLES, TIMERS[timer].label)
        except subprocess.TimeoutExpired:
            return {}, f"{TIMERS[timer].label} took more than {_CHILD_LIMIT_S} s"
        except UsageError as error:
            return {}, str(error)
    return samples, f"{TIMERS[timer].label} saw nothing of it"


def _by_ncu(keys: Sequence[str], command: Sequence[str], program: Path) -> Samples:
    """Raises `UsageError` if it cannot run or saw another number of kernels than were launched."""
    metric = "gpu__time_duration.sum"
    rows = ncu.metrics(ncu.run(program, ["--metrics", metric], command), [metric])
    if len(rows) != len(keys) * LAUNCHES:
        raise UsageError(f"ncu saw {len(rows)} kernels of {len(keys) * LAUNCHES} launches")
    times = [row[metric] / 1e3 for row in rows]
    if min(times) <= 0:
        raise UsageError("ncu printed a kernel that took no time")
    return {key: times[place * LAUNCHES : (place + 1) * LAUNCHES] for place, key in enumerate(keys)}


def table(rows: Sequence[TimerRow], stamp: str) -> Table:
    """A row a timer, a column an operation: microseconds, and how far off the reference; below the bandwidth."""
    of = {(row.operation, row.timer): row for row in rows if row.n == N}
    keys = [key for key in OPERATIONS if any(row.samples_us for (operation, _), row in of.items() if operation == key)]
    title = f"microseconds a call, and over {TIMERS[REFERENCE].label}; {stamp}"
    made = titled_table(title, "timer", *(OPERATIONS[key].label for key in keys), "counts", left={"timer", "counts"})
    for timer, item in TIMERS.items():
        made.add_row(
            item.label, *(_cell(of.get((key, timer)), of.get((key, REFERENCE))) for key in keys), item.includes
        )
    made.add_section()
    rates = (of[key, REFERENCE].gb_per_s if (key, REFERENCE) in of else None for key in keys)
    made.add_row("GB/s, ours", *("-" if rate is None else f"{rate:.0f}" for rate in rates), "bytes that have to move")
    return made


def _cell(row: TimerRow | None, reference: TimerRow | None) -> str:
    if row is None or row.median_us is None:
        return "-"
    if reference is None or reference.median_us is None:
        return f"{row.median_us:.1f}"
    return f"{row.median_us:.1f} ({row.median_us / reference.median_us - 1:+.1%})"


def timer_label(key: str) -> str:
    """What a timer is called; its key for one that this program does not know."""
    return TIMERS[key].label if key in TIMERS else key


def operation_label(key: str) -> str:
    """Likewise."""
    return OPERATIONS[key].label if key in OPERATIONS else key


def disagreement(rows: Sequence[TimerRow]) -> dict[str, float]:
    """Operation -> the widest distance between medians of its device-side timers, over their median."""
    spreads = {}
    for key in OPERATIONS:
        medians = [
            row.median_us
            for row in rows
            if (row.operation, row.n) == (key, N) and row.timer in _DEVICE_SIDE and row.median_us is not None
        ]
        if len(medians) > 1:
            spreads[key] = (max(medians) - min(medians)) / statistics.median(medians)
    return spreads


def summary(folder: Path) -> Summary:
    """For the table of claims: the widest disagreement of device-side timers about an operation."""
    store = RecordStore(folder, "timers", ROWS)
    rows = newest(store.points())
    spreads = disagreement(rows)
    return Summary({"device-side": max(spreads.values())} if spreads else {}, Provenance.of_records(store, rows))


def sentences(rows: Sequence[TimerRow]) -> list[str]:
    """Whether device-side timers agree, and the reasons of rows without samples, each once."""
    lines = [
        f"{OPERATIONS[key].label}: device-side timers lie {spread:.1%} apart, "
        f"{'within' if spread <= GOAL else 'more than'} the {GOAL:.0%} aimed at."
        for key, spread in disagreement(rows).items()
    ]
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.message:
            reasons.setdefault(row.message, []).append(f"{operation_label(row.operation)} by {timer_label(row.timer)}")
    return lines + [f"No time of {places[0]} and {len(places) - 1} more: {why}" for why, places in reasons.items()]
