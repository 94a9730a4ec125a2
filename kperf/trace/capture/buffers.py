"""Run an instrumented kernel on the GPU beside the original one, and bring the whole profile buffer home."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kperf.compat.torch import spin
from kperf.compat.triton.launches import profile_buffer
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.trace.instrument.session import BUFFER_LIMIT, Recording, session

Call = Callable[[], Sequence[torch.Tensor]]
"""A launch with its arguments bound; returns what the kernel wrote."""

_QUEUE_CYCLES = 20_000_000
"""The GPU spins this long before a timed launch, so that the host's part of the launch is over when it starts."""


@dataclass(frozen=True)
class Capture:
    """The raw profile buffer of one whole launch (uint8), and milliseconds of both kernels' launches, interleaved."""

    buffer: NDArray[np.uint8]
    original_ms: list[float]
    instrumented_ms: list[float]


class _Allocator:
    """What Triton asks for the device memory of the events: a buffer of each size, made once, so no launch waits."""

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}
        self.last: torch.Tensor | None = None

    def __call__(self, size: int, _alignment: int, _stream: int | None) -> torch.Tensor:
        if size > BUFFER_LIMIT:
            raise UsageError(
                f"the events of this launch are {size >> 20} MB, and 2047 can be addressed: trace a smaller one"
            )
        if size not in self._buffers:
            try:
                self._buffers[size] = torch.zeros(size, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                raise UsageError(
                    f"the events of this launch need {size >> 20} MB of GPU memory: trace a smaller workload"
                ) from None
        self.last = self._buffers[size]
        return self.last


@contextmanager
def allocated() -> Iterator[_Allocator]:
    """While this is open we are alone on the GPU (`device.exclusive`), and events go to a buffer of our own."""
    allocator = _Allocator()
    with device.exclusive(), profile_buffer(allocator):
        yield allocator


def capture(name: str, original: Call, traced: Call, recording: Recording, rounds: int) -> Capture:
    """Launch the kernel `name` and its instrumented kernel in turn `rounds` times; the buffer is the last launch's.

    Raises `UsageError` where there is no Hopper GPU, another session is open or another process measures on it, and
    `MeasurementError` unless the instrumented kernel's outputs are the original kernel's, bit for bit.
    """
    if reason := device.why_static():
        raise UsageError(reason)
    recorded = in_session(traced, recording)
    with allocated() as allocator:
        expected, instrumented = original(), recorded()
        if not all(map(same_bits, expected, instrumented)):
            raise MeasurementError(
                f"the instrumented kernel of {name} computes something else than the original kernel"
            )
        times = time_in_turn([original, recorded], rounds)
        if allocator.last is None:
            raise MeasurementError(
                f"the instrumented kernel of {name} asked for no profile buffer: its events were not lowered"
            )
        return Capture(allocator.last.cpu().numpy(), *times)


def in_session(traced: Call, recording: Recording) -> Call:
    """A call of the traced kernel, in a session of its own; `allocated` has to be open when it is called."""

    def call() -> Sequence[torch.Tensor]:
        with session(recording):
            return traced()

    return call


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors hold the same bytes: NaNs too, and the signs of zeros."""
    return a.shape == b.shape and bool((a.contiguous().view(torch.uint8) == b.contiguous().view(torch.uint8)).all())


def time_in_turn(calls: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Milliseconds of each call in each round, after a warm-up; in every second round the order is reversed."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(-2, rounds):
        order = list(range(len(calls)))
        for index in order if number % 2 else reversed(order):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            spin(_QUEUE_CYCLES)
            start.record()
            calls[index]()
            end.record()
            torch.cuda.synchronize()
            if number >= 0:
                times[index].append(start.elapsed_time(end))
    return times
