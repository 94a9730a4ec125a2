"""A checker of the Trace Event Format, to the letter of Google's document, for the events that we write."""

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

REQUIRED = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "b": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "e": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "s": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
    "f": {"name", "cat", "ph", "ts", "pid", "tid", "id"},
}
METADATA_ARGS = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}


def problems(text: str) -> list[str]:
    """What is wrong with a trace; an empty list if nothing is."""
    document = json.loads(text)
    events: list[dict[str, Any]] = document["traceEvents"]
    found = []
    for number, event in enumerate(events):
        missing = REQUIRED.get(event.get("ph"), {"a known ph"}) - event.keys()
        if missing:
            found.append(f"event {number} ({event.get('ph')}) lacks {sorted(missing)}")
        for key in ("pid", "tid"):
            if not isinstance(event.get(key), int):
                found.append(f"event {number}: {key} is not an integer")
        for key in ("ts", "dur"):
            if key in event and (not isinstance(event[key], int | float) or event[key] < 0):
                found.append(f"event {number}: {key} is {event[key]!r}")
        if event.get("ph") == "M" and METADATA_ARGS.get(event.get("name")) not in event.get("args", {}):
            found.append(f"event {number}: metadata {event.get('name')} without its argument")
    if found:
        return found
    return [
        *_order(events),
        *_overlaps(events),
        *_pairs(events, "b", "e"),
        *_pairs(events, "s", "f"),
        *_named(events),
        *_bound(events),
    ]


def _order(events: list[dict[str, Any]]) -> list[str]:
    times = [event["ts"] for event in events if event["ph"] != "M"]
    return [] if times == sorted(times) else ["events are not in the order of ts"]


def _tracks(events: list[dict[str, Any]]) -> dict[tuple[int, int], list[dict[str, Any]]]:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def _overlaps(events: list[dict[str, Any]]) -> list[str]:
    found = []
    for track, slices in _tracks(events).items():
        for before, after in pairwise(slices):
            if before["ts"] + before["dur"] > after["ts"]:  # as viewers compute it: not even by a rounding
                found.append(f"{before['name']} and {after['name']} overlap on track {track} at {after['ts']}")
    return found


def _pairs(events: list[dict[str, Any]], begin: str, end: str) -> list[str]:
    opened: dict[tuple[Any, ...], dict[str, Any]] = {}
    found = []
    for event in sorted(events, key=lambda e: (e["ts"], e["ph"] == end)):
        key = (event.get("cat"), event.get("id"), event["name"])
        if event["ph"] == begin:
            if key in opened:
                found.append(f"{key} begins twice")
            opened[key] = event
        elif event["ph"] == end and opened.pop(key, None) is None:
            found.append(f"{key} ends without a begin before it")
    return found + [f"{key} does not end" for key in opened]


def _named(events: list[dict[str, Any]]) -> list[str]:
    names = {(event["name"], event["pid"], event["tid"]) for event in events if event["ph"] == "M"}
    processes = {pid for name, pid, _ in names if name == "process_name"}
    threads = {(pid, tid) for name, pid, tid in names if name == "thread_name"}
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] != "M"}
    return [f"track {track} has no name" for track in used if track not in threads or track[0] not in processes]


def _bound(events: list[dict[str, Any]]) -> list[str]:
    """Both ends of an arrow lie in a slice of their thread."""
    tracks = _tracks(events)
    found = []
    for event in events:
        if event["ph"] not in ("s", "f"):
            continue
        slices = tracks[event["pid"], event["tid"]]
        if not any(s["ts"] <= event["ts"] <= s["ts"] + s["dur"] for s in slices):
            found.append(f"flow {event['ph']} {event['id']} lies in no slice")
    return found
