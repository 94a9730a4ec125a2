import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kperf.bench import turns
from kperf.errors import MeasurementError, UsageError
from kperf.ir.compile import compile_kernel, sass
from kperf.plots import timers as plot
from kperf.record.store import RecordStore
from kperf.studies import hatchet, kernels, ncu, operations, timers
from kperf.studies.operations import OPERATIONS, N
from kperf.studies.timers import REFERENCE, TIMERS, TimerRow
from tests.bench.fake_gpu import COLD_MS, HOST_MS, Gpu
from tests.conftest import COMMON, kept


def row(operation="triton", timer=REFERENCE, samples=(100.0,), n=N, message=""):
    return TimerRow(
        **COMMON, operation=operation, timer=timer, n=n, flops=n, bytes=8 * n, samples_us=list(samples), message=message
    )


def test_each_timer_counts_what_the_table_says(monkeypatch):
    gpu = Gpu()
    for module in (turns, timers):
        gpu.stand_in(monkeypatch, module)
    monkeypatch.setattr(timers.triton.testing, "do_bench", lambda call, **_: 0.7)
    monkeypatch.setattr(timers, "_WARM_S", 0.01)
    samples = timers._in_turn({"triton": gpu.kernel("square", 0.5)})
    middle = {timer: sorted(found["triton"])[len(found["triton"]) // 2] for timer, found in samples.items()}
    assert middle["graph"] == pytest.approx(500)
    assert middle[REFERENCE] == pytest.approx(1e3 * (0.5 + COLD_MS))
    assert middle["host"] == pytest.approx(1e3 * (0.5 + HOST_MS))
    assert middle["event"] == pytest.approx(1e3 * (0.5 + HOST_MS))
    assert middle["do_bench"] == pytest.approx(700)
    assert len(samples["event"]["triton"]) == 4 * timers.ROUNDS


def test_a_row_has_samples_or_a_reason():
    for samples, message in (((), ""), ((1.0,), "why")):
        with pytest.raises(ValidationError, match="samples or a message"):
            row(samples=samples, message=message)
    with pytest.raises(ValidationError):
        row(samples=[0.0])


def test_the_kernel_and_the_cuda_compile_for_hopper(tmp_path):
    signature = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32", "BLOCK": "constexpr"}
    assert "FMUL" in sass(compile_kernel(kernels.square_kernel, signature, {"BLOCK": operations.SQUARE_BLOCK}))
    if shutil.which("nvcc") is None:
        pytest.skip("there is no nvcc")
    source = tmp_path / "square.cu"
    source.write_text(operations._CUDA)
    subprocess.run(["nvcc", "-arch=sm_90a", "-cubin", "-o", tmp_path / "square.cubin", source], check=True, timeout=120)


def test_what_is_missing_here_says_why():
    for key in ("cuda", "numba"):
        reason = OPERATIONS[key].missing()
        assert reason is None or "install" in reason


def test_kernels_are_dealt_out_to_launches():
    found = [("a", 1.0), ("b", 2.0), ("a", 3.0), ("b", 4.0)]
    assert operations._times(found, 2) == [3.0, 7.0]
    for launches in (3, 8):
        with pytest.raises(MeasurementError, match="4 kernels were seen"):
            operations._times(found, launches)


NCU = """#!/bin/sh
echo "==PROF== Connected"
echo "warming up"
echo '"ID","Process ID","Kernel Name","gpu__time_duration.sum"'
echo '"","","","ns"'
i=0
while [ $i -lt {rows} ]; do echo "\\"$i\\",\\"1\\",\\"square\\",\\"{time}\\""; i=$((i+1)); done
exit {status}
"""


def program(folder, text):
    path = folder / "ncu"
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_ncu_is_run_and_its_table_read(tmp_path):
    launches = timers.LAUNCHES
    fake = program(tmp_path, NCU.format(rows=2 * launches, time="1,250", status=0))
    samples = timers._by_ncu(["eager", "triton"], ["true"], fake)
    assert samples == {"eager": [1.25] * launches, "triton": [1.25] * launches}
    with pytest.raises(UsageError, match=f"ncu saw {2 * launches} kernels of {3 * launches} launches"):
        timers._by_ncu(["eager", "triton", "cuda"], ["true"], fake)
    with pytest.raises(UsageError, match="'n/a' where a number belongs"):
        timers._by_ncu(["eager"], ["true"], program(tmp_path, NCU.format(rows=launches, time="n/a", status=0)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("#!/bin/sh\necho '==ERROR== no such option' >&2\nexit 1\n", "ncu failed: no such option"),
        ("#!/bin/sh\necho nothing\n", "printed no table"),
        ("not a program", "does not run"),
    ],
)  # fmt: skip
def test_what_ncu_cannot_do_is_a_sentence_with_the_mend(tmp_path, text, words):
    with pytest.raises(UsageError, match=words):
        ncu.rows(ncu.run(program(tmp_path, text), [], ["true"]))


def test_ncu_is_searched_for(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    monkeypatch.setattr(ncu, "_FOLDERS", (f"{tmp_path}/cuda*/bin",))
    with pytest.raises(UsageError, match="name it with --ncu"):
        ncu.find()
    with pytest.raises(UsageError, match="is no program"):
        ncu.find(tmp_path / "nosuch")
    (tmp_path / "cuda-12.9/bin").mkdir(parents=True)
    newest = program(tmp_path / "cuda-12.9/bin", "#!/bin/sh\n")
    assert ncu.find() == newest
    (tmp_path / "cuda/bin").mkdir(parents=True)
    assert ncu.find() == newest
    home = program(tmp_path / "cuda/bin", "#!/bin/sh\n")
    assert ncu.find() == home
    on_path = program(tmp_path, "#!/bin/sh\n")
    assert ncu.find() == on_path
    assert ncu.find(home) == home


@given(st.text(max_size=300))
def test_no_text_of_ncu_breaks_the_reader(text):
    try:
        found = ncu.rows(text)
    except UsageError:
        return
    assert all(row["ID"].isdigit() for row in found)


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["frame", "name", "metrics", "children", "x"]), inner, max_size=4
    ),
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_no_bytes_break_the_reader_of_profiles(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.hatchet")
        path.write_bytes(data)
        try:
            hatchet.read_tree(path)
        except UsageError as error:
            assert "no profile of Proton's" in str(error)


def rows():
    found = [row(operation=key, timer=timer, samples=[100.0 + place]) for place, timer in enumerate(TIMERS)
             for key in ("triton", "eager", "copy")]  # fmt: skip
    found += [row(operation="triton", timer="do_bench", samples=[10.0, 9.0, 11.0], n=n) for n in timers.SWEEP]
    return [*found, row(operation="numba", timer="host", samples=(), message="Numba is not installed")]


def test_the_table_says_how_far_timers_lie_apart_and_why_one_is_absent(console):
    console.print(timers.table(rows(), "recorded"))
    text = console.export_text()
    assert "100.0 (-2.9%)" in text  # the host clock beside ours, of 103
    assert f"{8 * N / 103 / 1e3:.0f}" in text
    assert timers.disagreement(rows())["triton"] == pytest.approx((109 - 102) / 106)
    printed = timers.sentences(rows())
    assert "Triton: device-side timers lie 6.6% apart, more than the 2% aimed at." in printed
    assert any("Numba is not installed" in line for line in printed)


def test_an_operation_has_a_column_where_any_timer_times_it():
    def columns(found):
        return [column.header for column in timers.table(found, "recorded").columns]

    before = columns(rows())
    assert OPERATIONS["numba"].label not in before
    assert OPERATIONS["triton"].label in before
    assert columns([*rows(), row(operation="numba", timer="do_bench")]) == [
        "timer", *(OPERATIONS[key].label for key in OPERATIONS if key in {"triton", "eager", "copy", "numba"}), "counts"
    ]  # fmt: skip


def test_the_figure_shows_each_operation_and_the_sizes():
    figure = plot.figure(rows(), "recorded")
    left, right = figure.axes
    assert len(left.get_lines()) == 4  # the zero, and three operations
    assert [len(line.get_xdata()) for line in right.get_lines()] == [1, 1 + len(timers.SWEEP), 1]


def test_without_a_record_one_sentence_says_what_records_it(tmp_path, no_gpu, console):
    with pytest.raises(UsageError, match="nothing is recorded of `make timers`"):
        timers.run(console, tmp_path, plot.draw, ncu_path=None, require_gpu=False)
    kept(RecordStore(tmp_path / "h200", "timers", timers.ROWS), rows())
    timers.run(console, tmp_path, plot.draw, ncu_path=None, require_gpu=False)
    assert "recorded on NVIDIA H200" in console.export_text()
    assert (tmp_path / "h200/timers.png").stat().st_size > 10_000
    with pytest.raises(UsageError, match="there is no GPU"):
        timers.perf_report(tmp_path)


def test_all_rows_are_made_whatever_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(timers, "_calls", lambda: ({"triton": None, "copy": None, "attention": None}, {"numba": "no"}))
    turns = {timer: {"triton": [1.0], "copy": [1.0], "attention": [2.0]} for timer in ("host", "event", "graph")}
    monkeypatch.setattr(timers, "_in_turn", lambda calls: turns)
    monkeypatch.setattr(timers, "_traced", lambda call: [1.5])
    monkeypatch.setattr(timers, "bench_quantiles", lambda n, key: [1.0, 0.9, 1.1])
    monkeypatch.setattr(ncu, "find", lambda given: (_ for _ in ()).throw(UsageError("there is no ncu")))

    def child(command, _limit_s):
        if command[3] == "proton":
            return subprocess.CompletedProcess(command, 1, "", "Traceback\nRuntimeError: no CUPTI")
        Path(command[-1]).write_text(json.dumps({"triton": [1.2], "attention": [2.2]}))
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(timers.child, "run", child)
    made = {(r.operation, r.timer, r.n): r for r in timers.measure(COMMON, ncu_path=None, results=tmp_path)}
    assert made["triton", "torch_profiler", N].samples_us == [1.2]
    assert made["triton", "trace", N].samples_us == [1.5]
    assert "no CUPTI" in made["triton", "proton", N].message
    assert made["attention", "ncu", N].message == "there is no ncu"
    assert made["numba", "graph", N].message == "no"
    assert made["copy", "proton", N].message == "a copy is no kernel to a profiler"
    assert made["triton", "do_bench", timers.SWEEP[0]].samples_us == [1.0, 0.9, 1.1]
