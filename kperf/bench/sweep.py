"""A grid of workloads, all implementations in turn on each, resumable at any point."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kperf.attention.implementations import Implementation
from kperf.bench.measure import measure
from kperf.bench.points import Figure, Key, Point, Store, newest_whole_runs
from kperf.record import device
from kperf.record.store import Writer


@dataclass
class Progress:
    """What a sweep tells while it runs; each field is called, never read."""

    begin: Callable[[int, int], None] = lambda _done, _all: None
    """Cost (FLOPs) done already and in all."""
    step: Callable[[Key, str], None] = lambda _key, _what: None
    advance: Callable[[int], None] = lambda _cost: None
    points: Callable[[list[Point]], None] = lambda _points: None
    say: Callable[[str], None] = lambda _text: None


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
) -> None:
    """Measure each place of the grid that this environment has no whole run of, and append it to the store.

    The places of a group, which differ in their inputs alone, are measured in turn, and again if one of them is not
    there. Killed at any moment it goes on where it was when started again: a group's points are written together, and a
    torn last line is cut off. `fresh` measures everything anew.
    """
    with device.exclusive(), store.writer() as writer:
        if writer.repaired:
            progress.say(f"repaired {store.points_path}: a torn last line of {writer.repaired} bytes was cut off")
        environment = writer.record_environment(device.environment())
        done = set() if fresh else _done(writer, groups, implementations, environment)
        if done:
            progress.say(
                f"{len(done)} of {sum(map(len, groups))} workloads are recorded in this environment already; "
                "--fresh repeats"
            )
        progress.begin(sum(_cost(key) for key in done), sum(_cost(key) for group in groups for key in group))
        for group in groups:
            if done.issuperset(group):
                continue
            sweep, _ = first = group[0]

            def on_step(what: str, key: Key = first) -> None:
                progress.step(key, what)

            points = measure(
                [workload for _, workload in group],
                implementations,
                figure=figure,
                sweep=sweep,
                environment=environment,
                rounds=rounds,
                on_step=on_step,
            )
            writer.append(points)
            progress.points(points)
            progress.advance(sum(_cost(key) for key in group))


def _done(
    writer: Writer[Point], groups: Sequence[Sequence[Key]], implementations: Sequence[Implementation], environment: str
) -> set[Key]:
    """Groups with a whole run in this environment, with the very overrides that are there now."""
    here = [point for point in writer.points if point.environment == environment]
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
        if implementation.unsupported(point.workload):
            continue
        override = implementation.override(point.workload)
        if override is not None and override.sha256 != point.override_sha256:
            return False
    return True


def _cost(key: Key) -> int:
    return key[1].flops + _OVERHEAD_FLOPS
