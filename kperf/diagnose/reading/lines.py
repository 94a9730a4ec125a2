"""Lines of source: of operations, of findings, and as they are written."""

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from kperf.diagnose.reading.sources import Definition, first_line, nodes
from kperf.ir.locations import Frame
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Source


def frame_of(op: Operation) -> Frame | None:
    """The line of source of an operation, or of what is around it where it has none."""
    current: Operation | None = op
    while current is not None:
        if current.location is not None and current.location.frame is not None:
            return current.location.frame
        current = current.parent.owner if current.parent is not None else None
    return None


def lines_of(operations: Iterable[Operation], but: Operation) -> str:
    """The lines of source of operations but of one of them, in words: `lines 3, 7`; empty where there is no other."""
    own_line = frame.line if (frame := frame_of(but)) is not None else None
    lines = sorted({frame.line for op in operations if (frame := frame_of(op)) is not None} - {own_line})
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}" if lines else ""


def source_of(frame: Frame | None) -> Source:
    """The line, and the function that it is in if the file can be read.

    Of a function's decorator it is the line of its `def`: Python says that a decorated function begins there.
    """
    if frame is None:
        return Source(file="", line=0)
    around = [found for found in _functions(frame.file) if found.first <= frame.line <= found.last]
    function = max(around, default=_Function(0, frame.line, 0, ""))
    return Source(file=frame.file, line=max(frame.line, function.line), function=function.name)


def line_of_for(loop: Operation) -> int:
    """The line of a loop's `for` or `while`, which may stand above its range; 0 where its source is not known."""
    if (frame := frame_of(loop)) is None:
        return 0
    return max((first for first, last in _loop_heads(frame.file) if first <= frame.line <= last), default=frame.line)


def source_line(source: Source) -> str:
    """The text of a line of source; empty if it cannot be read."""
    lines = _lines(source.file)
    return lines[source.line - 1].strip() if 0 < source.line <= len(lines) else ""


def compared_with(op: Operation) -> str:
    """What a comparison has on its right, as the line of source writes it: `n` of `i < n`; empty if it is not clear."""
    frame = frame_of(op)
    try:
        tree = ast.parse(source_line(source_of(frame))) if frame is not None else ast.Module([], [])
    except SyntaxError:  # the line is a part of a statement
        return ""
    comparisons = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    right = {ast.unparse(one.comparators[-1]) for one in comparisons}
    return right.pop() if len(right) == 1 else ""


class _Function(NamedTuple):
    """The lines of its first decorator, its `def` and its end."""

    first: int
    line: int
    last: int
    name: str


@cache
def _loop_heads(file: str) -> tuple[tuple[int, int], ...]:
    """The first and the last line of what each `for` runs over, and of each condition of a `while`."""
    heads = [(node, node.iter) for node in nodes(file) if isinstance(node, ast.For)]
    tests = [(node, node.test) for node in nodes(file) if isinstance(node, ast.While)]
    return tuple((node.lineno, head.end_lineno or node.lineno) for node, head in (*heads, *tests))


@cache
def _functions(file: str) -> tuple[_Function, ...]:
    definitions = (node for node in nodes(file) if isinstance(node, Definition))
    return tuple(
        _Function(first_line(node), node.lineno, node.end_lineno or node.lineno, node.name) for node in definitions
    )


@cache
def _lines(file: str) -> tuple[str, ...]:
    try:
        return tuple(Path(file).read_text().splitlines())
    except (OSError, ValueError):
        return ()
