"""What static rules read of one kernel: its TTGIR with locations, its machine code, resources, and what follows."""

import ast
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kperf.arch import Arch, operations
from kperf.compat.triton import Unspecialised
from kperf.diagnose.history import Handover, History
from kperf.diagnose.operators import Pass
from kperf.diagnose.sources import Definition, first_line, nodes
from kperf.diagnose.thresholds import IN_LOOP, SECTOR_BYTES, VECTOR_BYTES
from kperf.diagnose.tile_lengths import TileLengths, tile_lengths
from kperf.ir.compile import Compiled, Resources, ptxas_says
from kperf.ir.layouts import Layouts, TensorType, tensor_types
from kperf.ir.levels import Line, read_levels
from kperf.ir.locations import Frame
from kperf.ir.machine import Instruction, MachineCode
from kperf.ir.ttgir import Module, Operation
from kperf.ir.values import READS, Argument, Value, Values, arguments_of, inner_strides, iterations_of
from kperf.trace.analyze.finding import Estimate, Finding, Level, Source, Trial

LOADS = ("tt.load", "ttg.async_copy_global_to_local", "amdg.buffer_load")
STORES = ("tt.store", "amdg.buffer_store")
ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas")
TMA_LOADS = ("ttng.async_tma_copy_global_to_local", "tt.descriptor_load")
TMA_STORES = ("ttng.async_tma_copy_local_to_global", "tt.descriptor_store")
_PASSED = ("tt.broadcast", "tt.expand_dims", "tt.splat", "ttg.convert_layout")
"""Through which a condition passes into a mask."""
ASYNC_COPIES = ("ttg.async_copy_global_to_local", "ttng.async_tma_copy_global_to_local")
MMAS = operations("mma")
LOOPS = ("scf.for", "scf.while")
LIBRARY_MATH = ("math.sin", "math.cos", "math.erf")
"""Of Triton's own functions those that are calls into the GPU's library, as libdevice's of the same names."""
OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Compile options that a launch, or an autotuner's configuration, may give."""
MOST_WARPS = 32
"""Of a CTA, on any GPU."""
MOST_NAMES = 3
"""Of pointers that a message lists."""
LEAST_TILE = 16
"""What is shorter is seldom the length of a tile."""
_NO_STRIDE = 0
"""With it all elements are one, and none lie side by side."""
_MASK_PLACES = {
    "tt.load": 1,
    "tt.store": 2,
    "tt.atomic_rmw": 2,
    "ttg.async_copy_global_to_local": 2,
    "amdg.buffer_load": 2,
    "amdg.buffer_store": 3,
}
_MEMORY_OPCODES = {"load": ("LDG", "LDGSTS"), "store": ("STG",)}


@dataclass(frozen=True)
class Access:
    """A load or a store of a tensor of pointers, and how the threads of a warp ask for it.

    tensor: of pointers. used_bytes, sectors: of all requests of a CTA together, distinct bytes that are used in a
    request and sectors of 32 bytes that it touches. tile_bytes, tile_sectors: as if the cache kept every sector.
    asked_bytes: those of the tile that its mask lets through; all of them where the mask is data, of few CTAs, or ends
    at an argument, whose number at the launch is not known.
    thread_bytes: consecutive bytes that a thread could ask for at once. requests: of a CTA. requests_of_runs: whether
    the distinct elements of each request lie side by side, however few they are.
    """

    operation: Operation
    tensor: TensorType
    value: Value
    used_bytes: int
    sectors: int
    tile_sectors: int
    tile_bytes: int
    asked_bytes: int
    thread_bytes: int
    requests: int
    requests_of_runs: bool

    def of(self, kernel: "Kernel") -> "Access":
        """The same access of the same kernel at another launch, or with other knowledge of its arguments."""
        access = kernel.access(self.operation)
        assert access is not None
        return access

    @property
    def sector_use(self) -> float:
        """Used share of the bytes that move, request by request."""
        return self.used_bytes / max(self.sectors * SECTOR_BYTES, 1)

    @property
    def has_neighbours(self) -> bool:
        """Whether along one dimension of the tile each element lies beside the last one in memory."""
        return self.contiguous is not None

    @property
    def contiguous(self) -> int | None:
        """The dimension of the tile along which each element lies beside the last one in memory; None without one."""
        numbers = self.value.numbers
        long = (axis for axis, length in enumerate(numbers.shape) if length > 1)
        return next((axis for axis in long if np.all(np.diff(numbers, axis=axis) == self.tensor.bytes)), None)

    @property
    def is_even(self) -> bool:
        """Whether along each dimension all steps are equal and lead to other addresses, as in a tile of a tensor."""
        numbers = self.value.numbers
        steps = [np.diff(numbers, axis=axis) for axis, length in enumerate(numbers.shape) if length > 1]
        return all(bool(np.all(step == step.flat[0])) and step.flat[0] != 0 for step in steps)

    @property
    def tile_sector_use(self) -> float:
        """Used share of the bytes that move from device memory if the cache keeps what neighbours use."""
        return self.tile_bytes / max(self.tile_sectors * SECTOR_BYTES, 1)


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
        """Its index arithmetic with all integers of the launch, also of those that are no strides."""
        return Values(self.module, self.known | self.numbers, self.next_along, self.assumed, self.first_along)

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
        """Loads and stores of tensors of pointers whose addresses and layouts are known."""
        found = (self.access(op) for op in self.named(*LOADS, *STORES))
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
        addresses = value.numbers[tuple(np.moveaxis(places, -1, 0))]  # [warp, register, lane]
        run = run_of(addresses, pointers.bytes, aligned=True)
        if value.loaded:  # where its first sector begins is not known: no alignment counts against it
            addresses = addresses - addresses.min() % SECTOR_BYTES
        stored = op.name in STORES  # by the first of the warps that hold the same elements
        requests = _requests(np.unique(addresses, axis=0) if stored else addresses, run)
        used, sectors, runs = _moved(requests, pointers.bytes)
        distinct = np.unique(addresses)
        return Access(
            op,
            pointers,
            value,
            used,
            sectors,
            len(np.unique(distinct // SECTOR_BYTES)),
            len(distinct) * pointers.bytes,
            self._asked(op, value) * pointers.bytes,
            run * pointers.bytes,
            len(requests),
            runs,
        )

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

    def unless_one(self, access: Access) -> str:
        """The strides of which one, if it is 1, lets elements lie side by side, in words: `am or ak`.

        Of a kernel without a launch: of a launch the JIT knows which arguments are 1. Empty where there is none, or
        where the only one is a multiple of 16. Of the two strides of a matrix one may be 1, whatever was said of both.
        """
        if self.grid is not None or access.has_neighbours:
            return ""
        names = [name for name in self._numbers_of(access) if self._if(access, name, 1).has_neighbours]
        return "" if len(names) == 1 and self.parameters[names[0]].divisible else " or ".join(names)

    def unless_multiple(self, names: Sequence[str]) -> str:
        """Numbers of which nothing says that they are no multiples of 16, in words; of a kernel without a launch."""
        may_be = [name for name in names if re.fullmatch(r"i\d+", self.parameters[name].type)]
        return " and ".join(may_be) if self.grid is None and len(may_be) == len(names) else ""

    def next_cta(self, access: Access) -> tuple[str, int]:
        """The axis of the grid along which the next CTA's addresses are closest, and how many bytes they lie apart.

        An empty name and 0 where no CTA has others, or where they are not known.
        """
        found = []
        for axis in "xyz" if access.value.program and not access.value.loaded else "":
            moved = access.of(replace(self, next_along=axis)).value.numbers - access.value.numbers
            if np.all(moved == moved.flat[0]) and moved.flat[0]:
                found.append((abs(int(moved.flat[0])), axis))
        apart, axis = min(found, default=(0, ""))
        return axis, apart

    def strides_of_one(self, access: Access) -> tuple[str, ...]:
        """The arguments that are 1 at the launch and the stride by which elements lie side by side.

        The compiler does not know it: else they were no arguments. Another argument of the address may be 1 too, as a
        number of heads.
        """
        if not access.has_neighbours:
            return ()
        ones = [name for name in self._numbers_of(access) if self.known.get(name) == 1 and name not in self.assumed]
        return tuple(name for name in ones if not self._if(access, name, _NO_STRIDE).has_neighbours)

    @cached_property
    def hidden(self) -> dict[str, str]:
        """Arguments that are 1 or multiples of 16 at the launch, and what keeps this from the compiler."""
        found = {}
        for name, one in self.unspecialised.items():
            by = one.one if self.numbers.get(name) == 1 else one.multiple if name in self.multiples else ""
            if by and name in self.parameters:
                found[name] = by
        return found

    def descriptor_in_parts(self, access: Access) -> str:
        """The descriptor, made on the host, whose parts the kernel gets and computes the address from; else empty."""
        return next((base for stride, base in self.inner_strides.items() if stride in access.value.arguments), "")

    def _numbers_of(self, access: Access) -> list[str]:
        integers = (name for name, one in self.parameters.items() if re.fullmatch(r"i\d+", one.type))
        return [name for name in integers if name in access.value.arguments]

    def _if(self, access: Access, name: str, number: int) -> Access:
        """The same access if an argument were another number, 0 or 1."""
        return access.of(replace(self, numbers={**self.numbers, name: number}))

    def with_option(self, written: str) -> str:
        """Where an option such as `num_warps=8` is to be written: at the launch, or in the autotuner's list."""
        tunings = self.history.tunings if self.history is not None else ()
        return f"put {written} into its triton.Config" if self.tuned or tunings else f"launch with {written}"

    def warps_advice(self, lengths: Iterable[int] = ()) -> str:
        """Twice as many warps as far as a CTA may have them, or half the tile of these lengths."""
        if self.num_warps * 2 > MOST_WARPS:
            return self.halved(lengths)
        return f"{self.with_option(f'num_warps={self.num_warps * 2}')}, or {self.halved(lengths)}"

    def more_warps(self) -> list[dict[str, int]]:
        """Candidates: twice and four times as many warps, as far as a CTA may have them."""
        return [{"num_warps": warps} for warps in (2 * self.num_warps, 4 * self.num_warps) if warps <= MOST_WARPS]

    def other_options(self) -> list[dict[str, int]]:
        """Candidates that nothing in the code speaks for: other numbers of stages for copies in loops, and of warps.

        Of warps four and more for MMAs, as wgmma needs, and no fewer than keep what the kernel's registers hold. None
        in Gluon, whose source says both, and none that an autotuner had to choose from.
        """
        if self.is_gluon or self.tuned or (self.history is not None and self.history.tunings):
            return []
        names = {op.name for op in self.module.walk()}
        stages: list[int] = []
        if self.num_stages is not None and not names.isdisjoint(ASYNC_COPIES):
            stages = [self.num_stages + 1, self.num_stages + 2, self.num_stages - 1]
        held = self.num_warps * self.resources.registers if self.resources is not None else 0
        fewest = max(4 if not names.isdisjoint(MMAS) else 1, held / self.arch.thread_registers)
        warps = [1 << power for power in range(MOST_WARPS.bit_length())]
        return [{"num_stages": number} for number in stages if number > 0] + [
            {"num_warps": number} for number in warps if fewest <= number != self.num_warps
        ]

    def scaled(self, lengths: Iterable[int], factor: float, *, whole: bool = False) -> list[dict[str, int]]:
        """Candidates: each constexpr that is one of these lengths of a tile, `factor` times as long, and all of them.

        Empty where no constexpr has this value. Where the source is known, those with which it goes from tile to tile;
        whole: also lengths of tiles that hold all that there is, for which half a tile is too short.
        """
        wanted, used = set(lengths), self.tile_lengths
        tiles = {
            name: int(value * factor)
            for name, value in self.configuration.items()
            if name not in OPTIONS and value in wanted and int(value * factor) >= LEAST_TILE
            if used is None or name in (used.lengths if whole else used.steps)
        }
        single = [{name: value} for name, value in tiles.items()]
        return [*single, tiles] if len(single) > 1 else single

    @cached_property
    def tile_lengths(self) -> TileLengths | None:
        """Which of its constants are lengths of tiles; None where its source cannot be read."""
        frame = frame_of(self.module.function)
        return tile_lengths(frame) if frame is not None else None

    def halved(self, lengths: Iterable[int]) -> str:
        """Half of a tile of these lengths, in words, with the constexprs that have them."""
        return f"halve the tile{named(self.scaled(lengths, 0.5), before=': ')}"


def named(candidates: Sequence[Mapping[str, int]], before: str = "", otherwise: str = "") -> str:
    """Candidates of one constexpr each in words, as they are written, behind `before`; without any `otherwise`."""
    words = [f"{name}={value}" for one in candidates if len(one) == 1 for name, value in one.items()]
    return before + " or ".join(words) if words else otherwise


def mask_place(op: Operation) -> int:
    """Which of its operands the mask of a load or store is, where it has one."""
    return _MASK_PLACES.get(op.name, 1)


def conditions_of(
    kernel: Kernel, op: Operation, place: int, *, either: bool = False
) -> Iterator[tuple[Operation, bool]]:
    """What makes the conditions that hold together for an operand, each with whether it is negated (`~`).

    They are those between which there is an `and`. either: those of which one is enough, between which there is an
    `or`, instead.
    """
    todo = [(kernel.values.maker(op, place), False)]
    while todo:
        made, negated = todo.pop()
        if made is None:
            continue
        if made.name in (*_PASSED, "arith.ori" if either != negated else "arith.andi"):
            todo += [(kernel.values.maker(made, index), negated) for index in range(len(made.operands))]
        elif made.name == "arith.xori" and (other := kernel.values.maker(made, 1)) and other.name == "arith.constant":
            todo.append((kernel.values.maker(made, 0), not negated))  # the constant is true: with false nothing is left
        else:
            yield made, negated


def frame_of(op: Operation) -> Frame | None:
    """The line of source of an operation, or of what is around it where it has none."""
    current: Operation | None = op
    while current is not None:
        if current.location is not None and current.location.frame is not None:
            return current.location.frame
        current = current.parent.owner if current.parent is not None else None
    return None


def lines_of(operations: Iterable[Operation], but: Operation) -> str:
    """The lines of source of operations but of one of them, in words: `lines 3, 7`; empty where there is no other."""
    own_line = frame.line if (frame := frame_of(but)) is not None else None
    lines = sorted({frame.line for op in operations if (frame := frame_of(op)) is not None} - {own_line})
    return f"line{'s' if len(lines) > 1 else ''} {', '.join(map(str, lines))}" if lines else ""


def source_of(frame: Frame | None) -> Source:
    """The line, and the function that it is in if the file can be read.

    Of a function's decorator it is the line of its `def`: Python says that a decorated function begins there.
    """
    if frame is None:
        return Source(file="", line=0)
    around = [found for found in _functions(frame.file) if found.first <= frame.line <= found.last]
    function = max(around, default=_Function(0, frame.line, 0, ""))
    return Source(file=frame.file, line=max(frame.line, function.line), function=function.name)


def line_of_for(loop: Operation) -> int:
    """The line of a loop's `for` or `while`, which may stand above its range; 0 where its source is not known."""
    if (frame := frame_of(loop)) is None:
        return 0
    return max((first for first, last in _loop_heads(frame.file) if first <= frame.line <= last), default=frame.line)


class _Function(NamedTuple):
    """The lines of its first decorator, its `def` and its end."""

    first: int
    line: int
    last: int
    name: str


@cache
def _loop_heads(file: str) -> tuple[tuple[int, int], ...]:
    """The first and the last line of what each `for` runs over, and of each condition of a `while`."""
    heads = [(node, node.iter) for node in nodes(file) if isinstance(node, ast.For)]
    tests = [(node, node.test) for node in nodes(file) if isinstance(node, ast.While)]
    return tuple((node.lineno, head.end_lineno or node.lineno) for node, head in (*heads, *tests))


@cache
def _functions(file: str) -> tuple[_Function, ...]:
    definitions = (node for node in nodes(file) if isinstance(node, Definition))
    return tuple(
        _Function(first_line(node), node.lineno, node.end_lineno or node.lineno, node.name) for node in definitions
    )


def source_line(source: Source) -> str:
    """The text of a line of source; empty if it cannot be read."""
    lines = _lines(source.file)
    return lines[source.line - 1].strip() if 0 < source.line <= len(lines) else ""


def compared_with(op: Operation) -> str:
    """What a comparison has on its right, as the line of source writes it: `n` of `i < n`; empty if it is not clear."""
    frame = frame_of(op)
    try:
        tree = ast.parse(source_line(source_of(frame))) if frame is not None else ast.Module([], [])
    except SyntaxError:  # the line is a part of a statement
        return ""
    comparisons = [node for node in ast.walk(tree) if isinstance(node, ast.Compare)]
    right = {ast.unparse(one.comparators[-1]) for one in comparisons}
    return right.pop() if len(right) == 1 else ""


@cache
def _lines(file: str) -> tuple[str, ...]:
    try:
        return tuple(Path(file).read_text().splitlines())
    except (OSError, ValueError):
        return ()


def inside(op: Operation) -> Iterator[Operation]:
    """All operations in the regions of one."""
    for region in op.regions:
        yield from region.walk()


def own(loop: Operation) -> Iterator[Operation]:
    """What an iteration of a loop does itself, without the loops inside it."""
    for region in loop.regions:
        for op in region.operations:
            yield op
            if op.name not in LOOPS:
                yield from own(op)


def is_of_inner_loop(op: Operation, loop: Operation) -> bool:
    """Whether the source has an operation of a loop in a loop inside it, whose pipeline fills and empties here."""
    return op.location is not None and any(
        other.location == op.location and loops_around(other)[0] is not loop
        for other in inside(loop)
        if other.name == op.name
    )


def loops_around(op: Operation) -> list[Operation]:
    """The loops around an operation, the innermost first."""
    found = []
    region = op.parent
    while region is not None and region.owner is not None:
        if region.owner.name in LOOPS:
            found.append(region.owner)
        region = region.owner.parent
    return found


def width(instruction: Instruction) -> int:
    """Bytes that a thread asks for in a load or store of machine code."""
    parts = instruction.opcode.split(".")
    sizes = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1, "16": 2, "8": 1}
    return next((sizes[part] for part in parts if part in sizes), 4)


def name_of(value: Value, kernel: Kernel) -> str:
    """The pointer argument of an address, for messages; without one those on which it depends."""
    names = names_of(value, kernel)
    if len(names) > MOST_NAMES:
        return f"{names[0]} and {len(names) - 1} other pointers"
    return ", ".join(names) or "the pointer"


def names_of(value: Value, kernel: Kernel) -> list[str]:
    """The pointer arguments that `name_of` names; empty where none is known."""
    pointers = [name for name in sorted(value.arguments) if kernel.parameters[name].is_pointer]
    return [name for name in pointers if kernel.values.is_in(value, name)] or pointers


def tensor_of(access: Access, kernel: Kernel) -> str:
    """The pointer argument that a load or store goes to, for messages; an index that was loaded may lead anywhere."""
    names = kernel.tensors_of(access.operation) if access.value.loaded else frozenset()
    return ", ".join(sorted(names)) or name_of(access.value, kernel)


def run_of(addresses: NDArray[np.int64], size: int, *, aligned: bool) -> int:
    """Registers of a thread that are neighbours in memory, at most 16 bytes: a power of two.

    addresses: in bytes, of (warp, register, lane), of elements of `size` bytes. aligned: each run begins at a multiple
    of its bytes.
    """
    run = 1
    while run * 2 * size <= VECTOR_BYTES and addresses.shape[1] % (run * 2) == 0:
        groups = addresses.reshape(addresses.shape[0], -1, run * 2, addresses.shape[2])
        consecutive = np.all(np.diff(groups, axis=2) == size)
        if not consecutive or (aligned and np.any(groups[:, :, 0, :] % (run * 2 * size))):
            break
        run *= 2
    return run


def _requests(addresses: NDArray[np.int64], run: int) -> NDArray[np.int64]:
    """Addresses, in order, by request of a CTA: one a warp and `run` registers."""
    return np.sort(addresses.reshape(addresses.shape[0] * addresses.shape[1] // run, run * addresses.shape[2]), axis=1)


def _moved(requests: NDArray[np.int64], size: int) -> tuple[int, int, bool]:
    """Bytes used, and sectors touched, of requests, and whether what each of them uses lies side by side."""
    distinct = 1 + np.count_nonzero(np.diff(requests, axis=1), axis=1)
    sectors = 1 + np.count_nonzero(np.diff(requests // SECTOR_BYTES, axis=1), axis=1)
    runs = bool(np.all(requests[:, -1] - requests[:, 0] == (distinct - 1) * size))
    return int(distinct.sum()) * size, int(sectors.sum()), runs


def mma_shape(op: Operation) -> tuple[int, int, int] | None:
    """(rows, columns, depth) of an MMA's tile; None if its types do not say."""
    types = tensor_types(op.rest.partition(" : ")[2])
    if len(types) < 2 or len(types[0].shape) < 2 or len(types[1].shape) < 2:
        return None
    return types[0].shape[-2], types[1].shape[-1], types[0].shape[-1]


def mma_element(op: Operation) -> str:
    """Element type of an MMA's operands."""
    types = tensor_types(op.rest.partition(" : ")[2])
    return types[0].element if types else ""
