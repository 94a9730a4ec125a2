"""Improved+: persistent blocks, ping-pong consumers, a shorter softmax, exact for every input.

What it adds to the improved schedule (FlashAttention-3, arXiv 2407.08608, section 3.1-3.2, has the first two):

- *Persistent*: a block computes one tile after another. QK of the next tile's first block is issued together with PV of
  this tile's last, so that the tensor cores do not rest between tiles, and o leaves under the next tile's work.
- *Ping-pong*: the two consumers take turns in issuing their matrix products, so that one's softmax runs under the
  other's products.
- *K and V in pairs*: trip i needs k of block i and v of block i - 1; they are one stage of the ring with one mbarrier.
- *Lagged reference*: softmax does not depend on the number that is subtracted from a row; it only must not overflow.
  p of block i is taken relative to the row maximum of the blocks before i, so that the maximum of block i is computed
  beside the exponentials instead of before them.
- *Lazy rescaling*: the reference moves only when the maximum has grown by more than 2^8; most blocks do not touch acc.
- A row sum is kept a thread at a time and added up at the end of the tile; q is held in registers.

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
    mask_diagonal,
    rescale,
    tile_at,
)

# Named barriers of the hardware (16 a block; Triton itself uses the first four). Unlike an mbarrier's arrive, theirs
# does not make a whole warp group wait for itself first.
TURN = gl.constexpr(4)  # + W: it is consumer W's turn to issue
# 6: the vote, whose number stands in its assembly
EMPTY = gl.constexpr(8)  # + stage: both consumers have read the pair
CONSUMER_THREADS = gl.constexpr(256)
ALL_THREADS = gl.constexpr(288)

LAZY_GROWTH = gl.constexpr(8.0)  # log2: p stays below 2^8


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
def column(x, beside):
    """x [rows] as a column [rows, 1] in the layout of the tensor `beside`."""
    return gl.expand_dims(gl.convert_layout(x, gl.SliceLayout(1, beside.type.layout)), 1)


@gluon.jit
def by_thread(x):
    """[rows, cols] as [rows, cols / 8, 4, 2]: of a row, thread t of four holds columns 8 j + 2 t and 8 j + 2 t + 1."""
    return gl.reshape(x, [x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def partial_row_max(s):
    """Row maxima [rows, 2], each of two of a row's four threads: neighbours first, which halves the chain, one shuffle.

    The shuffle is what ptxas does not move over a barrier, and so it holds the maxima under PV.
    """
    by_thread_max = gl.max(gl.max(by_thread(s), 3), 1)
    return gl.max(gl.reshape(by_thread_max, [s.shape[0], 2, 2]), 1)


@gluon.jit
def row_max(s):
    """Row maxima [rows]."""
    return gl.convert_layout(gl.max(partial_row_max(s), 1), gl.SliceLayout(1, s.type.layout))


@gluon.jit
def partial_row_sum(p, THREADS: gl.constexpr):
    """Row sums [rows, 4 / THREADS], each of THREADS of a row's four threads: 1 without a shuffle, 2 with one."""
    by_thread_sum = gl.sum(gl.sum(by_thread(p), 3), 1)
    return gl.sum(gl.reshape(by_thread_sum, [p.shape[0], THREADS, 4 // THREADS]), 1)


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
    """log2 of x >= 0 by one instruction, near enough to choose a reference by."""
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
def own_tile_at(t, seq_len, n_rows, KV_ROW_BYTES: gl.constexpr, CAUSAL: gl.constexpr):
    """`tile_at` of this block's t-th tile."""
    return tile_at(gl.program_id(0) + t * gl.num_programs(0), seq_len, n_rows, KV_ROW_BYTES, CAUSAL)


@gluon.jit
def block_row(kv_row, n_blocks, i, BLOCK_N: gl.constexpr, CAUSAL: gl.constexpr):
    """First row of k and v of a tile's i-th block: from the diagonal backwards if causal."""
    return kv_row + (n_blocks - 1 - i if CAUSAL else i) * BLOCK_N


@gluon.jit
def load_q(q_desc, q_row, smem, n):
    """Loads a tile's q, each consumer's half into the buffer that it has given back; the block's n-th such load."""
    q_smem, k_smem, v_smem, full, q_full, q_empty = smem
    for w in gl.static_range(CONSUMERS):
        mbarrier.wait(q_empty.index(w), (n & 1) ^ 1)
        mbarrier.expect(q_full.index(w), q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [q_row + w * CONSUMER_ROWS, 0], q_full.index(w), q_smem.index(w))


@gluon.jit
def load_pair(k_desc, v_desc, k_row, v_row, smem, stage):
    """Loads k of one block and v of the block before it into a stage that both consumers have read."""
    q_smem, k_smem, v_smem, full, q_full, q_empty = smem
    barrier_sync(EMPTY + stage, ALL_THREADS)
    mbarrier.expect(full.index(stage), k_desc.block_type.nbytes + v_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(v_desc, [v_row, 0], full.index(stage), v_smem.index(stage))
    tma.async_copy_global_to_shared(k_desc, [k_row, 0], full.index(stage), k_smem.index(stage))


@gluon.jit
def load_tiles(
    q_desc, k_desc, v_desc, smem, seq_len, n_rows, q_loads, stage, STAGES: gl.constexpr, CAUSAL: gl.constexpr
):
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
        following = gl.where(t + 1 < n_tiles, t + 1, 0)
        q_row, kv_row, n_blocks = own_tile_at(following, seq_len, n_rows, KV_ROW_BYTES, CAUSAL)
        load_pair(k_desc, v_desc, block_row(kv_row, n_blocks, 0, BLOCK_N, CAUSAL), v_row, smem, stage)
        stage = gl.where(stage == STAGES - 1, 0, stage + 1)
        load_q(q_desc, q_row, smem, q_loads + t)
    return stage


@gluon.jit
def producer(q_desc, k_desc, v_desc, smem, seq_len, n_rows, STAGES: gl.constexpr, CAUSAL: gl.constexpr):
    """Loads the tiles once, and once more if a consumer's output overflowed."""
    q_smem, k_smem, v_smem, full, q_full, q_empty = smem
    BLOCK_N: gl.constexpr = k_desc.block_type.shape[0]
    KV_ROW_BYTES: gl.constexpr = 2 * k_desc.block_type.nbytes // BLOCK_N
    q_row, kv_row, n_blocks = own_tile_at(0, seq_len, n_rows, KV_ROW_BYTES, CAUSAL)
    load_q(q_desc, q_row, smem, 0)
    # The first k has no v beside it.
    barrier_sync(EMPTY + 0, ALL_THREADS)
    mbarrier.expect(full.index(0), k_desc.block_type.nbytes)
    k_row = block_row(kv_row, n_blocks, 0, BLOCK_N, CAUSAL)
    tma.async_copy_global_to_shared(k_desc, [k_row, 0], full.index(0), k_smem.index(0))

    stage = load_tiles(q_desc, k_desc, v_desc, smem, seq_len, n_rows, 1, gl.to_tensor(1), STAGES, CAUSAL)
    if hear_vote():
        load_tiles(q_desc, k_desc, v_desc, smem, seq_len, n_rows, 1 + own_tiles(n_rows), stage, STAGES, CAUSAL)


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
    s,
    q_loads,
    stage,
    phase,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """Consumer W's pass over this block's tiles, given q (packed) and s = QK of the first tile's first block.

    q_loads: how often q was loaded before; stage, phase: where the ring stands.

    LAGGED: p is relative to the maxima of the blocks before; else to those up to its own, and nothing overflows.
    Returns the first tile's q and s again, stage, phase, and poison (as l_i): 0, or NaN where an output of that row is
    infinite or NaN.
    """
    q_smem, k_smem, v_smem, full, q_full, q_empty = smem
    BLOCK_N: gl.constexpr = k_smem.shape[1]
    HEAD_DIM: gl.constexpr = k_smem.shape[2]
    KV_ROW_BYTES: gl.constexpr = 2 * HEAD_DIM * k_smem.dtype.primitive_bitwidth // 8
    S_LAYOUT: gl.constexpr = s.type.layout
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    Q_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, S_LAYOUT, 2)
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    s_zero = gl.zeros([CONSUMER_ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    # ptxas orders the softmax well from one of two ways to write it; which one depends on the code around (NOTES.md).
    MAX_OF_P: gl.constexpr = not CAUSAL  # the block's row maxima: of p, or of s
    SUM_THREADS: gl.constexpr = 2 if CAUSAL else 1
    poison = partial_row_sum(s_zero, SUM_THREADS)

    for t in range(own_tiles(n_rows)):
        q_row, kv_row, n_blocks = own_tile_at(t, seq_len, n_rows, KV_ROW_BYTES, CAUSAL)
        q = unpack_pairs(q_pairs, k_smem.dtype, Q_LAYOUT)
        row = q_row + W * CONSUMER_ROWS

        # Softmax of the tile's first block: here the reference is its own maximum.
        if CAUSAL:
            s = mask_diagonal(s, W * CONSUMER_ROWS)
        m_i = row_max(s) * qk_scale
        p = gl.exp2(s * qk_scale - gl.expand_dims(m_i, 1))
        l_i = partial_row_sum(p, SUM_THREADS) + poison
        p = gl.convert_layout(p.to(k_smem.dtype), P_LAYOUT)
        acc = gl.zeros([CONSUMER_ROWS, HEAD_DIM], gl.float32, O_LAYOUT)
        jump = gl.zeros([CONSUMER_ROWS], gl.float32, ROW_LAYOUT)
        rounding = gl.zeros([CONSUMER_ROWS], gl.float32, ROW_LAYOUT)

        # This tile's q is in registers and the last tile's o, which was staged in q's buffer, has left: next q, please.
        tma.store_wait(0)
        mbarrier.arrive(q_empty.index(W), count=1)

        mbarrier.wait(full.index(stage), phase)
        for _ in range(1, n_blocks):
            # QK of block i and PV of block i - 1.
            barrier_sync(TURN + W, CONSUMER_THREADS)
            s = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), s_zero, use_acc=False, is_async=True)
            acc = warpgroup_mma(p, v_smem.index(stage), acc, is_async=True)
            barrier_arrive(TURN + 1 - W, CONSUMER_THREADS)
            s = warpgroup_mma_wait(1, deps=[s])

            # Softmax of block i, under that PV.
            if not LAGGED:
                jump = gl.maximum(row_max(s) * qk_scale - m_i, 0.0)
            m_i += jump
            alpha = gl.exp2(-jump)
            p_next = gl.exp2(s * qk_scale - gl.expand_dims(m_i, 1))
            top = partial_row_max(p_next if MAX_OF_P else s)
            l_i = l_i * column(alpha, l_i) + partial_row_sum(p_next, SUM_THREADS)
            p_next = gl.convert_layout(p_next.to(k_smem.dtype), P_LAYOUT)

            # Waiting for the next pair before PV is done is one of two things that keep ptxas from moving the softmax
            # below PV's wait. The other is that the results are among the wait's operands.
            read = stage
            stage, phase = advance(stage, phase, STAGES)
            mbarrier.wait(full.index(stage), phase)
            if MAX_OF_P:
                acc, p, p_next, l_i, top = warpgroup_mma_wait(0, deps=[acc, p, p_next, l_i, top])
            else:
                acc, p, l_i, top = warpgroup_mma_wait(0, deps=[acc, p, l_i, top])
            barrier_arrive(EMPTY + read, ALL_THREADS)
            acc = lazy_rescale(acc, alpha)

            # How far this block's largest p (before rounding) is above the reference, for the next block.
            top = gl.convert_layout(gl.max(top, 1), ROW_LAYOUT)
            if MAX_OF_P:
                largest = top
                jump = approximate_log2(largest)
            else:
                jump = top * qk_scale - m_i
                largest = gl.exp2(jump)
            if LAGGED:
                jump = gl.where(jump > LAZY_GROWTH, jump, 0.0)
            # p is summed before it is rounded to 16 bits, as lse asks; o is normalised by the sum after. The two differ
            # most where one key has nearly all of a row, so the rounding of a block's largest p is all that is kept.
            rounding = rounding * alpha + (rounded(largest, k_smem.dtype) - largest)
            p = p_next

        # PV of the last block and QK of the next tile's first.
        mbarrier.wait(q_full.index(W), (q_loads + t) & 1)
        q = q_smem.index(W).load(Q_LAYOUT)
        q_pairs = pack_pairs(q)
        barrier_sync(TURN + W, CONSUMER_THREADS)
        acc = warpgroup_mma(p, v_smem.index(stage), acc, is_async=True)
        s = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), s_zero, use_acc=False, is_async=True)
        barrier_arrive(TURN + 1 - W, CONSUMER_THREADS)

        # Epilogue, under that QK.
        l_row = gl.convert_layout(gl.sum(l_i, 1), ROW_LAYOUT)
        lse = (m_i + gl.log2(l_row)) * LN_2
        gl.store(lse_ptr + (row + gl.arange(0, CONSUMER_ROWS, ROW_LAYOUT)), lse)
        acc, p = warpgroup_mma_wait(1, deps=[acc, p])
        o = rescale(acc, 1.0 / (l_row + rounding))
        # What overflowed is infinite or NaN from then on: one look a tile is enough, and the next tile's l hands it on.
        poison = partial_row_sum(o * 0.0, SUM_THREADS)
        poison = gl.convert_layout(poison, l_i.type.layout) + column(lse * 0.0, l_i)
        q_smem.index(W).store(o.to(o_desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(o_desc, [row, 0], q_smem.index(W))

        s = warpgroup_mma_wait(0, deps=[s])
        barrier_arrive(EMPTY + stage, ALL_THREADS)
        stage, phase = advance(stage, phase, STAGES)
    return q_pairs, s, stage, phase, poison


@gluon.jit
def consumer(
    W: gl.constexpr, o_desc, lse_ptr, smem, seq_len, n_rows, qk_scale, STAGES: gl.constexpr, CAUSAL: gl.constexpr
):
    """Consumer W: rows 64 W .. 64 W + 63 of each of this block's tiles; all once more if an output overflowed."""
    q_smem, k_smem, v_smem, full, q_full, q_empty = smem
    BLOCK_N: gl.constexpr = k_smem.shape[1]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    for stage in gl.static_range(STAGES):
        barrier_arrive(EMPTY + stage, ALL_THREADS)
    if W == 1:
        barrier_arrive(TURN + 0, CONSUMER_THREADS)  # consumer 0 has the first turn

    # The first QK has no PV beside it.
    mbarrier.wait(q_full.index(W), 0)
    q = q_smem.index(W).load(gl.DotOperandLayout(0, S_LAYOUT, 2))
    mbarrier.wait(full.index(0), 0)
    s_zero = gl.zeros([CONSUMER_ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    s = warpgroup_mma(q, k_smem.index(0).permute((1, 0)), s_zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s])
    barrier_arrive(EMPTY + 0, ALL_THREADS)

    q_pairs = pack_pairs(q)
    stage, phase = gl.to_tensor(1), gl.to_tensor(0)
    q_pairs, s, stage, phase, poison = attend_tiles(
        W, True, o_desc, lse_ptr, smem, seq_len, n_rows, qk_scale, q_pairs, s, 1, stage, phase, STAGES, CAUSAL
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
            s,
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
    q_empty = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    for w in gl.static_range(CONSUMERS):
        mbarrier.init(q_full.index(w), count=1)
        mbarrier.init(q_empty.index(w), count=1)
    smem = (q_smem, k_smem, v_smem, full, q_full, q_empty)
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
