"""Which folder of several is drawn from: of this machine's GPU, else with the newest record; no GPU by its name."""

import json
from types import SimpleNamespace

import pytest

from kperf.record import machine
from kperf.record.store import RECORDED, recorded_folder

ENVIRONMENT = next(iter(json.loads((RECORDED / "h200/environment.json").read_text()).values()))
FOLDERS = {"a100": "2026-11-01", "h100-80gb-hbm3": "2026-11-09", "h200": "2026-11-05"}


@pytest.fixture
def results(tmp_path):
    for number, (name, date) in enumerate(FOLDERS.items()):
        folder = tmp_path / name
        folder.mkdir()
        # Each knows of an environment that is newer than all; the recorded file does not name it.
        known = {f"{number:012x}": date, "f" * 12: f"2027-01-0{9 - number}"}
        environments = {key: ENVIRONMENT | {"recorded_at": f"{day}T00:00:00+00:00"} for key, day in known.items()}
        (folder / "environment.json").write_text(json.dumps(environments))
        (folder / "fig12.jsonl").write_text(json.dumps({"environment": f"{number:012x}"}) + "\n")
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


def test_a_folder_whose_environments_are_broken_is_the_last_choice(monkeypatch, results):
    with_gpus(monkeypatch)
    (results / "h100-80gb-hbm3/environment.json").write_text("{")
    assert recorded_folder(results).name == "h200"
