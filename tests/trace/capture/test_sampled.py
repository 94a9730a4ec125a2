"""Kernels with sampled CTAs, compiled: the path of the CTAs that are not recorded is the original's."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from triton import knobs

import kperf
from kperf.compat.triton import own_cache
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir import sass
from kperf.ir.compile import compile_kernel, ptxas_says
from kperf.ir.offline import launched_by
from kperf.record import stack
from kperf.trace import command
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture import sampled as sampling
from kperf.trace.capture.instrumented import InstrumentedKernel, make_instrumented, orders
from kperf.trace.capture.kernels import parse_ctas
from kperf.trace.capture.sampled import with_sampled_ctas
from kperf.trace.instrument.events import read_rules
from kperf.trace.instrument.sampled import Sample
from tests.trace.capture.fake_gpu import INSTRUMENTED
from tests.trace.capture.test_command import ADD, launched, trace  # noqa: F401
from tests.trace.kernels import CASES, compile_case, compiled

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = {
    "vector_add": ["--n", "65536"],
    "softmax": ["--rows", "16"],
    "layer_norm": ["--rows", "16"],
    "gemm": ["--size", "512"],
    "gemm_tma": ["--size", "512"],
    "gemm_gluon_ws": ["--size", "512"],
}
CTAS = 10_000


def every_cta(kernel) -> InstrumentedKernel:
    return make_instrumented(kernel, CTAS, INSTRUMENTED, memory=1 << 30, regions=("*",), rules=read_rules())


def with_sample(every: InstrumentedKernel, ctas: int = CTAS) -> InstrumentedKernel:
    return with_sampled_ctas(every, Sample(), ctas, INSTRUMENTED, memory=1 << 30, records=None)


def instructions(text: str) -> int:
    return len(re.findall(r"\t(?:@\S+ )?[A-Z]", text)) - text.count("NOP")


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_original_path_of_an_example_is_the_original(example):
    (launch,) = launched_by(ROOT / "examples" / f"{example}.py", EXAMPLES[example])[:1]
    every = every_cta(launch.kernel)
    made = with_sample(every)
    assert made.sample == Sample()
    assert not made.why_all
    before, after = made.original_usage, made.resource_usage
    assert after.occupancy == before.occupancy
    assert after.registers <= before.registers + 8
    assert after.shared_bytes == before.shared_bytes + made.recording.buffer_bytes
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
    assert "C75" not in ptxas_says(made.kernel.asm["ptx"], "sm_90a")


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
        return f"code differs {len(tried)}" if len(tried) < number else None

    monkeypatch.setattr(sampling, "_changed", changed)
    made = with_sample(every)
    assert tried == WAYS[:number]
    assert made.sample
    assert made.recording.memory == tried[-1][0]
    buffer = made.recording.buffer_bytes if made.recording.memory == "shared" else 0
    assert made.kernel.metadata.shared == every.original.metadata.shared + buffer
    assert made.recording_of_launch(CTAS, 1 << 30, None) == made.recording


def test_all_ctas_are_recorded_where_each_way_changes_the_original_path(monkeypatch):
    every, reasons = every_cta(compiled("add")), (f"code differs {number}" for number in range(9))
    monkeypatch.setattr(sampling, "_changed", lambda *_: next(reasons))
    made = with_sample(every)
    assert next(reasons) == f"code differs {len(WAYS)}"
    assert (made.sample, made.kernel) == (None, every.kernel)
    assert made.why_all == "beside the instrumented code its own code differs 0"
    assert made.buffer_bytes(CTAS) == CTAS * made.recording.block_bytes


def test_what_ptxas_changes_on_the_original_path_is_found(monkeypatch):
    made = with_sample(every_cta(compiled("add")))
    assert sampling._changed(made, INSTRUMENTED) is None
    used = made.original_usage

    def changed(**options):
        return sampling._changed(replace(made, **options), INSTRUMENTED)

    fewer = changed(original_usage=replace(used, occupancy=used.occupancy + 1))
    assert fewer == f"code has {used.occupancy} CTAs on an SM, and {used.occupancy + 1} alone"
    assert f"code has {used.occupancy} CTAs on an SM" in changed(original_usage=replace(used, occupancy=3))
    assert re.fullmatch(r"code has another order of instructions, in \d+ places", changed(original=compiled("softmax")))
    assert changed(original=compiled("gemm_pointers_3")) == "code would have less shared memory than it needs"
    one_path = replace(made, kernel=every_cta(compiled("add")).kernel, original=compiled("add"))
    assert sampling._changed(one_path, INSTRUMENTED) == "code is not told from it"
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


def test_a_buffer_has_room_for_the_recorded_ctas_alone():
    """So that a launch fits of which all CTAs would not."""
    every = every_cta(compiled("layer_norm"))
    made = with_sample(every, 1_000_000)
    assert made.buffer_bytes(1_000_000) == Sample().count(1_000_000) * made.recording.block_bytes <= 1 << 30
    assert every.recording.block_bytes * 1_000_000 > 1 << 30


def test_small_launches_clusters_and_kernels_without_ptx_are_recorded_whole():
    every = every_cta(compiled("add"))
    assert "of its 500 CTAs a sample has 30, and 32 are needed" in with_sample(every, 500).why_all
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
        mode, compiler.compat._apart = compiler.compat._apart, ""
        other = compile_kernel(case.kernel, signature, {"BLOCK": 256})
        compiler.compat._apart = mode
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
    count = Sample().count(1024)
    assert (timeline.sampled.recorded, timeline.sampled.ctas, timeline.sampled.stride) == (count, 1024, 17)
    assert timeline.ctas == timeline.units == count
    assert timeline.sms is timeline.imbalance is None
    assert timeline.sass_order.same
    assert timeline.resources.instrumented.occupancy == timeline.resources.original.occupancy
    (argument,) = [part for part in timeline.memory.traffic if part.argument == "x"]
    assert argument.loaded_bytes == pytest.approx(1024 * 1024 * 4, abs=1024)
    assert f"{count} of 1024 CTAs are recorded, every 17th from CTA 5 on" in said
    assert f"(estimated from the {count} CTAs recorded)" in said
    assert "one pass, for sampled CTAs have all events in one launch" in said
    assert launched("plus")[:3] == [True, False, True]


def test_another_word_for_the_ctas_is_refused(monkeypatch):
    monkeypatch.setattr(command, "refuse_what_cannot_work", lambda _: None)
    monkeypatch.setattr(stack.Stack, "why_no_cuda", lambda _: None)
    with pytest.raises(UsageError, match="ctas='some' says not which CTAs are recorded: give all or sampled"):
        kperf.trace(ctas="some").__enter__()
    assert parse_ctas("sampled") == "sampled"


def test_a_launch_of_few_ctas_is_recorded_whole_and_the_reading_says_so(trace):  # noqa: F811
    status, said, out = trace(MANY.format(100), ctas="sampled")
    assert status == 0
    timeline = read_timeline(out / "plus.timeline.json")
    assert timeline.sampled is None
    assert timeline.ctas == 100
    assert timeline.sms is not None
    reason = "all CTAs are recorded and not a sample: of its 100 CTAs a sample has 6, and 32 are needed"
    assert reason in timeline.confidence.reasons
    assert reason in said


def test_a_launch_of_another_grid_has_another_sample(trace):  # noqa: F811
    text = ADD + "x = torch.zeros(1 << 20)\nfor grid in [1024, 1024, 100, *[100] * 17]: "
    _, _, out = trace(text + "plus[(grid,)](x, x, x, 1 << 20, 1024)", ctas="sampled")
    timeline = read_timeline(out / "plus.timeline.json")
    assert (timeline.sampled, timeline.ctas) == (None, 100)
