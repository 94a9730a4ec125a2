"""Kernels as people write them, compiled for sm_90a without a GPU: what the trace has to read."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.compiler import CompiledKernel
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from kperf.ir.compile import compile_kernel
from kperf.ir.override import Override


@triton.jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    y = tl.load(y_ptr + i, mask=i < n)
    tl.store(out_ptr + i, x + y, mask=i < n)


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + i, mask=i < columns, other=float("-inf")).to(tl.float32)
    p = tl.exp(values - tl.max(values, 0))
    tl.store(y + row * columns + i, p / tl.sum(p, 0), mask=i < columns)


@triton.jit
def layer_norm(x, y, w, b, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        part = tl.load(x + row * columns + i, mask=i < columns, other=0.0).to(tl.float32)
        total += part
        squares += part * part
    mean = tl.sum(total, 0) / columns
    rstd = 1 / tl.sqrt(tl.sum(squares, 0) / columns - mean * mean + eps)
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        part = tl.load(x + row * columns + i, mask=i < columns, other=0.0).to(tl.float32)
        scale = tl.load(w + i, mask=i < columns)
        shift = tl.load(b + i, mask=i < columns)
        tl.store(y + row * columns + i, (part - mean) * rstd * scale + shift, mask=i < columns)


@triton.jit
def gemm_pointers(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr):
    columns = tl.cdiv(N, BN)
    pid = tl.program_id(0)
    rm = pid // columns * BM + tl.arange(0, BM)
    rn = pid % columns * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a_ptrs = a + rm[:, None] * K + rk[None, :]
    b_ptrs = b + rn[None, :] * K + rk[:, None]
    acc = tl.zeros((BM, BN), ACC)
    for _ in range(0, tl.cdiv(K, BK)):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc, out_dtype=ACC)
        a_ptrs += BK
        b_ptrs += BK
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def gemm_tma(a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    columns = tl.cdiv(N, BN)
    row = tl.program_id(0) // columns * BM
    column = tl.program_id(0) % columns * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK)):
        acc = tl.dot(a_desc.load([row, k * BK]), b_desc.load([column, k * BK]).T, acc)
    c_desc.store([row, column], acc.to(tl.bfloat16))


@triton.jit
def gemm_persistent(
    a, b, c, M, N, K, SMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, special: tl.constexpr
):
    a_desc = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    b_desc = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    c_desc = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])
    columns = tl.cdiv(N, BN)
    tiles = tl.cdiv(M, BM) * columns
    for tile in tl.range(tl.program_id(0), tiles, SMS, flatten=True, warp_specialize=special):
        row = tile // columns * BM
        column = tile % columns * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, tl.cdiv(K, BK)):
            acc = tl.dot(a_desc.load([row, k * BK]), b_desc.load([column, k * BK]).T, acc)
        c_desc.store([row, column], acc.to(tl.bfloat16))


@triton.jit
def gemm_specialized(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_desc = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    b_desc = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    columns = tl.cdiv(N, BN)
    row = tl.program_id(0) // columns * BM
    column = tl.program_id(0) % columns * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), warp_specialize=True, num_stages=3):
        acc = tl.dot(a_desc.load([row, k * BK]), b_desc.load([column, k * BK]).T, acc)
    rm = row + tl.arange(0, BM)
    rn = column + tl.arange(0, BN)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))


@triton.jit
def split_k(a, b, c, M, N, K, locks, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):
    columns = tl.cdiv(N, BN)
    pid = tl.program_id(0)
    part = tl.program_id(1)
    rm = pid // columns * BM + tl.arange(0, BM)
    rn = pid % columns * BN + tl.arange(0, BN)
    rk = part * BK + tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK * SPLIT):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + rn[None, :] * K + (k + rk)[:, None])
        acc = tl.dot(x, y, acc)
    tl.atomic_add(c + rm[:, None] * N + rn[None, :], acc, sem="relaxed")
    while tl.atomic_cas(locks + pid, 0, 1) == 1:
        pass
    tl.atomic_xchg(locks + pid, 0)


@triton.jit
def grouped(x, w, ids, offsets, y, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    expert = tl.program_id(2)
    first = tl.load(offsets + expert) + tl.program_id(0) * BM
    last = tl.load(offsets + expert + 1)
    if first >= last:
        return
    rows = first + tl.arange(0, BM)
    mask = rows < last
    token = tl.load(ids + rows, mask=mask, other=0)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(x + token[:, None] * K + (k + rk)[None, :], mask=mask[:, None], other=0.0)
        right = tl.load(w + expert * N * K + rn[None, :] * K + (k + rk)[:, None])
        acc = tl.dot(left, right, acc)
    tl.store(y + rows[:, None] * N + rn[None, :], acc.to(tl.bfloat16), mask=mask[:, None])


@triton.jit
def attention(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    scale,
    length,
    D: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    special: tl.constexpr,
):
    row = tl.program_id(0) * M
    q = q_desc.load([row, 0])
    m_i = tl.full([M], float("-inf"), tl.float32)
    l_i = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in tl.range(0, length, N, warp_specialize=special):
        s = tl.dot(q, k_desc.load([start, 0]).T) * scale
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        v = v_desc.load([start, 0])
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    o_desc.store([row, 0], (acc / l_i[:, None]).to(tl.bfloat16))


@triton.jit
def flash_decoding(q, k, v, o, lse, scale, length, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    head = tl.program_id(0)
    part = tl.program_id(1)
    rm = tl.arange(0, M)
    rd = tl.arange(0, D)
    query = tl.load(q + head * M * D + rm[:, None] * D + rd[None, :])
    m_i = tl.full([M], float("-inf"), tl.float32)
    l_i = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in range(part * length, (part + 1) * length, N):
        rn = start + tl.arange(0, N)
        s = tl.dot(query, tl.load(k + head * length * D + rn[None, :] * D + rd[:, None])) * scale
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        values = tl.load(v + head * length * D + rn[:, None] * D + rd[None, :])
        acc = tl.dot(p.to(values.dtype), values, acc * alpha[:, None])
        m_i = m_new
    tl.store(o + (head * 2 + part) * M * D + rm[:, None] * D + rd[None, :], acc / l_i[:, None])
    tl.store(lse + (head * 2 + part) * M + rm, m_i + tl.log2(l_i))


@triton.jit(noinline=True)
def _doubled(scale):
    return scale * 2


@triton.jit
def calls(x, y, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i) * _doubled(scale))


load_tile = getattr(tma, "async_load", tma.async_copy_global_to_shared)
store_tile = getattr(tma, "async_store", tma.async_copy_shared_to_global)
"""From 3.8 on they have the first names."""


@gluon.jit
def _load_tiles(
    a_desc, b_desc, a_ring, b_ring, full, empty, row, column, iterations, BK: gl.constexpr, STAGES: gl.constexpr
):
    for k in range(iterations):
        stage = k % STAGES
        mbarrier.wait(empty.index(stage), (k // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        load_tile(a_desc, [row, k * BK], full.index(stage), a_ring.index(stage))
        load_tile(b_desc, [k * BK, column], full.index(stage), b_ring.index(stage))


@gluon.jit
def _multiply_tiles(
    c_desc,
    a_ring,
    b_ring,
    full,
    empty,
    row,
    column,
    iterations,
    BM: gl.constexpr,
    BN: gl.constexpr,
    STAGES: gl.constexpr,
):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    acc = gl.zeros([BM, BN], gl.float32, layout)
    for k in range(iterations):
        stage = k % STAGES
        mbarrier.wait(full.index(stage), k // STAGES & 1)
        acc = warpgroup_mma(a_ring.index(stage), b_ring.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(empty.index(stage), count=1)
    c_tile = gl.allocate_shared_memory(c_desc.dtype, [BM, BN], c_desc.layout)
    c_tile.store(acc.to(c_desc.dtype))
    fence_async_shared()
    store_tile(c_desc, [row, column], c_tile)
    tma.store_wait(0)


@gluon.jit
def gluon_gemm(
    a_desc, b_desc, c_desc, N, K, BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, STAGES: gl.constexpr
):
    columns = N // BN
    row = gl.program_id(0) // columns * BM
    column = gl.program_id(0) % columns * BN
    a_ring = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BM, BK], a_desc.layout)
    b_ring = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BK, BN], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    gl.warp_specialize(
        [
            (_multiply_tiles, (c_desc, a_ring, b_ring, full, empty, row, column, K // BK, BM, BN, STAGES)),
            (_load_tiles, (a_desc, b_desc, a_ring, b_ring, full, empty, row, column, K // BK, BK, STAGES)),
        ],
        [1],
        [24],
    )


@dataclass(frozen=True)
class Case:
    """A kernel and how it is compiled: the types of its runtime arguments in order, its constants, its options."""

    kernel: Any
    types: tuple[str, ...]
    constants: Mapping[str, Any]
    options: Mapping[str, Any]


def _case(kernel: Any, types: str | list[str], constants: Mapping[str, Any], **options: Any) -> Case:
    return Case(kernel, tuple(types.split() if isinstance(types, str) else types), constants, options)


def _box(rows: int, columns: int, layout: bool = False) -> str:
    shared = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.bfloat16)
    return f"tensordesc<bf16[{rows}, {columns}]{f',{shared!r}' if layout else ''}>"


_TILE = {"BM": 128, "BN": 256, "BK": 64}
_SQUARE = {"BM": 128, "BN": 128, "BK": 64}
_F32 = {"ACC": tl.float32}
_SIZES = ["i32"] * 3
_GEMM = ["*bf16"] * 3 + _SIZES

CASES: dict[str, Case] = {
    "add": _case(add, "*fp32 *fp32 *fp32 i32", {"BLOCK": 1024}),
    "softmax": _case(softmax, "*bf16 *bf16 i32", {"BLOCK": 4096}),
    "layer_norm": _case(layer_norm, "*fp16 *fp16 *fp16 *fp16 i32 fp32", {"BLOCK": 1024}),
    "gemm_pointers_1": _case(gemm_pointers, _GEMM, _TILE | _F32, num_warps=8, num_stages=1),
    "gemm_pointers_2": _case(gemm_pointers, _GEMM, _TILE | _F32, num_warps=8, num_stages=2),
    "gemm_pointers_3": _case(gemm_pointers, _GEMM, _TILE | _F32, num_warps=8, num_stages=3),
    "gemm_fp8": _case(gemm_pointers, ["*fp8e4nv", "*fp8e4nv", "*bf16", *_SIZES], _SQUARE | _F32, num_stages=3),
    "gemm_int8": _case(gemm_pointers, ["*i8", "*i8", "*i32", *_SIZES], _SQUARE | {"ACC": tl.int32}, num_stages=3),
    "gemm_tf32": _case(gemm_pointers, ["*fp32"] * 3 + _SIZES, _SQUARE | _F32 | {"BK": 32}, num_stages=3),
    "gemm_mma": _case(gemm_pointers, _GEMM, {"BM": 32, "BN": 64, "BK": 64} | _F32, num_stages=3),
    "gemm_tma": _case(gemm_tma, [_box(128, 64), _box(256, 64), _box(128, 256), *_SIZES], _TILE, num_warps=8),
    "gemm_persistent": _case(gemm_persistent, _GEMM, _TILE | {"SMS": 132, "special": False}, num_warps=8),
    "gemm_persistent_specialized": _case(gemm_persistent, _GEMM, _SQUARE | {"SMS": 132, "special": True}),
    "gemm_specialized": _case(gemm_specialized, _GEMM, _SQUARE),
    "gluon_gemm": _case(
        gluon_gemm,
        [_box(64, 64, True), _box(64, 128, True), _box(64, 128, True), "i32", "i32"],
        {"BM": 64, "BN": 128, "BK": 64, "STAGES": 3},
    ),
    "split_k": _case(split_k, ["*bf16", "*bf16", "*fp32", *_SIZES, "*i32"], _SQUARE | {"SPLIT": 4}, num_stages=3),
    "grouped": _case(grouped, "*bf16 *bf16 *i32 *i32 *bf16 i32 i32", _SQUARE, num_warps=8, num_stages=3),
    "attention": _case(
        attention,
        [_box(128, 64), _box(128, 64), _box(128, 64), _box(128, 64), "fp32", "i32"],
        {"D": 64, "M": 128, "N": 128, "special": False},
    ),
    "flash_decoding": _case(
        flash_decoding, "*bf16 *bf16 *bf16 *fp32 *fp32 fp32 i32", {"D": 64, "M": 16, "N": 64}, num_stages=2
    ),
    "calls": _case(calls, "*fp32 *fp32 fp32", {"BLOCK": 1024}),
}


@cache
def compiled(name: str) -> CompiledKernel:
    """The kernel CASES[name]."""
    return compile_case(CASES[name])


def compile_case(case: Case, **options: Any) -> CompiledKernel:
    """Pointers and sizes are multiples of 16, as in a launch on whole tensors."""
    names = [parameter.name for parameter in case.kernel.params]
    signature = dict(zip(names, case.types, strict=False)) | dict.fromkeys(case.constants, "constexpr")
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, kind in enumerate(case.types)
        if kind.startswith("*") or kind == "i32"
    }
    return compile_kernel(case.kernel, signature, case.constants, attributes=aligned, **case.options, **options)


def recompiled(name: str, text: str) -> CompiledKernel:
    """CASES[name] with the TTGIR `text` in place of its own."""
    placed = Override(Path(f"{name}.ttgir"), text, CASES[name].kernel.__name__).place()
    return compile_case(CASES[name], ir_override=placed)
