"""From the bytes of a profile buffer to the timeline that is kept."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.record.files import named_from
from kperf.trace.analyze import analysis, views
from kperf.trace.analyze.decode import decode
from kperf.trace.analyze.facts import concluded
from kperf.trace.analyze.finding import Source
from kperf.trace.analyze.models import About, EventCount, SassOrder, Timeline, UnitUse
from kperf.trace.analyze.timeline import Cta, Launch, Neighbours
from kperf.trace.analyze.whatif import what_if
from kperf.trace.capture.traced import Orders
from kperf.trace.instrument.program import Program
from kperf.trace.instrument.sampled import Sample
from kperf.trace.instrument.session import Recording

TYPICAL_PERCENTILES = (5, 50, 95)
"""The CTAs that stand for all: those whose lifetime is at these percentiles of all CTAs' lifetimes."""


def decode_launch(
    buffer: NDArray[np.uint8], recording: Recording, program: Program, sample: Sample | None = None
) -> Launch:
    """Decode a launch and pair its events up; raises `UsageError` for a buffer that is not this program's.

    `sample`: the CTAs that were recorded; None: all of them.
    """
    return Launch(decode(buffer, recording, sample), program, recording.warps)


def with_sources_from(folder: Path, timeline: Timeline) -> Timeline:
    """The timeline with the files of its regions named from the folder of the command, wherever the script went."""

    def named(source: Source | None) -> Source | None:
        return source and source.model_copy(update={"file": named_from(folder, source.file)})

    regions = [region.model_copy(update={"source": named(region.source)}) for region in timeline.regions]
    return timeline.model_copy(update={"regions": regions})


def timeline(launch: Launch, about: About) -> Timeline:
    """The timeline of any kernel, in the view that its events ask for.

    Raises `UsageError` if no CTA of the launch is whole.
    """
    made = _by_iteration(launch, about) if views.has_pipeline(launch) else by_cta(launch, about)
    if about.sampled is None:  # how CTAs differ and what the last ones do, a sample does not show
        view = views.choose(launch)
        imbalance = views.Ctas(launch).imbalance() if view == "imbalance" else None
        made = made.model_copy(update={"view": view, "imbalance": imbalance})
    return concluded(made, analysis.unit_cycles(launch))


def pipeline(launch: Launch, about: About) -> Timeline:
    """The timeline of a kernel with MMAs.

    Raises `UsageError` if no warp group issues MMAs in a loop, or no CTA of the launch is whole.
    """
    return concluded(_by_iteration(launch, about), analysis.unit_cycles(launch))


def _by_iteration(launch: Launch, about: About) -> Timeline:
    iteration_time = analysis.iteration_time(launch)
    ctas = analysis.sample(launch)
    of_ctas = analysis.bubbles(launch, [*map(Neighbours.alone, ctas)], iteration_time.median) or ([], 0.0)
    typical = np.unique(at_percentiles(launch, TYPICAL_PERCENTILES))
    sms = [] if about.sampled else shared(launch, typical)
    followed = shared(launch, analysis.sampled(launch)[:: max(len(sm.residents) for sm in sms)]) if sms else []
    of_sms = analysis.bubbles(launch, followed, iteration_time.median)
    bound = analysis.bound(launch)
    flop_per_cycle = sum(mma.flop for mma in launch.mmas_per_iteration()) / bound.cycles
    issuers = analysis.issuers(launch)
    alone = [*map(Neighbours.alone, launch.ctas(typical))]
    graph, rows, self_times = what_if(sms or alone, launch.program, flop_per_cycle)
    common = _of_any_kernel(launch, about)
    common["regions"] = [
        region.model_copy(update={"self_cycles": self_times.get((region.warp_group, region.name))})
        for region in common["regions"]
    ]
    of_sm = None
    if about.sampled is None:
        of_sm = analysis.unit_use_of_sm(launch, at_percentiles(launch, [50]).tolist())
    use = UnitUse(
        sm=None,
        sm_recorded=of_sm[0] if of_sm else None,
        cta_main_loop=bound.cycles / iteration_time.median,
        in_flight_cta=of_ctas[1],
        in_flight_sm=of_sm[1] if of_sm else None,
    )
    return Timeline(
        **common,
        view="pipeline",
        unit="iteration",
        units=launch.iterations(issuers[0]),
        cycles_per_unit=iteration_time,
        tile_boundary_cycles=analysis.boundary(launch, iteration_time.median),
        bound=bound,
        mma_use=use if common["unit_of_compute"] == "tensor core" else None,
        fma_use=use if common["unit_of_compute"] == "fma" else None,
        arithmetic=analysis.hidden_arithmetic(launch, ctas),
        load_wait=views.load_wait(launch, iteration_time.median),
        bubbles=(of_sms or of_ctas)[0],
        bubbles_of="SM" if of_sms else "CTA",
        replay=graph,
        what_if=rows,
        windows=analysis.windows(_typical(launch), issuers),
        memory=None if launch.events.lost else views.memory(launch, about),
    )


def by_cta(launch: Launch, about: About) -> Timeline:
    """The timeline of a kernel without MMAs in a loop: bytes, and where a CTA's time goes.

    Raises `UsageError` if no CTA of the launch is whole.
    """
    typical = _typical(launch)
    first, last = launch.lifetimes
    return Timeline(
        **_of_any_kernel(launch, about),
        view="memory",
        unit="CTA",
        units=launch.events.n_ctas,
        cycles_per_unit=analysis.quantiles((last - first)[launch.whole_ctas]),
        bound=None,
        mma_use=None,
        arithmetic=None,
        bubbles=[],
        bubbles_of="CTA",
        windows=[views.cta_window(typical)],
        memory=views.memory(launch, about),
    )


def _of_any_kernel(launch: Launch, about: About) -> dict[str, Any]:
    """What every view's timeline holds."""
    clock_mhz = launch.clock_mhz()
    whole = launch.whole_ctas
    first, last = launch.lifetimes
    measured = (launch.events.end_ns - launch.events.start_ns)[whole] * clock_mhz / 1e3
    covered = (last - first)[whole] / np.maximum(measured, 1)  # the timer may stand still in a short CTA
    return dict(about) | {
        "roles": analysis.roles(launch),
        "unit_of_compute": analysis.unit_of_compute(launch.program),
        "regions": analysis.region_times(launch),
        "ctas": launch.events.n_ctas,
        "clock_mhz": clock_mhz,
        "lifetime_covered": float(np.median(covered)) if len(whole) else 0.0,
        "sms": views.Ctas(launch).sm_use() if about.sampled is None else None,
        "events": EventCount(written=launch.events.written, lost=launch.events.lost),
    }


def _typical(launch: Launch) -> Cta:
    """The CTA of median lifetime. Raises `UsageError` if none is whole."""
    return next(launch.ctas(at_percentiles(launch, [50])))


def shared(launch: Launch, chosen: NDArray[np.int64]) -> list[Neighbours]:
    """Of chosen CTAs the SMs, with all that share them; none where nobody does, or events of one were lost."""
    sms = [launch.neighbours(number) for number in chosen.tolist()]
    known = [sm for sm in sms if sm is not None]
    return known if len(known) == len(sms) and any(sm.together > 1 for sm in known) else []


def sass_order(orders: Orders) -> SassOrder:
    """Both orders, and where they differ, in words."""
    words = [
        f"after {d.after}: {d.original or 'nothing'} in the original kernel, {d.instrumented or 'nothing'} in the "
        "instrumented one"
        for d in orders.differences
    ]
    return SassOrder(
        original=orders.original,
        instrumented=orders.instrumented,
        same=not words,
        differences=list(dict.fromkeys(words)),
    )


def at_percentiles(launch: Launch, percentiles: Sequence[int]) -> NDArray[np.int64]:
    """Of the whole CTAs that work those at percentiles of the lifetime. Raises `UsageError` if there is none."""
    whole = views.Ctas(launch).working
    if not len(whole):
        raise UsageError(
            "no CTA of the trace is whole, because its last events overwrote its first ones: launch the kernel three "
            "times, or give --samples, so that kperf launches it again with room for all events"
        )
    first, last = launch.lifetimes
    by_lifetime = whole[np.argsort((last - first)[whole], kind="stable")]
    return by_lifetime[[round(p / 100 * (len(whole) - 1)) for p in percentiles]]
