"""Values that do not fit into a thread's registers and go through memory."""

from collections.abc import Iterator

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.largest import largest_value
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import OTHERS_A_CYCLE, SPILLED_BYTES, SPILLED_SHARE
from kperf.trace.analyze.finding import Finding

_LOCAL = ("STL", "LDL")
_MOST_REGISTERS = 255
"""Of a thread, whose number is eight bits long."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By ptxas' report, at the value that takes most registers."""
    if kernel.resources is None or kernel.code is None or kernel.resources.spilled_bytes < SPILLED_BYTES:
        return
    local = [i for i in kernel.code.instructions if i.opcode.split(".")[0] in _LOCAL]
    looping = sum(kernel.code.depth(i) > 0 for i in local)
    spilled = kernel.resources.spilled_bytes
    loops = [i for i in kernel.code.instructions if kernel.code.depth(i) > 0]
    share = looping / len(loops) if loops else len(local) / len(kernel.code.instructions)
    much = share >= SPILLED_SHARE
    value = largest_value(kernel)
    each = f"; its largest value takes {value.registers} registers of each" if value is not None else ""
    yield kernel.finding(
        RULE.id,
        value.operation if value is not None else None,
        "high" if much else "medium",
        f"{spilled} bytes of a thread's registers are spilled to memory ({looping} loads and stores of them in loops)"
        f"{each}",
        kernel.warps_advice(),
        {
            "spilled_bytes": spilled,
            "registers": kernel.resources.registers,
            "local_instructions": len(local),
            "in_loops": looping,
            "share_of_instructions": share,
        },
        estimate=_gain(share) if much else (1.1, 1.0, 1.3),
        candidates=[
            *kernel.more_warps(),
            *([{"maxnreg": _MOST_REGISTERS}] if "maxnreg" in kernel.configuration else []),
            *kernel.scaled(value.tensor.shape if value is not None else (), 0.5),
        ],
    )


def _gain(share: float) -> tuple[float, float, float]:
    """Without them, by an SM's issue slots; 5.1 of it were 4.7 measured (H200, half of a loop's instructions)."""
    faster = 1 + OTHERS_A_CYCLE * share / (1 - min(share, 0.5))
    return faster, 1.1, 1.6 * faster


RULE = Rule(
    "register-spills", "Registers spilled to memory", check, needs="machine code", explained_by=("too-few-warps",)
)
