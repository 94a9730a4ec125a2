"""A replay of a few steps, to the cycle: each kind of dependency, alone and with another, worked out by hand."""

from collections import deque
from types import SimpleNamespace as Some

import pytest

from kperf.trace.analyze import whatif
from kperf.trace.analyze.replay import Assumptions, Change, Course, Replay, Step, _steady_iterations, _TensorCores
from kperf.trace.analyze.timeline import Cta, Neighbours, Resident, Span
from kperf.trace.analyze.whatif import Sms, _deviations, _drawn, _replay, load_cycles, what_if
from kperf.trace.instrument.program import Interval, Mma

LOADED, FREED, MET = (0, "loaded"), (1, "freed"), (2, "met")
"""Rings: of full stages, of empty stages, of a named barrier."""
A = Mma("A @ B", 1000, "bf16")
B = Mma("P @ V", 300, "bf16")
A0, B0, A1, B1 = (0, "a"), (0, "b"), (1, "a"), (1, "b")
"""Warp groups of two CTAs."""
ASSUMED = Assumptions(load_cycles=70.0, flop_per_cycle=10.0)


def interval(kind="other", name="r", group="a", **of):
    return Interval(group, name, kind, **of)


def replay(steps, starts=None, stages=None):
    """`steps`: of each group (interval, measured cycles)."""
    starts = starts or dict.fromkeys(steps, 0.0)
    return Replay(rows({group: course(mine, starts[group]) for group, mine in steps.items()}), stages or {})


def course(steps, start=0.0, **of):
    """`steps`: (interval, measured cycles)."""
    return Course([Step(interval, cycles, None, 0) for interval, cycles in steps], start, **of)


def rows(of, cta=0):
    """Of the warp groups of a CTA."""
    return {(cta, group): value for group, value in of.items()}


def groups(of):
    """Of the rows of one CTA."""
    return {group: value for (_, group), value in of.items()}


def ends(steps, own=None, starts=None, stages=None, change=None, assumed=ASSUMED):
    made = replay(steps, starts, stages)
    return groups(made.run(assumed, rows(own) if own else made.cycles, change or Change()))


def test_steps_of_a_group_follow_each_other_from_its_start():
    found = ends(
        {"a": [(interval(), 30.0), (interval(), 5.0)], "b": [(interval(), 7.0)]}, starts={"a": 100.0, "b": 3.0}
    )
    assert found == {"a": [130.0, 135.0], "b": [10.0]}


@pytest.mark.parametrize(("kind", "issued"), [("load", 20.0), ("issue", 20.0), ("wait", 50.0)])
def test_a_load_arrives_so_long_after_its_issue(kind, issued):
    """It is issued when its step begins, but behind a wait, whose end it hangs on."""
    steps = {
        "a": [(interval(), 20.0), (interval(kind, loads=(("K", LOADED),)), 30.0), (interval(), 1.0)],
        "b": [(interval("wait", waits=(LOADED,)), 4.0)],
    }
    assert ends(steps) == {"a": [20.0, 50.0, 51.0], "b": [issued + 70 + 4]}
    assert ends(steps, change=Change(loads=frozenset("K")))["b"] == [issued + 4]
    assert ends(steps, change=Change(loads=frozenset("V")))["b"] == [issued + 70 + 4]
    assert ends(steps, assumed=Assumptions(170.0, 10.0))["b"] == [issued + 170 + 4]


def test_a_wait_that_is_over_when_it_begins_takes_its_own_cycles_alone():
    steps = {
        "a": [(interval(loads=(("K", LOADED),)), 1.0)],
        "b": [(interval(), 90.0), (interval(waits=(LOADED,)), 4.0)],
    }
    assert ends(steps)["b"] == [90.0, 94.0]


def test_the_nth_wait_is_for_the_nth_load_and_one_that_never_comes_stops_its_group():
    load, wait = interval(loads=(("K", LOADED),)), interval("wait", waits=(LOADED,))
    steps = {"a": [(load, 40.0), (load, 10.0)], "b": [(wait, 2.0), (wait, 3.0), (wait, 1.0)]}
    assert ends(steps) == {"a": [40.0, 50.0], "b": [72.0, 113.0]}


@pytest.mark.parametrize(("stages", "second"), [(0, 50.0), (1, 12.0), (2, 12.0)])
def test_a_wait_for_an_empty_stage_is_over_for_as_many_rounds_as_there_are_stages(stages, second):
    """Consumers free a stage at 40; the loader waits twice."""
    wait = interval("wait", waits=(FREED,))
    steps = {"a": [(interval(), 40.0), (interval(signals=(FREED,)), 9.0)], "b": [(interval(), 10.0), (wait, 2.0)]}
    found = ends(steps, stages={FREED: stages})
    assert found["b"][1] == (42.0 if stages == 0 else second)
    again = ends(steps | {"b": [*steps["b"], (wait, 2.0)]}, stages={FREED: stages})["b"]
    assert again[2:] == {0: [], 1: [42.0], 2: [14.0]}[stages]


def test_a_barrier_is_met_by_the_last_of_all_that_arrive_there():
    arrive = interval(signals=(MET,))
    steps = {
        "a": [(interval(), 30.0), (arrive, 1.0)], "b": [(interval(), 80.0), (arrive, 1.0)],
        "c": [(interval(waits=(MET,)), 5.0)],
    }  # fmt: skip
    assert ends(steps, stages={MET: 0})["c"] == [85.0]
    assert ends(steps, stages={MET: 0}, starts={"a": 70.0, "b": 0.0, "c": 0.0})["c"] == [105.0]


def test_one_who_waits_for_its_own_arrive_goes_on():
    steps = {"a": [(interval(signals=(MET,)), 6.0), (interval(waits=(MET,)), 5.0)]}
    assert ends(steps, stages={MET: 0}) == {"a": [6.0, 11.0]}


def test_mmas_of_two_groups_go_through_the_tensor_cores_one_after_another():
    """A takes 100 cycles, B 30. What issues B at 5 ends when the queue takes B up, at 100, and waits until 130."""
    steps = {
        "a": [(interval("issue", queue=(A,)), 2.0), (interval("wait", queue=(0,)), 3.0)],
        "b": [(interval(), 5.0), (interval("issue", queue=(B,)), 2.0), (interval("wait", queue=(0,)), 1.0)],
    }
    assert ends(steps) == {"a": [2.0, 103.0], "b": [5.0, 102.0, 131.0]}
    free = ends(steps, change=Change(mmas=frozenset({"A @ B"})))
    assert free == {"a": [2.0, 5.0], "b": [5.0, 7.0, 36.0]}
    assert ends(steps, assumed=Assumptions(70.0, 5.0))["b"] == [5.0, 202.0, 261.0]


def test_a_wait_leaves_so_many_mmas_in_flight():
    first, second = (interval("issue", queue=(of,)) for of in (A, B))
    steps = {
        "a": [(first, 2.0), (second, 2.0), (interval("wait", queue=(1,)), 3.0), (interval("wait", queue=(0,)), 3.0)]
    }
    assert ends(steps)["a"] == [2.0, 102.0, 105.0, 133.0]


def test_an_arrive_of_the_tensor_cores_comes_when_all_of_the_groups_mmas_are_done():
    steps = {
        "a": [(interval("issue", queue=(A,), arrives=(FREED,)), 2.0), (interval(arrives=(FREED,)), 1.0)],
        "b": [(interval(waits=(FREED,)), 4.0), (interval(waits=(FREED,)), 4.0)],
        "c": [(interval(), 10.0), (interval(arrives=(MET,)), 1.0)],
        "d": [(interval(waits=(MET,)), 6.0)],
    }
    found = ends(steps, stages={FREED: 0, MET: 0})
    assert found["b"] == [104.0, 108.0]
    assert found["d"] == [16.0]  # of a group without MMAs at once


def test_a_queue_keeps_the_order_and_tcgen05_takes_up_more_than_one():
    cores, in_flight = _TensorCores(10.0, frozenset()), deque()
    assert cores.work(in_flight, (A, B), 7.0) == 107.0  # when B is taken up
    assert list(in_flight) == [107.0, 137.0]
    assert cores.work(in_flight, (2, 1), 20.0) == 107.0
    assert cores.work(in_flight, (0,), 200.0) == 200.0
    assert (cores.work(in_flight, (B,), 300.0), list(in_flight)) == (300.0, [330.0])  # idle before
    many = Mma("x", 500, "bf16", "tcgen05")
    assert (cores.work(in_flight, (many,), 301.0), in_flight[-1]) == (301.0, 380.0)


def test_own_cycles_are_what_a_step_takes_beyond_what_it_hangs_on():
    steps = {
        "a": [(interval(loads=(("K", LOADED),)), 1.0)],
        "b": [(interval(), 10.0), (interval("wait", waits=(LOADED,)), 65.0), (interval("wait", queue=(A, 0)), 130.0)],
        "c": [(interval("wait", waits=(LOADED,)), 50.0)],
    }
    found, own = map(groups, replay(steps).as_measured(ASSUMED))
    assert found == {"a": [1.0], "b": [10.0, 75.0, 205.0], "c": [50.0]}
    assert own == {"a": [1.0], "b": [10.0, 5.0, 30.0], "c": [-20.0]}  # the load came sooner than was assumed


def test_a_region_that_takes_no_time_waits_for_nothing_and_still_counts_its_waits():
    load, wait = interval(loads=(("K", LOADED),)), interval("wait", "wait K", waits=(LOADED,))
    steps = {"a": [(load, 40.0), (load, 10.0)], "b": [(wait, 2.0), (interval("other", "x"), 5.0)]}
    free = Change(regions=frozenset({("b", "wait K")}))
    assert ends(steps, change=free)["b"] == [0.0, 5.0]
    assert ends(steps, change=Change(regions=frozenset({("a", "wait K")})))["b"] == [72.0, 77.0]
    other = interval("wait", "wait again", waits=(LOADED,))
    assert ends(steps | {"b": [(wait, 2.0), (other, 3.0)]}, change=free)["b"] == [0.0, 113.0]


def test_mmas_of_two_ctas_go_through_the_tensor_cores_one_after_another():
    """A takes 100 cycles, B 30. What issues B at 5 ends when the queue takes B up, at 100, and waits until 130."""
    a = course([(interval("issue", queue=(A,)), 2.0), (interval("wait", queue=(0,)), 3.0)])
    b = course([(interval("issue", queue=(B,)), 2.0), (interval("wait", queue=(0,)), 1.0)], 5.0)
    made = Replay({A0: a, A1: b}, {})
    assert made.run(ASSUMED, made.cycles) == {A0: [2.0, 103.0], A1: [102.0, 131.0]}
    early = Replay({A0: a, A1: Course(b.steps, -500.0)}, {})
    assert early.run(ASSUMED, early.cycles) == {A0: [2.0, 103.0], A1: [-498.0, -469.0]}


def test_a_cta_waits_for_its_own_loads_and_arrives_alone():
    load, wait = interval("load", loads=(("K", LOADED),)), interval("wait", waits=(LOADED,))
    arrive, meet = interval("arithmetic", signals=(MET,)), interval("wait", waits=(MET,))
    made = Replay(
        {
            A0: course([(load, 9.0), (arrive, 1.0)]),
            B0: course([(wait, 4.0), (meet, 2.0)]),
            A1: course([(load, 9.0), (arrive, 1.0)], 500.0),
            B1: course([(wait, 4.0), (meet, 2.0)], 10.0),
        },
        {MET: 0},
    )
    found = made.run(ASSUMED, made.cycles)
    assert (found[B0], found[B1]) == ([74.0, 76.0], [574.0, 576.0])


def test_a_cta_begins_as_long_after_the_one_in_whose_place_it_came_as_it_did():
    """Of CTA 0 one warp group ends at 100 and one at 60; CTA 1 began at 130."""
    courses = {
        A0: course([(interval(name="x"), 100.0)]),
        B0: course([(interval(name="y"), 60.0)]),
        A1: course([(interval(name="z"), 7.0)], 130.0),
    }
    made = Replay(courses, {}, places={1: 0})
    shorter = Change(regions=frozenset({("a", "x")}))
    assert made.run(ASSUMED, made.cycles)[A1] == [137.0]
    assert made.run(ASSUMED, made.cycles, shorter)[A1] == [97.0]
    apart = Replay(courses, {})
    assert apart.run(ASSUMED, apart.cycles, shorter)[A1] == [137.0]


def test_what_came_before_ends_when_it_did_and_counts():
    """A load, and a wait that is known to have ended at 10; of the second wait the first was in the past."""
    load, wait = interval("load", loads=(("K", LOADED),)), interval("wait", "wait K", "b", waits=(LOADED,))
    courses = {A0: course([(load, 1.0)]), B0: course([(wait, 10.0), (interval(), 3.0)], known=1)}
    made = Replay(courses, {})
    free = Change(regions=frozenset({("b", "wait K")}))
    for change in (Change(), free):
        assert made.run(ASSUMED, {A0: [1.0], B0: [10.0, 3.0]}, change)[B0] == [10.0, 13.0]
    assert made.as_measured(ASSUMED)[1][B0] == [10.0, 3.0]
    past = Replay({A0: course([(load, 1.0)], 100.0, past=[load]), B0: course([(wait, 4.0)], 90.0, past=[wait])}, {})
    assert past.run(ASSUMED, past.cycles)[B0] == [174.0]
    second = Replay({A0: course([(load, 1.0)], 100.0, past=[load]), B0: course([(wait, 4.0)], 90.0)}, {})
    assert second.run(ASSUMED, second.cycles)[B0] == [94.0]
    arrive, full = interval("arithmetic", signals=(FREED,)), interval("wait", waits=(FREED,))
    stages = Replay({A0: course([(arrive, 1.0)], 100.0), B0: course([(full, 4.0)], 90.0, past=[full] * 2)}, {FREED: 2})
    assert stages.run(ASSUMED, stages.cycles)[B0] == [104.0]


def test_iterations_count_after_what_is_known_and_until_a_cta_that_goes_on_has_no_more_steps():
    durations = ((0, 9.0), (1, 20.0), (2, 30.0), (3, 45.0), (4, 1.0))
    steps = [Step(interval(), cycles, iteration, 0) for iteration, cycles in durations]
    other = course([(interval(), 60.0)], 100.0)

    def times(known=0, cut=(), groups=("a",)):
        made = Replay({A0: Course(steps, 100.0, known), A1: other}, {}, cut=cut)
        return made.iteration_times(made.run(ASSUMED, made.cycles), groups)

    assert times() == [20.0, 30.0, 45.0]
    assert times(known=1) == [20.0, 30.0, 45.0]
    assert times(known=2) == [30.0, 45.0]
    assert times(cut={1}) == [20.0]  # ends at 109, 129, 159, 204, 205, those of the other at 160
    assert times(cut={0}) == [20.0, 30.0, 45.0]


def iterations(*of, tile=0):
    return [Step(interval(), 1.0, iteration, tile) for iteration in of]


def test_steady_iterations_are_those_after_a_tiles_first_that_another_one_follows():
    assert _steady_iterations(iterations(None, 0, 0, 1, 1, 2, 2, 3, None)) == [(3, 5), (5, 7)]
    assert _steady_iterations(iterations(0, 1)) == []
    two_tiles = [*iterations(0, 1, 2), *iterations(None, 3, 4, 5, 6, tile=1)]
    assert _steady_iterations(two_tiles) == [(1, 2), (5, 6), (6, 7)]


def test_iteration_times_are_of_iterations_that_were_reached():
    steps = [
        Step(interval(), cycles, iteration, 0)
        for iteration, cycles in ((0, 9.0), (1, 20.0), (2, 30.0), (3, 45.0), (4, 1.0))
    ]
    made = Replay({A0: Course(steps, 100.0)}, {})
    found = made.run(ASSUMED, made.cycles)
    assert made.iteration_times(found, ["a"]) == [20.0, 30.0, 45.0]
    assert made.iteration_times({A0: found[A0][:3]}, ["a"]) == [20.0]
    assert made.iteration_times({A0: found[A0][:4]}, ["a"]) == [20.0, 30.0]
    assert made.iteration_times(found, []) == []


def test_a_load_takes_at_most_from_its_issue_to_the_end_of_its_wait_less_the_shortest_wait():
    load, wait = interval("load", loads=(("K", LOADED),)), interval("wait", waits=(LOADED,))
    issued = [Span(load, 0, 5, 0), Span(load, 5, 9, 1), Span(load, 200, 210, 2)]
    waited = [Span(wait, 0, 90, 0), Span(wait, 90, 102, 1), Span(wait, 205, 400, 2), Span(wait, 400, 900, 3)]
    cta = Cta(0, 0, 0, {"a": issued, "b": waited})
    assert load_cycles(cta) == 78.0  # min(90 - 0, 102 - 5, 400 - 200) - 12
    late = Cta(0, 0, 0, {"a": [Span(load, 100, 105, 0)], "b": [Span(wait, 60, 90, 0)]})
    assert load_cycles(late) == 0.0
    assert load_cycles(Cta(0, 0, 0, {"a": issued})) == 0.0


alone = Neighbours.alone


def cta_of(*spans, group="a"):
    return Cta(0, 0, 0, {group: list(spans)})


def program_of(*groups, issuing=("a",)):
    """`groups`: (name, partition)."""
    made = [Some(name=name, partition=partition) for name, partition in groups]
    issues = {name: Interval(name, queue=(A,)) for name in issuing}
    return Some(groups=made, stages={}, intervals=issues)


def tile(begin, iterations, cycles=10):
    """A step before the loop, and iterations of two steps."""
    spans = [Span(interval(), begin, begin + cycles, None)]
    for number, iteration in enumerate(iterations):
        at = begin + cycles * (1 + 2 * number)
        spans += [
            Span(interval(), at, at + cycles, iteration),
            Span(interval(), at + cycles, at + 2 * cycles, iteration),
        ]
    return spans


def test_steps_know_their_tile_and_whether_its_first_iteration_is_over():
    made = _replay(alone(cta_of(*tile(0, [0, 1, 2]), *tile(200, [3, 4]))), {"a"}, {})
    steps = made.steps[A0]
    assert [step.tile for step in steps] == [-1] + [0] * 7 + [1] * 4
    assert [step.steady for step in steps] == [False] * 3 + [True] * 4 + [False] * 3 + [True] * 2
    assert [step.iteration for step in steps] == [None, 0, 0, 1, 1, 2, 2, None, 3, 3, 4, 4]
    assert made.known == {A0: 0}


def test_a_long_cta_is_run_again_from_its_beginning(monkeypatch):
    monkeypatch.setattr(whatif, "STEPS_PER_SM", 4)
    spans = tile(0, range(6))
    assert len(_replay(alone(cta_of(*spans)), {"a"}, {}).steps[A0]) == 5
    two = Cta(0, 0, 0, {"a": spans, "b": [Span(interval(), n, n + 1, None) for n in (0, 5, 15, 100)], "c": spans})
    made = _replay(alone(two), {"a", "b"}, {})  # the fifth start of both is at 15
    assert {row: len(steps) for row, steps in made.steps.items()} == {A0: 2, B0: 3}


def test_neighbours_are_replayed_from_shortly_before_a_cta_until_its_last_step():
    """A CTA of 7 steps from 0 to 70; another of 13 from -40 to 90, of which 15 cycles before are followed."""
    both = [Resident(cta_of(*tile(0, range(3)))), Resident(cta_of(*tile(5000, range(6))), later=-5040)]
    made = _replay(Neighbours(both), {"a"}, {})
    first, other = made._courses[A0], made._courses[A1]
    assert (first.start, len(first.steps), first.known, len(first.past)) == (0, 7, 0, 0)
    assert (other.start, len(other.steps), other.known, len(other.past)) == (-10, 8, 1, 3)
    assert set(made._cut) == {1}
    assert set(_replay(Neighbours(both, followed=True), {"a"}, {})._cut) == {0, 1}
    assert set(_replay(Neighbours(both[:1], followed=True), {"a"}, {})._cut) == set()


def test_what_came_before_is_not_drawn():
    wait = interval("wait", "wait", waits=(LOADED,))
    steps = [Step(wait, 1.0 + n, n, 0, steady=n > 0) for n in range(9)]
    made = Replay({A0: Course(steps, 0.0, known=3)}, {})
    draws = _drawn(made, [(A0, step, 100.0 + n) for n, step in enumerate(steps)][3:])
    assert all(draw[A0][:3] == [1.0, 2.0, 3.0] for draw in draws)
    assert all(sorted(draw[A0][3:]) == [103.0 + n for n in range(6)] for draw in draws)


def test_ctas_that_are_there_at_once_share_the_steps(monkeypatch):
    monkeypatch.setattr(whatif, "STEPS_PER_SM", 8)
    one = Resident(cta_of(*tile(0, range(6))))
    assert len(_replay(Neighbours([one]), {"a"}, {}).steps[A0]) == 9
    assert {len(steps) for steps in _replay(Neighbours([one, one]), {"a"}, {}).steps.values()} == {5}


def test_a_cta_came_in_the_place_of_the_last_that_had_ended_before_and_was_not_taken():
    def resident(start, end):
        return Resident(cta_of(Span(interval(), 0, end - start, None)), later=start)

    residents = [resident(100, 200), resident(-50, 120), resident(0, 130), resident(140, 300), resident(145, 290)]
    sm = Neighbours([*residents, resident(125, 126)])
    assert sm.places == {5: 1, 3: 2, 4: 5}
    assert sm.together == 3


def test_what_takes_no_time_is_a_region_here_or_everywhere_a_load_or_an_mma():
    load = interval("load", "load K", loads=(("K", LOADED),))
    issue = interval("issue", "issue", queue=(A,))
    both = {
        "a": [Span(issue, 0, 5, 0), Span(interval(name="x"), 5, 9, 0), Span(interval(name="out"), 9, 12, None)],
        "b": [Span(load, 0, 5, 0), Span(interval(name="x"), 5, 9, 0)],
    }
    sms = Sms([alone(Cta(0, 0, 0, both))], program_of(("a", 0), ("b", 1)))
    assert sms.changes() == {
        ("issue", "a"): Change(regions=frozenset({("a", "issue")})),
        ("x", "a"): Change(regions=frozenset({("a", "x")})),
        ("load K", "b"): Change(loads=frozenset({"K"})),
        ("x", "b"): Change(regions=frozenset({("b", "x")})),
        ("x", "all"): Change(regions=frozenset({("a", "x"), ("b", "x")})),
        ("A @ B", "tensor cores"): Change(mmas=frozenset({"A @ B"})),
    }


def test_of_warps_with_the_same_code_the_first_stands_for_all():
    spans = tile(0, range(4))
    cta = Cta(0, 0, 0, {"a": spans, "b": spans, "c": spans})
    sms = Sms([alone(cta)], program_of(("a", 0), ("b", 0), ("c", 1), issuing=("a", "c")))
    assert [sorted(replay.steps) for replay in sms._replays] == [[A0, (0, "c")]]
    assert sorted(sms._groups) == ["a", "c"]


def test_a_replay_runs_through_where_every_group_that_issues_comes_to_its_end():
    wait = Span(interval("wait", waits=(LOADED,)), 100, 110, None)
    load = Span(interval("load", loads=(("K", LOADED),)), 0, 9, None)

    def runs(*of, issuing=("a", "b")):
        made = [Cta(0, 0, 0, spans) for spans in of]
        return Sms([*map(alone, made)], program_of(("a", 0), ("b", 1), issuing=issuing)).run_through(ASSUMED)

    whole, hangs = {"a": [load], "b": [wait]}, {"a": [load], "b": [wait, wait]}
    assert runs(whole) is True
    assert runs(whole, whole) is True
    assert runs(hangs) is False
    assert runs(whole, hangs) is False
    assert runs(hangs, issuing=("a",)) is True


def test_the_load_of_several_ctas_is_the_shortest():
    load, wait = interval("load", loads=(("K", LOADED),)), interval("wait", waits=(LOADED,))

    def waited(cycles):
        return Cta(
            0, 0, 0, {"a": [Span(load, 0, 5, 0)], "b": [Span(wait, 0, cycles, 0), Span(wait, cycles, cycles + 7, 1)]}
        )

    program = program_of(("a", 0), ("b", 1))
    assert Sms([alone(waited(cycles)) for cycles in (90, 60, 70)], program).load_cycles == 53.0
    assert Sms([], program).load_cycles == 0.0


def test_loads_and_tensor_cores_are_taken_to_be_a_fifth_off_either_way():
    found = [(one.load_cycles, one.flop_per_cycle) for one in _deviations(Assumptions(100.0, 1000.0))]
    assert found == [(80.0, 1000.0), (120.0, 1000.0), (100.0, 800.0), (100.0, 1200.0)]


def test_self_times_are_drawn_from_iterations_after_the_first_the_same_of_one_name():
    """Of `wait` 8 steady iterations in a, 4 in b; `once` was late in a tile's first alone; `x` hangs on nothing."""
    wait_a, wait_b = (interval("wait", "wait", group, waits=(LOADED,)) for group in "ab")
    once, free = interval("wait", "once", waits=(FREED,)), interval("other", "x")
    a = [Step(wait_a, 1.0, iteration, 0, steady=iteration > 0) for iteration in range(9)] + [
        Step(once, 2.0, 0, 0),
        Step(free, 33.0, 1, 0),
    ]
    b = [Step(wait_b, 1.0, iteration, 0, steady=iteration > 0) for iteration in range(5)]
    made = Replay({A0: Course(a, 0.0), B0: Course(b, 0.0)}, {})
    reached = [(A0, step, 100.0 + n) for n, step in enumerate(a)] + [(B0, step, 500.0 + n) for n, step in enumerate(b)]
    draws = _drawn(made, reached)
    assert len(draws) == whatif.DRAWS
    for draw in map(groups, draws):
        assert sorted(draw["a"][:8]) == [101.0 + n for n in range(8)]
        assert draw["a"][9:] == [109.0, 33.0]
        assert [b - 501 for b in draw["b"]] == [(a - 101) % 4 for a in draw["a"][:5]]
    assert len({tuple(draw[A0]) for draw in draws}) == whatif.DRAWS


def test_a_saving_has_the_least_and_the_most_of_what_is_assumed():
    """A loop of one group that issues A, waits 100 cycles for it, and does arithmetic for 50."""
    issue, wait, work = interval("issue", queue=(A,)), interval("wait", "w", queue=(0,)), interval("arithmetic", "x")
    spans = []
    for iteration in range(12):
        at = 155 * iteration
        spans += [
            Span(issue, at, at + 2, iteration),
            Span(wait, at + 2, at + 105, iteration),
            Span(work, at + 105, at + 155, iteration),
        ]
    program = program_of(("a", 0))
    graph, rows, own = what_if([alone(Cta(0, 0, 0, {"a": spans}))], program, 10.0)
    assert (graph.ctas, graph.measured_cycles, graph.cycles, graph.flop_per_cycle) == (1, 155.0, 155.0, 10.0)
    found = {(row.region, row.warp_group): row for row in rows}
    assert found["x", "a"].cycles == 50.0
    core = found["A @ B", "tensor cores"]
    assert (core.cycles, core.low, core.high) == (98.0, pytest.approx(1000 / 12 - 2), 103.0)
    assert (core.assumed_low, core.assumed_high) == (core.low, core.high)
    assert [row.cycles for row in rows] == sorted((row.cycles for row in rows), reverse=True)
    assert own["a", "x"] == 50.0
    short = what_if([alone(Cta(0, 0, 0, {"a": spans[:3]}))], program, 10.0)
    assert short[:2] == (None, [])
    assert short[2]["a", "x"] == 50.0
