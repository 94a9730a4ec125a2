"""Work that several CTAs, or several gathers of a row, do again: named where it pays to do it once, else silence."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import FAILED, diagnose

pytestmark = pytest.mark.kernels

HEAD = """
import torch, triton, triton.language as tl

"""
NORM_LINEAR = """
@triton.jit
def ln_linear(x_ptr, w_ptr, y_ptr, M, N,
        K, eps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    first = pid // (GROUP * tiles_n) * GROUP
    size = min(tiles_m - first, GROUP)
    pm = first + pid % (GROUP * tiles_n) % size
    pn = pid % (GROUP * tiles_n) // size
    rm = pm * BM + tl.arange(0, BM)
    rn = pn * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    s = tl.zeros((BM,), tl.float32)
    q = tl.zeros((BM,), tl.float32)
    x_ptrs = x_ptr + rm[:, None] * K + rk[None, :]
    for k in range(0, K, BK):
        x = tl.load(x_ptrs, mask=rm[:, None] < M, other=0.0).to(tl.float32)
        s += tl.sum(x, axis=1)
        q += tl.sum(x * x, axis=1)
        x_ptrs += BK
    mean = s / K
    rstd = tl.rsqrt(q / K - mean * mean + eps)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(x_ptr + rm[:, None] * K + (k + rk)[None, :])
        w = tl.load(w_ptr + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(((x.to(tl.float32) - mean[:, None]) * rstd[:, None]).to(tl.bfloat16), w, acc)
    tl.store(y_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))

x = torch.randn(4096, 2048, device="cuda", dtype=torch.bfloat16)
w = torch.randn(2048, 4096, device="cuda", dtype=torch.bfloat16)
y = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
ln_linear[(32 * 32,)](x, w, y, 4096, 4096, 2048, 1e-5, BM=128, BN=128, BK=64, GROUP=8, num_warps=8, num_stages=3)
"""
SOFTMAX = """
@triton.jit
def softmax_tiles(x_ptr, y_ptr, n, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    for k in range(0, N, BLOCK):
        top = tl.maximum(top, tl.load(x_ptr + row * n + k + at))
    m = tl.max(top, axis=0)
    total = tl.zeros((BLOCK,), tl.float32)
    for k in range(0, N, BLOCK):
        total += tl.exp(tl.load(x_ptr + row * n + k + at) - m)
    cols = tl.program_id(1) * BLOCK + at
    tl.store(y_ptr + row * n + cols, tl.exp(tl.load(x_ptr + row * n + cols) - m) / tl.sum(total, axis=0))

x = torch.randn(2048, 16384, device="cuda")
y = torch.empty_like(x)
softmax_tiles[(2048, 16)](x, y, 16384, N=16384, BLOCK=1024)
"""
GLOBAL = """
@triton.jit
def quantise(x_ptr, y_ptr, N: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    top = 0.0
    for k in range(0, N, BLOCK):
        top = tl.maximum(top, tl.max(tl.abs(tl.load(x_ptr + k + at)), axis=0))
    mine = tl.program_id(0) * BLOCK + at
    tl.store(y_ptr + mine, (tl.load(x_ptr + mine) * (127.0 / top)).to(tl.int8))

x = torch.randn(1 << 20, device="cuda")
y = torch.empty(1 << 20, device="cuda", dtype=torch.int8)
quantise[(512,)](x, y, N=1 << 20, BLOCK=2048)
"""
QUANTISED = """
@triton.jit
def quant_gemm(x_ptr, w_ptr, y_ptr, N, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(1) * BM + tl.arange(0, BM)
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(x_ptr + rm[:, None] * K + (k + rk)[None, :]).to(tl.float32)
        scale = tl.max(tl.abs(x), axis=1) / 448.0
        w = tl.load(w_ptr + rn[None, :] * K + (k + rk)[:, None])
        acc += tl.dot((x / scale[:, None]).to(tl.float8e4nv), w) * scale[:, None]
    tl.store(y_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))

x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
w = torch.randn(4096, 4096, device="cuda").to(torch.float8_e4m3fn)
y = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
quant_gemm[(32, 32)](x, w, y, 4096, K=4096, BM=128, BN=128, BK=128, num_warps=8)
"""
PARTIALS = """
@triton.jit
def scale_by_partials(x_ptr, partial_ptr, y_ptr, P: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.sum(tl.load(partial_ptr + tl.arange(0, P)), axis=0)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + at, tl.load(x_ptr + at) * tl.rsqrt(total))

x = torch.randn(1 << 24, device="cuda")
p = torch.randn(256, device="cuda")
scale_by_partials[((1 << 24) // 4096,)](x, p, torch.empty_like(x), P=256, BLOCK=4096)
"""
PREFIX = """
@triton.jit
def offsets(count_ptr, x_ptr, y_ptr, P: tl.constexpr, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    at = tl.arange(0, P)
    before = tl.sum(tl.load(count_ptr + at, mask=at < pid, other=0), axis=0)
    mine = pid * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + before + tl.arange(0, BLOCK), tl.load(x_ptr + mine))

c = torch.zeros(8192, device="cuda", dtype=torch.int32)
x = torch.randn(8192 * 128, device="cuda")
offsets[(8192,)](c, x, torch.empty_like(x), P=8192, BLOCK=128)
"""
PERSISTENT = """
@triton.jit
def persistent_norm(x_ptr, y_ptr, rows, N: tl.constexpr):
    c = tl.arange(0, N)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        x = tl.load(x_ptr + row * N + c)
        tl.store(y_ptr + row * N + c, x * tl.rsqrt(tl.sum(x * x, axis=0) / N))

x = torch.randn(8192, 4096, device="cuda")
persistent_norm[(132,)](x, torch.empty_like(x), 8192, N=4096)
"""
SAGE = """
@triton.jit
def sage(x_ptr, w_ptr, index_ptr, out_ptr, DEGREE: tl.constexpr,
        C: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr, BK: tl.constexpr, BN: tl.constexpr):
    pid = tl.program_id(0)
    node = pid // (OUT // BN) * BLOCK + tl.arange(0, BLOCK)
    o = pid % (OUT // BN) * BN + tl.arange(0, BN)
    acc = tl.zeros((BLOCK, BN), tl.float32)
    for n in range(DEGREE):
        other = tl.load(index_ptr + node * DEGREE + n)
        for k in range(0, C, BK):
            c = k + tl.arange(0, BK)
            x = tl.load(x_ptr + other[:, None] * C + c[None, :]).to(tl.bfloat16)
            w = tl.load(w_ptr + c[:, None] * OUT + o[None, :])
            acc = tl.dot(x, w, acc)
    tl.store(out_ptr + node[:, None] * OUT + o[None, :], acc)

x = torch.randn(65536, 128, device="cuda")
w = torch.randn(128, 128, device="cuda", dtype=torch.bfloat16)
i = torch.randint(0, 65536, (65536, 16), device="cuda", dtype=torch.int32)
sage[(1024,)](x, w, i, torch.empty(65536, 128, device="cuda"), DEGREE=16, C=128, OUT=128, BLOCK=64, BK=64, BN=128)
"""
EDGES = """
@triton.jit
def edge_scores(x_ptr, w_ptr, src_ptr, dst_ptr, out_ptr, C: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr):
    edge = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c, o = tl.arange(0, C), tl.arange(0, OUT)
    src, dst = tl.load(src_ptr + edge), tl.load(dst_ptr + edge)
    both = tl.load(x_ptr + src[:, None] * C + c[None, :]) + tl.load(x_ptr + dst[:, None] * C + c[None, :])
    w = tl.load(w_ptr + o[:, None] * C + c[None, :])
    h = tl.dot(w, tl.trans(both))
    tl.store(out_ptr + edge, tl.sum(tl.maximum(h, 0.0), axis=0))

x = torch.randn(20000, 256, device="cuda", dtype=torch.float16)
w = torch.randn(128, 256, device="cuda", dtype=torch.float16)
s = torch.randint(0, 20000, (1 << 20,), device="cuda")
d = torch.randint(0, 20000, (1 << 20,), device="cuda")
edge_scores[((1 << 20) // 64,)](x, w, s, d, torch.empty(1 << 20, device="cuda"), C=256, OUT=128, BLOCK=64)
"""
EDGES_WITH_ROWS = (
    EDGES.replace("src, dst = tl.load(src_ptr + edge), tl.load(dst_ptr + edge)", "src = tl.load(src_ptr + edge)")
    .replace("x_ptr + dst[", "dst_ptr + edge[")
    .replace('d = torch.randint(0, 20000, (1 << 20,), device="cuda")', "d = torch.randn(1 << 20, 256).to(x)")
)
MOE = """
@triton.jit
def moe(x_ptr, w_ptr, token_ptr, expert_ptr, out_ptr,
        N, C: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    at = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    token = tl.load(token_ptr + at)
    expert = tl.load(expert_ptr + tl.program_id(0))
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, C, BK):
        c = k + tl.arange(0, BK)
        x = tl.load(x_ptr + token[:, None] * C + c[None, :])
        w = tl.load(w_ptr + expert * C * N + c[:, None] * N + rn[None, :])
        acc = tl.dot(x, w, acc)
    tl.store(out_ptr + at[:, None] * N + rn[None, :], acc.to(tl.bfloat16))

x = torch.randn(4096, 1024, device="cuda", dtype=torch.bfloat16)
w = torch.randn(16, 1024, 2048, device="cuda", dtype=torch.bfloat16)
t = torch.randint(0, 4096, (16384,), device="cuda", dtype=torch.int32)
e = torch.randint(0, 16, (128,), device="cuda", dtype=torch.int32)
moe[(128, 16)](x, w, t, e, torch.empty(16384, 2048, device="cuda", dtype=torch.bfloat16), 2048, C=1024, BM=128,
    BN=128, BK=64, num_warps=8)
"""


def found(folder, source, rule):
    """The finding of a rule on a script; None without one."""
    script = folder / "script.py"
    script.write_text(HEAD + source)
    (kernel,) = inputs.read(str(script), (), SM_90A)
    diagnosis = diagnose(kernel)
    assert not [name for name, why in diagnosis.skipped.items() if FAILED in why]
    return next((one for one in diagnosis.findings if one.id == rule), None)


@pytest.mark.parametrize(
    ("source", "times", "severity", "where"),
    [
        (NORM_LINEAR, 32, "medium", "for k in range(0, K, BK):"),
        (SOFTMAX, 16, "high", "for k in range(0, N, BLOCK):"),
        (GLOBAL, 512, "high", "for k in range(0, N, BLOCK):"),
        (QUANTISED, 32, "medium", "scale = tl.max(tl.abs(x), axis=1) / 448.0"),
    ],
)
def test_reductions_that_many_ctas_repeat(tmp_path, source, times, severity, where):
    finding = found(tmp_path, source, "statistics-per-tile")
    assert (finding.evidence["repeated"], finding.severity) == (times, severity)
    assert (HEAD + source).splitlines()[finding.source.line - 1].strip() == where
    assert ("accumulator" in finding.advice) == ("tl.dot" in source)
    assert finding.estimate.low <= finding.estimate.speedup <= finding.estimate.high


@pytest.mark.parametrize(
    "source",
    [
        SOFTMAX.replace("[(2048, 16)]", "[(2048, 1)]"),  # one CTA along the axis
        SOFTMAX.replace("x_ptr + row * n + k + at", "x_ptr + (tl.program_id(1) * 2048 + row) * n + k + at"),
        GLOBAL.replace("x_ptr + k + at", "x_ptr + k + at, mask=k + at > tl.program_id(0), other=0.0"),
        GLOBAL.replace("N=1 << 20", "N=2048"),  # a few partial results
        QUANTISED.replace("](x, w, y,", "](x, w, x,"),  # another CTA may store the numbers first
        PARTIALS,
        PREFIX,
        PERSISTENT,
    ],
)
def test_reductions_of_each_cta_s_own_numbers_or_of_few(tmp_path, source):
    assert found(tmp_path, source, "statistics-per-tile") is None


@pytest.mark.parametrize(
    ("source", "ratio"),
    [
        (SAGE, 16),
        (EDGES, 52.4288),
        (EDGES.replace("] + tl.load(x_ptr + dst", "] - tl.load(x_ptr + dst"), 52.4288),
    ],
)
def test_rows_that_are_gathered_and_multiplied_again(tmp_path, source, ratio):
    finding = found(tmp_path, source, "project-per-edge")
    assert (finding.evidence["ratio"], finding.severity) == (ratio, "high")
    assert "x_ptr by w_ptr once" in finding.advice
    assert 1.5 <= finding.estimate.speedup <= ratio
    assert finding.estimate.low <= finding.estimate.speedup <= finding.estimate.high <= 16
    assert ("sums or differences" in finding.advice) == (source is not SAGE)


@pytest.mark.parametrize(
    "source",
    [
        EDGES.replace("tl.trans(both)", "tl.trans(tl.maximum(both, 0.0).to(tl.float16))"),  # not linear
        EDGES.replace("1 << 20", "1 << 14"),  # fewer edges than nodes
        EDGES_WITH_ROWS,
        EDGES.replace("tl.load(src_ptr + edge), tl.load(dst_ptr + edge)", "edge, edge + 1"),  # no gather
        MOE,
    ],
)
def test_rows_that_are_multiplied_once_or_by_other_matrices(tmp_path, source):
    assert found(tmp_path, source, "project-per-edge") is None


def test_an_mma_in_parts_is_as_deep_as_it_was_written(tmp_path):
    assert found(tmp_path, NORM_LINEAR, "small-tile") is None
    assert found(tmp_path, NORM_LINEAR.replace("BK=64", "BK=16"), "small-tile").evidence["depth"] == 16
