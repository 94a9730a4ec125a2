"""A pipelined loop with too few buffers, though shared memory is left."""

from collections.abc import Iterator

from kperf.arch import SM_90A
from kperf.console import agreeing
from kperf.diagnose.analyses.loops import buffers, launch_gives_stages, loop_line, own_stages, with_stages
from kperf.diagnose.analyses.occupancy import ctas
from kperf.diagnose.analyses.warps import issue_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import MMAS, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEMORY_LATENCY_CYCLES, STAGES_WANTED
from kperf.trace.analyze.finding import Finding

_WANTED = (STAGES_WANTED, STAGES_WANTED + 1)


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of loops whose copies fill fewer buffers than `STAGES_WANTED`, if another one costs no CTA.

    Where the compiler made the buffers it was asked for a number of stages; it needs a buffer less than that where an
    MMA has its operands in registers. Of TTGIR alone it may have been asked for one more than there are buffers.
    """
    advised = set()
    for loop in kernel.main_loops:
        copies = buffers(kernel, loop) if any(op.name in MMAS for op in own(loop)) else []
        depth = min((count for _, count, _ in copies), default=STAGES_WANTED)
        by_compiler = depth + 1 if kernel.is_gluon is None else kernel.num_stages
        stages = own_stages(kernel, loop) or (None if kernel.is_gluon else by_compiler) or depth
        if depth >= STAGES_WANTED or stages >= STAGES_WANTED or kernel.resources is None:
            continue
        more = sum(size for _, _, size in copies)
        now = max(ctas(kernel), 1)
        fitting = [wanted for wanted in _WANTED if _ctas_with(kernel, (wanted - stages) * more) >= now]
        if not fitting:
            continue
        advice = with_stages(kernel, loop, " or ".join(map(str, fitting)))
        if advice in advised and launch_gives_stages(kernel, loop):
            continue  # the launch gives all loops as many
        advised.add(advice)
        issued = issue_cycles(kernel, loop)
        hidden = issued >= MEMORY_LATENCY_CYCLES
        line = loop_line(kernel, loop, copies[0][0])
        which = f"the loop on line {line}" if line else "the loop"
        yield kernel.finding(
            RULE.id,
            copies[0][0],
            "low" if hidden else "medium",
            f"{which} has {depth} {agreeing(depth, 'buffer', 'buffers')} for each tile, so one iteration has to hide "
            "the whole latency of a load"
            + (f"; most of it is hidden, as an SM issues an iteration in {issued:.0f} cycles" if hidden else ""),
            f"{advice}: one more stage takes {more} bytes of shared memory, and no fewer CTAs fit on an SM",
            {
                "buffers": depth,
                "stage_bytes": more,
                "shared_bytes": kernel.resources.shared_bytes,
                "issue_cycles": issued,
                **({"loop_line": line} if line else {}),
            },
            confidence="medium",
            estimate=(1.05, 0.95, 1.3) if hidden else (1.2, 1.0, 1.6),
            candidates=[{"num_stages": wanted} for wanted in fitting] if launch_gives_stages(kernel, loop) else [],
        )


def _ctas_with(kernel: Kernel, more_bytes: int) -> int:
    """CTAs that an SM holds if each has so many more bytes of shared memory; 0 if a CTA cannot have them."""
    assert kernel.resources is not None
    return ctas(kernel, shared_bytes=kernel.resources.shared_bytes + more_bytes)


RULE = Rule(
    "too-few-stages",
    "Too few pipeline stages",
    check,
    needs="machine code",
    targets=(SM_90A.name, "sm_10"),
    only_options=True,
)
