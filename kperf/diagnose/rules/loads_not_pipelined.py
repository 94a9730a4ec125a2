"""Loads of a loop with MMAs that wait for memory in each iteration."""

from collections.abc import Iterable, Iterator, Sequence

from kperf.diagnose.analyses.loops import (
    UNPIPELINED,
    access_of,
    accesses_of,
    depths_of_sums,
    index_load,
    loaded_bytes,
    loop_line,
    own_stages,
    stages_of,
    times_of,
)
from kperf.diagnose.analyses.occupancy import ctas, resident_ctas
from kperf.diagnose.analyses.spills import gain_without_spills
from kperf.diagnose.analyses.stages import (
    fitting_stages,
    leaves_one_cta,
    room_in_words,
    stage_bytes,
    stages_in_words,
    waited_for,
)
from kperf.diagnose.analyses.stored import stored_by_iteration
from kperf.diagnose.analyses.unpipelined import (
    gain_of_pieces,
    hidden_of_load,
    lacks_stages,
    stride_unless_one,
    why_not_pipelined,
)
from kperf.diagnose.analyses.unrolled import Unrolled, unrolled
from kperf.diagnose.analyses.waits import cycles_beside_loops, iteration_of
from kperf.diagnose.analyses.waves import memory_bounds
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import MMAS, own
from kperf.diagnose.reading.options import named, scaled
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import BUFFERED_ELEMENTS, MEDIUM_GAIN, SEVERE_GAIN, SM_BYTES_IN_FLIGHT
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import LEVELS, Finding, Level

_MOST = 8.0
"""Of the gain without sums in memory: what a loop that moves little else waits for is not known."""
_ALONE = "; with {} stages only one CTA fits on an SM, and no other CTA can work while it waits"
_HIDDEN = (
    "; meanwhile the other {} CTAs of an SM have their loads under way, and the launch's bytes take longer to come "
    "from device memory than the SMs need for them"
)
_OTHERS = "; meanwhile the other {} CTAs of an SM work"
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


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of tiles that a loop with MMAs loads into registers, or by TMA and waits for at once."""
    for steps in unrolled(kernel):
        yield from _of_unrolled(kernel, steps)
    for loop in kernel.main_loops:
        if not any(op.name in MMAS for op in own(loop)):
            yield from _dependent(kernel, loop)
            continue
        for op in waited_for(kernel, loop):
            elements = max((tensor.size for tensor in tensor_types(op.rest) if len(tensor.shape) >= 2), default=0)
            if elements >= BUFFERED_ELEMENTS:
                of_load = _of_sums if _is_stored_too(kernel, loop, op) else _of_tile
                yield of_load(kernel, loop, op, elements)


def _of_sums(kernel: Kernel, loop: Operation, op: Operation, elements: int) -> Finding:
    """Of a tile to which each iteration adds in memory."""
    return kernel.finding(
        RULE.id,
        op,
        "medium",
        "the loop adds to what is in memory: each iteration loads a tile, waits for it, and stores it again",
        "add with tl.atomic_add, for which no thread waits; or let each program sum its own output tile in registers, "
        "and store it once after the loop",
        {"elements": elements},
        confidence="medium",
        estimate=_gain_in_registers(kernel, loop, op),
    )


def _of_tile(kernel: Kernel, loop: Operation, op: Operation, elements: int) -> Finding:
    """Of a tile that stages would load ahead; `alone`: as many of them as take its second CTA from an SM, else 0."""
    alone = next((stages for stages in (2, 3) if leaves_one_cta(kernel, loop, stages)), 0)
    fitting = fitting_stages(kernel, stage_bytes(kernel, loop), (2, 3, 4) if alone else (3, 4, 2))
    why, advice = why_not_pipelined(kernel, loop, op, "2" if alone else stages_in_words(kernel, fitting))
    access = access_of(kernel, op)
    hidden = hidden_of_load(kernel, loop, access) if access is not None else None
    if lacks_stages(kernel, loop) and not fitting:
        lengths = [length for tensor in tensor_types(op.rest) for length in tensor.shape]
        advice = _TOO_LARGE.format(_halves(kernel, lengths))
    elif loop.name == "scf.for" and not lacks_stages(kernel, loop):
        advice += room_in_words(kernel, loop)
    stride, line = stride_unless_one(kernel, op), loop_line(kernel, loop, op)
    if stride:
        advice = f"if {stride} is 1, say so with i32:1 in --signature"
    elif alone == 2:
        advice = _HALVED.format(_halves(kernel, depths_of_sums(loop)))
    elif alone:
        advice += _ALONE.format(alone)
    gain, most = _gain(kernel, loop, gain_of_pieces(kernel, loop, op))
    severity, estimate, meanwhile = _severity(kernel, loop, gain), (gain, min(gain, 1.2), most), ""
    if alone:
        severity, estimate = "medium", _ESTIMATES[alone]
    others = resident_ctas(kernel) - 1
    if _is_hidden(kernel, loop):
        severity, estimate, meanwhile = "low", (1.05, 1.0, 1.5), _HIDDEN.format(others)
    elif others and _gain_of_loop(kernel, loop) < MEDIUM_GAIN:
        meanwhile = _OTHERS.format(others)
    return kernel.finding(
        RULE.id,
        op,
        "low" if stride else severity,
        "the load is not pipelined, so each iteration"
        + f" of the loop on line {line}" * bool(line)
        + f" waits for memory: {why}{meanwhile}"
        + (f", unless {stride} is 1" if stride else ""),
        advice,
        {
            "elements": elements,
            "num_stages": stages_of(kernel, loop) or 0,
            **({"loop_line": line} if line else {}),
            **(hidden.evidence if hidden is not None else {}),
        },
        estimate=estimate,
        candidates=[{"num_stages": stages} for stages in fitting]
        if kernel.num_stages in UNPIPELINED and own_stages(kernel, loop) is None and alone != 2
        else (),
    )


def _halves(kernel: Kernel, lengths: Iterable[int]) -> str:
    """The constexprs that are lengths of a tile, with half of their values, in words."""
    return named(scaled(kernel, lengths, 0.5), before=": ")


def _of_unrolled(kernel: Kernel, steps: Unrolled) -> Iterator[Finding]:
    """Of the loads of a loop that was unrolled before it was compiled, unless other CTAs of the SM work meanwhile."""
    gain = steps.gain(kernel, resident_ctas(kernel))
    if gain < MEDIUM_GAIN:
        return
    fitting = fitting_stages(kernel, steps.stage_bytes, (3, 4, 2))
    at_line = {frame_of(op): op for op in reversed(steps.loads[-1])}
    for op in reversed(at_line.values()):
        yield kernel.finding(
            RULE.id,
            op,
            "high" if gain >= SEVERE_GAIN else "medium",
            f"the load is not pipelined, so each of {len(steps.mmas)} steps waits for memory: tl.static_range unrolls "
            "the loop, and the compiler pipelines nothing but loops",
            f"write tl.range(..., num_stages={stages_in_words(kernel, fitting)}) in place of tl.static_range"
            if fitting
            else "write tl.range in place of tl.static_range, with " + _TOO_LARGE.format("").removeprefix("use "),
            {"steps": len(steps.mmas), "stage_bytes": steps.stage_bytes},
            confidence="medium",
            estimate=(min(gain, _UNROLLED), 1.0, max(gain, _UNROLLED)),
        )


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
        and waited_for(kernel, one)
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
    return iteration_of(kernel, loop, waited_for(kernel, loop), resident_ctas(kernel)).gain


def _share_of_loops(kernel: Kernel, loop: Operation, slower: float, among: Sequence[Operation]) -> float:
    """Of a CTA's time, in which it is in one of these loops, whose iterations take as long as this loop's.

    slower: times as long as by its waits alone that an iteration takes. 1 where it is not known how often one runs.
    """
    each = [kernel.typical_iterations(one) for one in among]
    counts = [kernel.times(one) * count for one, count in zip(among, each, strict=True) if count]
    if kernel.resources is None or kernel.grid is None or len(counts) < len(each) or not sum(counts):
        return 1.0
    waiting = iteration_of(kernel, loop, waited_for(kernel, loop), resident_ctas(kernel)).waiting
    looping = slower * waiting * sum(counts)
    return looping / (looping + cycles_beside_loops(kernel))


def _is_hidden(kernel: Kernel, loop: Operation) -> bool:
    """Whether memory bounds the launch, and the CTAs of an SM ask for enough at once without any buffer ahead.

    An SM that has one CTA asks for nothing while this one computes.
    """
    resident = resident_ctas(kernel)
    return resident > 1 and resident * stage_bytes(kernel, loop) >= SM_BYTES_IN_FLIGHT and memory_bounds(kernel)


def _is_stored_too(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether the loop stores at the addresses that it loads: no iteration's tile is there ahead of its turn."""
    load = access_of(kernel, op)
    return load is not None and bool(stored_by_iteration(kernel, loop, load))


def _gain_in_registers(kernel: Kernel, loop: Operation, op: Operation) -> tuple[float, float, float]:
    """Without the bytes of the sums, which an iteration loads and stores beside its other tiles."""
    sizes = {access.operation.line: access.tile_bytes for access in accesses_of(kernel, loop)}
    moved, sums = sum(sizes.values()), 2 * sizes.get(op.line, 0)
    return min(moved / (moved - sums), _MOST) if moved > sums else 2.0, 1.0, _MOST


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


RULE = Rule("loads-not-pipelined", "Loads of an MMA that are not pipelined", check, only_options=True, by_options=True)
