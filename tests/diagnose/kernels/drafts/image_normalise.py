"""Image preprocessing: uint8 NHWC to normalised fp16 NCHW, one flat index over the output.
Fault: each element decodes its int64 index with divisions and remainders by sizes known only at run time; those have
no instruction, and their long sequences outweigh the 3 bytes moved per element. Fix: the largest index fits int32 and
the sizes are fixed per model, so use int32 and constexpr sizes: the divisions become multiply and shift."""

import torch
import triton
import triton.language as tl

NB, H, W, C = 128, 512, 512, 3


@triton.jit
def normalise_kernel(x_ptr, mean_ptr, rstd_ptr, y_ptr, total, H, W, C, BLOCK: tl.constexpr):
    offs = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < total
    n = offs // (C * H * W)  # planted: loop-division
    c = offs // (H * W) % C
    h = offs // W % H
    w = offs % W
    x = tl.load(x_ptr + ((n * H + h) * W + w) * C + c, mask=mask, other=0).to(tl.float32)
    mean = tl.load(mean_ptr + c, mask=mask, other=0.0)
    rstd = tl.load(rstd_ptr + c, mask=mask, other=0.0)
    tl.store(y_ptr + offs, ((x * (1.0 / 255.0) - mean) * rstd).to(tl.float16), mask=mask)


torch.manual_seed(0)
x = torch.randint(0, 256, (NB, H, W, C), device="cuda", dtype=torch.uint8)
mean = torch.tensor([0.485, 0.456, 0.406], device="cuda")
rstd = 1.0 / torch.tensor([0.229, 0.224, 0.225], device="cuda")
y = torch.empty(NB, C, H, W, device="cuda", dtype=torch.float16)
total = y.numel()

normalise_kernel[(triton.cdiv(total, 1024),)](x, mean, rstd, y, total, H, W, C, BLOCK=1024, num_warps=4)

ref = ((x.float() / 255.0 - mean) * rstd).permute(0, 3, 1, 2)
torch.testing.assert_close(y.float(), ref, rtol=2e-3, atol=2e-3)
