"""Loops that were unrolled before the kernel was compiled: the same lines of source, over and over, in no loop."""

from collections.abc import Iterator
from dataclasses import dataclass

from kperf.arch import H200
from kperf.diagnose.analyses.loops import INTO_REGISTERS, tile_bytes
from kperf.diagnose.analyses.occupancy import mma_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ASYNC_COPIES, MMAS, loops_around
from kperf.diagnose.thresholds import BUFFERED_ELEMENTS, MEMORY_LATENCY_CYCLES, MMA_SHARE
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation

_LEAST = 4
"""Steps. Fewer are the parts of a head in attention, say, before its loop."""


@dataclass(frozen=True)
class Unrolled:
    """MMAs of one line of source outside of any loop, in order, each with the tiles that are loaded for it alone.

    loads: [step][load] those behind the step's last MMA: the step waits for them.
    """

    mmas: tuple[Operation, ...]
    loads: tuple[tuple[Operation, ...], ...]

    @property
    def stage_bytes(self) -> int:
        """Of the tiles of a step."""
        return sum(map(tile_bytes, self.loads[-1]))

    def gain(self, kernel: Kernel, ctas: int) -> float:
        """Time of a step over that of one whose tiles are there; other CTAs of an SM work while one waits."""
        of_mma = mma_cycles(kernel, self.mmas[-1:]) / MMA_SHARE
        busy = max(of_mma, self.stage_bytes / H200.l2_bytes_per_cycle)
        return max((MEMORY_LATENCY_CYCLES + busy) / (ctas * busy), 1.0)


def unrolled(kernel: Kernel) -> Iterator[Unrolled]:
    """Those whose steps load tiles when they need them, not steps ahead."""
    at_line: dict[object, list[Operation]] = {}
    for op in kernel.named(*MMAS):
        if op.location is not None and op.location.frames:
            at_line.setdefault((op.parent and op.parent.line, op.location.frames), []).append(op)
    for mmas in at_line.values():
        if len(mmas) < _LEAST or any(map(loops_around, mmas)):
            continue
        loads = tuple(tuple(_loads(kernel, before, mma)) for before, mma in zip([None, *mmas], mmas, strict=False))
        if all(loads[1:]):
            yield Unrolled(tuple(mmas), loads)


def _loads(kernel: Kernel, before: Operation | None, mma: Operation) -> Iterator[Operation]:
    """The tiles of an MMA's operands that are loaded behind the MMA before it, into registers or by TMA."""
    found = [one for place in (0, 1) for one in kernel.values.sources(mma, place, until=INTO_REGISTERS)]
    lines = {one.line for one in found}
    copies = [copy for copy in kernel.named(*ASYNC_COPIES) if copy.line < mma.line and lines & _makers(kernel, copy)]
    loads = {one.line: one for one in (*found, *copies) if one.name in (*INTO_REGISTERS, *ASYNC_COPIES)}
    for line, op in sorted(loads.items()):
        if (before is None or line > before.line) and _elements(op) >= BUFFERED_ELEMENTS:
            yield op


def _makers(kernel: Kernel, copy: Operation) -> set[int]:
    """Lines of what makes the operands of a copy, its buffer among them."""
    makers = (kernel.values.maker(copy, place) for place in range(len(copy.operands)))
    return {maker.line for maker in makers if maker is not None and maker.name == "ttg.local_alloc"}


def _elements(op: Operation) -> int:
    """Of the largest matrix that an operation names."""
    return max((tensor.size for tensor in tensor_types(op.rest) if len(tensor.shape) >= 2), default=0)
