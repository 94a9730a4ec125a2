"""What a sweep shows on the console while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kperf.bench.points import FailedPoint, Key, Point
from kperf.bench.sweep import Progress as SweepProgress


@contextmanager
def sweep_progress(console: Console) -> Iterator[SweepProgress]:
    """A progress bar with the time left, and a line a workload above it; Ctrl-C says that it can be gone on with."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TextColumn("left:"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)

        def begin(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        def step(key: Key, what: str) -> None:
            bar.update(task, description=f"{key[1].batch} x {key[1].seq_len}: {what}", refresh=True)

        def advance(cost: int) -> None:
            bar.advance(task, cost)

        try:
            yield SweepProgress(begin, step, advance, partial(_print_points, console), console.print)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("and the same command goes on from there") from None


def _print_points(console: Console, points: list[Point]) -> None:
    for workload, found in groupby(points, key=lambda point: point.workload):
        cells = [
            f"{p.implementation} {p.tflops:.0f}" if p.status == "ok" else f"{p.implementation} {p.status}"
            for p in found
        ]
        console.print(f"{workload}: {', '.join(cells)} TFLOPS")
    for point in points:
        if isinstance(point, FailedPoint) and point.status != "unsupported":
            console.print(f"  {point.implementation}: {point.message}")
