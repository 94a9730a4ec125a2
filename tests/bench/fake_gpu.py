"""A GPU made of arithmetic: kernels take known times on its clock, a cold L2 costs extra, graphs replay what they saw.

It stands where `torch.cuda` and the clock stand, so that what is tested is the measurement as it is, down to the order
in which it flushes, records events and replays.
"""

import gc
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import torch

from kperf.bench import turns
from kperf.record import device
from tests.conftest import STATE

FLUSH_MS = 0.1
COLD_MS = 0.05
"""What the first kernel after a flush takes beyond its time."""
UPLOAD_MS = 5.0
"""What the first replay of a graph takes beyond its kernels."""
HOST_MS = 0.01
"""What an eager call takes before its kernel begins."""


class Gpu:
    """`now_ms` is the time on host and GPU alike; `slowdown(now_ms)` is by how much kernels take longer then."""

    def __init__(self, slowdown=lambda now_ms: 1.0):
        self.now_ms = 0.0
        self.slowdown = slowdown
        self.cold = False
        self.flushed_bytes = []
        self.ran = []
        self.reset_graphs = 0
        self.allocated = 0
        self.peak = 0
        self._capturing = None

    def kernel(self, name, milliseconds, action=lambda: None, n_bytes=0):
        """A callable that runs it now or, while a graph captures, makes it a node; it needs so many bytes meanwhile."""
        node = (name, milliseconds, action)

        def call():
            self.peak = max(self.peak, self.allocated + n_bytes)
            if self._capturing is not None:
                self._capturing.append(node)
            else:
                self.now_ms += HOST_MS
                self.run(*node)

        return call

    def run(self, name, milliseconds, action):
        self.ran.append(name)
        self.now_ms += milliseconds * self.slowdown(self.now_ms) + COLD_MS * self.cold
        self.cold = False
        action()

    def stand_in(self, monkeypatch, module):
        """Put this GPU where `module` looks for one."""
        gpu = self

        class Graph:
            def __init__(self):
                self.nodes = []
                self.uploaded = False

            def reset(self):
                gpu.reset_graphs += 1

            def replay(self):
                gpu.now_ms += 0.0 if self.uploaded else UPLOAD_MS
                self.uploaded = True
                for node in self.nodes:
                    gpu.run(*node)

        class Event:
            def __init__(self, enable_timing=False):
                self.timing = enable_timing

            def record(self):
                self.at_ms = gpu.now_ms

            def elapsed_time(self, end):
                assert self.timing
                assert end.timing
                return end.at_ms - self.at_ms

            def query(self):
                """Whether it has come to pass: not yet, when one first asks."""
                self.asked, before = True, getattr(self, "asked", False)
                return before

            def synchronize(self):
                pass

        class Flush:
            device = "cuda"

            def __init__(self, n_bytes):
                self.n_bytes = n_bytes

            def zero_(self):
                gpu.now_ms += FLUSH_MS
                gpu.flushed_bytes.append(self.n_bytes)
                gpu.cold = True

        @contextmanager
        def capture(graph, pool, stream):
            assert not gc.isenabled()  # to destroy a graph is "not permitted when stream is capturing"
            gpu._capturing = graph.nodes
            yield
            gpu._capturing = None

        def forget_the_peak():
            gpu.peak = gpu.allocated

        class Torch:
            """torch, whose tensors lie on the CPU whatever is asked for."""

            cuda = SimpleNamespace(
                CUDAGraph=Graph, Event=Event, graph=capture, synchronize=lambda: None, empty_cache=lambda: None,
                Stream=lambda: SimpleNamespace(wait_stream=lambda other: None), current_stream=lambda: None,
                stream=lambda stream: nullcontext(), graph_pool_handle=lambda: None,
                memory_allocated=lambda: gpu.allocated, max_memory_allocated=lambda: gpu.peak,
                reset_peak_memory_stats=forget_the_peak,
            )  # fmt: skip

            def __getattr__(self, name):
                return getattr(torch, name)

            @staticmethod
            def randn(*shape, device="cpu", **more):
                return torch.randn(*shape, **more)

            @staticmethod
            def ones(*shape, device="cpu", **more):
                return torch.ones(*shape, **more)

            @staticmethod
            def empty(*shape, device="cpu", dtype=None):
                return Flush(shape[0]) if dtype is torch.int8 else torch.empty(*shape, dtype=dtype)

            @staticmethod
            def mm(a, b, out):
                gpu.kernel(f"cublas {a.shape[0]}", gpu.ceiling_ms)()

        clock = SimpleNamespace(perf_counter=lambda: gpu.now_ms / 1e3, time=lambda: gpu.now_ms / 1e3)
        monkeypatch.setattr(module, "torch", Torch())
        monkeypatch.setattr(module, "time", clock)

    ceiling_ms = 2.0


def interleaving(monkeypatch):
    """A GPU on which `time_in_turn` takes its turns, with a small ceiling, alone on the machine."""
    gpu = Gpu()
    gpu.stand_in(monkeypatch, turns)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    turns.capture_stream.cache_clear()
    monkeypatch.setattr(turns, "_CEILING_N", 16)
    monkeypatch.setattr(device, "device_state", lambda: STATE)
    monkeypatch.setattr(device, "other_processes", lambda: 0)
    return gpu
