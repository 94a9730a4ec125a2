"""Atomics that meet at one address."""

import math
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kperf.arch import COPY_OVER_ATOMICS, H200, H200_ATOMIC_NS, H200_COPY_GB_PER_S
from kperf.diagnose.kernel import (
    ATOMICS,
    TMA_LOADS,
    TMA_STORES,
    Kernel,
    conditions_of,
    lines_of,
    loops_around,
    name_of,
)
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, UPDATES_OF_BIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value
from kperf.trace.analyze.finding import Finding, Level

_GAINS: dict[Level, tuple[float, float, float]] = {"medium": (1.5, 1.0, 30.0), "low": (1.1, 1.0, 1.5)}
"""Where a mask that is not known may leave few elements, and where only CTAs meet."""
_MOST = 1000.0
"""No reduction gave more: 828 x were measured of 1024 elements on one address (H200)."""

_MANY_CTAS = 16
"""For each SM."""

_SLOWER = 2.0
"""Atomics one after another, over the time in which the launch's bytes move: what is less is lost among other waits."""

_SET = r"exch\b"
_COUNTED = r"add\b"
_ADDED = r"f?add\b"
_ZERO = r"(dense<)?-?0(\.0+[eE]\+00)?\b"
_SAME_VALUES = ("ttg.convert_layout", "arith.extf", "arith.truncf", "arith.extsi", "arith.trunci")

_SECOND_KERNEL = "or store partial results, and add them in a second kernel"
_REDUCE_FIRST = (
    "reduce first (tl.sum over the tile, or a variable that the loop carries), then issue one atomic for each CTA; "
    f"{_SECOND_KERNEL}"
)
_FEWER_CTAS = f"launch fewer CTAs that do more work each; {_SECOND_KERNEL}"
_COUNT_FIRST = (
    "sum within each CTA first (tl.histogram counts integers, tl.sum with a mask sums one key), then issue one atomic "
    "for each CTA and address; or sort the data by key before this kernel"
)


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of atomics whose address is the same for all elements of a CTA, and for all CTAs.

    One whose old value is used takes a ticket or a lock, and one that sets a number opens it: there is nothing to sum
    first.
    """
    for op in kernel.named(*ATOMICS):
        value = kernel.values.operand(op, 0)
        if value is None or op.name == "tt.atomic_cas" or re.match(_SET, op.rest.strip()):
            continue
        yield from _of_zeros(kernel, op, value)
        if value.scattered:
            yield from _of_a_launch(kernel, op, value) if kernel.lengths else _of_few_bins(kernel, op, value)
            continue
        numbers, sure = _unmasked(kernel, op, value)
        elements, addresses = numbers.size, len(np.unique(numbers))
        looping = bool(loops_around(op))
        same_in_loop = looping and not any(loop.line in value.iterations for loop in loops_around(op))
        crowded = elements >= 32 and addresses * 8 <= elements
        if not crowded and ((value.program and not same_in_loop) or _is_used(kernel, op)):
            continue
        severity: Level = ("high" if sure else "medium") if crowded or same_in_loop else "low"
        advice = _REDUCE_FIRST if severity != "low" else _FEWER_CTAS
        estimate = _gain(kernel, elements / addresses) if severity == "high" else _GAINS[severity]
        if severity == "low" and (beside := _gain_beside(kernel, op, elements)) >= MEDIUM_GAIN:
            severity, estimate = "medium", (beside, 1.0, 2 * beside)
        many = (
            f"{'' if sure else 'up to '}{elements} elements of a CTA"
            if crowded
            else "every iteration"
            if same_in_loop
            else "every CTA"
        )
        where = "one address" if addresses == 1 else f"the same {addresses} addresses"
        yield kernel.finding(
            RULE.id,
            op,
            severity,
            f"{many} update{'' if crowded else 's'} {where} by atomics: L2 performs these one after another",
            advice,
            {"elements": elements, "addresses": addresses, "in_loop": int(looping)},
            confidence="medium",
            estimate=estimate,
        )


def _gain_beside(kernel: Kernel, op: Operation, elements: int) -> float:
    """How much longer a CTA's bytes take with its updates of what all CTAs update.

    1 where few CTAs do so, or where no bytes are known to move beside the updates.
    As many as are on the SMs at once are not fewer where they do more work each.
    """
    if kernel.grid is None or math.prod(kernel.grid) < _MANY_CTAS * H200.sms:
        return 1.0
    types = tensor_types(op.rest)
    updated = elements * (types[-1].bytes if types else 0) * kernel.times(op)
    moved = sum(one.asked_bytes * kernel.times(one.operation) for one in kernel.accesses)
    for one in kernel.named(*TMA_LOADS, *TMA_STORES):
        tile = max((tensor.size * tensor.bytes for tensor in tensor_types(one.rest)), default=0)
        moved += tile * kernel.times(one)
    return 1 + COPY_OVER_ATOMICS * updated / moved if moved else 1.0


def _is_used(kernel: Kernel, op: Operation) -> bool:
    """Whether something is computed of what an atomic gives back."""
    return any(kernel.values.maker(user, at) is op for user in kernel.operations for at in range(len(user.operands)))


def _of_few_bins(kernel: Kernel, op: Operation, value: Value) -> Iterator[Finding]:
    """Atomics at addresses that are data, of which the index arithmetic leaves few: a remainder, bytes, a clamp."""
    elements, addresses = value.numbers.size, len(np.unique(value.numbers))
    if elements < UPDATES_OF_BIN * addresses:
        return
    yield kernel.finding(
        RULE.id,
        op,
        "medium",
        f"{elements} elements of a CTA update about {addresses} addresses by atomics, and all CTAs update the "
        "same addresses: L2 performs atomics on one address one after another",
        _COUNT_FIRST,
        {"elements": elements, "addresses": addresses},
        confidence="medium",
        estimate=(1.5, 1.0, 30.0),
    )


def _of_a_launch(kernel: Kernel, op: Operation, value: Value) -> Iterator[Finding]:
    """Atomics at addresses that are data, of a launch whose tensor has far fewer elements than it updates.

    A loop around them makes them more: its number of iterations is not known.
    """
    name = next((name for name in kernel.lengths if name in value.arguments and kernel.values.is_in(value, name)), None)
    if name is None or kernel.grid is None:
        return
    ctas = math.prod(kernel.grid)
    each = value.numbers.size * ctas / max(kernel.lengths[name], 1)
    moved_ns = ctas * sum(access.tile_bytes for access in kernel.accesses) / H200_COPY_GB_PER_S
    slower = min(each * H200_ATOMIC_NS / max(moved_ns, 1.0), _MOST)
    if slower < _SLOWER:
        return
    yield kernel.finding(
        RULE.id,
        op,
        "medium",
        f"the launch updates the {kernel.lengths[name]} elements of {name} by atomics, {each:.0f} times each on "
        "average: L2 performs atomics on one element one after another",
        _COUNT_FIRST,
        {"elements": value.numbers.size * ctas, "addresses": kernel.lengths[name]},
        confidence="medium",
        # Whole numbers are counted in CTAs at memory's speed: 57 x were measured of 27, as one bin had 2.5 x the
        # mean (H100). Others have to be sorted before.
        estimate=(slower if re.match(_COUNTED, op.rest.strip()) else slower**0.5, 1.0, min(4 * slower, _MOST)),
    )


def _of_zeros(kernel: Kernel, op: Operation, value: Value) -> Iterator[Finding]:
    """An atomic that adds what a choice made 0, where its mask does not leave these elements out."""
    chosen = kernel.values.maker(op, 1) if op.name == "tt.atomic_rmw" and re.match(_ADDED, op.rest.strip()) else None
    while chosen is not None and chosen.name in _SAME_VALUES:
        chosen = kernel.values.maker(chosen, 0)
    if chosen is None or chosen.name != "arith.select" or not any(_is_zero(kernel, chosen, one) for one in (1, 2)):
        return
    mask = list(conditions_of(kernel, op, 2))
    left = [one for one in conditions_of(kernel, chosen, 0) if one not in mask]
    if not left:
        return
    where = lines_of([chosen], op) or "this line"
    yield kernel.finding(
        RULE.id,
        op,
        "medium",
        f"the atomics add 0 to {name_of(value, kernel)} for each element that the choice (tl.where) of {where} sets to "
        "0: L2 performs these atomics too, one after another if they have the same address",
        "put the condition of the choice into the mask of the atomics, and into the mask of the loads whose values "
        "only these atomics use",
        {"chosen": len(left)},
        confidence="medium",
        estimate=(1.5, 1.0, 10.0),
    )


def _is_zero(kernel: Kernel, op: Operation, place: int) -> bool:
    made = kernel.values.maker(op, place)
    return made is not None and made.name == "arith.constant" and re.match(_ZERO, made.rest.strip()) is not None


def _unmasked(kernel: Kernel, op: Operation, value: Value) -> tuple[NDArray[np.int64], bool]:
    """Addresses of the elements that a CTA updates, and whether they are known: a mask may be data, or of few CTAs."""
    if op.name != "tt.atomic_rmw" or len(op.operands) < 3:
        return value.numbers, True
    mask = kernel.values.operand(op, 2)
    if mask is None or mask.loaded or not mask.numbers.any():
        return value.numbers, False
    return value.numbers[np.broadcast_to(mask.numbers != 0, value.numbers.shape)], True


def _gain(kernel: Kernel, each: float) -> tuple[float, float, float]:
    """With one atomic of a CTA on each address in the place of so many, between which it moves its bytes."""
    if each <= 1:
        return 3.0, 1.2, 30.0  # by how many iterations meet, of which nothing is known
    moved_ns = sum(access.tile_bytes for access in kernel.accesses) / H200_COPY_GB_PER_S
    faster = (each * H200_ATOMIC_NS + moved_ns) / (H200_ATOMIC_NS + moved_ns)
    return min(faster, _MOST), 1.2, min(2 * faster, _MOST)


RULE = Rule("atomic-contention", "Atomics on one address", check)
