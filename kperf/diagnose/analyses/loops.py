"""What an iteration of a loop loads, and the buffers that it fills ahead."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence

from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of, line_of_for
from kperf.diagnose.reading.operations import (
    ASYNC_COPIES,
    LOADS,
    LOOPS,
    MMAS,
    STORES,
    TMA_LOADS,
    inside,
    loops_around,
    mma_element,
    mma_shape,
    own,
)
from kperf.diagnose.reading.options import with_option
from kperf.diagnose.thresholds import BUSY_INTENSITY, IN_LOOP
from kperf.ir.layouts import element_bytes, tensor_types
from kperf.ir.loops import loop_arguments
from kperf.ir.ttgir import Operation
from kperf.ir.values import READS
from kperf.trace.analyze.finding import Source

INTO_REGISTERS = ("tt.load", "tt.descriptor_load", "amdg.buffer_load")
"""Loads that give a thread their numbers when they are due."""
UNPIPELINED = (0, 1)
"""Stages with which nothing is loaded ahead."""
_BARRIERS = ("gpu.barrier", "ttg.barrier", "ttg.local_barrier", "tt.print")
"""Across which no load is moved."""


def loaded_bytes(kernel: Kernel, operations: Iterable[Operation]) -> int:
    """Bytes that these load from device memory in tensors of at least two dimensions, the same ones once."""
    distinct = {access.operation.line: access.tile_bytes for access in kernel.accesses}
    loads = (op for op in operations if op.name in (*LOADS, *TMA_LOADS))
    return sum(min(size, distinct.get(op.line, size)) for op in loads if (size := tile_bytes(op)))


def tile_bytes(op: Operation) -> int:
    """Bytes of the largest tensor of at least two dimensions that an operation names; 0 without one."""
    sized = [tensor.size * tensor.bytes for tensor in tensor_types(op.rest) if len(tensor.shape) >= 2]
    return max(sized, default=0)


def largest_bytes(op: Operation) -> int:
    """Bytes of the largest tensor that an operation names, of any dimensions; 0 without one."""
    return max((tensor.size * tensor.bytes for tensor in tensor_types(op.rest) if tensor.shape), default=0)


def access_of(kernel: Kernel, op: Operation) -> Access | None:
    """Of a load or store of a tensor of pointers; None of others, and where its addresses or layout are not known."""
    return next((access for access in kernel.accesses if access.operation is op), None)


def accesses_of(kernel: Kernel, loop: Operation) -> list[Access]:
    """The loads and stores of tensors of pointers that an iteration of a loop does itself."""
    lines = {op.line for op in own(loop)}
    return [access for access in kernel.accesses if access.operation.line in lines]


def innermost(kernel: Kernel) -> list[Operation]:
    """Loops without another one inside. What stands around an inner loop is done once for many of its iterations."""
    return [loop for loop in kernel.named(*LOOPS) if not any(op.name in LOOPS for op in inside(loop))]


def repeated(kernel: Kernel) -> list[Operation]:
    """Innermost loops, but for those of one iteration at the launch, as of a row that one tile holds."""
    return [loop for loop in innermost(kernel) if not kernel.runs_once(loop)]


def always(loop: Operation) -> Iterator[Operation]:
    """What each iteration of a loop does itself, without what stands in its branches."""
    for region in loop.regions:
        for op in region.operations:
            yield op
            if op.name not in (*LOOPS, "scf.if"):
                yield from always(op)


def reached(loop: Operation, names: Iterable[str]) -> set[str]:
    """These names, and those of what an iteration computes of them; what it loads is none of it."""
    found = set(names)
    for op in loop.regions[-1].operations:
        if op.name not in LOADS and not op.name.startswith("scf.") and found & read(op):
            found |= set(op.results)
    return found


def read(op: Operation) -> set[str]:
    """The names that an operation reads, without the numbers of results."""
    return {name.partition("#")[0] for name in op.operands}


def stored(op: Operation) -> str:
    """The name of what a store writes."""
    return op.operands[{"amdg.buffer_store": 0}.get(op.name, 1)].partition("#")[0]


def carried(loop: Operation) -> list[tuple[str, str]]:
    """What a loop carries: the name in an iteration, and the name of what it hands on to the next one."""
    body = loop.regions[-1]
    names = loop_arguments(loop)[1:] or body.blocks[0].arguments
    passed = body.operations[-1].operands if body.operations else ()
    return [(name, end.partition("#")[0]) for name, end in zip(names, passed, strict=False)]


def is_recurrence(loop: Operation) -> bool:
    """Whether each iteration stores what it computes of what the last one computed."""
    sums = [begin for begin, end in carried(loop) if end in reached(loop, [begin])]
    made = reached(loop, sums)
    return any(op.name in STORES and stored(op) in made for op in own(loop))


def index_load(kernel: Kernel, loop: Operation, op: Operation) -> Operation | None:
    """The load in the same loop from which an address comes."""
    todo, seen = [kernel.values.maker(op, 0)], set()
    while todo:
        maker = todo.pop()
        if maker is None or maker.line in seen or loop not in loops_around(maker):
            continue
        if maker.name == "tt.load":
            return maker
        seen.add(maker.line)
        todo += [kernel.values.maker(maker, place) for place in range(len(maker.operands))]
    return None


def is_loaded_in(kernel: Kernel, loop: Operation, op: Operation, place: int) -> bool:
    """Whether an operand depends on what the loop's iterations load, as the slots of a table."""
    sources = kernel.values.sources(op, place)
    return any(loop in loops_around(one) for one in sources if one.name in (*READS, "ttg.local_load"))


def never_ahead(  # noqa: PLR0911 (a case a reason)
    kernel: Kernel, loop: Operation, op: Operation
) -> tuple[str, str] | None:
    """Why the compiler loads a tile ahead in no loop of this structure, and what to do; None where it may.

    op: a load of the loop.
    """
    if loop.name == "scf.while":
        return "the compiler pipelines no while loop", "write the loop as a for loop over tl.range"
    around = list(own(loops_around(op)[0]))
    branch = next((inner for inner in around if inner.name == "scf.if" and op in list(inside(inner))), None)
    if branch is not None:
        return "it is in a branch of the loop", _without_branch(kernel, branch)
    if _is_multiplied_in_branches(kernel, around, op):
        return (
            "the tl.dot that takes it is in a branch of the loop",
            "compute tl.dot in each iteration, outside of the branch, and choose with tl.where, as acc += "
            "tl.where(condition, tl.dot(a, b), 0.0); where the condition always holds, leave out the branch",
        )
    if any(inner.name in _BARRIERS for inner in around):
        return (
            "the compiler pipelines no loop with a barrier or a print",
            "remove tl.debug_barrier and prints from the loop",
        )
    if any(inner.name == "scf.for" for inner in around):
        return "another loop is inside this loop", "flatten the two loops into one, or pipeline the inner loop"
    if index_load(kernel, loop, op) is not None:
        return (
            "its address depends on another load of the same iteration",
            "load the indices an iteration ahead, in a variable that the loop carries",
        )
    return None


def _without_branch(kernel: Kernel, branch: Operation) -> str:
    """What to do about a branch around a load: if it depends on arguments alone, the compiler can decide it."""
    with_mask = "load before the branch, with the branch's condition as the mask"
    condition = kernel.values.operand(branch, 0)
    if condition is None or condition.loaded or condition.program or condition.iterations or not condition.arguments:
        return with_mask
    names = " and ".join(sorted(condition.arguments))
    decided = f"make {names} tl.constexpr: the branch depends on nothing else, and the compiler keeps one side of it"
    return f"{decided}; or {with_mask}"


def _is_multiplied_in_branches(kernel: Kernel, around: Sequence[Operation], op: Operation) -> bool:
    """Whether all MMAs of a loop that take a tile are in branches of it. around: the loop's operations."""
    makers = (kernel.values.maker(op, place) for place in range(len(op.operands)) if op.name in ASYNC_COPIES)
    allocated = [one for one in makers if one is not None and one.name == "ttg.local_alloc"]
    branches = [inner for one in around if one.name == "scf.if" for inner in inside(one)]
    reading = [one for one in around if one.name in MMAS and _has_operand(kernel, one, [op, *allocated])]
    return bool(reading) and all(mma in branches for mma in reading)


def _has_operand(kernel: Kernel, mma: Operation, tiles: Sequence[Operation]) -> bool:
    """Whether an operand of an MMA is computed of one of these."""
    return any(one in tiles for place in (0, 1) for one in kernel.values.sources(mma, place))


def own_stages(kernel: Kernel, loop: Operation) -> int | None:
    """What `tl.range(num_stages=...)` gives a loop, which counts more than the launch's; None without it."""
    match = re.search(r"tt\.num_stages = (\d+)", kernel.module.lines[loop.last_line])
    return int(match[1]) if match else None


def stages_of(kernel: Kernel, loop: Operation) -> int | None:
    """Those that a loop was compiled for: its own, else the launch's."""
    stages = own_stages(kernel, loop)
    return kernel.num_stages if stages is None else stages


def loop_line(kernel: Kernel, loop: Operation, op: Operation) -> int:
    """The line of the loop's `for`, where an operation's line does not say it: a function of it is inlined there.

    0 where the operation's line stands in this loop itself, and in no other one.
    """
    frame = frame_of(op)
    if frame is None or (not _is_inlined(op, loop) and len(_loops_over(kernel, frame.file, frame.line)) < 2):
        return 0
    return line_of_for(loop)


def _is_inlined(op: Operation, loop: Operation) -> bool:
    """Whether an operation comes from a function that the loop calls, other than Triton's own."""
    depths = [len([one for one in by.location.frames if not one.in_library]) if by.location else 0 for by in (op, loop)]
    return depths[0] > depths[1]


def _loops_over(kernel: Kernel, file: str, line: int) -> list[Operation]:
    """The main loops that do something of this line themselves."""
    return [
        loop
        for loop in kernel.main_loops
        if any((at := frame_of(op)) is not None and (at.file, at.line) == (file, line) for op in own(loop))
    ]


def longest_loops(kernel: Kernel, source: Source) -> set[int]:
    """The lines of the `for` of the main loops over this line that may run most often, one of which a trace times.

    Several where loops may run equally often, as far as the launch says it.
    """
    loops = _loops_over(kernel, source.file, source.line)
    most = max((times_of(kernel, loop) for loop in loops), default=0)
    return {line_of_for(loop) for loop in loops if times_of(kernel, loop) == most}


def times_of(kernel: Kernel, loop: Operation) -> int:
    """Iterations of a loop in a CTA, as `Kernel.times`, with `Kernel.typical_iterations`."""
    count = kernel.typical_iterations(loop)
    return kernel.times(loop) * (IN_LOOP if count is None else count)


def launch_gives_stages(kernel: Kernel, loop: Operation) -> bool:
    """Whether a loop has the launch's stages: not where its tl.range says them, nor in Gluon, which knows none."""
    return own_stages(kernel, loop) is None and not kernel.is_gluon


def with_stages(kernel: Kernel, loop: Operation, wanted: str) -> str:
    """How a loop is given `wanted` stages."""
    if kernel.is_gluon:
        return f"allocate {wanted} buffers (the first length in gl.allocate_shared_memory), with an mbarrier for each"
    if own_stages(kernel, loop) is not None:
        return f"write num_stages={wanted} in the loop's tl.range"
    return with_option(kernel, f"num_stages={wanted}")


def intensity(kernel: Kernel, operations: Iterable[Operation]) -> tuple[float, float] | None:
    """Operations of MMAs for each byte that is loaded beside them, and how many keep the tensor cores busy.

    Their rate halves where an operand has twice the bits: `BUSY_INTENSITY` is that of 16 bits. None without MMAs of
    known shape or without loads.
    """
    operations = list(operations)
    mmas = [(shape, op) for op in operations if op.name in MMAS and (shape := mma_shape(op)) is not None]
    loaded = loaded_bytes(kernel, operations)
    if not mmas or not loaded:
        return None
    wanted = BUSY_INTENSITY * 2 / max(element_bytes(mma_element(op)) for _, op in mmas)
    return sum(2 * m * n * k for (m, n, k), _ in mmas) / loaded, wanted


def depths_of_sums(loop: Operation) -> list[int]:
    """Of the products that a loop sums up: their depth is the tile's length along the dimension of the loop."""
    sums = {begin for begin, _ in carried(loop)}
    summed = (op for op in own(loop) if op.name in MMAS and op.operands[2].partition("#")[0] in sums)
    return [shape[2] for op in summed if (shape := mma_shape(op)) is not None]


def buffers(kernel: Kernel, loop: Operation) -> list[tuple[Operation, int, int]]:
    """Of each copy into shared memory in a loop: the copy, how many buffers it fills in turn, and bytes of one.

    A loop without asynchronous copies, as AMD's pipelines, stores there what it has loaded.
    """
    allocated = {op.results[0]: op for op in kernel.named("ttg.local_alloc") if op.results}
    found = []
    copies = [op for op in own(loop) if op.name in ASYNC_COPIES]
    for op in copies or [op for op in own(loop) if op.name == "ttg.local_store"]:
        view = _view(kernel, op)
        source = allocated.get(view.operands[0]) if view is not None and view.operands else None
        shape = re.search(r"-> !ttg\.memdesc<((?:\d+x)+)(\w+)", source.rest) if source is not None else None
        if shape is not None:
            lengths = [int(length) for length in shape[1].split("x") if length]
            bits = int((re.search(r"\d+", shape[2]) or ["8"])[0])
            found.append((op, lengths[0], math.prod(lengths[1:]) * max(bits // 8, 1)))
    return found


def read_by_wgmma(kernel: Kernel, copy: Operation) -> bool:
    """Whether a wgmma reads an operand from the buffers that an asynchronous copy fills."""
    view = _view(kernel, copy) if copy.name in ASYNC_COPIES else None
    tile = kernel.values.maker(view, 0) if view is not None else None
    return tile is not None and any(
        one.name == "ttg.local_alloc" and one.line == tile.line
        for dot in kernel.named("ttng.warp_group_dot")
        for place in range(2)
        for one in kernel.values.sources(dot, place, until=("ttg.local_alloc",))
    )


def _view(kernel: Kernel, copy: Operation) -> Operation | None:
    """The view of a buffer among the operands of a copy; views of mbarriers are none."""
    makers = (kernel.values.maker(copy, place) for place in range(len(copy.operands)))
    views = (op for op in makers if op is not None and op.name == "ttg.memdesc_index" and "xi64" not in op.rest)
    return next(views, None)
