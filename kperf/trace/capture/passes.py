"""Which probes of an iteration are recorded together: passes that leave the kernel as it is, chosen without a GPU.

As hardware profilers replay a kernel for other counters, an iteration is recorded over several launches, a few of its
probes in each, the anchor in all. A first instrumented kernel is compiled for each probe. Those that the assembler
orders as the original kernel come first and are put together as long as it does so with them all and their events cost
little; a probe that it does not is alone in its pass, and what it moves is reported.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kperf.arch import of
from kperf.compat.triton import CompiledKernel
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir import sass
from kperf.trace.capture.instrumented import ResourceUsage, resource_usage
from kperf.trace.capture.traced import Orders, TracedKernel, recording_for
from kperf.trace.instrument.probes import ANCHOR, BodyClass, Places, ProbedKernel, Probes, probed_kernel
from kperf.trace.instrument.program import Program
from kperf.trace.instrument.session import COUNTER_BYTES, CYCLES_AN_EVENT, Recording, session

MOST_COST = 0.03
"""Of an iteration, estimated from `CYCLES_AN_EVENT`: what a pass of more than two probes may cost."""

MOST_COMPILES = 24
"""Of a kernel: an instrumented kernel of improved_plus takes up to ten seconds of a processor."""

_PAIR = 2

_MOST_BYTES_A_WARP = 8192
_LEAST_BYTES_A_WARP = 256
"""Of a pass's circular buffer: 32 events, the last 16 iterations of an anchor and a probe."""


@dataclass(frozen=True)
class Built:
    """What a kernel, original or instrumented, compiled to: the order of its instructions, what it takes of an SM."""

    order: list[str]
    resource_usage: ResourceUsage

    def is_no_worse_than(self, original: "Built") -> bool:
        """Whether it fits as often on an SM, and spills no more than the events' counters."""
        spilled_more = self.resource_usage.spilled_bytes - original.resource_usage.spilled_bytes
        return self.resource_usage.occupancy >= original.resource_usage.occupancy and spilled_more <= COUNTER_BYTES


Build = Callable[[Sequence[ProbedKernel]], list[Built]]
"""Compiles instrumented kernels, in their order."""


@dataclass(frozen=True)
class ChosenPass:
    """A pass: its kernel, what that compiled to, and how its instructions are ordered beside the original kernel's.

    `cost`: of an iteration, estimated, in the warp group with the most events.
    """

    probed: ProbedKernel
    built: Built
    orders: Orders
    cost: float

    @property
    def differences(self) -> list[sass.Difference]:
        """Where the assembler ordered it differently."""
        return self.orders.differences


def choose_passes(
    all_probes: Probes, original: Built, build: Build, *, cycles: float, say: Callable[[str], None]
) -> list[ChosenPass]:
    """The passes that record every probe of an iteration, those in the original kernel's order first.

    `cycles`: what an iteration takes at least. `say` gets a line before kernels are compiled.
    """
    known: dict[Places, ChosenPass] = {}

    def compiled(wanted: Sequence[Places]) -> list[ChosenPass]:
        new = [places for places in dict.fromkeys(wanted) if places not in known]
        if new:
            say(f"compiling kernels with a few events an iteration: {len(new)}")
        known.update(zip(new, compile_passes(all_probes, original, build, new, cycles=cycles), strict=True))
        return [known[places] for places in wanted]

    def keeps(each: ChosenPass) -> bool:
        return not each.differences and each.built.is_no_worse_than(original)

    singles = compiled(single_probes(all_probes))
    apart = [each for each in singles if not keeps(each)]
    together = [each for each in singles if keeps(each)]
    grown: list[ChosenPass] = []
    most = int(MOST_COST * cycles / CYCLES_AN_EVENT)
    while together:
        first, *together = together
        while (
            len(together) >= _PAIR and max(map(len, first.probed.places)) + _PAIR <= most and len(known) < MOST_COMPILES
        ):
            (candidate,) = compiled(
                [_together(all_probes, [each.probed.places for each in (first, *together[:_PAIR])])]
            )
            if not keeps(candidate):
                break
            first, together = candidate, together[_PAIR:]
        grown.append(first)
    return [*grown, *apart]


def compile_passes(
    all_probes: Probes, original: Built, build: Build, wanted: Sequence[Places], *, cycles: float
) -> list[ChosenPass]:
    """The passes that record these places, compiled and held against the original kernel."""
    kernels = [probed_kernel(all_probes, places) for places in wanted]
    return [
        ChosenPass(
            probed, made, Orders(original.order, made.order), max(map(len, probed.places)) * CYCLES_AN_EVENT / cycles
        )
        for probed, made in zip(kernels, build(kernels), strict=True)
    ]


def single_probes(all_probes: Probes) -> list[Places]:
    """A pass for each probe of the class that has most of them; the others' probes are measured again and again."""
    measured = [of.measured for of in all_probes.classes]
    most = max(map(len, measured))
    return [
        tuple((ANCHOR, places_of_class[number % len(places_of_class)]) for places_of_class in measured)
        for number in range(most)
    ]


def spread(all_probes: Probes, passes: int) -> list[Places]:
    """All probes in at most so many passes, whatever that costs and moves."""
    singles = single_probes(all_probes)
    count = min(passes, len(singles))
    shares = [singles[number * len(singles) // count : (number + 1) * len(singles) // count] for number in range(count)]
    return [_together(all_probes, share) for share in shares]


def _together(all_probes: Probes, passes: Sequence[Places]) -> Places:
    """All probes of the passes; of a class in which they are an odd number, another one besides."""
    by_class = zip(*passes, strict=True)
    return tuple(
        _even(set().union(*places_of_class), of)
        for of, places_of_class in zip(all_probes.classes, by_class, strict=True)
    )


def _even(chosen: set[int], of: BodyClass) -> tuple[int, ...]:
    others = sorted(set(range(len(of.names))) - chosen, key=lambda place: (place not in of.measured, place))
    return tuple(sorted(chosen | set(others[: len(chosen) % _PAIR])))


def parse(wanted: str) -> int | None:
    """The most passes that somebody wants, None for `auto`. Raises `UsageError` for anything else."""
    if wanted == "auto":
        return None
    if not wanted.isascii() or not wanted.isdigit() or not int(wanted):
        raise UsageError(f"--passes {wanted} is no number of passes: give auto, 1 or more")
    return int(wanted)


def built(kernel: CompiledKernel) -> Built:
    """What it compiled to."""
    return Built(sass.order(compiler.sass(kernel), of(kernel.metadata.target)), resource_usage(kernel))


def recording_of_pass(program: Program, subject: TracedKernel) -> Recording:
    """In shared memory, where an event costs least, if some iterations of a CTA fit there; of a longer one its last."""
    warps = tuple(sorted(group.first_warp for group in program.groups))
    size = _MOST_BYTES_A_WARP
    while size * len(warps) > subject.arch.cta_shared_bytes - subject.shared_bytes and size >= _LEAST_BYTES_A_WARP:
        size //= 2
    if size >= _LEAST_BYTES_A_WARP:
        return Recording(warps, program.total_warps, size, arch=subject.arch)
    return recording_for(program, subject)


def builder(subject: TracedKernel) -> Build:
    """Compiles instrumented kernels of a subject."""

    def build(kernels: Sequence[ProbedKernel]) -> list[Built]:
        compiled = in_sessions(
            kernels,
            lambda probed: recording_of_pass(probed.program, subject),
            lambda probed: subject.compile(probed.text),
        )
        return [built(kernel) for kernel, _ in compiled]

    return build


def in_sessions(
    kernels: Sequence[ProbedKernel],
    recording_of: Callable[[ProbedKernel], Recording],
    compile_one: Callable[[ProbedKernel], CompiledKernel],
) -> list[tuple[CompiledKernel, Recording]]:
    """Each kernel compiled, several at once."""
    recordings = [recording_of(probed) for probed in kernels]
    compiled: dict[Places, CompiledKernel] = {}
    for recording in dict.fromkeys(recordings):
        alike = [probed for probed, own in zip(kernels, recordings, strict=True) if own == recording]
        with session(recording, apart=True):
            compiled |= zip((probed.places for probed in alike), compiler.several(compile_one, alike), strict=True)
    return [(compiled[probed.places], recording) for probed, recording in zip(kernels, recordings, strict=True)]
