"""`make tritonbench`: a stand-in of tritonbench on a GPU whose times are known, and the real one on the CPU."""

import io
import sys

import pytest
import triton.testing
from pydantic import ValidationError

from kperf.attention.workload import Workload
from kperf.bench import measure as measuring
from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError
from kperf.integrations import operator
from kperf.integrations import tritonbench as integration
from kperf.paper import tritonbench
from kperf.paper.tritonbench import ComparedRow, value
from kperf.record.store import RecordStore
from tests.attention.attending_gpu import attending_gpu  # noqa: F401
from tests.bench.fake_gpu import COLD_MS, HOST_MS, Gpu
from tests.bench.test_on_a_fake_gpu import attention, stand_in
from tests.command import kperf
from tests.integrations.test_tritonbench import OPERATOR, REAL, TRITON_OP

SMALL = Workload(batch=1, heads=2, seq_len=128, head_dim=128)
OURS = "kperf_improved_plus"

RUN = """
import json
import sys
given = dict(zip(sys.argv[1::1], sys.argv[2::1]))
assert given["--only"] == "sdpa,kperf_improved_plus" and given["--baseline"] == "sdpa" and given["--num-inputs"] == "1"
shape = [int(given[f"--{name}"]) for name in ("batch", "n-heads", "seq-len", "d-head")]
flops = 4 * shape[0] * shape[1] * shape[2] ** 2 * shape[3]
told = {}
for name, ms in (("sdpa", 2.0), ("kperf_improved_plus", 0.3)):
    ms += 0.0 if "--cudagraph" in sys.argv else 0.06
    x = f"tritonbench_flash_attention_fwd[x_({shape[0]}, {shape[1]}, {shape[2]}, {shape[2]}, {shape[3]})-{name}]"
    told |= {f"{x}_latency": str(ms), f"{x}_tflops": flops / ms / 1e9}
    told[f"{x}_accuracy"] = None if name == "sdpa" else ACCURACY
    told |= {f"tritonbench_flash_attention_fwd[x_average-{name}]_{metric}": 5.0 for metric in ("latency", "tflops")}
if BROKEN:
    told = {}
json.dump(told, open(given["--output-json"], "w"))
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """What a run puts into this process is gone after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "argv", ["kperf"])
    monkeypatch.setattr(integration, "_refused", [])
    operator._launcher.cache_clear()
    yield
    operator._launcher.cache_clear()
    for name in [name for name in sys.modules if name.split(".")[0] == "tritonbench"]:
        del sys.modules[name]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Writes a stand-in checkout."""

    def write(accuracy=1.0, broken=False):
        files = {
            "run.py": RUN.replace("ACCURACY", str(accuracy)).replace("BROKEN", str(broken)),
            "tritonbench/utils/triton_op.py": TRITON_OP,
            "tritonbench/components/do_bench/run.py": "",
            "tritonbench/operators/flash_attention/operator.py": OPERATOR,
        }
        files |= {f"tritonbench/{name}__init__.py": "" for name in ("", "utils/", "operators/")}
        files["tritonbench/operators/flash_attention/__init__.py"] = ""
        for path, text in files.items():
            (tmp_path / "bench" / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "bench" / path).write_text(text)

    write()
    monkeypatch.setenv("TRITONBENCH_DIR", str(tmp_path / "bench"))
    return write


@pytest.fixture
def gpu(monkeypatch, h200):
    """One on which FA2 takes 2 ms and ours 0.3, and Triton's timers ask this GPU's clock."""
    gpu = Gpu()
    stand_in(gpu, monkeypatch)
    monkeypatch.setattr(tritonbench, "torch", measuring.torch)
    made = {key: attention(gpu, key, ms) for key, ms in (("fa2", 2.0), ("improved_plus", 0.3))}
    monkeypatch.setattr(tritonbench, "IMPLEMENTATIONS", made)
    monkeypatch.setattr(tritonbench, "WORKLOADS", (SMALL,))

    def timed(call):
        gpu.cold = "do_bench" in asked[-1]
        begin = gpu.now_ms
        call()
        return gpu.now_ms - begin

    asked = []

    def do_bench(call, warmup, rep, return_mode):
        asked.append(("do_bench", warmup, rep, return_mode))
        return [timed(call) for _ in range(3)]

    def do_bench_cudagraph(call, rep, return_mode):
        asked.append(("do_bench_cudagraph", rep, return_mode))
        return [timed(call) - HOST_MS for _ in range(3)]

    monkeypatch.setattr(triton.testing, "do_bench", do_bench)
    monkeypatch.setattr(triton.testing, "do_bench_cudagraph", do_bench_cudagraph)
    return asked


def run(folder):
    console = WholeConsole(file=io.StringIO(), record=True, width=200)
    tritonbench.run(console, folder, require_gpu=False)
    return console.export_text()


def test_each_timer_is_asked_by_both_of_every_kernel_in_every_round(gpu, here, tmp_path):
    said = run(tmp_path)
    rows = RecordStore(tmp_path / "h200", "tritonbench", tritonbench.ROWS).points()
    timers = ("do_bench", "do_bench_cudagraph", "cuda_graph_events")
    assert [(row.timer, row.benchmark) for row in rows] == [(timer, key) for timer in timers for key in ("sdpa", OURS)]
    by = {(row.timer, row.benchmark): row for row in rows}
    assert by["do_bench", "sdpa"].ours_ms == pytest.approx([2.0 + HOST_MS + COLD_MS] * 4)
    assert by["do_bench", OURS].ours_ms == pytest.approx([0.3 + HOST_MS + COLD_MS] * 4)
    assert by["do_bench", OURS].off == pytest.approx([0.0] * 4, abs=1e-9)
    assert by["do_bench_cudagraph", OURS].ours_ms == pytest.approx([0.3] * 4)
    assert by["do_bench_cudagraph", OURS].theirs_ms == (0.3,) * 4
    assert by["cuda_graph_events", OURS].ours_ms == pytest.approx([0.3 + COLD_MS / 2] * 4)  # of two calls
    assert by["cuda_graph_events", OURS].off == []
    assert [row.accurate for row in rows[:2]] == [None, True]
    assert set(gpu) == {("do_bench", 25, 100, "all"), ("do_bench_cudagraph", 100, "all")}
    assert len(gpu) == 2 * 2 * 4
    assert "On the same timer tritonbench's TFLOPS are within 3% of ours in 4 of 4." in said
    assert f"{OURS} 1 x 128: do_bench says 1.108 times what the timer of Fig. 12 says." in said
    told = kperf("tritonbench-compare", "--results", tmp_path, COLUMNS="200")
    assert "within 3% of ours in 4 of 4" in told.stdout


def test_neither_always_begins(gpu, here, tmp_path, monkeypatch):
    plain = tritonbench.by_tritonbench
    monkeypatch.setattr(tritonbench, "by_tritonbench", lambda *given: gpu.append(("theirs",)) or plain(*given))
    run(tmp_path)
    by_timer = [[name for name, *_ in gpu[start : start + 3]] for start in range(0, len(gpu), 3)]
    theirs_first = [["theirs", timer, timer] for timer in tritonbench.TIMERS]
    ours_first = [[timer, timer, "theirs"] for timer in tritonbench.TIMERS]
    assert by_timer == [*theirs_first, *ours_first] * 2


def test_what_tritonbench_finds_wrong_is_said(gpu, here, tmp_path):
    here(accuracy=0.0)
    assert f"{OURS}: not accurate by tritonbench's own metric" in run(tmp_path)


def test_without_a_time_of_tritonbenchs_nothing_is_recorded(gpu, here, tmp_path):
    here(broken=True)
    with pytest.raises(MeasurementError, match="tritonbench has no latency of sdpa"):
        run(tmp_path)
    assert (tmp_path / "h200" / "tritonbench.jsonl").read_text() == ""


def test_without_tritonbench_or_a_record_it_says_what_is_missing(gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITONBENCH_DIR", "/nonexistent")
    with pytest.raises(UsageError, match="set TRITONBENCH_DIR to a checkout"):
        run(tmp_path)
    monkeypatch.undo()
    done = kperf("tritonbench-compare", "--results", tmp_path / "none")
    assert done.returncode == 2
    assert "nothing is recorded of `make tritonbench` in" in done.stderr


@pytest.mark.parametrize(
    "changes",
    [
        {"theirs_ms": []},
        {"theirs_tflops": [1.0]},
        {"ours_ms": []},
        {"ours_ms": [1.0, 0.0]},
        {"timer": "cuda_graph_events"},
        {"nosuch": 1},
    ],
)
def test_a_row_that_contradicts_itself_is_refused(changes):
    fields = {
        "run": "r", "environment": "e", "recorded_at": "2026-01-02T03:04:05+00:00", "workload": SMALL.model_dump(),
        "benchmark": OURS, "implementation": "improved_plus", "timer": "do_bench", "theirs_ms": [1.0, 1.1],
        "theirs_tflops": [5.0, 5.1], "accurate": True, "ours_ms": [1.0, 1.1], "rel_error": 1e-3,
        "tritonbench_sha256": "0",
    }  # fmt: skip
    assert ComparedRow(**fields).off
    with pytest.raises(ValidationError):
        ComparedRow(**(fields | changes))


@REAL
def test_the_real_one_writes_what_is_read(attending_gpu, monkeypatch):  # noqa: F811
    monkeypatch.setattr(sys, "argv", ["run.py"])
    path = integration.find_run_py()
    sys.path.insert(0, str(path.parent))
    integration.register()
    for _ in range(2):  # a process asks it again and again
        told = tritonbench.by_tritonbench(path, SMALL, ["--device", "cpu", "--iter", "1", "--warmup", "1"])
        for name in tritonbench.BENCHMARKS:
            tflops = SMALL.flops / value(told, name, "latency") / 1e9
            assert value(told, name, "tflops") == pytest.approx(tflops, rel=1e-6)
        assert value(told, OURS, "accuracy") == 1
    files = tritonbench._FILES
    assert all((path.parent / name).is_file() for name in files)
    assert "DEFAULT_WARMUP = 25" in (path.parent / files[1]).read_text()
    assert "DEFAULT_RUN_ITERS = 100" in (path.parent / files[1]).read_text()
