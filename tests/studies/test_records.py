"""Which of several runs in a file is shown."""

import pytest

from kperf.studies.records import Row, newest


def run(name, rows):
    return [Row(run=name, environment="e", recorded_at="2026-01-02T03:04:05+00:00") for _ in range(rows)]


@pytest.mark.parametrize(
    ("runs", "shown"),
    [
        ([("first", 3), ("second", 3)], "second"),
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


def test_of_no_run_there_is_no_row():
    assert newest([]) == []
