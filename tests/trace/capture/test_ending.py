"""However a script ends, and whatever it does to its process, what was traced of its kernels is there and is told."""

import gc
import json
import os
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import kperf.plots.trace
from kperf.trace.capture.script import Script
from tests.test_interrupted import FORK, LIMIT_S, traced

pytestmark = pytest.mark.usefixtures("unrendered")

RUN = """
import os, pathlib, signal, sys, threading, time
x, out = torch.ones(256), torch.empty(256)
def run(times):
    for _ in range(times):
        plus[(2,)](x, x, out, 256, BLOCK=128)
run(12)
"""
"""Launches after which the kernel is read: it has no loop for passes."""
WAITS = "pathlib.Path(os.environ['THERE']).touch()\nsys.stdout.flush()\nwhile True: time.sleep(0.01)\n"


def run(folder, script, *, after=None, options=(), draw=None):
    """`kperf trace` of a script in a process of its own, in `folder`; `after`: the signal that it gets where it waits.

    Returns the process's exit code, what it printed, what it said on stderr, and the names of the files.
    """
    session, words = traced(folder, script)
    words = [words[0], *options, *words[1:]]
    if draw:
        before, session.prepare = session.prepare, lambda: (before(), setattr(kperf.plots.trace, "draw", draw))
    process = FORK.Process(target=session._run, args=(words, None, "", 1))
    process.start()
    if after is not None:
        until = time.monotonic() + LIMIT_S
        while not session.there.exists() and process.is_alive():
            assert time.monotonic() < until, session.said("err")
            time.sleep(0.02)
        os.kill(process.pid, after)
    process.join(LIMIT_S)
    process.kill()
    files = sorted(str(path.relative_to(session.results)) for path in session.results.rglob("*.*"))
    assert not list((folder / "tmp").glob(".kperf-trace-*")) or process.exitcode == -signal.SIGKILL
    return process.exitcode, session.said("out"), session.said("err"), files


ALL = ["plus.chrome_trace.json", "plus.ir.json.gz", "plus.pdf", "plus.png", "plus.timeline.json"]
DATA = ["plus.chrome_trace.json", "plus.ir.json.gz", "plus.timeline.json"]


@pytest.mark.parametrize(
    ("launches", "ends", "after", "status"),
    [
        ("", WAITS, signal.SIGTERM, 143),
        ("", WAITS, signal.SIGHUP, 129),
        ("", WAITS, signal.SIGINT, 130),
        ("", "try:\n    " + WAITS.replace("\n", "\n    ") + "\nexcept BaseException: run(5)", signal.SIGTERM, 143),
        pytest.param("", "os._exit(0)", None, 0, marks=pytest.mark.rendered),
        ("", "os._exit(7)", None, 7),
        ("", "threading.Thread(target=os._exit, args=(3,)).start(); time.sleep(60)", None, 3),
        ("run(12)", "run(1)\n" + WAITS, signal.SIGTERM, 143),
    ],
    ids=["TERM", "HUP", "INT", "TERM caught", "exit 0", "exit 7", "exit of a thread", "launched once"],
)
def test_a_script_that_is_ended_is_reported(tmp_path, launches, ends, after, status):
    found, printed, said, files = run(
        tmp_path, RUN.replace("\nrun(12)", f"\n{launches or 'run(12)'}") + ends, after=after
    )
    assert found == status
    assert files == ALL
    assert f"written: {tmp_path}/results/plus.timeline.json, .chrome_trace.json, .ir.json.gz, .png, .pdf" in printed
    assert "Traceback" not in said or after == signal.SIGINT


def test_kernels_with_names_as_long_as_triton_takes_have_files_of_their_own(tmp_path):
    """Their names are the same but for the last letter; Triton's cache adds 12 letters to a file's 255."""
    first, second = ("k" * 242 + last for last in "ab")
    script = """
def make(name):
    import inspect, linecache
    text = inspect.getsource(plus.fn).replace("plus", name)
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    scope = {"triton": triton, "tl": tl}
    exec(compile(text, name, "exec"), scope)
    return scope[name]
for name in NAMES:
    kernel = make(name)
    for _ in range(12):
        kernel[(2,)](x, x, out, 256, BLOCK=128)
"""
    script = RUN.replace("run(12)", "") + script.replace("NAMES", repr([first, second]))
    status, printed, said, files = run(tmp_path, script)
    assert status == 0, said
    assert len(files) == 10
    timelines = [json.loads((tmp_path / "results" / name).read_text()) for name in files if "timeline" in name]
    assert sorted(one["kernel"] for one in timelines) == [first, second]
    assert printed.count("written: ") == 2
    assert "is not traced" not in said


POOL = "from concurrent.futures import {kind}PoolExecutor\npool = {kind}PoolExecutor(1)\npool.submit({call})\n"


@pytest.mark.parametrize(("kind", "call"), [("Thread", "run, 12"), ("Process", "abs, 1")])
def test_executors_that_nobody_ends_do_what_they_were_given_and_the_script_ends(tmp_path, kind, call):
    launches = "\n" if kind == "Thread" else "\nrun(12)\n"
    status, printed, _, files = run(tmp_path, RUN.replace("\nrun(12)\n", launches) + POOL.format(kind=kind, call=call))
    assert (status, files) == (0, ALL)
    assert f"written: {tmp_path}/results/plus.timeline.json" in printed


def test_an_idle_pool_of_before_that_a_script_sets_to_work_ends_with_it(tmp_path):
    (tmp_path / "it.py").write_text("import pytest\npytest.DONE = pytest.POOL.submit(abs, -1)")

    def run_it():
        pytest.POOL = ThreadPoolExecutor(1)
        assert Script(str(tmp_path / "it.py"), ()).run() == 0
        os._exit(40 + pytest.DONE.result())

    process = FORK.Process(target=run_it)  # which has none of the threads that are here
    process.start()
    process.join(LIMIT_S)
    process.kill()
    assert process.exitcode == 41


def test_all_objects_are_searched_for_pools_only_where_a_script_has_threads(tmp_path, monkeypatch):
    searched = []
    monkeypatch.setattr(gc, "get_objects", lambda: searched.append(True) or [])
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.main_thread()])
    (tmp_path / "it.py").write_text("1")
    assert Script(str(tmp_path / "it.py"), ()).run() == 0
    assert searched == []


def test_threads_of_before_are_not_waited_for(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(abs, -1).result() == 1
        (tmp_path / "it.py").write_text(
            "from concurrent.futures import ThreadPoolExecutor as Pool; done = Pool(1).submit(abs, -2)"
        )
        assert Script(str(tmp_path / "it.py"), ()).run() == 0
        assert pool.submit(abs, -3).result() == 3


def test_what_was_read_is_there_after_a_kill(tmp_path):
    status, printed, said, files = run(tmp_path, RUN + WAITS, after=signal.SIGKILL)
    assert (status, printed) == (-signal.SIGKILL, "")
    assert files == DATA
    assert f"kperf: read plus: {tmp_path}/results/plus.timeline.json (" in said
    assert json.loads((tmp_path / "results/plus.timeline.json").read_text())["kernel"] == "plus"


def test_a_process_that_the_script_forks_ends_as_it_would(tmp_path):
    script = """
child = os.fork()
if not child:
    os._exit(9)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
ready, says = os.pipe()
child = os.fork()
if not child:
    os.write(says, b".")
    time.sleep(60)
    os._exit(1)
os.read(ready, 1)
os.kill(child, signal.SIGTERM)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
"""
    status, printed, _, files = run(tmp_path, RUN + script)
    assert (status, files) == (0, ALL)
    assert printed.count("written: ") == 1


@pytest.mark.parametrize("ends", ["sys.exit(3)", "raise SystemExit(3)", "print('child')", "1 / 0"])
def test_a_fork_that_ends_as_the_script_does_reports_nothing_and_leaves_the_trace_whole(tmp_path, ends):
    script = f"""
child = os.fork()
if not child:
    run(3)
    {ends}
else:
    print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    other = torch.ones(512)
    plus[(2,)](other, other, torch.empty(512), 512, BLOCK=256)
"""
    status, printed, said, files = run(tmp_path, RUN + script)
    assert status == 0
    assert f"status {3 if '3' in ends else int('/' in ends)}\n" in printed
    assert printed.count("written: ") == 2
    assert said.count("kperf: read plus: ") == 2
    assert len(files) == 2 * len(ALL)  # the second is compiled where the first was


def test_a_fork_from_before_the_first_launch_leaves_the_gpu_to_the_script(tmp_path):
    begin = "import os\nchild = os.fork()\n" + RUN
    status, printed, said, files = run(tmp_path, begin + "if child: os.waitpid(child, 0)\n")
    assert (status, files) == (0, ALL), said
    assert printed.count("written: ") == 1
    script = begin.replace("run(12)", "if not child: run(12)")
    (tmp_path / "child").mkdir()
    status, _, said, files = run(tmp_path / "child", script)
    assert (status, files) == (2, [])
    assert said.endswith("the driver's own launches and other processes are not in reach\n")


def test_a_script_that_listens_to_the_signal_itself_goes_on(tmp_path):
    script = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
    assert run(tmp_path, RUN + script + WAITS, after=signal.SIGTERM)[0] == 5


@pytest.mark.parametrize(
    "does",
    [
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = None",
        "import io; sys.stdout, sys.stderr = io.StringIO(), io.StringIO(); print('lost')",
        "os.close(1); os.close(2)",
        "os.dup2(os.open(os.devnull, os.O_WRONLY), 1); os.dup2(os.open(os.devnull, os.O_WRONLY), 2)",
        "sys.setrecursionlimit(120)",
        "import matplotlib; matplotlib.rcParams['text.usetex'] = True",
        "import warnings; warnings.simplefilter('error'); import numpy; numpy.seterr(all='raise')",
        "sys.argv.clear()",
    ],
)
def test_what_a_script_does_to_its_process_costs_no_report(tmp_path, does):
    status, printed, said, files = run(tmp_path, "print('before')\n" + RUN + does)
    assert (status, files) == (0, ALL), said
    assert printed.startswith("before\n")
    assert "written: " in printed
    assert "kperf: read plus" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    "does",
    [
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = None",
        "os.close(2)",
        "for number in (0, 1, 2): os.close(number)",
    ],
)
def test_a_script_without_standard_streams_is_traced(tmp_path, does):
    """What the compiler says of a kernel is caught on descriptor 2, which need not be there."""
    status, printed, said, files = run(tmp_path, "import os, sys\n" + does + RUN)
    assert (status, files) == (0, ALL), said
    assert "written: " in printed
    assert "kperf: read plus" in said


def test_a_folder_that_the_script_removes_is_made_again(tmp_path):
    does = f"import shutil; shutil.rmtree({str(tmp_path / 'results')!r})\n"
    for name, script in (("before", does + RUN), ("after", RUN + does)):
        (tmp_path / name).mkdir()
        status, printed, said, files = run(tmp_path / name, script.replace("/results", f"/{name}/results"))
        assert (status, files) == (0, ALL), said
        assert "written: " in printed


def test_a_folder_that_the_script_replaces_by_a_file_is_said(tmp_path):
    does = f"import shutil; shutil.rmtree({str(tmp_path / 'results')!r}); open({str(tmp_path / 'results')!r}, 'w')\n"
    status, printed, said, files = run(tmp_path, RUN + does)
    assert (status, files) == (2, [])
    assert "written: " not in printed
    assert f"kperf: plus is not traced: {tmp_path}/results cannot be made: File exists; choose another folder" in said


def test_files_go_to_the_folder_where_the_command_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("elsewhere", "it"):
        (tmp_path / name).mkdir()
    session, words = traced(tmp_path / "it", RUN + f"os.chdir({str(tmp_path / 'elsewhere')!r})")
    process = FORK.Process(target=session._run, args=([words[0], words[-1]], None, "", 1))
    process.start()
    process.join(LIMIT_S)
    assert process.exitcode == 0
    assert sorted(path.name for path in (tmp_path / "kperf-trace").iterdir()) == ALL
    assert "written: kperf-trace/plus.timeline.json" in session.said("out")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert json.loads((tmp_path / "kperf-trace/plus.timeline.json").read_text())["file"].startswith("it/it.py:")


def test_a_picture_that_fails_costs_nothing_else(tmp_path):
    def draw(timeline, stamp, out):
        raise RuntimeError("latex could not be found\nand more")

    second = "plus[(2,)](x, x, out, 256, BLOCK=64)\n"
    status, printed, said, files = run(tmp_path, RUN + second, draw=draw)
    assert status == 1
    assert len(files) == 6
    assert {path.split(".", 1)[1] for path in files} >= {"timeline.json", "chrome_trace.json"}
    assert printed.count("written: ") == 2
    assert "kperf: plus has no picture: latex could not be found\n" in said
    assert "Traceback" not in said


def test_stop_ends_the_script_at_the_launch_that_was_the_last_to_be_traced(tmp_path):
    script = """
launched = 0
try:
    while True:
        run(1)
        launched += 1
finally:
    print("launched", launched)
"""
    status, printed, said, files = run(tmp_path, RUN.replace("\nrun(12)", script), options=["--stop"])
    assert (status, files) == (0, ALL), said
    launched = int(re.search(r"launched (\d+)\n", printed)[1])
    assert 8 <= launched <= 16  # launches that are not traced are looked at each hundredth time


def test_stop_ends_the_process_where_another_thread_launches(tmp_path):
    """An exception would end that thread alone."""
    script = RUN.replace("\nrun(12)", "\nthreading.Thread(target=run, args=(10**9,)).start()\ntime.sleep(60)")
    status, printed, said, files = run(tmp_path, script, options=["--stop"])
    assert (status, files) == (0, ALL)
    assert printed.count("written: ") == 1
    assert "the script is ended (--stop)" in said
