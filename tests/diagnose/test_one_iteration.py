"""A loop that runs once in the launch has no next iteration, and sums up all that there is."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from tests.diagnose.test_more_warps import GEMM

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

PRODUCT = GEMM.replace("4096, 4096, 4096, 128", "4096, 4096, COUNT, 128").replace("DTYPE", "torch.bfloat16")
PRODUCT = PRODUCT.replace("DEPTH", "16").replace("OPTIONS", "num_warps=8")


@pytest.mark.parametrize(
    ("source", "once", "often", "rule"), [(PAGES, 32, 512, "loads-not-pipelined"), (PRODUCT, 16, 4096, "small-tile")]
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
