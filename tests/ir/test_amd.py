"""Code for an AMD GPU that is not here: what is read is what the compiler made, and what does not compile is said."""

import json
from types import SimpleNamespace

import pytest
import triton
import triton.language as tl
from triton.compiler import ASTSource

from kperf.arch import GFX942
from kperf.errors import MeasurementError, UsageError
from kperf.ir.amd import AmdResources, amd_resources
from kperf.ir.compile import compile_for

TEXT = """
\tv_mfma_f32_32x32x8_bf16_1k a[0:15], v[0:1], v[2:3], 0
\tv_mfma_f32_32x32x8_bf16_1k a[0:15], v[0:1], v[2:3], a[0:15]
\t; v_mfma in a comment
.amdgpu_metadata
amdhsa.kernels:
  - .agpr_count:     16
    .group_segment_fixed_size: 1024
    .private_segment_fixed_size: 180
    .sgpr_count:     106
    .sgpr_spill_count: 9
    .vgpr_count:     256
    .vgpr_spill_count: 44
"""


def fake(text, shared=0):
    return SimpleNamespace(name="k", asm={"amdgcn": text}, metadata=SimpleNamespace(shared=shared))


def test_the_metadata_is_read_whole():
    expected = AmdResources(256, 16, 106, 44, 9, scratch_bytes=180, lds_bytes=33_792, mfma=2)
    assert amd_resources(fake(TEXT, 32_768)) == expected
    assert expected.fits
    assert amd_resources(fake(TEXT, 65_536 - 1024)).fits
    assert not amd_resources(fake(TEXT, 65_536 - 1023)).fits


@pytest.mark.parametrize("line", [line for line in TEXT.splitlines() if "_count" in line or "_size" in line])
def test_a_number_that_is_missing_is_not_made_up(line):
    with pytest.raises(MeasurementError, match="says no"):
        amd_resources(fake(TEXT.replace(line, "")))


@triton.jit
def tile(x, y, SIZE: tl.constexpr):
    rows = tl.arange(0, SIZE)
    block = tl.load(x + rows[:, None] * SIZE + rows[None, :])
    tl.store(y + rows[:, None] * SIZE + rows[None, :], tl.dot(block, block))


def source(size):
    return ASTSource(tile, {"x": "*fp16", "y": "*fp32", "SIZE": "constexpr"}, {"SIZE": size}, {})


def test_larger_tiles_take_more_and_then_spill():
    found = [amd_resources(compile_for(GFX942, source(size), num_warps=1, num_stages=2)) for size in (32, 64, 128)]
    assert [one.vgprs for one in found] == sorted(one.vgprs for one in found)
    assert all(one.mfma for one in found)
    assert [bool(one.vgpr_spills) for one in found] == [False, False, True]
    assert found[-1].scratch_bytes >= 4 * found[-1].vgpr_spills > 0


def test_what_does_not_compile_is_refused_by_one_sentence():
    with pytest.raises(MeasurementError, match="tile does not compile for gfx942: ") as refused:
        compile_for(GFX942, source(48), num_warps=4, num_stages=2)  # no power of two
    assert "\n" not in str(refused.value)


def test_an_assertion_of_the_compiler_without_words_is_named_by_its_kind(monkeypatch):
    def fail(*_, **__):
        raise AssertionError

    monkeypatch.setattr(triton, "compile", fail)
    with pytest.raises(MeasurementError, match=r"^k does not compile for gfx942: AssertionError$"):
        compile_for(GFX942, SimpleNamespace(name="k"), num_warps=4, num_stages=1)


def test_half_a_file_in_the_cache_is_no_mistake_of_the_kernel(monkeypatch):
    def read(*_, **__):
        raise json.JSONDecodeError("half", "{", 1)

    monkeypatch.setattr(triton, "compile", read)
    with pytest.raises(UsageError, match="is damaged"):
        compile_for(GFX942, SimpleNamespace(name="k"), num_warps=4, num_stages=1)
