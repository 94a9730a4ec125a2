"""Improved+: persistent blocks, ping-pong consumers, a shorter softmax, right for every input.

What it adds to the improved schedule (FlashAttention-3, arXiv 2407.08608, section 3.1-3.2, has the first two):

- *Persistent*: a block computes one tile after another. QK of the next tile's first block is issued together with PV of
  this tile's last, so that the tensor cores do not rest between tiles, and o leaves under the next tile's work.
- *Ping-pong*: the two consumers take turns in issuing their matrix products, so that one's softmax runs under the
  other's products.
- *K and V in pairs*: trip i needs k of block i and v of block i - 1; they are one stage of the ring with one mbarrier.
- *Lagged reference*: softmax does not depend on the number that is subtracted from a row; it only must not overflow.
  p of block i is taken relative to the row maximum of the blocks before i, so that the maximum of block i is computed
  beside the exponentials instead of before them. A tile's first block takes that of its own left half.
- *Lazy rescaling*: the reference moves only when the maximum has grown by more than 2^8; most blocks do not touch acc.
- *Two halves*: the left half of p is computed under PV, the right half after PV is done with the registers of the
  previous p, so that the left half is rounded into them beside the right half's exponentials.
- Row sums are kept a thread or two at a time and added up at the end of the tile; q is held in registers; maxima of p,
  which is never negative, are taken as integers, for which Hopper has an instruction of three operands.

A row whose maximum jumps by about 2^127 from one block to the next overflows with a lagged reference. Overflow leaves
infinities or NaN, which nothing later removes, so each tile's output is looked at once, and the block votes at its end:
if anything overflowed, it computes its tiles again with the reference moved *before* the exponentials. So the result is
right for every input, in at most about twice the time.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kperf.kernels.warp_specialized import (
    CONSUMER_REGISTERS,
    CONSUMER_ROWS,
    CONSUMERS,
    LN_2,
    LOG2_E,
    PRODUCER_REGISTERS,
    by_thread,
    column,
    mask_diagonal,
    rescale,
    tile_at,
)

# Named barriers of the hardware (16 a block; Triton itself uses the first four). Unlike an mbarrier's arrive, theirs
# does not make a whole warp group wait for itself first.
TURN = gl.constexpr(4)  # + W: it is consumer W's turn to issue
# 6: the vote, whose number stands in its assembly
EMPTY = gl.constexpr(8)  # + stage: both consumers have read the pair
Q_EMPTY = gl.constexpr(11)  # + W: consumer W's q is in registers, and the o that was staged in its buffer has left
CONSUMER_THREADS = gl.constexpr(256)
Q_THREADS = gl.constexpr(160)  # one consumer and the producer
ALL_THREADS = gl.constexpr(288)

# How many of a row's four threads a partial sum covers: 2 takes a shuffle, which ptxas does not move out of its basic
# block, so that the sum stays where it is written; 1 takes none.
LEFT_THREADS = gl.constexpr(2)
RIGHT_THREADS = gl.constexpr(1)

LAZY_GROWTH = gl.constexpr(8.0)  # log2: p stays below 2^8
# log2: what a growth of up to 2^128 leaves after it is below 2^8, and 2^-120 is not flushed to zero, as 2^-127 is.
LARGEST_JUMP = gl.constexpr(120.0)


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
def vote_asm(w):
    """Inline PTX: waits for ALL_THREADS and sets register redo<w> to whether either number of any thread is NaN."""
    return (
        f".reg .b32 redo{w}; {{ .reg .pred p; setp.nan.f32 p, $2, $2; setp.nan.or.f32 p, $3, $3, p; "
        f"bar.red.or.pred p, 6, 288, p; selp.b32 redo{w}, 1, 0, p; }} mov.b32 $0, redo{w}; mov.b32 $1, redo{w};"
    )


@gluon.constexpr_function
def voted_asm(w):
    """Inline PTX that reads the register of `vote_asm`: so a number a thread becomes one for the block."""
    return f"mov.b32 $0, redo{w};"


@gluon.jit
def vote(W: gl.constexpr, poison):
    """Whether poison, two numbers a thread, is NaN anywhere in either consumer; the producer takes part."""
    VOTE_ASM: gl.constexpr = vote_asm(W)
    VOTED_ASM: gl.constexpr = voted_asm(W)
    gl.inline_asm_elementwise(VOTE_ASM, "=r,=r,f,f", [poison], dtype=gl.int32, is_pure=False, pack=2)
    redo = gl.inline_asm_elementwise(VOTED_ASM, "=r,r", [gl.to_tensor(0)], dtype=gl.int32, is_pure=False, pack=1)
    return redo != 0


@gluon.jit
def hear_vote():
    """The producer's part in `vote`: it has nothing to say, and does what the consumers found."""
    redo = gl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $1, 0; bar.red.or.pred p, 6, 288, p; selp.s32 $0, 1, 0, p; }",
        "=r,r",
        [gl.to_tensor(0)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )
    return redo != 0


@gluon.jit
def wait_for_stores(anything):
    """Waits until what TMA was given to store is in memory; `tma.store_wait` only waits until it was read."""
    gl.inline_asm_elementwise(
        "cp.async.bulk.wait_group 0; mov.u32 $0, 0;",
        "=r,r",
        [gl.to_tensor(anything)],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@gluon.constexpr_function
def lazy_scale_asm(n):
    """Inline PTX that multiplies a thread's n accumulators by their row's alpha unless every alpha of the warp is 1.

    Operands: n outputs tied to n inputs, then alpha once for each of them. A thread holds parts of two rows of acc, in
    turn two columns of the first and two of the second.
    """
    body = " ".join(f"mul.f32 ${j}, ${j}, ${2 * n + j};" for j in range(n))
    return (
        f"{{ .reg .pred p, q; setp.neu.f32 p, ${2 * n}, 0f3F800000; setp.neu.or.f32 p, ${2 * n + 2}, 0f3F800000, p; "
        f"vote.sync.any.pred q, p, 0xffffffff; @!q bra UNCHANGED; {body} UNCHANGED: }}"
    )


@gluon.constexpr_function
def lazy_scale_constraints(n):
    """The operands of `lazy_scale_asm`."""
    return ",".join(["=f"] * n + [str(j) for j in range(n)] + ["f"] * n)


@gluon.jit
def lazy_rescale(acc, alpha):
    """acc * alpha, row by row; a warp whose alphas are all 1 skips the multiplications."""
    PER_THREAD: gl.constexpr = acc.shape[0] * acc.shape[1] // 128
    ASM: gl.constexpr = lazy_scale_asm(PER_THREAD)
    CONSTRAINTS: gl.constexpr = lazy_scale_constraints(PER_THREAD)
    alpha = column(alpha, acc)
    return gl.inline_asm_elementwise(ASM, CONSTRAINTS, [acc, alpha], dtype=gl.float32, is_pure=False, pack=PER_THREAD)


@gluon.jit
def row_max(s, LAYOUT: gl.constexpr):
    """Row maxima [rows] in LAYOUT; neighbours first, which halves the chain."""
    return gl.convert_layout(gl.max(gl.max(gl.max(by_thread(s), 3), 1), 1), LAYOUT)


@gluon.jit
def partial_row_max(p):
    """Row maxima of p >= 0 as int32 [rows, 2] (of equal order), each of two of a row's four threads: one shuffle."""
    by_thread_max = gl.max(gl.max(by_thread(p.to(gl.int32, bitcast=True)), 3), 1)
    return gl.max(gl.reshape(by_thread_max, [p.shape[0], 2, 2]), 1)


@gluon.jit
def whole_row_max(top, LAYOUT: gl.constexpr):
    """Row maxima [rows] as float32 in LAYOUT, of what `partial_row_max` returned."""
    return gl.convert_layout(gl.max(top, 1).to(gl.float32, bitcast=True), LAYOUT)


@gluon.jit
def partial_row_sum(p, THREADS: gl.constexpr):
    """Row sums [rows, 4 / THREADS], each of THREADS of a row's four threads: 1 without a shuffle, 2 with one."""
    by_thread_sum = gl.sum(gl.sum(by_thread(p), 3), 1)
    return gl.sum(gl.reshape(by_thread_sum, [p.shape[0], THREADS, 4 // THREADS]), 1)


@gluon.jit
def whole_row_sum(l_left, l_right, LAYOUT: gl.constexpr):
    """Row sums [rows] in LAYOUT, of what `partial_row_sum` returned for the left and the right halves."""
    return gl.convert_layout(gl.sum(l_left, 1), LAYOUT) + gl.convert_layout(gl.sum(l_right, 1), LAYOUT)


@gluon.jit
def halves(x, LAYOUT: gl.constexpr):
    """The left and the right half of x [rows, cols], each [rows, cols / 2] in LAYOUT."""
    left, right = gl.split(gl.permute(gl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), (0, 2, 1)))
    return gl.convert_layout(left, LAYOUT), gl.convert_layout(right, LAYOUT)


@gluon.jit
def rounded_halves(left, right, dtype: gl.constexpr, LAYOUT: gl.constexpr):
    """The two halves [rows, cols] of a float32 tensor, rounded to a 16-bit type, as one [rows, 2 cols] in LAYOUT."""
    x = gl.permute(gl.join(left.to(dtype), right.to(dtype)), (0, 2, 1))
    return gl.convert_layout(gl.reshape(x, [left.shape[0], 2 * left.shape[1]]), LAYOUT)


@gluon.jit
def pack_pairs(x):
    """Neighbours along a row of 16-bit x [rows, cols] as one int32, [rows, cols / 2].

    A 16-bit tensor that a loop carries becomes a register an element where the loop begins; packed, it does not.
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


@gluon.constexpr_function
def rounding_asm(dtype):
    """Inline PTX that rounds two float32 to the 16-bit type and back with one conversion (the compiler takes two)."""
    kind = {"bf16": "bf16", "fp16": "f16"}[str(dtype)]
    return (
        f"{{ .reg .b16 a, b; .reg .b32 t; cvt.rn.{kind}x2.f32 t, $3, $2; mov.b32 {{a, b}}, t; "
        f"cvt.f32.{kind} $0, a; cvt.f32.{kind} $1, b; }}"
    )


@gluon.jit
def rounded(x, dtype: gl.constexpr):
    """float32 x [64], two numbers a thread, rounded to a 16-bit type."""
    ASM: gl.constexpr = rounding_asm(dtype)
    return gl.inline_asm_elementwise(ASM, "=f,=f,f,f", [x], dtype=gl.float32, is_pure=True, pack=2)


@gluon.jit
def advance(stage, phase, STAGES: gl.constexpr):
    """The next stage of the ring and its phase."""
    stage += 1
    if stage == STAGES:
        stage = 0
        phase ^= 1
    return stage, phase


@gluon.jit
def own_tiles(n_rows):
    """How many tiles this block computes: tile program_id, and every num_programs-th after it."""
    return gl.cdiv(n_rows // (CONSUMERS * CONSUMER_ROWS) - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def following(t, n_tiles):
    """The tile whose first QK is issued beside the last PV of tile t: the next, or the first for another pass."""
    return gl.where(t + 1 < n_tiles, t + 1, 0)


@gluon.jit
def own_tile_at(t, seq_len, n_rows, KV_ROW_BYTES: gl.constexpr, CAUSAL: gl.constexpr):
    """`tile_at` of this block's t-th tile."""
    return tile_at(gl.program_id(0) + t * gl.num_programs(0), seq_len, n_rows, KV_ROW_BYTES, CAUSAL)


@gluon.jit
def block_row(kv_row, n_blocks, i, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """First row of k and v of a tile's i-th block: from the diagonal backwards if causal."""
    return kv_row + (n_blocks - 1 - i if CAUSAL else i) * BLOCK_N


@gluon.jit
def load_q(q_desc, q_row, smem):
    """Loads a tile's q, each consumer's half into the buffer that it has given back."""
    q_smem, k_smem, v_smem, full, q_full = smem
    for w in gl.static_range(CONSUMERS):
        barrier_sync(Q_EMPTY + w, Q_THREADS)
        mbarrier.expect(q_full.index(w), q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [q_row + w * CONSUMER_ROWS, 0], q_full.index(w), q_smem.index(w))


@gluon.jit
def load_pair(k_desc, v_desc, k_row, v_row, smem, stage):
    """Loads k of one block and v of the block before it into a stage that both consumers have read."""
    q_smem, k_smem, v_smem, full, q_full = smem
    barrier_sync(EMPTY + stage, ALL_THREADS)
    mbarrier.expect(full.index(stage), k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(v_desc, [v_row, 0], full.index(stage), v_smem.index(stage))
    tma.async_copy_global_to_shared(k_desc, [k_row, 0], full.index(stage), k_smem.index(stage))


@gluon.jit
def load_tiles(q_desc, k_desc, v_desc, smem, seq_len, n_rows, stage, STAGES: gl.constexpr, CAUSAL: gl.constexpr):
    """The producer's pass over this block's tiles, of which the first q and k are there; returns the next stage.

    Beside each tile's last v come the next tile's first k and its q; after the last tile the first one's again.
    """
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[0]
    KV_ROW_BYTES: gl.constexpr = 2 * k_desc.block_type.nbytes // BLOCK_N
    n_tiles = own_tiles(n_rows)
    q_row, kv_row, n_blocks = own_tile_at(0, seq_len, n_rows, KV_ROW_BYTES, CAUSAL)
    for t in range(n_tiles):
        v_row = block_row(kv_row, n_blocks, 0, BLOCK_N, CAUSAL)
        for i in range(1, n_blocks):
            k_row = block_row(kv_row, n_blocks, i, BLOCK_N, CAUSAL)
            load_pair(k_desc, v_desc, k_row, v_row, smem, stage)
            stage = gl.where(stage == STAGES - 1, 0, stage + 1)
            v_row = k_row
        q_row, kv_row, n_blocks = own_tile_at(following(t, n_tiles), seq_len, n_rows, KV_ROW_BYTES, CAUSAL)
        load_pair(k_desc, v_desc, block_row(kv_row, n_blocks, 0, BLOCK_N, CAUSAL), v_row, smem, stage)
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        load_q(q_desc, q_row, smem)
    return stage


@gluon.jit
def producer(q_desc, k_desc, v_desc, smem, seq_len, n_rows, STAGES: gl.constexpr, CAUSAL: gl.constexpr):
    """Loads the tiles once, and once more if a consumer's output overflowed."""
    q_smem, k_smem, v_smem, full, q_full = smem
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[0]
    KV_ROW_BYTES: gl.constexpr = 2 * k_desc.block_type.nbytes // BLOCK_N
    q_row, kv_row, n_blocks = own_tile_at(0, seq_len, n_rows, KV_ROW_BYTES, CAUSAL)
    load_q(q_desc, q_row, smem)
    # The first k has no v beside it.
    barrier_sync(EMPTY + 0, ALL_THREADS)
    mbarrier.expect(full.index(0), k_desc.block_type.nbytes)
    k_row = block_row(kv_row, n_blocks, 0, BLOCK_N, CAUSAL)
    tma.async_copy_global_to_shared(k_desc, [k_row, 0], full.index(0), k_smem.index(0))

    stage = load_tiles(q_desc, k_desc, v_desc, smem, seq_len, n_rows, gl.to_tensor(1), STAGES, CAUSAL)
    if hear_vote():
        load_tiles(q_desc, k_desc, v_desc, smem, seq_len, n_rows, stage, STAGES, CAUSAL)


@gluon.jit
def first_product(W: gl.constexpr, q, k, CAUSAL: gl.constexpr):
    """QK of a tile's first block, not waited for; on the diagonal all of consumer 0's right half would be masked."""
    COLS: gl.constexpr = k.shape[0] // 2 if CAUSAL and W == 0 else k.shape[0]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, COLS, 16])
    zero = gl.zeros([CONSUMER_ROWS, COLS], gl.float32, LAYOUT)
    q = gl.convert_layout(q, gl.DotOperandLayout(0, LAYOUT, 2))
    return warpgroup_mma(q, k.slice(0, COLS).permute((1, 0)), zero, use_acc=False, is_async=True)


@gluon.jit
def first_softmax(
    W: gl.constexpr,
    LAGGED: gl.constexpr,
    s,
    qk_scale,
    poison,
    BLOCK_N: gl.constexpr,
    dtype: gl.constexpr,
    P_LAYOUT: gl.constexpr,
    ROW_LAYOUT: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """p of a tile's first block given `first_product`, its reference m_i, partial row sums and maxima."""
    HALF: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N // 2, 16])
    # On the diagonal consumer 0 has rows and columns 0 to 63 of the block; consumer 1 has rows 64 to 127, whose left
    # half has no mask.
    if CAUSAL and W == 0:
        s_left = mask_diagonal(s, 0)
    else:
        s_left, s_right = halves(s, HALF)
        if CAUSAL:
            s_right = mask_diagonal(s_right, 0)
    m_i = row_max(s_left, ROW_LAYOUT)
    if s.shape[1] == BLOCK_N and not LAGGED:
        m_i = gl.maximum(m_i, row_max(s_right, ROW_LAYOUT))
    m_i *= qk_scale
    p_left = gl.exp2(s_left * qk_scale - column(m_i, s_left))
    top = partial_row_max(p_left)
    l_left = partial_row_sum(p_left, LEFT_THREADS) + poison
    if s.shape[1] == BLOCK_N:
        p_right = gl.exp2(s_right * qk_scale - column(m_i, s_right))
        top = gl.maximum(top, partial_row_max(p_right))
    else:
        p_right = gl.zeros([CONSUMER_ROWS, BLOCK_N // 2], gl.float32, HALF)
    l_right = partial_row_sum(p_right, RIGHT_THREADS)
    return rounded_halves(p_left, p_right, dtype, P_LAYOUT), m_i, l_left, l_right, top


@gluon.jit
def attend_tiles(  # noqa: PLR0915
    W: gl.constexpr,
    LAGGED: gl.constexpr,
    o_desc,
    lse_ptr,
    smem,
    seq_len,
    n_rows,
    qk_scale,
    q_pairs,
    s_first,
    q_loads,
    stage,
    phase,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Consumer W's pass over this block's tiles, given q (packed) and s_first, `first_product` of the first tile.

    q_loads: how often q was loaded before; stage, phase: where the ring stands.

    LAGGED: p is relative to the maxima of the blocks before; else to those up to its own, and nothing overflows.
    Returns the first tile's q and s_first again, stage, phase, and poison (as l_left): 0, or NaN where an output of
    that row is infinite or NaN.
    """
    q_smem, k_smem, v_smem, full, q_full = smem
    dtype: gl.constexpr = k_smem.dtype
    BLOCK_N: gl.constexpr = k_smem.shape[1]
    HEAD_DIM: gl.constexpr = k_smem.shape[2]
    KV_ROW_BYTES: gl.constexpr = 2 * HEAD_DIM * dtype.primitive_bitwidth // 8
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    HALF_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N // 2, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    s_zero = gl.zeros([CONSUMER_ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    poison = partial_row_sum(s_zero, LEFT_THREADS)

    # The first tile's q is in registers, and nothing is staged in its buffer.
    barrier_arrive(Q_EMPTY + W, Q_THREADS)
    n_tiles = own_tiles(n_rows)
    q_row, kv_row, n_blocks = own_tile_at(0, seq_len, n_rows, KV_ROW_BYTES, CAUSAL)
    for t in range(n_tiles):
        row = q_row + W * CONSUMER_ROWS
        if CAUSAL:
            # From q_row: Triton 3.6.0's loop-aware CSE takes an n_blocks that the loop carries for the first tile's.
            n_blocks = (q_row % seq_len) // (CONSUMERS * CONSUMER_ROWS) + 1
        q = unpack_pairs(q_pairs, dtype, Q_LAYOUT)

        p, m_i, l_left, l_right, top = first_softmax(
            W, LAGGED, s_first, qk_scale, poison, BLOCK_N, dtype, P_LAYOUT, ROW_LAYOUT, CAUSAL
        )
        acc = gl.zeros([CONSUMER_ROWS, HEAD_DIM], gl.float32, O_LAYOUT)
        rounding = gl.zeros([CONSUMER_ROWS], gl.float32, ROW_LAYOUT)
        if t > 0:
            # The last tile's o has left by now: next q, please.
            tma.store_wait(0)
            barrier_arrive(Q_EMPTY + W, Q_THREADS)

        mbarrier.wait(full.index(stage), phase)
        for _ in range(1, n_blocks):
            # QK of block i and PV of block i - 1.
            barrier_sync(TURN + W, CONSUMER_THREADS)
            s = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), s_zero, use_acc=False, is_async=True)
            acc = warpgroup_mma(p, v_smem.index(stage), acc, is_async=True)
            barrier_arrive(TURN + 1 - W, CONSUMER_THREADS)

            # Under QK: how far the largest p of block i - 1 is above its reference, and so where that of block i lies.
            largest = whole_row_max(top, ROW_LAYOUT)
            # p is summed before it is rounded to 16 bits, as lse asks; o is normalised by the sum after. The two differ
            # most where one key has nearly all of a row, so the rounding of a block's largest p is all that is kept.
            rounding += rounded(largest, dtype) - largest
            growth = approximate_log2(largest)
            jump = gl.where(growth > LAZY_GROWTH, gl.minimum(growth, LARGEST_JUMP), 0.0)
            s = warpgroup_mma_wait(1, deps=[s])
            if not LAGGED:
                jump = gl.maximum(row_max(s, ROW_LAYOUT) * qk_scale - m_i, 0.0)
            m_i += jump
            alpha = gl.exp2(-jump)
            rounding *= alpha

            # Left half of the softmax of block i, under PV.
            s_left, s_right = halves(s, HALF_LAYOUT)
            p_left = gl.exp2(s_left * qk_scale - column(m_i, s_left))
            top = partial_row_max(p_left)
            l_left = l_left * column(alpha, l_left) + partial_row_sum(p_left, LEFT_THREADS)

            # Waiting for the next pair before PV is done is one of the things that keep ptxas from moving the left half
            # below PV's wait. The others are the shuffles above, and that the results are among the wait's operands.
            read = stage
            stage, phase = advance(stage, phase, STAGES)
            mbarrier.wait(full.index(stage), phase)
            acc, p, p_left, l_left, top = warpgroup_mma_wait(0, deps=[acc, p, p_left, l_left, top])
            barrier_arrive(EMPTY + read, ALL_THREADS)
            acc = lazy_rescale(acc, alpha)

            # Right half, while the left one is rounded into the registers of the p that PV has read.
            p_right = gl.exp2(s_right * qk_scale - column(m_i, s_right))
            top = gl.maximum(top, partial_row_max(p_right))
            l_right = l_right * column(alpha, l_right) + partial_row_sum(p_right, RIGHT_THREADS)
            p = rounded_halves(p_left, p_right, dtype, P_LAYOUT)

        # PV of the last block and QK of the next tile's first. What needs shuffles comes before: between the products
        # of two blocks ptxas would wait for them.
        largest = whole_row_max(top, ROW_LAYOUT)
        l_row = whole_row_sum(l_left, l_right, ROW_LAYOUT)
        mbarrier.wait(q_full.index(W), (q_loads + t) & 1)
        q = q_smem.index(W).load(Q_LAYOUT)
        q_pairs = pack_pairs(q)
        barrier_sync(TURN + W, CONSUMER_THREADS)
        acc = warpgroup_mma(p, v_smem.index(stage), acc, is_async=True)
        s_first = first_product(W, q, k_smem.index(stage), CAUSAL)
        barrier_arrive(TURN + 1 - W, CONSUMER_THREADS)

        # Epilogue, under that QK.
        rounding += rounded(largest, dtype) - largest
        lse = (m_i + approximate_log2(l_row)) * LN_2
        gl.store(lse_ptr + (row + gl.arange(0, CONSUMER_ROWS, ROW_LAYOUT)), lse)
        q_row, kv_row, n_blocks = own_tile_at(following(t, n_tiles), seq_len, n_rows, KV_ROW_BYTES, CAUSAL)
        acc, p = warpgroup_mma_wait(1, deps=[acc, p])
        o = rescale(acc, 1.0 / (l_row + rounding))
        # What overflowed is infinite or NaN from then on: one look a tile is enough, and the next tile's l hands it on.
        poison = partial_row_sum(o * 0.0, LEFT_THREADS)
        poison = gl.convert_layout(poison, l_left.type.layout) + column(lse * 0.0, l_left)
        q_smem.index(W).store(o.to(o_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(o_desc, [row, 0], q_smem.index(W))

        s_first = warpgroup_mma_wait(0, deps=[s_first])
        barrier_arrive(EMPTY + stage, ALL_THREADS)
        stage, phase = advance(stage, phase, STAGES)
    return q_pairs, s_first, stage, phase, poison


@gluon.jit
def consumer(
    W: gl.constexpr, o_desc, lse_ptr, smem, seq_len, n_rows, qk_scale, STAGES: gl.constexpr, CAUSAL: gl.constexpr
):
    """Consumer W: rows 64 W .. 64 W + 63 of each of this block's tiles; all once more if an output overflowed."""
    q_smem, k_smem, v_smem, full, q_full = smem
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, k_smem.shape[1], 16])
    for stage in gl.static_range(STAGES):
        barrier_arrive(EMPTY + stage, ALL_THREADS)
    barrier_arrive(Q_EMPTY + W, Q_THREADS)
    if W == 1:
        barrier_arrive(TURN + 0, CONSUMER_THREADS)  # consumer 0 has the first turn

    # The first QK has no PV beside it.
    mbarrier.wait(q_full.index(W), 0)
    q = q_smem.index(W).load(gl.DotOperandLayout(0, S_LAYOUT, 2))
    mbarrier.wait(full.index(0), 0)
    s_first = first_product(W, q, k_smem.index(0), CAUSAL)
    s_first = warpgroup_mma_wait(0, deps=[s_first])
    barrier_arrive(EMPTY + 0, ALL_THREADS)

    q_pairs = pack_pairs(q)
    stage, phase = gl.to_tensor(1), gl.to_tensor(0)
    q_pairs, s_first, stage, phase, poison = attend_tiles(
        W, True, o_desc, lse_ptr, smem, seq_len, n_rows, qk_scale, q_pairs, s_first, 1, stage, phase, STAGES, CAUSAL
    )
    if vote(W, poison):
        wait_for_stores(W)
        q_loads = 1 + own_tiles(n_rows)
        attend_tiles(
            W,
            False,
            o_desc,
            lse_ptr,
            smem,
            seq_len,
            n_rows,
            qk_scale,
            q_pairs,
            s_first,
            q_loads,
            stage,
            phase,
            STAGES,
            CAUSAL,
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
    """The override of `kperf.kernels.attn_fwd.attn_fwd`: the same arguments, at most one block an SM.

    Three warp groups: consumer 0 (the default partition, which gets the registers that are left), consumer 1, producer.
    """
    dtype: gl.constexpr = q_desc.dtype
    q_box: gl.constexpr = q_desc.block_type.shape
    kv_box: gl.constexpr = k_desc.block_type.shape
    q_smem = gl.allocate_shared_memory(dtype, [CONSUMERS, q_box[0], q_box[1]], q_desc.layout)  # q, then o
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, kv_box[0], kv_box[1]], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, kv_box[0], kv_box[1]], v_desc.layout)
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
            (consumer, (0, o_desc, lse_ptr, smem, seq_len, n_rows, qk_scale, STAGES, CAUSAL)),
            (consumer, (1, o_desc, lse_ptr, smem, seq_len, n_rows, qk_scale, STAGES, CAUSAL)),
            (producer, (q_desc, k_desc, v_desc, smem, seq_len, n_rows, STAGES, CAUSAL)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
