"""Loads of a loop with MMAs that wait for memory in each iteration."""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence

import numpy as np

from kperf.arch import H200
from kperf.diagnose.analyses.loops import (
    INTO_REGISTERS,
    UNPIPELINED,
    depths_of_sums,
    index_load,
    loaded_bytes,
    loop_line,
    never_ahead,
    own_stages,
    stages_of,
    times_of,
    with_stages,
)
from kperf.diagnose.analyses.occupancy import ctas, resident_ctas
from kperf.diagnose.analyses.pieces import is_window, wrapped_by
from kperf.diagnose.analyses.spills import gain_without_spills
from kperf.diagnose.analyses.unrolled import Unrolled, unrolled
from kperf.diagnose.analyses.vectors import (
    FROM_MEMORY,
    gain_of_wider,
    hidden_in_loop,
    hidden_of,
    passed_in_parts,
    split_by_mask,
    wrapped,
)
from kperf.diagnose.analyses.waits import cycles_beside_loops, iteration_of
from kperf.diagnose.analyses.waves import memory_bounds
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import ASYNC_COPIES, MMAS, STORES, loops_around, own
from kperf.diagnose.reading.options import named, scaled
from kperf.diagnose.reading.strides import descriptor_in_parts, unless_one
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import (
    BUFFERED_ELEMENTS,
    LEAST_AHEAD_BYTES,
    MEDIUM_GAIN,
    SEVERE_GAIN,
    SM_BYTES_IN_FLIGHT,
    VECTOR_BYTES,
)
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import LEVELS, Finding, Level

_MOST = 8.0
"""Of the gain without sums in memory: what a loop that moves little else waits for is not known."""
_MOVES = ("ttg.convert_layout", "amdg.in_thread_transpose")
"""What moves a tile's elements among registers and threads."""
_ALONE = "; with {} stages only one CTA fits on an SM, and no other CTA can work while it waits"
_HIDDEN = (
    "; meanwhile the other {} CTAs of an SM have their loads under way, and the launch's bytes take longer to come "
    "from device memory than the SMs need for them"
)
_OTHERS = "; meanwhile the other {} CTAs of an SM work"
_STAGES = "num_stages={}"
_LIKELY = 1.8
"""Speed-up of a loop whose loads are pipelined, where no launch says how many CTAs of an SM work while one waits."""
_SPREAD = 5 / 3
"""Between the estimate and the most."""
_HALVED = (
    "halve the tile along the dimension of the loop{}, and then take num_stages=2, which needs no more shared memory; "
    "with 2 stages of these tiles only one CTA fits on an SM, and no other CTA can work while it waits"
)
_ESTIMATES = {2: (1.1, 0.7, 1.8), 3: (1.2, 0.7, 1.8)}
"""By the stages with which an SM loses its second CTA. On an H200 two stages gave descriptor_one_stage 1.20 x; three,
with which it has one CTA, gave 0.83 x; half the tile with two stages, in as many bytes as with one, gave 1.08 x."""
_UNROLLED = 1.5
"""Speed-up of an unrolled loop of 24 steps as a range, with one CTA on an SM: 1.51 x on an H200. Where 128 registers
left room for a second CTA, the unrolled loop was 1.26 times as fast as with one."""
_TOO_LARGE = (
    "use smaller tiles{}, and then num_stages=3 (or 2): two stages of these tiles need more shared memory than a CTA "
    "may have"
)
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


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of tiles that a loop with MMAs loads into registers, or by TMA and waits for at once."""
    for steps in unrolled(kernel):
        yield from _of_unrolled(kernel, steps)
    for loop in kernel.main_loops:
        if not any(op.name in MMAS for op in own(loop)):
            yield from _dependent(kernel, loop)
            continue
        for op in _waited_for(kernel, loop):
            sizes = [tensor.size for tensor in tensor_types(op.rest) if len(tensor.shape) >= 2]
            if max(sizes, default=0) >= BUFFERED_ELEMENTS and _is_stored_too(kernel, loop, op):
                yield kernel.finding(
                    RULE.id,
                    op,
                    "medium",
                    "the loop adds to what is in memory: each iteration loads a tile, waits for it, and stores it "
                    "again",
                    "add with tl.atomic_add, for which no thread waits; or let each program sum its own output tile in "
                    "registers, and store it once after the loop",
                    {"elements": max(sizes)},
                    confidence="medium",
                    estimate=_gain_in_registers(kernel, loop, op),
                )
            elif max(sizes, default=0) >= BUFFERED_ELEMENTS:
                alone = next((stages for stages in (2, 3) if _leaves_one_cta(kernel, loop, stages)), 0)
                fitting = _fitting(kernel, _stage_bytes(kernel, loop), (2, 3, 4) if alone else (3, 4, 2))
                why, advice = _reason(kernel, loop, op, "2" if alone else _wanted(kernel, fitting))
                if not fitting and why in map(_STAGES.format, UNPIPELINED):
                    advice = _TOO_LARGE.format(
                        _halves(kernel, [length for tensor in tensor_types(op.rest) for length in tensor.shape])
                    )
                elif why not in map(_STAGES.format, UNPIPELINED) and loop.name == "scf.for":
                    advice += _room(kernel, loop)
                stride = _stride(kernel, op)
                hidden = _is_hidden(kernel, loop)
                covered = resident_ctas(kernel) > 1 and _gain_of_loop(kernel, loop) < MEDIUM_GAIN
                gain, most = _gain(kernel, loop, _wider(kernel, loop, op))
                line = loop_line(kernel, loop, op)
                yield kernel.finding(
                    RULE.id,
                    op,
                    "low" if stride or hidden else "medium" if alone else _severity(kernel, loop, gain),
                    "the load is not pipelined, so each iteration"
                    + f" of the loop on line {line}" * bool(line)
                    + f" waits for memory: {why}"
                    + (_HIDDEN.format(ctas(kernel) - 1) if hidden else "")
                    + (_OTHERS.format(resident_ctas(kernel) - 1) if covered and not hidden else "")
                    + (f", unless {stride} is 1" if stride else ""),
                    f"if {stride} is 1, say so with i32:1 in --signature"
                    if stride
                    else _HALVED.format(_halves(kernel, depths_of_sums(loop)))
                    if alone == 2
                    else advice + (_ALONE.format(alone) if alone else ""),
                    {
                        "elements": max(sizes),
                        "num_stages": stages_of(kernel, loop) or 0,
                        **({"loop_line": line} if line else {}),
                    },
                    estimate=(1.05, 1.0, 1.5)
                    if hidden
                    else _ESTIMATES[alone]
                    if alone
                    else (gain, min(gain, 1.2), most),
                    candidates=[{"num_stages": stages} for stages in fitting]
                    if kernel.num_stages in UNPIPELINED and own_stages(kernel, loop) is None and alone != 2
                    else (),
                )


def how_to_load_ahead(kernel: Kernel) -> tuple[str, str] | None:
    """Why the first tile of a loop with MMAs is not loaded ahead, and what to do; None if each is."""
    for loop in kernel.main_loops:
        for op in _waited_for(kernel, loop) if any(op.name in MMAS for op in own(loop)) else ():
            if max((tensor.size for tensor in tensor_types(op.rest)), default=0) >= BUFFERED_ELEMENTS:
                fitting = _fitting(kernel, _stage_bytes(kernel, loop), (3, 4, 2))
                return _reason(kernel, loop, op, _wanted(kernel, fitting))
    return None


def _halves(kernel: Kernel, lengths: Iterable[int]) -> str:
    """The constexprs that are lengths of a tile, with half of their values, in words."""
    return named(scaled(kernel, lengths, 0.5), before=": ")


def _of_unrolled(kernel: Kernel, steps: Unrolled) -> Iterator[Finding]:
    """Of the loads of a loop that was unrolled before it was compiled, unless other CTAs of the SM work meanwhile."""
    gain = steps.gain(kernel, resident_ctas(kernel))
    if gain < MEDIUM_GAIN:
        return
    fitting = _fitting(kernel, steps.stage_bytes, (3, 4, 2))
    at_line = {frame_of(op): op for op in reversed(steps.loads[-1])}
    for op in reversed(at_line.values()):
        yield kernel.finding(
            RULE.id,
            op,
            "high" if gain >= SEVERE_GAIN else "medium",
            f"the load is not pipelined, so each of {len(steps.mmas)} steps waits for memory: tl.static_range unrolls "
            "the loop, and the compiler pipelines nothing but loops",
            f"write tl.range(..., num_stages={_wanted(kernel, fitting)}) in place of tl.static_range"
            if fitting
            else "write tl.range in place of tl.static_range, with " + _TOO_LARGE.format("").removeprefix("use "),
            {"steps": len(steps.mmas), "stage_bytes": steps.stage_bytes},
            confidence="medium",
            estimate=(min(gain, _UNROLLED), 1.0, max(gain, _UNROLLED)),
        )


def _waited_for(kernel: Kernel, loop: Operation) -> list[Operation]:
    """The loads for which an iteration waits."""
    in_registers = loaded_into_registers(loop)
    return [op for op in own(loop) if op in in_registers or _into_one_buffer(kernel, loop, op)]


def _severity(kernel: Kernel, loop: Operation, gain: float) -> Level:
    """By the likely gain. A loop whose tl.range asks for no pipeline has its reason: one level lower."""
    level = 0 if gain >= SEVERE_GAIN else 1 if gain >= MEDIUM_GAIN else 2
    return LEVELS[min(level + (own_stages(kernel, loop) in UNPIPELINED), len(LEVELS) - 1)]


def _gain(kernel: Kernel, loop: Operation, wider: float) -> tuple[float, float]:
    """The likely and the most gain of the kernel, whose loops with MMAs that load ahead run as long as before.

    The loops that wait for the same reason gain together: those to which the launch gives their stages, or those that
    set their own. wider: what larger pieces give the loop besides.
    """
    multiplying = [one for one in kernel.main_loops if any(op.name in MMAS for op in own(one))]
    bytes_of = {one.line: loaded_bytes(kernel, own(one)) * times_of(kernel, one) for one in multiplying}
    alike = [
        one.line
        for one in multiplying
        if (own_stages(kernel, one) in UNPIPELINED) == (own_stages(kernel, loop) in UNPIPELINED)
        and _waited_for(kernel, one)
    ]
    moved = sum(bytes_of.values())
    share = sum(bytes_of[line] for line in alike) / moved if moved else 1.0
    besides = gain_without_spills(kernel) * wider
    ahead = _gain_of_loop(kernel, loop) * besides
    share *= _share_of_loops(kernel, loop, besides, multiplying)
    likely, most = (1 / (1 - share + share / gain) for gain in (ahead, _SPREAD * ahead))
    return likely, most


def _gain_of_loop(kernel: Kernel, loop: Operation) -> float:
    """Of the loop alone, by its loads."""
    if kernel.resources is None or kernel.grid is None:
        return _LIKELY
    return iteration_of(kernel, loop, _waited_for(kernel, loop), resident_ctas(kernel)).gain


def _share_of_loops(kernel: Kernel, loop: Operation, slower: float, among: Sequence[Operation]) -> float:
    """Of a CTA's time, in which it is in one of these loops, whose iterations take as long as this loop's.

    slower: times as long as by its waits alone that an iteration takes. 1 where it is not known how often one runs.
    """
    each = [kernel.typical_iterations(one) for one in among]
    counts = [kernel.times(one) * count for one, count in zip(among, each, strict=True) if count]
    if kernel.resources is None or kernel.grid is None or len(counts) < len(each) or not sum(counts):
        return 1.0
    waiting = iteration_of(kernel, loop, _waited_for(kernel, loop), resident_ctas(kernel)).waiting
    looping = slower * waiting * sum(counts)
    return looping / (looping + cycles_beside_loops(kernel))


def _is_hidden(kernel: Kernel, loop: Operation) -> bool:
    """Whether memory bounds the launch, and the CTAs of an SM ask for enough at once without any buffer ahead."""
    if kernel.resources is None or kernel.grid is None:
        return False
    resident = min(ctas(kernel), math.prod(kernel.grid) // H200.sms)
    return resident * _stage_bytes(kernel, loop) >= SM_BYTES_IN_FLIGHT and memory_bounds(kernel)


def loaded_into_registers(loop: Operation) -> list[Operation]:
    """The loads of a loop that give a thread their numbers when they are due, in registers."""
    return [op for op in own(loop) if op.name in INTO_REGISTERS and not _is_ahead(loop, op)]


def _wanted(kernel: Kernel, fitting: Collection[int]) -> str:
    """Stages: AMD's pipelines hold one of them in registers, and have 64 KB for the others. Else two are tried."""
    first, second = (2, 3) if kernel.arch.backend == "hip" else (3, 4)
    if second in fitting:
        return f"{first} (or {second})"
    return str(first if first in fitting else 2)


def _fitting(kernel: Kernel, stage_bytes: int, wanted: Iterable[int]) -> list[int]:
    """The numbers of stages for which a CTA may have the shared memory; all of a kernel that is not assembled.

    The tiles of one stage lie there already.
    """
    shared = kernel.shared_bytes
    if shared is None:
        return list(wanted)
    return [
        stages for stages in wanted if shared + (stages - _held(kernel)) * stage_bytes <= kernel.arch.cta_shared_bytes
    ]


def _room(kernel: Kernel, loop: Operation) -> str:
    """That the stages of a loop will not fit once it is pipelined, and how many do; empty where they fit."""
    stages, each = own_stages(kernel, loop) or kernel.num_stages or 1, _stage_bytes(kernel, loop)
    fitting = _fitting(kernel, each, range(2, stages + 1))
    if stages in fitting or stages == 1:
        return ""
    first = fitting[-1] + 1 if fitting else 2
    does = f"and {with_stages(kernel, loop, str(fitting[-1]))}" if fitting else "and use smaller tiles"
    needed = (kernel.shared_bytes or 0) + (first - _held(kernel)) * each
    return (
        f", {does}: {first} stages of these tiles need {needed} bytes of shared memory, and a CTA may have "
        f"{kernel.arch.cta_shared_bytes}"
    )


def _held(kernel: Kernel) -> int:
    """Stages that take no more shared memory than the kernel has: AMD's pipelines hold one of them in registers."""
    return 2 if kernel.arch.backend == "hip" else 1


def _stage_bytes(kernel: Kernel, loop: Operation) -> int:
    """What one more stage of a loop takes: the tiles that it loads into registers or into its one buffer."""
    return sum(
        max((tensor.size * tensor.bytes for tensor in tensor_types(op.rest)), default=0)
        for op in own(loop)
        if op.name in INTO_REGISTERS or _into_one_buffer(kernel, loop, op)
    )


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


def _is_stored_too(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether the loop stores at the addresses that it loads: no iteration's tile is there ahead of its turn."""
    here = {access.operation.line: access.value.numbers for access in kernel.accesses}
    stores = (here.get(store.line) for store in own(loop) if store.name in STORES)
    loaded = here.get(op.line)
    return loaded is not None and any(stored is not None and np.array_equal(stored, loaded) for stored in stores)


def _gain_in_registers(kernel: Kernel, loop: Operation, op: Operation) -> tuple[float, float, float]:
    """Without the bytes of the sums, which an iteration loads and stores beside its other tiles."""
    here = {access.operation.line: access.tile_bytes for access in kernel.accesses}
    moved, sums = sum(here.get(one.line, 0) for one in own(loop)), 2 * here.get(op.line, 0)
    return min(moved / (moved - sums), _MOST) if moved > sums else 2.0, 1.0, _MOST


def _leaves_one_cta(kernel: Kernel, loop: Operation, stages: int) -> bool:
    """Whether so many stages leave one CTA on an SM where another one works while the first waits.

    With three stages of 32 KB, where two CTAs fit with one, a kernel took 1.22 times as long (H200). A launch of no
    more CTAs than SMs has one on each as it is.
    """
    is_small = kernel.grid is not None and math.prod(kernel.grid) <= H200.sms
    if kernel.resources is None or ctas(kernel) < 2 or is_small:
        return False
    shared_bytes = kernel.resources.shared_bytes + (stages - 1) * _stage_bytes(kernel, loop)
    return ctas(kernel, shared_bytes=shared_bytes) < 2


def _into_one_buffer(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether TMA copies each iteration's tile into the same buffer, so that none is on its way while one is used."""
    return bool(_one_buffer(kernel, loop, op))


def _one_buffer(kernel: Kernel, loop: Operation, op: Operation) -> list[Operation]:
    """What allocates the buffer into which TMA copies each iteration's tile; empty where there is no such one."""
    if op.name not in ASYNC_COPIES or op.parent is None or op.parent.owner is not loop:
        return []
    makers = (kernel.values.maker(op, place) for place in range(len(op.operands)))
    return [one for one in makers if one is not None and one.name == "ttg.local_alloc" and "xi64" not in one.rest]


def _dependent(kernel: Kernel, loop: Operation) -> Iterator[Finding]:
    """Tiles of a loop without MMAs whose addresses its iteration loads first: it waits for memory twice.

    An only iteration has no next one, whose index could be loaded ahead.
    """
    for op in own(loop) if kernel.iterations(loop) != 1 else ():
        sizes = [tensor.size for tensor in tensor_types(op.rest)] if op.name == "tt.load" else []
        first = index_load(kernel, loop, op) if max(sizes, default=0) >= BUFFERED_ELEMENTS else None
        if first is not None:
            at = frame_of(first)
            tiles = max(sizes) * max(tensor.bytes for tensor in tensor_types(op.rest))
            hidden = kernel.resources is not None and ctas(kernel) * tiles >= SM_BYTES_IN_FLIGHT
            yield kernel.finding(
                RULE.id,
                op,
                "low" if hidden else "medium",
                "each iteration waits for memory twice: this load's address depends on the load"
                f"{f' on line {at.line}' if at else ' of an index'}",
                "load the next iteration's index before this iteration's tile is used, in a variable that the loop "
                "carries",
                {"elements": max(sizes), "index_line": at.line if at else 0},
                confidence="medium",
                estimate=(1.05, 1.0, 1.5) if hidden else (1.3, 1.0, 2.0),
            )


def _few(kernel: Kernel, thread_bytes: int) -> str:
    takes = "pipelines load" if kernel.arch.backend == "hip" else "cp.async copies"
    return (
        f"the compiler can prove only {thread_bytes} contiguous bytes of a thread, and {takes} {LEAST_AHEAD_BYTES} or "
        "more"
    )


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


def _split(kernel: Kernel, loop: Operation, access: Access) -> tuple[str, str] | None:
    """Why a thread loads fewer bytes at a time than can be loaded ahead, and what to do; None where it loads more."""
    hidden = hidden_in_loop(kernel, loop)
    if hidden is not None and hidden_of(kernel, [access]) is not None:
        why, advice = hidden.reason
        return f"{_few(kernel, access.tensor.bytes)}; {why}", advice
    if access.thread_bytes < LEAST_AHEAD_BYTES:
        return _few_bytes(kernel, access)
    if access.tensor.bytes < LEAST_AHEAD_BYTES and (masked := split_by_mask(kernel, access)) is not None:
        why, advice = masked
        return f"{_few(kernel, access.tensor.bytes)}: {why}", advice
    return None


def _wider(kernel: Kernel, loop: Operation, op: Operation) -> float:
    """The gain of larger pieces beside that of loads ahead, where their size is why nothing is loaded ahead.

    With both, `retrieval_scores` was 15.5 times as fast on an H200: twice as much as by the loads and the spills alone.
    """
    access = next((access for access in kernel.accesses if access.operation is op), None)
    if access is None or stages_of(kernel, loop) in UNPIPELINED or never_ahead(kernel, loop, op) is not None:
        return 1.0
    is_split = _split(kernel, loop, access) is not None
    return gain_of_wider(access.tensor.bytes, VECTOR_BYTES)[0] if is_split else 1.0


def _is_of_a_branch(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether an address is computed of what a branch in its loop gives, as the index of a flattened loop's tile."""
    return any(one.name == "scf.if" and loop in loops_around(one) for one in kernel.values.sources(op, 0))


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


def _stride(kernel: Kernel, op: Operation) -> str:
    """The arguments of which one, if it is 1, lets a thread's bytes lie side by side."""
    access = next((access for access in kernel.accesses if access.operation is op), None)
    return unless_one(kernel, access) if access is not None and access.thread_bytes < LEAST_AHEAD_BYTES else ""


def _is_used_twice(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether a wgmma and other code use the tile: with two stages or more, results may be wrong (`buffer-race`).

    A tile in registers goes to shared memory for the wgmma; one in shared memory goes to registers for other code.
    """
    if not any(one.name == "ttng.warp_group_dot" for one in own(loop)):
        return False
    tile = set(op.results) or {name for buffer in _one_buffer(kernel, loop, op) for name in buffer.results}
    uses = {one.name for one in own(loop) if tile & set(one.operands)}
    return uses > {"ttg.local_alloc"} if op.results else "ttg.local_load" in uses


def _reason(  # noqa: PLR0911 (a case a reason)
    kernel: Kernel, loop: Operation, op: Operation, wanted: str
) -> tuple[str, str]:
    """Why no load is ahead of its use, and what to do; `wanted`: how many stages are advised."""
    access = next((access for access in kernel.accesses if access.operation is op), None)
    stages = stages_of(kernel, loop)
    if stages in UNPIPELINED and loop.name == "scf.for":
        twice = _FIRST_TWICE * _is_used_twice(kernel, loop, op)
        return _STAGES.format(stages), twice + with_stages(kernel, loop, wanted)
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


RULE = Rule("loads-not-pipelined", "Loads of an MMA that are not pipelined", check, only_options=True, by_options=True)
