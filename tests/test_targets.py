"""Each test is one target's of make, and CI makes all but those of a GPU."""

import re
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
CHOICES = {
    target: Expression.compile(several or one)
    for target, several, one in re.findall(
        r'^(test(?:-kernels|-gpu|-docker)?): .*\n\t.* -m pytest .*-m (?:"(.+?)"|(\w+))', MAKEFILE, re.MULTILINE
    )
}
KINDS = ((), ("kernels",), ("gpu",), ("gpu", "kernels"), ("docker",), ("docker", "kernels"))


@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_a_test_of_any_kind_is_one_targets(kinds):
    chosen_by = [target for target, choice in CHOICES.items() if choice.evaluate(lambda name: name in kinds)]
    assert chosen_by == [f"test-{kinds[0]}" if kinds else "test"]


def test_what_needs_an_engine_lies_where_its_target_looks():
    marked = {path.parent for path in (ROOT / "tests").glob("*/test_*.py") if "mark.docker" in path.read_text()}
    (looked_into,) = re.findall(r"-m docker (\S+)", MAKEFILE)
    assert marked == {ROOT / looked_into}


def test_ci_makes_every_target_that_needs_no_gpu():
    made = re.findall(r"part make (test\S*)", (ROOT / ".ci/run").read_text())
    assert {*made} & CHOICES.keys() == CHOICES.keys() - {"test-gpu"}
    assert len(CHOICES) == 4
