"""Rows that a CTA loads twice in two loops, and whether registers can keep them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kperf.diagnose.analyses.loops import accesses_of
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import STORES, loops_around, own
from kperf.diagnose.reading.options import tile_for
from kperf.diagnose.reading.strides import next_cta
from kperf.diagnose.thresholds import SECTOR_BYTES
from kperf.ir.ttgir import Operation

_PART_OF_REGISTERS = 0.5
"""Of an SM's, for the elements that a CTA keeps: what is computed of them takes the others. With 32 warps a softmax and
a layer norm of 32768 elements in float32 spill nothing, nor a gradient that keeps two rows of 16384; of twice as many
elements they spill."""
_WIDENED = ("arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")


@dataclass(frozen=True)
class Row:
    """What a CTA loads twice in two loops: `elements` of it, None where that is not known.

    each: registers of 32 bits for an element, with those of what else the second loop loads again, and of the elements
    that share its sector, where these are of other CTAs now (a column of a matrix). most: registers that a CTA has.
    stored: elements of the result, where these are fewer; None where they are not, or not known.
    """

    elements: int | None
    each: float
    most: float
    stored: int | None

    @property
    def tile(self) -> int:
        """The elements of one tile that holds it, whose length is a power of two."""
        return tile_for(self.elements or 0)

    @property
    def fits(self) -> bool:
        """Whether registers hold such a tile; True where the length of the row is not known."""
        return self.elements is None or self.tile * self.each <= self.most

    @property
    def longest(self) -> int:
        """Elements of the longest tile that registers hold."""
        return 1 << int(math.log2(self.most / self.each))

    @property
    def is_reduced(self) -> bool:
        """Whether registers hold the result, which one pass may add to from its first tile on."""
        return self.stored is not None and self.stored <= self.most


def row_of(kernel: Kernel, access: Access, again: Sequence[Access]) -> Row | None:
    """Of a load in a loop; `again`: all that is loaded again. None without a loop, or with one of one iteration."""
    loops = loops_around(access.operation)
    if not loops or kernel.runs_once(loops[0]):
        return None
    together = [one for one in again if loops_around(one.operation)[:1] == [loops[0]]]
    elements, size = _elements_of_row(kernel, access), access.tensor.size
    stores = [one for one in accesses_of(kernel, loops[0]) if one.operation.name in STORES]
    stored = 0 if not _has_stores(loops[0]) else None
    if elements and stores and all(one.tensor.size < size for one in stores):
        stored = elements // size * max(one.tensor.size for one in stores)
    return Row(
        elements,
        sum(one.tensor.size * _kept_bytes(kernel, one) * _shared_by(kernel, one) for one in together) / 4 / size,
        kernel.arch.sm_registers * _PART_OF_REGISTERS,
        stored,
    )


def _shared_by(kernel: Kernel, access: Access) -> int:
    """How many elements of a sector one CTA has to load together, for each that it loads: those of the next CTAs."""
    _, step = next_cta(kernel, access) if not access.has_neighbours else ("", 0)
    return max(1, round(1 / access.tile_sector_use)) if 0 < step < SECTOR_BYTES else 1


def _elements_of_row(kernel: Kernel, access: Access) -> int | None:
    """That the iterations of a load's loop load together by the launch, and no more than a CTA's part of the tensor.

    A CTA that works on one part of the tensor after another, in a loop around this one, may keep each of them.
    """
    loops, tensors = loops_around(access.operation), access.value.arguments & kernel.lengths.keys()
    iterations = kernel.iterations(loops[0])
    known = [] if iterations is None else [iterations * access.tensor.size]
    if kernel.grid is not None and len(tensors) == 1 and len(loops) == 1 and access.value.program:
        known.append(kernel.lengths[next(iter(tensors))] // math.prod(kernel.grid))
    return min(known, default=None)


def _kept_bytes(kernel: Kernel, access: Access) -> int:
    """Of an element in registers: of 16 bits as it is loaded, unless the kernel widens it."""
    readers = kernel.readers.get(access.operation.line, ())
    widened = access.operation.name != "tt.load" or any(op.name in _WIDENED for op, _ in readers)
    return max(4 if widened else 2, access.tensor.bytes)


def _has_stores(loop: Operation) -> bool:
    return any(op.name in STORES for op in own(loop))
