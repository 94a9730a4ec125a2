"""Launches whose CTAs take longer to start than what they load, store and compute takes."""

import math
from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kperf.arch import H200, H200_COPY_GB_PER_S, H200_CTA_NS, H200_L2_KEPT_BYTES
from kperf.diagnose.analyses.chains import waits
from kperf.diagnose.analyses.occupancy import arithmetic_of_cta, waves_of
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, LOADS, LOOPS, MMAS, STORES, TMA_LOADS, TMA_STORES, mask_place
from kperf.diagnose.reading.options import named, scaled, tile_for
from kperf.diagnose.thresholds import LEAST_SM_BYTES, MEDIUM_GAIN
from kperf.ir.layouts import tensor_types

_LATENCY_NS = LEAST_SM_BYTES / H200.arch.memory_bytes_per_cycle * 1e3 / H200.max_mhz
"""Of a load under load."""
_L2_BYTES_PER_NS = H200.l2_bytes_per_cycle * H200.sms * H200.max_mhz / 1e3
_KEPT_BYTES = H200_L2_KEPT_BYTES // 16
"""Of a tensor that L2 keeps, whatever else of it is loaded and stored meanwhile."""
_OTHER_WORK = (*LOOPS, *MMAS, *ATOMICS, *TMA_LOADS, *TMA_STORES)
"""Operations whose time is not counted here."""
_HALF = 2
"""So many times as large as CTAs that start in the time of their work, they take half of it to start."""


@dataclass(frozen=True)
class Starts:
    """A launch of CTAs that end sooner than the GPU starts as many; times of the whole launch in ns.

    waves: how often the launch fills the GPU with CTAs. waits: loads for which a CTA waits one after another. starting:
    the CTAs, one after another. working: device memory, for each byte that they ask for of tensors that L2 does not
    keep, L2 or their arithmetic. least: the same, if device memory moves each byte of a tensor once, and L2 the others.
    """

    ctas: int
    waves: float
    waits: int
    starting: float
    working: float
    least: float

    @property
    def gain(self) -> tuple[float, float, float]:
        """Speed-up, low, high of a launch of few CTAs with the same work; how much of it L2 serves is not known.

        Now the launch takes as long as the starts, or as its waves, which wait for memory once each; or longer, as
        where a CTA also reduces what it loads: up to 1.3 times for a row (many_threads on an H100). Then few CTAs wait
        for each load whose address another one gives; now other CTAs start meanwhile.
        """
        now = max(self.starting, self.waves * _LATENCY_NS)
        waiting = self.waits * _LATENCY_NS
        least, most = (min(now / (waiting + after), self.waves) for after in (self.working, self.least))
        return math.sqrt(least * most), 1.0, 1.5 * most

    @property
    def times(self) -> int:
        """How many times as much work a CTA wants: a power of two, since the length of a tile is one."""
        return 1 << math.ceil(math.log2(max(_HALF * self.gain[0], _HALF)))

    @property
    def words(self) -> str:
        """What takes how long."""
        return (
            f"starting {self.ctas} CTAs takes {self.starting / 1e3:.0f} us (an H200 starts one in {H200_CTA_NS:.1f} "
            f"ns), and their loads, stores and arithmetic take {self.working / 1e3:.3g} us"
        )


def starts_of(kernel: Kernel) -> Starts | None:
    """Of a launch that takes longer to start its CTAs than they work; None of others, and where that is not known.

    That is known of kernels without loops, MMAs and atomics. CTAs of one wave wait for memory together, once: fewer of
    them leave more SMs without work.
    """
    accesses = [access for access in kernel.accesses if access.operation.name in (*LOADS, *STORES)]
    if kernel.grid is None or kernel.resources is None or any(True for _ in kernel.named(*_OTHER_WORK)):
        return None
    reached = [op for op in kernel.named(*LOADS, *STORES) if tensor_types(op.rest) and not kernel.is_left_out(op)]
    if len(accesses) < len(reached):
        return None
    count = math.prod(kernel.grid)
    if count < 1:
        return None
    computing = count * arithmetic_of_cta(kernel, kernel.operations) / H200.sms * 1e3 / H200.max_mhz
    asked, moved, once = _bytes(kernel, accesses, count)
    if not asked:  # masks let nothing through
        return None
    least = max(asked / _L2_BYTES_PER_NS, computing)
    starts = Starts(
        ctas=count,
        waves=waves_of(kernel),
        waits=max(waits(kernel), 1),
        starting=count * H200_CTA_NS,
        working=max(moved / H200_COPY_GB_PER_S, least),
        least=max(once / H200_COPY_GB_PER_S, least),
    )
    return starts if starts.waves > 1 and starts.starting >= MEDIUM_GAIN * starts.working else None


def _bytes(kernel: Kernel, accesses: list[Access], count: int) -> tuple[float, float, float]:
    """Bytes of the sectors that so many CTAs ask for, and that device memory moves at most, and at least.

    At most all of them, apart from loads of what L2 keeps: a small table, or what each CTA loads. At least as many as
    the tensors of the launch have.
    """
    asked = defaultdict[tuple[str, bool, bool], float](float)
    size = dict[tuple[str, bool, bool], float]()
    for access in accesses:
        names = kernel.tensors_of(access.operation)
        name = next(iter(names)) if len(names) == 1 else ""
        tensor = name, access.operation.name in LOADS, is_own(access)
        size_asked = kernel.kept_at_launch(access) * access.tensor.bytes
        asked[tensor] += count * size_asked / max(access.tile_sector_use, 1e-9)
        size[tensor] = kernel.lengths.get(name, math.inf) * access.tensor.bytes
    for tensor in asked:
        _, _, own = tensor
        size[tensor] = size[tensor] if own else asked[tensor] / count
    once = {tensor: min(each, size[tensor]) for tensor, each in asked.items()}
    kept = {tensor for tensor, each in size.items() if tensor[1] and each <= _KEPT_BYTES}
    moved = sum(once[tensor] if tensor in kept else each for tensor, each in asked.items())
    return sum(asked.values()), moved, sum(once.values())


def is_own(access: Access) -> bool:
    """Whether it is of a CTA's own data, and not of a table or weights that each CTA loads."""
    return access.value.program or access.value.loaded


def larger(kernel: Kernel, widest: Access, times: int) -> tuple[str, list[dict[str, int]]]:
    """How a CTA comes to `times` as much work, and candidates."""
    if is_row(kernel, widest):
        return f"let a CTA work on {times} rows at once, a tile of {times} x BLOCK", []
    if holds_all(kernel, widest):
        row = tile_for(kernel.kept_at_launch(widest))
        return (
            f"let a CTA work on {times} rows (heads, items) at once, a tile of {times} x {row}: now the tile holds one "
            "whole row",
            [],
        )
    of_row = _tiles_of_row(kernel, widest)
    longer = 1 << (max(int(min(times, of_row)), 1).bit_length() - 1)  # tl.arange takes no other
    if longer == 1:
        return f"let a CTA work on {times} rows (heads, items) at once", []
    tiles = [
        tile for factor in (2, 4, 8) if factor <= of_row for tile in scaled(kernel, widest.tensor.shape, factor)[-1:]
    ]
    block = named(scaled(kernel, widest.tensor.shape, longer), otherwise="a larger BLOCK")
    rows = "and" if longer < times else "or"
    return f"let a CTA work on {times} times as many elements ({block}, {rows} several rows)", tiles


def _tiles_of_row(kernel: Kernel, access: Access) -> float:
    """CTAs whose tiles lie side by side along an axis of the grid: a row has no more. Infinity if no axis says it."""
    size, begin = access.tensor.size * access.tensor.bytes, _numbers(kernel, access, "")
    for axis, count in zip("xyz", kernel.grid or (), strict=False):
        if np.array_equal(_numbers(kernel, access, axis), begin + size):
            return count
    return math.inf


def _numbers(kernel: Kernel, access: Access, axis: str) -> NDArray[np.int64]:
    """Its addresses in the CTA that is the next one along an axis; what is read from memory is the same in each."""
    value = replace(kernel, next_along=axis).values.operand(access.operation, 0)
    assert value is not None
    return value.numbers


def is_row(kernel: Kernel, access: Access) -> bool:
    """Whether an access has a row of data, which stays as long as it is: what is reduced or scanned as a whole."""
    return access.tensor.size in row_lengths(kernel)


def row_lengths(kernel: Kernel) -> set[int]:
    """Elements of what is reduced or scanned as a whole."""
    types = (tensor_types(kernel.module.lines[op.last_line]) for op in kernel.named("tt.reduce", "tt.scan"))
    return {one[0].size for one in types if one and len(one[0].shape) == 1}


def holds_all(kernel: Kernel, access: Access) -> bool:
    """Whether a tile has a whole row, so that a longer one has nothing more to do.

    By the source, or because a mask leaves out the same elements in each CTA.
    """
    shape = access.tensor.shape
    if len(shape) > 1:
        return False
    if scaled(kernel, shape, 1, whole=True) and not scaled(kernel, shape, 1):
        return True
    mask = kernel.launched_values.operand(access.operation, mask_place(access.operation))
    if mask is None or mask.loaded or mask.program or mask.iterations:
        return False
    return mask.arguments <= kernel.numbers.keys() and not bool(mask.numbers.all())
