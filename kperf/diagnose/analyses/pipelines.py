"""Loops that fill buffers in shared memory ahead, and how many CTAs fit on an SM with more or fewer of these."""

import math
from dataclasses import dataclass

from kperf.arch import H200
from kperf.diagnose.analyses.loops import buffers, launch_gives_stages, own_stages
from kperf.diagnose.analyses.occupancy import ctas, held_ctas
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.thresholds import STAGES_WANTED, WARPS_OF_MMAS
from kperf.ir.ttgir import Operation

_IN_TURN = 2
"""CTAs, of which one works while the other waits."""


@dataclass(frozen=True)
class Pipeline:
    """A loop, its first copy into shared memory, and the buffers that its copies fill.

    depth: buffers of each tile. stages: what the loop or the launch was given for them; the compiler needs a buffer
    less where an MMA has an operand in registers. stage_bytes: of one buffer of each tile.
    """

    loop: Operation
    copy: Operation
    depth: int
    stages: int
    stage_bytes: int


def pipelines(kernel: Kernel) -> list[Pipeline]:
    """Of the main loops those that copy tiles into shared memory ahead."""
    found = []
    for loop in kernel.main_loops:
        if copies := buffers(kernel, loop):
            depth = min(count for _, count, _ in copies)
            by_launch = kernel.num_stages if launch_gives_stages(kernel, loop) else None
            stages = own_stages(kernel, loop) or by_launch or depth
            found.append(Pipeline(loop, copies[0][0], depth, stages, sum(size for _, _, size in copies)))
    return found


def ctas_with(kernel: Kernel, loop: Pipeline, stages: int) -> int:
    """CTAs that an SM holds if the loop is given so many stages; 0 if a CTA cannot have the shared memory."""
    assert kernel.resources is not None
    more = (stages - loop.stages) * loop.stage_bytes
    return ctas(kernel, shared_bytes=kernel.resources.shared_bytes + more)


def needed_ctas(kernel: Kernel) -> int:
    """CTAs that more stages have to leave on an SM: two that work in turn, with `WARPS_OF_MMAS`, as far as there are.

    No more than the launch has for each SM: other CTAs that would fit are none.
    """
    return min(held_ctas(kernel), max(_IN_TURN, math.ceil(WARPS_OF_MMAS / kernel.total_warps)))


def for_one_more_cta(kernel: Kernel, loop: Pipeline) -> int | None:
    """The most stages that leave room for another CTA, of a kernel with few warps on an SM; None where none do.

    No fewer than leave `STAGES_WANTED` buffers. A launch that has no CTA more than fit at once gains nothing.
    """
    now = ctas(kernel)
    if now * kernel.total_warps >= WARPS_OF_MMAS or not now:
        return None
    if kernel.grid is not None and math.prod(kernel.grid) <= now * H200.sms:
        return None
    fewer = range(loop.stages - 1, loop.stages - loop.depth + STAGES_WANTED - 1, -1)
    return next((stages for stages in fewer if ctas_with(kernel, loop, stages) > now), None)
