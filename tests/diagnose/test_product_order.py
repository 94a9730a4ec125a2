"""Products of three matrices in the order that takes more operations, and those that no other order can compute."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import FAILED, diagnose

pytestmark = pytest.mark.kernels

HEAD = """
import torch, triton, triton.language as tl

"""
LINEAR = """
@triton.jit
def linear(q_ptr, k_ptr, v_ptr, o_ptr, N, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    pid = tl.program_id(0)
    tiles = tl.cdiv(N, BM)
    head = pid // tiles
    rm = pid % tiles * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    rd = tl.arange(0, D)
    q = tl.load(q_ptr + head * N * D + rm[:, None] * D + rd[None, :], mask=rm[:, None] < N, other=0.0)
    k_ptrs = k_ptr + head // 4 * N * D + rn[:, None] * D + rd[None, :]
    v_ptrs = v_ptr + head // 4 * N * D + rn[:, None] * D + rd[None, :]
    acc = tl.zeros((D, BM), tl.float32)
    for n in range(0, N, BN):
        k = tl.load(k_ptrs, mask=(n + rn)[:, None] < N, other=0.0)
        v = tl.load(v_ptrs, mask=(n + rn)[:, None] < N, other=0.0)
        s = tl.dot(k, tl.trans(q)) * scale
        s = tl.where((n + rn)[:, None] < N, s, 0.0)
        acc = tl.dot(tl.trans(v), s.to(tl.bfloat16), acc)
        k_ptrs += BN * D
        v_ptrs += BN * D
    tl.store(o_ptr + head * N * D + rm[:, None] * D + rd[None, :], tl.trans(acc).to(tl.bfloat16), mask=rm[:, None] < N)

q = torch.randn(32, 4096, 64, device="cuda", dtype=torch.bfloat16)
k = torch.randn(8, 4096, 64, device="cuda", dtype=torch.bfloat16)
v, o = torch.randn_like(k), torch.empty_like(q)
linear[(32 * 32,)](q, k, v, o, 4096, 0.125, D=64, BM=128, BN=64, num_warps=4)
"""
LOW_RANK = """
@triton.jit
def low_rank(x_ptr, a_ptr, b_ptr, y_ptr, K, N, R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rr = tl.arange(0, R)
    rk = tl.arange(0, BK)
    b = tl.load(b_ptr + rr[:, None] * N + rn[None, :])
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(x_ptr + rm[:, None] * K + (k + rk)[None, :])
        a = tl.load(a_ptr + (k + rk)[:, None] * R + rr[None, :])
        w = tl.dot(a, b).to(tl.float16)
        acc = tl.dot(x, w, acc)
    tl.store(y_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float16))

x = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
a = torch.randn(4096, 64, device="cuda", dtype=torch.float16)
b = torch.randn(64, 4096, device="cuda", dtype=torch.float16)
y = torch.empty(4096, 4096, device="cuda", dtype=torch.float16)
low_rank[(32, 32)](x, a, b, y, 4096, 4096, R=64, BM=128, BN=128, BK=64, num_warps=8)
"""
WIDE_HEADS = """
@triton.jit
def wide_heads(q_ptr, k_ptr, v_ptr, o_ptr, N: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
        BD: tl.constexpr):
    base = tl.program_id(1) * N * D
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rv = tl.arange(0, BD) + tl.program_id(2) * BD
    acc = tl.zeros((BM, BD), tl.float32)
    for n in range(0, N, BN):
        rn = n + tl.arange(0, BN)
        s = tl.zeros((BM, BN), tl.float32)
        for d in range(0, D, BD):
            rd = d + tl.arange(0, BD)
            q = tl.load(q_ptr + base + rm[:, None] * D + rd[None, :])
            k = tl.load(k_ptr + base + rn[None, :] * D + rd[:, None])
            s = tl.dot(q, k, s)
        v = tl.load(v_ptr + base + rn[:, None] * D + rv[None, :])
        acc = tl.dot((s / N).to(tl.bfloat16), v, acc)
    tl.store(o_ptr + base + rm[:, None] * D + rv[None, :], acc.to(tl.bfloat16))

q = torch.randn(16, 8192, 256, device="cuda", dtype=torch.bfloat16)
k, v, o = torch.randn_like(q), torch.randn_like(q), torch.empty_like(q)
wide_heads[(64, 16, 4)](q, k, v, o, N=8192, D=256, BM=128, BN=64, BD=64, num_warps=8)
"""
DESCRIBED = """
@triton.jit
def described(q_desc, k_desc, v_desc, o_desc, N, BM: tl.constexpr, BN: tl.constexpr):
    head = tl.program_id(1)
    q = q_desc.load([head * N + tl.program_id(0) * BM, 0])
    acc = tl.zeros((BM, 64), tl.float32)
    for n in tl.range(0, N, BN):
        k = k_desc.load([head * N + n, 0])
        v = v_desc.load([head * N + n, 0])
        s = tl.dot(q, k.T)
        acc = tl.dot(s.to(tl.bfloat16), v, acc)
    o_desc.store([head * N + tl.program_id(0) * BM, 0], acc.to(tl.bfloat16))

from triton.tools.tensor_descriptor import TensorDescriptor
q = torch.randn(16 * 8192, 64, device="cuda", dtype=torch.bfloat16)
k, v, o = torch.randn_like(q), torch.randn_like(q), torch.empty_like(q)
t = lambda x: TensorDescriptor.from_tensor(x, [128, 64])
described[(64, 16)](t(q), t(k), t(v), t(o), 8192, BM=128, BN=128, num_warps=8)
"""
TURNED = (
    LINEAR.replace("tl.dot(tl.trans(v), s.to(tl.bfloat16), acc)", "tl.dot(tl.trans(s.to(tl.bfloat16)), v, acc)")
    .replace("acc = tl.zeros((D, BM)", "acc = tl.zeros((BM, D)")
    .replace("tl.trans(acc)", "acc")
)
MASK = "        s = tl.where((n + rn)[:, None] < N, s, 0.0)\n"
SHORT = LINEAR.replace("4096", "64").replace("[(32 * 32,)]", "[(32,)]").replace("BM=128", "BM=64")


def found(tmp_path, source):
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + source)
    kernel, *_ = inputs.read(str(path), (), SM_90A)
    diagnosis = diagnose(kernel)
    assert not [rule for rule, why in diagnosis.skipped.items() if FAILED in why]
    return next((finding for finding in diagnosis.findings if finding.id == "product-order"), None)


@pytest.mark.parametrize(
    ("source", "length", "pairs", "ratio", "where", "tensors"),
    [
        (LINEAR, 4096, 8, 102.4, "s = tl.dot(k, tl.trans(q)) * scale", "k_ptr and v_ptr"),
        (LINEAR.replace("* scale", "* tl.load(o_ptr + n).to(tl.float32)"), 4096, 8, 102.4, "s = ", "k_ptr and v_ptr"),
        (
            LINEAR.replace("        acc = tl.dot(", "        total += tl.sum(s, 0)\n        acc = tl.dot(")
            .replace("    acc = tl.zeros", "    total = tl.zeros((BM,), tl.float32)\n    acc = tl.zeros", 1)
            .replace("tl.trans(acc)", "tl.trans(acc / total[None, :])"),
            4096,
            8,
            102.4,
            "s = ",
            "k_ptr and v_ptr",
        ),
        (LINEAR.replace("head // 4", "head"), 4096, 32, 64.0, "s = ", "k_ptr and v_ptr"),
        (TURNED, 4096, 8, 102.4, "s = ", "k_ptr and v_ptr"),
        (LOW_RANK, 4096, 32, 48.0, "w = tl.dot(a, b)", "a_ptr and x_ptr"),
        (WIDE_HEADS, 8192, 64, 80.0, "s = tl.dot(q, k, s)", "k_ptr and v_ptr"),
        (DESCRIBED, 8192, 16, 128.0, "s = tl.dot(q, k.T)", "k_desc and v_desc"),
    ],
)
def test_the_order_of_products_that_takes_more_operations(tmp_path, source, length, pairs, ratio, where, tensors):
    finding = found(tmp_path, source)
    evidence = finding.evidence
    assert (evidence["length"], evidence["pairs"], evidence["ratio"]) == (length, pairs, ratio)
    assert (HEAD + source).splitlines()[finding.source.line - 1].strip().startswith(where)
    assert f"multiply {tensors} first" in finding.advice
    assert finding.severity == "high"
    assert 1.5 <= finding.estimate.speedup <= ratio


@pytest.mark.parametrize(
    "source",
    [
        LINEAR.replace(MASK, "        s = tl.maximum(s, 0.0)\n"),
        LINEAR.replace(MASK, "        s = tl.exp2(s)\n"),
        LINEAR.replace(MASK, "        s = s * s\n"),
        LINEAR.replace(MASK, MASK.replace("0.0", "1.0")),  # adds a constant
        LINEAR.replace(MASK, MASK.replace("< N", "<= rm[None, :]")),  # causal
        LINEAR.replace(MASK, "        s = tl.where(rm[None, :] >= n, s, 0.0)\n"),  # the same, for whole tiles
        LINEAR.replace(MASK, "        s *= tl.exp2(-scale * tl.abs((n + rn)[:, None] - rm[None, :]).to(tl.float32))\n"),
        LINEAR.replace(MASK, "        tl.store(o_ptr + (n + rn)[:, None] * N + rm[None, :], s.to(tl.bfloat16))\n"),
        LINEAR.replace(", acc)", ", acc * 0.5)"),  # decays from tile to tile
        LINEAR.replace("in range(0, N, BN)", "in range(0, rm.max(0), BN)"),  # its own length in each CTA
        SHORT,
    ],
)
def test_products_that_have_no_cheaper_order(tmp_path, source):
    assert found(tmp_path, source) is None
