"""Which ptxas assembles a kernel, and that what it prints of it is read: from Triton 3.9 on Hopper has another one."""

import subprocess

import pytest

from kperf.arch import SM_90A
from kperf.compat.triton.sources import why_not_compiled
from kperf.compat.triton.tools import assembler, ptxas
from kperf.ir.compile import ptxas_says
from tests.trace.kernels import compiled


def test_a_hopper_kernel_is_assembled_again_by_the_ptxas_that_assembled_it():
    """The other one of the wheel may not know the PTX that Triton wrote for this one."""
    said = ptxas_says(compiled("gemm_mma").asm["ptx"], SM_90A)
    assert "fatal" not in said
    assert "Used " in said


def test_the_version_is_of_the_ptxas_that_assembles():
    path, version = ptxas(SM_90A.number)
    printed = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
    assert f"release {version}," in printed
    assert version in assembler().split("-")


@pytest.mark.parametrize("name", ["ptxas", "ptxas-blackwell"])
def test_what_either_ptxas_refuses_is_said_in_its_words(name):
    refused = f"{name} kernel.ptx, line 9; fatal   : Unsupported .version 9.9"
    error = RuntimeError(f"{refused}\nTo see it:\n{name} -lineinfo kernel.ptx")
    assert why_not_compiled(error, None) == refused
