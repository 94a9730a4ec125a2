"""A change of layout in each iteration that goes through shared memory."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.analyses.loops import always, repeated
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import STORES, TMA_LOADS
from kperf.diagnose.rule import Rule
from kperf.diagnose.rules.pointers_through_loops import handed_back
from kperf.diagnose.thresholds import CONVERSION_BYTES
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_TRANSPOSE = "tt.trans"


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of conversions between layouts in which different warps hold an element, or that store to shared memory.

    Those that a transposition needs are one finding, at its line; those of pointers that two loops carry are those of
    pointers-through-loops.
    """
    for loop in repeated(kernel):
        operations = list(always(loop))
        of_pointers = [op.line for one in handed_back(kernel, loop) for op in one.conversions]
        causes: dict[int, tuple[Operation, list[Operation]]] = {}
        for op in operations:
            if op.name == "ttg.convert_layout" and op.line not in of_pointers:
                source = tensor_types(op.rest)[0]
                if source.size * source.bytes >= CONVERSION_BYTES and _through_shared_memory(kernel, op):
                    cause = _transposition(operations, op)
                    causes.setdefault(cause.line, (cause, []))[1].append(op)
        for cause, conversions in causes.values():
            yield _finding(kernel, cause, conversions)


def _finding(kernel: Kernel, cause: Operation, conversions: list[Operation]) -> Finding:
    types = [tensor_types(op.rest)[:2] for op in conversions]
    stored = all(_is_stored(kernel, op) for op in conversions)
    tma = TMA_LOADS[0] in kernel.arch.operations
    size = sum(source.size * source.bytes for source, _ in types)
    before, after = (kernel.layouts.kind(tensor.layout) for tensor in types[0])
    return kernel.finding(
        RULE.id,
        cause,
        "low" if stored else "medium",
        f"each iteration moves {size} bytes through shared memory to change their layout, i.e. which thread has which "
        f"element ({before} to {after})",
        "sum the tiles as they are, and use tl.trans once after the loop; or load the tile transposed, with its two "
        "indices swapped in the pointers, which leaves one conversion"
        if cause.name == _TRANSPOSE
        else (
            "store by a tensor descriptor (desc.store): TMA writes the tile from shared memory"
            if tma
            else "store less often, for example once after the loop"
        )
        if stored
        else "move the conversion out of the loop: accumulate in one layout, transpose while loading (tl.trans of the "
        "pointer tile), or do after the loop what needs the other layout",
        {"bytes": size, "conversions": len(conversions), "from": before, "to": after},
        confidence="medium",
        estimate=(1.1, 1.0, 1.5) if stored else (1.25, 1.0, 2.0),
    )


def _is_stored(kernel: Kernel, conversion: Operation) -> bool:
    """Whether what a conversion gives is stored alone: rows that lie side by side in memory want that layout."""
    readers = [
        op for op in kernel.operations if set(conversion.results) & set(op.operands) and op.parent is conversion.parent
    ]
    return bool(readers) and all(op.name in STORES for op in readers)


def _transposition(operations: list[Operation], conversion: Operation) -> Operation:
    """The `tl.trans` in the loop whose layout a conversion comes from or leads to; itself where there is none."""
    layouts = {tensor.layout for tensor in tensor_types(conversion.rest)[:2]}
    for op in operations:
        if op.name == _TRANSPOSE and tensor_types(op.rest)[-1].layout in layouts:
            return op
    return conversion


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


RULE = Rule("conversion-in-loop", "A layout conversion in a loop", check, explained_by=("loads-not-pipelined",))
