"""Descriptors that are made on the host, for targets without TMA: the kernel gets them in parts."""

import pytest

from kperf.arch import GFX942, SM_80, SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from kperf.ir.ttgir import Module
from kperf.ir.values import inner_strides
from tests.pages import ROOT

pytestmark = pytest.mark.kernels

ON_THE_HOST = (ROOT / "examples/gemm_tma.py").read_text()
NAMES = {
    "a": "[M, K], [K, 1], [BLOCK_M, BLOCK_K]",
    "b": "[K, N], [N, 1], [BLOCK_K, BLOCK_N]",
    "c": "[M, N], [N, 1], [BLOCK_M, BLOCK_N]",
}
MADE = "".join(f"    {name}_desc = tl.make_tensor_descriptor({name}, {of})\n" for name, of in NAMES.items())
IN_THE_KERNEL = (
    ON_THE_HOST.replace("kernel(a_desc, b_desc, c_desc, N", "kernel(a, b, c, M, N")
    .replace("    n_tiles =", f"{MADE}    n_tiles =")
    .replace("[grid](a_desc, b_desc, c_desc, n", "[grid](a, b, c, m, n")
    .replace("acc = tl.dot(a, b, acc)", "acc = tl.dot(x, y, acc)")
    .replace("        a = a_desc", "        x = a_desc")
    .replace("        b = b_desc", "        y = b_desc")
)
FROM_STRIDES = {"uncoalesced-access", "loads-not-pipelined", "narrow-access"}


def found(tmp_path, source, arch):
    path = tmp_path / "gemm_tma.py"
    path.write_text(source)
    (kernel,) = inputs.read(str(path), ("--size", "1024"), arch)
    return [one for one in diagnose(kernel).findings if one.id in FROM_STRIDES]


@pytest.mark.parametrize("arch", [SM_80, GFX942], ids=lambda arch: arch.name)
def test_without_tma_a_descriptor_is_to_be_made_in_the_kernel(tmp_path, arch):
    on_the_host = found(tmp_path, ON_THE_HOST, arch)
    of_rule = {one.id for one in on_the_host}
    assert of_rule >= {"uncoalesced-access", "loads-not-pipelined"}
    assert ("narrow-access" in of_rule) == (arch is SM_80)  # AMD's machine code is not read
    assert {one.source.line for one in on_the_host} >= {18, 19}
    advice = "make the descriptor in the kernel, with tl.make_tensor_descriptor and a last stride of 1"
    assert {one.advice.partition(", and launch with num_stages=2: 3 stages")[0] for one in on_the_host} == {advice}
    assert found(tmp_path, IN_THE_KERNEL, arch) == []


def test_with_tma_a_descriptor_may_be_made_anywhere(tmp_path):
    assert found(tmp_path, ON_THE_HOST, SM_90A) == []


INDEXED = """
import triton, triton.language as tl

@triton.jit
def sums(x, out, m, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((1, BLOCK), tl.float32)
    MADE
    for start in range(0, n, BLOCK):
        total += LOADED
    tl.store(out + tl.arange(0, BLOCK)[None, :], total)
"""
WAYS = {
    "index": ("pass", "tl.load(x + (start + tl.arange(0, BLOCK)[None, :]).to(tl.int64) * 3)"),
    "block pointer": (
        "p = tl.make_block_ptr(x, (m, n), (n, 1), (row, 0), (1, BLOCK), (1, 0))",
        "tl.load(tl.advance(p, (0, start)), boundary_check=(0, 1))",
    ),
    "tensor descriptor": ("p = tl.make_tensor_descriptor(x, (m, n), (n, 1), (1, BLOCK))", "p.load((row, start))"),
}


@pytest.mark.parametrize("arch", [SM_80, GFX942, SM_90A], ids=lambda arch: arch.name)
@pytest.mark.parametrize("way", WAYS)
def test_indices_of_64_bits_have_the_advice_of_what_computes_them(tmp_path, arch, way):
    made, loaded = WAYS[way]
    (tmp_path / "sums.py").write_text(INDEXED.replace("MADE", made).replace("LOADED", loaded))
    (kernel,) = inputs.read(
        f"{tmp_path}/sums.py:sums", (), arch, signature="*fp32,*fp32,i32:16,i32:16", constexprs=("BLOCK=1024",)
    )
    advice = [one.advice for one in diagnose(kernel).findings if one.id == "int64-index"]
    here = "compute the tile's first address once before the loop, in 64 bits, and the offsets in the loop in 32 bits"
    pointers = f"instead of the {way} use pointers and masks, with 32-bit offsets"
    descriptor = f"instead of the {way} use tl.make_tensor_descriptor, whose indices have 32 bits"
    with_tma = {"index": [here], "block pointer": [descriptor], "tensor descriptor": []}
    assert advice == (with_tma[way] if arch is SM_90A else [here if way == "index" else pointers])


def test_the_parts_of_descriptors_are_found_by_their_types():
    parts = {
        "x": "!tt.ptr<f32>", "n": "i64", "s": "i64",
        "a": "!tt.ptr<bf16>", "a0": "i64", "a1": "i64", "a2": "i64", "a3": "i64", "a4": "i1", "a5": "i32", "a6": "i32",
        "a7": "i64", "a8": "i64",
        "b": "!tt.ptr<bf16>", "b0": "i64", "b1": "i64", "b2": "i1", "b3": "i1", "b4": "i32", "b5": "i64",
        "m": "i32",
    }  # fmt: skip
    written = ", ".join(f"%{name}: {kind}" for name, kind in parts.items())
    text = f"module {{\n  tt.func public @k({written}) attributes {{noinline = false}} {{\n    tt.return\n  }}\n}}\n"
    assert inner_strides(Module(text)) == {"a3": "a", "b1": "b"}
