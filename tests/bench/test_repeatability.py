import io

import numpy as np
import pytest

from kperf.attention.workload import Workload
from kperf.bench import repeatability
from kperf.bench.points import Store
from kperf.console import WholeConsole
from kperf.errors import UsageError
from tests.conftest import environment, failed, point

WORKLOADS = [Workload(batch=16, seq_len=1024), Workload(batch=16, seq_len=1024, causal=True)]


def a_run(name, workload, faster=1.0, shifts=False, **changes):
    random = np.random.default_rng(sum(map(ord, name)))
    noise = random.lognormal(0, 0.001, 40) * np.repeat([1.0, 1.1 if shifts else 1.0], 20)
    made = {"fa3": 1.0, "improved": 0.9 / faster, "cudnn": 1.1}
    points = [point(key, run=name, workload=workload, samples_ms=(ms * noise).tolist()) for key, ms in made.items()]
    return [p.model_copy(update=changes) for p in points]


def test_a_second_run_is_held_against_the_first():
    first = [p for w in WORKLOADS for p in a_run("old", w, faster=2) + a_run("first", w, shifts=w.causal)]
    second = [*a_run("again", WORKLOADS[0]), *a_run("again", WORKLOADS[1], faster=1.1)]
    found = repeatability.pairs([*first, *second])
    assert [[run["fa3"].run for run in pair] for pair in found.values()] == [["first", "again"]] * 2
    outcome = repeatability.compare(list(found.values()))
    assert (outcome.points, outcome.shifted) == (12, 3)
    assert (len(outcome.ratios), outcome.held) == (4, 3)
    assert (outcome.times, outcome.times_held) == (6, 6)  # one is outside by its ratio alone
    (missed,) = outcome.missed
    assert "causal improved" in missed
    assert outcome.typical_difference == pytest.approx(np.log(1.1) / 2, rel=0.05)
    assert repeatability.pairs(first, second).keys() == found.keys()
    assert repeatability.pairs([], second) == {}


def test_a_run_is_not_held_against_itself(tmp_path):
    first, again = (a_run(name, WORKLOADS[0]) for name in ("first", "again"))
    assert repeatability.pairs(first, first) == {}
    (pair,) = repeatability.pairs(first, [*again, *first]).values()  # the newest of both is in both
    assert [run["fa3"].run for run in pair] == ["first", "again"]
    for folder, points in (("one", [*first, *again]), ("other", again)):
        with Store(tmp_path / folder / "h200").writer() as writer:
            writer.append(points)
    console = WholeConsole(file=io.StringIO())
    for other in ("one", "other"):
        with pytest.raises(UsageError, match=f"every run in .*{other} is in .*one too, and a run repeats itself"):
            repeatability.run(console, tmp_path / "one", tmp_path / other)


@pytest.mark.parametrize("changes", [{"environment": "other"}, {"override_sha256": "other"}])
def test_runs_of_other_machines_or_kernels_do_not_compare(changes):
    points = a_run("first", WORKLOADS[0]) + a_run("again", WORKLOADS[0], **changes)
    assert repeatability.pairs(points) == {}


def test_what_was_autotuned_otherwise_is_another_kernel():
    first, again = (a_run(name, WORKLOADS[0], faster=faster) for name, faster in (("first", 1), ("again", 2)))
    first[1] = first[1].model_copy(update={"message": "tile 64"})
    again[1] = again[1].model_copy(update={"message": "tile 128"})
    outcome = repeatability.compare([({p.implementation: p for p in first}, {p.implementation: p for p in again})])
    assert (len(outcome.ratios), outcome.held, outcome.missed) == (1, 1, [])
    assert (outcome.times, outcome.times_held) == (2, 2)
    assert outcome.retuned == ["16 x 16 x 1024 x 128 bfloat16 full improved: tile 64; then tile 128"]


def test_the_ends_of_an_interval_are_inside(monkeypatch):
    first = a_run("first", WORKLOADS[0])[2]
    low, high = first.ci95_ms

    def held(median_ms, ratio):
        monkeypatch.setattr(repeatability, "speedup_interval", lambda *_: (1.5, 1.25, 1.75))
        monkeypatch.setattr(repeatability, "speedup", lambda *_: ratio)
        second = point("cudnn", run="again", workload=WORKLOADS[0], samples_ms=[median_ms] * 40)
        outcome = repeatability.compare([({"cudnn": first}, {"cudnn": second})])
        return outcome.times_held, outcome.held

    above, below = np.nextafter(high, np.inf), np.nextafter(low, 0)
    assert [held(ms, 1.5)[0] for ms in (below, low, high, above)] == [0, 1, 1, 0]
    assert [held(low, ratio)[1] for ratio in (1.24, 1.25, 1.75, 1.76)] == [0, 1, 1, 0]


def test_a_point_without_a_time_has_no_ratio():
    points = [failed("cudnn", run="first", workload=WORKLOADS[0]), *a_run("first", WORKLOADS[0])[:2]]
    outcome = repeatability.compare(list(repeatability.pairs(points + a_run("again", WORKLOADS[0])).values()))
    assert (outcome.points, len(outcome.ratios), outcome.times) == (5, 1, 2)


def test_the_command_prints_both_numbers(tmp_path, console):
    with Store(tmp_path / "h200").writer() as writer:
        writer.record_environment(environment())
        writer.append(a_run("first", WORKLOADS[0]))
    with pytest.raises(UsageError, match="--fresh"):
        repeatability.run(console, tmp_path, None)
    with Store(tmp_path / "h200").writer() as writer:
        writer.append(a_run("again", WORKLOADS[0], faster=1.1))
    repeatability.run(console, tmp_path, None)
    text = console.export_text()
    assert "0 (0.0%)" in text
    with Store(tmp_path / "h200").writer() as writer:
        writer.append(a_run("unsettled", WORKLOADS[0], shifts=True))
    repeatability.run(console, tmp_path, None)
    assert "3 (50.0%)" in console.export_text()
    assert text.count("2 of 3 (66.7%) │ 1 of 2 (50.0%)") == 1  # no second row for all, where there is one figure
    assert "outside: 16 x 16 x 1024" in text
    with Store(tmp_path / "h200").writer() as writer:
        writer.append(a_run("tuned", WORKLOADS[0], message="tile 64"))
    repeatability.run(console, tmp_path, None)
    assert "autotuned otherwise: 16 x 16 x 1024 x 128 bfloat16 full improved: ; then tile 64" in console.export_text()
