"""`kperf tune` on a GPU made of arithmetic: a configuration takes the milliseconds that a table says, and noise."""

import math
import random
from contextlib import nullcontext
from types import SimpleNamespace

from kperf.attention import configs
from kperf.attention.configs import Config
from kperf.bench.reference import reference
from kperf.record import device
from kperf.tune import command, tables
from kperf.tune.space import Judged, Needs
from tests.bench.fake_gpu import Gpu
from tests.bench.test_on_a_fake_gpu import attention, stand_in
from tests.conftest import environment

SHAPE = ["--batch", "1", "--n-heads", "1", "--head-dim", "64"]
SPACE = [
    Config(BLOCK_M=m, BLOCK_N=n, PRELOAD_V=first, num_warps=warps, num_stages=stages)
    for m in (32, 64, 128)
    for n in (32, 64)
    for first in (False, True)
    for warps in (4, 8)
    for stages in (1, 2)
]
OTHERS = {"eager": 8.0, "cudnn": 1.0}


def milliseconds(config: Config) -> float:
    """Of one call: what is best of one choice depends on the others, so that no choice is best by itself."""
    rows = abs(math.log2(config.BLOCK_M / 64)) * (1.5 if config.num_warps == 8 else 0.7)
    columns = abs(math.log2(config.BLOCK_N / (64 if config.num_stages == 2 else 32)))
    first = 0.2 if (config.num_stages == 2) == config.PRELOAD_V else 0.0
    narrow = 0.3 * (config.num_warps == 8) * (config.BLOCK_N == 32)
    return (
        1.0
        + 0.5 * rows
        + 0.4 * columns
        + first
        + narrow
        + 0.06 * (config.num_warps == 8)
        + 0.1 * (config.num_stages == 1)
    )


class FakeSearch:
    """What was launched, by configuration; `wrong`: those whose output is not right."""

    def __init__(self, monkeypatch, *, wrong=frozenset(), cost=milliseconds, on_bind=lambda config: None):
        self.gpu = Gpu()
        self.timed: list[Config] = []
        noise = random.Random(3)
        stand_in(self.gpu, monkeypatch)
        exact = {}

        def forward(q, k, v, causal, sm_scale, *, config):
            if config not in self.timed[-1:]:
                self.timed.append(config)
                on_bind(config)
            if id(q) not in exact:
                exact[id(q)] = (q, *reference(q, k, v, causal, sm_scale))  # q itself, or its id is another's
            _, o, lse = exact[id(q)]
            out = o.to(q.dtype) * (2 if config in wrong else 1), lse.clone()
            kept = [tensor.clone() for tensor in out]

            def write():
                for tensor, value in zip(out, kept, strict=True):
                    tensor.copy_(value)

            self.gpu.kernel(str(config), cost(config) * noise.uniform(0.99, 1.01), write)()
            return out

        machine = {key: attention(self.gpu, key, took) for key, took in OTHERS.items()}
        monkeypatch.setattr(command, "stock", SimpleNamespace(forward=forward))
        for module in (command, tables):
            monkeypatch.setattr(module, "IMPLEMENTATIONS", machine)
        monkeypatch.setattr(command, "implementations", lambda keys: [machine[key] for key in keys])
        monkeypatch.setattr(command, "prune", lambda *_, **__: [Judged(one, Needs(1, 0, 1), None) for one in SPACE])
        monkeypatch.setattr(configs, "architecture", lambda: "sm_90a")
        monkeypatch.setattr(device, "why_not_timed", lambda: None)
        monkeypatch.setattr(device, "exclusive", nullcontext)
        monkeypatch.setattr(device, "environment", environment)
        monkeypatch.setattr(device, "gpu_name", lambda: "NVIDIA H200")
