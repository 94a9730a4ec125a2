"""Requests that use a small part of the sectors which they move."""

import math
from collections.abc import Iterator

from kperf.arch import H200, H200_COPY_GB_PER_S, H200_L2_KEPT_BYTES, H200_PARTIAL_STORE_GB_PER_S
from kperf.diagnose.analyses.loops import accesses_of
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, moved_bytes
from kperf.diagnose.analyses.pieces import wrapped_by
from kperf.diagnose.analyses.repetitions import of_repetitions, repetitions
from kperf.diagnose.analyses.sectors import (
    MOST_PARTS,
    beside,
    distance,
    has_layout_of,
    is_alone,
    is_broadcast,
    is_cut,
    is_from_memory,
)
from kperf.diagnose.analyses.vectors import hidden_of, passed_in_parts, wrapped
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of, lines_of
from kperf.diagnose.reading.operations import LOADS, STORES, loops_around, own
from kperf.diagnose.reading.pointers import tensor_of
from kperf.diagnose.reading.strides import descriptor_in_parts, next_cta, unless_one
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import BAD_SECTOR_USE, MEDIUM_GAIN, POOR_SECTOR_USE, SECTOR_BYTES, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding, Level

_PART = 8
"""An access of less than this part of the largest one's bytes does not decide."""
_MANY = 3.0
"""So many times as long is severe."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """From the addresses of one CTA and the layout of its threads."""
    largest = max((_weight(kernel, access) for access in kernel.accesses), default=0)
    poor = [
        access
        for access in kernel.accesses
        if access.sector_use < POOR_SECTOR_USE
        and not access.value.scattered
        and _weight(kernel, access) * _PART >= largest
        and access.tile_sectors > 1  # of one there is nothing else to read with it
    ]
    apart: list[Access] = []
    together: list[list[Access]] = []
    for access in poor:
        others = beside(kernel, access) if is_from_memory(kernel, access) else []
        if any(access is one for group in together for one in group):
            continue
        if others:
            together.append(others)
            yield _together(kernel, access, others)
        elif has_layout_of(kernel, access, poor) or is_cut(kernel, access) or is_alone(kernel, access):
            continue
        elif is_broadcast(kernel, access):
            yield from _broadcast(kernel, access)
        elif is_from_memory(kernel, access) or access.sector_use < BAD_SECTOR_USE:
            apart.append(access)  # else the second half of a sector comes from the cache
    for access in apart:
        yield _apart(kernel, access, [one for one in apart if is_from_memory(kernel, one)])


def _broadcast(kernel: Kernel, access: Access) -> Iterator[Finding]:
    """Of such a load, if its requests take longer than the arithmetic and the bytes of the loop's iteration.

    An SM starts a request of a warp a cycle (H100 whitepaper: 32 load/store units), and L1 serves what lies in a sector
    at once. Not measured: a hint.
    """
    for loop in loops_around(access.operation)[:1]:
        requests = sum(one.requests for one in accesses_of(kernel, loop))
        moved = moved_bytes(kernel, own(loop)) / kernel.arch.memory_bytes_per_cycle
        least = max(arithmetic_cycles(kernel, own(loop)), moved)
        gain = max(requests, least) / max(requests - access.requests, least, 1)
        if gain >= MEDIUM_GAIN:
            yield kernel.finding(
                RULE.id,
                access.operation,
                "low",
                f"many threads load the same element of {tensor_of(access, kernel)}, because the layout is that of "
                f"the tile to which the elements are broadcast: an iteration's requests take some {requests} cycles of "
                f"an SM, and its arithmetic and bytes take {least:.0f}",
                "make the tile longer along the dimension of the broadcast, so that each element that a thread loads "
                "serves more elements of the tile",
                _evidence(access) | {"requests": access.requests},
                confidence="low",
                estimate=(gain**0.5, 1.0, gain),
            )


def _apart(kernel: Kernel, access: Access, alike: list[Access]) -> Finding:
    """`alike`: all that use little of what moves from memory. One change of the tile serves them together."""
    from_memory, stride = is_from_memory(kernel, access), unless_one(kernel, access)
    axis, step = next_cta(kernel, access) if from_memory else ("", 0)
    shared = 0 < step < SECTOR_BYTES
    estimate = _estimate(kernel, access, alike, step)
    bad = access.tile_sector_use < BAD_SECTOR_USE or access.sector_use < BAD_SECTOR_USE / 2
    least = _MANY if shared and not loops_around(access.operation) else SEVERE_GAIN
    severity: Level = "high" if bad and estimate[0] >= least else "medium"
    direction = "to" if access.operation.name in STORES else "from"
    within = "between L2 and the SM" if shared else "between the SM and its cache"
    where = f"{direction} device memory" if from_memory and not shared else within
    ratio = access.tile_sector_use if from_memory else access.sector_use
    lines = lines_of((one.operation for one in alike), access.operation) if from_memory and not stride else ""
    frames = (frame_of(one.operation) for one in alike)
    together = ", ".join(map(str, sorted({frame.line for frame in frames if frame is not None})))
    hidden = hidden_of(kernel, [access]) if not from_memory else None
    because, edited = "", dict[str, float | int | str]()
    if stride:
        because, advice = f", unless {stride} is 1", f"if {stride} is 1, say so with i32:1 in --signature"
    elif shared and not access.has_neighbours:
        advice = _advice_of_ctas(axis, step)
    elif hidden is not None:
        advice, edited = hidden.reason[1], hidden.evidence
    else:
        advice = _advice(kernel, access)
        because = f", because {repetition[0]}" if (repetition := _repetition(access)) is not None else ""
    return kernel.finding(
        RULE.id,
        access.operation,
        "low" if stride else severity,
        f"the {_verb(access)} uses {ratio:.0%} of the bytes that it moves {where}: {_apart_in_words(kernel, access)}"
        + because
        + (f"; the same holds for {lines}, and the estimate is for all of them together" if lines else "")
        + (f"; {hidden.reason[0]}" if hidden is not None else "")
        + (f"; the next CTA along axis {axis} of the grid uses other bytes of the same sectors" if shared else ""),
        advice,
        _evidence(access) | ({"lines_together": together} if lines else {}) | edited,
        confidence="low" if stride else "medium",
        estimate=estimate,
    )


def _estimate(kernel: Kernel, access: Access, alike: list[Access], step: int) -> tuple[float, float, float]:
    """The likely, the least and the most gain; `step`: bytes to the next CTA's element, 0 where it is not known."""
    from_memory, shared = is_from_memory(kernel, access), 0 < step < SECTOR_BYTES
    gain = _gain(kernel, alike) if from_memory else _gain_of_requests(kernel, access)
    requests = max(access.tile_sector_use / access.sector_use, 1.0) if from_memory else 1.0
    likely = _likely_of_shared(kernel, gain, access.tensor.bytes / step) if shared else min(gain, 8.0) ** 0.8
    return likely, min(gain**0.5, 1.1), max(gain * requests, 1.5 * likely if shared else 1.0)


def _likely_of_shared(kernel: Kernel, gain: float, filled: float) -> float:
    """How much longer L2 takes for sectors that CTAs share than memory does, from which each sector moves once.

    filled: the part of a sector that all CTAs together use. Two loads of the same bytes move them from L2 twice. Of 8
    for loads alone 3.2 x were measured (H200), and of a convolution that also stores so 23.1 x (H100), where this gives
    2.8 and 25.
    """
    known = {one.operation.line for one in kernel.accesses}
    if any(tensor_types(op.rest)[:1] and op.line not in known for op in kernel.named(*LOADS)):
        return math.sqrt(gain)  # loads at addresses that are data move nobody knows what
    of_l2 = kernel.arch.memory_bytes_per_cycle / H200.l2_bytes_per_cycle
    cost, once = 0.0, dict[tuple[frozenset[str], bool, int], int]()
    for one in kernel.accesses:
        store = one.operation.name in STORES
        part = store and one.sector_use < POOR_SECTOR_USE
        of_moved = H200_COPY_GB_PER_S / H200_PARTIAL_STORE_GB_PER_S if part else of_l2
        cost += _weight(kernel, one, one.sectors * SECTOR_BYTES) * of_moved
        place = (one.value.arguments, store, len(loops_around(one.operation)))
        once[place] = max(once.get(place, 0), _weight(kernel, one))
    return max(cost * filled / max(sum(once.values()), 1), math.sqrt(gain))


def _advice_of_ctas(axis: str, step: int) -> str:
    """Of CTAs that have an element of a sector each."""
    neighbours = max(2, 1 << (SECTOR_BYTES // step).bit_length() - 1)  # tl.arange takes powers of two
    index = f"tl.program_id({'xyz'.index(axis)})"
    return (
        f"let each CTA do the work of {neighbours} neighbours along axis {axis} of the grid, or more: {index} * "
        f"{neighbours} + tl.arange(0, {neighbours}) as the last index of the tile, in place of {index}"
    )


def _together(kernel: Kernel, access: Access, others: list[Access]) -> Finding:
    """Of accesses that use up their sectors together: memory moves no more, but each request does."""
    lines = lines_of((one.operation for one in others), access.operation) or "the same line"
    severity: Level = "medium"
    if access.operation.name in STORES:
        gain = max(_written_in_part(kernel, [access, *others]), 1.1)
        severity = "high" if gain >= _MANY else "medium"
        message = (
            f"each request of the store writes {access.sector_use:.0%} of each sector that it moves to L2, and "
            f"requests of {lines} write the rest separately"
        )
    else:
        gain = 1.3
        message = (
            f"each request of the load uses {access.sector_use:.0%} of the bytes that it moves (the cache serves the "
            f"other bytes to {lines})"
        )
    return kernel.finding(
        RULE.id,
        access.operation,
        severity,
        f"{message}: {_apart_in_words(kernel, access)}",
        _advice(kernel, access),
        _evidence(access),
        confidence="medium",
        estimate=(gain, 1.0, max(1.5 * gain, 2.0)),
    )


def _written_in_part(kernel: Kernel, stores: list[Access]) -> float:
    """How much longer L2 takes for these stores than memory takes for all bytes of the launch.

    L1 does not collect what is stored until a sector is whole. Of the rope_pairs of 1.6 x (results/h200/diagnose.jsonl)
    this gives 1.5.
    """
    in_parts = sum(_weight(kernel, one, one.sectors * SECTOR_BYTES) for one in stores) / H200_PARTIAL_STORE_GB_PER_S
    return in_parts / (max(sum(_weight(kernel, one) for one in kernel.accesses), 1) / H200_COPY_GB_PER_S)


def _advice(kernel: Kernel, access: Access) -> str:
    if (repetition := _repetition(access)) is not None:
        return repetition[1]
    if access.contiguous is not None:
        return _advice_of_rows(kernel, access, access.contiguous)
    if not is_from_memory(kernel, access) and len(access.tensor.shape) == 1 and not distance(access):
        return (
            "permute the elements with tl.gather, and store them in the order of memory"
            if access.operation.name in STORES
            else "load the elements in the order of memory, and permute them with tl.gather"
        )
    parts = distance(access)
    if not 2 <= parts <= MOST_PARTS:
        if _is_transposed(kernel, access):
            return (
                f"give the tile {SECTOR_BYTES // access.tensor.bytes} elements or more of each of its dimensions, and "
                f"pass the stride of {tensor_of(access, kernel)} that is 1 as a tl.constexpr (or as 1): its rows run "
                "across those of other tensors, and each load and store then gets threads along its own rows"
            )
        return (
            "let the last index of the tile run along the dimension whose stride is 1, and pass that stride as a "
            "tl.constexpr (or as 1, which the compiler then knows)"
        )
    return _advice_of_parts(kernel, access, parts)


def _is_transposed(kernel: Kernel, access: Access) -> bool:
    """Whether a tile of one row lies in order in another tensor: along any other row that one would lie apart."""
    shape = access.tensor.shape
    one_row = len(shape) > 1 and sum(length > 1 for length in shape) == 1
    return one_row and any(one.has_neighbours and one.tensor.shape == shape for one in kernel.accesses)


def _advice_of_parts(kernel: Kernel, access: Access, parts: int) -> str:
    """Of elements so far apart that they are parts of records."""
    store, power = access.operation.name in STORES, not parts & (parts - 1)
    if store and not beside(kernel, access):
        return (
            f"let a CTA store the {parts - 1} elements between two of them as well, from a tile whose last index has "
            "stride 1"
        )
    if store and power:
        return f"put the {parts} parts of an element side by side with tl.join and tl.reshape, and store them together"
    return f"keep each of the {parts} parts of an element in a tensor of its own" + (
        f"; or load {parts} times BLOCK contiguous elements, and separate the parts with tl.reshape and tl.split"
        if power
        else ""
    )


def _advice_of_rows(kernel: Kernel, access: Access, along: int) -> str:
    """Of a tile whose rows lie side by side in memory: they are short, or the threads run across them."""
    row = access.tensor.shape[along] * access.tensor.bytes
    if row < SECTOR_BYTES:
        return (
            f"let a CTA work on {SECTOR_BYTES // row} times as many elements or more along the tile's dimension "
            f"{along}: {row} bytes of each row are only a part of a {SECTOR_BYTES}-byte sector"
        )
    if descriptor := descriptor_in_parts(kernel, access):
        return passed_in_parts(descriptor)[1]
    if divisors := wrapped_by(kernel, access):
        return wrapped(kernel, divisors)[1]
    if kernel.is_gluon:
        return (
            f"let the layout's order begin with dimension {along}, and its size_per_thread and threads_per_warp lie "
            "along this dimension"
        )
    return (
        f"let the compiler know that the tile's dimension {along} is contiguous: pass its stride as a tl.constexpr, or "
        "say tl.max_contiguous(index, BLOCK)"
    )


def _gain(kernel: Kernel, apart: list[Access]) -> float:
    """Bytes that all accesses move over those if these moved what they use."""
    moved = sum(_from_memory_once(kernel, one) for one in kernel.accesses)
    unused = sum(_weight(kernel, one, one.tile_sectors * SECTOR_BYTES) - _weight(kernel, one) for one in apart)
    return moved / max(moved - unused, 1)


def _from_memory_once(kernel: Kernel, access: Access) -> float:
    """Bytes of the sectors that an access moves; at addresses that are data those of its tensor, if L2 keeps it.

    Of ell_spmv this estimates 5.2 x, and 4.82 x were measured (H200).
    """
    moved = _weight(kernel, access, access.tile_sectors * SECTOR_BYTES)
    tensors = kernel.tensors_of(access.operation) & kernel.lengths.keys()
    if not access.value.scattered or kernel.grid is None or len(tensors) != 1:
        return moved
    whole = kernel.lengths[next(iter(tensors))] * access.tensor.bytes
    return min(moved, whole / math.prod(kernel.grid)) if whole <= H200_L2_KEPT_BYTES else moved


def _gain_of_requests(kernel: Kernel, access: Access) -> float:
    """Bytes that the requests of all accesses move over those if one access moved what it uses."""
    moved = sum(_weight(kernel, one, one.sectors * SECTOR_BYTES) for one in kernel.accesses)
    unused = _weight(kernel, access, access.sectors * SECTOR_BYTES - access.used_bytes)
    return moved / max(moved - unused, 1)


def _evidence(access: Access) -> dict[str, float | int | str]:
    return {
        "used_bytes": access.used_bytes,
        "moved_bytes": access.sectors * SECTOR_BYTES,
        "sector_use": access.sector_use,
        "tile_sector_use": access.tile_sector_use,
    }


def _apart_in_words(kernel: Kernel, access: Access) -> str:
    """How far, where it is the length of a record: the values take a large number for an unknown stride."""
    apart = distance(access)
    far = f"{apart} elements apart" if 2 <= apart <= MOST_PARTS else "apart"
    return f"neighbouring threads {_verb(access)} elements of {tensor_of(access, kernel)} that lie {far}"


def _repetition(access: Access) -> tuple[str, str] | None:
    """Why a load has each address several times, so that the compiler sees none beside another, and what to do.

    None where the addresses themselves lie apart: without the repetitions they would still.
    """
    addresses, times = repetitions(access)
    several = 1 < times < access.tensor.size and addresses > 1 and access.tile_sector_use >= POOR_SECTOR_USE
    return of_repetitions(access, times) if several and access.operation.name in LOADS else None


def _verb(access: Access) -> str:
    return "store" if access.operation.name in STORES else "load"


def _weight(kernel: Kernel, access: Access, size: int | None = None) -> int:
    """Its bytes, or another size, as often as a CTA does it."""
    return (access.tile_bytes if size is None else size) * kernel.times(access.operation)


RULE = Rule("uncoalesced-access", "Neighbouring threads that access memory far apart", check, by_options=True)
