"""What atomics of a kernel may be for, beside the numbers that they update."""

import re
from collections.abc import Sequence

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, LOADS, STORES, TMA_LOADS, TMA_STORES
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation

_SWAP = re.compile(r"\s*exch\b")
_BARRIERS = ("gpu.barrier", "ttg.barrier", "ttg.local_barrier")
"""`tl.debug_barrier()`, by the version of Triton."""
_OF_FLOATS = re.compile(r"\s*f")


def hands_over(kernel: Kernel) -> bool:
    """Whether CTAs may tell each other, or a kernel that runs beside, that data is there: then atomics have to stay.

    They do so by an atomic that swaps, or whose old value is used, or that counts integers beside other atomics or
    stores (but `_counts_keys`); by a volatile load; and by a tensor that is updated and is also read or stored. What a
    call or an assembly text with side effects does is not known.
    """
    atomics = list(kernel.named(*ATOMICS))
    updated = [kernel.tensors_of(op) for op in atomics]
    stores = list(kernel.named(*STORES, *TMA_STORES))
    if reads_atomics(kernel) or not all(updated):
        return True
    if any(
        "isVolatile = true" in op.rest or kernel.memory_of(op) & frozenset().union(*updated)
        for op in (*kernel.named(*LOADS, *TMA_LOADS), *stores)
    ):
        return True
    counts = [op for op in atomics if not _OF_FLOATS.match(op.rest)]
    return bool(counts) and (bool(stores) or (len(set(updated)) > 1 and not _counts_keys(kernel, counts)))


def reads_atomics(kernel: Kernel) -> bool:
    """Whether a CTA may learn by an atomic what others did: by its old value, or in a call or an assembly text."""
    calls = (op for op in kernel.named("tt.call", "tt.elementwise_inline_asm") if "pure = true" not in op.rest)
    swaps = (
        op.name == "tt.atomic_cas" or _SWAP.match(op.rest) or op.line in kernel.readers for op in kernel.named(*ATOMICS)
    )
    return any(True for _ in calls) or any(swaps)


def meets_other_ctas(kernel: Kernel) -> bool:
    """Whether all CTAs add to the same addresses by atomics: with more CTAs there are more of these."""
    added = (op for op in kernel.named("tt.atomic_rmw") if not _SWAP.match(op.rest) and op.line not in kernel.readers)
    addresses = (kernel.values.operand(op, 0) for op in added)
    return any(one is not None and not one.scattered and not one.program for one in addresses)


def _counts_keys(kernel: Kernel, counts: Sequence[Operation]) -> bool:
    """Whether each element of a tile counts at a key of its own, as beside the sums of a mean by keys.

    A flag is raised behind a barrier, for what other threads of the CTA updated, or by one element.
    """
    return not any(True for _ in kernel.named(*_BARRIERS)) and all(_is_at_keys(kernel, op) for op in counts)


def _is_at_keys(kernel: Kernel, op: Operation) -> bool:
    """Whether the addresses of a tile are data: keys that were read, or that no index arithmetic gives."""
    types, address = tensor_types(op.rest), kernel.values.operand(op, 0)
    return bool(types) and types[0].size >= kernel.arch.warp_size and (address is None or address.scattered)
