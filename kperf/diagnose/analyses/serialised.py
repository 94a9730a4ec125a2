"""wgmma instructions that wait for each other in the machine code, and ptxas' reason."""

import re
from dataclasses import dataclass

from kperf.diagnose.reading.kernel import Kernel

_WARNING = re.compile(
    r"(C75\d\d).*?wgmma\.mma_async instructions are serialized due to (.*?)(?: in (?:the )?function.*)?$", re.MULTILINE
)
_FEW = 3
"""A loop of one or two wgmma instructions has nothing to put between."""


@dataclass(frozen=True)
class Serialised:
    """issued: wgmma instructions in loops. awaited: those that end before the next is issued. warning, reason: ptxas',
    empty where it gives none.
    """

    issued: int
    awaited: int
    warning: str
    reason: str

    @property
    def for_registers(self) -> bool:
        """Whether a thread's registers do not hold what lives across the MMAs."""
        return "insufficient register" in self.reason

    @property
    def for_its_sum(self) -> bool:
        """Whether the accumulator has more than one source."""
        return "defining accumulator registers" in self.reason

    @property
    def evidence(self) -> dict[str, float | int | str]:
        """The numbers behind it, by name."""
        return {"wgmma": self.issued, "waited_for": self.awaited, "warning": self.warning}

    @property
    def estimate(self) -> tuple[float, float, float]:
        """What it gives that wgmma instructions overlap: likely, least and most."""
        return 1.8, 1.2, 3.0


def serialised(kernel: Kernel) -> Serialised | None:
    """None if fewer than half of the wgmma instructions wait, or there are hardly any."""
    issued, awaited = _waits(kernel) if any(True for _ in kernel.named("ttng.warp_group_dot")) else (0, 0)
    if issued < _FEW or awaited < issued / 2:
        return None
    warning = _WARNING.search(kernel.ptxas)
    return Serialised(issued, awaited, *((warning[1], warning[2].strip()) if warning else ("", "")))


def _waits(kernel: Kernel) -> tuple[int, int]:
    """wgmma instructions in loops, and those of them after which none may be left in flight before the next."""
    issued = awaited = 0
    pending = False
    for instruction in kernel.code.instructions if kernel.code else ():
        if kernel.code is None or not kernel.code.depth(instruction):
            pending = False
        elif "GMMA" in instruction.opcode:
            issued, pending = issued + 1, True
        elif instruction.opcode.startswith("WARPGROUP.DEPBAR") and instruction.operands.endswith(" 0x0") and pending:
            awaited, pending = awaited + 1, False
    return issued, awaited
