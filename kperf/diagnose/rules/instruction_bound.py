"""Instructions that bound a launch: its SMs issue them in most of the cycles."""

import re
from collections.abc import Iterator

from kperf.console import agreeing
from kperf.diagnose.analyses.divisions import distinct, instructions_of, is_of_elements
from kperf.diagnose.analyses.measured import by_instructions, finding, share_of_copy
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.rules.loop_division import advice
from kperf.diagnose.thresholds import NEAR_ROOF
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import LineSamples, Timeline
from kperf.trace.analyze.stalls import COMPUTING

_OF_TRITON = re.compile(r"/triton/(language|experimental)/")
"""Files of functions such as `tl.rand`, which nobody changes: a kernel calls another one."""
_LEAST = 0.2
"""Of the samples: on a line with fewer there is little to gain."""


def check(timeline: Timeline) -> Iterator[Finding]:
    """By samples, at the line at which most warps compute.

    The rule knows no better way to compute what the line computes, so that it gives a hint: as likely a factor as any
    is that of half the line's time.
    """
    (words, evidence), moved = by_instructions(timeline), share_of_copy(timeline)
    if timeline.samples is None or not words or moved >= NEAR_ROOF:
        return
    line = max((one for one in timeline.samples.lines if not _OF_TRITON.search(one.file)), key=_computing, default=None)
    if line is None:
        return
    share = _computing(line) / timeline.samples.total
    if not line.line or share < _LEAST:
        return
    yield finding(
        RULE.id,
        timeline.model_copy(update={"file": f"{line.file}:{line.line}"}),
        None,
        "low",
        f"instructions bound the launch: {words}, and {share:.0%} of the sampled warps compute this line",
        "compute this line with fewer instructions: a hardware function or a table in place of a loop, a narrower "
        "type, or a number that iterations, rows or CTAs share and that is computed once",
        {**evidence, "share": share, "share_of_copy": moved},
        (1 / max(1 - share / 2, moved), 1.0, 1 / max(1 - share, moved, _LEAST)),
    )


def _with_divisions(finding: Finding, kernel: Kernel) -> Finding:
    """With what to do, where the line divides integers by numbers known at run time: each takes some twenty others."""
    here = finding.source.file, finding.source.line
    divisions = distinct(
        op
        for op in kernel.operations
        if is_of_elements(kernel, op) and (at := frame_of(op)) is not None and (at.file, at.line) == here
    )
    if not divisions:
        return finding
    count = len(divisions)
    words = agreeing(count, "an integer division or remainder", f"{count} integer divisions and remainders")
    return finding.model_copy(
        update={
            "message": f"{finding.message}: {words} by a number known only at run time, which takes some "
            f"{max(instructions_of(kernel, op) for op in divisions)} instructions for each element",
            "advice": advice(kernel, divisions),
            "evidence": finding.evidence | {"divisions": count},
        }
    )


def _computing(line: LineSamples) -> int:
    """Samples of warps at a line that issue, are ready, or wait for a unit or for the instruction before."""
    return sum(count for reason, count in line.stalls.items() if reason in COMPUTING)


RULE = DynamicRule(
    "instruction-bound",
    "Instructions that bound a launch",
    check,
    of_kernel=_with_divisions,
    explained_by=(
        "dot-by-hand",
        "dot-on-fma",
        "emulated-atomics",
        "float64",
        "full-sort",
        "int64-index",
        "linear-search",
        "loop-division",
        "pointers-through-loops",
        "quadratic-ranking",
        "random-numbers",
        "scalar-loop",
        "scan-by-hand",
        "slow-math",
        "table-recomputed",
        "wgmma-unused",
        "window-summed-anew",
    ),
)
