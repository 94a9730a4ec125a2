"""The figure of a traced kernel, in each view."""

import functools
from pathlib import Path
from unittest.mock import patch

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from kperf.plots import trace
from kperf.plots.bars import WARPS
from kperf.plots.style import readable
from kperf.record.bandwidth import Bandwidth
from kperf.record.store import RECORDED
from kperf.trace.analyze import read
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.recorded import read_timeline
from tests.trace.analyze import test_analysis, test_views

ABOUT = test_views.about(label="a_kernel", bandwidth=Bandwidth(peak_gb_per_s=4917, copy_gb_per_s=4200))


@functools.cache
def pipeline() -> Timeline:
    return read.timeline(test_analysis.launch(delay=400), ABOUT)


@functools.cache
def memory() -> Timeline:
    return read.timeline(test_views.norm(16), ABOUT)


@functools.cache
def imbalance() -> Timeline:
    short, long = test_views.norm_cta(iterations=2), test_views.norm_cta(iterations=32)
    ctas = [(long, 0, 0), *[(short, n, 0) for n in range(1, 8)]]
    return read.timeline(test_views.launch_of(test_views.norm_program(), ctas), ABOUT)


VIEWS = [pipeline, memory, imbalance]


def drawn(timeline: Timeline) -> Figure:
    """The figure before it is written."""
    with patch.object(trace, "save") as save:
        trace.draw(timeline, "recorded on a GPU", Path("x"))
    figure = save.call_args.args[0]
    figure.canvas.draw()
    return figure


@functools.cache
def figure_of(make) -> Figure:
    return drawn(make())


@pytest.fixture(scope="module", autouse=True)
def _closed():
    yield
    plt.close("all")


@pytest.mark.parametrize("make", VIEWS, ids=lambda make: make.__name__)
def test_every_colour_is_in_the_legend_or_named_right_of_its_row_and_the_legend_has_no_other(make):
    figure = figure_of(make)
    named = {to_hex(patch.get_facecolor()) for patch in figure.legends[0].get_patches()}
    used = set()
    for axis in figure.axes:
        for artist in [*axis.patches, *axis.collections]:
            if isinstance(artist, Rectangle | PolyCollection):
                faces = artist.get_facecolor()
                used |= {to_hex(face) for face in (faces if getattr(faces, "ndim", 1) == 2 else [faces])}
    assert named <= used
    beside = {text.get_color() for axis in figure.axes for text in axis.texts if text.get_position()[0] > 1}
    assert {readable(colour) for colour in used - named} <= beside
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(labels) == len(set(labels))


@pytest.mark.parametrize("make", VIEWS, ids=lambda make: make.__name__)
def test_nothing_is_printed_smaller_than_seven_points_or_off_the_page(make):
    figure = figure_of(make)
    width, height = figure.bbox.size
    texts = [text for axis in figure.axes for text in [*axis.texts, axis.title, axis.xaxis.label, axis.yaxis.label]]
    for text in filter(lambda text: text.get_text(), [*texts, *figure.legends[0].get_texts()]):
        assert text.get_fontsize() >= 7
        box = text.get_window_extent()
        assert box.x0 >= -1
        assert box.x1 <= width + 1
        assert box.y1 <= height + 1


def test_a_memory_view_shows_waits_and_an_imbalance_the_slowest_block():
    names = {make: {text.get_text() for text in figure_of(make).legends[0].get_texts()} for make in (memory, imbalance)}
    assert {"waits for the first load", "waits for later loads", "SMs with a CTA"} <= names[memory]
    assert "the slowest CTA" in names[imbalance]
    assert "the slowest CTA" not in names[memory]


def test_when_half_of_the_sms_have_ended_is_said_above_the_panel_and_hides_no_step():
    axis = figure_of(imbalance).axes[-1]
    (said,) = axis.texts
    assert said.get_text() == "half of the SMs have ended"
    assert said.xy[0] == imbalance.__wrapped__().sms.median_end_us
    assert said.get_window_extent().y0 >= axis.get_window_extent().y1


@pytest.mark.parametrize("make", VIEWS, ids=lambda make: make.__name__)
def test_the_same_record_gives_the_same_pixels(make):
    again = drawn(make.__wrapped__())
    assert np.array_equal(again.canvas.buffer_rgba(), figure_of(make).canvas.buffer_rgba())


def test_a_region_of_several_kinds_has_a_lane_for_each_in_the_shares_too():
    """Loads, the wait for them and an MMA's issue stand above each other, as wide as the region's share."""
    timeline = read_timeline(RECORDED / "h200/examples/gemm_1_stage.timeline.json")
    mixed = next(region for region in timeline.regions if len(region.parts) > 1)
    kinds = list(dict.fromkeys(part.kind for part in mixed.parts))
    assert kinds == ["load", "wait", "issue"]
    shares = next(axis for axis in drawn(timeline).axes if "share of a CTA" in axis.get_xlabel())
    first = [bar for bar in shares.patches if bar.get_x() == 0 and bar.get_y() < 0.5]
    assert [to_hex(bar.get_facecolor()) for bar in first] == [to_hex(WARPS[kind].colour) for kind in kinds]
    assert [bar.get_width() for bar in first] == pytest.approx([mixed.share] * 3)
    assert [bar.get_y() for bar in first] == pytest.approx([-0.4, -0.4 + 0.8 / 3, -0.4 + 1.6 / 3])
    assert sum(bar.get_height() for bar in first) == pytest.approx(0.8)


def test_a_long_kernels_title_is_not_cut_at_the_edge():
    found = pipeline()
    figure = trace._figure(found.model_copy(update={"label": "triton_red_fused_" + 6 * "native_layer_norm_"}), "s")
    figure.canvas.draw()
    for axis in figure.axes:
        for title in (axis.title, axis._left_title):
            assert title.get_window_extent().x1 <= figure.bbox.width
