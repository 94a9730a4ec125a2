"""Bytes that an operation of TTGIR moves between device memory and an SM, as its types say."""

import math
import re
from dataclasses import dataclass

from kperf.arch import operations
from kperf.ir.ttgir import Operation

_LOADS = operations("load", "copy")
_STORES = operations("store", "atomic")
_POINTERS = re.compile(r"(?:tensor<((?:\d+x)+))?!tt\.ptr<(?:bf|f|i)(\d+)")
_DESCRIPTOR = re.compile(r"!tt\.tensordesc<(?:tensor<)?((?:\d+x)+)(?:bf|f|i)(\d+)")
_VALUES = re.compile(r" : .*?tensor<((?:\d+x)+)(?:bf|f|i)(\d+)")
"""Of AMD's buffer operations, which print the type of what they move and not that of its addresses."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that are loaded from or stored to what an argument points at, by all threads together.

    A load that is masked counts whole: which of its lanes are off is not known before it runs.
    """

    argument: str
    loaded: int
    stored: int


def traffic(operation: Operation, argument: str) -> Traffic | None:
    """What `operation` moves from or to `argument`, None if it moves nothing: its tensor's size."""
    if operation.name not in _LOADS | _STORES:
        return None
    patterns = [_VALUES] if operation.name.startswith("amdg.") else [_DESCRIPTOR, _POINTERS]
    first = next((match for pattern in patterns if (match := pattern.search(operation.rest))), None)
    if first is None:
        return None
    shape, bits = first.groups()
    size = math.prod(int(length) for length in (shape or "").split("x") if length) * max(int(bits), 8) // 8
    loads = operation.name in _LOADS
    return Traffic(argument, size if loads else 0, 0 if loads else size)
