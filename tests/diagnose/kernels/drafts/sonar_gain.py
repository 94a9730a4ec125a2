"""Time-varying gain of a sonar's pings: each sample is multiplied by the spreading and absorption loss of its range.

Fault: the kernel stores float32, and torch divides it by the sonar's reference level and converts it to float16: two more
passes over 268 million samples.
Fix: multiply by the reference in the kernel, and store float16.
"""

import torch
import triton
import triton.language as tl

PINGS = 16384
SAMPLES = 16384
REFERENCE = 512.0


@triton.jit
def gain(ping_ptr, loss_ptr, out_ptr, SAMPLES: tl.constexpr, BLOCK: tl.constexpr):
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0).to(tl.int64) * SAMPLES + cols
    echo = tl.load(ping_ptr + at).to(tl.float32)
    tl.store(out_ptr + at, echo * tl.load(loss_ptr + cols))  # planted: pass-in-torch


def corrected(pings, loss):
    """Samples relative to the reference level, as float16."""
    out = torch.empty(pings.shape, device=pings.device, dtype=torch.float32)
    gain[(PINGS, SAMPLES // 4096)](pings, loss, out, SAMPLES=SAMPLES, BLOCK=4096, num_warps=8)
    return (out / REFERENCE).to(torch.float16)


torch.manual_seed(0)
pings = torch.randint(-2048, 2048, (PINGS, SAMPLES), device="cuda", dtype=torch.int16)
range_m = 1.0 + torch.arange(SAMPLES, device="cuda") * 0.01
loss = 1.0 + range_m.log10() + 0.01 * range_m

out = corrected(pings, loss)

for first in range(0, PINGS, 2048):
    want = pings[first : first + 2048].float() * loss / REFERENCE
    torch.testing.assert_close(out[first : first + 2048].float(), want, rtol=1e-3, atol=1e-3)
