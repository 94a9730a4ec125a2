"""Requests that use a small part of the sectors which they move."""

from collections.abc import Iterator

from kperf.diagnose.kernel import Access, Kernel, loops_around, name_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import BAD_SECTOR_USE, POOR_SECTOR_USE, SECTOR_BYTES
from kperf.trace.analyze.finding import Finding, Level

_PART = 8
"""An access of less than this part of the largest one's bytes does not decide."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """From the addresses of one CTA and the layout of its threads."""
    largest = max((_weight(access) for access in kernel.accesses), default=0)
    for access in kernel.accesses:
        if access.sector_use >= POOR_SECTOR_USE or access.value.loaded or _weight(access) * _PART < largest:
            continue
        if access.tile_sectors == 1:
            continue  # there is nothing else of the tile to read with it
        moved = access.sectors * SECTOR_BYTES
        from_memory = access.tile_sector_use < POOR_SECTOR_USE
        if not from_memory and access.sector_use >= BAD_SECTOR_USE:
            continue  # the second half of each sector comes from the cache
        bad = access.tile_sector_use < BAD_SECTOR_USE or access.sector_use < BAD_SECTOR_USE / 2
        severity: Level = "high" if bad else "medium"
        stride = kernel.unless_one(access)
        verb = "store" if "store" in access.operation.name else "load"
        where = "from device memory" if from_memory else "between the SM and its cache"
        ratio = access.tile_sector_use if from_memory else access.sector_use
        yield kernel.finding(
            RULE.id,
            access.operation,
            "low" if stride else severity,
            f"neighbouring threads {verb} elements that lie apart in {name_of(access.value, kernel)}: {ratio:.0%} of "
            f"the bytes that move {where} are used" + (f", unless {stride} is 1" if stride else ""),
            f"if {stride} is 1, say so with i32:1 in --signature"
            if stride
            else "let the last index of the tile run along the dimension whose stride is 1, and pass that stride as a "
            "tl.constexpr (or as 1, which the compiler then knows)",
            {
                "used_bytes": access.used_bytes,
                "moved_bytes": moved,
                "sector_use": access.sector_use,
                "tile_sector_use": access.tile_sector_use,
            },
            confidence="low" if stride else "medium",
            estimate=(min(1 / ratio, 8.0) ** 0.8, 1.1, 1 / ratio),
        )


def _weight(access: Access) -> int:
    """Bytes, those in a loop counted eightfold a level."""
    return int(access.tile_bytes * 8 ** len(loops_around(access.operation)))


RULE = Rule("uncoalesced-access", "Neighbouring threads far apart in memory", check)
