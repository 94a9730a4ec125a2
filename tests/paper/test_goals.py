"""The table of goals, from made-up records whose ratios are known."""

import functools
import shutil

import pytest

from kperf.attention import overrides
from kperf.attention.variants import VARIANTS
from kperf.attention.workload import Workload
from kperf.bench.points import PowerStore, Store
from kperf.paper import fig12, fig12_inputs, goals
from tests.command import kperf
from tests.conftest import environment, point
from tests.paper.test_power import alone

RATIO = {"fa3": 1.2, "cudnn": 1.3, "vanilla": 1.5, goals.OURS: 1.0}
ON_KINDS = {"fa3": 1.25, "improved": 1.5, goals.OURS: 1.0}


@functools.cache
def committed(key, workload):
    """The sha256 of a variant's override; None of anything else."""
    return overrides.find(key, overrides.specialization_of(workload)).sha256 if key in VARIANTS else None


def points(times, run, workload, sweep, **more):
    unit = workload.flops / 3e11
    return [
        point(key, unit * t, run, workload, sweep, override_sha256=committed(key, workload), **more)
        for key, t in times.items()
    ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    with Store(folder).writer() as writer:
        writer.record_environment(environment())
        for causal in (False, True):
            for head_dim in (64, 128):
                for n, (sweep, workload) in enumerate(fig12.grid(fig12.Mode(causal, head_dim=head_dim))):
                    times = dict(RATIO) if head_dim == 128 else {"fa3": 1.23, goals.OURS: 1.0}
                    if (workload.batch, workload.seq_len, head_dim) == (16, 256, 128):
                        times["fa3"] = 1.04 if causal else 1.06
                    writer.append(points(times, f"{causal}-{head_dim}-{n}", workload, sweep))
    with Store(folder, "fig12_inputs").writer() as writer:
        known = writer.record_environment(environment())
        for n, group in enumerate(fig12_inputs.groups()):
            for sweep, workload in group:
                writer.append(points(ON_KINDS, f"{n}", workload, sweep, figure="fig12_inputs", environment=known))
    with PowerStore(folder).writer() as writer:
        for causal in (False, True):
            for seq_len, cublas in ((4096, 1000), (8192, 500), (16384, 400)):
                rates = {goals.OURS: 450, "fa3": 300, "cublas": cublas}
                writer.append([alone(key, rate, 700, f"{seq_len}", seq_len, causal) for key, rate in rates.items()])
    return folder


@pytest.fixture
def folder(recorded, tmp_path):
    return shutil.copytree(recorded, tmp_path, dirs_exist_ok=True)


def values(goal):
    return tuple(found.value for found in goal.found)


def test_the_numbers_are_those_of_the_records(folder):
    by = {goal.statement: goal for goal in goals.goals(folder)}
    assert values(by["FA3 interleaved, every point"]) == pytest.approx((1.06, 1.04))
    assert [found.where for found in by["FA3 interleaved, every point"].found] == ["16 x 256", "16 x 256"]
    assert values(by["FA3 interleaved, geometric mean"]) == pytest.approx(
        [(1.2**15 * least) ** (1 / 16) for least in (1.06, 1.04)]
    )
    assert values(by["FA3 on every kind of inputs, every point"]) == pytest.approx((1.25, 1.25))
    assert values(by["FA3 on kinds whose scores rise little, the least geometric mean"]) == pytest.approx((1.25, 1.25))
    assert values(by["FA3 with head_dim 64, every point"]) == pytest.approx((1.23, 1.23))
    assert values(by["FA3 alone and sustained, geometric mean of 4096 to 16384"]) == pytest.approx((1.5, 1.5))
    assert values(by["cuDNN interleaved, every point"]) == pytest.approx((1.3, 1.3))
    assert values(by["vanilla interleaved, geometric mean from 1024 on"]) == pytest.approx((1.5, 1.5))
    assert values(by["cuBLAS 8192^3, both alone, the least of 8192 and 16384"]) == pytest.approx((0.9, 0.9))


def test_what_falls_short_is_said_and_stands_out(folder):
    short = [goal.statement for goal in goals.goals(folder) if not goal.reached]
    assert short == [
        "FA3 interleaved, every point",
        "FA3 with head_dim 64, geometric mean",
        "cuBLAS 8192^3, both alone, the least of 8192 and 16384",
    ]
    lines = goals.markdown(folder).splitlines()
    assert lines[2] == "| FA3 interleaved, every point (1.05; 1.05) | 1.060, at 16 x 256 | **1.040**, at 16 x 256 |"


def test_numbers_of_another_override_say_so(folder):
    lines = goals.markdown(folder).splitlines()
    assert lines[-1].endswith("| **0.900**, of another override | **0.900**, of another override |")  # of none at all
    workload = Workload(batch=16, seq_len=256)
    times = {**RATIO, "fa3": 1.07}
    changed = [p.model_copy(update={"override_sha256": "0" * 64}) for p in points(times, "new", workload, "seq_len")]
    with Store(folder).writer() as writer:
        writer.append(changed)
    assert "1.070, at 16 x 256, of another override | **1.040**, at 16 x 256 |" in goals.markdown(folder)


def test_kinds_of_inputs_that_are_not_all_recorded_give_no_number(folder):
    lines = (folder / "fig12_inputs.jsonl").read_text().splitlines(keepends=True)
    (folder / "fig12_inputs.jsonl").write_text("".join(lines[:-1]))
    row = "| FA3 on every kind of inputs, every point (1; 1) | not recorded whole | not recorded whole |"
    assert row in goals.markdown(folder).splitlines()
    assert row.partition(" (")[0][2:] in [goal.statement for goal in goals.goals(folder) if not goal.reached]


def cells(folder, *statements):
    lines = {line.split(" (")[0][2:]: line for line in goals.markdown(folder).splitlines()[2:]}
    return {tuple(cell.strip() for cell in lines[statement].split("|")[2:4]) for statement in statements}


SUSTAINED = (
    "FA3 alone and sustained, geometric mean of 4096 to 16384",
    "cuBLAS 8192^3, both alone, the least of 8192 and 16384",
)
INTERLEAVED = ("FA3 interleaved, every point", "cuDNN interleaved, every point", "FA3 with head_dim 64, geometric mean")


def test_what_is_not_recorded_leaves_the_other_rows(folder):
    (folder / "power.jsonl").unlink()
    assert cells(folder, *SUSTAINED) == {("not recorded",) * 2}
    assert cells(folder, "FA3 interleaved, every point") == {("1.060, at 16 x 256", "**1.040**, at 16 x 256")}
    (folder / "fig12.jsonl").unlink()
    assert cells(folder, *INTERLEAVED) == {("not recorded",) * 2}
    assert cells(folder, "FA3 on every kind of inputs, every point") == {("1.250", "1.250")}


def test_what_is_recorded_in_part_says_so(folder):
    for name, last in (("power.jsonl", 3), ("fig12.jsonl", 1)):  # of a causal workload
        lines = (folder / name).read_text().splitlines(keepends=True)
        (folder / name).write_text("".join(lines[:-last]))
    assert {after for _, after in cells(folder, *SUSTAINED, *INTERLEAVED[:2])} == {"not recorded whole"}
    assert cells(folder, SUSTAINED[0]) == {("1.500, of another override", "not recorded whole")}


def test_the_table_of_a_gpu_without_sustained_runs_is_printed(folder, tmp_path):
    results = tmp_path / "of all"
    (results / "h100").mkdir(parents=True)
    for name in ("fig12.jsonl", "environment.json"):
        shutil.copy(folder / name, results / "h100" / name)
    done = kperf("goals", "--results", results)
    assert done.returncode == 0
    assert f"| {SUSTAINED[0]} (1.05; 1.05) | not recorded | not recorded |" in done.stdout
