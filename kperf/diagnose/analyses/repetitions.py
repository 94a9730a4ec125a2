"""Tiles of addresses that have each address several times: why, and how to load each number once."""

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.reading.accesses import Access

_LETTERS = ("n", "m")
"""Lengths of a tile in code."""


def repetitions(access: Access) -> tuple[int, int]:
    """How many addresses a tile has, and how often it has each of them at least.

    Strides of a few elements make some indices meet, those of a window: these do not count.
    """
    addresses, counts = np.unique(access.value.numbers, return_counts=True)
    return len(addresses), int(counts.min())


def of_repetitions(access: Access, times: int) -> tuple[str, str]:
    """Why a tile has each of its addresses many times, and what to do.

    One of its indices does not count; or neighbours along a dimension are a group, as eight 4-bit numbers in 32 bits;
    or an index is taken modulo less than the tile's length.
    """
    numbers = access.value.numbers
    if any(length > 1 and not np.diff(numbers, axis=axis).any() for axis, length in enumerate(numbers.shape)):
        return (
            "the tile's other index does not change the address",
            "load each number once, as a row or a column, and broadcast this row or column where it is used",
        )
    for axis, length in enumerate(numbers.shape):
        which = ("rows", "columns")[axis] if numbers.ndim == len(_LETTERS) else "elements"
        period = len(np.unique(np.moveaxis(numbers, axis, 0).reshape(length, -1), axis=0))
        if numbers.ndim > len(_LETTERS) or period * times > length:
            continue
        if length % times == 0 and _are_groups(numbers, axis, times):
            return (
                f"{times} neighbours along a dimension of the tile have one address",
                f"load a tile {times} times as short along that dimension, and repeat its elements where they are "
                f"used: {_repeated_along(axis, numbers.ndim, inside=True)}",
            )
        if _comes_again(numbers, axis, period):
            repeat = _repeated_along(axis, numbers.ndim, inside=False)
            return (
                f"every {period} {which} of the tile have the same addresses again",
                f"if no result of the {which} beyond the first {period} is stored, mask these {which} in place of the "
                "modulo"
                + (f"; else load {period} {which}, and repeat them where they are used: {repeat}")
                * (length % period == 0),
            )
    return "equal addresses lie in many places of the tile", "load each number once, and repeat it where it is used"


def _are_groups(numbers: NDArray[np.int64], axis: int, group: int) -> bool:
    """Whether along a dimension each group of neighbours has one address."""
    first = np.repeat(np.take(numbers, range(0, numbers.shape[axis], group), axis=axis), group, axis=axis)
    return np.array_equal(first, numbers)


def _comes_again(numbers: NDArray[np.int64], axis: int, period: int) -> bool:
    """Whether along a dimension the addresses are those of so many places before."""
    along = np.moveaxis(numbers, axis, 0)
    return np.array_equal(along[period:], along[:-period])


def _repeated_along(axis: int, dimensions: int, *, inside: bool) -> str:
    """The code that repeats a tile along a dimension: each element beside itself, or the whole tile behind itself."""
    letters = _LETTERS[:dimensions]
    new = axis + inside
    index, shape = [":"] * dimensions, list(letters)
    index.insert(new, "None")
    shape.insert(new, "group")
    longer = [f"{letter} * group" if place == axis else letter for place, letter in enumerate(letters)]
    ended = f"({', '.join(longer)}{',' * (dimensions == 1)})"
    return f"tl.reshape(tl.broadcast_to(x[{', '.join(index)}], ({', '.join(shape)})), {ended})"
