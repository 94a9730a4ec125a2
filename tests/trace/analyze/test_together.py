"""CTAs that share an SM: what is said of them is held against an SM in which the change is really made."""

import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.report.sentences import verdict
from kperf.trace.analyze import analysis, read
from kperf.trace.analyze.facts import concluded
from kperf.trace.analyze.joining import Captured, join
from kperf.trace.analyze.models import Overhead, Resources, SampledCtas, Timeline
from kperf.trace.analyze.timeline import Neighbours
from kperf.trace.analyze.whatif import what_if
from kperf.trace.capture.passes import single_probes

from . import sm
from .captures import all_probes_of, capture
from .machine import FLOP_PER_CYCLE, Kernel
from .sm import Cta
from .test_facts import resources
from .test_joining import told
from .test_views import about

BOUND = Kernel(consumers=1, stages=1, mma=1500, arithmetic=50, load=1100, iterations=40)
"""Two of them keep the tensor cores busy all the time; one alone waits for its loads."""
LATENCY = Kernel(consumers=1, stages=1, mma=300, arithmetic=300, load=2500, iterations=40)
"""Its loads are most of an iteration, however many share the SM."""
MIXED = Kernel(consumers=1, stages=1, mma=700, arithmetic=500, load=900, iterations=60)
"""Shorter loads help two of them until the tensor cores are busy."""
TWO = Kernel(consumers=2, stages=2, mma=500, arithmetic=900, load=700, iterations=40)

SMS = {
    "at the bound": [Cta(BOUND), Cta(BOUND, 300)],
    "latency": [Cta(LATENCY), Cta(LATENCY, 300)],
    "mixed": [Cta(MIXED), Cta(MIXED, 300)],
    "unequal": [Cta(MIXED), Cta(replace(MIXED, arithmetic=900, iterations=50), 300)],
    "unequal numbers of iterations": [Cta(MIXED), Cta(replace(MIXED, iterations=35), 300)],
    "three": [Cta(MIXED), Cta(MIXED, 300), Cta(MIXED, 900, prologue=444)],
    "one comes later": [Cta(MIXED), Cta(MIXED, 20_000, prologue=700)],
    "two consumers, an arrive behind an issue": [Cta(TWO, in_turn=True), Cta(TWO, 300, prologue=500, in_turn=True)],
    "others come in their places": [Cta(MIXED), Cta(MIXED, 300), *(Cta(MIXED, 250, after=n) for n in range(8))],
}
CLOSE = 0.02
"""Of an iteration: by how much a saving may be off."""
ANY = 0.06
"""The same of SMs that are drawn: they begin far apart, and loads are now early and now late."""


def timeline(ctas: list[Cta], **changed: object) -> Timeline:
    """Of CTAs that share an SM, whose events cost nothing."""
    used = resources(64, max(sum(other.after is None for other in ctas), 1))
    overhead = Overhead(original_ms=1.0, instrumented_ms=1.0, ratio=1.0)
    fields = {"overhead": overhead, "resources": Resources(original=used, instrumented=used)} | changed
    return read.pipeline(sm.launch(ctas), about(**fields))


def said(t: Timeline) -> str:
    return " ".join(verdict(t))


def row(t: Timeline, region: str, group: str):
    (found,) = (row for row in [*t.what_if, *t.withheld] if (row.region, row.warp_group) == (region, group))
    return found


def everywhere(ctas: list[Cta]) -> str:
    return "all" if ctas[0].kernel.consumers > 1 else "consumer 0"


@pytest.mark.parametrize("name", SMS)
def test_an_iteration_of_ctas_that_share_an_sm_is_explained(name):
    t = timeline(SMS[name])
    assert t.replay.measured_cycles == pytest.approx(sm.iteration(SMS[name]), rel=CLOSE)
    assert abs(t.replay.error) < 0.005
    assert t.replay.together == (3 if name == "three" else 2)


@pytest.mark.parametrize("name", SMS)
def test_a_saving_is_what_the_change_saves_when_all_ctas_of_the_sm_have_it(name):
    ctas = SMS[name]
    t, whole = timeline(ctas), sm.iteration(ctas)
    load, arithmetic = sm.saving(ctas, load=0), sm.saving(ctas, arithmetic=0)
    assert row(t, "load A", "producer").cycles == pytest.approx(load, abs=CLOSE * whole)
    assert row(t, "arithmetic", everywhere(ctas)).cycles == pytest.approx(arithmetic, abs=CLOSE * whole)
    assert row(t, "A @ B", "tensor cores").cycles == pytest.approx(sm.saving(ctas, mma=0), abs=CLOSE * whole)


def test_what_one_cta_alone_would_save_is_nothing_where_two_keep_the_tensor_cores_busy():
    ctas = SMS["at the bound"]
    assert sm.saving(ctas[:1], load=0) > 900
    assert sm.saving(ctas, load=0) == pytest.approx(0, abs=10)
    alone, both = timeline(ctas[:1]), timeline(ctas)
    assert row(alone, "load A", "producer").cycles > 900
    assert row(both, "load A", "producer").cycles == pytest.approx(0, abs=10)


def test_an_sm_has_no_mma_in_flight_where_none_of_its_ctas_has():
    ctas = SMS["mixed"]
    t, (whole, idle) = timeline(ctas), sm.without_mma(sm.run(ctas))
    (alone_whole, alone_idle) = sm.without_mma(sm.run(ctas)[:1])
    found = sum(bubble.cycles for bubble in t.bubbles)
    assert t.bubbles_of == "SM"
    assert 100 < found == pytest.approx(t.cycles_per_unit.median * idle / whole, rel=0.05)
    assert alone_idle / alone_whole > 2 * idle / whole
    assert f"the SM has no MMA in flight in {found:.0f} of the {t.cycles_per_unit.median:.0f} cycles" in said(t)


def test_where_no_followed_cta_has_steady_iterations_the_bubbles_of_ctas_stand(monkeypatch):
    bubbles = analysis.bubbles
    whole = timeline(SMS["mixed"])
    monkeypatch.setattr(
        analysis,
        "bubbles",
        lambda launch, sms, cycles: None if len(sms[0].residents) > 1 else bubbles(launch, sms, cycles),
    )
    t = timeline(SMS["mixed"])
    assert (whole.bubbles_of, t.bubbles_of) == ("SM", "CTA")
    assert sum(one.cycles for one in t.bubbles) > 1.5 * sum(one.cycles for one in whole.bubbles) > 0
    assert "one CTA has no MMA in flight" in said(t)


@dataclass(frozen=True)
class Stay:
    start: int
    end: int


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40)), min_size=1, max_size=12, unique_by=sum))
def test_a_cta_comes_in_the_place_of_the_last_that_had_ended(stays):
    there = [Stay(start, start + length) for start, length in stays]
    sm = Neighbours(there)
    assert sm.together == max(sum(one.start <= other.start < one.end for one in there) for other in there)
    places = {}
    for number in sorted(range(len(there)), key=lambda number: there[number].start):
        free = [n for n, one in enumerate(there) if one.end <= there[number].start and n not in places.values()]
        if free:
            places[number] = max(free, key=lambda n: there[n].end)
    assert sm.places == places


def test_a_long_cta_may_have_thousands_of_short_neighbours():
    sm = Neighbours([Stay(0, 1_000_000), *(Stay(100 * number, 100 * number + 90) for number in range(5000))])
    before = time.process_time()
    assert (sm.together, len(sm.places)) == (2, 4999)
    assert time.process_time() - before < 2


@pytest.mark.parametrize("kernel", [BOUND, MIXED], ids=["at the bound", "mixed"])
def test_of_a_sample_one_cta_alone_is_replayed_and_the_reading_says_so(kernel):
    sample = SampledCtas(stride=17, first=5, recorded=2, ctas=40)
    t = timeline([Cta(kernel), Cta(kernel, 300)], sampled=sample)
    assert (t.bubbles_of, t.replay.together) == ("CTA", 1)
    assert "one CTA has no MMA in flight" in said(t)
    assert "of one CTA, beside which others keep the SM's units busy" in said(t) or not t.what_if
    assert "together" not in said(t)


def test_where_events_of_one_cta_are_lost_the_other_is_replayed_alone():
    ctas = [Cta(MIXED), Cta(replace(MIXED, iterations=150), 300)]
    launch = sm.launch(ctas, bytes_per_warp=2048)
    assert launch.whole_ctas.tolist() == [0]
    assert launch.neighbours(0) is None
    t = read.pipeline(launch, about())
    assert (t.bubbles_of, t.replay.together) == ("CTA", 1)


def test_a_neighbour_that_is_followed_from_its_beginning_alone_is_not_known(monkeypatch):
    launch = sm.launch(SMS["mixed"])
    assert launch.neighbours(0) is not None
    monkeypatch.setattr("kperf.trace.analyze.timeline.LONGEST_CTA", 300)
    assert launch.neighbours(0) is None


def test_ctas_that_follow_each_other_on_an_sm_share_nothing():
    ctas = [Cta(MIXED), Cta(MIXED, 400, after=0), Cta(MIXED, 400, after=1)]
    t = timeline(ctas)
    assert (t.bubbles_of, t.replay.together) == ("CTA", 1)
    assert row(t, "load A", "producer").cycles == pytest.approx(sm.saving(ctas, load=0), rel=0.02)


def test_passes_that_are_joined_keep_what_ctas_do_together_of_the_launch_that_has_them():
    ctas, all_probes = SMS["latency"], all_probes_of(LATENCY)
    one = timeline(ctas)
    one = one.model_copy(update={"cycles_per_unit": one.cycles_per_unit.scaled(1.25)})
    passes = [
        Captured(*capture(LATENCY, places, 0, lates=(0,)), told(LATENCY, places, 0))
        for places in single_probes(all_probes)
    ]
    several = join(one, sm.launch(ctas), all_probes, passes)
    assert several.joined is not None
    assert not several.joined.replayed
    assert several.replay == one.replay
    assert several.replay.together == 2
    scale = several.cycles_per_unit.median / one.cycles_per_unit.median
    assert scale == pytest.approx(0.8, rel=0.01)
    assert [bubble.cycles for bubble in several.bubbles] == [bubble.cycles * scale for bubble in one.bubbles]
    assert "tile boundaries, what-if savings, times without an MMA in flight and all outside" in said(several)


def test_what_the_replay_is_off_widens_the_interval_of_what_ctas_save_together():
    t = timeline(SMS["mixed"])
    off = t.replay.model_copy(update={"cycles": t.replay.measured_cycles + 80})
    wider = concluded(t.model_copy(update={"replay": off}), None)
    saved, less = (row(of, "load A", "producer") for of in (t, wider))
    assert saved.low == pytest.approx(saved.assumed_low, abs=1)
    assert less.low == pytest.approx(less.assumed_low - 80, abs=1)


DURATIONS = {
    "mma": st.integers(128, 1024), "load": st.integers(200, 3000), "issue": st.integers(20, 200),
    "arithmetic": st.integers(10, 2500), "late": st.integers(0, 900), "stages": st.integers(1, 3),
    "consumers": st.integers(1, 2),
}  # fmt: skip


@settings(max_examples=6, deadline=None)
@given(
    kernel=st.builds(Kernel, iterations=st.just(40), **DURATIONS),
    others=st.lists(
        st.tuples(st.integers(-300, 300), st.integers(0, 4000), st.integers(0, 1500)), min_size=1, max_size=2
    ),
    jitter=st.sampled_from([0, 0, 400]),
)
def test_savings_of_any_such_sm_are_those_of_the_changed_sm(kernel, others, jitter):
    kernel = replace(kernel, jitter=jitter)
    unequal = [replace(kernel, arithmetic=max(10, kernel.arithmetic + more)) for more, _, _ in others]
    ctas = [Cta(kernel)] + [Cta(k, start, prologue=p) for k, (_, start, p) in zip(unequal, others, strict=True)]
    launch, whole = sm.launch(ctas), sm.iteration(ctas)
    graph, rows, _ = what_if(read.shared(launch, np.arange(len(ctas))), launch.program, FLOP_PER_CYCLE)
    saved = {(row.region, row.warp_group): row.cycles for row in rows}
    assert graph.cycles == pytest.approx(whole, rel=ANY)
    assert saved["load A", "producer"] == pytest.approx(sm.saving(ctas, load=0), abs=ANY * whole)
    assert saved["A @ B", "tensor cores"] == pytest.approx(sm.saving(ctas, mma=0), abs=ANY * whole)
    assert saved["arithmetic", everywhere(ctas)] == pytest.approx(sm.saving(ctas, arithmetic=0), abs=ANY * whole)
