"""The order in which the assembler put what matters: products, waits, signals and exponentials, plain against traced.

A record is a barrier to the assembler's scheduling, so a traced kernel can show an order that the plain one does not
have. Both are compiled, and the order of the instructions below is compared, in the order of the program's addresses.
"""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

_INSTRUCTION = re.compile(r"\t(?:@!?U?P\w+ )?([A-Z][A-Z0-9_.]*)(.*?);")


_NAMES = {
    "SYNCS.PHASECHK": "mbarrier wait",
    "SYNCS.ARRIVE.TRANS64.A1T0": "mbarrier arrive",
    "MUFU.EX2": "exp2",
    "UTMALDG": "TMA load",
}


@dataclass(frozen=True)
class Difference:
    """A stretch that the two kernels order differently."""

    after: str
    plain: str
    traced: str


def order(sass: str) -> list[str]:
    """The instructions that make up the schedule; runs of one kind are one entry, `exp2 x66`."""
    runs: list[tuple[str, int]] = []
    for line in sass.splitlines():
        match = _INSTRUCTION.search(line)
        event = _event(match.group(1), match.group(2)) if match else None
        if event is None:
            continue
        if runs and runs[-1][0] == event:
            runs[-1] = (event, runs[-1][1] + 1)
        else:
            runs.append((event, 1))
    return [f"{event} x{count}" if count > 1 else event for event, count in runs]


def _event(opcode: str, operands: str) -> str | None:
    if opcode.startswith("HGMMA"):
        # V's rows are summed over and K's columns are, so one of the two is read transposed.
        return "PV wgmma" if ".tnspB" in operands else "QK wgmma"
    if opcode.startswith("WARPGROUP.DEPBAR"):
        return f"wait for wgmma, {int(operands.rpartition('0x')[2], 16)} left"
    return next((name for prefix, name in _NAMES.items() if opcode.startswith(prefix)), None)


def compare(plain: list[str], traced: list[str]) -> list[Difference]:
    """Where the two orders differ; empty when they are the same."""
    matcher = SequenceMatcher(None, plain, traced, autojunk=False)
    return [
        Difference(plain[i1 - 1] if i1 else "the start", ", ".join(plain[i1:i2]), ", ".join(traced[j1:j2]))
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
    ]
