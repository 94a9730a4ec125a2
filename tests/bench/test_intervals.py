import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def remembering(random, memory, sd, rounds):
    """Noise of standard deviation `sd` that is correlated by `memory` from round to round, from the first one on."""
    from scipy.signal import lfilter  # imported by whoever runs this: it takes a second

    noise = random.normal(0, sd * math.sqrt(1 - memory**2), rounds)
    noise[0] = random.normal(0, sd)
    return lfilter([1], [1, -memory], noise)


def share_held(random, *, memory, sd, gap, drift=0.0, runs=800):
    """Of second runs, how many have their median in the first's interval.

    A run: 8 blocks of 5 rounds and a gap of some rounds after each, as they are timed; noise with a memory, a power
    that drifts over the run by `drift`, and what runs differ by.
    """

    def a_median_and_its_interval():
        every = remembering(random, memory, sd, 8 * (5 + gap)) + random.normal(0, intervals.RUN_SD["time"])
        every += drift * np.linspace(-0.5, 0.5, len(every))
        samples = np.exp(every.reshape(8, -1)[:, :5].ravel()).tolist()
        return statistics.median(samples), median_interval(samples)

    held = 0
    for _ in range(runs):
        (_, (low, high)), (again, _) = a_median_and_its_interval(), a_median_and_its_interval()
        held += low <= again <= high
    return held / runs


@pytest.mark.parametrize(
    ("gap", "memory", "sd", "drift", "least"),
    [
        (15, 0.76, 0.01, 0.0, 0.93),  # a round of 12 ms, and blocks 0.25 s apart
        (15, 0.76, 0.02, 0.04, 0.93),
        (95, 0.95, 0.02, 0.0, 0.92),  # of 2.5 ms: a block is hardly more than one draw
        (0, 0.76, 0.01, 0.0, 0.89),  # rounds so long that blocks touch, and with a memory all the same
    ],
)
def test_times_that_remember_and_drift_are_held_as_often_as_is_said(gap, memory, sd, drift, least):
    random = np.random.default_rng(7)
    assert least <= share_held(random, memory=memory, sd=sd, gap=gap, drift=drift) <= 0.99


def test_taken_for_independent_draws_rounds_hold_far_fewer(monkeypatch):
    """The same runs, with an interval from the rounds one by one: why blocks are left out and not rounds."""

    def of_independent_rounds(samples_ms):
        drawn = np.random.default_rng(0).choice(samples_ms, (400, len(samples_ms)))
        variance = 2 * float(np.log(np.median(drawn, axis=1)).var()) + 2 * intervals.RUN_SD["time"] ** 2
        return around(statistics.median(samples_ms), (variance, math.inf))

    kind = {"memory": 0.95, "sd": 0.05, "gap": 95, "runs": 400}
    assert share_held(np.random.default_rng(8), **kind) > 0.88
    monkeypatch.setitem(globals(), "median_interval", of_independent_rounds)
    assert share_held(np.random.default_rng(8), **kind) < 0.8


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
    from scipy.stats import bootstrap  # imported by whoever runs this: it takes a second

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
