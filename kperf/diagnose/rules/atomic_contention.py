"""Atomics that meet at one address."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.arch import COPY_OVER_ATOMICS, H100_LOCK_NS, H100_TIME_OVER_COPY, H200, H200_ATOMIC_NS, H200_COPY_GB_PER_S
from kperf.console import agreeing
from kperf.diagnose.analyses.cta_order import origins_of
from kperf.diagnose.analyses.occupancy import bytes_of_cta, ctas, launched_ctas, least_ctas, waves_of
from kperf.diagnose.analyses.starts import is_own
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import lines_of
from kperf.diagnose.reading.masks import conditions_of
from kperf.diagnose.reading.operations import ATOMICS, STORES, inside, loops_around
from kperf.diagnose.reading.pointers import name_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import FEW_WARPS_ON_SM, LAUNCH_MS, MEDIUM_GAIN, UPDATES_OF_BIN
from kperf.ir.layouts import tensor_types
from kperf.ir.loops import passed
from kperf.ir.ttgir import Operation, Region
from kperf.ir.values import Value, constant
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
_ADDITIONS = ("arith.addf", "arith.addi")
_COUNTED = r"add\b"
_ADDED = r"f?add\b"
_ZERO = r"(dense<)?-?0(\.0+[eE]\+00)?\b"
_SAME_VALUES = ("ttg.convert_layout", "arith.extf", "arith.truncf", "arith.extsi", "arith.trunci")

_SECOND_KERNEL = "or store partial results, and add them in a second kernel"
_REDUCE_FIRST = (
    "reduce first (tl.sum over the tile, or a variable that the loop carries), then issue one atomic for each CTA; "
    f"{_SECOND_KERNEL}"
)
_COUNT_FIRST = (
    "sum within each CTA first (tl.histogram counts integers, tl.sum with a mask sums one key), then issue one atomic "
    "for each CTA and address; or sort the data by key before this kernel"
)

_LEAST_IN_LINE = 16
"""CTAs of a lock. Tickets and short lines at a lock cost little."""
_SUM_WITHOUT_LOCK = (
    'add with tl.atomic_add(..., sem="relaxed"), which needs no lock, to a tensor of zeros; or store the part of each '
    "CTA in a buffer of its own, and add the parts in a second kernel"
)
_PARTS = "store the part of each CTA in a buffer of its own, and combine the parts in a second kernel, without a lock"


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of atomics that meet at an address, and of locks."""
    locks = [(loop, lock) for loop in kernel.named("scf.while") if (lock := _lock_of(kernel, loop)) is not None]
    for loop, lock in locks:
        yield from _of_a_lock(kernel, loop, lock)
    yield from _of_addresses(kernel, [lock for _, lock in locks])


def _of_addresses(kernel: Kernel, locks: Sequence[Operation]) -> Iterator[Finding]:
    """Of atomics whose address is the same for all elements of a CTA, and for all CTAs.

    One whose old value is used takes a ticket or a lock, and one that sets a number opens it, as may any other one at
    a lock's address: there is nothing to sum first.
    """
    for op in kernel.named(*ATOMICS):
        value = kernel.values.operand(op, 0)
        if value is None or op.name == "tt.atomic_cas" or re.match(_SET, op.rest.strip()):
            continue
        if any(_is_at(kernel, op, lock) for lock in locks):
            continue
        yield from _of_zeros(kernel, op, value)
        if value.scattered:
            yield from _of_a_launch(kernel, op, value) if kernel.lengths else _of_few_bins(kernel, op, value)
            continue
        numbers, sure = _unmasked(kernel, op, value)
        elements, addresses = numbers.size, len(np.unique(numbers))
        looping = bool(around := loops_around(op))
        same_in_loop = looping and around[0].line not in value.iterations and not kernel.runs_once(around[0])
        crowded = elements >= 32 and addresses * 8 <= elements
        if not crowded and ((value.program and not same_in_loop) or op.line in kernel.readers):
            continue
        severity: Level = ("high" if sure else "medium") if crowded or same_in_loop else "low"
        advice = _REDUCE_FIRST if severity != "low" else _fewer_ctas(kernel)
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


def _fewer_ctas(kernel: Kernel) -> str:
    """As few as keep memory busy, and an SM's warps; only the second way where the launch has hardly more."""
    if kernel.grid is None or kernel.resources is None:
        return f"launch fewer CTAs that do more work each; {_SECOND_KERNEL}"
    launched, least = launched_ctas(kernel), _enough_ctas(kernel)
    few = f"{least} {agreeing(least, 'CTA', 'CTAs')} an SM"
    if launched < 2 * least:
        return _SECOND_KERNEL.removeprefix("or ") + f": fewer than {few} do not keep memory busy" * (least > 1)
    return f"launch {few} in place of {launched}, each with more work, which keep memory busy; {_SECOND_KERNEL}"


def _enough_ctas(kernel: Kernel) -> int:
    """On an SM, so many that memory is busy, and enough warps hide latencies."""
    warps = math.ceil(FEW_WARPS_ON_SM / kernel.total_warps)
    return max(least_ctas(kernel), min(warps, ctas(kernel)), 1)


def _gain_beside(kernel: Kernel, op: Operation, elements: int) -> float:
    """How much longer a CTA's bytes take with its updates of what all CTAs update.

    1 where few CTAs do so, or where no bytes are known to move beside the updates.
    As many as are on the SMs at once are not fewer where they do more work each.
    """
    if kernel.grid is None or math.prod(kernel.grid) < _MANY_CTAS * H200.sms:
        return 1.0
    types = tensor_types(op.rest)
    updated = elements * (types[-1].bytes if types else 0) * kernel.times(op)
    moved = bytes_of_cta(kernel)
    return 1 + COPY_OVER_ATOMICS * updated / moved if moved else 1.0


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


def _of_a_lock(kernel: Kernel, loop: Operation, lock: Operation) -> Iterator[Finding]:
    """A loop that waits for a lock, under which a CTA loads and stores what others do: they do it one after another."""
    held = _held(kernel, loop, lock)
    if kernel.grid is None or not {"tt.load", "tt.store"} <= {op.name for op in held}:
        return
    in_line = _in_line(kernel, loop, lock)
    if in_line < _LEAST_IN_LINE:
        return
    waiting = _waiting(kernel, loop, held, in_line)
    if waiting.likely < MEDIUM_GAIN:
        return
    advice = _SUM_WITHOUT_LOCK if _adds_alone(kernel, held) else _PARTS
    if kernel.resources is not None and launched_ctas(kernel) >= 2 * (least := _enough_ctas(kernel)):
        few = f"{least} {agreeing(least, 'CTA', 'CTAs')} an SM in place of {launched_ctas(kernel)}"
        advice += f"; with {few}, each of which combines many parts in registers, there is less to add"
    yield kernel.finding(
        RULE.id,
        loop,
        "medium",
        f"{in_line} CTAs wait in line for one lock in {', '.join(sorted(kernel.tensors_of(lock)))}: each takes about "
        f"{waiting.holding / 1e3:.1f} us to lock, load, store and unlock, and those that wait take up the SMs",
        advice,
        {"ctas": in_line, "waits_us": in_line * waiting.holding / 1e3},
        confidence="medium",
        estimate=(min(waiting.likely, _MOST), 1.0, min(waiting.most, _MOST)),
    )


@dataclass(frozen=True)
class _Waiting:
    """CTAs that work, and then wait in line for a lock; times in ns.

    waves: how often the launch fills the GPU with CTAs. at_once: CTAs of a lock on the GPU. holding: of a CTA that
    holds it. moving: of the bytes of all CTAs at a copy's rate. moving_held: of those under locks, at the rate of L2.
    """

    waves: float
    at_once: int
    holding: float
    moving: float
    moving_held: float

    @property
    def likely(self) -> float:
        """The gain of no lock, if a CTA works while others are in line, and arrives there again and again.

        By mean value analysis of a closed queue (Reiser and Lavenberg, JACM 27, 1980): a CTA finds those in line that
        are there with one CTA less.
        """
        work = self.moving * H100_TIME_OVER_COPY
        apart, in_line, at_lock = (work + self.moving_held) / self.waves, 0.0, 0.0
        for count in range(1, self.at_once + 1):
            at_lock = self.holding * (1 + in_line)
            in_line = count * at_lock / (apart + at_lock)
        return self.waves * (apart + at_lock) / max(work, LAUNCH_MS * 1e6)

    @property
    def most(self) -> float:
        """If nobody works while another one of his lock holds it, and all else takes as long as a copy."""
        at_lock = self.waves * self.at_once * self.holding
        alone = (self.moving + self.moving_held + at_lock) / max(self.moving, LAUNCH_MS * 1e6)
        return max(alone, self.likely)


def _waiting(kernel: Kernel, loop: Operation, held: Sequence[Operation], in_line: int) -> _Waiting:
    """in_line: CTAs of the launch that take one lock. What all CTAs load comes from L2, and counts for nothing."""
    assert kernel.grid is not None
    count, entered = math.prod(kernel.grid), kernel.times(loop)
    waves = max(waves_of(kernel), 1.0)
    moved = {one.operation.line: one.asked_bytes * kernel.times(one.operation) for one in kernel.accesses}
    of_held = sum(moved.get(op.line, 0) for op in held)
    of_all = sum(moved[one.operation.line] for one in kernel.accesses if not (one.operation in held or is_own(one)))
    each = of_held / H200.l2_bytes_per_cycle / H200.max_mhz * 1e3
    return _Waiting(
        waves=waves,
        at_once=max(round(in_line / waves), 1),
        holding=entered * H100_LOCK_NS + each,
        moving=(bytes_of_cta(kernel) - of_held - of_all) * count / H200_COPY_GB_PER_S,
        moving_held=each * count / H200.sms,
    )


def _lock_of(kernel: Kernel, loop: Operation) -> Operation | None:
    """The atomic that a loop repeats until it takes a lock: it sets a constant in the place of another one.

    One that compares and swaps the same number only looks: a flag, for which another CTA's work is awaited.
    """
    ends = (op for op in loop.regions[0].operations if op.name == "scf.condition")
    tried = [op for end in ends for op in kernel.values.sources(end, 0) if op.name in ATOMICS and op in inside(loop)]
    for op in tried:
        numbers = [kernel.values.maker(op, place) for place in ((1, 2) if op.name == "tt.atomic_cas" else (1,))]
        values = [constant(one) if one is not None and one.name == "arith.constant" else None for one in numbers]
        known = [int(one.numbers) for one in values if one is not None and one.numbers.size == 1]
        if len(set(known)) == len(numbers) and (op.name == "tt.atomic_cas" or re.match(_SET, op.rest.strip())):
            return op
    return None


def _held(kernel: Kernel, loop: Operation, lock: Operation) -> list[Operation]:
    """What stands between the loop and what opens the lock, an atomic or a store at its address; empty without such."""
    after = [op for op in kernel.operations if op.line > loop.last_line]
    opens = (op for op in after if op.name in (*ATOMICS, *STORES) and _is_at(kernel, op, lock))
    end = next(opens, None)
    return [op for op in after if end is not None and op.line < end.line]


def _adds_alone(kernel: Kernel, held: Sequence[Operation]) -> bool:
    """Whether all that is stored under a lock is a sum with what was loaded under it.

    Or, in a branch of the first CTA, the part itself.
    """
    stored = [_sums(kernel, op.parent, op.operands[1]) for op in held if op.name == "tt.store"]
    return all(
        op is not None
        and op.name in _ADDITIONS
        and any(one in held and one.name == "tt.load" for one in _operands(kernel, op))
        for op in stored
    )


def _sums(kernel: Kernel, region: Region | None, name: str) -> Operation | None:
    """What makes a number, in whatever layout; of a branch the side that adds to what the other one gives."""
    made = kernel.values.made(region, name)
    while made is not None and made.name in _SAME_VALUES:
        made = kernel.values.maker(made, 0)
    if made is None or made.name != "scf.if" or len(made.results) != 1 or len(made.regions) != 2:
        return made
    ends = [(side, passed(side.operations[-1])) for side in made.regions if side.operations]
    given = [(side, names[0]) for side, names in ends if len(names) == 1]
    for (side, sum_of), (_, part) in zip(given, reversed(given), strict=True):
        added = kernel.values.made(side, sum_of)
        if added is not None and part in added.operands:
            return added
    return made


def _operands(kernel: Kernel, op: Operation) -> list[Operation]:
    """What makes the two operands of an operation, as far as it is known."""
    return [one for place in (0, 1) if (one := kernel.values.maker(op, place)) is not None]


def _is_at(kernel: Kernel, op: Operation, lock: Operation) -> bool:
    """Whether an atomic or a store is at a lock's address."""
    address, other = kernel.values.operand(op, 0), kernel.values.operand(lock, 0)
    return address is not None and other is not None and np.array_equal(address.numbers, other.numbers)


def _in_line(kernel: Kernel, loop: Operation, lock: Operation) -> int:
    """CTAs of the launch for the lock with most of them; 0 where that is not known."""
    origins = origins_of(kernel)
    address, runs = (origins.operand(lock, 0), origins.runs(loop)) if origins is not None else (None, None)
    if address is None or runs is None or kernel.grid is None:
        return 0
    taken, _ = np.broadcast_arrays(address.numbers, np.empty(math.prod(kernel.grid)))
    counts = np.unique(taken[np.broadcast_to(runs, taken.shape)], return_counts=True)[1]
    return int(counts.max(initial=0))


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
