"""`kperf trace` under torchrun, with the commands of docs/howto.md: two processes that talk to each other (gloo)."""

import os
import re
import shlex
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from kperf.studies import child

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/howto.md").read_text()
SECTION = PAGE.partition("## Trace under torchrun")[2].partition("\n## ")[0]
COMMANDS = [line.strip() for line in re.findall(r"^    .*(?:\n      .*)*", SECTION.replace("\\\n", ""), re.MULTILINE)]

TRAIN = """
import torch
import torch.distributed as dist
import triton
import triton.language as tl

@triton.jit
def scale(x, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, 2 * tl.load(x + i))

dist.init_process_group("gloo")
x = torch.ones(1 << 14)
for step in range(3):
    scale[(16,)](x, 1024)
    dist.all_reduce(x)
assert dist.get_world_size() == 2
open(f"sum{dist.get_rank()}", "w").write(str(x[0].item()))
dist.destroy_process_group()
"""


@pytest.fixture
def run(tmp_path, in_a_fork):
    """Run a command of the page in a folder with its script; `kperf` is the program on a fake GPU."""
    programs = tmp_path / "bin"
    programs.mkdir()
    kperf = f'#!/bin/sh\nexec {shlex.join(in_a_fork)} -m tests.trace.capture.fake_gpu "$@"\n'
    for name, text in (("kperf", kperf), ("python", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    torchrun = [shlex.join(in_a_fork), "-m", "torch.distributed.run"]
    environment = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

    def run(command, script=TRAIN):
        (tmp_path / "train.py").write_text(script)
        words = " ".join([*torchrun, "--standalone", command.removeprefix("torchrun")])
        with patch.dict(os.environ, environment):
            return child.run(["bash", "-c", words if command.startswith("torchrun") else command], 100, cwd=tmp_path)

    return run


def test_each_rank_is_traced_and_one_report_shows_both(run, tmp_path):
    trace, report, _ = COMMANDS
    done = run(trace)
    assert done.returncode == 0, done.stderr
    sums = [(tmp_path / f"sum{rank}").read_text() for rank in range(2)]
    assert sums == ["8.0", "8.0"]  # ones, summed over two ranks three times; the fake GPU computes nothing
    assert {path.parent.name for path in tmp_path.glob("kperf-trace/*/scale.timeline.json")} == {"rank0", "rank1"}
    done = run(report)
    assert "kperf-report.html (2 kernels" in done.stdout, done.stderr
    page = (tmp_path / "kperf-report.html").read_text()
    assert page.index("scale (rank0)") < page.index("scale (rank1)")


def test_one_rank_alone_is_traced(run, tmp_path):
    done = run(
        COMMANDS[2],
        TRAIN.replace("scale[(16,)](x, 1024)", "if 'kperf' in __import__('sys').modules: scale[(16,)](x, 1024)"),
    )
    assert done.returncode == 0, done.stderr
    assert [path.parent.name for path in tmp_path.glob("kperf-trace/*/scale.timeline.json")] == ["rank0"]
