"""Several passes of a simulated kernel are put together, each slowed by its own records."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.errors import UsageError
from kperf.report.sentences import verdict
from kperf.trace.analyze import joining, read
from kperf.trace.analyze.joining import Captured, join
from kperf.trace.analyze.models import Overhead, Pass, SassOrder, Timeline
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture.passes import single_probes
from kperf.trace.instrument.program import Interval

from .captures import ALL, INTERVALS, ITERATION, all_probes_of, capture, recorded, role
from .machine import FULL, Kernel, Machine
from .test_views import about

COST = 22
"""Cycles of a record: some 1 % of an iteration, as on the H200."""

SAME = SassOrder(original=[], instrumented=[], same=True, differences=[])


def told(kernel, places, cost, disturbed=None):
    """What the launch of a pass says of itself: its time over the original kernel's is that of the longest CTA."""
    original, traced = (
        Machine(k, *how).run() for k, how in ((kernel, ()), (disturbed or kernel, recorded(places, cost)))
    )
    ends = [max(ended[-1][1] for ended in machine.records.values()) for machine in (original, traced)]
    overhead = Overhead(original_ms=ends[0], instrumented_ms=ends[1], ratio=ends[1] / ends[0])
    return Pass(regions=[str(places)], overhead=overhead, sass_order=SAME, events_per_iteration=max(map(len, places)))


def joined(kernel, cost=COST, disturbed=None, which=1) -> tuple[Timeline, Timeline]:
    """The timeline of one pass with all records, and that of several; of these one may run another kernel."""
    all_probes = all_probes_of(kernel)
    _, launch = capture(kernel, ALL, cost, lates=(0,))
    one = read.pipeline(launch, about(passes=[told(kernel, ALL, cost)]))
    captured = []
    for number, places in enumerate(single_probes(all_probes)):
        ran = disturbed if disturbed and number == which else kernel
        captured.append(Captured(*capture(ran, places, cost), told(kernel, places, cost, ran)))
    return one, join(one, launch, all_probes, captured)


def undisturbed(kernel):
    """Period, and (group, region) -> mean cycles, of a run without records; of its later half.

    Between the producer's waits nothing happens that passes would measure apart from them.
    """
    machine = Machine(replace(kernel, late=kernel.late + 9)).run()
    found = {}
    for group, ended in machine.records.items():
        for name in ITERATION[role(group)]:
            cycles = [b - a for (_, a), (what, b) in pairwise(ended) if what == name]
            found[group, name] = sum(cycles[len(cycles) // 2 :]) / len(cycles[len(cycles) // 2 :])
    found["producer", "wait A empty"] += found.pop(("producer", "other"))
    return machine.iteration_time(), found


def per_iteration(timeline):
    return {
        (region.warp_group, region.name): region.per_iteration for region in timeline.regions if region.per_iteration
    }


LONG = Kernel(iterations=40)
KERNELS = {
    "arithmetic": LONG,
    "tensor cores": replace(LONG, mma=1100, arithmetic=900),
    "loads": replace(LONG, stages=1, load=1500),
    "one consumer": replace(LONG, consumers=1),
}


@pytest.mark.parametrize("name", KERNELS)
def test_several_passes_show_the_kernel_as_it_is_without_records(name):
    kernel = KERNELS[name]
    iteration_time, intervals = undisturbed(kernel)
    _, several = joined(kernel)
    assert several.cycles_per_unit.median == pytest.approx(iteration_time, rel=0.02)
    found = per_iteration(several)
    assert found.keys() == intervals.keys()
    for key, cycles in found.items():
        assert abs(cycles - intervals[key]) < 0.02 * iteration_time, key
    assert several.apart is None
    assert several.joined.original_cycles == pytest.approx(iteration_time, rel=0.01)
    for group in {group for group, _ in found if group != "producer"}:
        assert sum(c for (g, _), c in found.items() if g == group) == pytest.approx(several.cycles_per_unit.median)
    number = several.joined.iteration_pass + 1
    assert any(
        f"that is pass {number} of 3 with a few events each, whose events cost" in line for line in verdict(several)
    )
    assert (several.iteration.cycles, several.iteration.pass_number) == (several.cycles_per_unit.median, number)
    assert any("joined from 3 of 3 passes that agree" in line for line in verdict(several))


def test_an_earlier_record_is_read_if_its_passes_made_one_iteration(tmp_path):
    _, several = joined(LONG)
    path = tmp_path / "k.timeline.json"
    record = several.model_dump(mode="json")
    record["joined"]["open"] = []
    path.write_text(json.dumps(record))
    assert read_timeline(path) == several
    record["joined"]["open"] = ["the intervals of pass 1 add up to 9"]
    path.write_text(json.dumps(record))
    with pytest.raises(UsageError, match=r"its passes do not make one iteration.*record it again"):
        read_timeline(path)


def test_one_pass_with_all_records_does_not():
    one, several = joined(LONG)
    iteration_time, _ = undisturbed(LONG)
    assert one.cycles_per_unit.median > 1.02 * iteration_time
    assert several.overhead.ratio < 1.025 < one.overhead.ratio


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arithmetic": LONG.arithmetic + 150}, "add up to"),
        (
            {"issue": 900, "arithmetic": LONG.arithmetic - 388},
            "begins its iterations",
        ),  # and the iteration time is what it was
        ({"late": LONG.late + 1300}, "consumer 1 begins its iterations"),  # likewise
    ],
    ids=["iteration time", "order", "step"],
)
def test_a_pass_that_changes_the_schedule_does_not_close(change, said):
    """The iteration time is that of the others. Only this pass tells kinds apart, so all events make the timeline."""
    iteration_time, _ = undisturbed(LONG)
    one, several = joined(LONG, disturbed=replace(LONG, **change))
    assert several.iteration.cycles == pytest.approx(iteration_time, rel=0.025)  # 2 events of COST cycles
    assert several.joined is None
    assert any(said in line for line in several.apart.why), several.apart.why
    assert any(several.apart.why[0] in line for line in verdict(several) if "do not agree" in line)
    assert per_iteration(several) == per_iteration(one)
    if change.keys() == {"late"}:  # that pass disturbs least, and both others are in another step
        assert all("consumer 1 begins its iterations" in line for line in several.apart.why)
        assert len(several.apart.why) == 2


@pytest.mark.parametrize(
    ("left_out", "region"), [(0, "wait A full + issue"), (1, "issue + product wait"), (2, "product wait + arithmetic")]
)
def test_passes_are_not_joined_where_different_kinds_of_work_would_be_one_region(left_out, region):
    change = {"arithmetic": LONG.arithmetic + 150}
    one, several = joined(LONG, disturbed=replace(LONG, **change), which=left_out)
    assert several.joined is None
    why = [f"the parts of {region} of consumer {n} are distinguished only by passes that are left out" for n in (0, 1)]
    assert several.apart.why[:2] == why
    assert "add up to" in several.apart.why[2]
    assert per_iteration(several) == per_iteration(one)


def test_passes_are_joined_where_one_kind_of_work_is_one_region(monkeypatch):
    """Two waits behind one another, say, may be one."""
    monkeypatch.setitem(INTERVALS, "issue", ("tensor", INTERVALS["issue"][1]))
    _, several = joined(LONG, disturbed=replace(LONG, arithmetic=LONG.arithmetic + 150))
    assert several.joined.left_out == [1]
    assert any("add up to" in line for line in several.joined.why), several.joined.why
    assert any("joined from 2 of 3 passes that agree" in line for line in verdict(several))
    assert any(several.joined.why[0] in line for line in verdict(several) if "left out" in line)
    assert ("consumer 0", "issue + product wait") in per_iteration(several)
    for group in {group for group, _ in per_iteration(several)}:
        parts = [cycles for (warp_group, _), cycles in per_iteration(several).items() if warp_group == group]
        assert sum(parts) == pytest.approx(several.cycles_per_unit.median)


def test_where_most_passes_change_the_schedule_the_least_disturbed_gives_the_iteration_time(monkeypatch):
    monkeypatch.setattr(joining, "ENOUGH", 0.9)
    iteration_time, _ = undisturbed(LONG)
    one, several = joined(LONG, disturbed=replace(LONG, arithmetic=LONG.arithmetic + 150))
    assert several.joined is None
    assert several.cycles_per_unit == one.cycles_per_unit
    assert several.iteration.cycles == pytest.approx(iteration_time, rel=0.025)
    assert several.iteration.cycles < one.cycles_per_unit.median
    assert several.iteration.most >= max(each.iteration_cycles for each in several.apart.passes)
    (line,) = (line for line in verdict(several) if "3 passes do not agree" in line)
    assert several.apart.why[0] in line


def test_an_iteration_that_hangs_on_more_than_is_known_keeps_the_what_if_savings_of_one_launch_and_says_so(monkeypatch):
    never = (FULL,) * 100
    monkeypatch.setattr(joining, "_prologue", lambda _, group: Interval(group, waits=never))
    one, several = joined(LONG)
    assert not several.joined.replayed
    assert several.replay == one.replay
    regions = [{(row.region, row.assumed_high) for row in (*t.what_if, *t.withheld)} for t in (several, one)]
    assert regions[0] == regions[1]
    assert any("tile boundaries, what-if savings and all outside" in line for line in verdict(several))
    monkeypatch.undo()
    assert joined(LONG)[1].joined.replayed


def test_a_pass_without_a_typical_iteration_has_no_iteration_time(monkeypatch):
    """Intervals add up to the mean iteration, and the iteration time is the median one."""
    real = joining.analysis.iteration_time
    monkeypatch.setattr(
        joining.analysis,
        "iteration_time",
        lambda launch: real(launch).model_copy(update={"median": 1.03 * real(launch).median}),
    )
    _, several = joined(LONG)
    (why,) = several.apart.why
    assert "differ too much" in why
    assert several.iteration.pass_number is not None


@settings(max_examples=5)
@given(
    st.builds(
        Kernel,
        consumers=st.integers(1, 3),
        stages=st.integers(1, 4),
        iterations=st.just(16),
        load=st.integers(300, 1500),
        mma=st.integers(300, 1200),
        issue=st.integers(40, 150),
        arithmetic=st.integers(300, 2000),
        late=st.integers(0, 500),
    ),
    st.integers(0, 40),
)
def test_a_joined_iteration_is_whole_whatever_the_kernel(kernel, cost):
    one, several = joined(kernel, cost)
    assert Timeline.model_validate_json(several.model_dump_json()) == several
    passes = several.apart.passes if several.apart else several.passes
    least = min(passes, key=lambda one: abs(one.overhead.ratio - 1))
    assert several.iteration.least <= several.iteration.cycles <= several.iteration.most
    if several.apart:
        assert several.cycles_per_unit == one.cycles_per_unit
        return
    off = [abs(each.iteration_cycles / least.iteration_cycles - 1) for each in passes]
    assert all(share <= several.joined.tolerance for n, share in enumerate(off) if n not in several.joined.left_out)
    assert 2 * len(several.joined.left_out) <= len(passes)
    iteration_time = several.cycles_per_unit.median
    for group in {group for group, _ in per_iteration(several)}:
        parts = [region for region in several.regions if region.warp_group == group and region.per_iteration]
        assert sum(part.per_iteration for part in parts) == pytest.approx(iteration_time)
        assert sum(region.share for region in several.regions if region.warp_group == group) == pytest.approx(1)
        assert all(part.per_iteration > 0 and set(part.passes) <= set(range(3)) and part.passes for part in parts)
    assert several.passes[several.joined.iteration_pass] == least


@pytest.mark.parametrize("iterations", [2, 3, 4])
def test_a_short_loop_is_read_without_a_graph_where_no_two_iterations_follow_each_other(iterations):
    _, launch = capture(Kernel(iterations=iterations), ALL, COST, lates=(0,))
    timeline = read.pipeline(launch, about(passes=[told(Kernel(iterations=iterations), ALL, COST)]))
    assert (timeline.replay is None) == ([*timeline.what_if, *timeline.withheld] == []) == (iterations == 2)
    assert verdict(timeline)
