"""What joins passes, or tells them apart, of numbers on both sides of each limit."""

from types import SimpleNamespace as Some

import numpy as np
import pytest

from kperf.trace.analyze import joining
from kperf.trace.analyze.joining import Iterations, MeasuredProbe, Part
from kperf.trace.analyze.models import Quantiles, UnitUse
from kperf.trace.instrument.program import Interval, Mma
from kperf.trace.instrument.program import Part as WorkPart

FULL = (0, "full")


def one_pass(cycles, regions=("r", "s")):
    return Some(iteration_cycles=cycles, regions=list(regions))


def test_passes_that_add_up_to_something_else_are_named_the_furthest_off_first():
    passes = [one_pass(1019.0), one_pass(1000.0), one_pass(1031.0, ["x"]), one_pass(960.0), one_pass(981.0)]
    assert joining._open(passes, 1, 1000.0) == {
        3: "the intervals of pass 4 (r; s) add up to 960 cycles, -4.0% of the 1000 of pass 2",
        2: "the intervals of pass 3 (x) add up to 1031 cycles, +3.1% of the 1000 of pass 2",
    }
    assert list(joining._open(passes, 1, 1000.0)) == [3, 2]
    assert joining._open([one_pass(1000.0)], 0, 1019.0) == {}
    differ = "iterations of pass 1 (r; s) differ too much: 1000 cycles in the mean, 1025 in the median"
    assert joining._open([one_pass(1000.0)], 0, 1025.0) == {0: differ}
    assert joining._open([one_pass(1000.0)], 0, 975.0)[0].endswith("1000 cycles in the mean, 975 in the median")


@pytest.mark.parametrize(
    ("lag", "words"),
    [
        (300.0, None),
        (399.0, None),
        (201.0, None),
        (401.0, "101 cycles later"),
        (199.0, "101 cycles earlier"),
        (1300.0, None),  # a whole iteration later is the same step
        (-700.0, None),
        (1450.0, "150 cycles later"),
        (-900.0, "200 cycles earlier"),
        (799.0, "499 cycles later"),
        (801.0, "499 cycles earlier"),
    ],
)
def test_warp_groups_in_another_step_are_told_by_how_much(lag, words):
    passes, lags = [one_pass(1.0), one_pass(1.0)], [{"a": 0.0, "b": 300.0}, {"a": 0.0, "b": lag}]
    found = joining._out_of_step(passes, lags, 0, 1000.0)
    said = f"in pass 2 (r; s) b begins its iterations {words} than in pass 1"
    assert found == ({1: said} if words else {})


def test_a_probe_that_lies_before_the_one_that_it_follows_is_named():
    of = Some(names=["start", "QK", "softmax", "PV"])
    quantiles = np.zeros(101)
    placed = {
        0: MeasuredProbe(0.0, quantiles, 0),
        1: MeasuredProbe(500.0, quantiles, 3),
        2: MeasuredProbe(481.0, quantiles, 1),
    }
    assert joining._disorder(placed, of, "a", 1000.0) == []
    placed[3] = MeasuredProbe(460.0, quantiles, 4)
    assert joining._disorder(placed, of, "a", 1000.0) == ["PV of a lies 21 cycles before softmax, which it follows "
                                                           "(passes 5 and 2)"]  # fmt: skip


def test_the_lag_of_a_group_is_of_the_last_iterations_that_all_keep_less_what_it_does_ahead(monkeypatch):
    """Two CTAs of one tile; `b` makes 6 iterations to 4 of `a` and begins two earlier; buffers keep 5 of `b`'s."""
    launch = Some(events=Some(n_ctas=2), main_scope={"a": 1, "b": 2, "c": None})
    told = Some(boundaries=lambda group: np.zeros(0), iterations={"a": 8, "b": 12}.__getitem__)
    anchors = {
        "a": ([[4, 3, 2, 1], [4, 3, 2, 1]], [[100, 200, 300, 400], [1100, 1200, 1300, 1400]]),
        "b": ([[5, 4, 3, 2, 1], [4, 3, 2, 1]], [[1, 130, 230, 330, 430], [1130, 1230, 1330, 1450]]),
    }

    def numbered(_, group):
        places, cycles = anchors[group]
        numbers = [cta << 32 | place for cta, mine in enumerate(places) for place in mine]
        return np.array(numbers), np.concatenate([np.array(mine) for mine in cycles])

    monkeypatch.setattr(joining, "_anchors", numbered)
    monkeypatch.setattr(joining.analysis, "issuers", lambda _: ["a"])
    assert joining._lags(launch, told, 100.0) == {"a": 0.0, "b": 30.0 - 2 * 100.0}
    two_tiles = Some(boundaries=lambda group: np.zeros(2), iterations={"a": 8, "b": 12}.__getitem__)
    assert joining._lags(launch, two_tiles, 100.0) == {"a": 0.0, "b": 30.0 - 1 * 100.0}
    early = {"a": anchors["a"], "b": (anchors["b"][0], [[1, 930, 930, 330, 430], [1930, 1930, 1330, 1430]])}
    anchors.update(early)
    assert joining._lags(launch, two_tiles, 100.0)["b"] == 30.0 - 100.0  # the last two of a tile alone


def test_of_a_place_the_least_disturbing_pass_that_keeps_the_order_speaks():
    def told(same, ratio):
        return Some(record=Some(sass_order=Some(same=same), overhead=Some(ratio=ratio)))

    captured = [told(False, 1.0), told(True, 1.2), told(True, 0.9), told(True, 1.05)]

    def iterations(**offsets):
        return {
            "a": Iterations(None, None, 1000.0, {int(place[1:]): np.array(cycles) for place, cycles in offsets.items()})
        }

    of = [
        iterations(p1=[10, 20], p2=[5]),
        iterations(p1=[30, 50], p3=[7, 9]),
        iterations(p1=[60, 100]),
        iterations(p3=[1, 2, 6]),
    ]
    found = joining._placed(of, "a", captured, [0, 1, 2, 3])
    assert {place: (probe.cycles, probe.number) for place, probe in found.items()} == {
        3: (3.0, 3),
        1: (80.0, 2),
        2: (5.0, 0),
    }
    assert (found[1].quantiles[0], found[1].quantiles[50], found[1].quantiles[100]) == (60.0, 80.0, 100.0)
    assert joining._placed(of, "a", captured, [0, 1])[1].cycles == 40.0


def test_intervals_between_which_no_pass_has_a_probe_are_one():
    mma = Mma("p", 1, "bf16")
    first = Interval("b", "x", "wait", waits=(FULL,), parts=(WorkPart("u", "wait"), WorkPart("v", "load")))
    second = Interval("b", "other", "other", signals=(FULL,), queue=(0,))
    third = Interval("b", "y", "issue", queue=(mma,), loads=(("K", FULL),))
    made = joining._merged("a", [second, first, third])
    assert (made.group, made.name, made.kind) == ("a", "x + y", "wait")
    assert (made.waits, made.signals, made.queue, made.loads) == ((FULL,), (FULL,), (0, mma), (("K", FULL),))
    assert made.parts == (WorkPart("u", "wait"), WorkPart("v", "load"), WorkPart("y", "issue"))
    alone = joining._merged("a", [third])
    assert (alone.group, alone.name, alone.queue) == ("a", "y", (mma,))
    nothing = joining._merged("a", [second, second])
    assert (nothing.name, nothing.kind, nothing.queue) == ("other", "other", (0, 0))


def test_the_prologue_of_a_group_leads_from_outside_of_its_loop_into_it():
    """Of its own scopes alone, from the start of one to the start of one in the loop."""

    def scope(number, group, loop):
        return Some(number=number, group=group, loop=loop)

    scopes = [scope(0, 1, None), scope(1, 2, None), scope(2, 2, None), scope(3, 2, "for"), scope(4, 2, "for")]
    way, inside, another = (Interval("b", name) for name in ("way", "inside", "another"))
    intervals = {
        ((3, True), (4, True)): inside,
        ((0, True), (3, True)): another,
        ((2, True), (4, True)): way,
        ((1, True), (2, True)): another,
    }
    probed = Some(program=Some(scopes=scopes, intervals=intervals, code={"a": 1, "b": 2}.get))
    assert joining._prologue(probed, "b") is way
    assert joining._prologue(probed, "a") is None


def part(name, start, end, passes=(0,), **of):
    spread = Quantiles(median=end - start, p5=end - start - 1, p95=end - start + 2)
    interval = Interval("a", name, of.pop("kind", "other"), **of)
    return Part(interval, frozenset({interval.kind}), start, end, spread, passes)


def test_loads_are_waited_for_where_it_takes_longest():
    found = {
        "a": [part("w", 0.0, 50.0, waits=(FULL,)), part("x", 50.0, 90.0), part("u", 90.0, 120.0, uses=("m",))],
        "b": [part("w", 0.0, 85.0, waits=(FULL,)), part("w", 90.0, 95.0, waits=((1, "other"),))],
        "p": [part("load", 0.0, 900.0, loads=(("K", FULL),)), part("w", 0.0, 99.0, waits=(FULL,))],
    }
    wait = joining._load_wait(found, ["a", "b"], 1000.0)
    assert (wait.warp_group, wait.regions, wait.cycles, wait.share) == ("b", ["w"], 85.0, 0.085)
    wait = joining._load_wait(found, ["a"], 1000.0)
    assert (wait.warp_group, wait.regions, wait.cycles, wait.share) == ("a", ["w", "u"], 80.0, 0.08)
    assert joining._load_wait({"a": [part("x", 0.0, 1.0)]}, ["a"], 1000.0) is None


def test_regions_are_of_the_joined_iteration_and_what_is_outside_of_the_loop_of_one_launch():
    def region(name, group="a", share=0.0, per_iteration=0.0):
        return Some(warp_group=group, name=name, share=share, per_iteration=per_iteration, source=None)

    one = Some(regions=[region("before", share=0.1), region("x", per_iteration=77.0, share=0.5),
                        region("y", share=0.3), region("after", "b", share=0.25)])  # fmt: skip
    found = {
        "a": [part("x", 0.0, 100.0, (2,)), part("y", 100.0, 400.0, (0, 1)), part("x", 400.0, 650.0, (1,))],
        "b": [part("z", 0.0, 800.0), part("empty", 5.0, 5.0)],
    }
    regions = joining._regions(one, found, 1000.0, {("a", "x"): 44.0})
    assert [(one.warp_group, one.name) for one in regions] == [
        ("a", "before"), ("b", "after"), ("a", "x"), ("a", "y"), ("b", "z")
    ]  # fmt: skip
    x, y, z = regions[2:]
    assert (x.per_iteration, x.cycles.median, x.self_cycles, x.passes) == (350.0, 250.0, 44.0, [1, 2])
    assert (x.share, y.share, z.share) == (
        pytest.approx(0.6 * 0.35),
        pytest.approx(0.6 * 0.3),
        pytest.approx(0.75 * 0.8),
    )
    assert (y.self_cycles, y.passes, z.per_iteration) == (None, [0, 1], 800.0)


def test_the_use_of_units_is_of_the_joined_iteration():
    use = UnitUse(sm=0.5, cta_main_loop=0.1, in_flight_cta=0.2)
    made = joining._use(use, 0.7, 0.9)
    assert (made.sm, made.cta_main_loop, made.in_flight_cta) == (0.5, 0.7, 0.9)
    assert joining._use(None, 0.7, 0.9) is None
    mmas = [Mma("p", 300, "bf16"), Mma("q", 100, "bf16")]
    assert joining._flop_per_cycle(Some(mmas_per_iteration=lambda: mmas), 50.0) == 8.0
