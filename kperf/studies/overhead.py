"""What a record costs: other clocks, buffers, warps and regions, in turn with the original kernel."""

import json
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from kperf.errors import UsageError, first_line
from kperf.record.files import write_atomically
from kperf.trace.capture.buffers import Call, allocated, in_session, time_in_turn
from kperf.trace.capture.traced import Traced, TracedKernel, compile_orders, make_traced
from kperf.trace.instrument.events import Detail, instrument

Change = Callable[[TracedKernel, Traced], Traced]


@dataclass(frozen=True)
class Cost:
    """One way to trace: pairs of events, median of instrumented over original time, order of instructions."""

    choice: str
    pairs: int
    ratio: float
    same_order: bool


_COSTS: TypeAdapter[list[Cost]] = TypeAdapter(list[Cost])


def _instrumented(*regions: str, detail: Detail = "fine") -> Change:
    def change(subject: TracedKernel, _: Traced) -> Traced:
        text = instrument(subject.text, detail=detail, regions=regions, rules=subject.rules)
        return make_traced(subject, text, subject.name)[0]

    return change


def _recording(**options: object) -> Change:
    return lambda _, traced: replace(traced, recording=replace(traced.recording, **options))  # type: ignore[arg-type]


def _all_warps(_: TracedKernel, traced: Traced) -> Traced:
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


@dataclass(frozen=True)
class Taken:
    """A choice as it was run: whether the order of instructions is the original kernel's, and milliseconds by round."""

    choice: str
    traced: Traced
    same_order: bool
    original_ms: list[float]
    instrumented_ms: list[float]

    @property
    def pairs(self) -> int:
        """Pairs of records in the text."""
        return self.traced.text.count("proton.record start")

    @property
    def ratio(self) -> float:
        """Median of instrumented over original time of a round."""
        return statistics.median(
            ms / original for ms, original in zip(self.instrumented_ms, self.original_ms, strict=True)
        )


def take(
    console: Console, subject: TracedKernel, traced: Traced, bind: Callable[[str], Call], rounds: int
) -> list[Taken]:
    """Time all choices that fit in turn with the original kernel; one that does not is left out, and the console says
    why.

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
    return [Taken(name, made, same, base, ms) for (name, made, same), ms in zip(kept, times, strict=True)]


def measure(
    console: Console, subject: TracedKernel, traced: Traced, bind: Callable[[str], Call], rounds: int
) -> list[Cost]:
    """As `take`, what it comes to."""
    return [
        Cost(choice=cost.choice, pairs=cost.pairs, ratio=cost.ratio, same_order=cost.same_order)
        for cost in take(console, subject, traced, bind, rounds)
    ]


def write(costs: list[Cost], path: Path) -> None:
    """Keep them beside the timeline."""
    write_atomically(path, json.dumps([asdict(cost) for cost in costs], indent=1) + "\n")


def read(path: Path) -> list[Cost]:
    """What `write` kept; nothing if there is no file. Raises `UsageError` if it is not such a list."""
    try:
        return _COSTS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return []
    except (OSError, ValidationError) as error:
        raise UsageError(f"{path} is no list of costs ({first_line(error)}); record it again") from None


WORDS = {
    "matrix products only": "MMAs only",
    "ring of 2 KB a warp": "buffer of 2 KB a warp",
    "as recorded": "as traced",
}
"""Names of choices in records -> what they are called."""


def table(costs: list[Cost], label: str) -> Table:
    """For the console."""
    headers = ("choice", "pairs of events", "slower by", "order of instructions")
    result = Table(*headers, title=f"what tracing costs: {label}", title_justify="left")
    for cost in costs:
        order = "the original kernel's" if cost.same_order else "another"
        result.add_row(WORDS.get(cost.choice, cost.choice), str(cost.pairs), f"{cost.ratio - 1:+.1%}", order)
    return result
