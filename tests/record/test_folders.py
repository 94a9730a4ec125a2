"""Which folder of several is drawn from: of this machine's GPU, else with the newest record; no GPU by its name."""

import json
from types import SimpleNamespace

import pytest

from kperf.errors import UsageError
from kperf.record import machine
from kperf.record.store import gpu_in_words, gpu_slug, recorded_folder, recorded_folders

FOLDERS = {"a100": "2026-11-01", "h100-80gb-hbm3": "2026-11-09", "h200": "2026-11-05"}


@pytest.fixture
def results(tmp_path):
    for name, date in FOLDERS.items():
        (tmp_path / name / "fig11").mkdir(parents=True)
        instant = {"recorded_at": f"{date}T00:00:00+00:00"}
        older = {"recorded_at": "2026-10-01T00:00:00+00:00"}
        (tmp_path / name / "fig12.jsonl").write_text(f"{json.dumps(instant)}\n{json.dumps(older)}\n")
        (tmp_path / name / "fig11/vanilla.timeline.json").write_text(json.dumps({"environment": instant}, indent=2))
    return tmp_path


def with_gpus(monkeypatch, *names):
    monkeypatch.setattr(machine, "visible_gpus", lambda: tuple(SimpleNamespace(name=name) for name in names))


@pytest.mark.parametrize(
    ("gpus", "chosen"),
    [
        ((), "h100-80gb-hbm3"),
        (("NVIDIA A100",), "a100"),
        (("NVIDIA H200", "NVIDIA A100"), "h200"),
        (("NVIDIA B200",), "h100-80gb-hbm3"),
    ],
)
def test_of_this_machines_gpu_or_the_newest(monkeypatch, results, gpus, chosen):
    with_gpus(monkeypatch, *gpus)
    assert recorded_folder(results).name == chosen
    assert recorded_folder(results, "fig11/vanilla.timeline.json").name == chosen


def test_a_folder_whose_record_says_no_time_is_the_last_choice(monkeypatch, results):
    with_gpus(monkeypatch)
    (results / "h100-80gb-hbm3/fig12.jsonl").write_text("{")
    assert [folder.name for folder in recorded_folders(results)] == ["h200", "a100", "h100-80gb-hbm3"]


def test_what_is_asked_for_comes_before_what_is_newer(monkeypatch, results):
    with_gpus(monkeypatch, "NVIDIA H200")
    assert recorded_folder(results, holds=lambda folder: folder.name != "h200").name == "h100-80gb-hbm3"
    assert recorded_folder(results, holds=lambda folder: False).name == "h200"


def test_a_gpu_that_is_named_comes_before_all(monkeypatch, results):
    with_gpus(monkeypatch, "NVIDIA H200")
    assert recorded_folder(results, gpu="a100").name == "a100"
    assert recorded_folder(results, "fig11/vanilla.timeline.json", gpu="a100") == results / "a100"
    with pytest.raises(UsageError, match=r"holds no recorded fig12.jsonl of 'l4': there is a100, h100-80gb-hbm3, h200"):
        recorded_folder(results, gpu="l4")


@pytest.mark.parametrize(
    ("name", "in_words"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIE"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_a_folder_has_the_name_that_people_give_its_gpu(name, in_words):
    assert gpu_in_words(gpu_slug(name)) == in_words
