"""Registers, shared memory or a grid that leave few warps on an SM, in a kernel that waits for memory."""

import math
from collections.abc import Iterator, Sequence

from kperf.arch import H200, SM_90A
from kperf.console import agreeing
from kperf.diagnose.analyses.atomics import meets_other_ctas
from kperf.diagnose.analyses.largest import largest_value
from kperf.diagnose.analyses.loops import buffers, is_recurrence, launch_gives_stages, with_stages
from kperf.diagnose.analyses.occupancy import arithmetic_bounds, bytes_at_once, ctas, launched_ctas, least_ctas
from kperf.diagnose.analyses.pipelines import for_one_more_cta, pipelines
from kperf.diagnose.analyses.starts import is_own, is_row
from kperf.diagnose.analyses.warps import issue_cycles, issue_slots, warps_repeat_work
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of, source_of
from kperf.diagnose.reading.operations import LOADS, LOOPS, MMAS, TMA_LOADS, own
from kperf.diagnose.reading.options import halved, more_warps, named, scaled, warps_advice
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import (
    FEW_WARPS_ON_SM,
    MEDIUM_GAIN,
    MEMORY_LATENCY_CYCLES,
    OTHERS_A_CYCLE,
    REGISTERS_NEAR,
    SM_BYTES_IN_FLIGHT,
)
from kperf.trace.analyze.finding import Finding

_WAVES = 2
"""Of a launch in which one CTA of an SM follows another."""
_TURNS_GAIN = 1.2
"""Of CTAs that would overlap: a row of 28672 numbers in one CTA, of which 1.0 is estimated, moves its bytes as fast as
in two (token_quant_fp8, H200)."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of kernels without products that leave fewer than `FEW_WARPS_ON_SM` warps, which ask for few bytes at once.

    Of kernels with products what a little less gives.
    """
    if kernel.resources is None or kernel.resources.shared_bytes > kernel.arch.cta_shared_bytes:
        return
    now, registers = ctas(kernel), kernel.resources.registers
    if now == 0:
        return
    by_registers, by_shared = ctas(kernel, shared_bytes=0), ctas(kernel, registers=32)
    resource = "registers" if by_registers <= by_shared else "shared memory"
    value = largest_value(kernel)
    where = value.operation if value is not None else None
    warps = now * kernel.total_warps
    evidence: dict[str, float | int | str] = {
        "ctas_per_sm": now,
        "warps_per_sm": warps,
        "registers": registers,
        "shared_bytes": kernel.resources.shared_bytes,
    }
    if not any(True for _ in kernel.named(*MMAS, *TMA_LOADS)):
        asked = now * bytes_at_once(kernel)
        if found := _by_grid(kernel, now, evidence) or _by_turns(kernel, now, resource, evidence):
            yield found
        elif warps < FEW_WARPS_ON_SM and max(by_registers, by_shared) > now and asked < SM_BYTES_IN_FLIGHT:
            issued = max((issue_cycles(kernel, loop) for loop in kernel.main_loops), default=0.0)
            hidden = issued >= MEMORY_LATENCY_CYCLES
            lengths = value.tensor.shape if value is not None else ()
            advice, changes = _by_resource(kernel, resource, lengths)
            yield kernel.finding(
                RULE.id,
                where,
                "low" if hidden else "medium",
                f"an SM holds only {warps} warps of this kernel, because of its {resource}: "
                + (
                    f"few, but it issues their instructions of an iteration in {issued:.0f} cycles, which hides most "
                    "of the latency of memory"
                    if hidden
                    else "too few to hide the latency of memory"
                ),
                advice,
                evidence | {"bytes_in_flight": asked, "issue_cycles": issued},
                estimate=(1.05, 0.9, 1.3) if hidden else (1.4, 1.0, 2.0),
                candidates=[*changes, *scaled(kernel, lengths, 0.5)],
            )
        return
    yield from _by_stages(kernel, now, evidence)
    step = kernel.arch.register_unit // kernel.arch.warp_size  # registers of a thread are given out by as many
    wanted = next((n for n in range(registers, 31, -1) if ctas(kernel, registers=n) > now), None)
    if wanted is not None and registers - wanted <= REGISTERS_NEAR * registers and now <= 2:
        twice = more_warps(kernel)[:1]
        yield kernel.finding(
            RULE.id,
            where,
            "low",
            f"{registers} registers a thread leave room for {now} {agreeing(now, 'CTA', 'CTAs')} on an SM; {wanted} "
            "registers would leave room for one more CTA",
            f"try maxnreg={wanted}" + "".join(f" or num_warps={change['num_warps']}" for change in twice),
            evidence | {"registers_for_one_more": wanted},
            confidence="low",
            estimate=(1.05, 0.9, 1.3),
            candidates=[{"maxnreg": wanted // step * step}, *twice],
        )


def _by_resource(kernel: Kernel, resource: str, lengths: Sequence[int]) -> tuple[str, list[dict[str, int]]]:
    """What leaves more warps on an SM, in words and as candidates: more of them a CTA, if they do no work twice."""
    if resource != "registers":
        staged = any(buffers(kernel, loop) for loop in kernel.main_loops)  # else conversions of layouts fill it
        smaller = f"a smaller tile{named(scaled(kernel, lengths, 0.5), before=': ')}"
        return (f"use fewer stages or {smaller}", _fewer_stages(kernel)) if staged else (f"use {smaller}", [])
    if warps_repeat_work(kernel):
        return halved(kernel, lengths), []
    return warps_advice(kernel, lengths), more_warps(kernel)


def _by_grid(kernel: Kernel, now: int, evidence: dict[str, float | int | str]) -> Finding | None:
    """Of CTAs that loop over memory on an SM that has room for more of them: rows of a batch, a share each."""
    loops = [loop for loop in kernel.named(*LOOPS) if not (arithmetic_bounds(kernel, loop) or is_recurrence(loop))]
    loop, load = next(((loop, op) for loop in loops for op in own(loop) if op.name in LOADS), (None, None))
    if (
        kernel.grid is None or loop is None or load is None or math.prod(kernel.grid) * MEDIUM_GAIN <= H200.sms
    ):  # launch-too-small
        return None
    launched, wanted = launched_ctas(kernel), least_ctas(kernel) if meets_other_ctas(kernel) else now
    if launched >= least_ctas(kernel):
        return None
    gain = wanted * H200.sms / math.prod(kernel.grid)
    warps = launched * kernel.total_warps
    return kernel.finding(
        RULE.id,
        load,
        "medium",
        f"the grid puts {launched} {agreeing(launched, 'CTA', 'CTAs')} on an SM, {warps} warps, where {now} CTAs fit: "
        "too few warps to hide the latency of memory",
        f"share the iterations of the loop at line {source_of(frame_of(loop)).line} among "
        f"{math.ceil(wanted / launched)} CTAs, by another axis of the grid: an SM then has {wanted} CTAs"
        + ", and each CTA more adds to the same addresses by atomics"
        * (wanted < now),
        evidence | {"ctas_per_sm": launched, "warps_per_sm": warps, "ctas_that_fit": now},
        confidence="medium",
        estimate=(min(1.3, gain**0.5), 1.0, gain),
    )


def _by_turns(kernel: Kernel, now: int, resource: str, evidence: dict[str, float | int | str]) -> Finding | None:
    """Of kernels without loops of which one CTA fills an SM: it computes when all that it loads is there.

    Other SMs load meanwhile, so device memory limits the launch by its own time alone, and a CTA's bytes come as fast
    as L2 gives them. A row that is reduced as a whole has no smaller tile.
    """
    widest = max(kernel.accesses, key=lambda access: access.tensor.size, default=None)
    if (
        now > 1
        or widest is None
        or kernel.code is None
        or kernel.grid is None
        or any(True for _ in kernel.named(*LOOPS))
    ):
        return None
    if math.prod(kernel.grid) < _WAVES * H200.sms or is_row(kernel, widest):
        return None
    kept = [(access, kernel.kept_at_launch(access) * access.tensor.bytes) for access in kernel.accesses]
    memory = sum(size for access, size in kept if is_own(access)) / kernel.arch.memory_bytes_per_cycle
    l2 = sum(size for _, size in kept) / H200.l2_bytes_per_cycle
    issuing = issue_slots(kernel.code, kernel.total_warps) / OTHERS_A_CYCLE
    gain = (MEMORY_LATENCY_CYCLES + l2 + issuing) / max(memory, l2, issuing)
    if gain < _TURNS_GAIN:
        return None
    lengths, smaller = widest.tensor.shape, scaled(kernel, widest.tensor.shape, 0.5)
    part = f"a quarter of the tile, {widest.tensor.size // 4} elements with num_warps={max(kernel.num_warps // 4, 1)}"
    axis = ", and the grid an axis for the parts of a row" * (len(lengths) == 1)
    return kernel.finding(
        RULE.id,
        widest.operation,
        "medium",
        f"one CTA fills an SM, because of its {resource}: it loads, computes and stores in turn, while no other CTA "
        "works",
        f"{halved(kernel, lengths)}, with fewer warps, so that an SM holds several CTAs"
        if smaller
        else f"give a CTA {part}{axis}, so that an SM holds several CTAs",
        evidence | {"issue_cycles": issuing, "memory_cycles": memory, "l2_cycles": l2},
        confidence="medium",
        estimate=(gain, 1.0, 1.5 * gain),  # 1.7 of it were 1.7 measured (H200)
        candidates=smaller,
    )


def _by_stages(kernel: Kernel, now: int, evidence: dict[str, float | int | str]) -> Iterator[Finding]:
    """Of loops that fill more buffers than `STAGES_WANTED`, where fewer leave room for another CTA."""
    for loop in pipelines(kernel):
        if (stages := for_one_more_cta(kernel, loop)) is not None:
            yield kernel.finding(
                RULE.id,
                loop.copy,
                "medium",
                f"an SM holds only {now * kernel.total_warps} warps of this kernel, because {loop.depth} stages of "
                f"{loop.stage_bytes} bytes fill its shared memory: while these warps wait, no MMA is issued",
                f"{with_stages(kernel, loop.loop, str(stages))}, which leaves room for one more CTA",
                evidence | {"stages": loop.depth, "stages_for_one_more": loop.depth - loop.stages + stages},
                confidence="medium",
                estimate=(1.2, 1.0, 1.6),
                candidates=[{"num_stages": stages}] if launch_gives_stages(kernel, loop.loop) else (),
            )
            return


def _fewer_stages(kernel: Kernel) -> list[dict[str, int]]:
    return [{"num_stages": stages} for stages in range((kernel.num_stages or 1) - 1, 0, -1)]


RULE = Rule(
    "low-occupancy",
    "Few warps on an SM",
    check,
    needs="machine code",
    targets=(SM_90A.name,),
    explained_by=("too-few-warps", "register-spills", "narrow-access", "mask-stops-vectors", "few-bytes-in-flight"),
)
