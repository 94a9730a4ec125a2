"""Which kernels may be launched again on copies of their tensors, and what they only write."""

import pytest
import triton
import triton.language as tl

from kperf.ir.compile import compile_kernel
from kperf.ir.memory import why_not_again, write_only
from kperf.ir.ttgir import Module


@triton.jit
def copies(x, y, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(y + i, tl.load(x + i))
        y += BLOCK


@triton.jit
def in_place(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    y += n
    tl.store(y + i, tl.load(x + i) + tl.load(y + i))


@triton.jit
def adds(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.atomic_add(y + i % n, tl.load(x + i))


@triton.jit
def follows(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    target = tl.load(y).to(tl.int64).to(tl.pointer_type(tl.float32))
    tl.store(target + i, tl.load(x + i))


@triton.jit
def spins(x, y, n, BLOCK: tl.constexpr):
    while tl.atomic_cas(y, 0, 1) == 1:
        pass
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i) * 2)
    tl.atomic_xchg(y, 0)


@triton.jit
def assembles(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.inline_asm_elementwise(
        "mov.b32 $0, $1; bar.sync 1, 128;", "=r,r", [tl.load(x + i)], tl.float32, False, 1
    )
    tl.store(y + i, value)


@triton.jit
def prints(x, y, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i))
    tl.device_print("n", n)


def module(kernel, y="*fp32"):
    return Module(
        compile_kernel(kernel, {"x": "*fp32", "y": y, "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 128}).asm["ttgir"]
    )


@pytest.mark.parametrize(
    ("kernel", "y", "why"),
    [
        (copies, "*fp32", None),
        (in_place, "*fp32", None),
        (adds, "*fp32", None),
        (follows, "*i64", "addresses from memory"),
        (spins, "*i32", "waits for what another CTA writes"),
        (assembles, "*fp32", "side effects"),
        (prints, "*fp32", "print again"),
    ],
)
def test_a_kernel_that_reaches_further_or_waits_is_not_launched_again(kernel, y, why):
    found = why_not_again(module(kernel, y))
    assert (found is None) == (why is None)
    assert why is None or why in found


@pytest.mark.parametrize(("kernel", "written"), [(copies, {"y"}), (in_place, set()), (adds, set())])
def test_what_is_only_written_is_known(kernel, written):
    assert write_only(module(kernel)) == written
