"""A loop that runs once in the launch has no next iteration, and sums up all that there is."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose

HEAD = "import torch, triton, triton.language as tl\n"

PAGES = """
@triton.jit
def gather(table, pool, out, pages, PAGES: tl.constexpr, D: tl.constexpr):
    total = tl.zeros((PAGES, D), tl.float32)
    for first in range(0, pages, PAGES):
        page = tl.load(table + tl.program_id(0) * pages + first + tl.arange(0, PAGES))
        total += tl.load(pool + page[:, None] * D + tl.arange(0, D)[None, :])
    tl.store(out + tl.program_id(0) * D + tl.arange(0, D), tl.sum(total, 0))

pool = torch.empty(4096, 128, device="cuda", dtype=torch.bfloat16)
table = torch.zeros(1024, COUNT, device="cuda", dtype=torch.int32)
gather[(1024,)](table, pool, torch.empty(1024, 128, device="cuda"), COUNT, 32, 128)
"""

GEMM = """
@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))

a = torch.empty(8192, COUNT, device="cuda", dtype=torch.bfloat16)
b = torch.empty(COUNT, 8192, device="cuda", dtype=torch.bfloat16)
c = torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16)
gemm[(64, 64)](a, b, c, 8192, 8192, COUNT, 128, 128, 16, num_warps=8)
"""


@pytest.mark.parametrize(
    ("source", "once", "often", "rule"), [(PAGES, 32, 512, "loads-not-pipelined"), (GEMM, 16, 4096, "small-tile")]
)
def test_a_loop_that_runs_once_has_no_next_iteration(tmp_path, source, once, often, rule):
    found = []
    for count in (once, often):
        script = tmp_path / f"of_{count}.py"
        script.write_text(HEAD + source.replace("COUNT", str(count)))
        (kernel,) = inputs.read(str(script), (), SM_90A)
        found.append({finding.id for finding in diagnose(kernel).findings})
    assert rule not in found[0]
    assert rule in found[1]
