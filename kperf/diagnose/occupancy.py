"""How many CTAs of a kernel fit on an SM, and how many would with other registers, shared memory or warps."""

from kperf.diagnose.kernel import Kernel


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
