"""What-if savings are held against a machine in which the change is really made."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.errors import UsageError
from kperf.trace.analyze.predict import predict
from kperf.trace.analyze.replay import Assumptions, Course, Replay, Step
from kperf.trace.analyze.timeline import Neighbours
from kperf.trace.analyze.whatif import Sms, what_if
from kperf.trace.instrument.program import Interval, Mma

from .machine import FLOP_PER_CYCLE, Kernel, Machine, cta_and_program

KERNELS = {
    "arithmetic, two stages": Kernel(),
    "one stage: loads stand on the path": Kernel(stages=1, load=1500, arithmetic=300),
    "three stages": Kernel(stages=3, load=1500, arithmetic=300),
    "tensor cores": Kernel(consumers=3, mma=900, arithmetic=400, stages=4),
    "one consumer": Kernel(consumers=1),
}
CHANGES = {
    ("arithmetic", "all"): {"arithmetic": 0},
    ("load A", "producer"): {"load": 0},
    ("A @ B", "tensor cores"): {"mma": 0},
}


@functools.cache
def rows(kernel):
    cta, program, machine = cta_and_program(kernel)
    graph, found, own = what_if([Neighbours.alone(cta)], program, FLOP_PER_CYCLE)
    return graph, {(row.region, row.warp_group): row for row in found}, own, machine


@pytest.mark.parametrize("name", KERNELS)
def test_the_graph_explains_the_measured_iteration_time(name):
    graph, _, own, machine = rows(KERNELS[name])
    assert graph.measured_cycles == pytest.approx(machine.iteration_time(), rel=0.01)
    assert abs(graph.error) < 0.005
    assert own["consumer 0", "arithmetic"] == KERNELS[name].arithmetic
    assert own["consumer 0", "issue"] == KERNELS[name].issue
    assert own["consumer 0", "product wait"] == KERNELS[name].finish


@pytest.mark.parametrize("name", KERNELS)
def test_a_saving_is_what_the_change_saves(name):
    kernel = KERNELS[name]
    _, found, _, machine = rows(kernel)
    for (region, group), change in CHANGES.items():
        key = (region, group if kernel.consumers > 1 or group != "all" else "consumer 0")
        truth = machine.iteration_time() - Machine(replace(kernel, **change)).run().iteration_time()
        assert found[key].cycles == pytest.approx(truth, abs=0.01 * machine.iteration_time()), key


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_rarely_late_is_part_of_the_iteration_time_of_the_graph_too(name):
    """MMAs and loads that wait for another CTA's now and then: no median shows them, the measured mean does."""
    graph, _, _, machine = rows(replace(KERNELS[name], jitter=1500, iterations=64))
    original = Machine(replace(KERNELS[name], iterations=64)).run()
    assert machine.iteration_time() > original.iteration_time()
    assert abs(graph.error) < 0.02


def test_each_assumption_is_fitted_once(monkeypatch):
    fitted, fit = [], Sms.fit
    monkeypatch.setattr(Sms, "fit", lambda sms, assumed: fitted.append(assumed) or fit(sms, assumed))
    rows.__wrapped__(KERNELS["one consumer"])
    assert len(fitted) == len(set(fitted)) == 5, "the likely one, and one of each way to deviate"


def test_loads_stand_on_the_path_with_one_stage_and_not_with_three():
    one, three = (rows(KERNELS[name])[1]["load A", "producer"] for name in list(KERNELS)[1:3])
    assert one.cycles > 1200
    assert one.high - one.low > 200, "a longer load costs more"
    assert three.cycles == pytest.approx(0, abs=20)


def test_more_stages_are_what_the_wait_for_an_empty_one_is_worth():
    kernel = KERNELS["one stage: loads stand on the path"]
    _, found, _, machine = rows(kernel)
    many = Machine(replace(kernel, stages=kernel.iterations)).run()
    assert found["wait A empty", "producer"].cycles == pytest.approx(
        machine.iteration_time() - many.iteration_time(), rel=0.1
    )


def test_the_sensitivity_holds_the_likely_value():
    for kernel in KERNELS.values():
        for row in rows(kernel)[1].values():
            assert row.low <= row.cycles <= row.high


@settings(max_examples=25)
@given(
    kernel=st.builds(
        Kernel,
        iterations=st.just(48),  # warp groups that begin late fall into step: of few iterations that is more than 2 %
        consumers=st.integers(1, 3),
        stages=st.integers(1, 4),
        load=st.integers(200, 3000),
        mma=st.integers(128, 1024),
        issue=st.integers(20, 200),
        arithmetic=st.integers(10, 2500),
        late=st.integers(0, 900),
    )
)
def test_the_graph_explains_any_such_kernel(kernel):
    cta, program, machine = cta_and_program(kernel)
    sms = Sms([Neighbours.alone(cta)], program)
    likely = Assumptions(sms.load_cycles, FLOP_PER_CYCLE)
    measured, own, _ = sms.fit(likely)
    assert sms.iteration_time(likely, own) == pytest.approx(machine.iteration_time(), rel=0.02)
    assert sms.iteration_time(likely, own) == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize("groups", [("early", "late"), ("late", "early")])
def test_mmas_queue_as_they_are_issued_whatever_group_is_named_first(groups):
    starts = {"early": 0.0, "late": 50.0}
    courses = {}
    for group in groups:
        interval = Interval(group, "product", "tensor")
        interval.queue = (Mma("product", 1000, "bf16"), 0)
        courses[0, group] = Course([Step(interval, 100.0, 0, 0)], starts[group])
    replay = Replay(courses, {})
    at_once = {row: [0.0] for row in courses}
    assert replay.run(Assumptions(0.0, 10.0), at_once) == {(0, "early"): [100.0], (0, "late"): [200.0]}


def test_a_step_may_hang_on_nothing():
    kernel = Kernel(stages=1, load=1500)
    cta, program, machine = cta_and_program(kernel)
    for interval in program.intervals.values():
        interval.waits = ()
    graph, _, _ = what_if([Neighbours.alone(cta)], program, FLOP_PER_CYCLE)
    assert graph.load_cycles == 0
    assert graph.cycles == pytest.approx(
        machine.iteration_time(), rel=0.01
    )  # what hangs on nothing keeps its measured cycles


def measured(kernel, **changed):
    """As much of a timeline as a prediction takes."""
    cta, program, _ = cta_and_program(kernel)
    graph, _, own = what_if([Neighbours.alone(cta)], program, FLOP_PER_CYCLE)
    kinds = {(interval.group, interval.name): interval.kind for interval in program.intervals.values()}
    roles = [("consumer" in group.name, group.name) for group in program.groups]
    return SimpleNamespace(
        label="measured",
        replay=graph,
        roles=[SimpleNamespace(warp_group=name, duty="MMAs" if first else "loads") for first, name in roles],
        regions=[
            SimpleNamespace(warp_group=group, name=name, kind=kinds[group, name], self_cycles=cycles)
            for (group, name), cycles in own.items()
        ],
    )


@pytest.mark.parametrize("load", [700, 2500])
def test_the_iteration_time_of_another_schedule_is_predicted(load):
    """One stage is measured, three are predicted, and the other way round."""
    one, three = (Kernel(stages=stages, load=load, arithmetic=300) for stages in (1, 3))
    for a, b in ((one, three), (three, one)):
        _, program, machine = cta_and_program(b)
        assert predict(program, measured(a)) == pytest.approx(machine.iteration_time(), rel=0.02)
    assert Machine(one).run().iteration_time() > 1.2 * Machine(three).run().iteration_time()


def test_what_cannot_be_predicted_is_said():
    _, program, _ = cta_and_program(Kernel())
    with pytest.raises(UsageError, match="has 3 warp groups of MMAs, the other kernel 2"):
        predict(program, measured(Kernel(consumers=3)))
    old = measured(Kernel())
    old.replay = None
    with pytest.raises(UsageError, match="has no replay: record it again"):
        predict(program, old)
    silent = measured(Kernel())
    silent.regions = [region for region in silent.regions if region.kind != "arithmetic"]
    with pytest.raises(UsageError, match="no region of arithmetic"):
        predict(program, silent)
    program.stages.update(dict.fromkeys(program.stages, 0))
    with pytest.raises(UsageError, match="wait for what comes before them"):
        predict(program, measured(Kernel()))


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_loads_that_are_sometimes_late_are_so_in_the_graph_too(stages):
    """Early loads do not make up for a late one, and one that is late is so for both consumers."""
    kernel = Kernel(stages=stages, load=1500, arithmetic=300, mma=300, iterations=80, jitter=800)
    graph, _, _, machine = rows(kernel)
    assert machine.iteration_time() > 1.07 * Machine(replace(kernel, jitter=0)).run().iteration_time()
    assert abs(graph.error) < 0.02


UNEVEN = Kernel(consumers=1, uneven=800, iterations=64)
"""On average its issues last as long as their MMAs; of issue and MMA the later one takes 40 % longer."""


def test_of_an_issue_and_its_mma_that_are_now_longer_and_now_shorter_the_later_one_counts():
    graph, found, _, machine = rows(UNEVEN)
    assert abs(graph.error) < 0.005
    changes = {("A @ B", "tensor cores"): {"mma": 0}, ("issue", "consumer 0"): {"issue": 0, "uneven": 0}}
    for key, change in changes.items():
        truth = machine.iteration_time() - Machine(replace(UNEVEN, **change)).run().iteration_time()
        assert truth > 190
        assert found[key].cycles == pytest.approx(truth, rel=0.05)


def test_a_wrong_graph_does_not_give_the_measured_iteration_time_back():
    """As it would if each step had the own cycles of its own iteration."""
    cta, program, _ = cta_and_program(UNEVEN)
    graph, _, _ = what_if([Neighbours.alone(cta)], program, FLOP_PER_CYCLE / 3)
    assert abs(graph.error) > 0.02
