"""Products that a kernel sums, and along which dimensions of the tile each of their two factors differs."""

from collections.abc import Iterator

import numpy as np

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, LOOPS, inside
from kperf.ir.layouts import tensor_types
from kperf.ir.loops import passed
from kperf.ir.ttgir import Operation

CASTS = ("arith.extf", "arith.truncf", "tt.fp_to_fp", "ttg.convert_layout")
"""What leaves the elements where they are, and their values (nearly) the same."""
_ELEMENTWISE = (*CASTS, "arith.", "math.")
_SAME_EVERYWHERE = ("tt.splat", "arith.constant")


def sums(kernel: Kernel) -> Iterator[tuple[Operation, int, tuple[int, ...]]]:
    """The reductions that add floats, each with its axis and the shape of the tile that it adds up."""
    for op in kernel.named("tt.reduce"):
        types = tensor_types(op.rest) or tensor_types(kernel.module.lines[op.last_line])
        if types and any(one.name == "arith.addf" for one in inside(op)):
            yield op, int(op.rest.partition("axis = ")[2].partition(" ")[0] or 0), types[0].shape


def products_of(kernel: Kernel, reduction: Operation) -> list[tuple[Operation, list[Operation]]]:
    """The multiplications whose products a reduction adds, each with the operations between the two.

    A loop may have summed the products before, or a mask set some of them to zero.
    """
    found: list[tuple[Operation, list[Operation]]] = []
    todo = [(reduction.parent, reduction.operands[0], list[Operation]())]
    seen = set[tuple[int, str]]()
    while todo:
        region, name, between = todo.pop()
        op = kernel.values.made(region, name)
        if op is None or (op.line, name) in seen:
            continue
        seen.add((op.line, name))
        if op.name == "arith.mulf":
            found.append((op, between))
        elif op.name in LOOPS and op.regions[-1].operations:
            place, body = int(name.partition("#")[2] or 0), op.regions[-1]
            todo += [(body, one, between) for one in passed(body.operations[-1])[place : place + 1]]
        elif op.name in (*CASTS, "arith.addf", "arith.select"):
            todo += [(op.parent, one, [*between, op]) for one in op.operands[op.name == "arith.select" :]]
    return found


def axes_of(kernel: Kernel, op: Operation, place: int) -> frozenset[int]:
    """The dimensions of the tile along which an operand differs; all of them where that is not known."""
    found, seen, todo = set[int](), set[int](), [(op, place)]
    while todo:
        reader, at = todo.pop()
        made, value = kernel.values.maker(reader, at), kernel.values.operand(reader, at)
        if made is not None and made.name in LOADS:
            todo.append((made, 0))
        elif value is not None:
            found |= {axis for axis in range(value.numbers.ndim) if np.diff(value.numbers, axis=axis).any()}
        elif made is not None and made.name == "tt.broadcast":
            found |= {axis for axis, length in enumerate(tensor_types(made.rest)[0].shape) if length > 1}
        elif made is None or not made.name.startswith((*_SAME_EVERYWHERE, *_ELEMENTWISE)):
            found |= {axis for tensor in tensor_types(reader.rest)[-1:] for axis in range(len(tensor.shape))}
        elif made.name not in _SAME_EVERYWHERE and made.line not in seen:
            seen.add(made.line)
            todo += [(made, operand) for operand in range(len(made.operands))]
    return frozenset(found)


def joins_rows(kernel: Kernel, product: Operation, axis: int) -> bool:
    """Whether a sum of a product along an axis multiplies matrices: rows of one factor with rows of the other one.

    No condition may hang on all dimensions together: it would choose other elements for each pair of rows.
    """
    one, other = (axes_of(kernel, product, place) for place in (0, 1))
    if axis not in one & other or not one - other or not other - one:
        return False
    sources = {op.line: op for place in (0, 1) for op in kernel.values.sources(product, place)}
    return not any(
        op.name == "arith.cmpi" and axes_of(kernel, op, 0) | axes_of(kernel, op, 1) == one | other
        for op in sources.values()
    )
