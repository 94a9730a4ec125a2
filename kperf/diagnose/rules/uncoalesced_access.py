"""Requests that use a small part of the sectors which they move."""

from collections.abc import Iterator

import numpy as np

from kperf.diagnose.kernel import STORES, Access, Kernel, frame_of, loops_around, name_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import BAD_SECTOR_USE, POOR_SECTOR_USE, SECTOR_BYTES
from kperf.trace.analyze.finding import Finding, Level

_PART = 8
"""An access of less than this part of the largest one's bytes does not decide."""
_PARTS = 16
"""Elements that lie at most so far apart are parts of a record: a colour, a point, a complex number."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """From the addresses of one CTA and the layout of its threads."""
    largest = max((_weight(access) for access in kernel.accesses), default=0)
    for access in kernel.accesses:
        if access.sector_use >= POOR_SECTOR_USE or access.value.loaded or _weight(access) * _PART < largest:
            continue
        if access.tile_sectors == 1:
            continue  # there is nothing else of the tile to read with it
        from_memory = access.tile_sector_use < POOR_SECTOR_USE
        others = _beside(kernel, access) if from_memory else []
        if others:
            yield _together(kernel, access, others)
        elif from_memory or access.sector_use < BAD_SECTOR_USE:  # else the second half of a sector comes from the cache
            yield _apart(kernel, access, from_memory=from_memory)


def _apart(kernel: Kernel, access: Access, *, from_memory: bool) -> Finding:
    bad = access.tile_sector_use < BAD_SECTOR_USE or access.sector_use < BAD_SECTOR_USE / 2
    severity: Level = "high" if bad else "medium"
    stride = kernel.unless_one(access)
    where = "from device memory" if from_memory else "between the SM and its cache"
    ratio = access.tile_sector_use if from_memory else access.sector_use
    gain = _gain(kernel, access) if from_memory else 1 / ratio
    requests = max(access.tile_sector_use / access.sector_use, 1.0) if from_memory else 1.0
    return kernel.finding(
        RULE.id,
        access.operation,
        "low" if stride else severity,
        f"neighbouring threads {_verb(access)} elements that lie apart in {name_of(access.value, kernel)}: {ratio:.0%} "
        f"of the bytes that move {where} are used" + (f", unless {stride} is 1" if stride else ""),
        f"if {stride} is 1, say so with i32:1 in --signature" if stride else _advice(access),
        _evidence(access),
        confidence="low" if stride else "medium",
        estimate=(min(gain, 8.0) ** 0.8, min(gain**0.5, 1.1), gain * requests),
    )


def _together(kernel: Kernel, access: Access, others: list[Access]) -> Finding:
    """Of accesses that use up their sectors together: memory moves no more, but each request does."""
    lines = sorted({frame.line for one in others if (frame := frame_of(one.operation)) is not None})
    return kernel.finding(
        RULE.id,
        access.operation,
        "medium",
        f"neighbouring threads {_verb(access)} elements that lie apart in {name_of(access.value, kernel)}, "
        f"{access.tensor.bytes} bytes at a time: {access.sector_use:.0%} of the bytes of a request are used, and the "
        f"accesses of line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))} use the others from the cache",
        _advice(access),
        _evidence(access),
        confidence="medium",
        estimate=(1.3, 1.0, 2.0),
    )


def _beside(kernel: Kernel, access: Access) -> list[Access]:
    """The other accesses in its place that use what it leaves of its sectors; empty where there are none."""
    store, loops = access.operation.name in STORES, loops_around(access.operation)[:1]
    alike = [
        one
        for one in kernel.accesses
        if (one.operation.name in STORES) == store
        and loops_around(one.operation)[:1] == loops
        and one.value.arguments == access.value.arguments
        and one.tensor.bytes == access.tensor.bytes
    ]
    addresses = np.unique(np.concatenate([one.value.numbers.ravel() for one in alike]))
    used = len(addresses) * access.tensor.bytes / (len(np.unique(addresses // SECTOR_BYTES)) * SECTOR_BYTES)
    return [one for one in alike if one is not access] if used >= POOR_SECTOR_USE else []


def _advice(access: Access) -> str:
    parts = _distance(access)
    if not 2 <= parts <= _PARTS:
        return (
            "let the last index of the tile run along the dimension whose stride is 1, and pass that stride as a "
            "tl.constexpr (or as 1, which the compiler then knows)"
        )
    split = parts & (parts - 1) == 0 and access.operation.name not in STORES
    return f"keep the {parts} parts of an element in tensors of their own" + (
        f"; or load {parts} times BLOCK elements side by side and take them apart with tl.reshape and tl.split"
        if split
        else ""
    )


def _distance(access: Access) -> int:
    """Elements from one to the next along the dimension in which they are closest, of those with equal steps."""
    numbers = access.value.numbers
    steps = [np.abs(np.diff(numbers, axis=axis)) for axis, length in enumerate(numbers.shape) if length > 1]
    return min((int(step.max()) // access.tensor.bytes for step in steps if 0 < step.max() == step.min()), default=0)


def _gain(kernel: Kernel, access: Access) -> float:
    """Bytes that all accesses move over those if this one moved what it uses."""
    moved = sum(_weight(one, one.tile_sectors * SECTOR_BYTES) for one in kernel.accesses)
    return moved / max(moved - _weight(access, access.tile_sectors * SECTOR_BYTES) + _weight(access), 1)


def _evidence(access: Access) -> dict[str, float | int | str]:
    return {
        "used_bytes": access.used_bytes,
        "moved_bytes": access.sectors * SECTOR_BYTES,
        "sector_use": access.sector_use,
        "tile_sector_use": access.tile_sector_use,
    }


def _verb(access: Access) -> str:
    return "store" if access.operation.name in STORES else "load"


def _weight(access: Access, size: int | None = None) -> int:
    """Its bytes, those in a loop counted eightfold a level."""
    return int((access.tile_bytes if size is None else size) * 8 ** len(loops_around(access.operation)))


RULE = Rule("uncoalesced-access", "Neighbouring threads far apart in memory", check)
