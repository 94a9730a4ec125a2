"""CONTRIBUTING.md's recipes are followed in a copy: a rule, an architecture, a Triton version, an output format."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
RECIPES = re.findall(r"^```diff recipe\n(.*?\n)```$", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL | re.MULTILINE)

TRY = """
import sys
from pathlib import Path
from kperf.arch import SM_120, of
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from kperf.diagnose.rule import static_rules
from kperf.report import command
from kperf.console import WholeConsole

(kernel,) = inputs.read("tests/diagnose/kernels/planted/scan.py", (), of("sm_90a"))
(finding,) = [one for one in diagnose(kernel).findings if one.id == "scan-in-loop"]
assert "# planted: scan-in-loop" in Path(finding.source.file).read_text().splitlines()[finding.source.line - 1]
assert "scan-in-loop" in {rule.id for rule in static_rules()}
assert of("sm_121").number == 121 and of("sm_121").flop_per_cycle == SM_120.flop_per_cycle
command.write(WholeConsole(), [Path(sys.argv[1])], Path(), Path("regions.csv"), lambda timeline: [])
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipes")
    unwanted = shutil.ignore_patterns("__pycache__", "*.png", "*.pdf")
    for name in ("kperf", "plots", "ttgir", "docs", "tests/diagnose/kernels"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=unwanted)
    for name in ("Makefile", "claims.toml", "requirements/lock.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def run(folder, *command, given=""):
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(folder)}
    done = subprocess.run(
        command, cwd=folder, input=given, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_recipes_work_and_go_away_again(copy):
    assert len(RECIPES) == 4
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    for recipe in RECIPES:
        run(copy, "git", "apply", "--unsafe-paths", "-", given=recipe)

    timeline = ROOT / "results/h200/examples/gemm_tma.timeline.json"
    assert run(copy, sys.executable, "-B", "-c", TRY, str(timeline)).startswith("written: regions.csv (1 kernel, ")
    header, first, *_ = (copy / "regions.csv").read_text().splitlines()
    assert header == "kernel,warp_group,region,cycles,share"
    assert re.fullmatch(r"gemm_tma_kernel,all warps,load a \+ load b,197\.0,0\.23\d+", first)
    assert ".venv-3.10.0/bin/python" in run(copy, "make", "-n", "test-versions")

    (copy / "regions.csv").unlink()
    for recipe in RECIPES:
        run(copy, "git", "apply", "--unsafe-paths", "-R", "-", given=recipe)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
