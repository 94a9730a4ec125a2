"""The plain kernel in Triton's interpreter on the CPU, against float32."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from unittest.mock import patch

import pytest
import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kperf.attention.kernels.attn_fwd import KV_BOX_ROWS, Q_BOX_ROWS, attn_fwd
from kperf.bench.reference import reference

# The interpreter truncates where the GPU rounds to nearest, which doubles bfloat16's error.
LIMIT = {"float16": 1e-3, "bfloat16": 8e-3}


@pytest.fixture(scope="module")
def interpreter():
    """A process that interprets: Triton decides when it is imported."""
    with (
        patch.dict(os.environ, TRITON_INTERPRET="1"),
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool,
    ):
        yield lambda *arguments: pool.submit(interpret, *arguments).result()


def interpret(shape, dtype, causal, scale, blocks, late_growth):
    """Runs in the interpreting process: (relative error of o, largest relative error of lse, all finite)."""
    batch, heads, seq_len, head_dim = shape
    rows = batch * heads * seq_len
    generator = torch.Generator().manual_seed(blocks)
    q, k, v = (torch.randn(shape, generator=generator).to(getattr(torch, dtype)) for _ in range(3))
    k[:, :, seq_len // 2 :] *= late_growth
    o = torch.full_like(q, float("nan"))
    lse = torch.full(q.shape[:3], float("nan"))
    descriptors = [
        TensorDescriptor.from_tensor(tensor.view(rows, head_dim), [box, head_dim])
        for tensor, box in ((q, Q_BOX_ROWS), (k, KV_BOX_ROWS), (v, KV_BOX_ROWS), (o, Q_BOX_ROWS))
    ]
    attn_fwd[(blocks,)](
        *descriptors, lse, scale, seq_len, rows,
        HEAD_DIM=head_dim, BLOCK_M=Q_BOX_ROWS, BLOCK_N=KV_BOX_ROWS, CAUSAL=causal, DOT_DTYPE=tl.float32,
    )  # fmt: skip
    exact_o, exact_lse = reference(q, k, v, causal, scale)
    o_error = float((o.float() - exact_o).norm() / exact_o.norm())
    return o_error, float(((lse - exact_lse) / exact_lse.abs().clamp(min=1)).abs().max()), bool(o.isfinite().all())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize(("shape", "blocks"), [((1, 2, 256, 64), 8), ((2, 1, 128, 128), 1), ((1, 3, 384, 64), 5)])
@pytest.mark.parametrize("scale", [1.0, 0.125, 0.01])
def test_o_and_lse_agree_with_float32(interpreter, shape, blocks, dtype, causal, scale):
    o_error, lse_error, finite = interpreter(shape, dtype, causal, scale, blocks, 1)
    assert finite
    assert o_error < LIMIT[dtype]
    assert lse_error < 1e-4


def test_large_and_late_maxima_do_not_overflow(interpreter):
    o_error, lse_error, finite = interpreter((1, 1, 256, 64), "float16", False, 1.0, 2, 100)
    assert finite
    assert o_error < 1e-3
    assert lse_error < 1e-5


def test_the_reference_is_torchs_attention():
    q, k, v = (torch.randn(2, 3, 40, 16, generator=torch.Generator().manual_seed(n)) for n in range(3))
    for causal in (False, True):
        o, lse = reference(q, k, v, causal, 0.3)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3)
        assert torch.allclose(o, theirs, atol=1e-5)
        scores = q @ k.transpose(-1, -2) * 0.3
        if causal:
            scores = scores.masked_fill(torch.ones(40, 40).triu(1).bool(), float("-inf"))
        assert torch.allclose(lse, scores.logsumexp(-1), atol=1e-5)
