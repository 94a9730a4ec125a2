"""Measuring for real: what is right is timed, what is not has a status, and the others go on."""

import pytest
import torch

from kperf.attention.implementations import IMPLEMENTATIONS, Implementation
from kperf.attention.workload import Workload
from kperf.bench.measure import measure
from kperf.bench.points import FailedPoint, MeasuredPoint, Store
from kperf.bench.sweep import Progress, run_sweep
from kperf.record import device

pytestmark = pytest.mark.gpu

SMALL = Workload(batch=1, heads=2, seq_len=256)
OPTIONS = {"figure": "bench", "sweep": "seq_len", "environment": "e", "rounds": 10}


def wrong(q, k, v, causal, sm_scale):
    call = IMPLEMENTATIONS["fa3"].bind(q, k, v, causal, 1.1 * sm_scale)
    return lambda: (call()[0], None)


def partial(q, k, v, causal, sm_scale):
    exact = IMPLEMENTATIONS["fa2"].bind(q, k, v, causal, sm_scale)()[0]

    def call():
        o = torch.empty_like(q)
        o[:, :, :-1].copy_(exact[:, :, :-1])  # the last row is never written
        return o, None

    return call


def raising(*_):
    raise RuntimeError("no kernel image\nmore lines")


def test_what_is_right_is_timed_and_what_is_not_is_said():
    made = [
        IMPLEMENTATIONS["fa3"],
        Implementation("wrong", "wrong", wrong),
        Implementation("partial", "partial", partial),
        Implementation("raising", "raising", raising),
        Implementation("never", "never", raising, unsupported=lambda _: "not for this shape"),
        IMPLEMENTATIONS["improved"],
    ]
    points = {p.implementation: p for p in measure([SMALL], made, **OPTIONS)}
    assert [p.status for p in points.values()] == ["ok", "wrong", "wrong", "failed", "unsupported", "ok"]
    assert points["wrong"].rel_error > 4e-3
    assert points["partial"].rel_error is None  # not a number
    assert points["raising"].message == "RuntimeError: no kernel image"
    assert len({p.run for p in points.values()}) == 1
    for key in ("fa3", "improved"):
        p = points[key]
        assert isinstance(p, MeasuredPoint)
        assert len(p.samples_ms) == len(p.device_states) == 10
        assert p.ceiling_tflops > 300
        assert p.settling.settled or p.settling.seconds >= 6
        assert p.device_states.at_s[-1] - p.device_states.at_s[0] > 1  # blocks lie apart
        assert p.eager_ms > p.median_ms
    assert points["improved"].override_sha256 is not None
    assert points["fa3"].override_sha256 is None
    places = zip(points["fa3"].round_order, points["improved"].round_order, strict=True)
    assert all({first, second} == {0, 1} for first, second in places)


def test_what_does_not_fit_is_out_of_memory_and_the_sweep_goes_on(tmp_path):
    huge = Workload(batch=4096, seq_len=16384)
    places = [[("seq_len", huge)], [("seq_len", SMALL)]]
    run_sweep(
        places, [IMPLEMENTATIONS["fa3"]], Store(tmp_path), figure="bench", rounds=10, progress=Progress()
    )  # fmt: skip
    first, second = Store(tmp_path).points()
    assert isinstance(first, FailedPoint)
    assert first.status == "oom"
    assert second.status == "ok"
    (environment,) = Store(tmp_path).environments().values()
    assert environment.gpu == device.gpu_name()
