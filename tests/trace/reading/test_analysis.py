"""What is read from a timeline, on launches whose durations are known."""

import numpy as np
import pytest

from kperf.attention.overrides import TTGIR_DIR
from kperf.errors import UsageError
from kperf.trace.compiler.instrument import instrument
from kperf.trace.compiler.program import read_program
from kperf.trace.compiler.session import Recording
from kperf.trace.reading import analysis
from kperf.trace.reading.decode import decode
from kperf.trace.reading.models import models
from kperf.trace.reading.timeline import Launch

from .synthetic import encode, recording_of, simulate

TEXT = (TTGIR_DIR / "vanilla" / "d128_bf16_full.ttgir").read_text()
PROGRAM = read_program(instrument(TEXT))
RECORDING = recording_of(PROGRAM)

# A trip of a consumer: 70 + 200 + 300 + 1000 + 70 + 200 + 300 + 50 cycles, unless it is held up.
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
PERIOD = 2190
TRIPS = 12


def launch(blocks: int = 3, delay: int = 0, load_cycles: int = 0, **changed: int) -> Launch:
    """All blocks alike, one after another on one SM of 1700 MHz."""
    cycles = CYCLES | {name.replace("_", " "): value for name, value in changed.items()}
    made = [simulate(PROGRAM, TRIPS, cycles, load_cycles, delay, clock=170_000 * number) for number in range(blocks)]
    return Launch(decode(encode(made, RECORDING, sms=1), RECORDING), PROGRAM, RECORDING.warps)


def test_period_and_trips():
    found = launch()
    assert analysis.period(found) == analysis.Quantiles(PERIOD, PERIOD, PERIOD)
    assert found.trips("consumer 0") == 3 * TRIPS
    assert analysis.consumers(found) == ["consumer 0", "consumer 1"]


def test_regions_and_gaps_add_up_to_the_lifetime_of_each_warp_group():
    found = launch()
    for group in found.groups:
        shares = [region.share for region in analysis.region_times(found) if region.warp_group == group]
        assert sum(shares) == pytest.approx(1)
    softmax = next(region for region in analysis.region_times(found) if region.name == "softmax")
    assert softmax.cycles.median == softmax.per_trip == 1000


def test_bubbles_are_where_no_product_is_in_flight_and_add_up_with_the_rest_to_the_period():
    found = launch()
    bubbles, in_flight = analysis.bubbles(found, analysis.sample(found), PERIOD)
    # Both consumers in step: in flight are QK (500) and PV (500); the rest of the trip is a bubble.
    by_cause = {bubble.cause: bubble.cycles_per_iteration for bubble in bubbles}
    assert in_flight == pytest.approx(1000 / PERIOD, rel=0.02)
    assert sum(by_cause.values()) == pytest.approx(PERIOD - 1000, rel=0.02)
    assert by_cause["both in softmax"] == pytest.approx(1000, rel=0.02)


def test_consumers_out_of_step_hide_each_others_softmax():
    in_step = analysis.hidden_arithmetic(found := launch(), analysis.sample(found))
    apart = analysis.hidden_arithmetic(found := launch(delay=1100), analysis.sample(found))
    assert in_step == analysis.Hidden(1000, 0, 0)
    assert apart.under_own_wgmma == 0
    assert apart.under_any_wgmma > 600


def test_the_critical_path_is_the_consumers_own_chain_while_loads_are_early():
    found = launch()
    parts = analysis.critical_path(found, analysis.sample(found))
    assert sum(part.share for part in parts) == pytest.approx(1)
    assert parts[0].region == "softmax"
    assert sum(part.share for part in parts if part.region.startswith("load ")) < 0.1


def test_the_critical_path_goes_through_loads_that_are_late():
    # A stage is loaded anew when it was read, and that takes longer than all else of two trips.
    slow = launch(load_cycles=6000)
    parts = analysis.critical_path(slow, analysis.sample(slow))
    assert sum(part.share for part in parts if part.region.startswith("load ")) > 0.6
    assert analysis.period(slow).p95 > 1.3 * PERIOD


def test_the_slower_consumer_holds_the_load_back():
    found = launch(load_cycles=4000, delay=700)
    block = analysis.sample(found)[0]
    signals = [r for r in analysis.releases(block, PROGRAM).values() if r.load is None]
    assert signals
    assert {release.group for release in signals} == {"consumer 1"}


def test_the_clock_is_measured_from_block_to_block():
    assert launch().clock_mhz() == pytest.approx(1700)


def test_products_bound_the_period():
    assert launch().flop_per_trip() / analysis.DENSE_FLOP_PER_CYCLE == 2048


def test_models_predict_from_stage_times():
    regions = analysis.region_times(launch())
    fitted = models(regions, ["consumer 0", "consumer 1"], 2048, PERIOD, pipelined=False)
    assert fitted.name == "warp specialisation"
    assert fitted.cycles == pytest.approx(PERIOD, rel=0.01)
    assert fitted.error == pytest.approx(abs(fitted.cycles / PERIOD - 1))
    assert (fitted.other.name, fitted.other.cycles) == ("software pipelining", 2048)


def test_lost_records_are_counted_and_the_steady_state_is_still_read():
    small = Recording(RECORDING.warps, RECORDING.total_warps, bytes_per_warp=512)
    block = simulate(PROGRAM, TRIPS, CYCLES)
    records = decode(encode([block], small), small)
    assert records.lost == sum(max(len(warp) - 64, 0) for warp in block) > 0
    found = Launch(records, PROGRAM, small.warps)
    assert analysis.period(found).median == PERIOD
    assert found.whole_blocks().size == 0


def test_records_that_cannot_follow_each_other_are_refused():
    block = simulate(PROGRAM, TRIPS, CYCLES)
    del block[0][7]
    with pytest.raises(UsageError, match="not balanced"):
        Launch(decode(encode([block], RECORDING), RECORDING), PROGRAM, RECORDING.warps)


def test_another_kernels_records_are_refused():
    block = [[(200, True, 0), (200, False, 5)]] * 3
    with pytest.raises(UsageError, match="another kernel"):
        Launch(decode(encode([block], RECORDING), RECORDING), PROGRAM, RECORDING.warps)


def test_a_silent_warp_group_is_said():
    block = simulate(PROGRAM, TRIPS, CYCLES)
    block[2] = []
    with pytest.raises(UsageError, match="no record of producer"):
        Launch(decode(encode([block], RECORDING), RECORDING), PROGRAM, RECORDING.warps)


def test_a_trace_without_a_trip_is_refused():
    with pytest.raises(UsageError, match="no trip"):
        analysis.quantiles(np.zeros(0, np.int64))
