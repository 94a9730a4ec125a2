import pytest

from kperf.claims import CLAIMS_FILE, Outcome, evaluate, markdown, read_claims
from kperf.errors import UsageError
from kperf.results import RECORDED, Store
from kperf.workload import Workload
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
        (None, None, "no recorded run"),
    ],
)
def test_verdicts(value, interval, verdict):
    assert Outcome(SPEEDUP, value, interval).verdict == verdict


def test_a_claim_is_computed_from_the_recorded_samples(tmp_path):
    store = Store(tmp_path)
    with store.writer() as writer:
        writer.record_environment(environment())
        for n, (batch, seq_len, ratio) in enumerate([(16, 512, 9.0), (16, 1024, 1.2), (16, 2048, 1.3)]):
            workload = Workload(batch=batch, seq_len=seq_len)
            writer.append(
                [
                    point("improved", 1.0, run=str(n), workload=workload),
                    point("vanilla", ratio, run=str(n), workload=workload),
                ]
            )
    outcome = evaluate(SPEEDUP, tmp_path)
    assert outcome.value == pytest.approx((1.2 * 1.3) ** 0.5)  # 512 is below the claim's seq_len
    assert outcome.interval[0] <= outcome.value <= outcome.interval[1]
    assert evaluate(CLAIMS["improved-over-fa3"], tmp_path).verdict == "no recorded run"


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
