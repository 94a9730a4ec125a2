"""Fig. 11 in words: a table of the timelines side by side, and a verdict made from their numbers."""

from collections.abc import Sequence

from rich.table import Table

from kperf.trace.reading.models import Timeline


def table(timelines: Sequence[Timeline], stamp: str) -> Table:
    """Variants side by side: period, tensor cores, regions, bubbles, critical path, models, overhead."""
    result = Table(title=f"inside the kernel, cycles of a trip (median; p5 to p95): {stamp}", title_justify="left")
    result.add_column("")
    for timeline in timelines:
        result.add_column(timeline.label, justify="right")

    def row(name: str, cells: Sequence[str]) -> None:
        result.add_row(name, *cells)

    row("period", [_range(t.period_cycles.median, t.period_cycles.p5, t.period_cycles.p95) for t in timelines])
    if any(t.tile_boundary_cycles for t in timelines):
        beyond = [t.tile_boundary_cycles for t in timelines]
        row("from tile to tile, beyond a trip", [_range(b.median, b.p5, b.p95) if b else "-" for b in beyond])
    row("SM clock, MHz (measured)", [f"{t.clock_mhz:.0f}" for t in timelines])
    row("tensor cores at the issue rate", [f"{t.tensor_core_busy.at_issue_rate:.1%}" for t in timelines])
    row("wgmma in flight", [f"{t.tensor_core_busy.in_flight:.1%}" for t in timelines])
    row(
        "softmax, of it under its own / any wgmma",
        [
            f"{t.softmax.cycles:.0f}, {t.softmax.under_own_wgmma:.0f} / {t.softmax.under_any_wgmma:.0f}"
            for t in timelines
        ],
    )
    result.add_section()
    for group, name in dict.fromkeys((r.warp_group, r.name) for t in timelines for r in t.regions):
        cells = []
        for timeline in timelines:
            found = next((r for r in timeline.regions if (r.warp_group, r.name) == (group, name)), None)
            cells.append(
                f"{_range(found.cycles.median, found.cycles.p5, found.cycles.p95)}  {found.share:5.1%}"
                if found
                else "-"
            )
        row(f"{group}: {name}", cells)
    result.add_section()
    for cause in dict.fromkeys(b.cause for t in timelines for b in t.bubbles):
        cells = [next((f"{b.cycles_per_iteration:.0f}" for b in t.bubbles if b.cause == cause), "-") for t in timelines]
        row(f"bubble: {cause}", cells)
    result.add_section()
    for place in range(5):
        cells = []
        for timeline in timelines:
            parts = timeline.critical_path[place : place + 1]
            cells.append(f"{parts[0].region} ({parts[0].warp_group}) {parts[0].share:.1%}" if parts else "-")
        row("critical path" if place == 0 else "", cells)
    result.add_section()
    row(
        "model of its schedule",
        [f"{t.model.name}: {t.model.cycles:.0f} (off by {t.model.error:.1%})" for t in timelines],
    )
    row("the other model", [f"{t.model.other.cycles:.0f} (off by {t.model.other.error:.1%})" for t in timelines])
    row(
        "plain, traced launch",
        [f"{t.overhead.plain_ms:.3f}, {t.overhead.traced_ms:.3f} ms ({t.overhead.ratio - 1:+.1%})" for t in timelines],
    )
    row("records written, lost", [f"{t.records.written}, {t.records.lost}" for t in timelines])
    row("SASS order, plain and traced", ["the same" if t.sass_order.same else "differs" for t in timelines])
    return result


def _range(median: float, low: float, high: float) -> str:
    return f"{median:.0f} ({low:.0f} to {high:.0f})"


def verdict(timelines: Sequence[Timeline]) -> list[str]:
    """Sentences, each made from the numbers."""
    lines = [line for timeline in timelines for line in _about(timeline)]
    if len(timelines) == 2:
        lines += _between(timelines[0], timelines[1])
    return lines


def _about(t: Timeline) -> list[str]:
    bubbles = sum(bubble.cycles_per_iteration for bubble in t.bubbles)
    line = (
        f"{t.label}: a trip takes {t.period_cycles.median:.0f} cycles where its products need "
        f"{t.tensor_core_busy.bound_cycles:.0f}; in {bubbles:.0f} of them no wgmma is in flight"
    )
    if t.bubbles:
        line += f", mostly with {t.bubbles[0].cause.replace('both in', 'both consumers in')}"
    if not t.critical_path:
        return [f"{line}."]
    lines = [f"{line}."]
    if t.tile_boundary_cycles:
        lines.append(
            f"{t.label}: a block computes one tile after another; from a tile to the next it takes "
            f"{t.tile_boundary_cycles.median:.0f} cycles beyond those of the trips, in which it computes the products "
            f"of one trip more."
        )
    softmax = t.softmax
    lines.append(
        f"{t.label} hides {softmax.under_any_wgmma:.0f} of {softmax.cycles:.0f} softmax cycles under products, "
        f"{softmax.under_own_wgmma:.0f} of them under its own consumer's."
    )
    loads = {part.region: part.share for part in t.critical_path if part.region.startswith("load ")}
    slowest = max(loads, key=lambda name: loads[name], default=None)
    if slowest is not None and loads[slowest] > 0.1:
        buffer = slowest.removeprefix("load ")
        lines.append(
            f"{t.label}: {loads[slowest]:.0%} of the critical path is the load of {buffer}, which can start only when "
            f'the slower consumer has signalled "{buffer} empty".'
        )
    else:
        first = t.critical_path[0]
        lines.append(
            f"{t.label}: loads are off the critical path; its largest part is {first.region} ({first.share:.0%})."
        )
    if t.records.lost:
        lines.append(f"{t.label}: {t.records.lost} of {t.records.written} records were overwritten; the rest is shown.")
    if not t.sass_order.same:
        lines.append(
            f"{t.label}: records change the order of instructions; there the picture does not show the plain kernel: "
            + "; ".join(t.sass_order.differences[:2])
            + "."
        )
    return lines


def _between(a: Timeline, b: Timeline) -> list[str]:
    periods = a.period_cycles.median / b.period_cycles.median
    times = a.overhead.plain_ms / b.overhead.plain_ms
    saved = a.period_cycles.median - b.period_cycles.median
    idle_a, idle_b = (sum(x.cycles_per_iteration for x in t.bubbles) for t in (a, b))
    return [
        f"{b.label} saves {saved:.0f} cycles a trip against {a.label}; bubbles go from {idle_a:.0f} to {idle_b:.0f}.",
        f"The traced periods differ by a factor of {periods:.3f}, the plain kernels' times by {times:.3f}: "
        f"{'they agree' if abs(periods / times - 1) <= 0.05 else 'they do not agree'} within 5 %.",
    ]
