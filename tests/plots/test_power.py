"""What the picture of `make power` holds, read from its axes."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.container import BarContainer

from kperf.plots import power as plot
from kperf.plots.style import PAGE_WIDTH
from tests.paper.test_power import alone


@pytest.fixture
def figure():
    runs = [
        [alone("cublas", 650, 700), alone("improved", 610, 690), alone("fa3", 600, 700)],
        [alone("fa3", 500, 650, seq_len=8192), alone("improved", 620, 700, seq_len=8192)],
    ]
    made = plot.figure(runs, "recorded on a GPU", ["a note"])
    yield made
    plt.close(made)


def bars(axis):
    return {made.get_label(): made for made in axis.containers if isinstance(made, BarContainer)}


def test_the_clock_on_which_the_argument_rests_stands_between_the_rate_and_the_efficiency(figure):
    assert [axis.get_title("left") for axis in figure.axes] == ["TFLOPS", "SM clock (MHz)", "TFLOPS a watt"]
    heights = [[bar.get_height() for bar in bars(axis)["FA3"]] for axis in figure.axes]
    assert heights == [[600, 500], [1600, 1600], pytest.approx([600 / 700, 500 / 650])]


def test_bars_are_in_the_order_of_fig12_with_cublas_last_and_whiskers_span_the_passes(figure):
    axis = figure.axes[0]
    assert list(bars(axis)) == ["FA3", "Triton-FA3 Improved", "cuBLAS 8192³"]
    assert [bar.get_x() for bar in bars(axis)["FA3"]] < [bar.get_x() for bar in bars(axis)["Triton-FA3 Improved"]]
    (segments,) = bars(axis)["FA3"].errorbar.lines[2]
    spans = [(segment[0][1], segment[1][1]) for segment in segments.get_segments()]
    assert spans == [pytest.approx((0.98 * rate, 1.03 * rate)) for rate in (600, 500)]
    assert {"600", "500", "610", "620", "650"} == {text.get_text() for text in axis.texts}
    assert [tick.get_text() for tick in figure.axes[-1].get_xticklabels()] == ["4k", "8k"]


def test_what_has_to_be_said_is_on_it(figure):
    (legend,) = figure.legends
    title = "Attention forward, non-causal, bfloat16, head_dim 128, 16 heads, batch 16"
    assert legend.get_title().get_text() == f"{title}\neach alone and sustained, recorded on a GPU"
    below = figure._supxlabel.get_text().replace("\n", " ")
    assert "3 passes of 2 s each, in rotation, at 650 to 700 W" in below
    assert below.endswith("a note")
    assert figure.get_figwidth() == PAGE_WIDTH
