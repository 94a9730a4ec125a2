"""Layer norm in two passes over a row: one for mean and variance, and one that reads it again."""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm_rows(x_ptr, weight_ptr, bias_ptr, out_ptr, n_cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * n_cols
    total = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        total += x
        squares += x * x
    mean = tl.sum(total, 0) / n_cols
    variance = tl.sum(squares, 0) / n_cols - mean * mean
    scale = 1 / tl.sqrt(variance + eps)
    for start in range(0, n_cols, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row + cols, mask=cols < n_cols, other=0.0).to(tl.float32)
        weight = tl.load(weight_ptr + cols, mask=cols < n_cols)
        bias = tl.load(bias_ptr + cols, mask=cols < n_cols)
        tl.store(out_ptr + row + cols, (x - mean) * scale * weight + bias, mask=cols < n_cols)


def layer_norm(x, weight, bias, eps=1e-5):
    """Over the last dimension of x [rows, cols]; weight, bias: [cols]."""
    out = torch.empty_like(x)
    rows, cols = x.shape
    layer_norm_rows[(rows,)](x, weight, bias, out, cols, eps, BLOCK=2048, num_warps=8)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--cols", type=int, default=16384)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(args.rows, args.cols, device=device, dtype=torch.bfloat16)
    weight, bias = torch.randn(2, args.cols, device=device, dtype=torch.bfloat16)
    reference = torch.nn.functional.layer_norm(x.float(), (args.cols,), weight.float(), bias.float())
    error = (layer_norm(x, weight, bias).float() - reference).norm() / reference.norm()
    assert error < 5e-3, f"relative error {error}"
    ms = triton.testing.do_bench(lambda: layer_norm(x, weight, bias))
    print(f"layer norm of {args.rows} x {args.cols}: error {error:.1e}, {ms:.3f} ms")
