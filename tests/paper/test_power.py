import io
import json

import pytest

from kperf.attention import overrides
from kperf.attention.workload import Workload
from kperf.bench.points import PowerPoint, PowerSample, PowerStore
from kperf.console import WholeConsole
from kperf.errors import UsageError
from kperf.paper import power
from kperf.plots import power as plot
from tests.conftest import environment, kept

pytestmark = pytest.mark.usefixtures("unrendered")


def alone(implementation, tflops, watts, run="r", seq_len=4096, causal=False):
    workload = Workload(batch=16, seq_len=seq_len, causal=causal)
    samples = [
        PowerSample(
            tflops=tflops * factor,
            power_w=watts,
            sm_mhz=1600.0,
            temperature_c=60.0,
            energy_j=1.5 * watts,
            energy_s=1.5,
        )
        for factor in (0.98, 1.0, 1.03)
    ]
    return PowerPoint(
        run=run,
        implementation=implementation,
        **workload.model_dump(),
        seconds=2.0,
        samples=samples,
        other_processes=0,
        override_sha256=None,
        environment="e",
        recorded_at="2026-01-02T03:04:05+00:00",
    )


def test_the_newest_run_of_each_workload_is_shown(tmp_path, console):
    store = PowerStore(tmp_path)
    with store.writer() as writer:
        writer.append([alone("fa3", 600, 700, "old"), alone("cublas", 650, 700, "old")])
        writer.append([alone("fa3", 500, 700, "old", 8192), alone("fa3", 400, 700, "c", causal=True)])
        writer.append([alone("fa3", 610, 690, "new"), alone("cublas", 650, 700, "new")])
    runs = power.newest_runs(store.points(), causal=False)
    assert [[p.run for p in run] for run in runs] == [["new", "new"], ["old"]]
    console.print(power.table(runs, "recorded"))
    text = console.export_text()
    assert "598 to 628" in text
    assert f"{610 / 690:.3f}" in text


def test_a_partial_run_does_not_hide_a_whole_one():
    whole = [alone("fa3", 600, 700, "whole"), alone("cublas", 650, 700, "whole")]
    partial = [alone("fa3", 1, 700, "partial")]
    assert [p.run for p in power.newest_runs([*whole, *partial], False)[0]] == ["whole", "whole"]
    assert [p.run for p in power.newest_runs([*whole, *partial], False, ["fa3"])[0]] == ["whole", "whole"]
    assert power.newest_runs(whole, False, ["fa3", "fa2"]) == []
    assert [p.run for p in power.newest_runs(partial, False, ["fa3"])[0]] == ["partial"]  # all that is asked for


def test_without_a_gpu_the_recorded_runs_are_shown_and_said(tmp_path, no_gpu, console):
    store = kept(PowerStore(tmp_path / "h200"), [alone("fa3", 600, 700)])
    power.run(console, tmp_path, None, causal=False, seconds=2.0, passes=5)
    text = console.export_text()
    assert "there is no GPU" in text
    assert "recorded on NVIDIA H200" in text
    with pytest.raises(UsageError, match="no such run"):
        power.run(console, tmp_path, None, causal=True, seconds=2.0, passes=5)
    store.environments_path.unlink()
    with pytest.raises(UsageError, match="lacks the environment"):
        power.run(console, tmp_path, None, causal=False, seconds=2.0, passes=5)


def test_causal_stands_beside_non_causal(tmp_path, no_gpu):
    made = [alone("fa3", rate, 700, f"run of {causal}", causal=causal) for causal, rate in ((False, 600), (True, 500))]
    store = kept(PowerStore(tmp_path / "h200"), made)
    before = store.points_path.read_bytes()
    for causal, stem, tflops, mask in ((True, "power_causal", 500, "sustained, causal"), (False, "power", 600, "non-")):
        console = WholeConsole(width=160, file=io.StringIO(), record=True)
        power.run(console, tmp_path, None, causal=causal, seconds=2.0, passes=5)
        text = console.export_text()
        assert f"{stem}.png" in text
        assert f"{tflops}" in text
        assert mask in text
    assert store.points_path.read_bytes() == before
    names = {path.name for path in store.folder.glob("*.p*")}
    assert names == {"power.pdf", "power.png", "power_causal.pdf", "power_causal.png"}


def test_a_watt_is_a_joule_a_second():
    sample = PowerSample(tflops=700.0, power_w=350.0, sm_mhz=1500.0, temperature_c=50.0)
    assert sample.tflops_per_watt == pytest.approx(2.0)


def test_asking_for_one_shows_one_and_leaves_the_figure_whole(tmp_path, monkeypatch, no_gpu, console):
    drawn = []
    monkeypatch.setattr(plot, "draw", lambda runs, *_: drawn.append({p.implementation for p in runs[0]}) or [])
    runs = {"whole": ("fa3", "cudnn", "cublas"), "partial": ("fa3",)}
    made = [alone(key, 600, 700, run) for run, keys in runs.items() for key in keys]
    kept(PowerStore(tmp_path / "h200"), made)
    power.run(console, tmp_path, ["fa3"], causal=False, seconds=2.0, passes=5)
    text = console.export_text()
    assert drawn == [{"fa3", "cudnn", "cublas"}]
    assert "whole" in text  # the run that the figure shows, also for one of its bars
    assert "partial" not in text
    assert "cudnn" not in text
    assert "no bar for FA2, Triton, Triton auto-WS" in text


@pytest.mark.parametrize(
    ("field", "value"),
    [("power_w", 350.0), ("energy_j", 1.0), ("energy_s", None), ("energy_s", -1.5), ("tflops", 0), ("tflops", "fast")],
)
def test_a_sample_that_contradicts_itself_is_refused(tmp_path, field, value):
    store = PowerStore(tmp_path)
    record = alone("fa3", 600, 700).model_dump(mode="json") | {"schema_version": 2}
    record["samples"][1][field] = value
    store.points_path.write_text(json.dumps(record) + "\n")
    with pytest.raises(UsageError, match=r"power\.jsonl, line 1 is not a recorded point: (samples|power_w)"):
        store.points()
    record["samples"] = []
    store.points_path.write_text(json.dumps(record) + "\n")
    with pytest.raises(UsageError, match="line 1 is not a recorded point: samples"):
        store.points()


def test_a_sustained_run_of_another_override_is_said():
    points = [alone("improved", 600, 700)]
    assert any("Triton-FA3 Improved: recorded with another override" in sentence for sentence in power.notes([points]))


def test_a_run_of_the_committed_override_comes_before_a_whole_one_of_another():
    committed = overrides.find("improved", overrides.Specialization()).sha256
    before = [alone(key, 600, 700, "before") for key in ("improved", "fa3", "cudnn", "cublas")]
    now = [alone(key, 600, 700, "now") for key in ("improved", "fa3", "cublas")]
    now[0] = now[0].model_copy(update={"override_sha256": committed})
    assert {p.run for p in power.newest_runs([*before, *now], False)[0]} == {"now"}
    assert {p.run for p in power.newest_runs([*now, *before], False)[0]} == {"now"}
    current = [one.model_copy(update={"override_sha256": committed}) for one in before[:1]] + before[1:]
    assert {p.run for p in power.newest_runs([*current, *now], False)[0]} == {"before"}  # of the same, the whole one
    assert {p.run for p in power.newest_runs([*current, *now[1:]], False)[0]} == {"before"}
    assert {p.run for p in power.newest_runs([*before, *now], False, ["cudnn"])[0]} == {"before"}


def test_a_figure_with_one_recorded_run_is_not_called_measured(tmp_path):
    store = PowerStore(tmp_path)
    with store.writer() as writer:
        known = {"environment": writer.record_environment(environment())}
    made = [alone("fa3", 700, 690, run="now"), alone("cudnn", 600, 650, run="before")]
    runs = [[point.model_copy(update=known)] for point in made]
    stamps = [power._stamp(store, runs, measured) for measured in ({"now", "before"}, {"now"})]
    assert [stamp.partition(" on ")[0] for stamp in stamps] == ["measured", "recorded"]
