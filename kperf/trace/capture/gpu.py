"""What tracing a script asks of the GPU: marks around launches, a buffer for the events of kernels, and its bytes."""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kperf.compat.torch import spin
from kperf.errors import UsageError

Mark = Any
"""A point in a stream (a CUDA event)."""

_SPIN_CYCLES = 200_000
"""The GPU spins this long (about 0.1 ms) before a launch that is timed alone, so that the host is ahead of it."""


class Span:
    """From one mark in a stream to another; once it is over and was asked for, only its milliseconds are kept."""

    def __init__(self, start: Mark, end: Mark) -> None:
        """Both marks are in the stream already."""
        self._marks: tuple[Mark, Mark] | None = (start, end)
        self._milliseconds = 0.0

    def milliseconds(self, gpu: "Gpu") -> float:
        """Its time; waits for its end."""
        if self._marks is not None:
            self._milliseconds, self._marks = gpu.milliseconds(*self._marks), None
        return self._milliseconds

    def is_over(self, gpu: "Gpu") -> bool:
        """Whether to ask for its time waits for nothing."""
        return self._marks is None or gpu.is_over(self._marks[1])


def times(spans: Iterable[Span], gpu: "Gpu", *, wait: bool) -> list[float]:
    """Milliseconds of each span; without `wait` of those that are over. A GPU that has failed knows no more of them."""
    milliseconds = []
    for span in spans:
        try:
            if wait or span.is_over(gpu):
                milliseconds.append(span.milliseconds(gpu))
        except RuntimeError:  # an error of the script's own kernels, after which the driver answers nothing
            continue
    return milliseconds


class Gpu:
    """The current CUDA device. Streams are the integers that Triton launches on."""

    def __init__(self) -> None:
        """Nothing is asked of the device before the script's first launch."""
        self._streams: dict[tuple[int, int], torch.cuda.Stream] = {}

    def device(self) -> int:
        """Which of the process's GPUs is the current one."""
        return torch.cuda.current_device()

    def at(self, device: int) -> AbstractContextManager[Any]:
        """Within it, that GPU is the current one."""
        return torch.cuda.device(device)

    def stream(self) -> int:
        """The current stream."""
        current: int = torch.cuda.current_stream().cuda_stream
        return current

    def capturing(self) -> bool:
        """Whether launches go into a CUDA graph now instead of being run."""
        return torch.cuda.is_current_stream_capturing()

    def mark(self, stream: int) -> Mark:
        """A point in the stream after all that was launched so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream(stream))
        return event

    def spin(self, stream: int) -> None:
        """Keep the stream busy while the host prepares a launch."""
        with self.on(stream):
            spin(_SPIN_CYCLES)

    def is_over(self, mark: Mark) -> bool:
        """Whether all before a mark is done."""
        over: bool = mark.query()
        return over

    def milliseconds(self, start: Mark, end: Mark) -> float:
        """Time between two marks; waits for the second."""
        end.synchronize()
        elapsed: float = start.elapsed_time(end)
        return elapsed

    def on(self, stream: int) -> AbstractContextManager[None]:
        """Within it, what is copied and set is in the order of that stream."""
        return torch.cuda.stream(self._stream(stream))

    def buffer(self, size: int) -> torch.Tensor:
        """Zeroed bytes on the device. Raises `UsageError` if there is no memory for them."""
        try:
            return torch.zeros(size, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            raise UsageError(
                f"its events need {size >> 20} MB of GPU memory and there is less: give fewer with --memory"
            ) from None

    def free_bytes(self) -> int:
        """What can be allocated on the device: what the driver has, and what torch keeps of freed tensors."""
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()

    def to_host(self, buffer: torch.Tensor) -> NDArray[np.uint8]:
        """The bytes, once they are written."""
        host: NDArray[np.uint8] = buffer.cpu().numpy()
        return host

    def _stream(self, stream: int) -> torch.cuda.Stream:
        key = self.device(), stream  # 0 is the default stream of each
        if key not in self._streams:
            self._streams[key] = torch.cuda.ExternalStream(stream) if stream else torch.cuda.default_stream()
        return self._streams[key]
