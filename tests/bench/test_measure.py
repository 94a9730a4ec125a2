import math

import numpy as np
import pytest
import torch

from kperf.attention.implementations import Implementation
from kperf.attention.workload import Workload
from kperf.bench import measure as measuring
from kperf.bench.measure import (
    Inputs,
    _calls_per_sample,
    errors,
    gradient_error,
    make_inputs,
    reference,
    reference_gradients,
)
from kperf.errors import MeasurementError
from kperf.record.store import DeviceState
from tests.attention.handed_in import SCALE, exact, normal, operands
from tests.conftest import STATE

WORKLOAD = Workload(batch=2, heads=2, seq_len=128, head_dim=64)


@pytest.fixture(scope="module")
def inputs():
    return make_inputs(WORKLOAD, seed=7, device_name="cpu")


def test_inputs_are_the_seeds(inputs):
    assert torch.equal(inputs.q, make_inputs(WORKLOAD, 7, "cpu").q)
    assert not torch.equal(inputs.q, make_inputs(WORKLOAD, 8, "cpu").q)
    assert inputs.q.dtype == torch.bfloat16
    assert inputs.o.dtype == torch.float32


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_the_references_are_the_formula_in_both_directions(causal, kv_heads):
    q, k, v = operands(kv_heads=kv_heads, dtype=torch.float64)
    leaves = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    o, lse = exact(*leaves, causal)
    do = normal(*q.shape, dtype=torch.float64, seed=3)
    expected = torch.autograd.grad(o, leaves, do)
    found_o, found_lse = reference(q, k, v, causal, SCALE)
    found = reference_gradients(q, k, v, found_o, found_lse, do, causal, SCALE)
    for one, right in zip((found_o, found_lse, *found), (o.detach(), lse.detach(), *expected), strict=True):
        assert one.shape == right.shape
        assert float((one - right).abs().max()) < 2e-5


def test_a_gradient_that_is_wrong_or_no_number_counts():
    inputs = make_inputs(WORKLOAD.model_copy(update={"backward": True, "heads": 4, "kv_heads": 2}), 7, "cpu")
    dq, dk, dv = inputs.gradients
    assert (dq.shape, dk.shape, dv.shape) == ((2, 4, 128, 64), (2, 2, 128, 64), (2, 2, 128, 64))
    assert not torch.equal(inputs.do, inputs.q)
    assert gradient_error((dq * 1.02, dk, dv * 1.03), inputs) == pytest.approx(0.03, rel=1e-4)
    assert math.isnan(gradient_error((dq * 1.02, dk * math.nan, dv), inputs))


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

    def reset(self):
        self.call = None

    def replay(self):
        for captured, fresh in zip(self.output, self.call(), strict=True):
            if captured is not None:
                captured.copy_(fresh)


@pytest.fixture
def on_the_cpu(monkeypatch, inputs):
    """`measure` without a GPU: graphs replay at once, and every sample takes a millisecond."""

    def capture(call, calls, pool):
        graph = FakeGraph(call)
        return graph, graph.output

    class Ceiling:
        graph = None

    state = DeviceState(sm_mhz=1, power_w=1.0, temperature_c=1, throttle=[])
    monkeypatch.setattr(measuring, "make_inputs", lambda workload, seed: inputs)
    monkeypatch.setattr(
        measuring, "_bind", lambda item, workload, i: measuring._Bound(item.bind(i.q, i.k, i.v, False, 1.0), 1.0, 8)
    )
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(measuring, "capture_graph", capture)
    monkeypatch.setattr(measuring, "timed_replay", lambda graph, flush: lambda: 2.0)
    monkeypatch.setattr(measuring, "_WINDOW_S", 0.0)
    monkeypatch.setattr(measuring, "_BLOCK_S", 0.0)
    monkeypatch.setattr(measuring, "_SETTLE_S", 0.0)
    monkeypatch.setattr(measuring, "Ceiling", Ceiling)
    monkeypatch.setattr(measuring, "FLUSH_BYTES", 8)
    monkeypatch.setattr(measuring.device, "device_state", lambda: state)
    monkeypatch.setattr(measuring.device, "other_processes", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)


class Event:
    """Of rounds that take a millisecond and follow each other."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1.0


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
    points = measuring.measure([WORKLOAD], made, figure="bench", sweep="seq_len", environment="e", rounds=12)
    assert [p.implementation for p in points] == [item.key for item in made]
    statuses = ["ok", "wrong", "wrong", "oom", "oom", "unsupported", "unsupported", "ok"]
    assert [p.status for p in points] == statuses
    assert len({p.run for p in points}) == 1
    assert points[1].rel_error == pytest.approx(0.1, rel=0.02)
    first, last = points[0], points[-1]
    assert first.samples_ms == [2.0] * 12
    assert first.tflops == pytest.approx(WORKLOAD.flops / 2e9)
    assert first.peak_bytes == 8
    assert all(len({a, b}) == 2 for a, b in zip(first.round_order, last.round_order, strict=True))
    assert len(set(first.round_order)) > 1  # shuffled


def test_a_broken_gpu_ends_the_measurement_in_one_sentence(on_the_cpu):
    def broken(*_):
        raise torch.AcceleratorError("CUDA error: an illegal memory access\nmore")

    with pytest.raises(MeasurementError, match="broke the GPU's context"):
        measuring.measure(
            [WORKLOAD], [implementation("x", broken)], figure="bench", sweep="seq_len", environment="e", rounds=10
        )


class Mixture:
    """Rounds of 0.01 s on a clock of our own, whose times fall by 5 % a second until `settles_s`."""

    def __init__(self, monkeypatch, settles_s):
        self.now, self.settles_s = 100.0, settles_s
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(measuring.torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(torch.cuda, "Event", type("Event", (Event,), {"synchronize": lambda _: self.pass_time()}))
        monkeypatch.setattr(measuring, "timed_replay", lambda graph, flush: lambda: self.milliseconds(graph))
        monkeypatch.setattr(measuring.device, "device_state", lambda: STATE)
        monkeypatch.setattr(measuring.device, "other_processes", lambda: 1)
        self.candidates = [measuring.Candidate(None, None, factor, 0.0, None, 0) for factor in (1.0, 2.0, 3.0)]
        ceiling = type("Ceiling", (), {"graph": 1.0})()
        self.turns = measuring._Turns(2, ceiling, None, np.random.default_rng(0))

    def pass_time(self):
        self.now += 0.01

    def milliseconds(self, graph):
        return graph * (1 + 0.05 * max(0.0, 100 + self.settles_s - self.now))


def test_rounds_are_taken_once_the_mixture_has_settled(monkeypatch):
    mixture = Mixture(monkeypatch, settles_s=2.5)
    timed = measuring._time(mixture.candidates, mixture.turns, 40, lambda _: None)
    assert timed.settling.settled
    assert 2.2 <= timed.settling.seconds <= 3.0
    assert timed.settling.shift < 0.01
    for candidate in mixture.candidates:
        assert len(candidate.samples_ms) == len(candidate.places) == 40
        assert max(candidate.samples_ms) < 1.01 * candidate.graph / 2  # of two calls
    assert len(timed.states) == len(timed.ceiling_ms) == 40
    assert timed.other_processes == 1
    assert mixture.now - 100 - timed.settling.seconds >= 8 * 0.25  # blocks lie apart


def test_what_never_settles_is_measured_and_said(monkeypatch):
    mixture = Mixture(monkeypatch, settles_s=1000.0)
    mixture.milliseconds = lambda graph: graph * 1.1 ** int((mixture.now - 100) / 0.25)
    timed = measuring._time(mixture.candidates, mixture.turns, 40, lambda _: None)
    assert not timed.settling.settled
    assert timed.settling.seconds == pytest.approx(6.0, abs=0.3)
    assert timed.settling.shift > 0.03


def test_every_candidate_has_its_own_samples_whatever_the_order(monkeypatch):
    mixture = Mixture(monkeypatch, settles_s=0.0)
    rounds = mixture.turns.mixture(mixture.candidates)
    taken = [next(rounds) for _ in range(20)]
    assert all(round_.samples_ms == [0.5, 1.0, 1.5] for round_ in taken)
    assert all(sorted(round_.places) == [0, 1, 2] for round_ in taken)
    assert len({tuple(round_.places) for round_ in taken}) > 3


class Queue:
    """A GPU that computes what is queued for it, 5 ms a sample, on a clock beside that of the host."""

    def __init__(self, monkeypatch):
        self.host_ms = self.gpu_ms = self.waited_ms = 0.0
        queue = self

        class Event:
            def __init__(self, enable_timing):
                pass

            def record(self):
                queue.work(0.0)
                self.at_ms = queue.gpu_ms

            def synchronize(self):
                queue.host_ms = max(queue.host_ms, self.at_ms)

            def elapsed_time(self, end):
                return end.at_ms - self.at_ms

        def replay(graph, flush):
            queue.host_ms += 0.01
            queue.work(graph)
            return lambda: graph

        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "synchronize", self.drain)
        monkeypatch.setattr(measuring, "timed_replay", replay)
        monkeypatch.setattr(measuring.time, "perf_counter", lambda: self.host_ms / 1e3)
        monkeypatch.setattr(measuring.device, "other_processes", lambda: 0)
        self.candidates = [measuring.Candidate(None, None, 5.0, 0.0, None, 0) for _ in range(2)]
        ceiling = type("Ceiling", (), {"graph": 5.0})()
        self.turns = measuring._Turns(1, ceiling, None, np.random.default_rng(0))

    def work(self, milliseconds):
        self.waited_ms += max(0.0, self.host_ms - self.gpu_ms)
        self.gpu_ms = max(self.gpu_ms, self.host_ms) + milliseconds

    def drain(self):
        self.host_ms = max(self.host_ms, self.gpu_ms)


@pytest.mark.parametrize("stalls_ms", [60.0, 400.0])
def test_the_gpu_does_not_wait_for_a_host_that_stalls_and_where_it_does_that_is_recorded(monkeypatch, stalls_ms):
    """After each eighth timed round the driver does not answer for a while."""
    queue, before = Queue(monkeypatch), []

    def state():
        before.append((queue.gpu_ms, queue.waited_ms))
        queue.host_ms += stalls_ms if len(before) % 8 == 1 else 1.0
        return STATE

    monkeypatch.setattr(measuring.device, "device_state", state)
    timed = measuring._time(queue.candidates, queue.turns, 40, lambda _: None)
    begin_ms, waited_ms = before[0]
    waited = (queue.waited_ms - waited_ms) / (queue.gpu_ms - begin_ms)
    assert (waited > 0.1) == (stalls_ms > 100)
    assert timed.idle_share == pytest.approx(waited, abs=0.03)
    assert queue.host_ms == queue.gpu_ms  # nothing is left queued


def test_no_more_is_queued_than_a_tenth_of_a_second_takes(monkeypatch):
    queue = Queue(monkeypatch)
    rounds = queue.turns.mixture(queue.candidates)
    for _ in range(50):
        next(rounds)
        assert queue.gpu_ms - queue.host_ms <= 100 + 15
    assert queue.gpu_ms - queue.host_ms >= 85
