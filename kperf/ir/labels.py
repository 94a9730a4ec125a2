"""Labels of values: equal ones stand for equal values."""

from dataclasses import replace
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from kperf.ir.arithmetic import MOVES
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.ir.values import READS, Value, Values, joined

_FACTOR, _MODULUS = 31, (1 << 50) - 27
"""Of labels made of others: large enough that two meet by chance in no tile, and their products fit into 64 bits."""


class Labels(Values):
    """Numbers of which equal ones stand for equal values, also of floats and of what is read from memory.

    What is read has its address, and what is computed of that has a number made of those of its operands.
    """

    def _data(self, op: Operation) -> Value | None:
        pointer = self.operand(op, 0)
        return None if pointer is None else replace(pointer, loaded=True)

    def _of_operation(self, op: Operation) -> Value | None:
        known = super()._of_operation(op)
        if (known is not None and not known.loaded) or op.name in (*READS, *MOVES):
            return known
        if op.name == "arith.constant":
            written, _, kind = op.rest.partition(" : ")
            number = written.strip().removeprefix("dense<").removesuffix(">")  # a float, the same one everywhere
            shape = types[0].shape if (types := tensor_types(kind)) else ()
            return Value(np.full(shape, crc32(number.encode()), dtype=np.int64))
        operands = [self.operand(op, index) for index in range(len(op.operands))]
        values = [value for value in operands if value is not None]
        if not op.name.startswith(("arith.", "math.")) or len(values) < len(operands):
            return None
        numbers: NDArray[np.int64] = np.array(0)
        for value in values:
            numbers = (numbers * _FACTOR + value.numbers) % _MODULUS
        return joined(numbers, values)
