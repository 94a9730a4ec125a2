"""Loss of a masked image model: the mean squared error of each hidden patch; visible patches (three in four) give 0.

Fault: prediction and target of every patch are read, and the errors of the visible ones are then multiplied by 0.
Fix: the patch's flag is part of the mask of the loads, so that what counts for nothing is not read.
"""

import torch
import triton
import triton.language as tl

PATCHES = 200704
PIXELS = 768
BLOCK_P = 16
BLOCK_X = 256


@triton.jit
def masked_patch_mse(
    predicted_ptr,
    target_ptr,
    hidden_ptr,
    loss_ptr,
    PIXELS: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    patch = tl.program_id(0) * BLOCK_P + tl.arange(0, BLOCK_P)
    hidden = tl.load(hidden_ptr + patch)
    total = tl.zeros((BLOCK_P, BLOCK_X), tl.float32)
    for first in range(0, PIXELS, BLOCK_X):
        at = patch[:, None] * PIXELS + first + tl.arange(0, BLOCK_X)[None, :]
        predicted = tl.load(predicted_ptr + at).to(tl.float32)
        target = tl.load(target_ptr + at).to(tl.float32)
        total += (predicted - target) * (predicted - target)
    loss = tl.sum(total, axis=1) / PIXELS * hidden  # planted: zeroed-after-reading
    tl.store(loss_ptr + patch, loss)


torch.manual_seed(0)
predicted = torch.randn(PATCHES, PIXELS, device="cuda", dtype=torch.bfloat16)
target = torch.randn(PATCHES, PIXELS, device="cuda", dtype=torch.bfloat16)
hidden = (torch.rand(PATCHES, device="cuda") < 0.25).to(torch.uint8)
loss = torch.empty(PATCHES, device="cuda")

masked_patch_mse[(PATCHES // BLOCK_P,)](
    predicted, target, hidden, loss, PIXELS=PIXELS, BLOCK_P=BLOCK_P, BLOCK_X=BLOCK_X, num_warps=4
)

want = (predicted.float() - target.float()).square().mean(1) * hidden
torch.testing.assert_close(loss, want, atol=1e-4, rtol=1e-4)
