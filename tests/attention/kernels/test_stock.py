"""The plain Triton kernel in a configuration: right in Triton's interpreter, and launched with what the file says."""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from kperf.attention import configs
from kperf.attention.configs import Config
from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.kernels import stock
from kperf.attention.workload import Workload
from tests.attention.kernels.interpreting import of_stock
from tests.trace.capture import fake_gpu

CONFIG = Config(BLOCK_M=64, BLOCK_N=32, PRELOAD_V=True, num_warps=4, num_stages=2)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(64, 32), (32, 64), (64, 16)])
def test_every_order_and_tile_computes_attention(interpreted, rows, columns, first, causal):
    config = Config(BLOCK_M=rows, BLOCK_N=columns, PRELOAD_V=first, num_warps=4, num_stages=2)
    rel_error, lse_error = interpreted(of_stock, config, causal)
    assert rel_error < 1e-3
    assert lse_error < 1e-4


class CappedGpu:
    """A GPU that would draw 900 W, idle 180 W, and halves its clock where a second's mean is above 700 W.

    Its host needs 100 us a launch.
    """

    def __init__(self, monkeypatch):
        self.now, self.busy, self.captured = 100.0, [], None
        monkeypatch.setattr(stock.time, "sleep", self.sleep)
        monkeypatch.setattr(torch.cuda, "Event", self.event)
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(kernels=[]))
        monkeypatch.setattr(torch.cuda, "graph", self.capture)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)

    def sleep(self, seconds):
        self.now += seconds

    def event(self, enable_timing):
        made = SimpleNamespace()
        made.record = lambda: setattr(made, "at", self.now)
        made.elapsed_time = lambda end: (end.at - made.at) * 1e3
        return made

    @contextmanager
    def capture(self, graph):
        self.captured = graph
        yield
        self.captured = None
        graph.replay = lambda: [self.compute(seconds) for seconds in graph.kernels]

    def launch(self, seconds):
        if self.captured is not None:
            self.captured.kernels.append(seconds)
            return
        self.now += 100e-6
        self.compute(seconds)

    def compute(self, seconds):
        recently = sum(end - max(begin, self.now - 1) for begin, end in self.busy if end > self.now - 1)
        seconds *= 2 if 180 + 720 * recently > 700 else 1
        self.busy.append((self.now, self.now + seconds))
        self.now += seconds


@pytest.mark.parametrize("milliseconds", [0.01, 0.3, 30.0])
def test_the_autotuner_times_configurations_at_one_clock_and_without_their_launches(monkeypatch, milliseconds):
    gpu = CappedGpu(monkeypatch)
    gpu.compute(5.0)  # as other work has left it
    for slower in (1.0, 1.3, 1.02, 1.1, 1.0, 1.2):
        seconds = milliseconds * slower / 1e3
        gpu.launch(seconds)
        middle, low, high = stock._bench(lambda: gpu.launch(seconds), (0.5, 0.2, 0.8))  # noqa: B023
        assert (low, middle, high) == pytest.approx((milliseconds * slower,) * 3)
    assert gpu.now < 100 + 5 + 6 * 0.7


@pytest.fixture
def launches(tmp_path, monkeypatch):
    """On a GPU that is not there; the configurations lie in `tmp_path`."""
    fake_gpu.install(tmp_path, monkeypatch)
    monkeypatch.setenv(configs.FOLDER, str(tmp_path))
    monkeypatch.delenv(configs.AUTOTUNE, raising=False)
    fake_gpu.LAUNCHES.clear()
    return fake_gpu.LAUNCHES


def test_the_kernel_is_launched_in_the_configuration_that_the_file_has(launches):
    workload = Workload(batch=1, heads=2, seq_len=256, head_dim=64, causal=True, dtype="float16")
    configs.write("sm_90a", {configs.class_of(workload): CONFIG})
    q, k, v = (torch.zeros(workload.shape, dtype=torch.float16) for _ in range(3))
    triton = IMPLEMENTATIONS["triton"]
    o, lse = triton.forward(q, k, v, workload.causal, workload.sm_scale)()
    assert (o.shape, lse.shape) == (q.shape, q.shape[:3])
    (launch,) = launches
    assert launch.grid == (256 // CONFIG.BLOCK_M, 2, 1)
    boxes = [list(one.block_shape) for one in launch.arguments if hasattr(one, "block_shape")]
    assert boxes == [[64, 64], [32, 64], [32, 64], [64, 64]]
    assert triton.note() == str(CONFIG)
