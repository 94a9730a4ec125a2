"""Timelines of version 1, which knew one kernel and left the bars of its figure to the Chrome trace beside it."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from kperf.trace.analyze import recorded
from kperf.trace.analyze.models import Timeline

WINDOW_TRIPS = 5
_TRACKS = {"wgmma": "products", "tma": "loads"}

Json = dict[str, Any]


def read_timeline(path: Path) -> Timeline:
    """A timeline of this kernel, of either version. Raises `UsageError` if it is missing, or not a timeline."""
    return recorded.read_timeline(path, upgrade)


def upgrade(old: Json, path: Path) -> Json:
    """The record of version 2 with what version 1 knew, and the bars of the Chrome trace beside its file.

    Raises OSError, ValueError, LookupError, TypeError or AttributeError for anything else.
    """
    trace = json.loads(path.with_name(path.name.replace(".timeline.", ".chrome_trace.")).read_text())
    groups = list(dict.fromkeys(region["warp_group"] for region in old["regions"]))
    passes = [{"regions": ["*"], "overhead": old["overhead"], "sass_order": old["sass_order"]}]
    kept = ("label", "workload", "environment", "overhead", "clock_mhz", "blocks", "period_cycles", "records")
    same = {name: old[name] for name in (*kept, "tile_boundary_cycles", "lifetime_covered")}
    busy, softmax = old["tensor_core_busy"], old["softmax"]
    return same | {
        "kernel": "attn_fwd",
        "file": "kperf/attention/kernels/attn_fwd.py",
        "ttgir_sha256": old["override_sha256"],
        "grid": [old["blocks"]],
        "blocks_per_sm": None,
        "resources": None,
        "passes": passes,
        "view": "pipeline",
        "roles": [
            {"warp_group": group, "duty": "loads" if group == "producer" else "products"}
            | {"first_warp": 4 * place, "num_warps": 1 if group == "producer" else 4}
            for place, group in enumerate(groups)
        ],
        "regions": [region | {"per_trip": None} for region in old["regions"]],
        "unit": "trip",
        "units": old["iterations"],
        "bound": {"cycles": busy["bound_cycles"], "dtype": "bf16"},
        "tensor_core_busy": {name: busy[name] for name in ("at_issue_rate", "in_flight")},
        "arithmetic": {
            "cycles": softmax["cycles"],
            "under_own_products": softmax["under_own_wgmma"],
            "under_any_products": softmax["under_any_wgmma"],
        },
        "bubbles": [{"cause": b["cause"], "cycles": b["cycles_per_iteration"]} for b in old["bubbles"]],
        "windows": _windows(_bars(trace)),
    }


def _bars(trace: Json) -> list[Json]:
    about = trace["otherData"]
    sm = {block["program_id"]: block["sm"] for block in about["blocks"]}[about["typical_block"]]
    events = [event for event in trace["traceEvents"] if event["pid"] == sm]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    bars = []
    for event in events:
        args = event.get("args", {})
        if event["ph"] not in ("X", "b") or args["block"] != about["typical_block"]:
            continue
        track = _TRACKS.get(event["cat"], "warps")
        name, group, kind = event["name"], rows[event["tid"]], event["cat"]
        if track == "products":
            name, _, group = name.partition(" ")
            kind = "tensor"
        elif track == "loads":
            name, group, kind = name.removeprefix("load "), "producer", "load"
        bars.append(
            {"track": track, "warp_group": group, "name": name, "kind": kind, "start": args["start"]}
            | {"cycles": args["cycles"], "trip": args["iteration"]}
        )
    return bars


def _windows(bars: list[Json]) -> list[Json]:
    first = min(bar["warp_group"] for bar in bars if bar["track"] == "warps" and bar["trip"] is not None)
    mine = [bar for bar in bars if bar["track"] == "warps" and bar["warp_group"] == first]
    starts: dict[int, int] = {}
    for bar in mine:
        if bar["trip"] is not None:
            starts[bar["trip"]] = min(bar["start"], starts.get(bar["trip"], bar["start"]))
    edges = sorted(starts.values())
    middle = len(edges) // 2
    windows = [_window("trips", bars, edges[middle:][: WINDOW_TRIPS + 1])]
    between = [bar["start"] for bar in mine if bar["trip"] is None]
    lasts = [i for i, (a, b) in enumerate(pairwise(edges)) if any(a < start < b for start in between)]
    return windows + [_window("tile boundary", bars, edges[i:][: WINDOW_TRIPS + 1]) for i in lasts[:1]]


def _window(shows: str, bars: list[Json], edges: list[int]) -> Json:
    low, high = edges[0], edges[-1]
    inside = [bar for bar in bars if bar["start"] < high and bar["start"] + bar["cycles"] > low]
    return {"shows": shows, "start": low, "bars": inside}
