"""The export follows the Trace Event Format to the letter, and the checker would notice if it did not."""

import json
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from kperf.errors import UsageError
from kperf.report import chrome
from kperf.report.chrome import export
from kperf.trace.analyze.read import decode_launch
from kperf.trace.analyze.timeline import Launch
from tests.trace.analyze.synthetic import encode, probes_of, recording_of
from tests.trace.analyze.test_analysis import PROGRAM, RECORDING, launch

from .trace_event_format import problems

TRACE = export(launch(ctas=5, delay=1100), 1700.0, {"variant": "vanilla"}).text


def test_the_export_is_a_trace():
    assert problems(TRACE) == []


def test_everything_is_there():
    document = json.loads(TRACE)
    events = document["traceEvents"]
    kinds = {event["ph"] for event in events}
    assert kinds >= {"X", "M", "b", "e"}
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert names == {"consumer 0", "consumer 1", "producer", "tensor core", "loads"}
    assert "MHz" in document["otherData"]["clock"]
    softmax = next(event for event in events if event["name"] == "softmax")
    assert softmax["args"]["cycles"] == 1000
    assert softmax["dur"] == pytest.approx(1000 / 1700, abs=1e-3)


def test_what_is_in_flight_stands_where_its_cycles_say():
    """Beside the regions of its CTA, whose cycles are counted from the CTA's first record too."""
    events = json.loads(TRACE)["traceEvents"]
    begins = {
        event["args"]["cta"]: event["ts"] - event["args"]["start"] / 1700 for event in events if event["ph"] == "X"
    }
    ends = {(event["cat"], event["id"]): event["ts"] for event in events if event["ph"] == "e"}
    begun = [event for event in events if event["ph"] == "b"]
    assert {event["cat"] for event in begun} == {"MMA", "load in flight"}
    for event in begun:
        cta, start, cycles = (event["args"][name] for name in ("cta", "start", "cycles"))
        assert event["ts"] == pytest.approx(begins[cta] + start / 1700, abs=2e-3)
        assert ends[event["cat"], event["id"]] - event["ts"] == pytest.approx(cycles / 1700, abs=2e-3)


def test_arrows_lead_from_what_released_a_wait_to_the_wait():
    slow = export(launch(load_cycles=6000), 1700.0, {}).text
    assert problems(slow) == []
    events = json.loads(slow)["traceEvents"]
    arrows = [event for event in events if event["ph"] in "sf"]
    assert {event["name"] for event in arrows} == {"signal", "load Q", "load K", "load V"}
    assert len(arrows) > 10
    in_flight = {ph: {(e["pid"], e["name"], e["ts"]) for e in events if e["ph"] == ph} for ph in "be"}
    for event in arrows:
        if event["name"] != "signal":  # it begins in the slice that begins with the load, and ends before its wait does
            begins = event["ph"] == "s"
            off = [
                ts - event["ts"]
                for pid, name, ts in in_flight["b" if begins else "e"]
                if (pid, name) == (event["pid"], event["name"])
            ]
            assert min(off, key=abs) == pytest.approx(0 if begins else 1 / 1700, abs=2e-4)


def test_the_arrow_of_a_load_with_which_a_track_ends_lies_in_its_last_slice():
    """Where a CTA is cut off, or its producer records nothing after its last load."""
    (cta,) = launch(load_cycles=6000).ctas(np.arange(1))
    spans = cta.spans["producer"]
    last = max(place for place, span in enumerate(spans) if span.interval.kind == "wait" and span.interval.loads)
    cut = replace(cta, spans=cta.spans | {"producer": spans[: last + 1]})
    end = spans[last].end
    events = chrome._cta_events(cut, (cta.start, cta.end), PROGRAM, 1700.0, 0.0)
    begun = [event["ts"] for event in events if event["ph"] == "s" and event["name"] == "load V"]
    assert max(begun) == pytest.approx((end - 1 - cta.start) / 1700, abs=2e-4)


ITERATIONS = 30_000


@pytest.fixture(scope="module")
def long_launch():
    """Two CTAs of more than half a million records each, a step of 100 cycles from record to record."""
    recording = recording_of(PROGRAM, bytes_per_warp=1 << 24, memory="global")
    probes = [probes_of(PROGRAM, group, ITERATIONS) for group in ("consumer 0", "consumer 1", "producer")]
    cta = [[(*probe, 100 * place) for place, probe in enumerate(warp)] for warp in probes]
    assert sum(map(len, cta)) > 500_000
    return decode_launch(encode([cta, cta], recording), recording, PROGRAM)


def test_a_trace_of_just_the_most_bytes_is_not_cut(monkeypatch):
    whole = export(launch(ctas=1), 1700.0, {})
    monkeypatch.setattr(chrome, "EXPORTED_BYTES", len(whole.text))
    assert export(launch(ctas=1), 1700.0, {}) == whole
    monkeypatch.setattr(chrome, "EXPORTED_BYTES", len(whole.text) - 1)
    assert len(export(launch(ctas=1), 1700.0, {}).text) < len(whole.text)


def test_the_trace_of_a_launch_of_a_million_records_is_small_and_says_what_it_shows(long_launch):
    found = export(long_launch, 1700.0, {})
    assert 1_000_000 < len(found.text) < 2_000_000
    assert problems(found.text) == []
    document = json.loads(found.text)
    assert document["otherData"]["shows"] == found.shows
    shown = re.fullmatch(
        rf"2 of 2 CTAs: CTA 0 iterations (\d+) to (\d+) of {ITERATIONS}, CTA 1 iterations .*", found.shows
    )
    first, last = map(int, shown.groups())
    assert last - first > 100
    spans = [event for event in document["traceEvents"] if event["ph"] == "X" and event["args"]["cta"] == 0]
    for tid in (1, 2):
        iterations = Counter(span["args"]["iteration"] for span in spans if span["tid"] == tid)
        assert set(range(first - 1, last)) <= set(iterations)
        assert {iterations[iteration] for iteration in range(first - 1, last)} == {8}


def test_of_an_iteration_that_is_too_long_the_beginning_is_shown(long_launch, monkeypatch):
    without = Launch(long_launch.events, PROGRAM, RECORDING.warps)
    monkeypatch.setattr(without, "in_loop", np.zeros_like(long_launch.in_loop))
    found = export(without, 1700.0, {})
    assert 1_000_000 < len(found.text) < 2_000_000
    assert problems(found.text) == []
    assert found.shows.startswith("2 of 2 CTAs: CTA 0 from cycle 0 to ")


def damage(change) -> str:
    document = json.loads(TRACE)
    change(document["traceEvents"])
    return json.dumps(document)


def first(events, ph):
    return next(event for event in events if event["ph"] == ph)


@pytest.mark.parametrize(
    "change",
    [
        lambda events: events.reverse(),
        lambda events: first(events, "X").pop("dur"),
        lambda events: first(events, "X").update(pid="SM 0"),
        lambda events: first(events, "X").update(dur=1e6),
        lambda events: first(events, "X").update(tid=77),
        lambda events: events.remove(first(events, "e")),
        lambda events: events.remove(first(events, "b")),
        lambda events: first(events, "M").update(args={}),
        lambda events: first(events, "X").update(ph="?"),
        lambda events: first(events, "X").update(ts=-1),
    ],
)
def test_the_checker_notices(change):
    assert problems(damage(change))


def test_a_clock_that_stands_still_is_refused_in_a_sentence():
    still = launch(ctas=2)
    still.events.clock[:] = 5
    assert still.clock_mhz() > 0  # the CTAs' own cycles tell it
    still.events.cycle[:] = 0
    damaged = Launch(still.events, PROGRAM, RECORDING.warps)
    with pytest.raises(UsageError, match="the SM clock stands still in the trace") as error:
        damaged.clock_mhz()
    assert "\n" not in str(error.value)


def moved(cta, cycles, ns, program_id):
    """The same CTA, its SM's counter and the global timer so much later."""
    spans = {
        group: [replace(span, start=span.start + cycles, end=span.end + cycles) for span in spans]
        for group, spans in cta.spans.items()
    }
    return replace(cta, spans=spans, start_ns=cta.start_ns + ns, program_id=program_id)


@pytest.mark.parametrize(
    ("later_cycles", "lanes"),
    [((1000, 2000), [0, 1, 2]), ((0, 10**7), [0, 1, 0]), ((10**7, 2 * 10**7), [0, 0, 0]), ((10**7, 10**7), [0, 1, 1])],
    ids=["all three at once", "the third after both", "one after another", "two after the first"],
)
def test_ctas_that_are_on_an_sm_at_the_same_time_have_tracks_of_their_own(later_cycles, lanes):
    (cta,) = launch().ctas(np.arange(1))
    later = [moved(cta, cycles, cycles * 10 // 17, 7 + n) for n, cycles in enumerate(later_cycles)]
    ctas = [cta, *later]
    if lanes == [0, 1, 1]:  # given in another order
        ctas, lanes = ctas[1:] + ctas[:1], [0, 1, 0]
    text = chrome.text_of(ctas, [(one.start, one.end) for one in ctas], PROGRAM, 1700.0, {})
    assert problems(text) == []
    events = json.loads(text)["traceEvents"]
    expected = Counter()
    for one, lane in zip(ctas, lanes, strict=True):
        first = (one.start_ns - min(b.start_ns for b in ctas)) / 1e3
        starts = [e for e in events if e["ph"] == "X" and e["tid"] == 1 + 1000 * lane and e["ts"] >= first - 1e-3]
        expected[lane] += 1
        assert min(e["ts"] for e in starts) == pytest.approx(first, abs=1e-3)
    slices = Counter(e["tid"] // 1000 for e in events if e["ph"] == "X")
    per_cta = sum(span.cycles > 0 for spans in cta.spans.values() for span in spans)
    assert slices == {lane: count * per_cta for lane, count in expected.items()}
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names[1] == "consumer 0"
    assert {tid // 1000 for tid in names} == set(lanes)
    assert names.get(1100, "tensor core, CTA 2") == "tensor core, CTA 2"


def test_no_time_is_negative_and_the_first_cta_begins_at_nought():
    (cta,) = launch().ctas(np.arange(1))
    earlier = replace(moved(cta, 500, 0, 9), sm=cta.sm + 1, start_ns=cta.start_ns - 70_000)
    ctas = [cta, earlier]
    events = json.loads(chrome.text_of(ctas, [(b.start, b.end) for b in ctas], PROGRAM, 1700.0, {}))["traceEvents"]
    begins = {sm: min(e["ts"] for e in events if e["ph"] == "X" and e["pid"] == sm) for sm in (cta.sm, earlier.sm)}
    assert begins == {earlier.sm: 0.0, cta.sm: pytest.approx(70.0, abs=1e-3)}
    assert min(event["ts"] for event in events) >= 0
