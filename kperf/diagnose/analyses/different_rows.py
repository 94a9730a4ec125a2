"""Different rows of tables of numbers."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.int64]
_LARGEST_KEY = 1 << 62


def different(columns: Iterable[Numbers], rows: int) -> tuple[Numbers, Numbers]:
    """Where each different row of a table is first, and which of them each row is; in the order of the rows.

    columns: of the table, a number for each of `rows` rows, or one for all. numpy's `unique` with an axis takes several
    times as long, which is seconds of a large grid and an unrolled loop: here each row becomes one number.
    """
    key: Numbers = np.zeros(rows, np.int64)
    count = 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if low == high:
            continue
        places, many = column - low, high - low + 1
        if many > _LARGEST_KEY // count:
            (key, count), (places, many) = _ranked(key), _ranked(column)
        key, count = key * many + places, count * many
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse


def _ranked(numbers: Numbers) -> tuple[Numbers, int]:
    """The place of each number among the different ones, in order, and how many there are."""
    values, places = np.unique(numbers, return_inverse=True)
    return places, len(values)
