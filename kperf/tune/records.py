"""What tuning records in `results/<gpu>/tune.jsonl`, and what follows from it. Reads; never measures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from kperf.attention.configs import Config
from kperf.attention.workload import Workload
from kperf.bench.points import MeasuredPoint, Point, PointsLine
from kperf.record.provenance import Provenance, Summary
from kperf.record.store import Frozen, Layout, RecordStore

Cost = float | None
"""What a configuration costs, in any unit, less is better; None if it fails or is wrong."""

Part = Literal["search", "exhaustive", "final", "comparison"]
"""search: trials that the search proposed, each measured by itself; exhaustive: all that can be launched, those that
spill among them, some at a time in turn; final: the best few, and the best of the search, in turn, of which the fastest
is taken; comparison: the kernel before and after, and the others, in turn."""

DEFAULT_KEY, TUNED_KEY = "triton_default", "triton_tuned"
"""Keys of the plain Triton kernel in a comparison, before tuning and after."""

REPORTED = tuple(
    Workload(batch=4, heads=8, seq_len=seq_len, head_dim=256, causal=True, dtype="float16")
    for seq_len in (512, 1024, 2048, 4096)
)
"""The experiment on an MI300X that is repeated."""

GOAL = 0.02
"""The search is to come this near to the best of all, in a tenth of the trials."""


class _OfAStudy(Frozen):
    """What rows that were measured together share.

    study: what belongs together, the tuning of one workload in one environment; candidates: how many configurations
    compiling left, and runnable: how many could be launched at all.
    """

    study: str
    architecture: str
    candidates: Annotated[int, Field(ge=1)]
    runnable: Annotated[int, Field(ge=1)]
    part: Part


class TuneRow(_OfAStudy):
    """One configuration, or one other implementation, on one workload. config: None for what is not our kernel's."""

    config: Config | None
    point: Annotated[Point, Field(discriminator="status")]

    @model_validator(mode="after")
    def _a_trial_has_a_configuration(self) -> Self:
        if self.config is None and self.part != "comparison":
            raise ValueError("config: is missing")
        return self

    @property
    def cost(self) -> Cost:
        """How many times the FLOP rate of cuBLAS's product, taken in the same rounds, is this one's; None without time.

        So what the clock does from trial to trial drops out.
        """
        point = self.point
        if not isinstance(point, MeasuredPoint) or point.ceiling_tflops is None:
            return None
        return point.ceiling_tflops / point.tflops


class _TuneLine(_OfAStudy):
    """A line of the file: the points of one part that were measured together, and the configuration of each."""

    schema_version: Literal[2]
    configs: list[Config | None]
    measured: PointsLine


def _rows_in(line: dict[str, Any]) -> list[TuneRow]:
    parsed = _TuneLine.model_validate(line)
    shared = {name: getattr(parsed, name) for name in _OfAStudy.model_fields}
    points = parsed.measured.whole
    if len(points) != len(parsed.configs):
        raise ValueError("configs: not as many as points")
    return [TuneRow(**shared, config=config, point=point) for config, point in zip(parsed.configs, points, strict=True)]


def _lines(rows: Sequence[TuneRow]) -> Iterator[str]:
    for shared, group in groupby(rows, key=lambda row: {name: getattr(row, name) for name in _OfAStudy.model_fields}):
        same = list(group)
        configs = iter([row.config for row in same])
        for measured in PointsLine.of(row.point for row in same):
            those = list(islice(configs, len(measured.points)))
            line = _TuneLine(schema_version=ROWS.schema, **shared, configs=those, measured=measured)
            yield line.model_dump_json(exclude_none=True)


ROWS: Layout[TuneRow] = Layout(2, _rows_in, _lines)
"""Rows that were measured together share a line."""


def store_in(folder: Path) -> RecordStore[TuneRow]:
    """The rows of one GPU."""
    return RecordStore(folder, "tune", ROWS)


@dataclass(frozen=True)
class Study:
    """The rows of one study, in the order of writing."""

    rows: Sequence[TuneRow]

    @property
    def workload(self) -> Workload:
        """What was tuned for."""
        return self.rows[0].point.workload

    @property
    def architecture(self) -> str:
        """Of the GPU."""
        return self.rows[0].architecture

    @property
    def runnable(self) -> int:
        """Configurations that could be launched."""
        return self.rows[0].runnable

    def tried(self, part: Part) -> dict[Config, Cost]:
        """The configurations of a part and their costs, in the order in which they were tried."""
        return {row.config: row.cost for row in self.rows if row.part == part and row.config is not None}

    def finalists(self, most: int) -> list[Config]:
        """The best so far, the best first, and what the search by itself found, if that is none of them."""
        search = self.tried("search")
        best = ranked(search | self.tried("exhaustive"))[:most]
        return list(dict.fromkeys([*best, *ranked(search)[:1]]))

    @property
    def chosen(self) -> Config | None:
        """The fastest of the final; None before that."""
        return next(iter(ranked(self.tried("final"))), None)

    @property
    def comparison(self) -> dict[str, Point]:
        """By key, of the newest comparison."""
        points = [row.point for row in self.rows if row.part == "comparison"]
        return {point.implementation: point for point in points if point.run == points[-1].run}

    @property
    def is_exhaustive(self) -> bool:
        """Whether all that can be launched were tried."""
        return len(self.tried("exhaustive")) >= self.runnable

    @property
    def regret(self) -> float | None:
        """By how much what the search found is slower than the best of all, less 1; None unless all were timed.

        Both as the final has them, in turn and for longer: the least of many short trials is too low.
        """
        final = self.tried("final")
        by_search, best = ranked(self.tried("search")), ranked(final)
        if not (self.is_exhaustive and by_search and best):
            return None
        ours, least = final.get(by_search[0]), final[best[0]]
        return None if ours is None or least is None else ours / least - 1

    @property
    def ratio_to_vendor(self) -> tuple[str, float] | None:
        """The fastest of the vendors' in the comparison, and how many times as fast as it the tuned kernel is."""
        times = {key: point.median_ms for key, point in self.comparison.items() if isinstance(point, MeasuredPoint)}
        vendors = {key: ms for key, ms in times.items() if key in VENDORS}
        if not vendors or TUNED_KEY not in times:
            return None
        best = min(vendors, key=vendors.__getitem__)
        return best, vendors[best] / times[TUNED_KEY]


NATIVE = ("eager", "sdpa_math")
VENDORS = ("cudnn", "fa3", "fa2", "aiter")
"""Keys of those compared with, of which a machine has some."""


def ranked(tried: Mapping[Config, Cost]) -> list[Config]:
    """Those that have a cost, the best first."""
    costs = {config: cost for config, cost in tried.items() if cost is not None}
    return sorted(costs, key=costs.__getitem__)


def studies(rows: Iterable[TuneRow]) -> list[Study]:
    """The newest of each architecture and workload, small workloads first."""
    by_study: dict[str, list[TuneRow]] = {}
    for row in rows:
        by_study.setdefault(row.study, []).append(row)
    newest = {(study.architecture, study.workload): study for study in map(Study, by_study.values())}
    return sorted(newest.values(), key=lambda study: (study.architecture, study.workload.head_dim, study.workload.rows))


def tuned(known: Iterable[Study]) -> dict[str, dict[Workload, Config]]:
    """Architecture -> workload -> the configuration that was chosen."""
    chosen: dict[str, dict[Workload, Config]] = {}
    for study in known:
        if study.chosen is not None:
            chosen.setdefault(study.architecture, {})[study.workload] = study.chosen
    return chosen


def summary(folder: Path) -> Summary:
    """Of the studies of `REPORTED`: the worst regret, and the worst ratio to the fastest vendor's kernel.

    A number is missing unless all of them have it.
    """
    store = store_in(folder)
    by_workload = {study.workload: study for study in studies(store.points())}
    if not by_workload.keys() >= {*REPORTED}:
        return Summary()
    reported = [by_workload[workload] for workload in REPORTED]
    regrets = [study.regret for study in reported if study.regret is not None]
    ratios = [study.ratio_to_vendor[1] for study in reported if study.ratio_to_vendor is not None]
    worst = {"regret": (max, regrets), "over the vendor": (min, ratios)}
    numbers = {name: of(values) for name, (of, values) in worst.items() if len(values) == len(REPORTED)}
    return Summary(numbers, Provenance.of_records(store, [row.point for study in reported for row in study.rows]))
