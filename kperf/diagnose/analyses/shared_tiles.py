"""Tiles that CTAs of a launch share, each to multiply them with a vector of its own: rows of one matrix product."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kperf.arch import H200
from kperf.diagnose.analyses.cta_order import origins_of
from kperf.diagnose.analyses.different_rows import different
from kperf.diagnose.analyses.factors import CASTS, axes_of, products_of, sums
from kperf.diagnose.analyses.loops import largest_bytes
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, mma_cycles
from kperf.diagnose.analyses.same_values import TILE_LOADS, numbers_of_ctas
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import MMAS, STORES, TMA_STORES, loops_around
from kperf.diagnose.reading.options import LEAST_TILE
from kperf.diagnose.thresholds import IN_LOOP, LAUNCH_CYCLES
from kperf.ir.layouts import tensor_types
from kperf.ir.origins import Origins
from kperf.ir.ttgir import Operation

_FEWEST = 4.0
"""CTAs with other vectors for a tile: of fewer, most of the 16 rows of a `tl.dot` are padding."""


@dataclass(frozen=True)
class VectorProduct:
    """A product of a tile that CTAs share with their vectors, whose sum along an axis is a row of a matrix product.

    operations: the product, its sum, and what is between the two. tile: what computes the shared factor. times: CTAs
    that share it, each with another vector.
    """

    product: Operation
    operations: tuple[Operation, ...]
    tile: tuple[Operation, ...]
    elements: int
    times: float

    @property
    def load(self) -> Operation:
        """Of the tile: beside it, indices may be loaded."""
        return max((op for op in self.tile if op.name in TILE_LOADS), key=largest_bytes)

    @property
    def element_bytes(self) -> int:
        """Of what `tl.dot` multiplies, which it may have to convert to bfloat16 or tf32 first."""
        return 2 if largest_bytes(self.load) <= 2 * tensor_types(self.load.rest)[-1].size else 4


@dataclass(frozen=True)
class VectorProducts:
    """All of them in a kernel, as it was written, of a launch.

    shared: CTAs for each other tile, of each load of the kernel, by its line.
    """

    kernel: Kernel
    products: tuple[VectorProduct, ...]
    shared: dict[int, float]

    @cached_property
    def times(self) -> float:
        """CTAs that share a tile; of the product in which the fewest do."""
        return min(one.times for one in self.products)

    @property
    def rows(self) -> float:
        """Vectors that a CTA could take: those of the CTAs that share a tile, at most the 16 rows of a `tl.dot`."""
        return min(self.times, LEAST_TILE)

    @property
    def ctas_left(self) -> float:
        """CTAs with so many vectors each."""
        return math.prod(self.kernel.grid or ()) / self.rows

    @property
    def is_split(self) -> bool:
        """Whether too few CTAs are left for the SMs, and loops have iterations that more CTAs can share."""
        return self.ctas_left < H200.sms and all(loops_around(one.product) for one in self.products)

    @property
    def gain(self) -> float:
        """Time of the launch over that with `rows` vectors a CTA, and as many CTAs as now where the loop is split."""
        return self._gain(self.ctas_left * self.rows) if self.is_split else self.gain_of_fewer_ctas

    @property
    def gain_of_fewer_ctas(self) -> float:
        """As `gain`, without such a split."""
        return self._gain(self.ctas_left)

    def _gain(self, ctas: float) -> float:
        """If the work is spread over so many CTAs."""
        spread, left = (max(one / H200.sms, 1.0) for one in (self.ctas_left * self.rows, ctas))
        now, later = (self._cycles(rows) * rows for rows in (1.0, self.rows))
        return (now * spread + LAUNCH_CYCLES) / (later * left * self.ctas_left / ctas + LAUNCH_CYCLES)

    def _cycles(self, rows: float) -> float:
        """Of an SM for each vector of a CTA that takes so many: what takes longest of arithmetic, MMAs, L2 and memory.

        A tile is loaded once for all of them, and converted once; memory gives it once to all that share it. Of one
        vector the product is by hand, and is an FMA with the addition.
        """
        kernel = self.kernel
        by_hand = {op.line for one in self.products for op in one.operations}
        of_tiles = {op.line for one in self.products for op in one.tile} - by_hand
        others = [op for op in kernel.operations if op.line not in by_hand | of_tiles]
        by_sums, tiles = ([op for op in kernel.operations if op.line in lines] for lines in (by_hand, of_tiles))
        dots = sum(LEAST_TILE * one.elements * self._times(one.product) * one.element_bytes for one in self.products)
        mmas = sum(mma_cycles(kernel, [op]) * self._times(op) for op in kernel.named(*MMAS))
        arithmetic = self._arithmetic(tiles) / rows + self._arithmetic(others)
        if rows > 1:
            mmas += dots / kernel.arch.flop_per_cycle["bf16"] / rows
        else:
            arithmetic += self._arithmetic(by_sums)
        loaded = (self._loaded(tiles) / rows + self._loaded(others)) / H200.l2_bytes_per_cycle
        moved = sum(map(self._moved, kernel.operations)) / kernel.arch.memory_bytes_per_cycle
        return max(arithmetic, mmas, loaded, moved)

    def _times(self, op: Operation) -> float:
        """How often a CTA does an operation. A loop of unknown length is taken to sweep the CTA's part of a tensor."""
        return math.prod(
            self._sweeps.get(loop.line, IN_LOOP) if (count := self.kernel.iterations(loop)) is None else count
            for loop in loops_around(op)
        )

    @cached_property
    def _sweeps(self) -> dict[int, float]:
        """Iterations in which all CTAs together load each element of the tiles' tensors once, by the loops' lines."""
        kernel, tiles, found = self.kernel, math.prod(self.kernel.grid or ()) / self.times, dict[int, float]()
        for one in self.products:
            lengths = [kernel.lengths[name] for name in kernel.tensors_of(one.load) if name in kernel.lengths]
            for loop in loops_around(one.load)[:1] if lengths else ():
                swept = min(lengths) / tiles / tensor_types(one.load.rest)[-1].size
                found[loop.line] = max(min(swept, found.get(loop.line, swept)), 1.0)
        return found

    def _arithmetic(self, operations: Sequence[Operation]) -> float:
        """Cycles of an SM, without the products by hand."""
        added = {op.line: math.prod(shape) for op, _, shape in sums(self.kernel)}
        products = {one.product.line for one in self.products}
        computing = [op for op in operations if op.line not in products]
        reduced = sum(added.get(op.line, 0) * self._times(op) for op in computing) / self.kernel.arch.fp32_per_cycle
        return reduced + sum(arithmetic_cycles(self.kernel, [op]) * self._times(op) for op in computing)

    def _loaded(self, operations: Sequence[Operation]) -> float:
        """Bytes from L2."""
        loads = (op for op in operations if op.name in TILE_LOADS)
        return sum(_bytes_of(self.kernel, op) * self._times(op) for op in loads)

    def _moved(self, op: Operation) -> float:
        """A CTA's part of what a load or store moves in device memory: at most its whole tensor, once a launch."""
        if op.name not in (*TILE_LOADS, *STORES, *TMA_STORES):
            return 0.0
        asked = _bytes_of(self.kernel, op) * self._times(op) / self.shared.get(op.line, 1.0)
        lengths = [self.kernel.lengths[name] for name in self.kernel.tensors_of(op) if name in self.kernel.lengths]
        element = max((tensor.bytes for tensor in tensor_types(op.rest)), default=4)
        return min(asked, max(lengths) * element / math.prod(self.kernel.grid or (1,))) if lengths else asked


def _bytes_of(kernel: Kernel, op: Operation) -> float:
    """Of the tile of a load or store, each address once."""
    value, size = kernel.values.operand(op, 0), largest_bytes(op) or 4
    if value is None or value.loaded or not value.numbers.ndim:
        return size
    return size * len(np.unique(value.numbers)) / value.numbers.size


def vector_products(kernel: Kernel) -> VectorProducts | None:
    """Of a kernel as it was written (`Kernel.as_written`); None without any, or where the launch is not known."""
    origins = origins_of(kernel)
    if origins is None:
        return None
    found = tuple(_found(kernel, origins))
    if not found:
        return None
    count = math.prod(kernel.grid or ())
    shared = {}
    for op in kernel.named(*TILE_LOADS):
        numbers = numbers_of_ctas(origins, [*_sources(kernel, op), op, *loops_around(op)], count)
        shared[op.line] = 1.0 if numbers is None else count / len(np.unique(numbers))
    return VectorProducts(kernel, found, shared)


def _found(kernel: Kernel, origins: Origins) -> Iterator[VectorProduct]:
    for reduction, axis, shape in sums(kernel):
        if _depth(kernel, reduction, shape[axis]) < LEAST_TILE:
            continue
        for product, between in products_of(kernel, reduction):
            for place in (0, 1) if tensor_types(product.rest)[0].element != "f64" else ():
                times = _times(kernel, origins, product, place, axis, shape)
                if times >= _FEWEST:
                    tile = tuple(_sources(kernel, product, place))
                    yield VectorProduct(product, (product, *between, reduction), tile, math.prod(shape), times)
                    break


def _times(kernel: Kernel, origins: Origins, product: Operation, place: int, axis: int, shape: Sequence[int]) -> float:
    """How many vectors of CTAs are multiplied with each tile that a factor is; 0 if that is no matrix product.

    The other factor may be a tile too, of a few rows.
    """
    own, other = axes_of(kernel, product, place), axes_of(kernel, product, 1 - place)
    if axis not in own & other or other - own:
        return 0.0
    tile, vector = _sources(kernel, product, place), _sources(kernel, product, 1 - place)
    if not any(op.name in TILE_LOADS for op in tile):
        return 0.0
    count, around = math.prod(kernel.grid or ()), loops_around(product)
    of_tile = numbers_of_ctas(origins, [*tile, *around], count)
    of_vector = numbers_of_ctas(origins, [*vector, *around], count)
    if of_tile is None or of_vector is None:
        return 0.0
    tiles, vectors, pairs = (
        len(different(columns, count)[0]) for columns in ([of_tile], [of_vector], [of_tile, of_vector])
    )
    length = math.prod(shape[at] for at in own - other) * pairs / vectors
    return pairs / tiles if length >= LEAST_TILE else 0.0


def _depth(kernel: Kernel, reduction: Operation, length: int) -> int:
    """Products in a sum, with those of all iterations that are added up; a step of a sorting network adds up two."""
    todo = [reduction]
    while todo:
        for op, _ in kernel.readers.get(todo.pop().line, ()):
            if op.name == "arith.addf":
                return length * math.prod(kernel.iterations(one) or IN_LOOP for one in loops_around(reduction)[:1])
            todo += [op] if op.name in (*CASTS, "tt.expand_dims", "tt.reshape") else []
    return length


def _sources(kernel: Kernel, op: Operation, place: int | None = None) -> list[Operation]:
    """What an operand is computed from, or all of them."""
    places = range(len(op.operands)) if place is None else (place,)
    found = {one.line: one for at in places for one in kernel.values.sources(op, at)}
    return list(found.values())
