"""wgmma that waits for each MMA before the next."""

import re
from collections.abc import Iterator

from kperf.diagnose.finding import Finding
from kperf.diagnose.kernel import Kernel, loops_around
from kperf.diagnose.rule import Rule
from kperf.ir.ttgir import Operation

_WARNING = re.compile(
    r"(C75\d\d).*?wgmma\.mma_async instructions are serialized due to (.*?)(?: in (?:the )?function.*)?$", re.MULTILINE
)
_DOT, _WAIT = "ttng.warp_group_dot", "ttng.warp_group_dot_wait"


def check(kernel: Kernel) -> Iterator[Finding]:
    """By ptxas' own warning; and where a sum is read in each iteration, so that nothing can stay in flight."""
    products = sorted(kernel.named(_DOT), key=lambda op: -len(loops_around(op)))
    warning = _WARNING.search(kernel.ptxas)
    if warning is not None and products:
        yield kernel.finding(
            RULE.id,
            products[0],
            "high",
            f"ptxas serialises the wgmma instructions ({warning[1]}): {warning[2].strip()}",
            "keep the accumulator untouched between products (rescale it after the wait), and let fewer values live "
            "across the loop",
            {"warning": warning[1]},
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


RULE = Rule("wgmma-serialised", "Products that wait for each other", check, needs="ptxas", targets=("sm_90a",))
