"""What is said of a kernel's SM is true of launches whose residency, operations, time and unit are known."""

from dataclasses import replace

import numpy as np
import pytest

from kperf.ir.traffic import Traffic
from kperf.record.bandwidth import Bandwidth
from kperf.record.store import RECORDED
from kperf.report.sentences import verdict
from kperf.trace.analyze import analysis, facts, read, views
from kperf.trace.analyze.facts import concluded
from kperf.trace.analyze.models import (
    Apart,
    KernelResources,
    Overhead,
    Pass,
    Resources,
    SampledCtas,
    SassOrder,
    WhatIf,
)
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.analyze.replay import Assumptions, Course, Replay, Step
from kperf.trace.instrument.program import Interval, Mma, Part

from .captures import launch_of_residents
from .machine import Kernel
from .test_views import about, launch_of, norm, norm_program
from .version_2 import unpacked

MHZ = 1700
"""Of the simulated SMs."""
SHARED = Kernel(consumers=1, mma=900, arithmetic=1500, stages=3, iterations=40)
"""A CTA of it uses the tensor cores a third of the time: they are the bottleneck of three."""


def resources(registers: int, occupancy: int, spilled: int = 0) -> KernelResources:
    return KernelResources(registers=registers, spilled_bytes=spilled, shared_bytes=0, occupancy=occupancy)


def launched(kernel: Kernel, starts: list[int], slower: float = 1.0, **changed: object):
    """The timeline of CTAs that share an SM, whose original kernel takes the time that they take."""
    launch, machines = launch_of_residents(kernel, starts)
    cycles = max(ended[-1][1] for machine in machines for ended in machine.records.values()) - min(starts)
    ms = cycles / MHZ / 1e3
    overhead = Overhead(original_ms=ms, instrumented_ms=ms * slower, ratio=slower)
    used = Resources(original=resources(64, len(starts)), instrumented=resources(72, len(starts)))
    timeline = read.pipeline(launch, about(**{"overhead": overhead, "resources": used} | changed))
    return timeline, machines, cycles


@pytest.mark.parametrize("starts", [[0], [0, 700], [0, 700, 1500]], ids=len)
def test_the_use_of_an_sm_is_of_all_its_ctas_and_that_of_a_main_loop_of_one(starts):
    t, machines, cycles = launched(SHARED, starts)
    worked = machines[0].cores.worked
    assert worked == len(starts) * SHARED.iterations * SHARED.mma
    assert t.clock_mhz == pytest.approx(MHZ, rel=0.01)
    assert t.mma_use.sm == pytest.approx(worked / cycles, rel=0.01)
    assert t.mma_use.sm_recorded == pytest.approx(worked / cycles, rel=0.05)
    assert t.mma_use.cta_main_loop == pytest.approx(SHARED.mma / machines[len(starts) // 2].iteration_time(), rel=0.02)
    assert t.mma_use.sm == pytest.approx(len(starts) * t.mma_use.cta_main_loop, rel=0.08)
    said = " ".join(verdict(t))
    assert f"the MMAs of all CTAs reach {t.mma_use.sm:.0%} of the peak rate" in said
    assert f"inside its main loop, one CTA alone reaches {t.mma_use.cta_main_loop:.0%}" in said
    idle = sum(bubble.cycles for bubble in t.bubbles)
    assert (
        f"the SM has {f'no MMA in flight in {idle:.0f}' if round(idle) else 'an MMA in flight in all'} of the" in said
    )
    if len(starts) == 1:
        assert "share an SM" not in said
    else:
        assert f"{len(starts)} CTAs share an SM" in said
        assert f"by replay of the dependency graph, of {len(starts)} CTAs of an SM together," in said
        assert (
            f"with the same change in all {len(starts)} CTAs of an SM, an iteration would take" in said or not t.what_if
        )


def test_an_sm_has_an_mma_in_flight_where_any_cta_has():
    alone, _, _ = launched(SHARED, [0])
    three, _, _ = launched(SHARED, [0, 700, 1500])
    assert alone.mma_use.in_flight_sm == pytest.approx(alone.mma_use.in_flight_cta, rel=0.05)
    assert three.mma_use.in_flight_sm > 0.97
    assert three.mma_use.in_flight_cta < 0.8


def test_ctas_beside_each_other_are_found_by_the_clock_of_their_sm_though_it_wraps():
    wrap = 2**32 - 20_000
    launch, _ = launch_of_residents(SHARED, [wrap, wrap + 700, wrap + 200_000])
    assert launch.beside(0) == [(0, 0), (1, 700)]
    assert launch.beside(1) == [(0, -700), (1, 0)]
    assert launch.beside(2) == [(2, 0)]


def test_without_the_original_time_the_instrumented_one_is_named():
    overhead = Overhead(original_ms=None, instrumented_ms=1.0, ratio=None)
    t, machines, _ = launched(SHARED, [0], overhead=overhead)
    assert t.mma_use.sm == pytest.approx(machines[0].cores.worked / (MHZ * 1e3), rel=0.01)
    assert any("in the instrumented kernel's 1.000 ms" in line for line in verdict(t))
    assert t.confidence.level == "medium"


def test_operations_that_were_not_recorded_are_not_counted():
    launch, _ = launch_of_residents(SHARED, [0])
    assert analysis.unit_cycles(launch) == SHARED.iterations * SHARED.mma
    object.__setattr__(launch.events, "lost", 1)
    assert analysis.unit_cycles(launch) is None


def test_a_clock_above_the_gpus_is_flagged_and_not_reckoned_with():
    launch, machines = launch_of_residents(SHARED, [0])
    slow = about().environment.model_copy(update={"max_sm_mhz": 1600})
    t = read.pipeline(launch, about(environment=slow))
    assert not t.clock_is_plausible
    assert t.mma_use.sm == pytest.approx(machines[0].cores.worked / (1600 * 1e3), rel=0.01)
    assert any("1700 MHz is above the GPU's 1600 MHz" in reason for reason in t.confidence.reasons)
    fast = read.pipeline(launch, about(environment=slow.model_copy(update={"max_sm_mhz": 1700})))
    assert fast.clock_is_plausible
    assert not any("MHz" in reason for reason in fast.confidence.reasons)


@pytest.mark.parametrize(
    ("original", "instrumented", "ctas", "at_once", "level"),
    [
        (6, 8, 96, (6, 8), "medium"),
        (8, 6, 96, (8, 6), "medium"),
        (3, 1, 96, (3, 1), "low"),
        (6, 8, 8, (4, 4), "high"),  # 8 CTAs on 2 SMs
        (6, 6, 96, (6, 6), "high"),
    ],
)
def test_ctas_on_an_sm_are_the_originals_and_a_difference_lowers_confidence(
    original, instrumented, ctas, at_once, level
):
    used = Resources(original=resources(40, original), instrumented=resources(32, instrumented))
    t = read.timeline(norm(ctas), about(resources=used))
    assert (t.residency.original, t.residency.instrumented) == at_once
    assert t.confidence.level == level
    (line,) = (line for line in verdict(t) if "loads in flight" in line)
    assert f"up to {at_once[0] - 1} other CTAs are on its SM" in line
    assert (f"({at_once[1] - 1} in the instrumented kernel)" in line) == (at_once[0] != at_once[1])


def judged(ratio: float | None = 1.0, **changed: object):
    overhead = Overhead(original_ms=ratio and 1.0, instrumented_ms=ratio or 1.0, ratio=ratio)
    return read.timeline(norm(), about(overhead=overhead, **changed)).confidence


@pytest.mark.parametrize(
    ("ratio", "level"),
    [(1.0, "high"), (1.05, "high"), (1.06, "medium"), (0.94, "medium"), (1.15, "medium"), (1.16, "low"), (0.84, "low")],
)
def test_confidence_falls_with_what_events_cost_or_win(ratio, level):
    found = judged(ratio)
    assert found.level == level
    assert bool(found.reasons) == (level != "high")
    assert all(f"{abs(ratio - 1):.0%} {'slower' if ratio > 1 else 'faster'}" in reason for reason in found.reasons)


def test_confidence_falls_with_spills_and_says_how_many():
    used = Resources(original=resources(40, 2, spilled=8), instrumented=resources(40, 2, spilled=264))
    assert judged(resources=used).model_dump() == {
        "level": "medium",
        "reasons": ["events make it spill 256 bytes a thread more"],
    }
    counters = Resources(original=resources(40, 2, spilled=8), instrumented=resources(40, 2, spilled=24))
    assert judged(resources=counters).level == "high"


def test_an_mma_without_tensor_cores_is_computed_by_fmas():
    launch, _ = launch_of_residents(SHARED, [0])
    fma = Mma("A @ B", 512 * 256, "fp32", "FMA")
    for interval in [*launch.intervals, *launch.program.intervals.values()]:
        interval.queue = tuple(fma if isinstance(step, Mma) else step for step in interval.queue)
    loop = launch.program.loops[10]
    launch.program.loops[10] = type(loop)(loop.line, (fma,), loop.loads)
    t = read.pipeline(launch, about())
    assert (t.unit_of_compute, t.mma_use) == ("fma", None)
    assert (t.bound.cycles, t.bound.instruction) == (512, "FMA")
    assert t.fma_use.cta_main_loop == pytest.approx(512 / t.cycles_per_unit.median)
    assert not any("tensor core" in line or "MMA" in line for line in verdict(t))
    assert "its matrix products need 512 cycles on the FMA units" in verdict(t)[0]


TILE = 32768


@pytest.mark.parametrize(("copy_gb_per_s", "is_said"), [(2.0, True), (3.0, True), (3.5, True), (3.6, False)])
def test_what_a_loop_with_mmas_loads_is_in_its_reading_where_memory_may_bound_it(copy_gb_per_s, is_said):
    kernel, starts = replace(SHARED, iterations=18), [0, 700, 1500]
    launch, _ = launch_of_residents(kernel, starts)
    (interval,) = [one for one in launch.intervals if one.group == "producer" and one.loads]
    interval.traffic = (Traffic("a", TILE, 0),)
    bandwidth = Bandwidth(peak_gb_per_s=5.0, copy_gb_per_s=copy_gb_per_s)
    t = read.pipeline(launch, about(arguments={"a_ptr": f"int8 [{TILE * 100}]"}, bandwidth=bandwidth))
    requested = kernel.iterations * len(starts) * TILE
    assert [(part.argument, part.loaded_bytes) for part in t.memory.traffic] == [("a", requested)]
    assert t.memory.gb_per_s == pytest.approx(requested / 1e6)  # in 1 ms
    assert t.memory.unique_gb_per_s == pytest.approx(requested / 1e6)
    words = " ".join(verdict(t))
    assert ("loads request 2 GB/s in the original kernel's 1.000 ms" in words) == is_said
    assert "a CTA lives" not in words
    launch.events = replace(launch.events, lost=1)
    assert read.pipeline(launch, about()).memory is None  # of some iterations nobody knows


def test_the_unit_of_compute_of_a_norm_is_none_and_of_a_gemm_the_tensor_cores():
    assert read.timeline(norm(), about()).unit_of_compute == "none"
    assert launched(SHARED, [0])[0].unit_of_compute == "tensor core"


@pytest.mark.parametrize(
    ("name", "sm", "cta"),
    [("attention_forward", 0.401, 0.204), ("split_k", 0.480, 0.418), ("flash_decoding", 0.0705, 0.0283)],
)
def test_a_record_of_version_2_is_judged_by_the_same_numbers(name, sm, cta, tmp_path):
    t = read_timeline(unpacked(name, tmp_path))
    assert t.mma_use.sm == pytest.approx(sm, rel=0.01)
    assert t.mma_use.cta_main_loop == pytest.approx(cta, rel=0.01)


def test_the_layer_norm_has_six_ctas_on_an_sm(tmp_path):
    t = read_timeline(unpacked("layer_norm", tmp_path))
    assert (t.residency.original, t.residency.instrumented) == (6, 8)
    assert any("up to 5 other CTAs are on its SM (7 in the instrumented kernel)" in line for line in verdict(t))
    assert t.confidence.level == "low"
    assert "; record a sample of the CTAs (--ctas sampled), trace fewer regions (--regions), or" in " ".join(verdict(t))
    sampled = SampledCtas(stride=17, first=5, recorded=482, ctas=8192)
    for less in ({"ctas": 5 + 31 * 5}, {"why_all": "its CTAs come in clusters"}, {"sampled": sampled}):
        said = " ".join(verdict(t.model_copy(update=less)))
        assert "; trace fewer regions (--regions), or over several passes, for" in said
    assert "--ctas sampled" in " ".join(verdict(t.model_copy(update={"ctas": 6 + 31 * 17})))
    assert np.isclose(t.overhead.ratio, 1.247, rtol=1e-3)


def several_launches(bound: float, drawn: float, passes: list[tuple[float, float]], slower: float = 1.05, **changed):
    """A timeline with this bound, iteration as drawn, and (iteration, time over the original's) of its passes."""
    t, _, _ = launched(SHARED, [0], slower)
    one = t.passes[0]
    apart = Apart(
        passes=[
            one.model_copy(
                update={"iteration_cycles": cycles, "overhead": Overhead(original_ms=1, instrumented_ms=r, ratio=r)}
            )
            for cycles, r in passes
        ],
        tolerance=0.02,
        why=["pass 4 shows another schedule"],
    )
    iteration_time = t.cycles_per_unit.model_copy(update={"median": drawn})
    graph = t.replay.model_copy(update={"measured_cycles": drawn, "cycles": drawn})
    limit = t.bound.model_copy(update={"cycles": bound})
    changed = {
        "cycles_per_unit": iteration_time,
        "apart": apart,
        "replay": graph,
        "bound": limit,
        "withheld": [],
    } | changed
    return concluded(t.model_copy(update=changed), None)


def saving(cycles: float, low: float, high: float, region: str = "arithmetic", group: str = "consumer 0") -> WhatIf:
    found = {"cycles": cycles, "low": low, "high": high, "assumed_low": low, "assumed_high": high}
    return WhatIf(region=region, warp_group=group, **found)


def test_a_kernel_at_its_bound_is_said_to_be_and_the_excess_is_the_events():
    at_bound = [(2049.7, 0.9989), (2048.4, 0.9983), (2115.9, 1.019), (2048.35, 1.0001), (2050, 0.9968)]
    t = several_launches(2048, 2324, at_bound, 1.09, what_if=[saving(513, 427, 974), saving(317, 8, 660)])
    assert (t.iteration.cycles, t.iteration.pass_number) == (2048.35, 4)
    assert (t.iteration.least, t.iteration.most) == (2048.35, 2324)
    assert t.mma_use.cta_main_loop == pytest.approx(2048 / 2048.35)
    assert facts.events_cost(t) == pytest.approx(2324 - 2048.35)
    assert "an iteration takes 2048 cycles; its MMAs need 2048" in verdict(t)[0]
    assert "it is at its bound" in verdict(t)[0]
    assert "all launches show 2048 to 2324; what is drawn has all events and takes 2324: 276 are" in verdict(t)[1]
    assert (t.what_if, len(t.withheld)) == ([], 2)
    assert t.confidence.level == "low"
    assert not any("cycles less without" in line for line in verdict(t))
    assert concluded(t, None) == t


def test_a_saving_has_the_interval_that_events_passes_and_replay_leave_and_none_beyond_the_bound():
    rows = [saving(900, 900, 900), saving(150, 140, 160), saving(1500, 1200, 2500), saving(90, 20, 95)]
    t = several_launches(1000, 2100, [(2000, 1.0), (2060, 1.03)], 1.05, what_if=rows)
    assert [round(row.cycles) for row in t.what_if] == [1000, 900, 150]
    wide = 100  # what is drawn takes 100 cycles more; passes differ by 60
    assert (t.what_if[1].low, t.what_if[1].high) == (pytest.approx(800), pytest.approx(1000))
    assert (t.what_if[2].low, t.what_if[2].high) == (pytest.approx(40), pytest.approx(260))
    assert (t.what_if[0].low, t.what_if[0].high) == (pytest.approx(1000), pytest.approx(1000))
    assert any("up to 1000 cycles less" in line for line in verdict(t))
    (row,) = t.withheld
    assert row.why == f"{wide} cycles are uncertain, so that it may save nothing"
    off = t.replay.model_copy(update={"cycles": 2100 + 21})
    wider = concluded(t.model_copy(update={"replay": off}), None)
    assert wider.what_if[1].high - wider.what_if[1].low == pytest.approx(2 * (100 + 21) - 21)  # but for the bound


def test_without_passes_what_events_cost_is_uncertain():
    t, _, _ = launched(SHARED, [0], 1.04)
    assert t.iteration.pass_number is None
    for row in t.what_if:
        below = row.assumed_low - row.low
        assert below == pytest.approx(
            0.04 * t.cycles_per_unit.median + abs(t.replay.cycles - t.replay.measured_cycles), abs=1e-6
        ) or row.low == facts._above_the_bound(t)


def test_a_replay_that_is_off_and_a_low_confidence_give_no_saving():
    t, _, _ = launched(SHARED, [0])
    assert t.what_if
    slower = {"overhead": Overhead(original_ms=1, instrumented_ms=1.3, ratio=1.3)}
    off = {"replay": t.replay.model_copy(update={"cycles": 1.06 * t.replay.measured_cycles})}
    for changed in (slower, off):
        found = concluded(t.model_copy(update=changed), None)
        assert not found.what_if
        assert found.withheld


@pytest.mark.parametrize("gpu", ["h200", "h100-80gb-hbm3"])
def test_a_recorded_iteration_is_read_from_passes_and_one_above_its_bound_is_not_at_it(gpu):
    """Of improved_plus what is drawn takes 2399, and the excess is what its events cost."""
    t = read_timeline(RECORDED / gpu / "fig11/improved_plus.timeline.json")
    assert t.iteration.cycles == pytest.approx(2111.5, abs=1)
    assert not facts.at_bound(t)
    assert facts.events_cost(t) == pytest.approx(2399 - 2111.5, abs=2)
    assert t.mma_use.cta_main_loop == pytest.approx(2048 / 2111.5, abs=0.002)
    assert not t.what_if
    vanilla = read_timeline(RECORDED / "h200/fig11/vanilla.timeline.json")
    assert vanilla.iteration.cycles == pytest.approx(2906, abs=1)
    assert (round(vanilla.iteration.least), round(vanilla.iteration.most)) == (2590, 3059)
    assert not facts.at_bound(vanilla)


ROW = 8 * 4 * 4096
"""Bytes of x that each of the norm's two loops loads, in all CTAs."""


def test_bytes_that_memory_moves_are_each_address_once():
    sizes = {"x_ptr": f"float32 [8, {ROW // 32}]", "w": "bfloat16 [4, 512]", "y_desc": f"int8 [{ROW}]", "n": "7"}
    bandwidth = Bandwidth(peak_gb_per_s=1.0, copy_gb_per_s=0.8)
    t = read.timeline(norm(), about(arguments=sizes, bandwidth=bandwidth))
    unique = {part.argument: part.unique_bytes for part in t.memory.traffic}
    assert unique == {"x": ROW, "w": 4096, "y": ROW}
    assert t.memory.gb_per_s == pytest.approx(4 * ROW / 1e6)  # in 1 ms
    assert t.memory.unique_gb_per_s == pytest.approx((2 * ROW + 4096) / 1e6)
    words = " ".join(verdict(t))
    assert "k: the kernel reads x twice: x has 131 KB" in words
    assert "k: the kernel reads w 32 times" in words
    assert f"{t.memory.unique_gb_per_s:.0f} GB/s, 33% of a copy's 1 GB/s and 27% of the peak of 1 GB/s" in words


def test_bytes_of_arguments_that_are_not_known_are_not_reckoned():
    t = read.timeline(norm(), about(arguments={"x_ptr": "7", "y": "complex64 [8]"}))
    assert [part.unique_bytes for part in t.memory.traffic] == [None] * 3
    assert t.memory.unique_gb_per_s is None
    assert facts.size_of({"a_ptr": "bfloat16 [2, 3]", "b_desc": "float8_e4m3fn [5]"}, "a+b") == 2 * 2 * 3 + 5
    assert facts.size_of({"a_ptr": "bfloat16 [2, 3]"}, "a+b") is None
    assert facts.size_of({"a_ptr": "float32 []"}, "a") == 4


def test_what_two_loads_of_the_same_addresses_read_is_read_twice():
    launch = norm()
    launch.program.rereads = {"x": 2}
    t = read.timeline(launch, about(arguments={"x": "float32 [1000000]"}))
    x = t.memory.traffic[0]
    assert (x.places, x.loaded_bytes, x.unique_bytes) == (2, 2 * ROW, ROW)
    assert "k: the kernel reads x twice: 2 of its loads have the same addresses." in verdict(t)


def test_the_layer_norm_of_version_2_reads_its_rows_twice_and_says_what_memory_moves(tmp_path):
    t = read_timeline(unpacked("layer_norm", tmp_path))
    matrix, vector = 8192 * 16384 * 2, 16384 * 2
    unique = {part.argument: part.unique_bytes for part in t.memory.traffic}
    assert unique == {"x": matrix, "weight": vector, "bias": vector, "out": matrix}
    assert t.memory.unique_gb_per_s < t.bandwidth.copy_gb_per_s < t.memory.gb_per_s
    assert any("reads x twice" in line for line in verdict(t))
    assert any("reads weight 8.19e+03 times" in line for line in verdict(t))


def test_a_gap_of_version_2_that_loads_and_multiplies_is_a_wait_for_loads(tmp_path):
    t = read_timeline(unpacked("gemm_1_stage", tmp_path))
    mixed = next(region for region in t.regions if region.share > 0.7)
    assert mixed.kind == "wait"
    assert [(part.name, part.kind) for part in mixed.parts] == [
        ("load a", "load"), ("load b", "load"), ("use a+b", "wait"), ("a @ b issue", "issue"),
    ]  # fmt: skip
    bars = [bar for bar in t.windows[0].bars if bar.name == mixed.name]
    assert bars
    assert all((bar.kind, bar.parts) == ("wait", ["load", "wait", "issue"]) for bar in bars)
    assert {t.row("all warps"), t.row("last warp"), t.row("tensor core")} == {"warp 0 of 8", "warp 7", "tensor core"}


def test_what_a_warp_does_goes_by_operations_and_not_by_users_names():
    named = [("load reduced", "load", ""), ("use scan_barrier", "wait", ""), ("x", "arithmetic", "tt.scan")]
    named += [("y", "wait", "gpu.barrier"), ("store barrier", "store", "tt.store"), ("wait a full", "wait", "")]
    found = [
        views.category(Interval("all warps", name, kind, parts=(Part(name, kind, operation),)))
        for name, kind, operation in named
    ]
    assert found == ["issuing loads", views.WAITING, "reductions", "barriers", "stores", views.WAITING]


def faster(ratio: float, original: list[str], traced: list[str]):
    order = SassOrder(
        original=original, instrumented=traced, same=original == traced, differences=["after wgmma: exp2 moves"]
    )
    overhead = Overhead(original_ms=1.0, instrumented_ms=ratio, ratio=ratio)
    passes = [Pass(regions=["*"], overhead=overhead, sass_order=order)]
    return read.timeline(norm(), about(overhead=overhead, passes=passes))


SERIAL = ["wgmma", "wait for wgmma, 0 left"] * 4
BATCHED = ["wgmma x4", "wait for wgmma, 1 left", "wait for wgmma, 0 left"]


def test_an_instrumented_kernel_that_is_faster_is_the_first_thing_said_of_the_original():
    t = faster(0.95, SERIAL, BATCHED)
    (finding,) = t.findings
    assert (finding.id, finding.severity) == ("wgmma-serialised", "low")
    assert finding.evidence == {"speedup": pytest.approx(1 / 0.95), "waits_original": 4, "waits_instrumented": 2}
    assert finding.estimate.speedup == pytest.approx(1 / 0.95)
    assert "5.0% faster than the original" in verdict(t)[0]
    assert "waits for wgmma at 4 places, and the machine code with events at 2" in verdict(t)[0]
    assert [faster(r, SERIAL, BATCHED).findings[0].severity for r in (0.9, 0.6)] == ["medium", "high"]
    assert faster(0.95, BATCHED, SERIAL).findings[0].id == "faster-in-another-order"
    assert faster(0.95, SERIAL, SERIAL).findings[0].id == "faster-in-another-step"
    assert faster(0.985, SERIAL, BATCHED).findings == []
    assert faster(1.05, SERIAL, BATCHED).findings == []


def test_split_k_of_version_2_says_first_that_its_wgmma_are_serialised(tmp_path):
    t = read_timeline(unpacked("split_k", tmp_path))
    assert t.findings[0].id == "wgmma-serialised"
    assert "4.3% faster than the original" in verdict(t)[0]


def test_a_region_is_said_with_its_line_of_source(tmp_path):
    launch, _ = launch_of_residents(replace(SHARED, load=4000, stages=1), [0])
    for interval in launch.intervals:
        if interval.waits:
            interval.source = (str(tmp_path / "user" / "gemm.py"), 21)
        else:
            interval.source = ("/elsewhere/library.py", 7)
    t = read.with_sources_from(tmp_path, read.pipeline(launch, about()))
    waits = [region for region in t.regions if region.name == "wait A full" and region.source]
    assert [(region.source.file, region.source.line) for region in waits] == [("user/gemm.py", 21)]
    assert any("wait A full (user/gemm.py:21) of consumer 0 takes" in line for line in verdict(t))
    others = {region.source.file for region in t.regions if region.name == "arithmetic"}
    assert others == {"/elsewhere/library.py"}


def test_what_events_cost_an_iteration_is_the_share_that_they_take_of_it():
    t, _, _ = launched(SHARED, [0], slower=1.25)
    added = 0.2 * t.cycles_per_unit.median  # 1 - 1 / 1.25
    (line,) = (line for line in verdict(t) if "tracing makes it" in line)
    assert f"25% slower, about {added:.0f} cycles of an iteration's {t.cycles_per_unit.median:.0f}" in line


def test_half_of_the_sms_have_ended_when_the_median_one_has():
    ends = {0: 1_000, 1: 2_000, 2: 5_000, 3: 9_000, 4: 10_000}  # cycles, and ns
    ctas = [([(0, True, 0), (1, True, 5), (1, False, 10), (2, True, 20), (2, False, end - 9), (3, True, end - 8),
                (3, False, end - 7), (4, True, end - 6), (4, False, end - 5), (5, True, end - 4), (5, False, end - 3),
                (0, False, end)], sm, 0) for sm, end in ends.items()]  # fmt: skip
    t = read.timeline(launch_of(norm_program(), ctas), about())
    assert (t.sms.first_end_us, t.sms.median_end_us, t.sms.span_us) == (1.0, 5.0, 10.0)
    assert any("half of the 5 SMs have no CTA any more in the last 50% of the launch" in line for line in verdict(t))
    assert any("SMs are idle 46% of its time" in line for line in verdict(t))


def test_a_region_outside_of_the_loop_has_no_cycles_an_iteration():
    regions = {region.name: region.per_iteration for region in read.timeline(norm(), about()).regions}
    assert regions["reduce"] == 0
    assert regions["load x"] > 0


@pytest.mark.parametrize("kind", ["issue", "wait", "tensor", "arithmetic"])
def test_an_arrive_behind_an_issue_or_a_wait_is_sent_at_its_end(kind):
    stage_ring = (0, "ring")
    sends = Interval("a", "sends", kind, signals=(stage_ring,))
    waits = Interval("b", "waits", "wait", waits=(stage_ring,))
    a, b = (0, "a"), (0, "b")
    courses = {a: Course([Step(sends, 100.0, 0, 0)], 0.0), b: Course([Step(waits, 10.0, 0, 0)], 0.0)}
    replay = Replay(courses, {stage_ring: 0})
    ends = replay.run(Assumptions(0.0, 1.0), {a: [100.0], b: [10.0]})
    assert ends[b] == [10.0 if kind == "arithmetic" else 110.0]


def test_a_launch_that_is_faster_is_disturbed_as_one_that_is_slower():
    assert [round(facts.changes(Overhead(original_ms=1, instrumented_ms=r, ratio=r)), 3) for r in (0.94, 1.06)] == [
        0.06
    ] * 2
    t = several_launches(1000, 2300, [(1800, 0.94), (2000, 1.01), (2200, 1.05)], 1.09)
    assert (t.iteration.pass_number, t.iteration.cycles) == (2, 2000)
    assert (t.iteration.least, t.iteration.most) == (1800, 2300)
    assert facts.changes(Overhead(original_ms=None, instrumented_ms=1, ratio=None)) == float("inf")


def test_a_gap_of_version_2_that_loads_for_later_does_not_wait_for_that(tmp_path):
    t = read_timeline(unpacked("attention_forward", tmp_path))
    mixed = [region for region in t.regions if region.parts]
    assert mixed
    assert all(region.kind == "issue" for region in mixed)
    assert all([part.kind for part in region.parts] == ["issue", "arithmetic", "load", "load"] for region in mixed)
