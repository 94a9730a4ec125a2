"""Compiling for other GPUs than Hopper, and what is refused before Triton would crash on it."""

from pathlib import Path

import pytest
import triton

from kperf.arch import GFX942, GFX950, SM_80, SM_100A, SM_103A
from kperf.compat.triton import GluonASTSource
from kperf.compat.triton.cache import own_cache
from kperf.compat.triton.instrumentation import instrumentation_option
from kperf.errors import UsageError
from kperf.ir.amd import amd_resources
from kperf.ir.compile import named_ttgir, resources, sass
from kperf.trace.instrument.events import instrument
from kperf.trace.instrument.program import read_program
from kperf.trace.instrument.session import Recording, session
from tests.trace.kernels import CASES, compile_case


def test_a_gluon_kernel_with_layouts_of_nvidia_is_refused_on_amd(capfd):
    with pytest.raises(UsageError, match=r"^gluon_gemm is written for another GPU: it does not compile for gfx942$"):
        compile_case(CASES["gluon_gemm"], arch=GFX942)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("one", [SM_80, SM_100A], ids=lambda one: one.name)
def test_a_gluon_kernel_for_hopper_is_refused_elsewhere(one):
    with pytest.raises(UsageError, match=r"^gluon_gemm does ttng\.\w+, which \w+ has not: it is written for .*sm_90a"):
        compile_case(CASES["gluon_gemm"], arch=one)


def test_a_gluon_kernel_is_lowered_once_and_not_at_all_where_it_is_in_the_cache(tmp_path, monkeypatch):
    """A kernel of attention takes half a second each time."""
    made, front_end = [], GluonASTSource.make_ir
    monkeypatch.setattr(GluonASTSource, "make_ir", lambda *arguments: made.append(arguments) or front_end(*arguments))
    with own_cache(tmp_path):
        first = compile_case(CASES["gluon_gemm"])
        assert len(made) == 1
        assert compile_case(CASES["gluon_gemm"]).hash == first.hash
        assert len(made) == 1


def test_a_plain_kernel_compiles_for_another_gpu():
    kernel = compile_case(CASES["gemm_mma"], arch=SM_80)
    assert kernel.metadata.target == SM_80.target
    assert resources(kernel).registers > 32
    assert "HMMA" in kernel.asm["sass"]


def test_code_that_tritons_own_tools_cannot_read_is_no_damaged_cache():
    with pytest.raises(
        UsageError, match=r"^the nvdisasm of Triton .* cannot read machine code of sm_103a \(B300, GB300\)"
    ):
        sass(compile_case(CASES["add"], arch=SM_103A))


@pytest.mark.parametrize("name", ["softmax", "gemm_pointers_2", "split_k"])
@pytest.mark.parametrize("one", [GFX942, GFX950], ids=lambda one: one.name)
def test_kernels_for_cdna_are_instrumented_and_compile(tmp_path, one, name):
    """AMD's buffer operations have their arguments' names and sizes; MFMAs are over when they are issued."""
    text = instrument(named_ttgir(compile_case(CASES[name], arch=one).asm["ttgir"]))
    program = read_program(text)
    assert program.arch is one
    moved = {(part.argument, part.loaded, part.stored) for of in program.intervals.values() for part in of.traffic}
    expected = {
        "softmax": {("x", 8192, 0), ("y", 0, 8192)},
        "gemm_pointers_2": {("a", 128 * 64 * 2, 0), ("b", 64 * 256 * 2, 0), ("c", 0, 128 * 256 * 2)},
        "split_k": {("a", 128 * 64 * 2, 0), ("b", 64 * 128 * 2, 0), ("c", 0, 128 * 128 * 4), ("locks", 0, 4)},
    }[name]
    assert moved == expected
    if name != "softmax":
        mmas = {mma for loop in program.loops.values() for mma in loop.mmas}
        assert [(mma.name, mma.dtype, mma.instruction) for mma in mmas] == [("a @ b", "bf16", "mma")]
    path = tmp_path / "k.ttgir"
    path.write_text(text)
    recording = Recording((0,), program.total_warps, 512, arch=one)
    with session(recording):
        kernel = triton.compile(str(path), target=one.target, options=instrumentation_option())
    assert kernel.asm["amdgcn"].count("s_memtime") >= text.count("proton.record")
    assert bool(amd_resources(kernel).mfma) == (name != "softmax")


def test_an_override_that_amd_would_ignore_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="Triton replaces no TTGIR for gfx942: give the TTGIR file itself"):
        compile_case(CASES["add"], arch=GFX942, ir_override=tmp_path / "k.ttgir")
