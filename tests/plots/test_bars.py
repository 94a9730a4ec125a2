"""Bars of a window: lanes, gaps and clipped ends, what only touches included; and which bar has room for its name."""

import matplotlib.pyplot as plt
import pytest

from kperf.plots import bars
from kperf.plots.style import readable
from kperf.trace.analyze.models import Bar


def bar(start, cycles, name="r", track="warps", group="a", kind="other", **of):
    return Bar(track=track, warp_group=group, name=name, kind=kind, start=start, cycles=cycles, iteration=0, **of)


def test_bars_at_the_same_time_have_lanes_of_their_own():
    some = [bar(0, 10), bar(5, 20), bar(10, 5), bar(12, 4), bar(15, 1), bar(25, 9)]
    assert bars._lanes(some) == [0, 1, 0, 2, 0, 0]
    assert bars._lanes([]) == []


def test_gaps_are_between_bars_and_at_both_ends():
    assert bars._gaps([bar(10, 10), bar(15, 15), bar(30, 10), bar(50, 10)], 0, 100) == [(0, 10), (40, 50), (60, 100)]
    assert bars._gaps([bar(-5, 20), bar(40, 80)], 0, 100) == [(15, 40)]
    assert bars._gaps([bar(0, 100)], 0, 100) == []
    assert bars._gaps([bar(0, 99)], 0, 100) == [(99, 100)]
    assert bars._gaps([], 0, 100) == []


def test_bars_are_clipped_to_the_window():
    assert bars._clipped(bar(90, 30), 100, 50) == (0, 20)
    assert bars._clipped(bar(110, 10), 100, 50) == (10, 20)
    assert bars._clipped(bar(140, 30), 100, 50) == (40, 50)


class Timeline:
    """As much of one as a window takes."""

    def __init__(self, *groups):
        duties = {"c": "loads"}
        self.roles = [type("Role", (), {"warp_group": group, "duty": duties.get(group, "MMAs")}) for group in groups]

    def row(self, group):
        return f"row of {group}"


@pytest.fixture
def axis():
    figure, made = plt.subplots()
    yield made
    plt.close(figure)


def drawn(axis, some, span=100.0, start=0.0, groups=("a", "b"), beside=None):
    window = type("Window", (), {"start": start, "bars": some})
    shown = bars.draw_window(axis, Timeline(*groups), window, span, beside or {})
    boxes = [(patch.get_extents().x0, patch.get_extents().x1, patch.get_extents().y0, patch.get_extents().y1)
             for collection in axis.collections for patch in collection.get_paths()]  # fmt: skip
    return shown, boxes, {text.get_text(): text.get_position() for text in axis.texts}


def test_a_name_stands_where_its_bar_has_room_for_it(axis, monkeypatch):
    """Ten inches and half an inch a letter: of 100 cycles a name of one letter needs more than 5."""
    monkeypatch.setattr(bars, "WIDTH_INCHES", 11)
    monkeypatch.setattr(bars, "_INCHES_A_LETTER", 0.5)
    some = [bar(0, 5, "x"), bar(10, 6, "y"), bar(20, 12, "zz", group="b"), bar(40, 10, "vv"), bar(96, 20, "w")]
    _, boxes, names = drawn(axis, some)
    assert names == {"y": (13, 1), "zz": (26, 0)}
    assert boxes[:3] == [pytest.approx((0, 5, 0.6, 1.4)), pytest.approx((10, 16, 0.6, 1.4)),
                         pytest.approx((20, 32, -0.4, 0.4))]  # fmt: skip
    assert boxes[4] == pytest.approx((96, 100, 0.6, 1.4))


def test_what_only_touches_the_window_is_not_drawn(axis):
    _, boxes, _ = drawn(axis, [bar(0, 50), bar(49, 2), bar(149, 9), bar(150, 9)], span=100.0, start=50.0)
    assert [box[:2] for box in boxes] == [pytest.approx((0, 1)), pytest.approx((99, 100))]
    assert axis.get_xlim() == (0, 100)
    assert [label.get_text() for label in axis.get_yticklabels()] == ["row of a", "row of b"]
    assert axis.get_ylim() == pytest.approx((-0.55, 1.55))


def test_a_region_that_does_several_things_has_a_lane_for_each(axis):
    shown, boxes, _ = drawn(axis, [bar(0, 10, kind="wait", parts=["load", "wait", "load"])])
    assert [box[2:] for box in boxes] == [pytest.approx((1.0, 1.4)), pytest.approx((0.6, 1.0))]
    assert list(shown) == [bars.WARPS["load"].label, bars.WARPS["wait"].label]


def test_the_waits_of_a_group_that_only_loads_are_pale_and_hatched(axis):
    shown, _, _ = drawn(axis, [bar(0, 10, kind="wait"), bar(20, 10, kind="wait", group="c")], groups=("a", "c"))
    assert list(shown) == [bars.WARPS["wait"].label, bars.BACK_PRESSURE.label]
    assert [bool(collection.get_hatch()) for collection in axis.collections] == [False, True]


def test_a_name_on_a_hatch_has_a_plain_ground(axis):
    some = [bar(0, 90, "name", kind="wait"), bar(0, 90, "name", kind="wait", group="c")]
    drawn(axis, some, groups=("a", "c"))
    assert [text.get_bbox_patch() is not None for text in axis.texts] == [False, True]


def beside_names(axis):
    """(name, height, colour of what stands before it), right of the rows."""
    swatches, names = axis.texts[::2], axis.texts[1::2]
    assert all(swatch.xy == name.xy and swatch.xy[0] == 1.005 for swatch, name in zip(swatches, names, strict=True))
    return [(name.get_text(), name.xy[1], swatch.get_color()) for swatch, name in zip(swatches, names, strict=True)]


def test_what_runs_beside_the_warps_is_named_right_of_its_row_and_in_the_legend_if_there_is_too_much(axis):
    few = [bar(0, 10, "QK", track="MMAs"), bar(20, 10, "PV", track="MMAs")]
    styles = {("MMAs", name): bars.Style("#123456", "black", f"{name} in flight") for name in ("QK", "PV", "other")}
    shown, _, _ = drawn(axis, few, beside=styles)
    assert beside_names(axis) == [("QK", pytest.approx(0.2), "#123456"), ("PV", pytest.approx(-0.2), "#123456")]
    assert list(shown) == [bars.IDLE.label]
    shown, _, _ = drawn(axis, [*few, bar(40, 10, "other", track="MMAs")], beside=styles)
    assert {"QK in flight", "PV in flight", "other in flight"} <= set(shown)


def test_names_beside_a_row_are_from_above_as_their_bars_end_at_the_right_edge(axis):
    """K is first and highest; where the window ends V is above it."""
    loads = [bar(0, 10, "K", track="loads"), bar(5, 30, "V", track="loads"), bar(12, 88, "V", track="loads"),
             bar(40, 60, "K", track="loads")]  # fmt: skip
    assert bars._lanes(loads) == [0, 1, 0, 1]
    styles = {("loads", "K"): bars.Style("#009e73", "black", "K"), ("loads", "V"): bars.Style("#a6dcc8", "black", "V")}
    drawn(axis, loads, beside=styles)
    assert beside_names(axis) == [("V", pytest.approx(0.2), "#a6dcc8"), ("K", pytest.approx(-0.2), "#009e73")]
    name_of_v = axis.texts[1]
    assert name_of_v.get_color() == readable("#a6dcc8") != "#a6dcc8"
