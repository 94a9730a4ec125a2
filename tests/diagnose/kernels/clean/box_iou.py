"""Pairwise IoU of two sets of boxes stored as [n, 4].
The coordinate loads have a stride of 4 floats, but they read a few KB that stay in L1; the n x m output is what
costs, and its stores are coalesced."""

import torch
import triton
import triton.language as tl

NA, NBOX = 8192, 8192


@triton.jit
def load_boxes(ptr, i, n):
    m = i < n
    x1 = tl.load(ptr + i * 4, mask=m, other=0.0)
    y1 = tl.load(ptr + i * 4 + 1, mask=m, other=0.0)
    x2 = tl.load(ptr + i * 4 + 2, mask=m, other=0.0)
    y2 = tl.load(ptr + i * 4 + 3, mask=m, other=0.0)
    return x1, y1, x2, y2


@triton.jit
def iou_kernel(a_ptr, b_ptr, out_ptr, n, m, BLOCK_A: tl.constexpr, BLOCK_B: tl.constexpr):
    ia = tl.program_id(1) * BLOCK_A + tl.arange(0, BLOCK_A)
    ib = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    ax1, ay1, ax2, ay2 = load_boxes(a_ptr, ia, n)
    bx1, by1, bx2, by2 = load_boxes(b_ptr, ib, m)
    area_a = (ax2 - ax1) * (ay2 - ay1)
    area_b = (bx2 - bx1) * (by2 - by1)
    w = tl.minimum(ax2[:, None], bx2[None, :]) - tl.maximum(ax1[:, None], bx1[None, :])
    h = tl.minimum(ay2[:, None], by2[None, :]) - tl.maximum(ay1[:, None], by1[None, :])
    inter = tl.maximum(w, 0.0) * tl.maximum(h, 0.0)
    union = area_a[:, None] + area_b[None, :] - inter
    iou = inter / tl.maximum(union, 1e-9)
    mask = (ia[:, None] < n) & (ib[None, :] < m)
    tl.store(out_ptr + ia[:, None] * m + ib[None, :], iou, mask=mask)


torch.manual_seed(0)
a = torch.rand(NA, 2, device="cuda") * 900
a = torch.cat((a, a + 10 + torch.rand(NA, 2, device="cuda") * 100), dim=1)
b = torch.rand(NBOX, 2, device="cuda") * 900
b = torch.cat((b, b + 10 + torch.rand(NBOX, 2, device="cuda") * 100), dim=1)
out = torch.empty(NA, NBOX, device="cuda")

iou_kernel[(triton.cdiv(NBOX, 512), triton.cdiv(NA, 8))](a, b, out, NA, NBOX, BLOCK_A=8, BLOCK_B=512, num_warps=4)

lt = torch.maximum(a[:, None, :2], b[None, :, :2])
rb = torch.minimum(a[:, None, 2:], b[None, :, 2:])
inter = (rb - lt).clamp(min=0).prod(-1)
area_a = (a[:, 2:] - a[:, :2]).prod(-1)
area_b = (b[:, 2:] - b[:, :2]).prod(-1)
torch.testing.assert_close(out, inter / (area_a[:, None] + area_b[None, :] - inter), rtol=1e-4, atol=1e-5)
