"""The same addresses, loaded again."""

from collections.abc import Iterator, Sequence, Set
from itertools import repeat

import numpy as np

from kperf.arch import H200
from kperf.console import agreeing
from kperf.diagnose.analyses.given_layouts import SMALL, given_by, is_repeated
from kperf.diagnose.analyses.loops import accesses_of, read_by_wgmma
from kperf.diagnose.analyses.occupancy import arithmetic_cycles
from kperf.diagnose.analyses.past_l1 import PastL1, may_wait, passes_l1, past_l1
from kperf.diagnose.analyses.repetitions import of_repetitions, repetitions
from kperf.diagnose.analyses.rows import Row, row_of
from kperf.diagnose.analyses.stored import gain_without, stored_before, stored_by_iteration
from kperf.diagnose.analyses.turns import gain_without_conflicts
from kperf.diagnose.analyses.warps import warps_of_row
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of, lines_of
from kperf.diagnose.reading.operations import LOADS, STORES, are_alternatives, is_of_inner_loop, loops_around, own
from kperf.diagnose.reading.options import with_option
from kperf.diagnose.reading.pointers import name_of, names_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import ELEMENTS_OF_THREAD, MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_MOST = 1.5
_CACHED = 1.3
"""Of a load whose bytes a cache gives again."""
_CARRIED = 3.0
"""Of an iteration that waits for its own bytes and moves few others."""
_ONE_PASS = "compute all in one pass (an online algorithm)"
_KEPT = "hold the whole row in registers, and load it once"
_BACKWARDS = "let this loop run from the end to the beginning: the L2 cache has what the kernel loaded last"


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of loads whose addresses do not change in their loop, of two loads of the same addresses, and past L1."""
    loads = [access for access in kernel.accesses if access.operation.name in LOADS and access.tensor.size >= SMALL]
    for access in loads:
        yield from _repeated(kernel, access)
        yield from _unchanged(kernel, access)
    yield from map(_of_l1, repeat(kernel), past_l1(kernel))
    of_stored = list(_stored_before(kernel))
    yield from of_stored
    yield from _read_twice(kernel, loads, {(one.source.file, one.source.line) for one in of_stored})


def _unchanged(kernel: Kernel, access: Access) -> Iterator[Finding]:
    """Of a load whose addresses are the same in each iteration of its loop."""
    for loop in loops_around(access.operation)[:1]:
        if loop.name != "scf.for" or "isVolatile = true" in access.operation.rest:
            continue
        if loop.line in access.value.iterations or access.value.loaded or kernel.runs_once(loop):
            continue
        if is_of_inner_loop(access.operation, loop):
            continue  # the inner loop sweeps the tensor, and its pipeline begins here
        if _stores(loop, access, kernel):
            yield from _stored_again(kernel, loop, access)
            continue
        gain = _gain(kernel, loop, access)
        yield kernel.finding(
            RULE.id,
            access.operation,
            "medium" if gain >= MEDIUM_GAIN else "low",
            f"each iteration loads the same {access.tile_bytes} bytes of {name_of(access.value, kernel)} again",
            "load these bytes once before the loop",
            {"bytes": access.tile_bytes},
            estimate=(gain, 1.0, _MOST),
        )


def _read_twice(kernel: Kernel, loads: Sequence[Access], stored: Set[tuple[str, int]]) -> Iterator[Finding]:
    """Of loads at the addresses of another load; `stored`: lines of which it was said that the CTA stored them."""
    again = {}
    for place, later in enumerate(loads):
        earlier = next((one for one in loads[:place] if _same(one, later)), None)
        if earlier is not None and not _is_apart_from_wgmma(kernel, earlier, later) and _place(later) not in stored:
            again[later.operation.line] = earlier, later
    for earlier, later in again.values():
        before, names = frame_of(earlier.operation), names_of(later.value, kernel)
        row = row_of(kernel, later, [one for _, one in again.values()])
        no_room = ""
        if row is not None and not row.fits and not row.is_reduced:
            no_room = f", and a CTA's part of it, {row.elements} elements, is too long for registers"
        gain = _gain_of_one_less(kernel, later)
        yield kernel.finding(
            RULE.id,
            later.operation,
            "low" if no_room or gain < MEDIUM_GAIN else "medium",
            f"{name_of(later.value, kernel)} {agreeing(len(names), 'is', 'are')} read at the same addresses as on line "
            f"{before.line if before else 0}{no_room}",
            _advice(kernel, later, row),
            {"bytes": later.tile_bytes, "first_line": before.line if before else 0},
            confidence="medium",
            estimate=(1.05, 1.0, 1.5) if no_room else (gain, 1.0, min(gain**3, 2.0)),
        )


def _place(access: Access) -> tuple[str, int]:
    frame = frame_of(access.operation)
    return (frame.file, frame.line) if frame is not None else ("", 0)


def _stored_before(kernel: Kernel) -> Iterator[Finding]:
    """Of tiles that the CTA stored before it loads them, where no other CTA may have changed them."""
    written = kernel.as_written
    if written is None or may_wait(kernel):
        return
    again = [(load, store) for load, store in stored_before(written) if not passes_l1(load)]
    likely = min(gain_without(kernel, written, [load for load, _ in again]), _CARRIED)
    for load, store in again:
        before = frame_of(store)
        advice, fits = "use the tensor that was stored, in the type of its pointer, and leave out this load", True
        if loops_around(store) != loops_around(load):
            advice, fits = _row_of_stored(kernel, load)
        gain = likely if fits else 1.05
        yield kernel.finding(
            RULE.id,
            load,
            "medium" if gain >= MEDIUM_GAIN else "low",
            f"{', '.join(sorted(written.tensors_of(load)))} is read at the addresses at which line "
            f"{before.line if before else 0} stored it: this CTA had the values in registers, and waits for them",
            advice,
            {"stored_line": before.line if before else 0},
            confidence="medium",
            estimate=(gain, 1.0, max(1.5 * gain, _CACHED)),
        )


def _row_of_stored(kernel: Kernel, load: Operation) -> tuple[str, bool]:
    """How to keep what an earlier loop stores, and whether registers hold it; they are taken to, if nothing says it."""
    frame = frame_of(load)
    access = next((one for one in kernel.accesses if frame_of(one.operation) == frame), None)
    row = row_of(kernel, access, [access]) if access is not None else None
    if row is not None and not row.fits:
        return _BACKWARDS, False
    tile = f"one tile of {row.tile} elements" if row is not None and row.elements else "one tile for the whole row"
    return (
        f"keep what the earlier loop stores in registers ({tile}, or a tile for each of a few iterations), and leave "
        "out this load",
        True,
    )


def _gain_of_one_less(kernel: Kernel, again: Access) -> float:
    """Without a load's bytes among all that the CTA's loads ask for; at most 1.3, as caches give them again."""
    asked = {
        access.operation.line: access.tile_bytes * kernel.times(access.operation)
        for access in kernel.accesses
        if access.operation.name in LOADS
    }
    rest = sum(asked.values()) - asked[again.operation.line]
    return min(sum(asked.values()) / rest, _CACHED) if rest > 0 else _CACHED


def _of_l1(kernel: Kernel, past: PastL1) -> Finding:
    """Of one tensor's loads past L1."""
    first, (likely, most) = past.loads[0].access, past.gain
    passes = f"the cache modifier .{past.modifier} passes" if past.modifier else "volatile loads pass"
    option = f'cache_modifier=".{past.modifier}"' if past.modifier else "volatile=True"
    others = lines_of((one.access.operation for one in past.loads), first.operation)
    name = ", ".join(sorted(kernel.tensors_of(first.operation)))
    return kernel.finding(
        RULE.id,
        first.operation,
        "high" if likely >= SEVERE_GAIN else "medium",
        f"{'an SM' if past.of_sm else 'a CTA'} loads each byte of {name} some {past.times:.0f} times"
        + (f" (here and on {others})" if others else "")
        + f", and each time from L2: {passes} by the L1 cache",
        f"leave out {option}, so that L1 keeps the {past.size} bytes: a kernel reads what was written before its "
        "launch",
        {"times": past.times, "bytes": past.size},
        confidence="medium",
        estimate=(likely, 1.0, most),
    )


def _repeated(kernel: Kernel, access: Access) -> Iterator[Finding]:
    """A tile of a loop that has each of its addresses many times: a factor of a group of rows, say.

    Without the repetitions an iteration moves less from the cache, and its stages take less shared memory; what it
    computes stays. So the likely gain is the root of the cycles with the repetitions over those without: it is 1.2 and
    1.4 for two kernels with 4-bit weights of which 1.3 and 0.98 were measured (H100).
    """
    if not is_repeated(access):
        return
    addresses, times = repetitions(access)
    loops = loops_around(access.operation)
    of_loop = [one for one in accesses_of(kernel, loops[0]) if one.operation.name in LOADS]
    loaded = sum(one.tensor.size * one.tensor.bytes for one in of_loop)
    saved = sum(
        (one.tensor.size - len(np.unique(one.value.numbers))) * one.tensor.bytes
        for one in of_loop
        if _pointers(kernel, one) == _pointers(kernel, access)
    )
    computed = arithmetic_cycles(kernel, own(loops[0])) * H200.l2_bytes_per_cycle
    gain = (computed + loaded) / max(computed + loaded - saved, 1)
    given = given_by(kernel, access)
    if gain < MEDIUM_GAIN and given is None:
        return
    why, advice = of_repetitions(access, times)
    likely, least, most = gain**0.5, 0.9, gain
    evidence: dict[str, float | int | str] = {"addresses": addresses, "elements": access.tensor.size}
    if given is not None:
        read, ways = given
        frame = frame_of(read)
        why += (
            f"; the compiler reads the tile{f' of line {frame.line}' if frame is not None else ''} from shared memory "
            f"in this tile's layout, in which {ways} lanes of a warp use the same bank, so each access takes {ways} "
            "turns instead of one"
        )
        of_conflicts = gain_without_conflicts(ways)
        likely, least, most = likely * of_conflicts[0], of_conflicts[1], most * of_conflicts[2]
        evidence |= {"ways": ways}
    yield kernel.finding(
        RULE.id,
        access.operation,
        "medium",
        f"each iteration loads {addresses} {agreeing(addresses, 'number', 'numbers')} of "
        f"{name_of(access.value, kernel)} {times} times{agreeing(addresses, '', ' each')}: {why}",
        advice,
        evidence,
        confidence="medium",
        estimate=(likely, least, most),
    )


def _advice(kernel: Kernel, later: Access, row: Row | None) -> str:
    once = "keep what the first load returns in a variable, and leave out this load"
    if not loops_around(later.operation):
        return once
    if row is None:
        return f"where one tile holds the whole row, as at this launch, leave out the loops, {once}"
    ways = []
    if row.stored == 0:
        ways.append(_ONE_PASS)
    elif row.is_reduced and not row.fits:
        ways.append(f"{_ONE_PASS} with the {row.stored} elements of the result in registers: scale what is summed")
    if row.elements is None:
        ways.append(f"where a row has no more than {row.longest} elements, let one tile {_KEPT}")
    elif row.fits:
        warps = max(kernel.num_warps, warps_of_row(kernel, row.tile))
        option = f": {with_option(kernel, f'num_warps={warps}')}" * (warps > kernel.num_warps)
        ways.append(f"let one tile of {row.tile} elements {_KEPT}{option}")
    return "; or ".join(ways) or _BACKWARDS


def _stored_again(kernel: Kernel, loop: Operation, access: Access) -> Iterator[Finding]:
    """A tile that the loop stores where it loads it: the next iteration waits for what this one had in registers."""
    again = stored_by_iteration(kernel, loop, access)
    if not again:
        return
    others = [one for one in accesses_of(kernel, loop) if one not in (access, *again)]
    cycles = sum(one.tile_bytes for one in (access, *again)) / H200.l2_bytes_per_cycle
    moved = sum(one.tile_bytes for one in others) / kernel.arch.memory_bytes_per_cycle
    gain = min(1 + cycles / moved, _CARRIED) if moved else _CARRIED
    yield kernel.finding(
        RULE.id,
        access.operation,
        "medium",
        f"each iteration loads the {access.tile_bytes} bytes of {name_of(access.value, kernel)} that the "
        "iteration before stored, and waits for them",
        "keep them in a variable that the loop carries, and store it once after the loop; if a thread needs another "
        "thread's element, use tl.gather or tl.sort",
        {"bytes": access.tile_bytes},
        confidence="medium",
        estimate=(gain, min(gain**0.5, 1.2), 10.0 if gain == _CARRIED else 2 * gain),
    )


def _gain(kernel: Kernel, loop: Operation, again: Access) -> float:
    """Without what L2 gives again, where L1 cannot keep it and registers can, beside what the iteration else moves.

    Of 8 KB, beside rows of 8 KB, 1.00 x were measured without (H200): L1 serves them.
    """
    accesses = accesses_of(kernel, loop)
    loaded = sum(access.tile_bytes for access in accesses if access.operation.name in LOADS)
    shared = kernel.resources.shared_bytes if kernel.resources is not None else 0
    registers = again.tile_bytes / (4 * kernel.threads)
    if loaded <= kernel.arch.sm_shared_bytes - shared or registers > ELEMENTS_OF_THREAD / 2:
        return 1.05
    moved = sum(access.tile_bytes for access in accesses) - again.tile_bytes
    cycles = again.tile_bytes / H200.l2_bytes_per_cycle
    return min(1 + cycles / max(moved / kernel.arch.memory_bytes_per_cycle, cycles), _MOST)


def _same(one: Access, other: Access) -> bool:
    """Whether both read the same addresses, in the same CTA, at different lines, whatever the iteration."""
    if are_alternatives(one.operation, other.operation):
        return False
    lines = frame_of(one.operation), frame_of(other.operation)
    if lines[0] == lines[1] or None in lines or (lines[0] and lines[1] and lines[0].line == lines[1].line):
        return False
    if one.value.loaded or other.value.loaded or one.tensor.shape != other.tensor.shape:
        return False
    loops = [loops_around(access.operation)[:1] for access in (one, other)]
    if bool(loops[0]) != bool(loops[1]) or (loops[0] and _bounds(loops[0][0]) != _bounds(loops[1][0])):
        return False
    return np.array_equal(one.value.numbers, other.value.numbers)


def _is_apart_from_wgmma(kernel: Kernel, one: Access, other: Access) -> bool:
    """Whether a wgmma reads one of the two from its buffer, and other code the other.

    One load in a pipelined loop for both would have a buffer too few: the rule buffer-race.
    """
    return read_by_wgmma(kernel, one.operation) != read_by_wgmma(kernel, other.operation)


def _bounds(loop: Operation) -> str:
    """Where a loop begins and ends, as printed."""
    return loop.rest.partition(" = ")[2].partition(" iter_args")[0].partition(" : ")[0].strip()


def _stores(loop: Operation, access: Access, kernel: Kernel) -> bool:
    """Whether the loop also writes what it reads."""
    pointers = _pointers(kernel, access)
    return any(_writes_to(kernel, op, pointers) for op in own(loop) if op.name in (*STORES, "tt.atomic_rmw"))


def _writes_to(kernel: Kernel, op: Operation, pointers: Set[str]) -> bool:
    """Whether a store or an atomic is to a tensor of these arguments."""
    value = kernel.values.operand(op, 0)
    return value is not None and bool(value.arguments & pointers)


def _pointers(kernel: Kernel, access: Access) -> set[str]:
    """The arguments that its addresses begin at."""
    return {name for name in access.value.arguments if kernel.parameters[name].is_pointer}


RULE = Rule("redundant-load", "The same addresses loaded again", check, explained_by=("window-summed-anew",))
