"""Export CTAs of a launch in the Trace Event Format, for Perfetto, speedscope and chrome://tracing.

One clock: a CTA is placed by the global timer, and inside it everything is SM cycles turned into microseconds by the
measured SM frequency; `otherData` says so. A process is an SM, a thread a warp group; CTAs that are on an SM at the
same time have threads of their own, since slices of one thread may not overlap. Asynchronous MMAs are async events
from issue to completion; flow arrows lead to a wait from what its end hangs on.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kperf.trace.analyze import analysis
from kperf.trace.analyze.read import TYPICAL_PERCENTILES, at_percentiles
from kperf.trace.analyze.timeline import Cta, Launch
from kperf.trace.instrument.program import Program
from kperf.trace.results import Exported

Event = dict[str, Any]

EXPORTED_BYTES = 1_900_000
"""Of a Chrome trace: it stays small enough for a repository, and opens at once."""

_LEAST_BYTES_OF_A_SPAN = 120
"""In the text, with the shortest of names."""

TICKS_PER_US = 4096
"""Times are multiples of a power of two of a microsecond, a quarter of a nanosecond: so ts + dur is exact in a viewer's
floating point, and a slice never seems to reach into the next."""

TENSOR_CORE_TID = 100
"""Thread id under which a process's MMAs are; warp groups count from 1."""

LOADS_TID = 101
"""Thread id under which its loads are: from the issue to the end of the first wait for what is loaded."""

LANE_TIDS = 1000
"""Thread ids of the first CTA on an SM; the next one that is there at the same time has so many more."""


def export(launch: Launch, clock_mhz: float, about: Mapping[str, object]) -> Exported:
    """The Chrome trace of a few CTAs, TYPICAL_PERCENTILES of the lifetime, in at most EXPORTED_BYTES.

    Of a CTA that computes several tiles it shows the middle one and how the next begins, of a long one whole iterations
    from the middle of that. Raises `UsageError` if no CTA is whole.
    """
    numbers = np.unique(chosen := at_percentiles(launch, TYPICAL_PERCENTILES))
    ctas, groups = list(launch.ctas(numbers)), analysis.looping(launch)
    about = dict(about) | {
        "chosen": f"CTAs at percentiles {', '.join(map(str, TYPICAL_PERCENTILES))} of the lifetime of all CTAs",
        "typical_cta": int(launch.events.program_id[chosen[len(chosen) // 2]]),
    }
    most_bytes, span_bytes = EXPORTED_BYTES, _LEAST_BYTES_OF_A_SPAN
    while True:
        most_spans = most_bytes // (span_bytes * len(ctas))
        windows = [analysis.exported_window(cta, groups, most_spans) for cta in ctas]
        parts = [_part(launch, *shown, groups) for shown in zip(numbers.tolist(), ctas, windows, strict=True)]
        shows = f"{len(ctas)} of {launch.events.n_ctas} CTAs: {', '.join(parts)}"
        text = text_of(ctas, windows, launch.program, clock_mhz, about | {"shows": shows})
        if len(text) <= EXPORTED_BYTES:
            return Exported(text, shows)
        most_bytes = most_bytes * EXPORTED_BYTES // len(text) * 9 // 10


def _part(launch: Launch, number: int, cta: Cta, window: tuple[int, int], groups: Sequence[str]) -> str:
    """What of a CTA is shown, in words."""
    name = f"CTA {cta.program_id}"
    first, last = (int(cycles[number]) for cycles in launch.lifetimes)
    if window == (first, last):
        return f"{name} whole"
    iterations = [*analysis.iteration_starts(cta, groups), (cta.end,)]
    whole = (
        window[0] <= min(iteration) and max(following) <= window[1] for iteration, following in pairwise(iterations)
    )
    shown = [place for place, inside in enumerate(whole, 1) if inside]
    if not shown:
        return f"{name} from cycle {window[0] - first} to {window[1] - first} of {last - first}"
    return f"{name} iterations {shown[0]} to {shown[-1]} of {launch.iterations_of_ctas(groups[0])[number]}"


def text_of(
    ctas: Sequence[Cta],
    windows: Sequence[tuple[int, int]],
    program: Program,
    clock_mhz: float,
    about: dict[str, Any],
) -> str:
    """The JSON text: of each CTA what goes on between two cycles, its window.

    `about` goes into `otherData`, beside what the clocks are and which CTAs were chosen.
    """
    origin_ns = min(cta.start_ns for cta in ctas)
    starts_us = [(cta.start_ns - origin_ns) / 1e3 for cta in ctas]
    lanes = _lanes(ctas, windows, starts_us, clock_mhz)
    events: list[Event] = []
    for cta, window, start_us, lane in zip(ctas, windows, starts_us, lanes, strict=True):
        events += _cta_events(cta, window, program, clock_mhz, start_us, lane)
    events.sort(key=lambda event: event["ts"])
    document = {
        "displayTimeUnit": "ns",
        "otherData": about
        | {
            "clock": f"ts: microseconds; global timer at a CTA's start + SM cycles / {clock_mhz:.1f} MHz (measured); "
            "args.start and args.cycles: SM cycles since the CTA's first event",
            "clock_mhz": clock_mhz,
            "pid": "SM",
            "tid": f"warp group (1 ..), tensor core ({TENSOR_CORE_TID}), loads ({LOADS_TID}); of the next CTA there "
            f"at the same time {LANE_TIDS} more",
            "ctas": [{"program_id": cta.program_id, "sm": cta.sm} for cta in ctas],
        },
        "traceEvents": [*_metadata(ctas, lanes), *events],
    }
    return json.dumps(document, separators=(",", ":")) + "\n"


def _lanes(
    ctas: Sequence[Cta], windows: Sequence[tuple[int, int]], starts_us: Sequence[float], clock_mhz: float
) -> list[int]:
    """For each CTA the first lane of its SM that is free while it is shown."""
    shown = [
        tuple(start_us + (cycle - cta.start) / clock_mhz for cycle in window)
        for cta, window, start_us in zip(ctas, windows, starts_us, strict=True)
    ]
    lanes = [0] * len(ctas)
    free: dict[tuple[int, int], float] = {}
    for place in sorted(range(len(ctas)), key=lambda place: shown[place]):
        start, end = shown[place]
        sm = ctas[place].sm
        while free.get((sm, lanes[place]), start) > start:
            lanes[place] += 1
        free[sm, lanes[place]] = end
    return lanes


def _metadata(ctas: Sequence[Cta], lanes: Sequence[int]) -> list[Event]:
    events = []
    for sm in sorted({cta.sm for cta in ctas}):
        numbers = ", ".join(str(cta.program_id) for cta in ctas if cta.sm == sm)
        events.append(_meta("process_name", sm, 0, {"name": f"SM {sm}, CTA {numbers}"}))
        events.append(_meta("process_sort_index", sm, 0, {"sort_index": sm}))
        names = [
            *enumerate(next(cta for cta in ctas if cta.sm == sm).spans, 1),
            (TENSOR_CORE_TID, "tensor core"),
            (LOADS_TID, "loads"),
        ]
        for lane in sorted({lane for cta, lane in zip(ctas, lanes, strict=True) if cta.sm == sm}):
            for number, name in names:
                tid = number + LANE_TIDS * lane
                events.append(_meta("thread_name", sm, tid, {"name": f"{name}, CTA {lane + 1}" if lane else name}))
                events.append(_meta("thread_sort_index", sm, tid, {"sort_index": tid}))
    return events


def _meta(name: str, pid: int, tid: int, args: dict[str, Any]) -> Event:
    return {"name": name, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}


def _cta_events(
    cta: Cta, window: tuple[int, int], program: Program, clock_mhz: float, start_us: float, lane: int = 0
) -> list[Event]:
    first = cta.start

    def at(cycle: int) -> float:
        return round((start_us + (cycle - first) / clock_mhz) * TICKS_PER_US) / TICKS_PER_US

    def shown(start: int, end: int) -> bool:
        return window[0] <= start and end <= window[1]

    tensor_core, in_flight = TENSOR_CORE_TID + LANE_TIDS * lane, LOADS_TID + LANE_TIDS * lane
    tids = {group: tid for tid, group in enumerate(cta.spans, 1 + LANE_TIDS * lane)}
    events: list[Event] = []
    for group, spans in cta.spans.items():
        for span in spans:
            if span.cycles <= 0 or not shown(span.start, span.end):
                continue
            args: Event = {
                "cta": cta.program_id,
                "iteration": span.iteration,
                "start": span.start - first,
                "cycles": span.cycles,
            }
            start = at(span.start)
            events.append(
                {"name": span.interval.name, "cat": span.interval.kind, "ph": "X", "ts": start}
                | {"dur": at(span.end) - start, "pid": cta.sm, "tid": tids[group], "args": args}
            )
    mmas = [mma for mma in cta.in_flight if shown(mma.start, mma.end)]
    for number, mma in enumerate(sorted(mmas, key=lambda mma: mma.start)):
        common = {"name": f"{mma.name} {mma.group}", "cat": "MMA", "pid": cta.sm, "tid": tensor_core}
        common["id"] = f"{cta.program_id}.{number}"
        args = {"cta": cta.program_id, "iteration": mma.iteration, "start": mma.start - first}
        args |= {"mma": mma.name, "warp_group": mma.group}
        args["cycles"] = mma.end - mma.start
        events.append(common | {"ph": "b", "ts": at(mma.start), "args": args})
        events.append(common | {"ph": "e", "ts": at(mma.end)})
    for number, load in enumerate(load for load in analysis.loads(cta) if shown(load.start, load.end)):
        common = {"name": f"load {load.buffer}", "cat": "load in flight", "pid": cta.sm, "tid": in_flight}
        common["id"] = f"{cta.program_id}.{number}"
        args = {"cta": cta.program_id, "start": load.start - first, "cycles": load.end - load.start}
        args |= {"iteration": None, "buffer": load.buffer, "warp_group": load.group}
        events.append(common | {"ph": "b", "ts": at(load.start), "args": args})
        events.append(common | {"ph": "e", "ts": at(load.end)})
    starts = {group: {span.start for span in spans} for group, spans in cta.spans.items()}
    for number, ((group, index), release) in enumerate(analysis.releases(cta, program).items()):
        span = cta.spans[group][index]
        if not (shown(span.start, span.end) and shown(release.cycle, release.cycle + 1)):
            continue
        common = {
            "name": release.load or "signal",
            "cat": "dependency",
            "id": f"{cta.program_id}.{number}",
            "pid": cta.sm,
        }
        # An arrow binds to the slices that its ends lie in: what ends there, or what begins there if it is a load's.
        begins = release.load is not None and release.cycle in starts[release.group]
        events.append(common | {"ph": "s", "ts": at(release.cycle - (not begins)), "tid": tids[release.group]})
        events.append(common | {"ph": "f", "bp": "e", "ts": at(span.end - 1), "tid": tids[group]})
    return events
