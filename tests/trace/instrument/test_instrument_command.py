"""`kperf instrument`, as a person runs it."""

import os
from pathlib import Path

import pytest

from kperf.attention.overrides import TTGIR_DIR
from kperf.trace.instrument import events
from tests.command import kperf

ROOT = Path(__file__).resolve().parents[3]
PLAIN = TTGIR_DIR / "vanilla" / "d128_bf16_full.ttgir"
UNDEFINED = PLAIN.read_text().replace("ttng.wait_barrier %14", "ttng.wait_barrier %nowhere", 1)


def test_there_and_back(tmp_path):
    traced = tmp_path / "traced.ttgir"
    assert kperf("instrument", PLAIN, "--out", traced).returncode == 0
    assert "proton.record" in traced.read_text()
    back = kperf("instrument", traced, "--strip")
    assert (back.returncode, back.stdout) == (0, PLAIN.read_text())


def test_regions_that_events_cannot_number_are_said_on_standard_error(tmp_path, monkeypatch):
    assert kperf("instrument", PLAIN).stderr == ""
    monkeypatch.setattr(events, "MAX_SCOPES", 8)
    done = kperf("instrument", PLAIN)
    assert done.stdout.count("proton.record start") == 8
    assert done.returncode == 0
    assert f"{PLAIN}: 7 of its regions have no events, which number 8 at most" in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("content", "options", "said"),
    [
        (None, (), "cannot be read"),
        (PLAIN.read_text(), ("--regions", "nothing"), "no region named nothing"),
        (PLAIN.read_text(), ("--detail", "finest"), "unknown detail"),
        (PLAIN.read_text(), ("--strip", "--regions", "nothing"), "--strip takes all events out: leave --regions"),
        (PLAIN.read_text(), ("--strip", "--detail", "coarse"), "--strip takes all events out: leave --regions"),
        (PLAIN.read_text(), ("--rules", ROOT / "pyproject.toml"), "is not a set of region rules: rank: Field required"),
        (UNDEFINED, (), "does not parse with Triton 3.6.0, line 59: use of undeclared"),
        ("no TTGIR\n", (), "not an operation"),
    ],
    ids=["missing", "region", "detail", "strip a region", "strip a detail", "other rules", "undefined value", "words"],
)
def test_a_mistake_is_one_sentence_and_writes_nothing(tmp_path, content, options, said):
    path, out = tmp_path / "file.ttgir", tmp_path / "out.ttgir"
    if content is not None:
        path.write_text(content)
    run = kperf("instrument", path, *options, "--out", out)
    assert run.returncode == 2
    assert said in run.stderr
    assert len(run.stderr.splitlines()) == 1
    assert not out.exists()


@pytest.mark.parametrize("words", [["instrument"], ["instrument", PLAIN, "--rules"], ["ir"], ["diagnose", "--static"]])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_never_ends_is_not_waited_for(tmp_path, words, kind):
    path = tmp_path / "it.ttgir"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    run = kperf(*words, path)
    assert (run.returncode, run.stderr) == (2, f"kperf: {path} cannot be read: it is no regular file\n")


def test_rules_that_are_nested_without_end_are_none(tmp_path):
    rules = tmp_path / "rules.toml"
    rules.write_text("rank = " + "[" * 10**5)
    run = kperf("instrument", PLAIN, "--rules", rules)
    assert run.returncode == 2
    assert run.stderr == f"kperf: {rules} is not a set of region rules: it is nested too deeply\n"
