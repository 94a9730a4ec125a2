"""CTAs on an SM, against the calculator of the CUDA toolkit and by properties that any such number has."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import triton
from hypothesis import given
from hypothesis import strategies as st

from kperf.arch import GFX942, GFX950, KNOWN, SM_90A
from kperf.arch.ampere import SM_80, SM_86

NVIDIA = [one for one in KNOWN if one.backend == "cuda"]
CALCULATOR = r"""
#include "cuda_occupancy.h"
int ctas(int major, int minor, int regs_sm, int warps_sm, int smem_sm, int smem_optin, int reserved, int ctas_sm,
         int regs, int smem, int warps) {
    cudaOccDeviceProp d = {0};
    d.computeMajor = major; d.computeMinor = minor; d.warpSize = 32; d.numSms = 1;
    d.maxThreadsPerBlock = 1024; d.maxThreadsPerMultiprocessor = 32 * warps_sm;
    d.regsPerBlock = regs_sm; d.regsPerMultiprocessor = regs_sm;
    d.sharedMemPerBlock = 48 << 10; d.sharedMemPerMultiprocessor = smem_sm;
    d.sharedMemPerBlockOptin = smem_optin; d.reservedSharedMemPerBlock = reserved;
    cudaOccFuncAttributes f = {0};
    f.maxThreadsPerBlock = 1024; f.numRegs = regs; f.maxDynamicSharedSizeBytes = smem_optin;
    f.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    cudaOccDeviceState s = {0};
    s.carveoutConfig = SHAREDMEM_CARVEOUT_MAX_SHARED;
    cudaOccResult r;
    cudaOccError e = cudaOccMaxActiveBlocksPerMultiprocessor(&r, &d, &f, &s, 32 * warps, smem);
    return e == CUDA_OCC_SUCCESS ? r.activeBlocksPerMultiprocessor : -(int)e;
}
"""


@pytest.fixture(scope="module")
def calculator(tmp_path_factory):
    """`cuda_occupancy.h`, which lies in Triton's wheel, compiled."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    folder = tmp_path_factory.mktemp("calculator")
    (folder / "calculator.c").write_text(CALCULATOR)
    include = Path(triton.__file__).parent / "backends/nvidia/include"
    library = folder / "calculator.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-I", include, "-o", library, folder / "calculator.c"], check=True)
    ctas = ctypes.CDLL(str(library)).ctas

    def ask(one, registers, shared_bytes, warps):
        major, minor = one.compute_capability
        minor = 0 if major == 10 else minor  # the header of this toolkit knows no 10.3, whose limits are those of 10.0
        limits = (one.sm_registers, one.sm_warps, one.sm_shared_bytes, one.cta_shared_bytes, one.reserved_shared_bytes)
        return ctas(major, minor, *limits, one.sm_ctas, registers, shared_bytes, warps)

    return ask


@pytest.mark.parametrize("one", NVIDIA, ids=lambda one: one.name)
def test_as_cudas_calculator_has_it(one, calculator):
    shared = [0, 1, 1000, 1024, 7168, 33_000, 49_152, 65_537, 101_376, one.cta_shared_bytes, one.cta_shared_bytes + 1]
    for registers in (1, 16, 24, 32, 33, 40, 63, 64, 72, 80, 96, 104, 128, 129, 168, 200, 255):
        for shared_bytes in shared:
            for warps in (1, 2, 3, 4, 5, 8, 12, 16, 32):
                found = one.ctas_per_sm(registers, shared_bytes, warps)
                asked = registers, shared_bytes, warps
                assert found == max(calculator(one, *asked), 0), asked


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "warps", "ctas"),
    [
        (104, 0, 1, 16),  # 4 warps in each of 4 sub-partitions, not 19 by the SM's registers
        (200, 0, 1, 8),
        (200, 0, 2, 4),
        (168, 164_000, 12, 1),  # warp-specialised attention: registers and shared memory
        (128, 0, 8, 2),
        (129, 0, 4, 3),  # 136 after rounding
        (16, 0, 1, 32),
        (110, 98_304, 8, 2),
        (32, 116_736 - 1024, 4, 2),
        (32, 116_736 - 1023, 4, 1),
        (32, 232_448, 4, 1),
        (32, 232_449, 4, 0),
    ],
)
def test_on_hopper(registers, shared_bytes, warps, ctas):
    assert SM_90A.ctas_per_sm(registers, shared_bytes, warps) == ctas


@pytest.mark.parametrize(
    ("one", "registers", "shared_bytes", "warps", "ctas"),
    [
        (GFX942, 512, 0, 4, 1),  # a wave a SIMD
        (GFX942, 128, 0, 4, 4),
        (GFX942, 129, 0, 4, 3),  # 136 after rounding: 3 waves a SIMD
        (GFX942, 64, 0, 1, 32),
        (GFX942, 64, 32_769, 4, 1),
        (GFX942, 64, 65_537, 4, 0),
        (GFX950, 64, 65_537, 4, 2),
        (GFX950, 513, 0, 4, 0),
    ],
)
def test_on_cdna(one, registers, shared_bytes, warps, ctas):
    assert one.ctas_per_sm(registers, shared_bytes, warps) == ctas


@pytest.mark.parametrize(
    ("one", "ctas", "shared_bytes", "kb"),
    [
        (SM_90A, 1, 49_152, 256 - 64),  # 48 KB, and 1 KB that the system takes
        (SM_90A, 1, 65_536, 256 - 100),
        (SM_90A, 1, 64_512, 256 - 64),
        (SM_90A, 1, 64_513, 256 - 100),
        (SM_90A, 8, 16, 256 - 16),  # 8 times 128 bytes and 1 KB
        (SM_90A, 7, 0, 256 - 8),
        (SM_90A, 1, 232_448, 256 - 228),
        (SM_80, 2, 30_720, 192 - 64),
        (SM_86, 1, 50_000, 128 - 64),
        (GFX942, 1, 65_536, 0),
    ],
)
def test_what_is_left_to_l1(one, ctas, shared_bytes, kb):
    assert one.l1_bytes(ctas, shared_bytes) == 1024 * kb


@pytest.mark.parametrize("one", KNOWN)
def test_shared_memory_may_have_all_that_ctas_can_take(one):
    assert not one.carveouts or (one.carveouts[-1] == one.sm_shared_bytes and one.cache_bytes > one.sm_shared_bytes)


USES = st.tuples(
    st.sampled_from(KNOWN),
    st.integers(min_value=1, max_value=520),
    st.integers(min_value=0, max_value=240_000),
    st.integers(min_value=1, max_value=32),
)


@given(USES, st.integers(0, 64), st.integers(0, 9000), st.integers(0, 8))
def test_who_takes_more_never_fits_more_often(use, registers, shared_bytes, warps):
    one, *of = use
    more = (of[0] + registers, of[1] + shared_bytes, of[2] + warps)
    assert one.ctas_per_sm(*of) >= one.ctas_per_sm(*more)


@given(USES)
def test_what_fits_is_there(use):
    one, registers, shared_bytes, warps = use
    ctas = one.ctas_per_sm(registers, shared_bytes, warps)
    assert ctas * warps <= one.sm_warps
    assert ctas * (shared_bytes + one.reserved_shared_bytes) <= one.sm_shared_bytes
    assert ctas * warps * registers * one.warp_size <= one.sm_registers


@given(USES)
def test_what_is_left_takes_no_cta_away_and_a_byte_more_does(use):
    one, *of = use
    registers, shared_bytes, warps = of
    ctas = one.ctas_per_sm(*of)
    if ctas:
        left = one.shared_bytes_left(*of)
        assert one.ctas_per_sm(registers, shared_bytes + left, warps) == ctas
        assert one.ctas_per_sm(registers, shared_bytes + left + 1, warps) < ctas
