"""Fig. 11 from recorded timelines: what the warp groups of one block do, and where a trip's cycles go.

Reads <variant>.timeline.json and <variant>.chrome_trace.json, writes PDF and PNG.

python -m plots.fig11 results/h200/fig11 [vanilla improved]
"""

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from kperf.errors import UsageError
from kperf.trace.models import Timeline, read_timeline

# Okabe and Ito's colours by what the hardware does; text on them is black or white as it reads.
COLOURS = {
    "issue": ("#0072b2", "white", "wgmma issue"),
    "tensor": ("#56b4e9", "black", "wgmma wait"),
    "arithmetic": ("#e69f00", "black", "softmax"),
    "wait": ("#999999", "black", "mbarrier wait"),
    "load": ("#009e73", "white", "TMA load"),
    "store": ("#f0e442", "black", "store"),
    "signal": ("#dddddd", "black", "other"),
    "other": ("#dddddd", "black", "other"),
}
PRODUCT_COLOURS = {"QK": "#0072b2", "PV": "#d55e00"}
BUBBLE = "#cc79a7"
WINDOW_TRIPS = 3


@dataclass(frozen=True)
class Bar:
    """Something that took `cycles` from `start` on."""

    row: str
    name: str
    kind: str
    start: float
    cycles: float
    trip: int | None


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
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{paths[1]} is not a trace of this program ({error}); record it again") from None
    return Recording(read_timeline(texts[0], str(paths[0])), bars)


def _typical_bars(trace: dict[str, Any]) -> list[Bar]:
    about = trace["otherData"]
    typical = about["typical_block"]
    sm = next(block["sm"] for block in about["blocks"] if block["program_id"] == typical)
    events = [event for event in trace["traceEvents"] if event["pid"] == sm]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    bars = []
    for event in events:
        args = event.get("args", {})
        if event["ph"] in ("X", "b") and args["block"] == typical:
            kind = "wgmma" if event["ph"] == "b" else event["cat"]
            bars.append(Bar(rows[event["tid"]], event["name"], kind, args["start"], args["cycles"], args["iteration"]))
    return bars


def _window_start(recording: Recording) -> float:
    """Where a trip of the first consumer begins, half-way through the block."""
    loops = [bar for bar in recording.bars if bar.trip is not None and bar.kind not in ("wgmma", "load")]
    row = min((bar.row for bar in loops), default="")
    starts: dict[int, float] = {}
    for bar in loops:
        if bar.row == row and bar.trip is not None:
            starts[bar.trip] = min(bar.start, starts.get(bar.trip, bar.start))
    if not starts:
        raise UsageError(f"the trace of {recording.timeline.variant} has no trip of a main loop to draw")
    return sorted(starts.values())[len(starts) // 2]


def draw(recordings: Sequence[Recording], stamp: str, out: Path) -> list[Path]:
    """Timelines over one cycle axis and the cycles of a trip by cause; `out` without a suffix. Returns the files."""
    plt.rcParams.update({"font.size": 8, "pdf.fonttype": 42, "axes.spines.top": False, "axes.spines.right": False})
    figure = plt.figure(figsize=(11, 1.0 + 2.1 * len(recordings)), layout="constrained")
    grid = figure.add_gridspec(len(recordings), 2, width_ratios=[4.4, 1])
    span = WINDOW_TRIPS * max(recording.timeline.period_cycles.median for recording in recordings)
    shared: Axes | None = None
    for place, recording in enumerate(recordings):
        axis = figure.add_subplot(grid[place, 0], sharex=shared)
        shared = shared or axis
        _timeline(axis, recording, span)
        axis.tick_params(labelbottom=place == len(recordings) - 1)
    assert shared is not None
    shared.set_xlim(0, span)
    figure.axes[-1].set_xlabel("SM cycles in the steady state of one block")
    _stacks(figure.add_subplot(grid[:, 1]), recordings)
    handles = [Patch(color=colour, label=label) for colour, _, label in dict.fromkeys(COLOURS.values())]
    handles += [Patch(color=colour, label=f"{product} in flight") for product, colour in PRODUCT_COLOURS.items()]
    handles.append(Patch(facecolor="white", edgecolor=BUBBLE, hatch="////", label="bubble: no wgmma in flight"))
    figure.legend(handles=handles, ncols=5, loc="outside upper center", frameon=False, handlelength=1.2)
    figure.supxlabel(stamp, fontsize=6.5, color="#444444")
    written = []
    for suffix, metadata in (("pdf", {"CreationDate": None}), ("png", {"Software": None})):
        path = out.with_suffix(f".{suffix}")
        temporary = path.with_suffix(f".part.{suffix}")
        figure.savefig(temporary, dpi=200, metadata=metadata)
        temporary.replace(path)
        written.append(path)
    plt.close(figure)
    return written


def _timeline(axis: Axes, recording: Recording, span: float) -> None:
    low = _window_start(recording)
    rows = sorted({bar.row for bar in recording.bars}, key=lambda row: (row == "tensor core", row))
    heights = {row: len(rows) - 1 - place for place, row in enumerate(rows)}
    visible = [bar for bar in recording.bars if bar.start < low + span and bar.start + bar.cycles > low]
    for bar in visible:
        start, end = max(bar.start - low, 0), min(bar.start + bar.cycles - low, span)
        if bar.kind == "wgmma":
            lanes = sorted({b.name.partition(" ")[2] for b in recording.bars if b.kind == "wgmma"})
            lane = lanes.index(bar.name.partition(" ")[2])
            height = 0.8 / max(len(lanes), 1)
            bottom = heights[bar.row] + 0.4 - (lane + 1) * height
            product = bar.name.partition(" ")[0]
            axis.broken_barh(
                [(start, end - start)],
                (bottom, height),
                color=PRODUCT_COLOURS.get(product, "#0072b2"),
                alpha=0.75,
                linewidth=0,
            )
            continue
        colour, ink, _ = COLOURS.get(bar.kind, COLOURS["other"])
        axis.broken_barh(
            [(start, end - start)], (heights[bar.row] - 0.4, 0.8), color=colour, edgecolor="white", linewidth=0.3
        )
        if end - start > 0.011 * span * len(bar.name) * 0.62:
            axis.text(
                (start + end) / 2,
                heights[bar.row],
                bar.name,
                ha="center",
                va="center",
                fontsize=6,
                color=ink,
                clip_on=True,
            )
    for start, end in _gaps([bar for bar in visible if bar.kind == "wgmma"], low, low + span):
        axis.broken_barh(
            [(start - low, end - start)], (heights["tensor core"] - 0.4, 0.8),
            facecolor="white", edgecolor=BUBBLE, hatch="////", linewidth=0.4,
        )  # fmt: skip
        axis.axvspan(start - low, end - low, color=BUBBLE, alpha=0.10, linewidth=0, zorder=0)
    axis.set_yticks(list(heights.values()), list(heights))
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(-0.55, len(rows) - 0.45)
    timeline = recording.timeline
    busy = timeline.tensor_core_busy
    axis.set_title(
        f"{timeline.label}: {timeline.period_cycles.median:.0f} cycles a trip; tensor cores {busy.at_issue_rate:.0%} "
        f"at the issue rate, wgmma in flight {busy.in_flight:.0%}",
        loc="left", fontsize=8,
    )  # fmt: skip
    period = timeline.period_cycles.median
    for number in range(WINDOW_TRIPS + 1):
        axis.axvline(number * period, color="black", linewidth=0.6, linestyle=(0, (3, 3)))


def _gaps(bars: Sequence[Bar], low: float, high: float) -> list[tuple[float, float]]:
    gaps = []
    reached = low
    for start, end in sorted((bar.start, bar.start + bar.cycles) for bar in bars):
        if start > reached:
            gaps.append((reached, min(start, high)))
        reached = max(reached, end)
    return gaps if reached >= high else [*gaps, (reached, high)]


def _stacks(axis: Axes, recordings: Sequence[Recording]) -> None:
    palette = [BUBBLE, "#e69f00", "#999999", "#f0e442", "#dddddd"]
    causes = list(dict.fromkeys(b.cause for r in recordings for b in r.timeline.bubbles))
    for place, recording in enumerate(recordings):
        timeline = recording.timeline
        period, bound = timeline.period_cycles.median, timeline.tensor_core_busy.bound_cycles
        bubbles = {b.cause: b.cycles_per_iteration for b in timeline.bubbles}
        parts = [
            ("products at the issue rate", bound, "#0072b2"),
            ("in flight beyond it", period - bound - sum(bubbles.values()), "#56b4e9"),
        ]
        parts += [(cause, bubbles.get(cause, 0.0), palette[i % len(palette)]) for i, cause in enumerate(causes)]
        bottom = 0.0
        for _, cycles, colour in parts:
            axis.bar(place, cycles, 0.7, bottom=bottom, color=colour, edgecolor="white", linewidth=0.4)
            if cycles > 0.035 * period:
                axis.text(place, bottom + cycles / 2, f"{cycles:.0f}", ha="center", va="center", fontsize=6.5)
            bottom += cycles
    axis.set_xticks(
        range(len(recordings)), [r.timeline.label.replace("Triton-FA3 ", "Triton-FA3\n") for r in recordings]
    )
    axis.set_ylabel("cycles a trip")
    handles = [
        Patch(color="#0072b2", label="products at the issue rate"),
        Patch(color="#56b4e9", label="in flight beyond it"),
    ]
    handles += [Patch(color=palette[i % len(palette)], label=f"bubble: {cause}") for i, cause in enumerate(causes)]
    axis.legend(handles=handles[::-1], fontsize=6, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.14))


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw what is recorded in a fig11 folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("variants", nargs="*", default=["vanilla", "improved"])
    options = parser.parse_args(arguments)
    recordings = [read_recording(options.folder, variant) for variant in options.variants]
    environment = recordings[0].timeline.environment
    stamp = f"recorded on {environment.gpu}, {environment.recorded_at[:10]}"
    for path in draw(recordings, stamp, options.folder.parent / "fig11"):
        print(path)


if __name__ == "__main__":
    main()
