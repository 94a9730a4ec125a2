"""Do the cards agree? The workload that a spread sweep measures on each of them, and how each of them ran meanwhile.

A time's interval holds that of a second run on the same card 19 times in 20 (`bench.intervals`): how often the time of
another card falls into it says how far cards differ beyond what runs do. Ratios are those within a card.
"""

import math
import statistics
from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain, combinations

from rich.console import Console
from rich.table import Table

from kperf.bench.points import Figure, Key, MeasuredPoint, Point, Run, Store, runs_by_place
from kperf.bench.repeatability import BASELINE, compare
from kperf.console import titled_table
from kperf.record.store import DeviceStates, Environment

_FEW = 3
"""So many workloads are named."""

OnCards = dict[str, Run]
"""One place on several cards: the newest run of each, by UUID."""


@dataclass(frozen=True)
class Agreement:
    """Of all pairs of cards and bars: how many times, and ratios to the baseline, lie in the other card's interval."""

    times: int
    times_held: int
    ratios: int
    ratios_held: int
    missed: list[str]


def on_several(points: Iterable[Point], environments: Mapping[str, Environment]) -> dict[Key, OnCards]:
    """The places that several cards have measured as the newest run of the place was: setting, bars and overrides."""
    places = {}
    for key, runs in runs_by_place(points).items():
        cards = {
            environments[_environment(run)].gpu_uuid: run
            for run in runs
            if _as_measured(run, environments) == _as_measured(runs[-1], environments)
        }
        if len(cards) > 1:
            places[key] = cards
    return places


def agreement(places: Iterable[OnCards]) -> Agreement:
    """Hold each card's run of a place against every other's."""
    times = held = 0
    pairs = [pair for cards in places for pair in combinations(cards.values(), 2)]
    for first, second in pairs:
        for key, point in first.items():
            other = second[key]
            if isinstance(point, MeasuredPoint) and isinstance(other, MeasuredPoint):
                times += 1
                held += point.ci95_ms[0] <= other.median_ms <= point.ci95_ms[1]
    ratios = compare(pairs)
    return Agreement(times, held, len(ratios.ratios), ratios.held, ratios.missed)


def table(places: Mapping[Key, OnCards], title: str) -> Table:
    """A row a card: its times over the mean of the cards, and its clock, power, heat and what held its clock down."""
    headers = ("card", "time over the mean", "SM MHz", "W", "°C", "clock held down in rounds by")
    made = titled_table(title, *headers, left={headers[0], headers[-1]})
    for uuid in sorted({uuid for cards in places.values() for uuid in cards}):
        offsets: list[float] = []
        states: list[DeviceStates] = []
        for cards in places.values():
            for key, point in cards.get(uuid, {}).items():
                timed = [run[key] for run in cards.values()]
                times = [other.median_ms for other in timed if isinstance(other, MeasuredPoint)]
                if isinstance(point, MeasuredPoint) and len(times) == len(timed):
                    offsets.append(math.log(point.median_ms / statistics.geometric_mean(times)))
                    states.append(point.device_states)
        if not states:
            continue
        throttle = [reasons for of_point in states for reasons in of_point.throttle]
        reasons = Counter(chain.from_iterable(throttle))
        made.add_row(
            uuid[:8],
            f"{math.expm1(statistics.fmean(offsets)):+.2%}",
            f"{statistics.median(mhz for of_point in states for mhz in of_point.sm_mhz):.0f}",
            f"{statistics.fmean(watts for of_point in states for watts in of_point.power_w):.0f}",
            f"{max(celsius for of_point in states for celsius in of_point.temperature_c)}",
            ", ".join(f"{reason} {count / len(throttle):.0%}" for reason, count in sorted(reasons.items())) or "-",
        )
    return made


def sentences(places: Mapping[Key, OnCards]) -> list[str]:
    """How far the cards agree, and each ratio that does not."""
    outcome = agreement(places.values())
    workloads = (
        ", ".join(str(workload) for _, workload in places) if len(places) <= _FEW else f"{len(places)} workloads"
    )
    return [
        f"{workloads}: of the times {outcome.times_held} of {outcome.times} lie in another card's 95 % interval, "
        f"of the ratios to {BASELINE} {outcome.ratios_held} of {outcome.ratios}",
        *(f"outside: {line}" for line in outcome.missed),
    ]


def report(console: Console, store: Store, figure: Figure, places: Container[Key]) -> None:
    """Print how far cards agree, by what of a figure was measured on several of them; or that nothing was."""
    measured = on_several([point for point in store.points() if point.figure == figure], store.environments())
    shared = {key: cards for key, cards in measured.items() if key in places}
    if not shared:
        console.print("no workload was measured on several cards in one setting: how far they agree is unknown")
        return
    console.print(table(shared, "the same workload on each card"))
    for sentence in sentences(shared):
        console.print(sentence)


def spread_note(runs: Iterable[Run], environments: Mapping[str, Environment]) -> str | None:
    """A sentence that says so where what stands in one figure was measured on several cards."""
    cards = Counter(environments[_environment(run)].gpu_uuid[:8] for run in runs if run)
    if len(cards) < 2:
        return None
    shares = ", ".join(f"{card} {count}" for card, count in sorted(cards.items()))
    return f"on {len(cards)} cards, each workload whole on one: {shares}"


def _environment(run: Run) -> str:
    return next(iter(run.values())).environment


def _as_measured(run: Run, environments: Mapping[str, Environment]) -> object:
    setting = environments[_environment(run)].setting
    del setting["git_commit"]  # what of it runs on the GPU has its own hash
    return setting, {(key, point.override_sha256) for key, point in run.items()}
