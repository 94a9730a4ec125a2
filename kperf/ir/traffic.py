"""Bytes that an operation of TTGIR moves between device memory and an SM, as its types say."""

import math
import re
from dataclasses import dataclass

from kperf.ir.ttgir import Operation

_LOADS = {
    "tt.load",
    "tt.descriptor_load",
    "tt.descriptor_gather",
    "ttg.async_copy_global_to_local",
    "ttng.async_tma_copy_global_to_local",
    "ttng.async_tma_gather",
}
_STORES = {
    "tt.store",
    "tt.descriptor_store",
    "tt.descriptor_scatter",
    "tt.descriptor_reduce",
    "tt.atomic_rmw",
    "tt.atomic_cas",
    "ttng.async_tma_copy_local_to_global",
    "ttng.async_tma_scatter",
    "ttng.async_tma_reduce",
}
_POINTERS = re.compile(r"(?:tensor<((?:\d+x)+))?!tt\.ptr<(?:bf|f|i)(\d+)")
_DESCRIPTOR = re.compile(r"!tt\.tensordesc<tensor<((?:\d+x)+)(?:bf|f|i)(\d+)")


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
    found = _DESCRIPTOR.search(operation.rest) or _POINTERS.search(operation.rest)
    if found is None:
        return None
    shape, bits = found.groups()
    size = math.prod(int(length) for length in (shape or "").split("x") if length) * max(int(bits), 8) // 8
    loads = operation.name in _LOADS
    return Traffic(argument, size if loads else 0, 0 if loads else size)
