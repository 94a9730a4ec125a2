"""Functions of indices that many CTAs compute alike, and those that no table makes faster."""

import pytest

from tests.diagnose.test_severities import found

pytestmark = pytest.mark.kernels

PRODUCT = """
def product(x_ptr, o_ptr, N: tl.constexpr):
    m, n = ROWS * 64 + tl.arange(0, 64), COLUMNS * 64 + tl.arange(0, 64)
    acc = tl.zeros((64, 64), tl.float32)
    for start in range(0, N, 32):
        k = start + tl.arange(0, 32)
        x = tl.load(x_ptr + m[:, None] * N + k[None, :])
        angle = (k[:, None] * n[None, :]).to(tl.float32) * 0.003
        basis = FUNCTION
        acc = tl.dot(x, basis.to(tl.float16), acc)
    tl.store(o_ptr + m[:, None] * N + n[None, :], acc)
"""
PRODUCT_LAUNCH = """
x, o = torch.empty(4096, 512, device="cuda", dtype=torch.float16), torch.empty(4096, 512, device="cuda")
product[GRID](x, o, 512)
"""
EACH = """
def each(x_ptr, o_ptr, theta, N: tl.constexpr, HEADS: tl.constexpr):
    token, d = tl.program_id(0), tl.arange(0, 512)
    at = (tl.program_id(1) * tl.num_programs(0) + token) * 512 + d
    x = tl.load(x_ptr + at).to(tl.float32)
    tl.store(o_ptr + at, RESULT)
"""
EACH_LAUNCH = """
x = torch.empty(16, 2048, 512, device="cuda", dtype=torch.float16)
each[(2048, CTAS)](x, x, 10000.0, 512, 1)
"""


def product(folder, function, rows="tl.program_id(0)", columns="tl.program_id(1)", grid="(64, 8)"):
    kernel = PRODUCT.replace("FUNCTION", function).replace("ROWS", rows).replace("COLUMNS", columns)
    return found(folder, kernel, PRODUCT_LAUNCH.replace("GRID", grid))


def each(folder, result, ctas=16):
    source = EACH.replace("RESULT", result.replace("libdevice", "tl.extra.libdevice"))
    return found(folder, source, EACH_LAUNCH.replace("CTAS", str(ctas)))


@pytest.mark.parametrize("function", ["tl.cos(angle)", "tl.log(angle + 1)", "tl.exp(-angle) / (1 + tl.sin(angle))"])
@pytest.mark.parametrize(
    ("rows", "columns", "grid"),
    [
        ("tl.program_id(0)", "tl.program_id(1)", "(64, 8)"),
        ("(tl.program_id(0) // 8)", "(tl.program_id(0) % 8)", "(512,)"),
        ("(tl.program_id(0) % 64)", "(tl.program_id(0) // 64)", "(512,)"),
    ],
)
def test_a_basis_that_depends_on_the_columns_alone_is_a_table(tmp_path, function, rows, columns, grid):
    rules = product(tmp_path, function, rows, columns, grid)
    one = rules["table-recomputed"]
    assert (one.severity, one.source.line) == ("high", 11)
    assert one.evidence["repeated"] == 64
    assert one.evidence["table_bytes"] == 512 * 512 * 2  # in the type in which it is used
    assert one.evidence["computing_cycles"] > 5 * one.evidence["loading_cycles"]
    assert "slow-math" not in rules


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        ("tl.exp2(-angle)", "tl.program_id(0)"),  # takes few instructions
        ("tl.cos(angle * tl.load(o_ptr + start))", "tl.program_id(0)"),  # of data
        ("tl.cos(angle + tl.program_id(0).to(tl.float32))", "tl.program_id(0)"),
        ("tl.cos(angle + (tl.program_id(0) * 8 + tl.program_id(1)))", "tl.program_id(0)"),
    ],
)
def test_a_basis_of_data_or_of_the_cta_is_no_table(tmp_path, function, rows):
    assert "table-recomputed" not in product(tmp_path, function, rows)


ANGLE = "token.to(tl.float32) * libdevice.pow(theta, -d.to(tl.float32) / N)"


@pytest.mark.parametrize(
    ("result", "ctas", "times"),
    [
        (f"x + tl.sin({ANGLE})", 16, 16),
        (f"x * tl.cos({ANGLE}) + tl.sin({ANGLE})", 16, 16),
        (f"x + tl.sin({ANGLE}) * tl.cos((tl.program_id(1) * 512 + d) * theta)", 16, 16),  # 2048 of the cosine
        ("x * libdevice.pow(theta, -d.to(tl.float32) / N) * tl.cos(d * 0.1) * tl.sin(d * 0.1)", 1, 2048),
        (f"x + tl.sin({ANGLE})", 1, 2048),  # of the powers alone: the angles are new in each CTA
        ("x * (0.5 - 0.5 * tl.cos(d.to(tl.float32) * 0.0123))", 16, 0),  # hides behind the bytes
        ("x + tl.sin(x * theta)", 16, 0),
        ("x + tl.sin((token * 512 + d).to(tl.float32) * theta) * tl.cos((token * 3 + d) * theta)", 1, 0),
    ],
)
def test_values_of_a_row_are_a_table_if_several_ctas_have_the_same(tmp_path, result, ctas, times):
    one = each(tmp_path, result, ctas).get("table-recomputed")
    assert (one.evidence["repeated"] if one is not None else 0) == times
