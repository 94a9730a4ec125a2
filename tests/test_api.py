"""`kperf.trace` and `@kperf.traced` on a GPU that is not there: what they give, and that they leave nothing behind."""

import html
import importlib.util
import inspect
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

import pytest
import torch
from triton import knobs
from triton.backends import backends
from triton.compiler import CompiledKernel
from triton.runtime import _allocation, driver
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

import kperf
from kperf.record import device
from kperf.record.scratch import Scratch
from kperf.trace.analyze.finding import LEVELS
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture import gpu
from tests.trace.capture import fake_gpu
from tests.trace.capture.test_command import ADD, GEMM

HEAVY = ("torch", "triton", "numpy", "pydantic", "rich", "typer", "bokeh", "jinja2", "IPython", "matplotlib")


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    """A module with two kernels, on the fake GPU, beside whatever was there before."""
    fake_gpu.install(tmp_path, monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(gpu, "Gpu", fake_gpu.FakeGpu)
    monkeypatch.setattr(fake_gpu, "WRITES", [])
    fake_gpu.LAUNCHES.clear()
    text = GEMM + ADD + "\nx = torch.zeros(4096)\ndef add():\n    plus[(4,)](x, x, x, 4096, 1024)\n"
    return module_of(tmp_path / "step.py", text)


def module_of(path, text):
    """The module of a file with this text."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launched():
    return [(launch.name, launch.traced) for launch in fake_gpu.LAUNCHES]


def state():
    """All that tracing changes while it lasts, in this process."""
    compiler = backends["nvidia"].compiler
    return {
        "run": CompiledKernel.__dict__["run"],
        "compile": JITFunction.__dict__["_do_compile"],
        "tuner": Autotuner.__dict__["_bench"],
        "allocator": _allocation._profile_allocator.get(),
        "hook": getattr(compiler, "instrumentation", None),
        "cache": (knobs.cache.dir, knobs.cache.manager_class),
        "compilation": {name: getattr(knobs.compilation, name) for name in knobs.compilation.knobs},
        "environment": dict(os.environ),
        "streams": (sys.stdout, sys.stderr),
        "exit": os._exit,
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)],
        "filters": list(warnings.filters),
        "frames": sys.getrecursionlimit(),
        "threads": set(threading.enumerate()),
        "driver": driver.active,
        "folders": set(Path(tempfile.gettempdir()).glob(".kperf-trace-*")),
    }


def test_a_block_is_traced_and_held_in_memory(kernels, tmp_path, capfd):
    with kperf.trace(kernel="g*mm", passes="1") as t:
        kernels.run(3)
        kernels.add()
    assert launched() == [("gemm", True), ("gemm", False), ("gemm", True), ("plus", False)]
    assert list(t.kernels) == ["gemm"]
    kernel = t.kernels["gemm"]
    assert kernel.timeline.cycles_per_unit.median == 4 * fake_gpu.STEP
    assert kernel.timeline.grid == (2, 1, 1)
    assert str(t) == "\n".join(kernel.timeline.verdict)
    assert t.problems == []
    assert t.folder is None
    assert not list(tmp_path.rglob("*timeline.json"))
    assert capfd.readouterr() == ("", "")  # a library prints nothing


def test_what_a_process_left_that_was_killed_is_removed_and_what_is_used_stays(kernels, tmp_path):
    left, users = tmp_path / ".kperf-trace-left", tmp_path / "kperf-trace-1"
    for folder in (left, users):
        folder.mkdir()
        os.utime(folder, (0, 0))
    with kperf.trace(passes="1"):
        kernels.run(3)
        (used,) = tmp_path.glob(".kperf-trace-*")
        assert used != left
        os.utime(used, (0, 0))
        Scratch(".kperf-trace-").close()
        assert used.is_dir()
    assert not list(tmp_path.glob(".kperf-trace-*"))
    assert users.is_dir()  # as of `kperf trace --out`


def test_the_report_is_the_page_of_what_is_in_memory(kernels):
    with kperf.trace(passes="1") as t:
        kernels.run(1)
        kernels.add()
    page, gemm = t.report(), t.kernels["gemm"].report()
    assert page.startswith("<!doctype html>")
    assert "Inside 2 GPU kernels" in page
    assert "Inside 1 GPU kernel<" in gemm
    assert "Timeline of CTA" in gemm
    assert ">plus<" not in gemm
    assert t.kernels["gemm"].timeline.ttgir_sha256 in gemm
    ir = t.kernels["gemm"].ir.lines()
    assert list(ir) == ["ttir", "ttgir", "llir", "ptx", "sass"]
    (mma,) = {line.frame.line for line in ir["sass"] if "HGMMA" in line.text}
    assert "tl.dot(" in Path(kernels.__file__).read_text().splitlines()[mma - 1]
    for line in (next(line for line in ir[level] if line.frame and line.frame.line == mma) for level in ir):
        assert line.text.strip() in html.unescape(gemm)
    shown = t._repr_html_()
    found = t.kernels["gemm"].findings
    assert "launch-too-small" in [finding.id for finding in found]  # two CTAs on an H200
    assert all(finding.advice in html.unescape(gemm) for finding in found)
    assert Path(found[0].source.file).name == "step.py"
    assert shown.startswith('<iframe srcdoc="&lt;!doctype html&gt;')
    assert "<script>" not in shown


def test_an_editor_sees_the_options():
    from kperf import api

    assert "regions" in inspect.signature(kperf.trace).parameters
    assert inspect.signature(kperf.trace) == inspect.signature(api.trace)
    assert inspect.signature(kperf.diagnose) == inspect.signature(api.diagnose)


def test_files_are_those_of_the_command(kernels, tmp_path):
    with kperf.trace(["gemm", "nothing"], passes="1", out=tmp_path / "out") as t:
        kernels.run(1)
    assert {path.name for path in t.folder.iterdir()} == {
        "gemm.timeline.json",
        "gemm.chrome_trace.json",
        "gemm.ir.json.gz",
    }
    assert read_timeline(t.folder / "gemm.timeline.json") == t.kernels["gemm"].timeline
    assert (t.folder / "gemm.chrome_trace.json").read_text() == t.kernels["gemm"].chrome_trace


def test_a_rank_has_a_folder_of_its_own(kernels, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    with kperf.trace("gemm", passes="1", out=tmp_path / "out") as t:
        kernels.run(1)
    assert t.folder == tmp_path / "out/rank3"
    assert (t.folder / "gemm.timeline.json").is_file()


def test_step_100_of_a_training_loop_is_traced_and_no_other(kernels):
    before = None
    for step in range(1, 106):
        if step == 100:
            before = state()
            with kperf.trace(kernel="gemm", passes="1") as t:
                kernels.run(1)
            assert state() == before
        else:
            kernels.run(1)
    assert [number for number, (_, traced) in enumerate(launched(), 1) if traced] == [100]
    assert t.kernels["gemm"].timeline.events.lost == 0


def test_nothing_is_left_behind_when_the_body_raises(kernels, monkeypatch):
    mine = lambda *_: None  # noqa: E731
    monkeypatch.setattr(_allocation._profile_allocator, "_allocator", mine)
    before = state()

    def body():
        kernels.run(20)
        assert state()["run"] is not before["run"]
        raise ZeroDivisionError

    t = kperf.trace(kernel="gemm", passes="1")
    with pytest.raises(ZeroDivisionError), t:
        body()
    assert state() == before
    assert before["allocator"] is mine
    assert list(t.kernels) == ["gemm"]  # its launches in turn were over
    fake_gpu.LAUNCHES.clear()
    kernels.run(3)
    assert launched() == [("gemm", False)] * 3
    with device.exclusive():
        pass


def test_one_trace_at_a_time(kernels):
    with kperf.trace(kernel="gemm", passes="1") as t:
        with pytest.raises(kperf.UsageError, match="another trace of this process is open: end it first"):
            kperf.trace().__enter__()
        kernels.run(1)
    assert list(t.kernels) == ["gemm"]
    with kperf.trace(kernel="plus", passes="1") as again:
        kernels.add()
    assert list(again.kernels) == ["plus"]


def test_errors_have_the_sentences_of_the_command(kernels, monkeypatch):
    before = state()
    with pytest.raises(kperf.UsageError, match=r"^no Triton kernel is called gem, but gemm"), kperf.trace("gem"):
        kernels.run(1)
    with pytest.raises(kperf.UsageError, match=r"^the script launched no Triton kernel; "), kperf.trace():
        pass
    fake_gpu.WRITES.append(lambda instrumented, arguments: arguments[2].base.fill_(1 if instrumented else 0))
    t = kperf.trace("gemm", check=True)
    with pytest.raises(kperf.MeasurementError, match=r"^gemm is not traced: its instrumented kernel writes"), t:
        kernels.run(1)
    assert t.kernels == {}
    assert state() == before
    with pytest.raises(kperf.UsageError, match=r"^launch=0 is no launch: the first is 1$"):
        kperf.trace(launch=0)
    with pytest.raises(kperf.UsageError, match=r"^kernel=\[\] names nothing"):
        kperf.trace(kernel=[])
    with monkeypatch.context() as patch:
        patch.setattr(device, "why_static", lambda: "there is no GPU")
        with pytest.raises(kperf.UsageError, match=r"^there is no GPU; "), kperf.trace():
            pass
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(kperf.UsageError, match=r"^TRITON_INTERPRET is set"), kperf.trace():
        pass


def test_one_kernel_that_cannot_be_traced_does_not_cost_the_other(kernels):
    with kperf.trace(launch=2, passes="1") as t:
        kernels.run(2)
        kernels.add()
    assert list(t.kernels) == ["gemm"]
    assert [str(one) for one in t.problems] == [
        "plus is not traced: it was launched 1 times, and --launch asks for launch 2"
    ]


def test_one_call_of_a_function_is_traced(kernels):
    @kperf.traced(call=3, kernel="gemm", passes="1")
    def step(times, *, result):
        """A step."""
        kernels.run(times)
        return result

    assert step.__name__ == "step"
    assert step.__doc__ == "A step."
    assert [step(1, result=2), step(1, result=4)] == [2, 4]
    assert step.trace is None
    assert step(1, result=6) == 6
    assert list(step.trace.kernels) == ["gemm"]
    assert step(1, result=8) == 8
    assert [traced for _, traced in launched()] == [False, False, True, False]

    class Model:
        @kperf.traced
        def forward(self):
            kernels.add()
            return self

    model = Model()
    assert model.forward() is model
    assert list(model.forward.trace.kernels) == ["plus"]
    with pytest.raises(kperf.UsageError, match="call=0 is no call: the first is 1"):
        kperf.traced(call=0)


def test_to_import_kperf_imports_nothing_heavy():
    look = "import sys, kperf, kperf.trace; kperf.trace, kperf.UsageError; dir(kperf); "
    look += f"print(sorted({{name.split('.')[0] for name in sys.modules}} & {set(HEAVY)!r}))"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_names_that_are_promised():
    assert kperf.__all__ == [
        "KernelTrace", "MeasurementError", "Trace", "Traced", "UsageError", "__version__",
        "diagnose", "trace", "traced",
    ]  # fmt: skip
    assert all(getattr(kperf, name).__doc__ for name in kperf.__all__)
    with pytest.raises(AttributeError, match="module 'kperf' has no attribute 'nothing'"):
        kperf.nothing  # noqa: B018


def test_a_call_is_diagnosed_by_what_was_measured_and_by_what_was_compiled(kernels):
    found = kperf.diagnose(kernels.run, times=3)
    ids = [finding.id for finding in found]
    assert "launch-too-small" in ids  # by the grid: two CTAs
    with kperf.trace() as t:
        kernels.run(times=3)
    assert [finding.message for finding in found] == [finding.message for finding in t.kernels["gemm"].findings]
    assert [finding.severity for finding in found] == sorted((one.severity for one in found), key=LEVELS.index)
    assert [traced for _, traced in launched()[:3]] == [True, False, True]


STEP = """
import torch, triton
import triton.language as tl


@triton.jit
def spread(x, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i * 2, tl.load(x + i * 2, i < n), i < n)


def step(x, out):
    assert x.is_cuda and out["out"].is_meta
    print("not to be printed")
    spread[(4096,)](x, out["out"], 4096 * 1024, 1024)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1 << 23))

    def forward(self, x):
        step(self.weight, {"out": x})
        raise ValueError("of numbers that are not there")
"""


@pytest.fixture
def step(tmp_path, monkeypatch):
    return module_of(tmp_path / "without.py", STEP)


def test_without_a_gpu_a_call_is_diagnosed_by_what_is_compiled(step, no_gpu, capsys, caplog):
    importlib.import_module("torch._dynamo")  # which torch imports at a first `meta` tensor, and which sets a variable

    def left():
        return CompiledKernel.__dict__["run"], dict(os.environ), sys.stdout, sys.excepthook, torch.cuda.is_available()

    x, out = torch.zeros(1 << 23), torch.zeros(1 << 23)
    before = left()
    found = kperf.diagnose(step.step, x, out={"out": out})
    assert ("uncoalesced-access", 9) in {(finding.id, finding.source.line) for finding in found}
    block = step.Block()
    assert [one.id for one in kperf.diagnose(block, out)] == [one.id for one in found]
    assert "ended early without a GPU" in caplog.text
    assert {tensor.device.type for tensor in (x, out, block.weight)} == {"cpu"}
    assert left() == before
    assert capsys.readouterr().out == ""


TWICE = """
import torch, triton
import triton.language as tl


@triton.jit
def scale(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) * 2.0)


@triton.jit
def shift(x, out, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + 1.0)


def step(x):
    scaled, out = torch.empty_like(x), torch.empty_like(x)
    scale[(x.numel() // 1024,)](x, scaled, 1024)
    shift[(x.numel() // 1024,)](scaled, out, 1024)
    return out
"""


def test_a_call_is_diagnosed_by_all_of_its_launches(tmp_path, no_gpu):
    """What one launch writes and the next one reads is known of a function as it is of a script."""
    found = kperf.diagnose(module_of(tmp_path / "twice.py", TWICE).step, torch.zeros(1 << 26))
    assert "intermediate-in-memory" in {finding.id for finding in found}


def test_a_traced_call_is_diagnosed_by_all_of_its_launches(kernels, tmp_path):
    step = module_of(tmp_path / "twice.py", TWICE).step
    found = kperf.diagnose(step, torch.zeros(1 << 26))
    assert "intermediate-in-memory" in {finding.id for finding in found}


@pytest.mark.parametrize(
    ("function", "why"),
    [(lambda: None, ""), (lambda: 1 / 0, ": it ended with ZeroDivisionError: division by zero")],
)
def test_a_call_that_launches_nothing_is_one_sentence(no_gpu, function, why):
    with pytest.raises(kperf.UsageError) as refused:
        kperf.diagnose(function)
    assert str(refused.value).endswith(f"<lambda> launches no Triton kernel without a GPU{why}")
