"""Do the intervals hold? Two runs of the same grid on one card, the second held against the first."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kperf.bench import MEASURES_AGAIN, intervals
from kperf.bench.points import Key, MeasuredPoint, Point, Store, runs_by_place
from kperf.bench.tables import speedup, speedup_interval
from kperf.console import titled_table
from kperf.errors import UsageError
from kperf.record.store import recorded_folder

BASELINE = "fa3"

Pair = tuple[dict[str, Point], dict[str, Point]]
"""The first and the second run of one place."""


@dataclass(frozen=True)
class Repeated:
    """What the pairs of one figure show; `ratios` are those to the baseline, of the first run and of the second.

    times_held, held: of `times` and of `ratios`, those inside the first run's interval; missed: each ratio outside, in
    words. retuned: what is not compared, neither its ratio nor its time, for the second run's autotuner chose another.
    """

    points: int
    shifted: int
    times: int
    times_held: int
    ratios: list[tuple[float, float]]
    held: int
    missed: list[str]
    retuned: list[str]

    @property
    def typical_difference(self) -> float:
        """Root mean square of the logarithm of second over first ratio: what is 1.0 % is 0.01."""
        return math.sqrt(statistics.fmean(math.log(second / first) ** 2 for first, second in self.ratios))


def pairs(first: Iterable[Point], second: Iterable[Point] | None = None) -> dict[Key, Pair]:
    """For each place its newest run of `second` that has a comparable one in `first`, and the newest such.

    Without `second`: the newest that has one before it. Comparable: the same implementations with the
    same overrides, the baseline among them, in the same environment.
    """
    earlier = runs_by_place(first)
    repeated = {}
    for key, runs in (earlier if second is None else runs_by_place(second)).items():
        for place in reversed(range(len(runs))):
            before = runs[:place] if second is None else earlier.get(key, [])
            if _ids([runs[place]]) & _ids(before):
                continue  # it is no second run of itself
            same = [run for run in before if BASELINE in run and _what_ran(run) == _what_ran(runs[place])]
            if same:
                repeated[key] = (same[-1], runs[place])
                break
    return repeated


def compare(repeated: Sequence[Pair]) -> Repeated:
    """Count over pairs of runs: unsettled points, and ratios to the baseline inside the first run's interval."""
    timed = [p for pair in repeated for run in pair for p in run.values() if isinstance(p, MeasuredPoint)]
    times: list[bool] = []
    ratios, held, missed, retuned = [], 0, [], []
    for first, second in repeated:
        for key in first:
            before, after = first[key], second[key]
            if not isinstance(before, MeasuredPoint) or not isinstance(after, MeasuredPoint):
                continue
            if before.message != after.message:
                retuned.append(f"{before.workload} {key}: {before.message}; then {after.message}")
                continue
            times.append(before.ci95_ms[0] <= after.median_ms <= before.ci95_ms[1])
            interval = None if key == BASELINE else speedup_interval([first], key, BASELINE)
            again = speedup(second, key, BASELINE)
            if interval is None or again is None:
                continue
            value, low, high = interval
            ratios.append((value, again))
            if low <= again <= high:
                held += 1
            else:
                missed.append(f"{before.workload} {key} {value:.3f} ({low:.3f} to {high:.3f}), then {again:.3f}")
    shifted = sum(p.shifts for p in timed)
    return Repeated(len(timed), shifted, len(times), sum(times), ratios, held, missed, retuned)


def run(console: Console, results: Path, other: Path | None) -> None:
    """`kperf repeatability`: a row a figure, and every ratio that fell outside.

    Raises `UsageError` if there are no two runs to compare.
    """
    second = None if other is None else Store(recorded_folder(other)).points()
    store = Store(recorded_folder(results, holds=lambda folder: bool(pairs(Store(folder).points(), second))))
    if second and {point.run for point in second} <= {point.run for point in store.points()}:
        raise UsageError(f"every run in {other} is in {results} too, and a run repeats itself: name a folder of others")
    figures: dict[str, list[Pair]] = defaultdict(list)
    for (_, workload), pair in pairs(store.points(), second).items():
        mask = "causal" if workload.causal else "full"
        figures[f"head_dim {workload.head_dim}, {workload.dtype}, {mask}"].append(pair)
    if not figures:
        raise UsageError(f"{store.points_path} has no two runs of one place that compare: {MEASURES_AGAIN}")
    headers = (
        "figure",
        "points",
        f"halves {intervals.SHIFT:.0%} apart",
        "times in the first run's interval",
        "ratios in it",
        "rms of ratios",
    )
    table = titled_table(f"two runs of the same grid on one card, ratios to {BASELINE}", *headers)
    outcomes = {name: compare(of_figure) for name, of_figure in figures.items()}
    if len(outcomes) > 1:
        outcomes["all"] = compare([pair for of_figure in figures.values() for pair in of_figure])
    for name, outcome in outcomes.items():
        table.add_row(name, str(outcome.points), *_shares(outcome))
    console.print(table)
    everything = list(outcomes.values())[-1]
    for line in everything.missed:
        console.print(f"outside: {line}")
    for line in everything.retuned:
        console.print(f"not compared, for it was autotuned otherwise: {line}")


def _shares(outcome: Repeated) -> list[str]:
    """Cells: points that shift, times and ratios inside, and by how much ratios differ."""
    typical = f"{outcome.typical_difference:.2%}" if outcome.ratios else "-"
    return [
        f"{outcome.shifted} ({outcome.shifted / outcome.points:.1%})" if outcome.points else "-",
        _share(outcome.times_held, outcome.times),
        _share(outcome.held, len(outcome.ratios)),
        typical,
    ]


def _share(count: int, of: int) -> str:
    return f"{count} of {of} ({count / of:.1%})" if of else "-"


def _ids(runs: Iterable[dict[str, Point]]) -> set[str]:
    return {point.run for run in runs for point in run.values()}


def _what_ran(run: dict[str, Point]) -> set[tuple[str, str | None, str]]:
    return {(key, point.override_sha256, point.environment) for key, point in run.items()}
