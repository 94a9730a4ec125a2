"""The export follows the Trace Event Format to the letter, and the checker would notice if it did not."""

import json

import pytest

from kperf.trace.reading.read import export

from .test_analysis import launch
from .trace_event_format import problems

TRACE = export(launch(blocks=5, delay=1100), 1700.0, {"variant": "vanilla"})


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


def test_arrows_lead_from_what_released_a_wait_to_the_wait():
    slow = export(launch(load_cycles=6000), 1700.0, {})
    assert problems(slow) == []
    arrows = [event for event in json.loads(slow)["traceEvents"] if event["ph"] in "sf"]
    assert len(arrows) > 10


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
