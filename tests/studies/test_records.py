"""Which of several runs in a file is shown."""

import pytest
from pydantic import TypeAdapter

from kperf.record.store import RecordStore
from kperf.studies.records import Row, newest, recorded
from tests.conftest import kept


def run(name, rows):
    return [Row(run=name, environment="e", recorded_at="2026-01-02T03:04:05+00:00") for _ in range(rows)]


@pytest.mark.parametrize(
    ("runs", "shown"),
    [
        ([("first", 3), ("second", 3)], "second"),
        ([("second", 3), ("first", 3)], "first"),  # by the order of writing, and by no name
        ([("first", 3), ("second", 3), ("third", 3)], "third"),
        ([("first", 3), ("second", 3), ("killed", 2)], "second"),
        ([("killed", 2), ("first", 3), ("killed again", 1), ("third", 3), ("fourth", 1)], "third"),
        ([("only", 1)], "only"),
    ],
)
def test_the_last_whole_run_is_shown(runs, shown):
    rows = [row for name, count in runs for row in run(name, count)]
    found = newest(rows)
    assert {row.run for row in found} == {shown}
    assert len(found) == dict(runs)[shown]


@pytest.mark.parametrize("names", [("first", "second"), ("second", "first")])
def test_the_newest_file_of_records_shows_the_run_that_was_written_last(tmp_path, names):
    rows = [row for name in names for row in run(name, 2)]
    kept(RecordStore(tmp_path, "some", TypeAdapter(Row)), rows)
    assert {row.run for row in recorded(tmp_path, "some", TypeAdapter(Row)).rows} == {names[1]}


def test_of_no_run_there_is_no_row():
    assert newest([]) == []
