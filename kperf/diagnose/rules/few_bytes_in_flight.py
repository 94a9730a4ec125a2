"""A kernel of which each thread asks for a few bytes and waits."""

import math
from collections.abc import Iterator, Sequence

from kperf.arch import H200
from kperf.console import agreeing
from kperf.diagnose.analyses.divisions import distinct, division_cycles, is_of_elements
from kperf.diagnose.analyses.loops import accesses_of
from kperf.diagnose.analyses.occupancy import (
    arithmetic_bounds,
    arithmetic_cycles,
    arithmetic_of_cta,
    bytes_at_once,
    ctas,
    gain_of_more_bytes,
    held_ctas,
    moved_bytes,
    warps_of_vectors,
)
from kperf.diagnose.analyses.starts import Starts, holds_all, is_row, larger, starts_of
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, LOOPS, MMAS, STORES, own
from kperf.diagnose.reading.options import named, scaled, with_option
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import BYTES_IN_FLIGHT, LEAST_AHEAD_BYTES, LEAST_SM_BYTES, MEDIUM_GAIN, VECTOR_BYTES
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_PART = 8
"""A kernel that loads less than this part of what it stores writes: it waits for no store."""
_MOST = 8.0
"""Of a gain that the latency of memory leaves: what stands between the iterations is not known."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of kernels without products, by the bytes that a thread loads, or that it loads in each iteration."""
    if any(True for _ in kernel.named(*MMAS)):
        return
    loops = list(kernel.named(*LOOPS))
    loads = [access for access in kernel.accesses if access.operation.name in LOADS]
    if loops:
        waiting = [loop for loop in loops if _waits(kernel, loop)]
        lines = {op.line for loop in waiting if not arithmetic_bounds(kernel, loop) for op in own(loop)}
        crowded = list(_in_loops(kernel, [access for access in kernel.accesses if access.operation.line in lines]))
        yield from crowded or _of_a_small_grid(kernel, waiting)
        return
    threads = kernel.threads
    each = sum(access.asked_bytes for access in loads) / threads
    widest = max(loads, key=lambda access: access.asked_bytes, default=None)
    stored = [access for access in kernel.accesses if access.operation.name in STORES]
    written = sum(access.asked_bytes for access in stored) / threads
    if widest is None or not stored or each >= BYTES_IN_FLIGHT or each * _PART < written:
        return
    starts = starts_of(kernel)
    gain = _gain(kernel, starts, each * threads)
    if gain[0] < MEDIUM_GAIN:
        return  # the launch is one wave of CTAs, which wait for memory once, or its CTAs compute for longer
    times = 1 << math.ceil(math.log2(2 * BYTES_IN_FLIGHT / each))  # the length of a tile is a power of two
    advice, candidates = _more(kernel, widest, times if starts is None else max(times, starts.times))
    yield kernel.finding(
        RULE.id,
        widest.operation,
        "medium",
        f"each thread loads {each:.2g} bytes and ends: too few bytes are in flight for the memory's full bandwidth"
        + (f"; {starts.words}" if starts is not None else ""),
        advice,
        {"bytes_of_a_thread": each, "elements": widest.tensor.size, "threads": threads},
        confidence="medium",
        estimate=gain,
        candidates=candidates,
    )


def _gain(kernel: Kernel, starts: Starts | None, size: float) -> tuple[float, float, float]:
    """As of fewer starts, or of more bytes than so many that a CTA loads, up to the time that its SM computes for it.

    A CTA waits for memory while others of its SM compute: the less it has to wait, the more of it they hide.
    """
    likely, low, high = gain_of_more_bytes(kernel, size) if starts is None else starts.gain
    divisions = distinct(op for op in kernel.operations if is_of_elements(kernel, op))
    computing = arithmetic_of_cta(kernel, kernel.operations) + division_cycles(kernel, divisions)
    if kernel.resources is None or not computing:
        return likely, low, high
    waiting = LEAST_SM_BYTES / kernel.arch.memory_bytes_per_cycle / max(ctas(kernel), 1)
    most = max(waiting / computing, 1.0)
    return min(likely, most), low, min(high, most)


def _more(kernel: Kernel, widest: Access, times: int) -> tuple[str, list[dict[str, int]]]:
    """How a thread comes to `times` as many bytes, and candidates."""
    advice, tiles = larger(kernel, widest, times)
    if not (is_row(kernel, widest) or holds_all(kernel, widest)):
        return f"{advice}, so that a thread has 16 bytes and more", tiles
    warps = warps_of_vectors(kernel, widest.asked_bytes)
    if warps == kernel.num_warps:
        return advice, []
    fewer = f"{with_option(kernel, f'num_warps={warps}')}, so that an SM holds more CTAs"
    return f"{advice}; or {fewer}", [{"num_warps": warps}]


def _waits(kernel: Kernel, loop: Operation) -> bool:
    """Whether no load of a loop is issued before the last iteration's are used: a store or a barrier stands between."""
    across = kernel.num_warps > 1 and any(
        op.name in ("tt.reduce", "tt.scan") and _is_row(kernel, op) for op in own(loop)
    )
    return across or any(op.name in STORES for op in own(loop))


def _is_row(kernel: Kernel, op: Operation) -> bool:
    """Whether a reduction or a scan is of a row that all warps hold together."""
    types = tensor_types(kernel.module.lines[op.last_line])
    return bool(types) and len(types[0].shape) == 1 and types[0].size > kernel.arch.warp_size


def _of_a_small_grid(kernel: Kernel, loops: Sequence[Operation]) -> Iterator[Finding]:
    """Of loops whose CTAs, all that the launch has, ask for little: each iteration takes the latency of memory.

    A loop that runs a few times waits as often, and at least once.
    """
    if kernel.grid is None or kernel.resources is None:
        return
    resident = held_ctas(kernel)
    latency = LEAST_SM_BYTES / kernel.arch.memory_bytes_per_cycle
    for loop in loops:
        loads = [
            access
            for access in accesses_of(kernel, loop)
            if access.operation.name == "tt.load" and loop.line in access.value.iterations
        ]
        widest = max(loads, key=lambda access: access.asked_bytes, default=None)
        asked = resident * sum(access.asked_bytes for access in loads)
        if widest is None or 2 * asked > LEAST_SM_BYTES:
            continue
        computed = arithmetic_cycles(kernel, own(loop))
        moving = moved_bytes(kernel, own(loop)) / kernel.arch.memory_bytes_per_cycle
        gain = (latency + computed) / max(resident * max(computed, moving), 1)
        gain = min(gain, kernel.iterations(loop) or math.inf)
        if gain < 2 * MEDIUM_GAIN:
            continue
        yield kernel.finding(
            RULE.id,
            widest.operation,
            "medium",
            f"each iteration waits for its own loads: {resident} "
            f"{agreeing(resident, 'CTA on an SM has', 'CTAs on an SM have')} {asked} bytes in flight, and the memory's "
            f"full bandwidth needs {LEAST_SM_BYTES}",
            f"load the tiles of several iterations at once; or {_ahead(kernel, loads)}, so that the loads of the "
            "next iterations are under way",
            {"bytes_in_flight": asked, "ctas": resident},
            confidence="medium",
            estimate=(min(math.sqrt(gain), _MOST), 1.0, min(gain, 2 * _MOST)),  # of 33 6.1 x were measured (H100)
        )


def _ahead(kernel: Kernel, loads: Sequence[Access]) -> str:
    """How the compiler comes to issue these loads ahead: each thread of them needs the least bytes, side by side."""
    stages = "write the loop as tl.range(..., num_stages=4)"
    narrow = [access for access in loads if access.thread_bytes < LEAST_AHEAD_BYTES]
    if not narrow:
        return stages
    warps = min(access.tensor.size * access.tensor.bytes for access in narrow) // (
        LEAST_AHEAD_BYTES * kernel.arch.warp_size
    )
    fewer = (
        with_option(kernel, f"num_warps={warps}")
        if 0 < warps < kernel.num_warps
        else f"take {named(scaled(kernel, narrow[0].tensor.shape, 2), otherwise='a larger BLOCK')}"
    )
    return (
        f"{fewer}, so that a thread loads the {LEAST_AHEAD_BYTES} bytes that the compiler needs to load ahead, and "
        f"{stages}"
    )


def _in_loops(kernel: Kernel, accesses: Sequence[Access]) -> Iterator[Finding]:
    """Of loops that load and wait, where CTAs of fewer warps could ask for more together.

    A thread that has less than a vector has room for the elements of others. An SM then holds more CTAs.
    """
    loads = (access for access in accesses if access.operation.name in LOADS)
    widest = max(loads, key=lambda access: access.asked_bytes, default=None)
    most = max((access.asked_bytes for access in accesses), default=0)
    if widest is None or kernel.resources is None or most >= VECTOR_BYTES * kernel.threads:
        return
    asked, fewer = bytes_at_once(kernel), warps_of_vectors(kernel, most)
    now, then = ctas(kernel), ctas(kernel, warps=fewer)
    filled = kernel.grid is None or math.prod(kernel.grid) > now * H200.sms
    gain = min(then * asked, LEAST_SM_BYTES) / max(now * asked, 1)
    if not filled or gain < MEDIUM_GAIN:
        return
    each = widest.asked_bytes / kernel.threads
    yield kernel.finding(
        RULE.id,
        widest.operation,
        "medium",
        f"each iteration loads {each:.2g} bytes a thread and waits for them: the {now} CTAs of an SM have "
        f"{now * asked} bytes in flight together, and the memory's full bandwidth needs {LEAST_SM_BYTES}",
        f"{with_option(kernel, f'num_warps={fewer}')}, so that a thread loads up to {VECTOR_BYTES} bytes and an SM "
        f"holds {then} CTAs; or let an iteration work on several rows, or on a longer part of a row, at once",
        {"bytes_of_a_thread": each, "bytes_in_flight": now * asked, "threads": kernel.threads, "ctas_then": then},
        confidence="medium",
        estimate=(math.sqrt(gain), 1.0, gain),  # 1.43 x were measured where the bytes in flight doubled (H200)
        candidates=[{"num_warps": fewer}],
    )


RULE = Rule(
    "few-bytes-in-flight", "Too few bytes in flight", check, explained_by=("idle-threads", "window-summed-anew")
)
