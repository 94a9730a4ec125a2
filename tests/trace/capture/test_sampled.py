"""Kernels with sampled CTAs, compiled: the path of the CTAs that are not recorded is the original's."""

import json
import re
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from triton import knobs

import kperf
from kperf.arch import SM_90A
from kperf.compat.triton import instrumentation
from kperf.compat.triton.cache import own_cache
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir import sass
from kperf.ir.compile import compile_kernel, ptxas_says
from kperf.ir.offline import launched_by
from kperf.record import stack
from kperf.trace import command, results
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture import capturer
from kperf.trace.capture import sampled as sampling
from kperf.trace.capture.instrumented import InstrumentedKernel, make_instrumented, orders
from kperf.trace.capture.kernels import parse_ctas
from kperf.trace.capture.sampled import with_sampled_ctas
from kperf.trace.capture.traced import Orders
from kperf.trace.instrument.events import read_rules
from kperf.trace.instrument.sampled import Sample
from tests.trace.capture import fake_gpu
from tests.trace.capture.fake_gpu import INSTRUMENTED
from tests.trace.capture.test_command import ADD, GEMM, launched, trace  # noqa: F401
from tests.trace.kernels import CASES, compile_case, compiled

pytestmark = pytest.mark.kernels

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = {
    "vector_add": ["--n", "65536"],
    "softmax": ["--rows", "16"],
    "layer_norm": ["--rows", "16"],
    "gemm": ["--size", "512"],
    "gemm_tma": ["--size", "512"],
    "gemm_gluon_ws": ["--size", "512"],
}
ON_A_GPU_ALL = [
    pytest.param(name, marks=[] if name in ("softmax", "gemm_tma", "gemm_gluon_ws") else pytest.mark.gpu)
    for name in EXAMPLES
]
"""Without a loop, with one, and with warp groups; three versions of each are compiled and taken apart."""
CTAS = 10_000


def every_cta(kernel) -> InstrumentedKernel:
    return make_instrumented(kernel, CTAS, INSTRUMENTED, memory=1 << 30, regions=("*",), rules=read_rules())


def with_sample(every: InstrumentedKernel, ctas: int = CTAS) -> InstrumentedKernel:
    return with_sampled_ctas(every, Sample.of(ctas), ctas, INSTRUMENTED, memory=1 << 30, events=None)


def instructions(text: str) -> int:
    return len(re.findall(r"\t(?:@\S+ )?[A-Z]", text)) - text.count("NOP")


@pytest.mark.parametrize("example", ON_A_GPU_ALL)
def test_the_original_path_of_an_example_is_the_original(example):
    (launch,) = launched_by(ROOT / "examples" / f"{example}.py", EXAMPLES[example])[:1]
    every = every_cta(launch.kernel)
    made = with_sample(every)
    assert made.sample == Sample()
    assert not made.why_all
    before, after = made.original_usage, made.resource_usage
    assert after.occupancy == before.occupancy
    assert after.registers <= before.registers + 8
    buffer = made.recording.buffer_bytes if made.recording.memory == "shared" else 0
    assert after.shared_bytes == before.shared_bytes + buffer
    assert made.kernel.metadata.profile_scratch_size == made.recording.block_bytes
    with own_cache(INSTRUMENTED):
        original, instrumented = compiler.sass_paths(made.kernel)
        alone, all_ctas = compiler.sass(launch.kernel), compiler.sass(every.kernel)
    assert sass.order(original) == sass.order(alone)
    assert not sass.spills(original)
    assert abs(instructions(original) - instructions(alone)) <= 0.03 * instructions(alone) + 12
    assert "SR_CLOCKLO" not in original
    assert "SR_GLOBALTIMER" not in original
    assert instrumented.count("SR_CLOCKLO") == all_ctas.count("SR_CLOCKLO") > 1
    assert orders(made, INSTRUMENTED).original == sass.order(alone)
    assert orders(made, INSTRUMENTED).instrumented == sass.order(instrumented)
    assert "C75" not in ptxas_says(made.kernel.asm["ptx"], SM_90A)


def test_lines_of_both_bodies_are_of_their_own_files():
    made = with_sample(every_cta(compiled("add")))
    lines = {frame for one in compiler.machine_code(made.kernel).instructions if (frame := one.frame)}
    by_file = {file: {one.line for one in lines if one.file == file} for file in {one.file for one in lines}}
    source, ttgir = sorted(by_file, key=lambda file: file.endswith(".ttgir"))
    alone = {one.frame.line for one in compiler.machine_code(compiled("add")).instructions if one.frame}
    assert source.endswith("kernels.py")
    assert ttgir.endswith("add.ttgir")
    assert by_file[source] >= alone - {0}
    text = made.text.splitlines()
    assert sum("proton.record" in text[line - 1] for line in by_file[ttgir]) >= 4


WAYS = [(memory, limit) for memory in ("shared", "global") for limit in (None, 255, 32)]
"""In which events are kept, and the most registers: of 32 as many CTAs fit as of the 26 that the kernel has."""


@pytest.mark.parametrize("number", range(1, len(WAYS) + 1))
def test_the_first_way_that_changes_nothing_is_taken(monkeypatch, number):
    every, tried = every_cta(compiled("add")), []

    def changed(made, _folder):
        limit = re.search(r"\.maxnreg (\d+)", made.kernel.asm["ptx"])
        tried.append((made.recording.memory, limit and int(limit[1])))
        return sampling._Change(f"code differs {len(tried)}") if len(tried) < number else None

    monkeypatch.setattr(sampling, "_change", changed)
    made = with_sample(every)
    assert tried == WAYS[:number]
    assert made.sample
    assert made.recording.memory == tried[-1][0]
    buffer = made.recording.buffer_bytes if made.recording.memory == "shared" else 0
    assert made.kernel.metadata.shared == every.original.metadata.shared + buffer
    assert made.recording_of_launch(CTAS, 1 << 30, None) == made.recording


def test_all_ctas_are_recorded_where_each_way_changes_the_original_path(monkeypatch):
    every, changes = every_cta(compiled("add")), (sampling._Change(f"code differs {number}") for number in range(9))
    monkeypatch.setattr(sampling, "_change", lambda *_: next(changes))
    made = with_sample(every)
    assert next(changes).difference == f"code differs {len(WAYS)}"
    assert (made.sample, made.kernel) == (None, every.kernel)
    assert made.why_all == "beside the instrumented code its own code differs 0"
    assert made.buffer_bytes(CTAS) == CTAS * made.recording.block_bytes


def differing_in(*places):
    """What `_change` finds of each way; 0: something else than its order."""
    changes = iter(places)
    return lambda *_: sampling._Change("code has another order", next(changes))


def test_the_nearest_way_is_taken_where_recording_all_ctas_changes_as_much(monkeypatch):
    every = every_cta(compiled("add"))
    lost = replace(every, resource_usage=replace(every.resource_usage, occupancy=every.original_usage.occupancy - 1))
    monkeypatch.setattr(sampling, "_change", differing_in(0, 5, 3, 0, 4, 3))
    made = with_sample(lost)
    assert (made.sample, made.why_all, made.own_order_differs) == (Sample(), "", 3)
    assert (made.recording.memory, re.findall(r"\.maxnreg (\d+)", made.kernel.asm["ptx"])) == ("shared", ["32"])
    (said,) = results._disturbance(SimpleNamespace(name="plus"), replace(made, resource_usage=made.original_usage))
    assert said == (
        "plus: the code of the CTAs that are not recorded has another order of instructions than the original, in 3 "
        "places."
    )
    monkeypatch.setattr(sampling, "_change", differing_in(0, 0, 0, 0, 0, 0))
    assert with_sample(lost).why_all == "beside the instrumented code its own code has another order"
    for places, taken in ((6, 0), (7, 7)):
        monkeypatch.setattr(sampling, "orders", lambda *_, n=places: SimpleNamespace(differences=["elsewhere"] * n))
        monkeypatch.setattr(sampling, "_change", differing_in(8, 7, 9, 9, 9, 9))
        assert with_sample(every).own_order_differs == taken


def test_time_that_is_up_leaves_the_nearest_way_so_far(monkeypatch):
    every = every_cta(compiled("add"))
    lost = replace(every, resource_usage=replace(every.resource_usage, occupancy=every.original_usage.occupancy - 1))
    monkeypatch.setattr(sampling, "_change", differing_in(9, 2, 1))
    monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=count(0, 20).__next__))
    assert with_sample(lost).own_order_differs == 9
    monkeypatch.setattr(sampling, "_change", differing_in(0))
    why = with_sample(lost).why_all
    assert why.startswith("beside the instrumented code its own code has another order (1 of 6 ways took 40 s")


def test_what_ptxas_changes_on_the_original_path_is_found(monkeypatch):
    made = with_sample(every_cta(compiled("add")))
    assert sampling._change(made, INSTRUMENTED) is None
    used = made.original_usage

    def changed(**options):
        return sampling._change(replace(made, **options), INSTRUMENTED).difference

    fewer = changed(original_usage=replace(used, occupancy=used.occupancy + 1))
    assert fewer == f"code has {used.occupancy} CTAs on an SM, and {used.occupancy + 1} alone"
    assert f"code has {used.occupancy} CTAs on an SM" in changed(original_usage=replace(used, occupancy=3))
    other = sampling._change(replace(made, original=compiled("softmax")), INSTRUMENTED)
    assert other == sampling._Change("code has another order of instructions, in 1 place", 1)
    assert changed(original=compiled("gemm_pointers_3")) == "code would have less shared memory than it needs"
    one_path = replace(made, kernel=every_cta(compiled("add")).kernel, original=compiled("add"))
    assert sampling._change(one_path, INSTRUMENTED) == sampling._Change("code cannot be distinguished from it")
    spilled = "\tSTL [R1], R2;\n\tLDL R2, [R1];\n"
    paths = compiler.sass_paths
    monkeypatch.setattr(compiler, "sass_paths", lambda kernel: (paths(kernel)[0] + spilled, ""))
    assert changed() == "code spills registers at 2 places, and at 0 alone"


def test_a_limit_of_registers_keeps_the_ctas_on_an_sm():
    """A GEMM of int8 of which two would fit."""
    every = every_cta(compiled("gemm_int8"))
    made = with_sample(every)
    assert every.resource_usage.occupancy < every.original_usage.occupancy == made.resource_usage.occupancy
    assert made.sample


@pytest.mark.parametrize(("case", "kept"), [("gemm_pointers_1", "global"), ("gemm_pointers_3", "shared")])
def test_events_take_no_l1_from_a_kernel_that_loads_through_it(case, kept):
    """Of 3 stages cp.async fills shared memory past L1."""
    made = with_sample(every_cta(compiled(case)))
    assert made.sample
    assert made.recording.memory == kept
    more = made.recording.buffer_bytes if kept == "shared" else 0
    assert made.resource_usage.shared_bytes == made.original_usage.shared_bytes + more


def test_a_buffer_has_room_for_the_recorded_ctas_alone():
    """So that a launch fits of which all CTAs would not."""
    every = every_cta(compiled("layer_norm"))
    made = with_sample(every, 1_000_000)
    assert made.buffer_bytes(1_000_000) == Sample().count(1_000_000) * made.recording.block_bytes <= 1 << 30
    assert every.recording.block_bytes * 1_000_000 > 1 << 30


def test_small_launches_clusters_and_kernels_without_ptx_are_recorded_whole():
    every = every_cta(compiled("add"))
    assert "of its 160 CTAs a sample has 31, and 32 are needed" in with_sample(every, 160).why_all
    clustered = every_cta(compile_case(CASES["gemm_pointers_3"], num_ctas=2))
    assert "clusters" in with_sample(clustered).why_all
    del every.original.asm["ptx"]
    try:
        assert "PTX is not kept" in with_sample(every).why_all
    finally:
        compiled.cache_clear()


def test_ptx_that_is_not_understood_leaves_all_ctas_recorded(monkeypatch):
    every = every_cta(compiled("add"))
    monkeypatch.setitem(every.original.asm, "ptx", every.original.asm["ptx"].replace(".reqntid", ".maxntid"))
    made = with_sample(every)
    assert made.sample is None
    assert "different directives" in made.why_all


def test_what_else_is_compiled_meanwhile_is_left_alone(monkeypatch):
    """And a hook of the user's is asked as before."""
    asked = []
    monkeypatch.setattr(
        knobs.runtime, "add_stages_inspection_hook", lambda *arguments: asked.append(len(arguments)) or ("", "")
    )
    hook = knobs.runtime.add_stages_inspection_hook
    every, recompile = every_cta(compiled("add")), sampling.recompile

    def meanwhile(*arguments):
        assert knobs.runtime.add_stages_inspection_hook is not hook
        case = CASES["add"]
        names = ["x_ptr", "y_ptr", "out_ptr", "n"]
        signature = dict(zip(names, case.types, strict=True)) | {"BLOCK": "constexpr"}
        mode, instrumentation._apart = instrumentation._apart, ""
        other = compile_kernel(case.kernel, signature, {"BLOCK": 256})
        instrumentation._apart = mode
        assert "kperf" not in other.asm["ptx"]
        return recompile(*arguments)

    monkeypatch.setattr(sampling, "recompile", meanwhile)
    assert with_sample(every).sample
    assert knobs.runtime.add_stages_inspection_hook is hook
    assert every_cta(compiled("add")).kernel.hash != with_sample(every).kernel.hash


MANY = ADD + "x = torch.zeros(1 << 20)\nfor _ in range(20): plus[({},)](x, x, x, 1 << 20, 1024)"


def test_a_script_is_traced_with_sampled_ctas(trace):  # noqa: F811
    status, said, out = trace(MANY.format(1024), ctas="sampled")
    assert status == 0
    timeline = read_timeline(out / "plus.timeline.json")
    recorded = Sample().count(1024)
    assert (timeline.sampled.recorded, timeline.sampled.ctas, timeline.sampled.stride) == (recorded, 1024, 17)
    assert timeline.ctas == timeline.units == recorded
    assert timeline.sms is timeline.imbalance is None
    assert timeline.sass_order.same
    assert timeline.resources.instrumented.occupancy == timeline.resources.original.occupancy
    (argument,) = [part for part in timeline.memory.traffic if part.argument == "x"]
    assert argument.loaded_bytes == pytest.approx(1024 * 1024 * 4, abs=1024)
    assert f"{recorded} of 1024 CTAs are recorded, every 17th from CTA 5 on" in said
    assert f"(estimated from the {recorded} CTAs recorded)" in said
    assert "one pass, for sampled CTAs have all events in one launch" in said
    assert launched("plus")[:3] == [True, False, True]


def test_another_word_for_the_ctas_is_refused(monkeypatch):
    monkeypatch.setattr(command, "refuse_what_cannot_work", lambda _: None)
    monkeypatch.setattr(stack.Stack, "why_no_cuda", lambda _: None)
    with pytest.raises(UsageError, match="ctas='some' says not which CTAs are recorded: give auto, all or sampled"):
        kperf.trace(ctas="some").__enter__()
    assert parse_ctas("sampled") == "sampled"


def test_a_launch_of_few_ctas_is_recorded_whole_and_the_reading_says_so(trace):  # noqa: F811
    status, said, out = trace(MANY.format(100), ctas="sampled")
    assert status == 0
    timeline = read_timeline(out / "plus.timeline.json")
    assert timeline.sampled is None
    assert timeline.ctas == 100
    assert timeline.sms is not None
    reason = "all CTAs are recorded and not a sample: of its 100 CTAs a sample has 19, and 32 are needed"
    assert reason in timeline.confidence.reasons
    assert reason in said


def test_a_launch_of_another_grid_has_another_sample(trace):  # noqa: F811
    text = ADD + "x = torch.zeros(1 << 20)\nfor grid in [1024, 1024, 100, *[100] * 17]: "
    _, _, out = trace(text + "plus[(grid,)](x, x, x, 1 << 20, 1024)", ctas="sampled")
    timeline = read_timeline(out / "plus.timeline.json")
    assert (timeline.sampled, timeline.ctas) == (None, 100)


class Disturbed(fake_gpu.FakeGpu):
    """A GPU on which a launch takes 1 ms, with events in all CTAs `every` times as long, in a sample `sampled` times.

    From launch 13 on all take twice as long.
    """

    def __init__(self, every=1.3, sampled=1.02):
        super().__init__()
        self.times = every, sampled

    def mark(self, stream):
        return len(fake_gpu.LAUNCHES)

    def milliseconds(self, start, end):
        assert end == start + 1
        one = fake_gpu.LAUNCHES[start]
        longer = self.times[one.sampled] if one.traced else 1.0
        return longer * (2 if end >= 13 else 1)


def ways():
    """Of each launch whether all, sampled or no CTAs were recorded."""
    return "".join("s" if one.sampled else "a" if one.traced else "." for one in fake_gpu.LAUNCHES)


LATER = MANY.replace("range(20)", "range(30)")
ROUNDS = "a." + "a." * 5


@pytest.mark.parametrize("passes", [None, 1])
def test_a_kernel_that_all_events_disturb_is_launched_again_with_sampled_ctas_and_one_reading_is_made_of_both(
    trace,  # noqa: F811
    monkeypatch,
    capsys,
    passes,
):
    monkeypatch.setattr(fake_gpu, "STEP", 260)
    status, said, out = trace(LATER.format(1024), gpu=Disturbed(), passes=passes)
    assert status == 0
    assert ways() == ROUNDS + "s." * 5 + "." * 8
    timeline = read_timeline(out / "plus.timeline.json")
    recorded = Sample().count(1024)
    assert timeline.sampled.recorded == timeline.ctas == recorded
    assert timeline.cycles_per_unit.median == 7 * 200
    assert (timeline.overhead.original_ms, timeline.overhead.ratio) == (2.0, pytest.approx(1.02))
    assert (timeline.all_ctas.overhead.original_ms, timeline.all_ctas.overhead.ratio) == (1.0, 1.3)
    assert len(timeline.overhead.original_samples_ms) == len(timeline.overhead.instrumented_samples_ms) == 5
    why = "events take about 17% of the time of the CTAs that are recorded"  # 8 of 30 cycles in 1400
    assert timeline.confidence.model_dump() == {"level": "medium", "reasons": [why]}
    assert timeline.sms.sms == 132  # 1024 CTAs on 132 SMs, of which the sample would have met 60
    assert timeline.residency.original == 8
    (argument,) = [part for part in timeline.memory.traffic if part.argument == "x"]
    assert argument.loaded_bytes == 1024 * 1024 * 4
    assert timeline.memory.gb_per_s == pytest.approx(3 * 1024 * 1024 * 4 / 2e-3 / 1e9)
    assert timeline.recorded_by["cycles_per_unit"] == "sampled CTAs"
    assert timeline.recorded_by["sms"] == "all CTAs"
    words = " ".join(said.split())
    assert f"recording all CTAs costs 30.0%: cycles are of {recorded} sampled CTAs, every 17th of 1024" in words
    assert "the launch with these costs 2.0%" in words
    assert ("one pass, for sampled CTAs have all events in one launch" in words) is (passes is None)
    assert (
        f"plus: {recorded} sampled CTAs are recorded in the next launches of grid 1024 x 1 x 1"
        in capsys.readouterr().err
    )
    shown = json.loads((out / "plus.chrome_trace.json").read_text())["otherData"]["ctas"]
    assert all(cta["program_id"] % 17 == 5 for cta in shown)


@pytest.mark.parametrize(
    ("every", "sampled", "expected"),
    [(1.05, 1.0, ""), (1.06, 1.0, "s." * 5), (0.95, 1.0, ""), (0.94, 1.0, "s." * 5)],
)
def test_a_sample_is_taken_from_a_limit_on(trace, every, sampled, expected):  # noqa: F811
    _, _, out = trace(LATER.format(1024), gpu=Disturbed(every, sampled), passes=1)
    assert ways() == (ROUNDS + expected).ljust(30, ".")
    timeline = read_timeline(out / "plus.timeline.json")
    assert (timeline.sampled is None) == (timeline.all_ctas is None) == (not expected)
    assert "not a sample" not in " ".join(timeline.confidence.reasons)


@pytest.mark.parametrize("what", ["order", "occupancy"])
def test_a_sample_is_taken_where_the_order_or_the_ctas_on_an_sm_differ(trace, monkeypatch, what):  # noqa: F811
    """Though the launch takes 2 % longer only."""
    differs = Orders(["FADD", "FMUL"], ["FMUL", "FADD"])
    if what == "order":
        monkeypatch.setattr(sampling, "orders", lambda *_: differs)
    else:
        made = capturer.make_instrumented

        def loses_a_cta(*arguments, **options):
            every = made(*arguments, **options)
            used = every.resource_usage
            return replace(every, resource_usage=replace(used, occupancy=used.occupancy - 1))

        monkeypatch.setattr(capturer, "make_instrumented", loses_a_cta)
    _, said, out = trace(LATER.format(1024), gpu=Disturbed(1.02, 1.0), passes=1)
    assert ways() == ROUNDS + "s." * 5 + "." * 8
    timeline = read_timeline(out / "plus.timeline.json")
    assert timeline.residency.instrumented == timeline.residency.original == 8
    assert ("leaves 15 CTAs an SM where 16 fit" in " ".join(said.split())) is (what == "occupancy")


def test_a_kernel_of_which_no_sample_can_be_made_keeps_all_ctas_and_says_why(trace, monkeypatch):  # noqa: F811
    monkeypatch.setattr(fake_gpu, "STEP", 260)
    _, said, out = trace(LATER.format(100), gpu=Disturbed(), passes=1)
    assert ways() == ROUNDS.ljust(30, ".")
    timeline = read_timeline(out / "plus.timeline.json")
    assert (timeline.sampled, timeline.all_ctas, timeline.ctas) == (None, None, 100)
    assert timeline.cycles_per_unit.median == 7 * 260
    assert set(timeline.recorded_by.values()) == {"all CTAs", "original kernel"}
    assert timeline.confidence.level == "low"
    reason = "all CTAs are recorded and not a sample: of its 100 CTAs a sample has 19, and 32 are needed"
    assert reason in timeline.confidence.reasons
    assert reason in " ".join(said.split())


def test_passes_go_on_where_there_is_no_sample_and_who_asks_for_several_gets_them(trace):  # noqa: F811
    trace(GEMM + "run(40)", gpu=Disturbed())
    passes = ways()[len(ROUNDS) :]
    assert passes.startswith(".a.a")
    fake_gpu.LAUNCHES.clear()
    trace(GEMM.replace("(2,)", "(1024,)") + "run(40)", gpu=Disturbed(), passes=2)
    assert ways().rstrip(".") == ROUNDS + ".a.a"


@pytest.mark.parametrize(("launches", "rounds"), [(12, 0), (13, 0), (14, 1), (17, 3)])
def test_a_script_that_ends_early_leaves_what_was_recorded(trace, launches, rounds):  # noqa: F811
    _, said, out = trace(MANY.replace("range(20)", f"range({launches})").format(1024), gpu=Disturbed(), passes=1)
    timeline = read_timeline(out / "plus.timeline.json")
    assert (timeline.sampled is not None) == bool(rounds)
    assert len(timeline.overhead.instrumented_samples_ms) == (rounds or 5)
    too_few = "all CTAs are recorded and not a sample: the script launches it too few times"
    assert (too_few in said.replace("\n", " ")) == (not rounds)


def test_a_sample_that_is_refused_leaves_the_launch_of_all_ctas(trace, monkeypatch):  # noqa: F811
    def refuse(traced, arguments):
        if traced and len(fake_gpu.LAUNCHES) >= 12:
            raise RuntimeError("out of resources")

    monkeypatch.setattr(fake_gpu, "WRITES", [refuse])
    status, said, out = trace(LATER.format(1024), gpu=Disturbed(), passes=1)
    assert status == 0
    assert ways() == ROUNDS.ljust(30, ".")
    timeline = read_timeline(out / "plus.timeline.json")
    assert timeline.sampled is None
    assert "not a sample: its instrumented kernel cannot be launched: out of resources" in " ".join(said.split())


def test_a_sample_that_writes_something_else_is_a_failed_check(trace, capsys):  # noqa: F811
    launches = count()

    def write(traced, arguments):
        # Of two launches with all CTAs each is launched once to compare, and five times to be timed.
        arguments[2][5] = -0.0 if traced and next(launches) >= 2 * 6 else 0.0

    fake_gpu.WRITES.append(write)
    status, _, out = trace(LATER.format(1024), gpu=Disturbed(), passes=1, check=True)
    assert ways().index("s") > 24
    assert status == 1
    assert "writes other bits than the original kernel" in capsys.readouterr().err
    assert not list(out.iterdir())


@pytest.mark.parametrize(("seconds", "most"), [(5, 3), (7, 2), (60, 1)])
def test_the_ways_of_a_kernel_that_is_slow_to_compile_end_with_the_time(monkeypatch, seconds, most):
    every, tried, clock = every_cta(compiled("add")), [], count(0, seconds)
    monkeypatch.setattr(sampling, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(
        sampling, "_change", lambda *made: tried.append(made) or sampling._Change(f"code differs {len(tried)}")
    )
    made = with_sample(every)
    assert len(tried) == most
    assert made.sample is None
    assert made.why_all == (
        f"beside the instrumented code its own code differs 1 ({most} of 6 ways took {2 * most * seconds} s to "
        "compile, and no more are tried)"
    )
