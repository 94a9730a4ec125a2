"""How long an iteration of a loop with MMAs takes that waits for its own loads, and one whose loads are there."""

import math
from collections.abc import Iterator, Sequence

from kperf.arch import H200
from kperf.diagnose.analyses.loops import loaded_bytes
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, mma_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOOPS
from kperf.diagnose.thresholds import MEMORY_LATENCY_CYCLES, MMA_SHARE
from kperf.ir.ttgir import Operation, Region


def gain_of_loads_ahead(kernel: Kernel, loop: Operation, loads: Sequence[Operation], ctas: int) -> float:
    """Time of an iteration over that of one whose loads are ahead; `ctas` of an SM work while one of them waits.

    An iteration that waits does all one after another. One that does not takes as long as what it does most of, and no
    CTA multiplies before it has computed; the first iteration's loads are ahead of nothing. On an H200 this is 1.59 x
    of matmul_one_stage (measured: 1.59 x), 2.24 x of examples/gemm.py (2.09 x), 1.67 x of conv3x3 (1.40 x), 1.26 x of
    block_sparse_matmul (1.14 x), and 2.6 x of relu2_down_proj, which waits twice (2.27 x).
    """
    done = list(_of_longer_sides(loop.regions[-1]))
    mmas, computed = mma_cycles(kernel, done) / MMA_SHARE, arithmetic_cycles(kernel, done)
    moved = loaded_bytes(kernel, done) / H200.l2_bytes_per_cycle
    waiting = _waits(loads) * MEMORY_LATENCY_CYCLES + moved + mmas + computed
    first = MEMORY_LATENCY_CYCLES / (kernel.typical_iterations(loop) or math.inf)
    busy = max(ctas * max(mmas, moved, computed), mmas + computed + first)
    return max(waiting / busy, 1.0) if busy else 1.0


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
