import math

import pytest

from kperf.bench.points import Store
from kperf.errors import UsageError
from kperf.paper import fig12
from kperf.paper.claims import CLAIMS_FILE, Outcome, cells, evaluate, markdown, read_claims
from kperf.record.store import RECORDED
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
        for n, (sweep, workload) in enumerate(fig12.grid(fig12.Mode())):
            assert evaluate(SPEEDUP, tmp_path).verdict == "not recorded whole"
            ratio = 9.0 if workload.seq_len < 1024 else 1.1 + n / 100  # the claim is about 1024 and more
            ratios += [ratio] if workload.seq_len >= 1024 else []
            times = dict.fromkeys(fig12.Mode().keys, 1.0) | {"vanilla": ratio}
            writer.append([point(key, t, run=str(n), workload=workload, sweep=sweep) for key, t in times.items()])
        # A later run of two bars alone is not the figure's.
        for n, (sweep, workload) in enumerate(fig12.grid(fig12.Mode())):
            times = {"improved": 1.0, "vanilla": 3.0}
            writer.append([point(key, t, run=f"x{n}", workload=workload, sweep=sweep) for key, t in times.items()])
    outcome = evaluate(SPEEDUP, tmp_path)
    assert outcome.value == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert outcome.interval[0] <= outcome.value <= outcome.interval[1]


@pytest.mark.parametrize(
    ("value", "interval", "verdict"),
    [
        (1.2, (1.1, 1.3), "faster"),
        (1.001, (0.99, 1.01), "no difference"),
        (0.9, (0.8, 0.95), "slower"),
        (None, None, "not recorded whole"),
    ],
)
def test_what_the_paper_does_not_claim_is_reported(value, interval, verdict):
    outcome = Outcome(CLAIMS["improved-plus-over-fa3-d64"], value, interval)
    assert outcome.verdict == verdict
    assert cells(outcome)[0] == "-"


def test_another_head_dim_dtype_or_layout_is_taken_from_its_own_runs(tmp_path):
    store = Store(tmp_path)
    ids = {
        "improved-plus-over-cudnn-d64": (fig12.Mode(head_dim=64), 1.25),
        "improved-plus-over-cudnn-fp16-causal": (fig12.Mode(True, dtype="float16"), 1.5),
        "improved-plus-over-fa3": (fig12.Mode(), 2.0),
        "fa3-views": (fig12.Mode(), 1.0),
    }
    with store.writer() as writer:
        writer.record_environment(environment())
        for id_, (mode, ratio) in ids.items():
            claim = CLAIMS[id_]
            keys = (claim.ours, claim.baseline) if claim.ours == "fa3_views" else mode.keys
            for n, (sweep, workload) in enumerate(fig12.grid(mode, claim.sweeps)):
                times = dict.fromkeys(keys, 1.0) | {claim.baseline: ratio}
                writer.append(
                    [point(key, t, run=f"{id_}-{n}", workload=workload, sweep=sweep) for key, t in times.items()]
                )
    for id_, (_, ratio) in ids.items():
        assert evaluate(CLAIMS[id_], tmp_path).value == pytest.approx(ratio), id_
    assert evaluate(CLAIMS["improved-plus-over-cudnn-fp16"], tmp_path).value is None


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
