"""A gated MLP block with a norm, as torch.compile makes kernels of it."""

import argparse

import torch
import triton


class Block(torch.nn.Module):
    """x + down(silu(gate(norm(x))) * up(norm(x)))."""

    def __init__(self, width, hidden):
        """`width` of x [rows, width], `hidden` of what is between."""
        super().__init__()
        self.norm = torch.nn.RMSNorm(width)
        self.gate = torch.nn.Linear(width, hidden, bias=False)
        self.up = torch.nn.Linear(width, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        """x [rows, width]."""
        y = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--hidden", type=int, default=11008)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    block = Block(args.width, args.hidden).to(device, torch.bfloat16)
    compiled = torch.compile(block)
    x = torch.randn(args.rows, args.width, device=device, dtype=torch.bfloat16)
    with torch.no_grad():
        reference = block.float()(x.float())
        block.bfloat16()
        error = (compiled(x).float() - reference).norm() / reference.norm()
        assert error < 1e-2, f"relative error {error}"
        ms = triton.testing.do_bench(lambda: compiled(x))
    print(f"MLP block {args.rows} x {args.width} x {args.hidden}: error {error:.1e}, {ms:.3f} ms")
