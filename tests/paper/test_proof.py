"""`make proof` on a GPU that is not there: each script in a process of its own, and what is said of the rows."""

import sys
from pathlib import Path

import pytest

from kperf.console import WholeConsole
from kperf.errors import UsageError
from kperf.paper import proof
from kperf.paper.proof import ROWS
from kperf.record import device
from kperf.record.store import RecordStore
from tests.conftest import environment

ROOT = Path(__file__).resolve().parents[2]
COMMON = {"run": "r", "environment": "e", "recorded_at": "2026-11-23T00:00:00Z"}

GEMM = """
import torch, triton, triton.language as tl

@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a_ptrs = a + rm[:, None] * K + rk[None, :]
    b_ptrs = b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a_ptrs)  # planted: loads-not-pipelined
        y = tl.load(b_ptrs)
        acc = tl.dot(x, y, acc)
        a_ptrs += BK
        b_ptrs += BK * N
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(c.dtype.element_ty))

a, b = torch.randn(256, 128, dtype=torch.bfloat16), torch.randn(128, 256, dtype=torch.bfloat16)
c = torch.zeros(256, 256, dtype=torch.bfloat16)
gemm[(4, 4)](a, b, c, 256, 256, 128, 64, 64, 64, num_warps=4, num_stages=1)
"""
WHILE = GEMM.replace("num_stages=1", "num_stages=3").replace(
    "for k in range(0, K, BK):", "k = 0\n    while k < K:\n        k += BK"
)
PLUS = """
import torch, triton, triton.language as tl

@triton.jit
def plus(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

x = torch.zeros(1 << 20)
plus[(1024,)](x, x, x, 1 << 20, 1024)
"""


@pytest.fixture
def console() -> WholeConsole:
    return WholeConsole(record=True, width=250, quiet=False)


@pytest.fixture
def on_a_fake_gpu(monkeypatch):
    monkeypatch.setattr(proof, "SESSION", (sys.executable, "-m", "tests.paper.proof_session_on_a_fake_gpu"))
    monkeypatch.setattr(device, "why_static", lambda: None)
    monkeypatch.setattr(device, "environment", environment)
    monkeypatch.setattr(device, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def written(folder, **texts):
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_each_kernel_is_tried_or_timed_beside_its_fixed_copy(tmp_path, console):
    kernels = written(
        tmp_path / "set",
        planted__stages=GEMM,
        drafts__loop=WHILE,
        fixed__loop=GEMM.replace("num_stages=1", "num_stages=3"),
        planted__other=WHILE,
        fixed__other=GEMM.replace("torch.randn(256", "torch.rand(256"),
        clean__plus=PLUS,
        clean__broken="raise SystemExit(3)",
    )
    proof.run(console, tmp_path / "results", kernels, [], require_gpu=True)
    rows = {row.name: row for row in RecordStore(tmp_path / "results/h200", "diagnose", ROWS).points()}
    assert set(rows) == {"stages", "loop", "other", "plus", "broken"}
    stages = rows["stages"]
    assert (stages.kind, stages.fault, stages.line, stages.rank) == ("planted", "loads-not-pipelined", 13, 1)
    assert stages.finding.source.file == "planted/stages.py"
    assert {trial.change for trial in stages.finding.tried} == {"num_stages=2", "num_stages=3", "num_stages=4"}
    assert (stages.gain.speedup, len(stages.finding.tried[0].original_ms)) == (1.0, 21)
    loop = rows["loop"]
    assert (loop.kind, loop.rank, loop.finding.tried) == ("drafts", 1, [])
    assert (loop.fixed.compared, len(loop.fixed.fixed_ms)) == (["a", "b", "c"], 21)
    assert (loop.gain.by, loop.gain.speedup) == ("a fixed copy", 1.0)
    assert rows["other"].fixed is None
    assert rows["other"].why == "a of the fixed other.py is not that of other.py"
    assert (rows["plus"].kind, rows["plus"].fault, rows["plus"].severe) == ("clean", "", [])
    assert rows["broken"].why.startswith("the script ends with exit status 3: ")
    said = console.export_text()
    assert "3 of 3 faults are named first or second at their line." in said
    assert "0 findings of severity high in 1 clean kernels." in said
    assert "Without a measured gain: other (a of the fixed other.py is not that of other.py)." in said
    assert "Failed: broken (the script ends with exit status 3: " in said


def test_without_a_gpu_and_a_record_one_sentence_says_so(tmp_path, monkeypatch, console):
    monkeypatch.setattr(device, "why_static", lambda: "there is no GPU")
    with pytest.raises(UsageError, match="nothing is recorded of `make proof`"):
        proof.run(console, tmp_path, tmp_path, [], require_gpu=False)


def test_kernels_that_are_not_there_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="has no kernels: give the folder of the proof set with --kernels"):
        proof.scripts(tmp_path, [])
    with pytest.raises(UsageError, match="has no kernel nothing"):
        proof.scripts(ROOT / "tests/diagnose/kernels", ["gemm", "nothing"])
