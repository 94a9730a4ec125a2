"""Tiles of a loop for which each iteration waits, and the shared memory that stages of them take."""

from collections.abc import Collection, Iterable

from kperf.diagnose.analyses.loops import INTO_REGISTERS, own_stages, with_stages
from kperf.diagnose.analyses.occupancy import ctas, held_ctas
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ASYNC_COPIES, own
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation

_MOVES = ("ttg.convert_layout", "amdg.in_thread_transpose")
"""What moves a tile's elements among registers and threads."""


def waited_for(kernel: Kernel, loop: Operation) -> list[Operation]:
    """The loads for which an iteration waits."""
    in_registers = loaded_into_registers(loop)
    return [op for op in own(loop) if op in in_registers or _into_one_buffer(kernel, loop, op)]


def loaded_into_registers(loop: Operation) -> list[Operation]:
    """The loads of a loop that give a thread their numbers when they are due, in registers."""
    return [op for op in own(loop) if op.name in INTO_REGISTERS and not _is_ahead(loop, op)]


def _is_ahead(loop: Operation, op: Operation) -> bool:
    """Whether a loaded tile is kept for a later iteration: in registers, or in a buffer that this one does not read.

    So AMD's pipelines load: through registers, which the loop stores to shared memory after its MMAs.
    """
    tile, buffer = set(op.results), ""
    for following in own(loop):
        read = {name.partition("#")[0] for name in following.operands}
        if buffer:
            if buffer in read and following.name != "scf.yield":
                return False
        elif tile & read:
            if following.name == "ttg.local_store":
                buffer = following.operands[1]
            elif following.name in _MOVES:
                tile |= set(following.results)
            else:
                return following.name == "scf.yield" and following.parent is not None and following.parent.owner is loop
    return bool(buffer)


def _into_one_buffer(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether TMA copies each iteration's tile into the same buffer, so that none is on its way while one is used."""
    return bool(one_buffer(kernel, loop, op))


def one_buffer(kernel: Kernel, loop: Operation, op: Operation) -> list[Operation]:
    """What allocates the buffer into which TMA copies each iteration's tile; empty where there is no such one."""
    if op.name not in ASYNC_COPIES or op.parent is None or op.parent.owner is not loop:
        return []
    makers = (kernel.values.maker(op, place) for place in range(len(op.operands)))
    return [one for one in makers if one is not None and one.name == "ttg.local_alloc" and "xi64" not in one.rest]


def stage_bytes(kernel: Kernel, loop: Operation) -> int:
    """What one more stage of a loop takes: the tiles that it loads into registers or into its one buffer."""
    return sum(
        max((tensor.size * tensor.bytes for tensor in tensor_types(op.rest)), default=0)
        for op in own(loop)
        if op.name in INTO_REGISTERS or _into_one_buffer(kernel, loop, op)
    )


def fitting_stages(kernel: Kernel, stage_bytes: int, wanted: Iterable[int]) -> list[int]:
    """The numbers of stages for which a CTA may have the shared memory; all of a kernel that is not assembled.

    The tiles of one stage lie there already.
    """
    if kernel.shared_bytes is None:
        return list(wanted)
    return [stages for stages in wanted if _bytes_with(kernel, stage_bytes, stages) <= kernel.arch.cta_shared_bytes]


def stages_in_words(kernel: Kernel, fitting: Collection[int]) -> str:
    """Stages: AMD's pipelines hold one of them in registers, and have 64 KB for the others. Else two are tried."""
    first, second = (2, 3) if kernel.arch.backend == "hip" else (3, 4)
    if second in fitting:
        return f"{first} (or {second})"
    return str(first if first in fitting else 2)


def room_in_words(kernel: Kernel, loop: Operation) -> str:
    """That the stages of a loop will not fit once it is pipelined, and how many do; empty where they fit."""
    stages, each = own_stages(kernel, loop) or kernel.num_stages or 1, stage_bytes(kernel, loop)
    fitting = fitting_stages(kernel, each, range(2, stages + 1))
    if stages in fitting or stages == 1:
        return ""
    first = fitting[-1] + 1 if fitting else 2
    does = f"and {with_stages(kernel, loop, str(fitting[-1]))}" if fitting else "and use smaller tiles"
    return (
        f", {does}: {first} stages of these tiles need {_bytes_with(kernel, each, first)} bytes of shared memory, and "
        f"a CTA may have {kernel.arch.cta_shared_bytes}"
    )


def _bytes_with(kernel: Kernel, stage_bytes: int, stages: int) -> int:
    """Shared memory of a CTA with so many stages: it has that of one now; AMD's pipelines hold another in registers."""
    held = 2 if kernel.arch.backend == "hip" else 1
    return (kernel.shared_bytes or 0) + (stages - held) * stage_bytes


def leaves_one_cta(kernel: Kernel, loop: Operation, stages: int) -> bool:
    """Whether so many stages leave one CTA on an SM where another one works while the first waits.

    With three stages of 32 KB, where two CTAs fit with one, a kernel took 1.22 times as long (H200). A launch of no
    more CTAs than SMs has one on each as it is.
    """
    if kernel.resources is None or held_ctas(kernel) < 2:
        return False
    shared_bytes = kernel.resources.shared_bytes + (stages - 1) * stage_bytes(kernel, loop)
    return ctas(kernel, shared_bytes=shared_bytes) < 2
