"""What only a Hopper GPU can show: every implementation is right, and an override is what ran."""

import os
import subprocess
import sys

import pytest
import torch
import triton

from kperf.attention import overrides as override
from kperf.attention.implementations import FIG12, IMPLEMENTATIONS, bind_attn_fwd
from kperf.attention.kernels import stock
from kperf.attention.kernels.attn_fwd import attn_fwd
from kperf.attention.variants import VARIANTS, Specialization
from kperf.attention.workload import Workload
from kperf.bench.points import MAX_LSE_ERROR, MAX_REL_ERROR
from kperf.bench.reference import Exact, errors, expected_of, make_inputs, reference

pytestmark = pytest.mark.gpu

EVERY = [(variant.name, special) for variant in VARIANTS.values() for special in variant.specializations]
SHAPES = [(1, 1, 128), (2, 3, 256), (1, 2, 1152), (3, 5, 512), (1, 16, 4096)]


def check(key: str, workload: Workload) -> None:
    inputs = make_inputs(workload, seed=workload.seq_len)
    call = IMPLEMENTATIONS[key].bind(inputs.q, inputs.k, inputs.v, workload.causal, workload.sm_scale)
    rel_error, lse_error = errors(call(), expected_of(workload, inputs))
    assert rel_error < MAX_REL_ERROR[workload.dtype]
    assert lse_error is None or lse_error < MAX_LSE_ERROR


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("batch", "heads", "seq_len"), SHAPES)
@pytest.mark.parametrize("key", [*FIG12, "fa3_views", "attn_fwd"])
def test_every_implementation_agrees_with_float32(key, batch, heads, seq_len, causal):
    workload = Workload(batch=batch, heads=heads, seq_len=seq_len, causal=causal)
    if reason := IMPLEMENTATIONS[key].unsupported(workload):
        pytest.skip(reason)
    check(key, workload)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key", ["fa2", "cudnn", "fa3", "fa3_views", *VARIANTS, "attn_fwd"])
def test_head_dims_and_dtypes_agree_with_float32_or_are_unsupported(key, head_dim, dtype, causal):
    workload = Workload(batch=2, heads=3, seq_len=384, head_dim=head_dim, dtype=dtype, causal=causal)
    if reason := IMPLEMENTATIONS[key].unsupported(workload):
        pytest.skip(reason)
    check(key, workload)


@pytest.mark.parametrize(("variant", "special"), EVERY)
def test_extreme_scores_stay_right(variant, special):
    head_dim, dtype, causal = special.head_dim, special.dtype, special.causal
    workload = Workload(batch=1, heads=4, seq_len=1024, head_dim=head_dim, dtype=dtype, causal=causal)
    inputs = make_inputs(workload, seed=1)
    q, k, v = inputs.q, inputs.k, inputs.v
    k[:, :, -128:] *= 300  # the maximum jumps far beyond 2^100 in the last block
    q[:, :, 7] = 0  # a row of equal scores
    k[:, :, 5, 3] = 3e4  # one huge element
    exact = Exact(*reference(q, k, v, causal, workload.sm_scale))
    o, lse = IMPLEMENTATIONS[variant].bind(q, k, v, causal, workload.sm_scale)()
    rel_error, _ = errors((o, None), exact)
    assert rel_error < MAX_REL_ERROR[dtype]
    assert float(((lse - exact.lse) / exact.lse.abs().clamp(min=1)).abs().max()) < 1e-4


@pytest.mark.parametrize(("variant", "special"), EVERY)
def test_a_hundred_runs_are_bit_identical(variant, special):
    workload = Workload(batch=3, heads=5, seq_len=640, head_dim=special.head_dim, dtype=special.dtype)
    inputs = make_inputs(workload, seed=2)
    call = IMPLEMENTATIONS[variant].bind(inputs.q, inputs.k, inputs.v, special.causal, 0.09)
    o, lse = call()
    for _ in range(100):
        again, lse_again = call()
        assert torch.equal(o, again)
        assert torch.equal(lse, lse_again)


def test_an_override_that_is_off_does_not_leak():
    inputs = make_inputs(Workload(batch=1, heads=2, seq_len=256), seed=3)
    found = override.find("improved", Specialization())
    arguments = (inputs.q, inputs.k, inputs.v, False, 0.09)
    with_override, without = bind_attn_fwd(*arguments, found), bind_attn_fwd(*arguments)
    first, second = with_override()[0], without()[0]
    assert not torch.isnan(first).any()
    assert float((first.float() - second.float()).norm() / second.float().norm()) < 4e-3
    (cache, *_) = attn_fwd.device_caches[torch.cuda.current_device()]
    texts = {kernel.asm["ttgir"].count("ttg.warp_specialize(") for kernel in cache.values()}
    assert texts == {0}


def test_stock_triton_picks_a_staged_override_up_at_launch(tmp_path):
    override.stage(override.find("vanilla", Specialization()), tmp_path / "staged")
    program = (
        "import torch; from kperf.attention.implementations import bind_attn_fwd\n"
        "q, k, v = (torch.randn(1, 2, 256, 128, device='cuda', dtype=torch.bfloat16) for _ in range(3))\n"
        "o, _ = bind_attn_fwd(q, k, v, False, 0.09)()\n"
        "from kperf.attention.kernels.attn_fwd import attn_fwd\n"
        "(cache, *_) = attn_fwd.device_caches[0]\n"
        "print('warp groups:', [k.asm['ttgir'].count('partition1') for k in cache.values()])\n"
    )
    settings = {
        "TRITON_ALWAYS_COMPILE": "1",
        "TRITON_KERNEL_OVERRIDE": "1",
        "TRITON_OVERRIDE_DIR": str(tmp_path / "staged"),
        "TRITON_CACHE_DIR": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Overriding kernel with file" in done.stdout
    assert "warp groups: [1]" in done.stdout


@pytest.mark.parametrize("seq_len", [128, 256, 640])
@pytest.mark.parametrize("config", stock.AUTOWS_CONFIGS, ids=str)
def test_automatic_warp_specialisation_fires_and_is_right_in_every_configuration(config, seq_len, monkeypatch):
    workload = Workload(batch=1, heads=2, seq_len=seq_len)
    inputs = make_inputs(workload, seed=4)
    expected = expected_of(workload, inputs)
    monkeypatch.setattr(
        stock, "autows", triton.autotune([stock.for_autotuner(config)], key=["seq_len"])(stock.attention)
    )
    for _ in range(10):
        output = stock.forward(inputs.q, inputs.k, inputs.v, False, workload.sm_scale, warp_specialize=True)
        assert errors(output, expected)[0] < MAX_REL_ERROR["bfloat16"]
    (cache, *_) = stock.attention.device_caches[torch.cuda.current_device()]
    assert any("ttg.warp_specialize(" in kernel.asm["ttgir"] for kernel in cache.values()), str(config)
