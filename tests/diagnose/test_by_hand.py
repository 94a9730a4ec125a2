"""Matrix products by hand: the forms in which they are written, and their neighbours, which are right."""

import pytest

from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

PRODUCT = """
def product(a_ptr, b_ptr, out, k, S: tl.constexpr, K: tl.constexpr):
    r = tl.arange(0, S)
    a_ptrs, b_ptrs = a_ptr + r, b_ptr + r
    fixed, tile = tl.load(a_ptr + r), tl.load(a_ptr + r[:, None] * S + r[None, :])
    acc = tl.zeros((S, S), tl.float32)
    step = 0
    LOOP:
        a, b = tl.load(a_ptrs + step * S).to(tl.float32), tl.load(b_ptrs + step * S).to(tl.float32)
        step += 1
        UPDATE
    tl.store(out + r[:, None] * S + r[None, :], acc)
"""
READ = "tl.store(out + step * S + r, tl.sum(acc * a[None, :], axis=1))"


def dot_by_hand(folder, loop, update, *constexprs):
    source = PRODUCT.replace("LOOP", loop).replace("UPDATE", update)
    return found(folder, source, "*fp16,*fp16,*fp32,i32", *(constexprs or ("S=64", "K=64"))).get("dot-by-hand")


@pytest.mark.parametrize(
    ("loop", "update"),
    [
        ("for i in range(0, k)", "acc += a[:, None] * b[None, :]"),
        ("for i in range(0, K)", "acc = b[None, :] * a[:, None] + acc"),
        ("for i in tl.static_range(32)", "acc += a[:, None] * b[None, :]"),
        ("while step < k", "acc += a[:, None] * b[None, :]"),
        ("for i in range(0, k)", "acc -= a[:, None] * b[None, :]"),
        ("for i in range(0, k)", "acc = tl.fma(a[:, None], b[None, :], acc)"),
        ("for i in range(0, k)", "acc += a[:, None] * b[None, :]; acc += tl.load(a_ptr + step)[:, None] * b[None, :]"),
        ("for i in range(0, 8)", "acc += a[:, None] * b[None, :]; acc += b[:, None] * a[None, :]"),
        ("for i in range(0, k)", "acc += tl.sum(tl.where(r[None, :] == i, tile, 0.0), 1)[:, None] * b[None, :]"),
    ],
)
def test_a_sum_of_outer_products_is_a_matrix_product_by_hand(tmp_path, loop, update):
    finding = dot_by_hand(tmp_path, loop, update.replace("a_ptr + step", "a_ptr + r * k + step"))
    assert finding.message.startswith("rank-1 updates of 64x64 elements are summed on the FMA units")
    assert (finding.severity, finding.source.line, finding.evidence["elements"]) == ("high", 13, 4096)


@pytest.mark.parametrize(
    ("loop", "update"),
    [
        ("for i in range(0, k)", f"acc += a[:, None] * b[None, :]; {READ}"),
        ("for i in range(0, k)", f"{READ}; acc += a[:, None] * b[None, :]"),
        ("for i in range(0, k)", "acc = acc * tl.exp(a)[:, None] + a[:, None] * b[None, :]"),
        ("for i in range(0, k)", "acc += (b - tl.sum(acc * a[:, None], axis=0))[None, :] * a[:, None]"),
        ("for i in range(0, k)", "acc += fixed[:, None] * b[None, :]"),
        ("for i in range(0, k)", "acc += a[:, None] * b[:, None]"),
        ("for i in range(0, k)", "acc += tile * b[None, :]"),
        ("for i in range(0, k)", "acc = tl.dot(tile, tile, acc) + a[:, None]"),
        ("for i in range(0, 3)", "acc += a[:, None] * b[None, :]"),
        ("for i in tl.static_range(3)", "acc += a[:, None] * b[None, :]"),
        ("for i in tl.static_range(16)", "acc += fixed[:, None] * b[None, :]"),
        ("for i in range(0, k)", "acc = a[:, None] * b[None, :]"),
        ("for i in range(0, k)", "acc = a[:, None] * b[None, :] - acc"),
        ("for i in range(0, k)", "acc = tl.maximum(acc, a[:, None] * b[None, :])"),
    ],
)
def test_states_that_are_read_and_other_sums_are_no_matrix_product(tmp_path, loop, update):
    assert dot_by_hand(tmp_path, loop, update) is None


def test_vectors_shorter_than_a_tile_are_no_matrix_product(tmp_path):
    update = "acc += a[:, None] * b[None, :]"
    assert dot_by_hand(tmp_path, "for i in range(0, k)", update, "S=16", "K=16").evidence["elements"] == 256
    assert dot_by_hand(tmp_path, "for i in range(0, k)", update, "S=8", "K=16") is None
