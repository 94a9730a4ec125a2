"""The plain kernel in Triton's interpreter on the CPU, against float32."""

import pytest
import torch

from kperf.bench.reference import reference
from tests.attention.kernels.interpreting import of_attn_fwd

# The interpreter truncates where the GPU rounds to nearest, which doubles bfloat16's error.
LIMIT = {"float16": 1e-3, "bfloat16": 8e-3}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", LIMIT)
@pytest.mark.parametrize(
    ("shape", "blocks", "scale"),
    [((1, 2, 256, 64), 8, 0.125), ((2, 1, 128, 128), 1, 1.0), ((2, 1, 128, 128), 1, 0.01), ((1, 3, 384, 64), 5, 0.125)],
)
def test_o_and_lse_agree_with_float32(interpreted, shape, blocks, dtype, causal, scale):
    o_error, lse_error, finite = interpreted(of_attn_fwd, shape, dtype, causal, scale, blocks, 1)
    assert finite
    assert o_error < LIMIT[dtype]
    assert lse_error < 1e-4


def test_large_and_late_maxima_do_not_overflow(interpreted):
    o_error, lse_error, finite = interpreted(of_attn_fwd, (1, 1, 256, 64), "float16", False, 1.0, 2, 100)
    assert finite
    assert o_error < 1e-3
    assert lse_error < 1e-5


def test_the_reference_is_torchs_attention():
    q, k, v = (torch.randn(2, 3, 40, 16, generator=torch.Generator().manual_seed(n)) for n in range(3))
    for causal in (False, True):
        o, lse = reference(q, k, v, causal, 0.3)
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.3)
        assert torch.allclose(o, theirs, atol=1e-5)
        scores = q @ k.transpose(-1, -2) * 0.3
        if causal:
            scores = scores.masked_fill(torch.ones(40, 40).triu(1).bool(), float("-inf"))
        assert torch.allclose(lse, scores.logsumexp(-1), atol=1e-5)
