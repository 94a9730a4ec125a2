"""Buffers and registers that a loop writes while an MMA may read them, and buffers read while a copy may fill them."""

from collections.abc import Iterator

from kperf.diagnose.analyses.serialised import serialised
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import MMAS, loops_around, own
from kperf.diagnose.rule import Rule
from kperf.ir.operand_registers import overwritten
from kperf.ir.operations import ASYNC_COPY, COPY, DOT
from kperf.ir.races import Race, races
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_LOADED, _ONE = "ttg.local_load", "ttg.memdesc_index"
_AGAIN = (
    "load the tile a second time for what uses it outside of the MMA, {} (two equal loads become one), or take "
    "num_stages=1: Triton makes one buffer too few for a tile that an MMA and other code use (triton-lang/triton#6691)"
)
_OTHER_LOAD = {ASYNC_COPY: 'tl.load(..., eviction_policy="evict_last")', COPY: "with tl.load"}
_HIDDEN = ". In this machine code it is over: ptxas waits after each wgmma, which a change of the kernel may end"
_REPORTED = "take num_stages=1, and report this kernel to Triton: its pipeliner placed the buffers and the waits"


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the order of the compiled loop. ptxas may have put a wait after each wgmma: a hint, until it does not."""
    for race in races(kernel.module):
        of_mma = race.unfinished.name in MMAS
        hidden = of_mma and serialised(kernel) is not None
        yield kernel.finding(
            RULE.id,
            race.early,
            "low" if hidden else "high",
            (_overwritten(race) if of_mma else _unfilled(race)) + hidden * _HIDDEN,
            _advice(kernel, race, of_mma=of_mma),
            {"buffers": race.buffers, "iterations_later": race.later},
            right_with=_right_with(kernel),
        )
    yield from _in_registers(kernel)


def _in_registers(kernel: Kernel) -> Iterator[Finding]:
    """Of first operands in registers: no wrong result of these was seen, and in PTX they are undefined."""
    code = kernel.code if any(map(_reads_registers, kernel.named(DOT))) else None  # to read it takes time
    for race in overwritten(code) if code is not None else ():
        yield kernel.finding(
            RULE.id,
            race.mma.frame,
            "low",
            f"results may be wrong: before this MMA is over, instructions of the {'next' if race.later else 'same'} "
            "iteration may write the registers that hold its first operand, and PTX leaves the results undefined then",
            "call warpgroup_mma_wait(0, ...) before the next operand is computed"
            if kernel.is_gluon
            else "take num_stages=1, or compile with Triton 3.9, which waits for the MMAs of the iteration before "
            "(triton-lang/triton#9433)",
            {"iterations_later": race.later},
            confidence="medium",
            right_with=_right_with(kernel),
        )


def _right_with(kernel: Kernel) -> dict[str, int]:
    """A configuration without a pipeline; in Gluon the kernel itself has the pipeline."""
    return {} if kernel.is_gluon else {"num_stages": 1}


def _reads_registers(mma: Operation) -> bool:
    """Whether its first operand is a tensor, and no buffer."""
    return mma.rest.rpartition(" : ")[2].startswith("tensor<")


def _overwritten(race: Race) -> str:
    return (
        f"results may be wrong: this line fills a buffer in shared memory that the MMA{_place(race)} may still read. "
        f"The tile has {_count(race.buffers)}, and the kernel waits for that MMA after this line"
    )


def _unfilled(race: Race) -> str:
    return (
        f"results may be wrong: this line reads a buffer in shared memory that the copy{_place(race)} may not have "
        f"filled yet. The tile has {_count(race.buffers)}, and the kernel waits for that copy after this line"
    )


def _place(race: Race) -> str:
    """Of the operation that is not over: its line, and how many iterations before it began."""
    at = frame_of(race.unfinished)
    line = f" on line {at.line}" if at is not None else ""
    before = {0: "", 1: ", one iteration before,"}.get(race.later, f", {race.later} iterations before,")
    return line + before


def _count(buffers: int) -> str:
    return f"{buffers} buffer{'s' * (buffers > 1)}"


def _advice(kernel: Kernel, race: Race, *, of_mma: bool) -> str:
    if not kernel.is_gluon:
        return _AGAIN.format(_OTHER_LOAD[race.early.name]) if _is_loaded_too(kernel, race) else _REPORTED
    if not of_mma:
        return "wait for that copy before this line: give wait_group a smaller number"
    return (
        "wait for that MMA before this line, with warpgroup_mma_wait; or load fewer iterations ahead; or allocate more "
        "buffers, and load as many iterations ahead as now"
    )


def _is_loaded_too(kernel: Kernel, race: Race) -> bool:
    """Whether the loop reads the tile that it fills into registers, too."""
    if race.early.name not in _OTHER_LOAD:
        return False
    loads = (op for loop in loops_around(race.early)[:1] for op in own(loop) if op.name == _LOADED)
    views = (kernel.values.maker(load, 0) for load in loads)
    tiles = (kernel.values.maker(view, 0) for view in views if view is not None and view.name == _ONE)
    return any(tile is not None and tile.line == race.allocation for tile in tiles)


RULE = Rule(
    "buffer-race",
    "Buffers and registers that a loop writes or reads too early",
    check,
    targets=("sm_9",),
    of_results=True,
    by_options=True,
)
