"""Improved+: persistent blocks, ping-pong consumers, a shorter softmax, right however scores grow.

What it adds to the improved schedule (FlashAttention-3, arXiv 2407.08608, section 3.1-3.2, has the first two):

- *Persistent*: a block computes one tile after another. QK of the next tile's first block is issued together with PV of
  this tile's last, so that the tensor cores do not rest between tiles, and o leaves under the next tile's work.
- *Ping-pong*: the two consumers take turns in issuing their matrix products, so that one's softmax runs under the
  other's products.
- *K and V in pairs*: trip i needs k of block i and v of block i - 1; they are one stage of the ring with one mbarrier.
- *Fixed reference*: softmax does not depend on the number that is subtracted from a row; it only must not overflow. p
  is taken relative to the maximum of the left half of the tile's first block and `headroom`, and that moves only where
  p grows too large: no maximum stands before an exponential, and acc is hardly ever brought to another reference. The
  largest p of a row is then not exactly a power of 2, and where it has most of the row its rounding to 16 bits is the
  row's error: the normaliser takes each thread's largest p rounded, as PV does. float16, which ends at 2^16, moves the
  reference once or twice in a tile, if at all.
- *Two halves*: with head_dim 128 the left half of p is computed under PV, the right half after PV is done with the
  registers of the previous p, so that the left half is rounded into them beside the right half's exponentials.
- Row sums and maxima are kept by thread and put together at the end of the tile; q is held in registers; maxima of p,
  which is never negative, are taken as integers, for which Hopper has an instruction of three operands.

A row with a p of 2^128 or more overflows: its scores have risen by 2^188, in float16 by 2^128 in one block. So before
the PV of a block each warp votes on the block's p. Rows whose largest p is above 2^64 (float16: 2^14) and at most 2^120
are moved: reference, acc, sums and p. For rows above 2^120 the block's softmax is computed once more, with a raised
reference. So no block is computed more than twice, and a row's bits depend on no other row.

- *head_dim 64*: registers are left, in which a warp still has s. It corrects its rows alone.
- *head_dim 128*: s is gone. The four warps of a consumer vote together, and leave the loop to correct rows.
  Outside of it they compute QK of the block, whose k they have kept, again. float16 moves rows in the loop.

What is NaN or infinite in q, k or v stays in its tile or head.
"""

from typing import Any, NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kperf.attention.kernels.warp_specialized import (
    CONSUMER_REGISTERS,
    CONSUMER_ROWS,
    CONSUMERS,
    L2_SECTION_BYTES,
    LN_2,
    LOG2_E,
    PRODUCER_REGISTERS,
    by_length,
    by_thread,
    column,
    mask_diagonal,
    mask_past,
    opaque,
    rescale,
    tile_at,
)

# Named barriers of the hardware (16 a block; Triton itself uses the first four). Unlike an mbarrier's arrive, theirs
# does not make a whole warp group wait for itself first.
TURN = gl.constexpr(4)  # + W: it is consumer W's turn to issue
EMPTY = gl.constexpr(8)  # + stage: both consumers have read the pair
Q_EMPTY = gl.constexpr(11)  # + W: consumer W's q is in registers, and the o that was staged in its buffer has left
# 13 + W: consumer W's vote, whose number stands in its assembly
CONSUMER_THREADS = gl.constexpr(256)
Q_THREADS = gl.constexpr(160)  # one consumer and the producer
ALL_THREADS = gl.constexpr(288)

TOO_LARGE_P = gl.constexpr(2.0**120)
"""A p above it, or the sum of a block of such, may overflow. What its row had before is nothing beside it."""
LONGEST_MOVE = gl.constexpr(125.0)
"""log2: 126 may come out above itself where references are rounded as they are stored."""
LOWEST = gl.constexpr(-3.0e38)  # a block of nothing but -inf has no maximum, and takes no part
LARGEST_JUMP = gl.constexpr(126.0)  # log2: 2^-126 is the least that is not flushed to zero

# Of `ragged_descriptor`: the index whose address wraps around to the first row, and the extent of what has no end.
FAR = gl.constexpr(2**30)
_MOST = 0x7FFF0000

# Numbers of a slot of the table of `Ragged`: where its sequences of q and of k end, rows of q from the tile's first on,
# rows of k, blocks of k, columns of the last of them, first head.
Q_END = gl.constexpr(0)
Q_LEFT = gl.constexpr(1)
KV_END = gl.constexpr(2)
KV_LEN = gl.constexpr(3)
N_BLOCKS = gl.constexpr(4)
TAIL_COLUMNS = gl.constexpr(5)
FIRST_HEAD = gl.constexpr(6)
SLOT_NUMBERS = gl.constexpr(8)


class Rows(NamedTuple):
    """What `attn_fwd` is given: plain tensors as rows [n_rows, head_dim], one head of seq_len rows after the other."""

    seq_len: Any
    n_rows: Any


class Views(NamedTuple):
    """What `attn_fwd_views` is given: [batch, heads, seq_len, head_dim] of any strides.

    What TMA reads behind a head's last row is 0, and what it writes there is dropped. A box that it writes may not
    begin before row 0: that is an illegal instruction.

    - q_len: rows of a head of q; heads: of q, of which each `group` in a row share one of k and v
    - n_heads: batch * heads; n_tiles: in all; tiles: of a head of q
    - blocks: of k and v, to which a head's first tile attends; every tile if there is no mask
    - tail: how many columns the last block has, if not all; section_heads: as in `by_length`
    """

    q_len: Any
    heads: Any
    group: Any
    n_heads: Any
    n_tiles: Any
    tiles: Any
    blocks: Any
    tail: Any
    section_heads: Any


class Ragged(NamedTuple):
    """What `attn_fwd_ragged` is given: sequences of any lengths, one after the other, [total, heads, head_dim].

    Its descriptors, `ragged_descriptor`, have two dimensions more, through which TMA sees where a sequence ends: what
    it reads behind that is 0, and what it writes there is dropped.

    - table: of the tiles of a section of heads, in launch order, as `ragged.fill_table` fills it: how many, then from
      `SLOT_NUMBERS` on so many numbers of each
    - section_heads: heads of q in a section; group: of q, which share one of k and v; total_q: rows of q
    """

    table: Any
    section_heads: Any
    group: Any
    total_q: Any


def ragged_descriptor(
    heads: int, head_dim: int, strides: tuple[int, int], box_rows: int
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shape, strides and box of the descriptor of [total, heads, head_dim], whose first two strides are given.

    Its dimensions: `FAR` times the first's stride and a row's give 2^64 and so nothing; then rows up to a sequence's
    end, heads, rows back from there, columns. A row behind the end is number `FAR` or more of the fourth, which is
    outside. The idea is Triton's (triton.tools.ragged_tma).
    """
    row, head = strides
    wrap = 2**34 - row
    return (_MOST, _MOST, heads, FAR.value, head_dim), (wrap, row, head, row, 1), (1, 1, 1, box_rows, head_dim)


def views(batch: int, heads: int, kv_heads: int, q_len: int, kv_len: int, kv_row_bytes: int, *, causal: bool) -> Views:
    """The work on q [batch, heads, q_len, ...] and k, v [batch, kv_heads, kv_len, ...].

    causal: k has as many rows as q, or a multiple of 128 more, so that the diagonal begins where a block does.
    kv_row_bytes: of one row of k and of v.
    """
    group, block = heads // kv_heads, CONSUMERS.value * CONSUMER_ROWS.value
    tiles = -(-q_len // block)
    sections = max(L2_SECTION_BYTES.value // (kv_len * kv_row_bytes), 1)
    return Views(
        q_len=q_len,
        heads=heads,
        group=group,
        n_heads=batch * heads,
        n_tiles=batch * heads * tiles,
        tiles=tiles,
        blocks=1 + (kv_len - q_len) // block if causal else -(-kv_len // block),
        tail=kv_len % block,
        section_heads=min(sections * group, batch * heads),
    )


@gluon.constexpr_function
def barrier_asm(operation, threads):
    """Inline PTX of bar.sync or bar.arrive; it returns a register because an elementwise operation has a result."""
    return f"bar.{operation} $1, {threads}; mov.u32 $0, 0;"


@gluon.jit
def barrier_sync(barrier, THREADS: gl.constexpr):
    """Waits until THREADS threads, these included, have arrived at the named barrier."""
    ASM: gl.constexpr = barrier_asm("sync", THREADS)
    gl.inline_asm_elementwise(ASM, "=r,r", [barrier], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def barrier_arrive(barrier, THREADS: gl.constexpr):
    """Arrives at the named barrier and goes on."""
    ASM: gl.constexpr = barrier_asm("arrive", THREADS)
    gl.inline_asm_elementwise(ASM, "=r,r", [barrier], dtype=gl.int32, is_pure=False, pack=1)


@gluon.constexpr_function
def headroom(dtype):
    """How far above a row's maximum its reference is placed, in log2.

    bfloat16 and float32 end at 2^128: p of 2^-60 leaves room for scores that rise by 2^188, and of what p adds to acc
    and to the sums nothing that counts is flushed to zero. float16 has no such room.
    """
    return {"bf16": 60.0, "fp16": 0.0}[str(dtype)]


@gluon.constexpr_function
def most_p(dtype):
    """A p above it moves its row's reference. PV sums in float32, so of float16 p alone must stay below 2^16."""
    return {"bf16": 2.0**64, "fp16": 2.0**14}[str(dtype)]


@gluon.constexpr_function
def declare_asm(w):
    """Inline PTX that declares voted<w>: the outcome of consumer w's votes, a number a thread made a scalar."""
    return f".reg .b32 voted{w}; mov.u32 $0, 0;"


@gluon.constexpr_function
def voted_asm(w):
    """Inline PTX that reads that register."""
    return f"mov.b32 $0, voted{w};"


@gluon.constexpr_function
def vote_asm(w, together):
    """Inline PTX that sets voted<w> to whether either of any lane's first two numbers is above its second two.

    together: of all of consumer w, which waits for itself; else of a warp.
    """
    wait = f"bar.red.or.pred p, {13 + w}, 128, p; " if together else ""
    return (
        f"{{ .reg .pred p; setp.gt.f32 p, $2, $4; setp.gt.or.f32 p, $3, $5, p; {wait}"
        f"vote.sync.any.pred p, p, 0xffffffff; selp.b32 voted{w}, 1, 0, p; }} mov.b32 $0, 0; mov.b32 $1, 0;"
    )


@gluon.jit
def declare_votes(W: gl.constexpr):
    """Before consumer W's first vote, and outside of loops, which a compiler may write out twice."""
    DECLARE_ASM: gl.constexpr = declare_asm(W)
    gl.inline_asm_elementwise(DECLARE_ASM, "=r,r", [gl.to_tensor(0)], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def outcome(W: gl.constexpr):
    """The outcome of consumer W's last vote."""
    VOTED_ASM: gl.constexpr = voted_asm(W)
    return gl.inline_asm_elementwise(VOTED_ASM, "=r,r", [gl.to_tensor(0)], dtype=gl.int32, is_pure=False, pack=1) != 0


@gluon.jit
def any_above(W: gl.constexpr, top, limit, TOGETHER: gl.constexpr):
    """Whether a number of top, [rows, 4] by thread, is above limit, which NaN is not.

    TOGETHER: anywhere in consumer W, which waits for itself. Else in this warp: it differs between warps, so what is
    branched on it must not wait for another warp.
    """
    VOTE_ASM: gl.constexpr = vote_asm(W, TOGETHER)
    limits = gl.zeros_like(top) + limit
    gl.inline_asm_elementwise(VOTE_ASM, "=r,=r,f,f,f,f", [top, limits], dtype=gl.int32, is_pure=False, pack=2)
    return outcome(W)


@gluon.jit
def pin(x):
    """x, float32, one or two numbers a thread, through a shuffle of each lane with itself.

    ptxas moves no shuffle out of its basic block, which a wait for an mbarrier ends: what x is computed from stays
    before such a wait, or what is computed from x stays after it.
    """
    return gl.inline_asm_elementwise(
        "shfl.sync.bfly.b32 $0, $1, 0, 0x1f, 0xffffffff;", "=f,f", [x], dtype=gl.float32, is_pure=False, pack=1
    )


@gluon.jit
def row_max(s, LAYOUT: gl.constexpr):
    """Row maxima [rows] in LAYOUT; neighbours first, which halves the chain."""
    return gl.convert_layout(gl.max(gl.max(gl.max(by_thread(s), 3), 1), 1), LAYOUT)


@gluon.jit
def top_by_thread(p):
    """Row maxima of p >= 0, [rows, 4], of each of a row's four threads."""
    return gl.max(gl.max(by_thread(p.to(gl.int32, bitcast=True)), 3), 1).to(gl.float32, bitcast=True)


@gluon.jit
def larger(a, b):
    """The larger of two numbers >= 0, as integers, so that it becomes one instruction with the maxima before it."""
    return gl.maximum(a.to(gl.int32, bitcast=True), b.to(gl.int32, bitcast=True)).to(gl.float32, bitcast=True)


@gluon.jit
def sum_by_thread(p):
    """Row sums [rows, 4], of each of a row's four threads."""
    return gl.sum(gl.sum(by_thread(p), 3), 1)


@gluon.jit
def moved(m_i, l_i, top, dtype: gl.constexpr):
    """Moves the references of rows whose largest p is above `most_p` and not above `TOO_LARGE_P`.

    m_i [rows] in units of log2; l_i and top [rows, 4] by thread. Returns them, and alpha [rows], the factor of p and
    acc: a power of two, so that what PV rounds p to, which `row_sums` reckons with, stays what it is.
    """
    largest = gl.convert_layout(gl.max(top, 1), m_i.type.layout)
    exponent = (largest.to(gl.int32, bitcast=True) >> 23) - 127
    jump = gl.minimum(exponent + headroom(dtype), LONGEST_MOVE)
    jump = gl.where((largest > most_p(dtype)) & (largest <= TOO_LARGE_P), jump, 0.0)
    # References are stored 2 apart and more from 2^24 on: 125 may be out of reach, and 64 is not up to 2^30.
    jump = gl.where(m_i + jump - m_i < LARGEST_JUMP, jump, 64.0)
    m_new = gl.where(m_i + jump - m_i < LARGEST_JUMP, m_i + jump, m_i)
    alpha = (127 - (m_new - m_i + 0.5).to(gl.int32) << 23).to(gl.float32, bitcast=True)
    return m_new, l_i * column(alpha, l_i), top * column(alpha, top), alpha


@gluon.jit
def row_sums(l_i, top, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """Of l_i and top, [rows, 4] by thread: the sums of p [rows], and with the largest p rounded as PV has them."""
    l_row = gl.convert_layout(gl.sum(l_i, 1), LAYOUT)
    return l_row, l_row + gl.convert_layout(gl.sum(top.to(dtype).to(gl.float32) - top, 1), LAYOUT)


@gluon.jit
def halves(x, LAYOUT: gl.constexpr):
    """The left and the right half of x [rows, cols], each [rows, cols / 2] in LAYOUT."""
    left, right = gl.split(gl.permute(gl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), (0, 2, 1)))
    return gl.convert_layout(left, LAYOUT), gl.convert_layout(right, LAYOUT)


@gluon.constexpr_function
def rounding_asm(dtype):
    """Inline PTX that rounds two float32 to a pair of a 16-bit type."""
    kind = {"bf16": "bf16", "fp16": "f16"}[str(dtype)]
    return f"cvt.rn.{kind}x2.f32 $0, $2, $1;"


@gluon.jit
def rounded_pairs(x, dtype: gl.constexpr):
    """Neighbours along a row of float32 x [rows, cols], rounded to a 16-bit type, as `pack_pairs` packs them."""
    ASM: gl.constexpr = rounding_asm(dtype)
    low, high = gl.split(gl.reshape(x, [x.shape[0], x.shape[1] // 2, 2]))
    return gl.inline_asm_elementwise(ASM, "=r,f,f", [low, high], dtype=gl.int32, is_pure=True, pack=1)


@gluon.jit
def joined(left, right):
    """Two halves [rows, cols] as one [rows, 2 cols]."""
    return gl.reshape(gl.permute(gl.join(left, right), (0, 2, 1)), [left.shape[0], 2 * left.shape[1]])


@gluon.jit
def pack_pairs(x):
    """Neighbours along a row of 16-bit x [rows, cols] as one int32, [rows, cols / 2].

    A 16-bit tensor that a loop or a branch carries becomes a register an element there; packed, it does not.
    """
    low, high = gl.split(gl.reshape(x.to(gl.int16, bitcast=True), [x.shape[0], x.shape[1] // 2, 2]))
    return (low.to(gl.int32) & 0xFFFF) | (high.to(gl.int32) << 16)


@gluon.jit
def unpack_pairs(x, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """The inverse of `pack_pairs`."""
    pairs = gl.join(x.to(gl.int16), (x >> 16).to(gl.int16))
    return gl.convert_layout(gl.reshape(pairs, [x.shape[0], x.shape[1] * 2]).to(dtype, bitcast=True), LAYOUT)


@gluon.jit
def approximate_log2(x):
    """log2 of x >= 0 by one instruction.

    Off by at most 2^-22 between 0.5 and 2, and by at most 2^-22 of its size elsewhere (PTX ISA, lg2.approx).
    """
    return gl.inline_asm_elementwise("lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1)


@gluon.jit
def advance(stage, phase, STAGES: gl.constexpr):
    """The next stage of the ring and its phase."""
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


@gluon.jit
def stage_before(stage, STAGES: gl.constexpr):
    """The stage of the ring before this one."""
    return gl.where(stage == 0, STAGES - 1, stage - 1)


@gluon.jit
def own_tiles(shape):
    """How many tiles this block computes: tile program_id, and every num_programs-th after it."""
    if len(shape) == len(Rows._fields):
        own = gl.cdiv(shape.n_rows // (CONSUMERS * CONSUMER_ROWS) - gl.program_id(0), gl.num_programs(0))
    elif len(shape) == len(Ragged._fields):
        n_tiles = uniform(gl.load(shape.table)) * shape.section_heads
        rounds = n_tiles // gl.num_programs(0)
        own = rounds + (place_in_round(rounds) < n_tiles - rounds * gl.num_programs(0)).to(gl.int32)
        own = gl.maximum(own, 1)  # behind the last slot stand some that are empty
    else:
        rounds = shape.n_tiles // gl.num_programs(0)
        own = rounds + (place_in_round(rounds) < shape.n_tiles - rounds * gl.num_programs(0)).to(gl.int32)
    return own


@gluon.jit
def following(t, end):
    """The tile whose first QK is issued beside the last PV of tile t: the next before `end`, or any."""
    return gl.where(t + 1 < end, t + 1, 0)


@gluon.jit
def own_tile_at(t, shape, KV_ROW_BYTES: gl.constexpr, CAUSAL: gl.constexpr):
    """This block's t-th tile: its first row of q, the first of its head's rows of k and v, its blocks of k and v.

    Rows count through all heads; those of q of `Views` as if each head had whole tiles. Its rows of k and v begin at 0.
    Rows of q of `Ragged` count through all slots, as if each had whole tiles.
    """
    if len(shape) == len(Rows._fields):
        index = gl.program_id(0) + t * gl.num_programs(0)

        q_row, kv_row, n_blocks = tile_at(index, shape.seq_len, shape.n_rows, KV_ROW_BYTES, CAUSAL)
    elif len(shape) == len(Ragged._fields):
        q_row = (t * gl.num_programs(0) + place_in_round(t)) * (CONSUMERS * CONSUMER_ROWS)
        kv_row = FAR - slot_number(q_row, shape, KV_LEN)
        n_blocks = slot_number(q_row, shape, N_BLOCKS)
    else:
        index = t * gl.num_programs(0) + place_in_round(t)
        n_blocks = opaque(shape.blocks)  # else registers of the whole kernel hold what is computed from it
        if CAUSAL:
            head, tile = by_length(index, shape.tiles, shape.n_heads, shape.section_heads)
            index = head * shape.tiles + tile
            n_blocks += tile
        q_row = index * (CONSUMERS * CONSUMER_ROWS)
        kv_row = 0
    return q_row, kv_row, n_blocks


@gluon.jit
def place_in_round(t):
    """This block's tile of round t, in which each block has one: dealt forwards and backwards in turn.

    So the sums of what the blocks are dealt stay close where each tile is shorter than the one before.
    """
    return gl.where(t % 2 == 0, gl.program_id(0), gl.num_programs(0) - 1 - gl.program_id(0))


@gluon.jit
def blocks_of(q_row, shape, CAUSAL: gl.constexpr):
    """The blocks of k and v of a tile, of its first row of q: what `own_tile_at` says of it.

    From q_row: Triton 3.6.0's loop-aware CSE takes a number of blocks that a loop carries for the first tile's.
    """
    if len(shape) == len(Rows._fields):
        n_blocks = shape.seq_len // (CONSUMERS * CONSUMER_ROWS)
        if CAUSAL:
            n_blocks = (q_row % shape.seq_len) // (CONSUMERS * CONSUMER_ROWS) + 1
    elif len(shape) == len(Ragged._fields):
        n_blocks = uniform(slot_number(q_row, shape, N_BLOCKS))
    else:
        n_blocks = opaque(shape.blocks)
        if CAUSAL:
            n_blocks += (q_row // (CONSUMERS * CONSUMER_ROWS)) % shape.tiles
    return n_blocks


@gluon.jit
def tail_of(q_row, shape):
    """How many columns the last block of a tile has."""
    return slot_number(q_row, shape, TAIL_COLUMNS) if len(shape) == len(Ragged._fields) else shape.tail


@gluon.jit
def slot_of(row, shape):
    """Of a row of q of `Ragged`: its slot, and the head in the slot's section."""
    index = row // (CONSUMERS * CONSUMER_ROWS)
    section_heads = opaque(shape.section_heads)
    slot = index // section_heads
    return slot, index - slot * section_heads


@gluon.jit
def slot_number(row, shape, NUMBER: gl.constexpr):
    """A number of the slot of a row of q of `Ragged`."""
    slot, head = slot_of(row, shape)
    return gl.load(shape.table + (slot + 1) * SLOT_NUMBERS + NUMBER)


@gluon.jit
def uniform(x):
    """x, int32, the same in all lanes, by way of lane 0: ptxas then sees that they go the same way."""
    return gl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, 0, 0x1f, 0xffffffff;", "=r,r", [x], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def q_place(row, shape):
    """Of a row of q that counts through all heads: its head for `coordinates`, and its number there."""
    if len(shape) == len(Rows._fields):
        head = ()
    elif len(shape) == len(Ragged._fields):
        slot, in_section = slot_of(row, shape)
        head = (FAR, slot_number(row, shape, Q_END), slot_number(row, shape, FIRST_HEAD) + in_section)
        row = FAR - slot_number(row, shape, Q_LEFT) + row % (CONSUMERS * CONSUMER_ROWS)
    else:
        rows = opaque(shape.tiles) * (CONSUMERS * CONSUMER_ROWS)
        heads_before = row // rows
        batch = heads_before // shape.heads
        head = (batch, heads_before - batch * shape.heads)
        row -= heads_before * rows
    return head, row


@gluon.jit
def kv_head_of(q_row, shape):
    """The head of k and v, for `coordinates`, to which a tile attends."""
    head, row = q_place(q_row, shape)
    if len(shape) == len(Ragged._fields):
        head = (FAR, slot_number(q_row, shape, KV_END), head[2] // shape.group)
    elif len(head) != 0:
        head = (head[0], head[1] // shape.group)
    return head


@gluon.jit
def coordinates(head, row):
    """Where a head's row is behind its descriptor: (row, 0) of `Rows`, (batch, head, row, 0) of `Views`.

    Of `Ragged`: (FAR, end of the sequence, head, FAR less the rows from there to the end, 0).
    """
    return head + (row, 0)  # noqa: RUF005  (Triton unpacks no tuple in a tuple)


@gluon.jit
def behind(desc, buffer):
    """A buffer [rows, head_dim] in the shape of the descriptor's box."""
    return buffer if len(desc.block_type.shape) == 2 else buffer.reshape(desc.block_type.shape)


@gluon.jit
def block_row(kv_row, n_blocks, i, BLOCK_N: gl.constexpr, LAST_FIRST: gl.constexpr):
    """First row of k and v of a tile's i-th block: backwards if causal, from the diagonal, and if the last is short."""
    return kv_row + (n_blocks - 1 - i if LAST_FIRST else i) * BLOCK_N


@gluon.jit
def load_q(q_desc, q_row, shape, smem):
    """Loads a tile's q, each consumer's half into the buffer that it has given back."""
    q_smem, k_smem, v_smem, full, q_full = smem
    head, row = q_place(q_row, shape)
    for w in gl.static_range(CONSUMERS):
        barrier_sync(Q_EMPTY + w, Q_THREADS)
        mbarrier.expect(q_full.index(w), q_desc.block_type.nbytes)
        at = coordinates(head, row + w * CONSUMER_ROWS)
        tma.async_copy_global_to_shared(q_desc, at, q_full.index(w), behind(q_desc, q_smem.index(w)))


@gluon.jit
def load_pair(k_desc, v_desc, k_at, v_at, smem, stage):
    """Loads k of one block and v of the block before it into a stage that both consumers have read."""
    q_smem, k_smem, v_smem, full, q_full = smem
    barrier_sync(EMPTY + stage, ALL_THREADS)
    mbarrier.expect(full.index(stage), k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(v_desc, v_at, full.index(stage), behind(v_desc, v_smem.index(stage)))
    tma.async_copy_global_to_shared(k_desc, k_at, full.index(stage), behind(k_desc, k_smem.index(stage)))


@gluon.jit
def producer(q_desc, k_desc, v_desc, smem, shape, STAGES: gl.constexpr, CAUSAL: gl.constexpr, TAIL: gl.constexpr):
    """Loads this block's tiles: q and the first k, which has no v beside it, then pairs.

    Beside each tile's last v come the next tile's first k and its q; after the last tile those of any.
    """
    q_smem, k_smem, v_smem, full, q_full = smem
    BLOCK_N: gl.constexpr = k_smem.shape[1]
    KV_ROW_BYTES: gl.constexpr = 2 * k_desc.block_type.nbytes // BLOCK_N
    LAST_FIRST: gl.constexpr = CAUSAL or TAIL
    n_tiles = own_tiles(shape)
    q_row, kv_row, n_blocks = own_tile_at(0, shape, KV_ROW_BYTES, CAUSAL)
    kv_head = kv_head_of(q_row, shape)
    load_q(q_desc, q_row, shape, smem)
    barrier_sync(EMPTY + 0, ALL_THREADS)
    mbarrier.expect(full.index(0), k_desc.block_type.nbytes)
    k_at = coordinates(kv_head, block_row(kv_row, n_blocks, 0, BLOCK_N, LAST_FIRST))
    tma.async_copy_global_to_shared(k_desc, k_at, full.index(0), behind(k_desc, k_smem.index(0)))
    stage = gl.to_tensor(1)
    for t in range(n_tiles):
        v_row = block_row(kv_row, n_blocks, 0, BLOCK_N, LAST_FIRST)
        if len(shape) == len(Ragged._fields):
            n_blocks = uniform(n_blocks)
        for i in range(1, n_blocks):
            k_row = block_row(kv_row, n_blocks, i, BLOCK_N, LAST_FIRST)
            load_pair(k_desc, v_desc, coordinates(kv_head, k_row), coordinates(kv_head, v_row), smem, stage)
            stage = gl.where(stage == STAGES - 1, 0, stage + 1)
            v_row = k_row
        v_at = coordinates(kv_head, v_row)
        q_row, kv_row, n_blocks = own_tile_at(following(t, n_tiles), shape, KV_ROW_BYTES, CAUSAL)
        kv_head = kv_head_of(q_row, shape)
        k_row = block_row(kv_row, n_blocks, 0, BLOCK_N, LAST_FIRST)
        load_pair(k_desc, v_desc, coordinates(kv_head, k_row), v_at, smem, stage)
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        load_q(q_desc, q_row, shape, smem)


@gluon.jit
def first_product(W: gl.constexpr, q, k, CAUSAL: gl.constexpr):
    """QK of a tile's first block, float32 [64, 128], not waited for.

    On the diagonal [64, 64] for consumer 0, all of whose right half would be masked.
    """
    COLS: gl.constexpr = k.shape[0] // 2 if CAUSAL and W == 0 else k.shape[0]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    zero = gl.zeros([CONSUMER_ROWS, COLS], gl.float32, LAYOUT)
    q = gl.convert_layout(q, gl.DotOperandLayout(0, LAYOUT, 2))
    return warpgroup_mma(q, k.slice(0, COLS).permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def block_softmax(s_left, s_right, m_i, qk_scale, HAS_RIGHT: gl.constexpr):
    """The halves of p, float32, of those of s relative to m_i, and row sums and maxima of p by thread, [rows, 4].

    Zeros for the right half without HAS_RIGHT.
    """
    p_left = gl.exp2(s_left * qk_scale - column(m_i, s_left))
    l_i = sum_by_thread(p_left)
    top = top_by_thread(p_left)
    if HAS_RIGHT:
        p_right = gl.exp2(s_right * qk_scale - column(m_i, s_right))
        l_i += sum_by_thread(p_right)
        top = larger(top, top_by_thread(p_right))
    else:
        p_right = gl.zeros_like(s_left)
    return p_left, p_right, l_i, top


@gluon.jit
def first_softmax(
    W: gl.constexpr,
    s,
    qk_scale,
    BLOCK_N: gl.constexpr,
    dtype: gl.constexpr,
    ROW_LAYOUT: gl.constexpr,
    CAUSAL: gl.constexpr,
    TAIL: gl.constexpr,
    n_cols,
):
    """What a tile's first block gives, of the product s of `first_product`.

    TAIL: only n_cols of the block's columns are there. Returns the halves of p, float32 [64, 64], zeros for a right
    half that s has not; the reference m_i [64] in units of log2; row sums and maxima of p by thread, [64, 4].
    """
    HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N // 2, 16])
    HAS_RIGHT: gl.constexpr = s.shape[1] == BLOCK_N
    # On the diagonal consumer 0 has rows and columns 0 to 63 of the block; consumer 1 has rows 64 to 127, whose left
    # half has no mask.
    if HAS_RIGHT:
        s_left, s_right = halves(s, HALF)
        if CAUSAL:
            s_right = mask_diagonal(s_right, 0)
        if TAIL:
            last = opaque(n_cols) - 1
            s_left = mask_past(s_left, last, False)
            s_right = mask_past(s_right, last - BLOCK_N // 2, False)
    else:
        s_left = mask_diagonal(s, 0)
        s_right = s_left
    m_i = gl.maximum(row_max(s_left, ROW_LAYOUT) * qk_scale + headroom(dtype), LOWEST)
    p_left, p_right, l_i, top = block_softmax(s_left, s_right, m_i, qk_scale, HAS_RIGHT)
    if HAS_RIGHT:  # noqa: SIM102  (a vote is code only where it is cast)
        if any_above(W, top, most_p(dtype), False):
            largest = gl.convert_layout(gl.max(top, 1), ROW_LAYOUT)
            m_i = gl.where(largest > most_p(dtype), row_max(s_right, ROW_LAYOUT) * qk_scale + headroom(dtype), m_i)
            p_left, p_right, l_i, top = block_softmax(s_left, s_right, m_i, qk_scale, HAS_RIGHT)
    return p_left, p_right, m_i, l_i, top


@gluon.jit
def attend_block(W: gl.constexpr, q, p, acc, m_i, l_i, top, smem, stage, phase, qk_scale, STAGES: gl.constexpr):
    """One trip: QK of block i, PV of block i - 1, and the softmax of block i under it.

    p [64, 128] of block i - 1; acc [64, head_dim]; m_i [64] in units of log2; l_i, top [64, 4] by thread: row sums and
    the largest p so far. stage: where k of block i and v of block i - 1 are, given back if head_dim is 64. Returns p,
    acc, m_i, l_i, top of block i, and stage and phase of the next.
    """
    q_smem, k_smem, v_smem, full, q_full = smem
    dtype: gl.constexpr = k_smem.dtype
    BLOCK_N: gl.constexpr = k_smem.shape[1]
    HEAD_DIM: gl.constexpr = k_smem.shape[2]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    HALF_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N // 2, 16])
    P_LAYOUT: gl.constexpr = p.type.layout
    s_zero = gl.zeros([CONSUMER_ROWS, BLOCK_N], gl.float32, S_LAYOUT)

    barrier_sync(TURN + W, CONSUMER_THREADS)
    s = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), s_zero, use_acc=False, is_async=True)
    acc = warpgroup_mma(p, v_smem.index(stage), acc, is_async=True)
    barrier_arrive(TURN + 1 - W, CONSUMER_THREADS)
    s = warpgroup_mma_wait(1, deps=[s])

    # Left half of the softmax of block i, under PV.
    s_left, s_right = halves(s, HALF_LAYOUT)
    p_left = gl.exp2(s_left * qk_scale - column(m_i, s_left))
    top = larger(top, top_by_thread(p_left))
    l_i = pin(l_i + sum_by_thread(p_left))  # or ptxas puts it behind PV's wait, where the right half's exponentials are
    read = stage
    stage, phase = advance(stage, phase, STAGES)
    mbarrier.wait(full.index(stage), phase)
    acc, p, p_left = warpgroup_mma_wait(0, deps=[acc, p, p_left])
    if HEAD_DIM == 64:
        barrier_arrive(EMPTY + read, ALL_THREADS)

    # Right half, while the left one is rounded into the registers of the p that PV has read. With head_dim 64
    # the exponentials take longer than the products, and nothing holds it back.
    p_right = gl.exp2(s_right * qk_scale - column(pin(m_i) if HEAD_DIM > 64 else m_i, s_right))
    top = larger(top, top_by_thread(p_right))
    l_i += sum_by_thread(p_right)
    if HEAD_DIM == 64:  # registers are left: a warp still has s, and corrects its rows alone
        if any_above(W, top, most_p(dtype), False):
            p_left, p_right, m_i, l_i, top, zeroed = softmax_again(s_left, s_right, m_i, l_i, top, qk_scale, dtype)
            m_i, l_i, top, alpha = moved(m_i, l_i, top, dtype)
            acc = rescale(acc, alpha * zeroed)
            p_left, p_right = rescale(p_left, alpha), rescale(p_right, alpha)
        left, right = rounded_pairs(p_left, dtype), rounded_pairs(p_right, dtype)
    else:
        left, right = rounded_pairs(p_left, dtype), rounded_pairs(p_right, dtype)
        if dtype == gl.float16:  # noqa: SIM102  (a vote is code only where it is cast)
            if any_above(W, top, most_p(dtype), False):
                m_i, l_i, top, alpha = moved(m_i, l_i, top, dtype)
                acc = rescale(acc, alpha)
                left = rounded_pairs(rescale(p_left, alpha), dtype)
                right = rounded_pairs(rescale(p_right, alpha), dtype)
    return unpack_pairs(joined(left, right), dtype, P_LAYOUT), acc, m_i, l_i, top, stage, phase


@gluon.jit
def softmax_again(s_left, s_right, m_i, l_i, top, qk_scale, dtype: gl.constexpr):
    """The softmax of a block once more, for rows with a p above `TOO_LARGE_P`: with a reference above it.

    Returns the halves of p, m_i, l_i, top, in which other rows are as they were, and the factor of acc: 0 for these
    rows, 1 for others.
    """
    ROW_LAYOUT: gl.constexpr = m_i.type.layout
    largest = gl.convert_layout(gl.max(top, 1), ROW_LAYOUT)
    highest = gl.maximum(row_max(s_left, ROW_LAYOUT), row_max(s_right, ROW_LAYOUT)) * qk_scale
    m_i = gl.where(largest > TOO_LARGE_P, highest + headroom(dtype), m_i)
    p_left, p_right, l_block, top_block = block_softmax(s_left, s_right, m_i, qk_scale, True)
    here = column(largest, top) > TOO_LARGE_P
    l_i, top = gl.where(here, l_block, l_i), gl.where(here, top_block, top)
    return p_left, p_right, m_i, l_i, top, gl.where(largest > TOO_LARGE_P, 0.0, 1.0)


@gluon.jit
def attend_block_again(q, pairs, acc, m_i, l_i, top, smem, stage, qk_scale):
    """QK of a block once more, whose k is in a stage, and its `softmax_again`.

    pairs: p, packed. Returns pairs, acc, m_i, l_i and top, in which other rows are as they were.
    """
    q_smem, k_smem, v_smem, full, q_full = smem
    dtype: gl.constexpr = k_smem.dtype
    BLOCK_N: gl.constexpr = k_smem.shape[1]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    HALF_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N // 2, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    s_zero = gl.zeros([CONSUMER_ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    s = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), s_zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s])
    s_left, s_right = halves(s, HALF_LAYOUT)
    p_left, p_right, m_i, l_i, top, alpha = softmax_again(s_left, s_right, m_i, l_i, top, qk_scale, dtype)
    p = unpack_pairs(joined(rounded_pairs(p_left, dtype), rounded_pairs(p_right, dtype)), dtype, P_LAYOUT)
    return gl.where(column(alpha, pairs) == 0, pack_pairs(p), pairs), rescale(acc, alpha), m_i, l_i, top


@gluon.jit
def attend_blocks(
    W: gl.constexpr,
    q,
    p,
    acc,
    m_i,
    l_i,
    top,
    smem,
    stage,
    phase,
    n_blocks,
    qk_scale,
    STAGES: gl.constexpr,
):
    """All blocks of a tile but the first: arguments and results are `attend_block`'s."""
    q_smem, k_smem, v_smem, full, q_full = smem
    dtype: gl.constexpr = p.dtype
    P_LAYOUT: gl.constexpr = p.type.layout
    if k_smem.shape[2] == 64:
        for _ in range(1, n_blocks):
            p, acc, m_i, l_i, top, stage, phase = attend_block(
                W, q, p, acc, m_i, l_i, top, smem, stage, phase, qk_scale, STAGES
            )
    else:
        # Where a p is too large the loop is left, as a branch in it would cost registers and moves in each iteration.
        # float16 leaves only with rows that could not be moved in their block.
        LIMIT: gl.constexpr = TOO_LARGE_P if dtype == gl.float16 else most_p(dtype)
        pairs = pack_pairs(p)
        i = gl.to_tensor(1)
        while i < n_blocks:
            over = i < 0  # false, as a tensor
            while (i < n_blocks) & (over == 0):
                p = unpack_pairs(pairs, dtype, P_LAYOUT)
                p, acc, m_i, l_i, top, stage, phase = attend_block(
                    W, q, p, acc, m_i, l_i, top, smem, stage, phase, qk_scale, STAGES
                )
                pairs = pack_pairs(p)
                over = any_above(W, top, LIMIT, True)
                if over == 0:
                    barrier_arrive(EMPTY + stage_before(stage, STAGES), ALL_THREADS)
                i += 1
            if over:
                if dtype != gl.float16:
                    m_i, l_i, top, alpha = moved(m_i, l_i, top, dtype)
                    acc = rescale(acc, alpha)
                    pairs = rounded_pairs(rescale(unpack_pairs(pairs, dtype, P_LAYOUT).to(gl.float32), alpha), dtype)
                    over = any_above(W, top, TOO_LARGE_P, True)
                read = stage_before(stage, STAGES)
                if over:
                    pairs, acc, m_i, l_i, top = attend_block_again(q, pairs, acc, m_i, l_i, top, smem, read, qk_scale)
                barrier_arrive(EMPTY + read, ALL_THREADS)
        p = unpack_pairs(pairs, dtype, P_LAYOUT)
    return p, acc, m_i, l_i, top, stage, phase


@gluon.jit
def store_tile(o_desc, at, o, staging):
    """Sends o, [64, head_dim], to its rows by way of a buffer."""
    staging.store(o.to(o_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, at, behind(o_desc, staging))


@gluon.jit
def output_at(row, lse_ptr, shape, LAYOUT: gl.constexpr):
    """Where o of a consumer's rows is behind its descriptor, and where their log-sum-exp, [64], is.

    That: pointers or, of `Views`, lse_ptr, offsets and a mask of the rows that exist.
    """
    head, first = q_place(row, shape)
    rows = first + gl.arange(0, CONSUMER_ROWS, LAYOUT)
    if len(head) == 0:
        lse_at = (lse_ptr + rows,)
    elif len(shape) == len(Ragged._fields):
        lse_at = (lse_ptr, head[2] * shape.total_q + head[1] - FAR + rows, rows < FAR)
    else:
        rows_before = (head[0] * shape.heads + head[1]) * shape.q_len
        exists = (rows >= 0) & (rows < shape.q_len)  # without the first, which holds, ptxas 12.8 spills a pointer
        lse_at = (lse_ptr, rows_before + rows, exists)
    return coordinates(head, first), lse_at


@gluon.jit
def store_lse(lse_at, lse):
    """Writes lse where `output_at` says, behind a pointer that is not null."""
    if len(lse_at) == 1:
        gl.store(lse_at[0], lse)
    elif lse_at[0].to(gl.int64) != 0:
        gl.store(lse_at[0] + lse_at[1], lse, lse_at[2])


@gluon.jit
def products_of_two_tiles(W: gl.constexpr, p, acc, smem, stage, CAUSAL: gl.constexpr):
    """PV of a tile's last block and QK of the next tile's first, neither waited for.

    Returns the next tile's q, packed, its `first_product`, and acc.
    """
    q_smem, k_smem, v_smem, full, q_full = smem
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, k_smem.shape[1], 16])
    q = q_smem.index(W).load(gl.DotOperandLayout(0, S_LAYOUT, 2))
    q_pairs = pack_pairs(q)
    barrier_sync(TURN + W, CONSUMER_THREADS)
    acc = warpgroup_mma(p, v_smem.index(stage), acc, is_async=True)
    s_first = first_product(W, q, k_smem.index(stage), CAUSAL)
    barrier_arrive(TURN + 1 - W, CONSUMER_THREADS)
    return q_pairs, s_first, acc


@gluon.jit
def attend_tile(
    W: gl.constexpr,
    o_desc,
    lse_ptr,
    smem,
    shape,
    qk_scale,
    q_row,
    next_tile,
    q_pairs,
    s_first,
    q_loads,
    stage,
    phase,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
    TAIL: gl.constexpr,
):
    """Consumer W's part of the tile that begins at q_row, given its q (packed) and s_first, its `first_product`.

    next_tile: the one after it; q_loads: how often q was loaded before; stage, phase: where the ring stands. Returns
    q_row, q and `first_product` of the next tile, stage and phase.
    """
    q_smem, k_smem, v_smem, full, q_full = smem
    dtype: gl.constexpr = k_smem.dtype
    BLOCK_N: gl.constexpr = k_smem.shape[1]
    HEAD_DIM: gl.constexpr = k_smem.shape[2]
    KV_ROW_BYTES: gl.constexpr = 2 * HEAD_DIM * dtype.primitive_bitwidth // 8
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)

    row = q_row + W * CONSUMER_ROWS
    n_blocks = blocks_of(q_row, shape, CAUSAL)
    q = unpack_pairs(q_pairs, dtype, Q_LAYOUT)
    n_cols = tail_of(q_row, shape) if TAIL else BLOCK_N
    p_left, p_right, m_i, l_i, top = first_softmax(
        W, s_first, qk_scale, BLOCK_N, dtype, ROW_LAYOUT, CAUSAL, TAIL, n_cols
    )
    left, right = rounded_pairs(p_left, dtype), rounded_pairs(p_right, dtype)
    acc = gl.zeros([CONSUMER_ROWS, HEAD_DIM], gl.float32, O_LAYOUT)
    # The o of the tile before has left by now: next q, please.
    tma.store_wait(0)
    barrier_arrive(Q_EMPTY + W, Q_THREADS)

    mbarrier.wait(full.index(stage), phase)
    p = unpack_pairs(joined(left, right), dtype, P_LAYOUT)
    p, acc, m_i, l_i, top, stage, phase = attend_blocks(
        W, q, p, acc, m_i, l_i, top, smem, stage, phase, n_blocks, qk_scale, STAGES
    )

    # What needs shuffles comes before the products of two tiles: between them ptxas would wait for it.
    l_row, l_norm = row_sums(l_i, top, dtype, ROW_LAYOUT)
    mbarrier.wait(q_full.index(W), q_loads & 1)
    q_pairs, s_first, acc = products_of_two_tiles(W, p, acc, smem, stage, CAUSAL)

    # Epilogue, under the next tile's QK.
    lse = (m_i + approximate_log2(l_row)) * LN_2
    at, lse_at = output_at(row, lse_ptr, shape, ROW_LAYOUT)
    q_row, kv_row, n_blocks = own_tile_at(next_tile, shape, KV_ROW_BYTES, CAUSAL)
    acc, p = warpgroup_mma_wait(1, deps=[acc, p])
    o = rescale(acc, 1.0 / l_norm)
    store_lse(lse_at, lse)
    store_tile(o_desc, at, o, q_smem.index(W))

    s_first = warpgroup_mma_wait(0, deps=[s_first])
    barrier_arrive(EMPTY + stage, ALL_THREADS)
    stage, phase = advance(stage, phase, STAGES)
    return q_row, q_pairs, s_first, stage, phase


@gluon.jit
def consumer(
    W: gl.constexpr,
    o_desc,
    lse_ptr,
    smem,
    shape,
    qk_scale,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
    TAIL: gl.constexpr,
):
    """Consumer W: rows 64 W .. 64 W + 63 of each of this block's tiles."""
    q_smem, k_smem, v_smem, full, q_full = smem
    KV_ROW_BYTES: gl.constexpr = 2 * k_smem.shape[2] * k_smem.dtype.primitive_bitwidth // 8
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, k_smem.shape[1], 16])
    for stage in gl.static_range(STAGES):
        barrier_arrive(EMPTY + stage, ALL_THREADS)
    if W == 1:
        barrier_arrive(TURN + 0, CONSUMER_THREADS)  # consumer 0 has the first turn
    declare_votes(W)

    n_tiles = own_tiles(shape)
    q_row, kv_row, n_blocks = own_tile_at(0, shape, KV_ROW_BYTES, CAUSAL)
    barrier_arrive(Q_EMPTY + W, Q_THREADS)
    mbarrier.wait(q_full.index(W), 0)
    q = q_smem.index(W).load(gl.DotOperandLayout(0, S_LAYOUT, 2))
    # The first QK has no PV beside it.
    mbarrier.wait(full.index(0), 0)
    s_first = first_product(W, q, k_smem.index(0), CAUSAL)
    s_first = warpgroup_mma_wait(0, deps=[s_first])
    barrier_arrive(EMPTY + 0, ALL_THREADS)
    q_pairs, stage, phase = pack_pairs(q), gl.to_tensor(1), gl.to_tensor(0)
    for t in range(n_tiles):
        q_row, q_pairs, s_first, stage, phase = attend_tile(
            W,
            o_desc,
            lse_ptr,
            smem,
            shape,
            qk_scale,
            q_row,
            following(t, n_tiles),
            q_pairs,
            s_first,
            t + 1,
            stage,
            phase,
            STAGES,
            CAUSAL,
            TAIL,
        )
    if W == 0:
        barrier_sync(TURN + 0, CONSUMER_THREADS)  # consumer 1's last arrival
    tma.store_wait(0)


@gluon.jit
def attn_fwd(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    lse_ptr,
    sm_scale,
    seq_len,
    n_rows,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """The override of `kperf.kernels.attn_fwd.attn_fwd`: the same arguments, at most one block an SM."""
    attend(q_desc, k_desc, v_desc, o_desc, lse_ptr, sm_scale, Rows(seq_len, n_rows), STAGES, CAUSAL, False)


@gluon.jit
def attn_fwd_views(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    lse_ptr,
    sm_scale,
    q_len,
    heads,
    group,
    n_heads,
    n_tiles,
    tiles,
    blocks,
    tail,
    section_heads,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
    TAIL: gl.constexpr,
):
    """`attn_fwd` of tensors where they lie: descriptors [batch, heads, seq_len, head_dim] of any strides.

    Boxes [1, 1, rows, head_dim]; lse_ptr: float32 [n_heads, q_len], or null; q_len to section_heads: as `Views` has
    them. CAUSAL: the last query attends to all keys, the one before it to all but one. TAIL, of what is not causal: the
    last block has fewer columns than the others.
    """
    shape = Views(q_len, heads, group, n_heads, n_tiles, tiles, blocks, tail, section_heads)
    attend(q_desc, k_desc, v_desc, o_desc, lse_ptr, sm_scale, shape, STAGES, CAUSAL, TAIL)


@gluon.jit
def attn_fwd_ragged(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    lse_ptr,
    sm_scale,
    table,
    section_heads,
    group,
    total_q,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
    TAIL: gl.constexpr,
):
    """`attn_fwd` of sequences of different lengths, one after the other: descriptors of `ragged_descriptor`.

    lse_ptr: float32 [heads, total_q]; table to total_q: as `Ragged` has them. CAUSAL: k is as long as q in each
    sequence. TAIL, of what is not causal: a sequence's last block may have fewer columns than the others.
    """
    shape = Ragged(table, section_heads, group, total_q)
    attend(q_desc, k_desc, v_desc, o_desc, lse_ptr, sm_scale, shape, STAGES, CAUSAL, TAIL)


@gluon.jit
def attend(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    lse_ptr,
    sm_scale,
    shape,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
    TAIL: gl.constexpr,
):
    """A block: consumer 0 (the default partition, which gets the registers that are left), consumer 1, producer."""
    dtype: gl.constexpr = q_desc.dtype
    Q_SHAPE: gl.constexpr = [CONSUMER_ROWS, q_desc.block_type.shape[-1]]
    KV_SHAPE: gl.constexpr = [k_desc.block_type.shape[-2], k_desc.block_type.shape[-1]]
    Q_BUFFER: gl.constexpr = gl.NVMMASharedLayout.get_default_for(Q_SHAPE, dtype)
    KV_BUFFER: gl.constexpr = gl.NVMMASharedLayout.get_default_for(KV_SHAPE, dtype)
    q_smem = gl.allocate_shared_memory(dtype, [CONSUMERS, Q_SHAPE[0], Q_SHAPE[1]], Q_BUFFER)  # q, then o
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, KV_SHAPE[0], KV_SHAPE[1]], KV_BUFFER)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, KV_SHAPE[0], KV_SHAPE[1]], KV_BUFFER)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    for w in gl.static_range(CONSUMERS):
        mbarrier.init(q_full.index(w), count=1)
    smem = (q_smem, k_smem, v_smem, full, q_full)
    qk_scale = sm_scale * LOG2_E
    gl.warp_specialize(
        [
            (consumer, (0, o_desc, lse_ptr, smem, shape, qk_scale, STAGES, CAUSAL, TAIL)),
            (consumer, (1, o_desc, lse_ptr, smem, shape, qk_scale, STAGES, CAUSAL, TAIL)),
            (producer, (q_desc, k_desc, v_desc, smem, shape, STAGES, CAUSAL, TAIL)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
