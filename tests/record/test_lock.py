"""One process at a time measures on a GPU."""

import fcntl
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Timer
from types import SimpleNamespace

import pytest
import torch

from kperf.bench import power
from kperf.bench import sweep as sweeps
from kperf.bench.points import PowerStore, Store
from kperf.errors import UsageError
from kperf.paper import fig11
from kperf.record import device
from kperf.studies import overhead
from kperf.trace.capture.buffers import capture

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """The current GPU: its UUID can be changed."""
    gpu = SimpleNamespace(uuid="a")
    monkeypatch.setattr(device, "LOCKS", tmp_path / "locks")
    (tmp_path / "locks").mkdir()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: gpu)
    monkeypatch.setattr(device, "why_static", lambda: None)
    return gpu


def hold(pipe):
    with device.exclusive():
        pipe.send("held")
        pipe.recv()


@contextmanager
def another_that_measures():
    """Another process that holds the lock of the current GPU."""
    ours, its = FORK.Pipe()
    process = FORK.Process(target=hold, args=(its,))
    process.start()
    assert ours.recv() == "held"
    try:
        yield process
    finally:
        process.kill()
        process.join()


def test_one_process_at_a_time_and_a_killed_one_gives_it_back(gpu):
    with another_that_measures() as holder:
        with pytest.raises(UsageError, match=r"measuring on GPU a: wait for it to end$"), device.exclusive():
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.join()
        for _ in range(2):
            with device.exclusive():
                pass


def test_who_waits_has_the_gpu_when_the_other_gives_it_back(gpu, capsys):
    with another_that_measures() as holder:
        order = []

        def give_back():
            order.append("given back")
            holder.kill()

        Timer(0.2, give_back).start()
        with device.in_turn():
            order.append("taken")
            with pytest.raises(BlockingIOError), (device.LOCKS / "kperf-gpu-a.lock").open() as same:
                fcntl.flock(same, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert order == ["given back", "taken"]
    assert re.fullmatch(r"kperf: process \d+ .* is measuring on GPU a: wait for it to end\n", capsys.readouterr().err)


def test_the_second_is_told_who_measures(gpu):
    (device.LOCKS / "hold.py").write_text(
        "import fcntl, os; fcntl.flock(os.open('kperf-gpu-a.lock', os.O_CREAT), fcntl.LOCK_EX); print(); input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "hold.py", "--causal", "a b"],
        cwd=device.LOCKS,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout.readline() == b"\n"
    with pytest.raises(UsageError) as raised, device.exclusive():
        pass
    holder.communicate(b"\n")
    command = f"{Path(sys.executable).name} hold.py --causal 'a b'"
    assert str(raised.value) == f"process {holder.pid} ({command}) is measuring on GPU a: wait for it to end"


def test_who_cannot_be_named_is_another_process(gpu, monkeypatch):
    monkeypatch.setattr(device, "_HELD", device.LOCKS / "no such file")
    with (
        another_that_measures(),
        pytest.raises(UsageError, match=r"^another process is measuring on GPU a"),
        device.exclusive(),
    ):
        pass


def test_what_measures_may_ask_again(gpu):
    with device.exclusive():
        with device.exclusive():
            pass
        # The inner one has not given it back.
        reader, writer = os.pipe()
        if os.fork() == 0:
            device._ours.clear()
            try:
                with device.exclusive():
                    os.write(writer, b"taken")
            except UsageError:
                os.write(writer, b"refused")
            os._exit(0)
        os.wait()
        assert os.read(reader, 10) == b"refused"


@pytest.mark.parametrize(
    "measure",
    [
        lambda folder: sweeps.run_sweep([], [], Store(folder), figure="bench", rounds=10, progress=sweeps.Progress()),
        lambda folder: power.measure(None, PowerStore(folder), None, causal=False, seconds=1, passes=1),
        lambda folder: capture("gemm", None, None, None, 3),
        lambda folder: overhead.measure(None, SimpleNamespace(text=""), None, lambda text: None, 3),
        lambda folder: fig11.run(None, folder, file=None, rounds=3, require_gpu=True, passes="1"),
    ],
    ids=["sweep", "power", "capture", "overhead", "fig11"],
)
def test_nothing_measures_beside_another(gpu, tmp_path, measure, monkeypatch):
    monkeypatch.setattr(device, "gpu_name", lambda: "NVIDIA Test")
    monkeypatch.setattr(fig11, "subject", lambda name: None)
    monkeypatch.setattr(overhead, "CHOICES", {})
    results = tmp_path / "results"
    with another_that_measures(), pytest.raises(UsageError, match="is measuring on GPU a"):
        measure(results)
    assert not results.exists()


def test_a_lock_that_another_user_made_can_be_taken(gpu):
    path = device.LOCKS / "kperf-gpu-a.lock"
    path.write_text("")
    path.chmod(0o444)
    with device.exclusive():
        pass


def test_a_link_in_its_place_is_a_sentence(gpu, tmp_path):
    (device.LOCKS / "kperf-gpu-a.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="remove it"), device.exclusive():
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_link_that_is_put_there_in_between_is_not_followed(gpu, tmp_path, monkeypatch):
    real = os.open

    def finds_nothing(path, flags, *mode):
        if not flags & os.O_CREAT and Path(path).suffix == ".lock":
            Path(path).symlink_to(tmp_path / "elsewhere")
            raise FileNotFoundError
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", finds_nothing)
    with pytest.raises(UsageError, match="remove it"), device.exclusive():
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_two_gpus_are_two_locks(gpu):
    with another_that_measures():
        gpu.uuid = "b"
        with device.exclusive():
            assert {path.name for path in device.LOCKS.iterdir()} == {"kperf-gpu-a.lock", "kperf-gpu-b.lock"}


def take_a_turn(pipe):
    assert pipe.recv() == "begin"
    with free_of_ours(), device.in_turn():
        pipe.send("held")
        assert pipe.recv() == "end"


@contextmanager
def another_in_turn():
    ours, its = FORK.Pipe()
    process = FORK.Process(target=take_a_turn, args=(its,))
    process.start()
    ours.send("begin")
    try:
        yield ours
        process.join(60)
        assert process.exitcode == 0
    finally:
        process.kill()


def test_who_has_a_turn_may_ask_for_one_again(gpu):
    with device.exclusive(), device.in_turn(), device.in_turn():
        pass
    with device.in_turn(), device.exclusive():
        pass


def test_a_launch_that_failed_leaves_the_compilers_lock_free(gpu, monkeypatch):
    def fail():
        raise RuntimeError("an illegal memory access was encountered")

    compiling = device.Compiling()
    with device.in_turn():
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", fail)
        with pytest.raises(RuntimeError, match="illegal"), compiling:
            pass
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        with ThreadPoolExecutor(1) as pool:

            def enter():
                with compiling:
                    return "entered"

            assert pool.submit(enter).result(timeout=60) == "entered"


def test_processes_measure_in_turn_and_another_one_while_this_one_compiles(gpu):
    compiling = device.Compiling()
    with ExitStack() as stack:
        with device.in_turn():
            with device.exclusive():  # what measures within it may ask
                pass
            other = stack.enter_context(another_in_turn())
            assert not other.poll(0.2)
            with compiling:
                assert other.recv() == "held"
                with compiling:  # by the same thread once more, which waits for nobody
                    pass
                begin, own = time.monotonic(), device.own_seconds()
                Timer(1.0, other.send, ["end"]).start()
            waited = time.monotonic() - begin
            assert waited >= 1.0  # for the other,
            assert device.own_seconds() - own <= waited - 0.3  # which is no time of its own
            with pytest.raises(UsageError, match="measuring on GPU a"), free_of_ours(), device.exclusive():
                pass
        with device.exclusive():  # given back
            pass


@contextmanager
def free_of_ours():
    """As another process, which knows nothing of our turn."""
    ours, device._ours = device._ours, set()
    try:
        yield
    finally:
        device._ours = ours
