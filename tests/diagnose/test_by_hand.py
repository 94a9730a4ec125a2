"""Scans and matrix products by hand: the forms in which they are written, and their neighbours, which are right."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

SCAN = """
def scan(x_ptr, w_ptr, k_ptr, out, n, N: tl.constexpr, BLOCK: tl.constexpr):
    i, row = tl.arange(0, BLOCK), tl.program_id(0)
    keys = tl.load(k_ptr + row * BLOCK + i)
    lower = i[:, None] >= i[None, :]
    for start in range(0, n, BLOCK):
        cols = start + i
        x = tl.load(x_ptr + row * n + cols, mask=cols < n, other=0.0)
        y = EXPRESSION
        tl.store(out + row * n + cols, y + keys)
"""
TILE = "tl.load(w_ptr + i[:, None] * BLOCK + i[None, :])"


def scan_by_hand(folder, expression, *, block=128, types="*fp32,*fp32,*i32,*fp32,i32"):
    source = SCAN.replace("EXPRESSION", expression)
    return found(folder, source, types, "N=100", f"BLOCK={block}", num_warps=4).get("scan-by-hand")


@pytest.mark.parametrize(
    ("expression", "scan"),
    [
        ("tl.sum(tl.where(i[:, None] >= i[None, :], x[None, :], 0.0), axis=1)", "tl.cumsum(x)"),
        ("tl.sum(tl.where(lower, x[None, :], 0.0), axis=1)", "tl.cumsum(x)"),
        ("tl.sum(tl.where(cols[:, None] >= cols[None, :], x[None, :], 0.0), 1)", "tl.cumsum(x)"),
        ("tl.sum(tl.where(i[:, None] - i[None, :] >= 0, x[None, :], 0.0), 1)", "tl.cumsum(x)"),
        ("tl.sum(tl.where(i[:, None] < i[None, :], 0.0, x[None, :]), 1)", "tl.cumsum(x)"),
        ("tl.sum(tl.where(i[:, None] <= i[None, :], x[:, None], 0.0), axis=0)", "tl.cumsum(x)"),
        ("tl.sum(tl.where(i[:, None] > i[None, :], x[None, :], 0.0), axis=1)", "tl.cumsum(x) - x"),
        ("tl.sum(tl.where(i[:, None] <= i[None, :], x[None, :], 0.0), axis=1)", "tl.cumsum(x, reverse=True)"),
        ("tl.sum(tl.where(i[:, None] < i[None, :], x[None, :], 0.0), axis=1)", "tl.cumsum(x, reverse=True) - x"),
        ("tl.sum(tl.where(lower & (i < N)[None, :], x[None, :], 0.0), axis=1)", "tl.cumsum(x)"),
        ("tl.sum(tl.where(lower & (cols < n)[None, :], x[None, :], 0.0), axis=1)", "tl.cumsum(x)"),
        ("tl.sum(lower * x[None, :], axis=1)", "tl.cumsum(x)"),
        ("tl.sum(x[None, :] * lower.to(tl.float32), axis=1)", "tl.cumsum(x)"),
        ("tl.sum(x[None, :] * tl.where(lower, 1.0, 0.0), axis=1)", "tl.cumsum(x)"),
        ("tl.sum(keys[None, :] * lower.to(tl.int32), axis=1)", "tl.cumsum(x)"),
        ("tl.sum(tl.where(lower, (x * x).to(tl.bfloat16)[None, :], 0.0).to(tl.float32), axis=1)", "tl.cumsum(x)"),
        ("tl.max(tl.where(lower, x[None, :], -float('inf')), axis=1)", "tl.associative_scan(x, axis, combine)"),
        ("tl.reduce(tl.where(lower, x[None, :], 1.0), 1, tl.standard._prod_combine)", "tl.cumprod(x)"),
    ],
)  # fmt: skip
def test_a_reduction_of_a_triangle_is_a_scan_by_hand(tmp_path, expression, scan):
    finding = scan_by_hand(tmp_path, expression)
    assert finding.advice.startswith(f"write it as {scan}, which takes log2(128) = 7 steps")
    assert (finding.severity, finding.source.line) == ("high", 11)


@pytest.mark.parametrize(
    "expression",
    [
        "tl.cumsum(x)",
        f"tl.sum(tl.where(lower, {TILE}, 0.0), axis=1)",
        f"tl.max(tl.where(lower, {TILE} * x[None, :], 0.0), axis=1)",
        "tl.sum(tl.where(keys[:, None] >= keys[None, :], x[None, :], 0.0), axis=1)",
        "tl.sum(tl.where(lower & (keys[:, None] == keys[None, :]), x[None, :], 0.0), axis=1)",
        "tl.sum(tl.where(lower & (keys[:, None] != keys[None, :]), x[None, :], 0.0), axis=1)",
        "tl.sum(tl.where(lower & (i[:, None] - i[None, :] < 8), x[None, :], 0.0), axis=1)",
        "tl.sum(tl.where(i[:, None] == i[None, :], x[None, :], 0.0), axis=1)",
        "tl.sum(tl.where(lower, x[None, :], x[:, None]), axis=1)",
        "tl.sum(tl.where(lower, x[None, :] * x[:, None], 0.0), axis=1)",
        "tl.sum(tl.where(lower, x[:, None], 0.0), axis=1)",
        "tl.sum(tl.where(lower, tl.exp(x[:, None] - x[None, :]), 0.0), axis=1)",
        "tl.sum(tl.maximum(i[:, None] - i[None, :], 0) * x[None, :], axis=1)",
        "tl.sum(tl.where(i[:, None] // 16 >= i[None, :], x[None, :], 0.0), axis=1)",
        "tl.sum(tl.where(row >= i[None, :], x[None, :] + tl.zeros([BLOCK, BLOCK], tl.float32), 0.0), axis=1)",
        "tl.sum(tl.dot(lower.to(tl.bfloat16), tl.broadcast_to(x[:, None], BLOCK, BLOCK).to(tl.bfloat16)), axis=1)",
    ],
)
def test_other_masks_values_and_scans_are_no_scan_by_hand(tmp_path, expression):
    assert scan_by_hand(tmp_path, expression) is None


def test_what_the_triangle_costs_is_beside_what_the_iteration_does(tmp_path):
    few = scan_by_hand(tmp_path, "tl.sum(tl.where(lower, x[None, :], 0.0), 1)", block=32)
    many = scan_by_hand(tmp_path, "tl.sum(tl.where(lower, x[None, :], 0.0), 1)")
    assert few.evidence["length"] == 32
    assert few.evidence["elements"] == 1024
    # 128 x 128 elements on 4 warps: a mask and a sum at 128 a cycle, and 128 sums of a warp in 5 shuffles and additions
    assert many.evidence["triangle_cycles"] == 2 * 128 * 128 / 128 + 4 * 128 * 5 * (1 + 1 / 4)
    assert many.evidence["scan_cycles"] == 128 * 7 * (1 / 32 + 1 / 128)
    assert few.estimate.speedup < 16 < many.estimate.speedup < many.estimate.high < 80


def test_a_small_triangle_beside_much_work_is_no_finding(tmp_path):
    small = "tl.sum(tl.where(lower, x[None, :], 0.0), axis=1)"
    assert scan_by_hand(tmp_path, small, block=8) is None
    assert scan_by_hand(tmp_path, small, block=16).severity == "high"
    assert scan_by_hand(tmp_path, f"{small} + tl.sum(tl.load(w_ptr + tl.arange(0, 16384)))", block=16) is None


ROWS = """
def rows(x_ptr, out, BLOCK: tl.constexpr, D: tl.constexpr):
    i, d = tl.arange(0, BLOCK), tl.arange(0, D)
    x = tl.load(x_ptr + i[:, None] * D + d[None, :])
    lower = i[:, None] >= i[None, :]
    y = EXPRESSION
    tl.store(out + i[:, None] * D + d[None, :], y)
"""


@pytest.mark.parametrize(
    ("expression", "severity"),
    [
        ("tl.sum(tl.where(lower[:, :, None], x[None, :, :], 0.0), axis=1)", "high"),
        ("tl.sum((i[:, None] <= i[None, :]).to(tl.float32)[:, :, None] * x[:, None, :], axis=0)", "medium"),
    ],
)
def test_prefixes_of_the_rows_of_a_tile_are_a_scan_and_no_matrix_product(tmp_path, expression, severity):
    rules = found(tmp_path, ROWS.replace("EXPRESSION", expression), "*fp32,*fp32", "BLOCK=32", "D=16", num_warps=4)
    assert rules["scan-by-hand"].severity == severity
    assert "dot-by-hand" not in rules


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


SQUARES = """
def squares(x_ptr, c_ptr, w_ptr, out, m, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    fixed = tl.load(x_ptr + i)[:, None]
    acc = tl.zeros((M, N), tl.float32)
    for step in LOOP:
        x, c = tl.load(x_ptr + step * m + i)[:, None], tl.load(c_ptr + step * m + j)[None, :]
        w = tl.load(w_ptr + step)
        d = x - c
        UPDATE
    tl.store(out + i[:, None] * m + j[None, :], acc)
"""


def squares_by_hand(folder, update, loop="range(k)", *constexprs, element="bf16"):
    source = SQUARES.replace("UPDATE", update).replace("LOOP", loop)
    types = f"*{element},*{element},*fp32,*fp32,i32:16,i32"
    return found(folder, source, types, *(constexprs or ("M=64", "N=64", "K=64"))).get("dot-by-hand")


@pytest.mark.parametrize(
    ("update", "loop"),
    [
        ("acc += d * d", "range(k)"),
        ("acc += d * d", "range(K)"),
        ("acc += d * d", "tl.static_range(64)"),
        ("acc -= w * d * d", "range(k)"),
        ("acc += w * (d * d)", "range(k)"),
        ("d = d.to(tl.float32) / w; acc += d * d", "range(k)"),
        ("acc = tl.fma(d.to(tl.float32), d.to(tl.float32), acc)", "range(k)"),
        ("acc += (c - x) * (c - x) * 0.5", "range(k)"),
    ],
)
def test_a_sum_of_squared_differences_is_a_matrix_product_by_hand(tmp_path, update, loop):
    finding = squares_by_hand(tmp_path, update, loop)
    assert finding.message.startswith("64x64 squared differences are summed on the FMA units")
    assert "2 * tl.dot(x, c)" in finding.advice
    assert "loses digits" in finding.advice
    assert (finding.severity, finding.confidence, finding.source.line) == ("high", "medium", 12)


@pytest.mark.parametrize(
    "update",
    [
        "acc += tl.abs(d)",
        "acc += d * d * d",
        "acc += d + d",
        "acc += d * (x - 2 * c)",
        "acc += d * d * tl.exp(d.to(tl.float32))",
        "acc += tl.exp(-(d * d).to(tl.float32))",
        "acc += tl.where(tl.abs(d) < 1, d * d, tl.abs(d))",
        "acc = tl.maximum(acc, d * d)",
        "acc += (fixed - c) * (fixed - c)",
        "acc += (x - acc) * (x - acc)",
        "acc += d * d; tl.store(out + step * m + i, tl.sum(acc, axis=1))",
        "acc += (x - w) * (x - w)",
        "acc += w / (d * d).to(tl.float32)",
        "acc += d * d * c",  # |x|^2 would be a matrix multiplication too
    ],
)
def test_other_functions_of_a_difference_are_no_matrix_product(tmp_path, update):
    assert squares_by_hand(tmp_path, update) is None


def test_few_or_short_squares_are_no_matrix_product(tmp_path):
    assert squares_by_hand(tmp_path, "acc += d * d", "range(8)") is None
    assert squares_by_hand(tmp_path, "acc += d * d", "tl.static_range(3)") is None
    assert squares_by_hand(tmp_path, "acc += d * d", "range(k)", "M=64", "N=8", "K=64") is None
    assert squares_by_hand(tmp_path, "acc += (d * d).to(tl.float32)", element="fp64") is None


def test_what_squares_cost_is_beside_the_bytes_that_a_dot_moves_too(tmp_path):
    """A subtraction, a cast and an FMA an element, at 128 a cycle; L2 gives 64 bytes a cycle, and memory takes 20."""
    finding = squares_by_hand(tmp_path, "d = d.to(tl.float32); acc += d * d", "range(K)")
    by_hand = 64 * 64 * 64 * 3 / 128
    moving = 64 * 2 * 64 * 2 / 64 + 64 * 64 * 4 / 20
    assert finding.estimate.speedup == pytest.approx(by_hand / moving, rel=0.01)
    assert finding.estimate.low == pytest.approx(by_hand / moving / 4, rel=0.01)


SQUARES_OF_TILES = """
def squares(x_ptr, c_ptr, out, k, D: tl.constexpr, K: tl.constexpr):
    i, j, d = tl.program_id(0) * 32 + tl.arange(0, 32), tl.arange(0, 32), tl.arange(0, K)
    acc = tl.zeros((32, 32), tl.float32)
    for start in range(0, D, K):
        x = tl.load(x_ptr + i[:, None] * D + start + d[None, :])
        c = tl.load(c_ptr + j[:, None] * D + start + d[None, :])
        near = x[:, None, :] - c[None, :, :]
        UPDATE
    tl.store(out + i[:, None] * 32 + j[None, :], acc)
"""


@pytest.mark.parametrize(
    ("update", "sizes", "is_found"),
    [
        ("acc += tl.sum(near * near, axis=2)", ("D=256", "K=8"), True),
        ("acc = tl.sum(near * near, axis=2)", ("D=32", "K=32"), True),
        ("acc += tl.sum(near * near * tl.load(x_ptr + d)[None, None, :], axis=2)", ("D=256", "K=16"), True),
        ("acc = tl.sum(near * near, axis=2)", ("D=256", "K=8"), False),
        ("acc += tl.sqrt(tl.sum(near * near, axis=2))", ("D=256", "K=8"), False),
        ("acc += tl.sum(tl.abs(near), axis=2)", ("D=256", "K=8"), False),
        ("acc += tl.sum(near, axis=2)", ("D=256", "K=16"), False),
        ("acc += tl.sum(tl.fma(near, near, near), axis=2)", ("D=256", "K=16"), False),
        ("acc += tl.max(near * near, axis=2)", ("D=256", "K=8"), False),
        ("acc += tl.sum(near * near, axis=1)", ("D=256", "K=32"), False),
    ],
)
def test_squared_differences_of_tiles_are_a_matrix_product_if_they_are_summed_along_both(
    tmp_path, update, sizes, is_found
):
    source = SQUARES_OF_TILES.replace("UPDATE", update)
    assert ("dot-by-hand" in found(tmp_path, source, "*fp32,*fp32,*fp32,i32", *sizes)) == is_found


def test_the_maximum_of_products_is_no_matrix_product(tmp_path):
    product = SQUARES_OF_TILES.replace("x[:, None, :] - c", "x[:, None, :] * c")
    for reduction, is_found in (("tl.sum", True), ("tl.max", False)):
        source = product.replace("UPDATE", f"acc += {reduction}(near, axis=2)")
        rules = found(tmp_path, source, "*fp32,*fp32,*fp32,i32", "D=256", "K=16")
        assert ("dot-by-hand" in rules) == is_found


THREE = """
def three(a_ptr, b_ptr, lengths, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    m, n = tl.arange(0, BM)[:, None, None], tl.arange(0, BN)[None, :, None]
    k = tl.arange(0, BK)[None, None, :]
    a_ptrs, b_ptrs = a_ptr + A_OFFSETS, b_ptr + B_OFFSETS
    length = tl.load(lengths + n)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        a = tl.load(a_ptrs, mask=MASK, other=0.0)
        b = tl.load(b_ptrs, mask=(n < N) & (k + start < K), other=0.0)
        acc += SUM
        a_ptrs += BK
        b_ptrs += BK
    tl.store(out + tl.arange(0, BM)[:, None] * N + tl.arange(0, BN)[None, :], acc)
"""
OFFSETS, MASK = ("m * K + k + n * 0", "n * K + k + m * 0"), "(m < M) & (n < N) & (k + start < K)"


@pytest.mark.parametrize(
    ("offsets", "mask", "total", "is_found"),
    [
        (OFFSETS, MASK, "tl.sum(a * b, axis=2)", True),
        (OFFSETS[::-1], MASK, "tl.sum(a.to(tl.float32) * b.to(tl.float32), 2)", True),
        (OFFSETS, "k + start < length", "tl.sum((a * b).to(tl.float32), 2)", True),
        (OFFSETS, MASK, "tl.sum(tl.where(k + start < K, a * b, 0.0), 2)", True),
        (OFFSETS, "m + k < length", "tl.sum(a * b, axis=2)", False),
        (OFFSETS, MASK, "tl.max(a * b, axis=2)", False),
        (OFFSETS, MASK, "tl.sum(a + b, axis=2)", False),
        (OFFSETS, MASK, "tl.sum(a * a, axis=2)", False),
        (("m * K + k + n", OFFSETS[1]), MASK, "tl.sum(a * b, axis=2)", False),
        ((OFFSETS[0], "n * K + k * 0 + m * 0"), MASK, "tl.sum(a * b, axis=2)", False),
    ],
)
def test_tiles_of_three_dimensions_of_which_each_repeats_along_another_are_a_matrix_product(
    tmp_path, offsets, mask, total, is_found
):
    words = {"A_OFFSETS": offsets[0], "B_OFFSETS": offsets[1], "MASK": mask, "SUM": total}
    source = THREE
    for word, written in words.items():
        source = source.replace(word, written)
    rules = found(tmp_path, source, "*bf16,*bf16,*i32,*fp32,i32,i32,i32", "BM=16", "BN=16", "BK=32")
    assert ("dot-by-hand" in rules) == is_found


CUBE = """
import torch, triton, triton.language as tl

@triton.jit
def cubes(x, w, y, N, M: tl.constexpr, K: tl.constexpr):
    i, j, k = tl.arange(0, M)[:, None, None], tl.arange(0, M)[None, :, None], tl.arange(0, K)[None, None, :]
    acc = tl.zeros((M, M), tl.float32)
    for step in range(0, N):
        left = tl.load(x + (tl.program_id(0) * M + i) * N * K + step * K + k + 0 * j)
        right = tl.load(w + (tl.program_id(1) * M + j) * N * K + step * K + k + 0 * i)
        acc += tl.sum(LEFT * RIGHT, axis=2)
    rows, columns = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * M + tl.arange(0, M)
    tl.store(y + rows[:, None] * 1024 + columns[None, :], acc)

x = torch.empty(1 << 24, device="cuda", dtype=torch.DTYPE)
y = torch.empty(1 << 24, device="cuda")
cubes[(GRID, GRID)](x, x, y, 64, M, 16, num_warps=8)
"""
EXACT = 'tl.dot(a, b) with input_precision="tf32x3", which keeps nearly all digits of float32'


@pytest.mark.parametrize(
    ("dtype", "left", "right", "m", "grid", "words", "side"),
    [
        ("float32", "left", "right", 32, 32, EXACT, 64),
        ("bfloat16", "left.to(tl.float32)", "right.to(tl.float32)", 32, 32, "tl.dot(a, b) with 16-bit operands", 64),
        ("float32", "left.to(tl.bfloat16).to(tl.float32)", "right", 32, 32, EXACT, 64),
        ("float32", "left", "right", 32, 4, EXACT, None),  # larger tiles leave SMs without any
    ],
)
def test_of_float32_a_dot_with_other_digits_is_said_to_change_the_results(
    tmp_path, dtype, left, right, m, grid, words, side
):
    script = tmp_path / "cubes.py"
    text = CUBE.replace("LEFT", left).replace("RIGHT", right).replace("DTYPE", dtype).replace("GRID", str(grid))
    script.write_text(text.replace("64, M, 16", f"64, {m}, 16"))
    (kernel,) = inputs.read(str(script), (), SM_90A)
    (one,) = (finding for finding in diagnose(kernel).findings if finding.id == "dot-by-hand")
    assert one.advice.startswith(f"write the sum as {words}")
    assert ("change the results" in one.advice) == (words == EXACT)
    assert (f"take tiles of {side} x {side} at once" in one.advice) == (side is not None)
    assert "pad dimensions" not in one.advice
