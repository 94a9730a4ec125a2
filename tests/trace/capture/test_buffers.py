"""What a capture refuses, on a GPU that is not there: no kernel is timed that computes something else."""

from contextlib import nullcontext

import pytest
import torch

from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.trace.capture import buffers as capturing
from kperf.trace.capture.buffers import capture, same_bits


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(device, "why_static", lambda: None)
    monkeypatch.setattr(device, "exclusive", nullcontext)
    monkeypatch.setattr(capturing, "session", lambda recording: nullcontext())
    monkeypatch.setattr(capturing, "time_in_turn", lambda calls, rounds: pytest.fail("timed"))


def writes(*numbers):
    return lambda: [torch.tensor(numbers)]


def test_without_a_gpu_nothing_is_launched(gpu, monkeypatch):
    monkeypatch.setattr(device, "why_static", lambda: "there is no GPU")
    with pytest.raises(UsageError, match="there is no GPU"):
        capture("k", lambda: pytest.fail("launched"), lambda: pytest.fail("launched"), None, 3)


def test_an_instrumented_kernel_that_computes_something_else_is_not_timed(gpu):
    with pytest.raises(MeasurementError, match="instrumented kernel of k computes something else"):
        capture("k", writes(1.0, 2.0), writes(1.0, 3.0), None, 3)


def test_an_instrumented_kernel_whose_records_were_not_lowered_is_an_error(gpu, monkeypatch):
    monkeypatch.setattr(capturing, "time_in_turn", lambda calls, rounds: [[1.0] * rounds] * 2)
    with pytest.raises(MeasurementError, match="asked for no profile buffer"):
        capture("k", writes(1.0), writes(1.0), None, 3)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.zeros(2, 3), torch.zeros(3, 2), False),
        (torch.arange(6.0).reshape(2, 3).T, torch.arange(6.0).reshape(2, 3).T.contiguous(), True),
    ],
)
def test_bits_are_compared_and_not_numbers(a, b, same):
    assert same_bits(a, b) is same


def test_calls_are_timed_in_turn_each_alone_after_a_warm_up(monkeypatch):
    """On a clock that each call moves by its own time, and the wait before it by a second."""
    clock, called = [0.0], []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            self.at = clock[0]

        def elapsed_time(self, end):
            return end.at - self.at

    def move(milliseconds, name=None):
        clock[0] += milliseconds
        called.append(name)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: move(1000))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: called.append("wait"))
    calls = [lambda: move(2 + len(called) / 1000, "plain"), lambda: move(5, "traced")]
    original, traced = capturing.time_in_turn(calls, 3)
    assert traced == pytest.approx([5, 5, 5])
    turns = [("traced", "plain"), ("plain", "traced")] * 2 + [("traced", "plain")]
    assert called == [step for turn in turns for name in turn for step in (None, name, "wait")]
    assert original == sorted(original)
    assert original[0] == pytest.approx(2, abs=0.1)
    assert original[0] > 2 + 8 / 1000  # two rounds came before
