"""CTAs that share an SM: what is said of them is held against an SM in which the change is really made."""

from dataclasses import replace

import pytest

from kperf.trace.analyze import read
from kperf.trace.analyze.models import Overhead, Resources, Timeline

from . import sm
from .machine import Kernel
from .sm import Cta
from .test_facts import resources
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


def timeline(ctas: list[Cta], **changed: object) -> Timeline:
    """Of CTAs that share an SM, whose events cost nothing."""
    used = resources(64, max(sum(other.after is None for other in ctas), 1))
    overhead = Overhead(original_ms=1.0, instrumented_ms=1.0, ratio=1.0)
    fields = {"overhead": overhead, "resources": Resources(original=used, instrumented=used)} | changed
    return read.pipeline(sm.launch(ctas), about(**fields))


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
