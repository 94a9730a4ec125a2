"""Fig. 11 from recorded timelines: what the warp groups of one block do, and where a trip's cycles go.

Reads <variant>.timeline.json and <variant>.chrome_trace.json, writes PDF and PNG.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from kperf.errors import UsageError
from kperf.trace.reading.models import Timeline, read_timeline
from plots.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, YELLOW, save

# Colours by what the hardware does, and the ink that reads on them.
COLOURS = {
    "issue": (BLUE, "white", "wgmma issue"),
    "tensor": (SKY, "black", "wgmma wait"),
    "arithmetic": (ORANGE, "black", "softmax"),
    "wait": ("#bbbbbb", "black", "mbarrier wait"),
    "load": (GREEN, "white", "TMA load"),
    "store": (YELLOW, "black", "store"),
    "signal": ("#e8e8e8", "black", "other"),
    "other": ("#e8e8e8", "black", "other"),
}
IN_FLIGHT = {
    "QK": BLUE,
    "PV": VERMILION,
    "MMA": BLUE,
    "load K": GREEN,
    "load V": "#66c2a5",
    "load K+V": GREEN,
}
BUBBLES = (PURPLE, "#e0a8c8", "#efcfe0", "#f7e6ef")
WINDOW_TRIPS = 3
_SUFFIX = {
    "load K": ", from issue to use",
    "load V": " (pale: not waited for)",
    "load K+V": ", from issue to use (pale: not waited for)",
}
ASYNC_ROWS = ("tensor core", "TMA loads")
"""Rows of what goes on beside the warps, at the bottom."""


@dataclass(frozen=True)
class Bar:
    """Something that took `cycles` from `start` on."""

    row: str
    name: str
    kind: str
    start: float
    cycles: float
    trip: int | None
    faint: bool = False


@dataclass(frozen=True)
class Recording:
    """A variant as recorded: its numbers, and the bars of its typical block."""

    timeline: Timeline
    bars: list[Bar]


def read_recording(folder: Path, variant: str) -> Recording:
    """Both files of a variant. Raises `UsageError` if one is missing or broken."""
    paths = folder / f"{variant}.timeline.json", folder / f"{variant}.chrome_trace.json"
    try:
        texts = [path.read_text() for path in paths]
        trace = json.loads(texts[1])
        bars = _typical_bars(trace)
    except FileNotFoundError as error:
        raise UsageError(f"{error.filename} is missing: `make fig11` on a Hopper GPU records it") from None
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise UsageError(f"{paths[1]} is not a trace of this program ({error}); record it again") from None
    return Recording(read_timeline(texts[0], str(paths[0])), bars)


def _typical_bars(trace: dict[str, Any]) -> list[Bar]:
    about = trace["otherData"]
    typical = about["typical_block"]
    sm = {block["program_id"]: block["sm"] for block in about["blocks"]}[typical]
    events = [event for event in trace["traceEvents"] if event["pid"] == sm]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    bars = []
    for event in events:
        args = event.get("args", {})
        if event["ph"] in ("X", "b") and args["block"] == typical:
            row, name, kind = (str(text) for text in (rows[event["tid"]], event["name"], event["cat"]))
            trip = None if args["iteration"] is None else int(args["iteration"])
            faint = not args.get("waited_for", True)  # a load that was there before it was needed
            bars.append(Bar(row, name, kind, float(args["start"]), float(args["cycles"]), trip, faint))
    return bars


def _trip_starts(recording: Recording) -> tuple[str, list[float]]:
    """The row of the first consumer, and where its trips begin."""
    loops = [bar for bar in recording.bars if bar.trip is not None and bar.row not in ASYNC_ROWS]
    row = min((bar.row for bar in loops), default="")
    starts: dict[int, float] = {}
    for bar in loops:
        if bar.row == row and bar.trip is not None:
            starts[bar.trip] = min(bar.start, starts.get(bar.trip, bar.start))
    if not starts:
        raise UsageError(f"the trace of {recording.timeline.variant} has no trip of a main loop to draw")
    return row, sorted(starts.values())


def _views(recording: Recording) -> list[tuple[float, str]]:
    """Where each timeline of a recording begins, and its title.

    The first begins with a trip half-way through what is recorded; a persistent block has one more, which begins with
    the last trip of a tile.
    """
    row, starts = _trip_starts(recording)
    timeline = recording.timeline
    busy = timeline.tensor_core_busy
    title = (
        f"{timeline.label}: {timeline.period_cycles.median:.0f} cycles a trip; tensor cores {busy.at_issue_rate:.0%} "
        f"at the issue rate, wgmma in flight {busy.in_flight:.0%}"
    )
    views = [(starts[len(starts) // 2], title)]
    if timeline.tile_boundary_cycles is not None:
        between = [bar.start for bar in recording.bars if bar.row == row and bar.trip is None]
        lasts = [a for a, b in pairwise(starts) if any(a < start < b for start in between)]
        title = (
            f"{timeline.label}, from the last trip of a tile to the next tile: "
            f"{timeline.tile_boundary_cycles.median:.0f} cycles beyond a trip"
        )
        views += [(start, title) for start in lasts[:1]]
    return views


def draw(recordings: Sequence[Recording], stamp: str, out: Path) -> list[Path]:
    """Timelines over one cycle axis and the cycles of a trip by cause; `out` without a suffix. Returns the files."""
    views = [(recording, *view) for recording in recordings for view in _views(recording)]
    figure = plt.figure(figsize=(12, 1.0 + 1.9 * len(views)), layout="constrained")
    grid = figure.add_gridspec(len(views), 2, width_ratios=[3.4, 1])
    span = WINDOW_TRIPS * max(recording.timeline.period_cycles.median for recording in recordings)
    axes = [figure.add_subplot(grid[place, 0]) for place in range(len(views))]
    for axis, (recording, low, title) in zip(axes, views, strict=True):
        _timeline(axis, recording, low, span)
        axis.set_title(title, loc="left", fontsize=8)
        axis.set_xlim(0, span)
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set_xlabel("SM cycles, from the start of a trip in the middle of a block")
    _stacks(figure.add_subplot(grid[:, 1]), recordings)
    handles = [Patch(color=colour, label=label) for colour, _, label in dict.fromkeys(COLOURS.values())]
    names = dict.fromkeys(bar.name for recording in recordings for bar in recording.bars if bar.row in ASYNC_ROWS)
    for what in sorted({_what(name) for name in names} & IN_FLIGHT.keys()):
        handles.append(Patch(color=IN_FLIGHT[what], alpha=0.75, label=f"{what}{_SUFFIX.get(what, ' in flight')}"))
    handles.append(Patch(facecolor="white", edgecolor=BUBBLES[0], hatch="////", label="bubble: no wgmma in flight"))
    figure.legend(handles=handles, ncols=6, loc="outside upper center", frameon=False, handlelength=1.2)
    versions = dict.fromkeys(
        f"torch {e.torch}, triton {e.triton}, driver {e.driver}" for e in (r.timeline.environment for r in recordings)
    )
    figure.supxlabel(f"{stamp}\n{'; '.join(versions)}", fontsize=6.5, color="#444444")
    return save(figure, out)


def _what(name: str) -> str:
    """QK of `QK consumer 0`; a load's name is its own."""
    return name if name.startswith("load ") else name.partition(" ")[0]


def _timeline(axis: Axes, recording: Recording, low: float, span: float) -> None:
    rows = sorted(
        {bar.row for bar in recording.bars},
        key=lambda row: (row in ASYNC_ROWS, ASYNC_ROWS.index(row) if row in ASYNC_ROWS else 0, row),
    )
    heights = {row: len(rows) - 1 - place for place, row in enumerate(rows)}
    lanes = {
        row: sorted(
            {bar.name if row == "TMA loads" else bar.name.partition(" ")[2] for bar in recording.bars if bar.row == row}
        )
        for row in ASYNC_ROWS
    }
    visible = [bar for bar in recording.bars if bar.start < low + span and bar.start + bar.cycles > low]
    for bar in visible:
        start, end = max(bar.start - low, 0), min(bar.start + bar.cycles - low, span)
        if bar.row in ASYNC_ROWS:
            names = [name for name in lanes[bar.row] if name != "load Q"] or lanes[bar.row]
            lane = bar.name if bar.row == "TMA loads" else bar.name.partition(" ")[2]
            height = 0.8 / len(names)
            bottom = heights[bar.row] + 0.4 - (names.index(lane) + 1 if lane in names else 1) * height
            axis.broken_barh(
                [(start, end - start)],
                (bottom + 0.02, height - 0.04),
                color=IN_FLIGHT.get(_what(bar.name), IN_FLIGHT["load K" if bar.row == "TMA loads" else "MMA"]),
                alpha=0.3 if bar.faint else 0.75,
                linewidth=0,
            )
            continue
        colour, ink, _ = COLOURS.get(bar.kind, COLOURS["other"])
        axis.broken_barh(
            [(start, end - start)], (heights[bar.row] - 0.4, 0.8), color=colour, edgecolor="white", linewidth=0.3
        )
        # The whole name where it fits, else what its regions share or begin with ("PV" of "PV issue + PV wait").
        parts = bar.name.split(" + ")
        first = parts[0].split()[0]
        short = first if len(parts) > 1 and all(part.startswith(first) for part in parts) else parts[0]
        for name in (bar.name, short):
            if end - start > 0.0078 * span * len(name):
                axis.text((start + end) / 2, heights[bar.row], name, ha="center", va="center", fontsize=6, color=ink)
                break
    bubbles = _gaps([bar for bar in visible if bar.kind == "wgmma"], low, low + span)
    for start, end in bubbles if "tensor core" in heights else []:  # without wgmma at all there are none to mark
        axis.broken_barh(
            [(start - low, end - start)], (heights["tensor core"] - 0.4, 0.8),
            facecolor="white", edgecolor=BUBBLES[0], hatch="////", linewidth=0.4,
        )  # fmt: skip
        axis.axvspan(start - low, end - low, color=BUBBLES[0], alpha=0.10, linewidth=0, zorder=0)
    axis.set_yticks(list(heights.values()), list(heights))
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(-0.55, len(rows) - 0.45)
    period = recording.timeline.period_cycles.median
    for number in range(WINDOW_TRIPS + 1):
        axis.axvline(number * period, color="black", linewidth=0.6, linestyle=(0, (3, 3)), zorder=0)


def _gaps(bars: Sequence[Bar], low: float, high: float) -> list[tuple[float, float]]:
    gaps = []
    reached = low
    for start, end in sorted((bar.start, bar.start + bar.cycles) for bar in bars):
        if start > reached:
            gaps.append((reached, min(start, high)))
        reached = max(reached, end)
    return gaps if reached >= high else [*gaps, (reached, high)]


def _stacks(axis: Axes, recordings: Sequence[Recording]) -> None:
    causes = list(dict.fromkeys(b.cause for r in recordings for b in r.timeline.bubbles))
    colours = {cause: BUBBLES[min(place, len(BUBBLES) - 1)] for place, cause in enumerate(causes)}
    parts = {"products at the issue rate": BLUE, "in flight beyond that": SKY}
    parts |= {f"bubble: {cause}": colour for cause, colour in colours.items()}
    for place, recording in enumerate(recordings):
        timeline = recording.timeline
        period, bound = timeline.period_cycles.median, timeline.tensor_core_busy.bound_cycles
        bubbles = {f"bubble: {b.cause}": b.cycles_per_iteration for b in timeline.bubbles}
        cycles = {
            "products at the issue rate": bound,
            "in flight beyond that": period - bound - sum(bubbles.values()),
        } | bubbles
        bottom = 0.0
        for name, colour in parts.items():
            height = cycles.get(name, 0.0)
            axis.bar(place, height, 0.7, bottom=bottom, color=colour, edgecolor="white", linewidth=0.4)
            if height > 0.03 * period:
                ink = "white" if colour == BLUE else "black"
                axis.text(
                    place, bottom + height / 2, f"{height:.0f}", ha="center", va="center", fontsize=6.5, color=ink
                )
            bottom += height
        axis.text(place, bottom, f"{period:.0f}", ha="center", va="bottom", fontsize=7, fontweight="bold")
    axis.set_xticks(
        range(len(recordings)), [r.timeline.label.replace("Triton-FA3 ", "Triton-FA3\n") for r in recordings]
    )
    axis.set_ylabel("cycles of a trip, by cause")
    handles = [Patch(color=colour, label=name) for name, colour in parts.items()]
    axis.legend(handles=handles[::-1], fontsize=6, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
