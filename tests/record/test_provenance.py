"""Of which GPU, cards and days the records behind a number are."""

import pytest

from kperf.bench.points import Store
from kperf.errors import UsageError
from kperf.record.provenance import Provenance
from tests.conftest import environment, point

MINE, THEIRS, OTHERS = "1111aaaa-1", "2222bbbb-2", "3333cccc-3"


def made(*cards, day="2026-11-22"):
    return Provenance.of([environment(gpu_uuid=card) for card in cards], [f"{day}T03:04:05+00:00"])


@pytest.mark.parametrize(
    ("provenance", "words"),
    [
        (Provenance(), "-"),
        (made(MINE), "2026-11-22, this machine"),
        (made(THEIRS), "2026-11-22, card 2222bbbb"),
        (made(OTHERS, THEIRS), "2026-11-22, cards 2222bbbb and 3333cccc"),
        (made(MINE, THEIRS), "2026-11-22, this machine, card 2222bbbb"),
        (made(THEIRS) | made(THEIRS, day="2026-12-01"), "2026-11-22 to 2026-12-01, card 2222bbbb"),
    ],
)
def test_days_and_cards_are_named_and_those_of_this_machine_are_called_so(provenance, words):
    assert provenance.in_words({MINE}) == words


def test_the_stamp_names_every_gpu_and_all_days():
    both = made(MINE) | Provenance.of([environment(gpu="NVIDIA H100")], ["2026-11-20T00:00:00+00:00"])
    assert both.stamp("recorded") == "recorded on NVIDIA H100, NVIDIA H200, 2026-11-20 to 2026-11-22"


def test_records_are_of_the_cards_of_their_own_environments(tmp_path):
    store = Store(tmp_path)
    with store.writer() as writer:
        mine, _ = (writer.record_environment(environment(gpu_uuid=card)) for card in (MINE, THEIRS))
        writer.append([point(environment=mine)])
    (record,) = store.points()
    assert Provenance.of_records(store, [record]) == made(MINE, day="2026-01-02")
    with pytest.raises(UsageError, match=r"environment.json lacks the environment e1 of recorded points: restore it"):
        Provenance.of_records(store, [record, point()])
