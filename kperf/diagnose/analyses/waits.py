"""How long an iteration of a loop with MMAs takes that waits for its loads, one whose loads are ahead, and the rest."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kperf.arch import H200
from kperf.diagnose.analyses.chains import waits
from kperf.diagnose.analyses.loops import UNPIPELINED, loaded_bytes, stages_of
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, mma_cycles, waves_of
from kperf.diagnose.analyses.waves import schedule_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOOPS
from kperf.diagnose.thresholds import LAUNCH_CYCLES, MEMORY_LATENCY_CYCLES, MMA_SHARE, STAGES_WANTED
from kperf.ir.ttgir import Operation, Region


@dataclass(frozen=True)
class Iteration:
    """Cycles of one iteration of a loop that waits for its loads, and of one whose loads are ahead."""

    waiting: float
    ahead: float

    @property
    def gain(self) -> float:
        """Speed-up of the loop alone."""
        return max(self.waiting / self.ahead, 1.0)


def iteration_of(kernel: Kernel, loop: Operation, loads: Sequence[Operation], ctas: int) -> Iteration:
    """Of a loop that waits for these loads; `ctas` of an SM work while one of them waits.

    An iteration that waits does all one after another. One that does not takes as long as what it does most of, and no
    CTA multiplies before it has computed; the first iteration's loads are ahead of nothing. Nor do loads arrive faster
    because they are ahead: a CTA has so many iterations of them under way as it has stages beside the one that it
    uses. A launch whose bytes take longer to come from device memory than from L2 takes as long as that. On an H200 the
    gain is 1.59 x of matmul_one_stage (measured: 1.59 x), 2.24 x of examples/gemm.py (2.09 x), 1.67 x of conv3x3
    (1.40 x), 1.26 x of block_sparse_matmul (1.14 x), and 2.6 x of relu2_down_proj, which waits twice (2.27 x).
    """
    done = list(_of_longer_sides(loop.regions[-1]))
    mmas, computed = mma_cycles(kernel, done) / MMA_SHARE, arithmetic_cycles(kernel, done)
    moved = loaded_bytes(kernel, done) / H200.l2_bytes_per_cycle
    waiting = _waits(loads) * MEMORY_LATENCY_CYCLES + moved + mmas + computed
    count = kernel.typical_iterations(loop) or math.inf
    first = MEMORY_LATENCY_CYCLES / count
    under_way = _stages(kernel, loop) - 1
    arriving = max(MEMORY_LATENCY_CYCLES / under_way, first)
    busy = ctas * max(mmas, moved, computed) * _slowed_by_memory(kernel)
    return Iteration(waiting, max(busy, mmas + computed + first, arriving))


def cycles_beside_loops(kernel: Kernel) -> float:
    """What a CTA of a launch waits beside its loops: for loads one after another, and its share of the launch itself.

    No loop that loads ahead makes this shorter.
    """
    waves = max(waves_of(kernel), 1.0)
    return waits(kernel) * MEMORY_LATENCY_CYCLES + LAUNCH_CYCLES / waves


def _stages(kernel: Kernel, loop: Operation) -> int:
    """Those that a loop has, or that it is advised to have."""
    stages = stages_of(kernel, loop)
    return STAGES_WANTED if stages is None or stages in UNPIPELINED else stages


def _slowed_by_memory(kernel: Kernel) -> float:
    """Times as long as an SM's MMAs, arithmetic and bytes of L2 that a launch's bytes from device memory take."""
    schedule = schedule_of(kernel)
    if schedule is None or not schedule.compute_cycles:
        return 1.0
    return max(schedule.memory_cycles(schedule.sizes.sum()) / schedule.compute_cycles, 1.0)


def _waits(loads: Sequence[Operation]) -> int:
    """How often an iteration waits: what one block loads is under way at once, but ends before the next branch."""
    return len({load.parent.owner.line for load in loads if load.parent is not None and load.parent.owner is not None})


def _of_longer_sides(region: Region) -> Iterator[Operation]:
    """What an iteration does itself, of each branch only the side that does more."""
    for op in region.operations:
        yield op
        if op.name not in LOOPS:
            sides = [list(_of_longer_sides(side)) for side in op.regions]
            yield from max(sides, key=len) if op.name == "scf.if" and sides else [one for side in sides for one in side]
