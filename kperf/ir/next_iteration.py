"""What integers and addresses are in a loop's second iteration."""

from kperf.ir.loops import BOUNDS
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value, Values, joined

_BEGIN, _, _STEP = BOUNDS


class NextIteration(Values):
    """As the `Values` that it is made of, in the second iteration of a loop.

    What the loop itself reads from memory stands as in its first iteration.
    """

    def __init__(self, first: Values, loop: Operation) -> None:
        """Of a loop `scf.for` or `scf.while`."""
        self.__dict__ |= vars(first)
        self._found = {}
        self._first, self._loop = first, loop

    def _data(self, op: Operation) -> Value | None:
        return self._first.of(op.parent, op.results[0])

    _reduced = _data

    def _compute(self, key: tuple[int, str], place: int) -> Value | None:
        carried = self._carried.get(key)
        if carried is None or carried.loop is not self._loop:
            return super()._compute(key, place)
        if carried.later is not None:
            return self._first.of(*carried.later)
        if self._loop.name == "scf.while":
            return self.of(*carried.first)  # what its condition hands to its body
        begin, step = self._first.operand(self._loop, _BEGIN), self._first.operand(self._loop, _STEP)
        return None if begin is None or step is None else joined(begin.numbers + step.numbers, [begin, step])
