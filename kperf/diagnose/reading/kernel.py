"""What static rules read of one kernel: its TTGIR with locations, its machine code, resources, and what follows."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kperf.arch import Arch
from kperf.compat.triton.sources import Unspecialised
from kperf.diagnose.reading.accesses import Access, read_access
from kperf.diagnose.reading.lines import frame_of, source_of
from kperf.diagnose.reading.operations import (
    ATOMICS,
    LOADS,
    LOOPS,
    MMAS,
    STORES,
    TMA_LOADS,
    inside,
    is_of_inner_loop,
    loops_around,
    mask_place,
    own,
    sides_around,
)
from kperf.diagnose.reading.tile_lengths import TileLengths, tile_lengths
from kperf.diagnose.script.history import Handover, History
from kperf.diagnose.script.operators import Pass
from kperf.diagnose.thresholds import IN_LOOP, SECTOR_BYTES
from kperf.ir.compile import Compiled, Resources, ptxas_says
from kperf.ir.layouts import Layouts, TensorType, tensor_types
from kperf.ir.levels import Line, read_levels
from kperf.ir.locations import Frame
from kperf.ir.machine import Instruction, MachineCode, width
from kperf.ir.ttgir import Module, Operation
from kperf.ir.values import READS, Argument, Value, Values, arguments_of, inner_strides, iterations_of
from kperf.trace.analyze.finding import Estimate, Finding, Level, Trial

_UNKNOWN = {*LOOPS, *READS, *ATOMICS, "scf.if", "tt.get_num_programs"}
"""What gives a condition that the integers of a launch do not say: results of loops and branches, data, the grid."""
_MEMORY_OPCODES = {"load": ("LDG", "LDGSTS"), "store": ("STG",)}


@dataclass(frozen=True)
class Kernel:
    """One kernel for one architecture.

    compiled: what Triton made, its machine code too. shared_bytes: of a CTA; None where Triton did not say. resources:
    None where there is no machine code that is read (AMD's). num_stages: None where only the TTGIR is known. grid: of a
    launch, None without one.
    numbers: the integers of the launch, by name. lengths: elements of its tensors, by name. multiples: arguments that
    are multiples of 16, or begin at one, in each launch. aliases: pairs of arguments that are tensors with bytes in
    common in a launch. unspecialised: what keeps the JIT from telling the compiler of an argument's value, by name.
    assumed: of these arguments, those whose value the compiler is assumed to know. tuned: whether it is one of an
    autotuner's configurations, of which a GPU would choose. constants: constexprs and compile options that it was
    compiled with, by name, as far as they are known. history: of its function's launches in a script; None without one,
    and empty where another compilation of the function has it. handover: to the launch that follows its first one; None
    where they have no tensor in common. follower: the kernel of that launch. passes: what torch does with whole tensors
    of its first launch, as far as that is known. explored: `other_options` that were timed at a launch. is_gluon:
    whether its source is Gluon, whose buffers and waits are its writer's and not the compiler's; None of TTGIR alone,
    which does not say.
    next_along: empty, or the axis of the grid along which the CTA whose addresses are computed is the next one.
    first_along: the axes along which it is the first one.
    """

    name: str
    arch: Arch
    module: Module
    compiled: Compiled = field(repr=False)
    num_stages: int | None = None
    shared_bytes: int | None = None
    resources: Resources | None = None
    grid: tuple[int, int, int] | None = None
    numbers: dict[str, int] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    multiples: frozenset[str] = frozenset()
    aliases: frozenset[frozenset[str]] = frozenset()
    unspecialised: Mapping[str, Unspecialised] = field(default_factory=dict)
    assumed: frozenset[str] = frozenset()
    tuned: bool = False
    constants: Mapping[str, Any] = field(default_factory=dict)
    history: History | None = None
    handover: Handover | None = field(default=None, repr=False)
    follower: "Kernel | None" = field(default=None, repr=False)
    passes: tuple[Pass, ...] = ()
    explored: tuple[Trial, ...] = ()
    is_gluon: bool | None = None
    next_along: str = ""
    first_along: str = ""

    @property
    def code(self) -> MachineCode | None:
        """None where none is read (AMD's). It takes a fifth of a second: a rule asks last, if the TTGIR speaks for it.

        Raises `UsageError` if it cannot be read.
        """
        return self.compiled.code

    @cached_property
    def ptxas(self) -> str:
        """What ptxas prints of its PTX; empty without one. It assembles the kernel again: a rule asks last."""
        ptx = self.compiled.texts.get("ptx") if self.resources is not None else None
        return ptxas_says(ptx, self.arch) if ptx is not None else ""

    @cached_property
    def configuration(self) -> dict[str, int]:
        """Its constants that are whole numbers: the lengths of tiles, stages, warps."""
        return {one: value for one, value in self.constants.items() if type(value) is int}

    @cached_property
    def levels(self) -> dict[str, list[Line]]:
        """From TTIR to machine code, as far as there are: each line with where in the source it is from."""
        return read_levels(self.compiled.texts, self.code, self.compiled.moved)

    @cached_property
    def as_written(self) -> "Kernel | None":
        """The kernel with its TTIR in place of its TTGIR; None where no TTIR is known (Gluon).

        It has no layouts; each load stands in the iteration that uses it, and no copy is ahead.
        """
        text = self.compiled.texts.get("ttir", "")
        return replace(self, module=Module(self.compiled.moved.text(text))) if "tt.func" in text else None

    @cached_property
    def layouts(self) -> Layouts:
        """Of its module."""
        return Layouts(self.module.lines)

    @cached_property
    def values(self) -> Values:
        """Its index arithmetic."""
        return Values(self.module, self.known, self.next_along, self.assumed, self.first_along)

    @cached_property
    def launched_values(self) -> Values:
        """Its index arithmetic with all integers of the launch, also of those that are no strides.

        Along an axis of the grid that has one CTA, its number is 0, and no CTA has another one.
        """
        grid = dict(zip("xyz", self.grid, strict=True)) if self.grid is not None else None
        known = self.known | self.numbers
        return Values(self.module, known, self.next_along, self.assumed, self.first_along, grid=grid)

    def iterations(self, loop: Operation) -> int | None:
        """How often a loop runs, by the integers of the launch; None where they do not say it."""
        return iterations_of(self.launched_values, loop, self.numbers)

    def times(self, op: Operation) -> int:
        """How often a CTA does an operation; of each loop around it that the launch does not decide, IN_LOOP times."""
        counts = [self.iterations(loop) for loop in loops_around(op)]
        return math.prod(IN_LOOP if count is None else count for count in counts)

    def typical_iterations(self, loop: Operation) -> int | None:
        """As `iterations`, also of a loop that runs equally often in neighbouring CTAs: from `m` to `m + BLOCK_M`."""
        ctas = (replace(self, next_along=axis).launched_values for axis in ("", *"xyz"))
        counts = {iterations_of(values, loop, self.numbers, of_program=True) for values in ctas}
        return counts.pop() if len(counts) == 1 else None

    def runs_once(self, loop: Operation) -> bool:
        """Whether the integers of the launch let a loop run at most once; False where they do not say it."""
        count = self.iterations(loop)
        return count is not None and count <= 1

    def is_left_out(self, op: Operation) -> bool:
        """Whether the integers of the launch say that no CTA takes a branch around an operation."""
        return any(self._is_taken(branch) is (side == 1) for branch, side in sides_around(op))

    def _is_taken(self, branch: Operation) -> bool | None:
        """Whether each CTA takes the first side of an `scf.if`, or none does; None where the launch does not say it."""
        if self.grid is None or any(one.name in _UNKNOWN for one in self.launched_values.sources(branch, 0)):
            return None
        condition = self.launched_values.operand(branch, 0)
        if condition is None or condition.loaded or condition.program or condition.iterations:
            return None
        return bool(condition.numbers) if condition.arguments <= self.numbers.keys() else None

    @cached_property
    def known(self) -> dict[str, int]:
        """Numbers of arguments that may be strides, by name: the launch's small ones, and the last of a descriptor, 1.

        They decide what lies side by side, or in one sector, which the compiler may not know.
        """
        deciding = {name: number for name, number in self.numbers.items() if abs(number) < SECTOR_BYTES}
        return {**dict.fromkeys(self.inner_strides, 1), **deciding}

    @cached_property
    def inner_strides(self) -> dict[str, str]:
        """Of descriptors that it gets in parts: the last stride's argument, and the pointer's."""
        return inner_strides(self.module)

    @cached_property
    def parameters(self) -> dict[str, Argument]:
        """The arguments of its function by name, without `%`."""
        return {argument.name.removeprefix("%"): argument for argument in arguments_of(self.module, self.assumed)}

    @property
    def num_warps(self) -> int:
        """Of the default warp group."""
        return self.module.num_warps

    @property
    def threads(self) -> int:
        """Of the default warp group."""
        return self.num_warps * self.arch.warp_size

    @cached_property
    def operations(self) -> list[Operation]:
        """All of the function, in the order of the text."""
        return list(self.module.walk())

    def named(self, *names: str) -> Iterator[Operation]:
        """The operations of these names."""
        return (op for op in self.operations if op.name in names)

    def tensors_of(self, op: Operation) -> frozenset[str]:
        """The pointer arguments on which an address is based, without those from which its offsets are read.

        Empty where the pointer itself is read from memory.
        """
        made = [one for one in self.values.sources(op, 0, until=READS) if one.name not in READS]
        names = {name.removeprefix("%") for one in made for name in one.operands} | {op.operands[0].removeprefix("%")}
        return frozenset(name for name in names if name in self.parameters and self.parameters[name].is_pointer)

    def memory_of(self, op: Operation) -> frozenset[str]:
        """As `tensors_of`, with the arguments that have bytes in common with those in a launch."""
        names = self.tensors_of(op)
        return names.union(*(pair for pair in self.aliases if pair & names))

    @cached_property
    def readers(self) -> Mapping[int, Sequence[tuple[Operation, int]]]:
        """By the line of an operation, what reads its results, and at which place of the reader's operands."""
        found: dict[int, list[tuple[Operation, int]]] = defaultdict(list)
        for op in self.operations:
            for place in range(len(op.operands)):
                if (made := self.values.maker(op, place)) is not None:
                    found[made.line].append((op, place))
        return dict(found)

    @cached_property
    def total_warps(self) -> int:
        """Of a CTA, with all its warp groups."""
        groups = self.module.warp_groups()
        return sum(group.num_warps for group in groups) if len(groups) > 1 else self.num_warps

    @cached_property
    def main_loops(self) -> list[Operation]:
        """The innermost loops that multiply matrices; without any those that load; else those that there are.

        A loop around one that multiplies has MMAs too where the compiler took that one's last iterations out of it.
        """
        loops = [op for op in self.operations if op.name in LOOPS]
        innermost = [loop for loop in loops if not any(inner.name in LOOPS for inner in inside(loop))]
        multiplying = [
            loop for loop in loops if any(op.name in MMAS and not is_of_inner_loop(op, loop) for op in own(loop))
        ]
        loading = [loop for loop in innermost if any(op.name in (*LOADS, *TMA_LOADS) for op in inside(loop))]
        return multiplying or loading or innermost

    @cached_property
    def accesses(self) -> list[Access]:
        """Those loads and stores of tensors of pointers that the launch reaches, if addresses and layouts are known."""
        found = (self.access(op) for op in self.named(*LOADS, *STORES) if not self.is_left_out(op))
        return [access for access in found if access is not None]

    @cached_property
    def index_lines(self) -> frozenset[int]:
        """Lines of what addresses and masks are computed of; a sum of many numbers may want its 64 bits."""
        found: set[int] = set()
        for op in self.named(*LOADS, *STORES, *ATOMICS):
            stored = {"amdg.buffer_store": 0}.get(op.name, 1) if op.name in (*STORES, *ATOMICS) else None
            for place in range(len(op.operands)):
                if place != stored:
                    found |= {source.line for source in self.values.sources(op, place)}
        return frozenset(found)

    def access(self, op: Operation) -> Access | None:
        """A load or a store; None if it is none of pointers, or its addresses are not known."""
        value, pointers = self._addresses(op)
        if value is None or pointers is None or value.numbers.shape != pointers.shape or not pointers.shape:
            return None
        places = self.layouts.elements(pointers)
        if places is None:
            return None
        return read_access(op, pointers, value, places, self._asked(op, value))

    def reread(self, access: Access) -> Access:
        """The same access here: at another launch than that of which it was read, or with other knowledge of it."""
        found = self.access(access.operation)
        assert found is not None
        return found

    def _asked(self, op: Operation, addresses: Value) -> int:
        """Distinct addresses that the mask of a load or store lets through."""
        return len(np.unique(addresses.numbers[self.kept(op, addresses.numbers.shape)]))

    def kept(self, op: Operation, shape: tuple[int, ...]) -> NDArray[np.bool_]:
        """Elements of a tile that the mask of a load or store lets through; all where it depends on CTA or launch."""
        mask = self.values.operand(op, mask_place(op))
        if mask is None or mask.loaded or mask.program or mask.arguments or not mask.numbers.any():
            return np.ones(shape, dtype=np.bool_)
        return np.broadcast_to(mask.numbers != 0, shape)

    def kept_at_launch(self, access: Access) -> int:
        """Distinct elements that the mask of a load or store lets through, by the numbers of the launch."""
        asked = access.asked_bytes // access.tensor.bytes
        return min(asked, round(self.mask_share(access.operation) * access.tensor.size))

    def mask_share(self, op: Operation) -> float:
        """Share of a tile that the mask of a load or store lets through, by the numbers of the launch.

        1 where it is data, or differs from one CTA or iteration to the next.
        """
        mask = self.launched_values.operand(op, mask_place(op))
        if mask is None or mask.loaded or mask.program or not mask.arguments <= self.numbers.keys():
            return 1.0
        once = {loop.line for loop in loops_around(op) if self.runs_once(loop)}
        return float(np.mean(mask.numbers != 0)) if mask.iterations <= once else 1.0

    def _addresses(self, op: Operation) -> tuple[Value | None, TensorType | None]:
        """Of AMD's buffer operations a scalar pointer and a tensor of offsets, else a tensor of pointers."""
        types = tensor_types(op.rest)
        if not op.name.startswith("amdg."):
            return self.values.operand(op, 0), next((one for one in types if one.element.startswith("!tt.ptr")), None)
        place = 1 if op.name in STORES else 0
        base, offsets = self.values.operand(op, place), self.values.operand(op, place + 1)
        if base is None or offsets is None or not types:
            return None, None
        return base.moved(offsets, types[-1].bytes), types[-1]

    def instructions_of(self, op: Operation) -> list[Instruction]:
        """The machine code of the operation's line of source; empty where that is not known."""
        if self.code is None or op.location is None or not op.location.frames:
            return []
        frame = op.location.frames[0]
        return self._by_line.get((frame.file, frame.line), [])

    @cached_property
    def _by_line(self) -> dict[tuple[str, int], list[Instruction]]:
        found: dict[tuple[str, int], list[Instruction]] = {}
        for instruction in self.code.instructions if self.code else ():
            if instruction.frames:
                frame = instruction.frames[0]
                found.setdefault((frame.file, frame.line), []).append(instruction)
        return found

    def machine_bytes(self, op: Operation) -> int | None:
        """Bytes that a thread asks for in one instruction at the operation's line: the most; None if there is none."""
        kinds = _MEMORY_OPCODES["store" if op.name in STORES else "load"]
        widths = [width(i) for i in self.instructions_of(op) if i.opcode.split(".")[0] in kinds]
        return max(widths, default=None)

    def finding(
        self,
        rule: str,
        where: Operation | Frame | None,
        severity: Level,
        message: str,
        advice: str,
        evidence: dict[str, float | int | str],
        *,
        confidence: Level = "high",
        estimate: tuple[float, float, float] | None = None,
        candidates: Sequence[dict[str, int]] = (),
        right_with: Mapping[str, int] | None = None,
    ) -> Finding:
        """A finding at an operation or a line of source; `estimate` is (speedup, low, high).

        `candidates`: configurations that the advice means, the likeliest first. `right_with`: one whose results are
        right, of a finding that doubts those of this one.
        """
        frame = where if isinstance(where, Frame) or where is None else frame_of(where)
        frame = frame or frame_of(self.module.function)
        return Finding(
            id=rule,
            severity=severity,
            confidence=confidence,
            source=source_of(frame),
            kernel=self.name,
            message=self.arch.in_its_words(message),
            evidence={name: round(value, 4) if isinstance(value, float) else value for name, value in evidence.items()},
            advice=self.arch.in_its_words(advice),
            estimate=None if estimate is None else Estimate(speedup=estimate[0], low=estimate[1], high=estimate[2]),
            candidates=list(candidates),
            right_with=dict(right_with or {}),
        )

    @cached_property
    def tile_lengths(self) -> TileLengths | None:
        """Which of its constants are lengths of tiles; None where its source cannot be read."""
        frame = frame_of(self.module.function)
        return tile_lengths(frame) if frame is not None else None
