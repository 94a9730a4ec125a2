"""Rules on timelines: what they say of recorded launches whose faults are known, and at which numbers they speak."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import engine, inputs
from kperf.diagnose.engine import FAILED, diagnose, diagnose_timeline
from kperf.diagnose.page import FOLDER
from kperf.diagnose.rule import all_rules, dynamic_rules
from kperf.diagnose.rules import near_the_roof
from kperf.diagnose.thresholds import EXPOSED_SHARE, SEVERE_WAIT
from kperf.trace.analyze.models import Memory, PcSamples, Quantiles, TrafficRecord, WhatIf
from kperf.trace.analyze.recorded import read_timeline
from tests.command import kperf

EXAMPLES = Path(__file__).resolve().parents[2] / "results/h200/examples"
KERNELS = Path(__file__).parent / "kernels"


def recorded(name):
    return read_timeline(EXAMPLES / f"{name}.timeline.json")


def found(timeline):
    return {one.id: one for one in diagnose_timeline(timeline).findings}


@pytest.mark.parametrize(
    ("name", "rule", "severity"),
    [
        ("gemm_1_stage", "exposed-loads", "high"),
        ("gemm_133_tiles", "tail-wave", "high"),
        ("moe", "imbalance", "high"),
        ("attention_forward", "exposed-arithmetic", "medium"),
        ("vector_add", "near-the-roof", "low"),
    ],
)
def test_a_recorded_fault_is_named_first_or_second(name, rule, severity):
    first = diagnose_timeline(recorded(name)).findings[:2]
    assert (rule, severity) in [(one.id, one.severity) for one in first]


@pytest.mark.parametrize(
    ("name", "resident", "consumers", "advice"),
    [
        ("examples/attention_forward", 2, False, "issue the next iteration's MMA before this"),
        (
            "examples/attention_forward",
            1,
            False,
            "let an SM hold two CTAs (fewer warps, a smaller tile or",
        ),
        ("fig11/vanilla", 1, True, "let the consumers take turns (a named barrier orders their MMAs)"),
    ],
)
def test_what_covers_arithmetic_can_be_written_in_the_kernels_language(name, resident, consumers, advice):
    """Warps that all run the same code are no consumers, although two of them were recorded."""
    timeline = read_timeline(EXAMPLES.parent / f"{name}.timeline.json")
    residency = timeline.residency.model_copy(update={"original": resident})
    one = found(timeline.model_copy(update={"residency": residency}))["exposed-arithmetic"]
    assert one.advice.startswith(advice)
    assert (
        "the 2 consumers (warp groups that issue MMAs) do their arithmetic at the same time" in one.message
    ) == consumers


@pytest.mark.parametrize("name", ["gemm_3_stages", "gemm_gluon_ws", "softmax"])
def test_nothing_is_severe_in_a_good_launch(name):
    assert {one.severity for one in diagnose_timeline(recorded(name)).findings} <= {"low"}


def test_a_rule_that_fails_costs_its_own_findings_alone(monkeypatch):
    def fail(_):
        yield from ()
        raise ZeroDivisionError

    timeline = recorded("moe")
    known = diagnose_timeline(timeline)
    broken = [replace(rule, check=fail) if rule.id == "imbalance" else rule for rule in dynamic_rules()]
    monkeypatch.setattr(engine, "dynamic_rules", lambda: broken)
    answer = diagnose_timeline(timeline)
    assert answer.findings == [one for one in known.findings if one.id != "imbalance"] != known.findings
    assert answer.skipped == {"imbalance": f"{FAILED} with ZeroDivisionError"}


def test_what_is_not_severe_is_an_answer():
    answer = diagnose_timeline(recorded("gemm_gluon_ws"))
    assert answer.findings == []
    assert answer.bound.unit == "tensor core"
    assert "1024 cycles" in answer.bound.message


def test_loads_at_the_bound_of_the_mmas_cost_nothing():
    timeline = recorded("gemm_tma")
    assert timeline.load_wait.share > 0.25
    assert timeline.iteration.cycles == pytest.approx(timeline.bound.cycles, rel=0.01)
    assert "exposed-loads" not in found(timeline)
    slower = timeline.iteration.model_copy(update={"cycles": 1.5 * timeline.bound.cycles})
    assert "exposed-loads" in found(timeline.model_copy(update={"iteration": slower}))


def test_the_page_of_exposed_loads_says_from_which_shares_it_speaks():
    page = " ".join((FOLDER / "exposed-loads.md").read_text().split())
    assert f"wait for loads in at least {100 * EXPOSED_SHARE:.0f} % of an iteration." in page
    assert (
        f"The severity is high if the warp groups wait for at least {100 * SEVERE_WAIT:.0f} % of an iteration" in page
    )


def test_exposed_loads_are_counted_and_cost_no_more_than_the_bound():
    timeline = recorded("gemm_1_stage")
    one = found(timeline)["exposed-loads"]
    assert one.evidence["wait_cycles"] == round(timeline.load_wait.cycles, 4)
    period, least = timeline.cycles_per_unit.median, timeline.bound.cycles
    all_of_it = period / max(period - timeline.load_wait.cycles, least)
    assert one.estimate.speedup == pytest.approx(all_of_it**0.5, abs=1e-9)
    assert one.estimate.high <= period / least
    shorter = timeline.load_wait.model_copy(update={"share": 0.14})
    assert "exposed-loads" not in found(timeline.model_copy(update={"load_wait": shorter}))


@pytest.mark.parametrize(("resident", "severity"), [(1, "high"), (2, "high"), (4, None)])
def test_a_wait_is_not_exposed_where_memory_serves_the_other_ctas_meanwhile(resident, severity):
    """An SM's part of a copy's rate brings 4 CTAs their tiles in an iteration, with an eighth of it to spare."""
    known = recorded("flash_decoding")
    of_launch = known.launch_ctas * known.units // known.ctas * 16384
    copied = 4 * 16384 / 0.9 / known.cycles_per_unit.median * known.sms.sms * known.likely_clock_mhz / 1e3
    part = TrafficRecord(argument="k", loaded_bytes=of_launch, stored_bytes=0, unique_bytes=of_launch)
    memory = Memory(traffic=[part], gb_per_s=1.0, waits=[], loads_in_flight_bytes=0.0)
    bandwidth = known.bandwidth.model_copy(update={"copy_gb_per_s": copied})
    residency = known.residency.model_copy(update={"original": resident})
    one = found(known.model_copy(update={"memory": memory, "bandwidth": bandwidth, "residency": residency}))
    assert (one["exposed-loads"].severity if "exposed-loads" in one else None) == severity


def test_what_a_wait_costs_counts_the_mmas_of_all_ctas_of_the_sm():
    """A warp that waits leaves the tensor cores to them."""
    timeline = recorded("split_k")
    assert timeline.residency.original == 2
    most = timeline.cycles_per_unit.median / (2 * timeline.bound.cycles)
    assert found(timeline)["exposed-loads"].estimate.high == pytest.approx(most, abs=1e-3)


def changed(name, **fields):
    return recorded(name).model_copy(update=fields)


def saving(warp_group, cycles):
    return WhatIf(
        region="wait K", warp_group=warp_group, cycles=cycles, low=0, high=cycles, assumed_low=0, assumed_high=cycles
    )


def test_a_late_producer_is_one_that_only_loads():
    timeline = recorded("gemm_gluon_ws")
    period = timeline.cycles_per_unit.median
    (producer,) = (role.warp_group for role in timeline.roles if role.duty == "loads")
    (consumer, *_) = (role.warp_group for role in timeline.roles if role.duty == "MMAs")
    late = found(changed("gemm_gluon_ws", what_if=[saving(producer, 0.2 * period), saving(consumer, 0.4 * period)]))
    assert late["late-producer"].evidence["saved_cycles"] == round(0.2 * period, 4)
    assert "late-producer" not in found(changed("gemm_gluon_ws", what_if=[saving(producer, 0.1 * period)]))
    assert "late-producer" not in found(changed("gemm_gluon_ws", what_if=[saving(consumer, 0.4 * period)]))


@pytest.mark.parametrize(("iterations", "said"), [(1.9, False), (2.1, True)])
def test_a_persistent_kernel_may_lose_two_iterations(iterations, said):
    period = recorded("gemm_3_stages").cycles_per_unit.median
    boundary = Quantiles(median=iterations * period, p5=0, p95=9 * period)
    assert ("persistent-overhead" in found(changed("gemm_3_stages", tile_boundary_cycles=boundary))) == said


def test_early_returns_are_as_severe_as_their_time():
    one = recorded("moe").imbalance
    for share, time, severity in ((0.3, 0.01, "low"), (0.3, 0.2, "medium"), (0.1, 0.0, None)):
        update = {"early_share": share, "early_time_share": time}
        finding = found(changed("moe", imbalance=one.model_copy(update=update))).get("early-return")
        assert (finding and finding.severity) == severity


@pytest.mark.parametrize(("took", "said"), [(0.0039, True), (0.0041, False), (None, False)])
def test_a_kernel_as_short_as_its_launch(took, said):
    overhead = recorded("softmax").overhead.model_copy(update={"original_ms": took})
    assert ("launch-overhead" in found(changed("softmax", overhead=overhead))) == said


def test_whole_waves_have_no_tail():
    timeline = recorded("gemm_133_tiles")
    slots = timeline.sms.sms * timeline.sms.most_resident
    assert "tail-wave" in found(timeline)
    assert "tail-wave" not in found(timeline.model_copy(update={"grid": (2 * slots, 1, 1)}))
    assert "tail-wave" not in found(timeline.model_copy(update={"sms": timeline.sms.model_copy(update={"idle": 0.05})}))


def test_only_what_the_last_wave_explains_is_its_fault():
    timeline = recorded("gemm_133_tiles")
    slots = timeline.sms.sms * timeline.sms.most_resident
    nearly_whole = timeline.model_copy(update={"grid": (8 * slots - 7, 1, 1)})  # the SMs are idle for another reason
    assert "tail-wave" not in found(nearly_whole)
    half = timeline.model_copy(
        update={"grid": (slots + slots // 4, 1, 1), "sms": timeline.sms.model_copy(update={"idle": 0.2})}
    )
    finding = found(half)["tail-wave"]
    assert finding.message.endswith("SMs are idle for 20% of the launch, mostly at its end")
    otherwise = half.model_copy(
        update={"grid": (4 * slots - slots // 2, 1, 1), "sms": timeline.sms.model_copy(update={"idle": 0.5})}
    )
    assert found(otherwise)["tail-wave"].message.endswith("idle for 50% of the launch, 12% because of the last wave")
    assert finding.severity == "medium"
    assert (finding.estimate.speedup, finding.estimate.low, finding.estimate.high) == pytest.approx(
        (1.118, 1.0, 1.6), rel=1e-3
    )


@pytest.mark.parametrize(
    ("unique", "gb_per_s", "share"),
    [(1700.0, 1700.0, 0.85), (1690.0, None, None), (None, None, None)],
)
def test_bytes_that_caches_give_again_are_not_the_memorys(unique, gb_per_s, share):
    known = recorded("layer_norm")
    timeline = known.model_copy(
        update={
            "memory": known.memory.model_copy(update={"gb_per_s": 4300.0, "unique_gb_per_s": unique}),
            "bandwidth": known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0}),
        }
    )
    finding = found(timeline).get("near-the-roof")
    evidence = {"gb_per_s": gb_per_s, "share_of_copy": share}
    assert (finding and finding.evidence) == (evidence if gb_per_s else None)


@pytest.mark.parametrize(("unique", "severity", "speedup"), [(1700.0, "low", 1 / 0.85), (1600.0, "medium", 1.3)])
def test_no_advice_gives_more_than_what_is_left_until_the_roof(unique, severity, speedup):
    kernel, *_ = inputs.read(str(KERNELS / "drafts/norm_reads_twice.py"), (), SM_90A)
    known = recorded("layer_norm")
    timeline = known.model_copy(
        update={
            "kernel": kernel.name,
            "memory": known.memory.model_copy(update={"unique_gb_per_s": unique}),
            "bandwidth": known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0}),
        }
    )
    findings = {one.id: one for one in diagnose(kernel, [timeline]).findings}
    assert findings["redundant-load"].severity == severity
    assert findings["redundant-load"].estimate.speedup == pytest.approx(speedup)
    assert ("near-the-roof" in findings) == (severity == "low")


@pytest.mark.parametrize(
    ("launches", "severity", "speedup"),
    [
        ([(1900.0, 1900.0), (500.0, 500.0)], "medium", 1.3),
        ([(1900.0, 1900.0), (1800.0, 1800.0)], "low", 2 / 1.8),
        ([(None, 1900.0)], "medium", 1.3),  # nobody knows how many of them came from a cache
    ],
)
def test_a_launch_near_the_roof_says_nothing_of_a_slow_one(launches, severity, speedup):
    kernel, *_ = inputs.read(str(KERNELS / "drafts/norm_reads_twice.py"), (), SM_90A)
    known = recorded("layer_norm")
    timelines = [
        known.model_copy(
            update={
                "kernel": kernel.name,
                "memory": known.memory.model_copy(update={"unique_gb_per_s": unique, "gb_per_s": gb_per_s}),
                "bandwidth": known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0}),
            }
        )
        for unique, gb_per_s in launches
    ]
    findings = {one.id: one for one in diagnose(kernel, timelines).findings}
    assert findings["redundant-load"].severity == severity
    assert findings["redundant-load"].estimate.speedup == pytest.approx(speedup)
    assert "near-the-roof" in findings


def test_a_kernel_of_a_script_near_the_roof_is_told_where_torchs_passes_are_named():
    kernel, *_ = inputs.read(str(KERNELS / "planted/same_weights.py"), (), SM_90A)
    known = recorded("layer_norm")
    memory = known.memory.model_copy(update={"unique_gb_per_s": 1960.0})
    bandwidth = known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0})
    timeline = known.model_copy(update={"kernel": kernel.name, "memory": memory, "bandwidth": bandwidth})
    (of_script,) = (one for one in diagnose(kernel, [timeline]).findings if one.id == "near-the-roof")
    assert of_script.advice.endswith("; `kperf diagnose --static` names what torch does with the kernel's tensors")
    assert "--static" not in found(timeline)["near-the-roof"].advice


def test_a_hint_near_the_roof_gives_no_more_than_what_is_left():
    kernel, *_ = inputs.read(str(KERNELS / "planted/same_weights.py"), (), SM_90A)
    known = recorded("layer_norm")
    bandwidth = known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0})

    def found(*rates):
        moving = [known.memory.model_copy(update={"unique_gb_per_s": rate}) for rate in rates]
        changes = [{"kernel": kernel.name, "memory": one, "bandwidth": bandwidth} for one in moving]
        return {one.id: one for one in diagnose(kernel, [known.model_copy(update=one) for one in changes]).findings}

    assert (found()["redundant-load"].severity, found()["redundant-load"].estimate.speedup) == ("low", 1.05)
    within = found(1940.0)["redundant-load"].estimate
    assert (within.speedup, within.high) == (pytest.approx(2000 / 1940), pytest.approx(2000 / 1940))
    assert "redundant-load" not in found(1945.0)  # less than 3 % is left, as two runs differ by
    assert "near-the-roof" in found(1945.0)


def test_an_error_of_what_the_code_adds_costs_no_measured_finding(monkeypatch):
    """As of a rule itself, it is printed, and the command goes on."""
    kernel, *_ = inputs.read(str(KERNELS / "planted/same_weights.py"), (), SM_90A)
    known = recorded("layer_norm")
    memory = known.memory.model_copy(update={"unique_gb_per_s": 1960.0})
    bandwidth = known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0})
    timeline = known.model_copy(update={"kernel": kernel.name, "memory": memory, "bandwidth": bandwidth})
    broken = replace(near_the_roof.RULE, of_kernel=lambda finding, kernel: {}[kernel.name])
    monkeypatch.setattr(engine, "dynamic_rules", lambda: (broken,))
    found = diagnose(kernel, [timeline])
    assert "near-the-roof" in {one.id for one in found.findings}
    assert found.skipped["near-the-roof"] == "the rule itself failed with KeyError"


def test_the_roof_of_one_launch_is_none_for_all_launches_in_one():
    kernel, *_ = inputs.read(str(KERNELS / "drafts/model_soup.py"), (), SM_90A)
    known = recorded("layer_norm")
    memory = known.memory.model_copy(update={"unique_gb_per_s": 1960.0})
    bandwidth = known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0})
    timeline = known.model_copy(update={"kernel": kernel.name, "memory": memory, "bandwidth": bandwidth})
    findings = {one.id: one for one in diagnose(kernel, [timeline]).findings}
    assert findings["near-the-roof"].estimate.high == pytest.approx(2000 / 1960)
    assert findings["repeated-launch"].severity == "high"
    assert findings["repeated-launch"].estimate.speedup == pytest.approx(8 * 10 / (8 * 2 + 8))


def sampled(not_issued, *, waiting=0, share_of_copy=0.1, file="gelu_pow.py", line=13):
    """A launch of 1000 samples: 700 of warps that compute a line, and 300 at the line before that wait for memory.

    Of the 700 so many wait a fixed latency.
    """
    known = recorded("layer_norm")
    here = {"selected": 300, "not_selected": 400 - waiting, "wait": waiting}
    lines = [
        {"file": file, "line": line - 1, "samples": 300, "not_issued": 0, "stalls": {"long_scoreboard": 300}},
        {"file": file, "line": line, "samples": 700, "not_issued": not_issued, "stalls": here},
    ]
    samples = PcSamples.model_validate({"launches": 1, "period_cycles": 512, "dropped": 0, "lines": lines})
    memory = known.memory.model_copy(update={"unique_gb_per_s": 2000.0 * share_of_copy})
    bandwidth = known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0})
    return known.model_copy(update={"samples": samples, "memory": memory, "bandwidth": bandwidth})


def test_samples_show_instructions_that_bound_a_launch_and_their_line():
    finding = found(sampled(390))["instruction-bound"]
    assert (finding.severity, finding.source.file, finding.source.line) == ("low", "gelu_pow.py", 13)
    assert finding.evidence == {"issuing": 0.61, "ready": 0.7, "share": 0.7, "share_of_copy": 0.1}
    assert (finding.estimate.speedup, finding.estimate.low) == (pytest.approx(1 / 0.65), 1.0)
    assert finding.estimate.high == pytest.approx(1 / 0.3)
    assert finding.witness.agreement == "agrees"


@pytest.mark.parametrize(("waiting", "is_bound"), [(0, True), (300, False)])
def test_warps_that_are_ready_show_it_where_a_unit_takes_several_cycles(waiting, is_bound):
    """Schedulers issue in 40 % of the samples; of the warps 70 % are ready, or only 40 % as 300 more wait a latency."""
    timeline = sampled(600, waiting=waiting)
    assert ("instruction-bound" in found(timeline)) is is_bound
    if is_bound:
        assert "70% of the sampled warps issue, or are ready" in found(timeline)["instruction-bound"].message


@pytest.mark.parametrize(
    "timeline",
    [
        sampled(410, waiting=300),
        sampled(100, share_of_copy=0.9),
        sampled(390, file="/lib/site-packages/triton/language/random.py"),
    ],
)
def test_schedulers_that_wait_memory_at_its_rate_and_lines_of_triton_are_no_finding(timeline):
    assert "instruction-bound" not in found(timeline)


@pytest.mark.parametrize(("name", "rule"), [("drafts/gelu_pow", "slow-math"), ("planted/two_warps", "wgmma-unused")])
def test_a_cause_that_is_known_at_the_line_has_the_samples_as_evidence(name, rule):
    path = KERNELS / f"{name}.py"
    kernel, *_ = inputs.read(str(path), (), SM_90A)
    line = next(one.source.line for one in diagnose(kernel).findings if one.id == rule)
    timeline = sampled(100, file=str(path), line=line).model_copy(update={"kernel": kernel.name})
    findings = {one.id: one for one in diagnose(kernel, [timeline]).findings}
    assert findings[rule].evidence["issuing"] == 0.9
    assert "instruction-bound" not in findings


DIVIDED = """
import torch, triton, triton.language as tl

@triton.jit
def placed(x, y, n, width, height, scale, W: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = (at // width) % height
    column = at % W
    place = (row.to(tl.float32) * scale).to(tl.int32) * width + column
    y_at = tl.exp(tl.sin(tl.exp(tl.load(x + place, mask=at < n).to(tl.float32))))
    tl.store(y + at, y_at, mask=at < n)

x = torch.empty(1 << 24, device="cuda")
y = torch.empty_like(x)
placed[(1 << 14,)](x, y, 1 << 24, 1000, 1000, 0.5, 4096, 1024)
"""


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("line", "divisions"),
    [("row = ", 2), ("column = ", 0), ("y_at = ", 0)],
    ids=["by arguments", "by a constant", "none"],
)
def test_a_line_of_divisions_that_bounds_a_launch_is_told_how_to_have_fewer(tmp_path, line, divisions):
    path = tmp_path / "placed.py"
    path.write_text(DIVIDED)
    (kernel,) = inputs.read(str(path), (), SM_90A)
    number = next(at for at, text in enumerate(DIVIDED.splitlines(), 1) if line in text)
    timeline = sampled(390, file=str(path), line=number)
    bare = found(timeline)["instruction-bound"]
    (rule,) = (one for one in dynamic_rules() if one.id == "instruction-bound")
    finding = rule.of_kernel(bare, kernel)
    assert finding.evidence.get("divisions", 0) == divisions
    words = "2 integer divisions and remainders by a number known only at run time"
    assert (words in finding.message) == bool(divisions)
    assert finding.advice.startswith("give what the divisions compute" if divisions else "compute this line with fewer")
    assert ("or make the divisors tl.constexpr" in finding.advice) == bool(divisions)


def test_memory_does_not_bound_what_issues_instructions():
    """By samples, or by what the iterations of a launch compute."""
    kernel, *_ = inputs.read(str(KERNELS / "clean/sign_pack.py"), (), SM_90A)
    timelines = [sampled(100), sampled(900, waiting=300)]
    bounds = [diagnose(kernel, [one.model_copy(update={"kernel": kernel.name})]).bound for one in timelines]
    assert [bound.unit for bound in bounds] == ["arithmetic", "memory"]
    assert "in 90% of the samples, and it reaches 10% of a copy's rate" in bounds[0].message
    looping, *_ = inputs.read(str(KERNELS / "drafts/repetition_penalty.py"), (), SM_90A)
    assert diagnose(looping).bound.unit == "arithmetic"


def test_every_rule_has_its_page_in_parts():
    for rule in all_rules():
        text = (FOLDER / f"{rule.id}.md").read_text()
        assert text.startswith(f"# {rule.id}\n")
        for part in ("What it does", "Why it matters", "Example", "Fix"):
            assert f"\n## {part}\n" in text
    assert {path.stem for path in FOLDER.glob("*.md")} == {rule.id for rule in all_rules()}
    assert len(dynamic_rules()) >= 9


def test_two_timelines_are_compared():
    before, after = (EXAMPLES / f"{name}.timeline.json" for name in ("gemm_1_stage", "gemm_3_stages"))
    done = kperf("diagnose", before, after)
    assert done.returncode == 0
    assert kperf("diff", before, after).stdout in done.stdout
    assert "gone: exposed-loads" in done.stdout
    done = kperf("diagnose", before, "--fail-if", "high")
    assert (done.returncode, done.stdout.partition("\n")[0]) == (1, "gemm_kernel, read from its timeline")
    (one,) = json.loads(kperf("diagnose", before, "--json").stdout)["kernels"]
    assert one["target"] == "measured"


@pytest.mark.parametrize(
    ("file", "place"), [("examples/split_k.py:10", ("examples/split_k.py", 10)), ("a/b.ttgir", ("a/b.ttgir", 0))]
)
def test_a_timeline_says_where_its_kernel_begins(file, place):
    source = diagnose_timeline(recorded("split_k").model_copy(update={"file": file})).source
    assert (source.file, source.line) == place


@pytest.mark.parametrize("files", [["no.json"], [__file__ + ".json"], [EXAMPLES / "moe.timeline.json"] * 3])
def test_what_is_no_timeline_is_one_sentence(files):
    done = kperf("diagnose", *files)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("unique", "severity", "most"), [(1960.0, "low", 2000 / 1960), (1600.0, "medium", 1.25)])
def test_loads_that_a_kernel_with_mmas_waits_for_are_no_fault_at_the_roof(unique, severity, most):
    known = recorded("flash_decoding")
    memory = Memory(traffic=[], gb_per_s=unique, unique_gb_per_s=unique, waits=[], loads_in_flight_bytes=0.0)
    bandwidth = known.bandwidth.model_copy(update={"copy_gb_per_s": 2000.0})
    findings = found(known.model_copy(update={"memory": memory, "bandwidth": bandwidth}))
    assert findings["exposed-loads"].severity == severity
    assert findings["exposed-loads"].estimate.high == pytest.approx(most, rel=0.01)
    assert ("near-the-roof" in findings) == (severity == "low")
