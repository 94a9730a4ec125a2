"""What tracing a script asks of the GPU: events around launches, a buffer for records, and its bytes."""

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


class Gpu:
    """The current CUDA device. Streams are the integers that Triton launches on."""

    def __init__(self) -> None:
        """Nothing is asked of the device before the script's first launch."""
        self._streams: dict[int, torch.cuda.Stream] = {}

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
                f"its records need {size >> 20} MB of GPU memory and there is less: give fewer with --memory"
            ) from None

    def to_host(self, buffer: torch.Tensor) -> NDArray[np.uint8]:
        """The bytes, once they are written."""
        host: NDArray[np.uint8] = buffer.cpu().numpy()
        return host

    def _stream(self, stream: int) -> torch.cuda.Stream:
        if stream not in self._streams:
            known = torch.cuda.ExternalStream(stream) if stream else torch.cuda.default_stream()
            self._streams[stream] = known
        return self._streams[stream]
