"""An MMA of which a mask throws most rows or columns away: a tile that is larger than the problem."""

from collections.abc import Iterator

from kperf.diagnose.kept import kept_of_products
from kperf.diagnose.kernel import LEAST_TILE, Kernel, mma_element, mma_shape
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import PADDED_SHARE
from kperf.ir.layouts import element_bytes
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_SIDES = ("rows", "columns")


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of products whose stores keep a number of rows or columns that is known when the kernel is compiled."""
    for mma, kept in kept_of_products(kernel):
        for side, length in enumerate(kept.shape):
            used = int(kept.any(axis=1 - side).sum())
            wanted = max(LEAST_TILE, 1 << (used - 1).bit_length())
            if 0 < used <= PADDED_SHARE * length and wanted < length:
                yield _finding(kernel, mma, side, length, used, wanted)


def _finding(kernel: Kernel, mma: Operation, side: int, length: int, used: int, wanted: int) -> Finding:
    fast = _multiplies_longer(kernel, mma, used, side)
    name = _SIDES[side]
    return kernel.finding(
        RULE.id,
        mma,
        "medium" if fast else "low",
        f"the MMA's tile has {length} {name}, and the store's mask keeps only {used}: "
        f"{1 - used / length:.0%} of the MMA's work is thrown away"
        + ("" if fast else ", although its operands' loads take longer than this work"),
        f"use a tile of {wanted} {name}"
        + (" (the fewest that tl.dot takes)" if wanted == LEAST_TILE else "")
        + (
            ", or compute the transpose (exchange the operands), so that these rows are columns"
            if side == 0 and wanted == LEAST_TILE
            else ""
        ),
        {"tile": length, "used": used},
        confidence="medium",
        estimate=(min(length / wanted, 4.0) ** 0.5, 1.0, length / wanted) if fast else (1.1, 1.0, 1.5),
        candidates=kernel.scaled((length,), wanted / length),
    )


def _multiplies_longer(kernel: Kernel, mma: Operation, used: int, side: int) -> bool:
    """Whether the MMA takes longer than memory for the operands of one iteration, of which a mask loads what is used.

    A tile that holds all rows reads its other operand once: no cache has it.
    """
    *sides, depth = mma_shape(mma) or (0, 0, 0)
    size = element_bytes(mma_element(mma))
    multiplying = 2 * sides[0] * sides[1] * depth * size / 2 / kernel.arch.flop_per_cycle["bf16"]
    return multiplying > (used + sides[1 - side]) * depth * size / kernel.arch.memory_bytes_per_cycle


RULE = Rule("padded-tile", "Rows of an MMA that are thrown away", check)
