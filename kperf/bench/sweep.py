"""A grid of workloads, all implementations in turn on each, resumable at any point, on one GPU or spread over several.

A group of places is always whole on one GPU. Over several (`bench.many`), one group is measured on every one of them,
so that what differs between the cards is in the record beside what was spread over them (`bench.cards`).
"""

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from kperf.attention.implementations import Implementation
from kperf.bench import MEASURES_AGAIN
from kperf.bench.measure import measure
from kperf.bench.points import Figure, Key, Point, Store, newest_whole_runs
from kperf.bench.walltime import Share, SweepStore, SweepTime, compared
from kperf.record import device
from kperf.record.store import Environment, Writer


@dataclass
class Progress:
    """What a sweep tells while it runs; each field is called, never read. `gpu` is empty where there is only one."""

    begin: Callable[[int, int], None] = lambda _done, _all: None
    """Cost (FLOPs) done already and in all."""
    step: Callable[[Key, str, str], None] = lambda _key, _activity, _gpu: None
    advance: Callable[[int], None] = lambda _cost: None
    points: Callable[[list[Point], str], None] = lambda _points, _gpu: None
    say: Callable[[str], None] = lambda _text: None


@dataclass(frozen=True)
class Asked:
    """What every group of a sweep is measured with."""

    implementations: Sequence[Implementation]
    figure: Figure
    rounds: int


@dataclass(frozen=True)
class Task:
    """A group of places, measured together and in turn on one GPU: on any, or on the one with this UUID."""

    places: tuple[Key, ...]
    gpu_uuid: str | None = None

    @property
    def cost(self) -> int:
        """In the currency of the time-left estimate."""
        return sum(_cost(key) for key in self.places)


@dataclass(frozen=True)
class Measured:
    """The points of a task, where they were taken, and how many seconds that took; `gpu` as in `Progress`."""

    task: Task
    points: list[Point]
    environment: Environment
    seconds: float
    gpu: str = ""


class Bench(Protocol):
    """The GPUs that a sweep is measured on: this process's, or several with a process each."""

    @property
    def environments(self) -> Sequence[Environment]:
        """One a GPU."""

    @property
    def start_s(self) -> float:
        """How many seconds it took until they could measure."""

    def measure(self, tasks: Sequence[Task], asked: Asked, progress: Progress) -> Generator[Measured, None, None]:
        """Each task once, in any order. Raises `MeasurementError` if no GPU is left."""


class ThisGpu:
    """The GPU of this process."""

    start_s = 0.0

    def __init__(self) -> None:
        """Its lock is held by the caller."""
        self.environments = [device.environment()]

    def measure(self, tasks: Sequence[Task], asked: Asked, progress: Progress) -> Generator[Measured, None, None]:
        """One after the other."""
        for task in tasks:
            first = task.places[0]

            def on_step(activity: str, key: Key = first) -> None:
                progress.step(key, activity, "")

            yield measure_task(task, asked, self.environments[0], on_step)


@contextmanager
def this_gpu() -> Iterator[ThisGpu]:
    """Held alone while it measures; raises `UsageError` while another process measures on it."""
    with device.exclusive():
        yield ThisGpu()


def measure_task(task: Task, asked: Asked, environment: Environment, on_step: Callable[[str], None]) -> Measured:
    """Measure a group on the GPU of this process; raises `MeasurementError` only if the GPU itself is lost."""
    begin = time.monotonic()
    points = measure(
        [workload for _, workload in task.places],
        asked.implementations,
        figure=asked.figure,
        sweep=task.places[0][0],
        environment=environment.id,
        rounds=asked.rounds,
        on_step=on_step,
    )
    return Measured(task, points, environment, time.monotonic() - begin)


_OVERHEAD_FLOPS = int(1e15)
"""What compiling, checking and capturing cost a workload, in the currency of the time-left estimate."""


def run_sweep(
    groups: Sequence[Sequence[Key]],
    implementations: Sequence[Implementation],
    store: Store,
    *,
    figure: Figure,
    rounds: int,
    fresh: bool = False,
    progress: Progress,
    bench: Bench | None = None,
) -> None:
    """Measure each place of the grid that this environment has no whole run of, and append it to the store.

    The places of a group, which differ in their inputs alone, are measured in turn, and again if one of them is not
    there. Killed at any moment it goes on where it was when started again: a group's points are written together, and a
    torn last line is cut off. `fresh` measures everything anew. Without a `bench` it is the GPU of this process.
    """
    asked = Asked(implementations, figure, rounds)
    opened: AbstractContextManager[Bench] = this_gpu() if bench is None else nullcontext(bench)
    with opened as gpus, store.writer() as writer:
        if writer.repaired:
            progress.say(f"repaired {store.points_path}: a torn last line of {writer.repaired} bytes was cut off")
        for environment in gpus.environments:
            writer.record_environment(environment)
        tasks = _tasks(writer.points, groups, implementations, gpus.environments, fresh)
        to_measure = {key for task in tasks for key in task.places}
        done = [key for group in groups for key in group if key not in to_measure]
        if done:
            progress.say(
                f"{len(done)} of {sum(map(len, groups))} workloads are recorded in this environment already: "
                f"{MEASURES_AGAIN}"
            )
        cost = sum(map(_cost, done))
        progress.begin(cost, cost + sum(task.cost for task in tasks))
        begin = time.monotonic()
        with closing(gpus.measure(tasks, asked, progress)) as arriving:
            measured = list(_recorded(arriving, writer, progress))
        seconds = time.monotonic() - begin
    if measured:
        _keep_time(store, asked, measured, seconds, gpus, progress)


def _recorded(arriving: Iterable[Measured], writer: Writer[Point], progress: Progress) -> Iterator[Measured]:
    """Each as it comes, written to the store."""
    for measured in arriving:
        writer.record_environment(measured.environment)
        writer.append(measured.points)
        progress.points(measured.points, measured.gpu)
        progress.advance(measured.task.cost)
        yield measured


def _tasks(
    points: Sequence[Point],
    groups: Sequence[Sequence[Key]],
    implementations: Sequence[Implementation],
    environments: Sequence[Environment],
    fresh: bool,
) -> list[Task]:
    """What is left to measure; of several GPUs each has to have the middle one of the groups by cost itself."""
    here = {environment.id: environment.gpu_uuid for environment in environments}
    done = set() if fresh else _done(points, groups, implementations, here)
    tasks = [Task(tuple(group)) for group in groups]
    if len(here) == 1:
        return [task for task in tasks if not done.issuperset(task.places)]
    control = sorted(tasks, key=lambda task: task.cost)[len(tasks) // 2]
    lacking = [
        uuid
        for name, uuid in here.items()
        if fresh or not _done(points, [control.places], implementations, [name]).issuperset(control.places)
    ]
    on_each = [Task(control.places, uuid) for uuid in lacking]
    return on_each + [task for task in tasks if task is not control and not done.issuperset(task.places)]


def _done(
    points: Sequence[Point],
    groups: Sequence[Sequence[Key]],
    implementations: Sequence[Implementation],
    environments: Collection[str],
) -> set[Key]:
    """Groups with a whole run in one of these environments, with the very overrides that are there now."""
    here = [point for point in points if point.environment in environments]
    runs = newest_whole_runs(here, [implementation.key for implementation in implementations])

    def is_done(key: Key) -> bool:
        return (
            key in runs
            and _same_overrides(runs[key], implementations)
            and not any(point.status == "failed" for point in runs[key].values())  # it may pass the next time
        )

    return {key for group in groups if all(map(is_done, group)) for key in group}


def _same_overrides(run: dict[str, Point], implementations: Sequence[Implementation]) -> bool:
    for implementation in implementations:
        point = run[implementation.key]
        if implementation.refuses(point.workload):
            continue
        override = implementation.override(point.workload)
        if override is not None and override.sha256 != point.override_sha256:
            return False
    return True


def _keep_time(
    store: Store, asked: Asked, measured: Sequence[Measured], seconds: float, gpus: Bench, progress: Progress
) -> None:
    """Record how long the sweep took, and say how that compares with one GPU if there were several."""
    shares = []
    for environment in gpus.environments:
        of_it = [done for done in measured if done.environment.id == environment.id]
        shares.append(Share(environment=environment.id, tasks=len(of_it), busy_s=sum(done.seconds for done in of_it)))
    record = SweepTime(
        figure=asked.figure,
        implementations=[implementation.key for implementation in asked.implementations],
        rounds=asked.rounds,
        places=list(dict.fromkeys(key for done in measured for key in done.task.places)),
        runs=[done.points[0].run for done in measured],
        seconds=seconds,
        start_s=gpus.start_s,
        gpus=shares,
        recorded_at=device.now(),
    )
    times = SweepStore(store.folder)
    with times.writer() as writer:
        writer.append([record])
        if len(shares) > 1:
            progress.say(compared(record, writer.points))


def _cost(key: Key) -> int:
    return key[1].flops + _OVERHEAD_FLOPS
