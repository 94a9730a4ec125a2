"""What a record costs: the traced kernel with other clocks, buffers, warps and regions, in turn with the plain one."""

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kperf.errors import UsageError
from kperf.record.files import write_atomically
from kperf.trace.compiler.instrument import Detail, instrument
from kperf.trace.launch.capture import Call, allocated, in_session, time_in_turn
from kperf.trace.launch.subject import Subject, Traced, compile_orders, make_traced

Change = Callable[[Subject, Traced], Traced]


@dataclass(frozen=True)
class Cost:
    """One way to record: pairs of records in the text, median of traced over plain time, the order of instructions."""

    choice: str
    pairs: int
    ratio: float
    same_order: bool


def _instrumented(*regions: str, detail: Detail = "fine") -> Change:
    def change(subject: Subject, _: Traced) -> Traced:
        text = instrument(subject.text, detail=detail, regions=regions, rules=subject.rules)
        return make_traced(subject, text, subject.name)[0]

    return change


def _recording(**options: object) -> Change:
    return lambda _, traced: replace(traced, recording=replace(traced.recording, **options))  # type: ignore[arg-type]


def _all_warps(_: Subject, traced: Traced) -> Traced:
    warps = tuple(range(traced.recording.total_warps))
    return replace(traced, recording=replace(traced.recording, warps=warps, bytes_per_warp=4096))


CHOICES: dict[str, Change] = {
    "as recorded": lambda _, traced: traced,
    "detail fine": _instrumented("*"),
    "detail coarse": _instrumented("*", detail="coarse"),
    "matrix products only": _instrumented("*QK*", "*PV*"),
    "barrier waits only": _instrumented("wait *"),
    "producer and lifetimes only": _instrumented("wait * empty", "wait Q full"),
    "clock of 64 bits": _recording(clock_bits=64),
    "device memory": _recording(memory="global"),
    "ring of 2 KB a warp": _recording(bytes_per_warp=2048),
    "every warp of a group": _all_warps,
}


def measure(console: Console, subject: Subject, traced: Traced, bind: Callable[[str], Call], rounds: int) -> list[Cost]:
    """Time all choices that fit in turn with the plain kernel; one that does not is left out, and the console says why.

    `bind`: a call of the kernel with this TTGIR in place, on a Hopper GPU.
    """
    calls: list[Callable[[], object]] = [bind(subject.text)]
    kept: list[tuple[str, Traced, bool]] = []
    with allocated():
        for name, change in CHOICES.items():
            try:
                made = change(subject, traced)
                same = not compile_orders(subject, made).differences
                call = in_session(bind(made.text), made.recording)
                call()
            except UsageError as error:
                console.print(f"{name}: left out: {error}")
                continue
            kept.append((name, made, same))
            calls.append(call)
        base, *times = time_in_turn(calls, rounds)
    return [
        Cost(
            choice=name,
            pairs=made.text.count("proton.record start"),
            ratio=statistics.median(mine / plains for mine, plains in zip(taken, base, strict=True)),
            same_order=same,
        )
        for (name, made, same), taken in zip(kept, times, strict=True)
    ]


def write(costs: list[Cost], path: Path) -> None:
    """Keep them beside the timeline."""
    write_atomically(path, json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")


def table(costs: list[Cost], label: str) -> Table:
    """For the console."""
    result = Table(title=f"what recording costs: {label}", title_justify="left")
    for column in ("choice", "pairs of records", "slower by", "order of instructions"):
        result.add_column(column)
    for cost in costs:
        order = "the plain kernel's" if cost.same_order else "another"
        result.add_row(cost.choice, str(cost.pairs), f"{cost.ratio - 1:+.1%}", order)
    return result
