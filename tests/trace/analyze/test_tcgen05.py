"""MMAs whose end an mbarrier says: run again, and in flight until the first warp group has waited for them."""

from dataclasses import replace

import pytest

from kperf.trace.analyze.replay import Assumptions, Change, Course, Replay, Step
from kperf.trace.analyze.timeline import in_flight_mmas

from .machine import FLOP_PER_CYCLE, Kernel, TensorCoreMachine, tensor_core_cta

KERNELS = {
    "tensor core": Kernel(mma=1500, arithmetic=300, stages=4, issue=40),
    "arithmetic": Kernel(mma=500, arithmetic=1300, stages=3, issue=40),
    "loads": Kernel(mma=200, arithmetic=150, stages=1, load=1700, issue=40),
    "accumulators": Kernel(mma=600, arithmetic=650, finish=500, stages=3, issue=40),
}


def replay(kernel: Kernel) -> tuple[Replay, Assumptions, TensorCoreMachine]:
    cta, stages, machine = tensor_core_cta(kernel)
    courses = {}
    for group, spans in cta.spans.items():
        steps = [Step(span.interval, span.cycles, span.iteration, 0, span.iteration > 0) for span in spans]
        courses[0, group] = Course(steps, 0.0)
    return Replay(courses, stages), Assumptions(kernel.load, FLOP_PER_CYCLE), machine


@pytest.mark.parametrize("name", KERNELS)
def test_a_replay_takes_as_long_as_the_machine(name):
    graph, assumed, machine = replay(KERNELS[name])
    ends, own = graph.as_measured(assumed)
    assert {group: times[-1] for (_, group), times in ends.items()} == {
        group: records[-1][1] for group, records in machine.records.items()
    }
    again = graph.run(assumed, own)
    assert again == ends
    assert {round(cycles) for cycles in own[0, "reader"][::2]} == {KERNELS[name].finish}


@pytest.mark.parametrize("name", KERNELS)
def test_an_mma_that_takes_no_time_saves_what_it_saves_the_machine(name):
    graph, assumed, _ = replay(KERNELS[name])
    own = graph.as_measured(assumed)[1]
    changed = graph.run(assumed, own, Change(mmas=frozenset({"A @ B"})))
    truth = TensorCoreMachine(replace(KERNELS[name], mma=0)).run()
    assert changed[0, "reader"][-1] == pytest.approx(truth.records["reader"][-1][1], abs=2)


@pytest.mark.parametrize("name", KERNELS)
def test_an_mma_is_in_flight_until_somebody_has_waited_for_it(name):
    kernel = KERNELS[name]
    cta, _, machine = tensor_core_cta(kernel)
    found = list(in_flight_mmas(cta.spans, lambda mma: mma.flop / FLOP_PER_CYCLE))
    issues = [start for span in cta.spans["issuer"] if span.interval.name == "issue" for start in [span.start]]
    assert [mma.start for mma in found] == issues
    assert [mma.iteration for mma in found] == [*range(kernel.iterations)]
    waited = [span.end for span in cta.spans["reader"] if span.interval.name == "product wait"]
    emptied = [span.end for span in cta.spans["producer"] if span.interval.name == "wait A empty"][kernel.stages :]
    ends = [min(pair) for pair in zip(waited, [*emptied, *[10**9] * kernel.stages], strict=False)]
    assert [mma.end for mma in found] == ends
    assert all(mma.end >= done for mma, done in zip(found, machine.done, strict=True))
    assert {mma.work for mma in found} == {kernel.mma}


def test_an_mma_that_nobody_waits_for_is_left_out():
    cta, _, _ = tensor_core_cta(KERNELS["arithmetic"])
    spans = {"issuer": cta.spans["issuer"], "reader": cta.spans["reader"][:5]}
    assert len(list(in_flight_mmas(spans, lambda _: 1.0))) == 3
