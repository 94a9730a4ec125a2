"""What is read from launches of a persistent kernel, whose CTAs compute one tile after another."""

import json
from itertools import pairwise

import pytest

from kperf.attention import overrides
from kperf.attention.variants import Specialization
from kperf.attention.workload import FIG11, Workload
from kperf.paper import instrumented
from kperf.report.chrome import export
from kperf.trace.analyze import analysis
from kperf.trace.analyze.models import Bound, Quantiles
from kperf.trace.analyze.read import decode_launch
from kperf.trace.analyze.timeline import Launch, Neighbours
from kperf.trace.capture.traced import recording_for
from tests.report.trace_event_format import problems

from .synthetic import encode, probes_of, simulate

ORIGINAL = overrides.find("improved_plus", Specialization())
TRACED, PROGRAM = instrumented.find(ORIGINAL)
CYCLES = {interval.name: 60 for interval in PROGRAM.intervals.values()} | {
    "softmax": 600,
    "QK wait": 300,
    "store O": 90,
}
ITERATIONS, TILES, CTAS = 12, 5, 3


def launch(tiles: int = TILES, delay: int = 0, load_cycles: int = 0, **changed: int) -> Launch:
    """All CTAs alike, side by side at 1700 MHz."""
    cycles = CYCLES | {name.replace("___", " + ").replace("_", " "): value for name, value in changed.items()}
    made = [simulate(PROGRAM, ITERATIONS, cycles, load_cycles, delay, tiles=tiles) for _ in range(CTAS)]
    return decode_launch(encode(made, TRACED.recording), TRACED.recording, PROGRAM)


def steps(group: str) -> tuple[int, int]:
    """Cycles of consumer `group` from iteration to iteration, and from a tile's last one to the next tile's first."""
    probes = probes_of(PROGRAM, group, ITERATIONS, TILES)
    main = launch().main_scope[group]
    iterations = [place for place, probe in enumerate(probes) if probe == (main, True)]
    lengths = [
        sum(CYCLES[PROGRAM.intervals[pair].name] for pair in pairwise(probes[a : b + 1]))
        for a, b in pairwise(iterations)
    ]
    return lengths[0], lengths[ITERATIONS - 1]


def test_records_that_do_not_fit_beside_the_kernel_go_to_device_memory():
    assert TRACED.recording.memory == "global"
    assert TRACED.recording.bytes_per_warp & (TRACED.recording.bytes_per_warp - 1) == 0


@pytest.mark.parametrize(
    ("workload", "tiles", "iterations"),
    [(FIG11, 63, 64), (Workload(batch=1, seq_len=4096), 4, 32), (Workload(batch=1, heads=1, seq_len=128), 1, 1)],
)
def test_there_is_room_for_all_records_of_the_longest_cta(workload, tiles, iterations):
    most = max(len(probes_of(PROGRAM, group.name, iterations, tiles)) for group in PROGRAM.groups)
    assert (
        most
        <= instrumented.most_events(PROGRAM, ORIGINAL, workload)
        <= instrumented.most_events(PROGRAM, ORIGINAL, FIG11)
    )
    recording = recording_for(PROGRAM, instrumented.subject_of(ORIGINAL, workload))
    assert most <= instrumented.most_events(PROGRAM, ORIGINAL, workload) <= recording.events_per_warp


def test_nothing_is_lost_and_every_cta_is_whole():
    found = launch()
    assert found.events.lost == 0
    assert len(found.whole_ctas) == CTAS
    assert found.groups == ["consumer 0", "consumer 1", "producer"]


def test_an_iteration_is_one_of_the_inner_loop_and_no_step_between_tiles():
    found = launch()
    iteration_time, boundary = steps("consumer 0")
    for group in analysis.issuers(found):
        assert found.iterations(group) == CTAS * TILES * ITERATIONS
        assert found.iteration_times(group).size == CTAS * TILES * (ITERATIONS - 1)
        assert found.boundaries(group).size == CTAS * (TILES - 1)
    assert analysis.iteration_time(found) == Quantiles(median=iteration_time, p5=iteration_time, p95=iteration_time)
    beyond = analysis.boundary(found, iteration_time)
    assert beyond == Quantiles(
        median=boundary - iteration_time, p5=boundary - iteration_time, p95=boundary - iteration_time
    )
    assert analysis.bound(found) == Bound(cycles=2048, dtype="bf16", instruction="wgmma")


def test_what_is_between_tiles_has_no_iteration():
    cta = analysis.sample(launch())[0]
    for group in ("consumer 0", "consumer 1"):
        assert [len(tile) for tile in cta.tiles(group)] == [ITERATIONS] * TILES
        assert {span.iteration for span in cta.spans[group] if span.interval.name == "wait Q full"} == {None}
        iterations = [span.iteration for span in cta.spans[group] if span.iteration is not None]
        assert sorted(set(iterations)) == list(range(TILES * ITERATIONS))


def test_bubbles_are_of_iterations():
    found = launch(store_O=50_000)
    cta = analysis.sample(found)[0]
    windows = analysis.steady_windows(cta, ["consumer 0", "consumer 1"])
    assert len(windows) == TILES
    assert all(span.interval.name != "store O" for low, high in windows for span in within(cta, low, high))
    bubbles, _ = analysis.bubbles(found, [Neighbours.alone(cta)], analysis.iteration_time(found).median)
    assert not any("store O" in bubble.cause for bubble in bubbles)


def within(cta, low, high):
    return [span for spans in cta.spans.values() for span in spans if low <= span.start and span.end <= high]


def test_one_tile_has_no_boundary():
    assert analysis.boundary(launch(tiles=1), 1000.0) is None


@pytest.mark.parametrize(("delay", "late", "first"), [(0, 0, 1), (5000, 1, 0)])
def test_a_consumer_that_waits_for_its_turn_waits_for_the_other(delay, late, first):
    cta = analysis.sample(launch(delay=delay))[0]
    turns = [
        (group, release.group)
        for (group, index), release in analysis.releases(cta, PROGRAM).items()
        if cta.spans[group][index].interval.name == "wait turn"
    ]
    assert set(turns) == {(f"consumer {first}", f"consumer {late}")}
    assert len(turns) > ITERATIONS  # those of a tile at least: who was late may have caught up with the next one


def test_who_issues_slowly_keeps_the_other_from_its_turn():
    cta = analysis.sample(launch(QK_issue___PV_issue=2000))[0]
    releases = analysis.releases(cta, PROGRAM)
    waited = [
        (cta.spans[group][index], release)
        for (group, index), release in releases.items()
        if cta.spans[group][index].interval.name == "wait turn" and cta.spans[group][index].iteration is not None
    ]
    assert len(waited) > TILES * ITERATIONS
    assert all(release.cycle == span.end for span, release in waited)


def test_what_is_drawn_is_iterations_and_how_a_tile_ends():
    cta = analysis.sample(launch())[0]
    iterations, boundary = analysis.windows(cta, ["consumer 0", "consumer 1"])
    assert (iterations.shows, boundary.shows) == ("iterations", "tile boundary")
    ends = [bar.iteration for bar in boundary.bars if (bar.track, bar.warp_group) == ("warps", "consumer 0")]
    assert ends[0] == ITERATIONS - 1
    assert None in ends
    assert max(iteration for iteration in ends if iteration is not None) >= ITERATIONS + 2


def test_every_load_is_waited_for_by_the_consumer_it_is_for():
    cta = analysis.sample(launch(load_cycles=300))[0]
    loads = [load.buffer for load in analysis.loads(cta)]
    # Beside the last tile's end q and k of any tile are loaded: the first one's.
    assert (loads.count("Q"), loads.count("K"), loads.count("K+V")) == (2 * (TILES + 1), 1, TILES * (ITERATIONS + 1))


def test_the_export_shows_the_tile_in_the_middle_and_how_the_next_begins():
    text = export(launch(delay=500, load_cycles=300), 1700.0, {}).text
    assert problems(text) == []
    trace = json.loads(text)
    part = f"iterations {2 * ITERATIONS + 1} to {3 * ITERATIONS + 3} of {TILES * ITERATIONS}"
    assert trace["otherData"]["shows"] == f"3 of 3 CTAs: CTA 0 {part}, CTA 1 {part}, CTA 2 {part}"
    cta = trace["otherData"]["typical_cta"]
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["args"]["cta"] == cta and e["tid"] == 1]
    iterations = {span["args"]["iteration"] for span in spans} - {None}
    assert iterations == set(range(2 * ITERATIONS, max(iterations) + 1))
    assert 3 * ITERATIONS + 3 <= max(iterations) < 3 * ITERATIONS + 6
    assert "store O" in {span["name"] for span in spans}
