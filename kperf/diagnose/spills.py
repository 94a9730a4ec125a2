"""What registers that are spilled to memory cost a kernel."""

import math
from collections import defaultdict
from dataclasses import dataclass

from kperf.arch import H200
from kperf.diagnose.bound import bound_of
from kperf.diagnose.kernel import Kernel, width
from kperf.diagnose.occupancy import ctas
from kperf.diagnose.thresholds import OTHERS_A_CYCLE, SPILLED_BYTES, SPILLED_SHARE

_LOCAL = ("STL", "LDL")


@dataclass(frozen=True)
class Spills:
    """Loads and stores of spilled registers: how many, how many of them in loops, and their share of instructions.

    in_loops: None of a kernel without loops. share: of the instructions of loops, or of a kernel without loops. moving:
    speed-up without them by the bytes that they move, of a kernel without loops.
    """

    instructions: int
    in_loops: int | None
    share: float
    moving: float = 1.0

    @property
    def severe(self) -> bool:
        """Whether other instructions cannot hide them."""
        return self.share >= SPILLED_SHARE

    @property
    def gain(self) -> float:
        """Speed-up without them, by an SM's issue slots or by bytes.

        By issue slots 5.1 of it were 4.7 measured (half of a loop, on an H200).
        """
        return max(self.moving, 1 + OTHERS_A_CYCLE * self.share / (1 - min(self.share, 0.5)))


def spills(kernel: Kernel) -> Spills | None:
    """None if nothing that shows is spilled, or no machine code is known."""
    if kernel.resources is None or kernel.resources.spilled_bytes < SPILLED_BYTES or kernel.code is None:
        return None
    local = [i for i in kernel.code.instructions if i.opcode.split(".")[0] in _LOCAL]
    looping = sum(kernel.code.depth(i) > 0 for i in local)
    loops = [i for i in kernel.code.instructions if kernel.code.depth(i) > 0]
    if not loops:
        share = len(local) / len(kernel.code.instructions)
        return Spills(len(local), None, share, _moving(kernel, sum(width(one) for one in local), len(local)))
    return Spills(len(local), looping, looping / len(loops))


def _moving(kernel: Kernel, of_thread: int, local: int) -> float:
    """Speed-up of a launch without its spills, where memory bounds it: by where these bytes of a thread go.

    of_thread, local: the bytes, and the instructions that move them.
    What the resident threads of an SM spill stays in L1 if it fits, and what all SMs spill in L2 as far as it fits. Of
    euler_flux, whose threads spill 125 MB at once, this estimates 7.1 x, and 8.76 x were measured (H200).
    """
    assert kernel.resources is not None
    assert kernel.code is not None
    resident = max(ctas(kernel), 1)
    held = resident * kernel.threads * kernel.resources.spilled_bytes
    if (
        kernel.grid is None
        or bound_of(kernel).unit != "memory"
        or held <= kernel.arch.l1_bytes(resident, kernel.resources.shared_bytes)
    ):
        return 1.0
    missed = max(1 - H200.l2_bytes / (held * H200.sms), 0.0)
    of_memory = kernel.arch.memory_bytes_per_cycle
    spilling = of_thread * kernel.threads * (missed / of_memory + (1 - missed) / H200.l2_bytes_per_cycle)
    issuing = kernel.num_warps * (len(kernel.code.instructions) - local) / OTHERS_A_CYCLE
    without = max(issuing, _bytes_of_cta(kernel) / of_memory)
    return (spilling + without) / max(without, 1.0)


def _bytes_of_cta(kernel: Kernel) -> float:
    """A CTA's share of the bytes that a launch moves: of each tensor at most all of it, however often it is loaded."""
    assert kernel.grid is not None
    asked: dict[frozenset[str], float] = defaultdict(float)
    whole: dict[frozenset[str], float] = defaultdict(float)
    for access in kernel.accesses:
        tensors = kernel.tensors_of(access.operation)
        asked[tensors] += access.asked_bytes
        known = tensors <= kernel.lengths.keys()
        whole[tensors] = sum(kernel.lengths[one] for one in tensors) * access.tensor.bytes if known else math.inf
    return sum(min(size, whole[tensors] / math.prod(kernel.grid)) for tensors, size in asked.items())


def gain_without_spills(kernel: Kernel) -> float:
    """What a change gives besides that ends severe spills; 1 if there are none."""
    found = spills(kernel)
    return found.gain if found is not None and found.severe else 1.0
