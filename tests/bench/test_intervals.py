import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import bootstrap

from kperf.bench import intervals
from kperf.bench.intervals import around, bootstrap_interval, half_shift, mean_spread, median_interval, ratio_spread

RUN_SD = intervals.RUN_SD["ratio"]


def with_memory(random, memory, sd, rounds):
    values = np.zeros(rounds)
    for n in range(rounds):
        values[n] = memory * values[n - 1] + random.normal(0, sd)
    return values


def a_run(random, round_sd=0.01, rounds=40):
    """Times of two implementations in turn: a clock that hunts for both, and noise of each that has a memory."""
    clock = with_memory(random, 0.6, 0.02, rounds)
    noise = (with_memory(random, 0.2, round_sd, rounds) + random.normal(0, RUN_SD / math.sqrt(2)) for _ in range(2))
    return [np.exp(clock + own).tolist() for own in noise]


@pytest.mark.parametrize("round_sd", [0.0005, 0.005, 0.03])
def test_a_second_run_falls_into_the_firsts_interval_19_times_in_20(round_sd):
    random = np.random.default_rng(3)
    held = 0
    for _ in range(400):
        (ours, theirs), (ours_again, theirs_again) = (a_run(random, round_sd=round_sd) for _ in range(2))
        ratio = statistics.median(theirs) / statistics.median(ours)
        low, high = around(ratio, ratio_spread(ours, theirs))
        held += low <= statistics.median(theirs_again) / statistics.median(ours_again) <= high
    assert held >= 374


def test_a_geometric_mean_of_a_second_run_falls_into_the_firsts_interval():
    random = np.random.default_rng(4)
    held = 0
    for _ in range(150):
        values, spreads = zip(*(
            (np.log(np.median(theirs) / np.median(ours)), ratio_spread(ours, theirs))
            for ours, theirs in (a_run(random) for _ in range(8))
        ), strict=True)  # fmt: skip
        low, high = around(math.exp(statistics.fmean(values[:4])), mean_spread(spreads[:4]))
        held += low <= math.exp(statistics.fmean(values[4:])) <= high
    assert held >= 140


def test_a_clock_that_both_share_does_not_widen_the_ratio():
    clock = np.exp(np.linspace(0, 0.2, 40))
    ratio = around(1.5, ratio_spread(clock.tolist(), (1.5 * clock).tolist()))
    assert ratio[1] / ratio[0] < 1 + 6 * RUN_SD
    low, high = median_interval(clock.tolist())
    assert high / low > 1.1


@given(st.lists(st.floats(0.5, 2), min_size=4, max_size=50))
def test_the_interval_is_around_the_median(samples):
    low, high = median_interval(samples)
    assert low < statistics.median(samples) < high


def test_more_rounds_narrow_the_interval():
    random = np.random.default_rng(5)

    def width(rounds):
        intervals_ = [median_interval(random.lognormal(0, 0.1, rounds).tolist()) for _ in range(40)]
        return statistics.fmean(math.log(high / low) for low, high in intervals_)

    assert width(40) / width(160) == pytest.approx(2, rel=0.2)


def test_too_few_rounds_have_no_interval():
    with pytest.raises(ValueError, match="four rounds"):
        median_interval([1.0, 1.0, 1.0])


def test_the_intervals_of_version_1_are_scipys():
    random = np.random.default_rng(6)
    for rounds in (10, 40, 41):
        samples = random.lognormal(0, 0.1, rounds)
        exact = bootstrap(
            (samples,), np.median, n_resamples=2000, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
        assert bootstrap_interval(samples.tolist()) == pytest.approx((exact.low, exact.high), rel=1e-12)


def test_the_shift_is_of_the_halves():
    assert half_shift([1.0] * 20 + [1.1] * 20) == pytest.approx(0.1)
    assert half_shift([1.0, 2.0, 1.0, 2.0]) == 0
