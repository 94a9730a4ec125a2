"""Samples of a profiler, or of the trace itself, by line of source, as a report shows them beside cycles."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.stalls import READY

Place = tuple[str, str, int]
"""Kernel, file, line."""


@dataclass(frozen=True)
class Samples:
    """Samples of one profiler. by_place: how many fell on a line, and in how many of them the warp was stalled.

    file: where they were read. stalls: what most warps of a line wait for, where the profiler says it.
    """

    profiler: str
    by_place: Mapping[Place, tuple[int, int]]
    file: str
    stalls: Mapping[Place, str] = field(default_factory=dict)

    def of_lines(self, kernel: str, file: str) -> dict[int, tuple[int, int, str]]:
        """Those of a kernel in a file, with their reason, by line; the profiler may name it from another folder."""
        return {
            line: (*counts, self.stalls.get((name, where, line), ""))
            for (name, where, line), counts in self.by_place.items()
            if name == kernel and line and is_same_file(where, file)
        }

    def total(self, kernel: str) -> int:
        """All of a kernel, wherever they fell."""
        return sum(count for (name, _, _), (count, _) in self.by_place.items() if name == kernel)

    def most(self, kernel: str) -> int:
        """Of a kernel's lines that with most."""
        return max((count for (name, _, _), (count, _) in self.by_place.items() if name == kernel), default=0)


def of_timeline(timeline: Timeline) -> list[Samples]:
    """Those that the trace took itself."""
    if timeline.samples is None:
        return []
    lines = {(timeline.kernel, line.file, line.line): line for line in timeline.samples.lines if line.samples}
    waits = {place: [reason for reason in line.stalls if reason not in READY] for place, line in lines.items()}
    return [
        Samples(
            "GPU",
            {place: (line.samples, line.not_issued) for place, line in lines.items()},
            "the trace",
            {place: reasons[0] for place, reasons in waits.items() if reasons},
        )
    ]


def told_apart(samples: Sequence[Samples]) -> list[Samples]:
    """Those of one profiler named with their files."""
    count = Counter(each.profiler for each in samples)
    return [
        replace(each, profiler=f"{each.profiler} ({each.file})") if count[each.profiler] > 1 else each
        for each in samples
    ]


def is_same_file(file: str, another: str) -> bool:
    """Whether the shorter name is the end of the longer."""
    first, second = Path(file).parts, Path(another).parts
    length = min(len(first), len(second))
    return length > 0 and first[-length:] == second[-length:]
