"""compute-sanitizer finds nothing in the overrides, and finds what is planted (`tests/sanitize.py` has the words)."""

import pytest

from tests.attention import sanitize

TIMEOUT_S = 240

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(TIMEOUT_S + 60)]


@pytest.fixture(scope="module")
def sanitizer():
    try:
        return sanitize.find()[0]
    except sanitize.MissingError as error:
        pytest.skip(str(error))


def run(sanitizer, tool, subject):
    outcome = sanitize.run(sanitizer, tool, subject, TIMEOUT_S)
    print(outcome)
    if outcome.verdict == "cannot run here":
        pytest.skip(f"compute-sanitizer cannot run here: {outcome.said.strip()}")
    return outcome


@pytest.mark.parametrize("subject", sanitize.OVERRIDES)
@pytest.mark.parametrize("tool", sanitize.TOOLS)
def test_an_override_is_clean(sanitizer, tool, subject):
    outcome = run(sanitizer, tool, subject)
    assert outcome.verdict == "clean", str(outcome)


@pytest.mark.parametrize(
    ("tool", "control", "words"),
    [
        ("memcheck", "write_beyond", "Invalid __global__ write"),
        ("memcheck", "tma_load_beyond", "Invalid __global__ read"),
        ("racecheck", "race", "Race reported"),
    ],
)
def test_what_is_planted_is_found(sanitizer, tool, control, words):
    outcome = run(sanitizer, tool, control)
    assert outcome.verdict == "errors", str(outcome)
    assert words in outcome.said
