"""What plain kernels compute in Triton's interpreter, against float32: called in a process that interprets."""

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kperf.attention.configs import Config
from kperf.attention.kernels import stock
from kperf.attention.kernels.attn_fwd import KV_BOX_ROWS, Q_BOX_ROWS, attn_fwd
from kperf.bench.reference import reference


def of_attn_fwd(shape, dtype, causal, scale, blocks, late_growth):
    """Relative error of o, largest relative error of lse, and whether all is finite."""
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


def of_stock(config: Config, causal: bool):
    """Relative error of o, and the largest error of lse."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 128, 64, generator=generator).half() for _ in range(3))
    exact_o, exact_lse = reference(q, k, v, causal, 0.125)
    o, lse = stock.forward(q, k, v, causal, 0.125, config=config)
    return float((o.float() - exact_o).norm() / exact_o.norm()), float((lse - exact_lse).abs().max())
