"""A block as Llama has it, whose attention is kperf's operator: it computes the same as with torch's.

The block is transformer_block.py's, with random weights: `python examples/llama_block.py` where kperf is installed. How
much faster the whole block is, `kperf llama-block` measures; `make llama-block` runs both.
"""

import argparse

import torch
from transformer_block import Llama, angles, sdpa

from kperf.integrations.operator import attention, why_not


def ours(q, k, v):
    """`sdpa` through kperf::attention."""
    return attention(q, k, v, causal=True)


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
    block = Llama(args.heads, args.kv_heads, args.head_dim, args.hidden).to(device, dtype)
    x = torch.randn(args.batch, args.seq_len, args.heads * args.head_dim, device=device, dtype=dtype)
    cos, sin = angles(args.seq_len, args.head_dim, device, dtype)

    found, expected = step(block, x, cos, sin, ours), step(block, x, cos, sin, sdpa)
    errors = [difference(one, other) for one, other in zip(found, expected, strict=True)]
    assert max(errors) < 1e-2, f"output and gradient differ by {errors}"
    what = f"Llama block {args.batch} x {args.seq_len}, {args.heads} heads, {args.kv_heads} of k and v"
    print(f"{what}: differs from SDPA's by {errors[0]:.1e}, the gradient of its input by {errors[1]:.1e}")
    q = torch.empty(args.batch, args.heads, args.seq_len, args.head_dim, device=device, dtype=dtype)
    if reason := why_not(q, q[:, : args.kv_heads], q[:, : args.kv_heads], True):
        print(f"no kernel of kperf's computed it here: {reason}")
