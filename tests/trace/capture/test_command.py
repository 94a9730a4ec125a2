"""`kperf trace` on a GPU that is not there: both kernels are compiled, launches are noted, records made up."""

import contextlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Timer

import pytest
import torch
import triton

from kperf.compat.triton.cache import own_cache
from kperf.console import WholeConsole
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir import kept
from kperf.ir.compile import canonical_ttgir
from kperf.record import device
from kperf.report.formats import formats
from kperf.trace import command, results
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture import capturer, instrumented
from kperf.trace.capture import scheduler as scheduling
from kperf.trace.capture.check import Memory
from kperf.trace.capture.instrumented import ResourceUsage
from kperf.trace.capture.interceptor import Interceptor
from kperf.trace.capture.kernels import TraceOptions
from kperf.trace.capture.script import Script
from kperf.trace.capture.selfcheck import why_no_events
from kperf.trace.instrument import events
from kperf.trace.instrument.events import instrument
from kperf.trace.instrument.program import read_program
from kperf.trace.instrument.session import Recording, session
from tests.command import kperf
from tests.record.test_lock import another_that_measures
from tests.trace.capture import fake_gpu
from tests.trace.kernels import compiled as compiled_case

GEMM = """
import sys, torch, triton, triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def gemm(a_desc, b_desc, c_desc, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles = tl.cdiv(N, BN)
    row = tl.program_id(0) // tiles * BM
    column = tl.program_id(0) % tiles * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, tl.cdiv(K, BK), num_stages=3):
        acc = tl.dot(a_desc.load([row, k * BK]), b_desc.load([column, k * BK]).T, acc)
    c_desc.store([row, column], acc.to(tl.bfloat16))

def run(times, warps=8):
    a, b, c = (torch.zeros(256, 256, dtype=torch.bfloat16) for _ in range(3))
    tensors = zip((a, b, c), ((128, 64), (256, 64), (128, 256)))
    descriptors = [TensorDescriptor.from_tensor(tensor, list(box)) for tensor, box in tensors]
    for _ in range(times):
        gemm[(2,)](*descriptors, 256, 256, 128, 256, 64, num_warps=warps)
"""

ADD = """
import torch, triton, triton.language as tl

@triton.jit
def plus(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)
"""

TUTORIALS = """
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def seeded_dropout(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_ptr + offsets, mask=mask)
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, libdevice.asin(x) / (1 - p), 0.0), mask=mask)


@triton.jit
def _combine(a, b):
    return tl.maximum(a, b)


@triton.jit
def running_max(x, y, rows, columns, stride, B: tl.constexpr):
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        c = tl.arange(0, B)
        v = tl.load(x + row * stride + c, mask=c < columns, other=-float("inf"))
        v = tl.associative_scan(v, 0, _combine)
        s = tl.sort(v)
        tl.store(y + row * stride + c, v + tl.gather(s, c % 4, 0), mask=c < columns)


x = torch.rand(10000)
out = torch.empty_like(x)
for _ in range(4):
    seeded_dropout[lambda meta: (triton.cdiv(10000, meta["BLOCK"]),)](x, out, 10000, 0.5, 123, BLOCK=1024)
m = torch.rand(64, 500)
y = torch.empty_like(m)
for _ in range(4):
    running_max[(8,)](m, y, 64, 500, m.stride(0), B=512, num_warps=4)
"""

AUTOTUNED = GEMM.replace(
    "@triton.jit",
    "@triton.autotune([triton.Config({}, num_warps=4), triton.Config({}, num_warps=8)], key=['N'])\n@triton.jit",
)


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """Runs `kperf trace` on a script's text; returns its exit status, what it printed, and the folder it wrote."""
    fake_gpu.install(tmp_path, monkeypatch)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    fake_gpu.LAUNCHES.clear()
    monkeypatch.setattr(fake_gpu, "WRITES", [])

    def run(text, gpu=None, **choice):
        path = tmp_path / "it.py"
        path.write_text(text)
        console = WholeConsole(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
        status = command.run(
            console,
            Script(str(path), ("a", "b")),
            TraceOptions(**choice),
            tmp_path / "out",
            formats(no_figure),
            gpu or fake_gpu.FakeGpu(),
        )
        return status, console.export_text(), tmp_path / "out"

    return run


def no_figure(timeline, stamp, out):
    assert stamp.startswith(f"measured on {timeline.environment.gpu}")
    return []


def launched(name):
    return [launch.traced for launch in fake_gpu.LAUNCHES if launch.name == name]


def test_the_third_launch_is_traced_and_the_first_for_scripts_that_launch_once(trace):
    status, said, out = trace(GEMM + "run(5); print(sys.argv[1:])")
    assert status == 0
    assert launched("gemm") == [True, False, True, False, True]
    assert {path.name for path in out.iterdir()} == {"gemm.timeline.json", "gemm.chrome_trace.json", "gemm.ir.json.gz"}
    ir = kept.read(out / "gemm.ir.json.gz")
    assert (ir.kernel, ir.target, {file for file, *_ in ir.places if "triton" not in file}) == (
        "gemm",
        "sm_90a",
        {str(out.parent / "it.py")},
    )
    loads = [line for line in ir.lines()["ttgir"] if "async_tma_copy_global_to_local" in line.text]
    assert {line.frame.line for line in loads} == {12}
    assert any("HGMMA" in line.text and line.frame.line == 12 for line in ir.lines()["sass"])
    timeline = read_timeline(out / "gemm.timeline.json")
    assert timeline.kernel == "gemm"
    assert timeline.file.endswith("it.py:5")
    assert timeline.grid == (2, 1, 1)
    assert timeline.cycles_per_unit.median == 4 * fake_gpu.STEP
    assert timeline.events.lost == 0
    assert timeline.resources.original.occupancy == timeline.resources.instrumented.occupancy == 1
    assert timeline.arguments["a_desc"] == "bfloat16 [256, 256]"
    assert timeline.arguments["N"] == "256"
    assert timeline.verdict[0] in said
    events = json.loads((out / "gemm.chrome_trace.json").read_text())
    assert events["otherData"]["kernel"] == "gemm"
    fake_gpu.LAUNCHES.clear()
    assert trace(GEMM + "run(1)")[0] == 0
    assert launched("gemm") == [True]


class Heating(fake_gpu.FakeGpu):
    """A GPU on which an instrumented kernel takes a fifth longer, and everything twice as long from launch 13 on."""

    def __init__(self):
        super().__init__()
        self.read = []

    def mark(self, stream):
        return len(fake_gpu.LAUNCHES)

    def milliseconds(self, start, end):
        assert end == start + 1
        return (1.2 if fake_gpu.LAUNCHES[start].traced else 1.0) * (2 if end >= 13 else 1)

    def to_host(self, buffer):
        self.read.append(len(fake_gpu.LAUNCHES))
        return super().to_host(buffer)


class Slow(Heating):
    """On which a launch of `plus` takes so many milliseconds, and one of another kernel one."""

    def __init__(self, milliseconds):
        super().__init__()
        self.plus = milliseconds

    def milliseconds(self, start, end):
        return self.plus if fake_gpu.LAUNCHES[start].name == "plus" else 1.0


@pytest.mark.parametrize(("milliseconds", "traced", "other"), [(1.5, "plus", "gemm"), (1.0, "gemm", "plus")])
def test_a_kernel_that_comes_late_takes_the_place_of_a_faster_one(
    trace, monkeypatch, capsys, milliseconds, traced, other
):
    """And of none that is as slow."""
    monkeypatch.setattr(scheduling, "MOST_KERNELS", 1)
    monkeypatch.setattr(command, "MOST_KERNELS", 1)
    plus = ADD + "x = torch.zeros(4096)\nfor _ in range(4): plus[(4,)](x, x, x, 4096, 1024)"
    out = trace(GEMM + "run(3)" + plus, gpu=Slow(milliseconds), passes=1)[2]
    assert {path.name.split(".")[0] for path in out.iterdir()} == {traced}
    why = {"gemm": "1 slower kernels are traced", "plus": "1 other kernels are traced"}[other]
    assert f"{other} is not traced: {why}: choose it with --kernel" in capsys.readouterr().err


def test_instrumented_kernel_and_original_kernel_are_timed_in_turn_and_the_last_round_is_read(trace):
    gpu = Heating()
    status, _, out = trace(GEMM + "run(40)", gpu=gpu, passes=1)
    assert status == 0
    assert launched("gemm") == [True, False, *[True, False] * 5, *[False] * 28]
    assert gpu.read == [1, 3, 11]
    overhead = read_timeline(out / "gemm.timeline.json").overhead
    assert (overhead.original_ms, overhead.instrumented_ms, overhead.ratio) == (1.0, 1.2, 1.2)


def test_an_instrumented_kernel_that_is_refused_in_a_later_round_leaves_what_was_recorded(trace, capsys):
    launches = itertools.count()

    def refuses_the_fourth(instrumented, _arguments):
        if instrumented and next(launches) == 3:
            raise RuntimeError("out of resources")

    fake_gpu.WRITES.append(refuses_the_fourth)
    status, _, out = trace(GEMM + "run(12)", passes=1)
    assert status == 0
    assert launched("gemm") == [True, False, True, False, True, *[False] * 7]
    assert (
        "gemm: round 3 is left out: its instrumented kernel cannot be launched: out of resources"
        in capsys.readouterr().err
    )
    assert read_timeline(out / "gemm.timeline.json").events.lost == 0


@pytest.fixture
def several(monkeypatch):
    """Whatever one launch with all events costs, several passes are wanted; compilers differ in what that moves."""
    monkeypatch.setattr(capturer, "LITTLE", -1.0)


@pytest.mark.usefixtures("several")
def test_passes_are_taken_from_later_launches_and_joined(trace, capsys):
    status, said, out = trace(GEMM + "run(24)", passes=None)
    assert status == 0
    timeline = read_timeline(out / "gemm.timeline.json")
    count = len(timeline.passes)
    assert count > 1
    assert launched("gemm") == [True, False, *[True, False] * 5, *[False, True] * count, *[False] * (12 - 2 * count)]
    assert f"gemm: {count} passes for the next launches of grid 2 x 1 x 1" in capsys.readouterr().err
    assert f"joined from {count} of {count} passes that agree" in said
    # The records of a pass are made up to be evenly apart, however many there are.
    assert {one.iteration_cycles for one in timeline.passes} == {2 * fake_gpu.STEP}
    assert all(one.overhead.original_ms and one.overhead.ratio for one in timeline.passes)
    assert timeline.joined.one_pass.regions == ["*"]
    assert all(one.events_per_iteration == 2 and one.resources.occupancy == 1 for one in timeline.passes)
    assert json.loads((out / "gemm.chrome_trace.json").read_text())["otherData"]["passes"] == "one, with all events"


@pytest.mark.usefixtures("several")
def test_passes_that_cannot_be_joined_cost_nothing(trace, monkeypatch):
    def refuses(*_):
        raise UsageError("consumer makes no two iterations in a row")

    monkeypatch.setattr(results, "join", refuses)
    status, said, out = trace(GEMM + "run(24)")
    assert status == 0
    assert "gemm: one pass, for several cannot be joined: consumer makes no two iterations in a row." in said
    timeline = read_timeline(out / "gemm.timeline.json")
    assert timeline.joined is None
    assert timeline.cycles_per_unit.median == 4 * fake_gpu.STEP


ADD_14 = ADD + "x = torch.zeros(4096)\nfor _ in range(14): plus[(4,)](x, x, x, 4096, 1024)"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (GEMM + "run(2)", "gemm: one pass, for the script launches it too few times"),
        (GEMM + "run(13)", "launches of grid 2 x 1 x 1 that several would want did not come"),
        (ADD_14, "no loop that issues matrix"),
    ],
)
def test_why_a_kernel_is_traced_in_one_pass_is_said(trace, script, why):
    status, said, out = trace(script, gpu=Heating(), passes=None)
    assert status == 0
    assert why in said.replace("\n", " ")
    assert all(read_timeline(path).joined is None for path in out.glob("*.timeline.json"))


def test_a_launch_that_disturbs_little_is_enough(trace):
    """In which the instrumented kernel takes as long, with its instructions in the same order; who asks gets passes."""
    _, said, _ = trace(ADD_14, passes=None)
    assert "plus: one pass, for one launch with all events costs 0.0% and keeps the order of instructions." in said
    _, said, _ = trace(ADD_14, passes=3)
    assert "no loop that issues matrix" in said.replace("\n", " ")


def test_a_timeline_names_a_file_below_the_working_directory_from_there(trace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _, _, out = trace(GEMM + "run(1)")
    assert read_timeline(out / "gemm.timeline.json").file == "it.py:5"
    monkeypatch.chdir(out)
    _, _, out = trace(GEMM + "run(1)")
    assert read_timeline(out / "gemm.timeline.json").file == f"{tmp_path / 'it.py'}:5"


def test_a_kernel_that_is_being_compiled_when_the_script_is_interrupted_is_said_so(trace, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(capturer, "make_instrumented", interrupted)
    status, _, _ = trace(GEMM + "run(1)")
    assert status == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "kperf: gemm is not traced: the script ended before a launch of it was traced: let it run for longer"


@pytest.mark.parametrize(("folder", "name"), [(".", "it.py"), ("elsewhere", "{}/it.py")])
def test_sources_are_named_from_the_folder_of_the_command_wherever_the_script_goes(
    trace, tmp_path, monkeypatch, folder, name
):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))  # of equal kernels the first one's file is in there
    monkeypatch.chdir(tmp_path / folder)
    _, said, out = trace(GEMM + "import os; os.chdir('/'); run(1)")
    found = read_timeline(out / "gemm.timeline.json")
    lines = {region.source.line for region in found.regions if region.source}
    assert len(lines) > 1
    assert {region.source.file for region in found.regions if region.source} == {name.format(tmp_path)}
    assert found.file == f"{name.format(tmp_path)}:5"
    assert ("(it.py:" in said.replace("\n", "")) is (folder == ".")


def test_a_launch_can_be_chosen(trace):
    assert trace(GEMM + "run(5)", launch=4)[0] == 0
    assert launched("gemm") == [False, False, False, True, False]


def test_a_launch_that_never_came_is_said(trace, capsys):
    status, _, out = trace(GEMM + "run(2)", launch=4)
    assert status == 2
    assert "gemm is not traced: it was launched 2 times" in capsys.readouterr().err
    assert not list(out.iterdir())


def test_autotuners_are_left_alone(trace):
    assert trace(AUTOTUNED.replace(", num_warps=warps", "") + "run(3)")[0] == 0
    assert launched("gemm") == [False] * 2 + [True, False, True]


def test_the_instrumented_kernel_gets_the_arguments_of_the_launch_it_stands_for(trace):
    trace(GEMM + "run(2)")
    traced, original = fake_gpu.LAUNCHES
    assert traced.traced
    assert [str(argument) for argument in traced.arguments] == [str(argument) for argument in original.arguments]


def test_two_specialisations_are_two_kernels(trace):
    status, _, out = trace(GEMM + "run(3, 8); run(3, 4)")
    assert status == 0
    names = sorted(path.name for path in out.glob("*.timeline.json"))
    assert len(names) == 2
    assert names[1] == "gemm.timeline.json"


def test_the_users_cache_holds_no_instrumented_kernel(trace, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    with triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(cache)
        assert trace(ADD_14)[0] == 0
        assert triton.knobs.cache.dir == str(cache)
    files = [path for path in cache.rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".ttgir"]
    assert not [path for path in files if b"proton" in path.read_bytes() or "kperf" in str(path.relative_to(tmp_path))]
    assert not [path for path in files if "cuobjdump" in path.name or "nvdisasm" in path.name]
    assert all("proton" not in canonical_ttgir(path.read_text()) for path in files if path.suffix == ".ttgir")


def test_nothing_stays_behind_in_this_process(trace, monkeypatch):
    from triton.compiler import CompiledKernel
    from triton.runtime.autotuner import Autotuner

    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "5")
    before = CompiledKernel.run, Autotuner._bench, dict(os.environ)
    trace(GEMM + "run(1)")
    assert (CompiledKernel.run, Autotuner._bench, dict(os.environ)) == before


def test_the_console_prints_on_standard_output_as_it_is_afterwards(trace, tmp_path):
    console, said = WholeConsole(), io.StringIO()
    options, script = TraceOptions(listing=True), Script(str(tmp_path / "it.py"), ())
    (tmp_path / "it.py").write_text("pass")
    with contextlib.redirect_stdout(io.StringIO()):
        command.run(console, script, options, tmp_path / "out", formats(no_figure), fake_gpu.FakeGpu())
    with contextlib.redirect_stdout(said):
        console.print("later")
    assert said.getvalue() == "later\n"


def test_the_list_has_every_kernel_and_traces_none(trace):
    use = "x = torch.zeros(4096)\nfor _ in range(4): plus[(4,)](x, x, x, 4096, BLOCK=1024)\n"
    status, said, out = trace(GEMM + ADD + "run(2)\n" + use, listing=True)
    assert status == 0
    assert not any(launch.traced for launch in fake_gpu.LAUNCHES)
    assert not out.exists()
    rows = [line.replace("│", "|").split("|") for line in said.splitlines()]
    rows = [[cell.strip() for cell in row] for row in rows if len(row) > 9]
    assert [row[1] for row in rows if row[1] in {"plus", "gemm"}] == ["plus", "gemm"]
    plus = next(row for row in rows if row[1] == "plus")
    assert plus[3:6] == ["4", "4 x 1 x 1", "4"]
    assert plus[-3:-1] == ["4.000 ms", "66.7%"]


def test_a_pattern_that_fits_nothing_names_the_nearest(trace, capsys):
    status, _, _ = trace(GEMM + ADD + "run(1)", patterns=["gem"])
    assert status == 2
    said = capsys.readouterr().err
    assert "no Triton kernel is called gem, but gemm" in said
    assert not any(launch.traced for launch in fake_gpu.LAUNCHES)


def test_a_script_without_kernels_is_said(trace, capsys):
    assert trace("print('nothing')")[0] == 2
    assert "launched no Triton kernel" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        (ADD.replace("mask=i < n", "mask=i < m") + "x = torch.ones(9)\nplus[(1,)](x, x, x, 9, 16)", 1, "m is not"),
        ("import sys\nprint('no data', file=sys.stderr)\nsys.exit(3)", 3, "no data"),
    ],
)
def test_a_script_that_ends_before_its_first_launch_is_said_to_have_ended(trace, capsys, text, status, why):
    """As where a kernel does not compile: the error stands above the last sentence."""
    assert trace(text)[0] == status
    said = capsys.readouterr().err
    last = f"kperf: the script ended with status {status} before it launched a Triton kernel: "
    assert said.splitlines()[-1] == f"{last}what is printed above says why"
    assert why in said
    assert "launched no Triton kernel" not in said


def test_a_script_that_fails_keeps_its_status_and_what_was_traced(trace, capsys):
    status, _, out = trace(GEMM + "run(3)\n1 / 0")
    assert status == 1
    said = capsys.readouterr().err
    assert "ZeroDivisionError" in said
    assert "kperf/trace" not in said
    assert (out / "gemm.timeline.json").exists()
    assert trace(GEMM + "run(3)\nsys.exit(7)")[0] == 7


def test_each_rank_has_a_folder(trace, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    _, _, out = trace(GEMM + "run(1)")
    assert (out / "rank3" / "gemm.timeline.json").exists()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda patch, folder: patch.setattr("kperf.record.device.why_static", lambda: "there is no GPU"), "no GPU"),
        (lambda patch, folder: patch.setenv("TRITON_INTERPRET", "1"), "TRITON_INTERPRET is set"),
        (lambda patch, folder: patch.setenv("TRITON_KERNEL_OVERRIDE", "1"), "TRITON_KERNEL_OVERRIDE is set"),
        (lambda patch, folder: (folder / "out").write_text(""), "cannot be made"),
    ],
)
def test_what_cannot_work_is_said_before_the_script_runs(trace, tmp_path, monkeypatch, how, said):
    how(monkeypatch, tmp_path)
    with pytest.raises(UsageError, match=said):
        trace(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert not (tmp_path / "ran").exists()


def test_a_kernel_that_cannot_be_traced_runs_plain(trace, capsys):
    use = "x = torch.zeros(4096)\nfor _ in range(4): plus[(4,)](x, x, x, 4096, BLOCK=1024)\n"
    status, _, out = trace(GEMM + ADD + "run(3)\n" + use, regions=["nothing like it"])
    assert status == 2
    assert not any(launch.traced for launch in fake_gpu.LAUNCHES)
    assert "gemm is not traced: the TTGIR has no region named nothing like it" in capsys.readouterr().err
    assert not list(Path(out).iterdir())


def adds_one(traced, arguments):
    """What a kernel does that adds 1 to its output."""
    arguments[2].base.add_(1)


def test_a_check_starts_each_launch_from_the_same_bytes_and_leaves_what_one_launch_leaves(trace, capsys):
    fake_gpu.WRITES.append(adds_one)
    status, said, _ = trace(
        GEMM.replace("    for _", "    global out\n    out = c\n    for _") + "run(4); print(out[0, 0])", check=True
    )
    assert status == 0
    assert "Checked: its instrumented kernel writes what the original kernel writes, bit for bit." in said
    assert "tensor(4., dtype=torch.bfloat16)" in capsys.readouterr().out
    assert sum(launched("gemm")) > 2


def test_a_check_without_memory_for_its_second_copy_leaves_what_one_launch_leaves(trace, monkeypatch, capsys):
    fake_gpu.WRITES.append(adds_one)
    copy, copies = Memory.copy, count()

    def copied(memory):
        if next(copies) == 1:
            raise UsageError("--check copies 1 MB of arguments, for which there is no GPU memory")
        return copy(memory)

    monkeypatch.setattr(Memory, "copy", copied)
    trace(GEMM.replace("    for _", "    global out\n    out = c\n    for _") + "run(4); print(out[0, 0])", check=True)
    said = capsys.readouterr()
    assert "for which there is no GPU memory" in said.err
    assert "tensor(4., dtype=torch.bfloat16)" in said.out


def test_an_instrumented_kernel_that_writes_something_else_is_a_failed_check(trace, capsys):
    def write(traced, arguments):
        arguments[2].base[200, 200] = -0.0 if traced else 0.0

    fake_gpu.WRITES.append(write)
    status, _, out = trace(GEMM + "run(4)", check=True)
    assert status == 1
    assert "writes other bits than the original kernel" in capsys.readouterr().err
    assert not list(out.iterdir())


def test_a_pass_that_writes_something_else_is_a_failed_check(trace, capsys):
    launches = count()

    def write(traced, arguments):
        # Of the two launches with all records each is launched once to compare, and seven times to be timed.
        arguments[2].base[200, 200] = -0.0 if traced and next(launches) >= 2 * 8 else 0.0

    fake_gpu.WRITES.append(write)
    status, _, out = trace(GEMM + "run(12)", check=True, passes=2)
    assert status == 1
    assert "writes other bits than the original kernel" in capsys.readouterr().err
    assert not list(out.iterdir())


def test_a_kernel_that_never_writes_the_same_is_not_compared(trace):
    def write(traced, arguments):
        arguments[2].base[0, 0] = len(fake_gpu.LAUNCHES)

    fake_gpu.WRITES.append(write)
    status, said, _ = trace(GEMM + "run(4)", check=True)
    assert status == 0
    assert "does not write the same bits twice" in said


def test_the_warm_launch_gets_buffers_for_what_the_first_one_wrote(trace, monkeypatch):
    sizes = []
    monkeypatch.setattr(
        fake_gpu.FakeGpu, "buffer", lambda self, size: sizes.append(size) or torch.zeros(size, dtype=torch.uint8)
    )
    assert trace(GEMM + "run(3)")[0] == 0
    first, warm = sizes
    assert warm < first  # six iterations of the loop are few
    monkeypatch.setattr(fake_gpu, "ITERATIONS", 300)
    sizes.clear()
    assert trace(GEMM + "run(3)")[0] == 0
    first, warm = sizes
    assert warm > first
    timeline = read_timeline(trace(GEMM + "run(3)")[2] / "gemm.timeline.json")
    assert timeline.events.lost == 0
    assert trace(GEMM + "run(3)", memory=16 << 10)[0] == 2


def test_launches_into_a_graph_are_left_alone_and_said(trace, monkeypatch, capsys):
    monkeypatch.setattr(fake_gpu.FakeGpu, "capturing", lambda self: True)
    assert trace(GEMM + "run(3)")[0] == 2
    assert launched("gemm") == [False] * 3
    assert "gemm is not traced: it was launched into a CUDA graph alone" in capsys.readouterr().err


def test_of_a_kernel_that_is_launched_once_it_is_not_known_what_tracing_costs(trace):
    overhead = read_timeline(trace(GEMM + "run(1)")[2] / "gemm.timeline.json").overhead
    assert (overhead.original_ms, overhead.ratio) == (None, None)
    overhead = read_timeline(trace(GEMM + "run(2)")[2] / "gemm.timeline.json").overhead
    assert overhead.ratio == overhead.instrumented_ms / overhead.original_ms


def test_what_cannot_be_read_does_not_cost_the_others(trace, tmp_path, monkeypatch):
    read = results.read.timeline

    def breaks_once(launch, about):
        monkeypatch.setattr(results.read, "timeline", read)
        raise IndexError("a bug")

    monkeypatch.setattr(results.read, "timeline", breaks_once)
    with pytest.raises(IndexError, match="a bug"):
        trace(GEMM + "run(3, 8); run(3, 4)")
    assert [path.name for path in tmp_path.glob("out/*.timeline.json")] == ["gemm.timeline.json"]


def test_fewer_records_where_all_of_them_cost_a_cta_on_an_sm(trace, monkeypatch):
    measured = instrumented.resource_usage
    details = []

    def claims(kernel, folder):
        used = measured(kernel, folder)
        return replace(used, occupancy=0) if details == ["fine"] else used

    def noted(text, *, detail, **options):
        details.append(detail)
        return events.instrumented(text, detail=detail, **options)

    monkeypatch.setattr(instrumented, "resource_usage", claims)
    monkeypatch.setattr(instrumented, "instrumented", noted)
    status, said, _ = trace(GEMM + "run(1)")
    assert details == ["fine", "coarse"]
    assert status == 0
    assert "CTAs an SM where" not in said


def test_regions_are_of_the_file_that_ran_where_an_equal_kernel_of_another_is_in_the_cache(trace, tmp_path):
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(GEMM + "run(1)")
        _, _, out = trace(f"import runpy; runpy.run_path({str(tmp_path / name)!r})", passes=1)
        sources = [region.source for region in read_timeline(out / "gemm.timeline.json").regions]
        assert {Path(source.file).name for source in sources} == {name}
        assert GEMM.splitlines()[max(source.line for source in sources) - 1].startswith("    c_desc.store")


def test_regions_that_events_cannot_number_are_said_to_be_left_out(trace, monkeypatch):
    _, said, _ = trace(GEMM + "run(1)", passes=1)
    assert "have no events" not in said
    monkeypatch.setattr(events, "MAX_SCOPES", 3)
    status, said, out = trace(GEMM + "run(1)", passes=1)
    timeline = read_timeline(out / "gemm.timeline.json")
    assert status == 0
    (sentence,) = (line for line in timeline.verdict if "have no events" in line)
    assert sentence in " ".join(said.split())
    assert sentence.startswith("gemm: 1 of its regions have no events, which number 3 at most")
    assert [region.name for region in timeline.regions if region.warp_group == "all warps"] == [
        "load a + load b + wait a+b full + a @ b issue", "load a + load b", "a @ b wait", "store c"
    ]  # fmt: skip


@pytest.mark.parametrize(("ctas", "said_so"), [(-1, True), (+1, False)])
def test_a_cta_lost_on_an_sm_is_said_and_one_won_is_not(trace, monkeypatch, ctas, said_so):
    measured = instrumented.resource_usage
    asked = count()

    def claims(kernel, folder):
        used = measured(kernel, folder)
        return replace(used, occupancy=used.occupancy + (ctas if next(asked) else 0))  # first the original kernel's

    monkeypatch.setattr(instrumented, "resource_usage", claims)
    _, said, _ = trace(GEMM + "run(1)")
    assert ("leave room for 0 CTAs an SM where 1 fit" in said) is said_so
    assert ("CTAs an SM where" in said) is said_so


def test_an_instrumented_kernel_that_cannot_be_launched_gives_way_to_the_original_kernel(trace, capsys):
    def refuse(traced, arguments):
        if traced:
            raise RuntimeError("Triton Error [CUDA]: too many blocks in cooperative launch")

    fake_gpu.WRITES.append(refuse)
    assert trace(GEMM + "run(3)")[0] == 2
    assert launched("gemm") == [False] * 3
    assert "gemm is not traced: its instrumented kernel cannot be launched: Triton Error" in capsys.readouterr().err


def test_a_kernel_without_mmas_is_read_too(trace):
    use = "x = torch.zeros(4096)\nfor _ in range(4): plus[(4,)](x, x, x, 4096, BLOCK=1024)\n"
    status, said, out = trace(ADD + use)
    assert status == 0
    assert launched("plus") == [True, False, True, False]
    timeline = read_timeline(out / "plus.timeline.json")
    assert timeline.view == "memory"
    assert timeline.ctas == 4
    assert timeline.verdict[0] in said


def test_beside_another_that_measures_nothing_is_traced_and_the_script_goes_on(trace, capsys):
    with another_that_measures():
        status, _, out = trace(GEMM + "run(3)")
    assert status == 2
    assert launched("gemm") == [False] * 3
    assert "is measuring on GPU fake: wait for it to end" in capsys.readouterr().err
    assert list(out.iterdir()) == []
    with another_that_measures():
        assert trace(GEMM + "run(3)", listing=True)[0] == 0


def test_a_trace_that_waits_runs_the_script_when_the_gpu_is_given_back(trace):
    with another_that_measures() as holder:
        Timer(0.2, holder.kill).start()
        script = "from kperf.record import device; assert device._ours == {'fake'}\n" + GEMM + "run(3)"
        status, _, out = trace(script, wait=True)
    assert status == 0
    assert launched("gemm") == [True, False, True]
    assert (out / "gemm.timeline.json").is_file()


def test_while_a_trace_that_waits_compiles_another_has_the_gpu(trace):
    begin = """
from threading import Timer
from tests.record.test_lock import another_in_turn

with another_in_turn() as other:
    assert not other.poll(0.2)
    Timer(0.2, other.send, ["end"]).start()
    run(3)
    assert other.poll() and other.recv() == "held"
"""
    status, _, out = trace(GEMM + begin, wait=True)
    assert status == 0
    assert (out / "gemm.timeline.json").is_file()


def test_a_gpu_that_does_not_say_what_it_is_costs_the_script_nothing(trace, monkeypatch, capsys):
    def refuse():
        raise RuntimeError("NVML: Unknown Error")

    monkeypatch.setattr(device, "environment", refuse)
    status, _, out = trace(GEMM + "run(3)\nprint('the script has ended')")
    assert status == 1
    assert launched("gemm") == [True, False, True]
    printed = capsys.readouterr()
    assert "the script has ended" in printed.out
    assert "gemm is not traced: the GPU does not say what it is: NVML: Unknown Error" in printed.err
    assert list(out.iterdir()) == []


def test_the_gpu_is_given_back_before_the_pictures(trace, monkeypatch):
    held = []
    draw = results.Results.draw
    monkeypatch.setattr(results.Results, "draw", lambda *given: held.append(set(device._ours)) or draw(*given))
    assert trace(GEMM + "run(3)")[0] == 0
    assert held == [set()]


def test_the_gpu_is_given_back_with_the_scripts_end(trace):
    script = GEMM + "run(1)\nfrom kperf.record import device; assert device._ours == {'fake'}"
    assert trace(script)[0] == 0
    with device.exclusive():
        pass


def test_what_follows_the_script_is_the_scripts(trace, tmp_path, monkeypatch, unrendered):
    monkeypatch.setattr(command, "Gpu", fake_gpu.FakeGpu)
    monkeypatch.setattr(sys, "stdin", io.StringIO("a line\n"))
    (tmp_path / "it.py").write_text(GEMM + "run(1)\nprint(sys.argv, input())\nsys.exit(5)")
    ours = ["trace", "--kernel", "ge*", "--out", str(tmp_path / "out"), str(tmp_path / "it.py")]
    found = kperf(*ours, "--list", "-m", "--out=x")
    assert found.returncode == 5, found.stderr
    assert found.stdout.startswith(f"['{tmp_path}/it.py', '--list', '-m', '--out=x'] a line\n")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"gemm.{kind}" for kind in ("timeline.json", "chrome_trace.json", "ir.json.gz", "png", "pdf")
    }
    refused = kperf("trace", "--lsit", *ours[-1:])
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1


def test_arithmetic_of_libraries_and_gathers_have_names(trace):
    """A dropout with a function of libdevice, and a scan with a sort and a gather, as tutorials write them."""
    status, _, out = trace(TUTORIALS)
    assert status == 0
    names = {
        kernel: {region.name for region in read_timeline(out / f"{kernel}.timeline.json").regions}
        for kernel in ("seeded_dropout", "running_max")
    }
    assert any("asinf" in name for name in names["seeded_dropout"])
    assert any("gather" in name for name in names["running_max"])
    assert "scan" in names["running_max"]


def test_what_is_read_of_machine_code_is_kept_in_the_cache_that_is_gone_afterwards(trace, tmp_path, monkeypatch):
    """Also of passes, of what is compared, and of what is listed."""
    dumped = []
    dump = compiler._dump

    def noted(kernel, tool, *options):
        dumped.append((tool, Path(triton.knobs.cache.dir)))
        return dump(kernel, tool, *options)

    assert why_no_events() is None  # its own kernel, once a process, stays in Triton's cache
    monkeypatch.setattr(compiler, "_dump", noted)
    assert trace(GEMM + "run(24)", passes=2)[0] == 0
    assert {tool for tool, _ in dumped} == {"cuobjdump", "nvdisasm"}
    assert {folder for _, folder in dumped} == {fake_gpu.INSTRUMENTED}
    dumped.clear()
    monkeypatch.setattr(instrumented, "own_cache", own_cache)
    assert trace(GEMM + "run(2)", listing=True)[0] == 0
    assert all(".kperf-trace-" in str(folder) for _, folder in dumped)
    assert dumped


THREADS = """
import threading
x = torch.zeros(4096)

def launch_plus():
    compiling.wait(240)
    for _ in range(4): plus[(4,)](x, x, x, 4096, BLOCK=1024)
    launched.set()

plus[(1,)](x, x, x, 1024, BLOCK=1024)
thread = threading.Thread(target=launch_plus)
thread.start()
run(3)
thread.join()
"""


def test_launches_of_a_thread_while_another_one_compiles_are_neither_lost_nor_compiled_with_events(
    trace, tmp_path, monkeypatch
):
    compiling, launched_all = threading.Event(), threading.Event()
    monkeypatch.setattr("builtins.compiling", compiling, raising=False)
    monkeypatch.setattr("builtins.launched", launched_all, raising=False)
    make = capturer.make_instrumented

    def slow(kernel, *arguments, **options):
        if kernel.name == "gemm" and not compiling.is_set():
            with session(Recording((0,), 4), apart=True):  # as while it compiles
                compiling.set()
                assert not launched_all.wait(0.5)  # for its warm launch it waits, and does not go without
        return make(kernel, *arguments, **options)

    monkeypatch.setattr(capturer, "make_instrumented", slow)
    status, _, out = trace(GEMM + ADD + THREADS, passes=1)
    assert status == 0
    assert launched("plus") == [True, False, True, False, True]
    assert {path.name for path in out.glob("*.timeline.json")} == {"gemm.timeline.json", "plus.timeline.json"}
    assert read_timeline(out / "plus.timeline.json").grid == (4, 1, 1)


def test_whether_events_disturb_is_read_of_machine_code_while_no_other_thread_compiles(trace, monkeypatch):
    """Where what is compiled is kept is one setting for all threads: whoever leaves last would set it for good."""
    deciding, launched_all = threading.Event(), threading.Event()
    monkeypatch.setattr("builtins.compiling", deciding, raising=False)
    monkeypatch.setattr("builtins.launched", launched_all, raising=False)
    decide = capturer.disturbs

    def slow(every, cost, folder):
        if every.original.name == "gemm" and not deciding.is_set():
            deciding.set()
            assert not launched_all.wait(0.5)
        return decide(every, cost, folder)

    monkeypatch.setattr(capturer, "disturbs", slow)
    assert trace(GEMM + ADD + THREADS.replace("run(3)", "run(12)"))[0] == 0
    assert launched_all.is_set()
    assert deciding.is_set()


def test_machine_code_that_cannot_be_read_costs_the_script_nothing(trace, monkeypatch):
    """The launch of all CTAs is read, and says why no sample is beside it."""

    def fail(*_):
        raise OSError("nvdisasm is gone")

    monkeypatch.setattr(capturer, "disturbs", fail)
    status, _, out = trace(GEMM + "run(16)")
    assert status == 0
    assert len(launched("gemm")) == 16
    assert read_timeline(out / "gemm.timeline.json").why_all.endswith("disturb it is not known: nvdisasm is gone")


def test_a_kernel_on_two_gpus_is_two_kernels_and_each_runs_on_its_own(trace, monkeypatch):
    class TwoGpus(fake_gpu.FakeGpu):
        current = 0

        def device(self):
            return sys.modules["__main__"].__dict__.get("gpu", 0)

        def at(self, device):
            seen.append(device)
            return super().at(device)

    seen = []
    script = ADD + (
        "x = torch.zeros(4096)\nfor n in range(24):\n    gpu = n % 2\n    plus[(4 + gpu,)](x, x, x, 4096, BLOCK=1024)\n"
    )
    status, _, out = trace(script, gpu=TwoGpus(), passes=1)
    assert status == 0
    assert launched("plus")[:6] == [True, True, False, False, True, True]
    first, second = sorted(out.glob("*.timeline.json"), key=lambda path: len(path.name))
    assert first.name == "plus.timeline.json"
    assert re.fullmatch(r"plus\.[0-9a-f]{8}\.timeline\.json", second.name)
    assert [read_timeline(path).grid for path in (first, second)] == [(4, 1, 1), (5, 1, 1)]
    assert set(seen) == {0, 1}


def test_stop_ends_the_script_when_all_is_read(trace, capsys):
    use = "x = torch.zeros(4096)\nfor n in range(1000): plus[(4,)](x, x, x, 4096, BLOCK=1024); last = n\n"
    status, said, out = trace(ADD + use + "print('never')", stop=True, passes=1)
    assert status == 0
    assert len(launched("plus")) == 12  # the first, a plain one, and five of each in turn
    printed = capsys.readouterr()
    assert "never" not in printed.out
    assert "kperf: all that was asked for is read: the script is ended (--stop)\n" in printed.err
    assert read_timeline(out / "plus.timeline.json").verdict[0] in said
    fake_gpu.LAUNCHES.clear()
    assert trace(ADD + use, stop=True, patterns=["plus", "other"])[0] == 0
    assert len(launched("plus")) == 1000


def test_stop_waits_for_a_kernel_that_may_come_again_and_not_for_ever(trace, capsys):
    """A thousand launches of others; it is asked for every hundredth."""
    twice = "x = torch.zeros(4096)\nfor _ in range(2): plus[(8,)](x, x, x, 4096, BLOCK=512)\n"
    often = "for _ in range(3000): plus[(4,)](x, x, x, 4096, BLOCK=1024)\nprint('never')"
    assert trace(ADD + twice + often, stop=True, passes=1)[0] == 0
    assert len(launched("plus")) == 1100
    assert "never" not in capsys.readouterr().out


GRAPHS = (
    ADD
    + """
x, out = torch.ones(256), torch.zeros(256)
for _ in range(3): plus[(2,)](x, x, out, 256, BLOCK=128)
print(out.sum())
"""
)


def test_a_kernel_in_graphs_alone_is_launched_once_more_where_a_check_puts_back_what_it_wrote(
    trace, monkeypatch, capsys
):
    monkeypatch.setattr(fake_gpu.FakeGpu, "capturing", lambda self: "__main__" in sys.modules and not over)
    over = []
    end = Interceptor.end
    monkeypatch.setattr(Interceptor, "end", lambda self: (over.append(1), end(self)))
    status, said, out = trace(GRAPHS, check=True)
    assert status == 0
    assert launched("plus")[:3] == [False] * 3
    assert True in launched("plus")[3:]
    assert "Checked: its instrumented kernel writes what the original kernel writes, bit for bit." in said
    assert read_timeline(out / "plus.timeline.json").grid == (2, 1, 1)
    assert {launch.arguments[3] for launch in fake_gpu.LAUNCHES} == {256}
    over.clear()
    fake_gpu.LAUNCHES.clear()
    status, _, _ = trace(GRAPHS)
    assert (status, launched("plus")) == (2, [False] * 3)
    assert "or give --check, with which it is launched once more by itself" in capsys.readouterr().err


@pytest.mark.parametrize(("megabytes", "status"), [(2047, 0), (2048, 2), (10**12, 2)])
def test_a_buffer_that_proton_cannot_address_is_refused(trace, tmp_path, monkeypatch, megabytes, status):
    monkeypatch.setattr(command, "Gpu", fake_gpu.FakeGpu)
    (tmp_path / "it.py").write_text("print('ran')")
    found = kperf("trace", "--list", "--memory", megabytes, tmp_path / "it.py")
    assert found.returncode == status
    assert ("ran" in found.stdout) == (status == 0)


def test_the_buffer_of_a_launch_stays_below_what_proton_can_address(monkeypatch):
    """Whoever asks for how much."""
    program = read_program(instrument(compiled_case("gemm_pointers_3").asm["ttgir"]))
    original = ResourceUsage(168, 0, 200_000, 1)
    for ctas in (1, 5000, 100_000):
        chosen = instrumented.recording_of_launch(program, original, ctas, 1 << 40, 100_000)
        assert ctas * chosen.block_bytes < 1 << 31
        assert ctas < 5000 or 2 * ctas * chosen.block_bytes > 1 << 31  # and is no smaller than it has to be
    with pytest.raises(UsageError, match="do not fit into 2047 MB: no buffer can be larger"):
        instrumented.recording_of_launch(program, original, 10**8, 1 << 40)
    with pytest.raises(UsageError, match="do not fit into 100 MB: give more with --memory"):
        instrumented.recording_of_launch(program, original, 10**6, 100 << 20)


def test_an_instrumented_kernel_that_is_slow_to_compile_is_not_compiled_again(trace, monkeypatch):
    compiled = []
    make = capturer.make_instrumented
    monkeypatch.setattr(capturer, "make_instrumented", lambda *a, **o: compiled.append(1) or make(*a, **o))
    monkeypatch.setattr(capturer, "_SLOW_S", -1.0)
    status, _, out = trace(GEMM + "run(3)")
    assert (status, len(compiled)) == (0, 1)
    assert read_timeline(out / "gemm.timeline.json").events.lost == 0
    compiled.clear()
    monkeypatch.setattr(fake_gpu, "ITERATIONS", 300)  # events were lost: a larger buffer is needed
    status, _, out = trace(GEMM + "run(3)")
    assert (status, len(compiled)) == (0, 2)
    assert read_timeline(out / "gemm.timeline.json").events.lost == 0


def test_an_error_of_ours_is_said_in_words(trace, monkeypatch, capsys):
    def breaks(*_, **__):
        raise KeyError(((12, False), (15, True)))

    monkeypatch.setattr(capturer, "plan", breaks)
    status, said, _ = trace(GEMM + "run(14)", gpu=Heating())
    assert status == 0
    sentence = "an instrumented kernel of a few events is refused: KeyError, an error in this program"
    assert sentence in said.replace("\n", " ")
    assert "12, False" not in said + capsys.readouterr().err


def test_all_kernels_on_one_page(tmp_path, in_a_fork):
    script = tmp_path / "it.py"
    script.write_text(GEMM + ADD + "run(1); x = torch.zeros(4096); plus[(4,)](x, x, x, 4096, 1024)")
    command = [*in_a_fork, "-m", "tests.trace.capture.fake_gpu", "trace", "--html", "--passes", "1", "--out"]
    done = subprocess.run(
        [*command, tmp_path / "out", script], capture_output=True, text=True, env=os.environ | {"RANK": "1"}, check=True
    )
    page = (tmp_path / "out/rank1/report.html").read_text()
    assert "Inside 2 GPU kernels" in page
    assert "report.html (2 kernels" in " ".join(done.stdout.split())
