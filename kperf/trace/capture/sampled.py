"""Instrumented kernels that record a few CTAs, in which all others run the original code as if nothing were recorded.

Not every kernel can be made so without a change to the original path: registers are chosen for both paths together. So
a few ways are compiled, and the first is kept in which the original path has the original kernel's order of
instructions, its spills and its CTAs on an SM. Where there is none, it is the way in which no more than the order
differs, in the fewest places, if recording all CTAs takes a CTA from an SM or changes as many. Else all CTAs are
recorded, and the reading says why.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from kperf.arch import of
from kperf.compat.triton import TritonError
from kperf.compat.triton.cache import own_cache
from kperf.compat.triton.instrumentation import changed_ptx
from kperf.errors import MeasurementError, UsageError, first_line
from kperf.ir import compile as compiler
from kperf.ir import sass
from kperf.ir.override import Override, recompile
from kperf.trace.capture.instrumented import (
    InstrumentedKernel,
    most_registers,
    orders,
    recording_of_launch,
    resource_usage,
    straight_events,
)
from kperf.trace.instrument.sampled import LEAST_RECORDED, MOST_CTAS, Sample, key_of, sampled
from kperf.trace.instrument.session import Recording, session

UNDISTURBED = 0.05
"""Of the original kernel's time: a launch that events change by no more is read as it is, with high confidence. Two
measurements of one instrumented kernel are 0.7 % apart in the median and 3.9 % at most (docs/accuracy.md): what is
above is no noise."""
MOST_L1 = 0.1
"""Of the L1 cache: where events in shared memory take more from a kernel that loads through it, they go to device
memory first. gemm_1_stage, which loses 19 %, was 22 % slower so, and 0.3 % with events in device memory (in a
laboratory, on an H200)."""
WAYS_S = 30.0
"""Seconds in which ways are compiled: of a kernel that spills, one takes half a minute."""


def disturbs(every: InstrumentedKernel, cost: float, folder: Path) -> bool:
    """Whether recording all CTAs makes another kernel of it: in time, by `cost`, in CTAs on an SM, or in its order."""
    if round(abs(cost), 4) > UNDISTURBED or every.resource_usage.occupancy != every.original_usage.occupancy:
        return True
    return bool(orders(every, folder).differences)


def with_sampled_ctas(
    every: InstrumentedKernel, sample: Sample, ctas: int, folder: Path, *, memory: int, events: int | None
) -> InstrumentedKernel:
    """The kernel that records a sample of the CTAs of such a launch; `every`, with the reason, where there is none.

    `every`: the instrumented kernel that records all of them. `memory`, `events`: as `make_instrumented` takes them.
    No way is begun that, taking as long as the one before it, would end later than WAYS_S after the first began.
    """
    reasons: list[str] = []
    near: list[InstrumentedKernel] = []
    begin = time.monotonic()
    try:
        _refuse(every, sample, ctas)
        ways = [
            (recording, registers)
            for recording in _recordings(every, sample.count(ctas), memory, events)
            for registers in _register_limits(every, recording)
        ]
        for number, (recording, registers) in enumerate(ways):
            began = time.monotonic()
            made = _compiled(every, sample, recording, registers, folder)
            if (change := _change(made, folder)) is None:
                return made
            reasons.append(f"beside the instrumented code its own {change.difference}")
            if change.places:
                near.append(replace(made, own_order_differs=change.places))
            ended = time.monotonic()
            if number + 1 < len(ways) and ended - begin + (ended - began) > WAYS_S:
                tried = f"{number + 1} of {len(ways)} ways took {ended - begin:.0f} s to compile"
                reasons[0] += f" ({tried}, and no more are tried)"
                break
    except (UsageError, MeasurementError) as error:
        reasons.insert(0, str(error))
    except TritonError as error:  # ptxas or a pass of Triton's
        reasons.append(f"both codes together are refused: {first_line(error)}")
    if near:
        nearest = min(near, key=lambda made: made.own_order_differs)
        if every.ctas_lost or nearest.own_order_differs <= len(orders(every, folder).differences):
            return nearest
    return replace(every, why_all=reasons[0])


def _refuse(every: InstrumentedKernel, sample: Sample, ctas: int) -> None:
    """Raise `UsageError` for what is not tried."""
    if "ptx" not in every.original.asm:
        raise UsageError("its PTX is not kept, or it is not for an NVIDIA GPU")
    if every.original.metadata.num_ctas > 1:
        raise UsageError("its CTAs come in clusters, which are not sampled")
    if not sample.is_enough(ctas):
        raise UsageError(f"of its {ctas} CTAs a sample has {sample.count(ctas)}, and {LEAST_RECORDED} are needed")
    if ctas > MOST_CTAS:
        raise UsageError(f"it has {ctas} CTAs, more than have numbers of 31 bits")


def _recordings(every: InstrumentedKernel, ctas: int, memory: int, events: int | None) -> tuple[Recording, ...]:
    """In shared memory, if there is room, and in device memory; that first where the L1 cache would lose much."""
    written = events or straight_events(every.program)
    first = recording_of_launch(every.program, every.original_usage, ctas, memory, written)
    if first.memory != "shared":
        return (first,)
    both = first, replace(first, memory="global")
    return both[::-1] if _takes_l1(every, first) else both


def _takes_l1(every: InstrumentedKernel, recording: Recording) -> bool:
    """Whether events in shared memory take more than `MOST_L1` of L1 from a kernel that loads into registers."""
    used = every.original_usage
    before, after = (
        recording.arch.l1_bytes(used.occupancy, used.shared_bytes + more) for more in (0, recording.buffer_bytes)
    )
    loads = any(interval.uses for interval in every.program.intervals.values())
    return loads and after < (1 - MOST_L1) * before


def _register_limits(every: InstrumentedKernel, recording: Recording) -> list[int | None]:
    """What ptxas may take: what it chooses, all, and as many as leave the original's CTAs on an SM.

    What it chooses may be fewer than the original has, in another order, or so many that a CTA less fits.
    """
    used, arch = every.original_usage, recording.arch
    shared = used.shared_bytes + (recording.buffer_bytes if recording.memory == "shared" else 0)
    most = most_registers(arch, used, shared, every.program.total_warps)
    return list(dict.fromkeys([None, arch.thread_registers, *([] if most is None else [most])]))


def _compiled(
    every: InstrumentedKernel, sample: Sample, recording: Recording, registers: int | None, folder: Path
) -> InstrumentedKernel:
    original = every.original.asm["ptx"]

    def change(instrumented: str) -> str:
        return sampled(original, instrumented, recording, sample, registers)

    override = Override(folder / f"{every.original.name}.ttgir", every.text, every.program.kernel_name)
    with (
        session(recording, apart=True),
        changed_ptx(change, key_of(original, sample, registers)),
        own_cache(folder),
    ):
        kernel = recompile(every.original, override)
    return replace(
        every, kernel=kernel, recording=recording, sample=sample, resource_usage=resource_usage(kernel, folder)
    )


@dataclass(frozen=True)
class _Change:
    """What the original path is not as in the original kernel, in words; `places`: where, if only the order differs."""

    difference: str
    places: int = 0


def _change(made: InstrumentedKernel, folder: Path) -> _Change | None:
    """None if the original path is the original kernel in all that counts."""
    before, after = made.original_usage, made.resource_usage
    if after.occupancy != before.occupancy:
        return _Change(f"code has {_ctas(after.occupancy)} on an SM, and {before.occupancy} alone")
    if made.kernel.metadata.shared < made.original.metadata.shared:
        return _Change("code would have less shared memory than it needs")
    with own_cache(folder):
        alone, paths = compiler.sass(made.original), compiler.sass_paths(made.kernel)
    if paths is None:
        return _Change("code cannot be distinguished from it")
    if (spills := sass.spills(paths[0])) > (own := sass.spills(alone)):
        return _Change(f"code spills registers at {spills} places, and at {own} alone")
    arch = of(made.original.metadata.target)
    if places := len(sass.compare(sass.order(alone, arch), sass.order(paths[0], arch))):
        return _Change(f"code has another order of instructions, in {places} place{'s' * (places != 1)}", places)
    return None


def _ctas(count: int) -> str:
    return f"{count} CTA{'s' * (count != 1)}"
