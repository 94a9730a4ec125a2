"""Values that do not fit into a thread's registers and go through memory."""

from collections.abc import Iterator

from kperf.console import agreeing
from kperf.diagnose.kernel import MMAS, Kernel, own
from kperf.diagnose.largest import largest_value
from kperf.diagnose.loops import tile_bytes
from kperf.diagnose.rule import Rule
from kperf.diagnose.rules.loads_not_pipelined import loaded_into_registers
from kperf.diagnose.rules.pointers_through_loops import handed_back
from kperf.diagnose.serialised import serialised
from kperf.diagnose.spills import Spills, spills
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.diagnose.vectors import hidden_in_loop
from kperf.diagnose.warps import warps_repeat_work
from kperf.trace.analyze.finding import Finding, Level

_FEW = 0.5
"""Of the registers that a thread may have: where values do not fit into all of them, ptxas may give it far fewer. A
chunk of linear attention in float32 got 32, and spilled 14336 bytes; with maxnreg=255 it spilled 3280."""
_HINT = 1.02, 1.0, 1.1
"""Of what another finding's advice ends, or no loop does."""
_REGISTER_BYTES = 4
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
    after, first = _first(kernel)
    repeated = not first and severity != "low" and warps_repeat_work(kernel)
    most = _most_registers(kernel)
    limit = kernel.configuration.get("maxnreg", most)
    few = limit < most or kernel.resources.registers <= most * _FEW
    lengths = value.tensor.shape if value is not None else ()
    advice = kernel.halved(lengths) if repeated else kernel.warps_advice(lengths)
    if few:
        by = f"maxnreg={limit} leaves" if limit < most else "ptxas gave"
        advice = (
            f"{kernel.with_option(f'maxnreg={most}')}: {by} each thread only {kernel.resources.registers} registers; "
            f"if values are still spilled, {advice}"
        )
    if first:
        severity, estimates = "low", [_HINT]
        advice = f"first {first}; if values are still spilled, {advice}"
    elif repeated and severity == "medium":
        severity = "low"
    yield kernel.finding(
        RULE.id,
        value.operation if value is not None else None,
        severity,
        f"{after}{spilled} bytes of a thread's registers are spilled to memory "
        f"({_instructions(found)} them){each}{waits}",
        advice,
        evidence,
        estimate=max(estimates, default=_HINT if severity == "low" else (1.1, 1.0, 1.3)),
        candidates=[
            *([{"maxnreg": most}] if few else []),
            *([] if first or repeated else kernel.more_warps()),
            *kernel.scaled(lengths, 0.5),
        ],
    )


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
            return _OF_LOADS, "let the compiler pipeline the loads of the loop, as loads-not-pipelined advises"
        if sum(one.registers for one in handed_back(kernel, loop)) * _REGISTER_BYTES >= kernel.resources.spilled_bytes:
            return _OF_POINTERS, "compute the pointers anew before the inner loop, as pointers-through-loops advises"
    return "", ""


def _most_registers(kernel: Kernel) -> int:
    """What a thread of the kernel may have, in steps of 8 below the most that there are."""
    of_cta = kernel.arch.sm_registers // (kernel.total_warps * kernel.arch.warp_size)
    return min(kernel.arch.thread_registers, of_cta // 8 * 8)


RULE = Rule(
    "register-spills", "Registers spilled to memory", check, needs="machine code", explained_by=("too-few-warps",)
)
