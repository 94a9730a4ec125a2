"""All implementations on a person's shapes: what is asked for, the table, the pictures, and where memory ends."""

import io
import itertools
import math
from dataclasses import replace

import matplotlib.pyplot as plt
import pytest
import torch

from kperf.attention.implementations import COMPARED, IMPLEMENTATIONS, Implementation
from kperf.attention.workload import Workload
from kperf.bench import measure as measuring
from kperf.bench.points import Store
from kperf.bench.reference import make_inputs
from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError
from kperf.paper import attention
from kperf.paper.attention import Shapes
from kperf.plots import attention as plot
from tests.bench.fake_gpu import COLD_MS, Gpu
from tests.bench.test_on_a_fake_gpu import attention as fake
from tests.bench.test_on_a_fake_gpu import differentiable, stand_in
from tests.command import kperf
from tests.conftest import failed, kept, point

pytestmark = pytest.mark.usefixtures("unrendered")

KEYS = ("eager", "fa2", "fa3")
SHAPES = Shapes(seq_lens=(1024, 2048))


def run(workload, name, **milliseconds):
    """Eager takes seq_len^2 bytes, the others seq_len; None is out of memory, 0 unsupported."""
    made = {}
    for key, value in milliseconds.items():
        if value is None:
            made[key] = failed(key, "oom", name, workload, message="the GPU's memory is too small")
        elif value == 0:
            made[key] = failed(key, "unsupported", name, workload, message="it computes [forward] only")
        else:
            peak = workload.seq_len**2 if key == "eager" else workload.seq_len
            more = {"peak_bytes": peak * (2 if workload.backward else 1), "figure": "attention"}
            made[key] = point(key, value, name, workload, **more)
    return {key: one.model_copy(update={"figure": "attention"}) for key, one in made.items()}


def runs_of(shapes=SHAPES):
    short, short_back, long, long_back = (workload for _, workload in shapes.places)
    return {
        ("seq_len", short): run(short, "a", eager=4.0, fa2=2.0, fa3=1.0),
        ("seq_len", short_back): run(short_back, "b", eager=8.0, fa2=4.0, fa3=0),
        ("seq_len", long): run(long, "c", eager=None, fa2=8.0, fa3=4.0),
        ("seq_len", long_back): run(long_back, "d", eager=None, fa2=16.0, fa3=0),
    }


def record(folder, runs):
    return kept(Store(folder, "attention"), [point for one in runs.values() for point in one.values()])


def console():
    return WholeConsole(record=True, width=240, file=io.StringIO())


def test_each_seq_len_is_a_forward_and_a_backward_workload():
    shapes = Shapes(2, 32, 8, (2048, 512, 512), 256, True, "float16")
    asked = {"batch": 2, "heads": 32, "kv_heads": 8, "head_dim": 256, "causal": True, "dtype": "float16"}
    assert shapes.places == [
        ("seq_len", Workload(seq_len=seq_len, backward=backward, **asked))
        for seq_len in (512, 2048)
        for backward in (False, True)
    ]
    assert shapes.stem == "attention_b2_h32_kv8_d256_fp16_causal"
    assert shapes.title == "Attention, causal, float16, head_dim 256, batch 2, 32 heads (8 of k and v)"


def test_on_other_inputs_there_is_no_backward_workload_and_that_is_said():
    shapes = Shapes(inputs="local", seq_lens=(512,))
    assert [workload.backward for _, workload in shapes.places] == [False]
    assert shapes.stem == "attention_local"
    assert any(
        "backward passes are measured on normal inputs alone" in line for line in attention.sentences({}, KEYS, shapes)
    )
    assert Shapes(kv_heads=16).stem == "attention"


def test_a_row_is_a_seq_len_and_an_implementation():
    found = attention.rows(runs_of(), KEYS)
    assert [(seq_len, key) for seq_len, key, *_ in found] == [(n, key) for n in (1024, 2048) for key in KEYS]
    by_place = {(seq_len, key): points for seq_len, key, *points in found}
    assert [p.median_ms for p in by_place[1024, "eager"]] == [4.0, 8.0]
    assert by_place[2048, "fa3"][1].status == "unsupported"
    assert [p.status for p in by_place[2048, "eager"]] == ["oom", "oom"]


def test_what_ran_out_of_memory_is_in_the_table_and_in_a_sentence(tmp_path):
    shown = console()
    store = record(tmp_path, runs_of())
    assert attention.report(shown, store, SHAPES, KEYS, measured=False)
    text = shown.export_text()
    (row,) = [line for line in text.splitlines() if line.startswith("│ 2048    │ eager")]
    assert row.count("oom") == 2
    assert all(f"no {which} time of eager at seq_len 2048: out of memory" in text for which in ("forward", "backward"))
    assert "no backward time of FA3 at any seq_len: it computes [forward] only" in text
    assert "recorded on NVIDIA H200, 2026-01-02" in text
    (row,) = [line for line in text.splitlines() if line.startswith("│ 1024    │ eager")]
    for cell in ("4", "8", "1.05 MB", "2.1 MB"):
        assert f" {cell} " in row
    for name in ("attention.png", "attention.pdf", "attention_memory.png", "attention_memory.pdf"):
        assert (tmp_path / name).exists()


def test_lines_are_what_is_recorded_and_a_band_says_where_memory_ended():
    runs = runs_of()
    figure = plot.memory_figure(runs, KEYS, ["What", "recorded"], [])
    try:
        forward, backward = figure.axes
        assert (forward.get_xscale(), forward.get_yscale()) == ("log", "log")
        lines = {line.get_label(): line for line in forward.lines}
        assert lines["FA2"].get_xydata().tolist() == [[1024, 1024], [2048, 2048]]
        assert lines["eager"].get_xydata().tolist() == [[1024, 1024**2]]
        for axis in (forward, backward):
            (band,) = [patch for patch in axis.patches if patch.get_height() > 0]
            top = max(line.get_ydata().max() for line in axis.lines)
            assert band.get_y() >= top
            assert band.get_y() + band.get_height() == pytest.approx(axis.get_ylim()[1])
        linear, square = (
            line.get_xydata()
            for line in forward.lines
            if line.get_color() == "#999999" and line.get_linestyle() in (":", "--")
        )
        (x0, y0), (x1, y1) = linear
        assert y1 / y0 == pytest.approx(x1 / x0)
        (_, y0), (_, y1) = square
        assert y1 / y0 == pytest.approx((x1 / x0) ** 2)
        names = [text.get_text() for text in forward.texts]
        assert names == ["out of memory from 2k:\neager", "O(N)", "FA2, FA3", "O(N²)", "eager"]  # from the lowest end
        title = figure.legends[0].get_title().get_text()
        assert title == "Memory grows with the sequence length.\nWhat\nrecorded"
    finally:
        plt.close(figure)


def test_where_all_grow_alike_the_names_stay_in_the_picture():
    shapes = Shapes(seq_lens=(512, 1024, 16384))
    keys = ["fa2", "fa3", "cudnn"]
    runs = {}
    for place in shapes.places:
        points = run(place[1], "r", **dict.fromkeys(keys, 1e3))
        peak = {"peak_bytes": 2**20 * place[1].seq_len}
        runs[place] = {key: one.model_copy(update=peak) for key, one in points.items()}
    figure = plot.memory_figure(runs, keys, ["What", "recorded"], [])
    try:
        forward = figure.axes[0]
        square, *names = forward.texts
        assert square.get_text() == "O(N²)"
        assert forward.get_ylim()[1] == pytest.approx(square.xy[1])
        assert square.xy[0] == pytest.approx(math.sqrt(math.prod(forward.get_xlim())))
        assert [name.get_text() for name in names] == ["all 3", "O(N)"]
        assert {text.get_text() for text in forward.get_yticklabels(minor=True)} == {""}
        low, high = forward.get_ylim()
        assert all(low <= line.get_ydata().min() <= line.get_ydata().max() <= 1.001 * high for line in forward.lines)
    finally:
        plt.close(figure)


def test_heights_are_tflops():
    runs = runs_of()
    figure = plot.tflops_figure(runs, KEYS, ["What", "recorded"], [])
    try:
        forward, backward = figure.axes
        lines = {line.get_label(): line for line in forward.lines}
        expected = [[w.seq_len, one["fa3"].tflops] for (_, w), one in runs.items() if not w.backward]
        assert lines["FA3"].get_xydata().tolist() == expected
        assert [line.get_label() for line in backward.lines] == ["eager", "FA2"]
        assert [text.get_text() for text in forward.get_xticklabels()] == ["1k", "2k"]
        assert [axis.get_ylim()[0] for axis in figure.axes] == [0, 0]
        assert [axis.get_ylabel() for axis in figure.axes] == ["TFLOPS", "TFLOPS"]
        ends = {line.get_label(): line.get_ydata()[-1] for line in forward.lines}
        assert [text.get_text() for text in forward.texts] == sorted(ends, key=ends.get)
        heights = [text.get_position()[1] for text in forward.texts]
        assert all(above - below >= 0.041 for below, above in itertools.pairwise(heights))
        title = figure.legends[0].get_title().get_text().replace("\n", " ")
        assert title == "Fastest at every length: FA3 forward, FA2 backward What recorded"
    finally:
        plt.close(figure)


def test_where_another_is_fastest_at_short_lengths_the_longest_is_named():
    runs = runs_of()
    place = next(place for place in runs if place[1].seq_len == 1024 and not place[1].backward)
    runs[place] = run(place[1], "a", eager=4.0, fa2=1.0, fa3=2.0)
    figure = plot.tflops_figure(runs, KEYS, ["What", "recorded"], [])
    plt.close(figure)
    title = figure.legends[0].get_title().get_text().replace("\n", " ")
    assert title == "Fastest at 2k: FA3 forward, FA2 backward What recorded"


@pytest.mark.filterwarnings("error:constrained_layout")
@pytest.mark.parametrize("make", [plot.tflops_figure, plot.memory_figure])
def test_there_is_room_for_every_line_and_a_dozen_sentences(make):
    runs = {place: run(place[1], "r", **dict.fromkeys(COMPARED, 1.0)) for place in SHAPES.places}
    sentence = "no backward time of many implementations at any seq_len: " + 20 * "word "
    figure = make(runs, COMPARED, ["What", "recorded"], 6 * [sentence])
    figure.draw_without_rendering()
    plt.close(figure)


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 KB"), (8.59e9, "8.59 GB"), (999.9e6, "1 GB")]
)
def test_bytes_have_three_digits_and_a_unit(number, text):
    assert plot.in_bytes(number) == text


def test_who_gets_copies_of_the_heads_is_said():
    grouped = replace(SHAPES, kv_heads=4)
    lines = attention.sentences(runs_of(grouped), KEYS, grouped)
    (line,) = [line for line in lines if line.startswith("given k and v of all heads")]
    assert "eager;" in line
    assert "FA" not in line
    for runs, keys, shapes in ((runs_of(), KEYS, SHAPES), (runs_of(grouped), ["fa3", "fa2"], grouped)):
        assert not any(line.startswith("given") for line in attention.sentences(runs, keys, shapes))


def test_who_computes_forward_only_is_said_in_short():
    why = IMPLEMENTATIONS["fa3"].refuses(Workload(batch=2, seq_len=1024, backward=True))
    runs = {
        place: run if (point := run.get("fa3")) is None or point.status != "unsupported"
        else run | {"fa3": point.model_copy(update={"message": why})}
        for place, run in runs_of().items()
    }  # fmt: skip
    lines = attention.sentences(runs, KEYS, SHAPES)
    assert "FA3: forward only" in lines
    assert not any("backward time of FA3" in line for line in lines)


def test_what_is_not_in_the_record_is_said():
    runs = dict(list(runs_of().items())[:2])
    lines = attention.sentences(runs, (*KEYS, "flex"), SHAPES)
    assert "not recorded: compiled flex_attention" in lines
    assert "2 of 4 workloads: the others are not recorded yet" in lines


def test_a_wrong_point_fails_after_the_drawing(tmp_path):
    runs = runs_of()
    (place, *_) = runs
    wrong = failed("eager", "wrong", "a", place[1], message="relative error").model_copy(update={"figure": "attention"})
    runs[place]["eager"] = wrong
    with pytest.raises(MeasurementError, match="1 point has no time: eager on 4 x 16 x 1024"):
        attention.report(console(), record(tmp_path, runs), SHAPES, KEYS, measured=False)
    assert (tmp_path / "attention_memory.png").exists()


@pytest.fixture
def gpu(monkeypatch, h200):
    gpu = Gpu()
    stand_in(gpu, monkeypatch)
    return gpu


def too_large(*_):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_on_a_gpu_all_that_there_are_are_measured_in_both_directions_recorded_and_drawn(gpu, monkeypatch, tmp_path):
    """The real keys, with stand-ins that take known times: eager runs out of memory backward."""

    def eager(*operands):
        if operands[0].requires_grad:
            too_large()
        return fake(gpu, "eager", 3.0, n_bytes=1 << 30).bind(*operands)

    made = {
        "fa2": differentiable(gpu, "fa2"),
        "fa3": replace(fake(gpu, "fa3", 0.5, n_bytes=1 << 20), grouped=True),
        "eager": Implementation("eager", "eager", eager, differentiable=True),
        "xformers": Implementation(
            "xformers", "xFormers", too_large, missing=lambda: "xformers[core] is not installed"
        ),
    }
    chosen = []
    monkeypatch.setattr(attention, "COMPARED", tuple(made))
    monkeypatch.setattr(attention, "implementations", lambda keys: chosen.append(keys) or [made[key] for key in keys])
    shapes = Shapes(1, 4, 2, (128, 256), 64, True)
    shown = console()
    attention.run(shown, tmp_path, shapes, None, rounds=10, fresh=False)
    text = shown.export_text()
    assert "without xformers: xformers[core] is not installed" in text
    points = Store(tmp_path / "h200", "attention").points()
    assert [(p.seq_len, p.backward, p.implementation, p.status) for p in points] == [
        (seq_len, backward, key, status)
        for seq_len in (128, 256)
        for backward, statuses in ((False, ("ok", "ok", "ok")), (True, ("ok", "unsupported", "oom")))
        for key, status in zip(("fa2", "fa3", "eager"), statuses, strict=True)
    ]
    assert {(p.figure, p.kv_heads, p.sweep) for p in points} == {("attention", 2, "seq_len")}
    assert len({p.run for p in points}) == 4
    fa2, fa3, eager_point, fa2_backward, *_ = points
    assert (fa3.median_ms, fa2_backward.median_ms) == pytest.approx((0.5 + COLD_MS / fa3.calls_per_sample, 2 + COLD_MS))
    assert (fa2.peak_bytes, fa3.peak_bytes, eager_point.peak_bytes) == (1 << 20, 1 << 20, 1 << 30)
    assert "no backward time of eager at any seq_len: out of memory" in text
    assert (tmp_path / "h200/attention_b1_h4_kv2_d64_causal_memory.png").exists()
    before = len(points)
    attention.run(console(), tmp_path, shapes, None, rounds=10, fresh=False)
    assert len(Store(tmp_path / "h200", "attention").points()) == before  # what is recorded is not measured again


def test_without_a_gpu_what_torch_computes_on_the_cpu_is_checked_and_that_nothing_is_recorded_said(tmp_path):
    done = kperf(
        "attention", "--results", tmp_path, "--only", "eager,sdpa_math,fa3", "--n-heads", "8", "--n-kv-heads", "2"
    )
    assert done.returncode == 0, done.stderr
    for key in ("eager", "sdpa_math"):
        assert done.stdout.count(f"{key} on this CPU, 1 x 8/2 x 256 x 128 bfloat16 full") == 2
    assert "fa3 on this CPU" not in done.stdout
    assert "is recorded yet: `make attention` on a Hopper GPU records it" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_without_a_gpu_one_that_is_wrong_fails(monkeypatch):
    spoilt = replace(IMPLEMENTATIONS["sdpa_math"], bind=lambda q, k, v, causal, sm_scale: lambda: (v * 0.5, None))
    with pytest.raises(
        MeasurementError, match=r"SDPA math on the CPU, 1 x 2 x 256 x 128 bfloat16 full: relative error"
    ):
        attention.verify(console(), Shapes(), [spoilt])


def test_without_a_gpu_a_recorded_run_is_shown(no_gpu, tmp_path):
    record(tmp_path / "h200", runs_of())
    shown = console()
    attention.run(shown, tmp_path, SHAPES, ["fa3"], rounds=10, fresh=False)
    text = shown.export_text()
    assert "│ 2048    │ fa3" in text
    assert "fa2" not in text
    assert "nothing of" not in text
    other = console()
    attention.run(other, tmp_path, replace(SHAPES, causal=True), ["fa3"], rounds=10, fresh=False)
    assert "nothing of Attention, causal" in other.export_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--n-kv-heads", "3"], "kv_heads 3 does not divide heads 16"),
        (["--seq-len", "512,a"], "--seq-len has 'a': give whole numbers"),
        (["--seq-len", "9" * 5000], "give whole numbers"),
        (["--seq-len", "200"], "seq_len 200 is not a multiple of 128"),
        (["--only", "fa9"], "unknown implementation 'fa9'"),
        (["--inputs", "uniform"], "inputs"),
    ],
)
def test_a_mistake_is_one_sentence(arguments, words):
    done = kperf("attention", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.gpu
@pytest.mark.parametrize("kv_heads", [None, 2])
def test_on_a_hopper_gpu_all_are_right_and_measured_at_a_small_shape(tmp_path, kv_heads):
    shapes = Shapes(1, 4, kv_heads, (512,), 128, True)
    attention.run(console(), tmp_path, shapes, None, rounds=10, fresh=False)
    (folder,) = tmp_path.iterdir()
    points = {(p.implementation, p.backward): p for p in Store(folder, "attention").points()}
    for key in COMPARED:
        item = IMPLEMENTATIONS[key]
        for workload in (workload for _, workload in shapes.places):
            if item.missing():
                assert (key, workload.backward) not in points
            else:
                expected = "unsupported" if item.refuses(workload) else "ok"
                assert points[key, workload.backward].status == expected, points[key, workload.backward]
    forward = {key: p for (key, backward), p in points.items() if not backward and p.status == "ok"}
    o_bytes = 4 * 512 * 128 * 2
    assert all(p.peak_bytes >= o_bytes for p in forward.values())
    assert forward["eager"].peak_bytes > 4 * 512 * 512 * 2 > forward["fa3"].peak_bytes - o_bytes


@pytest.mark.gpu
def test_on_a_hopper_gpu_the_compiled_formula_needs_no_scores():
    workload = Workload(batch=1, heads=4, seq_len=2048)
    for seq_len in range(512, 512 + 10 * 128, 128):  # more shapes than torch compiles for by itself
        one = workload.model_copy(update={"seq_len": seq_len})
        bound = measuring._bind(IMPLEMENTATIONS["flex"], one, make_inputs(one, 1))
        assert bound.peak_bytes < 4 * seq_len**2


def test_an_unknown_key_is_a_mistake_without_a_gpu_too(tmp_path):
    with pytest.raises(UsageError, match="unknown implementation"):
        attention.run(console(), tmp_path, SHAPES, ["fa9"], rounds=10, fresh=False)
