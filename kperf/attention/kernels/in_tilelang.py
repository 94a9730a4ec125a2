"""Attention in TileLang, to be compared: FlashAttention-2's loop, which TileLang's compiler pipelines.

Imported only where TileLang is installed. Its compiler warp-specialises the loop on Hopper by itself.
"""

from typing import Any

import tilelang
import tilelang.language as tl

LOG2_E = 1.4426950408889634
LN_2 = 0.6931471805599453


def program(
    batch: int, heads: int, kv_heads: int, seq_len: int, head_dim: int, dtype: str, causal: bool, sm_scale: float
) -> Any:
    """A function of q, k, v, o [batch, heads, seq_len, head_dim], k and v of kv_heads heads, and the float32 lse."""
    rows, columns, threads = 128, 128 if head_dim <= 128 else 64, 256
    groups = heads // kv_heads
    qk_scale = sm_scale * LOG2_E

    @tl.prim_func
    def attention_forward(
        q: tl.Tensor([batch, heads, seq_len, head_dim], dtype),
        k: tl.Tensor([batch, kv_heads, seq_len, head_dim], dtype),
        v: tl.Tensor([batch, kv_heads, seq_len, head_dim], dtype),
        o: tl.Tensor([batch, heads, seq_len, head_dim], dtype),
        lse: tl.Tensor([batch, heads, seq_len], "float32"),
    ):
        with tl.Kernel(seq_len // rows, heads, batch, threads=threads) as (tile, h, b):
            q_tile = tl.alloc_shared([rows, head_dim], dtype)
            k_tile = tl.alloc_shared([columns, head_dim], dtype)
            v_tile = tl.alloc_shared([columns, head_dim], dtype)
            s = tl.alloc_fragment([rows, columns], "float32")
            p = tl.alloc_fragment([rows, columns], dtype)
            acc = tl.alloc_fragment([rows, head_dim], "float32")
            m_i = tl.alloc_fragment([rows], "float32")
            m_before = tl.alloc_fragment([rows], "float32")
            alpha = tl.alloc_fragment([rows], "float32")
            row_sum = tl.alloc_fragment([rows], "float32")
            l_i = tl.alloc_fragment([rows], "float32")

            tl.copy(q[b, h, tile * rows : (tile + 1) * rows, :], q_tile)
            tl.fill(acc, 0)
            tl.fill(l_i, 0)
            tl.fill(m_i, -tl.infinity("float32"))
            blocks = tl.ceildiv((tile + 1) * rows, columns) if causal else seq_len // columns
            for n in tl.Pipelined(blocks, num_stages=2):
                tl.copy(k[b, h // groups, n * columns : (n + 1) * columns, :], k_tile)
                if causal:
                    for i, j in tl.Parallel(rows, columns):
                        below = tile * rows + i >= n * columns + j
                        s[i, j] = tl.if_then_else(below, 0, -tl.infinity("float32"))
                else:
                    tl.clear(s)
                tl.gemm(q_tile, k_tile, s, transpose_B=True, policy=tl.GemmWarpPolicy.FullRow)
                tl.copy(m_i, m_before)
                tl.reduce_max(s, m_i, dim=1, clear=False)
                for i in tl.Parallel(rows):
                    alpha[i] = tl.exp2((m_before[i] - m_i[i]) * qk_scale)
                for i, j in tl.Parallel(rows, columns):
                    s[i, j] = tl.exp2(s[i, j] * qk_scale - m_i[i] * qk_scale)
                tl.reduce_sum(s, row_sum, dim=1)
                for i in tl.Parallel(rows):
                    l_i[i] = l_i[i] * alpha[i] + row_sum[i]
                for i, j in tl.Parallel(rows, head_dim):
                    acc[i, j] *= alpha[i]
                tl.copy(s, p)
                tl.copy(v[b, h // groups, n * columns : (n + 1) * columns, :], v_tile)
                tl.gemm(p, v_tile, acc, policy=tl.GemmWarpPolicy.FullRow)
            for i, j in tl.Parallel(rows, head_dim):
                acc[i, j] /= l_i[i]
            tl.copy(acc, o[b, h, tile * rows : (tile + 1) * rows, :])
            for i in tl.Parallel(rows):
                lse[b, h, tile * rows + i] = m_i[i] * sm_scale + tl.log2(l_i[i]) * LN_2

    return attention_forward


def compiled(**shape: Any) -> Any:
    """The kernel of `program`, compiled by nvcc for this GPU: called with q, k, v, it returns o and lse."""
    fast = {tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True}  # exp2 as one instruction, as Triton has it
    return tilelang.compile(program(**shape), out_idx=[3, 4], pass_configs=fast)
