import fcntl
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kperf.attention.workload import Workload
from kperf.bench.intervals import bootstrap_interval
from kperf.bench.points import FailedPoint, MeasuredPoint, Store, newest_whole_runs
from kperf.bench.tables import ratio_table
from kperf.errors import MeasurementError, UsageError
from kperf.record.store import gpu_slug
from tests.conftest import STATE, environment, failed, point


def write(store, *points):
    with store.writer() as writer:
        writer.append(points)


def test_what_is_written_is_read_back(tmp_path):
    store = Store(tmp_path)
    points = [point(), failed("fa3")]
    write(store, *points)
    assert store.points() == points
    lines = store.points_path.read_text().splitlines()
    assert [json.loads(line)["status"] for line in lines] == ["ok", "oom"]


def test_each_line_has_its_own_states_whatever_the_line_before_it_had(tmp_path):
    store = Store(tmp_path)
    last_is_slower = [STATE] * 11 + [STATE.model_copy(update={"sm_mhz": STATE.sm_mhz - 1})]
    points = [point("fa2"), point("fa3"), point("fa2", run="r2", device_states=last_is_slower), point("fa3", run="r3")]
    write(store, *points)
    assert store.points() == points
    record = point("cudnn").model_dump(mode="json")
    for field, value in (("sm_mhz", "fast"), ("throttle", None), ("power_w", None), ("other", 1)):
        record["device_states"][11] = STATE.model_dump() | {field: value}
        store.points_path.write_text(point().model_dump_json() + "\n" + json.dumps(record) + "\n")
        with pytest.raises(UsageError, match=rf"line 2 is not a recorded point: ok\.device_states\.11\.{field}: "):
            store.points()


def test_a_newer_schema_is_refused_though_it_would_be_read(tmp_path):
    store = Store(tmp_path)
    newer = point().model_dump(mode="json") | {"schema_version": point().schema_version + 1}
    store.points_path.write_text(json.dumps(newer) + "\n")
    with pytest.raises(UsageError, match="use a newer one"):
        store.points()


def test_a_point_that_is_not_ok_cannot_have_a_time():
    record = failed().model_dump()
    with pytest.raises(ValidationError):
        FailedPoint(**(record | {"median_ms": 1.0}))
    with pytest.raises(ValidationError):
        MeasuredPoint(**(point().model_dump() | {"status": "wrong"}))
    with pytest.raises(ValidationError):
        point(median_ms=float("nan"))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("not json", "is not JSON"),
        ("[1, 2]", "is no object"),
        ('{"schema_version": 0}', "schema_version is 0"),
        ('{"schema_version": "99"}', 'schema_version is "99"'),
        ('{"schema_version": true}', "schema_version is true"),
        ("{}", "is not a recorded point"),
        ('{"schema_version": 99}', "schema 99"),
        (point().model_dump_json().replace('"seq_len":1024', '"seq_len":1000'), "is not a recorded point"),
        (point().model_dump_json().replace('"median_ms":1.0', '"median_ms":0.0'), "is not a recorded point"),
        ("[" * 100_000, "is not JSON"),
        ("\x00\x01", "is not JSON"),
        (json.dumps(point().model_dump(mode="json") | {"device_states": None}), "ok.device_states: "),
    ],
)
def test_a_broken_line_is_one_sentence_that_names_it(tmp_path, line, words):
    store = Store(tmp_path)
    store.points_path.write_text(point().model_dump_json() + "\n" + line + "\n")
    with pytest.raises(UsageError) as raised:
        store.points()
    assert words in str(raised.value)
    assert "line 2" in str(raised.value)


HALVED = [sample / 2 for sample in point().samples_ms]
SMALL_INTERVAL = (point().ci95_ms[0], 0.99 * point().ci95_ms[1])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("median_ms", 0.5),
        ("samples_ms", HALVED),
        ("samples_ms", [1.0] * 3),
        ("tflops", 300.0),
        ("flops", 1),
        ("ci95_ms", point().ci95_ms[::-1]),
        ("ci95_ms", SMALL_INTERVAL),
        ("half_shift", 0.2),
        ("half_shift", None),
        ("settling", None),
        ("other_processes", None),
        ("rel_error", 0.5),
        ("rel_error", -1e-3),
        ("lse_error", 2e-3),
        ("ceiling_tflops", 2000.0),
        ("recorded_at", "yesterday"),
        ("recorded_at", "2026-01-02T03:04:05"),
        ("inputs", "uniform"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused_by_file_line_and_field(tmp_path, field, value):
    store = Store(tmp_path)
    record = point().model_dump(mode="json") | {field: value}
    store.points_path.write_text(point().model_dump_json() + "\n" + json.dumps(record) + "\n")
    with pytest.raises(UsageError) as raised:
        store.points()
    named = "median_ms" if value is HALVED else field
    assert str(raised.value).startswith(f"{store.points_path}, line 2 is not a recorded point: ")
    assert f"{named}:" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_key_that_holds_a_lines_end_is_still_one_sentence(tmp_path):
    store = Store(tmp_path)
    store.points_path.write_text(json.dumps(point().model_dump(mode="json") | {"a\nb": 1}) + "\n")
    with pytest.raises(UsageError, match=r"a b: Extra inputs are not permitted$"):
        store.points()


def test_a_failed_points_work_is_its_workloads_too(tmp_path):
    store = Store(tmp_path)
    store.points_path.write_text(json.dumps(failed().model_dump() | {"flops": 1}) + "\n")
    with pytest.raises(UsageError, match="flops:"):
        store.points()


def test_version_1_is_read_by_its_own_rule(tmp_path):
    store = Store(tmp_path)
    new = {"schema_version", "inputs", "half_shift", "settling", "other_processes"}
    record = {key: value for key, value in point().model_dump(mode="json").items() if key not in new}
    record |= {"schema_version": 1, "ci95_ms": bootstrap_interval(record["samples_ms"])}
    store.points_path.write_text(json.dumps(record) + "\n")
    (read,) = store.points()
    assert (read.inputs, read.settling) == ("normal", None)
    store.points_path.write_text(json.dumps(record | {"ci95_ms": point().ci95_ms}) + "\n")
    with pytest.raises(UsageError, match="ci95_ms"):
        store.points()
    store.points_path.write_text(json.dumps(record | {"schema_version": 2}) + "\n")
    with pytest.raises(UsageError, match="ci95_ms"):
        store.points()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.one_of(st.binary(max_size=300), st.text(max_size=200).map(str.encode)))
def test_any_bytes_are_points_or_a_sentence(tmp_path, data):
    store = Store(tmp_path)
    store.points_path.write_bytes(data)
    store.environments_path.write_bytes(data)
    for read in (store.points, store.environments):
        try:
            read()
        except UsageError as error:
            assert "\n" not in str(error)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)
@given(cut=st.integers(2, 400))  # without its newline alone a line is whole
def test_a_torn_last_line_is_refused_by_readers_and_repaired_by_the_writer(tmp_path, cut):
    store = Store(tmp_path)
    whole, torn = point(run="r1").model_dump_json() + "\n", point(run="r2").model_dump_json() + "\n"
    store.points_path.write_text(whole + torn[: -min(cut, len(torn) - 1)])
    with pytest.raises(UsageError, match="measuring again repairs it"):
        store.points()
    with store.writer() as writer:
        assert writer.repaired > 0
        assert [p.run for p in writer.points] == ["r1"]
        writer.append([point(run="r3")])
    assert [p.run for p in store.points()] == ["r1", "r3"]


def test_a_last_line_without_its_newline_is_kept(tmp_path):
    store = Store(tmp_path)
    store.points_path.write_text(point(run="r1").model_dump_json())
    assert [p.run for p in store.points()] == ["r1"]
    write(store, point(run="r2"))
    assert [p.run for p in store.points()] == ["r1", "r2"]


def test_a_carriage_return_is_white_space(tmp_path):
    store = Store(tmp_path)
    lines = [point(run=name).model_dump_json().replace(",", ",\r", 1) + "\r\n" for name in ("r1", "r2")]
    store.points_path.write_text("".join(lines), newline="")
    write(store, point(run="r3"))
    assert [p.run for p in store.points()] == ["r1", "r2", "r3"]


def test_what_a_repair_cuts_off_is_kept_beside(tmp_path):
    store = Store(tmp_path)
    store.points_path.write_text('{"torn')
    write(store, point())
    assert store.points_path.with_suffix(".jsonl.torn").read_text() == '{"torn\n'


FIELDS = sorted(point().model_dump())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    field=st.sampled_from(FIELDS),
    value=st.one_of(
        st.none(), st.integers(-5, 5), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3)
    ),
)
def test_a_point_with_any_field_changed_is_refused_or_can_be_used(tmp_path, field, value):
    store = Store(tmp_path)
    store.points_path.write_text(json.dumps(point().model_dump(mode="json") | {field: value}) + "\n")
    try:
        points = store.points()
    except UsageError as error:
        assert "\n" not in str(error)
        return
    runs = newest_whole_runs(points, [points[0].implementation])
    ratio_table(runs, [("improved", "improved")])


def test_a_full_disk_leaves_what_was_recorded(tmp_path):
    store = Store(tmp_path)
    write(store, point())
    before = store.points_path.read_bytes()
    program = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from kperf.errors import MeasurementError\n"
        "from kperf.bench.points import Store\n"
        "from tests.conftest import point\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) + 100}, {resource.RLIM_INFINITY}))\n"
        f"with Store(Path({str(tmp_path)!r})).writer() as writer:\n"
        "    try:\n        writer.append([point(run='r2')])\n"
        "    except MeasurementError as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "what was recorded before is intact" in done.stdout
    assert store.points_path.read_bytes() == before


def test_only_one_process_writes(tmp_path):
    store = Store(tmp_path)
    with store.writer(), pytest.raises(UsageError, match="another process is measuring"), Store(tmp_path).writer():
        pass


@pytest.mark.parametrize("replace", [lambda path: path.with_name("new").rename(path), Path.unlink])
def test_a_file_that_is_replaced_while_it_is_measured_into_loses_nothing(tmp_path, replace):
    """As an editor or git replaces it: the old file is still open here, and would be gone with its new points."""
    store = Store(tmp_path)
    write(store, point())
    (tmp_path / "new").write_bytes(store.points_path.read_bytes())
    with store.writer() as writer:
        writer.append([point(run="r2")])
        replace(store.points_path)
        with pytest.raises(MeasurementError, match=r"was replaced .* are in fig12\.jsonl\.\d+; append them to it"):
            writer.append([point(run="r3")])
    (beside,) = tmp_path.glob("fig12.jsonl.*")
    with store.points_path.open("ab") as stream:
        stream.write(beside.read_bytes())
    assert [point.run for point in store.points()][-2:] == ["r2", "r3"]


def test_a_file_that_is_replaced_before_it_is_locked_is_not_written_to(tmp_path, monkeypatch):
    store = Store(tmp_path)
    write(store, point())
    lock = fcntl.flock

    def replaced_first(descriptor, operation):
        (tmp_path / "new").write_bytes(b"")
        (tmp_path / "new").rename(store.points_path)
        lock(descriptor, operation)

    monkeypatch.setattr("kperf.record.store.fcntl.flock", replaced_first)
    with pytest.raises(UsageError, match="was replaced by results that came home just now; run again"), store.writer():
        pass
    assert store.points_path.read_bytes() == b""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_one_sentence(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="cannot be written"), Store(tmp_path / "h200").writer():
        pass


def test_a_file_in_the_folders_place_is_one_sentence(tmp_path):
    (tmp_path / "h200").write_text("")
    with pytest.raises(UsageError, match="cannot be written"), Store(tmp_path / "h200").writer():
        pass


def test_environments_are_told_apart_by_what_matters(tmp_path):
    store = Store(tmp_path)
    with store.writer() as writer:
        first = writer.record_environment(environment())
        again = writer.record_environment(environment(command_line="other", recorded_at="later"))
        other = writer.record_environment(environment(driver="999"))
    assert first == again != other
    assert set(store.environments()) == {first, other}


def test_an_environment_that_cannot_be_written_is_a_sentence(tmp_path, monkeypatch):
    def refuse(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("kperf.record.files.os.fsync", refuse)
    with Store(tmp_path).writer() as writer, pytest.raises(MeasurementError, match="No space left"):
        writer.record_environment(environment())


WORKLOADS = [Workload(batch=1, seq_len=128), Workload(batch=2, seq_len=128)]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.sampled_from(WORKLOADS)), max_size=30))
def test_a_place_of_the_figure_takes_one_whole_run(entries):
    points = [point(name, run=run, workload=workload) for name, run, workload in entries]
    chosen = newest_whole_runs(points, ["a", "b"])
    for (_, workload), run in chosen.items():
        assert len({p.run for p in run.values()}) == 1
        assert {"a", "b"} <= run.keys()
        assert all(p.workload == workload for p in run.values())
    for workload in WORKLOADS:
        whole = {name for name in "xyz" if {"a", "b"} <= {i for i, run, w in entries if run == name and w == workload}}
        assert (("seq_len", workload) in chosen) == bool(whole)


def test_the_newest_whole_run_wins():
    old, new, torn = point("a", run="old"), point("a", run="new"), point("b", run="newest")
    assert newest_whole_runs([old, new, torn], ["a"])["seq_len", old.workload]["a"].run == "new"


def test_slugs():
    assert gpu_slug("NVIDIA H200") == "h200"
    assert gpu_slug("NVIDIA H100 80GB HBM3") == "h100-80gb-hbm3"


def test_no_rate_above_a_hopper_gpus_peak_is_read():
    """1070 TFLOPS: 132 SMs of 4096 operations a cycle at 1.98 GHz."""
    workload = Workload(batch=16, seq_len=4096)
    within, above = (workload.flops / (rate * 1e9) for rate in (1070.0, 1071.0))
    assert point(workload=workload, samples_ms=[within] * 8).tflops == pytest.approx(1070)
    with pytest.raises(ValidationError, match="less than or equal to 1070"):
        point(workload=workload, samples_ms=[above] * 8)
