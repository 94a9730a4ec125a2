"""Which implementation to use for a workload, from recorded measurements, and how good such choices are.

Shapes are compared within a kind (head_dim, dtype, mask, inputs), as nothing measured says what another kind does. Of
a shape that was measured the fastest is chosen; else of the nearest measured ones, by the geometric mean of their
ratios. The distance of two shapes is

    sqrt(log2(seq_len / seq_len')^2 + log2(batch heads / (batch' heads'))^2)

so that 1 is a factor of two in the rows of a head, or in the number of heads: time depends on both by products.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kperf.attention.implementations import FIG12, IMPLEMENTATIONS, implementations
from kperf.attention.variants import VARIANTS
from kperf.attention.workload import Workload
from kperf.bench.points import Figure, MeasuredPoint, Point, Run, Store, fullest_runs
from kperf.bench.tables import speedup_interval
from kperf.errors import UsageError
from kperf.record.provenance import when
from kperf.record.store import recorded_folder

NEAREST = 2
"""So many measured shapes speak for one that was not measured: in a sweep by powers of two, those on both sides."""

FAR = 1.0
"""Beyond a factor of two from all that is measured a choice is a guess, and says so."""

REGRET_GOAL = 0.02

Kind = tuple[int, str, bool, str]
Runs = Mapping[Workload, Run]


@dataclass(frozen=True)
class Choice:
    """The key of an implementation, and what it rests on.

    ratio: how many times faster it is than `second`, with the 95 % interval; ties: those of which the measured shapes
    do not tell whether they are slower; distance: of the nearest measured shape, 0 if it is this one.
    """

    key: str
    second: str | None
    ratio: tuple[float, float, float] | None
    ties: tuple[str, ...]
    nearest: tuple[Workload, ...]
    distance: float

    @property
    def gap(self) -> bool:
        """Whether nothing near was measured."""
        return self.distance > FAR


@dataclass(frozen=True)
class Regret:
    """What choosing cost on a shape that was left out: its time over the best one's, less 1.

    distance: of the nearest shape that was chosen from.
    """

    workload: Workload
    chosen: str
    best: str
    value: float
    distance: float


def kind(workload: Workload) -> Kind:
    """What has to be the same for one shape to say something of another."""
    return workload.head_dim, workload.dtype, workload.causal, workload.inputs


def distance(first: Workload, second: Workload) -> float:
    """Of two shapes of one kind, in factors of two."""
    heads = first.batch * first.heads / (second.batch * second.heads)
    return math.hypot(math.log2(first.seq_len / second.seq_len), math.log2(heads))


def recorded_points(folder: Path) -> list[Point]:
    """What is measured forward in a folder of results, on all kinds of inputs."""
    names: tuple[Figure, ...] = ("fig12", "fig12_inputs", "bench")
    return [point for name in names for point in Store(folder, name).points()]


def measured_runs(points: Iterable[Point], keys: Sequence[str]) -> dict[Workload, Run]:
    """For each workload the newest run with the most of `keys`: those of them that have a time."""
    newest: dict[Workload, Run] = {}
    for (_, workload), run in fullest_runs(points, keys).items():
        timed = {key: run[key] for key in keys if isinstance(run.get(key), MeasuredPoint)}
        before = newest.get(workload, {})
        if timed and (len(timed), _recorded_at(timed)) > (len(before), _recorded_at(before)):
            newest[workload] = timed
    return newest


def choose(workload: Workload, runs: Runs) -> Choice:
    """The fastest for a workload by the nearest measured shapes of its kind.

    Only what all of these have a time for is chosen from, and what can run the workload at all. Raises `UsageError` if
    nothing of the kind is recorded, or nothing of it can run the workload.
    """
    near = _nearest(workload, [other for other in runs if kind(other) == kind(workload)])
    taken = [runs[other] for other in near]
    keys = [key for key in taken[0] if all(key in run for run in taken)] if taken else []
    keys = [key for key in keys if not IMPLEMENTATIONS[key].unsupported(workload)]
    if not keys:
        raise UsageError(f"nothing is recorded that says what is fast for {workload}: `kperf bench` measures it")
    mean = {key: statistics.geometric_mean(_ms(run, key) for run in taken) for key in keys}
    best, *others = sorted(keys, key=mean.__getitem__)
    over = {other: speedup_interval(taken, best, other) for other in others}
    ties = tuple(other for other, ratio in over.items() if ratio and ratio[1] <= 1)
    second = others[0] if others else None
    return Choice(best, second, over[second] if second else None, ties, near, distance(workload, near[0]))


def regrets(runs: Runs) -> list[Regret]:
    """Leave each workload out in turn, and choose for it from all others of its kind."""
    costs = []
    for workload, run in runs.items():
        others = {other: of for other, of in runs.items() if other != workload}
        try:
            choice = choose(workload, others)
        except UsageError:  # the only one of its kind: nothing could be chosen
            continue
        if choice.key not in run or len(run) < 2:  # of one nothing could be chosen wrong
            continue
        best = min(run, key=lambda key: _ms(run, key))
        cost = _ms(run, choice.key) / _ms(run, best) - 1
        costs.append(Regret(workload, choice.key, best, cost, choice.distance))
    return costs


def crossovers(runs: Runs) -> list[tuple[list[Workload], Choice]]:
    """Measured shapes of a kind and batch in the order of seq_len, cut where the fastest changes."""
    table: list[tuple[list[Workload], Choice]] = []
    for workload in sorted(runs, key=lambda w: (*kind(w), w.heads, w.batch, w.seq_len)):
        choice = choose(workload, runs)
        if table:
            before, last = table[-1]
            same_line = (kind(before[-1]), before[-1].heads) == (kind(workload), workload.heads)
            same_row = before[-1].batch == workload.batch or len({w.seq_len for w in (*before, workload)}) == 1
            if same_line and same_row and last.key == choice.key and last.ties == choice.ties:
                before.append(workload)
                continue
        table.append(([workload], choice))
    return table


def run(
    console: Console, results: Path, workload: Workload | None, keys: Sequence[str] | None, gpu: str | None = None
) -> None:
    """Print the choice for a workload or, without one, the crossovers and the regrets, of a GPU by its folder's name.

    Raises `UsageError` if nothing is recorded, or nothing near the workload, or a key is unknown.
    """
    chosen_from = [item.key for item in implementations(keys or FIG12)]
    folder = recorded_folder(results, gpu=gpu)
    points = recorded_points(folder)
    runs = measured_runs(points, chosen_from)
    recorded = when(point.recorded_at for run in runs.values() for point in run.values()) if runs else ""
    if workload:
        console.print(sentence(workload, choose(workload, runs)))
        return
    console.print(_crossover_table(crossovers(runs), f"fastest, recorded in {folder.name}, {recorded}"))
    sets = {"all" if keys is None else ", ".join(chosen_from): runs}
    if keys is None:
        sets["without ours"] = measured_runs(points, [key for key in chosen_from if key not in VARIANTS])
    console.print(_regret_table(sets))


def sentence(workload: Workload, choice: Choice) -> str:
    """What is chosen, by how much, on what grounds, with ties and gaps."""
    if choice.second is None or choice.ratio is None:
        lead = f"{workload}: {choice.key}, the only one recorded"
    else:
        ratio, low, high = choice.ratio
        lead = f"{workload}: {choice.key}, {ratio:.3f} ({low:.3f} to {high:.3f}) times as fast as {choice.second}"
    if choice.ties:
        lead += f", a tie with {', '.join(choice.ties)} within the intervals"
    if not choice.distance:
        return f"{lead}; measured at this shape"
    shapes = " and ".join(f"{w.batch} x {w.heads} x {w.seq_len}" for w in choice.nearest)
    lead += f"; not measured at this shape, but at {shapes}, the nearest a factor of {2**choice.distance:.3g} away"
    return f"{lead}: a gap, so measure it (`kperf bench`) before you rely on this" if choice.gap else lead


def _crossover_table(rows: Sequence[tuple[list[Workload], Choice]], title: str) -> Table:
    headers = ("head_dim", "dtype", "mask", "inputs", "batch x heads", "seq_len", "fastest", "over the second", "tie")
    table = Table(*headers, title=title, title_justify="left")
    before: Kind | None = None
    for workloads, choice in rows:
        first, last = workloads[0], workloads[-1]
        if kind(first) != before and before is not None:
            table.add_section()
        before = kind(first)
        batches = _span([w.batch for w in workloads])
        over = f"{choice.ratio[0]:.3f} of {choice.second} at {first.batch} x {first.seq_len}" if choice.ratio else "-"
        table.add_row(
            str(first.head_dim), first.dtype, "causal" if first.causal else "full", first.inputs,
            f"{batches} x {last.heads}", _span([w.seq_len for w in workloads]), choice.key, over,
            ", ".join(choice.ties) or "-",
        )  # fmt: skip
    return table


def _regret_table(sets: Mapping[str, Runs]) -> Table:
    title = f"regret of choosing for shapes that were left out, one at a time (goal: mean <= {REGRET_GOAL:.0%})"
    headers = ("chosen from", "shapes", "wrong", "mean", "largest, and where", "best single one, its mean")
    table = Table(*headers, title=title, title_justify="left")
    farthest = max((regret.distance for runs in sets.values() for regret in regrets(runs)), default=0.0)
    table.caption = (
        f"each has a measured one at most a factor of {2**farthest:.3g} away: the regret says nothing of gaps"
    )
    table.caption_justify = "left"
    for label, runs in sets.items():
        costs = regrets(runs)
        if not costs:
            table.add_row(label, "0", "-", "-", "-", "-")
            continue
        worst = max(costs, key=lambda regret: regret.value)
        single = _best_single(runs)
        table.add_row(
            label,
            str(len(costs)),
            str(sum(regret.chosen != regret.best for regret in costs)),
            f"{statistics.mean(regret.value for regret in costs):.2%}",
            f"{worst.value:.1%}, {worst.chosen} for {worst.best} on {worst.workload}" if worst.value else "0",
            f"{single[0]}, {single[1]:.2%}" if single else "none runs all",
        )
    return table


def _best_single(runs: Runs) -> tuple[str, float] | None:
    """The key with the smallest mean regret if it were used always, of those that every run of several has."""
    several = [run for run in runs.values() if len(run) > 1]
    keys = set.intersection(*({*run} for run in several))
    means = {
        key: statistics.mean(_ms(run, key) / min(_ms(run, other) for other in run) - 1 for run in several)
        for key in keys
    }
    return min(means.items(), key=lambda item: item[1]) if means else None


def _nearest(workload: Workload, others: Sequence[Workload]) -> tuple[Workload, ...]:
    """The workload itself if it is there; else the `NEAREST` nearest, and those as near as the last of them."""
    if workload in others:
        return (workload,)
    ordered = sorted(others, key=lambda other: distance(workload, other))
    if not ordered:
        return ()
    last = distance(workload, ordered[min(NEAREST, len(ordered)) - 1])
    return tuple(other for other in ordered if distance(workload, other) <= last)


def _ms(run: Run, key: str) -> float:
    point = run[key]
    assert isinstance(point, MeasuredPoint)  # measured_runs kept no other
    return point.median_ms


def _recorded_at(run: Run) -> str:
    return max((point.recorded_at for point in run.values()), default="")


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"
