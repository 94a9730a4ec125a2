"""Samples of a profiler by line of source, as a report shows them beside cycles."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

Place = tuple[str, str, int]
"""Kernel, file, line."""


@dataclass(frozen=True)
class Samples:
    """Samples of one profiler. by_place: how many fell on a line, and in how many of them the warp was stalled.

    file: where they were read.
    """

    profiler: str
    by_place: Mapping[Place, tuple[int, int]]
    file: str

    def of_lines(self, kernel: str, file: str) -> dict[int, tuple[int, int]]:
        """Those of a kernel in a file, by line; the profiler may name the file from another folder."""
        return {
            line: counts
            for (name, where, line), counts in self.by_place.items()
            if name == kernel and line and _is_same(where, file)
        }

    def total(self, kernel: str) -> int:
        """All of a kernel, wherever they fell."""
        return sum(count for (name, _, _), (count, _) in self.by_place.items() if name == kernel)

    def most(self, kernel: str) -> int:
        """Of a kernel's lines that with most."""
        return max((count for (name, _, _), (count, _) in self.by_place.items() if name == kernel), default=0)


def told_apart(samples: Sequence[Samples]) -> list[Samples]:
    """Those of one profiler named with their files."""
    count = Counter(one.profiler for one in samples)
    return [
        replace(one, profiler=f"{one.profiler} ({one.file})") if count[one.profiler] > 1 else one for one in samples
    ]


def _is_same(one: str, other: str) -> bool:
    """Whether the shorter name is the end of the longer."""
    first, second = Path(one).parts, Path(other).parts
    length = min(len(first), len(second))
    return length > 0 and first[-length:] == second[-length:]
