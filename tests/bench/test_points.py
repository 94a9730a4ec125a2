import fcntl
import json
import os
import re
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kperf.attention.workload import Workload
from kperf.bench.intervals import bootstrap_interval, median_interval
from kperf.bench.points import POINTS, FailedPoint, MeasuredPoint, Store, newest_whole_runs
from kperf.bench.tables import ratio_table
from kperf.errors import MeasurementError, UsageError
from kperf.record.store import DeviceStates, gpu_slug
from tests.conftest import STATE, environment, failed, point


def write(store, *points):
    with store.writer() as writer:
        writer.append(points)


def line_of(*points):
    (line,) = POINTS.lines(points)
    return line


def changed(field, value, of=None):
    """A line of one point with a field of it, wherever it stands, changed or, where there is none, added."""
    record = json.loads(line_of(of or point()))
    places = (record["points"][0], record.get("rounds", {}), record)
    next((place for place in places if field in place), places[0])[field] = value
    return json.dumps(record)


def test_what_is_written_is_read_back_and_what_is_measured_together_stands_in_one_line(tmp_path):
    store = Store(tmp_path)
    points = [
        point(milliseconds=2.0),
        failed("fa3"),
        point("fa2", rel_error=1e-3),
        point("fa2", workload=Workload(batch=16, seq_len=1024, inputs="sink")),
        point("cudnn", run="r2"),
        point("fa2", run="r2", ceiling_tflops=650.0),
        failed("fa3", run="r3"),
    ]
    write(store, *points)
    assert store.points() == points
    lines = [json.loads(line) for line in store.points_path.read_text().splitlines()]
    assert [(line["run"], [one["implementation"] for one in line["points"]]) for line in lines] == [
        ("r1", ["improved", "fa3", "fa2", "fa2"]), ("r2", ["cudnn"]), ("r2", ["fa2"]), ("r3", ["fa3"])
    ]  # fmt: skip
    assert [one["status"] for one in lines[0]["points"]] == ["ok", "oom", "ok", "ok"]
    assert lines[0]["rounds"]["device_states"]["sm_mhz"] == [STATE.sm_mhz] * 12
    assert "rounds" not in lines[3]


def test_what_follows_from_samples_is_computed_and_not_stored(tmp_path):
    store = Store(tmp_path)
    write(store, point(samples_ms=[1.0, 2.0, 4.0, 8.0, 8.0, 8.0], workload=Workload(batch=2, seq_len=1024)))
    (read,) = store.points()
    assert (read.flops, read.median_ms, read.tflops) == (4 * 2 * 16 * 1024**2 * 128, 6.0, read.flops / 6e9)
    assert read.half_shift == 3.0
    assert read.ci95_ms == median_interval([1.0, 2.0, 4.0, 8.0, 8.0, 8.0])
    for name in ("flops", "median_ms", "tflops", "half_shift", "ci95_ms"):
        assert f'"{name}"' not in store.points_path.read_text()


SHORT = Workload(batch=1, seq_len=128)
FLOAT32 = st.floats(min_value=2, max_value=2**20, width=32)


@given(
    samples=st.one_of(
        st.tuples(st.lists(FLOAT32, min_size=4, max_size=9), st.integers(1, 999)).map(
            lambda drawn: ([ms / drawn[1] for ms in drawn[0]], drawn[1])
        ),
        st.tuples(st.lists(st.floats(min_value=1e-2, max_value=1e300), min_size=4, max_size=9), st.integers(1, 999)),
    )
)
def test_samples_are_read_back_as_they_were_measured_to_the_last_bit(tmp_path, samples):
    samples_ms, calls = samples
    store = Store(tmp_path)
    store.points_path.unlink(missing_ok=True)
    written = point(samples_ms=samples_ms, calls_per_sample=calls, workload=SHORT)
    write(store, written)
    assert store.points()[0].samples_ms == samples_ms


def test_samples_of_a_timer_of_single_precision_stand_as_it_gave_them(tmp_path):
    """0.1 ms of 3 calls in single precision is 0.10000000149; a third of it has 17 digits."""
    samples_ms = [0.10000000149011612 / 3] * 4 + [0.20000000298023224 / 3] * 4
    stored = json.loads(line_of(point(samples_ms=samples_ms, calls_per_sample=3, workload=SHORT)))
    (own,) = stored["points"]
    assert (own["elapsed_ms"], "samples_ms" in own) == ([0.1] * 4 + [0.2] * 4, False)
    of_another_timer = [*samples_ms[:7], 0.2 / 3]
    (own,) = json.loads(line_of(point(samples_ms=of_another_timer, calls_per_sample=3, workload=SHORT)))["points"]
    assert (own["samples_ms"], "elapsed_ms" in own) == (of_another_timer, False)


def test_samples_of_schema_3_are_read(tmp_path):
    old = json.loads(line_of(point(samples_ms=[1.0, 2.0, 4.0, 8.0])))
    old["points"][0]["samples_ms"] = old["points"][0].pop("elapsed_ms")
    store = Store(tmp_path)
    store.points_path.write_text(json.dumps(old | {"schema_version": 3}) + "\n")
    assert store.points()[0].samples_ms == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize(
    "elapsed",
    [None, 1.0, "1.0", {}, [], [None] * 4, ["x"] * 4, [[1.0]] * 4, [1.0, 1.0, 1.0, 0.0], [-1.0] * 4, [1e39] * 4],
)
def test_no_other_elapsed_times_are_read(tmp_path, elapsed):
    record = json.loads(line_of(point(samples_ms=[1.0] * 4)))
    record["points"][0]["elapsed_ms"] = elapsed
    store = Store(tmp_path)
    store.points_path.write_text(json.dumps(record) + "\n")
    with pytest.raises(UsageError, match=r"line 1 is not a recorded point: points\.0: .*(elapsed|samples)_ms"):
        store.points()


def test_a_point_has_its_samples_once(tmp_path):
    record = json.loads(line_of(point(samples_ms=[1.0] * 4)))
    record["points"][0]["samples_ms"] = [1.0] * 4
    store = Store(tmp_path)
    store.points_path.write_text(json.dumps(record) + "\n")
    with pytest.raises(UsageError, match=r"points\.0: elapsed_ms: stands beside samples_ms"):
        store.points()


def test_samples_of_unsettled_rounds_are_resampled_one_by_one():
    unsettled = point(settling=None)
    assert unsettled.ci95_ms == bootstrap_interval(unsettled.samples_ms) != point().ci95_ms


def test_states_of_the_gpu_are_columns_of_possible_numbers_for_each_round(tmp_path):
    store = Store(tmp_path)
    last_is_slower = DeviceStates.of([STATE] * 11 + [STATE.model_copy(update={"sm_mhz": STATE.sm_mhz - 1})])
    points = [point("fa2"), point("fa2", run="r2", device_states=last_is_slower)]
    write(store, *points)
    assert store.points() == points
    assert store.points()[1].device_states.sm_mhz == [1500] * 11 + [1499]
    states = json.loads(line_of(point()))["rounds"]["device_states"]
    for field, value in (
        ("sm_mhz", "fast"), ("sm_mhz", 20_000), ("sm_mhz", -1), ("throttle", None), ("power_w", None),
        ("power_w", -1.0), ("power_w", 1e5), ("temperature_c", 3000), ("at_s", -1.0), ("power_at_s", 1e12),
    ):  # fmt: skip
        wrong = states | {field: [*states[field][:11], value]}
        store.points_path.write_text(f"{line_of(point())}\n{changed('device_states', wrong)}\n")
        with pytest.raises(UsageError, match=rf"line 2 is not a recorded point: rounds\.device_states\.{field}\.11: "):
            store.points()
    for wrong in (states | {"power_w": states["power_w"][1:]}, states | {"other": [1] * 12}, [STATE.model_dump()] * 12):
        store.points_path.write_text(changed("device_states", wrong) + "\n")
        with pytest.raises(UsageError, match=r"rounds\.device_states"):
            store.points()


def test_a_newer_schema_is_refused_though_it_would_be_read(tmp_path):
    store = Store(tmp_path)
    store.points_path.write_text(changed("schema_version", 5) + "\n")
    with pytest.raises(UsageError, match="use a newer one"):
        store.points()


def test_a_point_that_is_not_ok_cannot_have_a_time():
    record = failed().model_dump()
    with pytest.raises(ValidationError):
        FailedPoint(**(record | {"median_ms": 1.0}))
    with pytest.raises(ValidationError):
        MeasuredPoint(**(point().model_dump() | {"status": "wrong"}))
    with pytest.raises(ValidationError):
        point(eager_ms=float("nan"))


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
        (line_of(point()).replace('"seq_len":1024', '"seq_len":0'), "is not a recorded point: points.0: "),
        (line_of(point()).replace('"batch":16', '"batch":NaN'), "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("\x00\x01", "is not JSON"),
        (changed("device_states", None), "rounds.device_states: "),
        (changed("rounds", None), "points.0: ok.timer: Field required"),
        (changed("points", []), "points: "),
        (changed("status", "lost"), "points.0: "),
        (line_of(point()).replace('"run":', '"run":"r0","run":'), '"run" stands twice in one object'),
        (line_of(point()).replace('"eager_ms":', '"eager_ms":1.0,"eager_ms":'), '"eager_ms" stands twice'),
        (
            line_of(point()).replace('"eager_ms":', '"run":"r0","eager_ms":'),
            "points.0: run: stands in the line already",
        ),
    ],
)
def test_a_broken_line_is_one_sentence_that_names_it(tmp_path, line, words):
    store = Store(tmp_path)
    store.points_path.write_text(line_of(point()) + "\n" + line + "\n")
    with pytest.raises(UsageError) as raised:
        store.points()
    assert words in str(raised.value)
    assert "line 2" in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("median_ms", 1.0),
        ("samples_ms", [1.0] * 3),
        ("samples_ms", [1e-3] * 12),
        ("samples_ms", [1.0] * 11 + [0.0]),
        ("flops", 1),
        ("rel_error", 0.5),
        ("rel_error", -1e-3),
        ("lse_error", 2e-3),
        ("ceiling_tflops", 2000.0),
        ("recorded_at", "yesterday"),
        ("recorded_at", ""),
        ("recorded_at", "2026-01-02T03:04:05"),
        ("inputs", "uniform"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused_by_file_line_and_field(tmp_path, field, value):
    store = Store(tmp_path)
    store.points_path.write_text(line_of(point()) + "\n" + changed(field, value) + "\n")
    with pytest.raises(UsageError) as raised:
        store.points()
    assert str(raised.value).startswith(f"{store.points_path}, line 2 is not a recorded point: ")
    assert re.search(rf"\b{field}\b", str(raised.value))
    assert "\n" not in str(raised.value)


def test_a_key_that_holds_a_lines_end_is_still_one_sentence(tmp_path):
    store = Store(tmp_path)
    store.points_path.write_text(changed("a\nb", 1) + "\n")
    with pytest.raises(UsageError, match=r"a b: Extra inputs are not permitted$"):
        store.points()


def test_an_interval_needs_four_rounds(tmp_path):
    with pytest.raises(ValidationError, match="an interval needs four rounds or more"):
        point(samples_ms=[1.0] * 3)


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


@settings(max_examples=40)
@given(cut=st.integers(2, 400))  # without its newline alone a line is whole
def test_a_torn_last_line_is_refused_by_readers_and_repaired_by_the_writer(tmp_path, cut):
    store = Store(tmp_path)
    whole, torn = line_of(point(run="r1")) + "\n", line_of(point(run="r2")) + "\n"
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
    store.points_path.write_text(line_of(point(run="r1")))
    assert [p.run for p in store.points()] == ["r1"]
    write(store, point(run="r2"))
    assert [p.run for p in store.points()] == ["r1", "r2"]


def test_a_carriage_return_is_white_space(tmp_path):
    store = Store(tmp_path)
    lines = [line_of(point(run=name)).replace(",", ",\r", 1) + "\r\n" for name in ("r1", "r2")]
    store.points_path.write_text("".join(lines), newline="")
    write(store, point(run="r3"))
    assert [p.run for p in store.points()] == ["r1", "r2", "r3"]


def test_what_a_repair_cuts_off_is_kept_beside(tmp_path):
    store = Store(tmp_path)
    store.points_path.write_text('{"torn')
    write(store, point())
    assert store.points_path.with_suffix(".jsonl.torn").read_text() == '{"torn\n'


FIELDS = sorted(MeasuredPoint.model_fields)


@given(
    field=st.sampled_from(FIELDS),
    value=st.one_of(
        st.none(), st.integers(-5, 5), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=3)
    ),
)
def test_a_point_with_any_field_changed_is_refused_or_can_be_used(tmp_path, field, value):
    store = Store(tmp_path)
    store.points_path.write_text(changed(field, value) + "\n")
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
        again = writer.record_environment(environment(command_line="other", recorded_at="2027-01-02T03:04:05+00:00"))
        other = writer.record_environment(environment(driver="999"))
    assert first == again != other
    assert set(store.environments()) == {first, other}


def test_the_stores_of_a_folder_write_its_environments_one_after_the_other(tmp_path):
    with Store(tmp_path).writer() as writer:
        folder = os.open(tmp_path, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)  # another store's turn
        other = threading.Thread(target=writer.record_environment, args=[environment()])
        other.start()
        other.join(0.3)
        assert other.is_alive()
        assert not writer._store.environments_path.exists()
        os.close(folder)
        other.join(200)
    assert list(Store(tmp_path).environments()) == [environment().id]


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
    with pytest.raises(ValidationError, match="1071 TFLOPS, more than the 1070"):
        point(workload=workload, samples_ms=[above] * 8)
