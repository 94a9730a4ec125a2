"""One reading from a launch of all CTAs and a sample of another: each fact is of the recording that knows it."""

import functools
import json

import pytest

from kperf.report.sentences import verdict
from kperf.trace.analyze import analysis, read
from kperf.trace.analyze.both import of_both
from kperf.trace.analyze.models import Overhead, PcSamples, Resources, SampledCtas, SassOrder, Timeline
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.instrument.sampled import Sample
from kperf.trace.instrument.session import Recording

from .captures import launch_of_residents
from .machine import Kernel
from .synthetic import encode
from .test_facts import SHARED, resources
from .test_views import about, norm_cta, norm_program

DISTURBED = Kernel(consumers=1, mma=900, arithmetic=2600, stages=3, iterations=40)
"""The same, whose events take 1100 cycles of an iteration where all CTAs write them."""
SAMPLED = SampledCtas(stride=17, first=5, recorded=3, ctas=51)
ORIGINAL_MS = {"all": 0.050, "sampled": 0.052}
"""Of the original kernel, in turn with each: a GPU gets warm."""


def overhead(way: str, ratio: float) -> Overhead:
    return Overhead(original_ms=ORIGINAL_MS[way], instrumented_ms=ORIGINAL_MS[way] * ratio, ratio=ratio)


@functools.cache  # nobody changes what it gives
def recorded(way: str, ratio: float, kernel: Kernel, *, same_order: bool = True, occupancy: int = 3):
    """A launch of three CTAs that share an SM, and its timeline."""
    launch, _ = launch_of_residents(kernel, [0, 700, 1500])
    cost = overhead(way, ratio)
    words = [] if same_order else ["after wgmma: FADD in the original kernel, FMUL in the instrumented one"]
    order = SassOrder(original=["wgmma"], instrumented=["wgmma"], same=same_order, differences=words)
    passes = [about().passes[0].model_copy(update={"overhead": cost, "sass_order": order})]
    used = Resources(original=resources(64, 3), instrumented=resources(72, occupancy))
    sampled = SAMPLED if way == "sampled" else None
    return launch, read.timeline(launch, about(overhead=cost, passes=passes, resources=used, sampled=sampled))


def together(ratio: float = 1.38, of_sample: float = 1.012, **changed: object):
    launch, every = recorded("all", ratio, DISTURBED, **changed)  # type: ignore[arg-type]
    _, sample = recorded("sampled", of_sample, SHARED)
    return launch, every, sample, of_both(every, launch, sample)


def test_cycles_are_of_the_sample_and_what_all_ctas_do_is_of_the_launch_that_recorded_them():
    launch, every, sample, found = together()
    assert every.cycles_per_unit.median > 1.2 * sample.cycles_per_unit.median
    for name in ("cycles_per_unit", "iteration", "regions", "bubbles", "windows", "arithmetic", "load_wait", "replay"):
        assert getattr(found, name) == getattr(sample, name) != getattr(every, name), name
    assert found.sms == every.sms
    assert sample.sms is None
    assert (found.ctas, found.launch_ctas, found.bubbles_of) == (3, 51, "CTA")
    assert found.mma_use.in_flight_cta == sample.mma_use.in_flight_cta != every.mma_use.in_flight_cta
    assert found.mma_use.cta_main_loop == sample.mma_use.cta_main_loop != every.mma_use.cta_main_loop
    assert found.mma_use.in_flight_sm == every.mma_use.in_flight_sm
    assert found.mma_use.sm_recorded == every.mma_use.sm_recorded
    assert None not in (every.mma_use.in_flight_sm, every.mma_use.sm_recorded)
    assert found.residency.original == found.residency.instrumented == 3
    assert (found.overhead, found.all_ctas.overhead) == (sample.overhead, every.overhead)
    assert found.all_ctas.iteration_cycles == every.cycles_per_unit.median
    assert analysis.unit_cycles(launch) == 3 * 40 * 900
    # All CTAs' MMAs in the original kernel's time, as it was beside the sample.
    assert found.mma_use.sm == pytest.approx(3 * 40 * 900 / (0.052 * sample.clock_mhz * 1e3))


def test_confidence_follows_the_recording_that_cycles_are_of():
    _, every, sample, found = together()
    assert (every.confidence.level, sample.confidence.level, found.confidence.level) == ("low", "high", "high")
    *_, found = together(of_sample=1.2)
    assert found.confidence.level == "low"
    assert "events make the launch 20% slower" in found.confidence.reasons


def test_each_fact_says_what_it_is_read_from():
    _, every, sample, found = together()
    assert set(every.recorded_by.values()) == {"all CTAs", "original kernel"}
    assert set(sample.recorded_by.values()) == {"sampled CTAs", "original kernel"}
    by = found.recorded_by
    assert {by[name] for name in ("regions", "cycles_per_unit", "bubbles", "overhead", "mma_use.in_flight_cta")} == {
        "sampled CTAs"
    }
    assert {by[name] for name in ("sms", "view", "mma_use.in_flight_sm")} == {"all CTAs"}
    assert {by[name] for name in ("mma_use.sm", "residency.original")} == {"original kernel"}
    assert not {"imbalance", "memory.traffic", "fma_use.sm"} & set(by)
    assert Timeline.model_validate_json(found.model_dump_json()) == found


def test_the_gpus_samples_are_of_the_original_kernel():
    launch, every, sample, _ = together()
    samples = PcSamples(launches=1, period_cycles=1024, dropped=0, lines=[])
    found = of_both(every.model_copy(update={"samples": samples, "no_samples": ""}), launch, sample)
    assert found.samples == samples
    assert of_both(every.model_copy(update={"no_samples": "why"}), launch, sample).no_samples == "why"


def test_one_sentence_says_what_was_done():
    *_, found = together()
    said = verdict(found)
    (line,) = [line for line in said if "recording all CTAs" in line]
    assert line.startswith(
        "k: recording all CTAs costs 38.0%: cycles are of 3 sampled CTAs, every 17th of 51 from CTA 5 on, and the "
        "launch with these costs 1.2%; how CTAs differ"
    )
    assert "is not known from a sample" not in " ".join(said)
    *_, found = together(1.02, same_order=False, occupancy=2)
    assert "recording all CTAs costs 2.0%, leaves 2 CTAs an SM where 3 fit and changes the order" in " ".join(
        verdict(found)
    )


@pytest.mark.parametrize(
    ("ratio", "of_sample", "sampled"), [(1.08, 1.07, True), (1.07, 1.07, False), (1.06, 0.9, False)]
)
def test_a_sample_that_changes_the_time_no_less_is_not_read(ratio, of_sample, sampled):
    _, every, sample, found = together(ratio, of_sample)
    assert (found.sampled is not None) == (found.all_ctas is not None) == sampled
    assert found.cycles_per_unit == (sample if sampled else every).cycles_per_unit
    if not sampled:
        cost = f"{of_sample - 1:.1%}"
        why = f"with a sample the launch costs {cost}, with all CTAs it costs {ratio - 1:.1%}"
        assert f"all CTAs are recorded and not a sample: {why}" in found.confidence.reasons
        assert (found.mma_use, found.sms) == (every.mma_use, every.sms)


@pytest.mark.parametrize(("of_sample", "sampled"), [(1.05, True), (1.06, False)])
def test_a_sample_that_leaves_the_ctas_on_an_sm_may_change_the_time_a_little(of_sample, sampled):
    assert (together(1.01, of_sample, occupancy=2)[-1].all_ctas is not None) == sampled
    assert together(1.01, of_sample, occupancy=3)[-1].all_ctas is None


def test_a_launch_that_is_faster_with_all_events_is_a_finding_beside_a_sample_too():
    _, every, _, found = together(0.8, same_order=False)
    assert [finding.id for finding in every.findings] == [finding.id for finding in found.findings]
    assert found.findings[0].estimate.speedup == pytest.approx(1.25)
    assert together(1.38)[-1].findings == []
    assert together(1.38, 0.9)[-1].findings == []  # a sample's other registers show nothing of the original


EVERY = Sample(1, 0)


def norms(way: str, ratio: float, work: list[int]) -> tuple[read.Launch, Timeline]:
    """A norm over rows whose CTAs make so many iterations each."""
    program, recording = norm_program(), Recording((0,), 8, 4096)
    which = Sample() if way == "sampled" else EVERY
    buffer = encode([[norm_cta(iterations=times)] for times in work], recording, sample=which)
    launch = read.decode_launch(buffer, recording, program, which)
    cost = overhead(way, ratio)
    sampled = SampledCtas(stride=17, first=5, recorded=len(work), ctas=690) if way == "sampled" else None
    passes = [about().passes[0].model_copy(update={"overhead": cost})]
    return launch, read.timeline(launch, about(grid=(690,), overhead=cost, passes=passes, sampled=sampled))


def test_bytes_and_imbalance_are_of_all_ctas_and_waits_of_the_sample():
    """A hot CTA that the sample does not meet."""
    launch, every = norms("all", 1.5, [40 if number == 6 else 4 for number in range(690)])
    _, sample = norms("sampled", 1.02, [4] * 41)
    found = of_both(every, launch, sample)
    assert (every.view, sample.view, found.view) == ("imbalance", "memory", "imbalance")
    assert found.imbalance == every.imbalance
    assert found.imbalance.slowest.program_id == 6
    moved = sum(part.loaded_bytes + part.stored_bytes for part in found.memory.traffic)
    assert moved == (689 * 4 + 40) * 4 * 4096
    assert sum(part.loaded_bytes + part.stored_bytes for part in sample.memory.traffic) == 690 * 4 * 4 * 4096
    assert found.memory.gb_per_s == pytest.approx(moved / 0.052e-3 / 1e9)
    assert found.memory.waits == sample.memory.waits != every.memory.waits
    assert found.memory.loads_in_flight_bytes == sample.memory.loads_in_flight_bytes
    assert found.cycles_per_unit == sample.cycles_per_unit
    by = found.recorded_by
    assert (by["memory.traffic"], by["memory.gb_per_s"]) == ("all CTAs", "original kernel")
    assert (by["memory.waits"], by["imbalance"]) == ("sampled CTAs", "all CTAs")
    words = " ".join(verdict(found))
    assert "the slowest CTA, 6, runs" in words
    assert "(estimated from" not in words


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize(("way", "source"), [("all", "all CTAs"), ("sampled", "sampled CTAs")])
def test_a_timeline_of_an_earlier_version_says_what_its_facts_are_of(tmp_path, version, way, source):
    _, timeline = norms(way, 1.5, [4] * 41)
    record = json.loads(timeline.model_dump_json())
    assert record["schema_version"] == 7
    later = {"recorded_by", "all_ctas", *(["samples", "no_samples"] if version == 5 else [])}
    record = {name: value for name, value in record.items() if name not in later}
    (tmp_path / "k.timeline.json").write_text(json.dumps(record | {"schema_version": version}))
    found = read_timeline(tmp_path / "k.timeline.json")
    assert found == timeline
    assert found.recorded_by["memory.traffic"] == found.recorded_by["cycles_per_unit"] == source
