"""wgmma that waits for each MMA before the next."""

import re
from collections.abc import Iterator

from kperf.arch import SM_90A
from kperf.diagnose.kernel import Kernel, loops_around
from kperf.diagnose.rule import Rule
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_WARNING = re.compile(
    r"(C75\d\d).*?wgmma\.mma_async instructions are serialized due to (.*?)(?: in (?:the )?function.*)?$", re.MULTILINE
)
_FEW = 3
"""A loop of one or two wgmma instructions has nothing to put between."""
_DOT, _WAIT = "ttng.warp_group_dot", "ttng.warp_group_dot_wait"


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the waits of the machine code, with ptxas' reason; and where a sum is read in each iteration."""
    products = sorted(kernel.named(_DOT), key=lambda op: -len(loops_around(op)))
    issued, awaited = _waits(kernel)
    if products and issued >= _FEW and awaited >= issued / 2:
        warning = _WARNING.search(kernel.ptxas)
        why = f" ({warning[1]}: {warning[2].strip()})" if warning else ""
        yield kernel.finding(
            RULE.id,
            products[0],
            "high",
            f"{awaited} of the {issued} wgmma instructions of its loops are waited for before the next is issued{why}",
            "keep the accumulator untouched between products (rescale it after the wait), unroll nothing by hand, and "
            "let fewer values live across the loop",
            {"wgmma": issued, "waited_for": awaited, "warning": warning[1] if warning else ""},
            estimate=(1.8, 1.2, 3.0),
        )
        return
    for op in products:
        reader = _read_in_loop(op)
        if reader is not None:
            yield kernel.finding(
                RULE.id,
                op,
                "medium",
                f"each product is waited for in its own iteration: {reader.name} reads its result there",
                "accumulate with acc = tl.dot(a, b, acc), and scale the sum once after the loop, or the operands "
                "before it",
                {"read_by": reader.name},
                estimate=(1.3, 1.0, 1.8),
            )


def _waits(kernel: Kernel) -> tuple[int, int]:
    """wgmma instructions in loops, and those of them after which none may be left in flight before the next."""
    issued = awaited = 0
    pending = False
    for instruction in kernel.code.instructions if kernel.code else ():
        if kernel.code is None or not kernel.code.depth(instruction):
            pending = False
        elif "GMMA" in instruction.opcode:
            issued, pending = issued + 1, True
        elif instruction.opcode.startswith("WARPGROUP.DEPBAR") and instruction.operands.endswith(" 0x0") and pending:
            awaited, pending = awaited + 1, False
    return issued, awaited


def _read_in_loop(product: Operation) -> Operation | None:
    """The arithmetic that adds a product, computed from zero, to a sum that a loop carries: the MMA could do it."""
    loops = loops_around(product)
    if not loops or not product.results:
        return None
    names = {product.results[0]}
    for op in (inner for region in loops[0].regions for inner in region.operations):
        read = names & {name.partition("#")[0] for name in op.operands}
        if not read or op is product:
            continue
        if op.name == _WAIT:
            names |= set(op.results)
        elif op.name in ("arith.addf", "math.fma"):
            return op
        elif op.name == "arith.mulf":
            names |= set(op.results)
    return None


RULE = Rule(
    "wgmma-serialised", "Products that wait for each other", check, needs="machine code", targets=(SM_90A.name,)
)
