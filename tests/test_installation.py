"""What is imported before it is needed, and what is said of packages that are not installed."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kperf import installation
from kperf.installation import EXTRAS, why_missing
from tests.command import IN_FORKS

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "triton", "matplotlib", "scipy", "docker", "optuna", "distributed")
OF_EXTRAS = (*EXTRAS.keys() - {"fa3-fwd"}, "fa3_fwd_interface")


def python(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["trace", "--help"], ["fig12", "--help"], ["nosuch"]])
def test_nothing_heavy_is_imported_for_help(words):
    done = python(
        "import sys\nfrom kperf.cli import main\ntry:\n    main()\nfinally:\n"
        f"    print('imported', [name for name in {HEAVY} if name in sys.modules])",
        *words,
    )
    assert done.stdout.splitlines()[-1] == "imported []", done


def test_tracing_and_the_ir_import_no_package_of_an_extra():
    program = (
        f"import sys, json\nsys.modules.update(dict.fromkeys({OF_EXTRAS}))\n"
        "import pkgutil, importlib, kperf\nfor room in ('arch', 'compat', 'diagnose', 'ir', 'record', 'trace'):\n"
        "    folder = importlib.import_module(f'kperf.{room}')\n"
        "    for module in pkgutil.walk_packages(folder.__path__, f'kperf.{room}.'):\n"
        "        importlib.import_module(module.name)\n"
        "print(json.dumps([name for name in sys.modules if name.startswith('kperf.')]))"
    )
    done = python(program)
    assert done.returncode == 0, done.stderr
    imported = set(json.loads(done.stdout))
    assert {
        "kperf.trace.command",
        "kperf.trace.capture.interceptor",
        "kperf.ir.compile",
        "kperf.record.device",
    } <= imported


MISSING = {
    "docker": "image build",
    "matplotlib": "fig12",
    "optuna": "tune",
    "scipy": "bench",
    "torch": "resources",
    "triton": "trace script.py",
}


def test_a_package_that_is_missing_is_one_sentence_with_what_installs_it():
    done = python(IN_FORKS, json.dumps([(words, [name]) for name, words in MISSING.items()]), "torch", "triton")
    ends = re.findall(r"kperf: (.*)\nEND (.*) (\d+) \[.*\]\n", done.stderr)
    assert ends == [(why_missing(name), words, "2") for name, words in MISSING.items()]
    assert done.stderr.count("\n") == 2 * len(MISSING)


def test_what_the_readme_installs_is_enough_for_what_it_runs(tmp_path):
    (extras,) = re.findall(r'pip install "\.\[([\w,]+)\]"', (ROOT / "README.md").read_text())
    others = [name for name in OF_EXTRAS if EXTRAS.get(name, "attention") not in extras.split(",")]
    assert {"scipy", "optuna"} < set(others)
    timeline = next((ROOT / "results/h200/examples").glob("*.timeline.json"))
    given = (f"report {timeline} --out {tmp_path}/page.html", f"report {tmp_path}/nosuch", f"diagnose {timeline}")
    done = python(IN_FORKS, json.dumps([(words, others) for words in given]), "torch", "triton")
    ends = re.findall(r"END (.*) (\d+) \[.*\]\n", done.stderr)
    assert ends == [(given[0], "0"), (given[1], "2"), (given[2], "0")], done.stderr
    assert (tmp_path / "page.html").stat().st_size > 100_000
    assert "is not installed" not in done.stderr


@pytest.mark.parametrize("name", ["rich", "typer", "pydantic"])
def test_without_what_the_command_line_needs_there_is_a_sentence_too(name):
    program = f"import sys\nsys.modules[{name!r}] = None\nfrom kperf.cli import main\nmain()"
    done = python(program, "--help")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"kperf: {why_missing(name)}\n")


@pytest.mark.parametrize(("words", "installs"), [((), True), (("PYTHON=/usr/bin/python3",), False)])
def test_make_trace_with_an_interpreter_of_ones_own_installs_nothing(words, installs):
    command = [
        "make",
        "--no-print-directory",
        "--dry-run",
        "--assume-new=requirements/lock.txt",
        "trace",
        "SCRIPT=a.py b",
        *words,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("pip install" in done.stdout) == installs
    interpreter = words[0].removeprefix("PYTHON=") if words else ".venv/bin/python"
    assert done.stdout.splitlines()[-1].split() == [interpreter, "-m", "kperf", "trace", "'a.py'", "'b'"]


def test_the_sentence_names_the_extra_and_where_it_is_installed_from(monkeypatch):
    missing = "the Python package {} is not installed: run `{}`"
    here = missing.format("scipy", "make setup") + ", or `pip install '.[bench]'` in an environment of yours"
    assert why_missing("scipy.special") == here
    monkeypatch.setattr(installation, "CHECKOUT", None)
    assert why_missing("matplotlib.pyplot") == missing.format("matplotlib", "pip install 'kperf[plots]'")
    assert why_missing("triton") == missing.format("triton", "pip install --force-reinstall torch")
    assert why_missing("rich") == missing.format("rich", "pip install rich")


def test_each_extra_brings_what_it_is_named_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    brought = {
        extra: {Requirement(one).name for one in wanted} for extra, wanted in project["optional-dependencies"].items()
    }
    assert all(name in brought[extra] or name == "dask" for name, extra in EXTRAS.items())  # dask is distributed's
    assert {Requirement(one).name for one in project["dependencies"]}.isdisjoint(EXTRAS)
