"""What follows from a timeline's numbers, to the digit: at each limit, on both sides of it, and of unequal numbers."""

from types import SimpleNamespace as Some

import pytest

from kperf.trace.analyze import facts
from kperf.trace.analyze.models import IterationTime, Memory, Overhead, TrafficRecord, WhatIf


def overhead(ratio, original_ms=2.0):
    return Overhead(original_ms=original_ms, instrumented_ms=original_ms * (ratio or 1), ratio=ratio)


def one_pass(cycles, ratio, regions=("a",), order=None):
    return Some(iteration_cycles=cycles, overhead=overhead(ratio), regions=list(regions), sass_order=order)


def iterated(iteration_time, ratio, *, joined=None, passes=(), apart=None, unit="iteration"):
    return Some(
        unit=unit, cycles_per_unit=Some(median=iteration_time), overhead=overhead(ratio), joined=joined,
        passes=list(passes), apart=apart and Some(passes=list(apart)),
    )  # fmt: skip


def test_the_iteration_time_of_one_launch_is_its_own():
    found = facts.iteration(iterated(1000.0, 1.25))
    assert found == IterationTime(cycles=1000.0, pass_number=None, cost=0.25, least=1000.0, most=1000.0)
    assert facts.iteration(iterated(1000.0, None)).cost is None
    assert facts.iteration(iterated(1000.0, 1.25, unit="CTA")) is None


def test_of_launches_apart_the_one_that_changes_least_gives_the_iteration_time():
    apart = [one_pass(1900.0, 0.97), one_pass(None, 1.0), one_pass(2150.0, 1.25), one_pass(2020.0, 1.015625)]
    found = facts.iteration(iterated(2500.0, 1.5, apart=apart))
    assert found == IterationTime(cycles=2020.0, pass_number=4, cost=0.015625, least=1900.0, most=2500.0)
    own = facts.iteration(iterated(1800.0, 1.0078125, apart=apart))
    assert own == IterationTime(cycles=1800.0, pass_number=None, cost=0.0078125, least=1800.0, most=2150.0)
    unknown = facts.iteration(iterated(2500.0, None, apart=[one_pass(2100.0, None), one_pass(2200.0, 3.0)]))
    assert (unknown.cycles, unknown.pass_number, unknown.cost) == (2200.0, 2, 2.0)


def test_of_a_joined_iteration_it_is_the_iterations_and_the_cost_its_own_pass():
    passes = [one_pass(2300.0, 1.125), one_pass(1990.0, 1.0625), one_pass(None, 1.0)]
    joined = Some(iteration_pass=1, left_out=[0])
    found = facts.iteration(iterated(2000.0, 1.5, joined=joined, passes=passes))
    assert found == IterationTime(cycles=2000.0, pass_number=2, cost=0.0625, least=1990.0, most=2300.0)


def judged(
    *, cycles=1000.0, drawn=1000.0, least=1000.0, most=1000.0, cost=0.0, number=None, bound=None, residency=1,
    graph=(1000.0, 1000.0), ratio=1.0, rows=(), level="high",
):  # fmt: skip
    """A timeline whose graph ran `graph` (cycles, measured)."""
    return Some(
        iteration=IterationTime(cycles=cycles, pass_number=number, cost=cost, least=least, most=most),
        cycles_per_unit=Some(median=drawn),
        bound=None if bound is None else Some(cycles=bound),
        residency=Some(original=residency, instrumented=residency),
        replay=graph and Some(cycles=graph[0], measured_cycles=graph[1], error=graph[0] / graph[1] - 1),
        overhead=overhead(ratio),
        confidence=Some(level=level, reasons=["a reason"]),
        what_if=list(rows),
        withheld=[],
        resources=None,
        events=Some(lost=0, written=100),
        sampled=None,
        why_all="",
        clock_is_plausible=True,
        sass_order=Some(same=True),
    )


def row(cycles, low, high, group="producer", region="r"):
    return WhatIf(
        region=region, warp_group=group, cycles=cycles, low=0, high=0, assumed_low=low, assumed_high=high
    )  # fmt: skip


@pytest.mark.parametrize(
    ("of", "unknown"),
    [
        ({"cost": 0.0625}, 62.5),
        ({"cost": -0.0625}, 62.5),
        ({"cost": None}, 50.0),
        ({"graph": (980.0, 1000.0), "cost": 0.0}, 20.0),
        ({"graph": (1030.0, 1000.0), "cost": 0.0625}, 92.5),
        ({"least": 900.0, "most": 1100.0, "cost": 0.5}, 100.0),
        ({"least": 900.0, "most": 1100.0, "drawn": 1150.0}, 150.0),
        ({"least": 900.0, "most": 1100.0, "drawn": 870.0}, 130.0),
        ({"least": 900.0, "most": 1100.0, "drawn": 920.0}, 100.0),
    ],
)
def test_what_is_uncertain_of_an_iteration(of, unknown):
    assert facts._unknown_cycles(judged(**of)) == unknown


@pytest.mark.parametrize(
    ("of", "above"),
    [
        ({}, 1000.0),
        ({"bound": 600.0}, 400.0),
        ({"bound": 600.0, "residency": 2}, 0.0),
        ({"bound": 300.0, "residency": 3}, 100.0),
        ({"bound": 600.0, "residency": None}, 400.0),
        ({"bound": 600.0, "graph": (1000.0, 1040.0)}, 440.0),
        ({"bound": 600.0, "graph": (1040.0, 960.0)}, 400.0),
        ({"bound": 600.0, "graph": (1000.0, 1040.0), "number": 2}, 400.0),
        ({"bound": 600.0, "graph": None}, 400.0),
    ],
)
def test_what_of_an_iteration_can_be_saved_is_above_the_bound_of_all_ctas(of, above):
    assert facts._above_the_bound(judged(**of)) == above


def test_savings_have_what_is_uncertain_around_them_and_end_at_the_bound():
    rows = [row(200.0, 150.0, 260.0), row(390.0, 300.0, 380.0), row(700.0, 650.0, 990.0, "tensor cores", "MMA")]
    said, withheld = facts.what_ifs(judged(rows=rows, cost=0.0625, bound=600.0))
    assert withheld == []
    assert [(one.region, one.cycles, one.low, one.high) for one in said] == [
        ("MMA", 700.0, 587.5, 1000.0), ("r", 390.0, 237.5, 400.0), ("r", 200.0, 87.5, 322.5)
    ]  # fmt: skip
    assert [(one.assumed_low, one.assumed_high) for one in said] == [(650.0, 990.0), (300.0, 380.0), (150.0, 260.0)]


@pytest.mark.parametrize(
    ("of", "why"),
    [
        ({}, None),
        ({"rows": [row(100.0, 62.5, 120.0)], "cost": 0.0625}, "62 cycles are uncertain, so that it may save nothing"),
        ({"rows": [row(100.0, 62.6, 120.0)], "cost": 0.0625}, None),
        ({"bound": 980.0}, "the iteration is at its bound"),
        ({"bound": 979.0}, None),
        ({"graph": (1050.1, 1000.0)}, "the replay does not explain the iteration time"),
        ({"graph": (1049.9, 1000.0)}, None),
        ({"graph": (949.9, 1000.0)}, "the replay does not explain the iteration time"),
        ({"level": "low"}, "confidence is low: a reason"),
        ({"level": "medium"}, None),
    ],
)
def test_a_saving_is_withheld_with_the_reason(of, why):
    said, withheld = facts.what_ifs(judged(**({"rows": [row(500.0, 400.0, 600.0)]} | of)))
    assert [one.why for one in withheld] == ([why] if why else [])
    assert len(said) == (0 if why else 1)


def test_without_a_graph_what_was_read_stays_as_it_is():
    rows = [row(100.0, 50.0, 120.0)]
    assert facts.what_ifs(judged(rows=rows, graph=None)) == (rows, [])


@pytest.mark.parametrize(
    ("close", "cycles", "at"),
    [
        (0.02, 1019.0, True), (0.02, 1021.0, False), (0.02, 981.0, True), (0.02, 979.0, False),
        (0.25, 1250.0, True), (0.25, 750.0, True),  # what binary numbers hold exactly
    ],
)  # fmt: skip
def test_an_iteration_within_2_percent_of_its_bound_is_at_it(monkeypatch, close, cycles, at):
    if close != facts.CLOSE:
        monkeypatch.setattr(facts, "CLOSE", close)
    assert facts.at_bound(judged(cycles=cycles, bound=1000.0)) is at
    assert facts.at_bound(judged(cycles=cycles)) is False


@pytest.mark.parametrize(
    ("ratio", "levels", "words"),
    [
        (None, [1], "unknown"),
        (1.05, [], ""),
        (0.95, [], ""),
        (1.0502, [1], "5% slower"),
        (0.9498, [1], "5% faster"),
        (1.15, [1], "15% slower"),
        (1.1502, [2], "15% slower"),
        (0.84, [2], "16% faster"),
    ],
)
def test_what_events_cost_lowers_confidence(ratio, levels, words):
    reasons = facts._of_cost(Some(overhead=overhead(ratio), sampled=None))
    assert [level for level, _ in reasons] == levels
    assert all(words in why for _, why in reasons)


@pytest.mark.parametrize(("events", "share"), [(10, None), (11, "6%"), (100, "50%")])
def test_what_the_events_of_recorded_ctas_take_of_these_lowers_the_confidence_of_a_sample(events, share):
    """30 cycles an event of each of two warp groups, in 6000 cycles, 50 times."""
    t = Some(overhead=overhead(1.01), sampled=Some(recorded=3), units=50, roles=[1, 2])
    t.events, t.cycles_per_unit = Some(written=events * 50 * 2), Some(median=6000.0)
    why = f"events take about {share} of the time of the CTAs that are recorded"
    assert facts._of_cost(t) == ([] if share is None else [(1, why)])
    t.sampled = None
    assert facts._of_cost(t) == []


def used(original, instrumented, spilled=(0, 0)):
    return Some(
        residency=Some(original=original, instrumented=instrumented),
        resources=Some(original=Some(spilled_bytes=spilled[0]), instrumented=Some(spilled_bytes=spilled[1])),
        sampled=None,
    )


@pytest.mark.parametrize(
    ("of", "reasons"),
    [
        (used(4, 4), []),
        (used(4, 3), [(1, "has 3 CTAs on an SM where the original has 4")]),
        (used(4, 2), [(2, "has 2 CTAs on an SM where the original has 4")]),
        (used(2, 3), [(2, "has 3 CTAs on an SM where the original has 2")]),
        (used(3, 4), [(1, "has 4 CTAs on an SM where the original has 3")]),
        (used(None, 3), []),
        (used(3, None), []),
        (used(4, 4, (8, 24)), []),
        (used(4, 4, (8, 25)), [(1, "spill 17 bytes a thread more")]),
        (used(4, 4, (80, 8)), []),
    ],
)
def test_other_resources_lower_confidence(of, reasons):
    found = facts._of_resources(of)
    assert [level for level, _ in found] == [level for level, _ in reasons]
    assert all(words in why for (_, words), (_, why) in zip(reasons, found, strict=True))


@pytest.mark.parametrize(
    ("of", "reasons"),
    [
        ({}, []),
        ({"drawn": 1020.0}, []),
        ({"drawn": 1021.0}, [(1, "takes 2% more than with few events")]),
        ({"drawn": 979.0}, [(1, "takes 2% less than with few events")]),
        ({"drawn": 1100.0}, [(1, "takes 10% more")]),
        ({"drawn": 1101.0}, [(2, "takes 10% more")]),
        ({"drawn": 899.0}, [(2, "takes 10% less")]),
        ({"least": 990.0, "most": 1010.0}, []),
        ({"least": 989.0, "most": 1010.0}, [(1, "iterations of 989 to 1010 cycles")]),
        ({"graph": (1060.0, 1000.0)}, [(1, "the replay of the dependency graph is +6% off")]),
        ({"graph": (940.0, 1000.0)}, [(1, "is -6% off")]),
    ],
)
def test_another_schedule_lowers_confidence(of, reasons):
    found = facts._of_schedule(judged(**of))
    assert [level for level, _ in found] == [level for level, _ in reasons]
    assert all(words in why for (_, words), (_, why) in zip(reasons, found, strict=True))


def test_the_worst_reason_decides_and_stands_first():
    t = judged(drawn=1050.0, ratio=1.2)
    t.sass_order = Some(same=False)
    t.events = Some(lost=3, written=100)
    found = facts.confidence(t)
    assert found.level == "low"
    assert [reason[:22] for reason in found.reasons] == [
        "events make the launch", "an iteration that is d", "events change the orde", "3 of 100 events were o"
    ]  # fmt: skip
    t.overhead = overhead(1.0)
    assert facts.confidence(t).level == "medium"
    assert facts.confidence(judged()) == facts.Confidence(level="high", reasons=[])


def test_the_use_of_an_sm_is_the_share_of_the_launchs_cycles_of_all_sms():
    t = Some(
        sms=Some(sms=100), overhead=Overhead(original_ms=0.5, instrumented_ms=0.7, ratio=1.4), likely_clock_mhz=1600.0
    )
    assert facts.use_of_sm(t, 20_000_000.0) == 20e6 / (100 * 0.5e-3 * 1600e6)
    assert facts.use_of_sm(t, None) is None
    assert facts.use_of_sm(Some(sms=None), 1.0) is None


@pytest.mark.parametrize(
    ("ctas", "sms", "at_once"), [(132, 132, 1), (133, 132, 2), (264, 132, 2), (265, 132, 3), (9000, 132, 4)]
)
def test_ctas_on_an_sm_are_those_that_fit_and_are_there(ctas, sms, at_once):
    fits = Some(original=Some(occupancy=4), instrumented=Some(occupancy=3))
    found = facts.residency(Some(resources=fits, launch_ctas=ctas, sms=Some(sms=sms), ctas_per_sm=9))
    assert (found.original, found.instrumented) == (at_once, min(at_once, 3))
    unknown = facts.residency(Some(resources=fits, launch_ctas=ctas, sms=None, ctas_per_sm=9))
    assert (unknown.original, unknown.instrumented) == (4, 3)
    assert facts.residency(Some(resources=None, ctas_per_sm=9)).original == 9


ARGUMENTS = {
    "a_ptr": "float16 [3, 5]", "b_desc": "float32 [7]", "c_ptrs": "float8e4nv [11]", "d": "bool [2, 3, 5]", "n": "17",
    "e": "int64 [3]", "f": "uint16 [3]", "g": "complex64 [3]", "s": "float64 []",
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("a", 30), ("b", 28), ("c", 11), ("d", 30), ("e", 24), ("f", 6), ("s", 8), ("a+b", 58), ("a+b+e", 82),
        ("g", None), ("n", None), ("a+n", None), ("z", None),
    ],
)  # fmt: skip
def test_the_bytes_of_arguments(name, size):
    assert facts.size_of(ARGUMENTS, name) == size


def test_device_memory_moves_each_address_once_loads_and_stores_apart():
    parts = [
        TrafficRecord(argument="a", loaded_bytes=100, stored_bytes=20, places=2),  # 30 bytes: loads 30 of 50, stores 20
        TrafficRecord(argument="b", loaded_bytes=30, stored_bytes=50, places=3),  # 28 bytes: 10 and 28
        TrafficRecord(argument="z", loaded_bytes=7, stored_bytes=7),
    ]
    kept = Memory(traffic=parts, gb_per_s=1.0, waits=[], loads_in_flight_bytes=0.0)
    t = Some(memory=kept, arguments=ARGUMENTS, overhead=overhead(1.5, original_ms=2.0))
    found = facts.memory(t)
    assert [part.unique_bytes for part in found.traffic] == [50, 38, None]
    assert found.unique_gb_per_s == 88 / 2.0 / 1e6
    unknown = kept.model_copy(update={"traffic": parts[2:]})
    assert facts.memory(Some(memory=unknown, arguments=ARGUMENTS, overhead=t.overhead)).unique_gb_per_s is None


SAME = Some(same=True, original=["x"], instrumented=["x"], differences=[])


def other_order(original_waits, traced_waits):
    return Some(
        same=False,
        original=["wait for wgmma 0"] * original_waits + ["x"],
        instrumented=["wait for wgmma 0"] * traced_waits + ["x"],
        differences=["x before y"],
    )


def faster(ratio, order=SAME, **more):
    given = {"joined": None, "apart": None, "passes": [], "sampled": None, "all_ctas": None} | more
    return facts.findings(Some(overhead=overhead(ratio), sass_order=order, kernel="k", **given))


@pytest.mark.parametrize(
    ("ratio", "severity"),
    [(1.0, None), (0.981, None), (0.98, "low"), (0.92, "low"), (1 / 1.125, "medium"), (0.67, "medium"), (0.5, "high")],
)
def test_a_launch_that_wins_2_percent_is_a_finding_whose_severity_is_its_gain(ratio, severity):
    found = faster(ratio)
    assert [one.severity for one in found] == ([severity] if severity else [])
    for one in found:
        assert one.evidence == {"speedup": 1 / ratio}
        assert (one.estimate.speedup, one.estimate.low, one.estimate.high) == (1 / ratio, 1.0, 1 / ratio)
        assert (one.id, one.confidence) == ("faster-in-another-step", "medium")
        assert f"is {1 - ratio:.1%} faster than the original" in one.message


@pytest.mark.parametrize(
    ("waits", "name"),
    [((3, 1), "wgmma-serialised"), ((1, 1), "faster-in-another-order"), ((1, 3), "faster-in-another-order")],
)
def test_waits_that_the_assembler_adds_are_told_from_another_order(waits, name):
    (one,) = faster(0.5, other_order(*waits))
    assert (one.id, one.confidence) == (name, "high")
    if name == "wgmma-serialised":
        assert (one.evidence["waits_original"], one.evidence["waits_instrumented"]) == waits
        assert f"at {waits[0]} places, and the machine code with events at {waits[1]}" in one.message


def test_a_launch_of_sampled_ctas_says_nothing_of_another_order():
    """Most of its CTAs have no events: what they win is of other registers, and no advice follows from it."""
    assert faster(0.9)
    assert faster(0.9, sampled=Some(stride=17)) == []
    every = Some(overhead=overhead(0.8), sass_order=SAME)
    (beside,) = faster(0.9, sampled=Some(stride=17), all_ctas=every)
    assert beside.evidence["speedup"] == 1 / 0.8


def test_of_several_launches_the_fastest_is_named():
    passes = [one_pass(1.0, 0.9, ["x"], SAME), one_pass(1.0, 0.8, ["y", "z"], SAME), one_pass(1.0, None, ["w"], SAME)]
    (apart,) = faster(0.95, apart=Some(passes=passes))
    assert apart.evidence == {"speedup": 1.25}
    assert "with events at y; z the kernel" in apart.message
    (own,) = faster(0.75, apart=Some(passes=passes))
    assert "with all events the kernel" in own.message
    (joined,) = faster(
        0.5, joined=Some(), passes=passes
    )  # the launch with all events is none of the joined iteration's
    assert joined.evidence == {"speedup": 1.25}
    assert faster(None) == []
