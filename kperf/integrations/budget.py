"""What a test asserts of kernels: registers, spills, machine code; and, on a GPU, what a trace shows."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from kperf.api import Trace, trace
from kperf.arch import SM_90A, Arch, of
from kperf.diagnose.script.fake_cuda import fake_cuda
from kperf.ir import compile as compiler
from kperf.ir.offline import Launch, noted_launches
from kperf.record import device


@dataclass(frozen=True)
class KernelBudget:
    """What a kernel takes as it is compiled: all that is known of it before it runs.

    registers, spills: of a thread, spills in bytes. shared_bytes, warps: of a CTA. occupancy: CTAs that fit on an SM.
    grid: of its first launch. opcodes: how often each opcode stands in its machine code, with its modifiers.
    """

    name: str
    target: str
    grid: tuple[int, int, int]
    registers: int
    spills: int
    shared_bytes: int
    warps: int
    occupancy: int
    opcodes: Mapping[str, int]

    def count(self, opcode: str) -> int:
        """Instructions of an opcode: "HGMMA" counts all of them, "LDG.E.128" those with these modifiers first."""
        return sum(number for name, number in self.opcodes.items() if name == opcode or name.startswith(f"{opcode}."))

    def __repr__(self) -> str:
        return f"<{self.name} for {self.target}>"


class Budget:
    """What the fixture `kperf_budget` gives."""

    @contextmanager
    def compiled(self, target: str = SM_90A.name) -> Iterator[dict[str, KernelBudget]]:
        """Compile what is launched within it, and run nothing: `cuda` tensors have shapes there and no numbers.

        Gives the kernels by name once it ends, in the order of their first launches; a second compilation of a function
        is `name.<hash>`, as are an autotuner's. Raises `UsageError` for an unknown target.
        """
        arch = of(target)
        kernels: dict[str, KernelBudget] = {}
        with fake_cuda(arch), noted_launches(arch) as launches:
            yield kernels
        for launch in launches:
            name = launch.name if launch.name not in kernels else f"{launch.name}.{launch.kernel.hash[:8]}"
            kernels[name] = _budget(name, launch, arch)

    def traced(self, kernel: str | list[str] = "*", **options: Any) -> Trace:
        """As `kperf.trace`; without a GPU to trace on, the test is skipped."""
        if reason := device.why_static():
            pytest.skip(reason)
        return trace(kernel, **options)


def _budget(name: str, launch: Launch, arch: Arch) -> KernelBudget:
    used, warps = compiler.resources(launch.kernel), int(launch.kernel.metadata.num_warps)
    return KernelBudget(
        name,
        arch.name,
        launch.grid,
        used.registers,
        used.spilled_bytes,
        used.shared_bytes,
        warps,
        arch.ctas_per_sm(used.registers, used.shared_bytes, warps),
        Counter(instruction.opcode for instruction in compiler.machine_code(launch.kernel).instructions),
    )
