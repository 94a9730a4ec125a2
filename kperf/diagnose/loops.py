"""What an iteration of a loop loads, and the buffers that it fills ahead."""

import math
import re

from kperf.diagnose.kernel import ASYNC_COPIES, LOADS, TMA_LOADS, Kernel, own
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation


def loaded_bytes(loop: Operation) -> int:
    """Bytes that an iteration loads from device memory in tensors of at least two dimensions."""
    return sum(_tile_bytes(op) for op in own(loop) if op.name in (*LOADS, *TMA_LOADS))


def _tile_bytes(op: Operation) -> int:
    sized = [tensor.size * tensor.bytes for tensor in tensor_types(op.rest) if len(tensor.shape) >= 2]
    return max(sized, default=0)


def buffers(kernel: Kernel, loop: Operation) -> list[tuple[Operation, int, int]]:
    """Of each copy into shared memory in a loop: the copy, how many buffers it fills in turn, and bytes of one."""
    allocated = {op.results[0]: op for op in kernel.named("ttg.local_alloc") if op.results}
    found = []
    for op in own(loop):
        if op.name in ASYNC_COPIES:
            view = _view(kernel, op)
            source = allocated.get(view.operands[0]) if view is not None and view.operands else None
            shape = re.search(r"-> !ttg\.memdesc<((?:\d+x)+)(\w+)", source.rest) if source is not None else None
            if shape is not None:
                lengths = [int(length) for length in shape[1].split("x") if length]
                bits = int((re.search(r"\d+", shape[2]) or ["8"])[0])
                found.append((op, lengths[0], math.prod(lengths[1:]) * max(bits // 8, 1)))
    return found


def _view(kernel: Kernel, copy: Operation) -> Operation | None:
    """The view of a buffer among the operands of a copy; views of mbarriers are none."""
    makers = (kernel.values.maker(copy, place) for place in range(len(copy.operands)))
    views = (op for op in makers if op is not None and op.name == "ttg.memdesc_index" and "xi64" not in op.rest)
    return next(views, None)
