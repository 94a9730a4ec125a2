"""Products with an identity matrix keep a tile in registers, which then may spill."""

import pytest

from tests.diagnose.test_severities import found

pytestmark = pytest.mark.kernels

SCORES = """
def scores(q_ptr, k_ptr, v_ptr, out, n, M: tl.constexpr, N: tl.constexpr, D: tl.constexpr):
    m, j, d = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N), tl.arange(0, D)
    q = tl.load(q_ptr + m[:, None] * D + d[None, :])
    PRODUCT
    sums, acc = tl.zeros((M,), tl.float32), tl.zeros((M, D), tl.float32)
    for start in range(0, n, N):
        k = tl.load(k_ptr + (start + j)[None, :] * D + d[:, None])
        v = tl.load(v_ptr + (start + j)[:, None] * D + d[None, :])
        p = tl.exp2(tl.dot(q, k))
        sums += tl.sum(p, 1)
        acc += tl.dot(p.to(tl.bfloat16), v)
    tl.store(out + m[:, None] * D + d[None, :], acc / sums[:, None])
"""
LAUNCH = """
q, k, v = (torch.empty(1 << 16, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
scores[(512,)](q, k, v, torch.empty(1 << 16, 128, device="cuda"), 1 << 16, 128, 64, 128, num_warps=4, num_stages=2)
"""
CHOSEN = "q = tl.dot(q, tl.where(d[:, None] == d[None, :], 1.0, 0.0).to(tl.bfloat16)).to(tl.bfloat16)"
AS_NUMBERS = "q = tl.dot(q, (d[None, :] - d[:, None] == 0).to(tl.bfloat16)).to(tl.bfloat16)"
FROM_LEFT = "q = tl.dot((d[:, None] == d[None, :]).to(tl.bfloat16), q).to(tl.bfloat16)"


def spills(folder, product):
    return found(folder, SCORES.replace("PRODUCT", product), LAUNCH)["register-spills"]


@pytest.mark.parametrize("product", [CHOSEN, AS_NUMBERS, FROM_LEFT])
def test_a_product_with_an_identity_matrix_is_to_be_left_out_where_registers_spill(tmp_path, product):
    finding = spills(tmp_path, product)
    assert finding.advice.startswith(
        "leave out the tl.dot with an identity matrix on line 7, which only moves its other operand into registers; "
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" == ", " >= "),  # a triangle
        ("1.0, 0.0", "2.0, 0.0"),
        ("1.0, 0.0", "1.0, 0.5"),
        ("d[:, None] == ", "d[:, None] + 1 == "),  # moves columns
    ],
)
def test_a_product_with_another_matrix_is_not(tmp_path, old, new):
    assert "identity" not in spills(tmp_path, CHOSEN.replace(old, new)).advice
