"""Softmax over rows that fit into a block's registers."""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_rows(x_ptr, out_ptr, n_cols, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, COLS)
    x = tl.load(x_ptr + row * n_cols + cols, mask=cols < n_cols, other=float("-inf")).to(tl.float32)
    e = tl.exp(x - tl.max(x, 0))
    tl.store(out_ptr + row * n_cols + cols, e / tl.sum(e, 0), mask=cols < n_cols)


def softmax(x):
    """Over the last dimension of x [rows, cols]."""
    out = torch.empty_like(x)
    rows, cols = x.shape
    softmax_rows[(rows,)](x, out, cols, COLS=triton.next_power_of_2(cols), num_warps=8)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--cols", type=int, default=8192)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(args.rows, args.cols, device=device, dtype=torch.bfloat16)
    reference = torch.softmax(x.float(), 1)
    error = (softmax(x).float() - reference).norm() / reference.norm()
    assert error < 5e-3, f"relative error {error}"
    ms = triton.testing.do_bench(lambda: softmax(x))
    print(f"softmax of {args.rows} x {args.cols}: error {error:.1e}, {ms:.3f} ms, {4 * x.numel() / ms / 1e6:.0f} GB/s")
