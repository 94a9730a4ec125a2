"""Gradient of a linear layer's weight, dW = dY^T X, over all tokens, with persistent programs that take tiles in turn.

Fault: the launch has a program for each of the 144 SMs of the full die, but the chip has 132 enabled. A program's
accumulator and buffers fill an SM, so 12 programs wait until others end, and then do 11 tiles while 120 SMs are idle:
22 rounds of tiles instead of 12.
Fix: as many programs as the device has multiprocessors, 132.
"""

import torch
import triton
import triton.language as tl

TOKENS = 4096
OUT = 6144
IN = 8448
PROGRAMS = 144
BLOCK_M = 128
BLOCK_N = 256
BLOCK_K = 64


@triton.jit
def persistent_wgrad(  # planted: persistent-grid
    dy_ptr,
    x_ptr,
    dw_ptr,
    TOKENS: tl.constexpr,
    OUT: tl.constexpr,
    IN: tl.constexpr,
    PROGRAMS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tiles_m: tl.constexpr = OUT // BLOCK_M
    tiles: tl.constexpr = tiles_m * (IN // BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    for tile in range(tl.program_id(0), tiles, PROGRAMS):
        m = (tile % tiles_m) * BLOCK_M + tl.arange(0, BLOCK_M)
        n = (tile // tiles_m) * BLOCK_N + tl.arange(0, BLOCK_N)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, TOKENS, BLOCK_K):
            dy = tl.load(dy_ptr + (start + k)[:, None] * OUT + m[None, :])
            x = tl.load(x_ptr + (start + k)[:, None] * IN + n[None, :])
            total = tl.dot(dy.T, x, total)
        tl.store(dw_ptr + m[:, None] * IN + n[None, :], total.to(tl.bfloat16))


torch.manual_seed(0)
dy = torch.randn(TOKENS, OUT, device="cuda", dtype=torch.bfloat16)
x = torch.randn(TOKENS, IN, device="cuda", dtype=torch.bfloat16)
dw = torch.empty(OUT, IN, device="cuda", dtype=torch.bfloat16)

persistent_wgrad[(PROGRAMS,)](
    dy,
    x,
    dw,
    TOKENS=TOKENS,
    OUT=OUT,
    IN=IN,
    PROGRAMS=PROGRAMS,
    BLOCK_M=BLOCK_M,
    BLOCK_N=BLOCK_N,
    BLOCK_K=BLOCK_K,
    num_warps=8,
    num_stages=4,
)

torch.testing.assert_close(dw, dy.T @ x, atol=1.0, rtol=2e-2)
