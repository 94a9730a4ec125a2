"""Vector addition: nothing but two loads and a store."""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x + y, mask=i < n)


def vector_add(x, y):
    """x + y, of any shape."""
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 1024),)](x, y, out, x.numel(), BLOCK=1024)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--n", type=int, default=1 << 26)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = torch.randn(2, args.n, device=device)
    error = (vector_add(x, y) - (x + y)).abs().max()
    assert error == 0, f"wrong by {error}"
    ms = triton.testing.do_bench(lambda: vector_add(x, y))
    print(f"vector add of {args.n}: error {error:.1e}, {ms:.3f} ms, {12 * args.n / ms / 1e6:.0f} GB/s")
