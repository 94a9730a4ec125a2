"""Depthwise causal conv1d of a Mamba block (width 4, SiLU), activations laid out (batch, length, channel)."""

import torch
import triton
import triton.language as tl


@triton.jit
def causal_conv_fwd(x_ptr, w_ptr, b_ptr, o_ptr, L, D, stride_b, stride_l, WIDTH: tl.constexpr, BLOCK_L: tl.constexpr):
    d = tl.program_id(0)
    t = tl.program_id(1) * BLOCK_L + tl.arange(0, BLOCK_L)
    base = tl.program_id(2).to(tl.int64) * stride_b + d
    acc = tl.zeros((BLOCK_L,), tl.float32) + tl.load(b_ptr + d).to(tl.float32)
    for i in tl.static_range(WIDTH):
        src = t - (WIDTH - 1) + i
        w = tl.load(w_ptr + d * WIDTH + i).to(tl.float32)
        x = tl.load(
            x_ptr + base + src * stride_l,  # planted: uncoalesced-access
            mask=(src >= 0) & (src < L),
            other=0.0,
        )
        acc += w * x.to(tl.float32)
    acc = acc * tl.sigmoid(acc)
    tl.store(o_ptr + base + t * stride_l, acc.to(o_ptr.dtype.element_ty), mask=t < L)


torch.manual_seed(0)
B, L, D, WIDTH = 2, 4096, 4096, 4
x = torch.randn(B, L, D, device="cuda", dtype=torch.bfloat16)
weight = torch.randn(D, WIDTH, device="cuda", dtype=torch.bfloat16) * 0.5
bias = torch.randn(D, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(x)
grid = (D, triton.cdiv(L, 1024), B)
causal_conv_fwd[grid](x, weight, bias, out, L, D, x.stride(0), x.stride(1), WIDTH=WIDTH, BLOCK_L=1024, num_warps=4)
padded = torch.nn.functional.pad(x.float(), (0, 0, WIDTH - 1, 0))
ref = bias.float() + sum(padded[:, i : i + L] * weight[:, i].float() for i in range(WIDTH))
ref = torch.nn.functional.silu(ref)
torch.testing.assert_close(out.float(), ref, rtol=2e-2, atol=2e-2)
