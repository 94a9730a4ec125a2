"""A kernel to look into: its TTGIR, how it is compiled with another one in place, and its instrumented kernel."""

from collections.abc import Callable
from dataclasses import dataclass, field
from operator import itemgetter
from typing import get_args

from kperf.arch import SM_90A, Arch
from kperf.compat.triton import CompiledKernel
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir import sass
from kperf.trace.instrument.events import Detail, Rules, instrument, read_rules, strip
from kperf.trace.instrument.program import Program, read_program
from kperf.trace.instrument.session import EVENT_BYTES, SMALLEST_BUFFER, Recording, session

_SHARED_BYTES_PER_WARP = 8192
"""Of events, where the kernel leaves that much shared memory."""


@dataclass(frozen=True)
class TracedKernel:
    """A kernel before it runs. `name` is what messages call it, `text` its TTGIR without events.

    `compile`: the kernel with this TTGIR in place, for `arch`, without a GPU. `most_events`: how many events a warp
    writes at most in the launch that is traced. `shared_bytes`: what the original kernel takes. `rules`: what its
    regions are, and what they are called.
    """

    name: str
    text: str
    shared_bytes: int
    compile: Callable[[str], CompiledKernel]
    most_events: Callable[[Program], int]
    rules: Rules = field(default_factory=read_rules)
    arch: Arch = SM_90A


@dataclass(frozen=True)
class Traced:
    """A traced kernel's TTGIR, and how its events are kept."""

    text: str
    recording: Recording


@dataclass(frozen=True)
class Orders:
    """The order of instructions in an original kernel and in its instrumented kernel, as compiled for sm_90a."""

    original: list[str]
    instrumented: list[str]

    @property
    def differences(self) -> list[sass.Difference]:
        """Where they differ."""
        return sass.compare(self.original, self.instrumented)


def recording_for(program: Program, subject: TracedKernel) -> Recording:
    """Events of one warp of each group, all of a CTA's.

    In shared memory, where an event costs least, if they fit into what the kernel leaves of it; else straight in device
    memory. Raises `UsageError` if the kernel leaves less than nothing.
    """
    limit = subject.arch.cta_shared_bytes
    free = limit - subject.shared_bytes
    if free < 0:
        raise UsageError(
            f"{subject.name} takes {subject.shared_bytes} of {limit} bytes of shared memory: it cannot be launched"
        )
    warps = tuple(sorted(group.first_warp for group in program.groups))
    needed = max(SMALLEST_BUFFER, EVENT_BYTES * subject.most_events(program))
    bytes_per_warp = _SHARED_BYTES_PER_WARP
    while bytes_per_warp * len(warps) > free and bytes_per_warp > needed:
        bytes_per_warp //= 2
    if needed <= bytes_per_warp and bytes_per_warp * len(warps) <= free:
        return Recording(warps, program.total_warps, bytes_per_warp, arch=subject.arch)
    size = 1 << (needed - 1).bit_length()
    return Recording(warps, program.total_warps, size, memory="global", arch=subject.arch)


def make_traced(subject: TracedKernel, text: str, path: object) -> tuple[Traced, Program]:
    """The instrumented kernel with this text, from `path`.

    Raises `UsageError` if without its events it is not the original text.
    """
    if strip(text) != subject.text:
        raise UsageError(f"{path} is not the instrumented kernel of {subject.name}: `make ttgir` writes it anew")
    program = read_program(text, subject.rules)
    return Traced(text, recording_for(program, subject)), program


def compile_orders(subject: TracedKernel, traced: Traced) -> Orders:
    """Compile both for sm_90a and read the order of their instructions.

    Raises `UsageError` if the instrumented kernel spills more, or takes more shared memory than there is.
    """
    original_kernel = subject.compile(subject.text)
    with session(traced.recording):
        instrumented_kernel = subject.compile(traced.text)
    before, after = (compiler.resources(kernel) for kernel in (original_kernel, instrumented_kernel))
    # Each warp's counter may live on the stack outside the loops; the stack is a multiple of 8 bytes.
    counters = -(-4 * len(traced.recording.warps) // 8) * 8
    if after.local_bytes > before.local_bytes or after.stack_bytes > before.stack_bytes + counters:
        raise UsageError(
            f"the instrumented kernel of {subject.name} spills {after.stack_bytes} bytes where the original kernel "
            f"spills {before.stack_bytes}: trace fewer regions (--regions)"
        )
    limit = subject.arch.cta_shared_bytes
    if after.shared_bytes > limit:
        raise UsageError(
            f"{subject.name} takes {before.shared_bytes} of {limit} bytes of shared memory: too "
            f"little is left for {traced.recording.buffer_bytes} bytes of events"
        )
    return Orders(
        *(sass.order(compiler.sass(kernel), subject.arch) for kernel in (original_kernel, instrumented_kernel))
    )


def choose(subject: TracedKernel) -> str:
    """The text of the instrumented kernel to keep.

    First one that shows the arithmetic of the main loop apart from its waits, then one that shows the store of the
    output apart from them, then one that the assembler orders as the original kernel, then the one with the
    fewest events. Raises `UsageError` if all of them spill.
    """
    candidates = []
    for text in {instrument(subject.text, detail=detail, rules=subject.rules) for detail in get_args(Detail)}:
        traced, program = make_traced(subject, text, subject.name)
        candidates.append((_hides(program), text.count("proton.record"), text, traced))
    least: tuple[bool, bool] | None = None
    texts: list[str] = []
    refused: UsageError | None = None
    for hides, _, text, traced in sorted(candidates, key=itemgetter(0, 1, 2)):
        if texts and hides != least:
            break
        try:
            differs = bool(compile_orders(subject, traced).differences)
        except UsageError as error:
            refused = error
            continue
        if not differs:  # the others have more events
            return text
        least = hides
        texts.append(text)
    if refused is not None and not texts:
        raise refused
    return texts[0]


def _hides(program: Program) -> tuple[bool, bool]:
    """Whether the arithmetic of the main loop, and the store of the output, are lost among the waits."""
    looping = {scope.number for scope in program.scopes if scope.loop}
    shown = any(
        interval.kind == "arithmetic" and {first, second} <= looping
        for ((first, _), (second, _)), interval in program.intervals.items()
    )
    stored = any(interval.kind == "store" for interval in program.intervals.values())
    return not shown, not stored
