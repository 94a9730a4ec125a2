"""Where numbers come from: the GPU, the cards and the days of the records that they are computed from."""

from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kperf.console import agreeing
from kperf.record.store import Environment, Recorded, RecordStore


@dataclass(frozen=True)
class Provenance:
    """Of some records: the names of their GPUs, the UUIDs of their cards, and their days (ISO 8601, UTC)."""

    gpus: frozenset[str] = frozenset()
    cards: frozenset[str] = frozenset()
    days: frozenset[str] = frozenset()

    @classmethod
    def of(cls, environments: Collection[Environment], recorded_at: Iterable[str]) -> "Provenance":
        """Of what was measured in these environments, at these instants."""
        gpus = frozenset(environment.gpu for environment in environments)
        cards = frozenset(environment.gpu_uuid for environment in environments)
        return cls(gpus, cards, frozenset(instant[:10] for instant in recorded_at))

    @classmethod
    def of_records(cls, store: RecordStore[Any], records: Collection[Recorded]) -> "Provenance":
        """Of records of a store. Raises `UsageError` if the store lacks the environment of one."""
        return cls.of(store.environments_of(records).values(), (record.recorded_at for record in records))

    @classmethod
    def of_timelines(cls, environments: Collection[Environment]) -> "Provenance":
        """Of timelines, each of which holds its own environment."""
        return cls.of(environments, (environment.recorded_at for environment in environments))

    def __or__(self, other: "Provenance") -> "Provenance":
        """Of the records of both."""
        return Provenance(self.gpus | other.gpus, self.cards | other.cards, self.days | other.days)

    def stamp(self, how: str) -> str:
        """`how` ("recorded") on which GPU, and when: recorded on NVIDIA H200, 2026-11-20 to 2026-11-21."""
        return f"{how} on {', '.join(sorted(self.gpus))}, {when(self.days)}"

    def in_words(self, here: Container[str] = ()) -> str:
        """The days and the cards: 2026-11-22, card e3f95cb6. here: UUIDs of this machine's cards; "-" of no record."""
        if not self.days:
            return "-"
        names = sorted(card[:8] for card in self.cards if card not in here)
        places = ["this machine"] if any(card in here for card in self.cards) else []
        if names:
            places.append(f"{agreeing(len(names), 'card', 'cards')} {' and '.join(names)}")
        return ", ".join([when(self.days), *places])


@dataclass(frozen=True)
class Summary:
    """Numbers by name, and the provenance of the records that they are computed from."""

    numbers: Mapping[str, float] = field(default_factory=dict)
    provenance: Provenance = Provenance()


def when(recorded_at: Iterable[str]) -> str:
    """The day of some records, or the first and the last: 2026-11-20 to 2026-11-21."""
    days = sorted({time[:10] for time in recorded_at})
    return " to ".join(dict.fromkeys([days[0], days[-1]]))
