"""Stretches, windows and shares of CTAs of a few spans, worked out by hand, with what only touches on either side."""

from types import SimpleNamespace as Some

import numpy as np
import pytest

from kperf.trace.analyze import analysis, views
from kperf.trace.analyze.analysis import Load, Release, _at, _cause, _load_release, _signal_release
from kperf.trace.analyze.timeline import Cta, InFlight, Neighbours, Resident, Span
from kperf.trace.instrument.program import Interval, Mma

FULL, EMPTY = (0, "full"), (1, "empty")


def span(start, end, iteration=None, name="r", kind="other", **of):
    return Span(Interval("a", name, kind, **of), start, end, iteration)


def mma(start, end, group="a", work=10.0):
    return InFlight(name="A @ B", group=group, start=start, end=end, iteration=0, work=work)


def cta(mmas=(), **spans):
    return Cta(0, 0, 0, {group: list(mine) for group, mine in spans.items()}, list(mmas))


def alone(**of):
    return Neighbours.alone(cta(**of))


def test_stretches_under_mmas_and_under_none():
    mmas = [mma(40, 60), mma(10, 20), mma(20, 25), mma(15, 18), mma(58, 90), mma(95, 95)]
    assert analysis.union(mmas, 0, 100) == [(10, 25), (40, 90)]
    assert analysis.idle(mmas, 0, 100) == [(0, 10), (25, 40), (90, 100)]
    assert analysis.union(mmas, 12, 50) == [(12, 25), (40, 50)]
    assert analysis.idle(mmas, 12, 50) == [(25, 40)]
    assert analysis.idle(mmas, 25, 40) == [(25, 40)]
    assert (analysis.union([], 3, 9), analysis.idle([], 3, 9)) == ([], [(3, 9)])


def test_windows_are_from_the_last_groups_second_iteration_to_the_first_groups_last():
    a = [span(start, start + 10, iteration) for iteration, start in enumerate((0, 100, 200, 300))]
    b = [span(start, start + 10, iteration) for iteration, start in enumerate((50, 130, 260, 290))]
    assert analysis.steady_windows(cta(a=a, b=b), ["a", "b"]) == [(130, 290)]
    assert analysis.steady_windows(cta(a=a, b=b), ["a"]) == [(100, 300)]
    assert analysis.steady_windows(cta(a=a[:3], b=b), ["a", "b"]) == []
    late = [span(start, start + 10, iteration) for iteration, start in enumerate((150, 300, 320, 330))]
    assert analysis.steady_windows(cta(a=a, b=late), ["a", "b"]) == []  # one's second iteration is the other's last
    two_tiles = [*a, span(310, 320), *(span(400 + 50 * n, 410 + 50 * n, 4 + n) for n in range(5))]
    assert analysis.steady_windows(cta(a=two_tiles), ["a"]) == [(100, 300), (450, 600)]


def iterations(count, tile=0, step=100):
    begin = 10_000 * tile
    return [
        one
        for iteration in range(count)
        for one in (
            span(begin + step * iteration, begin + step * iteration + 60, count * tile + iteration),
            span(begin + step * iteration + 60, begin + step * (iteration + 1), count * tile + iteration),
        )
    ]


@pytest.mark.parametrize(
    ("most", "window"),
    [
        (100, (0, 700)),
        (14, (0, 700)),
        (13, (0, 600)),
        (9, (100, 500)),
        (4, (200, 400)),
        (2, (200, 300)),
        (1, (300, 360)),
    ],
)
def test_of_a_long_cta_whole_iterations_from_its_middle_are_shown(most, window):
    """Seven iterations of two spans each; of an iteration that alone is too long its beginning."""
    assert analysis.exported_window(cta(a=iterations(7)), ["a"], most) == window


def test_of_several_tiles_the_middle_one_is_shown_and_how_the_next_begins():
    spans = []
    for tile in range(3):
        spans += [*iterations(6, tile), span(10_000 * tile + 600, 10_000 * (tile + 1))]
    assert analysis.exported_window(cta(a=spans), ["a"], 1000) == (10_000, 20_300)


def test_what_is_drawn_are_five_iterations_from_the_middle_and_the_end_of_a_tile():
    (window,) = analysis.windows(cta(a=iterations(9)), ["a"])
    assert (window.shows, window.start) == ("iterations", 400)
    assert (min(bar.start for bar in window.bars), max(bar.start for bar in window.bars)) == (400, 860)
    assert analysis.windows(cta(a=[span(0, 9)]), ["a"]) == []


def test_a_wait_is_released_by_the_last_that_signals_if_that_is_within_it():
    wait = span(100, 200, kind="wait", waits=(EMPTY,))

    def released(*sent):
        return _signal_release({group: [one] for group, one in sent}, 0, wait)

    assert released(("b", span(120, 150, kind="tensor"))) == Release("b", 150, None)
    assert released(("b", span(120, 150))) == Release("b", 120, None)  # at once
    assert released(("b", span(120, 150)), ("c", span(90, 140, kind="wait"))) == Release("c", 140, None)
    assert released(("b", span(60, 100, kind="issue"))) is None  # before the wait
    assert released(("b", span(60, 101, kind="issue"))) == Release("b", 101, None)
    assert released(("b", span(150, 260, kind="issue"))) == Release("b", 200, None)  # its record came later
    assert released(("b", span(200, 260, kind="issue"))) == Release("b", 200, None)
    assert released(("b", span(201, 260, kind="issue"))) is None
    assert released(("b", span(100, 300))) is None
    assert _signal_release({"b": [span(120, 150)]}, -1, wait) is None
    assert _signal_release({"b": [span(120, 150)]}, 1, wait) is None
    assert _signal_release({"b": [span(1, 2), span(130, 140)], "c": [span(1, 2)]}, 1, wait) == Release("b", 130, None)


def test_a_wait_for_a_load_hangs_on_who_issued_it_if_that_is_another():
    loads = [(10, "b", "K"), (20, "c", "K")]
    assert _load_release(loads, 1, "a") == Release("c", 20, "load K")
    assert _load_release(loads, 1, "c") is None
    assert _load_release(loads, 2, "a") is None


def test_loads_last_from_their_issue_to_the_first_group_that_has_them():
    load = {"kind": "load", "loads": (("K", FULL),)}
    wait = {"kind": "wait", "waits": (FULL,)}
    found = analysis.loads(
        cta(
            a=[span(50, 55, **load), span(5, 9, **load)],
            b=[span(0, 90, **wait), span(90, 120, **wait)],
            c=[span(0, 70, **wait), span(70, 130, **wait), span(130, 140, **wait)],
        )
    )
    assert found == [Load("K", "a", 5, 120), Load("K", "a", 50, 70)]
    assert analysis.loads(cta(a=[span(50, 55, **load)], b=[span(0, 50, **wait)])) == []  # it had it before


def test_what_a_group_does_at_a_cycle():
    spans = [span(10, 20, name="x"), span(20, 30, name="y"), span(35, 40, name="z")]
    assert [_at(spans, cycle) for cycle in (9, 10, 19, 20, 29, 30, 34, 35, 39, 40)] == [
        "done", "x", "x", "y", "y", "done", "done", "z", "z", "done"
    ]  # fmt: skip
    assert [_cause(doing) for doing in (["x"], ["x", "x"], ["x", "x", "x"], ["x", "y", "x"])] == [
        "x", "both in x", "all in x", "x beside y"
    ]  # fmt: skip


def launch_of(groups, **of):
    """As much of one as the analysis of some CTAs asks for."""
    scopes = {group: object() for group in groups}
    code = Some(code=lambda group: group)
    return Some(groups=list(groups), main_scope=scopes, program=code, **of)


@pytest.fixture
def _all_issue(monkeypatch):
    monkeypatch.setattr(analysis, "issuers", lambda launch: launch.groups)


@pytest.mark.usefixtures("_all_issue")
def test_arithmetic_is_hidden_under_ones_own_mmas_and_under_anyones():
    arithmetic = {"kind": "arithmetic"}
    a = [
        span(0, 100, 0, **arithmetic),
        span(100, 150, 0),
        span(150, 250, 1, **arithmetic),
        span(250, 350, **arithmetic),
    ]
    b = [span(0, 300, 0, **arithmetic)]
    found = analysis.hidden_arithmetic(launch_of("ab"), [cta(a=a, b=b, mmas=[mma(80, 170, "a"), mma(40, 90, "b")])])
    # Of a 200 cycles in two iterations, under its own 20 + 20, under any 60 + 20; of b 300 in one, 50 and 130.
    assert (found.cycles, found.under_own_mmas, found.under_any_mmas) == (500 / 3, 90 / 3, 210 / 3)
    none = analysis.hidden_arithmetic(launch_of("a"), [cta(a=[span(0, 9)])])
    assert (none.cycles, none.under_own_mmas, none.under_any_mmas) == (0, 0, 0)


def five_iterations():
    """Each of 400 cycles of x and 600 of y."""
    return [
        one
        for iteration, begin in enumerate(range(0, 5000, 1000))
        for one in (span(begin, begin + 400, iteration, "x"), span(begin + 400, begin + 1000, iteration, "y"))
    ]


@pytest.mark.usefixtures("_all_issue")
def test_bubbles_are_scaled_to_an_iteration_and_small_ones_add_up():
    a = five_iterations()
    mmas = [mma(begin + 300, begin + 895) for begin in range(0, 5000, 1000)]
    found, covered = analysis.bubbles(launch_of("a"), [alone(a=a, mmas=mmas)], 500.0)
    assert [(one.cause, one.cycles) for one in found] == [("x", 150.0), ("y", 52.5)]
    assert covered == pytest.approx(0.595)
    nearly = [mma(begin + 300, begin + 995) for begin in range(0, 5000, 1000)]
    found, _ = analysis.bubbles(launch_of("a"), [alone(a=a, mmas=nearly)], 500.0)
    assert [(one.cause, one.cycles) for one in found] == [("x", 150.0), ("other", 2.5)]
    assert analysis.bubbles(launch_of("a"), [alone(a=a[:4], mmas=mmas)], 500.0) is None


@pytest.mark.usefixtures("_all_issue")
def test_bubbles_of_an_sm_are_where_no_cta_has_an_mma_in_flight_by_what_those_do_that_are_there():
    """From 1000 to 4000, of which another CTA is there from 2100 to 3950, with an MMA from 2200 to 2400."""
    a = five_iterations()
    first = cta(a=a, mmas=[mma(begin + 300, begin + 895) for begin in range(0, 5000, 1000)])
    other = cta(a=[span(7000, 7060, 0, "p"), span(7060, 8850, 1, "q")], mmas=[mma(7100, 7300)])
    sm = Neighbours([Resident(first), Resident(other, later=-4900)])
    found, covered = analysis.bubbles(launch_of("a"), [sm], 300.0)
    assert {one.cause: one.cycles for one in found} == {
        "x": 40.0, "q beside x": 34.0, "q beside y": 16.0, "y": 15.5, "p beside x": 6.0,
    }  # fmt: skip
    assert covered == pytest.approx(1 - 1115 / 3000)


def test_the_use_of_an_sm_is_of_what_runs_while_a_cta_does():
    """A CTA of 100 cycles, and one that begins 60 later: of its MMA of 50 cycles 20 are within, two fifths."""
    own = cta(a=[span(1000, 1100)], mmas=[mma(1010, 1040, work=15.0), mma(1030, 1050, work=20.0)])
    other = cta(a=[span(0, 100)], mmas=[mma(1020, 1070, work=45.0), mma(1000, 1020, "b", 99.0)])
    sms = {3: Neighbours([Resident(own), Resident(other, later=60)]), 5: None}
    launch = Some(neighbours=sms.get, groups=["a", "b"], program=Some(code=lambda group: "a"))
    assert analysis.unit_use_of_sm(launch, [3]) == ((15 + 20 + 45 * 20 / 50) / 100, (40 + 20) / 100)
    assert analysis.unit_use_of_sm(launch, [3, 5]) is None
    assert analysis.unit_use_of_sm(launch, []) is None


def test_the_unit_of_compute_is_that_of_any_mma():
    def computed(*instructions):
        queues = [Interval("a", queue=(Mma("p", 1, "bf16", one), 0)) for one in instructions]
        return analysis.unit_of_compute(Some(intervals=dict(enumerate(queues))))

    assert computed("FMA", "wgmma") == "tensor core"
    assert computed("FMA", "FMA") == "fma"
    assert computed() == "none"


def side_by_side(start, end, sm, *, iterations=None, early=None, whole=None):
    """`views.Blocks` of these times in ns, without a launch."""
    made = object.__new__(views.Ctas)
    made.start, made.end, made.sm = (np.array(values) for values in (start, end, sm))
    made.span, made.n_sms = int(made.end.max()), int(made.sm.max()) + 1
    made.program_id, made.sm_id = np.arange(len(start)) + 100, made.sm * 2
    made.whole = np.ones(len(start), dtype=bool) if whole is None else np.array(whole)
    made.has_loop = iterations is not None
    made.iterations = np.array(iterations or [0] * len(start))
    made.silent = np.zeros(len(start), dtype=bool)
    made.loops = np.ones(len(start), dtype=bool) if early is None else ~np.array(early)
    return made


def test_how_a_launch_fills_its_sms():
    """SM 0: 0 to 400 and 300 to 700, then 800 to 1000; SM 1: 100 to 500; SM 2: 0 to 300, and 300 to 600."""
    made = side_by_side([0, 300, 800, 100, 0, 300], [400, 700, 1000, 500, 300, 600], [0, 0, 0, 1, 2, 2])
    use = made.sm_use()
    busy = 700 + 200 + 400 + 600
    assert (use.sms, use.span_us, use.most_resident) == (3, 1.0, 2)
    assert use.resident == (400 + 400 + 200 + 400 + 300 + 300) / busy
    assert use.idle == pytest.approx(1 - busy / 3000)
    assert (use.first_end_us, use.median_end_us) == (0.5, 0.6)
    assert (use.busy_sms[0], use.busy_sms[-1], len(use.busy_sms)) == (2, 0, views.CURVE_POINTS)
    at_350 = round(350 / 1000 * (views.CURVE_POINTS - 1))
    assert (use.busy_sms[at_350], use.running_ctas[at_350]) == (3, 4)


def test_how_many_run_at_a_time():
    times, start, end = np.array([0.0, 5, 10, 15, 20, 25]), np.array([10, 0, 10]), np.array([20, 10, 15])
    assert views._running(times, start, end).tolist() == [1, 1, 2, 1, 0, 0]


def test_how_ctas_differ_in_numbers():
    made = side_by_side(
        [0, 100, 0, 50], [400, 1100, 40, 650], [0, 1, 2, 2], iterations=[4, 9, 0, 7], early=[False, False, True, False]
    )
    found = made.imbalance()
    assert (found.early_share, found.early_time_share) == (0.25, 40 / 2040)
    assert (found.iterations.least, found.iterations.median, found.iterations.most) == (4, 7.0, 9)
    assert found.cta_us.median == pytest.approx(0.6)
    assert (found.slowest.program_id, found.slowest.sm, found.slowest.iterations) == (101, 2, 9)
    assert (found.slowest.start_us, found.slowest.us) == (0.1, 1.0)
    lost = side_by_side([0, 100], [400, 1100], [0, 1], iterations=[4, 9], whole=[True, False]).imbalance()
    assert (lost.slowest.iterations, lost.iterations.most) == (None, 4)
    assert side_by_side([0, 0], [5, 9], [0, 1]).imbalance().iterations is None


@pytest.mark.parametrize(("iterations", "differ"), [([4, 4, 5], False), ([4, 4, 6], True)])
def test_the_longest_ctas_differ_although_they_lost_events(iterations, differ):
    """What is left of a CTA whose buffer was too short is the least that it did."""
    times = [0, 0, 0], [400, 400, 9000], [0, 1, 2]
    assert side_by_side(*times, iterations=iterations, whole=[True, True, False]).differ is differ


@pytest.mark.parametrize(
    ("iterations", "differ"),
    [([4, 4, 6], True), ([20, 20, 29], False), ([6, 6, 4], True), ([30, 30, 21], False), ([8, 8, 8], False)],
)
def test_ctas_differ_from_half_as_many_iterations_more_on(iterations, differ):
    assert side_by_side([0] * 3, [9] * 3, [0, 1, 2], iterations=iterations).differ is differ


@pytest.mark.parametrize(("early", "differ"), [(1, True), (0, False)])
def test_ctas_differ_where_one_of_twenty_returns_early(early, differ):
    made = side_by_side(
        [0] * 20, [9] * 20, [0] * 20, iterations=[5] * 20, early=[True] * early + [False] * (20 - early)
    )
    assert made.differ is differ
    more = side_by_side(
        [0] * 21, [9] * 21, [0] * 21, iterations=[5] * 21, early=[True] * early + [False] * (21 - early)
    )
    assert more.differ is False
