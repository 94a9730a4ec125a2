"""A change of layout in each iteration that goes through shared memory."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.kernel import LOOPS, Kernel, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import CONVERSION_BYTES
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of conversions between layouts in which different warps hold an element, or that store to shared memory."""
    for loop in kernel.named(*LOOPS):
        for op in own(loop):
            if op.name != "ttg.convert_layout":
                continue
            source, result = tensor_types(op.rest)[:2]
            size = source.size * source.bytes
            if size < CONVERSION_BYTES or not _through_shared_memory(kernel, op):
                continue
            kinds = f"{kernel.layouts.kind(source.layout)} to {kernel.layouts.kind(result.layout)}"
            yield kernel.finding(
                RULE.id,
                op,
                "medium",
                f"each iteration moves {size} bytes through shared memory to change their layout ({kinds})",
                "move the conversion out of the loop: accumulate in one layout, transpose while loading (tl.trans of "
                "the pointer tile), or apply what needs the other layout after the loop",
                {"bytes": size, "from": kernel.layouts.kind(source.layout), "to": kernel.layouts.kind(result.layout)},
                confidence="medium",
                estimate=(1.25, 1.0, 2.0),
            )


def _through_shared_memory(kernel: Kernel, op: Operation) -> bool:
    source, result = tensor_types(op.rest)[:2]
    before, after = kernel.layouts.elements(source), kernel.layouts.elements(result)
    if before is not None and after is not None:
        return not all(
            np.array_equal(_held(one, source.shape), _held(other, source.shape))
            for one, other in zip(before, after, strict=False)
        )
    code = kernel.code
    return code is not None and any(
        i.opcode.startswith("STS") and code.depth(i) > 0 for i in kernel.instructions_of(op)
    )


def _held(places: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Numbers of the elements that a warp holds."""
    return np.asarray(np.unique(np.ravel_multi_index(tuple(np.moveaxis(places, -1, 0)), shape)))


RULE = Rule("conversion-in-loop", "A layout conversion in a loop", check)
