"""A block as Llama has it, whose attention is kperf's operator: the same numbers, and the time of the whole block.

RMSNorm, rotary positions, grouped-query attention, SwiGLU; random weights. On a Hopper GPU the compiled block is timed
with torch's attention and with the operator; on a CPU it only shows that both compute the same. `make llama-block`, or
`python examples/llama_block.py` where kperf is installed.
"""

import argparse

import torch
import triton
from torch.nn.functional import scaled_dot_product_attention, silu

from kperf.integrations.operator import attention, why_not

ROTARY_BASE = 500_000.0
"""Llama 3's (arXiv 2407.21783, section 3.2)."""


def sdpa(q, k, v):
    """torch's own, of [batch, heads, seq_len, head_dim] with fewer heads of k and v."""
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def ours(q, k, v):
    """The same through kperf::attention."""
    return attention(q, k, v, causal=True)


def rotated(x, cos, sin):
    """x [batch, seq_len, heads, head_dim], its pairs (j, j + head_dim / 2) turned by the position's angles."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(torch.nn.Module):
    """x + attention(norm(x)), and that plus its SwiGLU."""

    def __init__(self, heads, kv_heads, head_dim, hidden):
        """`hidden`: columns between the SwiGLU's projections."""
        super().__init__()
        width = heads * head_dim
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.attention_norm, self.mlp_norm = torch.nn.RMSNorm(width), torch.nn.RMSNorm(width)
        self.qkv = torch.nn.Linear(width, (heads + 2 * kv_heads) * head_dim, bias=False)
        self.out = torch.nn.Linear(width, width, bias=False)
        self.gate_up = torch.nn.Linear(width, 2 * hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin, attend):
        """x [batch, seq_len, width]; cos, sin [seq_len, 1, head_dim / 2]; attend(q, k, v)."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        o = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = x + self.out(o.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(silu(gate) * up)


def angles(seq_len, head_dim, device, dtype):
    """cos and sin of position * ROTARY_BASE^(-2 j / head_dim), [seq_len, 1, head_dim / 2]."""
    frequency = ROTARY_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle = torch.arange(seq_len, device=device, dtype=torch.float32)[:, None, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


def difference(one, other):
    """Relative, over all elements."""
    return float((one.float() - other.float()).norm() / other.float().norm())


def step(block, x, cos, sin, attend):
    """The block's output, and the gradient of its input."""
    x = x.detach().requires_grad_()
    y = block(x, cos, sin, attend)
    return y.detach(), torch.autograd.grad(y.float().square().mean(), x)[0]


if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4 if on_gpu else 1)
    parser.add_argument("--seq-len", type=int, default=8192 if on_gpu else 256)
    parser.add_argument("--heads", type=int, default=32 if on_gpu else 4)
    parser.add_argument("--kv-heads", type=int, default=8 if on_gpu else 2)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=14336 if on_gpu else 1024)
    args = parser.parse_args()

    torch.manual_seed(0)
    device, dtype = ("cuda", torch.bfloat16) if on_gpu else ("cpu", torch.float32)
    block = Block(args.heads, args.kv_heads, args.head_dim, args.hidden).to(device, dtype)
    x = torch.randn(args.batch, args.seq_len, args.heads * args.head_dim, device=device, dtype=dtype)
    cos, sin = angles(args.seq_len, args.head_dim, device, dtype)

    found, expected = step(block, x, cos, sin, ours), step(block, x, cos, sin, sdpa)
    errors = [difference(one, other) for one, other in zip(found, expected, strict=True)]
    assert max(errors) < 1e-2, f"output and gradient differ by {errors}"
    what = f"Llama block {args.batch} x {args.seq_len}, {args.heads} heads, {args.kv_heads} of k and v"
    print(f"{what}: differs from SDPA's by {errors[0]:.1e}, the gradient of its input by {errors[1]:.1e}")

    if not on_gpu:
        print("no GPU here: equality is all that is checked, and nothing is timed")
        raise SystemExit
    q = torch.empty(args.batch, args.heads, args.seq_len, args.head_dim, device=device, dtype=dtype)
    if reason := why_not(q, q[:, : args.kv_heads], q[:, : args.kv_heads], True):
        raise SystemExit(f"the operator falls back here, so there is nothing to compare: {reason}")
    with torch.no_grad():
        ms = {}
        for name, attend in (("SDPA", sdpa), ("kperf", ours)):
            compiled = torch.compile(block, fullgraph=True)
            ms[name] = triton.testing.do_bench_cudagraph(lambda: compiled(x, cos, sin, attend), rep=500)  # noqa: B023
    print(f"forward, compiled: SDPA {ms['SDPA']:.3f} ms, kperf {ms['kperf']:.3f} ms, {ms['SDPA'] / ms['kperf']:.3f} x")
