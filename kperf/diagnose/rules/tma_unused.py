"""Tiles that are copied by cp.async though a TMA descriptor could describe them."""

from collections.abc import Iterator

from kperf.arch import SM_90A
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, MMAS, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import LEAST_TILE_BYTES, VECTOR_BYTES
from kperf.trace.analyze.finding import Finding

_MATRIX = 2
_FEW = 2
"""Iterations in which a descriptor copies too little for the time that it takes to make one: kernels with two became
0.97 and 0.98 times as fast (H200)."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of tiles with contiguous rows at a fixed distance, in a loop with MMAs."""
    copies = {access.operation.line: access for access in kernel.accesses if access.operation.name == LOADS[1]}
    for loop in kernel.main_loops:
        inner = list(own(loop))
        iterations = kernel.iterations(loop)
        if not any(op.name in MMAS for op in inner) or (iterations is not None and iterations <= _FEW):
            continue
        for op in inner:
            access = copies.get(op.line)
            if access is None or access.value.loaded or access.thread_bytes < VECTOR_BYTES or not access.is_even:
                continue
            if access.tile_bytes < LEAST_TILE_BYTES:
                continue
            yield kernel.finding(
                RULE.id,
                op,
                "low",
                "every thread computes addresses and copies 16 bytes at a time, although TMA could copy the whole tile "
                "for one thread",
                _advice(access),
                {"thread_bytes": access.thread_bytes, "tile_bytes": access.tile_bytes},
                confidence="medium",
                estimate=(1.1, 1.0, 1.3),
            )


def _advice(access: Access) -> str:
    """The call, with the tile as it lies in memory: the last dimension of a descriptor is the contiguous one."""
    shape = list(access.tensor.shape)
    last = access.contiguous if access.contiguous is not None else len(shape) - 1
    lengths = [*shape[:last], *shape[last + 1 :], shape[last]]
    turned = last < len(shape) - 1
    return (
        f"make desc = tl.make_tensor_descriptor(pointer, shape, strides, block_shape={lengths}) in the kernel, after "
        "triton.set_allocator on the host, or a TensorDescriptor on the host; and load with desc.load"
        + (f", and {'.T' if len(shape) == _MATRIX else 'tl.permute'}, as the tile lies transposed in memory" * turned)
    )


RULE = Rule("tma-unused", "cp.async where TMA would do", check, targets=(SM_90A.name, "sm_10"))
