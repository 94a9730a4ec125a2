"""What bounds a kernel, as its types say: the tensor cores, memory, or arithmetic."""

from kperf.diagnose.finding import Bound
from kperf.diagnose.kernel import MMAS, TMA_LOADS, Kernel, mma_shape, own
from kperf.diagnose.loops import loaded_bytes
from kperf.diagnose.thresholds import SECTOR_BYTES, SMALL_TILE_INTENSITY


def bound_of(kernel: Kernel) -> Bound:
    """By the operations per byte of its main loop, or by what it does at all."""
    for loop in kernel.main_loops:
        flop = sum(2 * m * n * k for op in own(loop) if op.name in MMAS for m, n, k in [mma_shape(op) or (0, 0, 0)])
        loaded = loaded_bytes(loop)
        if flop and loaded:
            unit = "tensor core" if flop / loaded >= SMALL_TILE_INTENSITY else "memory"
            means = "the tensor cores bound it" if unit == "tensor core" else "what it loads bounds it"
            return Bound(
                unit="tensor core" if unit == "tensor core" else "memory",
                message=f"{means}: its main loop does {flop / loaded:.0f} operations for each byte that it loads",
            )
        if flop:
            return Bound(unit="tensor core", message="the tensor cores bound it: its main loop loads nothing by tiles")
    if kernel.accesses or any(True for _ in kernel.named(*TMA_LOADS)):
        accesses = [access for access in kernel.accesses if not access.value.loaded]
        moved = sum(access.tile_sectors * SECTOR_BYTES for access in accesses)
        use = sum(access.tile_bytes for access in accesses) / moved if moved else 1.0
        return Bound(
            unit="memory",
            message=f"memory bounds it: it multiplies no matrices, and its accesses use {use:.0%} of the bytes that "
            "move",
        )
    return Bound(unit="unknown", message="nothing in its TTGIR says what bounds it: trace it on a GPU")
