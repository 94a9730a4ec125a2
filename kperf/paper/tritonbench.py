"""`make tritonbench`: does tritonbench say of a kernel what we say of it, on the same timer, and how timers differ.

In every round tritonbench's run.py times our override and torch's FlashAttention-2 in its `flash_attention` operator,
once on `triton.testing.do_bench` and once, with --cudagraph, on `do_bench_cudagraph`; after each of these, and in every
second round before it, as a GPU that has just idled is faster, the same timer, called with the same arguments, times
the same kernels as `kperf bench` binds them, on inputs of ours. The timer of Fig. 12 comes last in the round.
"""

import hashlib
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Self

import torch
import triton.testing
from pydantic import Field, TypeAdapter, model_validator
from rich.console import Console
from rich.table import Table

from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.workload import Workload
from kperf.bench.measure import Candidate, prepare_alone
from kperf.bench.reference import make_inputs
from kperf.bench.turns import FLUSH_BYTES, TIMER, timed_replay
from kperf.console import titled_table
from kperf.errors import MeasurementError, UsageError
from kperf.integrations import tritonbench
from kperf.studies import foreign
from kperf.studies.records import Common, Row, measured_or_recorded

ROUNDS = 4
GOAL = 0.03
WORKLOADS = (
    Workload(batch=8, heads=16, seq_len=8192, head_dim=128),
    Workload(batch=8, heads=16, seq_len=512, head_dim=128),
)
"""The original's command line, and a shape whose kernel is about as short as its launch."""
BENCHMARKS = {"sdpa": "fa2", f"{tritonbench.PREFIX}improved_plus": "improved_plus"}
"""tritonbench's name -> ours, of the same kernel."""
WARMUP_MS, REP_MS = 25, 100
"""tritonbench's defaults, which it hands to the timers (DEFAULT_WARMUP, DEFAULT_RUN_ITERS: its --warmup, --iter)."""
_SAMPLE_MS = 0.5
_REPLAYS = 15
_TIMES = ("run.py", "tritonbench/utils/triton_op.py", "tritonbench/components/do_bench/run.py")
_FILES = (*_TIMES, "tritonbench/operators/flash_attention/operator.py")
"""What of tritonbench makes its numbers."""

Call = Callable[[], object]
_Timer = Callable[[Call], list[float]]
_Bound = dict[str, tuple[Candidate, int]]
"""tritonbench's name -> our call, and its graph of so many calls."""


def _by_events(call: Call) -> list[float]:
    return list(triton.testing.do_bench(call, warmup=WARMUP_MS, rep=REP_MS, return_mode="all"))


def _by_graph(call: Call) -> list[float]:
    return list(triton.testing.do_bench_cudagraph(call, rep=REP_MS, return_mode="all"))


TIMERS: dict[str, tuple[_Timer, list[str]]] = {
    "do_bench": (_by_events, []),
    "do_bench_cudagraph": (_by_graph, ["--cudagraph"]),
}
"""Triton's timer -> a call of it, milliseconds, and the option that has tritonbench use it."""


class ComparedRow(Row):
    """A kernel on one timer, by tritonbench and by us: milliseconds a call, of each round.

    benchmark, implementation: tritonbench's name of the kernel and ours. theirs_ms: its latency, the median of what its
    timer gave without outliers; theirs_tflops: its own; both empty for our timer, which it does not have. accurate: as
    its accuracy metric finds it beside its sdpa; None for sdpa itself. ours_ms: medians; rel_error: of our call,
    against float32. tritonbench_sha256: of those of its files that make its numbers.
    """

    workload: Workload
    benchmark: str
    implementation: str
    timer: str
    theirs_ms: tuple[Annotated[float, Field(gt=0)], ...]
    theirs_tflops: tuple[Annotated[float, Field(gt=0)], ...]
    accurate: bool | None
    ours_ms: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)]
    rel_error: Annotated[float, Field(ge=0)]
    tritonbench_sha256: str

    @model_validator(mode="after")
    def _has_both_of_a_round(self) -> Self:
        rounds = len(self.ours_ms) if self.timer in TIMERS else 0
        if not len(self.theirs_ms) == len(self.theirs_tflops) == rounds:
            raise ValueError("theirs_ms: each round has tritonbench's time and ours, but on our own timer ours alone")
        return self

    @property
    def ours_tflops(self) -> float:
        """Of the median."""
        return self.workload.flops / statistics.median(self.ours_ms) / 1e9

    @property
    def off(self) -> list[float]:
        """Of each round: tritonbench's TFLOPS over ours on the same timer, less 1."""
        pairs = zip(self.theirs_tflops, self.ours_ms, strict=True) if self.theirs_tflops else ()
        return [theirs / (self.workload.flops / ms / 1e9) - 1 for theirs, ms in pairs]


ROWS: TypeAdapter[ComparedRow] = TypeAdapter(ComparedRow)


@dataclass
class _Compared:
    """What the rounds gave so far of one row."""

    theirs_ms: list[float] = field(default_factory=list)
    theirs_tflops: list[float] = field(default_factory=list)
    accurate: bool | None = None
    ours_ms: list[float] = field(default_factory=list)


def run(console: Console, results: Path, *, require_gpu: bool) -> None:
    """Measure, or read what is recorded, and print it.

    Raises `UsageError` if nothing is recorded, or there is no tritonbench to measure with; `MeasurementError` if it
    gives no time.
    """
    found = measured_or_recorded(console, results, "tritonbench", ROWS, measure, require_gpu=require_gpu)
    console.print(table(found.rows, found.stamp))
    for line in sentences(found.rows):
        console.print(line)


def measure(common: Common) -> Iterator[ComparedRow]:
    """A row for each shape, timer and kernel, when all rounds are over."""
    path = tritonbench.find_run_py()
    sys.path.insert(0, str(path.parent))
    tritonbench.register()
    digest = hashlib.sha256(b"".join((path.parent / name).read_bytes() for name in _FILES)).hexdigest()
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    for workload in WORKLOADS:
        inputs = make_inputs(workload, seed=0)
        bound: _Bound = {}
        for name, key in BENCHMARKS.items():
            candidate, flops = prepare_alone(IMPLEMENTATIONS[key], workload, inputs, _SAMPLE_MS)
            bound[name] = candidate, flops // workload.flops
        found = {(timer, name): _Compared() for timer in (*TIMERS, TIMER) for name in BENCHMARKS}
        for number in range(ROUNDS):
            for timer, (time, options) in TIMERS.items():
                ours = _by_us(time, bound) if number % 2 else {}
                theirs = by_tritonbench(path, workload, options)
                ours = ours or _by_us(time, bound)
                for name in BENCHMARKS:
                    row = found[timer, name]
                    row.theirs_ms.append(value(theirs, name, "latency"))
                    row.theirs_tflops.append(value(theirs, name, "tflops"))
                    row.ours_ms.append(ours[name])
                    if name != next(iter(BENCHMARKS)):
                        row.accurate = row.accurate is not False and value(theirs, name, "accuracy") == 1
            for name, (candidate, calls) in bound.items():
                samples = []
                for _ in range(_REPLAYS):
                    elapsed = timed_replay(candidate.graph, flush)
                    torch.cuda.synchronize()
                    samples.append(elapsed() / calls)
                found[TIMER, name].ours_ms.append(statistics.median(samples))
        for (timer, name), row in found.items():
            yield ComparedRow(
                **common,
                workload=workload,
                benchmark=name,
                implementation=BENCHMARKS[name],
                timer=timer,
                theirs_ms=tuple(row.theirs_ms),
                theirs_tflops=tuple(row.theirs_tflops),
                accurate=row.accurate,
                ours_ms=tuple(row.ours_ms),
                rel_error=bound[name][0].rel_error,
                tritonbench_sha256=digest,
            )


def _by_us(time: _Timer, bound: _Bound) -> dict[str, float]:
    """A timer's medians, in tritonbench's order of the kernels."""
    return {name: statistics.median(time(candidate.call)) for name, (candidate, _) in bound.items()}


def by_tritonbench(path: Path, workload: Workload, options: Sequence[str]) -> dict[str, object]:
    """What its run.py writes as JSON: the original's command line, with its own sdpa as what accuracy is held to."""
    first, *_ = BENCHMARKS
    words = f"--op {tritonbench.OPERATOR} --only {','.join(BENCHMARKS)} --metrics tflops,latency,accuracy"
    words += f" --baseline {first} --seq-len {workload.seq_len} --batch {workload.batch} --n-heads {workload.heads}"
    words += f" --d-head {workload.head_dim} --num-inputs 1 --skip-print"
    with tempfile.TemporaryDirectory(prefix="kperf-tritonbench-") as folder:
        file = Path(folder, "told.json")
        tritonbench.call(path, [*words.split(), *options, "--output-json", str(file)])
        return foreign.read_json(file, foreign.Json, "tritonbench")


def value(told: dict[str, object], name: str, metric: str) -> float:
    """A metric of a benchmark on the one input. Raises `MeasurementError` where tritonbench has none."""
    end = f"-{name}]_{metric}"
    found = [number for key, number in told.items() if key.endswith(end) and "[x_(" in key]  # x_average is not its x
    try:
        (number,) = found
        return foreign.number(str(number), "tritonbench")
    except (ValueError, UsageError):
        raise MeasurementError(f"tritonbench has no {metric} of {name}: its own messages above say why") from None


def table(rows: Sequence[ComparedRow], stamp: str) -> Table:
    """A row a shape, timer and kernel: medians over the rounds."""
    headers = ("batch x seq_len", "timer", "kernel", "ms", "ours", "TFLOPS", "ours", "TFLOPS off", "rounds")
    made = titled_table(f"on one timer by tritonbench and by us; {stamp}", *headers, left=("timer", "kernel"))
    for row in rows:
        theirs, off = ["-", "-"], ["-", "-"]
        if row.off:
            theirs = [f"{statistics.median(row.theirs_ms):.4f}", f"{statistics.median(row.theirs_tflops):.1f}"]
            off = [f"{statistics.median(row.off):+.1%}", f"{min(row.off):+.1%} to {max(row.off):+.1%}"]
        ours = [f"{statistics.median(row.ours_ms):.4f}", f"{row.ours_tflops:.1f}"]
        shape = f"{row.workload.batch} x {row.workload.seq_len}"
        made.add_row(shape, row.timer, row.benchmark, theirs[0], ours[0], theirs[1], ours[1], *off)
    return made


def sentences(rows: Sequence[ComparedRow]) -> list[str]:
    """How many agree, and by how much the timers differ on the same call of ours."""
    pairs = [row for row in rows if row.off]
    close = [row for row in pairs if abs(statistics.median(row.off)) <= GOAL]
    lines = [f"On the same timer tritonbench's TFLOPS are within {GOAL:.0%} of ours in {len(close)} of {len(pairs)}."]
    ours = {
        (row.workload, row.benchmark): statistics.median(row.ours_ms) for row in rows if row.timer == TIMER
    }  # the timer of Fig. 12
    for row in pairs:
        if (row.workload, row.benchmark) not in ours:  # a run that was killed before it wrote this row
            continue
        ratio = statistics.median(row.ours_ms) / ours[row.workload, row.benchmark]
        shape = f"{row.workload.batch} x {row.workload.seq_len}"
        lines.append(f"{row.benchmark} {shape}: {row.timer} says {ratio:.3f} times what the timer of Fig. 12 says.")
    lines += [f"{row.benchmark}: not accurate by tritonbench's own metric" for row in pairs if row.accurate is False]
    return lines
