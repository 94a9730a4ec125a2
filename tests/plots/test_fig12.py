"""What the picture of Fig. 12 holds, read from its axes."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_rgba
from matplotlib.container import BarContainer
from matplotlib.text import Text

from kperf.attention.implementations import FIG12, IMPLEMENTATIONS
from kperf.attention.workload import Workload
from kperf.plots import fig12 as plot
from kperf.plots.style import PAGE_WIDTH, SMALL
from tests.conftest import environment, failed, point

PLACES = [
    ("seq_len", Workload(batch=16, seq_len=128)),
    ("seq_len", Workload(batch=16, seq_len=4096)),
    ("batch_size", Workload(batch=1, seq_len=4096)),
    ("batch_size", Workload(batch=16, seq_len=4096)),
    ("batch_size", Workload(batch=64, seq_len=4096)),
]
RATE = 6e11
"""FLOPs a millisecond of the slowest bar."""


def milliseconds(key, workload):
    return workload.flops / (RATE * (1 + 0.05 * FIG12.index(key)))


def made(keys=FIG12, **changes):
    return {
        (sweep, workload): {
            key: point(key, milliseconds(key, workload), f"r{n}", workload, sweep, **changes) for key in keys
        }
        for n, (sweep, workload) in enumerate(PLACES)
    }


@pytest.fixture
def drawn():
    figures = []

    def draw(runs, **more):
        figures.append(plot.figure(runs, {"e": environment()}, ["What", "recorded"], ["a note"], **more))
        return figures[-1]

    yield draw
    for figure in figures:
        plt.close(figure)


def bars(axis):
    """[(label, colour, hatch, heights, lefts, whiskers)] in the order of drawing."""
    found = []
    for container in axis.containers:
        if not isinstance(container, BarContainer):
            continue
        patches = container.patches
        (segments,) = container.errorbar.lines[2]
        found.append(
            (
                container.get_label(),
                patches[0].get_facecolor(),
                patches[0].get_hatch() or "",
                [patch.get_height() for patch in patches],
                [patch.get_x() for patch in patches],
                [(segment[0][1], segment[1][1]) for segment in segments.get_segments()],
            )
        )
    return found


def texts(axis):
    return [text.get_text() for text in axis.texts]


def test_each_panel_has_its_bars_in_order_with_their_heights_labels_and_looks(drawn):
    runs = made()
    figure = drawn(runs)
    for panel, sweep in ((0, "seq_len"), (3, "batch_size")):
        places = [workload for name, workload in PLACES if name == sweep]
        found = bars(figure.axes[panel])
        assert [label for label, *_ in found] == [IMPLEMENTATIONS[key].label for key in FIG12]
        for key, (_, colour, hatch, heights, lefts, whiskers) in zip(FIG12, found, strict=True):
            rate = RATE * (1 + 0.05 * FIG12.index(key)) / 1e9
            assert heights == pytest.approx([rate] * len(places))
            points = [runs[sweep, workload][key] for workload in places]
            ends = [p.flops / ms / 1e9 for p in points for ms in p.ci95_ms[::-1]]
            assert [end for whisker in whiskers for end in whisker] == pytest.approx(ends)
            assert (colour, hatch) == (to_rgba(IMPLEMENTATIONS[key].look.colour), IMPLEMENTATIONS[key].look.hatch)
            assert all(group - 0.5 < left < group + 0.5 for group, left in enumerate(lefts))
            assert texts(figure.axes[panel]).count(f"{rate:.0f}") == len(places)
        first_bars = [lefts[0] for *_, lefts, _ in found]
        assert first_bars == sorted(first_bars)


def test_the_ticks_and_titles_say_which_panel_it_is(drawn):
    figure = drawn(made())
    assert figure.axes[0].get_title("left") == "by sequence length, batch 16"
    assert figure.axes[3].get_title("left") == "by batch, sequence length 4096"
    ticks = [texts(figure.axes[panel])[:: 1 + 2] for panel in (2, 5)]
    assert ticks == [["128", "4k"], ["1", "16", "64"]]
    assert [tick.get_text() for tick in figure.axes[2].get_yticklabels()] == [
        "sequence length",
        "Improved",
        "Improved+",
    ]
    assert figure.axes[5].get_yticklabels()[0].get_text() == "batch"


def test_speedups_are_over_fa3_under_graphs_and_eager_and_stand_in_the_table(drawn):
    runs = made()
    for run in runs.values():
        run["improved"] = run["improved"].model_copy(update={"eager_ms": run["fa3"].eager_ms * 4})
    figure = drawn(runs)
    axis = figure.axes[1]
    assert axis.get_ylabel() == "speed over\nFA3"
    lines = {line.get_label(): line for line in axis.get_lines()} | {
        container.get_label(): container.lines[0] for container in axis.containers
    }
    at = {key: 1 + 0.05 * FIG12.index(key) for key in FIG12}
    for key in ("improved", "improved_plus"):
        label = IMPLEMENTATIONS[key].label
        assert list(lines[label].get_ydata()) == pytest.approx([at[key] / at["fa3"]] * 2)
        assert lines[f"{label}, eager"].get_markerfacecolor() == "white"
        assert lines[label].get_markerfacecolor() != "white"
    assert list(lines["Triton-FA3 Improved, eager"].get_ydata()) == pytest.approx([0.25] * 2)
    assert lines["Triton-FA3 Improved"].get_marker() != lines["Triton-FA3 Improved+"].get_marker()
    assert texts(figure.axes[2])[1] == f"{at['improved'] / at['fa3']:.2f} (0.25)"
    assert texts(figure.axes[2])[2] == f"{at['improved_plus'] / at['fa3']:.2f} ({at['improved_plus'] / at['fa3']:.2f})"


def test_without_fa3_speedups_are_over_cudnn(drawn):
    figure = drawn(made([key for key in FIG12 if key != "fa3"]))
    assert figure.axes[1].get_ylabel() == "speed over\ncuDNN"
    assert "Rows: speed over cuDNN" in figure._supxlabel.get_text().replace("\n", " ")


def test_of_several_runs_there_are_no_speedups(drawn):
    figure = drawn(made(), in_turn=False)
    assert len(figure.axes) == 4
    assert "of two runs" in figure._supxlabel.get_text()
    assert "speed over" not in figure._supxlabel.get_text()


def test_cublas_is_drawn_a_group_with_what_its_rounds_had(drawn):
    runs = made()
    for place, ceiling in zip(PLACES, (785.0, 715.0, 740.0, 741.0, 742.0), strict=True):
        runs[place] = {key: p.model_copy(update={"ceiling_tflops": ceiling}) for key, p in runs[place].items()}
    figure = drawn(runs)
    # the first collections of the axis are whiskers
    lines = [
        [segment[0][1] for segment in collection.get_segments()]
        for collection in figure.axes[0].collections
        if len(collection.get_segments()) == 1
    ]
    assert lines == [[785.0], [715.0]]
    (legend,) = figure.legends
    assert legend.get_texts()[-1].get_text() == "cuBLAS 8192³, same rounds: 715 to 785"
    assert len(legend.get_texts()) == len(FIG12) + 1


def test_a_point_without_a_time_is_written_where_its_bar_would_be_and_one_that_is_unsupported_leaves_no_gap(drawn):
    runs = made()
    for (sweep, workload), run in runs.items():
        run["fa2"] = failed("fa2", "oom", "r", workload, sweep)
        run["triton"] = failed("triton", "unsupported", "r", workload, sweep)
    figure = drawn(runs)
    labels = [made.get_label() for made in figure.axes[0].containers if isinstance(made, BarContainer)]
    assert labels == [IMPLEMENTATIONS[key].label for key in FIG12 if key != "triton"]
    assert texts(figure.axes[0]).count("oom") == 2


def test_what_has_to_be_said_stands_below(drawn):
    figure = drawn(made())
    below = figure._supxlabel.get_text().replace("\n", " ")
    for words in (
        "CUDA graphs",
        "single calls from Python (eager)",
        "The power cap held the clock down in 100% of",
        "a note",
    ):
        assert words in below
    assert "torch 2.11.0, triton 3.6.0, cuDNN 91900, fa3-fwd 0.0.3, driver 580.1" in below
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "What\nrecorded"


def test_what_numbers_were_in_the_inputs_is_said(drawn):
    places = [(sweep, workload.model_copy(update={"inputs": "x4"})) for sweep, workload in PLACES]
    runs = {(sweep, w): {"fa3": point("fa3", milliseconds("fa3", w), "r", w, sweep)} for sweep, w in places}
    assert "on x4 random inputs" in drawn(runs)._supxlabel.get_text().replace("\n", " ")


def test_it_prints_as_wide_as_a_page_with_no_type_below_seven_points_and_nothing_cut_off(drawn):
    figure = drawn(made())
    assert figure.get_figwidth() == PAGE_WIDTH == 7.0
    figure.canvas.draw()
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in shown) >= SMALL == 7.0
    renderer = figure.canvas.get_renderer()
    width, height = figure.canvas.get_width_height()
    for text in shown:
        box = text.get_window_extent(renderer)
        assert box.x0 >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y0 >= -1, text
        assert box.y1 <= height + 1, text
