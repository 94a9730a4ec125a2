"""Values that do not fit into a thread's registers and go through memory."""

from collections.abc import Iterator

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.largest import largest_value
from kperf.diagnose.rule import Rule
from kperf.diagnose.spills import spills
from kperf.trace.analyze.finding import Finding

_MOST_REGISTERS = 255
"""Of a thread, whose number is eight bits long."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By ptxas' report, at the value that takes most registers."""
    found = spills(kernel)
    if found is None:
        return
    assert kernel.resources is not None
    spilled, much = kernel.resources.spilled_bytes, found.severe
    value = largest_value(kernel)
    each = f"; its largest value takes {value.registers} registers of each" if value is not None else ""
    yield kernel.finding(
        RULE.id,
        value.operation if value is not None else None,
        "high" if much else "medium",
        f"{spilled} bytes of a thread's registers are spilled to memory ({found.in_loops} loads and stores of them in "
        f"loops){each}",
        kernel.warps_advice(),
        {
            "spilled_bytes": spilled,
            "registers": kernel.resources.registers,
            "local_instructions": found.instructions,
            "in_loops": found.in_loops,
            "share_of_instructions": found.share,
        },
        estimate=(found.gain, 1.1, 1.6 * found.gain) if much else (1.1, 1.0, 1.3),
        candidates=[
            *kernel.more_warps(),
            *([{"maxnreg": _MOST_REGISTERS}] if "maxnreg" in kernel.configuration else []),
            *kernel.scaled(value.tensor.shape if value is not None else (), 0.5),
        ],
    )


RULE = Rule(
    "register-spills", "Registers spilled to memory", check, needs="machine code", explained_by=("too-few-warps",)
)
