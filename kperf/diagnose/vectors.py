"""How many bytes a thread asks for at once, how many it could, and what is in the way."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from kperf.diagnose.kernel import Access, Kernel, mask_place
from kperf.diagnose.thresholds import VECTOR_BYTES

Cause = Literal["mask", "loaded mask", "alignment", "stride"]


@dataclass(frozen=True)
class Vector:
    """Of one access: bytes of an instruction in the machine code, bytes that were possible, what forbade them.

    unknown: arguments of which the compiler does not know that they are multiples of 16, or 1 where the cause is a
    stride; none of a mask that is data.
    """

    access: Access
    machine_bytes: int
    possible_bytes: int
    cause: Cause
    unknown: tuple[str, ...]


def vectors(kernel: Kernel) -> list[Vector]:
    """The accesses that the machine code cuts into pieces, though their rows are contiguous."""
    found = []
    for access in kernel.accesses:
        why, possible = _in_the_way(kernel, access), _possible(kernel, access)
        machine = kernel.machine_bytes(access.operation) if why is not None else None
        if why is not None and machine is not None and machine < possible:
            found.append(Vector(access, machine, possible, *why))
    return found


def _in_the_way(kernel: Kernel, access: Access) -> tuple[Cause, tuple[str, ...]] | None:
    """What forbids larger pieces by the TTGIR, and the arguments that are not known to be 1, or multiples of 16."""
    if access.value.loaded:
        return None
    ones = tuple(sorted(name for name in access.value.arguments if kernel.arguments.get(name) == 1))
    if ones:
        return "stride", ones
    unknown = _not_divisible(kernel, access.value.arguments)
    if unknown and np.any(access.value.numbers.reshape(-1, access.value.numbers.shape[-1])[:, 0] % VECTOR_BYTES):
        return "alignment", unknown
    if of_mask := _limits(kernel, access):
        return "mask", of_mask
    return ("loaded mask", ()) if not unknown and _mask_is_data(kernel, access) else None


def _mask_is_data(kernel: Kernel, access: Access) -> bool:
    """Whether the mask is computed from what was read from memory: each element may have its own."""
    mask = kernel.values.operand(access.operation, mask_place(access.operation))
    return mask is not None and mask.loaded


def _limits(kernel: Kernel, access: Access) -> tuple[str, ...]:
    """Arguments at which a mask ends along the contiguous dimension, and which may not be multiples of 16."""
    found: set[str] = set()
    todo = [kernel.values.maker(access.operation, mask_place(access.operation))]
    while todo:
        op = todo.pop()
        if op is None:
            continue
        if op.name in ("arith.andi", "tt.broadcast", "tt.expand_dims", "ttg.convert_layout"):
            todo += [kernel.values.maker(op, place) for place in range(len(op.operands))]
        elif op.name == "arith.cmpi":
            index, limit = kernel.values.operand(op, 0), kernel.values.operand(op, 1)
            if index is not None and limit is not None and np.all(np.diff(index.numbers, axis=-1) == 1):
                found |= set(_not_divisible(kernel, limit.arguments)) if index.numbers.shape[-1:] > (1,) else set()
    return tuple(sorted(found))


def _possible(kernel: Kernel, access: Access) -> int:
    """Bytes of a thread's share of the contiguous dimension: a power of two, at most 16."""
    numbers, size = access.value.numbers, access.tensor.bytes
    contiguous = [
        length
        for dim, length in enumerate(numbers.shape)
        if length > 1 and np.all(np.diff(np.take(numbers, [0, 1], axis=dim), axis=dim) == size)
    ]
    each = access.tensor.size * size // (kernel.threads)
    bytes_each = min(VECTOR_BYTES, each, max(contiguous, default=1) * size)
    return 1 << (max(bytes_each, 1).bit_length() - 1)


def _not_divisible(kernel: Kernel, names: frozenset[str]) -> tuple[str, ...]:
    known = kernel.parameters
    return tuple(sorted(name for name in names if name in known and not known[name].divisible))
