"""An environment's id: what tells one machine, software or commit from another."""

import sys

import pytest

from kperf.record import device
from kperf.record.store import Environment
from tests.conftest import environment

SAME = {"command_line", "recorded_at"}
TEXT = {name for name, field in Environment.model_fields.items() if field.annotation in (str, str | None)}
LATER = {"recorded_at": "2027-01-02T03:04:05+00:00"}


@pytest.mark.parametrize("name", sorted(Environment.model_fields))
def test_the_id_is_of_all_but_the_command_and_the_time(name):
    changed = environment(**{name: LATER.get(name, "another") if name in TEXT else 3})
    assert (changed.id == environment().id) is (name in SAME)


def test_the_id_is_twelve_hexadecimal_digits():
    assert len(environment().id) == 12
    assert int(environment().id, 16) > 0


def test_the_command_line_names_no_folder_of_the_machine(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{tmp_path}/kperf/__main__.py", "fig12", "--results", f"{tmp_path}/results"])
    assert device.command_line() == "__main__.py fig12 --results results"
