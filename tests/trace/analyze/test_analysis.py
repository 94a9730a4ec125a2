"""What is read from a timeline, on launches whose durations are known."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kperf.attention.overrides import TTGIR_DIR
from kperf.errors import UsageError
from kperf.paper.instrumented import RULES
from kperf.trace.analyze import analysis, read, timeline
from kperf.trace.analyze.decode import decode
from kperf.trace.analyze.models import Bound, Hidden, Quantiles
from kperf.trace.analyze.timeline import Cta, Launch, Neighbours, Span
from kperf.trace.instrument.events import instrument
from kperf.trace.instrument.program import read_program
from kperf.trace.instrument.session import Recording

from .synthetic import encode, recording_of, simulate

TEXT = (TTGIR_DIR / "vanilla" / "d128_bf16_full.ttgir").read_text()
PROGRAM = read_program(instrument(TEXT, rules=RULES), RULES)
RECORDING = recording_of(PROGRAM)

# An iteration of a consumer: 70 + 200 + 300 + 1000 + 70 + 200 + 300 + 50 cycles, unless it is held up.
CYCLES = {
    "wait K full": 70,
    "QK issue": 200,
    "QK wait": 300,
    "softmax": 1000,
    "wait V full": 70,
    "PV issue": 200,
    "PV wait": 300,
    "other": 50,
    "wait Q full": 70,
    "store O": 700,
    "load Q": 80,
    "wait K empty": 70,
    "wait V empty": 70,
}
ITERATION_TIME = 2190
ITERATIONS = 12


def launch(ctas: int = 3, delay: int = 0, load_cycles: int = 0, **changed: int) -> Launch:
    """All CTAs alike, one after another on one SM of 1700 MHz."""
    cycles = CYCLES | {name.replace("_", " "): value for name, value in changed.items()}
    made = [simulate(PROGRAM, ITERATIONS, cycles, load_cycles, delay, clock=170_000 * number) for number in range(ctas)]
    return Launch(decode(encode(made, RECORDING, sms=1), RECORDING), PROGRAM, RECORDING.warps)


def test_ctas_are_ordered_by_how_long_they_live_and_not_by_when():
    """The first of three lives the longest, the last the shortest."""
    made = [simulate(PROGRAM, 12 - 3 * number, CYCLES, clock=170_000 * number) for number in range(3)]
    found = Launch(decode(encode(made, RECORDING, sms=1), RECORDING), PROGRAM, RECORDING.warps)
    assert read.at_percentiles(found, [0, 50, 100]).tolist() == [2, 1, 0]


def test_iteration_time_and_iterations():
    found = launch()
    assert analysis.iteration_time(found) == Quantiles(median=ITERATION_TIME, p5=ITERATION_TIME, p95=ITERATION_TIME)
    assert found.iterations("consumer 0") == 3 * ITERATIONS
    assert analysis.issuers(found) == ["consumer 0", "consumer 1"]
    assert [role.duty for role in analysis.roles(found)] == ["MMAs", "MMAs", "loads"]


def test_regions_and_gaps_add_up_to_the_lifetime_of_each_warp_group():
    found = launch()
    for group in found.groups:
        shares = [region.share for region in analysis.region_times(found) if region.warp_group == group]
        assert sum(shares) == pytest.approx(1)
    softmax = next(region for region in analysis.region_times(found) if region.name == "softmax")
    assert softmax.cycles.median == softmax.per_iteration == 1000


@pytest.mark.parametrize("stretch", [1, 7, 100])
def test_a_launch_is_read_in_stretches_that_join(monkeypatch, stretch):
    whole = launch()
    monkeypatch.setattr(timeline, "_STRETCH", stretch)
    pieces = launch()
    for kind, interval in enumerate(whole.intervals):
        mine = whole.cycles[:-1][(whole.kind == kind)[:-1]]
        assert pieces.intervals[kind].name == interval.name
        assert pieces.cycles_of[kind].tolist() == whole.cycles_of[kind].tolist() == mine.tolist()
    assert pieces.kind.tolist() == whole.kind.tolist()
    assert sum(whole.ran) > 3 * ITERATIONS * 2 * 8


def test_bubbles_are_where_no_mma_is_in_flight_and_add_up_with_the_rest_to_the_iteration_time():
    found = launch()
    bubbles, in_flight = analysis.bubbles(found, [*map(Neighbours.alone, analysis.sample(found))], ITERATION_TIME)
    # Both consumers in step: in flight are QK (500) and PV (500); the rest of the iteration is a bubble.
    by_cause = {bubble.cause: bubble.cycles for bubble in bubbles}
    assert in_flight == pytest.approx(1000 / ITERATION_TIME, rel=0.02)
    assert sum(by_cause.values()) == pytest.approx(ITERATION_TIME - 1000, rel=0.02)
    assert by_cause["both in softmax"] == pytest.approx(1000, rel=0.02)


def test_consumers_out_of_step_hide_each_others_softmax():
    in_step = analysis.hidden_arithmetic(found := launch(), analysis.sample(found))
    apart = analysis.hidden_arithmetic(found := launch(delay=1100), analysis.sample(found))
    assert in_step == Hidden(cycles=1000, under_own_mmas=0, under_any_mmas=0)
    assert apart.under_own_mmas == 0
    assert apart.under_any_mmas > 600


def test_the_slower_consumer_holds_the_load_back():
    found = launch(load_cycles=4000, delay=700)
    cta = analysis.sample(found)[0]
    signals = [r for r in analysis.releases(cta, PROGRAM).values() if r.load is None]
    assert signals
    assert {release.group for release in signals} == {"consumer 1"}


def test_a_load_lasts_until_the_first_warp_group_has_it():
    (cta, *_) = analysis.sample(launch(delay=700))
    ends = [{span.end for span in cta.spans[group]} for group in ("consumer 0", "consumer 1")]
    loads = analysis.loads(cta)
    assert len(loads) > ITERATIONS
    assert all(load.start < load.end for load in loads)
    shared = [load.end for load in loads if load.buffer in ("K", "V")]
    assert shared
    assert {*shared} <= ends[0] - ends[1]


def test_a_wait_for_a_full_stage_hangs_on_the_producers_load_of_it():
    (cta, *_) = analysis.sample(launch(load_cycles=4000))
    found = analysis.releases(cta, PROGRAM)
    for buffer in "KV":
        hangs_on = {
            (found[group, index].group, found[group, index].load)
            for group in ("consumer 0", "consumer 1")
            for index, span in enumerate(cta.spans[group])
            if span.interval.name == f"wait {buffer} full"
        }
        assert hangs_on == {("producer", f"load {buffer}")}


def test_the_clock_is_measured_from_cta_to_cta():
    assert launch().clock_mhz() == pytest.approx(1700)


def test_the_clock_is_measured_where_ctas_that_share_an_sm_start_in_another_order_than_their_records():
    found = launch(ctas=4)
    late = found.events.clock[[0, 2, 1, 3]] + 2**32 - 200_000  # and the 32 bits wrap
    found.events = replace(found.events, clock=late % 2**32)
    assert found.clock_mhz() == pytest.approx(1700)


def test_the_spans_of_a_cta_are_each_warps_whole_life():
    found = launch(delay=400)
    first, last = found.lifetimes
    for number, cta in enumerate(found.ctas(np.arange(found.events.n_ctas))):
        for spans in cta.spans.values():
            assert all(span.end == following.start for span, following in pairwise(spans))
        assert min(spans[0].start for spans in cta.spans.values()) == first[number]
        assert max(spans[-1].end for spans in cta.spans.values()) == last[number]


def test_what_is_drawn_of_a_cta_is_iterations_from_its_middle_with_mmas_and_loads():
    found = launch(delay=400)
    cta = next(found.ctas(np.array([1])))
    (window,) = analysis.windows(cta, analysis.issuers(found))
    assert window.shows == "iterations"
    mine = [bar for bar in window.bars if (bar.track, bar.warp_group) == ("warps", "consumer 0")]
    assert mine[0].start <= window.start < mine[0].start + mine[0].cycles
    assert {bar.iteration for bar in mine} == set(
        range(mine[0].iteration, mine[0].iteration + analysis.WINDOW_ITERATIONS)
    )
    assert mine[0].iteration == ITERATIONS // 2
    softmax = [bar for bar in mine if bar.name == "softmax"]
    assert [bar.cycles for bar in softmax] == [1000] * analysis.WINDOW_ITERATIONS
    assert {bar.name for bar in window.bars if bar.track == "MMAs"} == {"QK", "PV"}
    assert {bar.warp_group for bar in window.bars if bar.track == "MMAs"} == {"consumer 0", "consumer 1"}
    assert {(bar.name, bar.warp_group) for bar in window.bars if bar.track == "loads"} == {
        ("K", "producer"),
        ("V", "producer"),
    }


def test_mmas_bound_the_iteration_time():
    assert analysis.bound(launch()) == Bound(cycles=2048, dtype="bf16", instruction="wgmma")


def test_lost_records_are_counted_and_the_steady_state_is_still_read():
    small = Recording(RECORDING.warps, RECORDING.total_warps, bytes_per_warp=512)
    cta = simulate(PROGRAM, ITERATIONS, CYCLES)
    records = decode(encode([cta], small), small)
    assert records.lost == sum(max(len(warp) - 64, 0) for warp in cta) > 0
    found = Launch(records, PROGRAM, small.warps)
    assert analysis.iteration_time(found).median == ITERATION_TIME
    assert found.whole_ctas.size == 0


def test_records_that_cannot_follow_each_other_are_refused():
    cta = simulate(PROGRAM, ITERATIONS, CYCLES)
    del cta[0][7]
    with pytest.raises(UsageError, match="not balanced"):
        Launch(decode(encode([cta], RECORDING), RECORDING), PROGRAM, RECORDING.warps)


def test_another_kernels_records_are_refused():
    cta = [[(200, True, 0), (200, False, 5)]] * 3
    with pytest.raises(UsageError, match="another kernel"):
        Launch(decode(encode([cta], RECORDING), RECORDING), PROGRAM, RECORDING.warps)


def test_a_silent_warp_group_is_said():
    cta = simulate(PROGRAM, ITERATIONS, CYCLES)
    cta[2] = []
    with pytest.raises(UsageError, match="no event of producer"):
        Launch(decode(encode([cta], RECORDING), RECORDING), PROGRAM, RECORDING.warps)


def test_a_trace_without_an_iteration_is_refused():
    with pytest.raises(UsageError, match="no iteration"):
        analysis.quantiles(np.zeros(0, np.int64))


def test_quantiles_are_the_5th_the_50th_and_the_95th_percentile():
    found = analysis.quantiles(np.arange(101))
    assert (found.p5, found.median, found.p95) == (5.0, 50.0, 95.0)


def test_a_cta_lasts_from_its_first_record_to_the_end_of_its_last_warp_group():
    interval = next(iter(PROGRAM.intervals.values()))
    early, late = Span(interval, 10, 20, None), Span(interval, 15, 90, None)
    for spans in ({"a": [early], "b": [late]}, {"a": [late], "b": [early], "silent": []}):
        cta = Cta(0, 0, 0, spans)
        assert (cta.start, cta.end) == (10, 90)
