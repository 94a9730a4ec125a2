"""Discrete cosine transform of 8 x 8 blocks of an image and its quantisation, as a JPEG encoder does.

Fault: the transform along the lines is one launch and that along the columns another, with an image of fp32 in memory
between them: 268 MB written and read again, where the image is 67 MB and the coefficients 134 MB.
Fix: transform a tile of whole blocks along both axes before storing it.
"""

import math

import torch
import triton
import triton.language as tl

HEIGHT = 8192
WIDTH = 8192


@triton.jit
def transform_lines(image_ptr, dct_ptr, half_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = (tl.program_id(1) * BLOCK + i)[:, None] * WIDTH + tl.program_id(0) * BLOCK + i[None, :]
    dct = tl.load(dct_ptr + i[:, None] * BLOCK + i[None, :])
    image = tl.load(image_ptr + at).to(tl.float32) - 128.0
    tl.store(half_ptr + at, tl.dot(image, tl.trans(dct)))  # planted: intermediate-in-memory


@triton.jit
def transform_columns(half_ptr, dct_ptr, inverse_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    at = (tl.program_id(1) * BLOCK + i)[:, None] * WIDTH + tl.program_id(0) * BLOCK + i[None, :]
    dct = tl.load(dct_ptr + i[:, None] * BLOCK + i[None, :])
    inverse = tl.load(inverse_ptr + (i[:, None] % 8) * 8 + i[None, :] % 8)
    half = tl.load(half_ptr + at)
    tl.store(out_ptr + at, tl.floor(tl.dot(dct, half) * inverse + 0.5).to(tl.int16))


torch.manual_seed(0)
image = torch.randint(0, 256, (HEIGHT, WIDTH), device="cuda", dtype=torch.uint8)
n = torch.arange(8, device="cuda", dtype=torch.float64)
small = torch.cos((2 * n[None, :] + 1) * n[:, None] * (math.pi / 16)) * 0.5
small[0] *= 0.5**0.5
dct = torch.kron(torch.eye(8, device="cuda", dtype=torch.float64), small).float()
inverse = (1 / (16 + 4 * (n[:, None] + n[None, :]))).float()
out = torch.empty(HEIGHT, WIDTH, device="cuda", dtype=torch.int16)

half = torch.empty(HEIGHT, WIDTH, device="cuda")
transform_lines[(WIDTH // 64, HEIGHT // 64)](image, dct, half, WIDTH=WIDTH, BLOCK=64, num_warps=4)
transform_columns[(WIDTH // 64, HEIGHT // 64)](half, dct, inverse, out, WIDTH=WIDTH, BLOCK=64, num_warps=4)

small = small.float()
for top in range(0, HEIGHT, 1024):
    part = image[top : top + 1024].float() - 128
    blocks = part.view(-1, 8, WIDTH // 8, 8).transpose(1, 2)
    want = ((small @ blocks @ small.T) * inverse + 0.5).floor().transpose(1, 2).reshape(part.shape)
    torch.testing.assert_close(out[top : top + 1024].float(), want, rtol=0, atol=1)
