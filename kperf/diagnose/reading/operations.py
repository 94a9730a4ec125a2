"""The operations of TTGIR that rules ask for, by name, and where they stand: in which loops, with which masks."""

from collections.abc import Iterator

from kperf.arch import operations
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation

LOADS = ("tt.load", "ttg.async_copy_global_to_local", "amdg.buffer_load")
STORES = ("tt.store", "amdg.buffer_store")
ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas")
TMA_LOADS = ("ttng.async_tma_copy_global_to_local", "tt.descriptor_load")
TMA_STORES = ("ttng.async_tma_copy_local_to_global", "tt.descriptor_store")
ASYNC_COPIES = ("ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local")
MMAS = operations("mma")
LOOPS = ("scf.for", "scf.while")
LIBRARY_MATH = ("math.sin", "math.cos", "math.erf")
"""Of Triton's own functions those that are calls into the GPU's library, as libdevice's of the same names."""
_MASK_PLACES = {
    "tt.load": 1,
    "tt.store": 2,
    "tt.atomic_rmw": 2,
    "ttg.async_copy_global_to_local": 2,
    "amdg.buffer_load": 2,
    "amdg.buffer_store": 3,
}


def mask_place(op: Operation) -> int:
    """Which of its operands the mask of a load or store is, where it has one."""
    return _MASK_PLACES.get(op.name, 1)


def inside(op: Operation) -> Iterator[Operation]:
    """All operations in the regions of one."""
    for region in op.regions:
        yield from region.walk()


def own(loop: Operation) -> Iterator[Operation]:
    """What an iteration of a loop does itself, without the loops inside it."""
    for region in loop.regions:
        for op in region.operations:
            yield op
            if op.name not in LOOPS:
                yield from own(op)


def is_of_inner_loop(op: Operation, loop: Operation) -> bool:
    """Whether the source has an operation of a loop in a loop inside it, whose pipeline fills and empties here."""
    return op.location is not None and any(
        other.location == op.location and loops_around(other)[0] is not loop
        for other in inside(loop)
        if other.name == op.name
    )


def loops_around(op: Operation) -> list[Operation]:
    """The loops around an operation, the innermost first."""
    found = []
    region = op.parent
    while region is not None and region.owner is not None:
        if region.owner.name in LOOPS:
            found.append(region.owner)
        region = region.owner.parent
    return found


def are_alternatives(one: Operation, other: Operation) -> bool:
    """Whether two operations are on the two sides of a branch, of which a CTA takes one."""
    sides = [{branch.line: side for branch, side in sides_around(op)} for op in (one, other)]
    return any(sides[1].get(branch, side) != side for branch, side in sides[0].items())


def sides_around(op: Operation) -> Iterator[tuple[Operation, int]]:
    """The branches around an operation, each with the side on which it is: 0 if the condition holds, else 1."""
    region = op.parent
    while region is not None and region.owner is not None:
        if region.owner.name == "scf.if":
            yield region.owner, int(region is not region.owner.regions[0])
        region = region.owner.parent


def mma_shape(op: Operation) -> tuple[int, int, int] | None:
    """(rows, columns, depth) of an MMA's tile; None if its types do not say."""
    types = tensor_types(op.rest.partition(" : ")[2])
    if len(types) < 2 or len(types[0].shape) < 2 or len(types[1].shape) < 2:
        return None
    return types[0].shape[-2], types[1].shape[-1], types[0].shape[-1]


def mma_element(op: Operation) -> str:
    """Element type of an MMA's operands."""
    types = tensor_types(op.rest.partition(" : ")[2])
    return types[0].element if types else ""
