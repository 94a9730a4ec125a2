"""The loads that fill the operands of an MMA, and which elements their masks leave 0."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import CASTS, MOVES
from kperf.diagnose.reading.operations import ASYNC_COPIES, LOADS, mask_place
from kperf.ir.arithmetic import apply
from kperf.ir.outcomes import constant_number
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value, Values

_TRANSPOSES = ("tt.trans", "ttg.memdesc_trans")
_PASSED = (*CASTS, "ttg.local_alloc", "ttg.local_load", "tt.fp_to_fp", "arith.sitofp")
"""What leaves a 0 where it is."""
_JOINED = ("arith.andi", "tt.splat", "ttg.convert_layout", *MOVES)
"""Of conditions that all hold, in whatever shape."""
_CHOSEN, _OTHERWISE = 1, 2
"""Places of the choices among the operands of `arith.select`."""
_WRITES = ("ttg.local_store", *ASYNC_COPIES)
"""What fills a buffer."""


@dataclass(frozen=True)
class Mask:
    """A mask: operand `place` of `user`. transposed: whether the MMA has its columns as rows."""

    user: Operation
    place: int
    transposed: bool = False

    def elements(self, values: Values, decides: Callable[[Value], bool]) -> NDArray[np.bool_] | None:
        """Which elements of the MMA's operand it keeps by the conditions that `decides` accepts.

        Other conditions are taken to hold. None if a condition is not known at all.
        """
        found = _holding(values, self.user, self.place, decides)
        return found.T if found is not None and self.transposed else found


@dataclass(frozen=True)
class Filling:
    """A load that fills an operand of an MMA, and the masks that hold together for it."""

    load: Operation
    masks: tuple[Mask, ...]

    @property
    def transposed(self) -> "Filling":
        """What an operand is filled with whose rows are this one's columns."""
        return replace(self, masks=tuple(replace(mask, transposed=not mask.transposed) for mask in self.masks))

    def elements(self, values: Values, decides: Callable[[Value], bool]) -> NDArray[np.bool_] | None:
        """Which elements all masks keep, as `Mask.elements`; None without a mask, too."""
        kept = [mask.elements(values, decides) for mask in self.masks]
        known = [one for one in kept if one is not None]
        return np.logical_and.reduce(known) if known and len(known) == len(kept) else None


def fillings(  # noqa: PLR0911 (a case a kind of operation)
    kernel: Kernel, user: Operation, place: int
) -> list[Filling]:
    """The loads that fill an operand: one, or all that fill a buffer. Empty where anything else makes it."""
    made = kernel.values.maker(user, place)
    if made is None:
        return []
    if made.name in LOADS:
        return [_filling(kernel, made)]
    if made.name in _TRANSPOSES:
        return [one.transposed for one in fillings(kernel, made, 0)]
    if made.name == "ttg.memdesc_index":
        each = [_written(kernel, write) for write in _writes(kernel, made)]
        return [one for found in each for one in found] if all(each) else []
    if made.name == "arith.select" and _is_zero(kernel.values.maker(made, _OTHERWISE)):
        return [replace(one, masks=(*one.masks, Mask(made, 0))) for one in fillings(kernel, made, _CHOSEN)]
    if made.name == "arith.mulf":
        return fillings(kernel, made, 0) or fillings(kernel, made, 1)
    return fillings(kernel, made, 0) if made.name in _PASSED else []


def _written(kernel: Kernel, write: Operation) -> list[Filling]:
    """What a copy loads, or what loads the tensor that is stored in a buffer."""
    return [_filling(kernel, write)] if write.name in LOADS else fillings(kernel, write, 0)


def _writes(kernel: Kernel, view: Operation) -> Iterator[Operation]:
    """Everything that writes to the buffer of a view."""
    buffer = kernel.values.maker(view, 0)
    for write in kernel.named(*_WRITES):
        views = (kernel.values.maker(write, place) for place in range(len(write.operands)))
        if buffer is not None and any(
            one is not None and one.name == view.name and kernel.values.maker(one, 0) is buffer for one in views
        ):
            yield write


def _filling(kernel: Kernel, load: Operation) -> Filling:
    """A load without a mask, or whose masked elements are not 0, keeps everything."""
    place = mask_place(load)
    is_masked = len(load.operands) > place
    other = kernel.values.maker(load, place + 1) if len(load.operands) > place + 1 else None
    zeros = is_masked and (len(load.operands) == place + 1 or _is_zero(other))
    return Filling(load, (Mask(load, place),) if zeros else ())


def _is_zero(made: Operation | None) -> bool:
    return made is not None and made.name == "arith.constant" and constant_number(made) == 0


def _holding(values: Values, user: Operation, place: int, decides: Callable[[Value], bool]) -> NDArray[np.bool_] | None:
    """Where the conditions hold that `decides` accepts: those between which there is an `and`."""
    made = values.maker(user, place)
    if made is not None and made.name in _JOINED:
        parts = [_holding(values, made, index, decides) for index in range(len(made.operands))]
        known = [part.astype(np.int64) for part in parts if part is not None]
        together = apply(made, known) if len(known) == len(parts) else None
        return None if together is None else np.asarray(together != 0)
    value = values.operand(user, place)
    if value is None:
        return None
    return np.asarray(value.numbers != 0) if decides(value) else np.ones(value.numbers.shape, dtype=np.bool_)
