"""How many CTAs of a kernel fit on an SM, how many would with other registers, and what more bytes in flight give."""

from kperf.diagnose.kernel import LOADS, LOOPS, Kernel, own
from kperf.diagnose.thresholds import LEAST_SM_BYTES


def ctas(
    kernel: Kernel, *, registers: int | None = None, shared_bytes: int | None = None, warps: int | None = None
) -> int:
    """CTAs that an SM holds at once, of the kernel with other registers a thread, shared bytes or warps a CTA."""
    assert kernel.resources is not None
    return kernel.arch.ctas_per_sm(
        kernel.resources.registers if registers is None else registers,
        kernel.resources.shared_bytes if shared_bytes is None else shared_bytes,
        kernel.total_warps if warps is None else warps,
    )


def gain_of_more_bytes(kernel: Kernel, bytes_of_cta: float) -> tuple[float, float, float]:
    """Speed-up, low, high if each CTA loads more at once, by Little's law; 3.1 of it were 3.3 measured (H200)."""
    if kernel.resources is None:
        return 1.5, 1.0, 4.0
    lacking = LEAST_SM_BYTES / max(ctas(kernel) * bytes_of_cta, 1)
    return min(max(lacking, 1.2), 8.0), 1.0, min(max(1.5 * lacking, 2.0), 16.0)


def bytes_at_once(kernel: Kernel) -> int:
    """What a CTA loads before it waits: in an iteration of the loop that loads least; without loops all."""
    size = {access.operation.line: access.tile_bytes for access in kernel.accesses if access.operation.name in LOADS}
    of_loops = [sum(size.get(op.line, 0) for op in own(loop)) for loop in kernel.named(*LOOPS)]
    return min(filter(None, of_loops), default=sum(size.values()))
