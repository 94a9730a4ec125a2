"""From the bytes of a profile buffer to the timeline and the trace that are kept."""

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.record.store import Environment
from kperf.trace.compiler.program import Program
from kperf.trace.compiler.session import Recording
from kperf.trace.launch.subject import Orders
from kperf.trace.reading import analysis, chrome
from kperf.trace.reading.decode import decode
from kperf.trace.reading.models import (
    BubbleRecord,
    OverheadRecord,
    PathRecord,
    QuantilesRecord,
    RecordCount,
    RegionRecord,
    SassOrder,
    SoftmaxRecord,
    TensorCoreBusy,
    Timeline,
    models,
)
from kperf.trace.reading.timeline import Launch

EXPORTED_PERCENTILES = (5, 50, 95)
"""The blocks that are exported: those whose lifetime is at these percentiles of all blocks' lifetimes."""


def decode_launch(buffer: NDArray[np.uint8], recording: Recording, program: Program) -> Launch:
    """Decode a whole launch and pair its records up; raises `UsageError` for a buffer that is not this program's."""
    return Launch(decode(buffer, recording), program, recording.warps)


def read_timeline(
    launch: Launch,
    *,
    variant: str,
    label: str,
    workload: str,
    environment: Environment,
    override_sha256: str,
    overhead: OverheadRecord,
    orders: Orders,
) -> Timeline:
    """Everything that `<variant>.timeline.json` holds."""
    period = analysis.period(launch)
    boundary = analysis.boundary(launch, period.median)
    regions = analysis.region_times(launch)
    blocks = analysis.sample(launch)
    bubbles, in_flight = analysis.bubbles(launch, blocks, period.median)
    hidden = analysis.hidden_arithmetic(launch, blocks)
    bound = launch.flop_per_trip() / analysis.DENSE_FLOP_PER_CYCLE
    clock_mhz = launch.clock_mhz()
    first, last = launch.lifetimes()
    measured = (launch.records.end_ns - launch.records.start_ns) * clock_mhz / 1e3
    consumers = analysis.consumers(launch)
    pipelined = hidden.under_own_wgmma > hidden.cycles / 2
    differences = [
        _in_words(difference.after, difference.plain, difference.traced) for difference in orders.differences
    ]
    return Timeline(
        variant=variant,
        label=label,
        workload=workload,
        environment=environment,
        override_sha256=override_sha256,
        clock_mhz=clock_mhz,
        blocks=launch.records.n_blocks,
        iterations=launch.trips(consumers[0]),
        period_cycles=QuantilesRecord(**asdict(period)),
        tile_boundary_cycles=QuantilesRecord(**asdict(boundary)) if boundary else None,
        regions=[
            RegionRecord(
                warp_group=region.warp_group,
                name=region.name,
                kind=region.kind,
                cycles=QuantilesRecord(**asdict(region.cycles)),
                share=region.share,
            )
            for region in regions
        ],
        lifetime_covered=float(np.median((last - first) / measured)),
        tensor_core_busy=TensorCoreBusy(at_issue_rate=bound / period.median, in_flight=in_flight, bound_cycles=bound),
        softmax=SoftmaxRecord(**asdict(hidden)),
        bubbles=[BubbleRecord(**asdict(bubble)) for bubble in bubbles],
        critical_path=[PathRecord(**asdict(part)) for part in analysis.critical_path(launch, blocks)],
        model=models(regions, consumers, bound, period.median, pipelined=pipelined),
        overhead=overhead,
        records=RecordCount(written=launch.records.written, lost=launch.records.lost),
        sass_order=SassOrder(
            plain=orders.plain, traced=orders.traced, same=not differences, differences=list(dict.fromkeys(differences))
        ),
    )


def _in_words(after: str, plain: str, traced: str) -> str:
    return f"after {after}: {plain or 'nothing'} in the plain kernel, {traced or 'nothing'} in the traced one"


def export(launch: Launch, clock_mhz: float, about: dict[str, str]) -> str:
    """The Chrome trace of a few blocks, EXPORTED_PERCENTILES of the lifetime.

    Of a block that computes several tiles it shows the middle one and how the next begins. Raises `UsageError` if no
    block is whole.
    """
    whole = launch.whole_blocks()
    if not len(whole):
        raise UsageError("no block of the trace is whole: its records were overwritten; use a larger buffer")
    first, last = launch.lifetimes()
    by_lifetime = whole[np.argsort((last - first)[whole], kind="stable")]
    chosen = by_lifetime[[round(p / 100 * (len(by_lifetime) - 1)) for p in EXPORTED_PERCENTILES]]
    blocks = list(launch.blocks(np.unique(chosen)))
    windows = [analysis.exported_window(block, analysis.consumers(launch)) for block in blocks]
    typical = launch.records.program_id[chosen[len(chosen) // 2]]
    rule = f"blocks at percentiles {', '.join(map(str, EXPORTED_PERCENTILES))} of the lifetime of all blocks"
    if any(window != (block.start, block.end) for block, window in zip(blocks, windows, strict=True)):
        rule += "; of each, the tile in the middle and the first trips of the next"
    chosen_by = {"chosen": rule, "typical_block": int(typical)}
    return chrome.export(blocks, windows, launch.program, clock_mhz, about | chosen_by)
