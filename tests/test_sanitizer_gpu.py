"""compute-sanitizer finds nothing in the overrides, and finds what is planted (`tests/sanitize.py` has the words)."""

import pytest

from tests import sanitize

TIMEOUT_S = 240

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(TIMEOUT_S + 60)]


@pytest.fixture(scope="module")
def sanitizer():
    found = sanitize.find()
    if found is None:
        pytest.skip("compute-sanitizer is missing: it comes with CUDA's toolkit and with nvidia-cuda-sanitizer-api")
    return found


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
    ("tool", "words"),
    [
        ("memcheck", "Invalid __global__ write"),
        ("racecheck", "Race reported"),
        ("initcheck", "Uninitialized __global__"),
    ],
)
def test_what_is_planted_is_found(sanitizer, tool, words):
    outcome = run(sanitizer, tool, sanitize.CONTROLS[tool][0])
    assert outcome.verdict == "errors", str(outcome)
    assert words in outcome.said
