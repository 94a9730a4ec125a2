"""Ctrl-C in each long command: one sentence, status 130, nothing half-written, no process left, what was recorded kept.

Each command is a process of its own, forked from this one that has imported everything, and the head of a session: what
it has started, too, can be found afterwards. Where a test says, the command stands still, and then gets the signal.
"""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

import kperf.plots.trace
from kperf import cli
from kperf.attention import overrides
from kperf.attention.workload import Workload
from kperf.bench import power
from kperf.bench import sweep as sweeps
from kperf.bench.points import PowerStore, Store
from kperf.cli.app import console
from kperf.console import of_standard_output
from kperf.ir import compile as compiler
from kperf.paper import examples, fig11, fig12, fig12_inputs
from kperf.paper import overhead as paper_overhead
from kperf.plots import style
from kperf.record import device
from kperf.record.store import RECORDED, RecordStore
from kperf.studies import accuracy, child, fig13, lines, ncu, timers
from kperf.trace import command
from tests.bench import test_commands as on_a_gpu
from tests.bench import test_sweep
from tests.conftest import environment
from tests.processes import has_ended, soon
from tests.studies import test_accuracy, test_overhead
from tests.trace.capture import fake_gpu
from tests.trace.capture.test_command import ADD

FORK = multiprocessing.get_context("fork")
KEPT = "kperf: interrupted: what was recorded is kept"
LIMIT_S = 240


@dataclass
class Ended:
    status: int
    stdout: str
    stderr: str


class Session:
    """A folder for one command after another; `prepare` puts a GPU in its place, in the command's process alone."""

    def __init__(self, folder: Path, prepare: Callable[[], None] = lambda: None) -> None:
        self.folder = folder
        self.results = folder / "results"
        self.prepare = prepare
        for name in ("tmp", "results", "locks"):
            (folder / name).mkdir()

    def command(self, words, owner: Any = None, name: str = "", call: int = 1) -> Ended:
        """Runs to its end, or until the call of `owner.name` with this number, or a program that touches `there`."""
        process = FORK.Process(target=self._run, args=(words, owner, name, call))
        process.start()
        until = time.monotonic() + LIMIT_S
        while process.is_alive() and not self.there.exists():
            assert time.monotonic() < until, self.said("err")
            time.sleep(0.02)
        if self.there.exists():
            self.there.unlink()
            os.kill(process.pid, signal.SIGINT)
        process.join(LIMIT_S)
        if not soon(lambda: not processes_of(process.pid)):
            for one in (left := processes_of(process.pid)):
                os.kill(one, signal.SIGKILL)
            assert left == []
        return Ended(process.exitcode, self.said("out"), self.said("err"))

    @property
    def there(self) -> Path:
        return self.folder / "there"

    def said(self, stream: str) -> str:
        return (self.folder / stream).read_text()

    def _run(self, words, owner, name, call):
        os.setsid()
        torch.set_num_threads(1)  # OpenMP's threads are not forked: more than one would be waited for without end
        sys.stdout, sys.stderr = (open(self.folder / stream, "w") for stream in ("out", "err"))  # noqa: PTH123, SIM115
        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            os.dup2(stream.fileno(), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.folder / "tmp")
        os.environ["THERE"] = str(self.there)
        device.LOCKS = self.folder / "locks"
        self.prepare()
        if owner is not None:
            setattr(owner, name, standing_still(getattr(owner, name), call, self.there))
        sys.argv = ["kperf", *map(str, words)]
        console.width = of_standard_output().width
        cli.main()

    def is_clean(self) -> bool:
        """Nothing is left of what was only on the way."""
        return not list((self.folder / "tmp").iterdir()) and not list(self.results.rglob(".*"))


def standing_still(function, call, there):
    calls = iter(range(1, 10**6))

    def instead(*arguments, **options):
        if next(calls) == call:
            there.touch()
            time.sleep(LIMIT_S)
        return function(*arguments, **options)

    return instead


def processes_of(session):
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, session_of = (path / "stat").read_text().rpartition(")")[2].split()[0:4:3]
        except OSError:
            continue
        if int(session_of) == session and state != "Z":
            found.append(int(path.name))
    return found


def hopper():
    device.why_static = lambda: None
    device.gpu_name = lambda: "NVIDIA H200"
    device.environment = environment


def sweeping():
    hopper()
    test_sweep.fake(setattr)
    for module in (fig12, fig12_inputs):
        module.verify_overrides = lambda *_, **__: None
    fig12.grid = lambda mode, sweeps=(): test_sweep.PLACES[:3]
    fig12.FIG12 = ("fa3", "triton")
    fig12_inputs.COMPARED = ("triton",)
    fig12_inputs.groups = lambda: [
        [(sweep, workload.model_copy(update={"inputs": kind})) for kind in ("normal", "x4")]
        for sweep, workload in test_sweep.PLACES[:3]
    ]
    undrawn()


@pytest.mark.parametrize(
    ("words", "file", "inputs"),
    [
        (["fig12"], "fig12", 1),
        (["sweep", "seq_len", "--only", "fa3,triton"], "fig12", 1),
        (["inputs"], "fig12_inputs", 2),
    ],
)
def test_a_sweep_goes_on_where_it_was(tmp_path, words, file, inputs):
    session = Session(tmp_path, sweeping)
    words = [*words, "--results", session.results, "--rounds", "10"]
    first = session.command(words, sweeps, "measure", 2)
    assert (first.status, first.stderr) == (130, f"{KEPT}, and the same command goes on from there\n")
    store = Store(session.results / "h200", file)
    kept = store.points()
    assert len(kept) == 2 * inputs
    assert session.is_clean()
    second = session.command(words)
    assert (second.status, second.stderr) == (0, "")
    assert store.points()[: len(kept)] == kept
    assert len(store.points()) == 3 * len(kept)


def sustained():
    patch = pytest.MonkeyPatch()
    gpu = on_a_gpu.Gpu()
    on_a_gpu.stand_in(gpu, patch)
    gpu.stand_in(patch, power)
    hopper()
    on_a_gpu.offered(patch, power, on_a_gpu.attention(gpu, "fa3", 1.5))
    power.workloads = lambda causal: [on_a_gpu.WORKLOAD, Workload(batch=1, heads=2, seq_len=256, head_dim=64)]
    device.energy_j = lambda: 60.0 * (gpu.now_ms // 100)
    device.exclusive = test_sweep.contextlib.nullcontext


def test_what_was_sustained_before_is_kept(tmp_path):
    session = Session(tmp_path, sustained)
    ended = session.command(["power", "--results", session.results, "--passes", "1"], power, "prepare_alone", 2)
    assert (ended.status, ended.stderr) == (130, f"{KEPT}\n")
    assert [point.seq_len for point in PowerStore(session.results / "h200").points()] == [128, 128]
    assert session.is_clean()


def rows_of(module, row):
    """The command measures this row twice."""

    def prepare():
        hopper()
        device.exclusive = test_sweep.contextlib.nullcontext
        module.measure = lambda *common, **_: (row(**common[-1]) for _ in range(2))

    return prepare


def region(**common):
    return test_accuracy.region("fma", 16, 17.0).model_copy(update=common)


def choice(**common):
    return fig13.row(test_overhead.COMMON | common, "vanilla", test_overhead.taken())


@pytest.mark.parametrize(
    ("name", "prepare", "rows"),
    [
        ("accuracy", rows_of(accuracy, region), accuracy.ROWS),
        ("overhead", rows_of(paper_overhead, choice), fig13.ROWS),
    ],
)
def test_rows_are_kept_as_they_come(tmp_path, name, prepare, rows):
    from kperf.record import store

    session = Session(tmp_path, prepare)
    ended = session.command([name, "--results", session.results], store.Writer, "append", 2)
    assert (ended.status, ended.stderr) == (130, f"{KEPT}\n")
    assert len(RecordStore(session.results / "h200", name, rows).points()) == 1
    assert session.is_clean()


PROGRAM = """#!/bin/sh
sleep 1000 &
touch $THERE
wait
"""
"""In the place of a profiler, or of Python under one: it has started another process."""


def slow_programs(folder):
    def prepare():
        hopper()
        program = folder / "program"
        program.write_text(PROGRAM)
        program.chmod(0o755)
        sys.executable = str(program)
        examples.KPERF = (str(program),)
        ncu.find = lambda given: program
        timers._calls = lambda: ({"copy": None}, {"numba": "there is none"})
        timers._in_turn = lambda calls: {}
        timers._sweep = lambda row, calls: ()
        lines.PROFILERS = {"ncu": lines.PROFILERS["ncu"]}
        device.exclusive = test_sweep.contextlib.nullcontext

    return prepare


@pytest.mark.parametrize(("name", "kept"), [("timers", 11), ("lines", 0), ("proton", 0), ("examples", 0)])
def test_no_process_is_left_of_those_that_were_started(tmp_path, name, kept):
    session = Session(tmp_path, slow_programs(tmp_path))
    ended = session.command([name, "--results", session.results])
    assert (ended.status, ended.stderr) == (130, f"{KEPT}\n")
    records = session.results / f"h200/{name}.jsonl"
    assert len(records.read_text().splitlines() if records.exists() else []) >= kept
    assert session.is_clean()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_a_process_whose_time_is_over_ends_with_all_that_it_has_started(tmp_path, ending):
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\ntrap '' INT TERM\nsleep 1000 &\necho $!\nwait\n")  # it does not listen
    program.chmod(0o755)
    child._GRACE_S, before = 0.1, child._GRACE_S
    with pytest.raises(child.subprocess.TimeoutExpired) as raised:
        child.run([program], 0.5, ending=ending)
    child._GRACE_S = before
    sleeping = int(raised.value.stdout)
    assert soon(lambda: has_ended(sleeping))


@pytest.mark.parametrize(
    "start", [lambda: child.run(["sleep", "1000"], 60), lambda: list(child.side_by_side([["sleep", "1000"]], 1, 60))]
)
def test_a_process_that_begins_as_ctrl_c_is_pressed_ends_too(monkeypatch, start):
    begun = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *words, **options):
            super().__init__(*words, **options)
            begun.append(self.pid)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(child.subprocess, "Popen", Interrupted)
    monkeypatch.setattr(child, "_GRACE_S", 0.1)
    with pytest.raises(KeyboardInterrupt):
        start()
    assert soon(lambda: has_ended(begun[0]))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def compiling(folder):
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)

    def compile_one(number):
        (folder / f"begun{number}").touch()
        done = subprocess.run(["sleep", "0.3"], check=False)  # a shell would hear the signal all the same
        (folder / f"ended{number}").write_text(str(done.returncode))

    try:
        compiler.several(compile_one, range(100))
    except KeyboardInterrupt:
        sys.exit(130)


def test_what_is_being_compiled_at_a_terminal_ends_whole_and_nothing_more_begins(tmp_path):
    process = FORK.Process(target=compiling, args=(tmp_path,))
    process.start()
    while not list(tmp_path.glob("ended*")):
        time.sleep(0.01)
    time.sleep(0.1)  # the next ones sleep
    os.killpg(process.pid, signal.SIGINT)
    process.join(LIMIT_S)
    assert process.exitcode == 130
    begun, ended = (list(tmp_path.glob(f"{what}*")) for what in ("begun", "ended"))
    assert {path.read_text() for path in ended} == {"0"}
    assert len(begun) == len(ended) < 100


def tracing():
    hopper()
    device.exclusive = test_sweep.contextlib.nullcontext
    fig11.subject = lambda name: SimpleNamespace(passes=None)
    fig11.prove = lambda subjects: None
    fig11.normal_qkv = lambda workload: ()
    fig11.trace = lambda *_: None


def undrawn():
    Figure.savefig = lambda self, stream, **_: stream.write(b"not rendered")
    style.quantised = lambda png: png


def verified():
    undrawn()
    fig12.verify_overrides = lambda console, **_: None


@pytest.mark.parametrize(
    ("words", "prepare", "owner", "name", "call"),
    [
        (["fig11"], lambda: None, fig11, "compile_orders", 1),
        (["fig11", "--passes", "1"], tracing, fig11, "trace", 2),
        (["fig12"], lambda: None, overrides, "check_source", 1),
        (["fig12"], verified, Figure, "savefig", 2),
        (["override", "verify"], lambda: None, overrides, "verify", 1),
        (["ttgir", "vanilla"], lambda: None, overrides, "write_atomically", 1),
    ],
)
def test_what_was_recorded_is_as_it_was(tmp_path, words, prepare, owner, name, call):
    session = Session(tmp_path, prepare)
    shutil.copytree(RECORDED, session.results, dirs_exist_ok=True)
    before = {path: path.stat().st_mtime_ns for path in session.results.rglob("*.json*")}
    options = ["--results", session.results] if words[0].startswith("fig") else []
    ended = session.command([*words, *options], owner, name, call)
    assert (ended.status, ended.stderr.splitlines()[-1:]) == (130, [KEPT])
    assert {path: path.stat().st_mtime_ns for path in session.results.rglob("*.json*")} == before
    assert session.is_clean()


SCRIPT = """
import os, pathlib, time
x, out = torch.ones(256), torch.empty(256)
for _ in range(3):
    plus[(2,)](x, x, out, 256, BLOCK=128)
"""
STANDS_STILL = "pathlib.Path(os.environ['THERE']).touch()\ntime.sleep(60)\n"


def traced(folder, script):
    """A session on the fake GPU, and what to type for this script."""

    def prepare():
        undrawn()
        fake_gpu.install(folder / "locks")
        command.Gpu = fake_gpu.FakeGpu

    session = Session(folder, prepare)
    (folder / "it.py").write_text(ADD + script)
    return session, ["trace", "--out", session.results, folder / "it.py"]


def test_a_script_ends_as_under_python_and_what_it_had_launched_is_shown(tmp_path):
    session, words = traced(tmp_path, SCRIPT + STANDS_STILL)
    ended = session.command(words)
    assert ended.status == 130
    assert "kperf: traced plus, launch 3" in ended.stderr
    assert "time.sleep(60)\nKeyboardInterrupt\nkperf: read plus: " in ended.stderr
    assert {path.suffix for path in session.results.iterdir()} == {".json", ".gz", ".png", ".pdf"}
    assert session.is_clean()


def test_after_the_script_a_trace_is_whole_or_not_there(tmp_path):
    session, words = traced(tmp_path, SCRIPT)
    ended = session.command(words, kperf.plots.trace, "draw")
    assert (ended.status, ended.stderr.splitlines()[-1]) == (130, KEPT)
    kept = {f"plus.{kind}" for kind in ("timeline.json", "chrome_trace.json", "ir.json.gz")}
    assert {path.name for path in session.results.iterdir()} == kept
    assert session.is_clean()


STARTING = """
import builtins, os, signal, sys
{setting}
imported = builtins.__import__
def interrupted(name, *rest):
    if name == {name!r}:
        os.kill(os.getpid(), signal.SIGINT)
    return imported(name, *rest)
builtins.__import__ = interrupted
sys.argv = ["kperf", "doctor"]
from kperf.cli import main
main()
"""


def started(name, setting=""):
    """A command in which the signal comes as it imports this."""
    program = [sys.executable, "-c", STARTING.format(name=name, setting=setting)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "name", ["kperf.cli.commands", "typer", "rich.console", "pydantic", "kperf.record.machine", "pynvml"]
)
def test_a_command_that_has_hardly_begun_ends_in_a_sentence_too(name):
    ended = started(name)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", f"{KEPT}\n")


def test_a_sentence_that_nobody_can_read_costs_no_status():
    assert started("typer", "os.close(2)").returncode == 130


def test_where_the_signal_is_ignored_it_stays_ignored():
    ended = started("typer", "signal.signal(signal.SIGINT, signal.SIG_IGN)")
    assert ended.returncode in {0, 1}
    assert ended.stderr == ""
    assert "Python 3" in ended.stdout


@pytest.mark.parametrize("library", ["pydantic_core", "multiarray_umath", "libtorch_cpu"])
def test_a_signal_while_a_library_is_imported_is_no_error_of_that_library(library):
    """It comes as soon as the library's machine code is mapped; numpy and torch make other errors of an exception."""
    process = subprocess.Popen([sys.executable, "-m", "kperf", "claims"], stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + LIMIT_S
    while library not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        assert time.monotonic() < until
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, said) == (130, f"{KEPT}\n")


def test_a_script_finds_pythons_own_handler(tmp_path):
    session, words = traced(tmp_path, SCRIPT + "import signal\nprint(signal.getsignal(signal.SIGINT))\n")
    ended = session.command(words)
    assert ended.status == 0
    assert "default_int_handler" in ended.stdout
