"""Values that do not fit into a thread's registers and go through memory."""

from collections.abc import Iterator, Sequence

from kperf.console import agreeing
from kperf.diagnose.analyses.ends_of_spills import (
    TO_END_SPILLS,
    Option,
    is_whole_row,
    options,
    shorter_tile,
)
from kperf.diagnose.analyses.identities import identity_products
from kperf.diagnose.analyses.largest import Largest, largest_value
from kperf.diagnose.analyses.loops import tile_bytes
from kperf.diagnose.analyses.serialised import serialised
from kperf.diagnose.analyses.spills import Spills, spills
from kperf.diagnose.analyses.stages import loaded_into_registers
from kperf.diagnose.analyses.unpipelined import how_to_load_ahead
from kperf.diagnose.analyses.vectors import hidden_in_loop
from kperf.diagnose.analyses.warps import most_registers, warps_change, warps_repeat_work
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import MMAS, own
from kperf.diagnose.reading.options import MOST_WARPS, more_warps, scaled, with_option
from kperf.diagnose.rule import Rule
from kperf.diagnose.rules.pointers_through_loops import handed_back
from kperf.diagnose.rules.too_few_warps import wide_row
from kperf.diagnose.thresholds import MEDIUM_GAIN, REGISTER_BYTES
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding, Level

_FEW = 0.5
"""Of the registers that a thread may have: where values do not fit into all of them, ptxas may give it far fewer. A
chunk of linear attention in float32 got 32, and spilled 14336 bytes; with maxnreg=255 it spilled 3280."""
_HINT = 1.02, 1.0, 1.1
"""Of what another finding's advice ends, or no loop does."""
_OF_LOADS = "a consequence of the loads that are not pipelined, whose tiles fill the registers: "
_OF_POINTERS = "a consequence of the pointers that two loops carry: "


def check(kernel: Kernel) -> Iterator[Finding]:
    """By ptxas' report, at the value that takes most registers; with the MMAs that wait for each other for it."""
    found = spills(kernel)
    if found is None:
        return
    assert kernel.resources is not None
    spilled, estimates = kernel.resources.spilled_bytes, []
    if found.severe:
        estimates.append(found.estimate)
    value = largest_value(kernel)
    each = f"; the kernel's largest value takes {value.registers} registers of each thread" if value is not None else ""
    evidence: dict[str, float | int | str] = {
        "spilled_bytes": spilled,
        "registers": kernel.resources.registers,
        "local_instructions": found.instructions,
        "in_loops": found.in_loops or 0,
        "share_of_instructions": found.share,
    }
    waits, waiting = "", serialised(kernel)
    if waiting is not None and waiting.for_registers:
        estimates.append(waiting.estimate)
        evidence |= waiting.evidence
        waits = (
            f"; because registers run out, the warps wait for {waiting.awaited} of the {waiting.issued} wgmma "
            f"instructions in loops before they issue the next one (ptxas {waiting.warning})"
        )
    severity: Level = "high" if estimates else "medium" if found.gain >= MEDIUM_GAIN else "low"
    cause, first = _first(kernel)
    compiled = not first and severity != "low"
    wide = wide_row(kernel) if compiled else None
    repeated = compiled and wide is None and warps_repeat_work(kernel)
    most = most_registers(kernel, kernel.total_warps)
    limit = kernel.configuration.get("maxnreg", most)
    few = limit < most or kernel.resources.registers <= most * _FEW
    warps = wide.wanted if wide is not None else 2 * kernel.num_warps
    fit = kernel.num_warps < warps <= MOST_WARPS and not repeated
    after = options(kernel, registers=most if few else None, warps=warps if fit else None, compiled=compiled)
    if found.severe and after:
        estimates[0] = found.estimate_with(after[0].left, spilled)
    advice = _advice(kernel, value, after, limit if limit < most else None)
    if first:
        severity, estimates = "low", [_HINT]
        advice = f"first {first}; if values are still spilled, {advice}"
    elif repeated and severity == "medium":
        severity = "low"
    for product in identity_products(kernel):
        advice = f"{_without_identity(product)}; if values are still spilled, {advice}"
    tried = [one.change for one in after if not first or one.is_limit]
    more = [] if first or repeated else [warps_change(kernel, one["num_warps"]) for one in more_warps(kernel)]
    tried += [one for one in more if one not in tried]
    if value is not None and not is_whole_row(kernel, value):
        tried += scaled(kernel, value.tensor.shape, 0.5)
    yield kernel.finding(
        RULE.id,
        value.operation if value is not None else None,
        severity,
        f"{cause}{spilled} bytes of a thread's registers are spilled to memory "
        f"({_instructions(found)} them){each}{waits}{_leave(after)}",
        advice,
        evidence,
        estimate=max(estimates, default=_HINT if severity == "low" else (1.1, 1.0, 1.3)),
        candidates=tried,
    )


def _without_identity(product: Operation) -> str:
    """What to do about a product that only keeps its operand in registers, for which other operands have no room."""
    at = frame_of(product)
    line = f" on line {at.line}" if at is not None else ""
    return f"leave out the tl.dot with an identity matrix{line}, which only moves its other operand into registers"


def _advice(kernel: Kernel, value: Largest | None, after: Sequence[Option], limit: int | None) -> str:
    """The option that leaves least, and what to do beside it. limit: of registers, that the launch gives."""
    shorter = shorter_tile(kernel, value, after)
    if not after:
        return shorter
    best, advice = after[0], with_option(kernel, after[0].written)
    if best.is_limit and kernel.resources is not None:
        by = f"maxnreg={limit} leaves" if limit is not None else "ptxas gave"
        advice += f": {by} each thread only {kernel.resources.registers} registers"
    if best.left is None and best.is_limit:
        return f"{advice}; if values are still spilled, {shorter}"
    if best.left is not None and not best.ends_spills:
        return f"{advice}; {TO_END_SPILLS}{shorter}"
    return advice if best.is_limit else f"{advice}, or {shorter}"


def _leave(after: Sequence[Option]) -> str:
    """What each option leaves, in words, where one of them leaves anything."""
    known = [one for one in after if one.left is not None]
    some = any(not one.ends_spills for one in known)
    return "".join(f"{'; ' if one is known[0] else ', '}{one.leaves}" for one in known if some)


def _instructions(found: Spills) -> str:
    """Which instructions load spilled values, in words: those of loops, of a kernel that has loops."""
    if found.in_loops is None:
        return f"{found.instructions} instructions load or store"
    loops = agreeing(found.in_loops, "instruction of a loop loads or stores", "instructions of loops load or store")
    return f"{found.in_loops} {loops}"


def _first(kernel: Kernel) -> tuple[str, str]:
    """Of what spills are a consequence, and what to do ahead of all else: where a loop's loaded tiles, or pointers that
    two loops carry, fill the registers. Empty where none do.

    Spills are their consequence where they hold as many bytes of a thread as are spilled. More warps then only leave an
    SM with fewer CTAs, of which one would work while another waits: of while_loop with 8 warps nothing is spilled, and
    it takes 1.2 times as long (H100).
    """
    assert kernel.resources is not None
    for loop in kernel.main_loops:
        if (hidden := hidden_in_loop(kernel, loop)) is not None:
            return _OF_LOADS, hidden.reason[1]
        tiles = sum(tile_bytes(op) for op in loaded_into_registers(loop))
        if tiles >= kernel.resources.spilled_bytes * kernel.threads and any(op.name in MMAS for op in own(loop)):
            _, advice = how_to_load_ahead(kernel) or ("", "load the operands of tl.dot directly in the loop")
            return _OF_LOADS, advice
        if sum(one.registers for one in handed_back(kernel, loop)) * REGISTER_BYTES >= kernel.resources.spilled_bytes:
            return _OF_POINTERS, "compute the pointers anew before the inner loop"
    return "", ""


RULE = Rule(
    "register-spills",
    "Registers spilled to memory",
    check,
    needs="machine code",
    explained_by=("too-few-warps",),
    by_options=True,
)
