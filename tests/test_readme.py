"""The output that README shows is what its commands print, and its numbers are those of the records."""

from kperf.paper import claims, goals
from kperf.record.store import RECORDED
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.analyze.verdict import verdict
from tests.command import kperf
from tests.pages import PAGES, between_marks, said

COMMAND = "diagnose --static examples/gemm.py -- --stages 1"


def indented(lines):
    return "\n".join(f"    {line}".rstrip() for line in lines).strip()


def test_the_shown_diagnosis_is_what_is_printed():
    done = kperf(*COMMAND.split(), COLUMNS="124")
    assert (done.returncode, done.stderr) == (0, "")
    assert between_marks("README.md", "diagnosis") == indented(
        [f"$ kperf {COMMAND}", *done.stdout.rstrip().split("\n")]
    )


def test_the_shown_reading_is_of_the_record():
    timeline = read_timeline(RECORDED / "h200/examples/gemm_1_stage.timeline.json")
    assert between_marks("README.md", "reading") == indented(verdict(timeline))


def test_the_score_of_the_paper_is_that_of_the_claims():
    known = {claim.id: claim for claim in claims.read_claims()}
    rows = {
        "improved-over-vanilla": "improved schedule over vanilla | 1.241 | {:.3f}: same direction, smaller",
        "improved-over-fa3": "improved schedule over FA3 | 1.076 | {:.3f}: the opposite",
    }
    for name, words in rows.items():
        outcome = claims.evaluate(known[name], RECORDED / "h200")
        assert words.format(outcome.value) in PAGES["README.md"]
    mean = claims.evaluate(known["fig13-mean"], RECORDED / "h200").value
    assert f"tracing costs, mean of its four kernels | 8.2 % | {mean:.1%}"[:-1] in PAGES["README.md"]


def test_the_score_of_improved_plus_is_that_of_the_goals():
    table = goals.markdown(RECORDED / "h200").replace("*", "")
    for full, causal in ((("1.193"), "1.132"), ("1.070", "1.096")):
        assert f"| {full} | {causal} |" in table
        assert said(f"{full}, causal {causal}")
    assert "1.009, at 16 x 16384" in table
