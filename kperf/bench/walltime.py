"""How long sweeps took, and how much less several GPUs take than one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from kperf.attention.workload import SweepName, Workload
from kperf.bench.points import Figure
from kperf.record.store import Frozen, Instant, RecordStore

_Seconds = Annotated[float, Field(ge=0)]


class Share(Frozen):
    """What one GPU did of a sweep: how many groups of places, and how many seconds it was measuring them."""

    environment: str
    tasks: int
    busy_s: _Seconds


class SweepTime(Frozen):
    """One sweep that ended: what it measured with what, and its seconds on the wall.

    places: those that were measured, each once, though one of them on every GPU if there were several; runs: the ids of
    the runs that were recorded. seconds: from the first measurement to the last; start_s: what it took before that
    until all processes could measure (0 where this process measured).
    """

    schema_version: Literal[1] = 1
    figure: Figure
    implementations: list[str]
    rounds: int
    places: list[tuple[SweepName, Workload]]
    runs: list[str]
    seconds: _Seconds
    start_s: _Seconds
    gpus: Annotated[list[Share], Field(min_length=1)]
    recorded_at: Instant

    def same_work(self, other: "SweepTime") -> bool:
        """Whether another one measured the same places with the same implementations and rounds."""
        return (
            (self.figure, self.rounds) == (other.figure, other.rounds)
            and set(self.implementations) == set(other.implementations)
            and set(self.places) == set(other.places)
        )


_TIMES: TypeAdapter[SweepTime] = TypeAdapter(SweepTime)


class SweepStore(RecordStore[SweepTime]):
    """The times of the sweeps into a folder."""

    def __init__(self, folder: Path) -> None:
        """In a folder of results/."""
        super().__init__(folder, "sweeps", _TIMES)


def compared(record: SweepTime, records: Sequence[SweepTime]) -> str:
    """A sentence: what a sweep over several GPUs took, and beside it the newest of the same work on one of them."""
    sweep = f"{len(record.places)} workloads on {len(record.gpus)} GPUs in {record.seconds:.0f} s"
    sweep += f" and {record.start_s:.0f} s to start"
    these = {share.environment for share in record.gpus}
    on_one = [
        earlier
        for earlier in records
        if len(earlier.gpus) == 1 and earlier.gpus[0].environment in these and earlier.same_work(record)
    ]
    if not on_one:
        return f"{sweep}; the same work on one of them is not recorded: GPUS=1 FRESH=1 with make records it"
    alone = on_one[-1]
    ratio = alone.seconds / record.seconds
    return f"{sweep}; on one {alone.seconds:.0f} s: {ratio:.2f} times as fast ({alone.recorded_at[:10]})"
