"""Functions of no data that many CTAs of a launch compute alike: a table of them, computed once, can be loaded."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kperf.arch import H200
from kperf.diagnose.analyses.cta_order import origins_of
from kperf.diagnose.analyses.different_rows import Numbers, different
from kperf.diagnose.analyses.loops import read
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, arithmetic_of_cta, mma_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOOPS, STORES
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.origins import Origins
from kperf.ir.ttgir import Operation

_LEAST_ELEMENTS = 256
"""Of a tensor whose functions count: of each row of a tile one number may take long."""
_LONG = 8
"""Instructions at full rate for an element, from which on a function counts: so many take the time of loading 4 bytes
from L2, 64 bytes a cycle for an SM that starts 128 instructions."""
_WORTH = 16
"""Instructions at full rate for a value of a table, twice those of loading it: `tl.exp2` with its argument takes 13."""
_AGAIN = 2.0
"""CTAs for each that computes other values."""
_CONVERTED = ("arith.sitofp", "arith.uitofp")
_PURE = {
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.make_range", "tt.get_program_id",
    "tt.get_num_programs", "tt.extern_elementwise", "tt.precise_divf", "tt.precise_sqrt", "tt.clampf", "tt.fp_to_fp",
    "tt.mulhiui", "ttg.convert_layout", "scf.for",
}  # fmt: skip
"""Beside arith.* and math.*: what computes of nothing but its operands. A loop hands on what it carries."""


@dataclass(frozen=True)
class Table:
    """Values that a table could hold.

    functions: the long ones. values: what the kernel goes on with, and a table has. operations: what computes them.
    times: CTAs that compute the same, in the mean, of the function of which the fewest do.
    """

    kernel: Kernel
    functions: tuple[Operation, ...]
    values: tuple[Operation, ...]
    operations: tuple[Operation, ...]
    times: float

    @cached_property
    def cta_bytes(self) -> int:
        """What a CTA would load."""
        sizes = ((tensor_types(op.rest)[-1], self.kernel.times(op)) for op in self.values)
        return sum(tensor.size * tensor.bytes * times for tensor, times in sizes)

    @property
    def is_worth(self) -> bool:
        """Whether its values take many instructions, and a launch that loads them is faster."""
        values = sum(tensor_types(op.rest)[-1].size * self.kernel.times(op) for op in self.values)
        return self.computing * self.kernel.arch.fp32_per_cycle >= _WORTH * values and self.gain >= MEDIUM_GAIN

    @property
    def loading(self) -> float:
        """Cycles of an SM to load them from L2."""
        return self.cta_bytes / H200.l2_bytes_per_cycle

    @cached_property
    def computing(self) -> float:
        """Cycles of an SM in which a CTA computes them."""
        return arithmetic_of_cta(self.kernel, self.operations)

    @cached_property
    def others(self) -> float:
        """Cycles of an SM for all other arithmetic of a CTA."""
        made = {op.line for op in self.operations}
        return arithmetic_of_cta(self.kernel, [op for op in self.kernel.operations if op.line not in made])

    @property
    def gain(self) -> float:
        """Of loading them, where arithmetic, MMAs, L2 and device memory work at the same time."""
        kernel, (moved, loaded) = self.kernel, _bytes(self.kernel)
        multiplying = sum(kernel.times(op) * mma_cycles(kernel, [op]) for op in kernel.operations)
        rate, of_l2 = kernel.arch.memory_bytes_per_cycle, loaded / H200.l2_bytes_per_cycle
        now = max(self.computing + self.others, multiplying, moved / rate, of_l2)
        memory = (moved + self.cta_bytes / self.times) / rate
        return now / max(self.others, multiplying, memory, of_l2 + self.loading)


def _bytes(kernel: Kernel) -> tuple[float, float]:
    """What a CTA moves in device memory, of each tensor at most its part of the whole, and what it loads from L2."""
    moved = loaded = 0.0
    for access in kernel.accesses:
        asked = float(access.asked_bytes * kernel.times(access.operation))
        lengths = [kernel.lengths[name] for name in kernel.tensors_of(access.operation) if name in kernel.lengths]
        whole = max(lengths, default=math.inf) * access.tensor.bytes / math.prod(kernel.grid or (1,))
        moved += min(asked, whole)
        loaded += 0.0 if access.operation.name in STORES else asked
    return moved, loaded


def table_of(kernel: Kernel) -> Table | None:
    """Of all long functions that no data decide, and that several CTAs of the launch compute of the same numbers.

    None where loading them is not faster.
    """
    functions = [op for op in kernel.operations if _is_long(kernel, op)]
    origins = origins_of(kernel) if functions else None
    if origins is None:
        return None
    count = math.prod(kernel.grid or ())
    columns = {op.line: one for op in functions if (one := _numbers(kernel, origins, op, count)) is not None}
    functions = [op for op in functions if op.line in columns and _repeats(columns[op.line]) >= _AGAIN]
    if not functions:
        return None
    values = {op.line: op for one in functions for op in _values(kernel, origins, one, count)}
    made = {one.line: one for op in values.values() for one in (op, *_sources(kernel, op))}
    times = min(_repeats(columns[op.line]) for op in functions)
    table = Table(kernel, tuple(functions), tuple(values.values()), tuple(made.values()), times)
    return table if table.is_worth else None


def _is_long(kernel: Kernel, op: Operation) -> bool:
    """Whether it is a function that takes many instructions for each of many elements."""
    types = tensor_types(op.rest)
    if not types or types[-1].size < _LEAST_ELEMENTS or not types[-1].element.startswith(("f", "bf")):
        return False
    return arithmetic_cycles(kernel, [op]) * kernel.arch.fp32_per_cycle >= _LONG * types[-1].size


def _numbers(kernel: Kernel, origins: Origins, op: Operation, count: int) -> Numbers | None:
    """Of each of `count` CTAs, the scalars that decide a tensor: equal rows compute the same. None where data do.

    What differs from CTA to CTA comes into a tensor by scalars.
    """
    columns: list[Numbers] = [np.zeros(count, np.int64)]
    for one in _sources(kernel, op):
        if not _is_pure(one):
            return None
        if one.name not in ("tt.splat", *_CONVERTED) or (one.name in _CONVERTED and tensor_types(one.rest)):
            continue
        scalar = origins.operand(one, 0)
        if scalar is not None:
            columns.append(np.broadcast_to(scalar.numbers, count))
        elif any(by.name == "tt.get_program_id" for by in origins.sources(one, 0, until=_CONVERTED)):
            return None
    return np.stack(columns, axis=1)


def _repeats(columns: Numbers) -> float:
    """CTAs for each that has other numbers."""
    first, _ = different(columns.T, len(columns))
    return len(columns) / len(first)


def _values(kernel: Kernel, origins: Origins, function: Operation, count: int) -> Iterator[Operation]:
    """The last values that are computed of a function and that CTAs repeat: with them and data the kernel goes on."""
    todo, seen = [function], set[int]()
    while todo:
        op = todo.pop()
        further = [one for one in _readers(kernel, op) if _is_alike(kernel, origins, one, count)]
        if len(further) < len(_readers(kernel, op)):
            yield op
        todo += [one for one in further if one.line not in seen]
        seen |= {one.line for one in further}


def _is_alike(kernel: Kernel, origins: Origins, op: Operation, count: int) -> bool:
    """Whether several CTAs compute the same tensor of floats."""
    types = tensor_types(op.rest)
    if not types or not types[-1].element.startswith(("f", "bf")) or op.name in LOOPS or not _is_pure(op):
        return False
    numbers = _numbers(kernel, origins, op, count)
    return numbers is not None and _repeats(numbers) >= _AGAIN


def _is_pure(op: Operation) -> bool:
    return op.name in _PURE or op.name.startswith(("arith.", "math."))


def _readers(kernel: Kernel, op: Operation) -> list[Operation]:
    return [one for one in kernel.operations if read(one) & set(op.results)]


def _sources(kernel: Kernel, op: Operation) -> list[Operation]:
    """All operations from which an operation's operands are computed."""
    found = {one.line: one for place in range(len(op.operands)) for one in kernel.values.sources(op, place)}
    return list(found.values())
