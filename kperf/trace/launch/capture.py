"""Run a traced kernel on the GPU beside the plain one, and bring the whole profile buffer home."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from triton.runtime._allocation import set_profile_allocator

from kperf.attention.implementations import Output, bind_attn_fwd
from kperf.attention.overrides import Override
from kperf.attention.workload import Workload
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.trace.compiler.session import Recording, session

_QUEUE_CYCLES = 20_000_000
"""The GPU spins this long before a timed launch, so that the host's part of the launch is over when it starts."""


@dataclass(frozen=True)
class Traced:
    """A traced kernel, and how its records are kept."""

    override: Override
    recording: Recording


@dataclass(frozen=True)
class Capture:
    """The raw profile buffer of one whole launch (uint8), and the milliseconds of plain and traced launches in turn."""

    buffer: NDArray[np.uint8]
    plain_ms: list[float]
    traced_ms: list[float]


class _Allocator:
    """What Triton asks for the device memory of the records: a buffer of each size, made once, so no launch waits."""

    def __init__(self) -> None:
        self._buffers: dict[int, torch.Tensor] = {}
        self.last: torch.Tensor | None = None

    def __call__(self, size: int, _alignment: int, _stream: int | None) -> torch.Tensor:
        if size not in self._buffers:
            try:
                self._buffers[size] = torch.zeros(size, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                raise UsageError(
                    f"the records of this launch need {size >> 20} MB of GPU memory: trace a smaller workload"
                ) from None
        self.last = self._buffers[size]
        return self.last


@contextmanager
def allocated() -> Iterator[_Allocator]:
    """Records go to a buffer of our own while this is open."""
    allocator = _Allocator()
    set_profile_allocator(allocator)
    try:
        yield allocator
    finally:
        set_profile_allocator(None)


def capture(
    plain: Override,
    traced: Traced,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    workload: Workload,
    rounds: int,
) -> Capture:
    """Launch both in turn `rounds` times on `inputs` (q, k, v as [batch, heads, seq_len, head_dim], on the GPU).

    The buffer is the last launch's. Raises `UsageError` where there is no Hopper GPU or another session is open, and
    `MeasurementError` if the traced kernel's output is not the plain one's.
    """
    if reason := device.why_static():
        raise UsageError(reason)
    causal, scale = workload.causal, workload.sm_scale
    call_plain = bind_attn_fwd(*inputs, causal, scale, plain)
    with allocated() as allocator:
        call_traced = bind_traced(inputs, workload, traced)
        expected, found = call_plain()[0], call_traced()[0]
        if not torch.allclose(expected, found, rtol=0, atol=1e-2 * float(expected.abs().max())):
            raise MeasurementError(f"{traced.override.path} computes something else than {plain.path}")
        times = time_in_turn([call_plain, call_traced], rounds)
        if allocator.last is None:
            raise MeasurementError(f"{traced.override.path} asked for no profile buffer: its records were not lowered")
        return Capture(allocator.last.cpu().numpy(), *times)


def bind_traced(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], workload: Workload, traced: Traced
) -> Callable[[], Output]:
    """A call of the traced kernel, in a session of its own; `allocated` has to be open when it is called."""
    bound = bind_attn_fwd(*inputs, workload.causal, workload.sm_scale, traced.override)

    def call() -> Output:
        with session(traced.recording):
            return bound()

    return call


def time_in_turn(calls: Sequence[Callable[[], object]], rounds: int) -> list[list[float]]:
    """Milliseconds of each call in each round, after a warm-up; in every second round the order is reversed."""
    times: list[list[float]] = [[] for _ in calls]
    for number in range(-2, rounds):
        order = list(range(len(calls)))
        for index in order if number % 2 else reversed(order):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_QUEUE_CYCLES)
            start.record()
            calls[index]()
            end.record()
            torch.cuda.synchronize()
            if number >= 0:
                times[index].append(start.elapsed_time(end))
    return times
