"""Values that do not fit into a thread's registers and go through memory."""

from collections.abc import Iterator

from kperf.console import agreeing
from kperf.diagnose.kernel import Kernel
from kperf.diagnose.largest import largest_value
from kperf.diagnose.rule import Rule
from kperf.diagnose.serialised import serialised
from kperf.diagnose.spills import spills
from kperf.trace.analyze.finding import Finding

_MOST_REGISTERS = 255
"""Of a thread, whose number is eight bits long."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By ptxas' report, at the value that takes most registers; with the MMAs that wait for each other for it."""
    found = spills(kernel)
    if found is None:
        return
    assert kernel.resources is not None
    spilled, estimates = kernel.resources.spilled_bytes, []
    if found.severe:
        estimates.append((found.gain, 1.1, 1.6 * found.gain))
    value = largest_value(kernel)
    each = f"; the kernel's largest value takes {value.registers} registers of each thread" if value is not None else ""
    evidence: dict[str, float | int | str] = {
        "spilled_bytes": spilled,
        "registers": kernel.resources.registers,
        "local_instructions": found.instructions,
        "in_loops": found.in_loops,
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
    yield kernel.finding(
        RULE.id,
        value.operation if value is not None else None,
        "high" if estimates else "medium" if found.share else "low",
        f"{spilled} bytes of a thread's registers are spilled to memory ({found.in_loops} "
        f"{agreeing(found.in_loops, 'instruction of a loop loads', 'instructions of loops load')} or store "
        f"them){each}{waits}",
        kernel.warps_advice(),
        evidence,
        estimate=max(estimates, default=(1.1, 1.0, 1.3) if found.share else (1.02, 1.0, 1.1)),
        candidates=[
            *kernel.more_warps(),
            *([{"maxnreg": _MOST_REGISTERS}] if "maxnreg" in kernel.configuration else []),
            *kernel.scaled(value.tensor.shape if value is not None else (), 0.5),
        ],
    )


RULE = Rule(
    "register-spills", "Registers spilled to memory", check, needs="machine code", explained_by=("too-few-warps",)
)
