"""Which tiles sequences of different lengths have: the table that `improved_plus.attn_fwd_ragged` takes its work from.

Where sequences begin is known on the GPU alone, so that a kernel writes the table. A *slot* is a tile of 128 rows of
one sequence for a section of heads, of which each gets the tile in turn: what lies side by side on the SMs shares k and
v in the L2 cache. Sequences stand from long to short, and in one of them a section after the other; causal tiles of a
section stand from long to short and from short to long in turn, the last ones from long to short.
"""

import triton
import triton.language as tl

from kperf.attention.kernels.improved_plus import (
    FIRST_HEAD,
    KV_END,
    KV_LEN,
    N_BLOCKS,
    Q_END,
    Q_LEFT,
    SLOT_NUMBERS,
    TAIL_COLUMNS,
)
from kperf.attention.kernels.warp_specialized import CONSUMER_ROWS, CONSUMERS, L2_SECTION_BYTES

TILE = tl.constexpr(CONSUMERS.value * CONSUMER_ROWS.value)


def section_heads(heads: int, kv_heads: int, max_kv_len: int, kv_row_bytes: int) -> int:
    """How many heads of q a section has: a divisor of `heads`, so many that their k and v fit in the L2 cache's part.

    kv_row_bytes: of one row of k and of v, of one head.
    """
    fits = max(L2_SECTION_BYTES.value // (max(max_kv_len, 1) * kv_row_bytes), 1) * (heads // kv_heads)
    return max(number for number in range(1, heads + 1) if heads % number == 0 and (number <= fits or number == 1))


def most_slots(batch: int, heads: int, in_section: int, total_q: int) -> int:
    """Slots that sequences of so many rows together have at most."""
    return (total_q // TILE.value + min(batch, total_q)) * (heads // in_section)


def numbers(slots: int, spare: int) -> int:
    """How many int32 a table of so many slots, and as many behind them, has."""
    return (1 + slots + spare) * SLOT_NUMBERS.value


@triton.jit
def work_of(begins_q, begins_k, sequence, exists):
    """Tiles of sequences that attend to something, and blocks of k and v of these, 0 of others."""
    q_len = tl.load(begins_q + sequence + 1, exists, 0) - tl.load(begins_q + sequence, exists, 0)
    kv_len = tl.load(begins_k + sequence + 1, exists, 0) - tl.load(begins_k + sequence, exists, 0)
    attends = (q_len > 0) & (kv_len > 0)
    return tl.where(attends, (q_len + TILE - 1) // TILE, 0), tl.where(attends, (kv_len + TILE - 1) // TILE, 0)


@triton.jit
def write_slots(table, slot, exists, q_end, q_left, kv_end, kv_len, n_blocks, tail, head):
    """Writes slots, [n], of the numbers that `improved_plus` names."""
    at = table + (slot + 1) * SLOT_NUMBERS
    tl.store(at + Q_END, q_end, exists)
    tl.store(at + Q_LEFT, q_left, exists)
    tl.store(at + KV_END, kv_end, exists)
    tl.store(at + KV_LEN, kv_len, exists)
    tl.store(at + N_BLOCKS, n_blocks, exists)
    tl.store(at + TAIL_COLUMNS, tail, exists)
    tl.store(at + FIRST_HEAD, head, exists)


@triton.jit
def place_of(begins_q, begins_k, own, blocks, batch, STEP: tl.constexpr):
    """Where a sequence of so many blocks stands among those that attend: tiles before it and in all, rank of how many.

    Long ones come first.
    """
    tiles_before, tiles_in_all, rank, attending = 0, 0, 0, 0
    for start in range(0, batch, STEP):
        other = start + tl.arange(0, STEP)
        their_tiles, their_blocks = work_of(begins_q, begins_k, other, other < batch)
        before = (their_blocks > blocks) | ((their_blocks == blocks) & (other < own))
        there = (their_tiles > 0).to(tl.int32)
        tiles_before += tl.sum(tl.where(before, their_tiles, 0))
        rank += tl.sum(tl.where(before, there, 0))
        tiles_in_all += tl.sum(their_tiles)
        attending += tl.sum(there)
    return tiles_before, tiles_in_all, rank, attending


@triton.jit
def write_sequence(
    table, first_slot, tiles, blocks, q_begin, q_end, kv_end, kv_len, n_sections, in_section, sequences_after,
    CAUSAL: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Writes a sequence's slots, section after section."""
    zeros = tl.full([STEP], 0, tl.int32)
    for start in range(0, tiles * n_sections, STEP):
        number = start + tl.arange(0, STEP)
        section = number // tiles
        tile = number - section * tiles
        n_blocks = zeros + blocks
        if CAUSAL:
            sections_after = sequences_after * n_sections - 1 - section
            tile = tl.where(sections_after % 2 == 0, tiles - 1 - tile, tile)
            n_blocks = tile + 1
        slot = first_slot + number
        q_left = q_end - q_begin - tile * TILE
        tail = zeros + kv_len - (blocks - 1) * TILE
        exists = number < tiles * n_sections
        write_slots(
            table, slot, exists, zeros + q_end, q_left, zeros + kv_end, zeros + kv_len, n_blocks, tail,
            section * in_section,
        )  # fmt: skip


@triton.jit
def write_empty(table, first_slot, spare, STEP: tl.constexpr):
    """Writes slots of no rows, for CTAs that no tile is left for."""
    zeros = tl.full([STEP], 0, tl.int32)
    for start in range(0, spare, STEP):
        number = start + tl.arange(0, STEP)
        slot = first_slot + number
        write_slots(table, slot, number < spare, zeros, zeros, zeros, zeros, zeros + 1, zeros + TILE, zeros)


@triton.jit
def write_nothing(o_ptr, lse_ptr, q_begin, q_end, total_q, heads, HEAD_DIM: tl.constexpr, STEP: tl.constexpr):
    """Writes the outputs of rows that attend to nothing."""
    row = (heads * HEAD_DIM).to(tl.int64)
    for start in range(q_begin * row, q_end * row, STEP):
        at = start + tl.arange(0, STEP)
        tl.store(o_ptr + at, tl.full([STEP], 0, o_ptr.dtype.element_ty), at < q_end * row)
    for start in range(0, (q_end - q_begin) * heads, STEP):
        at = start + tl.arange(0, STEP)
        head = at // (q_end - q_begin)
        where = head * total_q + q_begin + at - head * (q_end - q_begin)
        tl.store(lse_ptr + where, tl.full([STEP], float("-inf"), tl.float32), at < (q_end - q_begin) * heads)


@triton.jit(do_not_specialize=["batch", "total_q", "heads", "in_section", "spare"])
def fill_table(
    begins_q,
    begins_k,
    table,
    o_ptr,
    lse_ptr,
    batch,
    total_q,
    heads,
    in_section,
    spare,
    HEAD_DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
    STEP: tl.constexpr,
):
    """Sequence program_id's slots, each of `in_section` heads; rows that attend to nothing are zeros, their lse -inf.

    begins_q, begins_k: int32 [batch + 1], where sequences begin, and the end; o_ptr: [total_q, heads, head_dim];
    lse_ptr: float32 [heads, total_q]. table: int32; of its first numbers one says how many slots there are. Behind the
    last one stand `spare` that are empty.
    """
    own = tl.program_id(0)
    n_sections = heads // in_section
    tiles, blocks = work_of(begins_q, begins_k, own, True)
    tiles_before, tiles_in_all, rank, attending = place_of(begins_q, begins_k, own, blocks, batch, STEP)

    q_begin, q_end = tl.load(begins_q + own), tl.load(begins_q + own + 1)
    kv_end = tl.load(begins_k + own + 1)
    kv_len = kv_end - tl.load(begins_k + own)
    write_sequence(
        table, tiles_before * n_sections, tiles, blocks, q_begin, q_end, kv_end, kv_len, n_sections, in_section,
        attending - rank, CAUSAL, STEP,
    )  # fmt: skip
    if own == 0:
        tl.store(table, tiles_in_all * n_sections)
        write_empty(table, tiles_in_all * n_sections, spare, STEP)
    if (kv_len <= 0) & (q_end > q_begin):
        write_nothing(o_ptr, lse_ptr, q_begin, q_end, total_q, heads, HEAD_DIM, STEP)
