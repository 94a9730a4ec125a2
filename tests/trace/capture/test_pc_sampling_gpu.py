"""On a GPU whose counters may be read: samples of a kernel whose waits are known, and times as without samples."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from kperf.trace.analyze.recorded import read_timeline

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = """
import torch, triton, triton.language as tl

@triton.jit
def gather(x, places, out, n, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        place = tl.load(places + tl.program_id(0) * n + start + tl.arange(0, BLOCK))
        total += tl.load(x + place)  # of random places: this is waited for
    tl.store(out + tl.program_id(0), tl.sum(total, 0))

x = torch.randn(1 << 28, device="cuda")
places = torch.randint(0, 1 << 28, (1024, 8192), device="cuda")
out = torch.empty(1024, device="cuda")
for _ in range(20):
    gather[(1024,)](x, places, out, 8192, 1024, num_warps=4)
torch.testing.assert_close(out, x[places].sum(1), rtol=1e-3, atol=1e-2)
"""
LOAD = 9


def traced(folder: Path, *options: str):
    script = folder / "it.py"
    script.write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "kperf",
        "trace",
        *options,
        "--passes",
        "1",
        "--out",
        str(folder / "out"),
        str(script),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return read_timeline(folder / "out/gather.timeline.json"), done.stderr


def test_a_kernel_that_waits_for_random_places_is_sampled_there(tmp_path):
    timeline, said = traced(tmp_path, "--samples")
    if timeline.no_samples:
        pytest.skip(timeline.no_samples)
    assert timeline.samples.total > 10_000, said
    assert timeline.samples.stalls["long_scoreboard"] > 0.5
    awaited = {one.line: sum(one.awaited.values()) for one in timeline.samples.lines}
    most, second, *_ = sorted(awaited, key=lambda line: awaited[line], reverse=True)
    assert {most, second} == {LOAD - 1, LOAD}  # the places and what is there: which is slower, the GPU's memory decides
    assert awaited[LOAD] > 0.2 * timeline.samples.total
    without, _ = traced(tmp_path)
    times = [statistics.median(one.overhead.original_samples_ms) for one in (timeline, without)]
    assert times[0] == pytest.approx(times[1], rel=0.03)  # CUPTI is detached before anything is timed
