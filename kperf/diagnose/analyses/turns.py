"""Turns that the banks of shared memory take for what a warp reads or writes in one instruction."""

from collections.abc import Iterable

import numpy as np

from kperf.arch import Arch
from kperf.diagnose.reading.accesses import run_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.ir.layouts import Coordinates, tensor_types
from kperf.ir.ttgir import Operation

_MOVES = ("ttg.local_alloc", "ttg.local_load", "ttg.local_store")


def turns_of(kernel: Kernel, op: Operation) -> list[int] | None:
    """Of each access of a warp that moves a tile between registers and shared memory; None if layouts do not say it."""
    types = tensor_types(op.rest)
    shared = next((tensor for tensor in types if "shared" in kernel.layouts.kind(tensor.layout)), None)
    tensor = next((tensor for tensor in types if tensor is not shared), None)
    places = kernel.layouts.elements(tensor) if shared is not None and tensor is not None else None
    offsets = kernel.layouts.offsets(shared, places) if shared is not None and places is not None else None
    return None if tensor is None or offsets is None else _turns(offsets, tensor.bytes, kernel.arch)


def shared_cycles(kernel: Kernel, operations: Iterable[Operation]) -> float:
    """Cycles of an SM's shared memory for a CTA's tiles that these move from and to registers, as far as known."""
    return sum(sum(turns_of(kernel, op) or ()) for op in operations if op.name in _MOVES)


def gain_without_conflicts(ways: int) -> tuple[float, float, float]:
    """The likely, the least and the most gain, where a bank serves an access in one turn and not in so many."""
    return min(ways, 8) ** 0.4, 1.0, float(ways)


def _turns(offsets: Coordinates, size: int, arch: Arch) -> list[int]:
    """`offsets` in bytes of elements of `size` bytes: [warp, register, lane]."""
    run = run_of(offsets, size, aligned=False)
    first = offsets[:, ::run, :]
    lanes = max(arch.shared_bytes_per_cycle // max(run * size, arch.shared_bank_bytes), 1)  # that one turn can serve
    found = []
    for warp in first:
        for register in warp:
            for start in range(0, len(register), lanes):
                words = np.unique(register[start : start + lanes] // arch.shared_bank_bytes)
                found.append(int(np.bincount(words % arch.shared_banks).max()))
    return found
