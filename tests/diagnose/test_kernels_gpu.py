"""Each kernel of the proof set, and each fixed copy, computes on a GPU what its script checks."""

import gc
import sys
from pathlib import Path

import pytest
import torch

from kperf.trace.capture.script import Script

pytestmark = pytest.mark.gpu

KERNELS = Path(__file__).parent / "kernels"
FAILING = {"drafts/reward_head", "planted/too_large"}
"""Kernels whose fault it is that they compute wrong results, or that no GPU takes them."""


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*/*.py")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_kernel_computes_what_its_script_checks(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    torch.manual_seed(0)
    status = Script(str(path), ()).run()
    vars(sys.modules["__main__"]).clear()  # its tensors, and what the compiler's visitors, which are cycles, copied
    gc.collect()
    torch.cuda.empty_cache()
    assert status == (f"{path.parent.name}/{path.stem}" in FAILING)
