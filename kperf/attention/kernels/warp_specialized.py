"""What the warp-specialised Gluon kernels share: tile order, mask, TMA producer, softmax, epilogue, shared memory.

Names: a *ring* is STAGES buffers with an mbarrier pair each, `full` (TMA's bytes have arrived) and `empty` (both
consumers have read them). Trip i uses stage i % STAGES in its (i // STAGES)-th round, whose lowest bit is the phase.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

CONSUMERS = gl.constexpr(2)
CONSUMER_ROWS = gl.constexpr(64)  # m of one wgmma: the rows of q that a consumer owns
CONSUMER_REGISTERS = gl.constexpr(240)
PRODUCER_REGISTERS = gl.constexpr(24)

LOG2_E = gl.constexpr(1.4426950408889634)
LN_2 = gl.constexpr(0.6931471805599453)

# k and v of the heads that are worked on at a time should fit in a part of the L2 cache (50 MB on H100 and H200).
L2_SECTION_BYTES = gl.constexpr(16 << 20)


@gluon.jit
def ring(i, STAGES: gl.constexpr):
    """Stage and phase of trip i."""
    return i % STAGES, (i // STAGES) & 1


@gluon.jit
def by_length(index, tiles_per_head, n_heads, section_heads):
    """Head and tile of causal tile number `index`: tile t of a head attends to one block more than its tile t - 1.

    The heads are cut into sections. In one of them tiles of equal length stand together, from long to short and from
    short to long in turn, so that lengths never jump, and the last section ends with the short ones.
    """
    section = index // (section_heads * tiles_per_head)
    index_in_section = index - section * section_heads * tiles_per_head
    first_head = section * section_heads
    heads = gl.minimum(section_heads, n_heads - first_head)  # the last section may have fewer
    tile = index_in_section // heads
    sections_after = (n_heads - 1) // section_heads - section
    tile = gl.where(sections_after % 2 == 0, tiles_per_head - 1 - tile, tile)
    return first_head + index_in_section % heads, tile


@gluon.jit
def tile_at(index, seq_len, n_rows, KV_ROW_BYTES: gl.constexpr, CAUSAL: gl.constexpr):
    """Tile number `index` in launch order: its first row of q, its head's first row of k and v, its blocks of k and v.

    Without a mask: head by head. Causal tiles differ in length, and stand as `by_length` has them, in sections of heads
    whose k and v fit in the L2 cache (KV_ROW_BYTES: of one row of k and of v).
    """
    TILE: gl.constexpr = CONSUMERS * CONSUMER_ROWS
    if CAUSAL:
        tiles_per_head = seq_len // TILE
        n_heads = n_rows // seq_len
        section_heads = gl.minimum(gl.maximum(L2_SECTION_BYTES // (seq_len * KV_ROW_BYTES), 1), n_heads)
        head, tile = by_length(index, tiles_per_head, n_heads, section_heads)
        kv_row = head * seq_len
        q_row = kv_row + tile * TILE
        n_blocks = tile + 1
    else:
        q_row = index * TILE
        kv_row = (q_row // seq_len) * seq_len
        n_blocks = seq_len // TILE
    return q_row, kv_row, n_blocks


@gluon.jit
def by_thread(x):
    """[rows, cols] as [rows, cols / 8, 4, 2]: of a row, thread t of four holds columns 8 j + 2 t and 8 j + 2 t + 1."""
    return gl.reshape(x, [x.shape[0], x.shape[1] // 8, 4, 2])


@gluon.jit
def opaque(x):
    """x, int32, through a move that the compiler cannot see through: what is computed from it stays where it is."""
    return gl.inline_asm_elementwise("mov.u32 $0, $1;", "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def mask_diagonal(s, first_row):
    """s [rows, cols] on the diagonal, -inf where the column is past the row; row 0 is row first_row of the block."""
    return mask_past(s, first_row, True)


@gluon.jit
def mask_past(s, last, DIAGONAL: gl.constexpr):
    """s [rows, cols], -inf where the column is past `last`, or past `last` and the row's number if DIAGONAL.

    By thread, so that every number is compared with a constant.
    """
    x = by_thread(s)
    LAYOUT: gl.constexpr = x.type.layout
    ROWS: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT)))
    GROUPS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, LAYOUT)))
    THREADS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, LAYOUT)))
    NEIGHBOURS: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    row = 0
    if DIAGONAL:
        row = gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.arange(0, x.shape[0], ROWS), 1), 2), 3)
    group = gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.arange(0, x.shape[1], GROUPS), 0), 2), 3)
    thread = gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.arange(0, 4, THREADS), 0), 1), 3)
    neighbour = gl.expand_dims(gl.expand_dims(gl.expand_dims(gl.arange(0, 2, NEIGHBOURS), 0), 1), 2)
    # Else a persistent kernel compares everything before its first tile and holds the outcome in registers.
    ahead = opaque(last + row - 2 * thread)
    x = gl.where(ahead >= 8 * group + neighbour, x, float("-inf"))
    return gl.convert_layout(gl.reshape(x, s.shape), s.type.layout)


@gluon.jit
def producer(q_desc, k_desc, v_desc, smem, q_row, kv_row, n_blocks, STAGES: gl.constexpr, CAUSAL: gl.constexpr):
    """Loads q once, then k and v block by block, each as soon as both consumers have emptied its stage.

    Causal tiles begin with their last block, the diagonal one, so that the loop over the others needs no mask.
    """
    q_smem, k_smem, v_smem, q_full, k_full, k_empty, v_full, v_empty = smem
    for w in gl.static_range(CONSUMERS):
        mbarrier.expect(q_full.index(w), q_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(q_desc, [q_row + w * CONSUMER_ROWS, 0], q_full.index(w), q_smem.index(w))
    for i in range(n_blocks):
        stage, phase = ring(i, STAGES)
        block = n_blocks - 1 - i if CAUSAL else i
        row = kv_row + block * k_desc.block_type.shape[0]
        mbarrier.wait(k_empty.index(stage), phase ^ 1)
        mbarrier.expect(k_full.index(stage), k_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(k_desc, [row, 0], k_full.index(stage), k_smem.index(stage))
        mbarrier.wait(v_empty.index(stage), phase ^ 1)
        mbarrier.expect(v_full.index(stage), v_desc.block_type.nbytes)
        tma.async_copy_global_to_shared(v_desc, [row, 0], v_full.index(stage), v_smem.index(stage))


@gluon.jit
def online_softmax(s, m_i, l_i, qk_scale):
    """One block's p and the rescaled running sum: s [rows, cols], m_i (units of log2) and l_i [rows]."""
    m_new = gl.maximum(m_i, gl.max(s, 1) * qk_scale)
    p = gl.exp2(s * qk_scale - gl.expand_dims(m_new, 1))
    alpha = gl.exp2(m_i - m_new)
    return p, alpha, m_new, l_i * alpha + gl.sum(p, 1)


@gluon.jit
def column(x, beside):
    """x [rows] as a column [rows, 1] in the layout of the tensor `beside`."""
    return gl.expand_dims(gl.convert_layout(x, gl.SliceLayout(1, beside.type.layout)), 1)


@gluon.jit
def rescale(acc, alpha):
    """acc * alpha, row by row, in acc's layout."""
    return acc * column(alpha, acc)


@gluon.jit
def store_output(acc, m_i, l_i, o_desc, lse_ptr, o_smem, row):
    """Writes o = acc / l_i by TMA (through the consumer's own q buffer, which nobody reads any more) and the lse."""
    lse = (m_i + gl.log2(l_i)) * LN_2
    gl.store(lse_ptr + row + gl.arange(0, CONSUMER_ROWS, l_i.type.layout), lse)
    o_smem.store(rescale(acc, 1.0 / l_i).to(o_desc.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(o_desc, [row, 0], o_smem)
    tma.store_wait(0)


@gluon.jit
def allocate(q_desc, k_desc, v_desc, STAGES: gl.constexpr):
    """Shared memory of a block: the buffers of q, k, v and their initialised mbarriers, in the order below."""
    dtype: gl.constexpr = q_desc.dtype
    q_box: gl.constexpr = q_desc.block_type.shape
    kv_box: gl.constexpr = k_desc.block_type.shape
    q_smem = gl.allocate_shared_memory(dtype, [CONSUMERS, q_box[0], q_box[1]], q_desc.layout)
    k_smem = gl.allocate_shared_memory(dtype, [STAGES, kv_box[0], kv_box[1]], k_desc.layout)
    v_smem = gl.allocate_shared_memory(dtype, [STAGES, kv_box[0], kv_box[1]], v_desc.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [CONSUMERS, 1], mbarrier.MBarrierLayout())
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for w in gl.static_range(CONSUMERS):
        mbarrier.init(q_full.index(w), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(k_empty.index(stage), count=CONSUMERS)
        mbarrier.init(v_empty.index(stage), count=CONSUMERS)
    return q_smem, k_smem, v_smem, q_full, k_full, k_empty, v_full, v_empty
