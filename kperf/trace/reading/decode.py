"""Decode a raw profile buffer with numpy: every block of a launch at once.

Layout of one block, in 32-bit words (Proton's circular strategy, Triton 3.6):
  0     0xdeadbeef
  1     program id
  2     SM
  3     bytes of records
  4-9   global timer in ns, two words each: start, end of the work, end of the copy-out
  10..  one counter a warp: words that it has written, ever
  then  for each recorded warp, in ascending order, a ring of records of two words:
        [31: end, 30:23: scope, 10:0: clock bits 42:32] [clock bits 31:0]
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.trace.compiler.session import HEADER_BYTES, Recording

PREAMBLE = 0xDEADBEEF
_CHUNK_BLOCKS = 1024


@dataclass(frozen=True)
class Records:
    """The records of a launch, flat: block by block, warp by warp, oldest first.

    Per record: `block` (index into the block arrays), `warp` (index into `Recording.warps`), `scope`, `is_start`, and
    `cycle`, counted from the first kept record of the block's first warp that has any (so it can be negative).
    Per block: `program_id`, `sm`, `start_ns`, `end_ns` (global timer), `clock` (the raw clock of cycle 0).
    """

    block: NDArray[np.int32]
    warp: NDArray[np.uint8]
    scope: NDArray[np.uint8]
    is_start: NDArray[np.bool_]
    cycle: NDArray[np.int64]
    program_id: NDArray[np.int64]
    sm: NDArray[np.int64]
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    clock: NDArray[np.int64]
    written: int
    lost: int

    @property
    def n_blocks(self) -> int:
        """Blocks of the launch."""
        return len(self.program_id)


def decode(buffer: NDArray[np.uint8], recording: Recording) -> Records:
    """All records in `buffer`, the bytes of a whole number of blocks.

    Lost records (overwritten in the ring) are counted, not guessed. Clocks may wrap between two records, if a warp lets
    less than 2^32 cycles (2 s) pass between them. Raises `UsageError` if the buffer is not such a recording's.
    """
    if buffer.size == 0:
        raise UsageError("the trace buffer is empty: was the traced kernel launched?")
    if buffer.size % recording.block_bytes:
        raise UsageError(
            f"the trace buffer of {buffer.size} bytes is truncated: a block has {recording.block_bytes}, "
            "or it was recorded with other settings"
        )
    words = np.ascontiguousarray(buffer, dtype=np.uint8).view(np.uint32).reshape(-1, recording.block_bytes // 4)
    _check_headers(words, recording)
    chunks = [_decode_blocks(words[i : i + _CHUNK_BLOCKS], recording) for i in range(0, len(words), _CHUNK_BLOCKS)]
    sizes = np.cumsum([0] + [len(chunk.program_id) for chunk in chunks[:-1]])
    return Records(
        block=np.concatenate([chunk.block + np.int32(first) for chunk, first in zip(chunks, sizes, strict=True)]),
        **{
            name: np.concatenate([getattr(chunk, name) for chunk in chunks])
            for name in (
                "warp",
                "scope",
                "is_start",
                "cycle",
                "program_id",
                "sm",
                "start_ns",
                "end_ns",
                "clock",
            )
        },
        written=sum(chunk.written for chunk in chunks),
        lost=sum(chunk.lost for chunk in chunks),
    )


def _check_headers(words: NDArray[np.uint32], recording: Recording) -> None:
    wrong = np.flatnonzero(words[:, 0] != PREAMBLE)
    if wrong.size == len(words):
        raise UsageError(
            "the trace buffer has no Proton header: it is of another version, or no traced kernel wrote it"
        )
    if wrong.size:
        raise UsageError(
            f"block {wrong[0]} of the trace buffer has no header: the launch did not finish, or it is damaged"
        )
    sizes = np.unique(words[:, 3])
    if sizes.tolist() != [recording.buffer_bytes]:
        raise UsageError(
            f"the trace buffer holds {sizes[0]} bytes of records a block, not {recording.buffer_bytes}: "
            "it was recorded with other settings"
        )


def _decode_blocks(words: NDArray[np.uint32], recording: Recording) -> Records:
    n_blocks, n_warps, capacity = len(words), len(recording.warps), recording.records_per_warp
    counters = words[:, HEADER_BYTES // 4 :][:, list(recording.warps)].astype(np.int64)
    if (counters >= 2**31).any() or (counters % 2).any():
        raise UsageError(
            "a record counter of the trace buffer is not a number of records: it wrapped, or it is damaged"
        )
    written = counters // 2
    kept = np.minimum(written, capacity)

    first_word = HEADER_BYTES // 4 + recording.total_warps
    rings = words[:, first_word : first_word + recording.buffer_bytes // 4].reshape(n_blocks, n_warps, capacity, 2)
    position = np.arange(capacity)
    wrapped = written > capacity
    if wrapped.any():
        oldest = (written[wrapped] % capacity)[:, None, None]
        rings = rings.copy()
        rings[wrapped] = np.take_along_axis(rings[wrapped], (position[:, None] + oldest) % capacity, axis=1)
    tag, low = rings[position < kept[..., None]].T
    counts = kept.ravel()  # a warp each, block by block
    block = np.repeat(np.arange(n_blocks, dtype=np.int32).repeat(n_warps), counts)
    warp = np.repeat(np.tile(np.arange(n_warps, dtype=np.uint8), n_blocks), counts)

    clock = low.astype(np.int64)
    modulus = 2**32
    if recording.clock_bits == 64:
        clock |= (tag & 0x7FF).astype(np.int64) << 32
        modulus = 2**43
    cycle, reference = _unwrap(clock, block, counts[counts > 0], modulus, n_blocks)
    timers = words[:, 4:10].astype(np.int64)
    return Records(
        block=block,
        warp=warp,
        scope=((tag >> 23) & 0xFF).astype(np.uint8),
        is_start=(tag >> 31) == 0,
        cycle=cycle,
        program_id=words[:, 1].astype(np.int64),
        sm=words[:, 2].astype(np.int64),
        start_ns=timers[:, 0] | timers[:, 1] << 32,
        end_ns=timers[:, 2] | timers[:, 3] << 32,
        clock=reference,
        written=int(written.sum()),
        lost=int((written - kept).sum()),
    )


def _unwrap(
    clock: NDArray[np.int64],
    block: NDArray[np.int32],
    counts: NDArray[np.int64],
    modulus: int,
    n_blocks: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Cycles since each block's reference, wrapped clocks straightened; and the references' raw clocks, one a block.

    `counts`: how many records each warp has that has any, in the order of the records.
    Within a warp the clock only grows, so a step is its difference modulo `modulus`; the first records of a block's
    warps are less than half a turn from the reference, whichever comes first.
    """
    reference = np.zeros(n_blocks, dtype=np.int64)
    firsts = np.cumsum(counts) - counts
    reference[block[firsts[::-1]]] = clock[firsts[::-1]]  # the last written wins: the block's first warp
    offset = (clock[firsts] - reference[block[firsts]] + modulus // 2) % modulus - modulus // 2
    steps = np.diff(clock, prepend=clock[:1]) & (modulus - 1)
    steps[firsts] = 0
    total = np.cumsum(steps)
    return total + np.repeat(offset - total[firsts], counts), reference
