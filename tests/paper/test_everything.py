"""`kperf record` with commands that stand in for the measuring ones: real processes, no GPU."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from kperf.cli.commands import app
from kperf.errors import MeasurementError, UsageError
from kperf.paper import everything
from kperf.paper.everything import STEPS
from kperf.record import device
from kperf.studies import child
from tests.pages import said
from tests.processes import has_ended, soon

ROOT = Path(__file__).parents[2]


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """Makes the steps of (name, Python to run), a minute each; they see the results folder as `results`."""
    monkeypatch.setattr(device, "why_static", lambda: None)
    monkeypatch.setattr(everything, "KPERF", (sys.executable, "-c"))

    def make(**programs: str) -> None:
        before = "import os, pathlib, sys, time; results = pathlib.Path(sys.argv[2])\n"
        made = [everything.Step(name, f'"{before}{text}"', 1) for name, text in programs.items()]
        monkeypatch.setattr(everything, "STEPS", tuple(made))

    return make


WRITE = "(results / 'order').open('a').write('{}')"


def test_every_command_of_the_claims_is_a_step_that_takes_as_long():
    spoken = {"CAUSAL=1": "--causal", "HEAD_DIM=64": "--head-dim 64", "DTYPE=float16": "--dtype float16"}
    spoken["OPTIONS=--exhaustive"] = "--exhaustive"
    minutes = {step.command: step.minutes for step in STEPS}
    for claim in tomllib.loads((ROOT / "claims.toml").read_text())["claim"]:
        if claim["command"].startswith("make "):
            command = claim["command"].removeprefix("make ")
            for word, option in spoken.items():
                command = command.replace(word, option)
            assert minutes[command] == claim["minutes"], command
    whole = f"{sum(minutes.values())} minutes of an H200"
    assert said(whole)
    assert whole in (ROOT / "Makefile").read_text()


def test_every_step_is_a_command_that_takes_its_words():
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert {step.command.split()[0] for step in STEPS} <= commands
    assert len({step.name for step in STEPS}) == len(STEPS)


def test_a_step_that_fails_is_told_after_the_others_have_run(console, steps, tmp_path):
    steps(one=WRITE.format(1), two="raise SystemExit(3)", three=WRITE.format(3))
    with pytest.raises(MeasurementError, match=r"^these failed: two \(`kperf record --only two`"):
        everything.run(console, tmp_path, only=[], minutes=None)
    assert (tmp_path / "order").read_text() == "13"
    assert "with status 3" in console.export_text()


def test_public_kernels_are_the_last_step_where_a_file_of_pairs_is_given(console, steps, tmp_path, monkeypatch):
    program = tmp_path / "kperf.py"
    program.write_text(
        "import pathlib, sys; pathlib.Path(sys.argv[-1], 'order').open('a').write(' '.join(sys.argv[1:-2]))"
    )
    steps(one="")
    monkeypatch.setattr(everything, "STEPS", (replace(everything.STEPS[0], command="one"),))
    monkeypatch.setattr(everything, "KPERF", (sys.executable, str(program)))
    everything.run(console, tmp_path, only=[], minutes=None, public=Path("my pairs.py"))
    assert (tmp_path / "order").read_text() == "onepublic my pairs.py"
    everything.run(console, tmp_path, only=[], minutes=0, public=Path("my pairs.py"))
    assert "`kperf record --only one,public --public 'my pairs.py'` runs them" in console.export_text()


def test_what_does_not_fit_is_not_begun_and_is_named(console, steps, tmp_path, monkeypatch):
    steps(long=WRITE.format(1), short=WRITE.format(2))
    first, second = everything.STEPS
    monkeypatch.setattr(everything, "STEPS", (replace(first, minutes=40), second))
    everything.run(console, tmp_path, only=[], minutes=30)
    assert (tmp_path / "order").read_text() == "2"
    assert "`kperf record --only long` runs them" in console.export_text()


def test_a_step_that_hangs_may_write_what_it_has_and_its_children_end_with_it(console, steps, tmp_path, monkeypatch):
    monkeypatch.setattr(everything, "LIMIT", 1.5 / 60)
    steps(
        hangs=(
            "child = os.fork()\n"
            "if child: (results / 'child').write_text(str(child))\n"
            "try: time.sleep(60)\n"
            "except KeyboardInterrupt: (results / f'order{bool(child)}').write_text('kept')\n"
            "time.sleep(60 if not child else 0)"
        ),
        next=WRITE.format("next"),
    )
    monkeypatch.setattr(child, "_GRACE_S", 5)
    with pytest.raises(MeasurementError, match="these failed: hangs"):
        everything.run(console, tmp_path, only=[], minutes=None)
    assert (tmp_path / "orderTrue").read_text() == "kept"
    assert (tmp_path / "order").read_text() == "next"
    assert soon(lambda: has_ended(int((tmp_path / "child").read_text())))
    assert "out of time" in console.export_text()


def test_refusals(console, tmp_path):
    with pytest.raises(UsageError, match="unknown step 'fig13': give one of fig12, "):
        everything.run(console, tmp_path, only=["fig13"], minutes=None)
    with pytest.raises(UsageError, match=r"^unknown step 'public': give --public PAIRS.py$"):
        everything.run(console, tmp_path, only=["public"], minutes=None)
    with pytest.raises(UsageError, match="there is nothing to record with"):
        everything.run(console, tmp_path, only=[], minutes=None)
