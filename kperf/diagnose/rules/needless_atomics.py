"""Atomics at addresses that one CTA could store: each gets one update in the launch, or some that are known."""

import math
import re
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kperf.arch import H200_ATOMIC_BYTES_PER_CYCLE
from kperf.diagnose.analyses.atomics import hands_over
from kperf.diagnose.analyses.cta_order import origins_of
from kperf.diagnose.analyses.occupancy import arithmetic_of_cta, bytes_of_cta, bytes_or_mma_cycles
from kperf.diagnose.reading.cta_values import CtaValues, last_cta, some_ctas
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, LOOPS, MMAS, loops_around, mask_place
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.ir.arithmetic import SHIFTS
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.ir.values import READS, Value
from kperf.trace.analyze.finding import Finding

_MOST_RUNS = 1 << 22
"""Runs of side by side elements, of all CTAs, that are compared: some half a second."""
_ATOMIC_OVER_STORE = 2.35
"""Time of relaxed atomics over that of stores of as many bytes, each on another address: beside 268 MB of loads 228 us
and 136 us (fold_patches on an H200). In an order of their own 240 us; loads and stores in their place 190 us."""
_ADDED = r"f?add\b"
_MOST_UPDATES = 16
"""Of an element, in the mean: with more of them a sum in one CTA leaves few CTAs. Not fitted."""
_NEAR_BYTES = 64
"""Between the addresses of neighbours in a tile, by the median, as in windows and their strides: what lies further
apart may be a hash, which no formula inverts."""
_SUMS = ("tt.reduce", "tt.scan", *LOOPS, *MMAS)
"""Sums of a CTA, for which one alone would need what all CTAs load."""
_MASKED_CTAS = 8
"""In which a mask is computed; each takes a millisecond."""
_MOST_OVER = 2.0
"""By which factor the gain may be above its estimate, which has no fences, and no kernel that sets the tensor to 0."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of atomics outside of loops whose addresses in all CTAs of the launch are computed and differ, or meet in groups.

    A kernel that also loads or stores the tensor, uses the old values or counts flags may hand something to another CTA
    by it: nothing is reported of these.
    """
    atomics = list(kernel.named("tt.atomic_rmw"))
    if not atomics or hands_over(kernel):
        return
    named = set[frozenset[str]]()
    for op in atomics:
        yield from _of_groups(kernel, op)
        if (names := kernel.tensors_of(op)) not in named:
            named.add(names)
            yield from _of_few(kernel, [one for one in atomics if kernel.memory_of(one) & names])
        alone = [other for other in atomics if kernel.memory_of(other) & kernel.tensors_of(op)] == [op]
        types = tensor_types(op.rest)
        if not alone or not types or loops_around(op) or (offsets := _offsets(kernel, op)) is None:
            continue
        updated = len(offsets) * types[-1].bytes
        gain = _gain(kernel, updated, updated)
        if gain >= MEDIUM_GAIN and _is_disjoint(kernel, op, offsets, types[-1].bytes):
            yield _finding(kernel, op, len(offsets), gain)


def _finding(kernel: Kernel, op: Operation, elements: int, gain: float) -> Finding:
    name = ", ".join(sorted(kernel.tensors_of(op)))
    return kernel.finding(
        RULE.id,
        op,
        "medium",
        f"no two elements of the launch with the grid {kernel.grid} update the same element of {name}: L2 reads and "
        "writes each of them for an atomic, although no other CTA updates it",
        f"if this holds for each launch of the kernel, and no other kernel that runs at the same time updates {name}, "
        f"write tl.store in place of the atomic where {name} holds only the initial value (zeros of a sum), and drop "
        "the kernel that sets it if the launch stores every element; where it holds earlier results, write tl.load, "
        "the operation, and tl.store",
        {"elements": elements, "ctas": math.prod(kernel.grid or ())},
        confidence="medium",
        estimate=(gain, 1.0, _MOST_OVER * gain),
    )


def _offsets(kernel: Kernel, op: Operation) -> NDArray[np.int64] | None:
    """Bytes from a tile's first element to each one that the atomic updates; None if CTAs may differ in it."""
    value = kernel.launched_values.operand(op, 0)
    if value is None or value.loaded or not _is_moved_by_program(kernel, op):
        return None
    numbers, mask = value.numbers - value.numbers.flat[0], kernel.launched_values.operand(op, mask_place(op))
    if mask is None or mask.loaded or mask.program or not all(name in kernel.numbers for name in mask.arguments):
        return numbers.ravel()
    updated: NDArray[np.int64] = numbers[np.broadcast_to(mask.numbers != 0, numbers.shape)]
    return updated


def _is_moved_by_program(kernel: Kernel, op: Operation) -> bool:
    """Whether an address is a number of the CTA, and one of the element that is the same in all CTAs, together."""
    values = kernel.launched_values
    for made in values.sources(op, 0):
        result = values.of(made.parent, made.results[0])
        operands = [values.operand(made, place) for place in range(len(made.operands))]
        if made.regions and (result is None or result.numbers.ndim):  # CTAs may take other ways
            return False
        if made.name in SHIFTS or result is None or not result.program or all(map(_is_uniform, operands)):
            continue
        factors = [one for one in operands if one is not None and _is_uniform(one) and not one.program]
        if made.name != "arith.muli" or not factors:
            return False
    return True


def _is_uniform(value: Value | None) -> bool:
    """Whether a value is one number in a CTA."""
    return value is not None and bool(np.all(value.numbers == value.numbers.flat[0]))


def _is_disjoint(kernel: Kernel, op: Operation, offsets: NDArray[np.int64], size: int) -> bool:
    """Whether all CTAs' elements of `size` bytes, at these offsets from a CTA's first one, are different."""
    origins, (places, counts) = origins_of(kernel), np.unique(offsets, return_counts=True)
    begin = origins.operand(op, 0) if origins is not None else None
    ctas = math.prod(kernel.grid or ())
    ends = np.flatnonzero(np.diff(places) != size)
    if begin is None or np.any(counts > 1) or ctas * (len(ends) + 1) > _MOST_RUNS:
        return False
    first, last = places[np.r_[0, ends + 1]], places[np.r_[ends, -1]] + size
    of_ctas = np.broadcast_to(begin.numbers, ctas)[:, None]
    order = np.argsort(of_ctas + first, axis=None)
    return bool(np.all((of_ctas + first).ravel()[order][1:] >= (of_ctas + last).ravel()[order][:-1]))


def _of_groups(kernel: Kernel, op: Operation) -> Iterator[Finding]:
    """An atomic sum at a row `index // k`, where the launch updates each element of the tensor k times.

    Of an index that holds each number once, as a permutation does, each row has k known places, which the inverse
    permutation gives.
    """
    ctas, types, names = math.prod(kernel.grid or ()), tensor_types(op.rest), kernel.tensors_of(op)
    elements = sum(kernel.lengths.get(name, 0) for name in names)
    is_sum = re.match(_ADDED, op.rest.strip()) is not None
    if not is_sum or not types or len(names) != 1 or loops_around(op) or any(kernel.named(*MMAS)):
        return
    if not _is_whole(kernel, op):
        return
    for index, each in _divided(kernel, op):
        rows = sum(kernel.lengths.get(name, 0) for name in kernel.tensors_of(index))
        updates = ctas * types[0].size
        gain = _gain(kernel, types[0].size * types[-1].bytes, types[0].size * types[-1].bytes / each)
        if not rows or updates != each * elements or updates % rows or gain < MEDIUM_GAIN:
            continue
        name, numbers = ", ".join(names), ", ".join(sorted(kernel.tensors_of(index)))
        yield kernel.finding(
            RULE.id,
            op,
            "medium",
            f"the launch updates each element of {name} {each} times by atomics: its rows are the numbers of "
            f"{numbers}, divided by {each}",
            f"if {numbers} holds each number once (a permutation), compute its inverse (torch.argsort) before, let "
            f"one CTA load the {each} rows that belong to a row of {name}, sum them in registers, and write tl.store",
            {"updates": updates, "elements": elements},
            confidence="medium",
            estimate=(gain, 1.0, _MOST_OVER * gain),
        )


def _of_few(kernel: Kernel, atomics: Sequence[Operation]) -> Iterator[Finding]:
    """Atomics of a tensor whose elements get few updates each, all from places that follow from the element's own."""
    op, names, ctas = atomics[0], kernel.tensors_of(atomics[0]), math.prod(kernel.grid or ())
    length = kernel.lengths.get(next(iter(names), ""), 0)
    if len(names) != 1 or not length or not all(_is_of_formula(kernel, one) for one in atomics):
        return
    elements = sum(tensor_types(one.rest)[0].size * kernel.times(one) for one in atomics)
    each, size = ctas * elements / length, tensor_types(op.rest)[-1].bytes
    stored = elements * size / max(each, 1)
    further = (elements * size - stored) * kernel.arch.memory_bytes_per_cycle / H200_ATOMIC_BYTES_PER_CYCLE
    zeroed = stored
    gain = _gain(kernel, stored + (further + zeroed) / _ATOMIC_OVER_STORE, stored)
    alone = len(atomics) == 1 and not loops_around(op)
    is_disjoint = alone and (offsets := _offsets(kernel, op)) is not None and _is_disjoint(kernel, op, offsets, size)
    if each > _MOST_UPDATES or gain < MEDIUM_GAIN or is_disjoint:
        return
    name = next(iter(names))
    yield kernel.finding(
        RULE.id,
        op,
        "medium",
        f"an element of {name} gets {each:.3g} updates in the mean, and their addresses are computed of indices alone: "
        "which updates an element gets is known, and no atomic is needed",
        f"let the CTAs have tiles of {name}: load what is added to each element (solve the formula of the address for "
        "the place from which it is loaded, with a load and a mask for each solution), add it in registers, and write "
        f"tl.store; and drop the kernel that sets {name} to 0",
        {"updates": each, "elements": length},
        confidence="medium",
        estimate=(gain, 1.0, _MOST_OVER * gain),
    )


def _is_of_formula(kernel: Kernel, op: Operation) -> bool:
    """Whether it adds one element's number at a place that index arithmetic gives, near those of its neighbours.

    As far from them in one CTA as in others, and without branches.
    """
    made = kernel.values.sources(op, 0)
    if any(one.name == "scf.if" for one in made) or any(kernel.iterations(loop) is None for loop in loops_around(op)):
        return False
    steps = set[float]()
    for cta in some_ctas(kernel, _MASKED_CTAS):
        address = CtaValues(kernel, cta).operand(op, 0)
        if address is None or address.loaded or not address.program or not address.numbers.ndim:
            return False
        if not address.arguments <= {*kernel.numbers, *kernel.tensors_of(op)} or address.numbers.shape[-1] < 2:
            return False
        steps.add(float(np.median(np.abs(np.diff(address.numbers, axis=-1)))))
    makers = {one.name for one in kernel.values.sources(op, 1, until=READS)}
    return len(steps) == 1 and max(steps) <= _NEAR_BYTES and not makers & set(_SUMS) and bool(makers & set(LOADS))


def _is_whole(kernel: Kernel, op: Operation) -> bool:
    """Whether the mask of an atomic lets all elements through, in the last CTA and in some others."""
    if len(op.operands) <= mask_place(op):
        return True
    ctas = (*some_ctas(kernel, _MASKED_CTAS), last_cta(kernel))
    masks = [CtaValues(kernel, cta).operand(op, mask_place(op)) for cta in ctas]
    return all(
        mask is not None and not mask.loaded and mask.arguments <= kernel.numbers.keys() and bool(mask.numbers.all())
        for mask in masks
    )


def _divided(kernel: Kernel, op: Operation) -> Iterator[tuple[Operation, int]]:
    """The loads whose numbers an address has divided by a constant, each with that constant."""
    for made in kernel.values.sources(op, 0, until=READS):
        by = kernel.launched_values.operand(made, 1) if made.name in ("arith.divsi", "arith.divui") else None
        read = kernel.values.maker(made, 0)
        if by is not None and not (by.program or by.loaded) and _is_uniform(by) and read is not None:
            each = int(by.numbers.flat[0])
            if read.name in READS and each > 1 and by.arguments <= kernel.numbers.keys():
                yield read, each


def _gain(kernel: Kernel, updated: float, stored: float) -> float:
    """Time of a CTA whose atomics update so many bytes, over that of the same work with so many bytes stored."""
    rate = kernel.arch.memory_bytes_per_cycle
    mmas = [op for op in kernel.named(*MMAS) for _ in range(kernel.times(op))]
    computed = max(arithmetic_of_cta(kernel, kernel.operations), bytes_or_mma_cycles(kernel, mmas))
    moved = bytes_of_cta(kernel)
    return max(computed, (moved + _ATOMIC_OVER_STORE * updated) / rate) / max(computed, (moved + stored) / rate, 1e-9)


RULE = Rule("needless-atomics", "Atomics that no two CTAs share", check, needs="launch", moves_less=True)
