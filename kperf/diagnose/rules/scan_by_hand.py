"""A prefix sum (or maximum, or product) made by a triangular mask and a reduction."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.analyses.occupancy import arithmetic_cycles, bytes_or_mma_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import masked, source
from kperf.diagnose.reading.operations import inside, loops_around, own
from kperf.diagnose.reading.options import LEAST_TILE
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.layouts import TensorType, tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_SCANS = {"arith.addf": "tl.cumsum(x)", "arith.addi": "tl.cumsum(x)", "arith.mulf": "tl.cumprod(x)"}
"""What a reduction does with two elements -> the scan that does it; of others `tl.associative_scan`."""
_CALIBRATED = 5 / 6
"""Of the logarithm of what the cycles give: 66 x by the cycles were 32 x measured (H100, sums of 128 elements)."""


@dataclass(frozen=True)
class _Scan:
    """What a reduction of a triangle computes.

    tile: of the reduction. axis: along which it reduces. masking: the operation that keeps a triangle of the tile.
    exclusive: without the element itself. reverse: from the end.
    """

    tile: TensorType
    axis: int
    masking: Operation
    exclusive: bool
    reverse: bool

    @property
    def length(self) -> int:
        """Elements of each scan."""
        return self.tile.shape[self.axis]


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of reductions whose operand is the same for all results but for a triangular mask."""
    for op in kernel.named("tt.reduce"):
        scan = _scan_of(kernel, op)
        if scan is None or scan.length < LEAST_TILE:
            continue
        loops = loops_around(op)
        around = list(own(loops[0])) if loops else kernel.operations
        made = [op, *_makers(kernel, op, scan, around)]
        others = arithmetic_cycles(kernel, [one for one in around if one not in made])
        least = bytes_or_mma_cycles(kernel, around)
        by_hand = arithmetic_cycles(kernel, made[1:]) + _reduction_cycles(kernel, scan)
        gain = max(by_hand + others, least) / max(_scan_cycles(kernel, scan) + others, least)
        likely = gain**_CALIBRATED
        if likely < MEDIUM_GAIN:
            continue
        yield kernel.finding(
            RULE.id,
            scan.masking,
            "high" if likely >= SEVERE_GAIN else "medium",
            f"each of the {scan.length} prefixes is reduced on its own, by a triangular mask: this takes some "
            f"{by_hand:.0f} cycles of an SM, and all other work {'of an iteration' if loops else 'of a CTA'} takes "
            f"{max(others, least):.0f} cycles",
            _advice(op, scan),
            {
                "elements": scan.tile.size,
                "length": scan.length,
                "triangle_cycles": by_hand,
                "scan_cycles": _scan_cycles(kernel, scan),
                "other_cycles": max(others, least),
            },
            estimate=(likely, 1.0, gain),
        )


def _scan_of(kernel: Kernel, op: Operation) -> _Scan | None:
    """None of a reduction that is no scan by hand."""
    types = tensor_types(kernel.module.lines[op.last_line])
    masking = source(kernel.values, op, 0)
    if len(op.operands) != 1 or not types or masking is None:
        return None
    axis = int(op.rest.partition("axis = ")[2].partition(" ")[0] or 0)
    for mask, value in masked(kernel.values, masking):
        if mask.ndim != len(types[0].shape):
            continue
        for other in range(mask.ndim):
            kind = _triangle(mask, other, axis) if other != axis and _is_same(kernel, masking, value, other) else None
            if kind is not None:
                return _Scan(types[0], axis, masking, *kind)
    return None


def _is_same(kernel: Kernel, op: Operation, place: int, axis: int) -> bool:
    """Whether an operand's elements are the same along an axis, to which they were broadcast."""
    made = source(kernel.values, op, place)
    return made is not None and made.name == "tt.broadcast" and tensor_types(made.rest)[0].shape[axis] == 1


def _triangle(mask: NDArray[np.bool_], results: int, reduced: int) -> tuple[bool, bool] | None:
    """Whether the triangle of a mask is exclusive, and whether it is reversed; None if the mask is no triangle.

    results: the axis of the results. reduced: the axis that is reduced. Rows and columns beyond an end may be masked
    too.
    """
    planes = np.moveaxis(mask, (results, reduced), (0, 1)).reshape(mask.shape[results], mask.shape[reduced], -1)
    length, plane = len(planes), np.squeeze(planes[..., :1], axis=-1)
    if plane.shape != (length, length) or not np.all(planes == planes[..., :1]):
        return None
    live = np.any(plane, axis=1, keepdims=True) & np.any(plane, axis=0, keepdims=True)
    if live.sum() <= live.size / 4:
        return None
    for exclusive in (False, True):
        lower = np.tri(length, k=-int(exclusive), dtype=bool)
        for reverse in (False, True):
            if np.array_equal(plane, (lower.T if reverse else lower) & live):
                return exclusive, reverse
    return None


def _makers(kernel: Kernel, op: Operation, scan: _Scan, around: Sequence[Operation]) -> list[Operation]:
    """Those of operations that make the tile and its mask, element by element, for a reduction."""
    sources = {one.line for one in kernel.values.sources(op, 0)}
    tiles = (one for one in around if one.line in sources)
    return [one for one in tiles if any(tensor.size == scan.tile.size for tensor in tensor_types(one.rest))]


def _reduction_cycles(kernel: Kernel, scan: _Scan) -> float:
    """Cycles of an SM to reduce the tile: an operation an element, and the shuffles between lanes."""
    computing = scan.tile.size / kernel.arch.fp32_per_cycle
    places = kernel.layouts.elements(scan.tile)  # [warp, register, lane, dimension]
    if places is None:
        return computing
    lanes = len(np.unique(places[0, 0, :, scan.axis]))
    sums = len(np.unique(np.delete(places[0, :, 0], scan.axis, axis=1), axis=0))
    return computing + _shuffled(kernel, kernel.threads * sums * math.log2(lanes))


def _scan_cycles(kernel: Kernel, scan: _Scan) -> float:
    """Cycles of an SM for scans of the same elements: log2(length) steps, each a shuffle and an operation."""
    return _shuffled(kernel, scan.tile.size / scan.length * math.log2(scan.length))


def _shuffled(kernel: Kernel, elements: float) -> float:
    """Cycles of an SM in which elements are shuffled, and each is added to another one.

    An SM starts a shuffle of one warp a cycle (CUDA C++ Programming Guide, "Arithmetic Instructions": 32 results).
    """
    return elements / kernel.arch.warp_size + elements / kernel.arch.fp32_per_cycle


def _advice(op: Operation, scan: _Scan) -> str:
    """The scan that Triton has for the reduction, in its direction."""
    combined = next((one.name for one in inside(op) if one.name in _SCANS), "")
    call = _SCANS.get(combined, "tl.associative_scan(x, axis, combine)")
    if scan.reverse:
        call = f"{call[:-1]}, reverse=True)"
    less = " - x" if scan.exclusive and "cumsum" in call else ", shifted by an element" if scan.exclusive else ""
    return f"write it as {call}{less}, which takes log2({scan.length}) = {math.log2(scan.length):.0f} steps"


RULE = Rule("scan-by-hand", "A scan by a triangular mask", check)
