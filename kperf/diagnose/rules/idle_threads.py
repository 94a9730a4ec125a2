"""More threads than elements: several do the same work, or none."""

import math
from collections.abc import Iterator

import numpy as np

from kperf.arch import H200
from kperf.diagnose.analyses.divisions import distinct, division_cycles, is_of_elements
from kperf.diagnose.analyses.occupancy import arithmetic_of_cta, gain_of_more_bytes, warps_of_vectors
from kperf.diagnose.analyses.starts import holds_all, larger, starts_of
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, LOOPS, MMAS, loops_around, mask_place
from kperf.diagnose.reading.options import scaled, tile_for, with_option
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding

_SHORT = 0.5
"""Share of a tile that a mask lets through: half the tile is enough, whose length is a power of two."""
_WORTH = 1.2
"""A gain by less arithmetic alone, some of which hides behind the bytes."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of kernels without products whose largest access has fewer elements than the CTA has threads.

    Elements that a mask leaves out do not count, where it leaves half of the threads and more without one. Also tiles
    that are twice as long as what a mask lets through at the launch, or longer, whatever threads there are: in loops,
    and where a CTA computes for them.
    """
    if not any(True for _ in kernel.named(*MMAS)):
        yield from list(_of_threads(kernel)) or list(_cut_off(kernel)) or _computed_in_vain(kernel)


def _of_threads(kernel: Kernel) -> Iterator[Finding]:
    widest = max(kernel.accesses, key=lambda access: _weight(kernel, access), default=None)
    threads = kernel.threads
    if widest is None:
        return
    elements = kernel.kept_at_launch(widest)
    if elements < 1:
        return
    masked = elements < min(widest.tensor.size, threads)
    if (elements > threads // 2 if masked else elements >= threads) or _is_computed_wider(kernel, widest):
        return
    loads = [access for access in kernel.accesses if access.operation.name in LOADS]
    warps = warps_of_vectors(kernel, elements * widest.tensor.bytes)
    others = f"{'a mask leaves the other threads without' if masked else 'the other threads repeat the same'} work"
    starts = starts_of(kernel)
    fewer = [with_option(kernel, f"num_warps={warps}")] if warps < kernel.num_warps else []
    if starts is not None:
        gain, others = starts.gain, f"{others}; {starts.words}"
        more = larger(kernel, widest, starts.times)[0]
    else:
        size = sum(kernel.kept_at_launch(access) * access.tensor.bytes for access in loads)
        gain = gain_of_more_bytes(kernel, size) if loads else (2.0, 1.0, 4.0)
        more = "let a CTA work on several rows"
        more += "" if holds_all(kernel, widest) else ", or on a larger BLOCK"
    yield kernel.finding(
        RULE.id,
        widest.operation,
        "medium" if gain[0] >= MEDIUM_GAIN else "low",
        f"the CTA has {threads} threads for {elements} elements: {others}",
        "; or ".join(fewer if fewer and _has_idle_sms(kernel) else [more, *fewer]),
        {"threads": threads, "elements": elements},
        estimate=gain,
        candidates=[{"num_warps": warps}] if fewer else [],
    )


def _cut_off(kernel: Kernel) -> Iterator[Finding]:
    """Of accesses of loops whose tile is twice as long as what there is, by the numbers of the launch.

    The tile may be as long as something else needs, such as all rows of a group, of which an iteration has one. A
    longer tile is worth it where an outer loop has more of these.
    """
    kept = {access.operation.line: kernel.kept_at_launch(access) for access in kernel.accesses}
    short = [one for one in kernel.accesses if 0 < kernel.mask_share(one.operation) <= _SHORT]
    loads = [one for one in short if one.operation.name in LOADS and _is_repeated(kernel, one)]
    if not loads:
        return
    widest = max(loads, key=lambda one: kept[one.operation.line])
    size = {one.operation.line: kept[one.operation.line] * one.tensor.bytes for one in kernel.accesses}
    moved = {one.operation.line: size[one.operation.line] * kernel.times(one.operation) for one in kernel.accesses}
    if not any(moved.values()):
        return  # a launch whose loops run no iteration
    share = sum(moved[one.operation.line] for one in short) / sum(moved.values())
    gain = gain_of_more_bytes(kernel, sum(size[one.operation.line] for one in loads))
    speedup, low, high = (1 / (1 - share + share / one) for one in gain)
    if speedup < MEDIUM_GAIN:
        return
    elements, tile = kept[widest.operation.line], widest.tensor.size
    fitting = tile_for(elements)
    yield kernel.finding(
        RULE.id,
        widest.operation,
        "medium",
        f"in each iteration a mask leaves {elements} elements of a tile of {tile}: the others' threads do nothing",
        f"choose a tile of {fitting} elements for this loop; or let its tiles go over what all iterations have "
        "together, in one loop over the whole row in place of a loop over its parts",
        {"threads": kernel.threads, "elements": elements, "tile": tile},
        confidence="medium",
        estimate=(speedup, low, high),
        candidates=scaled(kernel, widest.tensor.shape, fitting / tile, whole=True),
    )


def _computed_in_vain(kernel: Kernel) -> Iterator[Finding]:
    """Of a tile for one pass whose elements are computed, if a mask keeps half of them or less."""
    short = [one for one in kernel.accesses if 0 < kernel.mask_share(one.operation) <= _SHORT]
    widest = max(short, key=lambda one: one.tensor.size, default=None)
    if widest is None or _is_repeated(kernel, widest) or _is_computed_wider(kernel, widest):
        return
    elements, tile, fitting = kernel.kept_at_launch(widest), widest.tensor.size, _fitting(kernel, widest)
    if fitting is None:
        return
    of_tile = [op for op in kernel.operations if any(tensor.size == tile for tensor in tensor_types(op.rest)[:1])]
    divisions = distinct(op for op in of_tile if is_of_elements(kernel, op))
    computing = arithmetic_of_cta(kernel, of_tile) + division_cycles(kernel, divisions)
    moved = sum(kernel.kept_at_launch(one) * one.tensor.bytes * kernel.times(one.operation) for one in kernel.accesses)
    moving = moved / kernel.arch.memory_bytes_per_cycle
    gain = (moving + computing) / (moving + computing * fitting / tile)
    if gain < _WORTH:
        return
    yield kernel.finding(
        RULE.id,
        widest.operation,
        "medium",
        f"a mask keeps {elements} elements of a tile of {tile}, and the CTA computes for all {tile}: this takes some "
        f"{computing:.0f} cycles of an SM, and memory takes {moving:.0f} for the bytes",
        f"choose a tile of {fitting} elements, as triton.next_power_of_2 of a row's length is; or let a CTA work on "
        f"{tile // fitting} rows at once, a tile of {tile // fitting} x {fitting}",
        {"threads": kernel.threads, "elements": elements, "tile": tile},
        confidence="medium",
        estimate=(gain, 1.0, tile / fitting),
        candidates=scaled(kernel, widest.tensor.shape, fitting / tile, whole=True),
    )


def _fitting(kernel: Kernel, access: Access) -> int | None:
    """Elements of the smallest tile with what a mask keeps; None where that is no beginning of each dimension."""
    mask = kernel.launched_values.operand(access.operation, mask_place(access.operation))
    if mask is None:
        return None
    kept = np.broadcast_to(mask.numbers != 0, access.tensor.shape)
    lengths = [int(places.max()) + 1 for places in np.nonzero(kept)]
    return math.prod(map(tile_for, lengths)) if kept.sum() == math.prod(lengths) else None


def _is_repeated(kernel: Kernel, access: Access) -> bool:
    return not all(map(kernel.runs_once, loops_around(access.operation)))


def _has_idle_sms(kernel: Kernel) -> bool:
    """Whether more work for each of a launch's few CTAs, which wait once, would leave more SMs without any."""
    loops = kernel.named(*LOOPS)
    return all(map(kernel.runs_once, loops)) and kernel.grid is not None and math.prod(kernel.grid) < H200.sms


def _weight(kernel: Kernel, access: Access) -> tuple[int, int]:
    """What a loop asks for in each iteration counts more than what is asked for once."""
    return kernel.kept_at_launch(access), len(loops_around(access.operation))


def _is_computed_wider(kernel: Kernel, widest: Access) -> bool:
    """Whether a tensor has more elements than what is loaded and stored, as of all pairs of a row."""
    return any(tensor.size > widest.tensor.size for op in kernel.operations for tensor in tensor_types(op.rest))


RULE = Rule("idle-threads", "More threads than elements", check)
