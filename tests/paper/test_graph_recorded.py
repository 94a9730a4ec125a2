"""The graph of what hangs on what, held against the CTAs in the recorded Chrome traces."""

import gzip
import json
from collections import defaultdict
from fnmatch import fnmatchcase
from itertools import zip_longest
from typing import Any

import pytest

from kperf.ir import offline
from kperf.ir.compile import named_ttgir
from kperf.paper import examples
from kperf.record.store import RECORDED
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.analyze.replay import Assumptions
from kperf.trace.analyze.timeline import Cta, Neighbours, Span
from kperf.trace.analyze.whatif import Sms
from kperf.trace.instrument.events import instrument, read_rules
from kperf.trace.instrument.program import Interval, Probe, Program, read_program

FOLDER = RECORDED / "h200" / "examples"

IN_PART = {"gemm_persistent_ws"}
"""Its CTAs are too long for a Chrome trace."""
GRAPHS = {
    name: replay
    for name in examples.names()
    if name not in IN_PART
    and (path := FOLDER / f"{name}.timeline.json").exists()
    and (replay := read_timeline(path).replay)
    and replay.together == 1  # of CTAs that share an SM the Chrome trace has three
}


def program_of(name: str) -> Program:
    """With all records, as its instrumented kernel was recorded."""
    script = next(script for script in examples.EXAMPLES if name in script.kernels)
    launched = offline.launched_by(script.path, script.small)
    kernel = next(one.kernel for one in launched if fnmatchcase(one.name, script.kernels[name]))
    rules = read_rules()
    return read_program(instrument(named_ttgir(kernel.asm["ttgir"]), rules=rules), rules)


def ctas_of(name: str, program: Program) -> list[Cta]:
    """Those of the Chrome trace, each shown whole."""
    document = json.loads(gzip.decompress((FOLDER / f"{name}.chrome_trace.json.gz").read_bytes()))
    named = [event for event in document["traceEvents"] if event["name"] == "thread_name"]
    groups = {(event["pid"], event["tid"]): event["args"]["name"] for event in named}
    found: dict[tuple[int, int], dict[str, list[dict[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["args"]["cta"]][groups[event["pid"], event["tid"]]].append(event)
    return [
        Cta(number, sm, 0, {group.name: spans(mine[group.name], program, group.name) for group in program.groups})
        for (sm, number), mine in found.items()
    ]


def spans(events: list[dict[str, Any]], program: Program, group: str) -> list[Span]:
    """Of intervals of one name the one that begins where the last ended, and ends where the next can begin."""
    named: dict[str, dict[tuple[Probe, Probe], Interval]] = defaultdict(dict)
    for probes, interval in program.intervals.items():
        if interval.group == program.code(group):
            named[interval.name][probes] = interval
    events = sorted(events, key=lambda event: event["args"]["start"])
    made, at = [], None
    for event, following in zip_longest(events, events[1:]):
        opens = {first for first, _ in named[following["name"]]} if following else set()
        fits = {probes: one for probes, one in named[event["name"]].items() if at in (None, probes[0])}
        probes = next((probes for probes in fits if probes[1] in opens), None) or next(iter(fits))
        at, args = probes[1], event["args"]
        made.append(Span(fits[probes], args["start"], args["start"] + args["cycles"], args["iteration"]))
    return made


@pytest.mark.parametrize("name", GRAPHS)
def test_the_graph_gives_the_recorded_iteration_time_back(name: str):
    """Where loads and MMAs are now early and now late too, as in attention_backward_kv."""
    recorded = GRAPHS[name]
    program = program_of(name)
    sms = Sms([*map(Neighbours.alone, ctas_of(name, program))], program)
    likely = Assumptions(sms.load_cycles, recorded.flop_per_cycle)
    measured, own, _ = sms.fit(likely)
    assert (measured, likely.load_cycles) == (recorded.measured_cycles, recorded.load_cycles)
    assert sms.iteration_time(likely, own) == pytest.approx(measured, rel=0.03)
