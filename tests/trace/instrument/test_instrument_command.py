"""`kperf instrument`, as a person runs it."""

from pathlib import Path

import pytest

from kperf.attention.overrides import TTGIR_DIR
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
