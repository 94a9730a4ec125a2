"""The pytest plugin in runs of pytest of its own, as a user has it: what passes, what fails, what is skipped."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import triton

from kperf.compat.triton.sources import compiled_for
from kperf.integrations.budget import Budget
from tests.trace.capture.test_command import ADD, GEMM

PLUGIN = "kperf.integrations.pytest_plugin"

TESTS = (
    GEMM.replace(
        "torch.zeros(256, 256, dtype=torch.bfloat16)", 'torch.zeros(256, 256, dtype=torch.bfloat16, device="cuda")'
    )
    + """
def test_static(kperf_budget):
    with kperf_budget.compiled() as kernels:
        run(2)
    gemm = kernels["gemm"]
    assert list(kernels) == ["gemm"]
    assert gemm.spills == 0
    assert (gemm.grid, gemm.warps, gemm.occupancy, gemm.target) == ((2, 1, 1), 8, 1, "sm_90a")
    assert gemm.shared_bytes > 3 * (128 * 64 + 256 * 64) * 2
    assert gemm.count("HGMMA") == 64 // 16  # of a warp group, an iteration
    assert gemm.count("HMMA") == gemm.count("HGM") == 0

def test_over(kperf_budget):
    with kperf_budget.compiled() as kernels:
        run(1)
    assert kernels["gemm"].registers <= 8

def test_dynamic(kperf_budget):
    with kperf_budget.traced(kernel="gemm") as t:
        run(3)
    assert t.kernels["gemm"].timeline.mma_use.sm > 0.6
"""
)


def run_pytest(folder: Path, text: str, *options: str) -> str:
    (folder / "test_it.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", PLUGIN, "-p", "no:cacheprovider", *options, folder]
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # an installed kperf brings the plugin under its own name
    variables = os.environ | alone | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables, check=False).stdout


def test_budgets_that_are_kept_broken_and_not_measured(tmp_path):
    said = run_pytest(tmp_path, TESTS)
    assert "1 failed, 1 passed, 1 skipped" in said
    assert "<gemm for sm_90a>.registers" in said
    assert "no NVIDIA driver answers" in said


def test_other_peoples_tests_import_nothing_of_it(tmp_path):
    heavy = ("torch", "triton", "numpy", "pydantic", "rich", "typer", "kperf.api")
    look = f"import sys\ndef test_nothing():\n    assert {PLUGIN!r} in sys.modules\n"
    look += f"    assert not set(sys.modules) & {set(heavy)!r}\n"
    said = run_pytest(tmp_path, look)
    assert "1 passed" in said, said


@pytest.fixture
def plus(tmp_path):
    path = tmp_path / "plus.py"
    path.write_text(ADD)
    return runpy.run_path(str(path))["plus"]


@pytest.mark.parametrize("target", ["sm_80", "sm_100a"])
def test_another_target_is_compiled_for_anew(plus, target):
    x = torch.zeros(4096, device="meta")
    with Budget().compiled("sm_90a") as first:
        plus[(4,)](x, x, x, 4096, 1024)
        plus[(4,)](x, x, x, 4096, 512)
    with Budget().compiled(target) as second:
        plus[(8,)](x, x, x, 4096, 1024)
    assert [kernel.target for kernel in first.values()] == ["sm_90a", "sm_90a"]
    assert [name[:5] for name in first] == ["plus", "plus."]
    assert second["plus"].target == target
    assert second["plus"].grid == (8, 1, 1)
    assert second["plus"].count("LDG") == 4
    assert second["plus"].opcodes["EXIT"] > 0


def test_what_it_compiles_and_tunes_is_no_gpus(plus):
    x = torch.zeros(4096, device="meta")
    timed = []
    configs = [triton.Config({"BLOCK": size}) for size in (512, 1024)]
    tuned = triton.autotune(configs, key=["n"], do_bench=lambda call, **_: timed.append(call()) or [1.0] * 3)(plus)
    with Budget().compiled() as kernels:
        tuned[(4,)](x, x, x, 4096)
        tuned[(4,)](x, x, x, 4096)
    assert len(timed) == len(kernels) == 2
    assert tuned.cache == {}
    assert 0 not in plus.device_caches
    assert len(compiled_for(plus)) == 2
