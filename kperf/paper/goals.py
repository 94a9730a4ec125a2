"""What Improved+ set out to reach, and what the recorded runs say: the table of goals in the kernels' notes."""

import math
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from kperf.bench.points import CUBLAS, Key, PowerStore, Store
from kperf.bench.power import workloads
from kperf.bench.tables import LONG_SEQ_LEN, speedup
from kperf.paper import fig12, fig12_inputs, power
from kperf.record import markdown as md

OURS = "improved_plus"


@dataclass(frozen=True)
class Found:
    """A number; where it is, if it is the least of several; whether it is not of the committed override.

    begun: whether a part of what the number needs is recorded, where it is NaN.
    """

    value: float = math.nan
    where: str = ""
    other_override: bool = False
    begun: bool = False

    def in_words(self, wanted: float) -> str:
        """A cell of the table."""
        if math.isnan(self.value):
            return "not recorded whole" if self.begun else "not recorded"
        number = f"{self.value:.3f}" if self.value >= wanted else f"**{self.value:.3f}**"
        where = f", at {self.where}" if self.where else ""
        return number + where + (", of another override" if self.other_override else "")


@dataclass(frozen=True)
class Goal:
    """One row: the least that is wanted and what was found, of the full and of the causal kernel."""

    statement: str
    wanted: tuple[float, float]
    found: tuple[Found, Found]

    @property
    def reached(self) -> bool:
        """Both masks."""
        return all(found.value >= wanted for found, wanted in zip(self.found, self.wanted, strict=True))


def goals(folder: Path) -> list[Goal]:
    """From the runs that the figures show. Raises `UsageError` for a record that is broken."""
    full, causal = (_found(folder, mask) for mask in (False, True))
    return [
        Goal(statement, wanted, (of_full, of_causal))
        for (statement, wanted), of_full, of_causal in zip(_WANTED, full, causal, strict=True)
    ]


def markdown(folder: Path) -> str:
    """The table of goals: what was wanted (full; causal), and what is recorded, in bold where it falls short."""
    rows = []
    for goal in goals(folder):
        full, causal = goal.wanted
        found = [found.in_words(wanted) for found, wanted in zip(goal.found, goal.wanted, strict=True)]
        rows.append([f"{goal.statement} ({full:g}; {causal:g})", *found])
    return "\n".join(md.table(("goal", "full", "causal"), rows))


_WANTED = (
    ("FA3 interleaved, every point", (1.05, 1.05)),
    ("FA3 interleaved, geometric mean", (1.19, 1.15)),
    ("FA3 on every kind of inputs, every point", (1.00, 1.00)),
    ("FA3 on kinds whose scores rise little, the least geometric mean", (1.17, 1.135)),
    ("FA3 with head_dim 64, every point", (1.00, 1.00)),
    ("FA3 with head_dim 64, geometric mean", (1.22, 1.25)),
    ("FA3 alone and sustained, geometric mean of 4096 to 16384", (1.05, 1.05)),
    ("cuDNN interleaved, every point", (1.10, 1.08)),
    (f"vanilla interleaved, geometric mean from {LONG_SEQ_LEN} on", (1.30, 1.30)),
    ("cuBLAS 8192^3, both alone, the least of 8192 and 16384", (1.00, 1.00)),
)


def _found(folder: Path, causal: bool) -> list[Found]:
    """A number for each of `_WANTED`."""
    fa3, cudnn, vanilla = (_speedups(folder, fig12.Mode(causal), other) for other in ("fa3", "cudnn", "vanilla"))
    narrow = _speedups(folder, fig12.Mode(causal, head_dim=64), "fa3")
    return [
        fa3.least,
        fa3.mean,
        *_by_kind(folder, causal),
        narrow.least,
        narrow.mean,
        _alone(folder, causal, "fa3", 4096, statistics.geometric_mean),
        cudnn.least,
        vanilla.long.mean,
        _alone(folder, causal, CUBLAS, 8192, min),
    ]


@dataclass(frozen=True)
class _Speedups:
    """Of ours over another kernel at each place."""

    at: dict[Key, float]
    other_override: bool = False
    begun: bool = False

    @property
    def least(self) -> Found:
        """The smallest, and where it is."""
        if not self.at:
            return Found(begun=self.begun)
        (_, workload), ratio = min(self.at.items(), key=lambda pair: pair[1])
        return Found(ratio, f"{workload.batch} x {workload.seq_len}", self.other_override)

    @property
    def mean(self) -> Found:
        """Geometric mean."""
        if not self.at:
            return Found(begun=self.begun)
        return Found(statistics.geometric_mean(self.at.values()), other_override=self.other_override)

    @property
    def long(self) -> "_Speedups":
        """Those of long sequences."""
        at = {key: ratio for key, ratio in self.at.items() if key[1].seq_len >= LONG_SEQ_LEN}
        return _Speedups(at, self.other_override, self.begun)


def _speedups(folder: Path, mode: fig12.Mode, other: str) -> _Speedups:
    """Of the whole figure, else none."""
    runs = fig12.figure_runs(Store(folder), mode)
    at = {key: ratio for key, run in runs.items() if (ratio := speedup(run, OURS, other)) is not None}
    if list(at) != fig12.grid(mode):
        return _Speedups({}, begun=bool(at))
    return _Speedups(at, OURS in fig12.of_other_overrides(runs.values()))


def _by_kind(folder: Path, causal: bool) -> tuple[Found, Found]:
    """The smallest ratio to FA3 on any kind of inputs, the smallest geometric mean of a gentle one; NaN of a part."""
    found = fig12_inputs.summary(folder).numbers
    mask, begun = "causal" if causal else "full", (folder / "fig12_inputs.jsonl").exists()
    least, mean = (found.get(f"{name}_{mask}", math.nan) for name in ("least", "mean"))
    return Found(least, begun=begun), Found(mean, begun=begun)


def _alone(
    folder: Path, causal: bool, other: str, min_seq_len: int, together: Callable[[Iterable[float]], float]
) -> Found:
    """Our rate over another's, each alone at the power cap, of the shapes from min_seq_len on."""
    wanted = [workload.seq_len for workload in workloads(causal) if workload.seq_len >= min_seq_len]
    points = PowerStore(folder).points()
    runs = [run for run in power.newest_runs(points, causal, [OURS, other]) if run[0].seq_len in wanted]
    if len(runs) < len(wanted):
        return Found(begun=bool(runs))
    ratios = []
    for run in runs:
        rates = {point.implementation: point.tflops for point in run}
        ratios.append(rates[OURS] / rates[other])
    return Found(together(ratios), other_override=OURS in power.of_other_overrides(chain.from_iterable(runs)))
