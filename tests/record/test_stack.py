"""Environments with another torch or Triton than the wheels for CUDA: `doctor` and `trace` say one sentence of each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kperf.installation import why_missing
from kperf.record.stack import Stack, look

ROOT = Path(__file__).resolve().parents[2]


def torch(folder, version="2.12.0+cu130", cuda="'13.0'", hip="None"):
    (folder / "torch").mkdir(parents=True)
    (folder / "torch/__init__.py").write_text("raise RuntimeError('torch was imported')")
    (folder / "torch/version.py").write_text(
        "from typing import Optional\n"
        f"__version__ = '{version}'\ncuda: Optional[str] = {cuda}\nhip: Optional[str] = {hip}\n"
    )


def triton(folder, version="3.7.1", brought_by=("triton",)):
    (folder / "triton").mkdir(parents=True, exist_ok=True)
    (folder / "triton/__init__.py").write_text(f"__version__ = '{version}'\nraise RuntimeError('it was imported')\n")
    for number, name in enumerate(brought_by):
        distribution(folder, name, f"{version}{number or ''}", "triton/__init__.py")


def distribution(folder, name, version, *files):
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (metadata / "RECORD").write_text("".join(f"{file},,\n" for file in files))


def no_triton(folder):
    torch(folder)


def without_cuda(folder):
    torch(folder, "2.12.0+cpu", cuda="None")
    triton(folder)


def without_cuda_and_triton(folder):
    torch(folder, "2.12.0", cuda="None")


def rocm(folder):
    torch(folder, "2.12.0+rocm7.0", cuda="None", hip="'7.0.51831'")
    triton(folder)


def two_tritons(folder):
    torch(folder)
    triton(folder, brought_by=("pytorch-triton", "triton"))


def too_old(folder):
    torch(folder)
    triton(folder, "3.5.1")


REINSTALL = "`pip install --force-reinstall torch`"
BAD = {
    Path.mkdir: why_missing("torch"),
    no_triton: why_missing("triton"),
    without_cuda: f"torch 2.12.0+cpu is built without CUDA: {REINSTALL} installs one with it",
    without_cuda_and_triton: f"torch 2.12.0 is built without CUDA: {REINSTALL} installs one with it",
    rocm: "torch 2.12.0+rocm7.0 is built for ROCm 7.0.51831, and events are read on NVIDIA GPUs alone: "
    "use an environment whose torch is built for CUDA",
    two_tritons: "pytorch-triton 3.7.1 and triton 3.7.11 have overwritten files of each other: "
    f"run `pip uninstall pytorch-triton triton`, then {REINSTALL}",
    too_old: "triton 3.5.1 is older than 3.6, the first whose events are read: install torch 2.10 or newer",
}


@pytest.fixture
def only(tmp_path, monkeypatch):
    """A folder that is all of the path: what is installed for the tests is not found."""
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    for name in [name for name in sys.modules if name.partition(".")[0] in ("torch", "triton")]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "site"


@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_what_is_wrong_is_one_sentence(only, make):
    make(only)
    stack = look()
    assert (stack.why_no_compiler() or stack.why_no_cuda()) == BAD[make]


def test_a_torch_for_cuda_with_its_triton_is_right(only):
    torch(only)
    triton(only)
    distribution(only, "tritonclient", "2.1", "tritonclient/__init__.py")
    distribution(only.parent / "behind", "pytorch-triton", "3.4.0", "triton/__init__.py")
    sys.path.append(str(only.parent / "behind"))  # another environment's, which is not imported
    assert look() == Stack("2.12.0+cu130", "13.0", None, "3.7.1", ("triton 3.7.1",))
    assert (look().why_no_compiler(), look().why_no_cuda(), look().warnings()) == (None, None, [])


@pytest.mark.parametrize(("version", "brought_by"), [("3.8.0+git1a2b3c4d", ("triton",)), ("3.8.0", ())])
def test_a_triton_from_source_is_a_warning(only, version, brought_by):
    torch(only)
    triton(only, version, brought_by)
    assert (look().why_no_compiler(), look().why_no_cuda()) == (None, None)
    assert look().warnings() == [
        f"triton {version} is built from source: its private interfaces may differ from the release's"
    ]


def test_a_folder_that_an_uninstalled_package_left_is_none(only):
    (only / "torch/lib").mkdir(parents=True)
    assert look().torch is None


@pytest.mark.parametrize("make", [two_tritons, rocm], ids=lambda make: make.__name__)
@pytest.mark.parametrize("words", [["trace", "script.py"], ["doctor"]], ids=lambda words: words[0])
def test_the_commands_say_it_before_they_import_either(tmp_path, make, words):
    make(tmp_path / "site")
    done = subprocess.run(
        [sys.executable, "-m", "kperf", *words], capture_output=True, text=True, check=False, timeout=240, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "KPERF_IN_CONTAINER": "1", "COLUMNS": "400"},
    )  # fmt: skip
    if words == ["doctor"]:
        assert done.stdout.count(f": {BAD[make]}\n") == 1, done.stderr
        assert "no   fig11 and fig12, measured here: for the same reason\n" in done.stdout
    else:
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"kperf: {BAD[make]}\n")
