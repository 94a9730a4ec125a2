"""One transformer block as FLUX and as Llama have it, random weights, as torch.compile makes kernels of it."""

import argparse

import torch
import triton
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention, silu

ROTARY_BASE = 500_000.0
"""Llama 3's (arXiv 2407.21783, section 3.2)."""


def sdpa(q, k, v):
    """Causal, torch's own, of [batch, heads, seq_len, head_dim] with fewer heads of k and v."""
    return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


def rotated(x, cos, sin):
    """x [batch, seq_len, heads, head_dim], its pairs (j, j + head_dim / 2) turned by the position's angles."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def angles(seq_len, head_dim, device, dtype):
    """cos and sin of position * ROTARY_BASE^(-2 j / head_dim), [seq_len, 1, head_dim / 2]."""
    frequency = ROTARY_BASE ** (-torch.arange(0, head_dim, 2, device=device, dtype=torch.float32) / head_dim)
    angle = torch.arange(seq_len, device=device, dtype=torch.float32)[:, None, None] * frequency
    return angle.cos().to(dtype), angle.sin().to(dtype)


class Llama(torch.nn.Module):
    """x + attention(norm(x)), and that plus its SwiGLU; rotary positions, fewer heads of k and v."""

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

    def forward(self, x, cos, sin, attend=sdpa):
        """x [batch, seq_len, width]; cos, sin [seq_len, 1, head_dim / 2]; attend(q, k, v)."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        o = attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = x + self.out(o.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(silu(gate) * up)


class Dit(torch.nn.Module):
    """FLUX's single-stream block: attention and MLP side by side on a modulated norm, one projection out of both."""

    def __init__(self, heads, head_dim, hidden):
        """`hidden`: columns of the MLP."""
        super().__init__()
        self.width, self.heads, self.head_dim, self.hidden = heads * head_dim, heads, head_dim, hidden
        self.modulation = torch.nn.Linear(self.width, 3 * self.width)
        self.fused_in = torch.nn.Linear(self.width, 3 * self.width + hidden)
        self.q_norm, self.k_norm = torch.nn.RMSNorm(head_dim), torch.nn.RMSNorm(head_dim)
        self.fused_out = torch.nn.Linear(self.width + hidden, self.width)

    def forward(self, x, condition, cos, sin):
        """x [batch, seq_len, width], condition [batch, width]; cos, sin [seq_len, 1, head_dim / 2]."""
        shift, scale, gate = self.modulation(silu(condition))[:, None].chunk(3, dim=-1)
        y = (1 + scale) * layer_norm(x, (self.width,), eps=1e-6) + shift
        qkv, mlp = self.fused_in(y).split([3 * self.width, self.hidden], dim=-1)
        q, k, v = qkv.unflatten(-1, (3, self.heads, self.head_dim)).unbind(2)
        q, k = rotated(self.q_norm(q), cos, sin), rotated(self.k_norm(k), cos, sin)
        o = scaled_dot_product_attention(*(part.transpose(1, 2) for part in (q, k, v)))
        o = o.transpose(1, 2).flatten(2)
        return x + gate * self.fused_out(torch.cat([o, gelu(mlp, approximate="tanh")], dim=-1))


SIZES = {
    "dit": {"batch": 1, "seq_len": 4608, "heads": 24, "head_dim": 128, "hidden": 12288},
    "llama": {"batch": 1, "seq_len": 8192, "heads": 32, "kv_heads": 8, "head_dim": 128, "hidden": 14336},
}
"""FLUX.1's: 4096 patches of a picture of 1024 x 1024 and 512 words; Llama 3 8B's."""


def make(name, device, dtype, **sizes):
    """The block of that name, and what it is called with."""
    sizes = SIZES[name] | sizes
    batch, seq_len = sizes.pop("batch"), sizes.pop("seq_len")
    width = sizes["heads"] * sizes["head_dim"]
    with torch.device(device):
        block = (Dit if name == "dit" else Llama)(**sizes).to(dtype)
        x = torch.randn(batch, seq_len, width, dtype=dtype)
        condition = [torch.randn(batch, width, dtype=dtype)] if name == "dit" else []
        return block, (x, *condition, *angles(seq_len, sizes["head_dim"], device, dtype))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--block", choices=SIZES, default="llama")
    args = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    block, inputs = make(args.block, device, torch.bfloat16)
    compiled = torch.compile(block)
    with torch.no_grad():
        y = compiled(*inputs).float()
        reference = block.float()(*(tensor.float() for tensor in inputs))
        block.bfloat16()
        error = (y - reference).norm() / reference.norm()
        assert error < 1e-2, f"relative error {error}"
        ms = triton.testing.do_bench(lambda: compiled(*inputs))
    print(f"{args.block} block {SIZES[args.block]}: error {error:.1e}, {ms:.3f} ms")
