"""How the lead depends on the inputs: the shapes and kinds that are measured, the numbers and the picture of them."""

import matplotlib.pyplot as plt
import pytest

from kperf.attention import overrides
from kperf.attention.workload import Workload
from kperf.bench.points import Store
from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError
from kperf.paper import fig12_inputs
from kperf.plots import fig12_inputs as plot
from tests.conftest import environment, failed, kept, point

FA3_MS = {"normal": 4.0, "x4": 3.0}


def run(seq_len, kind, name="r1", **milliseconds):
    workload = Workload(batch=16, seq_len=seq_len, inputs=kind)
    times = {"fa3": FA3_MS[kind], "improved": 4.0, "improved_plus": 2.0} | milliseconds
    return ("seq_len", workload), {
        key: point(key, value, name, workload, figure="fig12_inputs") for key, value in times.items()
    }


@pytest.fixture
def runs():
    return dict([run(512, "normal"), run(512, "x4"), run(1024, "normal", improved_plus=1.0), run(1024, "x4")])


def test_four_shapes_of_fig12_are_measured_with_all_kinds_together():
    groups = fig12_inputs.groups()
    assert [group[0][1].seq_len for group in groups] == [512, 1024, 4096, 8192] * 2
    for group in groups:
        assert [workload.inputs for _, workload in group] == list(fig12_inputs.KINDS)
        assert len({(sweep, w.model_copy(update={"inputs": "normal"})) for sweep, w in group}) == 1
    assert {workload.causal for ((_, workload), *_) in groups} == {False, True}


def test_a_row_has_the_ratios_and_how_far_they_are_off_those_on_normal_inputs(runs):
    found = {(row.key, row.kind): row for row in fig12_inputs.rows(runs)}
    assert found["improved_plus", "normal"].ratios == pytest.approx([2.0, 4.0])
    assert found["improved_plus", "normal"].mean == pytest.approx(8**0.5)
    assert found["improved_plus", "normal"].off_normal is None
    assert found["improved_plus", "x4"].ratios == pytest.approx([1.5, 1.5])
    assert found["improved_plus", "x4"].off_normal == pytest.approx(1.5 / 4 - 1)
    assert {row.key for row in found.values()} == {"improved_plus"}
    assert not any(row.causal for row in found.values())


def test_normal_inputs_of_another_run_are_no_measure(runs):
    runs |= dict([run(1024, "normal", "another", improved_plus=1.0)])
    found = {(row.key, row.kind): row for row in fig12_inputs.rows(runs)}
    assert found["improved_plus", "x4"].off_normal == pytest.approx(1.5 / 2 - 1)


def test_the_picture_has_a_row_a_kind_and_a_column_a_shape_with_the_mean(runs):
    figure = plot.figure(runs, ("improved", "improved_plus"), ["What", "recorded"], [])
    try:
        improved, plus = figure.axes
        assert [axis.get_title(loc="left") for axis in figure.axes] == [
            "Triton-FA3 Improved, non-causal",
            "Triton-FA3 Improved+, non-causal",
        ]
        assert [text.get_text() for text in plus.get_yticklabels()] == ["normal", "x4"]
        assert [text.get_text() for text in plus.get_xticklabels()] == ["16 x\n512", "16 x\n1k", "mean"]
        assert not any(label.get_visible() for label in improved.get_xticklabels())  # the same as below
        cells = {text.get_position(): text.get_text() for text in plus.texts}
        assert cells == {
            (0, 0): "2.00", (1, 0): "4.00", (2, 0): "2.828", (0, 1): "1.50", (1, 1): "1.50", (2, 1): "1.500"
        }  # fmt: skip
        assert plus.images[0].get_array()[0].tolist() == pytest.approx([2, 4, 8**0.5])
        assert next(text.get_text() for text in improved.texts) == "(1.00)"  # no difference
        title = figure.legends[0].get_title().get_text().splitlines()
        assert title == [
            "Triton-FA3 Improved is at 0.75 to 1.00 of FA3's speed",
            "Triton-FA3 Improved+ is at 1.50 to 4.00 of FA3's speed",
            "What",
            "recorded",
        ]
        below = figure._supxlabel.get_text().replace("\n", " ")
        assert below.startswith("Rows: what is in q and k. normal: standard normal q and k; x4: four times. Numbers:")
    finally:
        plt.close(figure)


def test_the_title_says_nothing_of_what_is_not_there(runs):
    figure = plot.figure({place: {"fa3": run["fa3"]} for place, run in runs.items()}, ("improved_plus",), ["What"], [])
    plt.close(figure)
    assert figure.legends[0].get_title().get_text() == "What"


def test_every_kind_of_inputs_is_explained():
    assert tuple(plot.KINDS) == fig12_inputs.KINDS


def record(folder, *found):
    return kept(Store(folder, "fig12_inputs"), [point for _, run in found for point in run.values()])


def test_what_is_recorded_is_drawn_and_what_is_missing_said(tmp_path, monkeypatch, console):
    others = lambda runs: {"improved_plus"} if runs[0]["fa3"].workload.seq_len == 1024 else set()  # noqa: E731
    monkeypatch.setattr(fig12_inputs, "of_other_overrides", others)
    store = record(tmp_path, run(512, "normal"), run(512, "x4"), run(1024, "normal"))
    written = fig12_inputs.report(console, store, measured=False)
    assert {path.name for path in written} == {"fig12_inputs.png", "fig12_inputs.pdf"}
    said = console.export_text()
    assert "2 of 136 workloads: the others are not recorded yet" in said
    assert "-25.0%" in said  # FA3 is faster on x4, ours is not
    assert "1.500 │          1.500 │   1.500" in said


def test_a_wrong_point_fails_after_the_drawing(tmp_path, monkeypatch):
    monkeypatch.setattr(fig12_inputs, "of_other_overrides", lambda _: set())
    place, points = run(512, "normal")
    points["improved_plus"] = failed("improved_plus", "wrong", "r1", place[1]).model_copy(
        update={"figure": "fig12_inputs"}
    )
    store = record(tmp_path, (place, points))
    with pytest.raises(MeasurementError, match="1 point has no time"):
        fig12_inputs.report(WholeConsole(quiet=True), store, measured=True)
    assert (tmp_path / "fig12_inputs.png").exists()
    console = WholeConsole(record=True, width=200)
    fig12_inputs.report(console, store, measured=False)
    assert "1 point has no time: improved_plus on 16 x 16 x 512" in console.export_text()


def test_without_a_record_it_is_said_what_records_it(tmp_path):
    with pytest.raises(UsageError, match="`make inputs` on a Hopper GPU records one"):
        fig12_inputs.report(WholeConsole(quiet=True), Store(tmp_path, "fig12_inputs"), measured=False)


def whole(folder, run_of, views=False):
    """A record of every place: FA3 takes twice as long as ours, but 1.9 times on x4 and 1.5 times on student."""
    with Store(folder, "fig12_inputs").writer() as writer:
        known = writer.record_environment(environment())
        for n, group in enumerate(fig12_inputs.groups()):
            for sweep, workload in group:
                sha256 = overrides.find("improved_plus", overrides.specialization_of(workload)).sha256
                times = {"fa3": {"x4": 1.9, "student": 1.5}.get(workload.inputs, 2.0), "improved_plus": 1.0}
                times |= {"improved_plus_views": 1.25} if views else {}
                unit = workload.flops / 3e11
                writer.append(
                    point(key, unit * t, run_of(n, workload), workload, sweep, figure="fig12_inputs",
                          environment=known, override_sha256=sha256 if key == "improved_plus" else None)
                    for key, t in times.items()
                )  # fmt: skip


def test_what_is_claimed_of_the_kinds_is_of_a_whole_record(tmp_path):
    whole(tmp_path / "whole", lambda n, _: str(n))
    found = fig12_inputs.summary(tmp_path / "whole").numbers
    least = {"least_full": 1.5, "least_causal": 1.5, "mean_full": 1.9, "mean_causal": 1.9}  # scores of x4 rise little
    assert found == pytest.approx(least | {"lost": 0.05})
    whole(tmp_path / "views", lambda n, _: str(n), views=True)
    views = {"views_least_full": 1.2, "views_least_causal": 1.2, "views_mean_full": 1.52, "views_mean_causal": 1.52}
    assert fig12_inputs.summary(tmp_path / "views").numbers == pytest.approx(found | views | {"views_lost": 0.05})
    whole(tmp_path / "apart", lambda n, workload: f"{n} {workload.inputs}")  # no kind was in turn with another
    assert fig12_inputs.summary(tmp_path / "apart").numbers == {}


def test_the_table_has_a_column_a_shape_that_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(fig12_inputs, "of_other_overrides", lambda _: set())
    record(tmp_path / "h200", run(512, "normal"), run(512, "x4"), run(1024, "normal", improved_plus=1.0))
    lines = fig12_inputs.markdown(tmp_path / "h200").splitlines()
    assert lines[:4] == [
        "| speedup of the Improved+ of Fig. 12 over FA3, on inputs of the kind "
        "| no mask, seq_len 512 | no mask, seq_len 1024 |",
        "|---|---|---|",
        "| normal | 2.000 | 4.000 |",
        "| x2 | - | - |",
    ]
    assert lines[4] == "| x4 | 1.500 | - |"
    assert len(lines) == 2 + len(fig12_inputs.KINDS)
    record(tmp_path / "h100", run(512, "normal", improved_plus_views=1.6), run(512, "x4", improved_plus_views=2.4))
    tables = fig12_inputs.markdown(tmp_path / "h100").split("\n\n")
    assert tables[0].splitlines()[:4] == [
        "| speedup of the Improved+ of Fig. 12 over FA3, on inputs of the kind | no mask, seq_len 512 |",
        "|---|---|",
        "| normal | 2.000 |",
        "| x2 | - |",
    ]
    assert tables[1].splitlines()[4] == "| x4 | 1.250 |"
    assert tables[1].splitlines()[:4] == [
        "| speedup of the Improved+ of the torch operator over FA3, on inputs of the kind | no mask, seq_len 512 |",
        "|---|---|",
        "| normal | 2.500 |",
        "| x2 | - |",
    ]
    assert fig12_inputs.summary(tmp_path / "h200").numbers == {}


def test_without_a_run_of_the_committed_override_there_is_no_table(tmp_path):
    record(tmp_path / "h200", run(512, "normal"))
    with pytest.raises(UsageError, match="has no kind of inputs: `make inputs`"):
        fig12_inputs.markdown(tmp_path / "h200")
