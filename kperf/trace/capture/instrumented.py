"""The instrumented kernel of any kernel that was compiled, and how far it is still the original kernel."""

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from kperf.arch import Arch, of
from kperf.compat.triton import CompiledKernel, TritonError
from kperf.compat.triton.cache import own_cache
from kperf.compat.triton.instrumentation import changed_ptx
from kperf.compat.triton.sources import python_function
from kperf.errors import MeasurementError, UsageError
from kperf.ir import compile as compiler
from kperf.ir import sass
from kperf.ir.override import Override, recompile
from kperf.ir.ptx import with_registers
from kperf.trace.capture.traced import Orders
from kperf.trace.instrument.events import LIFETIME, Detail, Rules, instrumented
from kperf.trace.instrument.program import IntervalKind, Program, read_program
from kperf.trace.instrument.sampled import Sample
from kperf.trace.instrument.session import BUFFER_LIMIT, COUNTER_BYTES, EVENT_BYTES, SMALLEST_BUFFER, Recording, session

COUNTER_SPILLS = 8
"""Instructions by which it stores and loads them."""

VERSIONS_S = 20.0
"""Seconds after which no other version is compiled: of a kernel that spills kilobytes, one takes half a minute."""
_HELD: tuple[tuple[IntervalKind, ...], ...] = (("load",), ("load", "arithmetic"))
"""Kinds of regions whose results stay in registers, in the order in which they are left out."""

Place = Literal["shared", "global"]

_BUFFER_BYTES_A_WARP = 8192
"""Bytes a warp as long as it is not known how many events a CTA writes."""
_LEAST_IN_SHARED_MEMORY = 1024
"""Of such a circular buffer; where there is less room, events go to device memory."""


@dataclass(frozen=True)
class InstrumentedKernel:
    """A compiled kernel with events: what it is made of, and how its events are kept.

    `sample`: the CTAs that are recorded; None: all of them, and `why_all`, if a sample was asked for. `left_out`: how
    many regions have no events, because there are too many.
    """

    original: CompiledKernel
    kernel: CompiledKernel
    text: str
    program: Program
    recording: Recording
    original_usage: "ResourceUsage"
    resource_usage: "ResourceUsage"
    sample: Sample | None = None
    why_all: str = ""
    left_out: int = 0
    without: tuple[IntervalKind, ...] = ()
    """Kinds of regions that have no events, because these make it spill."""
    spills: int = 0
    """Instructions beyond the original's that spill registers, or load them again; 0 where the original has none."""
    own_order_differs: int = 0
    """Where a sample is recorded: at how many places the other CTAs' code has another order than the original."""

    @property
    def spills_more(self) -> bool:
        """Whether the events make it spill, or a kernel that spills anyhow do so more often."""
        return self.spilled_more > 0 or self.spills > COUNTER_SPILLS

    @property
    def spilled_more(self) -> int:
        """Bytes a thread that the events spill, beyond what their counters may take on the stack outside of loops."""
        more = self.resource_usage.spilled_bytes - self.original_usage.spilled_bytes
        return more if more > COUNTER_BYTES else 0

    @property
    def ctas_lost(self) -> int:
        """By how many CTAs fewer fit on an SM."""
        return max(self.original_usage.occupancy - self.resource_usage.occupancy, 0)

    def recording_of_launch(self, programs: int, memory: int, events: int | None) -> Recording:
        """Where the events of another launch would go, as `recording_of_launch` says."""
        recorded = self._recorded(programs)
        if self.sample is None:
            return recording_of_launch(self.program, self.original_usage, recorded, memory, events)
        written = events or straight_events(self.program)
        recording = recording_of_launch(self.program, self.original_usage, recorded, memory, written)
        return replace(recording, memory=self.recording.memory)

    def buffer_bytes(self, programs: int) -> int:
        """Bytes of device memory for a launch of so many programs, each one or more CTAs."""
        return self.recording.block_bytes * self._recorded(programs)

    def _recorded(self, programs: int) -> int:
        """CTAs that are recorded."""
        ctas: int = programs * self.original.metadata.num_ctas
        return self.sample.count(ctas) if self.sample else ctas


@dataclass(frozen=True)
class ResourceUsage:
    """What a compiled kernel takes of an SM; `occupancy`: how many of its CTAs fit at once."""

    registers: int
    spilled_bytes: int
    shared_bytes: int
    occupancy: int


def make_instrumented(
    kernel: CompiledKernel,
    programs: int,
    folder: Path,
    *,
    memory: int,
    regions: Sequence[str],
    rules: Rules,
    events: int | None = None,
) -> InstrumentedKernel:
    """The instrumented kernel of a compiled one for a launch of so many programs, compiled into a cache of its own in
    `folder`.

    Of all its regions if that costs the kernel no registers and no CTA on an SM, else of fewer if that costs less:
    without loads where registers spill, and without arithmetic where they still do. Where they spill, one more
    version gives ptxas as many as leave the original's CTAs on an SM: by itself it takes few for a kernel that does not
    fit into registers. No version is begun later than VERSIONS_S after the first one was.
    `memory`: bytes that the events of a launch may take; `events`: how many a warp writes, if that is known.

    Raises `UsageError` if the kernel cannot be recorded, and `MeasurementError` if something else was compiled.
    """
    if python_function(kernel) is None or "ttgir" not in kernel.asm:
        raise UsageError("it was not compiled here from its source, so it cannot be compiled again")
    original_usage = resource_usage(kernel, folder)
    begin = time.monotonic()
    own_spills = _spills(kernel, folder) if original_usage.spilled_bytes and "ptx" in kernel.asm else 0
    text = compiler.named_ttgir(kernel.asm["ttgir"])
    located = compiler.read_compiled(kernel).ttgir

    def is_late() -> bool:
        return time.monotonic() - begin > VERSIONS_S

    def make(detail: Detail, wanted: Sequence[str] = regions) -> InstrumentedKernel:
        traced = instrumented(text, detail=detail, regions=wanted, rules=rules)
        program = read_program(traced.text, rules, located=located)
        written = events or straight_events(program)
        recording = recording_of_launch(program, original_usage, programs * kernel.metadata.num_ctas, memory, written)
        override = Override(folder / f"{kernel.name}.ttgir", traced.text, program.kernel_name)

        def compiled(registers: int | None = None) -> InstrumentedKernel:
            made = _compile(kernel, override, recording, folder, registers)
            usage = resource_usage(made, folder)
            return InstrumentedKernel(
                kernel,
                made,
                traced.text,
                program,
                recording,
                original_usage,
                usage,
                left_out=traced.left_out,
                spills=max(_spills(made, folder) - own_spills, 0) if own_spills else 0,
            )

        made = compiled()
        if made.spills_more and not is_late() and (most := _unused_registers(made)) is not None:
            with suppress(UsageError, TritonError):  # of PTX that is not understood, and ptxas
                made = min(made, compiled(most), key=_cost)
        return made

    made: list[InstrumentedKernel] = []
    for detail in get_args(Detail):
        made.append(make(detail))
        if is_late() or (not made[-1].ctas_lost and not made[-1].spills_more):
            break
    every = made[-1].program
    for kinds in _HELD:
        if is_late() or not all(each.spills_more for each in made):
            break
        if others := _without(kinds, every):
            made.append(replace(make("coarse", others), without=kinds))
    return min(made, key=_cost)


def _cost(made: InstrumentedKernel) -> tuple[int, int, int]:
    return made.ctas_lost, made.spills, made.spilled_more


def _spills(kernel: CompiledKernel, folder: Path) -> int:
    with own_cache(folder):
        return sass.spills(compiler.sass(kernel))


def _unused_registers(made: InstrumentedKernel) -> int | None:
    """The registers a thread up to which as many CTAs fit on an SM as of the original; None if it has them."""
    if "ptx" not in made.kernel.asm:
        return None
    arch, shared = made.recording.arch, made.resource_usage.shared_bytes
    most = most_registers(arch, made.original_usage, shared, made.program.total_warps)
    return most if most is not None and most > made.resource_usage.registers else None


def most_registers(arch: Arch, original: "ResourceUsage", shared_bytes: int, warps: int) -> int | None:
    """The most registers a thread with which as many CTAs fit on an SM as of the original; None if none leaves them.

    ptxas rounds a limit down to what a thread is given at a time.
    """
    step = arch.thread_register_unit
    limits = (*range(step, arch.thread_registers, step), arch.thread_registers)
    fitting = [limit for limit in limits if arch.ctas_per_sm(limit, shared_bytes, warps) >= original.occupancy]
    return max(fitting, default=None)


def _without(kinds: Sequence[IntervalKind], program: Program) -> list[str]:
    """Names of the regions of other kinds, if there are some of both.

    A load's destination is held from its event on, and so is what a reduction is made of: between events the assembler
    cannot move them to where they are used.
    """
    pairs = {
        scope.name: program.intervals.get(((scope.number, True), (scope.number, False))) for scope in program.scopes
    }
    regions = {name: pair for name, pair in pairs.items() if not name.startswith(LIFETIME)}
    others = [name for name, pair in regions.items() if pair is None or pair.kind not in kinds]
    return others if len(others) < len(regions) else []


def _compile(
    kernel: CompiledKernel, override: Override, recording: Recording, folder: Path, registers: int | None
) -> CompiledKernel:
    """`registers`: the most that ptxas may give a thread; None for what it chooses."""
    limit = (
        nullcontext()
        if registers is None
        else changed_ptx(lambda ptx: with_registers(ptx, registers), f"maxnreg.{registers}")
    )
    with session(recording, apart=True), limit, own_cache(folder):
        compiled = recompile(kernel, override)
    if compiled.metadata.profile_scratch_size != recording.block_bytes:
        raise MeasurementError(
            f"its events were lowered to {compiled.metadata.profile_scratch_size} bytes a CTA where "
            f"{recording.block_bytes} are read"
        )
    return compiled


def recording_of_launch(
    program: Program, original: ResourceUsage, ctas: int, memory: int, events: int | None = None
) -> Recording:
    """Where the events of a launch go, within `memory` bytes for all of its CTAs.

    In shared memory, where an event costs least, if `events` of a warp fit there without one CTA less on an SM; else
    straight in device memory. A circular buffer that is too small keeps a warp's last events.

    Raises `UsageError` if not even eight events of each warp fit.
    """
    warps = tuple(sorted(group.first_warp for group in program.groups))

    memory = min(memory, BUFFER_LIMIT)

    def fits(size: int, kept_in: Place) -> bool:
        recording = Recording(warps, program.total_warps, size, memory="global", arch=program.arch)
        inside = recording.buffer_bytes <= program.arch.shared_bytes_left(
            original.registers, original.shared_bytes, program.total_warps
        )
        return ctas * recording.block_bytes <= memory and (inside or kept_in == "global")

    wanted = (
        _BUFFER_BYTES_A_WARP if events is None else max(1 << (EVENT_BYTES * events - 1).bit_length(), SMALLEST_BUFFER)
    )
    least = _LEAST_IN_SHARED_MEMORY if events is None else wanted
    places: tuple[tuple[Place, int], ...] = (("shared", least), ("global", SMALLEST_BUFFER))
    for kept_in, smallest in places:
        size = wanted
        while size > smallest and not fits(size, kept_in):
            size //= 2
        if fits(size, kept_in):
            return Recording(warps, program.total_warps, size, memory=kept_in, arch=program.arch)
    fix = "give more with --memory" if memory >> 20 < BUFFER_LIMIT >> 20 else "no buffer can be larger; launch fewer"
    raise UsageError(f"the events of {ctas} CTAs do not fit into {memory >> 20} MB: {fix}")


def straight_events(program: Program) -> int | None:
    """How many events a warp writes in a kernel without loops; None in one with loops."""
    if any(scope.loops for scope in program.scopes):
        return None
    return 2 * max(Counter(scope.group for scope in program.scopes).values())


def resource_usage(kernel: CompiledKernel, folder: Path | None = None) -> ResourceUsage:
    """Of a kernel as compiled; its warps are those of all partitions.

    What is read of its machine code is kept in the cache of `folder`, if there is one, and not in the user's.
    """
    with own_cache(folder) if folder else nullcontext():
        used = compiler.resources(kernel)
    fitting = of(kernel.metadata.target).ctas_per_sm(used.registers, used.shared_bytes, kernel.metadata.num_warps)
    return ResourceUsage(used.registers, used.spilled_bytes, used.shared_bytes, fitting)


def orders(instrumented: InstrumentedKernel, folder: Path) -> Orders:
    """The order of instructions in both, kept in the cache of `folder`; of sampled CTAs on the path that records."""
    with own_cache(folder):
        paths = compiler.sass_paths(instrumented.kernel) if instrumented.sample else None
        recording = paths[1] if paths else compiler.sass(instrumented.kernel)
        arch = of(instrumented.original.metadata.target)
        return Orders(sass.order(compiler.sass(instrumented.original), arch), sass.order(recording, arch))
