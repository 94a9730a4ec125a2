"""Tables of recorded points: as they come in, in tritonbench's form, and the ratios under Fig. 12."""

import csv
import io
import statistics
from collections.abc import Iterable, Sequence

from rich.table import Table

from kperf.attention.implementations import RATIOS
from kperf.bench import MEASURES_AGAIN, intervals
from kperf.bench.points import FailedPoint, Key, MeasuredPoint, Point
from kperf.console import agreeing, titled_table
from kperf.errors import MeasurementError, UsageError

LONG_SEQ_LEN = 1024
"""From here on a launch fills the GPU; the claims are about these."""

METRICS = ("tflops", "latency", "eager_latency", "accuracy")
"""tritonbench's names; latencies in milliseconds, accuracy as the relative error against float32."""

SHIFTS = "~"
"""Stands before the numbers of a point that had not settled."""

X_LABEL = "(Batch, Heads, SeqLen, Dhead)"


def metric(point: Point, name: str) -> str:
    """One cell: the number, or the status of a point that has none."""
    if isinstance(point, FailedPoint):
        return point.status
    value = {
        "tflops": point.tflops,
        "latency": point.median_ms,
        "eager_latency": point.eager_ms,
        "accuracy": point.rel_error,
    }[name]
    return f"{value:.2e}" if name == "accuracy" else f"{value:.6g}"


def tritonbench_table(runs: Iterable[dict[str, Point]], metrics: Sequence[str], title: str = "") -> Table:
    """A row a workload, a column an implementation and metric, headed as tritonbench does; and which run it is."""
    runs = list(runs)
    header, rows = _rows(runs, metrics, mark=SHIFTS)
    table = Table(title=title or None, title_justify="left")
    if any(isinstance(point, MeasuredPoint) and point.shifts for run in runs for point in run.values()):
        table.caption = f"{SHIFTS} had not settled: second half of the rounds {intervals.SHIFT:.0%} off the first"
        table.caption_justify = "left"
    table.add_column(header[0], justify="right", no_wrap=True)
    for column in header[1:]:
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("run", no_wrap=True)
    table.add_column("recorded (UTC)", no_wrap=True)
    for row, run in zip(rows, runs, strict=True):
        taken = dict.fromkeys((point.run, point.recorded_at[:16].replace("T", " ")) for point in run.values())
        table.add_row(*row, *(", ".join(parts) for parts in zip(*taken, strict=True)))
    return table


def tritonbench_csv(runs: Iterable[dict[str, Point]], metrics: Sequence[str]) -> str:
    """The same as text, separated by semicolons as tritonbench's --csv."""
    header, rows = _rows(list(runs), metrics)
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter=";", lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return stream.getvalue()


def _rows(
    runs: Sequence[dict[str, Point]], metrics: Sequence[str], mark: str = ""
) -> tuple[list[str], list[list[str]]]:
    """`mark` stands before what is a number of a point that had not settled."""
    keys = list(dict.fromkeys(key for run in runs for key in run))
    header = [X_LABEL, *(f"{key}-{name}" for key in keys for name in metrics)]
    rows = []
    for run in runs:
        first = next(iter(run.values()))
        x_value = f"({first.batch}, {first.heads}, {first.seq_len}, {first.head_dim})"
        marks = {key: mark if isinstance(point, MeasuredPoint) and point.shifts else "" for key, point in run.items()}
        cells = (marks[key] + metric(run[key], name) if key in run else "-" for key in keys for name in metrics)
        rows.append([x_value, *cells])
    return header, rows


def require_times(points: Iterable[Point]) -> None:
    """Raise `MeasurementError` if a point is wrong or failed; one that is unsupported or out of memory is not."""
    for sentence in without_times(points):
        raise MeasurementError(sentence)


def without_times(points: Iterable[Point]) -> list[str]:
    """How many points are wrong or failed, in a sentence that names the first; none of those, none of it."""
    failures = [point for point in points if point.status in {"wrong", "failed"}]
    without = agreeing(len(failures), "point has no time:", "points have no time; the first:")
    return [
        f"{len(failures)} {without} {first.implementation} on {first.workload}, {first.message} ({MEASURES_AGAIN})"
        for first in failures[:1]
    ]


def speedup(run: dict[str, Point], ours: str, theirs: str) -> float | None:
    """How many times faster `ours` is than `theirs` in one run, or None unless both have a time."""
    a, b = run.get(ours), run.get(theirs)
    if isinstance(a, MeasuredPoint) and isinstance(b, MeasuredPoint):
        return b.median_ms / a.median_ms
    return None


def speedup_interval(runs: Sequence[dict[str, Point]], ours: str, theirs: str) -> tuple[float, float, float] | None:
    """Geometric mean over runs of the speedup, with the 95 % interval in which a second run's lies.

    None if a point has no time; raises `UsageError` if the two did not take the same rounds.
    """
    ratios, spreads = [], []
    for run in runs:
        a, b = run.get(ours), run.get(theirs)
        if not (isinstance(a, MeasuredPoint) and isinstance(b, MeasuredPoint)):
            return None
        if len(a.samples_ms) != len(b.samples_ms):
            raise UsageError(f"{ours} and {theirs} of run {a.run} have not the same rounds: restore the results file")
        ratios.append(b.median_ms / a.median_ms)
        spreads.append(intervals.ratio_spread(a.samples_ms, b.samples_ms))
    mean = statistics.geometric_mean(ratios)
    return mean, *intervals.around(mean, intervals.mean_spread(spreads))


def ratio_table(runs: dict[Key, dict[str, Point]], ratios: Sequence[tuple[str, str]] = RATIOS) -> Table:
    """Speedups a place of the figure, and their geometric means: of all, and of those that the claims are about."""
    headers = ("batch x seq_len", *(f"{ours}/{theirs}" for ours, theirs in ratios))
    table = titled_table("speedup; a row is of one run, interleaved", *headers)
    speedups = {key: [speedup(run, *ratio) for ratio in ratios] for key, run in runs.items()}
    for (_, workload), row in speedups.items():
        cells = ["-" if ratio is None else f"{ratio:.3f}" for ratio in row]
        table.add_row(f"{workload.batch} x {workload.seq_len}", *cells)
    table.add_section()
    for shortest, label in ((0, "geometric mean, all"), (LONG_SEQ_LEN, f"seq_len >= {LONG_SEQ_LEN}")):
        rows = [row for (_, workload), row in speedups.items() if workload.seq_len >= shortest]
        columns = [[ratio for ratio in column if ratio is not None] for column in zip(*rows, strict=True)]
        table.add_row(label, *(f"{statistics.geometric_mean(column):.3f}" if column else "-" for column in columns))
    return table
