"""`pip install .`: what a wheel carries, and that it works where there is no checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kperf.attention.variants import Specialization
from tests.command import IN_FORKS

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DECLARED = [
    *PROJECT["build-system"]["requires"],
    *PROJECT["project"]["dependencies"],
    *(
        name
        for names in PROJECT["project"]["optional-dependencies"].values()
        for name in names
        if not name.startswith("kperf[")
    ),
]


def pip(*arguments, cwd):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run(command, cwd=cwd, check=True, capture_output=True, env=os.environ | {"PIP_NO_INDEX": "1"})


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder into which a wheel of this tree was installed, made without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("kperf", "plots", "ttgir", "docs"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE", "claims.toml"):
        shutil.copy(ROOT / name, source / name)
    pip("install", "--no-deps", "--no-build-isolation", "--no-compile", "--target", folder / "site", ".", cwd=source)
    shutil.rmtree(source)
    return folder / "site"


def run(installed, *command, cwd=None):
    environment = {name: value for name, value in os.environ.items() if name != "KPERF_RESULTS"}
    environment |= {"PYTHONPATH": str(installed), "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, cwd=cwd or installed.parent, env=environment, capture_output=True, text=True, check=False
    )


def test_the_console_script_works_in_any_folder(installed):
    done = run(installed, installed / "bin/kperf", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "fig12" in done.stdout


OF_A_CHECKOUT = [
    "examples", "image build", "inductor", "lines", "proton", "resources", "restore",
    "restore --results there", "ttgir",
]  # fmt: skip
OF_RECORDED_RUNS = [
    "accuracy", "choose --seq-len 4096", "choose", "claims", "fig11", "fig12", "goals", "inputs", "llama-block",
    "overhead", "power", "repeatability", "sweep seq_len --only fa3", "timers", "tritonbench-compare", "varlen",
]  # fmt: skip


@pytest.fixture(scope="module")
def done(installed, tmp_path_factory):
    """What those commands print in one empty folder, after two that work and before one that writes there.

    Standard output, and of each command the last line that it says, its words, its status and what is in the folder.
    One process has imported what they import.
    """
    ttgir = installed / "kperf/ttgir/vanilla"
    first = [
        f"instrument {ttgir / 'traced' / Specialization().file_name} --strip",
        f"instrument {ttgir / Specialization().file_name}",
    ]
    commands = [*first, *OF_A_CHECKOUT, *OF_RECORDED_RUNS, "override stage improved_plus --to staged"]
    given = json.dumps([(words, []) for words in commands])
    command = (sys.executable, "-c", IN_FORKS, given, "kperf.paper.claims")
    ended = run(installed, *command, cwd=tmp_path_factory.mktemp("empty"))
    return ended.stdout, re.findall(r"(?:((?!END ).*)\n)?END (.*) (\d+) (\[.*\])\n", ended.stderr)


def test_rules_and_overrides_are_in_the_wheel(installed, done):
    printed, ends = done
    assert [status for *_, status, _ in (*ends[:2], ends[-1])] == ["0"] * 3
    plain = (installed / "kperf/ttgir/vanilla" / Specialization().file_name).read_text()
    assert printed.startswith(plain)
    with_events, _, staged = printed.removeprefix(plain).partition("TRITON_OVERRIDE_DIR")
    assert with_events.count("proton.record") > 10
    assert staged


def test_every_command_says_what_it_lacks_in_an_empty_folder(installed, done):
    """And leaves the folder empty."""
    commands = [*OF_A_CHECKOUT, *OF_RECORDED_RUNS]
    ends = done[1][2:-1]
    assert [(words, status, left) for _, words, status, left in ends] == [(words, "2", "[]") for words in commands]
    for sentence, words, *_ in ends:
        if words in OF_A_CHECKOUT:
            assert sentence.endswith("is not in the installed package: run this in a checkout, as `python -m kperf`")
        else:
            assert re.match(r"kperf: (\S+/results holds no recorded \S+:|nothing is recorded of `make \S+`)", sentence)
        assert str(installed) not in sentence


def test_the_doctor_advises_nothing_that_only_a_checkout_can(installed, tmp_path):
    done = run(installed, installed / "bin/kperf", "doctor", cwd=tmp_path)
    assert done.returncode == 0
    assert "yes  your kernels, without a GPU" in done.stdout
    assert "restore" not in done.stdout
    assert "make setup" not in done.stdout
    assert f"{tmp_path}/results is not a folder that you can write" in done.stdout


def test_nothing_but_kperf_stands_at_the_top_level(installed):
    assert {path.name for path in installed.iterdir()} == {
        "bin",
        "kperf",
        f"kperf-{PROJECT['project']['version']}.dist-info",
    }
    ours = [name for name in os.walk(ROOT / "kperf", followlinks=True) if "__pycache__" not in name[0]]
    files = {Path(folder, name).relative_to(ROOT) for folder, _, names in ours for name in names}
    assert {
        path.relative_to(installed)
        for path in (installed / "kperf").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    } == files
    assert not [path for path in installed.rglob("*") if path.is_symlink()]


@pytest.mark.parametrize("declared", DECLARED)
def test_what_is_declared_is_what_is_locked(declared):
    wanted = Requirement(declared)
    text = "".join((ROOT / "requirements" / name).read_text() for name in ("lock.txt", "docs.txt"))
    lines = [line.split(" ")[0] for line in text.splitlines() if "==" in line]
    locked = [
        version
        for name, _, version in (line.partition("==") for line in lines)
        if name == canonicalize_name(wanted.name)
    ]
    assert locked
    assert all(wanted.specifier.contains(version) for version in locked)


def pins(name):
    """Package -> version, of a file of requirements."""
    return dict(re.findall(r"^([a-z][\w-]*)==([^\s;]+)", (ROOT / "requirements" / name).read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", ["libraries", "docs"])
def test_what_is_locked_beside_the_lock_goes_with_it(name):
    """Each with its hashes, none of them the lock's own, resolved for the lock's torch, Triton and numpy."""
    beside, locked, asked = pins(f"{name}.txt"), pins("lock.txt"), pins(f"{name}.in")
    blocks = re.split(r"\n(?=[a-z])", (ROOT / f"requirements/{name}.txt").read_text())[1:]
    assert all("--hash=sha256:" in block for block in blocks)
    assert beside
    assert not beside.keys() & locked.keys()
    assert {name: (beside | locked)[name] for name in asked} == asked
