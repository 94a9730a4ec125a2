"""The best match of each sound with the templates of each bank, as keyword spotting compares them; pointers are computed for each bank."""

import torch
import triton
import triton.language as tl

SOUNDS, LENGTH = 8192, 2048
BANKS, TEMPLATES = 16, 128


@triton.jit
def best_matches(
    sounds_ptr, banks_ptr, best_ptr, BANKS, LENGTH, TEMPLATES: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr
):
    sound = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    template, sample = tl.arange(0, TEMPLATES), tl.arange(0, STEP)
    for bank in range(BANKS):
        sounds = sounds_ptr + sound[:, None] * LENGTH + sample[None, :]
        templates = banks_ptr + (bank * LENGTH + sample[:, None]) * TEMPLATES + template[None, :]
        matches = tl.zeros((BLOCK, TEMPLATES), tl.float32)
        for _ in range(0, LENGTH, STEP):
            matches = tl.dot(tl.load(sounds), tl.load(templates), matches)
            sounds += STEP
            templates += STEP * TEMPLATES
        tl.store(best_ptr + sound * BANKS + bank, tl.max(matches, axis=1))


torch.manual_seed(0)
sounds = torch.randn(SOUNDS, LENGTH, device="cuda", dtype=torch.bfloat16)
banks = torch.randn(BANKS, LENGTH, TEMPLATES, device="cuda", dtype=torch.bfloat16)
best = torch.empty(SOUNDS, BANKS, device="cuda")
best_matches[(SOUNDS // 64,)](sounds, banks, best, BANKS, LENGTH, TEMPLATES, 64, 64, num_warps=4)
expected = torch.stack([(sounds.float() @ bank.float()).amax(1) for bank in banks], 1)
torch.testing.assert_close(best, expected, atol=0.5, rtol=0.01)
