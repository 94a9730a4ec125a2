"""Intervals that a second run on the same card falls into 19 times in 20.

Rounds are no independent draws: the clock drifts and the power controller hunts. So the rounds are cut into blocks of
consecutive ones, which lie apart in time (`bench.turns`), and blocks are resampled, not rounds: each is left out
once, and the variance of a median, or of a ratio of medians, follows from how much that moves it (the block jackknife
of Kuensch, "The jackknife and the bootstrap for general stationary observations", Annals of Statistics 17, 1989). With
m blocks Student's t has m - 1 degrees of freedom; percentiles of a bootstrap over so few are a quarter too narrow.

What all blocks of a run share (the card's heat, the numbers in q, k and v) they cannot show: it is a component of its
own, `RUN_SD`, measured between runs. A second run has both as well, so the difference of two runs has twice their sum,
and that is what the interval is made of. A confidence interval, narrower by sqrt(2), holds a second run's value only
83 times in 100 (Cumming and Maillardet, Psychological Methods 11, 2006).

Simulated with a correlation of 0.76 from round to round, times that vary by 1 % are held 95 times in 100 where blocks
lie apart, and 92 times where rounds are so long that they touch; the more a point varies by such noise, the fewer.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np
from scipy.special import stdtrit

BLOCKS = 8
"""A block should outlast the memory of rounds (a lag-1 correlation of 0.66 in the median where clocks had not settled,
of 0.05 in ratios), and more blocks make Student's t smaller: 2.36 for 8."""

RUN_SD = {"time": 0.006, "ratio": 0.0012}
"""Standard deviation between runs of one card of what the blocks of a run share: of the logarithm of a median time, and
of a ratio, in which most of it cancels. From two runs of eight shapes and six implementations on one H200, where
blocks alone held 92 % of the ratios and 70 % of the times; `kperf repeatability` shows whether it is enough."""

SHIFT = 0.03
"""A point whose second half of rounds differs by more from its first is flagged: it had not settled."""

Spread = tuple[float, float]
"""Variance of a logarithm between two runs, and its degrees of freedom."""


def median_interval(samples_ms: Sequence[float]) -> tuple[float, float]:
    """95 % interval for the median of a second run of as many rounds, around that of this one."""
    return around(statistics.median(samples_ms), _spread(_log_medians(samples_ms), RUN_SD["time"]))


def ratio_spread(ours_ms: Sequence[float], theirs_ms: Sequence[float]) -> Spread:
    """Spread of the logarithm of the ratio of medians; the same rounds are left out of both, as they shared them."""
    return _spread(_log_medians(theirs_ms) - _log_medians(ours_ms), RUN_SD["ratio"])


def mean_spread(spreads: Sequence[Spread]) -> Spread:
    """Spread of the mean of independent logarithms."""
    variance, freedom = _sum(spreads)
    return variance / len(spreads) ** 2, freedom


def around(value: float, spread: Spread) -> tuple[float, float]:
    """The 95 % interval of `value`, whose logarithm has this spread."""
    variance, freedom = spread
    half = math.sqrt(variance) * _student(freedom)
    return value * math.exp(-half), value * math.exp(half)


def half_shift(samples_ms: Sequence[float]) -> float:
    """Median of the second half of the rounds over that of the first, less 1."""
    half = len(samples_ms) // 2
    return statistics.median(samples_ms[half:]) / statistics.median(samples_ms[:half]) - 1 if half else 0.0


def blocks(rounds: int) -> int:
    """Into how many blocks so many rounds are cut: of two rounds or more."""
    return max(1, min(BLOCKS, rounds // 2))


def bootstrap_interval(samples_ms: Sequence[float]) -> tuple[float, float]:
    """The interval of version 1's records: percentiles of 2000 bootstrap medians, rounds resampled one by one.

    As `scipy.stats.bootstrap` with `default_rng(0)`, whose draws are the same for all records of so many rounds.
    """
    order = np.argsort(samples_ms)
    drawn = np.cumsum(_times_drawn(len(samples_ms))[order], axis=0, dtype=np.uint16)  # of the least so many samples
    ranks = [(drawn <= place).sum(axis=0) for place in ((len(samples_ms) - 1) // 2, len(samples_ms) // 2)]
    middle = np.asarray(samples_ms)[order][ranks].mean(axis=0)
    low, high = np.percentile(middle, [2.5, 97.5])
    return float(low), float(high)


def _log_medians(samples_ms: Sequence[float]) -> np.ndarray[Any, Any]:
    """Logarithm of the median without each block in turn."""
    return np.log([statistics.median(kept(samples_ms)) for kept in _without_each_block(len(samples_ms))])


@cache
def _without_each_block(rounds: int) -> list[Callable[[Sequence[float]], tuple[float, ...]]]:
    if blocks(rounds) < 2:
        raise ValueError("samples_ms: an interval needs four rounds or more")
    every = np.arange(rounds)
    return [itemgetter(*np.setdiff1d(every, block).tolist()) for block in np.array_split(every, blocks(rounds))]


def _spread(left_out: np.ndarray[Any, Any], run_sd: float) -> Spread:
    """From a statistic without each block: the jackknife's variance and the runs', of each of two runs."""
    count = len(left_out)
    return _sum([(2 * (count - 1) * float(left_out.var()), float(count - 1)), (2 * run_sd**2, math.inf)])


def _sum(spreads: Sequence[Spread]) -> Spread:
    """Of independent logarithms; degrees of freedom after Welch and Satterthwaite."""
    variance = sum(v for v, _ in spreads)
    uncertain = sum(v**2 / freedom for v, freedom in spreads)
    return variance, variance**2 / uncertain if uncertain else math.inf


def _student(freedom: float) -> float:
    return float(stdtrit(freedom, 0.975)) if math.isfinite(freedom) else 1.959964


@cache
def _times_drawn(rounds: int) -> np.ndarray[Any, Any]:
    """How often each round is in each of 2000 resamples: [rounds, 2000]."""
    draws = np.random.default_rng(0).integers(0, rounds, (2000, rounds))
    return np.array([(draws == number).sum(axis=1) for number in range(rounds)], np.uint16)
