"""Compiling for other GPUs than Hopper, and what is refused before Triton would crash on it."""

from pathlib import Path

import pytest

from kperf.arch import GFX942, SM_80, SM_100A
from kperf.errors import UsageError
from kperf.ir.compile import resources
from tests.trace.kernels import CASES, compile_case


def test_a_gluon_kernel_with_layouts_of_nvidia_is_refused_on_amd(capfd):
    with pytest.raises(UsageError, match=r"^gluon_gemm is written for another GPU: it does not compile for gfx942$"):
        compile_case(CASES["gluon_gemm"], arch=GFX942)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("one", [SM_80, SM_100A], ids=lambda one: one.name)
def test_a_gluon_kernel_for_hopper_is_refused_elsewhere(one):
    with pytest.raises(UsageError, match=r"^gluon_gemm does ttng\.\w+, which \w+ has not: it is written for .*sm_90a"):
        compile_case(CASES["gluon_gemm"], arch=one)


def test_a_plain_kernel_compiles_for_another_gpu():
    kernel = compile_case(CASES["gemm_mma"], arch=SM_80)
    assert kernel.metadata.target == SM_80.target
    assert resources(kernel).registers > 32
    assert "HMMA" in kernel.asm["sass"]


def test_an_override_that_amd_would_ignore_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="Triton replaces no TTGIR for gfx942: give the TTGIR file itself"):
        compile_case(CASES["add"], arch=GFX942, ir_override=tmp_path / "k.ttgir")
