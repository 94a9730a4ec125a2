"""What registers that are spilled to memory cost a kernel."""

from dataclasses import dataclass

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.thresholds import OTHERS_A_CYCLE, SPILLED_BYTES, SPILLED_SHARE

_LOCAL = ("STL", "LDL")


@dataclass(frozen=True)
class Spills:
    """Loads and stores of spilled registers: how many, how many of them in loops, and their share of instructions.

    in_loops: None of a kernel without loops. share: of the instructions of loops, or of a kernel without loops.
    """

    instructions: int
    in_loops: int | None
    share: float

    @property
    def severe(self) -> bool:
        """Whether other instructions cannot hide them."""
        return self.share >= SPILLED_SHARE

    @property
    def gain(self) -> float:
        """Speed-up without them, by an SM's issue slots; 5.1 of it were 4.7 measured (half of a loop, on an H200)."""
        return 1 + OTHERS_A_CYCLE * self.share / (1 - min(self.share, 0.5))


def spills(kernel: Kernel) -> Spills | None:
    """None if nothing that shows is spilled, or no machine code is known."""
    if kernel.resources is None or kernel.resources.spilled_bytes < SPILLED_BYTES or kernel.code is None:
        return None
    local = [i for i in kernel.code.instructions if i.opcode.split(".")[0] in _LOCAL]
    looping = sum(kernel.code.depth(i) > 0 for i in local)
    loops = [i for i in kernel.code.instructions if kernel.code.depth(i) > 0]
    if not loops:
        return Spills(len(local), None, len(local) / len(kernel.code.instructions))
    return Spills(len(local), looping, looping / len(loops))


def gain_without_spills(kernel: Kernel) -> float:
    """What a change gives besides that ends severe spills; 1 if there are none."""
    found = spills(kernel)
    return found.gain if found is not None and found.severe else 1.0
