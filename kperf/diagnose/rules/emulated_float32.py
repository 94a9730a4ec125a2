"""A `tl.dot` of float32 that is made of several MMAs of narrower numbers."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kperf.arch import Dtype
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, resident_ctas
from kperf.diagnose.analyses.operands import WIDENING, in_memory, runs_on_fma, to_narrow, widened_operands
from kperf.diagnose.analyses.turns import shared_cycles
from kperf.diagnose.analyses.waves import schedule_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import MMAS, loops_around, mma_shape, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, MMA_SHARE
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding, Level

_EMULATIONS: Mapping[str, tuple[int, Dtype]] = {"tf32x3": (3, "tf32"), "bf16x3": (3, "bf16"), "bf16x6": (6, "bf16")}
"""By `input_precision`: MMAs of each `tl.dot`, and the numbers that they multiply."""
_PARTS: Mapping[str, int] = {"tf32x3": 2, "bf16x3": 2, "bf16x6": 3}
"""Of each operand."""
_SPREAD = 1.3
"""Between the estimate and the most."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of each `tl.dot` as it is written, if the target makes several MMAs of it.

    Severe where both operands have at most 16 bits in memory, of which one MMA drops none. Else the digits may be
    wanted.
    """
    written = kernel.as_written
    if written is None:
        return
    for op in written.named("tt.dot"):
        name = _precision(op)
        shape = mma_shape(op)
        if name not in _EMULATIONS or shape is None or not _is_emulated(kernel, shape, _EMULATIONS[name][0]):
            continue
        count, _ = _EMULATIONS[name]
        widened = widened_operands(written, op)
        of_halves = len(widened) == 2
        now, then = _now(kernel, op, name), _then(kernel, op, name, of_halves=of_halves)
        gain = max(now.cycles(kernel) / then.cycles(kernel), 1.0)
        if min(gain, _most(kernel)) < MEDIUM_GAIN:
            continue
        severity: Level = "high" if of_halves else "medium" if widened else "low"
        why, advice = "for digits of float32 that one MMA drops", _ADVICE
        if widened:
            words = in_memory(widened)
            why += f", although {'both operands are' if of_halves else 'one operand is'} {words} in memory"
            if not any(one.is_scaled for one in widened.values()):
                advice += f"; it rounds the other operand alone, as TF32 holds all bits of {words}"
        yield kernel.finding(
            RULE.id,
            op,
            severity,
            f"input_precision='{name}' makes {count} MMAs of this tl.dot, {why}",
            to_narrow(widened) if of_halves else advice,
            {
                "mmas": count,
                "precision": name,
                "mma_cycles": now.mmas,
                "other_cycles": now.computed,
                "shared_cycles": now.shared,
            },
            confidence="high" if of_halves else "medium",
            estimate=(gain, 1.0, _SPREAD * gain),
        )


_ADVICE = "if 10 bits of mantissa are enough, pass input_precision='tf32', which makes one MMA"


def _precision(op: Operation) -> str:
    """The `input_precision` of a `tt.dot`; empty where TTIR does not print it, as of 'ieee'."""
    return op.rest.partition("inputPrecision = ")[2].partition(" ")[0]


def _is_emulated(kernel: Kernel, shape: tuple[int, int, int], count: int) -> bool:
    """Whether the compiler makes so many MMAs of a `tl.dot`, and the FMA units do none of them.

    By their rows and columns, because MMAs of bfloat16 have the lines of their operands' loads.
    """
    mmas = [one for one in kernel.named(*MMAS) if (tile := mma_shape(one)) is not None and tile[:2] == shape[:2]]
    return len(mmas) >= count and not any(runs_on_fma(kernel, one) for one in mmas)


@dataclass(frozen=True)
class _Work:
    """Cycles of an SM for the MMAs of a `tl.dot`, for what is computed, and for its operands through shared memory."""

    mmas: float
    computed: float
    shared: float

    def cycles(self, kernel: Kernel) -> float:
        """Of a CTA, which does one after another, as its MMAs wait for operands; other CTAs of the SM work too."""
        alone = self.mmas + self.computed + self.shared
        return max(alone / resident_ctas(kernel), self.mmas / MMA_SHARE, self.computed, self.shared)


def _now(kernel: Kernel, dot: Operation, precision: str) -> _Work:
    """As the loop is compiled: it splits the operands, and each part of one goes through shared memory."""
    shape, (count, element) = mma_shape(dot), _EMULATIONS[precision]
    assert shape is not None
    around = _compiled_around(kernel, shape)
    mmas = count * 2 * math.prod(shape) / kernel.arch.flop_per_cycle[element]
    return _Work(mmas, arithmetic_cycles(kernel, around), shared_cycles(kernel, around))


def _then(kernel: Kernel, dot: Operation, precision: str, *, of_halves: bool) -> _Work:
    """With one MMA: operands of 16 bits lie in shared memory as it reads them, others are one part."""
    shape, written = mma_shape(dot), kernel.as_written
    assert shape is not None
    assert written is not None
    loops = loops_around(dot)
    computed = [one for one in (own(loops[0]) if loops else written.operations) if one.name not in WIDENING]
    mmas = 2 * math.prod(shape) / kernel.arch.flop_per_cycle["bf16" if of_halves else "tf32"]
    left = 0.0 if of_halves else shared_cycles(kernel, _compiled_around(kernel, shape)) / _PARTS[precision]
    return _Work(mmas, arithmetic_cycles(written, computed), left)


def _compiled_around(kernel: Kernel, shape: tuple[int, int, int]) -> list[Operation]:
    """What an iteration does that has the MMAs of a `tl.dot`; all of a kernel where no loop has them."""
    mma = next(one for one in kernel.named(*MMAS) if (tile := mma_shape(one)) is not None and tile[:2] == shape[:2])
    loops = loops_around(mma)
    return list(own(loops[0])) if loops else kernel.operations


def _most(kernel: Kernel) -> float:
    """Times as fast as a launch can be for its bytes from device memory; infinity where its CTAs are not known.

    At least: to split the operands, which takes time too, is not counted.
    """
    schedule = schedule_of(kernel)
    return math.inf if schedule is None else schedule.compute_cycles / schedule.memory_cycles(schedule.sizes.sum())


RULE = Rule("emulated-float32", "float32 made of several MMAs", check)
