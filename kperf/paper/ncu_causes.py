"""Which of ncu's rules names which planted fault: a judgement, a line a fault, in ncu's favour where it is open.

A rule names a fault if what it says (its first sentence) is the fault's cause or its direct effect in the hardware:
"excessive sectors" for accesses that do not coalesce, "waiting for L1TEX" for loads that nothing hides. It need not
name a remedy. A sentence that fits any slow kernel ("all compute pipelines are under-utilized") names none.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from kperf.studies.ncu import Rule


@dataclass(frozen=True)
class Cause:
    """A rule, what its sentence has to hold (a regular expression; empty: anything), and why that names the fault."""

    rule: str
    says: str
    why: str

    def is_named_by(self, rule: Rule) -> bool:
        """Whether that is the rule, and it says so."""
        return rule.rule == self.rule and re.search(self.says, rule.text, re.IGNORECASE) is not None


_LOADS = Cause("CPIStall", "L1TEX", "warps wait for what they load")
_LONGER_WAITS = (_LOADS, Cause("CPIStall", "barrier", "warps wait at the barrier until a tile has arrived"))
_COALESCED = (
    Cause("UncoalescedGlobalAccess", "", "UncoalescedGlobalAccess counts the excess sectors of loads and stores"),
    Cause("MemoryCacheAccessPattern", "global", "MemoryCacheAccessPattern counts how many bytes of a sector are used"),
)
_NARROW = (Cause("CPIStall", r"\bLG\b|local and global", "too many memory instructions fill their queue"),)
_EXCHANGE = (
    Cause("CPIStall", "barrier", "warps exchange data, and then meet at a barrier"),
    Cause("CPIStall", "MIO|short scoreboard", "warps exchange data through shared memory"),
    Cause("SharedMemoryConflicts", "", "warps exchange data through shared memory"),
    Cause("UncoalescedSharedAccess", "", "warps exchange data through shared memory"),
)
_FEW_WARPS = (
    Cause("TheoreticalOccupancy", "", "TheoreticalOccupancy says what limits the number of warps on an SM"),
    Cause("AchievedOccupancy", "", "AchievedOccupancy says that an SM has fewer warps than it could"),
)
_LAST_WAVE = (Cause("LaunchConfiguration", "tail effect|wave", "LaunchConfiguration counts the CTAs of the last wave"),)
_FMA = (
    Cause("HighPipeUtilization", r"\bFMA", "the named FMA pipeline works in place of the tensor cores"),
    Cause("FPInstructions", "", "FPInstructions counts the instructions that work in place of MMAs"),
)

CAUSES: dict[str, tuple[Cause, ...]] = {
    "atomic-contention": (
        Cause("CPIStall", r"\bLG\b|local and global", "atomics fill the queue of memory instructions"),
    ),
    "bank-conflicts": (
        Cause("SharedMemoryConflicts", "", "SharedMemoryConflicts counts the bank conflicts"),
        Cause("UncoalescedSharedAccess", "", "UncoalescedSharedAccess counts the excess wavefronts of shared memory"),
    ),
    "conversion-in-loop": _EXCHANGE,
    "debug-in-kernel": (Cause("CPIStall", "barrier", "warps wait at the barrier that was left in the kernel"),),
    "dot-by-hand": _FMA,
    "dot-on-fma": _FMA,
    "emulated-atomics": (
        Cause("CPIStall", r"\bLG\b|local and global", "compare-and-swaps fill the queue of memory instructions"),
    ),
    "few-bytes-in-flight": (_LOADS, *_FEW_WARPS),
    "float64": (
        Cause("HighPipeUtilization", "FP64", "the named pipeline computes in float64"),
        Cause("SOLFPRoofline", "FP64|double", "SOLFPRoofline says how much of the work is in float64"),
        Cause("FPInstructions", "FP64|double", "FPInstructions counts instructions of float64"),
    ),
    "idle-threads": (Cause("ThreadDivergence", "", "ThreadDivergence counts the threads of a warp that work"),),
    "imbalance": (Cause("WorkloadImbalance", "", "WorkloadImbalance compares the active cycles of the SMs"),),
    "launch-too-small": (
        Cause("LaunchConfiguration", "grid", "LaunchConfiguration compares the number of CTAs with the number of SMs"),
    ),
    "loads-not-pipelined": _LONGER_WAITS,
    "loop-division": (
        Cause("HighPipeUtilization", r"ALU|XU", "the named pipeline runs the instructions of a division"),
    ),
    "low-occupancy": _FEW_WARPS,
    "mask-stops-vectors": _NARROW,
    "narrow-access": (*_NARROW, *_COALESCED),
    "ordered-atomics": (Cause("CPIStall", "membar|memory barrier", "warps wait at the fences around atomics"),),
    "random-numbers": (
        Cause("HighPipeUtilization", r"ALU|FMA", "the named pipeline computes Philox's integer arithmetic"),
    ),
    "reduction-in-loop": _EXCHANGE,
    "persistent-grid": _LAST_WAVE,
    "register-spills": (
        Cause("MemoryCacheAccessPattern", "local", "spilled registers go to local memory"),
        Cause("CPIStall", r"\bLG\b|local and global", "spills fill the queue of memory instructions"),
    ),
    "scalar-loop": (_LOADS, *_COALESCED),
    "scan-by-hand": (
        Cause(
            "HighPipeUtilization",
            r"ALU|FMA",
            "the named pipeline computes the triangular mask's selections and additions",
        ),
        Cause("CPIStall", "MIO|short scoreboard", "prefixes' reductions shuffle elements through the MIO queue"),
    ),
    "slow-math": (
        Cause("HighPipeUtilization", "highest-utilized", "the named pipeline computes the math function"),
        Cause("CPIStall", "math pipe", "warps wait for the pipeline that computes the math function"),
    ),
    "tail-wave": _LAST_WAVE,
    "too-few-stages": _LONGER_WAITS,
    "too-few-warps": _FEW_WARPS,
    "uncoalesced-access": _COALESCED,
    "wgmma-serialised": (Cause("CPIStall", "GMMA|warpgroup", "warps wait for each MMA"),),
}
"""Fault -> what names it. A fault that is not here has no rule of ncu that would."""

WITHOUT_RULE = {
    "autotuner-list": "a profile of a launch does not show which configurations were not tried",
    "bit-loop": "no rule of ncu knows what a loop of shifts computes",
    "both-sides-loaded": "no rule of ncu knows which of the loaded bytes a kernel drops",
    "buffer-race": "no rule of ncu compares buffers with waits",
    "dense-transform": "no rule of ncu knows that a matrix has a fast transform",
    "early-return": "no rule of ncu counts the CTAs that have no work",
    "emulated-float32": "no rule of ncu knows that several MMAs compute one tl.dot",
    "epilogue-in-loop": "no rule of ncu knows which work of an iteration could follow the loop",
    "fixed-iterations": "no rule of ncu knows which iterations change no result",
    "full-sort": "no rule of ncu knows which sorted elements are used",
    "int64-index": "no rule of ncu looks at the width of indices",
    "intermediate-in-memory": "a profile of a launch does not show what other launches read and write again",
    "launch-per-slice": "a profile of a launch does not show that other launches do the same for other slices",
    "linear-search": "no rule of ncu knows that a list is sorted",
    "lookup-by-comparison": "no rule of ncu knows that a comparison with each entry is a lookup",
    "masked-tiles": "no rule of ncu knows which results a mask removes",
    "needless-atomics": "no rule of ncu knows that one CTA could compute a whole sum",
    "needless-split-k": "no rule of ncu knows which CTAs share a sum",
    "not-separated": "no rule of ncu knows that a window's weights are a column times a row",
    "opaque-samples": "no rule of ncu knows which iterations change no result",
    "padded-tile": "no rule of ncu knows which results a mask removes",
    "pass-in-torch": "a profile of a launch does not show what torch computes of its tensors",
    "pointers-through-loops": "no rule of ncu knows which integer instructions of a loop are needless",
    "product-order": "no rule of ncu knows that matrices may be multiplied in another order",
    "program-order": "no rule of ncu compares the order of CTAs with another order",
    "program-per-item": "no rule of ncu knows how many elements one CTA could take",
    "project-per-edge": "no rule of ncu knows that rows are gathered and multiplied more than once",
    "quadratic-ranking": "no rule of ncu knows what comparisons with a whole row compute",
    "recompiled-often": "ncu profiles launches, not compilation",
    "redundant-load": "to ncu, a second load of an address looks like the first",
    "repeated-launch": "a profile of a launch does not show what other launches read and write again",
    "serial-chain": "no rule of ncu knows which CTA a CTA waits for",
    "small-tile": "no rule of ncu knows the size of an MMA's tile",
    "stages-do-not-fit": "the GPU refuses the launch, so there is nothing to profile",
    "statistics-per-tile": "no rule of ncu knows which CTAs compute the same sums",
    "table-recomputed": "no rule of ncu knows which CTAs compute the same values",
    "tma-unused": "no rule of ncu compares a load with a load by TMA",
    "trig-per-pair": "no rule of ncu knows that a function of a pair follows from functions of its two parts",
    "tuned-for-another-size": "a profile of a launch does not show for which size an autotuner chose",
    "wgmma-unused": "no rule of ncu compares the instruction of an MMA with a faster instruction",
    "widened-operands": "no rule of ncu knows the dtype of operands before conversion",
    "window-summed-anew": "no rule of ncu knows that neighbouring sums have most terms in common",
    "zeroed-after-reading": "no rule of ncu knows that loaded bytes are multiplied by zero",
}
"""Fault -> why no rule of ncu names it."""


def names(fault: str, rules: Sequence[Rule]) -> bool:
    """Whether one of the rules names the fault."""
    return any(cause.is_named_by(rule) for cause in CAUSES.get(fault, ()) for rule in rules)
