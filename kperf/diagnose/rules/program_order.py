"""An order of programs in which those that run at the same time share few tiles."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kperf.diagnose.analyses.different_rows import Numbers
from kperf.diagnose.analyses.waves import Schedule, schedule_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import TMA_LOADS
from kperf.diagnose.reading.pointers import name_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_GROUPS = (1, 2, 4, 8, 16, 32, 64)
"""Of rows of tiles: 1 is the order of rows, and as many as there are that of columns."""
_NEARLY = 0.95
"""Share of the best order's speed from which on the simpler change is advised."""
_MOST = 4.0
_DIVIDED = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui", "arith.floordivsi")


@dataclass(frozen=True)
class _Order:
    """CTAs in another order: `group` tiles of `rows` before each step to the next tiles of `columns`.

    rows, columns: which loads' tiles these are; columns is empty if no other load's tiles are shared.
    """

    group: int
    rows: Sequence[Operation]
    columns: Sequence[Operation]
    ctas: Numbers


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the bytes that the waves load from device memory, in the launch's order and in others of the same CTAs."""
    schedule = schedule_of(kernel, jagged=True)
    if schedule is None:
        return
    moved = schedule.traffic()
    now = _cycles(schedule, moved)
    if now < MEDIUM_GAIN * schedule.compute_cycles:
        return
    orders = ((order, schedule.traffic(order.ctas)) for order in _orders(schedule))
    times = [(_cycles(schedule, least), least, order) for order, least in orders if least < moved]
    if not times:
        return
    best = min(times, key=lambda one: one[:2])
    simple = [one for one in times if one[2].group == 1 and one[0] * _NEARLY <= best[0]]
    time, least, order = min(simple, key=lambda one: one[:2], default=best)
    gain = min(now / time, _MOST)
    if gain < (SEVERE_GAIN if schedule.jagged else MEDIUM_GAIN):  # parts are never equal
        return
    names = [_tensors(kernel, loads) for loads in (order.rows, order.columns) if loads]
    yield kernel.finding(
        RULE.id,
        _line(kernel, order.rows[0]) or order.rows[0],
        "high" if gain >= SEVERE_GAIN else "medium",
        f"the order of the programs loses reuse in L2: the {schedule.waves[0]} CTAs that run at the same time share "
        f"few tiles of {' and '.join(dict.fromkeys(names))}, so the launch loads {moved / 1e9:.1f} GB from device "
        f"memory; in another order it would load {least / 1e9:.1f} GB"
        + (" (if the offsets that it reads part the rows evenly)" if schedule.jagged else ""),
        _advice(order, names),
        {
            "moved_gb": moved / 1e9,
            "least_gb": least / 1e9,
            "waves": len(schedule.waves),
            "ctas_at_once": schedule.waves[0],
            "group": order.group,
        },
        confidence="medium",
        estimate=(gain, 1.0, min(max(moved / least, gain), _MOST)),
    )


def _cycles(schedule: Schedule, moved: int) -> float:
    return max(schedule.compute_cycles, schedule.memory_cycles(moved))


def _orders(schedule: Schedule) -> Iterator[_Order]:
    """The CTAs by rows and by columns of tiles, in groups of rows, and in groups of columns."""
    shared = _shared(schedule)
    if len(shared) == 1:
        ((loads, labels),) = shared
        yield _Order(1, loads, (), np.argsort(labels, kind="stable"))
        return
    for one, other in (shared, shared[::-1]) if shared else ():
        part = _parts(one[1], other[1])
        rows, columns = (_places(part, labels) for labels in (one[1], other[1]))
        for group in _GROUPS:
            if group <= max(1, int(rows.max())):
                keys = (rows % group, columns, rows // group, part)
                yield _Order(group, one[0], other[0], np.lexsort(keys))


def _shared(schedule: Schedule) -> list[tuple[Sequence[Operation], Numbers]]:
    """At most two loads of tiles that several CTAs share but not all, whose bytes are loaded again most.

    Each with a number for the tile of each CTA. Loads whose tiles the same CTAs share are one.
    """
    found: dict[bytes, tuple[int, tuple[Operation, ...], Numbers]] = {}
    for place, load in enumerate(schedule.loads):
        tiles = schedule.tiles[:, place]
        _, first, labels = np.unique(tiles, return_index=True, return_inverse=True)
        if not 1 < len(first) < len(tiles):
            continue
        labels = np.argsort(np.argsort(first))[labels.reshape(-1)]  # in the order in which they come first
        again = int(schedule.sizes[tiles].sum() - schedule.sizes[tiles[first]].sum())
        before, alike, _ = found.get(labels.tobytes(), (0, (), labels))
        found[labels.tobytes()] = (before + again, (*alike, load), labels)
    most = sorted(found.values(), key=lambda one: -one[0])[:2]
    return [(loads, labels) for _, loads, labels in most]


def _parts(rows: Numbers, columns: Numbers) -> Numbers:
    """Of each CTA the part of the launch that shares tiles with no other one: a matrix of a batch, say."""
    part, before = rows.copy(), None
    while before is None or not np.array_equal(part, before):
        before = part
        for labels in (columns, rows):
            least = np.full(int(labels.max()) + 1, len(part))
            np.minimum.at(least, labels, part)
            part = least[labels]
    return part


def _places(part: Numbers, labels: Numbers) -> Numbers:
    """The place of each tile among those of its part."""
    named, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.lexsort((named, part[first]))
    ranked = np.empty(len(named), np.int64)
    ranked[order] = np.arange(len(named))
    least = np.full(int(part.max()) + 1, len(named))
    np.minimum.at(least, part[first], ranked)
    places: Numbers = (ranked - least[part[first]])[inverse.reshape(-1)]
    return places


def _advice(order: _Order, tensors: Sequence[str]) -> str:
    if order.group == 1:
        return (
            f"let consecutive programs load the same tile of {tensors[0]}: swap the axes of the grid, or `//` and `%` "
            "where the tile is computed from the program id"
        ) + ("" if order.columns else "; or let one program do what these programs do, in a loop behind the load")
    return (
        f"number the tiles in groups, as Triton's matmul tutorial does with GROUP_SIZE_M={order.group}: {order.group} "
        f"consecutive programs load {order.group} tiles of {tensors[0]} and the same tile of {tensors[-1]}, and the "
        f"next {order.group} programs load the next tile of {tensors[-1]} (tl.swizzle2d computes both indices)"
    )


def _line(kernel: Kernel, load: Operation) -> Operation | None:
    """Where the tile's index is computed: the first division of a program id, or else the first program id."""
    places = range(len(load.operands)) if load.name in TMA_LOADS else (0,)
    sources = {op.line: op for place in places for op in kernel.values.sources(load, place)}
    ids = [op for op in sources.values() if op.name == "tt.get_program_id"]
    divided = [
        op
        for op in sources.values()
        if op.name in _DIVIDED and any(one.name == "tt.get_program_id" for one in kernel.values.sources(op, 0))
    ]
    return min(divided or ids, key=lambda op: op.line, default=None)


def _tensors(kernel: Kernel, loads: Sequence[Operation]) -> str:
    """`a, b` of loads of several tensors."""
    return ", ".join(dict.fromkeys(_tensor(kernel, load) for load in loads))


def _tensor(kernel: Kernel, load: Operation) -> str:
    """The tensor of a load, as the kernel names it."""
    if load.name in TMA_LOADS:
        return load.operands[0].removeprefix("%").partition("#")[0]
    value = kernel.values.operand(load, 0)
    return name_of(value, kernel) if value is not None else "the pointer"


RULE = Rule("program-order", "An order of programs that loses reuse in L2", check, needs="launch", targets=("sm_",))
