"""Operations of TTGIR that load, multiply and wait, by name, and what the text of one says of it alone."""

import re

from kperf.arch import operations
from kperf.ir.ttgir import Operation

DOT = "ttng.warp_group_dot"
DOT_WAIT = "ttng.warp_group_dot_wait"
MMAS = operations("mma")
COMMIT = "ttng.tc_gen5_commit"
COPY = "ttng.async_tma_copy_global_to_local"
ASYNC_COPY = "ttg.async_copy_global_to_local"
ASYNC_WAIT = "ttg.async_wait"
WAIT = "ttng.wait_barrier"
ARRIVE = "ttng.arrive_barrier"
REGISTER_LOADS = operations("load")
STORES = operations("store")
ASSEMBLY = "tt.elementwise_inline_asm"
_NAMED_BARRIER = re.compile(r'^ *"bar(?:rier)?\.(sync|arrive) \$1, (\d+);.*\} (%[\w$.#-]+) : ')
"""Inline PTX on one of the hardware's named barriers: whether it waits, how many threads meet there, its number."""


def pendings(wait: Operation) -> int:
    """How many MMAs a wait may leave in flight."""
    match = re.search(r"pendings = (\d+)", wait.rest)
    return int(match.group(1)) if match else 0


def named_barrier(operation: Operation) -> re.Match[str] | None:
    """Of inline PTX on a named barrier: `sync` or `arrive`, how many threads meet there, the number's SSA name."""
    return _NAMED_BARRIER.match(operation.rest) if operation.name == ASSEMBLY else None


def waits(operation: Operation) -> bool:
    """Whether it waits for an mbarrier or a named barrier."""
    named = named_barrier(operation)
    return operation.name == WAIT or (named is not None and named[1] == "sync")


def signals(operation: Operation) -> bool:
    """Whether it arrives at an mbarrier or a named barrier and goes on."""
    named = named_barrier(operation)
    return operation.name == ARRIVE or (named is not None and named[1] == "arrive")
