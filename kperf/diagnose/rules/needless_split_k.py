"""Split-K where the tiles of the output alone fill the GPU."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kperf.arch import H200, H200_ATOMIC_BYTES_PER_CYCLE
from kperf.diagnose.analyses.loops import tile_bytes
from kperf.diagnose.analyses.occupancy import ctas_of_sm
from kperf.diagnose.analyses.waves import Schedule, schedule_of, traffic
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import MMAS, loops_around
from kperf.diagnose.reading.pointers import name_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_ADDED = re.compile(r"\s*f?add\b")
_MOST = 4.0
_MOST_OVER = 1.7
"""By which factor a gain was above its estimate at most: many_splits in results/h100-80gb-hbm3/diagnose.jsonl."""


@dataclass(frozen=True)
class _Split:
    """A product of which each of `parts` CTAs adds its part of the sum to `tiles` tiles, of so many bytes each.

    moved: bytes that the atomics move between L2 and device memory.
    """

    schedule: Schedule
    tiles: int
    parts: int
    tile_bytes: int
    moved: int

    @property
    def slots(self) -> int:
        """CTAs that run at the same time."""
        return self.schedule.slots

    def cycles(self, parts: int) -> float:
        """Of the launch with so many parts: the SMs' loops, and what each CTA adds or stores, or memory for all bytes.

        The loop of a CTA begins when its first tiles arrive, which is one latency of L2 a wave.
        """
        ctas = self.tiles * parts
        loop = self.schedule.cycles * self.parts / parts
        added = self.tile_bytes / (H200_ATOMIC_BYTES_PER_CYCLE if parts > 1 else H200.l2_bytes_per_cycle)
        of_sms = ctas_of_sm(ctas) * (loop + added) + math.ceil(ctas / self.slots) * H200.l2_latency
        written = self.moved * parts / self.parts if parts > 1 else self.tiles * self.tile_bytes
        return max(of_sms, self.schedule.memory_cycles(self.schedule.traffic() + written))

    @property
    def cleared(self) -> float:
        """Cycles in which memory writes the zeros to which the parts are added, in a kernel before this one."""
        return self.schedule.memory_cycles(self.tiles * self.tile_bytes)


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of atomics that add what a loop of MMAs has summed, at addresses that several CTAs share.

    Fewer parts are advised only if their CTAs still fill all places of CTAs on the SMs.
    """
    sums = [op for op in kernel.named("tt.atomic_rmw") if _is_sum(kernel, op)]
    schedule = schedule_of(kernel) if sums else None
    for op in sums:
        split = _split(schedule, op) if schedule is not None else None
        if split is None:
            continue
        fewer = [parts for parts in range(1, split.parts) if split.parts % parts == 0]
        fewer = [parts for parts in fewer if split.tiles * parts >= split.slots]
        best = min(fewer, key=split.cycles, default=split.parts)
        now, then = split.cycles(split.parts), split.cycles(best)
        gain = min(now / then, _MOST)
        if gain >= MEDIUM_GAIN:
            yield _finding(kernel, op, split, best, (gain, 1.0, min(_MOST_OVER * (now + split.cleared) / then, _MOST)))


def _finding(kernel: Kernel, op: Operation, split: _Split, best: int, estimate: tuple[float, float, float]) -> Finding:
    value = kernel.values.operand(op, 0)
    tensor = name_of(value, kernel) if value is not None else "the output"
    advice = (
        "let each CTA sum over all of K, and write its tile with tl.store; no kernel then has to set the output to 0"
        if best == 1
        else f"split K into {best} parts"
    )
    return kernel.finding(
        RULE.id,
        op,
        "high" if estimate[0] >= SEVERE_GAIN else "medium",
        f"{split.parts} CTAs add their parts of each tile of {tensor} by atomics, although one CTA for each of "
        f"the {split.tiles} tiles gives {split.tiles / split.slots:.1f} waves of {split.slots} CTAs: each CTA runs "
        f"only {split.schedule.iterations:.0f} iterations before its atomics on {split.tile_bytes // 1024} KB",
        advice,
        {
            "tiles": split.tiles,
            "parts": split.parts,
            "advised": best,
            "iterations": split.schedule.iterations,
            "ctas_at_once": split.slots,
        },
        confidence="medium",
        estimate=estimate,
    )


def _is_sum(kernel: Kernel, op: Operation) -> bool:
    """Whether an atomic adds a tile that MMAs of a loop made, once a CTA: not in that loop."""
    made = [one for one in kernel.values.sources(op, 1) if one.name in MMAS]
    loops = {loop.line for one in made for loop in loops_around(one)[:1]}
    is_inside = any(loop.line in loops for loop in loops_around(op))
    return bool(_ADDED.match(op.rest) and loops and tile_bytes(op)) and not is_inside


def _split(schedule: Schedule, op: Operation) -> _Split | None:
    """None unless all CTAs add to a tile, as many to each, each from other tiles of all operands."""
    address, runs = schedule.origins.operand(op, 0), schedule.origins.runs(op)
    if address is None or runs is None or not np.all(runs):
        return None
    begins = np.broadcast_to(address.numbers, schedule.ctas)
    _, output, counts = np.unique(begins, return_inverse=True, return_counts=True)
    parts = int(counts[0])
    if parts < 2 or np.any(counts != parts):
        return None
    output = output.reshape(-1)
    for place in range(schedule.tiles.shape[1]):
        swept = np.stack([output, schedule.tiles[:, place]], axis=1)
        if len(np.unique(swept, axis=0)) < len(output):
            return None
    size = tile_bytes(op)
    ends = np.cumsum(schedule.waves)
    waves = [np.unique(output[end - wave : end]) for wave, end in zip(schedule.waves, ends, strict=True)]
    moved = 2 * traffic(waves, np.full(len(counts), size))
    return _Split(schedule, len(counts), parts, size, moved)


RULE = Rule("needless-split-k", "Split-K without need", check, needs="launch", targets=("sm_",))
