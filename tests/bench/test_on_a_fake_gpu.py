"""The measurement on a GPU whose times are known: what is checked, what is timed, and what a record then says."""

import functools
import itertools
import math

import pytest
import torch

from kperf.attention import inputs as drawing
from kperf.attention.implementations import Implementation
from kperf.attention.workload import Workload
from kperf.bench import measure as measuring
from kperf.bench import power, turns
from kperf.bench import reference as exactly
from kperf.bench.reference import make_inputs, reference, reference_gradients
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.record.store import DeviceState, DeviceStates
from tests.bench.fake_gpu import COLD_MS, HOST_MS, Gpu

WORKLOAD = Workload(batch=1, heads=2, seq_len=128, head_dim=64)
STATE = DeviceState(sm_mhz=1500, power_w=600.0, temperature_c=50, throttle=[])


@pytest.fixture
def gpu(monkeypatch):
    gpu = Gpu()
    stand_in(gpu, monkeypatch)
    return gpu


def stand_in(gpu, monkeypatch):
    for module in (measuring, turns):
        gpu.stand_in(monkeypatch, module)
    on_the_cpu = functools.partial(drawing.draw, device="cpu")
    monkeypatch.setattr(exactly, "draw", lambda *what: on_the_cpu(*what[:4], kv_heads=(*what, None)[5]))
    turns.capture_stream.cache_clear()
    monkeypatch.setattr(turns, "_CEILING_N", 16)
    monkeypatch.setattr(device, "device_state", lambda: STATE)
    monkeypatch.setattr(device, "other_processes", lambda: 0, raising=False)


def attention(gpu, key, milliseconds, *, spoil=lambda o, lse: None, eager_only=False, n_bytes=0):
    """An implementation that is right but for `spoil`, and takes so long; its replays may write nothing."""

    def bind(q, k, v, causal, sm_scale):
        exact_o, exact_lse = reference(q, k, v, causal, sm_scale)
        o, lse = exact_o.to(q.dtype), exact_lse.clone()
        spoil(o, lse)
        out = torch.empty_like(o), torch.empty_like(lse)
        first = iter([True])

        def write():
            if not eager_only or next(first, False):
                out[0].copy_(o)
                out[1].copy_(lse)

        launch = gpu.kernel(key, milliseconds, write, n_bytes)

        def call():
            launch()
            return out

        return call

    return Implementation(key, key, bind)


def measure(*implementations, workload=WORKLOAD, rounds=16):
    points = measuring.measure(
        [workload], implementations, figure="bench", sweep="seq_len", environment="e", rounds=rounds
    )
    return points if len(points) > 1 else points[0]


def test_several_inputs_are_timed_in_the_same_rounds(gpu):
    flat, peaked = (WORKLOAD.model_copy(update={"inputs": kind}) for kind in ("normal", "x4"))
    made = [attention(gpu, "x", 1.0), attention(gpu, "y", 2.0)]
    points = measuring.measure([flat, peaked], made, figure="fig12_inputs", sweep="seq_len", environment="e", rounds=16)
    assert [(p.inputs, p.implementation) for p in points] == [
        ("normal", "x"), ("normal", "y"), ("x4", "x"), ("x4", "y")
    ]  # fmt: skip
    assert len({p.run for p in points}) == 1
    assert all({p.round_order[n] for p in points} == {0, 1, 2, 3} for n in range(16))


@pytest.mark.parametrize(("milliseconds", "rounds"), [(9.0, 16), (11.0, 32), (29.0, 48), (100.0, 48)])
def test_of_long_samples_more_are_taken(gpu, milliseconds, rounds):
    quick, slow = measure(attention(gpu, "quick", milliseconds / 2), attention(gpu, "slow", milliseconds * 3 / 2))
    assert len(quick.samples_ms) == len(slow.samples_ms) == rounds
    assert len(quick.device_states) == len(quick.round_order) == rounds


def test_rounds_are_taken_in_blocks_that_begin_a_quarter_of_a_second_apart(gpu, monkeypatch):
    begins = []  # who else uses the GPU is asked as a block begins
    monkeypatch.setattr(device, "other_processes", lambda: begins.append(gpu.now_ms) or 0)
    measure(attention(gpu, "x", 1.0), rounds=16)
    assert len(begins) == 8
    assert all(250 <= after - before < 300 for before, after in itertools.pairwise(begins))


def test_a_sample_is_a_calls_share_of_a_replay_after_a_flush(gpu):
    quick, slow = measure(attention(gpu, "quick", 0.03), attention(gpu, "slow", 3.0))
    assert quick.calls_per_sample == slow.calls_per_sample == 17  # half a millisecond of the quickest
    assert quick.samples_ms == pytest.approx([0.03 + COLD_MS / 17] * 48)
    assert slow.samples_ms == pytest.approx([3.0 + COLD_MS / 17] * 48)
    assert slow.median_ms == pytest.approx(3.0 + COLD_MS / 17)
    assert slow.tflops == pytest.approx(WORKLOAD.flops / slow.median_ms / 1e9)
    assert set(gpu.flushed_bytes) == {256 << 20}


def test_an_eager_time_is_from_python_to_the_gpus_end_with_a_cold_cache(gpu):
    assert measure(attention(gpu, "x", 3.0)).eager_ms == pytest.approx(HOST_MS + 3.0 + COLD_MS)


def test_times_are_medians(monkeypatch):
    gpu = Gpu()
    launches = iter(range(10**6))
    gpu.slowdown = lambda _: 40.0 if next(launches) % 5 == 0 else 1.0  # one in five is held up
    stand_in(gpu, monkeypatch)
    monkeypatch.setattr(gpu, "ceiling_ms", 2.0)
    point = measure(attention(gpu, "x", 3.0), rounds=40)
    assert point.median_ms == pytest.approx(3.0 + COLD_MS)
    assert point.eager_ms == pytest.approx(HOST_MS + 3.0 + COLD_MS)
    assert point.ceiling_tflops == pytest.approx(2 * 8192**3 / (2.0 + COLD_MS) / 1e9)


def test_the_ceiling_is_of_a_product_of_8192_cubed(gpu):
    assert turns.CEILING_FLOPS == 1_099_511_627_776
    point = measure(attention(gpu, "x", 1.0))
    assert "cublas 16" in gpu.ran
    assert point.ceiling_tflops == pytest.approx(1_099_511_627_776 / (2.0 + COLD_MS) / 1e9)


def test_the_order_in_a_round_is_the_one_that_is_recorded(gpu):
    keys = ["a", "b", "c"]
    points = measure(*(attention(gpu, key, 1.0 + n) for n, key in enumerate(keys)), rounds=16)
    rounds = [dict(zip(keys, places, strict=True)) for places in zip(*(p.round_order for p in points), strict=True)]
    assert all(sorted(places.values()) == [0, 1, 2] for places in rounds)
    assert len({tuple(places.values()) for places in rounds}) > 2
    ran = "".join(name for name in gpu.ran if name in keys)
    recorded = ["".join(sorted(places, key=places.get)) for places in rounds]
    position = 0
    for order in recorded:  # each round's kernels ran one after the other, in this order, and later than the last
        position = ran.index(order, position) + len(order)
    assert [p.device_states for p in points] == [DeviceStates.of([STATE] * 16)] * 3


@pytest.mark.parametrize(
    ("spoil", "dtype", "status"),
    [
        (lambda o, lse: None, "bfloat16", "ok"),
        (lambda o, lse: o.mul_(1.0078125), "bfloat16", "wrong"),  # 8e-3, where rounding alone gives 2e-3
        (lambda o, lse: o.mul_(1.002), "float16", "wrong"),
        (lambda o, lse: o.mul_(1.0005), "float16", "ok"),
        (lambda o, lse: o[0, 1, 127, 63:].fill_(math.nan), "bfloat16", "wrong"),
        (lambda o, lse: lse.mul_(1.0005), "bfloat16", "ok"),
        (lambda o, lse: lse.mul_(1.002), "bfloat16", "wrong"),
        (lambda o, lse: lse[0, 1, 127:].fill_(math.nan), "bfloat16", "wrong"),
    ],
    ids=["right", "o off", "o off in float16", "o within", "a NaN in o", "lse within", "lse off", "a NaN in lse"],
)
def test_what_is_not_right_has_no_time(gpu, spoil, dtype, status):
    point = measure(attention(gpu, "x", 1.0, spoil=spoil), workload=WORKLOAD.model_copy(update={"dtype": dtype}))
    assert point.status == status


def test_memory_is_the_most_during_a_call_beyond_what_was_held_before(gpu):
    gpu.allocated = 10**6
    points = measure(attention(gpu, "x", 1.0, n_bytes=5 << 20), attention(gpu, "y", 1.0))
    assert [p.peak_bytes for p in points] == [5 << 20, 0]


def test_what_runs_out_of_memory_stays_a_row_and_the_others_are_timed(gpu):
    def too_large(*_):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 128.00 GiB.\nmore")

    def in_a_call(*_):
        return too_large

    gpu.allocated = 12_300_000_000
    made = [Implementation("a", "a", too_large), attention(gpu, "x", 1.0), Implementation("b", "b", in_a_call)]
    first, right, last = measure(*made)
    assert [p.status for p in (first, right, last)] == ["oom", "ok", "oom"]
    assert "beside the 12.3 GB that the inputs and the other implementations hold" in first.message
    assert (first.implementation, first.flops) == ("a", WORKLOAD.flops)


def test_graphs_give_their_memory_back_before_single_calls_are_timed(gpu):
    when = []

    def watched(bind):
        def bound(*given):
            call = bind(*given)
            return lambda: when.append(gpu.reset_graphs) or call()

        return bound

    made = [Implementation(key, key, watched(attention(gpu, key, 1.0).bind)) for key in "xy"]
    measure(*made)
    assert when[0] == 0
    assert when[-2 * measuring._EAGER_CALLS :] == [2] * 2 * measuring._EAGER_CALLS


def test_what_memory_is_too_small_for_when_called_singly_is_out_of_memory_too(gpu):
    """The first call, the one whose memory is taken, and those of captures fit; a single one later does not."""
    bind, calls = attention(gpu, "x", 1.0).bind, []

    def limited(*given):
        call = bind(*given)

        def counted():
            calls.append(gpu._capturing)
            if len(calls) > 8:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return call()

        return counted

    point = measure(Implementation("x", "x", limited))
    assert point.status == "oom"


def test_what_an_implementation_refuses_when_bound_is_unsupported(gpu):
    def refuses(*_):
        raise UsageError("torch's back end refuses: too wide")

    points = measure(Implementation("a", "a", refuses), attention(gpu, "x", 1.0))
    assert [(p.status, p.message) for p in points] == [
        ("unsupported", "torch's back end refuses: too wide"),
        ("ok", ""),
    ]


def differentiable(gpu, key, spoil=1.0, tolerance=1.0):
    """Eager attention, whose backward pass is a kernel of 2 ms that takes 3 MB."""

    class Attend(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, causal, sm_scale):
            o, lse = reference(q, k, v, causal, sm_scale)
            ctx.save_for_backward(q, k, v, o, lse)
            ctx.settings = causal, sm_scale
            out = o.to(q.dtype)
            gpu.kernel(f"{key} forward", 1.0, lambda: out.copy_(o), n_bytes=1 << 20)()
            return out

        @staticmethod
        def backward(ctx, do):
            dq, dk, dv = reference_gradients(*ctx.saved_tensors, do, *ctx.settings)
            made = [tensor.to(do.dtype) for tensor in (dq * spoil, dk, dv)]
            out = [tensor.clone() for tensor in made]

            def write():
                for to, tensor in zip(out, made, strict=True):
                    to.copy_(tensor)

            gpu.kernel(f"{key} backward", 2.0, write, n_bytes=3 << 20)()
            return *out, None, None

    def bind(q, k, v, causal, sm_scale):
        return lambda: (Attend.apply(q, k, v, causal, sm_scale), None)

    return Implementation(key, key, bind, differentiable=True, grouped=True, tolerance=tolerance)


@pytest.mark.parametrize("kv_heads", [None, 1])
def test_a_backward_pass_is_checked_and_timed_without_its_forward_pass(gpu, kv_heads):
    workload = WORKLOAD.model_copy(update={"backward": True, "causal": True, "kv_heads": kv_heads})
    made = [
        differentiable(gpu, "right"),
        differentiable(gpu, "off", spoil=1.012),
        differentiable(gpu, "tolerated", spoil=1.012, tolerance=2.0),
        attention(gpu, "forward only", 1.0),
    ]
    right, off, tolerated, none = measure(*made, workload=workload)
    assert right.status == "ok"
    assert right.backward
    assert right.median_ms == pytest.approx(2.0 + COLD_MS)
    assert right.tflops == pytest.approx(2.5 * WORKLOAD.flops / 2 / right.median_ms / 1e9)
    assert right.peak_bytes == 3 << 20
    assert (off.status, none.status, none.message) == ("wrong", "unsupported", "it computes forward only")
    assert off.rel_error == pytest.approx(12e-3, rel=0.1)
    assert (tolerated.status, tolerated.max_rel_error) == ("ok", 2 * 2.5 * 4e-3)
    first_round = gpu.ran.index("cublas 16")
    assert "right forward" not in gpu.ran[first_round + 10 :]


def test_what_a_graph_does_not_write_is_not_right_from_before(gpu):
    assert measure(attention(gpu, "x", 1.0, eager_only=True)).status == "wrong"


def test_alone_a_graph_is_as_long_as_asked_for_and_right(gpu):
    inputs = make_inputs(WORKLOAD, 1)
    candidate, flops = measuring.prepare_alone(attention(gpu, "x", 3.0), WORKLOAD, inputs, 20.0)
    assert flops == 7 * WORKLOAD.flops
    before = gpu.now_ms
    candidate.graph.replay()
    assert gpu.now_ms - before == pytest.approx(21.0)
    spoilt = attention(gpu, "x", 3.0, spoil=lambda o, lse: o.mul_(2))
    with pytest.raises(MeasurementError, match="relative error"):
        measuring.prepare_alone(spoilt, WORKLOAD, inputs, 20.0)


def test_alone_only_the_settled_half_is_the_sample(monkeypatch):
    """For the first second the GPU is slow and cool; then a replay of 7 calls takes 10.5 ms at 600 W."""
    gpu = Gpu(slowdown=lambda now_ms: 2.0 if now_ms < 1000 else 1.0)
    stand_in(gpu, monkeypatch)
    gpu.stand_in(monkeypatch, power)
    inputs = make_inputs(WORKLOAD, 1)
    candidate, flops = measuring.prepare_alone(attention(gpu, "x", 1.5), WORKLOAD, inputs, 20.0)
    gpu.now_ms = 0.0

    def energy_j():
        """Counted on every 100 ms: 300 W in the first second, then 600."""
        seconds = gpu.now_ms // 100 / 10
        return 300 * seconds + 300 * max(0.0, seconds - 1)

    asked_ms = []

    def state():
        asked_ms.append(gpu.now_ms)
        hot = gpu.now_ms >= 1000
        return STATE.model_copy(update={"sm_mhz": 1700 if hot else 1200, "temperature_c": 60 if hot else 40})

    monkeypatch.setattr(device, "energy_j", energy_j)
    monkeypatch.setattr(device, "device_state", state)
    alone = power._Alone("x", candidate, flops)
    alone.run(2.0)
    (sample,) = alone.samples
    assert sample.tflops == pytest.approx(flops / 10.5e-3 / 1e12, rel=0.03)
    assert sample.power_w == pytest.approx(600, rel=0.05)
    assert sample.energy_j == pytest.approx(600 * sample.energy_s, rel=0.05)
    assert 0.7 <= sample.energy_s <= 1.0
    assert (sample.sm_mhz, sample.temperature_c) == (1700, 60)
    assert max(later - before for before, later in itertools.pairwise(asked_ms)) < 100


def test_a_counter_that_does_not_step_is_said(gpu, monkeypatch):
    gpu.stand_in(monkeypatch, power)
    inputs = make_inputs(WORKLOAD, 1)
    candidate, flops = measuring.prepare_alone(attention(gpu, "x", 1.5), WORKLOAD, inputs, 20.0)
    monkeypatch.setattr(device, "energy_j", lambda: 5.0)
    with pytest.raises(MeasurementError, match="does not step"):
        power._Alone("x", candidate, flops).run(0.2)


def test_rounds_are_timed_once_the_clock_has_settled(monkeypatch):
    """In the first seconds kernels get slower and slower, as a GPU at its power cap does."""
    gpu = Gpu(slowdown=lambda now_ms: min(1.5, 1 + now_ms / 4000))
    stand_in(gpu, monkeypatch)
    point = measure(attention(gpu, "x", 3.0), rounds=16)
    assert point.samples_ms == pytest.approx([4.5 + COLD_MS] * 16, rel=0.01)
    assert point.settling.settled
    assert point.idle_share == pytest.approx(0.0, abs=0.01)
    assert point.settling.seconds >= 1.0


def test_graphs_of_one_call_take_turns_too(gpu):
    inputs = make_inputs(WORKLOAD, 1)
    quick, slow = (
        measuring.prepare_alone(attention(gpu, key, milliseconds), WORKLOAD, inputs, milliseconds)[0]
        for key, milliseconds in (("quick", 3.0), ("slow", 6.0))
    )
    timed = turns.time_in_turn([quick, slow], 8)
    assert quick.samples_ms == pytest.approx([3.0 + COLD_MS] * 8, rel=0.01)
    assert slow.samples_ms == pytest.approx([6.0 + COLD_MS] * 8, rel=0.01)
    assert timed.settling.settled
    assert len(timed.states) == len(timed.ceiling_ms) == 8


def test_a_clock_that_never_settles_is_said(monkeypatch):
    gpu = Gpu(slowdown=lambda now_ms: 1.1 ** (now_ms / 250 % 20))
    stand_in(gpu, monkeypatch)
    point = measure(attention(gpu, "x", 3.0), rounds=16)
    assert not point.settling.settled
    assert point.settling.shift > 0.01


def test_what_is_measured_is_drawn_by_the_workload_s_kind():
    normal, sink = (make_inputs(WORKLOAD.model_copy(update={"inputs": kind}), 1, "cpu") for kind in ("normal", "sink"))
    assert torch.equal(sink.k[:, :, 0], torch.ones_like(sink.k[:, :, 0]))
    assert torch.equal(sink.k[:, :, 1:], normal.k[:, :, 1:])
