"""What people hand in to our kernels: each kind works, or is refused by one sentence."""

import re

import pytest
import torch

from kperf.attention.implementations import IMPLEMENTATIONS, bind_attn_fwd
from kperf.attention.operands import as_rows, check_attention, workload_of
from kperf.attention.variants import VARIANTS
from kperf.errors import UsageError
from tests.attention.attending_gpu import attending_gpu  # noqa: F401
from tests.attention.handed_in import LAYOUTS, SCALE, exact, operands


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_layouts_and_fewer_heads_are_computed_as_they_are(attending_gpu, layout, kv_heads, causal):  # noqa: F811
    q, k, v = operands(kv_heads=kv_heads)
    given = [LAYOUTS[layout](tensor) for tensor in (q, k, v)]
    o, lse = bind_attn_fwd(*given, causal, SCALE)()
    exact_o, exact_lse = exact(q, k, v, causal)
    assert [launch.name for launch in attending_gpu] == ["attn_fwd"]
    assert float((o - exact_o).norm() / exact_o.norm()) < 4e-3
    assert float((lse - exact_lse).abs().max()) < 1e-4


def test_an_expanded_head_is_computed_as_it_is(attending_gpu):  # noqa: F811
    q, k, v = operands(kv_heads=1)
    k, v = k.expand(2, 4, 256, 128), v.expand(2, 4, 256, 128)
    o, _ = IMPLEMENTATIONS["vanilla"].bind(q, k, v, False, SCALE)()
    exact_o, _ = exact(q, k, v, False)
    assert float((o - exact_o).norm() / exact_o.norm()) < 4e-3


def test_what_fits_is_not_copied():
    q, k, v = operands()
    assert [tensor.data_ptr() for tensor in as_rows(q, k, v)] == [tensor.data_ptr() for tensor in (q, k, v)]


MISFITS = {
    "seq_len": (operands(seq_len=200), "seq_len 200 is not a multiple of 128"),
    "head_dim": (operands(head_dim=96), "head_dim 96 is not one of 64, 128"),
    "dtype": (operands(dtype=torch.float32), "dtype: Input should be 'bfloat16' or 'float16'"),
    "whole numbers": (operands(dtype=torch.int32), "q is int32: hand in floating-point numbers"),
    "two dtypes": ((operands()[0], *operands(dtype=torch.float16)[1:]), "k is float16 and q bfloat16"),
    "two devices": ((*operands()[:2], operands()[2].to("meta")), "v is on meta and q on cpu"),
    "three dimensions": ((operands()[0][0], *operands()[1:]), "q has 3 dimensions"),
    "heads": (operands(heads=4, kv_heads=3), "q has 4 heads and k 3"),
    "more heads of k": (operands(heads=2, kv_heads=4), "q has 2 heads and k 4"),
    "batch": ((operands()[0], *operands(batch=1)[1:]), "batch and head_dim have to be the same"),
    "k and v": ((*operands()[:2], operands(kv_heads=2)[2]), "k is [2, 4, 256, 128] and v [2, 2, 256, 128]"),
    "longer k": ((operands()[0], *operands(seq_len=384)[1:]), "q has 256 rows and k 384"),
    "empty": (operands(batch=0), "q is empty"),
    "meta": (tuple(tensor.to("meta") for tensor in operands()), "q is on meta, and kernels run on cpu"),
    "gradients": ((operands()[0].requires_grad_(), *operands()[1:]), "requires gradients"),
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize("key", [*VARIANTS, "attn_fwd"])
def test_what_does_not_fit_is_refused_by_one_sentence(attending_gpu, key, misfit):  # noqa: F811
    given, words = MISFITS[misfit]
    with pytest.raises(UsageError, match=re.escape(words)) as refused:
        IMPLEMENTATIONS[key].bind(*given, False, SCALE)
    assert "\n" not in str(refused.value)
    assert not attending_gpu


def test_a_specialisation_that_there_is_not_is_refused(attending_gpu):  # noqa: F811
    with pytest.raises(UsageError, match="vanilla has no override for d64_bf16_full"):
        IMPLEMENTATIONS["vanilla"].bind(*operands(head_dim=64), False, SCALE)


def test_without_a_gpu_tensors_on_the_cpu_are_refused():
    with pytest.raises(UsageError, match="move q, k and v to a Hopper GPU"):
        bind_attn_fwd(*operands(), False, SCALE)


def test_another_gpu_is_refused(attending_gpu, monkeypatch):  # noqa: F811
    from triton import runtime
    from triton.backends.compiler import GPUTarget

    monkeypatch.setattr(type(runtime.driver.active), "get_current_target", lambda _: GPUTarget("cuda", 80, 32))
    with pytest.raises(UsageError, match="compiled for sm_90a"):
        bind_attn_fwd(*operands(), False, SCALE)


def test_a_longer_k_is_attention_and_a_shorter_one_none_under_a_causal_mask():
    q, short_k, short_v = operands(seq_len=128)
    long_q, k, v = operands(seq_len=256)
    check_attention(q, k, v, True)
    check_attention(long_q, short_k, short_v, False)
    with pytest.raises(UsageError, match="q has 256 rows and k 128: a causal mask needs as many of k, or more"):
        check_attention(long_q, short_k, short_v, True)
    with pytest.raises(UsageError, match="attn_fwd needs as many"):
        workload_of(q, k, v, False)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv_heads", [4, 1])
@pytest.mark.parametrize("key", [*VARIANTS, "attn_fwd"])
def test_the_kernels_compute_layouts_and_fewer_heads(key, kv_heads, layout):
    q, k, v = operands(kv_heads=kv_heads)
    o, lse = IMPLEMENTATIONS[key].bind(*(LAYOUTS[layout](tensor.cuda()) for tensor in (q, k, v)), True, SCALE)()
    exact_o, exact_lse = exact(q, k, v, True)
    assert float((o.cpu() - exact_o).norm() / exact_o.norm()) < 4e-3
    assert float((lse.cpu() - exact_lse).abs().max()) < 1e-3
