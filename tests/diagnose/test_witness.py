"""Whether samples and events agree on a finding, by the evidence of its rule; and which of them decides a share."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kperf.compat.cupti import PcSample
from kperf.diagnose.analyses.bound import as_measured
from kperf.diagnose.engine import diagnose_timeline
from kperf.diagnose.finding import Bound
from kperf.diagnose.rule import all_rules
from kperf.diagnose.thresholds import WITNESSED
from kperf.diagnose.witness import EVIDENCE, witnessed
from kperf.ir.machine import read_machine_code
from kperf.report import html
from kperf.report.report import Report
from kperf.report.samples import of_timeline
from kperf.report.sentences import verdict
from kperf.trace.analyze.finding import Finding, Source
from kperf.trace.analyze.models import LineSamples, PcSamples, SassOrder
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.analyze.stalls import LEAST_SAMPLES, STALLS, by_line, decided, warps_of
from tests.trace.capture.test_pc_sampling import LISTING

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "results/h200/examples"
GEMM = read_timeline(EXAMPLES / "gemm_2_stages.timeline.json")
"""Events cost 3.2 % and keep the order; 43 % of an iteration wait for loads."""
FILE = "examples/gemm.py"


def line(number, awaited=None, file=FILE, **stalls):
    count = sum(stalls.values())
    return LineSamples(file=file, line=number, samples=count, not_issued=0, stalls=stalls, awaited=awaited or {})


def sampled(*lines, timeline=GEMM, dropped=0, **changes):
    samples = PcSamples(launches=1, period_cycles=1024, dropped=dropped, lines=list(lines))
    return timeline.model_copy(update={"samples": samples, **changes})


def finding(rule="uncoalesced-access", severity="high", number=20, evidence=None, file=f"/home/me/{FILE}"):
    return Finding(
        id=rule, severity=severity, confidence="high", source=Source(file=file, line=number), kernel="gemm_kernel",
        message="it is slow", evidence=evidence or {}, advice="do better",
    )  # fmt: skip


def of(one, timeline):
    return witnessed(one, [timeline]).witness


def disturbed(timeline, ratio=1.5):
    slow = timeline.passes[0].model_copy(update={"overhead": timeline.overhead.model_copy(update={"ratio": ratio})})
    return timeline.model_copy(update={"passes": [*timeline.passes, slow]})


def moved(timeline):
    order = SassOrder(original=["a", "b"], instrumented=["b", "a"], same=False, differences=["b stands before a"])
    return timeline.model_copy(update={"passes": [timeline.passes[0].model_copy(update={"sass_order": order})]})


def test_samples_agree_where_warps_wait_for_what_the_line_loads():
    timeline = sampled(line(20, awaited={"long_scoreboard": 400}, wait=10), line(30, long_scoreboard=400, selected=590))
    witness = of(finding(), timeline)
    assert (witness.agreement, witness.share, witness.by_events, witness.decides) == ("agrees", 0.4, None, False)
    assert witness.stalls == {"long_scoreboard": 0.4}
    assert witness.message == (
        "40% of the samples show it at this line: 40% wait for global or local memory (long_scoreboard)"
    )


def test_samples_disagree_where_another_lines_load_is_waited_for():
    timeline = sampled(line(20, selected=10), line(30, awaited={"long_scoreboard": 400}, long_scoreboard=400, wait=590))
    witness = of(finding(), timeline)
    assert (witness.agreement, witness.share, witness.stalls) == ("disagrees", 0.0, {})
    assert witness.message == "0% of the samples show it at this line"


def test_a_line_of_another_file_is_another_line():
    timeline = sampled(line(20, file="other.py", long_scoreboard=900), line(21, selected=100))
    assert of(finding(), timeline).agreement == "disagrees"


def test_what_waits_at_its_line_for_its_line_counts_once():
    timeline = sampled(line(20, awaited={"long_scoreboard": 300}, long_scoreboard=250, lg_throttle=50, selected=700))
    assert of(finding(), timeline).share == pytest.approx(0.35)


@pytest.mark.parametrize(
    ("rule", "reason", "shows"),
    [
        ("uncoalesced-access", "lg_throttle", True),
        ("uncoalesced-access", "math_pipe_throttle", False),
        ("bank-conflicts", "short_scoreboard", True),
        ("bank-conflicts", "mio_throttle", True),
        ("bank-conflicts", "barrier", True),
        ("bank-conflicts", "long_scoreboard", False),
        ("wgmma-serialised", "gmma", True),
        ("wgmma-serialised", "wait", True),
        ("wgmma-serialised", "long_scoreboard", False),
        ("slow-math", "math_pipe_throttle", True),
        ("slow-math", "barrier", False),
        ("atomic-contention", "lg_throttle", True),
        ("loads-not-pipelined", "long_scoreboard", True),
        ("loads-not-pipelined", "gmma", False),
    ],
)
def test_each_rule_names_what_shows_its_fault(rule, reason, shows):
    timeline = sampled(line(20, **{reason: 300}), line(21, branch_resolving=700))
    witness = of(finding(rule), timeline)
    assert (witness.agreement == "agrees", witness.share) == (shows, 0.3 if shows else 0.0)


def test_loads_that_are_waited_for_have_no_line_of_their_own():
    timeline = sampled(line(99, long_scoreboard=300), line(21, selected=700))
    assert of(finding("loads-not-pipelined"), timeline).agreement == "agrees"
    assert of(finding("uncoalesced-access"), timeline).agreement == "disagrees"


@pytest.mark.parametrize("severity", ["high", "medium", "low"])
def test_the_more_a_finding_claims_the_more_samples_have_to_show_it(severity):
    least = round(10_000 * WITNESSED[severity])
    for count, agreement in ((least, "agrees"), (least - 1, "disagrees")):
        timeline = sampled(line(20, lg_throttle=count), line(21, selected=10_000 - count))
        assert of(finding(severity=severity), timeline).agreement == agreement


@pytest.mark.parametrize(("count", "agreement"), [(300, "agrees"), (190, "disagrees")])
def test_where_events_have_a_share_the_samples_have_half_of_it_at_least(count, agreement):
    one = finding("exposed-loads", evidence={"wait_cycles": 400, "iteration_cycles": 1000.0, "share": 0.4})
    witness = of(one, sampled(line(20, long_scoreboard=count), line(21, selected=1000 - count)))
    assert (witness.agreement, witness.by_events, witness.share) == (agreement, 0.4, count / 1000)
    assert witness.message.endswith("; by events it is 40%")


def test_a_rule_that_samples_say_nothing_of_has_no_witness():
    timeline = sampled(line(20, long_scoreboard=100))
    for rule in ("tail-wave", "a-rule-of-tomorrow"):
        assert of(finding(rule), timeline).model_dump(exclude={"message"}) == {
            "agreement": "none", "share": None, "by_events": None, "decides": False, "stalls": {},
        }  # fmt: skip
    assert of(finding(number=0), timeline).message == "samples are by line, and it has none"


@pytest.mark.parametrize(("count", "agreement"), [(LEAST_SAMPLES, "agrees"), (LEAST_SAMPLES - 1, "none")])
def test_a_few_samples_say_nothing_and_decide_nothing(count, agreement):
    timeline = disturbed(sampled(line(20, long_scoreboard=count)))
    witness = of(finding(), timeline)
    assert witness.agreement == agreement
    assert (witness.message == "the GPU took 399 samples, too few to say") == (agreement == "none")
    assert (decided(timeline).load_wait.share_by_events is None) == (agreement == "none")
    assert (
        f"If the GPU took fewer than {LEAST_SAMPLES} samples of the kernel, `witness.agreement` is `none`"
        in " ".join((ROOT / "docs/diagnose.md").read_text().split())
    )


def test_why_there_are_no_samples_is_said_and_nothing_where_none_were_asked_for():
    refused = GEMM.model_copy(update={"no_samples": "the driver lets nobody"})
    assert of(finding(), refused).message == "no samples: the driver lets nobody"
    assert of(finding(), refused).agreement == "none"
    assert of(finding(), GEMM) is None


def test_rules_of_the_table_are_rules_and_its_reasons_have_words():
    assert set(EVIDENCE) <= {rule.id for rule in all_rules()}
    for one in EVIDENCE.values():
        assert one.why
        assert one.here | one.awaited | one.anywhere
        assert one.here | one.awaited | one.anywhere <= STALLS.keys()


LOADING = (line(20, long_scoreboard=250, selected=50), line(21, selected=500, barrier=200))


@pytest.mark.parametrize(
    ("changed", "share", "by_events"),
    [
        (lambda t: t, GEMM.load_wait.share, None),
        (lambda t: disturbed(t, 1.09), GEMM.load_wait.share, None),
        (lambda t: disturbed(t, 1.11), 0.25, GEMM.load_wait.share),
        (moved, 0.25, GEMM.load_wait.share),
    ],
)
def test_samples_decide_a_share_where_events_cost_a_tenth_or_move_instructions(changed, share, by_events):
    timeline = decided(changed(sampled(*LOADING)))
    assert (timeline.load_wait.share, timeline.load_wait.share_by_events) == (pytest.approx(share), by_events)
    (found,) = [one for one in diagnose_timeline(timeline).findings if one.id == "exposed-loads"]
    assert found.evidence["share"] == pytest.approx(share, abs=1e-4)
    assert ("by samples" in found.message) == (by_events is not None)
    assert found.witness.by_events == pytest.approx(GEMM.load_wait.share)
    assert (found.witness.decides, found.witness.agreement) == (by_events is not None, "agrees")
    assert timeline.recorded_by.get("load_wait") == (GEMM.recorded_by["load_wait"] if by_events is None else "samples")
    cycles = timeline.load_wait.cycles
    assert cycles == pytest.approx(share * timeline.cycles_per_unit.median)


@pytest.mark.parametrize(("waiting", "share"), [(50, 0.05), (211, 0.211), (212, None)])
def test_samples_decide_where_they_show_less_than_half_of_the_waiting(waiting, share):
    """Events count from a load to its use, with what the warp does meanwhile."""
    timeline = decided(sampled(line(20, long_scoreboard=waiting), line(21, selected=1000 - waiting)))
    by_events = GEMM.load_wait.share
    assert timeline.load_wait.share == pytest.approx(by_events if share is None else share)
    assert timeline.load_wait.share_by_events == (None if share is None else by_events)
    said = [one for one in verdict(timeline) if "so samples decide" in one]
    assert len(said) == (share is not None)
    if share is not None:
        assert "events also count what warps do while they wait, so samples decide" in said[0]
        assert f"{share:.0%} of an iteration, where events show {by_events:.0%}" in said[0]


def test_what_samples_do_not_show_is_no_finding_where_they_decide():
    timeline = decided(disturbed(sampled(line(20, long_scoreboard=10, selected=990))))
    assert timeline.load_wait.share == pytest.approx(0.01)
    assert not [one for one in diagnose_timeline(timeline).findings if one.id == "exposed-loads"]


def test_without_samples_events_decide_as_ever():
    assert decided(disturbed(GEMM)) == disturbed(GEMM)


def test_of_warps_with_codes_of_their_own_a_share_is_theirs():
    ws = read_timeline(EXAMPLES / "gemm_gluon_ws.timeline.json")
    assert {role.warp_group: role.num_warps for role in ws.roles} == {"consumer 0": 4, "consumer 1": 4, "producer": 1}
    assert warps_of(ws, ["consumer 0", "consumer 1"]) == pytest.approx(8 / 9)
    assert warps_of(ws, ["producer"]) == pytest.approx(1 / 9)
    assert warps_of(ws, []) == 1
    assert warps_of(GEMM, ["last warp"]) == warps_of(GEMM, ["all warps"]) == 1  # both run one code


def test_the_reading_says_what_warps_wait_for_and_which_witness_decides():
    said = verdict(decided(sampled(*LOADING)))
    (one,) = [sentence for sentence in said if "samples" in sentence]
    assert one == (
        f"{GEMM.label}: of 1000 samples of the original kernel 55% issue (selected), 25% wait for global or local "
        "memory (long_scoreboard), 20% wait for other warps at a barrier (barrier); 30% are at examples/gemm.py:20."
    )
    said = verdict(decided(disturbed(sampled(*LOADING, dropped=700))))
    assert any(sentence.endswith("examples/gemm.py:20; the GPU lost 700 more.") for sentence in said)
    assert any(
        "so samples decide how long it waits for loads: 25% of an iteration, where events show 42%." in sentence
        for sentence in said
    )
    assert not any("samples" in sentence for sentence in verdict(GEMM))


def test_the_page_shows_samples_a_line_beside_cycles_and_what_they_say_of_a_finding(tmp_path):
    timeline = sampled(
        line(20, awaited={"long_scoreboard": 600}, long_scoreboard=600, selected=100),
        line(0, file="", selected=300),
    )
    (own,) = of_timeline(timeline)
    assert own.of_lines("gemm_kernel", FILE) == {20: (700, 0, "long_scoreboard")}
    assert own.total("gemm_kernel") == 1000
    found = [witnessed(finding(), [timeline])]
    shown = timeline.model_copy(update={"findings": found})
    page = html.page([Report(shown, None, None)], ROOT)
    assert '<th scope="col" class="number">GPU, samples</th>' in page
    assert "70% (0.0%) long_scoreboard" in page
    assert "Samples agree: 60% of the samples show it at this line" in page


PC = st.builds(
    PcSample,
    address=st.integers(0, 40).map(lambda number: 16 * number),
    reason=st.sampled_from(sorted(STALLS)),
    samples=st.integers(1, 1000),
    not_issued=st.just(0),
)


@given(st.lists(PC, max_size=40))
def test_no_sample_is_lost_or_counted_twice(pcs):
    found = by_line(read_machine_code(LISTING), pcs, str, launches=1, period=128, dropped=0)
    assert found.total == sum(pc.samples for pc in pcs)
    told_apart = {"barrier", "gmma"}  # by the instruction
    for reasons in ({reason} if reason not in told_apart else told_apart for reason in STALLS):
        count = sum(pc.samples for pc in pcs if pc.reason in reasons)
        assert sum(one.stalls.get(reason, 0) for one in found.lines for reason in reasons) == count
        assert sum(one.awaited.get(reason, 0) for one in found.lines for reason in reasons) <= count


@pytest.mark.parametrize(
    ("unit", "gb_per_s", "factor", "words"),
    [
        (
            "memory", 800.0, 1, "it is memory; but it reaches 40% of a copy's rate: 70% of the samples are at "
            "gemm.py:21, and 86% of these wait to ask global memory: its queue is full (lg_throttle)",
        ),
        ("memory", 800.0, 0.1, "it is memory; but it reaches 40% of a copy's rate"),
        ("memory", 1701.0, 1, "it is memory"),
        ("tensor core", 800.0, 1, "it is memory"),
    ],
)  # fmt: skip
def test_where_nothing_is_found_it_says_how_far_memory_is_and_where_warps_wait(unit, gb_per_s, factor, words):
    known = read_timeline(EXAMPLES / "layer_norm.timeline.json")
    slow = known.model_copy(
        update={
            "memory": known.memory.model_copy(update={"unique_gb_per_s": gb_per_s}),
            "bandwidth": known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0}),
        }
    )
    counts = {name: int(factor * count) for name, count in (("lg_throttle", 600), ("long_scoreboard", 100))}
    lines = [line(18, wait=int(factor * 300)), line(21, **counts)]
    waiting = [one.model_copy(update={"not_issued": one.samples}) for one in lines]
    timeline = sampled(*waiting, timeline=slow)
    bound = Bound(unit=unit, message="it is memory")
    assert as_measured(bound, [known, timeline]).message == words
    assert as_measured(bound, []) == bound
