"""The table of goals, from made-up records whose ratios are known."""

import pytest

from kperf.attention.workload import Workload
from kperf.bench.points import PowerStore, Store
from kperf.errors import UsageError
from kperf.paper import fig12, goals
from tests.conftest import environment, point
from tests.paper.test_power import alone

RATIO = {"fa3": 1.2, "cudnn": 1.3, "vanilla": 1.5}


@pytest.fixture
def folder(tmp_path):
    with Store(tmp_path).writer() as writer:
        writer.record_environment(environment())
        for causal in (False, True):
            for n, (sweep, workload) in enumerate(fig12.grid(fig12.Mode(causal))):
                times = RATIO | {goals.OURS: 1.0}
                if workload == Workload(batch=16, seq_len=256, causal=causal):
                    times["fa3"] = 1.01 if causal else 1.02
                unit = workload.flops / 3e11
                writer.append([point(key, unit * t, f"{causal}-{n}", workload, sweep) for key, t in times.items()])
    with PowerStore(tmp_path).writer() as writer:
        for causal in (False, True):
            for seq_len, cublas in ((4096, 1000), (8192, 500), (16384, 400)):
                rates = {goals.OURS: 450, "fa3": 300, "cublas": cublas}
                writer.append([alone(key, rate, 700, f"{seq_len}", seq_len, causal) for key, rate in rates.items()])
    return tmp_path


def test_the_numbers_are_those_of_the_records(folder):
    by = {goal.statement: goal for goal in goals.goals(folder)}
    assert by["FA3 in turn, every point"].found == pytest.approx((1.02, 1.01))
    assert by["FA3 in turn, every point"].where == ("16 x 256", "16 x 256")
    assert by["FA3 in turn, geometric mean"].found == pytest.approx(
        [(1.2**15 * least) ** (1 / 16) for least in (1.02, 1.01)]
    )
    assert by["FA3 alone and sustained, geometric mean of 4096 to 16384"].found == pytest.approx((1.5, 1.5))
    assert by["cuDNN in turn, every point"].found == pytest.approx((1.3, 1.3))
    assert by["vanilla in turn, geometric mean from 1024 on"].found == pytest.approx((1.5, 1.5))
    assert by["cuBLAS 8192^3, both alone, the least of 8192 and 16384"].found == pytest.approx((0.9, 0.9))


def test_what_falls_short_is_said_and_stands_out(folder):
    short = [goal.statement for goal in goals.goals(folder) if not goal.reached]
    assert short == ["FA3 in turn, every point", "cuBLAS 8192^3, both alone, the least of 8192 and 16384"]
    lines = goals.markdown(folder).splitlines()
    assert lines[2] == "| FA3 in turn, every point (1.03; 1.00) | **1.020**, at 16 x 256 | 1.010, at 16 x 256 |"
    assert lines[-1].endswith("| **0.900** | **0.900** |")


def test_without_its_runs_there_is_no_table(folder):
    (folder / "power.jsonl").unlink()
    with pytest.raises(UsageError, match="lacks runs of fig12 or of make power"):
        goals.goals(folder)
