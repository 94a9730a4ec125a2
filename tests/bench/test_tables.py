import csv
import io

import numpy as np
import pytest

from kperf.attention.workload import Workload
from kperf.bench.tables import (
    LONG_SEQ_LEN,
    METRICS,
    X_LABEL,
    ratio_table,
    require_times,
    speedup,
    speedup_interval,
    tritonbench_csv,
    tritonbench_table,
)
from kperf.errors import MeasurementError, UsageError
from kperf.record.provenance import when
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


def test_tables_hold_every_number(console):
    console.print(tritonbench_table([RUN], ["latency", "accuracy"]))
    console.print(ratio_table({("seq_len", Workload(batch=16, seq_len=1024)): RUN}, [("improved", "vanilla")]))
    text = console.export_text()
    for part in ("vanilla-latency", "2.00e-03", "oom", "16 x 1024", "1.500", "geometric mean"):
        assert part in text


def test_each_metric_is_its_field():
    made = point("improved", 2.0)
    rows = list(csv.reader(io.StringIO(tritonbench_csv([{"improved": made}], METRICS)), delimiter=";"))
    assert rows[1][1:] == [f"{made.tflops:.6g}", "2", "4", "2.00e-03"]


def test_a_point_that_had_not_settled_is_marked_and_the_mark_explained(console):
    settled, shifts = point("improved", 2.0), point("fa3", samples_ms=[1.0] * 8 + [1.2] * 8)
    console.print(tritonbench_table([{"improved": settled, "fa3": shifts}], ["latency"]))
    text = console.export_text()
    assert "~1.1" in text
    assert "~2" not in text
    assert "~ had not settled: second half of the rounds 3% off the first" in text
    console.print(tritonbench_table([{"improved": settled, "fa3": failed("fa3")}], ["latency"]))
    assert "had not settled" not in console.export_text()


def headers_and_rows(table):
    columns = [list(column.cells) for column in table.columns]
    return [column.header for column in table.columns], [list(cells) for cells in zip(*columns, strict=True)]


def test_a_table_of_points_has_these_cells():
    runs = [{"a": point("a", 2.0, run="r1"), "b": failed("b", run="r1")}, {"b": point("b", 4.0, run="r2")}]
    table = tritonbench_table(runs, ["latency", "accuracy"])
    head, rows = headers_and_rows(table)
    assert head == [X_LABEL, "a-latency", "a-accuracy", "b-latency", "b-accuracy", "run", "recorded (UTC)"]
    day = "2026-01-02 03:04"
    assert rows == [
        ["(16, 16, 1024, 128)", "2", "2.00e-03", "oom", "oom", "r1", day],
        ["(16, 16, 1024, 128)", "-", "-", "4", "2.00e-03", "r2", day],
    ]
    assert table.title is None
    assert tritonbench_table(runs, ["latency"], "of today").title == "of today"


def test_ratios_have_a_mean_of_all_and_one_of_those_that_the_claims_are_about():
    """Of unequal ratios, at the shortest length of the claims and just below it."""
    lengths = {512: 1.25, LONG_SEQ_LEN - 128: 1.5, LONG_SEQ_LEN: 2.0, 2 * LONG_SEQ_LEN: 8.0}
    runs = {}
    for seq_len, ratio in lengths.items():
        workload = Workload(batch=4, seq_len=seq_len)
        run = {"a": point("a", 2.0, workload=workload), "b": point("b", 2.0 * ratio, workload=workload)}
        runs["seq_len", workload] = run | ({"c": failed("c")} if seq_len == 512 else {"c": point("c", 4.0)})
    head, rows = headers_and_rows(ratio_table(runs, [("a", "b"), ("b", "a"), ("a", "c"), ("a", "d")]))
    assert head == ["batch x seq_len", "a/b", "b/a", "a/c", "a/d"]
    assert rows == [
        ["4 x 512", "1.250", "0.800", "-", "-"],
        [f"4 x {LONG_SEQ_LEN - 128}", "1.500", "0.667", "2.000", "-"],
        [f"4 x {LONG_SEQ_LEN}", "2.000", "0.500", "2.000", "-"],
        [f"4 x {2 * LONG_SEQ_LEN}", "8.000", "0.125", "2.000", "-"],
        ["geometric mean, all", "2.340", "0.427", "2.000", "-"],  # (1.25 x 1.5 x 2 x 8) ** 0.25
        [f"seq_len >= {LONG_SEQ_LEN}", "4.000", "0.250", "2.000", "-"],
    ]


def test_points_without_a_time_that_should_have_one_are_counted_and_the_first_is_named():
    fine = [point("a"), failed("b", "oom"), failed("c", "unsupported")]
    require_times(fine)
    bad = [*fine, failed("d", "wrong", message="off by one"), failed("e", "failed", message="no launch")]
    with pytest.raises(
        MeasurementError, match=r"^2 points have no time; the first: d on 16 x 16 x 1024 .*, off by one "
    ):
        require_times(bad)
    with pytest.raises(MeasurementError, match=r"^1 point has no time: e .*, no launch \(FRESH=1 with make, or "):
        require_times(bad[-1:])


def test_a_row_says_of_which_run_it_is_and_when(console):
    later = point("b", run="r2", recorded_at="2026-01-03T04:05:06+00:00")
    console.print(tritonbench_table([{"a": point("a", run="r1"), "b": later}], ["latency"]))
    row = console.export_text().splitlines()[-2]
    assert "r1, r2" in row
    assert "2026-01-02 03:04, 2026-01-03 04:05" in row


def test_days_are_one_or_the_first_and_the_last():
    assert when(["2026-01-02T03:04:05+00:00", "2026-01-02T23:00:00+00:00"]) == "2026-01-02"
    assert when(["2026-01-05T00:00:00", "2026-01-02T00:00:00", "2026-01-03T00:00:00"]) == "2026-01-02 to 2026-01-05"


def test_the_claims_mean_is_of_long_shapes_alone(console):
    """Speedups 3 at 512 and 1.5 at 1024: of all sqrt(4.5), of the long ones 1.5; no ratio at all is a dash."""
    runs = {
        ("seq_len", Workload(batch=16, seq_len=seq_len)): {
            "a": point("a", 1.0, workload=Workload(batch=16, seq_len=seq_len)),
            "b": point("b", ratio, workload=Workload(batch=16, seq_len=seq_len)),
        }
        for seq_len, ratio in ((512, 3.0), (1024, 1.5))
    }
    console.print(ratio_table(runs, [("a", "b"), ("a", "c")]))
    rows = [line.replace("│", " ").split() for line in console.export_text().splitlines()]
    assert ["16", "x", "512", "3.000", "-"] in rows
    assert ["16", "x", "1024", "1.500", "-"] in rows
    assert ["geometric", "mean,", "all", "2.121", "-"] in rows
    assert ["seq_len", ">=", "1024", "1.500", "-"] in rows
