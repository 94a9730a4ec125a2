import csv
import io

import numpy as np
import pytest
from rich.console import Console

from kperf.attention.workload import Workload
from kperf.bench.tables import (
    ratio_table,
    speedup,
    speedup_interval,
    tritonbench_csv,
    tritonbench_table,
)
from kperf.errors import UsageError
from tests.conftest import failed, point

RUN = {"improved": point("improved", 2.0), "vanilla": point("vanilla", 3.0), "fa3": failed("fa3")}


def test_csv_is_tritonbenchs():
    rows = list(csv.reader(io.StringIO(tritonbench_csv([RUN], ["tflops", "latency"])), delimiter=";"))
    assert rows[0] == ["(Batch, Heads, SeqLen, Dhead)"] + [
        f"{key}-{name}" for key in RUN for name in ("tflops", "latency")
    ]
    assert rows[1][0] == "(16, 16, 1024, 128)"
    assert float(rows[1][1]) == pytest.approx(Workload(batch=16, seq_len=1024).flops / 2e9, rel=1e-5)
    assert rows[1][-2:] == ["oom", "oom"]


def test_columns_are_the_implementations_whatever_the_order_of_a_run():
    other = {key: RUN[key] for key in reversed(RUN)} | {"fa2": point("fa2", 5.0)}
    rows = list(csv.DictReader(io.StringIO(tritonbench_csv([RUN, other], ["latency"])), delimiter=";"))
    assert [row["improved-latency"] for row in rows] == ["2", "2"]
    assert [row["vanilla-latency"] for row in rows] == ["3", "3"]
    assert [row["fa2-latency"] for row in rows] == ["-", "5"]


def test_samples_of_other_rounds_are_refused():
    torn = {"a": RUN["improved"], "b": point("b", samples_ms=[1.0] * 4)}
    with pytest.raises(UsageError, match="not the same rounds"):
        speedup_interval([torn], "a", "b")


def test_a_point_without_a_time_has_no_ratio():
    assert speedup(RUN, "improved", "vanilla") == 1.5
    assert speedup(RUN, "improved", "fa3") is None
    assert speedup(RUN, "improved", "cudnn") is None
    assert speedup_interval([RUN], "improved", "fa3") is None


def test_the_interval_holds_the_true_ratio_though_both_drift():
    random = np.random.default_rng(5)
    runs = []
    for _ in range(4):
        drift = random.lognormal(0, 0.2, 30)
        theirs, ours = (1.2 * drift * random.lognormal(0, 0.01, 30)).tolist(), drift.tolist()
        runs.append(
            {
                "a": point("a", samples_ms=ours),
                "b": point("b", samples_ms=theirs),
            }
        )
    value, low, high = speedup_interval(runs, "a", "b")
    assert low <= value <= high
    assert low < 1.2 < high
    assert high - low < 0.15


def test_tables_hold_every_number():
    console = Console(width=200, file=io.StringIO(), record=True)
    console.print(tritonbench_table([RUN], ["latency", "accuracy"]))
    console.print(ratio_table({("seq_len", Workload(batch=16, seq_len=1024)): RUN}, [("improved", "vanilla")]))
    text = console.export_text()
    for part in ("vanilla-latency", "2.00e-03", "oom", "16 x 1024", "1.500", "geometric mean"):
        assert part in text
