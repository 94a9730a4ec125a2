import math

import numpy as np
import pytest
import torch

from kperf.attention.implementations import Implementation
from kperf.attention.workload import Workload
from kperf.bench import measure as measuring
from kperf.bench.measure import Inputs, _calls_per_sample, errors, make_inputs, median_interval
from kperf.errors import MeasurementError
from kperf.record.store import DeviceState

WORKLOAD = Workload(batch=2, heads=2, seq_len=128, head_dim=64)


@pytest.fixture(scope="module")
def inputs():
    return make_inputs(WORKLOAD, seed=7, device_name="cpu")


def test_inputs_are_the_seeds(inputs):
    assert torch.equal(inputs.q, make_inputs(WORKLOAD, 7, "cpu").q)
    assert not torch.equal(inputs.q, make_inputs(WORKLOAD, 8, "cpu").q)
    assert inputs.q.dtype == torch.bfloat16
    assert inputs.o.dtype == torch.float32


def test_errors_are_those_of_the_definition(inputs):
    rel_error, lse_error = errors((inputs.o * 1.01, inputs.lse + 0.5), inputs)
    assert rel_error == pytest.approx(0.01, rel=1e-4)
    assert lse_error == pytest.approx(0.5, rel=1e-4)
    assert errors((inputs.o.to(torch.bfloat16), None), inputs)[0] < 4e-3


def test_one_element_that_was_not_written_is_no_number(inputs):
    poisoned = inputs.o.clone()
    poisoned[1, 1, 127, 63] = math.nan
    assert math.isnan(errors((poisoned, None), inputs)[0])
    lse = inputs.lse.clone()
    lse[0, 0, 0] = math.nan
    assert math.isnan(errors((inputs.o, lse), inputs)[1])


def test_the_interval_covers_the_median_as_often_as_it_says():
    random = np.random.default_rng(3)
    covered = 0
    for _ in range(200):
        low, high = median_interval(list(random.lognormal(0, 0.1, 15)))
        covered += low <= 1 <= high
    assert 180 <= covered <= 200


def test_equal_samples_have_an_interval_of_a_point():
    assert median_interval([2.0, 2.0, 2.0]) == (2.0, 2.0)


def test_a_sample_is_long_enough_and_the_same_for_all():
    assert _calls_per_sample([0.01, 0.02]) == 50
    assert _calls_per_sample([80.0]) == 1
    assert _calls_per_sample([1e-4]) == 64
    assert _calls_per_sample([]) == 1


def test_errors_of_huge_numbers_are_numbers(inputs):
    huge = Inputs(inputs.q, inputs.k, inputs.v, inputs.o * 1e30, inputs.lse)
    assert errors((inputs.o * 1.01e30, None), huge)[0] == pytest.approx(0.01, rel=1e-4)


class FakeGraph:
    """Replays a call into the output that was captured."""

    def __init__(self, call):
        self.call = call
        self.output = tuple(None if tensor is None else tensor.clone() for tensor in call())

    def replay(self):
        for captured, fresh in zip(self.output, self.call(), strict=True):
            if captured is not None:
                captured.copy_(fresh)


@pytest.fixture
def on_the_cpu(monkeypatch, inputs):
    """`measure` without a GPU: graphs replay at once, and every sample takes a millisecond."""

    def capture(call, calls):
        graph = FakeGraph(call)
        return graph, graph.output

    class Ceiling:
        def sample(self, flush):
            return lambda: None

        def tflops(self):
            return 700.0

    state = DeviceState(sm_mhz=1, power_w=1.0, temperature_c=1, throttle=[])
    monkeypatch.setattr(measuring, "make_inputs", lambda workload, seed: inputs)
    monkeypatch.setattr(measuring, "_bind", lambda item, workload, i: (item.bind(i.q, i.k, i.v, False, 1.0), 1.0))
    monkeypatch.setattr(measuring, "_capture", capture)
    monkeypatch.setattr(measuring, "_replay", lambda graph, flush: lambda: 1.0)
    monkeypatch.setattr(measuring, "Ceiling", Ceiling)
    monkeypatch.setattr(measuring, "_FLUSH_BYTES", 8)
    monkeypatch.setattr(measuring.device, "device_state", lambda: state)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


def implementation(key, bind, **more):
    return Implementation(key, key, bind, **more)


def test_only_what_is_right_gets_a_time(on_the_cpu, inputs):
    right = inputs.o.to(torch.bfloat16), inputs.lse
    eager = iter([right, right, MemoryError()])

    def out_of_memory(*_):
        raise torch.OutOfMemoryError("too large")

    def fails_when_eager(*_):
        def call():
            output = next(eager)
            if isinstance(output, Exception):
                raise torch.OutOfMemoryError("only now")
            return output

        return call

    made = [
        implementation("right", lambda *_: lambda: right),
        implementation("wrong", lambda *_: lambda: (right[0] * 1.1, None)),
        implementation("lse", lambda *_: lambda: (right[0], inputs.lse + 0.1)),
        implementation("large", out_of_memory),
        implementation("later", fails_when_eager),
        implementation("never", out_of_memory, unsupported=lambda _: "not for this shape"),
        implementation("absent", out_of_memory, missing=lambda: "not installed"),
        implementation("right too", lambda *_: lambda: right),
    ]
    points = measuring.measure(WORKLOAD, made, figure="bench", sweep="seq_len", environment="e", rounds=12)
    assert [p.implementation for p in points] == [item.key for item in made]
    statuses = ["ok", "wrong", "wrong", "oom", "oom", "unsupported", "unsupported", "ok"]
    assert [p.status for p in points] == statuses
    assert len({p.run for p in points}) == 1
    assert points[1].rel_error == pytest.approx(0.1, rel=0.02)
    first, last = points[0], points[-1]
    assert first.samples_ms == [1.0] * 12
    assert first.tflops == pytest.approx(WORKLOAD.flops / 1e9)
    assert all(len({a, b}) == 2 for a, b in zip(first.round_order, last.round_order, strict=True))
    assert len(set(first.round_order)) > 1  # shuffled


def test_a_broken_gpu_ends_the_measurement_in_one_sentence(on_the_cpu):
    def broken(*_):
        raise torch.AcceleratorError("CUDA error: an illegal memory access\nmore")

    with pytest.raises(MeasurementError, match="broke the GPU's context"):
        measuring.measure(
            WORKLOAD, [implementation("x", broken)], figure="bench", sweep="seq_len", environment="e", rounds=10
        )
