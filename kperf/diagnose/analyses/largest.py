"""The value of a kernel that takes most of a thread's registers."""

from collections.abc import Iterator
from dataclasses import dataclass

from kperf.arch import operations
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import MMAS, loops_around
from kperf.ir.layouts import TensorType, tensor_types
from kperf.ir.ttgir import Operation

_MADE = (
    "tt.load",
    "amdg.buffer_load",
    *operations("tensor memory load"),
    *MMAS,
    "arith.extf",
    "arith.sitofp",
    "arith.uitofp",
)


@dataclass(frozen=True)
class Largest:
    """An operation, its result, and the 32-bit registers of a thread that it takes."""

    operation: Operation
    tensor: TensorType
    registers: int


def largest_value(kernel: Kernel) -> Largest | None:
    """Of what loads, MMAs and widening to floats give, and of what loops carry; in a loop before outside of one."""
    found = []
    for op in (*kernel.named(*_MADE), *_carried(kernel)):
        types = [tensor for tensor in tensor_types(op.rest.partition(" : ")[2]) if tensor.shape]
        if types:
            tensor = types[-1]
            registers = -(-tensor.size * tensor.bytes // (4 * kernel.threads))
            found.append(Largest(op, tensor, registers))

    def weight(one: Largest) -> tuple[int, int, int]:
        return one.registers, len(loops_around(one.operation)), -one.operation.line

    return max(found, key=weight, default=None)


def _carried(kernel: Kernel) -> Iterator[Operation]:
    """What makes the numbers that loops hand on to their next iteration: sums, not pointers."""
    for loop in kernel.named("scf.for"):
        end = loop.regions[0].operations[-1]
        for place in range(len(end.operands)):
            op = kernel.values.maker(end, place)
            if op is not None and not op.regions and "!tt.ptr" not in op.rest:
                yield op
