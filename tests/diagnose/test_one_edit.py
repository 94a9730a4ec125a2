"""Findings whose advice is the same edit of the source: one is printed, and names the others."""

import json

import pytest

from tests.command import kperf

pytestmark = pytest.mark.kernels

HIDDEN_STRIDES = """
import torch, triton, triton.language as tl

@triton.jit
def gemm(a, b, c, K, N, am: tl.int64, ak: tl.int64, bn: tl.int64, bk: tl.int64, B: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B), tl.arange(0, 64)
    acc = tl.zeros((B, B), tl.float32)
    for k in range(0, K, 64):
        x = tl.load(a + rm[:, None] * am + (k + rk)[None, :] * ak)
        y = tl.load(b + rn[None, :] * bn + (k + rk)[:, None] * bk)
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))

a, b, c = (torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(3))
gemm[(32, 32)](a, b, c, 4096, 4096, 4096, 1, 4096, 1, B=128, num_warps=8, num_stages=3)
"""
EDIT = "remove the annotation of ak and bk; or declare ak and bk as tl.constexpr"


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "gemm.py"
    path.write_text(HIDDEN_STRIDES)
    return path


def test_each_finding_that_one_edit_serves_advises_it_whole(script):
    (kernel,) = json.loads(kperf("diagnose", "--static", script, "--json").stdout)["kernels"]
    served = [one for one in kernel["findings"] if one["evidence"].get("edited") == "ak, bk"]
    assert {(one["id"], one["source"]["line"]) for one in served} == {
        ("loads-not-pipelined", 9),
        ("loads-not-pipelined", 10),
        ("uncoalesced-access", 9),
        ("narrow-access", 9),
    }
    assert {one["advice"] for one in served} == {EDIT}
    (first,) = (one["message"] for one in served if (one["id"], one["source"]["line"]) == ("uncoalesced-access", 9))
    assert first.endswith("the compiler does not know that at this launch ak is 1")  # its own load's alone


def test_they_are_printed_as_one_and_hide_nothing(script):
    said = kperf("diagnose", "--static", script).stdout
    assert said.count(EDIT) == 1
    assert "[uncoalesced-access]\n" not in said
    served = "the same change serves [uncoalesced-access] (gemm.py:9) and [narrow-access] (gemm.py:9)\n"
    assert served in said
    assert said.index("[loads-not-pipelined]") < said.index(served)


def test_explain_prints_each_of_them(script):
    said = kperf("diagnose", "--static", script, "--explain").stdout
    assert "the same change serves" not in said
    assert all(f"[{rule}]\n" in said for rule in ("loads-not-pipelined", "uncoalesced-access", "narrow-access"))
