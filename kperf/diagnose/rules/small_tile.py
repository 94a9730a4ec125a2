"""Tiles too small for the tensor cores to be fed."""

from collections.abc import Iterator

from kperf.diagnose.kept import kept_of_products
from kperf.diagnose.kernel import MMAS, Kernel, mma_shape, own
from kperf.diagnose.loops import intensity
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import SMALL_TILE_SHARE
from kperf.trace.analyze.finding import Finding

_SIDE = 64
"""Where one side of the product is longer than this, the other is short because the problem is."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the operations of a loop's products for each byte that it loads.

    A tile of which some rows or columns are never stored is not too small: the problem is.
    """
    short = {mma.line for mma, kept in kept_of_products(kernel) if not (kept.any(0).all() and kept.any(1).all())}
    for loop in kernel.main_loops:
        products = [op for op in own(loop) if op.name in MMAS]
        shapes = [shape for op in products if (shape := mma_shape(op)) is not None]
        known = intensity(loop)
        if known is None or any(op.line in short for op in products) or max(max(shape[:2]) for shape in shapes) > _SIDE:
            continue
        done, wanted = known
        if done / wanted < SMALL_TILE_SHARE:
            m, n, _ = shapes[0]
            yield kernel.finding(
                RULE.id,
                products[0],
                "high" if done / wanted <= SMALL_TILE_SHARE * 0.75 else "medium",
                f"a tile of {m} x {n} does {done:.0f} operations for each byte that it loads, and the tensor "
                f"cores need {wanted:.0f} to be busy",
                "use tiles of 128 x 128 (num_warps=4 or 8), and autotune around them",
                {"operations_per_byte": done, "rows": m, "columns": n},
                confidence="medium",
                estimate=(min(wanted / done, 4.0) ** 0.8, 1.2, wanted / done),
                candidates=[
                    tile | more
                    for factor in (2, 4)
                    for tile in kernel.scaled((m, n), factor)[-1:]
                    for more in ({}, {"num_warps": 8})
                ],
            )


RULE = Rule("small-tile", "Tiles too small for the tensor cores", check, explained_by=("dot-on-fma",))
