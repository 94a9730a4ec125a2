"""What is right is timed; what is not, does not fit, or is not there, gets a point that says so."""

import weakref
from dataclasses import replace

import pytest
import torch

from kperf.attention.implementations import Implementation
from kperf.attention.workload import Workload
from kperf.bench import measure as measuring
from kperf.bench import turns
from kperf.bench.measure import _calls_per_sample
from kperf.bench.reference import expected_of, make_inputs
from kperf.errors import MeasurementError
from kperf.record.store import DeviceState
from tests.bench.test_turns import Event

WORKLOAD = Workload(batch=2, heads=2, seq_len=128, head_dim=64)


@pytest.fixture(scope="module")
def inputs():
    return make_inputs(WORKLOAD, seed=7, device_name="cpu")


def test_a_sample_is_long_enough_and_the_same_for_all():
    assert _calls_per_sample([0.01, 0.02]) == 50
    assert _calls_per_sample([80.0]) == 1
    assert _calls_per_sample([1e-4]) == 64
    assert _calls_per_sample([]) == 1


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
    monkeypatch.setattr(turns, "timed_replay", lambda graph, flush: lambda: 2.0)
    monkeypatch.setattr(turns, "_WINDOW_S", 0.0)
    monkeypatch.setattr(turns, "_BLOCK_S", 0.0)
    monkeypatch.setattr(turns, "_SETTLE_S", 0.0)
    monkeypatch.setattr(measuring, "Ceiling", Ceiling)
    monkeypatch.setattr(measuring, "FLUSH_BYTES", 8)
    monkeypatch.setattr(measuring.device, "device_state", lambda: state)
    monkeypatch.setattr(measuring.device, "other_processes", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "Event", Event)


def implementation(key, bind, **more):
    return Implementation(key, key, bind, **more)


def test_only_what_is_right_gets_a_time(on_the_cpu, inputs):
    exact = expected_of(WORKLOAD, inputs)
    right = exact.o.to(torch.bfloat16), exact.lse
    eager = iter([right, right, MemoryError()])

    def out_of_memory(*_):
        raise torch.OutOfMemoryError("too large")

    def out_of_memory_behind_the_abi(*_):
        raise RuntimeError(
            'torch_call_dispatcher( "aten::new_empty", "", stack.data(), TORCH_ABI_VERSION) API call failed'
        )

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
        implementation("lse", lambda *_: lambda: (right[0], exact.lse + 0.1)),
        implementation("large", out_of_memory),
        implementation("large on the stable ABI", out_of_memory_behind_the_abi),
        implementation("later", fails_when_eager),
        implementation("never", out_of_memory, unsupported=lambda _: "not for this shape"),
        implementation("absent", out_of_memory, missing=lambda: "not installed"),
        implementation("right too", lambda *_: lambda: right),
    ]
    points = measuring.measure([WORKLOAD], made, figure="bench", sweep="seq_len", environment="e", rounds=12)
    assert [p.implementation for p in points] == [item.key for item in made]
    statuses = ["ok", "wrong", "wrong", "oom", "oom", "oom", "unsupported", "unsupported", "ok"]
    assert [p.status for p in points] == statuses
    assert len({p.run for p in points}) == 1
    assert points[1].rel_error == pytest.approx(0.1, rel=0.02)
    first, last = points[0], points[-1]
    assert first.samples_ms == [2.0] * 12
    assert first.tflops == pytest.approx(WORKLOAD.flops / 2e9)
    assert first.peak_bytes == 8
    assert all(len({a, b}) == 2 for a, b in zip(first.round_order, last.round_order, strict=True))
    assert len(set(first.round_order)) > 1  # shuffled


def test_the_results_in_float32_are_there_of_one_workload_at_a_time(on_the_cpu, inputs, monkeypatch):
    exact, made = expected_of(WORKLOAD, inputs), []

    def computed(*_):
        assert [one() for one in made] == [None] * len(made)
        fresh = replace(exact)
        made.append(weakref.ref(fresh))
        return fresh

    monkeypatch.setattr(measuring, "expected_of", computed)
    right = exact.o.to(torch.bfloat16)
    both = [implementation(str(times), lambda *_, times=times: lambda: (right * times, None)) for times in (1, 2)]
    workloads = [WORKLOAD, WORKLOAD.model_copy(update={"inputs": "x4"}), WORKLOAD.model_copy(update={"inputs": "x10"})]
    points = measuring.measure(workloads, both, figure="bench", sweep="seq_len", environment="e", rounds=10)
    assert [one.status for one in points] == ["ok", "wrong"] * 3
    assert len(made) == 3


def test_what_nothing_computes_is_not_computed_in_float32(on_the_cpu):
    said = []
    made = [implementation("never", lambda *_: None, unsupported=lambda _: "not for this shape")]
    (point,) = measuring.measure(
        [WORKLOAD], made, figure="bench", sweep="seq_len", environment="e", rounds=12, on_step=said.append
    )
    assert (point.status, said) == ("unsupported", ["compiling never"])


def test_each_step_is_said_as_it_begins(on_the_cpu, inputs):
    said = []
    right = expected_of(WORKLOAD, inputs).o.to(torch.bfloat16)
    made = [implementation("one", lambda *_: lambda: (right, None))]
    measuring.measure(
        [WORKLOAD], made, figure="bench", sweep="seq_len", environment="e", rounds=12, on_step=said.append
    )
    rounds = [f"round {number} of 12" for number in range(1, 13)]
    assert said == ["compiling one", "computing in float32", "checking one", "settling", *rounds]


def test_a_broken_gpu_ends_the_measurement_in_one_sentence(on_the_cpu):
    def broken(*_):
        raise torch.AcceleratorError("CUDA error: an illegal memory access\nmore")

    with pytest.raises(MeasurementError, match="broke the GPU's context"):
        measuring.measure(
            [WORKLOAD], [implementation("x", broken)], figure="bench", sweep="seq_len", environment="e", rounds=10
        )


def test_each_run_draws_its_inputs_anew_and_all_its_workloads_the_same(on_the_cpu, inputs, monkeypatch):
    drawn = []
    exact = expected_of(WORKLOAD, inputs)
    monkeypatch.setattr(measuring, "make_inputs", lambda workload, seed: drawn.append((workload, seed)) or inputs)
    workloads = [WORKLOAD, WORKLOAD.model_copy(update={"inputs": "x4"})]
    right = implementation("right", lambda *_: lambda: (exact.o.to(torch.bfloat16), exact.lse))
    for _ in range(3):
        measuring.measure(workloads, [right], figure="fig12", sweep="seq_len", environment="e", rounds=10)
    seeds = [seed for _, seed in drawn]
    assert [workload for workload, _ in drawn] == workloads * 3
    assert seeds[::2] == seeds[1::2]
    assert len(set(seeds)) == 3
