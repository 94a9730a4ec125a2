"""What the picture of Fig. 12 holds, read from its axes."""

import csv
import io

import matplotlib.pyplot as plt
import pytest
from matplotlib.text import Text

from kperf.attention.implementations import FIG12, IMPLEMENTATIONS
from kperf.attention.workload import Workload
from kperf.plots import fig12 as plot
from kperf.plots.style import LINES, PAGE_WIDTH, SMALL, readable
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


def panels(figure):
    """{title of a panel: it}"""
    return {axis.get_title("left"): axis for axis in figure.axes}


def lines(axis):
    """{label: (colour, marker, heights, whiskers)} in the order of drawing."""
    found = {}
    for container in axis.containers:
        line, _, whiskers = container.lines
        assert list(line.get_xdata()) == sorted(line.get_xdata())
        spans = [(low, high) for made in whiskers for (_, low), (_, high) in made.get_segments()]
        found[container.get_label()] = (line.get_color(), line.get_marker(), list(line.get_ydata()), spans)
    return found


def names(axis):
    return [text.get_text() for text in axis.texts]


RATES = {key: RATE * (1 + 0.05 * n) / 1e9 for n, key in enumerate(FIG12)}
SPEEDS = {key: rate / RATES["fa3"] for key, rate in RATES.items()}


def test_speed_over_fa3_comes_first_with_tflops_beside_and_single_calls_last(drawn):
    titles = [
        "speed over FA3, CUDA graphs; batch 16", "speed over FA3, single calls; batch 16",
        "TFLOPS, CUDA graphs; batch 16",
        "speed over FA3, CUDA graphs; sequence length 4096", "speed over FA3, single calls; sequence length 4096",
        "TFLOPS, CUDA graphs; sequence length 4096",
    ]  # fmt: skip
    figure = drawn(made())
    assert list(panels(figure)) == titles
    figure.canvas.draw()
    left, _, right, below, *_ = (axis.get_position() for axis in figure.axes)
    assert left.x1 < right.x0
    assert below.y1 < left.y0
    for axis, ticks, across in (
        (figure.axes[0], ["128", "4k"], "sequence length"),
        (figure.axes[3], ["1", "16", "64"], "batch"),
    ):
        assert [tick.get_text() for tick in axis.get_xticklabels()] == ticks
        assert axis.get_xlabel() == across


def test_each_implementation_has_a_line_with_its_numbers_intervals_and_style_and_its_name_at_the_end(drawn):
    runs = made()
    figure = drawn(runs)
    for sweep, kept in (("seq_len", "batch 16"), ("batch_size", "sequence length 4096")):
        places = [workload for name, workload in PLACES if name == sweep]
        rates = lines(panels(figure)[f"TFLOPS, CUDA graphs; {kept}"])
        speeds = lines(panels(figure)[f"speed over FA3, CUDA graphs; {kept}"])
        assert list(rates) == list(speeds) == [IMPLEMENTATIONS[key].label for key in FIG12]
        for key in FIG12:
            label, style = IMPLEMENTATIONS[key].label, IMPLEMENTATIONS[key].style
            colour, marker, heights, whiskers = rates[label]
            assert (colour, marker) == (readable(style.colour, LINES), style.marker)
            assert heights == pytest.approx([RATES[key]] * len(places))
            points = [runs[sweep, workload][key] for workload in places]
            assert whiskers == [pytest.approx([p.flops / ms / 1e9 for ms in p.ci95_ms[::-1]]) for p in points]
            assert speeds[label][2] == pytest.approx([SPEEDS[key]] * len(places))
            assert len(speeds[label][3]) == len(places)
            assert all(low <= SPEEDS[key] <= high for low, high in speeds[label][3])
    styles = [(colour, marker) for colour, marker, *_ in lines(figure.axes[0]).values()]
    assert len({marker for _, marker in styles}) == len(styles), "distinct in grey"
    short = [IMPLEMENTATIONS[key].label.removeprefix("Triton-FA3 ") for key in FIG12]
    for axis in figure.axes:
        assert [
            name for name in names(axis) if name != "cuBLAS, 8192 cubed"
        ] == short  # the slowest is the lowest, as they are made
        heights = [text.get_position()[1] for text in axis.texts]
        assert heights == sorted(heights)


def test_single_calls_have_a_panel_of_their_own_without_intervals(drawn):
    runs = made()
    for run in runs.values():
        run["improved"] = run["improved"].model_copy(update={"eager_ms": run["fa3"].eager_ms * 4})
    found = lines(panels(drawn(runs))["speed over FA3, single calls; batch 16"])
    assert found["Triton-FA3 Improved"][2:] == ([pytest.approx(0.25)] * 2, [])
    assert found["FA2"][2] == pytest.approx([SPEEDS["fa2"]] * 2)


def test_the_title_says_how_fast_ours_are_in_the_geometric_mean(drawn):
    runs = made()
    run = runs[PLACES[0]]
    slower = 32.0
    run["improved"] = point("improved", slower * milliseconds("improved", PLACES[0][1]), "r0", PLACES[0][1], "seq_len")
    mean = (SPEEDS["improved"] ** 5 / slower) ** (1 / 5)
    (legend,) = drawn(runs).legends
    speeds = f"Improved+ {SPEEDS['improved_plus']:.2f} x, Improved {mean:.2f} x"
    assert legend.get_title().get_text() == f"Speed over FA3, geometric mean: {speeds}\nWhat\nrecorded"
    assert legend.get_texts() == []


def test_the_numbers_are_a_table_too():
    runs = made()
    runs[PLACES[0]]["fa2"] = failed("fa2", "oom", "r", PLACES[0][1], "seq_len")
    rows = list(csv.DictReader(io.StringIO(plot.table(runs, in_turn=True))))
    assert len(rows) == len(PLACES) * len(FIG12)
    assert [rows[0][name] for name in ("implementation", "status", "tflops", "speed_over_fa3")] == [
        "fa2",
        "oom",
        "",
        "",
    ]
    row = next(
        row for row in rows if (row["sweep"], row["batch"], row["implementation"]) == ("batch_size", "64", "improved")
    )
    assert row["seq_len"] == "4096"
    assert float(row["tflops"]) == pytest.approx(RATES["improved"], rel=1e-3)
    assert float(row["speed_over_fa3"]) == pytest.approx(SPEEDS["improved"], rel=1e-3)
    assert float(row["speed_over_fa3_low"]) <= float(row["speed_over_fa3"]) <= float(row["speed_over_fa3_high"])
    assert float(row["eager_speed_over_fa3"]) == pytest.approx(SPEEDS["improved"], rel=1e-3)
    assert row["eager_speed_over_fa3_low"] == ""
    assert "speed_over" not in plot.table(runs, in_turn=False)


def test_without_fa3_speeds_are_over_cudnn(drawn):
    figure = drawn(made([key for key in FIG12 if key != "fa3"]))
    assert figure.axes[0].get_title("left") == "speed over cuDNN, CUDA graphs; batch 16"


def test_of_several_runs_there_are_tflops_alone(drawn):
    figure = drawn(made(), in_turn=False)
    assert list(panels(figure)) == ["TFLOPS, CUDA graphs; batch 16", "TFLOPS, CUDA graphs; sequence length 4096"]
    assert "of two runs" in figure._supxlabel.get_text()
    (legend,) = figure.legends
    assert legend.get_title().get_text() == "What\nrecorded"


def test_cublas_is_a_line_of_what_the_same_rounds_had(drawn):
    runs = made()
    for place, ceiling in zip(PLACES, (785.0, 715.0, 740.0, 741.0, 742.0), strict=True):
        runs[place] = {key: p.model_copy(update={"ceiling_tflops": ceiling}) for key, p in runs[place].items()}
    axis = panels(drawn(runs))["TFLOPS, CUDA graphs; batch 16"]
    (line,) = [line for line in axis.get_lines() if line.get_label() == "cuBLAS, 8192 cubed"]
    assert list(line.get_ydata()) == [785.0, 715.0]
    assert "cuBLAS, 8192 cubed" in names(axis)


def test_a_point_without_a_time_is_a_gap_that_says_why_and_what_is_unsupported_has_no_line(drawn):
    runs = made()
    for (sweep, workload), run in runs.items():
        run["triton"] = failed("triton", "unsupported", "r", workload, sweep)
    runs[PLACES[1]]["fa2"] = failed("fa2", "oom", "r", PLACES[1][1], "seq_len")
    axis = panels(drawn(runs))["TFLOPS, CUDA graphs; batch 16"]
    assert list(lines(axis)) == [IMPLEMENTATIONS[key].label for key in FIG12 if key != "triton"]
    assert lines(axis)["FA2"][2] == [pytest.approx(RATES["fa2"])]
    (gap,) = [text for text in axis.texts if text.get_text() == "FA2: oom"]
    assert gap.get_position() == (1, 0)


def test_what_has_to_be_said_stands_below(drawn):
    figure = drawn(made())
    below = figure._supxlabel.get_text().replace("\n", " ")
    for words in (
        "Single calls: from Python, without a CUDA graph.",
        "The power cap held the clock down in 100% of",
        "a note",
    ):
        assert words in below
    assert "torch 2.11.0, triton 3.6.0, cuDNN 91900, fa3-fwd 0.0.3, driver 580.1" in below


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
