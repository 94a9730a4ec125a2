"""A tiny search on a Hopper GPU: right trials, a file of configurations, and the kernel that then runs in it."""

import pytest
import torch

from kperf.attention import configs
from kperf.attention.configs import Config
from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.kernels import stock
from kperf.attention.workload import Workload
from kperf.bench.points import MAX_REL_ERROR
from kperf.bench.reference import errors, make_inputs
from kperf.console import WholeConsole
from kperf.plots.tune import draw
from kperf.tune import command
from kperf.tune.records import DEFAULT_KEY, TUNED_KEY, store_in, studies
from kperf.tune.space import SearchSpace

pytestmark = pytest.mark.gpu

SHAPE = Workload(batch=4, heads=8, seq_len=512, head_dim=256, causal=True, dtype="float16")
SPACE = [
    Config(BLOCK_M=m, BLOCK_N=32, PRELOAD_V=first, num_warps=m // 16, num_stages=2)
    for m in (64, 128)
    for first in (False, True)
]


def test_a_tiny_search_is_recorded_written_and_used(tmp_path, monkeypatch):
    monkeypatch.setenv(configs.FOLDER, str(tmp_path / "configs"))
    monkeypatch.setattr(SearchSpace, "configs", lambda _: SPACE)
    asked = command.Asked([SHAPE], trials=2, exhaustive=True)
    command.run(WholeConsole(), tmp_path, asked, draw)
    (folder,) = [path.parent for path in tmp_path.glob("*/tune.jsonl")]
    (study,) = studies(store_in(folder).points())
    assert study.architecture == configs.architecture() == "sm_90a"
    assert len(study.tried("search")) == 2
    assert study.is_exhaustive
    assert all(cost is not None for cost in study.tried("exhaustive").values())
    assert {DEFAULT_KEY, TUNED_KEY, "cudnn"} <= set(study.comparison)
    assert configs.configured(SHAPE) == study.chosen
    inputs = make_inputs(SHAPE, seed=1)
    triton = IMPLEMENTATIONS["triton"]
    output = triton.bind(inputs.q, inputs.k, inputs.v, SHAPE.causal, SHAPE.sm_scale)()
    assert errors(output, inputs)[0] <= MAX_REL_ERROR[SHAPE.dtype]
    assert triton.note() == str(study.chosen)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("config", SPACE, ids=str)
def test_every_choice_gives_the_same_attention(config, causal):
    workload = Workload(batch=1, heads=2, seq_len=640, head_dim=256, causal=causal, dtype="float16")
    inputs = make_inputs(workload, seed=2)
    output = stock.forward(inputs.q, inputs.k, inputs.v, causal, workload.sm_scale, config=config)
    torch.cuda.synchronize()
    error, lse_error = errors(output, inputs)
    assert error <= MAX_REL_ERROR[workload.dtype]
    assert lse_error < 1e-3
