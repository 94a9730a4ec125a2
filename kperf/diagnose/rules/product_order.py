"""Two products of three matrices, taken in the order that needs many times the operations of the other order."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from kperf.arch import H200
from kperf.diagnose.analyses.cta_order import origins_of
from kperf.diagnose.analyses.loops import carried
from kperf.diagnose.analyses.occupancy import mma_rate
from kperf.diagnose.analyses.same_values import TILE_LOADS, numbers_of_ctas
from kperf.diagnose.analyses.waves import MEMORY_BYTES_PER_CYCLE
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import MMAS, inside, loops_around, mma_element, mma_shape
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import LAUNCH_CYCLES, MEDIUM_GAIN, MMA_SHARE, SEVERE_GAIN
from kperf.ir.layouts import element_bytes, tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_TIMES = 2.0
"""Operations of the launch over those of the other order. It needs another launch, and rounds other numbers."""
_CONVERTED = ("arith.truncf", "arith.extf", "arith.negf", "tt.fp_to_fp")
_SUM_BYTES = 4
"""Of a number of the inner product, which is summed in float32."""
_UNNAMED = (
    "the operand of this tl.dot that stays the same",
    "the operand of this tl.dot that changes in the loop",
    "the other operand of the second tl.dot",
)
_Operand = tuple[Operation, int]
"""What reads it, and at which place."""
_Uses = dict[int, list[_Operand]]
"""By the line of an operation, what reads its results."""


@dataclass(frozen=True)
class _Factor:
    """A scalar, or a vector along an axis of a tile, that an operation has as an operand."""

    operation: Operation
    place: int
    axis: int | None = None

    @property
    def operand(self) -> _Operand:
        """Without the axis."""
        return self.operation, self.place

    def turned(self, turned: bool) -> "_Factor":
        """Of the tile's transpose, if it is turned."""
        return self if self.axis is None else replace(self, axis=self.axis ^ turned)


@dataclass(frozen=True)
class _Use:
    """The MMA that a product goes into. place: of its operand. turned: whether the product is transposed before.

    factors: by which the product is multiplied before.
    """

    mma: Operation
    place: int
    turned: bool
    factors: tuple[_Factor, ...]

    @property
    def summed(self) -> int:
        """The axis of the product over which the MMA sums."""
        return (1 - self.place) ^ self.turned


@dataclass(frozen=True)
class _Chain:
    """(A B) C, or the same transposed, C (B A): an MMA's result is an operand of another one, which a loop sums.

    A stays in the loop over the columns of A B. first, second: the MMAs. rows: of A in a CTA. depth: columns of A.
    length: columns of A B in all iterations. columns: of C. turns: how often a CTA runs the loop. ctas: of the launch.
    pairs: different B and C. tiles: of B and C as the operands of an MMA. tensors: arguments that A, B and C are loaded
    from, and how many elements these have.
    """

    first: Operation
    second: Operation
    rows: int
    depth: int
    length: int
    columns: int
    turns: int
    ctas: int
    pairs: int
    tiles: str
    tensors: tuple[tuple[str, ...], ...]
    elements: tuple[float, ...]

    @property
    def done(self) -> float:
        """Operations of the launch."""
        return 2.0 * self.turns * self.ctas * self.rows * self.length * (self.depth + self.columns)

    @property
    def least(self) -> float:
        """Operations of A (B C), where each B C is computed once."""
        inner = self.pairs * self.depth * self.length * self.columns
        return 2.0 * self.turns * (inner + self.ctas * self.rows * self.depth * self.columns)

    @property
    def moved(self) -> float:
        """Elements of A, B, C and the result, each once."""
        of_a = self.ctas * self.rows * self.depth
        of_b, of_c = (self.pairs * self.length * each for each in (self.depth, self.columns))
        tiles = (self.turns * each for each in (of_a, of_b, of_c))
        return sum(map(min, tiles, self.elements)) + self.turns * self.ctas * self.rows * self.columns

    @property
    def kept(self) -> int:
        """Numbers of all B C."""
        return self.turns * self.pairs * self.depth * self.columns


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the sizes of tiles, the launch's iterations, and how many CTAs multiply the same B and C, in the TTIR."""
    written = kernel.as_written
    if written is None or len(list(written.named(*MMAS))) < 2:
        return
    uses = _uses(written)
    for first in written.named(*MMAS):
        chain = _chain(written, uses, first)
        if chain is not None and chain.done >= _TIMES * chain.least and (gain := _gain(written, chain)) >= MEDIUM_GAIN:
            yield _finding(kernel, chain, gain)


def _finding(kernel: Kernel, chain: _Chain, gain: float) -> Finding:
    line = frame.line if (frame := frame_of(chain.second)) is not None else 0
    a, b, c = (" and ".join(names) or other for names, other in zip(chain.tensors, _UNNAMED, strict=True))
    return kernel.finding(
        RULE.id,
        chain.first,
        "high" if gain >= SEVERE_GAIN else "medium",
        f"the tl.dot on line {line} multiplies the result of this tl.dot and sums over a length of {chain.length} in "
        f"all iterations, with only linear operations between the two: the launch takes {chain.done / 1e9:.3g} GFLOP, "
        f"and would take {chain.least / 1e9:.3g} GFLOP if {b} and {c} were multiplied first",
        f"multiply {b} and {c} first, in another kernel: it loops over this length with state = "
        f"tl.dot({chain.tiles}, state), where b and c are their tiles (a state has {chain.depth} x {chain.columns} "
        f"numbers, and the launch needs {chain.pairs} states); then multiply {a} by the state here, without a loop",
        {
            "length": chain.length,
            "depth": chain.depth,
            "columns": chain.columns,
            "pairs": chain.pairs,
            "ratio": chain.done / chain.least,
        },
        confidence="medium",
        estimate=(gain, gain**0.5, min(2 * gain, chain.done / chain.least)),
    )


def _gain(kernel: Kernel, chain: _Chain) -> float:
    """Time of the launch's MMAs over that of two launches in the other order: of their MMAs, or of their bytes.

    Cycles of the GPU with all SMs busy.
    """
    size = element_bytes(mma_element(chain.first))
    rate = mma_rate(kernel, chain.first) * MMA_SHARE * H200.sms
    moved = chain.moved * size + 2 * chain.kept * _SUM_BYTES
    other = max(chain.least / rate, moved / MEMORY_BYTES_PER_CYCLE)
    return chain.done / rate / (other + LAUNCH_CYCLES)


def _chain(kernel: Kernel, uses: _Uses, first: Operation) -> _Chain | None:
    """None where an MMA is no product of such a chain, or the launch does not say how often it is done."""
    use = _use(kernel, uses, first)
    if use is None or any(kernel.iterations(one) is None for one in loops_around(first)):
        return None
    second, of_first, of_second = use.mma, mma_shape(first), mma_shape(use.mma)
    loop = next(iter(loops_around(second)), None)
    if loop is None or loop not in loops_around(first) or not _is_summed(loop, second):
        return None
    if of_first is None or of_second is None:
        return None
    ends = [(one, use.summed) for one in _parts(kernel, first)]
    others = [(one, 1 - use.summed) for one, _ in ends]
    last = (second, 1 - use.place)
    if _depends(kernel, others, loop) or not all(_depends(kernel, [one], loop) for one in (*ends, last)):
        return None
    across = [factor.operand for factor in use.factors if factor.axis == 1 - use.summed]
    along = [factor.operand for factor in use.factors if factor.axis != 1 - use.summed]
    pairs = _pairs(kernel, [*ends, last, *along])
    if pairs is None or _depends(kernel, across, loop):
        return None
    iterations, times = kernel.iterations(loop) or 1, kernel.times(second)
    tensors = [_tensors(kernel, each) for each in (others, ends, [last])]
    return _Chain(
        first,
        second,
        of_first[1 - use.summed],
        of_first[2] * len(ends) * (kernel.times(first) // times),
        of_first[use.summed] * iterations,
        of_second[1 - use.place],
        times // iterations,
        math.prod(kernel.grid or ()),
        pairs,
        "c, b" if use.place else "b, c",
        tuple(tensors),
        tuple(_elements(kernel, names) for names in tensors),
    )


def _uses(kernel: Kernel) -> _Uses:
    found: _Uses = {}
    for op in kernel.operations:
        for place in range(len(op.operands)):
            if (made := kernel.values.maker(op, place)) is not None:
                found.setdefault(made.line, []).append((op, place))
    return found


def _use(kernel: Kernel, uses: _Uses, first: Operation) -> _Use | None:
    """The one MMA into which a product goes; None where anything but linear functions is computed of the product.

    A sum over rows or columns of it is linear too: the same sum of an operand, multiplied by the other one.
    """
    found: list[_Use] = []
    factors: list[_Factor] = []
    todo = [(op, place, False) for op, place in _after_loop(uses, first)]
    while todo:
        op, place, turned = todo.pop()
        if op.name in MMAS and place < 2:
            found.append(_Use(op, place, turned, ()))
        elif op.name == "tt.trans" or op.name in _CONVERTED:
            todo += [(*use, turned ^ (op.name == "tt.trans")) for use in uses.get(op.line, [])]
        elif (scaled := _factors(kernel, op, place)) is not None:
            factors += [factor.turned(turned) for factor in scaled]
            todo += [(*use, turned) for use in uses.get(op.line, [])]
        elif not _is_sum(op):
            return None
    return _Use(found[0].mma, found[0].place, found[0].turned, tuple(factors)) if len(found) == 1 else None


def _after_loop(uses: _Uses, first: Operation) -> list[_Operand]:
    """What reads a product; of one that a loop sums over its depth, what reads the sum."""
    reads = uses.get(first.line, [])
    loop = next(iter(loops_around(first)), None)
    if loop is None or len(reads) != 1 or reads[0][0].name != "scf.yield" or not _is_summed(loop, first):
        return reads
    _, place = reads[0]
    return [(op, at) for op, at in uses.get(loop.line, []) if int(op.operands[at].partition("#")[2] or 0) == place]


def _is_summed(loop: Operation, mma: Operation) -> bool:
    """Whether a loop carries an MMA's sum, and does nothing else to it."""
    return (mma.operands[2], mma.results[0]) in carried(loop)


def _parts(kernel: Kernel, first: Operation) -> list[Operation]:
    """The MMAs whose sum a product is, where its depth is written in parts."""
    parts = [first]
    while (before := kernel.values.maker(parts[-1], 2)) is not None and before.name in MMAS:
        parts.append(before)
    return parts


def _is_sum(op: Operation) -> bool:
    """Whether it is a reduction that adds."""
    names = [one.name for one in inside(op)]
    return op.name == "tt.reduce" and names == ["arith.addf", "tt.reduce.return"]


def _factors(kernel: Kernel, op: Operation, place: int) -> list[_Factor] | None:
    """The vectors by which an operation multiplies a tile, its operand at a place; None where it does something else.

    A mask that keeps whole rows or columns, and zeros elsewhere, is such a vector.
    """
    if op.name == "arith.mulf":
        return _vectors(kernel, op, 1 - place)
    if op.name == "arith.divf" and place == 0:
        return _vectors(kernel, op, 1)
    if op.name == "arith.select" and place > 0:
        other = kernel.values.maker(op, 3 - place)
        is_zero = other is not None and other.name == "arith.constant" and re.search(r"<0\.0+e\+00>", other.rest)
        return _vectors(kernel, op, 0) if is_zero else None
    return None


def _vectors(kernel: Kernel, op: Operation, place: int) -> list[_Factor] | None:
    """Vectors and scalars of which an operand is the product; None if it is another tile, or an MMA's result."""
    made = kernel.values.maker(op, place)
    if made is None or any(one.name in MMAS for one in kernel.values.sources(op, place)):
        return None
    if made.name == "arith.constant":
        return []
    if made.name == "arith.andi":
        both = [_vectors(kernel, made, at) for at in (0, 1)]
        return None if None in both else [factor for each in both for factor in each or ()]
    types = tensor_types(made.rest)
    lengths = types[0].shape[-2:] if made.name == "tt.broadcast" and types else ()
    long = [axis for axis, length in enumerate(lengths) if length > 1]
    if made.name != "tt.splat" and (not lengths or len(long) > 1):
        return None
    return [_Factor(made, 0, long[0] if long else None)]


def _depends(kernel: Kernel, operands: Iterable[_Operand], loop: Operation) -> bool:
    """Whether one of these operands changes with the iteration of a loop."""
    return any(one is loop for op, place in operands for one in kernel.values.sources(op, place))


def _pairs(kernel: Kernel, operands: Iterable[_Operand]) -> int | None:
    """How many different values these operands have together, in all CTAs of the launch; None if it is not known."""
    origins = origins_of(kernel)
    if origins is None:
        return None
    sources = {one.line: one for op, place in operands for one in kernel.values.sources(op, place)}
    numbers = numbers_of_ctas(origins, list(sources.values()), math.prod(kernel.grid or ()))
    return None if numbers is None else len(np.unique(numbers))


def _tensors(kernel: Kernel, operands: Iterable[_Operand]) -> tuple[str, ...]:
    """The arguments from which these operands are loaded."""
    loads = [one for op, place in operands for one in kernel.values.sources(op, place) if one.name in TILE_LOADS]
    return tuple(sorted({name for load in loads for name in kernel.tensors_of(load) or _descriptors(kernel, load)}))


def _descriptors(kernel: Kernel, load: Operation) -> frozenset[str]:
    """The argument that is a load's descriptor, made on the host."""
    return frozenset({load.operands[0].removeprefix("%")}) & kernel.parameters.keys()


def _elements(kernel: Kernel, names: Iterable[str]) -> float:
    """Of tensors together; infinity where that is not known."""
    return sum(kernel.lengths.get(name, math.inf) for name in names) or math.inf


RULE = Rule("product-order", "Two products in the order that takes more operations", check, needs="launch")
