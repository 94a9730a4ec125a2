"""Kernels that look like a fault's, in which what a rule would advise is wrong, or does not compile."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose

HEAD = "import torch, triton, triton.language as tl\n"

SHIFTED = """
@triton.jit
def shifted(x, y, n, B: tl.constexpr):
    base, c = tl.program_id(0) * (n + B), tl.arange(0, B)
    for i in range(0, n, B):
        tl.store(x + base + i + c, tl.exp(tl.load(y + base + i + c)))
    for i in range(0, n, B):
        v = tl.load(x + base + i + c)
        tl.store(x + base + i + TO + c, v * 2)

x, y = torch.empty(1024 * 9216, device="cuda"), torch.empty(1024 * 9216, device="cuda")
shifted[(1024,)](x, y, 8192, 1024)
"""

NEVER = """
@triton.jit
def never(a, b, c, lengths, M, N, K, T, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    k = tl.arange(0, BK)
    for t in range(T):
        acc = tl.zeros((BM, BN), tl.float32)
        for s in range(0, tl.load(lengths + t), BK):
            x = tl.load(a + m[:, None] * K + s + k[None, :])
            acc = tl.dot(x, tl.load(b + n[None, :] * K + s + k[:, None]).to(tl.bfloat16), acc)
        tl.store(c + t * M * N + m[:, None] * N + n[None, :], acc)

a = torch.empty(8192, 4096, device="cuda", dtype=torch.bfloat16)
b, c = torch.empty(8192, 4096, device="cuda"), torch.empty(8192, 8192, device="cuda")
lengths = torch.zeros(16, device="cuda", dtype=torch.int32)
never[(64, 128)](a, b, c, lengths, 8192, 8192, 4096, 0, 128, 64, 64, num_warps=4, num_stages=1)
"""

ROWS = """
@triton.jit
def rows(x, y, stride, BLOCK: tl.constexpr):
    at = tl.program_id(0) * stride + tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * 2)

x = torch.empty(65536, 384, device="cuda", dtype=torch.float16)
rows[(65536, 3)](x, torch.empty_like(x), 384, 128, num_warps=1)
"""

TRIANGLE = """
@triton.jit
def triangle(x, y, B: tl.constexpr):
    r, c = tl.arange(0, B)[:, None], tl.arange(0, B)[None, :]
    at = tl.program_id(0) * B * B + r * B + c
    v = tl.load(x + at, mask=MASK, other=0.0)
    v = tl.exp(tl.sin(v)) / (1 + tl.exp(v)) + tl.cos(v * v)
    v = tl.exp(tl.sin(v)) / (1 + tl.exp(v)) + tl.cos(v * v)
    tl.store(y + at, v, mask=MASK)

x = torch.empty(4096, 64, 64, device="cuda")
triangle[(4096,)](x, torch.empty_like(x), 64)
"""

FIRST_CTAS = """
@triton.jit
def first(a, b, c, N, K, FIRST, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    r, n, k = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    m = tl.program_id(0) * BM + r
    acc = tl.zeros((BM, BN), tl.float32)
    for s in range(0, K, BK):
        x = tl.load(a + m[:, None] * K + s + k[None, :])
        acc = tl.dot(x, tl.load(b + n[None, :] * K + s + k[:, None]), acc)
    keep = tl.where(tl.program_id(0) < FIRST, BM, 16)
    tl.store(c + m[:, None] * N + n[None, :], acc, mask=(r < keep)[:, None] & (n < N)[None, :])

a = torch.empty(65536, 1024, device="cuda", dtype=torch.bfloat16)
b = torch.empty(128, 1024, device="cuda", dtype=torch.bfloat16)
first[(1024,)](a, b, torch.empty(65536, 128, device="cuda"), 128, 1024, COUNT, 64, 128, 64, num_stages=3)
"""

GUARDED = """
@triton.jit
def guarded(x, y, out, n, B: tl.constexpr):
    found, c = 0, tl.arange(0, B)
    for i in range(0, n, B):
        found += tl.sum(tl.load(x + i + c))
    if found > 0:
        tl.store(out + tl.program_id(0) * B + c, tl.load(y + tl.program_id(0) * B + c))

x = torch.empty(4096, device="cuda", dtype=torch.int32)
y = torch.empty(4096 * 1024, device="cuda")
guarded[(4096,)](x, y, torch.empty_like(y), 4096, 1024)
"""


def read(folder, source):
    script = folder / "script.py"
    script.write_text(HEAD + source)
    (kernel,) = inputs.read(str(script), (), SM_90A)
    return kernel


def found(folder, source):
    """Findings by rule; no rule failed."""
    diagnosis = diagnose(read(folder, source))
    assert not [why for why in diagnosis.skipped.values() if "failed" in why]
    return {finding.id: finding for finding in diagnosis.findings}


@pytest.mark.parametrize(("to", "said"), [("B", False), ("0", True)])
def test_a_load_that_has_what_the_iteration_before_stored_stays(tmp_path, to, said):
    one = found(tmp_path, SHIFTED.replace("TO", to)).get("redundant-load")
    assert (one is not None and "stored it" in one.message) == said


def test_a_loop_that_never_runs_fails_no_rule(tmp_path):
    one = found(tmp_path, NEVER)["loads-not-pipelined"]
    assert one.estimate.low <= one.estimate.speedup <= one.estimate.high


def test_a_larger_block_is_a_power_of_two(tmp_path):
    assert "(BLOCK=256, and several rows)" in found(tmp_path, ROWS)["program-per-item"].advice


@pytest.mark.parametrize(("mask", "said"), [("c < r", False), ("c % 2 == 0", False), ("(r < 16) & (c < 64)", True)])
def test_a_smaller_tile_is_for_masks_that_keep_its_beginning(tmp_path, mask, said):
    one = found(tmp_path, TRIANGLE.replace("MASK", mask)).get("idle-threads")
    assert (one is not None and "choose a tile of" in one.advice) == said


@pytest.mark.parametrize(("count", "said"), [(4, False), (0, True)])
def test_rows_that_only_the_first_ctas_store_are_no_padding(tmp_path, count, said):
    assert ("padded-tile" in found(tmp_path, FIRST_CTAS.replace("COUNT", str(count)))) == said


def test_a_branch_on_what_a_loop_gives_may_be_taken(tmp_path):
    kernel = read(tmp_path, GUARDED)
    assert [kernel.is_left_out(op) for op in kernel.named("tt.load", "tt.store")] == [False, False, False]
