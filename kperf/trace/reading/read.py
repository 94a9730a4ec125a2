"""From the bytes of a profile buffer to the timeline and the trace that are kept."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.trace.compiler.program import Program
from kperf.trace.compiler.session import Recording
from kperf.trace.launch.subject import Orders
from kperf.trace.reading import analysis, chrome, views
from kperf.trace.reading.decode import decode
from kperf.trace.reading.models import About, RecordCount, SassOrder, TensorCoreBusy, Timeline
from kperf.trace.reading.slack import slack
from kperf.trace.reading.timeline import Block, Launch
from kperf.trace.reading.verdict import verdict

EXPORTED_PERCENTILES = (5, 50, 95)
"""The blocks that are exported: those whose lifetime is at these percentiles of all blocks' lifetimes."""


def decode_launch(buffer: NDArray[np.uint8], recording: Recording, program: Program) -> Launch:
    """Decode a whole launch and pair its records up; raises `UsageError` for a buffer that is not this program's."""
    return Launch(decode(buffer, recording), program, recording.warps)


def timeline(launch: Launch, about: About) -> Timeline:
    """The timeline of any kernel, in the view that its records ask for, its verdict included.

    Raises `UsageError` if no block of the launch is whole.
    """
    found = pipeline(launch, about) if views.has_pipeline(launch) else by_block(launch, about)
    view = views.choose(launch)
    imbalance = views.Blocks(launch).imbalance() if view == "imbalance" else None
    found = found.model_copy(update={"view": view, "imbalance": imbalance})
    return found.model_copy(update={"verdict": verdict(found)})


def pipeline(launch: Launch, about: About) -> Timeline:
    """The timeline of a kernel with products, its verdict included.

    Raises `UsageError` if no warp group issues products in a loop, or no block of the launch is whole.
    """
    period = analysis.period(launch)
    blocks = analysis.sample(launch)
    bubbles, in_flight = analysis.bubbles(launch, blocks, period.median)
    bound = analysis.bound(launch)
    flop_per_cycle = sum(product.flop for product in launch.products_per_trip()) / bound.cycles
    issuers = analysis.issuers(launch)
    typical = list(launch.blocks(np.unique(_at_percentiles(launch, EXPORTED_PERCENTILES))))
    graph, rows, own = slack(typical, launch.program, flop_per_cycle)
    common = _of_any_kernel(launch, about)
    common["regions"] = [
        region.model_copy(update={"own_cycles": own.get((region.warp_group, region.name))})
        for region in common["regions"]
    ]
    found = Timeline(
        **common,
        view="pipeline",
        unit="trip",
        units=launch.trips(issuers[0]),
        period_cycles=period,
        tile_boundary_cycles=analysis.boundary(launch, period.median),
        bound=bound,
        tensor_core_busy=TensorCoreBusy(at_issue_rate=bound.cycles / period.median, in_flight=in_flight),
        arithmetic=analysis.hidden_arithmetic(launch, blocks),
        load_wait=views.load_wait(launch, period.median),
        bubbles=bubbles,
        graph=graph,
        slack=rows,
        windows=analysis.windows(_typical(launch), issuers),
    )
    return found.model_copy(update={"verdict": verdict(found)})


def by_block(launch: Launch, about: About) -> Timeline:
    """The timeline of a kernel without products in a loop: bytes, and where a block's time goes; without a verdict.

    Raises `UsageError` if no block of the launch is whole.
    """
    typical = _typical(launch)
    first, last = launch.lifetimes()
    return Timeline(
        **_of_any_kernel(launch, about),
        view="memory",
        unit="block",
        units=launch.records.n_blocks,
        period_cycles=analysis.quantiles((last - first)[launch.whole_blocks()]),
        bound=None,
        tensor_core_busy=None,
        arithmetic=None,
        bubbles=[],
        windows=[views.block_window(typical)],
        memory=views.memory(launch, about),
    )


def _of_any_kernel(launch: Launch, about: About) -> dict[str, Any]:
    """What every view's timeline holds."""
    clock_mhz = launch.clock_mhz()
    whole = launch.whole_blocks()
    first, last = launch.lifetimes()
    measured = (launch.records.end_ns - launch.records.start_ns)[whole] * clock_mhz / 1e3
    covered = (last - first)[whole] / np.maximum(measured, 1)  # the timer may stand still in a short block
    return dict(about) | {
        "roles": analysis.roles(launch),
        "regions": analysis.region_times(launch),
        "blocks": launch.records.n_blocks,
        "clock_mhz": clock_mhz,
        "lifetime_covered": float(np.median(covered)) if len(whole) else 0.0,
        "sms": views.Blocks(launch).sm_use(),
        "records": RecordCount(written=launch.records.written, lost=launch.records.lost),
    }


def _typical(launch: Launch) -> Block:
    """The block of median lifetime. Raises `UsageError` if none is whole."""
    return next(launch.blocks(_at_percentiles(launch, [50])))


def sass_order(orders: Orders) -> SassOrder:
    """Both orders, and where they differ, in words."""
    words = [
        f"after {d.after}: {d.plain or 'nothing'} in the plain kernel, {d.traced or 'nothing'} in the traced one"
        for d in orders.differences
    ]
    return SassOrder(plain=orders.plain, traced=orders.traced, same=not words, differences=list(dict.fromkeys(words)))


def _at_percentiles(launch: Launch, percentiles: Sequence[int]) -> NDArray[np.int64]:
    """Of the whole blocks that work those at percentiles of the lifetime. Raises `UsageError` if there is none."""
    whole = views.Blocks(launch).working
    if not len(whole):
        raise UsageError("no block of the trace is whole: its records were overwritten; use a larger buffer")
    first, last = launch.lifetimes()
    by_lifetime = whole[np.argsort((last - first)[whole], kind="stable")]
    return by_lifetime[[round(p / 100 * (len(whole) - 1)) for p in percentiles]]


def export(launch: Launch, clock_mhz: float, about: dict[str, str]) -> str:
    """The Chrome trace of a few blocks, EXPORTED_PERCENTILES of the lifetime.

    Of a block that computes several tiles it shows the middle one and how the next begins. Raises `UsageError` if no
    block is whole.
    """
    chosen = _at_percentiles(launch, EXPORTED_PERCENTILES)
    blocks = list(launch.blocks(np.unique(chosen)))
    windows = [analysis.exported_window(block, analysis.issuers(launch)) for block in blocks]
    typical = launch.records.program_id[chosen[len(chosen) // 2]]
    rule = f"blocks at percentiles {', '.join(map(str, EXPORTED_PERCENTILES))} of the lifetime of all blocks"
    if any(window != (block.start, block.end) for block, window in zip(blocks, windows, strict=True)):
        rule += "; of each, the tile in the middle and the first trips of the next"
    chosen_by = {"chosen": rule, "typical_block": int(typical)}
    return chrome.export(blocks, windows, launch.program, clock_mhz, about | chosen_by)
