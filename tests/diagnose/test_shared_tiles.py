"""Vectors of several CTAs that are multiplied with the same tile: by hand, and where it is no matrix product."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.analyses import shared_tiles
from kperf.diagnose.rules import dot_by_hand

pytestmark = pytest.mark.kernels

VECTORS = """
import torch, triton, triton.language as tl

@triton.jit
def vectors(w_ptr, x_ptr, table, y_ptr, N, K, BN: tl.constexpr, BK: tl.constexpr):
    b = tl.program_id(1)
    rn, rk = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros(SHAPE, tl.float32)
    for k in range(0, K, BK):
        w = tl.load(w_ptr + MATRIX * N * K + rn[:, None] * K + k + rk[None, :])
        x = tl.load(x_ptr + VECTOR * K + k + rk)
        acc += UPDATE
    tl.store(y_ptr + b * N + rn, RESULT)

w, x = torch.zeros(16, 4096, 4096, device="cuda", dtype=DTYPE), torch.zeros(32, 4096, device="cuda", dtype=DTYPE)
table, y = torch.zeros(32, device="cuda", dtype=torch.int32), torch.zeros(32, 4096, device="cuda")
vectors[(64, CTAS)](w, x, table, y, 4096, 4096, 64, 64)
"""
SUM = "tl.sum(w * x[None, :], axis=1)"


def vectors(folder, *, update=SUM, matrix="0", vector="b", ctas=16, shape="(BN,)", result="acc", dtype="torch.float16"):
    words = {"UPDATE": update, "MATRIX": matrix, "VECTOR": vector, "CTAS": str(ctas), "SHAPE": shape, "RESULT": result}
    source = VECTORS
    for word, written in (words | {"DTYPE": dtype}).items():
        source = source.replace(word, written)
    path = folder / "kernel.py"
    path.write_text(source)
    (kernel,) = inputs.read(str(path), (), SM_90A)
    return next(dot_by_hand.check(kernel), None)


@pytest.mark.parametrize(
    ("changes", "times"),
    [
        ({}, 16),
        ({"ctas": 32}, 32),
        ({"matrix": "b // 8", "ctas": 32}, 8),
        ({"matrix": "(b % 2)", "ctas": 32}, 16),
        ({"matrix": "tl.load(table)"}, 16),
        ({"matrix": "(tl.load(table) + b // 8)"}, 8),
        ({"vector": "tl.load(table + b)"}, 16),
        ({"update": "tl.sum((x[None, :] * w).to(tl.float32), 1)"}, 16),
        ({"update": "tl.sum(tl.where(rk[None, :] + k < K, w.to(tl.float32) * x[None, :], 0.0), 1)"}, 16),
        ({"update": "w * x[None, :]", "shape": "(BN, BK)", "result": "tl.sum(acc, axis=1)"}, 16),
        ({"update": "tl.sum(w * tl.exp(x.to(tl.float32))[None, :], axis=1)"}, 16),
        ({"dtype": "torch.float32"}, 16),
    ],
)
def test_vectors_of_several_ctas_with_one_tile_are_a_matrix_product(tmp_path, changes, times):
    finding = vectors(tmp_path, **changes)
    assert finding.message.startswith(f"{times} CTAs load the same tile of w_ptr")
    assert finding.evidence["ctas"] == times
    assert (finding.severity, finding.source.line) == ("high", 12)
    assert f"let one CTA take {min(times, 16)} of these vectors" in finding.advice


@pytest.mark.parametrize(
    "changes",
    [
        {"ctas": 1},
        {"ctas": 2},
        {"matrix": "b // 2", "ctas": 32},
        {"matrix": "b"},
        {"matrix": "tl.load(table + b)"},
        {"vector": "0"},
        {"update": "tl.max(w * x[None, :], axis=1)"},
        {"update": "tl.sum(w + x[None, :], axis=1)"},
        {"update": "tl.sum(w * x[:, None], axis=1)"},
        {"update": "tl.sum(w * b, axis=1)"},
        {"dtype": "torch.float64", "update": f"{SUM}.to(tl.float32)"},
    ],
)
def test_other_tiles_of_each_cta_few_vectors_and_other_sums_are_no_matrix_product(tmp_path, changes):
    assert vectors(tmp_path, **changes) is None


def test_the_gain_is_of_tiles_from_l2_beside_what_memory_gives_once(tmp_path):
    """L2 gives an SM 64 bytes a cycle, memory 4.8 TB/s for 132 SMs; a launch takes 4 us beside."""
    finding = vectors(tmp_path)
    tile, vector, of_sm, launch = 64 * 4096 * 2, 4096 * 2, 64 * 16 / 132, 0.004 * 1980e3
    now = (tile + vector) / 64
    later = (tile / 16 + vector / 64 + 64 * 4) / SM_90A.memory_bytes_per_cycle
    assert finding.estimate.speedup == pytest.approx((now * of_sm + launch) / (later * of_sm + launch), rel=0.01)
    assert finding.advice.endswith("split the loop over more CTAs: 64 are left")


SORT = """
import torch, triton, triton.language as tl

@triton.jit
def largest(x_ptr, y_ptr, n, N: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, N)
    best = tl.load(x_ptr + row * n + at)
    odd = tl.arange(0, 2)[None, :, None]
    for start in range(N, n, N):
        pairs = tl.reshape(best + tl.load(x_ptr + row * n + start + at), (N // 2, 2, 1))
        left = tl.sum(pairs * (1 - odd), 1)[:, None, :]
        right = tl.sum(pairs * odd, 1)[:, None, :]
        best = tl.reshape(tl.where(left > right, pairs, left + 0 * pairs), (N,))
    tl.store(y_ptr + row * N + at, best)

x, y = torch.zeros(4096, 1024, device="cuda"), torch.zeros(4096, 64, device="cuda")
largest[(4096,)](x, y, 1024, 64)
"""


def test_steps_of_a_sort_are_no_products_and_cost_no_time(tmp_path, monkeypatch):
    """Each adds up two numbers, one of them times 0; a network of 4096 elements has hundreds of such steps."""
    path = tmp_path / "kernel.py"
    path.write_text(SORT)
    (kernel,) = inputs.read(str(path), (), SM_90A)
    monkeypatch.setattr(shared_tiles, "numbers_of_ctas", lambda *_: pytest.fail("it asks what CTAs share"))
    assert list(dot_by_hand.check(kernel)) == []
