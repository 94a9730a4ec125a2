"""A script runs as under `python`: each is run both ways, and what comes out is compared byte for byte."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kperf.errors import UsageError
from kperf.trace.capture.script import Script

ROOT = Path(__file__).resolve().parents[3]
RUN = "import sys; from kperf.trace.capture.script import Script; sys.exit(Script({!r}, {!r}, {!r}).run())"

SCRIPTS = {
    "argv": "import sys; print(sys.argv)",
    "folder": "import os, sys; print(os.getcwd(), sys.path[0], __file__, __name__, __spec__, __package__)",
    "main": "import sys, __main__; print(__main__.__file__, vars(sys.modules['__main__']) is globals(), __builtins__)",
    "pickle": "import pickle\nclass A: x = 1\nif __name__ == '__main__': print(pickle.loads(pickle.dumps(A())).x)",
    "stdin": "print(sum(map(int, input().split())))",
    "neighbour": "import beside; print(beside.VALUE)",
    "plots": "import plots, tests; print(plots.VALUE, tests.VALUE)",
    "exception": "def f():\n    return 1 / 0\n\ndef g():\n    f()\n\ng()\n",
    "chained": "try:\n    {}['a']\nexcept KeyError as error:\n    raise RuntimeError('no a') from error\n",
    "syntax": "x = 1\ny = = 2\n",
    "import error": "import there_is_no_such_module\n",
    "status": "import sys; sys.exit(3)",
    "said and failed": "import sys; sys.exit('a reason')",
    "none": "import sys; sys.exit()",
    "interrupted": "raise KeyboardInterrupt",
    "thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()",
    "hook": "import sys\nsys.excepthook = lambda *a: print('hooked', a[0])\nraise ValueError",
    "hook that fails": "import sys\ndef hook(*a): raise KeyError('hook')\nsys.excepthook = hook\n1 / 0\n",
    "hook that exits": "import sys\nsys.excepthook = lambda *a: sys.exit(6)\n1 / 0\n",
    "hook that is none": "import sys\nsys.excepthook = None\n1 / 0\n",
    "said to none": "import sys; sys.stderr = None; raise SystemExit('a reason')",
    "no text": "class A:\n    def __str__(self): raise ValueError\nraise SystemExit(A())",
    "no argv": "import sys; sys.argv = sys.path = None",
    "encoding": "# -*- coding: latin-1 -*-\nprint('\\xe4')",
    "at exit": "import atexit; atexit.register(print, 'bye'); raise SystemExit(4)",
}


def both_ways(folder: Path, name: str, *arguments: str, is_module: bool = False):
    ways = [[*(["-m"] if is_module else []), name, *arguments], ["-c", RUN.format(name, arguments, is_module)]]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(folder / "lib"), str(ROOT)]), "PYTHON_COLORS": "0"}
    return [
        subprocess.run(
            [sys.executable, *way],
            cwd=folder,
            input="3 4\n",
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        for way in ways
    ]


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_cannot_tell(tmp_path, name):
    folder = tmp_path / "scripts"
    folder.mkdir()
    for module in ("beside", "plots", "tests"):
        (folder / f"{module}.py").write_text("VALUE = 7")
    (folder / "it.py").write_text(SCRIPTS[name])
    plain, ours = both_ways(tmp_path, "scripts/it.py", "a", "--list", "-m")
    assert (ours.stdout, ours.stderr) == (plain.stdout, plain.stderr)
    if name == "interrupted":  # the shell says 130 for the signal of which python dies
        assert (plain.returncode, ours.returncode) == (-2, 130)
    else:
        assert ours.returncode == plain.returncode


@pytest.mark.parametrize("ends", ["raise SystemExit('a reason')", "1 / 0", "sys.exit(7)"])
def test_a_script_that_closes_standard_error_has_its_status(tmp_path, ends):
    """What is said then has addresses of objects in it."""
    (tmp_path / "it.py").write_text(f"import sys; sys.stderr.close(); {ends}")
    plain, ours = both_ways(tmp_path, "it.py")
    assert ours.returncode == plain.returncode
    assert "kperf" not in ours.stderr


@pytest.mark.parametrize("name", ["package.inside", "package"])
def test_a_module_cannot_tell(tmp_path, name):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("VALUE = 7")
    for file in ("inside", "__main__"):
        (package / f"{file}.py").write_text(
            "import sys\nfrom .other import VALUE\n"
            "print(VALUE, sys.argv, sys.path[0], __name__, __package__, __file__)\n"
            "print(sys.modules['__main__'].VALUE)\n1 / 0\n"
        )
    plain, ours = both_ways(tmp_path, name, "a", is_module=True)
    assert ours.stdout == plain.stdout
    assert ours.stdout.startswith("7 [")
    assert ours.returncode == plain.returncode == 1
    assert ours.stderr.splitlines()[-3:] == plain.stderr.splitlines()[-3:]
    assert "kperf" not in ours.stderr.replace(str(tmp_path), "")  # which has the user's name in it


def test_arguments_and_folders_are_as_before_when_a_script_has_run(tmp_path, monkeypatch):
    (tmp_path / "it.py").write_text("import sys\nsys.path.append('theirs')\nsys.argv.append('x')")
    argv, path = list(sys.argv), list(sys.path)
    assert Script(str(tmp_path / "it.py"), ()).run() == 0
    assert (sys.argv, sys.path) == (argv, path)


def test_a_search_through_a_scripts_objects_finds_none_from_before(tmp_path, capsys):
    """Of those there are hundreds of thousands: each search through them takes a tenth of a second."""
    (tmp_path / "it.py").write_text(
        "import gc\nclass Own: pass\nown = Own()\n"
        "names = [type(one).__name__ for one in gc.get_objects()]\nprint('Own' in names, 'Before' in names)"
    )
    before = type("Before", (), {})()
    assert Script(str(tmp_path / "it.py"), ()).run() == 0
    assert capsys.readouterr().out == "True False\n"
    assert any(one is before for one in gc.get_objects())


def test_what_is_not_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"there is no script gone\.py"):
        Script("gone.py", ()).check()
    for name in ("gone", "gone.module", ".relative", "json.gone"):
        with pytest.raises(UsageError, match="there is no module"):
            Script(name, (), is_module=True).check()
    Script("json.tool", (), is_module=True).check()
