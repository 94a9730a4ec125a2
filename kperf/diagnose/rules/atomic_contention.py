"""Atomics that meet at one address."""

from collections.abc import Iterator

import numpy as np

from kperf.diagnose.kernel import ATOMICS, Kernel, loops_around
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import ATOMIC_NS, COPY_BYTES_PER_NS
from kperf.trace.analyze.finding import Finding, Level


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of atomics whose address is the same for all elements of a CTA, and for all CTAs."""
    for op in kernel.named(*ATOMICS):
        value = kernel.values.operand(op, 0)
        if value is None or value.loaded:
            continue
        elements, addresses = value.numbers.size, len(np.unique(value.numbers))
        looping = bool(loops_around(op))
        same_in_loop = looping and not any(loop.line in value.iterations for loop in loops_around(op))
        crowded = elements >= 32 and addresses * 8 <= elements
        if value.program and not crowded and not same_in_loop:
            continue
        severity: Level = "high" if crowded or same_in_loop else "low"
        many = f"{elements} elements of a CTA" if crowded else "every iteration" if same_in_loop else "every CTA"
        where = "one address" if addresses == 1 else f"the same {addresses} addresses"
        yield kernel.finding(
            RULE.id,
            op,
            severity,
            f"{many} update{'' if crowded else 's'} {where} by atomics, which L2 does one after another",
            "reduce first (tl.sum over the tile, a variable that the loop carries), then one atomic a CTA; or write "
            "partial results and add them in a second kernel"
            if severity == "high"
            else "let fewer CTAs do more work each, or write partial results and add them in a second kernel",
            {"elements": elements, "addresses": addresses, "in_loop": int(looping)},
            confidence="medium",
            estimate=_gain(kernel, elements / addresses) if severity == "high" else (1.1, 1.0, 1.5),
        )


def _gain(kernel: Kernel, each: float) -> tuple[float, float, float]:
    """With one atomic of a CTA on each address in the place of so many, between which it moves its bytes."""
    if each <= 1:
        return 3.0, 1.2, 1000.0
    moved_ns = sum(access.tile_bytes for access in kernel.accesses) / COPY_BYTES_PER_NS
    faster = (each * ATOMIC_NS + moved_ns) / (ATOMIC_NS + moved_ns)
    return faster, 1.2, 2 * faster


RULE = Rule("atomic-contention", "Atomics on one address", check)
