"""`kperf bench` and `kperf power` from end to end on a GPU whose times are known."""

import io
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from kperf.attention.implementations import Implementation
from kperf.attention.workload import Workload
from kperf.bench import commands, power
from kperf.bench.points import PowerStore, Store
from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from tests.bench.fake_gpu import COLD_MS, Gpu
from tests.bench.test_on_a_fake_gpu import STATE, WORKLOAD, attention, stand_in


@pytest.fixture
def gpu(monkeypatch, h200):
    gpu = Gpu()
    stand_in(gpu, monkeypatch)
    gpu.stand_in(monkeypatch, power)
    return gpu


def offered(monkeypatch, module, *made):
    """Only these can be chosen, by key; all of them without a choice."""
    by_key = {item.key: item for item in made}
    everything = module.FIG12
    monkeypatch.setattr(
        module, "implementations", lambda keys: [by_key[key] for key in (by_key if keys is everything else keys)]
    )


def bench(monkeypatch, *made, keys=None, metrics=("latency",), as_csv=True, results=None):
    offered(monkeypatch, commands, *made)
    console = WholeConsole(record=True, width=200, file=io.StringIO())
    commands.run_one(console, WORKLOAD, keys, list(metrics), as_csv=as_csv, rounds=8, results=results)
    return console.export_text()


def test_a_shape_is_a_row_and_is_kept_where_it_is_asked_for(gpu, monkeypatch, capsys, tmp_path):
    made = [attention(gpu, "quick", 1.0), attention(gpu, "slow", 3.0)]
    bench(monkeypatch, *made, results=tmp_path)
    header, row = capsys.readouterr().out.splitlines()
    assert header == "(Batch, Heads, SeqLen, Dhead);quick-latency;slow-latency"
    assert row == f"(1, 2, 128, 64);{1 + COLD_MS:.6g};{3 + COLD_MS:.6g}"
    points = Store(tmp_path / "h200", "bench").points()
    assert [(p.implementation, p.figure, len(p.samples_ms)) for p in points] == [
        ("quick", "bench", 8),
        ("slow", "bench", 8),
    ]
    bench(monkeypatch, *made, results=tmp_path)  # what is there already is measured anew
    assert len(Store(tmp_path / "h200", "bench").points()) == 4


def test_the_table_has_the_same_numbers(gpu, monkeypatch):
    assert "3.05" in bench(monkeypatch, attention(gpu, "slow", 3.0), as_csv=False)


def test_without_a_choice_what_cannot_run_is_left_out_and_with_one_it_says_why(gpu, monkeypatch, capsys):
    never = Implementation("never", "Never", lambda *_: None, unsupported=lambda _: "not for this shape")
    bench(monkeypatch, never, attention(gpu, "quick", 1.0))
    assert "never" not in capsys.readouterr().out
    bench(monkeypatch, never, attention(gpu, "quick", 1.0), keys=["never", "quick"])
    assert ";unsupported;" in capsys.readouterr().out


def test_a_wrong_one_ends_with_its_reason(gpu, monkeypatch):
    wrong = attention(gpu, "wrong", 1.0, spoil=lambda o, lse: o.mul_(2))
    with pytest.raises(MeasurementError, match=r"^wrong on 1 x 2 x 128 x 64 .*: relative error"):
        bench(monkeypatch, attention(gpu, "quick", 1.0), wrong)


def test_a_metric_that_is_not_known_and_a_gpu_that_is_not_there_are_sentences(gpu, monkeypatch):
    with pytest.raises(UsageError, match="unknown metric 'speed': choose from tflops, latency"):
        bench(monkeypatch, metrics=["latency", "speed"])
    monkeypatch.setattr(device, "why_static", lambda: "there is no GPU")
    with pytest.raises(UsageError, match="bench measures, and there is no GPU"):
        bench(monkeypatch)


def test_each_line_of_progress_is_a_shape_with_its_rates_and_what_failed(gpu, monkeypatch, capsys):
    gone = Implementation("gone", "Gone", lambda *_: None, missing=lambda: "is not installed")

    def breaks(*_):
        raise ValueError("no such tile [/m64]")

    quick = attention(gpu, "quick", 0.01)
    bench(monkeypatch, quick, gone, keys=["quick", "gone"])
    rate = WORKLOAD.flops / ((0.01 + COLD_MS / 50) * 1e9)
    assert f"{WORKLOAD}: quick {rate:.0f}, gone unsupported TFLOPS" in capsys.readouterr().err
    with pytest.raises(MeasurementError, match="no such tile"):
        bench(monkeypatch, quick, Implementation("broken", "Broken", breaks))
    told = capsys.readouterr().err
    assert "broken failed TFLOPS" in told
    assert "  broken: ValueError: no such tile [/m64]" in told
    assert "  gone: " not in told


def test_sustained_each_is_alone_in_rotation_beside_cublas(gpu, monkeypatch, tmp_path):
    """600 W at all times, counted on every 100 ms."""
    never = Implementation("never", "Never", lambda *_: None, unsupported=lambda _: "not for this shape")
    offered(monkeypatch, power, attention(gpu, "a", 1.5), attention(gpu, "b", 3.0), never)
    monkeypatch.setattr(power, "workloads", lambda causal: [WORKLOAD.model_copy(update={"causal": causal})])
    monkeypatch.setattr(device, "energy_j", lambda: 60.0 * (gpu.now_ms // 100))
    monkeypatch.setattr(device, "device_state", lambda: STATE)
    monkeypatch.setattr(device, "other_processes", lambda: 1)
    prepared = []
    real = power.prepare_alone
    monkeypatch.setattr(
        power, "prepare_alone", lambda *what: prepared.append(what[0].key) or gpu.ran.clear() or real(*what)
    )
    sustained = partial(power.measure, WholeConsole(quiet=True), PowerStore(tmp_path), None, causal=True, seconds=2.0)
    sustained(passes=2)
    sustained(passes=2)  # goes on from what is recorded
    assert prepared == ["a", "b"]
    points = PowerStore(tmp_path).points()
    assert [p.implementation for p in points] == ["a", "b", "cublas"]
    assert len({p.run for p in points}) == 1
    assert all(p.causal and p.seconds == 2.0 and len(p.samples) == 2 and p.other_processes == 1 for p in points)
    turns = [name for name, before in zip(gpu.ran, ["", *gpu.ran], strict=False) if name != before]
    assert turns[-6:] == ["a", "b", "cublas 16", "b", "cublas 16", "a"]
    a, b, cublas = points
    flops = WORKLOAD.model_copy(update={"causal": True}).flops
    for sample in a.samples:
        assert sample.tflops == pytest.approx(flops / 1.5e-3 / 1e12, rel=0.03)
        assert sample.power_w == pytest.approx(600, rel=0.08)
        assert sample.tflops_per_watt == sample.tflops / sample.power_w
        assert (sample.sm_mhz, sample.temperature_c) == (1500, 50)
    assert b.samples[0].tflops == pytest.approx(flops / 3e-3 / 1e12, rel=0.03)
    assert cublas.samples[0].tflops == pytest.approx(1_099_511_627_776 / 2e-3 / 1e12, rel=0.03)
    for again in ({"passes": 3}, {"passes": 2, "fresh": True}):
        prepared.clear()
        sustained(**again)
        assert prepared == ["a", "b"]
    prepared.clear()
    sustained(passes=3)
    assert prepared == []
    another = replace(attention(gpu, "a", 1.5), override=lambda _: SimpleNamespace(sha256="0" * 64))
    offered(monkeypatch, power, another, attention(gpu, "b", 3.0), never)
    sustained(passes=3)
    assert prepared == ["a", "b"]


def test_the_power_cap_decides_long_shapes():
    assert power.workloads(causal=True) == [
        Workload(batch=16, seq_len=seq_len, causal=True) for seq_len in (4096, 8192, 16384)
    ]
