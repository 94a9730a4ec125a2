"""Discrete cosine transform of 8 x 8 blocks of an image and its quantisation, as a JPEG encoder does."""

import math

import torch
import triton
import triton.language as tl

HEIGHT = 8192
WIDTH = 8192


@triton.jit
def transform_blocks(image_ptr, dct_ptr, inverse_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = (tl.program_id(1) * BLOCK + i)[:, None] * WIDTH + tl.program_id(0) * BLOCK + i[None, :]
    dct = tl.load(dct_ptr + i[:, None] * BLOCK + i[None, :])
    inverse = tl.load(inverse_ptr + (i[:, None] % 8) * 8 + i[None, :] % 8)
    image = tl.load(image_ptr + at).to(tl.float32) - 128.0
    half = tl.dot(image, tl.trans(dct))
    tl.store(out_ptr + at, tl.floor(tl.dot(dct, half) * inverse + 0.5).to(tl.int16))


torch.manual_seed(0)
image = torch.randint(0, 256, (HEIGHT, WIDTH), device="cuda", dtype=torch.uint8)
n = torch.arange(8, device="cuda", dtype=torch.float64)
small = torch.cos((2 * n[None, :] + 1) * n[:, None] * (math.pi / 16)) * 0.5
small[0] *= 0.5**0.5
dct = torch.kron(torch.eye(8, device="cuda", dtype=torch.float64), small).float()
inverse = (1 / (16 + 4 * (n[:, None] + n[None, :]))).float()
out = torch.empty(HEIGHT, WIDTH, device="cuda", dtype=torch.int16)

transform_blocks[(WIDTH // 64, HEIGHT // 64)](image, dct, inverse, out, WIDTH=WIDTH, BLOCK=64, num_warps=4)

small = small.float()
for top in range(0, HEIGHT, 1024):
    part = image[top : top + 1024].float() - 128
    blocks = part.view(-1, 8, WIDTH // 8, 8).transpose(1, 2)
    want = ((small @ blocks @ small.T) * inverse + 0.5).floor().transpose(1, 2).reshape(part.shape)
    torch.testing.assert_close(out[top : top + 1024].float(), want, rtol=0, atol=1)
