"""`make tune`: prune by compiling, search on the GPU, write the configurations, compare before and after.

Every trial is checked before it is timed, and in the record before the next one begins. Without a GPU compiling alone
is done, and what is recorded is shown.
"""

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kperf.attention import configs
from kperf.attention.configs import Config
from kperf.attention.implementations import IMPLEMENTATIONS, Implementation, implementations
from kperf.attention.kernels import stock
from kperf.attention.libraries import Call
from kperf.attention.workload import Workload
from kperf.bench.measure import BrokenGpuError, measure
from kperf.bench.points import FailedPoint, Point
from kperf.console import announce
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.record.files import require_writable
from kperf.record.provenance import Provenance
from kperf.record.store import Writer, by_preference, gpu_slug
from kperf.tune import tables
from kperf.tune.records import (
    DEFAULT_KEY,
    NATIVE,
    TUNED_KEY,
    VENDORS,
    Part,
    Study,
    TuneRow,
    store_in,
    studies,
    tuned,
)  # fmt: skip
from kperf.tune.search import next_trial
from kperf.tune.space import SPACES, Judged, SearchSpace, expected, prune

BATCH = 16
"""So many configurations take turns where all are timed."""
FINALISTS = 4
FINAL_TIMES = 4
"""As many times the rounds of a trial has what decides."""
TENTH = 0.1

Draw = Callable[[Sequence[Study], str, Path], list[Path]]


@dataclass(frozen=True)
class Asked:
    """trials: of a search, a tenth of what can be launched if None; exhaustive: also time all of that."""

    workloads: Sequence[Workload]
    trials: int | None = None
    exhaustive: bool = False
    rounds: int = 10
    fresh: bool = False


def run(console: Console, results: Path, asked: Asked, draw: Draw) -> None:
    """Tune on this machine's GPU; without one prune for every architecture, and show what is recorded.

    Raises `UsageError` if results or configurations cannot be written, `MeasurementError` if no configuration is left
    or none of them is right.
    """
    reason = device.why_not_timed()
    if reason is None:
        folder = _tune(console, results, asked)
        how = "measured"
    else:
        pruned = {name: _pruned(console, item, asked.workloads[0]) for name, item in SPACES.items()}
        console.print(tables.pruning(pruned, asked.workloads[0]))
        folders = sorted(path.parent for path in results.glob("*/tune.jsonl"))
        if not folders:
            console.print(
                f"nothing was timed, and nothing is recorded of `make tune` in {results} yet: that command records it "
                f"on a Hopper GPU or an MI300X, and here {reason}"
            )
            return
        console.print(f"nothing was timed: {reason}; shown is what was recorded")
        folder, how = by_preference(folders, "tune.jsonl")[0], "recorded"
    report(console, folder, how, draw)


def report(console: Console, folder: Path, how: str, draw: Draw) -> list[Path]:
    """Print and draw the studies in the folder; returns the figure's files. Raises `UsageError` if there is none."""
    store = store_in(folder)
    recorded = studies(store.points())
    if not recorded:
        raise UsageError(f"{store.points_path} has no row: measure on a Hopper GPU")
    stamp = Provenance.of_records(store, [recorded[-1].rows[-1].point]).stamp(how)
    for table in (tables.before_and_after(recorded, stamp), tables.searches(recorded, stamp)):
        console.print(table)
    return announce(console, draw(recorded, stamp, folder / "tune"), stamp)


def _tune(console: Console, results: Path, asked: Asked) -> Path:
    space = _space()
    _require_writable(configs.path_of(space.arch.name).parent)
    configs.read(space.arch.name)  # a broken file is reported now, not when all is measured
    store = store_in(results / gpu_slug(device.gpu_name()))
    with device.exclusive(), store.writer() as writer:
        environment = writer.record_environment(device.environment())
        for workload in asked.workloads:
            judged = _pruned(console, space, workload)
            candidates = expected(space, workload, judged)
            runnable = [each.config for each in judged if not each.refused]
            if not candidates:
                raise MeasurementError(f"compiling leaves no configuration for {workload} on {space.arch.name}")
            with _progress(console) as say:
                _Tuning(writer, space, workload, candidates, runnable, environment, asked, say).run()
            for name, chosen in tuned(studies(writer.points)).items():
                path = configs.write(name, {configs.class_of(each): config for each, config in chosen.items()})
                console.print(f"{workload}: written to {path}")
    return store.folder


def _require_writable(folder: Path) -> None:
    """The folder of the configurations, before minutes of work. Raises `UsageError` if nothing can be written there."""
    try:
        require_writable(folder)
    except UsageError:
        raise UsageError(f"{folder} cannot be written: set {configs.FOLDER} to a folder that you can write") from None


def _space() -> SearchSpace:
    name = configs.architecture()
    if name not in SPACES:
        raise UsageError(f"the GPU is {name}: tuned are {' and '.join(SPACES)}")
    return SPACES[name]


def _pruned(console: Console, space: SearchSpace, workload: Workload) -> list[Judged]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}", markup=False),
    )
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as bar:
        task = bar.add_task(f"compiling for {space.arch.name}", total=len(space.configs()))
        return prune(space, workload, on_judged=lambda _: bar.advance(task))


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str], None]]:
    with Progress(
        TextColumn("{task.description}", markup=False), TimeElapsedColumn(), console=console, transient=True
    ) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda text: bar.update(task, description=text, refresh=True)


@dataclass
class _Tuning:
    """One workload's study: goes on where it was in this environment. `candidates`: and the cycles they should take."""

    writer: Writer[TuneRow]
    space: SearchSpace
    workload: Workload
    candidates: Mapping[Config, float]
    runnable: Sequence[Config]
    environment: str
    asked: Asked
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        begun = None if self.asked.fresh else self._begun()
        self.name = begun or secrets.token_hex(6)

    @property
    def study(self) -> Study:
        """All of it that is recorded."""
        return Study([row for row in self.writer.points if row.study == self.name])

    def run(self) -> None:
        """What is missing of search, exhaustive part, final and comparison."""
        trials = min(self.asked.trials or math.ceil(TENTH * len(self.runnable)), len(self.candidates))
        elsewhere = self._best_elsewhere()
        while len(tried := self.study.tried("search")) < trials:
            config = next_trial(self.candidates, tried, trials, elsewhere, seed=int(self.name, 16))
            self.say(f"{self.workload}: trial {len(tried) + 1} of {trials}, {config}")
            self._measure("search", [_in(config)], self.asked.rounds)
        if self.asked.exhaustive:
            self._try_all()
        self._finish()

    def _try_all(self) -> None:
        while left := [config for config in self.runnable if config not in self.study.tried("exhaustive")]:
            self.say(f"{self.workload}: {len(left)} of all {len(self.runnable)} left")
            self._measure("exhaustive", [_in(config) for config in left[:BATCH]], self.asked.rounds)

    def _finish(self) -> None:
        failed = {config for config, cost in self.study.tried("final").items() if cost is None}
        finalists = [config for config in self.study.finalists(FINALISTS) if config not in failed]
        if not finalists:
            raise MeasurementError(f"none of the configurations tried is right on {self.workload}")
        rounds = FINAL_TIMES * self.asked.rounds
        changed = any(config not in self.study.tried("final") for config in finalists)
        if changed:
            self.say(f"{self.workload}: the best {len(finalists)} in turn")
            self._measure("final", [_in(config) for config in finalists], rounds)
        chosen = self.study.chosen
        if chosen is None:
            raise MeasurementError(f"none of the best configurations is right on {self.workload} when measured again")
        if changed or not self.study.comparison:
            self.say(f"{self.workload}: before and after, beside the others")
            others = implementations([key for key in (*NATIVE, *VENDORS) if key in IMPLEMENTATIONS])
            ours = [_in(self.space.default, DEFAULT_KEY), _in(chosen, TUNED_KEY)]
            self._measure("comparison", [*((each, None) for each in others), *ours], rounds)

    def _measure(self, part: Part, timed: Sequence[tuple[Implementation, Config | None]], rounds: int) -> None:
        """Check and time these in turn, and record them.

        What breaks the GPU's context ends the process. A configuration that does is recorded, and the next run goes
        past it.
        """
        try:
            points = measure(
                [self.workload],
                [implementation for implementation, _ in timed],
                figure="tune",
                sweep="seq_len",
                environment=self.environment,
                rounds=rounds,
            )
        except BrokenGpuError as error:
            broken = [pair for pair in timed if pair[0].key == error.key and part != "comparison"]
            self._record(part, broken, [self._broken(implementation, str(error)) for implementation, _ in broken])
            raise
        self._record(part, timed, points)

    def _record(
        self, part: Part, timed: Sequence[tuple[Implementation, Config | None]], points: Sequence[Point]
    ) -> None:
        counts = {"candidates": len(self.candidates), "runnable": len(self.runnable)}
        fields = {"study": self.name, "architecture": self.space.arch.name, **counts}
        self.writer.append(
            [
                TuneRow(**fields, part=part, config=config, point=point)
                for (_, config), point in zip(timed, points, strict=True)
            ]
        )

    def _broken(self, implementation: Implementation, message: str) -> FailedPoint:
        return FailedPoint(
            figure="tune",
            run=secrets.token_hex(6),
            sweep="seq_len",
            implementation=implementation.key,
            **self.workload.model_dump(),
            override_sha256=None,
            environment=self.environment,
            recorded_at=device.now(),
            status="failed",
            message=message,
        )

    def _begun(self) -> str | None:
        """The name of this environment's newest study of the workload."""
        own = (self.space.arch.name, self.workload, self.environment, len(self.candidates), len(self.runnable))
        for row in reversed(self.writer.points):
            point = row.point
            if (row.architecture, point.workload, point.environment, row.candidates, row.runnable) == own:
                return row.study
        return None

    def _best_elsewhere(self) -> list[Config]:
        """What was best for other sizes of the same kind, the nearest size first; each once."""
        kind = (self.workload.head_dim, self.workload.causal, self.workload.dtype)
        best = tuned(studies(self.writer.points)).get(self.space.arch.name, {})
        alike = [
            workload
            for workload in best
            if (workload.head_dim, workload.causal, workload.dtype) == kind and workload != self.workload
        ]
        nearest = sorted(alike, key=lambda workload: abs(math.log(workload.seq_len / self.workload.seq_len)))
        return [*dict.fromkeys(best[workload] for workload in nearest)]


def _in(config: Config, key: str = "") -> tuple[Implementation, Config]:
    """The plain Triton kernel in one configuration."""

    def bind(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
        return lambda: stock.forward(q, k, v, causal, sm_scale, config=config)

    return Implementation(key or f"triton {config}", f"Triton, {config}", bind, note=lambda: str(config)), config
