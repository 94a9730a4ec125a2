"""What a sweep shows on the console while it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kperf.bench.points import FailedPoint, Key, Point
from kperf.bench.sweep import Progress as SweepProgress


@contextmanager
def sweep_progress(console: Console) -> Iterator[SweepProgress]:
    """A progress bar with the time left, a line a GPU below it where there are several, a line a workload above it.

    Ctrl-C says that it can be gone on with.
    """
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("left:", markup=False),
    )
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None)
        of_gpu: dict[str, TaskID] = {}

        def begin(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        def step(key: Key, activity: str, gpu: str) -> None:
            description = f"{key[1].batch} x {key[1].seq_len}: {activity}"
            if not gpu:
                bar.update(task, description=description, refresh=True)
                return
            if gpu not in of_gpu:
                bar.update(task, description="all GPUs")
                of_gpu[gpu] = bar.add_task(gpu, total=None)
            bar.update(of_gpu[gpu], description=f"{gpu}: {description}", refresh=True)

        def advance(cost: int) -> None:
            bar.advance(task, cost)

        try:
            yield SweepProgress(begin, step, advance, partial(_print_points, console), console.print)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("and the same command goes on from there") from None


def _print_points(console: Console, points: list[Point], gpu: str) -> None:
    for workload, of_workload in groupby(points, key=lambda point: point.workload):
        cells = [
            f"{p.implementation} {p.tflops:.0f}" if p.status == "ok" else f"{p.implementation} {p.status}"
            for p in of_workload
        ]
        console.print(f"{f'{gpu}: ' if gpu else ''}{workload}: {', '.join(cells)} TFLOPS")
    for point in points:
        if isinstance(point, FailedPoint) and point.status != "unsupported":
            console.print(f"  {point.implementation}: {point.message}")
