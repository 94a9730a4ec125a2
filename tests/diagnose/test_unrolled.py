"""Loops that `tl.static_range` unrolls: their loads are not pipelined, unless they run ahead in another way."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import FAILED, diagnose

pytestmark = pytest.mark.kernels

HEAD = """
import torch, triton, triton.language as tl

"""
GEMM = """
@triton.jit
def unrolled(a_ptr, b_ptr, c_ptr, M, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.static_range(0, K, BK):
        a = tl.load(a_ptr + rm[:, None] * K + (k + rk)[None, :])
        b = tl.load(b_ptr + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float16))

a = torch.randn(4096, 1024, device="cuda", dtype=torch.float16)
b = torch.randn(1024, 4096, device="cuda", dtype=torch.float16)
c = torch.empty(4096, 4096, device="cuda", dtype=torch.float16)
unrolled[(32, 32)](a, b, c, 4096, 4096, K=1024, BM=128, BN=128, BK=64, num_warps=8)
"""
HELPER = """
@triton.jit
def tile_of(ptr, rows, columns, stride):
    return tl.load(ptr + rows[:, None] * stride + columns[None, :])

""" + GEMM.replace("tl.load(a_ptr + rm[:, None] * K + (k + rk)[None, :])", "tile_of(a_ptr, rm, k + rk, K)").replace(
    "tl.load(b_ptr + (k + rk)[:, None] * N + rn[None, :])", "tile_of(b_ptr, k + rk, rn, N)"
)
DESCRIBED = """
@triton.jit
def described(a_desc, b_desc, c_desc, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m = tl.program_id(0) * BM
    n = tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.static_range(0, K, BK):
        a = a_desc.load([m, k])
        b = b_desc.load([k, n])
        acc = tl.dot(a, b, acc)
    c_desc.store([m, n], acc.to(tl.float16))

from triton.tools.tensor_descriptor import TensorDescriptor
a = torch.randn(4096, 1024, device="cuda", dtype=torch.float16)
b = torch.randn(1024, 4096, device="cuda", dtype=torch.float16)
c = torch.empty(4096, 4096, device="cuda", dtype=torch.float16)
t = TensorDescriptor.from_tensor
described[(32, 32)](t(a, [128, 64]), t(b, [64, 128]), t(c, [128, 128]), K=1024, BM=128, BN=128, BK=64, num_warps=8)
"""
EXPERTS = """
@triton.jit
def each_expert(x_ptr, w_ptr, y_ptr, N, D: tl.constexpr, E: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rd = tl.arange(0, D)
    x = tl.load(x_ptr + rm[:, None] * D + rd[None, :])
    for e in tl.static_range(E):
        w = tl.load(w_ptr + e * D * N + rd[:, None] * N + rn[None, :])
        y = tl.maximum(tl.dot(x, w), 0.0)
        tl.store(y_ptr + e * 4096 * N + rm[:, None] * N + rn[None, :], y.to(tl.float16))

x = torch.randn(4096, 128, device="cuda", dtype=torch.float16)
w = torch.randn(8, 128, 2048, device="cuda", dtype=torch.float16)
y = torch.empty(8, 4096, 2048, device="cuda", dtype=torch.float16)
each_expert[(8, 16)](x, w, y, 2048, D=128, E=8, BM=128, BN=128, num_warps=8)
"""
ATTENTION = """
@triton.jit
def attention(q_ptr, k_ptr, v_ptr, o_ptr, N, D: tl.constexpr, PARTS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    base = tl.program_id(1) * N * D * PARTS
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    rd = tl.arange(0, D)
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n in range(0, N, BN):
        s = tl.zeros((BM, BN), tl.float32)
        for part in tl.static_range(PARTS):
            q = tl.load(q_ptr + base + rm[:, None] * D * PARTS + (part * D + rd)[None, :])
            k = tl.load(k_ptr + base + (n + rn)[None, :] * D * PARTS + (part * D + rd)[:, None])
            s = tl.dot(q, k, s)
        v = tl.load(v_ptr + base + (n + rn)[:, None] * D + rd[None, :])
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
        shrink = tl.exp2(top - now)
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.float16), v, acc * shrink[:, None])
        top = now
    tl.store(o_ptr + base + rm[:, None] * D + rd[None, :], (acc / total[:, None]).to(tl.float16))

q = torch.randn(16, 4096, 256, device="cuda", dtype=torch.float16)
k = torch.randn_like(q)
v = torch.randn(16, 4096, 64, device="cuda", dtype=torch.float16)
o = torch.empty_like(q)
attention[(64, 16)](q, k, v, o, 4096, D=64, PARTS=4, BM=64, BN=64, num_warps=4)
"""
LOADS = """        a = tl.load(a_ptr + rm[:, None] * K + (k + rk)[None, :])
        b = tl.load(b_ptr + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(a, b, acc)
"""
AHEAD = GEMM.replace(
    LOADS,
    """        next_a = tl.load(a_ptr + rm[:, None] * K + (k + BK + rk)[None, :])
        next_b = tl.load(b_ptr + (k + BK + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(a, b, acc)
        a, b = next_a, next_b
""",
).replace(
    "    for k in",
    """    a = tl.load(a_ptr + rm[:, None] * K + rk[None, :])
    b = tl.load(b_ptr + rk[:, None] * N + rn[None, :])
    for k in""",
)
FEW_CTAS = GEMM.replace("(32, 32)", "(8, 8)")


def found(tmp_path, source):
    path = tmp_path / "kernel.py"
    path.write_text(HEAD + source)
    kernel, *_ = inputs.read(str(path), (), SM_90A)
    diagnosis = diagnose(kernel)
    assert not [rule for rule, why in diagnosis.skipped.items() if FAILED in why]
    return [finding for finding in diagnosis.findings if finding.id == "loads-not-pipelined"]


@pytest.mark.parametrize(
    ("source", "steps", "severity", "where"),
    [
        (GEMM, 16, "medium", ["a = tl.load", "b = tl.load"]),  # two CTAs on an SM
        (FEW_CTAS, 16, "high", ["a = tl.load", "b = tl.load"]),
        (GEMM.replace("1024", "256"), 4, "medium", ["a = tl.load", "b = tl.load"]),
        (HELPER, 16, "medium", ["return tl.load"]),
        (DESCRIBED, 16, "medium", ["a = a_desc.load", "b = b_desc.load"]),
        (EXPERTS, 8, "high", ["w = tl.load"]),
    ],
)
def test_an_unrolled_loop_that_waits_for_its_loads(tmp_path, source, steps, severity, where):
    findings = found(tmp_path, source)
    lines = [(HEAD + source).splitlines()[finding.source.line - 1].strip() for finding in findings]
    assert all(line.startswith(start) for line, start in zip(lines, where, strict=True))
    for finding in findings:
        assert (finding.evidence["steps"], finding.severity) == (steps, severity)
        assert "tl.static_range unrolls the loop" in finding.message
        assert "write tl.range(..., num_stages=3 (or 4))" in finding.advice
        assert finding.estimate.low <= finding.estimate.speedup <= finding.estimate.high


def test_stages_that_do_not_fit_are_not_advised(tmp_path):
    whole = FEW_CTAS.replace("BM=128, BN=128, BK=64", "BM=128, BN=256, BK=256")
    assert {finding.advice.split(":")[0] for finding in found(tmp_path, whole)} == {
        "write tl.range in place of tl.static_range, with smaller tiles, and then num_stages=3 (or 2)"
    }


@pytest.mark.parametrize(
    "source",
    [
        GEMM.replace("tl.static_range", "tl.range"),
        FEW_CTAS.replace("1024", "192"),  # three steps
        AHEAD.replace("(32, 32)", "(8, 8)"),
        FEW_CTAS.replace(
            LOADS, LOADS.replace("[:, None] * K + (k + rk)", "[:, None] * K + rk").replace("(k + rk)", "rk")
        ),
        GEMM.replace("BM=128, BN=128, BK=64, num_warps=8", "BM=64, BN=64, BK=64, num_warps=4"),  # many CTAs on an SM
        ATTENTION,  # in a loop that is pipelined
    ],
)
def test_an_unrolled_loop_that_does_not_wait(tmp_path, source):
    assert found(tmp_path, source) == []
