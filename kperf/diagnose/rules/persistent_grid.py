"""A persistent kernel that is launched with a number of programs that does not fit the GPU's SMs."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kperf.arch import H200, SM_90A
from kperf.console import agreeing
from kperf.diagnose.kernel import LOOPS, MMAS, Kernel, inside, loops_around
from kperf.diagnose.loops import innermost
from kperf.diagnose.occupancy import arithmetic_bounds, ctas
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.diagnose.waves import bounds_of, memory_bounds, origins_of
from kperf.ir.origins import Origins
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_LIKELY = 0.85
"""The power of the gain that is likely: 1.68 x of 1.83 x (persistent_wgrad, an H200). SMs that are busy share the
GPU's power and L2 with fewer others during a last wave."""


@dataclass(frozen=True)
class _Launch:
    """Programs that share tiles: program p has the tiles p, p + programs and so on."""

    programs: int
    tiles: int
    slots: int

    def waves(self) -> list[tuple[int, int]]:
        """Of each wave: its programs, and the tiles of the one that has most."""
        begins = range(0, self.programs, self.slots)
        return [(min(self.slots, self.programs - at), math.ceil((self.tiles - at) / self.programs)) for at in begins]

    def times(self) -> tuple[float, float]:
        """In tiles of an SM that has one program: if programs of one SM share its units, and if each only waits."""
        shared = sum(math.ceil(programs / H200.sms) * tiles for programs, tiles in self.waves())
        return shared, sum(tiles for _, tiles in self.waves())

    def gain(self, other: "_Launch") -> float:
        """How much faster the other one is at least."""
        return min(mine / its for mine, its in zip(self.times(), other.times(), strict=True))


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the grid, where another number of programs computes the same tiles in less time.

    The number is free where a loop over tiles begins at the program's id, and its step is the number of programs. Tiles
    that wait for memory are left out: fewer SMs may be enough for its rate.
    """
    launch = _launch_of(kernel)
    if launch is None or memory_bounds(kernel):
        return
    room = launch.slots // H200.sms
    others = [_Launch(min(held * H200.sms, launch.tiles), launch.tiles, launch.slots) for held in range(1, room + 1)]
    best = max(others, key=launch.gain)
    most = launch.gain(best)
    if most < MEDIUM_GAIN:
        return
    held = math.ceil(best.programs / H200.sms)
    yield kernel.finding(
        RULE.id,
        None,
        "high" if most >= SEVERE_GAIN else "medium",
        _message(launch),
        f"launch {best.programs} programs: min(tiles, {f'{held} * ' if held > 1 else ''}sms), where sms is "
        "torch.cuda.get_device_properties(device).multi_processor_count; the step of the loop over tiles is the same "
        "number, or tl.num_programs(0)",
        {"programs": launch.programs, "tiles": launch.tiles, "ctas_per_sm": room, "sms": H200.sms},
        estimate=(most**_LIKELY, 1.0, most),
    )


def _message(launch: _Launch) -> str:
    """Where SMs are idle: in the last wave, in all of the launch, or where others have one program more."""
    last = launch.programs % launch.slots
    fit = f"{launch.slots} programs fit on {H200.sms} SMs at once"
    if launch.programs > launch.slots:
        (_, first), *_, (_, tiles) = launch.waves()
        return (
            f"{fit}, and the launch has {launch.programs}: the other {last or launch.slots} begin when the first "
            f"{launch.slots} end, and take {tiles} {agreeing(tiles, 'tile', 'tiles')} each, after {first}"
        )
    if launch.programs < H200.sms:
        return (
            f"{launch.programs} persistent programs leave {H200.sms - launch.programs} of {H200.sms} SMs without work"
        )
    more = launch.programs % H200.sms
    return (
        f"{fit}, and the launch has {launch.programs}: {more} {agreeing(more, 'SM has', 'SMs have')} one program more "
        "than the other SMs, and each program has as many tiles"
    )


def _launch_of(kernel: Kernel) -> _Launch | None:
    """None where no loop shares tiles among the programs, or where a tile is not known to be computed."""
    count = math.prod(kernel.grid or ())
    origins = origins_of(kernel) if count > 1 and max(kernel.grid or ()) == count else None
    if origins is None or kernel.resources is None or not ctas(kernel):
        return None
    loops = [loop for loop in kernel.named(*LOOPS) if not loops_around(loop)]
    tiles = [_tiles(origins, loop, count) for loop in loops]
    if not tiles or not all(tiles) or not any(_computes(kernel, loop) for loop in loops):
        return None
    return _Launch(count, max(tiles), ctas(kernel) * H200.sms)


def _tiles(origins: Origins, loop: Operation, count: int) -> int:
    """Iterations of a loop in all programs, of which each begins at its id and takes every `count`th one; else 0."""
    bounds = bounds_of(origins, loop)
    if bounds is None:
        return 0
    begins, end, step = bounds
    apart = np.unique(np.diff(begins)) if begins.shape == (count,) else np.zeros(0)
    if len(apart) != 1 or apart[0] <= 0 or end.size != 1 or step.size != 1 or step.flat[0] != apart[0] * count:
        return 0
    return max(math.ceil((int(end.flat[0]) - int(begins[0])) / int(apart[0])), 0)


def _computes(kernel: Kernel, loop: Operation) -> bool:
    """Whether a loop multiplies matrices, or an innermost loop of it computes for longer than memory takes."""
    if any(op.name in MMAS for op in inside(loop)):
        return True
    inner = [one for one in innermost(kernel) if one is loop or loop in loops_around(one)]
    return any(arithmetic_bounds(kernel, one) for one in inner)


RULE = Rule(
    "persistent-grid", "Persistent programs that do not fit the SMs", check, needs="launch", targets=(SM_90A.name,)
)
