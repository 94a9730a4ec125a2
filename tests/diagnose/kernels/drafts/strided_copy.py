"""One channel of an interleaved image."""

import torch
import triton
import triton.language as tl


@triton.jit
def take_channel(image, out, channels, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    x = tl.load(image + i * channels, mask=mask)  # planted: uncoalesced-access
    tl.store(out + i, x, mask=mask)


image = torch.randn(4096, 4096, 4, device="cuda")
out = torch.empty(4096 * 4096, device="cuda")
take_channel[(triton.cdiv(out.numel(), 1024),)](image, out, 4, out.numel(), 1024)
assert torch.equal(out.view(4096, 4096), image[..., 0])
