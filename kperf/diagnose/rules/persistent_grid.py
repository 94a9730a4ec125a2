"""A persistent kernel that is launched with a number of programs that does not fit the GPU's SMs."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.arch import H200, H200_FIRST_L2_LATENCY, SM_90A
from kperf.console import agreeing
from kperf.diagnose.analyses.cta_order import bounds_of, origins_of
from kperf.diagnose.analyses.loops import carried, innermost
from kperf.diagnose.analyses.occupancy import arithmetic_bounds, ctas, ctas_of_sm, moved_bytes
from kperf.diagnose.analyses.waves import memory_bounds
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import (
    ATOMICS,
    LOADS,
    LOOPS,
    MMAS,
    STORES,
    TMA_LOADS,
    TMA_STORES,
    inside,
    loops_around,
)
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import IN_LOOP, LAUNCH_MS, LEAST_SM_BYTES, MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.loops import BOUNDS, loop_begins
from kperf.ir.origins import Origins
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_LIKELY = 0.85
"""The power of the gain that is likely: 1.68 x of 1.83 x (persistent_wgrad, an H200). SMs that are busy share the
GPU's power and L2 with fewer others during a last wave."""


@dataclass(frozen=True)
class _Launch:
    """Programs that share tiles: program p has the tiles p, p + programs and so on.

    axis: of the grid, 0 to 2. waiting_ms: for which one waits for memory, where it does little else; else 0.
    """

    programs: int
    tiles: int
    slots: int
    axis: int = 0
    waiting_ms: float = 0.0

    def waves(self) -> list[tuple[int, int]]:
        """Of each wave: its programs, and the tiles of the one that has most."""
        begins = range(0, self.programs, self.slots)
        return [(min(self.slots, self.programs - at), math.ceil((self.tiles - at) / self.programs)) for at in begins]

    def times(self) -> tuple[float, float]:
        """In tiles of an SM that has one program: if programs of one SM share its units, and if each only waits."""
        shared = sum(ctas_of_sm(programs) * tiles for programs, tiles in self.waves())
        return shared, sum(tiles for _, tiles in self.waves())

    def gain(self, other: "_Launch") -> float:
        """How much faster the other one is at least."""
        return min(mine / its for mine, its in zip(self.times(), other.times(), strict=True))


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the grid, where another number of programs computes the same tiles in less time.

    The number is free where a loop over tiles begins at the program's id, and its step is the number of programs. Tiles
    whose bytes take longest are left out: fewer SMs may be enough for memory's rate.
    """
    launch = _launch_of(kernel)
    if launch is None or memory_bounds(kernel):
        return
    room = launch.slots // H200.sms
    others = [_Launch(min(held * H200.sms, launch.tiles), launch.tiles, launch.slots) for held in range(1, room + 1)]
    best = max(others, key=launch.gain)
    most = launch.gain(best)
    if launch.waiting_ms:  # the launch's own time stays
        most = (launch.waiting_ms + LAUNCH_MS) / (launch.waiting_ms / most + LAUNCH_MS)
    if most < MEDIUM_GAIN:
        return
    held = ctas_of_sm(best.programs)
    yield kernel.finding(
        RULE.id,
        None,
        "high" if most >= SEVERE_GAIN else "medium",
        _message(launch),
        f"launch {best.programs} programs: min(tiles, {f'{held} * ' if held > 1 else ''}sms), where sms is "
        "torch.cuda.get_device_properties(device).multi_processor_count; the step of the loop over tiles is the same "
        f"number, or tl.num_programs({launch.axis})",
        {"programs": launch.programs, "tiles": launch.tiles, "ctas_per_sm": room, "sms": H200.sms},
        estimate=(most**_LIKELY, 1.0, most),
    )


def _message(launch: _Launch) -> str:
    """Where SMs are idle: in the last wave, in all of the launch, or where others have one program more."""
    last = launch.programs % launch.slots
    fit = f"{launch.slots} programs fit on {H200.sms} SMs at once"
    if launch.programs > launch.slots:
        tiles = launch.waves()[-1][1]
        return (
            f"{fit}, and the launch has {launch.programs}: the last {last or launch.slots} begin when others end, and "
            f"take {tiles} {agreeing(tiles, 'tile', 'tiles')} each"
        )
    if launch.programs < H200.sms:
        are = agreeing(launch.programs, "persistent program leaves", "persistent programs leave")
        return f"{launch.programs} {are} {H200.sms - launch.programs} of {H200.sms} SMs without work"
    more = launch.programs % H200.sms
    return (
        f"{fit}, and the launch has {launch.programs}: {more} {agreeing(more, 'SM has', 'SMs have')} one program more "
        "than the other SMs, and each program has as many tiles"
    )


def _launch_of(kernel: Kernel) -> _Launch | None:
    """None where no loop shares tiles among the programs, or where more programs may have nothing to gain."""
    count = math.prod(kernel.grid or ())
    origins = origins_of(kernel) if count and max(kernel.grid or ()) == count else None
    if origins is None or kernel.resources is None or not ctas(kernel):
        return None
    loops = [loop for loop in kernel.named(*LOOPS) if not loops_around(loop)]
    tiles = [_tiles(kernel, origins, loop, count) for loop in loops]
    others = [loop for loop, shared in zip(loops, tiles, strict=True) if not shared]
    if not any(tiles) or not all(_differs(origins, loop) for loop in others):
        return None
    most = max(tiles)
    loop = loops[tiles.index(most)]
    waiting_ms = 0.0 if any(_computes(kernel, loop) for loop in loops) else _waiting_ms(kernel, loop, most, count)
    if waiting_ms is None or ((waiting_ms or count == 1) and not _is_apart(kernel, loop)):
        return None
    axis = _axis_of(kernel, loop) if count == 1 else (kernel.grid or ()).index(count)
    return _Launch(count, most, ctas(kernel) * H200.sms, axis or 0, waiting_ms)


def _differs(origins: Origins, loop: Operation) -> bool:
    """Whether a loop is longer in some programs, as what `flatten=True` makes of a loop over tiles and its inner one.

    The loop over tiles is left, before it, and counts the iterations.
    """
    bounds = bounds_of(origins, loop)
    return bounds is not None and bounds[1].size > 1


def _tiles(kernel: Kernel, origins: Origins, loop: Operation, count: int) -> int:
    """Iterations of a loop in all programs, of which each begins at its id and takes every `count`th one; else 0."""
    bounds = bounds_of(origins, loop) if loop.name == "scf.for" else _bounds_of_while(origins, loop)
    if bounds is None:
        return 0
    begins, end, step = bounds
    if count == 1:  # the numbers are those of any loop: it is the source that takes them of the grid
        return 0 if _axis_of(kernel, loop) is None else kernel.iterations(loop) or 0
    apart = np.unique(np.diff(begins)) if begins.shape == (count,) else np.zeros(0)
    if len(apart) != 1 or apart[0] <= 0 or end.size != 1 or step.size != 1 or step.flat[0] != apart[0] * count:
        return 0
    return max(math.ceil((int(end.flat[0]) - int(begins[0])) / int(apart[0])), 0)


def _axis_of(kernel: Kernel, loop: Operation) -> int | None:
    """Along which a loop begins at the program's id, and steps by the number of programs; None if it does not."""
    if loop.name != "scf.for":
        return None
    begin, _, step = (kernel.values.sources(loop, place) for place in BOUNDS)
    axes = {op.rest.split()[0] for op in begin if op.name == "tt.get_program_id"}
    steps = {op.rest.split()[0] for op in step if op.name == "tt.get_num_programs"}
    return "xyz".index(min(axes)) if axes == steps and len(axes) == 1 else None


def _is_apart(kernel: Kernel, loop: Operation) -> bool:
    """Whether nothing goes from one iteration of a loop to another, so that several programs may share them.

    All that the kernel stores it stores in the loop, to where the iteration says, and loads nothing of that.
    """
    stores = [op for op in kernel.operations if op.name in (*STORES, *TMA_STORES, *ATOMICS)]
    stored = {name for op in stores for name in kernel.memory_of(op)}
    loads = [op for op in inside(loop) if op.name in (*LOADS, *TMA_LOADS)]
    within = {op.line for op in inside(loop)}
    return (
        not loop.results
        and all(op.line in within and loop in kernel.values.sources(op, 0) for op in stores)
        and not any(stored & kernel.memory_of(op) for op in loads)
    )


def _bounds_of_while(origins: Origins, loop: Operation) -> tuple[NDArray[np.int64], ...] | None:
    """As `bounds_of`, of `while tile < tiles`, in which a tile moves on by the same number in each iteration."""
    before, after = loop.regions
    condition, begun = before.operations[-1], re.findall(r"(%[\w$.-]+) = %", loop.rest)
    test, names = origins.maker(condition, 0), [name for name, _ in carried(loop)]
    if test is None or test.name != "arith.cmpi" or test.rest.split(",")[0].strip() not in ("slt", "ult"):
        return None
    tested = test.operands[0]
    place = begun.index(tested) if tested in begun and list(condition.operands[1:]) == begun else len(begun)
    moved = origins.maker(after.operations[-1], place)
    if moved is None or moved.name != "arith.addi" or moved.operands[0] != names[place]:
        return None
    found = (origins.of(loop.parent, loop_begins(loop)[place]), origins.operand(test, 1), origins.operand(moved, 1))
    return None if None in found else tuple(one.numbers for one in found if one is not None)


def _computes(kernel: Kernel, loop: Operation) -> bool:
    """Whether a loop multiplies matrices, or an innermost loop of it computes for longer than memory takes."""
    if any(op.name in MMAS for op in inside(loop)):
        return True
    inner = [one for one in innermost(kernel) if one is loop or loop in loops_around(one)]
    return any(arithmetic_bounds(kernel, one) for one in inner)


def _waiting_ms(kernel: Kernel, loop: Operation, tiles: int, count: int) -> float | None:
    """For which a program waits for the loads of a loop; None where all SMs together ask for what memory can give.

    Each iteration waits for its loads, which fewer programs than SMs do not hide.
    """
    loads = [op for op in inside(loop) if op.name in LOADS]
    at_once = count * moved_bytes(kernel, loads)
    if not loads or count >= H200.sms or at_once >= LEAST_SM_BYTES * H200.sms:
        return None
    of_tile = max(
        math.prod(kernel.iterations(one) or IN_LOOP for one in loops_around(op) if one is not loop) for op in loads
    )
    return math.ceil(tiles / count) * of_tile * H200_FIRST_L2_LATENCY / (H200.max_mhz * 1e3)


RULE = Rule(
    "persistent-grid", "Persistent programs that do not fit the SMs", check, needs="launch", targets=(SM_90A.name,)
)
