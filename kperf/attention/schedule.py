"""The order of attention's two products, read from an override's TTGIR."""

from typing import Literal

from kperf.ir.operations import pendings
from kperf.ir.ttgir import Module, Operation, Region

_LOOPS = ("scf.for", "scf.while")

Schedule = Literal["in_order", "qk_ahead", "no_wgmma"]

IN_WORDS: dict[Schedule, str] = {
    "in_order": "in_order (no MMA is issued while another is in flight)",
    "qk_ahead": "qk_ahead (the next QK is issued before the wait for PV)",
    "no_wgmma": "no_wgmma (no MMA is a wgmma)",
}
"""Each with what it means."""


def schedule(module: Module) -> Schedule:
    """The order of the matrix products in the main loop of the first consumer, read from the operations themselves.

    QK is the wgmma whose B operand is a transposed view (k^T), PV the other; a wait with `pendings = n` leaves n in
    flight.
    """
    for group in module.warp_groups():
        loops = [op for op in group.region.walk() if op.name in _LOOPS and _holds_dot(op)]
        if not loops:
            continue
        innermost = (
            loops[-1] if len(loops) == 1 else next(op for op in loops if not any(map(_inner_dot_loop, op.regions)))
        )
        # Of this loop alone: its siblings use the same names for other values.
        transposed = {op.results[0] for op in innermost.walk() if op.name == "ttg.memdesc_trans"}
        in_flight: list[str] = []
        for op in innermost.walk():
            if op.name == "ttng.warp_group_dot":
                in_flight.append("QK" if op.operands[1] in transposed else "PV")
                if "QK" in in_flight and "PV" in in_flight:
                    return "qk_ahead"
                if "isAsync = true" not in op.rest:
                    in_flight.clear()
            elif op.name == "ttng.warp_group_dot_wait":
                in_flight = in_flight[max(len(in_flight) - pendings(op), 0) :]
        return "in_order"
    return "no_wgmma"


def _holds_dot(operation: Operation) -> bool:
    return any(op.name == "ttng.warp_group_dot" for op in operation.walk())


def _inner_dot_loop(region: Region) -> bool:
    return any(op.name in _LOOPS and _holds_dot(op) for op in region.walk())
