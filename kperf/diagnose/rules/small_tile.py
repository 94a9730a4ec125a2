"""Tiles too small for the tensor cores to be fed."""

from collections.abc import Iterator

from kperf.diagnose.kernel import MMAS, Kernel, mma_shape, own
from kperf.diagnose.loops import loaded_bytes
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import SMALL_TILE_INTENSITY
from kperf.trace.analyze.finding import Finding

_SIDE = 64
"""Where one side of the product is longer than this, the other is short because the problem is."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the operations of a loop's products for each byte that it loads."""
    for loop in kernel.main_loops:
        products = [op for op in own(loop) if op.name in MMAS]
        shapes = [shape for op in products if (shape := mma_shape(op)) is not None]
        loaded = loaded_bytes(loop)
        if not shapes or not loaded or max(max(shape[:2]) for shape in shapes) > _SIDE:
            continue
        intensity = sum(2 * m * n * k for m, n, k in shapes) / loaded
        if intensity < SMALL_TILE_INTENSITY:
            m, n, _ = shapes[0]
            yield kernel.finding(
                RULE.id,
                products[0],
                "high" if intensity <= SMALL_TILE_INTENSITY * 0.75 else "medium",
                f"a tile of {m} x {n} does {intensity:.0f} operations for each byte that it loads, and the tensor "
                "cores need 64 to be busy",
                "use tiles of 128 x 128 (num_warps=4 or 8), and autotune around them",
                {"operations_per_byte": intensity, "rows": m, "columns": n},
                confidence="medium",
                estimate=(min(64 / intensity, 4.0) ** 0.8, 1.2, 64 / intensity),
                candidates=[
                    tile | more
                    for factor in (2, 4)
                    for tile in kernel.scaled((m, n), factor)[-1:]
                    for more in ({}, {"num_warps": 8})
                ],
            )


RULE = Rule("small-tile", "Tiles too small for the tensor cores", check, explained_by=("dot-on-fma",))
