"""One reading from two recordings of a kernel: a launch of which all CTAs were recorded, and one of sampled CTAs.

The sample leaves the launch as it is, so what an iteration or a CTA does is read from it. It knows nothing of its
neighbours: how CTAs fill the SMs, how they differ, how the launch ends and which bytes it moves is read from the launch
of all CTAs. Rates and the use of the SMs' units are those of all CTAs' work in the original kernel's time.
"""

from kperf.trace.analyze import analysis
from kperf.trace.analyze.facts import changes, concluded
from kperf.trace.analyze.models import Memory, Pass, Timeline, UnitUse
from kperf.trace.analyze.timeline import Launch
from kperf.trace.capture.sampled import UNDISTURBED


def of_both(every: Timeline, launch: Launch, sample: Timeline) -> Timeline:
    """The timeline of both; `every`, with the reason, where the sample leaves the launch no more as it is.

    `every`, `launch`: of all CTAs; `sample`: of sampled CTAs of a launch of the same grid.
    """
    if not _is_better(sample, every):
        why = f"with a sample the launch {sample.overhead.cost}, with all CTAs it {every.overhead.cost}"
        return of_all(every, launch, why)
    timeline = sample.model_copy(
        update={
            "samples": every.samples,
            "no_samples": every.no_samples,
            "all_ctas": _as_pass(every),
            "view": every.view,
            "sms": every.sms,
            "imbalance": every.imbalance,
            "memory": _memory(every, sample),
            "mma_use": _use(every.mma_use, sample.mma_use),
            "fma_use": _use(every.fma_use, sample.fma_use),
        }
    )
    return concluded(timeline, analysis.unit_cycles(launch))


def _is_better(sample: Timeline, every: Timeline) -> bool:
    """Whether it changes the launch's time less, or little where the other changes how many CTAs are on an SM."""
    if changes(sample.overhead) < changes(every.overhead):
        return True
    alike = every.residency.original == every.residency.instrumented
    return not alike and round(changes(sample.overhead), 4) <= UNDISTURBED


def of_all(every: Timeline, launch: Launch, why: str) -> Timeline:
    """The timeline of a launch of which all CTAs were recorded, with why no sample is read beside it."""
    return concluded(every.model_copy(update={"why_all": why}), analysis.unit_cycles(launch))


def _as_pass(every: Timeline) -> Pass:
    """What the launch of all CTAs cost and moved, and the iteration that it showed."""
    changed = {
        "resources": every.resources.instrumented if every.resources else None,
        "iteration_cycles": every.cycles_per_unit.median if every.unit == "iteration" else None,
    }
    return every.passes[0].model_copy(update=changed)


def _use(every: UnitUse | None, sample: UnitUse | None) -> UnitUse | None:
    """What one CTA does is the sample's; what all of them on an SM do, is of the launch that recorded all."""
    if every is None or sample is None:
        return sample
    return sample.model_copy(update={"sm_recorded": every.sm_recorded, "in_flight_sm": every.in_flight_sm})


def _memory(every: Timeline, sample: Timeline) -> Memory | None:
    """All CTAs' bytes, at the rate of the original kernel's time beside the sample; waits are the sample's."""
    if every.memory is None or sample.memory is None:
        return sample.memory
    per_ms = every.memory.gb_per_s * every.overhead.launch_ms
    return sample.memory.model_copy(
        update={"traffic": every.memory.traffic, "gb_per_s": per_ms / sample.overhead.launch_ms}
    )
