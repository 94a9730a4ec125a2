"""TFLOP/s of each implementation by Proton, a panel a session. Reads records, writes PDF and PNG."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from kperf.plots.style import BLUE, PAGE_WIDTH, SMALL, footnote, headline, save
from kperf.studies.proton import CLI, ProtonRow, label

_HOW = (
    "Time of all kernels of a call, by CUPTI; calls follow each other without a pause. Implementations are not "
    "interleaved: a few percent between two of them may be the clock's."
)


def draw(rows: Sequence[ProtonRow], stamp: str, out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(rows, stamp), out)


def figure(rows: Sequence[ProtonRow], stamp: str) -> Figure:
    """A bar an implementation with a time; what has none is named below."""
    sessions = [session for session in dict.fromkeys(row.session for row in rows) if session != CLI]
    made, axes = plt.subplots(1, max(len(sessions), 1), figsize=(PAGE_WIDTH, 2.8), layout="constrained", squeeze=False)
    axes[0, 0].set_visible(bool(sessions))
    for axis, session in zip(axes[0], sessions, strict=False):  # a figure without a panel cannot be
        of_session = [row for row in rows if row.session == session and row.tflops is not None]
        labels = [label(row.implementation) for row in of_session]
        bars = axis.barh(labels, [row.tflops for row in of_session], color=BLUE)
        axis.bar_label(bars, [f"{row.tflops:.0f}" for row in of_session], padding=2)
        axis.invert_yaxis()
        axis.set_title(f"{session}, TFLOP/s", loc="left", fontsize=SMALL, fontweight="bold")
    headline(made, [_finding(rows, sessions), f"Attention forward by Proton's scopes, {stamp}"], [], [])
    missing = [f"{row.session} {row.implementation}: {row.message}" for row in rows if row.message]
    footnote(made, missing or [_HOW])
    return made


def _finding(rows: Sequence[ProtonRow], sessions: Sequence[str]) -> str:
    """What is the fastest in each session."""
    fastest = []
    for session in sessions:
        rates = {label(row.implementation): row.tflops for row in rows if row.session == session and row.tflops}
        if rates:
            best = max(rates, key=lambda name: rates[name])
            fastest.append((session, best, f"{rates[best]:.0f}"))
    if not fastest:
        return "No implementation has a time"
    if len({best for _, best, _ in fastest}) == 1:
        return (
            f"{fastest[0][1]} is the fastest: {', '.join(f'{rate} TFLOP/s {session}' for session, _, rate in fastest)}"
        )
    return "; ".join(f"{session}: {best} is the fastest, {rate} TFLOP/s" for session, best, rate in fastest)
