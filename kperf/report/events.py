"""Events of a Chrome trace, as the page draws them: a bar each, on a row that says who did it."""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kperf.errors import UsageError

_LARGEST = 200 << 20
"""Bytes of a Chrome trace that is read: a hundred times what `kperf trace` writes."""


class _Words(NamedTuple):
    """What a trace calls its CTAs, the typical one of them, an event's, and in-flight MMAs."""

    ctas: str
    typical: str
    cta: str
    mma: str


_WORDS = _Words("ctas", "typical_cta", "cta", "MMA")
_EARLIER_WORDS = _Words("blocks", "typical_block", "block", "product")


@dataclass(frozen=True)
class Event:
    """One bar: `start` and `cycles` are SM cycles, counted from the first event of the CTA."""

    row: str
    name: str
    kind: str
    start: float
    cycles: float
    iteration: int | None


@dataclass(frozen=True)
class TracedCta:
    """The events of one CTA; `rows` in the order of the trace's threads, what runs beside the warps last."""

    cta: int
    sm: int
    rows: tuple[str, ...]
    events: tuple[Event, ...]


def trace_beside(timeline: Path) -> Path | None:
    """The Chrome trace of the same kernel, packed or not, in the folder of its timeline; None without one."""
    stem = timeline.name.removesuffix(".timeline.json")
    named = (timeline.with_name(f"{stem}.chrome_trace.json{packed}") for packed in ("", ".gz"))
    return next((path for path in named if path.is_file()), None)


def read_typical_cta(path: Path) -> TracedCta:
    """The CTA that the trace calls typical, of a trace that `kperf trace` wrote (Trace Event Format).

    Raises `UsageError` if the file is missing, too large, or another program's.
    """
    try:
        return typical_cta(_text(path))
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: `kperf trace` writes it beside the timeline") from None
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError):
        raise UsageError(f"{path} is not a Chrome trace of kperf: trace the kernel again") from None


def typical_cta(text: str | bytes) -> TracedCta:
    """The CTA that a trace's text calls typical. What it raises for another program's text is any lookup's error."""
    trace = json.loads(text)
    about = trace["otherData"]
    words = _WORDS if "ctas" in about else _EARLIER_WORDS
    ctas = about[words.ctas]
    chosen = about.get(words.typical, ctas[0]["program_id"])
    sm = next(cta["sm"] for cta in ctas if cta["program_id"] == chosen)
    events = [event for event in trace["traceEvents"] if event["pid"] == sm]
    threads = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    bars = tuple(_bars(events, chosen, threads, words))
    used = {bar.row for bar in bars}
    return TracedCta(chosen, sm, tuple(threads[tid] for tid in sorted(threads) if threads[tid] in used), bars)


def _text(path: Path) -> bytes:
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        text = stream.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise UsageError(f"{path} is larger than {_LARGEST >> 20} MB: it is no Chrome trace of kperf")
    return text


def _bars(events: list[dict[str, Any]], cta: int, threads: dict[int, str], words: _Words) -> Iterator[Event]:
    """Slices ("X") of the warps, and what is asynchronous ("b") beside them."""
    for event in events:
        if event["ph"] in ("X", "b") and event["args"][words.cta] == cta:
            args = event["args"]
            iteration = args["iteration"]
            yield Event(
                threads[event["tid"]],
                str(event["name"]),
                "MMA" if event["cat"] == words.mma else str(event["cat"]),
                float(args["start"]),
                float(args["cycles"]),
                None if iteration is None else int(iteration),
            )
