"""`kperf diagnose script.py` on a fake GPU: traced, and read in both ways."""

import io
import json

import pytest

from kperf.console import WholeConsole
from kperf.diagnose import command
from tests.trace.capture import fake_gpu

SCRIPT = """
import torch, triton, triton.language as tl

@triton.jit
def column_sum(x, out, rows, columns, BLOCK: tl.constexpr):
    column = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, rows, BLOCK):
        r = start + tl.arange(0, BLOCK)
        acc += tl.load(x + r * columns + column)
    tl.store(out + column, tl.sum(acc, 0))

x, out = torch.ones(1024, 160), torch.empty(160)
for _ in range(4):
    column_sum[(160,)](x, out, 1024, 160, 256)
"""


@pytest.fixture
def on_a_fake_gpu(tmp_path, monkeypatch):
    fake_gpu.install(tmp_path, monkeypatch)


@pytest.mark.usefixtures("on_a_fake_gpu")
def test_a_traced_script_is_diagnosed_by_what_was_compiled_and_measured(tmp_path):
    script = tmp_path / "columns.py"
    script.write_text(SCRIPT)
    console = WholeConsole(file=io.StringIO(), width=160)
    request = command.Request(as_json=True)
    assert command.run_traced(console, str(script), (), request, fake_gpu.FakeGpu()) == 0
    (one,) = json.loads(console.file.getvalue())["kernels"]
    assert one["kernel"] == "column_sum"
    found = {finding["id"]: finding for finding in one["findings"]}
    assert found["uncoalesced-access"]["source"] == {"file": str(script), "line": 10, "function": "column_sum"}
    assert found["tail-wave"]["evidence"]["ctas"] == 160  # as the fake GPU's made-up timers have it
    assert one["skipped"] == {}
