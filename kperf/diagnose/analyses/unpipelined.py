"""Why no tile of a loop with MMAs is loaded ahead of its use, and what to do."""

from kperf.diagnose.analyses.loops import UNPIPELINED, access_of, never_ahead, stages_of, with_stages
from kperf.diagnose.analyses.pieces import is_window, wrapped_by
from kperf.diagnose.analyses.stages import fitting_stages, one_buffer, stage_bytes, stages_in_words, waited_for
from kperf.diagnose.analyses.vectors import (
    FROM_MEMORY,
    Hidden,
    gain_of_wider,
    hidden_in_loop,
    hidden_of,
    passed_in_parts,
    split_by_mask,
    wrapped,
)
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ASYNC_COPIES, MMAS, loops_around, own
from kperf.diagnose.reading.strides import descriptor_in_parts, unless_one
from kperf.diagnose.thresholds import BUFFERED_ELEMENTS, LEAST_AHEAD_BYTES, VECTOR_BYTES
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation

_OF_A_BRANCH = (
    "its index comes out of a branch in the loop (flatten=True makes one), behind which the compiler does not know "
    "what is contiguous, and cp.async copies 4 contiguous bytes or more",
    "write tl.max_contiguous and tl.multiple_of in the inner loop, around the sum that is added to the pointer; or "
    "leave out flatten=True",
)
_OF_A_WINDOW = (
    "rows of the tile begin at any element, because the taps of a window shift them along the dimension that is "
    "contiguous",
    "keep the tensor with another dimension contiguous, such as the channels ([N, L, C] in place of [N, C, L]): each "
    "tap then loads whole rows of channels, wherever it begins",
)
_FIRST_TWICE = (
    "first load the tile a second time for the code that uses it beside the MMA, because Triton pipelines a tile that "
    "both use into too few buffers, with wrong results (buffer-race); then "
)
_MORE_BUFFERS = "allocate three buffers or more, and load ahead into those that no MMA reads"


def why_not_pipelined(  # noqa: PLR0911 (a case a reason)
    kernel: Kernel, loop: Operation, op: Operation, wanted: str
) -> tuple[str, str]:
    """Why no load is ahead of its use, and what to do; `wanted`: how many stages are advised."""
    access = access_of(kernel, op)
    if lacks_stages(kernel, loop):
        twice = _FIRST_TWICE * _is_used_twice(kernel, loop, op)
        return f"num_stages={stages_of(kernel, loop)}", twice + with_stages(kernel, loop, wanted)
    if (structure := never_ahead(kernel, loop, op)) is not None:
        return structure
    if access is not None and (split := _split(kernel, loop, access)) is not None:
        return split
    if _is_turned(kernel, loop, op, access):
        return (
            "wgmma takes 8-bit operands only if K (the dimension over which the MMA sums) is contiguous, so each "
            "thread has to transpose its part of this tile",
            "keep the operand in memory with K contiguous (for tl.dot(a, b): b as [N, K]), and load its transpose",
        )
    if access is not None and _is_of_a_branch(kernel, loop, op):
        return _OF_A_BRANCH
    if kernel.is_gluon and op.name in ASYNC_COPIES:
        return "each iteration fills the buffer that it reads itself", _MORE_BUFFERS
    if kernel.num_stages is None:
        more = f"; in Gluon, {_MORE_BUFFERS}" if kernel.is_gluon is None else ""
        return "no buffer is filled ahead", f"compile the kernel with num_stages={wanted}{more}"
    return (
        "the compiler puts no iteration between the load and its use",
        "load the operands of tl.dot directly in the loop",
    )


def how_to_load_ahead(kernel: Kernel) -> tuple[str, str] | None:
    """Why the first tile of a loop with MMAs is not loaded ahead, and what to do; None if each is."""
    for loop in kernel.main_loops:
        for op in waited_for(kernel, loop) if any(op.name in MMAS for op in own(loop)) else ():
            if max((tensor.size for tensor in tensor_types(op.rest)), default=0) >= BUFFERED_ELEMENTS:
                fitting = fitting_stages(kernel, stage_bytes(kernel, loop), (3, 4, 2))
                return why_not_pipelined(kernel, loop, op, stages_in_words(kernel, fitting))
    return None


def lacks_stages(kernel: Kernel, loop: Operation) -> bool:
    """Whether a loop that the compiler might pipeline was compiled for no stage beside the one in use."""
    return loop.name == "scf.for" and stages_of(kernel, loop) in UNPIPELINED


def hidden_of_load(kernel: Kernel, loop: Operation, access: Access) -> Hidden | None:
    """The arguments for which alone nothing of the loop is loaded ahead, if these forbid it for this load."""
    if never_ahead(kernel, loop, access.operation) is not None or hidden_of(kernel, [access]) is None:
        return None
    return hidden_in_loop(kernel, loop)


def gain_of_pieces(kernel: Kernel, loop: Operation, op: Operation) -> float:
    """The gain of larger pieces beside that of loads ahead, where their size is why nothing is loaded ahead.

    With both, `retrieval_scores` was 15.5 times as fast on an H200: twice as much as by the loads and the spills alone.
    """
    access = access_of(kernel, op)
    if access is None or stages_of(kernel, loop) in UNPIPELINED or never_ahead(kernel, loop, op) is not None:
        return 1.0
    is_split = _split(kernel, loop, access) is not None
    return gain_of_wider(access.tensor.bytes, VECTOR_BYTES)[0] if is_split else 1.0


def stride_unless_one(kernel: Kernel, op: Operation) -> str:
    """The arguments of which one, if it is 1, lets a thread's bytes lie side by side."""
    access = access_of(kernel, op)
    return unless_one(kernel, access) if access is not None and access.thread_bytes < LEAST_AHEAD_BYTES else ""


def _is_used_twice(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether a wgmma and other code use the tile: with two stages or more, results may be wrong (`buffer-race`).

    A tile in registers goes to shared memory for the wgmma; one in shared memory goes to registers for other code.
    """
    if not any(one.name == "ttng.warp_group_dot" for one in own(loop)):
        return False
    tile = set(op.results) or {name for buffer in one_buffer(kernel, loop, op) for name in buffer.results}
    uses = {one.name for one in own(loop) if tile & set(one.operands)}
    return uses > {"ttg.local_alloc"} if op.results else "ttg.local_load" in uses


def _split(kernel: Kernel, loop: Operation, access: Access) -> tuple[str, str] | None:
    """Why a thread loads fewer bytes at a time than can be loaded ahead, and what to do; None where it loads more."""
    if (hidden := hidden_of_load(kernel, loop, access)) is not None:
        why, advice = hidden.reason
        return f"{_few(kernel, access.tensor.bytes)}; {why}", advice
    if access.thread_bytes < LEAST_AHEAD_BYTES:
        return _few_bytes(kernel, access)
    if access.tensor.bytes < LEAST_AHEAD_BYTES and (masked := split_by_mask(kernel, access)) is not None:
        why, advice = masked
        return f"{_few(kernel, access.tensor.bytes)}: {why}", advice
    return None


def _few_bytes(kernel: Kernel, access: Access) -> tuple[str, str]:
    few = _few(kernel, access.thread_bytes)
    if descriptor := descriptor_in_parts(kernel, access):
        why, advice = passed_in_parts(descriptor)
    elif divisors := wrapped_by(kernel, access):
        why, advice = wrapped(kernel, divisors)
    elif access.value.loaded and access.has_neighbours:
        why, advice = FROM_MEMORY
    elif access.contiguous is not None and is_window(kernel, access):
        why, advice = _OF_A_WINDOW
    else:
        return few, "pass the inner stride as a tl.constexpr of 1, and make the other strides multiples of 16"
    return f"{few}: {why}", advice


def _few(kernel: Kernel, thread_bytes: int) -> str:
    takes = "pipelines load" if kernel.arch.backend == "hip" else "cp.async copies"
    return (
        f"the compiler can prove only {thread_bytes} contiguous bytes of a thread, and {takes} {LEAST_AHEAD_BYTES} or "
        "more"
    )


def _is_turned(kernel: Kernel, loop: Operation, op: Operation, access: Access | None) -> bool:
    """Whether a wgmma reads an operand of 8 bits whose rows or columns lie across K."""
    if access is None or access.tensor.bytes != 1 or access.contiguous is None:
        return False
    for mma in own(loop):
        if mma.name == "ttng.warp_group_dot":
            for place, depth in ((0, 1), (1, 0)):
                if op in kernel.values.sources(mma, place) and len(access.tensor.shape) == 2:
                    return access.contiguous != depth
    return False


def _is_of_a_branch(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether an address is computed of what a branch in its loop gives, as the index of a flattened loop's tile."""
    return any(one.name == "scf.if" and loop in loops_around(one) for one in kernel.values.sources(op, 0))
