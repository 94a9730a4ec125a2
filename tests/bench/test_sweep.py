"""Killed at any moment, started again: no point lost, none twice."""

import contextlib
import multiprocessing
import os
import random
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from kperf.attention.implementations import Implementation
from kperf.attention.workload import Workload
from kperf.bench import sweep as sweeps
from kperf.bench.points import Store, newest_whole_runs
from kperf.bench.sweep import Progress, run_sweep
from kperf.bench.walltime import SweepStore
from kperf.errors import MeasurementError
from tests.conftest import environment, failed, point

PLACES = [("seq_len", Workload(batch=1, seq_len=128 * n)) for n in range(1, 7)]
GROUPS = [[place] for place in PLACES]
IMPLEMENTATIONS = [Implementation(key, key, bind=lambda *_: None) for key in ("fa3", "triton")]
DELAY_S = 0.05


def fake_measure(workloads, implementations, *, sweep, environment, **_):
    run = os.urandom(4).hex()
    return [
        point(item.key, run=run, workload=workload, sweep=sweep, environment=environment, milliseconds=1 + n)
        for workload in workloads
        for n, item in enumerate(implementations)
    ]


@pytest.fixture
def faked(monkeypatch):
    fake(monkeypatch.setattr)


def fake(setattr_):
    setattr_(sweeps, "measure", fake_measure)
    setattr_(sweeps.device, "environment", environment)
    setattr_(sweeps.device, "exclusive", contextlib.nullcontext)


def measure_into(folder, **options):
    run_sweep(GROUPS, IMPLEMENTATIONS, Store(folder), figure="fig12", rounds=10, **{"progress": Progress()} | options)


def measure_slowly(*arguments, **options):
    time.sleep(DELAY_S)
    return fake_measure(*arguments, **options)


def measure_faked_into(folder):
    fake(setattr)
    sweeps.measure = measure_slowly
    measure_into(folder)


def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path):
    chance = random.Random(1)
    kills = 0
    for _ in range(40):
        # A fork has imported everything, and dies without a word to this process.
        process = multiprocessing.get_context("fork").Process(target=measure_faked_into, args=(tmp_path,))
        process.start()
        while process.is_alive() and not (tmp_path / "fig12.jsonl").exists():
            time.sleep(0.01)
        before = (tmp_path / "fig12.jsonl").stat().st_size
        while process.is_alive() and (tmp_path / "fig12.jsonl").stat().st_size == before:
            time.sleep(0.005)
        time.sleep(chance.random() * 2 * DELAY_S)
        process.kill()
        process.join()
        if process.exitcode == 0:
            break
        kills += 1
    assert kills >= 2
    points = Store(tmp_path).points()
    assert len(points) == len(PLACES) * len(IMPLEMENTATIONS)
    assert len(newest_whole_runs(points, ["fa3", "triton"])) == len(PLACES)


def test_what_is_recorded_is_not_measured_again_unless_asked(tmp_path, faked):
    said = []
    measure_into(tmp_path)
    measure_into(tmp_path, progress=Progress(say=said.append))
    assert len(Store(tmp_path).points()) == 12
    assert "6 of 6 workloads are recorded in this environment already: FRESH=1 with make, or --fresh with" in said[0]
    measure_into(tmp_path, fresh=True)
    assert len(Store(tmp_path).points()) == 24


def test_a_group_of_inputs_is_measured_together_and_again_if_one_of_it_is_missing(tmp_path, faked, monkeypatch):
    kinds = [
        [("seq_len", Workload(batch=1, seq_len=seq_len, inputs=kind)) for kind in ("normal", "x4")]
        for seq_len in (128, 256)
    ]
    asked = []
    monkeypatch.setattr(
        sweeps,
        "measure",
        lambda workloads, *rest, **options: asked.append(workloads) or fake_measure(workloads, *rest, **options),
    )

    def sweep(groups):
        run_sweep(groups, IMPLEMENTATIONS, Store(tmp_path), figure="fig12", rounds=10, progress=Progress())

    sweep([kinds[0][:1]])
    sweep(kinds)
    sweep(kinds)
    assert [[workload.inputs for workload in workloads] for workloads in asked] == [["normal"], *[["normal", "x4"]] * 2]
    of_a_group = Store(tmp_path).points()[2:6]
    assert len({point.run for point in of_a_group}) == 1


def test_another_environment_measures_anew(tmp_path, faked, monkeypatch):
    measure_into(tmp_path)
    monkeypatch.setattr(sweeps.device, "environment", lambda: environment(git_commit="other"))
    measure_into(tmp_path)
    assert len(Store(tmp_path).points()) == 24
    assert len(Store(tmp_path).environments()) == 2


def test_an_edited_override_measures_anew(tmp_path, faked):
    class Found:
        sha256 = "new"

    measure_into(tmp_path)
    with_override = [Implementation("fa3", "fa3", bind=lambda *_: None, override=lambda _: Found()), IMPLEMENTATIONS[1]]
    run_sweep(GROUPS, with_override, Store(tmp_path), figure="fig12", rounds=10, progress=Progress())
    assert len(Store(tmp_path).points()) == 24


def test_a_failed_point_does_not_stop_the_sweep(tmp_path, faked, monkeypatch):
    def sometimes_out_of_memory(workloads, implementations, *, sweep, environment, **_):
        (workload,) = workloads
        return [failed("fa3", workload=workload, sweep=sweep), point("triton", workload=workload, sweep=sweep)]

    monkeypatch.setattr(sweeps, "measure", sometimes_out_of_memory)
    measure_into(tmp_path)
    assert [p.status for p in Store(tmp_path).points()] == ["oom", "ok"] * len(PLACES)


@pytest.mark.parametrize(
    ("status", "again"), [("failed", True), ("oom", False), ("wrong", False), ("unsupported", False)]
)
def test_what_failed_is_tried_again_and_what_cannot_be_is_not(tmp_path, faked, monkeypatch, status, again):
    def one_without_a_time(workloads, implementations, *, sweep, environment, **_):
        (workload,) = workloads
        points = [
            failed("fa3", status, workload=workload, sweep=sweep),
            point("triton", workload=workload, sweep=sweep),
        ]
        return [p.model_copy(update={"environment": environment}) for p in points]

    monkeypatch.setattr(sweeps, "measure", one_without_a_time)
    measure_into(tmp_path)
    measure_into(tmp_path)
    assert len(Store(tmp_path).points()) == 2 * len(PLACES) * (2 if again else 1)


def test_a_lost_gpu_keeps_what_was_recorded(tmp_path, faked, monkeypatch):
    def lose_the_gpu(workloads, *arguments, **options):
        if workloads[0].seq_len == 512:
            raise MeasurementError("the GPU is lost")
        return fake_measure(workloads, *arguments, **options)

    monkeypatch.setattr(sweeps, "measure", lose_the_gpu)
    with pytest.raises(MeasurementError):
        measure_into(tmp_path)
    assert len(Store(tmp_path).points()) == 6
    monkeypatch.setattr(sweeps, "measure", fake_measure)
    measure_into(tmp_path)
    assert len(Store(tmp_path).points()) == 12


def test_progress_is_told(tmp_path, faked):
    told = []
    progress = Progress(
        begin=lambda done, total: told.append((done, total)),
        advance=told.append,
        points=lambda points, _gpu: told.append(len(points)),
    )
    measure_into(tmp_path, progress=progress)
    (done, total), *rest = told
    assert done == 0
    assert total == sum(cost for cost in rest if cost > 2)
    assert rest.count(2) == len(PLACES)


def test_an_override_that_a_workload_cannot_have_does_not_measure_it_again(tmp_path, faked):
    """What is unsupported has no override to compare; what follows in the list still has."""

    def refuses(workload):
        raise AssertionError("was asked for an override of what it cannot run")

    class Found:
        sha256 = "new"

    unsupported = Implementation(
        "fa3", "fa3", bind=lambda *_: None, override=refuses, unsupported=lambda _: "not for this shape"
    )
    measure_into(tmp_path)
    store = Store(tmp_path)
    for other, points in ((IMPLEMENTATIONS[1], 12), (replace(IMPLEMENTATIONS[1], override=lambda _: Found()), 24)):
        run_sweep(GROUPS, [unsupported, other], store, figure="fig12", rounds=10, progress=Progress())
        assert len(Store(tmp_path).points()) == points


def test_the_bar_begins_where_the_last_sweep_ended(tmp_path, faked):
    """In floating-point operations and a share for what every workload costs: longer ones take longer."""
    told = []
    progress = Progress(begin=lambda done, total: told.append((done, total)))
    run_sweep(GROUPS[:2], IMPLEMENTATIONS, Store(tmp_path), figure="fig12", rounds=10, progress=progress)
    run_sweep(GROUPS, IMPLEMENTATIONS, Store(tmp_path), figure="fig12", rounds=10, progress=progress)
    costs = [workload.flops + 10**15 for _, workload in PLACES]
    assert told == [(0, sum(costs[:2])), (sum(costs[:2]), sum(costs))]


def test_each_step_is_of_its_place(tmp_path, faked, monkeypatch):
    def measure_in_steps(workloads, implementations, *, on_step, **options):
        on_step("settling")
        return fake_measure(workloads, implementations, **options)

    monkeypatch.setattr(sweeps, "measure", measure_in_steps)
    steps = []
    measure_into(tmp_path, progress=Progress(step=lambda key, what, _gpu: steps.append((key, what))))
    assert steps == [(place, "settling") for place in PLACES]


def test_a_line_that_was_torn_is_said(tmp_path, faked):
    measure_into(tmp_path)
    path = tmp_path / "fig12.jsonl"
    path.write_bytes(path.read_bytes()[:-7])
    said = []
    measure_into(tmp_path, progress=Progress(say=said.append))
    assert "repaired" in said[0]
    assert len(Store(tmp_path).points()) == 12  # the workload whose line was torn is measured again, whole


def test_the_gpu_is_busy_no_longer_than_the_sweep_takes(tmp_path, faked, monkeypatch):
    monkeypatch.setattr(sweeps, "measure", measure_slowly)
    begin = time.monotonic()
    measure_into(tmp_path)
    (record,) = SweepStore(tmp_path).points()
    (share,) = record.gpus
    assert len(PLACES) * DELAY_S <= share.busy_s <= record.seconds <= time.monotonic() - begin


def test_each_gpu_has_its_own_share_of_the_tasks_and_of_the_time(tmp_path):
    cards = [environment(gpu_uuid=uuid) for uuid in ("first", "second", "idle")]
    taken = [(0, 3.0), (1, 5.0), (0, 0.5), (1, 7.0), (1, 11.0)]
    measured = [
        sweeps.Measured(sweeps.Task((place,)), [point(run=f"r{number}", workload=place[1])], cards[card], seconds)
        for number, (place, (card, seconds)) in enumerate(zip(PLACES, taken, strict=False))
    ]
    told = []
    bench = SimpleNamespace(environments=cards, start_s=2.5)
    asked = sweeps.Asked(IMPLEMENTATIONS, "fig12", 10)
    sweeps._keep_time(Store(tmp_path), asked, measured, 24.0, bench, replace(Progress(), say=told.append))
    (record,) = SweepStore(tmp_path).points()
    assert [(share.environment, share.tasks, share.busy_s) for share in record.gpus] == [
        (cards[0].id, 2, 3.5),
        (cards[1].id, 3, 23.0),
        (cards[2].id, 0, 0.0),
    ]
    assert (record.seconds, record.start_s, record.runs) == (24.0, 2.5, ["r0", "r1", "r2", "r3", "r4"])
    assert record.places == PLACES[:5]
    assert len(told) == 1
