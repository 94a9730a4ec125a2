import math

import pytest

from kperf import fig12
from kperf.claims import CLAIMS_FILE, Outcome, evaluate, markdown, read_claims
from kperf.errors import UsageError
from kperf.results import RECORDED, Store
from tests.conftest import environment, point

CLAIMS = {claim.id: claim for claim in read_claims()}
SPEEDUP = CLAIMS["improved-over-vanilla"]
ROOT = CLAIMS_FILE.parent


@pytest.mark.parametrize(
    ("value", "interval", "verdict"),
    [
        (SPEEDUP.paper, (1.2, 1.3), "agrees"),
        (SPEEDUP.paper * (1 - SPEEDUP.tolerance) + 1e-6, (1.1, 1.3), "agrees"),
        (SPEEDUP.paper * 2, (2.4, 2.5), "agrees"),
        (1.10, (1.05, 1.12), "same direction, smaller"),
        (1.02, (0.99, 1.04), "does not hold"),
        (0.9, (0.8, 0.95), "does not hold"),
        (None, None, "not recorded whole"),
    ],
)
def test_verdicts(value, interval, verdict):
    assert Outcome(SPEEDUP, value, interval).verdict == verdict


def test_a_claim_is_computed_from_the_whole_figure_that_is_recorded(tmp_path):
    store = Store(tmp_path)
    ratios = []
    with store.writer() as writer:
        writer.record_environment(environment())
        for n, (sweep, workload) in enumerate(fig12.grid(causal=False)):
            assert evaluate(SPEEDUP, tmp_path).verdict == "not recorded whole"
            ratio = 9.0 if workload.seq_len < 1024 else 1.1 + n / 100  # the claim is about 1024 and more
            ratios += [ratio] if workload.seq_len >= 1024 else []
            times = dict.fromkeys(fig12.Mode().keys, 1.0) | {"vanilla": ratio}
            writer.append([point(key, t, run=str(n), workload=workload, sweep=sweep) for key, t in times.items()])
        # A later run of two bars alone is not the figure's.
        for n, (sweep, workload) in enumerate(fig12.grid(causal=False)):
            times = {"improved": 1.0, "vanilla": 3.0}
            writer.append([point(key, t, run=f"x{n}", workload=workload, sweep=sweep) for key, t in times.items()])
    outcome = evaluate(SPEEDUP, tmp_path)
    assert outcome.value == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert outcome.interval[0] <= outcome.value <= outcome.interval[1]


@pytest.mark.parametrize("content", ["", "claim = 3", "[[claim]]\nid = 'x'\n", "not toml ["])
def test_a_broken_file_is_one_sentence(tmp_path, content):
    path = tmp_path / "claims.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not a list of claims"):
        read_claims(path)


def test_artifact_md_holds_the_numbers_of_the_recorded_runs():
    text = (ROOT / "artifact.md").read_text()
    written = text.split("<!-- claims -->")[1].split("<!-- /claims -->")[0].strip()
    assert written == markdown(RECORDED)
