"""What Improved+ set out to reach, and what the recorded runs say: the table of goals in the kernels' notes."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kperf.bench.points import Key, PowerStore, Run, Store
from kperf.bench.tables import LONG_SEQ_LEN, speedup
from kperf.errors import UsageError
from kperf.paper import fig12, power

OURS = "improved_plus"


@dataclass(frozen=True)
class Goal:
    """One row: the least that is wanted and what was found, of the full and of the causal kernel."""

    statement: str
    wanted: tuple[float, float]
    found: tuple[float, float]
    where: tuple[str, str] = ("", "")

    @property
    def reached(self) -> bool:
        """Both masks."""
        return all(found >= wanted for found, wanted in zip(self.found, self.wanted, strict=True))


def goals(folder: Path) -> list[Goal]:
    """From the runs that the figures show; raises `UsageError` if one of them is not recorded whole."""
    full, causal = (_found(folder, mask) for mask in (False, True))
    made = []
    for (statement, wanted), (of_full, at_full), (of_causal, at_causal) in zip(_WANTED, full, causal, strict=True):
        made.append(Goal(statement, wanted, (of_full, of_causal), (at_full, at_causal)))
    return made


def markdown(folder: Path) -> str:
    """The table of goals: what was wanted (full; causal), and what is recorded, in bold where it falls short."""
    lines = ["| goal | full | causal |", "|---|---|---|"]
    for goal in goals(folder):
        cells = []
        for found, wanted, where in zip(goal.found, goal.wanted, goal.where, strict=True):
            number = f"{found:.3f}" if found >= wanted else f"**{found:.3f}**"
            cells.append(f"{number}, at {where}" if where else number)
        full, causal = goal.wanted
        lines.append(f"| {goal.statement} ({full:.2f}; {causal:.2f}) | {' | '.join(cells)} |")
    return "\n".join(lines)


_WANTED = (
    ("FA3 in turn, every point", (1.03, 1.00)),
    ("FA3 in turn, geometric mean", (1.15, 1.10)),
    ("FA3 alone and sustained, geometric mean of 4096 to 16384", (1.03, 1.00)),
    ("cuDNN in turn, every point", (1.10, 1.05)),
    (f"vanilla in turn, geometric mean from {LONG_SEQ_LEN} on", (1.30, 1.30)),
    ("cuBLAS 8192^3, both alone, the least of 8192 and 16384", (1.00, 1.00)),
)


def _found(folder: Path, causal: bool) -> list[tuple[float, str]]:
    """A number for each of `_WANTED`, and where it is if it is the least of several."""
    mode = fig12.Mode(causal)
    runs = fig12.figure_runs(Store(folder), mode)
    alone = power.newest_runs(PowerStore(folder).points(), causal, [OURS, "fa3"])
    if list(runs) != fig12.grid(mode) or not alone:
        raise UsageError(f"{folder} lacks runs of {mode.stem} or of make power: measure them on a Hopper GPU")
    rates = [
        {point.implementation: statistics.median(sample.tflops for sample in point.samples) for point in run}
        for run in alone
    ]
    beside = [(rate[OURS] / rate["cublas"], run[0].seq_len) for rate, run in zip(rates, alone, strict=True)]
    fa3, cudnn, vanilla = (_speedups(runs, other) for other in ("fa3", "cudnn", "vanilla"))
    long = [ratio for ratio, (_, workload) in vanilla if workload.seq_len >= LONG_SEQ_LEN]
    return [
        _least(fa3),
        (statistics.geometric_mean(ratio for ratio, _ in fa3), ""),
        (statistics.geometric_mean(rate[OURS] / rate["fa3"] for rate in rates), ""),
        _least(cudnn),
        (statistics.geometric_mean(long), ""),
        (min(ratio for ratio, seq_len in beside if seq_len >= 8192), ""),
    ]


def _speedups(runs: dict[Key, Run], other: str) -> list[tuple[float, Key]]:
    found = [(speedup(run, OURS, other), key) for key, run in runs.items()]
    if any(ratio is None for ratio, _ in found):
        raise UsageError(f"a workload has no time of {OURS} or {other}: measure it on a Hopper GPU")
    return [(ratio, key) for ratio, key in found if ratio is not None]


def _least(speedups: Sequence[tuple[float, Key]]) -> tuple[float, str]:
    ratio, (_, workload) = min(speedups, key=lambda pair: pair[0])
    return ratio, f"{workload.batch} x {workload.seq_len}"
