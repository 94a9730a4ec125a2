"""Which memory a kernel can reach, and whether it may be launched again: read from its TTGIR."""

import re

from kperf.ir.ttgir import Module, Operation
from kperf.ir.values import Values, arguments_of

_ADDRESSES = {
    "tt.func", "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.bitcast", "tt.reshape", "tt.trans",
    "tt.unsplat", "tt.ptr_to_int", "ttg.convert_layout", "arith.select", "scf.for", "scf.if", "scf.while", "scf.yield",
    "scf.condition", "cf.br", "cf.cond_br", "ttg.warp_specialize", "ttg.warp_yield", "tt.return",
}  # fmt: skip
"""Operations that hand an address on and read nothing."""
_STORE = "tt.store"


def why_not_again(module: Module) -> str | None:
    """Why a launch of the kernel on copies of its arguments may do something else; None if it cannot.

    It would reach memory that no argument names, wait for what another CTA or another kernel writes, or print again.
    """
    for op in module.root.walk():
        if op.name == "tt.int_to_ptr" or re.search(r"!tt\.ptr<!tt\.ptr", op.rest):
            return "it reads addresses from memory or from numbers, and what they point to cannot be copied"
        if op.name in ("tt.elementwise_inline_asm", "tt.extern_elementwise") and "pure = false" in op.rest:
            return "it has assembly or an external function with side effects"
        if op.name == "tt.print":
            return "it prints, and would print again"
        if op.name == "scf.while" and any(_listens(inner) for inner in op.walk()):
            return "it has a loop that waits for what another CTA writes"
    return None


def _listens(op: Operation) -> bool:
    return "atomic" in op.name or "isVolatile = true" in op.rest or op.name == "tt.elementwise_inline_asm"


def write_only(module: Module) -> set[str]:
    """Pointer arguments through which the kernel only stores, by name without `%`; none where that is not sure."""
    values = Values(module)
    pointers = {argument.name.removeprefix("%") for argument in arguments_of(module) if "!tt.ptr" in argument.type}
    read: set[str] = set()
    stored: set[str] = set()
    for op in module.walk():
        if op.name in _ADDRESSES or ("!tt.ptr" not in op.rest and "tensordesc" not in op.rest):
            continue
        places = [0] if op.name == _STORE else range(len(op.operands))
        for place in places:
            value = values.operand(op, place)
            if value is None and (place == 0 or "tensordesc" in op.rest):
                return set()  # an address that is not followed
            if value is not None:
                (stored if op.name == _STORE else read).update(value.arguments)
    return (stored - read) & pointers
