"""Decode a raw profile buffer with numpy: every CTA of a launch at once.

Layout of one CTA, in 32-bit words (Proton's circular strategy, Triton 3.6):
  0     0xdeadbeef
  1     program id
  2     SM
  3     bytes of events
  4-9   global timer in ns, two words each: start, end of the work, end of the copy-out
  10..  one counter a warp: words that it has written, ever
  then  for each recorded warp, in ascending order, a circular buffer of events of two words:
        [31: end, 30:23: scope, 10:0: clock bits 42:32] [clock bits 31:0]
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.trace.instrument.sampled import Sample
from kperf.trace.instrument.session import HEADER_BYTES, Recording

PREAMBLE = 0xDEADBEEF
_CHUNK_BYTES = 1 << 22
"""Of CTAs that are decoded at once: what is made of them stays in a core's caches."""


@dataclass(frozen=True)
class Events:
    """The events of a launch, flat: CTA by CTA, warp by warp, oldest first.

    Per event: `probe` (twice its scope, and one more at the start), and `cycle`, counted from the first kept event of
    the CTA's first warp that has any (so it can be negative).
    Per CTA and recorded warp: `counts`, how many of its events there are.
    Per CTA: `program_id`, `sm`, `start_ns`, `end_ns` (global timer), `clock` (the raw clock of cycle 0).
    """

    probe: NDArray[np.uint16]
    cycle: NDArray[np.int64]
    counts: NDArray[np.int64]
    program_id: NDArray[np.int64]
    sm: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    clock: NDArray[np.int64]
    written: int
    lost: int

    @property
    def n_ctas(self) -> int:
        """CTAs that were recorded."""
        return len(self.program_id)

    @cached_property
    def cta(self) -> NDArray[np.int64]:
        """Of each event its CTA."""
        return np.arange(self.n_ctas).repeat(self.counts.sum(axis=1))

    @cached_property
    def warp(self) -> NDArray[np.uint8]:
        """Of each event its warp, an index into `Recording.warps`."""
        return np.tile(np.arange(self.counts.shape[1], dtype=np.uint8), self.n_ctas).repeat(self.counts.ravel())

    @cached_property
    def scope(self) -> NDArray[np.uint8]:
        """Of each event the number of its scope."""
        return (self.probe >> 1).astype(np.uint8)

    @cached_property
    def is_start(self) -> NDArray[np.bool_]:
        """Of each event whether its scope starts with it."""
        return (self.probe & 1).astype(np.bool_)

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """For each warp of each CTA, where in the arrays its events end."""
        return np.cumsum(self.counts)

    @cached_property
    def begins(self) -> NDArray[np.int64]:
        """For each warp of each CTA, where in the arrays its events begin."""
        begins: NDArray[np.int64] = self.ends - self.counts.ravel()
        return begins

    def row_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of events at these places, in ascending order, the warp: CTA times recorded warps, plus warp."""
        before = np.searchsorted(places, self.ends)  # there are far fewer warps than events
        return np.repeat(np.arange(len(self.ends)), np.diff(before, prepend=0))

    def cta_of(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Of events at these places, in ascending order, the CTA."""
        return self.row_of(places) // self.counts.shape[1]


def decode(buffer: NDArray[np.uint8], recording: Recording, sample: Sample | None = None) -> Events:
    """All events in `buffer`, the bytes of a whole number of CTAs: a `sample` of a launch's, or all of them.

    Lost events (overwritten in the circular buffer) are counted, not guessed. Clocks may wrap between two events, if
    a warp lets less than 2^32 cycles (2 s) pass between them. Raises `UsageError` if the buffer is not such a
    recording's.
    """
    if buffer.size == 0:
        raise UsageError("the trace buffer is empty: was the traced kernel launched?")
    if buffer.size % recording.block_bytes:
        raise UsageError(
            f"the trace buffer of {buffer.size} bytes is truncated: a CTA has {recording.block_bytes}, "
            "or it was recorded with other settings"
        )
    words = np.ascontiguousarray(buffer, dtype=np.uint8).view(np.uint32).reshape(-1, recording.block_bytes // 4)
    _check_headers(words, recording)
    if sample is not None:
        _check_sample(words[:, 1], sample)
    counts, written = _counts(words, recording)
    sizes = counts.sum(axis=1)
    timers = words[:, 4:10].astype(np.int64)
    events = Events(
        probe=np.empty(sizes.sum(), dtype=np.uint16),
        cycle=np.empty(sizes.sum(), dtype=np.int64),
        counts=counts,
        program_id=words[:, 1].astype(np.int64),
        sm=words[:, 2].astype(np.int64),
        start_ns=timers[:, 0] | timers[:, 1] << 32,
        end_ns=timers[:, 2] | timers[:, 3] << 32,
        clock=np.zeros(len(words), dtype=np.int64),
        written=int(written.sum()),
        lost=int((written - counts).sum()),
    )
    chunk = max(1, _CHUNK_BYTES // recording.block_bytes)
    edges = np.cumsum([0, *sizes])
    for first in range(0, len(words), chunk):
        last = min(first + chunk, len(words))
        here = slice(edges[first], edges[last])
        events.probe[here], events.cycle[here], events.clock[first:last] = _decode_ctas(
            words[first:last], written[first:last], counts[first:last], recording
        )
    return events


def _check_headers(words: NDArray[np.uint32], recording: Recording) -> None:
    wrong = np.flatnonzero(words[:, 0] != PREAMBLE)
    if wrong.size == len(words):
        raise UsageError(
            "the trace buffer has no Proton header: it is of another version, or no traced kernel wrote it"
        )
    if wrong.size:
        raise UsageError(
            f"CTA {wrong[0]} of the trace buffer has no header: the launch did not finish, or it is damaged"
        )
    sizes = np.unique(words[:, 3])
    if sizes.tolist() != [recording.buffer_bytes]:
        raise UsageError(
            f"the trace buffer holds {sizes[0]} bytes of events a CTA, not {recording.buffer_bytes}: "
            "it was recorded with other settings"
        )


def _check_sample(program_ids: NDArray[np.uint32], sample: Sample) -> None:
    expected = sample.first + sample.stride * np.arange(len(program_ids))
    wrong = np.flatnonzero(program_ids != expected)
    if wrong.size:
        recorded, wanted = program_ids[wrong[0]], expected[wrong[0]]
        raise UsageError(f"part {wrong[0]} of the trace buffer is of CTA {recorded} and not of {wanted}: it is damaged")


def _counts(words: NDArray[np.uint32], recording: Recording) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[CTA, recorded warp]: how many events there are, and how many were written."""
    counters = words[:, HEADER_BYTES // 4 :][:, list(recording.warps)].astype(np.int64)
    if (counters >= 2**31).any() or (counters % 2).any():
        raise UsageError("an event counter of the trace buffer is not a number of events: it wrapped, or it is damaged")
    return np.minimum(counters // 2, recording.events_per_warp), counters // 2


def _decode_ctas(
    words: NDArray[np.uint32], written: NDArray[np.int64], counts: NDArray[np.int64], recording: Recording
) -> tuple[NDArray[np.uint16], NDArray[np.int64], NDArray[np.int64]]:
    """`probe` and `cycle` of all events of some CTAs, and the CTAs' `clock`."""
    capacity = recording.events_per_warp
    first_word = HEADER_BYTES // 4 + recording.total_warps
    pairs = words[:, first_word : first_word + recording.buffer_bytes // 4].copy().view(np.uint64)
    buffers = pairs.reshape(*counts.shape, capacity)
    position = np.arange(capacity)
    wrapped = written > capacity
    if wrapped.any():
        oldest = (written[wrapped] % capacity)[:, None]
        buffers[wrapped] = np.take_along_axis(buffers[wrapped], (position + oldest) % capacity, axis=1)
    kept = buffers[position < counts[..., None]]
    tag, low = kept.astype(np.uint32), (kept >> 32).astype(np.uint32)
    probe = ((tag >> 22) & 0x1FE | (~tag >> 31)).astype(np.uint16)
    if recording.clock_bits == 64:
        return probe, *_unwrap(low | (tag & 0x7FF).astype(np.uint64) << np.uint64(32), counts, 2**43)
    return probe, *_unwrap(low, counts, 2**32)


def _unwrap(
    clock: NDArray[np.unsignedinteger[Any]], counts: NDArray[np.int64], modulus: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cycles since each CTA's reference, wrapped clocks straightened; and the references' raw clocks, one a CTA.

    Within a warp the clock only grows, so a step is its difference modulo `modulus`; the first events of a CTA's
    warps are less than half a turn from the reference, whichever comes first.
    """
    cta, warp = np.nonzero(counts)
    sizes = counts[cta, warp]
    firsts = np.cumsum(sizes) - sizes
    raw = clock[firsts].astype(np.int64)
    reference = np.zeros(len(counts), dtype=np.int64)
    reference[cta[::-1]] = raw[::-1]  # the last written wins: the CTA's first warp
    begins = (raw - reference[cta] + modulus // 2) % modulus - modulus // 2
    steps = (np.diff(clock, prepend=clock[:1]) & (modulus - 1)).astype(np.int64)
    if firsts.size:
        steps[firsts] = 0
        lasts = begins + np.add.reduceat(steps, firsts)
        steps[firsts] = begins - np.concatenate([[0], lasts[:-1]])  # so that one running sum is right for all warps
    return np.cumsum(steps), reference
