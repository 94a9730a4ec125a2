"""A tensor that one launch stores and the next one loads, where one kernel could keep it in registers."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.arch import H200
from kperf.diagnose.analyses.cta_order import origins_of
from kperf.diagnose.analyses.traffic import (
    asked_bytes,
    gain_of_bytes,
    iterations_in,
    launch_bytes,
    tensor_bytes,
    tensors_bytes,
)
from kperf.diagnose.reading.cta_values import Cta, CtaValues, cta_of, last_cta, some_ctas
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, LOADS, STORES, TMA_LOADS, TMA_STORES, loops_around, mask_place
from kperf.diagnose.rule import Rule
from kperf.diagnose.script.history import Handover
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.next_iteration import NextIteration
from kperf.ir.ttgir import Operation
from kperf.ir.values import READS
from kperf.trace.analyze.finding import Finding

_CTAS = 8
"""Of a launch, whose elements are compared."""
_MOST_ELEMENTS = 1 << 20
"""Of a CTA that are compared."""
_PART_OF_REGISTERS = 0.5
"""Of an SM's, for the elements that a CTA hands on as 32-bit numbers: what is computed of them takes the others."""
_LEAST_ONCE, _MOST_ONCE = 0.8, 1.25
"""Elements that all CTAs ask for over those of the tensor: tiles at its ends reach beyond it."""
_OF_A_PAIR = 2
"""Launches."""
_STORED = 1
"""Place of what is stored among the operands of `tt.store`."""
_ELEMENTWISE = ("arith.", "math.", "tt.fp_to_fp", "tt.bitcast", "tt.extern_elementwise", "tt.clampf", "tt.precise_")
"""Beginnings of the names of operations of which each element needs the same element of their operands."""
_OF_INDICES = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.make_range", "tt.get_program_id", *READS)
"""Beside them, what an element is computed of where it needs no other element."""
_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class _Side:
    """The stores of a tensor in one launch, or its loads in the other."""

    kernel: Kernel
    operations: Sequence[Operation]
    tensor: str

    @property
    def bytes(self) -> int:
        """Of the tensor."""
        return tensor_bytes(self.kernel, self.tensor)

    @property
    def is_once(self) -> bool:
        """Whether all CTAs together ask for about as many elements as the tensor has."""
        asked = sum(asked_bytes(self.kernel, op) for op in self.operations)
        return _LEAST_ONCE <= asked / self.bytes <= _MOST_ONCE

    @property
    def begins(self) -> _Numbers | None:
        """Bytes from the beginning of the tensor to the first element of each CTA; None if not known."""
        origins = origins_of(self.kernel)
        if origins is None:
            return None
        address, base = origins.operand(self.operations[0], 0), origins.of(None, f"%{self.tensor}")
        if address is None or base is None:
            return None
        begins: _Numbers = np.broadcast_to(address.numbers - base.numbers, math.prod(self.kernel.grid or ()))
        return begins

    def elements(self, cta: Cta) -> _Numbers | None:
        """Bytes from the beginning of the tensor to each element that a CTA asks for; None if not known."""
        values, found = CtaValues(self.kernel, cta), []
        for op in self.operations:
            tile = self._tile(values, op)
            for loop in loops_around(op):
                steps = None if tile is None else _steps(values, loop, op)
                if tile is None or steps is None or tile.size * len(steps) > _MOST_ELEMENTS:
                    return None
                tile = np.unique(tile + steps[:, None])
            if tile is None:
                return None
            found.append(tile)
        elements: _Numbers = np.unique(np.concatenate(found))
        inside: _Numbers = elements[(elements >= 0) & (elements < self.bytes)]
        return inside

    def first_tile(self, cta: Cta) -> _Numbers | None:
        """As `elements`, of the first iteration of loops, in order; None of several loads or stores."""
        tile = self._tile(CtaValues(self.kernel, cta), self.operations[0]) if len(self.operations) == 1 else None
        return None if tile is None else np.sort(tile)

    def _tile(self, values: CtaValues, op: Operation) -> _Numbers | None:
        """Of one load or store in the first iteration of loops; its mask counts outside of loops."""
        address, base = values.operand(op, 0), values.of(None, f"%{self.tensor}")
        if address is None or address.loaded or base is None:
            return None
        offsets: _Numbers = (address.numbers - base.numbers).reshape(-1)
        place = mask_place(op)
        if len(op.operands) <= place or loops_around(op):
            return offsets
        mask = values.operand(op, place)
        if mask is None or mask.loaded:
            return None
        kept: _Numbers = offsets[np.broadcast_to(mask.numbers != 0, address.numbers.shape).reshape(-1)]
        return kept


@dataclass(frozen=True)
class _Pair:
    """Two launches, one after the other, as they are written. handed: the tensors between them, the largest first."""

    first: Kernel
    second: Kernel
    handed: Sequence[tuple[_Side, _Side]]

    @property
    def saved(self) -> float:
        """Bytes that one kernel need not store and load."""
        stored, loaded = tensors_bytes(self.first, STORES), tensors_bytes(self.second, LOADS)
        return sum(stored[one.tensor] + loaded[other.tensor] for one, other in self.handed)


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of launches in a row, if L2 cannot keep the tensor between them."""
    pair = _pair_of(kernel)
    if pair is None:
        return
    stored, _ = pair.handed[0]
    if stored.bytes <= H200.l2_bytes or (how := _fused(pair)) is None:
        return
    moved, saved = launch_bytes(pair.first) + launch_bytes(pair.second), pair.saved
    likely = gain_of_bytes((kernel, kernel.follower or kernel), moved, saved)
    if likely < MEDIUM_GAIN:
        return
    why, advice = how
    yield kernel.finding(
        RULE.id,
        stored.operations[0],
        "high" if likely >= SEVERE_GAIN else "medium",
        f"the next launch, {pair.second.name}, loads the {stored.bytes / 1e9:.2f} GB of {stored.tensor} that this "
        f"launch stores, and {why}: both launches together move {moved / 1e9:.2f} GB, and one kernel would move "
        f"{(moved - saved) / 1e9:.2f} GB",
        f"if nothing else reads {stored.tensor}, {advice}{_narrower(stored)}",
        {"bytes": stored.bytes, "moved_gb": moved / 1e9, "least_gb": (moved - saved) / 1e9},
        confidence="medium",
        estimate=(likely, 1.0, moved / max(moved - saved, 1.0)),
    )


def _pair_of(kernel: Kernel) -> _Pair | None:
    """A kernel and that of the launch behind it; None if something else than these two may need what they hand on.

    In one kernel some CTAs store results while others still load: so the second launch must not store to what the first
    one loads. What the second one loads has to be there before the first launch: else torch may have computed it, such
    as a mean of all elements.
    """
    if kernel.handover is None or kernel.follower is None or _iterates(kernel):
        return None
    first, second, handover = kernel.as_written, kernel.follower.as_written, kernel.handover
    if first is None or second is None or any(first.named(*TMA_STORES)) or any(second.named(*TMA_LOADS)):
        return None
    written, read = _tensors(first, (*STORES, *ATOMICS)), _tensors(second, (*LOADS, *ATOMICS))
    kept, overwritten = _tensors(first, LOADS), _tensors(second, (*STORES, *ATOMICS))
    if written is None or read is None or kept is None or overwritten is None:
        return None
    handed = {(one, other) for one, other in handover.near if one in written and other in read}
    is_needed = any(one in kept and other in overwritten for one, other in handover.near)
    if not handed or is_needed or handover.made & read or not _is_handed_whole(first, second, handover, handed):
        return None
    sides = [
        (_Side(first, _on(first, STORES, stored), stored), _Side(second, _on(second, LOADS, loaded), loaded))
        for stored, loaded in sorted(handed)
    ]
    return _Pair(first, second, sorted(sides, key=lambda one: -one[0].bytes))


def _iterates(kernel: Kernel) -> bool:
    """Whether the launches are the first ones of a chain of the same kernel, of which repeated-launch speaks."""
    chain = kernel.history.chain if kernel.history is not None else None
    return (
        chain is not None and chain.launches > _OF_A_PAIR and kernel.handover is not None and kernel.handover.is_again
    )


def _is_handed_whole(first: Kernel, second: Kernel, handover: Handover, handed: set[tuple[str, str]]) -> bool:
    """Whether these tensors are the same in both launches, and are stored and loaded alone, for these two launches."""
    updated = [_tensors(one, ATOMICS) or frozenset() for one in (first, second)]
    return (
        handed <= handover.links
        and not any(stored in updated[0] or loaded in updated[1] for stored, loaded in handed)
        and not any(stored in handover.given for stored, _ in handed)
    )


def _tensors(kernel: Kernel, names: Iterable[str]) -> frozenset[str] | None:
    """The tensors of a kernel's loads, stores or atomics; None if one of these may go to several, or to any."""
    found = [kernel.tensors_of(op) for op in kernel.named(*names)]
    return frozenset().union(*found) if all(len(one) == 1 for one in found) else None


def _fused(pair: _Pair) -> tuple[str, str] | None:
    """Why one kernel can do what both launches do, and how; None where it cannot, or where it would compute more."""
    (stored, loaded), name = pair.handed[0], pair.second.name
    if all(_is_part_by_part(*sides) for sides in pair.handed):
        return (
            "each of its CTAs loads only what one CTA of this launch stores",
            f"write one kernel: a CTA keeps its part of {stored.tensor} in registers, computes what {name} computes, "
            "and stores only the results",
        )
    if len(pair.handed) > 1 or not stored.is_once or not loaded.is_once:
        return None
    if _is_elementwise_of(loaded):
        return (
            "each of its results needs only one element",
            f"compute here what {name} computes from each element, and store the results in place of {stored.tensor}",
        )
    if _is_elementwise(stored):
        return (
            "loads each element once",
            f"compute the elements of {stored.tensor} in {name}, where it loads them now",
        )
    return None


def _narrower(stored: _Side) -> str:
    """What helps where the tensor has to stay, in words; empty of one that has 16 bits."""
    is_wide = stored.kernel.parameters[stored.tensor].type.startswith("!tt.ptr<f32")
    return f"; if {stored.tensor} has to stay in memory, float16 or bfloat16 halves its bytes" if is_wide else ""


def _on(kernel: Kernel, names: Iterable[str], tensor: str) -> list[Operation]:
    """Loads or stores of a tensor."""
    return [op for op in kernel.named(*names) if kernel.tensors_of(op) == {tensor}]


def _is_part_by_part(stored: _Side, loaded: _Side) -> bool:
    """Whether each CTA of the second launch loads the elements that one CTA of the first one stores, and no others.

    No other CTA loads them. They have to fit into registers, unless each iteration of a loop loads what an iteration of
    the other loop stores.
    """
    begins, loads = stored.begins, loaded.begins
    if begins is None or loads is None or len({*map(len, (begins, loads, np.unique(begins), np.unique(loads)))}) > 1:
        return False
    most = _PART_OF_REGISTERS * stored.kernel.arch.sm_registers
    for cta in (*some_ctas(loaded.kernel, _CTAS), last_cta(loaded.kernel)):
        part = loaded.elements(cta)
        if part is None:
            return False
        owners = np.flatnonzero(np.isin(begins, part))
        if len(owners) != 1:
            return False
        owner = cta_of(stored.kernel, int(owners[0]))
        if not _are_equal(stored.elements(owner), part):
            return False
        if len(part) > most and not _are_equal(stored.first_tile(owner), loaded.first_tile(cta)):
            return False
    return True


def _are_equal(one: _Numbers | None, other: _Numbers | None) -> bool:
    return one is not None and other is not None and np.array_equal(one, other)


def _steps(values: CtaValues, loop: Operation, op: Operation) -> _Numbers | None:
    """Bytes by which the addresses of an operation have moved in each iteration; None if not known."""
    count, first = iterations_in(values, loop), values.operand(op, 0)
    later = NextIteration(values, loop).operand(op, 0) if count is not None else None
    if count is None or first is None or later is None:
        return None
    step = np.unique(later.numbers - first.numbers)
    return int(step[0]) * np.arange(count, dtype=np.int64) if len(step) == 1 else None


def _is_elementwise_of(loaded: _Side) -> bool:
    """Whether each result of a kernel needs at most one element of a tensor, that at its own place in the tile."""
    loads = {op.line: op for op in loaded.operations}
    for op in loaded.kernel.named(*STORES):
        sources = loaded.kernel.values.sources(op, _STORED, until=READS)
        needed = [loads[one.line] for one in sources if one.line in loads]
        if not all(map(_is_of_elements, sources)) or len(needed) > 1:
            return False
        if needed and not _are_side_by_side(loaded.kernel, needed[0], op):
            return False
    return not any(loaded.kernel.named(*ATOMICS))


def _is_elementwise(stored: _Side) -> bool:
    """Whether a kernel stores one tensor alone, each element computed of those at the same place in the tile."""
    for op in stored.kernel.named(*STORES, *ATOMICS):
        if op not in stored.operations:
            return False
        sources = stored.kernel.values.sources(op, _STORED, until=READS)
        loads = [one for one in sources if one.name in READS]
        largest = max(loads, key=lambda one: asked_bytes(stored.kernel, one), default=None)
        if largest is None or not _are_side_by_side(stored.kernel, largest, op):
            return False
        if not all(map(_is_of_elements, sources)):
            return False
    return True


def _is_of_elements(op: Operation) -> bool:
    return op.name in _OF_INDICES or op.name.startswith(_ELEMENTWISE)


def _are_side_by_side(kernel: Kernel, load: Operation, store: Operation) -> bool:
    """Whether a load and a store have tiles of one shape, whose elements are neighbours along the same dimensions."""
    values = [kernel.values.operand(op, 0) for op in (load, store)]
    if any(value is None or not value.numbers.shape for value in values):
        return False
    one, other = (value.numbers for value in values if value is not None)
    if one.shape != other.shape:
        return False
    nearest = [
        [int(np.abs(np.diff(numbers, axis=axis)).min()) for axis, length in enumerate(one.shape) if length > 1]
        for numbers in (one, other)
    ]
    return all(not steps for steps in nearest) or int(np.argmin(nearest[0])) == int(np.argmin(nearest[1]))


RULE = Rule(
    "intermediate-in-memory",
    "A tensor between two launches that one kernel would keep in registers",
    check,
    needs="history",
    targets=("sm_",),
    moves_less=True,
)
