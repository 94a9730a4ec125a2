"""What the picture of `make power` holds, read from its axes."""

import matplotlib.pyplot as plt
import pytest

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


def lines(axis):
    """{label: (heights, whiskers)}"""
    found = {}
    for container in axis.containers:
        line, _, whiskers = container.lines
        spans = [(low, high) for made in whiskers for (_, low), (_, high) in made.get_segments()]
        found[container.get_label()] = (list(line.get_ydata()), spans)
    return found


def test_speed_over_fa3_comes_first_and_the_clock_between_the_rate_and_the_efficiency(figure):
    names = ["speed over FA3", "TFLOPS", "SM clock (MHz)", "TFLOPS a watt"]
    assert [axis.get_title("left") for axis in figure.axes] == names
    assert lines(figure.axes[0])["Triton-FA3 Improved"][0] == pytest.approx([610 / 600, 620 / 500])
    heights = [lines(axis)["FA3"][0] for axis in figure.axes[1:]]
    assert heights == [[600, 500], [1600, 1600], pytest.approx([600 / 700, 500 / 650])]


def test_lines_are_in_the_order_of_fig12_with_cublas_last_their_names_at_the_end_and_whiskers_over_the_passes(figure):
    speed, rate, *_ = figure.axes
    assert list(lines(speed)) == ["FA3", "Triton-FA3 Improved"]
    assert list(lines(rate)) == ["FA3", "Triton-FA3 Improved", "cuBLAS, 8192 cubed"]
    assert lines(rate)["FA3"][1] == [pytest.approx((0.98 * value, 1.03 * value)) for value in (600, 500)]
    assert [text.get_text() for text in rate.texts] == ["FA3", "Improved", "cuBLAS, 8192 cubed"]  # from the lowest end
    assert [tick.get_text() for tick in rate.get_xticklabels()] == ["4k", "8k"]


def test_what_has_to_be_said_is_on_it(figure):
    (legend,) = figure.legends
    mean = (610 / 600 * 620 / 500) ** 0.5
    assert legend.get_title().get_text().splitlines() == [
        f"Speed over FA3 at the power cap, geometric mean: Improved {mean:.2f} x",
        "Attention forward, non-causal, bfloat16, head_dim 128, 16 heads, batch 16",
        "each alone and sustained, recorded on a GPU",
    ]
    assert legend.get_texts() == []
    below = figure._supxlabel.get_text().replace("\n", " ")
    assert "3 passes of 2 s each, in rotation, at 650 to 700 W" in below
    assert below.endswith("a note")
    assert figure.get_figwidth() == PAGE_WIDTH
