"""The memory's speed: by its clock and bus, and by copies whose times are known."""

from itertools import cycle
from types import SimpleNamespace

import pytest
import torch

from kperf.record import bandwidth


@pytest.fixture
def gpu(monkeypatch):
    """An H200's memory, which copies in 0.125 ms but for one in three copies that is held up."""
    now, taking = [0.0], cycle([0.125, 0.125, 4.0])

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = now[0]

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return end.at - self.at

    class Tensor:
        def __init__(self, size):
            self.size = size

        def copy_(self, source):
            assert source.size == self.size == 256 << 20
            now[0] += next(taking)

    fake = SimpleNamespace(
        empty=lambda size, dtype, device: Tensor(size),
        empty_like=lambda tensor: Tensor(tensor.size),
        uint8=torch.uint8,
        OutOfMemoryError=torch.OutOfMemoryError,
        cuda=SimpleNamespace(Event=Event),
    )
    clocks = {bandwidth.pynvml.NVML_CLOCK_MEM: 3201}
    monkeypatch.setattr(bandwidth, "torch", fake)
    monkeypatch.setattr(bandwidth, "nvml_handle", lambda: None)
    monkeypatch.setattr(bandwidth.pynvml, "nvmlDeviceGetMaxClockInfo", lambda handle, which: clocks[which])
    monkeypatch.setattr(bandwidth.pynvml, "nvmlDeviceGetMemoryBusWidth", lambda handle: 6144)
    bandwidth.measure.cache_clear()
    yield fake
    bandwidth.measure.cache_clear()


def test_the_peak_is_two_transfers_a_clock_and_a_copy_reads_and_writes(gpu):
    found = bandwidth.measure()
    # 4.9 TB/s, as NVIDIA's data sheet of the H200 has it
    assert found.peak_gb_per_s == pytest.approx(2 * 3201e6 * 6144 / 8 / 1e9, rel=1e-9)
    assert found.copy_gb_per_s == pytest.approx(2 * (256 << 20) / 0.125e-3 / 1e9)
    assert bandwidth.measure() is found


def test_a_full_gpu_has_none(gpu):
    def full(*_, **__):
        raise torch.OutOfMemoryError

    gpu.empty = full
    assert bandwidth.measure() is None
