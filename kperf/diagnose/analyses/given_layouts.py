"""Tiles in order that a loop reads from shared memory in the layout of another tile, which loads numbers many times."""

from kperf.diagnose.analyses.repetitions import repetitions
from kperf.diagnose.analyses.turns import turns_of
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ASYNC_COPIES, LOADS, loops_around
from kperf.diagnose.thresholds import BANK_WAYS, POOR_SECTOR_USE
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation

SMALL = 256
"""Elements: a few numbers come from the cache."""
TIMES = 8
"""Of one address in a tile."""


def is_repeated(access: Access) -> bool:
    """Whether a loop loads a tile that has each of its addresses many times."""
    is_load = access.operation.name in LOADS and bool(loops_around(access.operation))
    known = access.tensor.size >= SMALL and not access.value.loaded and not access.value.scattered
    return is_load and known and repetitions(access)[1] >= TIMES


def giver_of(kernel: Kernel, read: Operation) -> Access | None:
    """The load of repeated addresses whose layout a read of shared memory has, of a tile that was copied in order.

    The compiler gives both tiles one layout, as it computes with their elements in pairs: that of the load, along whose
    addresses it lets threads lie. None where another access has this layout too, which may be the one that gives it.
    """
    tensor = next((one for one in tensor_types(read.rest) if "shared" not in kernel.layouts.kind(one.layout)), None)
    loops = loops_around(read)[:1]
    if tensor is None or not loops or not _is_copied_in_order(kernel, read):
        return None
    alike = [one for one in kernel.accesses if (one.tensor.shape, one.tensor.layout) == (tensor.shape, tensor.layout)]
    if not alike or not all(map(is_repeated, alike)) or loops_around(alike[0].operation)[:1] != loops:
        return None
    return alike[0]


def given_by(kernel: Kernel, access: Access) -> tuple[Operation, int] | None:
    """The read of shared memory to which a load gives its layout, and in how many turns a bank serves it: the most.

    None where no read has conflicts for it.
    """
    if not is_repeated(access):
        return None
    reads = [op for op in kernel.named("ttg.local_load") if giver_of(kernel, op) is access]
    ways = [(max(turns), op) for op in reads if (turns := turns_of(kernel, op)) is not None]
    most, read = max(ways, key=lambda one: one[0], default=(0, None))
    return (read, most) if read is not None and most >= BANK_WAYS else None


def _is_copied_in_order(kernel: Kernel, read: Operation) -> bool:
    """Whether asynchronous copies fill the buffer, whose threads load elements that lie side by side."""
    buffer = _buffer(kernel, read)
    copies = [one for one in kernel.accesses if one.operation.name in ASYNC_COPIES]
    filling = [one for one in copies if buffer is not None and _buffer(kernel, one.operation) is buffer]
    return bool(filling) and all(one.sector_use >= POOR_SECTOR_USE for one in filling)


def _buffer(kernel: Kernel, op: Operation) -> Operation | None:
    """What allocates the buffer that an operation reads or fills."""
    for place in range(len(op.operands)):
        made = kernel.values.maker(op, place)
        while made is not None and made.name.startswith("ttg.memdesc"):
            made = kernel.values.maker(made, 0)
        if made is not None and made.name == "ttg.local_alloc":
            return made
    return None
