"""Embedding of the tubelets of a video transformer: 2 x 16 x 16 pixels of three colours to 768 features, bf16.

Fault: the loop over the 1536 inputs is a tl.static_range, which is unrolled and leaves no loop to pipeline: in each of
24 steps the tensor cores wait for the tiles that the step has just asked memory for.
Fix: a plain range, whose loads run stages ahead of the products.
"""

import torch
import triton
import triton.language as tl

VIDEOS = 16
COLOURS = 3
FRAMES = 16
SIDE = 224
OUT = 768


@triton.jit
def tubelet_embed(
    video_ptr,
    w_ptr,
    out_ptr,
    FRAMES: tl.constexpr,
    SIDE: tl.constexpr,
    COLOURS: tl.constexpr,
    OUT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    token = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    across: tl.constexpr = SIDE // 16
    corner_x = (token % across) * 16
    corner_y = (token // across % across) * 16
    corner_t = (token // (across * across) % (FRAMES // 2)) * 2
    video = token // (across * across * (FRAMES // 2))
    corner = ((video * COLOURS * FRAMES + corner_t) * SIDE + corner_y) * SIDE + corner_x
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in tl.static_range(0, COLOURS * 512, BLOCK_K):
        rk = k + tl.arange(0, BLOCK_K)
        within = ((rk // 512 * FRAMES + rk // 256 % 2) * SIDE + rk // 16 % 16) * SIDE + rk % 16
        x = tl.load(video_ptr + corner[:, None] + within[None, :])  # planted: loads-not-pipelined
        w = tl.load(w_ptr + rk[:, None] * OUT + rn[None, :])
        acc = tl.dot(x, w, acc)
    tl.store(out_ptr + token[:, None] * OUT + rn[None, :], acc.to(tl.bfloat16))


torch.manual_seed(0)
video = torch.randn(VIDEOS, COLOURS, FRAMES, SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
w = (torch.randn(COLOURS * 512, OUT, device="cuda") * 0.03).bfloat16()
tokens = VIDEOS * (FRAMES // 2) * (SIDE // 16) ** 2
out = torch.empty(tokens, OUT, device="cuda", dtype=torch.bfloat16)

tubelet_embed[(OUT // 128, tokens // 128)](
    video,
    w,
    out,
    FRAMES=FRAMES,
    SIDE=SIDE,
    COLOURS=COLOURS,
    OUT=OUT,
    BLOCK_M=128,
    BLOCK_N=128,
    BLOCK_K=64,
    num_warps=8,
    num_stages=4,
)

cut = video.view(VIDEOS, COLOURS, FRAMES // 2, 2, SIDE // 16, 16, SIDE // 16, 16)
cut = cut.permute(0, 2, 4, 6, 1, 3, 5, 7).reshape(tokens, COLOURS * 512)
torch.testing.assert_close(out.float(), cut.float() @ w.float(), rtol=2e-2, atol=3e-2)
