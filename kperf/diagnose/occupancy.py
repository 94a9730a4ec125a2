"""How many CTAs of a kernel fit on an SM, how many would with other registers, and what more bytes in flight give."""

from kperf.diagnose.kernel import LOADS, LOOPS, Kernel, own
from kperf.diagnose.loops import buffers
from kperf.diagnose.thresholds import LEAST_SM_BYTES, VECTOR_BYTES
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation


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
    """What a CTA asks for before it waits, in the loop that asks for most, which fills its buffers; without loops all.

    Beside the loop that moves tiles, another one may load a few indices.
    """
    size = _loaded_bytes(kernel)
    of_loops = []
    for loop in kernel.named(*LOOPS):
        filled = {op.line: count for op, count, _ in buffers(kernel, loop)}
        of_loops.append(sum(size.get(op.line, 0) * filled.get(op.line, 1) for op in own(loop)))
    return max(filter(None, of_loops), default=sum(size.values()))


def arithmetic_bounds(kernel: Kernel, loop: Operation) -> bool:
    """Whether an iteration of a loop without MMAs computes for longer than memory takes for its bytes."""
    size = {access.operation.line: access.asked_bytes for access in kernel.accesses}
    moved, cycles = 0, 0.0
    for op in own(loop):
        moved += size.get(op.line, 0)
        types = tensor_types(op.rest)
        if types and types[0].element.startswith(("f", "bf")):
            if op.name.startswith("math."):
                cycles += types[0].size / kernel.arch.exponentials_per_cycle
            elif op.name.startswith("arith.") or op.name == "tt.reduce":
                cycles += types[0].size / kernel.arch.fp32_per_cycle
    return cycles > moved / kernel.arch.memory_bytes_per_cycle


def _loaded_bytes(kernel: Kernel) -> dict[int, int]:
    """What a CTA asks for, by the load's line."""
    return {access.operation.line: access.asked_bytes for access in kernel.accesses if access.operation.name in LOADS}


def warps_of_vectors(kernel: Kernel, size: int) -> int:
    """As many warps as give each thread a whole vector of so many bytes; no more than there are, and a power of two."""
    whole = max(size // (VECTOR_BYTES * kernel.arch.warp_size), 1)
    return min(1 << whole.bit_length() - 1, kernel.num_warps)
