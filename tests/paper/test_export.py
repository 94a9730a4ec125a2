"""`kperf export`: what is recorded, with what follows from it, for programs of others."""

import csv
import io
import json
import statistics

import pytest

from kperf.attention.workload import Workload
from kperf.bench.intervals import median_interval
from kperf.bench.points import Store
from kperf.errors import UsageError
from kperf.paper import export
from kperf.record.store import RECORDED
from tests.command import kperf
from tests.conftest import environment, failed, point

FIELDS = [
    "figure", "run", "sweep", "implementation", "batch", "heads", "seq_len", "head_dim", "causal", "dtype", "flops",
    "status", "message", "rel_error", "samples_ms", "median_ms", "ci95_ms", "tflops", "timer", "round_order",
    "override_sha256", "environment", "recorded_at",
]  # fmt: skip


@pytest.fixture
def results(tmp_path):
    slow = point(samples_ms=[1.0, 2.0, 4.0, 8.0, 8.0, 8.0], workload=Workload(batch=2, seq_len=1024))
    with Store(tmp_path / "b200").writer() as writer:
        writer.append([slow, failed("fa3", workload=slow.workload, message='too "large", by far')])
    with Store(tmp_path / "h200").writer() as writer:
        newer = {"environment": writer.record_environment(environment()), "recorded_at": "2026-01-03T00:00:00+00:00"}
        writer.append([point("fa2", run="r2", **newer)])
    return tmp_path


def exported(results, name="fig12", gpu=None, form="jsonl"):
    out = io.StringIO()
    export.run(out, results, name, gpu, form)
    return out.getvalue()


def test_a_point_has_what_is_measured_and_what_follows_from_it(results):
    ok, oom = (json.loads(line) for line in exported(results, gpu="b200").splitlines())
    assert list(ok)[: len(FIELDS)] == list(oom)[: len(FIELDS)] == FIELDS
    samples = [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    flops = 4 * 2 * 16 * 1024**2 * 128
    assert (ok["samples_ms"], ok["median_ms"], ok["flops"], ok["tflops"]) == (samples, 6.0, flops, flops / 6e9)
    assert tuple(ok["ci95_ms"]) == median_interval(samples)
    assert (ok["half_shift"], ok["shifts"], ok["status"]) == (3.0, True, "ok")
    assert (oom["status"], oom["message"], oom["median_ms"]) == ("oom", 'too "large", by far', None)


def test_csv_has_the_same_in_cells(results):
    head, *_ = rows = list(csv.DictReader(io.StringIO(exported(results, gpu="b200", form="csv"))))
    assert [row["implementation"] for row in rows] == ["improved", "fa3"]
    assert (float(head["median_ms"]), json.loads(head["samples_ms"])[-1], head["causal"]) == (6.0, 8.0, "false")
    assert (rows[1]["message"], rows[1]["median_ms"]) == ('too "large", by far', "")


def test_without_the_name_of_a_gpu_it_is_the_newest_record(results):
    assert [json.loads(line)["run"] for line in exported(results).splitlines()] == ["r2"]


@pytest.mark.parametrize(
    ("name", "gpu", "words"),
    [
        ("fig13", None, "nothing is recorded as 'fig13': there are fig12, fig12_inputs, "),
        ("fig12", "h100", "holds no recorded fig12.jsonl of 'h100': there is b200, h200"),
        ("fig12", "../h200", "holds no recorded fig12.jsonl of '../h200'"),
        ("power", None, "holds no recorded power.jsonl"),
    ],
)
def test_what_is_not_there_is_a_sentence(results, name, gpu, words):
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        exported(results, name, gpu)


@pytest.mark.parametrize("name", [name for name in export.NAMES if any(RECORDED.glob(f"*/{name}.jsonl"))])
def test_every_recorded_kind_is_printed_whole(name):
    rows = [json.loads(line) for line in exported(RECORDED, name).splitlines()]
    assert rows
    table = list(csv.DictReader(io.StringIO(exported(RECORDED, name, form="csv"))))
    assert len(table) == len(rows)
    for row in rows[:: 1 + len(rows) // 20]:
        if row.get("samples_ms"):
            assert row["median_ms"] == statistics.median(row["samples_ms"])
        if row.get("tflops") and row.get("median_ms"):
            assert row["tflops"] == pytest.approx(row["flops"] / row["median_ms"] / 1e9)


def test_every_file_of_records_has_a_name():
    assert {path.stem for path in RECORDED.glob("*/*.jsonl")} <= {*export.NAMES}


def test_the_command_prints_to_a_pipe(results):
    done = kperf("export", "fig12", "--gpu", "b200", "--format", "csv", "--results", results)
    assert done.returncode == 0, done.stderr
    assert done.stdout == exported(results, gpu="b200", form="csv")
    assert kperf("export", "fig13", "--results", results).returncode == 2
