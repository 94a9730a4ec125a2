"""What registers that are spilled to memory cost a kernel."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kperf.arch import H200
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, bytes_of_cta, held_ctas, moved_bytes
from kperf.diagnose.analyses.starts import is_row
from kperf.diagnose.analyses.waves import MEMORY_BYTES_PER_CYCLE
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, MMAS, own
from kperf.diagnose.thresholds import OTHERS_A_CYCLE, SEVERE_GAIN, SPILLED_BYTES, SPILLED_SHARE
from kperf.ir.machine import Instruction, width

_LOCAL = ("STL", "LDL")
_MEMORY_BYTES_PER_CYCLE = MEMORY_BYTES_PER_CYCLE / H200.sms
"""Of an SM's share of what a copy moves."""


@dataclass(frozen=True)
class Spills:
    """Loads and stores of spilled registers: how many, how many of them in loops, and their share of instructions.

    in_loops: None of a kernel without loops. share: of the instructions of loops, or of a kernel without loops. moving:
    speed-up without them by the bytes that they move beyond L1.
    """

    instructions: int
    in_loops: int | None
    share: float
    moving: float = 1.0

    @property
    def severe(self) -> bool:
        """Whether other instructions cannot hide them, or the bytes that they move take as long as all else."""
        return self.share >= SPILLED_SHARE or self.moving >= SEVERE_GAIN

    @property
    def gain(self) -> float:
        """Speed-up without them, by an SM's issue slots or by bytes.

        By issue slots 5.1 of it were 4.7 measured (half of a loop, on an H200).
        """
        return max(self.moving, 1 + OTHERS_A_CYCLE * self.share / (1 - min(self.share, 0.5)))

    @property
    def estimate(self) -> tuple[float, float, float]:
        """Likely, least and most of what it gives that nothing is spilled."""
        return self.gain, 1.1, 1.6 * self.gain

    def estimate_with(self, left: int | None, spilled: int) -> tuple[float, float, float]:
        """The same of a change that leaves so many of the spilled bytes; all are gone where that is not known."""
        gain, least, most = self.estimate
        likely = gain / (1 + (gain - 1) * min((left or 0) / spilled, 1))
        return likely, min(least, likely), most


def spills(kernel: Kernel) -> Spills | None:
    """None if nothing that shows is spilled, or no machine code is known."""
    if kernel.resources is None or kernel.resources.spilled_bytes < SPILLED_BYTES or kernel.code is None:
        return None
    everywhere = kernel.code.instructions
    loops = [one for one in everywhere if kernel.code.depth(one) > 0]
    counted = loops or everywhere
    local = _local(counted)
    share = len(local) / len(counted)
    return Spills(len(_local(everywhere)), len(local) if loops else None, share, _moving(kernel, counted))


def _local(instructions: Sequence[Instruction]) -> list[Instruction]:
    return [one for one in instructions if one.opcode.split(".")[0] in _LOCAL]


def _moving(kernel: Kernel, counted: Sequence[Instruction]) -> float:
    """Speed-up without spills that leave L1, by where their bytes go: of an iteration, or of a kernel without loops.

    What the resident threads of an SM spill stays in L1 if it fits, and what all SMs spill in L2 as far as it fits. Of
    euler_flux, whose threads spill 125 MB at once, this estimates 8.7 x, and 8.7 x were measured; of l1_cdist, whose
    spills stay in L2, 3.6 x, and 3.2 x (H200). How long MMAs take that wait for spilled operands is not known.
    """
    assert kernel.resources is not None
    resident = held_ctas(kernel)
    everywhere = resident * H200.sms if kernel.grid is None else min(resident * H200.sms, math.prod(kernel.grid))
    of_cta = kernel.threads * kernel.resources.spilled_bytes
    fits = resident * of_cta <= kernel.arch.l1_bytes(resident, kernel.resources.shared_bytes)
    if fits or any(True for _ in kernel.named(*MMAS)):
        return 1.0
    local = _local(counted)
    missed = max(1 - H200.l2_bytes / (everywhere * of_cta), 0.0)
    of_byte = missed / _MEMORY_BYTES_PER_CYCLE + (1 - missed) / H200.l2_bytes_per_cycle
    spilling = sum(map(width, local)) * kernel.threads * of_byte
    issuing = kernel.num_warps * (len(counted) - len(local)) / OTHERS_A_CYCLE
    without = max(issuing, _other_cycles(kernel), 1.0)
    return (spilling + without) / without


def _other_cycles(kernel: Kernel) -> float:
    """Of an SM, for a CTA's bytes or arithmetic, whichever take longer: of an iteration, or without loops."""
    looping = [op for loop in kernel.main_loops for op in own(loop)]
    moved = moved_bytes(kernel, looping) if looping else _bytes_once(kernel)
    return max(moved / _MEMORY_BYTES_PER_CYCLE, arithmetic_cycles(kernel, looping or kernel.operations))


def _bytes_once(kernel: Kernel) -> float:
    """A CTA's share of the bytes that a launch moves: of each tensor at most all of it, however often it is loaded.

    A row that registers do not hold is loaded twice, once to reduce it.
    """
    if kernel.grid is None:
        return bytes_of_cta(kernel)
    asked: dict[frozenset[str], float] = defaultdict(float)
    whole: dict[frozenset[str], float] = {}
    for access in kernel.accesses:
        tensors = kernel.tensors_of(access.operation)
        times = 2 if access.operation.name in LOADS and is_row(kernel, access) else 1
        asked[tensors] += times * access.asked_bytes
        length = sum(kernel.lengths.get(one, math.inf) for one in tensors) if tensors else math.inf
        whole[tensors] = times * length * access.tensor.bytes
    return sum(min(size, whole[tensors] / math.prod(kernel.grid)) for tensors, size in asked.items())


def gain_without_spills(kernel: Kernel) -> float:
    """What a change gives besides that ends severe spills; 1 if there are none."""
    found = spills(kernel)
    return found.gain if found is not None and found.severe else 1.0
