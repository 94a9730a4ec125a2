"""Device code of what is measured here: kernels of known cycles, and y = x * x."""

import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait


@gluon.jit
def fma_chain(x_ptr, a_ptr, b_ptr, out_ptr, iterations, WORK: gl.constexpr):
    """x <- x a + b, `iterations` times the work of `known.fma_ptx`."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.program_id(0) * 128 + gl.arange(0, 128, layout)
    x = gl.load(x_ptr + i)
    a = gl.load(a_ptr + i)
    b = gl.load(b_ptr + i)
    for _ in range(iterations):
        x = gl.inline_asm_elementwise(WORK, "=f,f,f,f", [x, a, b], dtype=gl.float32, is_pure=False, pack=1)
    gl.store(out_ptr + i, x)


@gluon.jit
def ex2_chains(x_ptr, out_ptr, iterations, WORK: gl.constexpr):
    """x <- 2^-x, eight chains a thread; `known.ex2_ptx`."""
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [4], [0])
    i = gl.program_id(0) * 1024 + gl.arange(0, 1024, layout)
    x = gl.load(x_ptr + i)
    for _ in range(iterations):
        x = gl.inline_asm_elementwise(
            WORK,
            "=f,=f,=f,=f,=f,=f,=f,=f,f,f,f,f,f,f,f,f",
            [x],
            dtype=gl.float32,
            is_pure=False,
            pack=8,
        )
    gl.store(out_ptr + i, x)


@gluon.jit
def spin(x_ptr, out_ptr, iterations, WORK: gl.constexpr):
    """x <- x + the cycles waited; `known.spin_ptx`."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    i = gl.program_id(0) * 128 + gl.arange(0, 128, layout)
    x = gl.load(x_ptr + i)
    for _ in range(iterations):
        x = gl.inline_asm_elementwise(WORK, "=r,r", [x], dtype=gl.int32, is_pure=False, pack=1)
    gl.store(out_ptr + i, x)


@gluon.jit
def products(a_ptr, b_ptr, out_ptr, iterations, CALLS: gl.constexpr):
    """acc += a b, CALLS times a trip; a [64, 64], b [64, 256] in bfloat16."""
    a_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    b_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 256], gl.bfloat16)
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
    loaded: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    inner = gl.arange(0, 64, gl.SliceLayout(0, loaded))
    rows = gl.arange(0, 64, gl.SliceLayout(1, loaded))
    columns = gl.arange(0, 256, gl.SliceLayout(0, loaded))
    a_tile = gl.load(a_ptr + gl.expand_dims(rows, 1) * 64 + gl.expand_dims(inner, 0))
    b_tile = gl.load(b_ptr + gl.expand_dims(rows, 1) * 256 + gl.expand_dims(columns, 0))
    a = gl.allocate_shared_memory(gl.bfloat16, [64, 64], a_layout, a_tile)
    b = gl.allocate_shared_memory(gl.bfloat16, [64, 256], b_layout, b_tile)
    fence_async_shared()
    acc = gl.zeros([64, 256], gl.float32, acc_layout)
    for _ in range(iterations):
        for _call in gl.static_range(CALLS):
            acc = warpgroup_mma(a, b, acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
    m = gl.program_id(0) * 64 + gl.arange(0, 64, gl.SliceLayout(1, acc_layout))
    n = gl.arange(0, 256, gl.SliceLayout(0, acc_layout))
    gl.store(out_ptr + gl.expand_dims(m, 1) * 256 + gl.expand_dims(n, 0), acc)


@triton.jit
def square_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """y = x * x, BLOCK numbers a block."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    tl.store(y_ptr + i, x * x, mask=i < n)
