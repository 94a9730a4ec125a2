"""A sort of whole rows of which few sorted elements are used."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.analyses.occupancy import arithmetic_cycles, bytes_or_mma_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import CASTS, is_fixed, masked, source
from kperf.diagnose.reading.operations import LOADS, STORES, inside, loops_around, mask_place, own
from kperf.diagnose.reading.options import tile_for
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_FEW = 32
"""Elements of a row that a thread can hold in a variable each."""
_FEWER = 4
"""Times fewer elements that `tl.topk` has to keep: with half of them it leaves out one round of many."""
_ALU, _SHUFFLE = 2, 4
"""Cycles in which a sub-partition of an SM issues a comparison, a selection or a minimum (64 results of an SM a cycle),
and a shuffle (32 results): CUDA C++ Programming Guide, "Arithmetic Instructions", compute capability 9.0."""
_SHUFFLES = ("SHFL", "LDS", "STS")
_FULL_RATE = ("IMAD", "MOV", "IADD3", "NOP", "BRA")
_LARGEST = ("arith.maxnumf", "arith.maximumf", "arith.maxsi", "arith.maxui")
_EXTREMES = (*_LARGEST, "arith.minnumf", "arith.minimumf", "arith.minsi", "arith.minui")
_SELECTED = 1.5
"""Minima and maxima for each exchange of a sorting network that gives one element: where one of the two results of an
exchange is dropped, one is left. The median of 9 takes 30 for 19 exchanges."""
_FASTER = 1.5
"""Power of the gain by the cycles that may be measured: 2.4 x were 3.45 x (H100, the median of 9), since padding and
its loads go too."""


@dataclass(frozen=True)
class _Sort:
    """A bitonic network as `tl.sort` and `tl.topk` make it, a compare-and-swap after another.

    begin, end: the reshapes around it. exchanges: the selections of its compare-and-swaps. halvings: the reductions in
    which `tl.topk` keeps the better half. length: elements of a row, a power of two. kept: of them in the result.
    """

    begin: Operation
    end: Operation
    exchanges: tuple[Operation, ...]
    halvings: tuple[Operation, ...]
    length: int
    kept: int

    @property
    def elements(self) -> int:
        """Of all rows of a CTA before the sort."""
        return tensor_types(self.begin.rest)[0].size


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of sorts, what finds the elements that are used with less work."""
    sorts = [one for op in kernel.named("tt.reshape") if (one := _sort_ending_with(kernel, op)) is not None]
    for sort in sorts:
        used = _used(kernel, sort, sort.end)
        if used:
            yield from _finding(kernel, sort, sorted(used), _cycles(kernel, sort, sorts))


def _sort_ending_with(kernel: Kernel, end: Operation) -> _Sort | None:
    """The network before a reshape of a hypercube, which has an axis of length two for each bit of an index."""
    types = tensor_types(end.rest)
    if len(types) < 2 or not _is_hypercube(types[0].shape):
        return None
    exchanges, halvings = list[Operation](), list[Operation]()
    made = kernel.values.maker(end, 0)
    while made is not None and made.name != "tt.reshape":
        place = 0
        if made.name == "arith.select" and _is_exchange(kernel, made):
            exchanges.append(made)
            place = 2
        elif made.name == "tt.reduce" and _combines(made) in _EXTREMES:
            halvings.append(made)
        elif made.name not in CASTS:
            return None
        made = kernel.values.maker(made, place)
    if made is None:
        return None
    stages = next((n for n in range(2, 32) if n * (n + 1) // 2 + n * len(halvings) == len(exchanges)), None)
    if stages is None:
        return None
    kept = 1 << stages
    return _Sort(made, end, tuple(exchanges), tuple(halvings), kept << len(halvings), kept)


def _is_hypercube(shape: Sequence[int]) -> bool:
    return len(shape) > 1 and set(shape) == {2}


def _is_exchange(kernel: Kernel, select: Operation) -> bool:
    """Whether it takes an element or its partner, which Triton computes as (x ^ y) ^ x."""
    partner = kernel.values.maker(select, 1)
    if partner is not None and partner.name == "tt.bitcast":
        partner = kernel.values.maker(partner, 0)
    return partner is not None and partner.name == "arith.xori"


def _combines(reduction: Operation) -> str:
    """The operation by which a reduction joins two elements; empty where there are several."""
    names = [op.name for op in inside(reduction) if op.name != "tt.reduce.return"]
    return names[0] if len(names) == 1 else ""


def _used(kernel: Kernel, sort: _Sort, op: Operation) -> set[int] | None:
    """Places in the sorted rows of the elements that are used; None where they may be all."""
    used: set[int] = set()
    for reader, place in kernel.readers.get(op.line, ()):
        if loops_around(reader) != loops_around(sort.end):
            return None  # each iteration may use another element
        places = _used(kernel, sort, reader) if reader.name in CASTS else _read(kernel, sort, reader, place)
        if places is None:
            return None
        used |= places
    return used


def _read(kernel: Kernel, sort: _Sort, reader: Operation, place: int) -> set[int] | None:
    """The places that one operation uses; None where they may be all."""
    if reader.name == "tt.reduce":
        return _reduced(sort, reader)
    if reader.name in STORES:
        mask = kernel.launched_values.operand(reader, mask_place(reader))
        return _true(sort, mask.numbers != 0) or None if mask is not None and is_fixed(mask) else None
    if reader.name == "tt.gather" and place == 0:
        gathered = kernel.launched_values.operand(reader, 1)
        is_known = gathered is not None and not (gathered.loaded or gathered.program)
        return set(np.unique(gathered.numbers).tolist()) if gathered is not None and is_known else None
    for kept, of in masked(kernel.launched_values, reader, fixed=True):
        if of == place and (places := _true(sort, kept)):
            return places
    return None


def _reduced(sort: _Sort, reduction: Operation) -> set[int] | None:
    """A maximum or a minimum is at an end of the row; of what `tl.topk` gives it is the first or the last."""
    combines = _combines(reduction)
    if combines not in _EXTREMES:
        return None
    is_best = not sort.halvings or (combines in _LARGEST) == (_combines(sort.halvings[0]) in _LARGEST)
    return {0 if is_best else sort.kept - 1}


def _true(sort: _Sort, mask: NDArray[np.bool_]) -> set[int]:
    """The places of a row where a mask is true for any row; empty where it has no axis of sorted elements."""
    if mask.ndim == 0 or mask.shape[-1] != sort.kept:
        return set()
    return set(np.flatnonzero(mask.reshape(-1, sort.kept).any(axis=0)).tolist())


def _cycles(kernel: Kernel, sort: _Sort, sorts: Sequence[_Sort]) -> float:
    """Cycles of an SM for a CTA's sort, by its part in the machine code of all sorts; else by what it computes.

    ptxas leaves out exchanges within a thread of which no result is used.
    """
    compared = [op for one in sorts for op in _network(kernel, one) if op.name != "tt.reduce" or op not in one.halvings]
    code = {
        one.address: one.opcode.partition(".")[0] for op in _by_place(compared) for one in kernel.instructions_of(op)
    }
    if not code:
        return arithmetic_cycles(kernel, _network(kernel, sort))
    issued = sum(_SHUFFLE if name in _SHUFFLES else 1 if name in _FULL_RATE else _ALU for name in code.values())
    share = _exchanged(sort, sort.kept) / sum(_exchanged(one, one.kept) for one in sorts)
    return share * issued * kernel.total_warps / kernel.arch.sub_partitions


def _network(kernel: Kernel, sort: _Sort) -> list[Operation]:
    """What stands between the reshapes around it."""
    before = {op.line for op in kernel.values.sources(sort.begin, 0)} | {sort.begin.line}
    return [op for op in kernel.values.sources(sort.end, 0) if op.line not in before]


def _by_place(operations: Sequence[Operation]) -> list[Operation]:
    """One operation for each line of Triton's library."""
    inner = [one for op in operations for one in (op, *inside(op))]
    places = {op.location.frames[0]: op for op in inner if op.location is not None and op.location.frames}
    return [op for frame, op in places.items() if frame.in_library]


def _exchanged(sort: _Sort, kept: int) -> float:
    """Elements that meet another one, if so many of each row are kept: a power of two.

    The first log2(kept) stages sort runs of that length. Then one of two runs is left, and is merged, until one is.
    """
    stages = int(math.log2(kept))
    met = stages * (stages + 1) / 2
    left = 1.0
    for _ in range(int(math.log2(sort.length)) - stages):
        left /= 2
        met += left * (1 + stages)
    return sort.elements * met


@dataclass(frozen=True)
class _Way:
    """Another way to the elements that are used: its cycles of an SM, and how it is written."""

    cycles: float
    advice: str


def _ways(kernel: Kernel, sort: _Sort, used: Sequence[int], cycles: float) -> Iterator[_Way]:
    """Ways to the elements at these places, which are in order."""
    ends = [used[-1] + 1] if sort.halvings else _from_ends(sort, used)
    kept = [tile_for(count) for count in ends]
    if max(kept) * _FEWER <= sort.length:
        exchanged = sum(_exchanged(sort, one) for one in kept)
        yield _Way(cycles * exchanged / _exchanged(sort, sort.kept), _written(kept))
    if len(used) == 1 and sort.length <= _FEW:
        length = _live(kernel, sort)
        selected = _SELECTED * _network_of(length) * sort.elements / sort.length
        yield _Way(
            _ALU * selected / kernel.arch.fp32_per_cycle,
            f"load the {length} elements of a row into a variable each, and find the one that is used with tl.minimum "
            "and tl.maximum (the median of 3: tl.maximum(tl.minimum(a, b), tl.minimum(tl.maximum(a, b), c)))",
        )


def _from_ends(sort: _Sort, used: Sequence[int]) -> list[int]:
    """How many elements from each end of the row hold those that are used, of the ends that are asked."""
    first = [place + 1 for place in used if place < sort.kept / 2]
    last = [sort.kept - place for place in used if place >= sort.kept / 2]
    return [max(side) for side in (first, last) if side]


def _written(kept: Sequence[int]) -> str:
    """The calls that find so many elements at one end, or at both."""
    if max(kept) == 1:
        return f"write tl.max(x, axis) {'and' if len(kept) == 2 else 'or'} tl.min(x, axis) in place of the sort"
    both = ", and the same of -x for the other end" if len(kept) == 2 else ""
    most = max(kept)
    return f"write tl.topk(x, {most}), which sorts no runs longer than {most} elements (of -x for the smallest){both}"


def _live(kernel: Kernel, sort: _Sort) -> int:
    """Elements of a row without those that a load's mask pads."""
    load = source(kernel.values, sort.begin, 0)
    mask = kernel.launched_values.operand(load, mask_place(load)) if load is not None and load.name in LOADS else None
    if mask is None or mask.loaded or mask.numbers.ndim == 0 or mask.numbers.shape[-1] != sort.length:
        return sort.length
    return int(mask.numbers.reshape(-1, sort.length).sum(axis=1).max()) or sort.length


def _network_of(length: int) -> float:
    """Exchanges of Batcher's odd-even merge sort (Knuth, The Art of Computer Programming 3, 5.3.4)."""
    stages = math.log2(max(length, 2))
    return length / 4 * (stages * stages - stages) + length - 1


def _finding(kernel: Kernel, sort: _Sort, used: Sequence[int], cycles: float) -> Iterator[Finding]:
    """Silent where the work beside the sort, or the bytes, take most of the time, and where no way is much faster."""
    loops = loops_around(sort.end)
    around = list(own(loops[0])) if loops else kernel.operations
    network = {op.line for op in _network(kernel, sort)}
    others = arithmetic_cycles(kernel, [op for op in around if op.line not in network])
    least = bytes_or_mma_cycles(kernel, around)
    way = min(_ways(kernel, sort, used, cycles), key=lambda one: one.cycles, default=None)
    if way is None:
        return
    gain = max(cycles + others, least) / max(way.cycles + others, least)
    if gain < MEDIUM_GAIN:
        return
    rest = max(others, least)
    yield kernel.finding(
        RULE.id,
        sort.end,
        "high" if gain >= SEVERE_GAIN else "medium",
        f"each row of {sort.length} elements is sorted, and {len(used)} of its sorted elements "
        f"{'is' if len(used) == 1 else 'are'} used: the sort takes some {cycles:.0f} cycles of an SM, and all other "
        f"work {'of an iteration' if loops else 'of a CTA'} takes {rest:.0f} cycles",
        way.advice,
        {
            "length": sort.length,
            "used": len(used),
            "sort_cycles": cycles,
            "needed_cycles": way.cycles,
            "other_cycles": rest,
        },
        confidence="medium",
        estimate=(gain, 1.0, min(gain**_FASTER, (cycles + others) / max(others, least))),
    )


RULE = Rule("full-sort", "A sort of which few elements are used", check)
