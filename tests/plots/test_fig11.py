"""The cycles of an iteration under Fig. 11, stacked: of unequal numbers, and at the ends of what is shown."""

from itertools import pairwise
from types import SimpleNamespace as Some

import matplotlib.pyplot as plt
import pytest

from kperf.errors import UsageError
from kperf.plots import fig11


def stacked(*timelines):
    figure, axis = plt.subplots()
    shown = fig11._stacks(axis, timelines)
    bars = [(round(patch.get_y() + 0.35), patch.get_x(), patch.get_width()) for patch in axis.patches]
    names = [label.get_text() for label in axis.get_yticklabels()]
    numbers = [(text.get_text(), text.get_position()) for text in axis.texts]
    plt.close(figure)
    return list(shown), bars, numbers, names


def timeline(cycles, drawn, bound, *bubbles):
    return Some(
        iteration=cycles and Some(cycles=cycles), cycles_per_unit=Some(median=drawn), label="A kernel of it",
        overhead=Some(launch_ms=(cycles and cycles / 400) or 1.5),
        bound=None if bound is None else Some(cycles=bound), bubbles=[Some(cycles=one) for one in bubbles],
    )  # fmt: skip


def test_an_iteration_is_its_bound_what_is_beyond_bubbles_and_what_events_cost():
    """Of 600 drawn cycles beyond the bound bubbles are 150: a quarter, so of the 400 of the iteration 100."""
    shown, bars, numbers, names = stacked(
        timeline(900.0, 1100.0, 500.0, 100.0, 50.0), timeline(None, 800.0, None, 200.0)
    )
    assert bars == [
        (0, 0.0, 500.0), (0, 500.0, 300.0), (0, 800.0, 100.0), (0, 900.0, 200.0), (1, 0.0, 600.0), (1, 600.0, 200.0)
    ]  # fmt: skip
    assert shown == [fig11.IDLE.label]  # the others are named in the bars, where they are widest
    assert numbers == [
        ("500", (250.0, 0)), ("MMAs at the peak rate", (250.0, -0.37)), ("300", (650.0, 0)), ("100", (850.0, 0)),
        ("200", (1000.0, 0)), ("events", (905.4, -0.37)), (" 900\n 2.25 ms", (1100.0, 0)),
        ("600", (300.0, 1)), ("queued or in latency", (595.2, 0.63)), ("200", (700.0, 1)),
        (" 800\n 1.50 ms", (800.0, 1)),
    ]  # fmt: skip
    assert names == ["A\nkernel of it"] * 2


def test_what_is_less_than_a_cycle_is_not_drawn_and_a_narrow_part_has_no_number():
    _, bars, numbers, _ = stacked(timeline(1000.0, 1000.9, 955.0))
    assert bars == [(0, 0.0, 955.0), (0, 955.0, 45.0)]
    assert [text for text, _ in numbers] == ["955", fig11.RATE.label, fig11.BEYOND.label, " 1000\n 2.50 ms"]
    _, bars, numbers, _ = stacked(timeline(1000.0, 1001.0, 954.0))
    assert bars == [(0, 0.0, 954.0), (0, 954.0, 46.0), (0, 1000.0, 1.0)]
    named = [style.label for style in (fig11.RATE, fig11.BEYOND, fig11.EVENTS)]
    assert [text for text, _ in numbers if text not in named] == ["954", "46", " 1000\n 2.50 ms"]


def test_names_of_narrow_parts_do_not_overlap():
    figure, axis = plt.subplots(figsize=(8, 1))
    fig11._stacks(axis, [timeline(2111.0, 2399.0, 2048.0)])
    boxes = {text.get_text(): text.get_window_extent() for text in axis.texts}
    plt.close(figure)
    names = [boxes[style.label] for style in (fig11.RATE, fig11.BEYOND, fig11.EVENTS)]
    assert all(left.x1 + 4 <= right.x0 for left, right in pairwise(names))


def test_a_bound_is_no_longer_than_the_iteration_and_bubbles_no_longer_than_what_is_beyond():
    assert stacked(timeline(1000.0, 1000.0, 1200.0, 5.0))[1] == [(0, 0.0, 1000.0)]
    assert stacked(timeline(1000.0, 800.0, 700.0, 500.0))[1] == [(0, 0.0, 700.0), (0, 700.0, 300.0)]
    least = stacked(timeline(1000.0, 400.5, 400.0, 0.25))[1]  # of one cycle beyond the bound at the least
    assert least == [(0, 0.0, 400.0), (0, 400.0, 450.0), (0, 850.0, 150.0)]


@pytest.mark.parametrize(("joined", "text"), [(None, "1100 cycles with all events, which"), (
    Some(left_out=[2]), "3 passes joined; the dearest")])  # fmt: skip
def test_what_is_drawn_is_said(joined, text):
    made = timeline(900.0, 1100.0, 500.0)
    made.joined, made.passes = joined, [None] * 4
    assert fig11._drawn(made) == text


def test_the_title_says_how_long_the_tensor_cores_have_nothing():
    found = fig11._finding([timeline(900.0, 1100.0, 500.0, 100.0, 50.0), timeline(None, 800.0, None, 200.0)])
    subject = "Cycles of an iteration without an MMA in flight, less what events cost"
    assert found == f"{subject}: A kernel of it 100, A kernel of it 200"
    assert fig11._finding([timeline(900.0, 1100.0, 500.0, 100.0, 50.0)]) == f"A kernel of it: 100 c{subject[1:]}"


def test_a_timeline_without_iterations_is_named(tmp_path):
    looped, straight = (
        Some(label=label, windows=[Some(shows=shows)]) for label, shows in (("A", "iterations"), ("B", "launch"))
    )
    with pytest.raises(UsageError, match="the timeline of B has no iteration of a main loop to draw"):
        fig11.draw([looped, straight], "recorded", tmp_path / "fig11")
    assert list(tmp_path.iterdir()) == []
