"""Work that is thrown away or done the long way: of each fault its neighbours, where the same line is right."""

import pytest

from kperf.arch import SM_80, SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose

pytestmark = pytest.mark.kernels


def found(folder, source, signature, *constexprs, arch=SM_90A, **options):
    """The first finding of each rule of a function, compiled by its signature."""
    path = folder / "kernel.py"
    path.write_text(f"import triton, triton.language as tl\n\n@triton.jit\n{source.strip()}\n")
    name = source.partition("def ")[2].partition("(")[0]
    (kernel,) = inputs.read(
        f"{path}:{name}", (), arch, signature=signature, constexprs=constexprs, options={"num_warps": 4} | options
    )
    return {one.id: one for one in reversed(diagnose(kernel).findings)}


SCATTER = """
def scatter(x, index, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out + WHERE, tl.load(x + i), mask=i < n)
"""


@pytest.mark.parametrize(
    ("index", "where", "bins"),
    [
        ("*i32", "(tl.load(index + i) & 255)", 256),
        ("*i32", "(tl.load(index + i) % 10)", 10),
        ("*u8", "tl.load(index + i).to(tl.int32)", 256),
        ("*i32", "tl.load(index + i)", None),
    ],
)
def test_bins_that_the_index_leaves_are_few(tmp_path, index, where, bins):
    source = SCATTER.replace("WHERE", where)
    one = found(tmp_path, source, f"*fp32,{index},*fp32,i32:16", "B=1024").get("atomic-contention")
    assert (one and one.severity) == (bins and "medium")
    if one is not None:
        assert 0.9 * bins <= one.evidence["addresses"] <= bins


BYTES = """
def product(a, b, c, sa, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :])
        y = tl.load(b + rn[None, :] * K + rk[:, None])
        acc += tl.dot(LEFT, RIGHT)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)
"""
WIDE = ("x.to(tl.bfloat16)", "y.to(tl.bfloat16)")


@pytest.mark.parametrize(
    ("types", "operands", "arch", "rate"),
    [
        ("*fp8e4nv,*fp8e4nv", WIDE, SM_90A, 2.0),
        ("*fp8e5,*fp8e5", ("x.to(tl.float32)", "y.to(tl.float32)"), SM_90A, 4.0),
        ("*i8,*i8", WIDE, SM_90A, 2.0),
        ("*fp8e5,*fp8e5", ("x.to(tl.float16)", "y.to(tl.float16)"), SM_80, None),
        ("*bf16,*fp8e4nv", ("x", WIDE[1]), SM_90A, None),
        ("*fp8e4nv,*fp8e4nv", ("(x.to(tl.bfloat16) * tl.load(sa + rk)).to(tl.bfloat16)", WIDE[1]), SM_90A, None),
        ("*fp8e4nv,*fp8e4nv", ("x", "y"), SM_90A, None),
    ],
)
def test_bytes_are_multiplied_as_such_where_the_gpu_can(tmp_path, types, operands, arch, rate):
    source = BYTES.replace("LEFT", operands[0]).replace("RIGHT", operands[1])
    signature = f"{types},*fp32,*bf16,i32:16,i32:16,i32:16"
    one = found(tmp_path, source, signature, "BM=128", "BN=128", "BK=64", arch=arch, num_warps=8, num_stages=2)
    finding = one.get("widened-operands")
    assert (finding and finding.evidence["rate"]) == rate
    if finding is not None:
        assert (finding.severity, finding.source.line) == ("medium", 11)
