"""Products that are computed again for each gather of a row: the matrix is the same, so one product a row is enough."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kperf.arch import H200, H200_L2_KEPT_BYTES
from kperf.diagnose.analyses.loops import tile_bytes
from kperf.diagnose.analyses.occupancy import mma_rate
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import MMAS, loops_around, mma_element, mma_shape
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import LAUNCH_CYCLES, MEDIUM_GAIN, MMA_SHARE, SEVERE_GAIN
from kperf.ir.layouts import element_bytes, tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_AGAIN = 2.0
"""Products of the launch for each product of a row of the tensor with a matrix."""
_MOST = 16.0
"""Times as fast, at most: what is left gathers the products, and what bounds that is not modelled."""
_LINEAR = ("arith.addf", "arith.subf", "arith.negf", "arith.extf", "arith.truncf", "tt.fp_to_fp", "tt.trans")
"""After which a product is the sum of the products of what goes in."""


@dataclass(frozen=True)
class _Gathered:
    """An MMA of rows of which some are gathered.

    loads: of all rows that are summed for its operand. tensor, matrix: the arguments of the gathered rows and of the
    other operand. elements: of all tensors of rows. columns: that an MMA multiplies a row by. depth: elements of a row
    that a product sums over, in all iterations. done: elements of all rows that the launch multiplies, times columns.
    least: the same if each row of each tensor is multiplied once, by all there is of the matrix.
    """

    mma: Operation
    loads: tuple[Operation, ...]
    tensor: str
    matrix: str
    elements: int
    columns: int
    depth: int
    done: float
    least: float

    @property
    def ratio(self) -> float:
        """How often a row is multiplied by the same numbers, in the mean."""
        return self.done / self.least


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the elements of all tensors, and what the CTAs of the launch multiply, in the TTIR."""
    written = kernel.as_written
    if written is None or kernel.grid is None:
        return
    for mma in written.named(*MMAS):
        gathered = _gathered(written, mma)
        if gathered is not None and gathered.ratio >= _AGAIN and (gain := _gain(written, gathered)) >= MEDIUM_GAIN:
            yield _finding(kernel, gathered, min(gain, _MOST))


def _finding(kernel: Kernel, gathered: _Gathered, gain: float) -> Finding:
    rows = gathered.elements // gathered.depth
    return kernel.finding(
        RULE.id,
        gathered.mma,
        "high" if gain >= SEVERE_GAIN else "medium",
        f"the launch gathers rows of {gathered.tensor} by indices that it loads, and multiplies each of them by "
        f"{gathered.matrix}: {gathered.ratio:.0f} times as many products as there are rows ({rows})",
        f"multiply all rows of {gathered.tensor} by {gathered.matrix} once, with a GEMM before this kernel, and gather "
        "rows of the product here"
        + (
            ": a product of sums or differences of rows is the sum or difference of their products"
            if len(gathered.loads) > 1
            else ""
        ),
        {"rows": rows, "ratio": gathered.ratio, "depth": gathered.depth},
        confidence="medium",
        estimate=(gain, min(gain**0.5, gathered.ratio), min(2 * gain, _MOST)),
    )


def _gathered(kernel: Kernel, mma: Operation) -> _Gathered | None:
    """None where an operand is no sum of loaded rows, or how often the MMA is done is not known."""
    shape = mma_shape(mma)
    if shape is None or any(kernel.iterations(loop) is None for loop in loops_around(mma)):
        return None
    for rows_at, matrix_at in ((0, 1), (1, 0)):
        loads, other = _leaves(kernel, mma, rows_at), _leaves(kernel, mma, matrix_at)
        gathers = [one for one in loads or () if _is_gather(kernel, one)]
        if not loads or not gathers or not other:
            continue
        tensors, matrices, rows = _tensors(kernel, gathers), _tensors(kernel, other), _tensors(kernel, loads)
        if len(tensors) != 1 or len(matrices) != 1 or not rows:
            continue
        depth = shape[2] * math.prod(kernel.iterations(loop) or 1 for loop in _along_row(kernel, mma, gathers[0]))
        columns = shape[matrix_at]
        done = math.prod(shape) * kernel.times(mma) * math.prod(kernel.grid or ())
        elements = sum(kernel.lengths[name] for name in rows)
        least = elements * kernel.lengths[matrices[0]] / depth
        return _Gathered(mma, tuple(loads), tensors[0], matrices[0], elements, columns, depth, done, least)
    return None


def _leaves(kernel: Kernel, mma: Operation, place: int) -> list[Operation] | None:
    """The loads of which an operand of an MMA is a sum or difference; None where it is another function of them."""
    todo, loads = [kernel.values.maker(mma, place)], []
    while todo:
        op = todo.pop()
        if op is None or (op.name != "tt.load" and op.name not in _LINEAR):
            return None
        if op.name == "tt.load":
            loads.append(op)
        else:
            todo += [kernel.values.maker(op, at) for at in range(len(op.operands))]
    return loads


def _is_gather(kernel: Kernel, load: Operation) -> bool:
    """Whether the rows of a tile lie where loaded indices say, one an index."""
    value = kernel.values.operand(load, 0)
    return value is not None and value.scattered


def _tensors(kernel: Kernel, loads: Sequence[Operation]) -> list[str]:
    """The tensors, of known length, that these load from; empty where there is another one."""
    names = {name for op in loads for name in kernel.tensors_of(op)}
    return sorted(names) if names <= kernel.lengths.keys() else []


def _along_row(kernel: Kernel, mma: Operation, load: Operation) -> list[Operation]:
    """The loops around an MMA in whose iterations the indices stay and other elements of their rows are loaded."""
    address = kernel.values.operand(load, 0)
    indices = [op for op in kernel.values.sources(load, 0) if op.name == "tt.load"]
    of_indices = [kernel.values.operand(op, 0) for op in indices]
    moved = frozenset().union(*(value.iterations for value in of_indices if value is not None))
    return [loop for loop in loops_around(mma) if address and loop.line in address.iterations - moved]


def _gain(kernel: Kernel, gathered: _Gathered) -> float:
    """Time of the products and gathers over that of a GEMM of the rows, a launch, and gathers of its results.

    Cycles of the GPU with all SMs busy. Gathered bytes come from L2 where it keeps the tensor.
    """
    size = element_bytes(mma_element(gathered.mma))
    rate = mma_rate(kernel, gathered.mma) * MMA_SHARE * H200.sms
    columns = kernel.lengths[gathered.matrix] / gathered.depth
    tensor = gathered.elements * size
    products = tensor / gathered.depth * columns
    loaded = sum(tile_bytes(op) * kernel.times(op) for op in gathered.loads) * math.prod(kernel.grid or ())
    now = max(2 * gathered.done / rate, _gather_cycles(kernel, loaded, tensor))
    once = max(2 * gathered.least / rate, (tensor + products) / _memory_rate(kernel))
    summed = sum(_tile_elements(op) * kernel.times(op) for op in gathered.loads) * math.prod(kernel.grid or ())
    gathers = summed / gathered.depth * gathered.columns * size
    return now / (once + LAUNCH_CYCLES + _gather_cycles(kernel, gathers, products))


def _tile_elements(op: Operation) -> int:
    """Of the largest tensor that an operation names."""
    return max((tensor.size for tensor in tensor_types(op.rest)), default=0)


def _gather_cycles(kernel: Kernel, moved: float, size: float) -> float:
    """Of the GPU to gather bytes of a tensor of `size` bytes."""
    from_l2 = moved / (H200.l2_bytes_per_cycle * H200.sms)
    return from_l2 if size <= H200_L2_KEPT_BYTES else max(from_l2, moved / _memory_rate(kernel))


def _memory_rate(kernel: Kernel) -> float:
    """Bytes a cycle of device memory."""
    return kernel.arch.memory_bytes_per_cycle * H200.sms


RULE = Rule(
    "project-per-edge", "Products of gathered rows that are computed again for each gather", check, needs="launch"
)
