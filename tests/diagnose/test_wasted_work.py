"""Work that is thrown away or done the long way: of each fault its neighbours, where the same line is right."""

import pytest

from kperf.arch import SM_80, SM_90A, SM_103A
from kperf.diagnose import inputs
from kperf.diagnose.engine import FAILED, diagnose

pytestmark = pytest.mark.kernels


def found(folder, source, signature, *constexprs, arch=SM_90A, **options):
    """The first finding of each rule of a function, compiled by its signature."""
    path = folder / "kernel.py"
    path.write_text(f"import triton, triton.language as tl\n\n@triton.jit\n{source.strip()}\n")
    name = source.partition("def ")[2].partition("(")[0]
    (kernel,) = inputs.read(
        f"{path}:{name}", (), arch, signature=signature, constexprs=constexprs, options={"num_warps": 4} | options
    )
    diagnosis = diagnose(kernel)
    assert not [rule for rule, why in diagnosis.skipped.items() if FAILED in why]
    return {one.id: one for one in reversed(diagnosis.findings)}


ATTENTION = """
def attention(q, k, out, spans, stride, n, W: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    block = tl.program_id(0)
    length = tl.load(spans + tl.program_id(1))
    rows, dims = block * BM + tl.arange(0, BM), tl.arange(0, D)
    x = tl.load(q + rows[:, None] * stride + dims[None, :])
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(BEGIN, END, BN):
        cols = start + tl.arange(0, BN)
        y = tl.load(k + cols[:, None] * stride + dims[None, :])
        s = tl.dot(x, tl.trans(y))
        s = CHOICE
        acc = tl.dot(s.to(tl.bfloat16), y, acc)
    tl.store(out + rows[:, None] * stride + dims[None, :], acc)
"""
CAUSAL = "tl.where(rows[:, None] >= cols[None, :], s, 0.0)"
WINDOW = "tl.where((rows[:, None] >= cols[None, :]) & (rows[:, None] - cols[None, :] < W), s, -1.0e6)"
END = "(block + 1) * BM"


@pytest.mark.parametrize(
    ("begin", "end", "choice", "sides"),
    [
        ("0", "n", CAUSAL, (0, 1)),
        ("0", "length", CAUSAL, (0, 1)),
        ("0", "n", "tl.where(rows[:, None] < cols[None, :], -float('inf'), s)", (0, 1)),
        ("0", "n", "tl.where(rows[:, None] <= cols[None, :], s, 0.0)", (1, 0)),
        ("0", END, WINDOW, (1, 0)),
        ("0", "n", WINDOW, (1, 1)),
        ("0", "length", "tl.where((rows + length)[:, None] >= cols[None, :], s, 0.0)", (0, 1)),
        ("0", END, CAUSAL, None),
        ("0", f"tl.minimum(length, {END})", CAUSAL, None),
        ("block * BM", "n", "tl.where(rows[:, None] <= cols[None, :], s, 0.0)", None),
        ("tl.maximum(0, block * BM - W)", END, WINDOW, None),
        ("0", "BM", CAUSAL, None),
        ("0", "n", "tl.where(rows[:, None] >= cols[None, :], s, s * 0.5)", None),
        ("0", "n", "tl.where((rows[:, None] >= cols[None, :]) | (cols[None, :] < 8), s, 0.0)", None),
        ("0", "n", "tl.where(rows[:, None] * 8 + cols[None, :] < n, s, 0.0)", None),
        ("0", "n", "tl.where(tl.arange(0, BM)[:, None] >= cols[None, :], s, 0.0)", None),
    ],
)
def test_tiles_that_a_mask_removes_are_found_by_the_loops_bounds(tmp_path, begin, end, choice, sides):
    source = ATTENTION.replace("BEGIN", begin).replace("END", end).replace("CHOICE", choice)
    rules = found(
        tmp_path, source, "*bf16,*bf16,*fp32,*i32,i32:16,i32", "W=1024", "BM=128", "BN=64", "D=64", num_stages=2
    )
    one = rules.get("masked-tiles")
    assert (one and (one.evidence["before"], one.evidence["behind"])) == sides
    if one is not None:
        assert (one.severity, one.source.line) == ("high", 10)
        assert one.message.startswith("the mask of line 14 removes whole tiles")
        assert ("begin the loop" in one.advice, "end the loop" in one.advice) == sides
        estimate = (one.estimate.speedup, one.estimate.high)
        assert estimate == ((2.5, 8.0) if sides[0] else (1.6, 2.0))  # a causal mask removes half at most, a window more


def test_a_branch_that_leaves_out_tiles_is_enough(tmp_path):
    source = ATTENTION.replace("BEGIN", "0").replace("END", "n")
    steps = [f"s = {CAUSAL}", "acc = tl.dot(s.to(tl.bfloat16), y, acc)"]
    always = "\n        ".join(steps)
    branch = "\n            ".join(["if start <= block * BM + BM:", *steps])
    source = source.replace("CHOICE", CAUSAL)
    assert always in source
    shape = ("*bf16,*bf16,*fp32,*i32,i32:16,i32", "W=1024", "BM=128", "BN=64", "D=64")
    assert "masked-tiles" not in found(tmp_path, source.replace(always, branch), *shape, num_stages=1)
    assert "masked-tiles" in found(tmp_path, source, *shape, num_stages=1)


@pytest.mark.parametrize(("end", "is_found"), [("n", True), (END, False)])
def test_a_branch_around_the_mask_alone_leaves_no_tile_out(tmp_path, end, is_found):
    branch = f"if start >= block * BM:\n            s = {CAUSAL}"
    source = ATTENTION.replace("BEGIN", "0").replace("END", end).replace("s = CHOICE", branch)
    shape = ("*bf16,*bf16,*fp32,*i32,i32:16,i32", "W=1024", "BM=128", "BN=64", "D=64")
    assert ("masked-tiles" in found(tmp_path, source, *shape, num_stages=1)) == is_found


@pytest.mark.parametrize("columns", ["tl.load(spans + cols)", "9 - tl.load(spans + cols)"])
def test_columns_that_are_read_from_memory_may_be_in_any_order(tmp_path, columns):
    source = ATTENTION.replace("BEGIN", "0").replace("END", "n")
    source = source.replace("CHOICE", f"tl.where(rows[:, None] >= ({columns})[None, :], s, 0.0)")
    shape = ("*bf16,*bf16,*fp32,*i32,i32:16,i32", "W=1024", "BM=128", "BN=64", "D=64")
    assert "masked-tiles" not in found(tmp_path, source, *shape, num_stages=1)


POSITIONS = """
def attention(q, k, out, lens, last, stride, n, heads, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    BLOCK
    rows, dims, i = tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    first = block * BM
    x = LOAD_Q
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, END, BN):
        y = LOAD_K
        s = tl.dot(x, tl.trans(y)) * 0.125
        s = CHOICE
        acc = tl.dot(tl.exp2(s).to(tl.bfloat16), y, acc)
    tl.store(out + (first + rows)[:, None] * stride + dims[None, :], acc)
"""
TYPES = "*bf16,*bf16,*fp32,*i32,*i32,i32:16,i32,i32"
POINTERS = (
    "tl.load(q + (first + rows)[:, None] * stride + dims[None, :])",
    "tl.load(k + (start + i)[:, None] * stride + dims[None, :])",
)
BLOCK_POINTERS = (
    "tl.load(tl.make_block_ptr(q, (n, D), (stride, 1), (first, 0), (BM, D), (1, 0)))",
    "tl.load(tl.make_block_ptr(k, (n, D), (stride, 1), (start, 0), (BN, D), (1, 0)))",
)
ON_DEVICE = (
    "tl.make_tensor_descriptor(q, (n, D), (stride, 1), (BM, D)).load([first, 0])",
    "tl.make_tensor_descriptor(k, (n, D), (stride, 1), (BN, D)).load([start, 0])",
)
ON_HOST = ("q.load([first, 0])", "k.load([start, 0])")
KEEP = "(first + rows)[:, None] >= start + i[None, :]"
AWAY = "((first + rows)[:, None] - (start + i)[None, :])"
OWN = "block = tl.program_id(0)"
FLAT = "block, head = tl.program_id(0) % tl.cdiv(n, BM), tl.program_id(0) // tl.cdiv(n, BM)"


def masked(folder, block, loads, end, choice, types=TYPES):
    """The finding of `masked-tiles` in attention that is written so."""
    source = POSITIONS.replace("BLOCK", block).replace("LOAD_Q", loads[0]).replace("LOAD_K", loads[1])
    source = source.replace("END", end).replace("CHOICE", choice)
    shape = (types, "BM=128", "BN=64", "D=64")
    return found(folder, source, *shape, num_warps=8, num_stages=2).get("masked-tiles")


@pytest.mark.parametrize(
    "loads", [POINTERS, BLOCK_POINTERS, ON_DEVICE, ON_HOST], ids=["pointers", "blocks", "device", "host"]
)
@pytest.mark.parametrize(
    ("end", "is_found"), [("n", True), ("first + BM", False), ("tl.minimum(n, first + BM)", False)]
)
def test_a_mask_is_found_however_the_tiles_are_loaded(tmp_path, loads, end, is_found):
    types = TYPES
    if loads is ON_HOST:
        types = types.replace("*bf16,*bf16", "tensordesc<bf16[128, 64]>,tensordesc<bf16[64, 64]>")
    one = masked(tmp_path, OWN, loads, end, f"tl.where({KEEP}, s, -1e30)", types)
    assert (one is not None) == is_found
    if one is not None:
        assert (one.severity, one.source.line, one.evidence) == ("high", 10, {"rows": 128, "before": 0, "behind": 1})
        assert (one.estimate.speedup, one.estimate.low, one.estimate.high) == (1.6, 1.0, 2.0)  # 1.64 x on an H100


@pytest.mark.parametrize(
    ("choice", "sides"),
    [
        (f"tl.where({KEEP}, s, -float('inf'))", (0, 1)),
        (f"s + tl.where({KEEP}, 0.0, -1.0e6)", (0, 1)),
        ("s + tl.where(start + i[None, :] > (first + rows)[:, None], -1.0e6, 0.0)", (0, 1)),
        (f"s * tl.where({KEEP}, 1.0, 0.0)", (0, 1)),
        ("tl.where(start + i[None, :] <= (first + rows)[:, None], s, -1e30)", (0, 1)),
        ("tl.where((start + i)[None, :] - (first + rows)[:, None] <= 0, s, -1e30)", (0, 1)),
        ("tl.where(rows[:, None] - i[None, :] >= start - first, s, -1e30)", (0, 1)),
        ("tl.where((first - start) + rows[:, None] >= i[None, :], s, -1e30)", (0, 1)),
        ("tl.where((rows - start)[:, None] - i[None, :] + first > -1, s, -1e30)", (0, 1)),
        ("tl.where((rows[:, None] - start).to(tl.int64) + first >= i[None, :], s, -1e30)", (0, 1)),
        ("tl.where((rows.to(tl.int64)[:, None] - start).to(tl.int32) + first >= i[None, :], s, -1e30)", (0, 1)),
        ("tl.where(((first + rows) // 4)[:, None] >= start + i[None, :], s, -1e30)", (0, 1)),
        ("tl.where((block * 32 + rows % 32)[:, None] >= start + i[None, :], s, -1e30)", (0, 1)),
        (f"tl.where(({KEEP}) & (start + i < n)[None, :], s, -1e30)", (0, 1)),
        ("tl.where((start + i[None, :] > (first + rows)[:, None]) | (start + i >= n)[None, :], -1e30, s)", (0, 1)),
        ("tl.where((start + i[None, :] > (first + rows)[:, None]) & (i < 8)[None, :], -1e30, s)", None),
        ("tl.where(start + i[None, :] >= (first + rows)[:, None], s, -1e30)", (1, 0)),
        ("tl.where((start + rows)[:, None] >= (first + i)[None, :], s, -1e30)", (1, 0)),  # keys are the CTA's
        ("tl.where(rows[:, None] >= start + i[None, :], s, -1e30)", None),  # each CTA has the same rows
        ("tl.where(rows[:, None] >= start + first + i[None, :], s, -1e30)", None),  # each CTA has other columns
        (f"tl.where({KEEP}, s, -1.0)", None),
        (f"s + tl.where({KEEP}, 1.0, 0.0)", None),  # a bias, as ALiBi's, removes nothing where it is 0
        (f"s + tl.where({KEEP}, s, 0.0)", None),
        (f"tl.dot(x, tl.trans(y), tl.where({KEEP}, 1.0, 0.0))", None),
        (f"tl.exp(tl.where({KEEP}, s, 0.0))", None),
        (f"s + tl.where({KEEP}, 1.0, -1.0e6)", (0, 1)),
        (f"s - tl.where({KEEP}, 0, 1.0e6)", (0, 1)),
        ("s - tl.where(start + i[None, :] > (first + rows)[:, None], float('inf'), 0.0)", (0, 1)),
        (f"s - tl.where({KEEP}, 0.0, -1.0e6)", None),  # what it subtracts makes others greater
        (f"s + tl.where({KEEP}, 0.0, 1.0e6)", None),
        (f"tl.where(~({KEEP}), -1e30, s)", (0, 1)),
        (f"tl.where(~({KEEP}) | ({AWAY} > 512), -1e30, s)", (1, 1)),
        (f"tl.where(~(({KEEP}) | (start == 0)), -1e30, s)", None),
        (f"tl.where(({KEEP}) ^ (start < 64), s, -1e30)", None),
        (f"tl.where(({AWAY} < 512) & ({KEEP}), s, -1e30)", (1, 1)),
        (f"tl.where(tl.abs({AWAY}) < 512, s, -1e30)", (1, 1)),
        (f"tl.where(512 >= tl.abs(-{AWAY}), s, -1e30)", (1, 1)),
        (f"tl.where(tl.abs({AWAY}) > 512, -1e30, s)", (1, 1)),
        (f"tl.where(tl.abs({AWAY}) > 512, s, -1e30)", None),
        (f"tl.where(tl.abs({AWAY}) < 512, -1e30, s)", None),
        (f"tl.where(tl.abs(start + first) < 512, s, -1e30) + tl.where({KEEP}, 0.0, -1.0e6)", (0, 1)),
    ],
)
def test_a_mask_is_found_in_whatever_order_it_is_computed(tmp_path, choice, sides):
    one = masked(tmp_path, OWN, POINTERS, "n", choice)
    assert (one and (one.evidence["before"], one.evidence["behind"])) == sides


@pytest.mark.parametrize(
    ("block", "end", "is_found"),
    [
        (OWN.replace("(0)", "(2)"), "n", True),
        ("block = tl.num_programs(0) - 1 - tl.program_id(0)", "n", True),
        (FLAT, "n", True),
        (FLAT, "tl.load(lens + head)", True),
        (FLAT, "tl.load(last + block)", False),
        (FLAT, "tl.minimum(tl.load(lens + head), first + BM)", False),
        (OWN, "tl.load(last + block)", False),
    ],
)
def test_a_length_that_is_loaded_is_no_end_at_the_diagonal(tmp_path, block, end, is_found):
    assert (masked(tmp_path, block, POINTERS, end, f"tl.where({KEEP}, s, -1e30)") is not None) == is_found


PERSISTENT = """
def attention(q, k, out, stride, n, tiles, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    dims = tl.arange(0, D)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        first = tile % tl.cdiv(n, BM) * BM
        base = tile // tl.cdiv(n, BM) // 4 * n * stride
        rows = first + tl.arange(0, BM)
        x = tl.load(q + base + rows[:, None] * stride + dims[None, :])
        acc = tl.zeros((BM, D), tl.float32)
        for start in range(0, WHOLE, BN):
            y = tl.load(k + base + (start + tl.arange(0, BN))[:, None] * stride + dims[None, :])
            acc = tl.dot(tl.exp(tl.dot(x, tl.trans(y))).to(tl.bfloat16), y, acc)
        for start in range(WHOLE, END, BN):
            y = tl.load(k + base + (start + tl.arange(0, BN))[:, None] * stride + dims[None, :])
            s = tl.where(rows[:, None] >= start + tl.arange(0, BN)[None, :], tl.dot(x, tl.trans(y)), -1e30)
            acc = tl.dot(tl.exp(s).to(tl.bfloat16), y, acc)
        tl.store(out + base + rows[:, None] * stride + dims[None, :], acc)
"""


@pytest.mark.parametrize(
    ("whole", "end", "is_found"), [("first", "first + BM", False), ("first", "n", True), ("0", "n", True)]
)
def test_a_persistent_cta_takes_the_tiles_of_its_rows_too(tmp_path, whole, end, is_found):
    source = PERSISTENT.replace("WHOLE", whole).replace("END", end)
    shape = ("*bf16,*bf16,*fp32,i32:16,i32,i32", "BM=128", "BN=64", "D=64")
    one = found(tmp_path, source, *shape, num_warps=8, num_stages=2).get("masked-tiles")
    assert (one and (one.source.line, one.evidence["behind"])) == ((15, 1) if is_found else None)


EXPERTS = """
def experts(x, w, counts, tiles, out, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    expert, k = tl.program_id(1), tl.arange(0, BK)
    count = tl.load(counts + expert)
    rows, cols = BLOCK * BM + tl.arange(0, BM), tl.program_id(2) * BN + tl.arange(0, BN)
    BEFORE
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, END, BK):
        a = tl.load(x + rows[:, None] * K + (start + k)[None, :], mask=(rows < count)[:, None], other=0.0)
        acc = tl.dot(a, tl.load(w + (start + k)[:, None] * N + cols[None, :]), acc)
    tl.store(out + rows[:, None] * N + cols[None, :], acc, mask=MASK)
    ALSO
"""


SHAPE = ("*bf16,*bf16,*i32,*i32,*fp32,i32:16,i32:16", "BM=128", "BN=128", "BK=64")


@pytest.mark.parametrize(
    ("block", "before", "end", "mask", "is_found"),
    [
        ("tl.program_id(0)", "pass", "K", "(rows < count)[:, None]", True),
        ("tl.program_id(0)", "pass", "K", "(rows < count)[:, None] & (cols < N)[None, :]", True),
        ("tl.program_id(0)", "pass", "K", "(count > rows)[:, None]", True),
        ("tl.program_id(0)", "pass", "K", "~(rows >= count)[:, None]", True),
        ("tl.program_id(0)", "if tl.program_id(0) * BM >= count: return", "K", "(rows < count)[:, None]", False),
        ("tl.program_id(0)", "pass", "tl.where(tl.program_id(0) * BM < count, K, 0)", "(rows < count)[:, None]", False),
        ("tl.program_id(0)", "pass", "K", "(rows < N)[:, None]", False),
        ("tl.load(tiles + tl.program_id(0))", "pass", "K", "(rows < count)[:, None]", False),
    ],
)
def test_a_cta_that_stores_no_row_returns_before_its_loop(tmp_path, block, before, end, mask, is_found):
    source = EXPERTS.replace("BLOCK *", f"{block} *").replace("MASK", mask)
    source = source.replace("BEFORE", before).replace("END", end).replace("ALSO", "pass")
    one = found(tmp_path, source, *SHAPE, num_stages=3).get("masked-tiles")
    assert (one is not None) == is_found
    if one is not None:
        assert (one.severity, one.source.line) == ("medium", 10)
        assert "stores nothing, by the mask of line 13" in one.message
        assert one.advice.startswith("return before the loop")


@pytest.mark.parametrize(
    ("also", "is_found"),
    [
        ("tl.atomic_add(tiles + rows, 1, mask=rows < count)", True),
        ("tl.atomic_add(tiles + rows, 1)", False),
        ("tl.atomic_add(tiles + rows, count, mask=rows < N)", False),
        ("tl.store(tiles + rows, 1)", False),
        ("tl.make_tensor_descriptor(out, [K, N], [N, 1], [BM, BN]).store([tl.program_id(0) * BM, 0], acc)", False),
    ],
)
def test_a_cta_that_stores_something_else_has_work(tmp_path, also, is_found):
    source = EXPERTS.replace("BLOCK *", "tl.program_id(0) *").replace("MASK", "(rows < count)[:, None]")
    source = source.replace("BEFORE", "pass").replace("END", "K").replace("ALSO", also)
    assert ("masked-tiles" in found(tmp_path, source, *SHAPE, num_stages=3)) == is_found


SCALES = """
def gemm(a, q, scales, out, N, K, G: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, cols, i = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rows[:, None] * K + (k + i)[None, :])
        w = tl.load(q + (k + i)[:, None] * N + cols[None, :])
        s = tl.load(scales + SCALE)
        acc = tl.dot(x, w.to(tl.float16) * s, acc)
    tl.store(out + rows[:, None] * N + cols[None, :], acc)
"""


@pytest.mark.parametrize(
    ("scale", "group", "times"),
    [
        ("((k + i) // G)[:, None] * N + cols[None, :]", 128, 32),
        ("((k + i) // G)[:, None] * N + cols[None, :]", 8, 8),
        ("((k + i) // G)[:, None] * N + cols[None, :]", 4, None),
        ("(k // G) * N + cols[None, :]", 128, None),
        ("(k + i)[:, None] * N + cols[None, :]", 128, None),
        ("(k + i)[:, None] * 3 + cols[None, :]", 128, None),  # some indices meet, as in a window that moves
    ],
)
def test_a_tile_in_which_each_address_stands_many_times_is_a_row(tmp_path, scale, group, times):
    shape = ("*fp16,*i8,*fp16,*fp32,i32:16,i32:16", f"G={group}", "BM=128", "BN=128", "BK=32")
    one = found(tmp_path, SCALES.replace("SCALE", scale), *shape, num_stages=3).get("redundant-load")
    assert (one is not None) == (times is not None)
    if one is not None:
        addresses = 32 * 128 // times
        assert one.source.line == 10
        assert ("the tile's other index does not change the address" in one.message) == (group == 128)
        assert one.advice.startswith("load each number once" if group == 128 else "load a tile 8 times as short")
        assert one.message.startswith(f"each iteration loads {addresses} numbers of scales {times} times each")
        whole = 2 * 128 * 32 + 32 * 128 + 2 * 32 * 128  # bytes of x, w and s
        whole += 64 * 64  # what L2 gives while 128 lanes convert and scale the 32 * 128 elements of w
        gain = whole / (whole - 2 * (32 * 128 - addresses))
        assert (one.estimate.speedup, one.estimate.high) == (pytest.approx(gain**0.5), pytest.approx(gain))


EMBEDDING = """
def gradient(ids, grads, out, padding, D, BLOCK: tl.constexpr):
    token, cols = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = cols < D
    row = tl.load(ids + token)
    keep = row != padding
    g = tl.load(grads + token * D + cols, mask=inside, other=0.0).to(tl.float32)
    g = CHOICE
    tl.ATOMIC(out + row * D + cols, g, mask=MASK)
"""


@pytest.mark.parametrize(
    ("choice", "atomic", "mask", "is_found"),
    [
        ("tl.where(keep, g, 0.0)", "atomic_add", "inside", True),
        ("tl.where(row == padding, 0.0, g)", "atomic_add", "inside", True),
        ("tl.where(keep, g, 0.0)", "atomic_add", "inside & keep", False),
        ("tl.where(inside, g, 0.0)", "atomic_add", "inside", False),
        ("tl.where(keep & inside, g, 0.0)", "atomic_add", "inside & keep", False),
        ("tl.where(keep & inside, g, 0.0)", "atomic_add", "inside", True),
        ("tl.where(keep, g, 1.0)", "atomic_add", "inside", False),
        ("tl.where(keep, g, 0.0)", "atomic_max", "inside", False),
        ("g", "atomic_add", "inside", False),
    ],
)
def test_atomics_that_add_zero_want_a_mask(tmp_path, choice, atomic, mask, is_found):
    source = EMBEDDING.replace("CHOICE", choice).replace("ATOMIC", atomic).replace("MASK", mask)
    one = found(tmp_path, source, "*i64,*bf16,*fp32,i32,i32:16", "BLOCK=1024").get("atomic-contention")
    assert (one is not None) == is_found
    if one is not None:
        assert (one.severity, one.source.line) == ("medium", 11)
        assert one.message.startswith(
            "the atomics add 0 to out for each element that the choice (tl.where) of line 10 sets to"
        )


LINEAR = """
def linear(x, w, y, N, K, T: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, cols, depth = tl.arange(0, BM), tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rows[:, None] * K + k + depth[None, :], mask=rows[:, None] < T, other=0.0)
        b = tl.load(w + cols[None, :] * K + k + depth[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(y + rows[:, None] * N + cols[None, :], acc, mask=rows[:, None] < T)
"""


@pytest.mark.parametrize(
    ("tokens", "rows", "columns", "advice"),
    [
        (4, 64, 64, "use a tile of 16 rows (the fewest that tl.dot takes), or compute the transpose"),
        (20, 64, 64, "use a tile of 32 rows"),
        (33, 64, 64, None),
        (4, 16, 64, None),
    ],
)
def test_rows_that_the_store_leaves_out_are_counted(tmp_path, tokens, rows, columns, advice):
    rules = found(
        tmp_path, LINEAR, "*bf16,*bf16,*fp32,i32:16,i32:16", f"T={tokens}", f"BM={rows}", f"BN={columns}", "BK=64"
    )
    one = rules.get("padded-tile")
    assert (one and one.advice.startswith(advice)) == (True if advice else None)
    if one is not None:
        assert (one.severity, one.source.line, one.evidence) == ("low", 10, {"tile": rows, "used": tokens})


@pytest.mark.parametrize(("rows", "severity"), [(64, "low"), (256, "medium")])
def test_rows_that_are_thrown_away_cost_time_where_the_mma_takes_longer_than_its_loads(tmp_path, rows, severity):
    shape = ("*bf16,*bf16,*fp32,i32:16,i32:16", "T=16", f"BM={rows}", "BN=256", "BK=32")
    one = found(tmp_path, LINEAR, *shape, num_warps=8)["padded-tile"]
    assert one.severity == severity
    assert one.candidates[0] == {"BM": 16}


@pytest.mark.parametrize(("tokens", "is_small"), [(4, False), (15, False), (16, True), (1024, True)])
def test_a_tile_that_holds_all_rows_is_not_too_small(tmp_path, tokens, is_small):
    rules = found(tmp_path, LINEAR, "*bf16,*bf16,*fp32,i32:16,i32:16", f"T={tokens}", "BM=16", "BN=64", "BK=64")
    assert ("small-tile" in rules) == is_small


DROPOUT = """
def dropout(x, out, n, p, seed, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    keep = DRAWN > p
    tl.store(out + i, tl.where(keep, tl.load(x + i), 0.0))
"""
ALL_FOUR = (
    "tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), (B,))",
    "    a, b, c, d = tl.rand4x(seed, tl.program_id(0) * (B // 4) + tl.arange(0, B // 4))\n    keep =",
)


@pytest.mark.parametrize(
    ("drawn", "element", "severity"),
    [
        ("tl.rand(seed, i)", "bf16", "medium"),
        ("tl.rand(seed, i)", "fp64", "low"),
        ("tl.randint(seed, i, n_rounds=7) * 1e-9", "bf16", "medium"),
        ("tl.rand(seed, tl.arange(0, 64))[:, None].broadcast_to(64, 16).reshape(B)", "bf16", None),
        (ALL_FOUR[0], "bf16", None),
    ],
)
def test_random_numbers_are_beside_what_is_moved(tmp_path, drawn, element, severity):
    source = DROPOUT.replace("DRAWN", drawn)
    source = source.replace("    keep =", ALL_FOUR[1]) if drawn is ALL_FOUR[0] else source
    one = found(tmp_path, source, f"*{element},*{element},i32:16,fp32,i32", "B=1024").get("random-numbers")
    assert (one and one.severity) == severity
    if one is not None:
        assert one.source.line == 6


FOUR = """
def noise(x, out, n, p, seed, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    a, b, c, d = tl.FUNCTION(seed, i >> 2)
    w = i & 3
    v = tl.load(x + i) + NUMBER
    tl.store(out + i, v)
"""
FIRST_TO_LAST = "tl.where(w == 0, a, tl.where(w == 1, b, tl.where(w == 2, c, d)))"
IN_PAIRS = "tl.where(w < 2, tl.where(w == 0, a, b), tl.where(w == 2, c, d))"


@pytest.mark.parametrize(
    ("function", "number", "used"),
    [
        ("randint4x", FIRST_TO_LAST, "each element keeps one of them"),
        ("rand4x", FIRST_TO_LAST, "each element keeps one of them"),
        ("rand4x", f"tl.where({IN_PAIRS} > p, 1.0, 0.0)", "each element keeps one of them"),
        ("rand4x", "tl.where(n == 3, a, b)", "each element keeps one of them"),
        ("randint4x", "d", "the kernel uses one"),
        ("rand4x", "tl.where(a > p, b, c)", None),  # a random number chooses
        ("rand4x", "tl.where(w == 0, a, b) * c", None),
        ("rand4x", "tl.where(w == 0, a * b, c * d)", None),
        ("rand4x", "tl.where(w == 0, a, 0.0) + tl.where(w == 1, b, c)", None),
        ("randn4x", FIRST_TO_LAST, None),  # a normal number needs two
        ("rand4x", "a + tl.randn(seed + 1, i)", "the kernel uses one"),
    ],
)
def test_of_numbers_that_an_element_chooses_from_it_uses_one(tmp_path, function, number, used):
    source = FOUR.replace("FUNCTION", function).replace("NUMBER", number)
    one = found(tmp_path, source, "*bf16,*bf16,i32:16,fp32,i32", "B=1024").get("random-numbers")
    assert (one is not None) == (used is not None)
    if one is not None:
        assert one.source.line == 6
        assert one.message.endswith(used)
        assert ("interleave its results" in one.advice) == used.startswith("each")


SCATTER = """
def scatter(x, index, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.atomic_add(out + WHERE, tl.load(x + i), mask=i < n)
"""


@pytest.mark.parametrize(
    ("where", "element", "arch", "emulated"),
    [
        ("tl.load(index + i)", "bf16", SM_90A, True),
        ("tl.load(index + i)", "fp16", SM_90A, True),
        ("i", "bf16", SM_90A, False),
        ("i", "bf16", SM_80, True),
        ("tl.load(index + i)", "fp32", SM_80, False),
    ],
)
def test_atomics_of_halves_are_a_loop_unless_neighbours_are_added_together(tmp_path, where, element, arch, emulated):
    source = SCATTER.replace("WHERE", where)
    one = found(tmp_path, source, f"*{element},*i64,*{element},i32:16", "B=1024", arch=arch).get("emulated-atomics")
    severity = "low" if "load" in where else "medium"
    assert (one and (one.severity, one.source.line)) == ((severity, 6) if emulated else None)


@pytest.mark.parametrize(
    ("index", "where", "bins"),
    [
        ("*i32", "(tl.load(index + i) & 255)", 256),
        ("*i32", "(tl.load(index + i) % 10)", 10),
        ("*u8", "tl.load(index + i).to(tl.int32)", 256),
        ("*i32", "tl.load(index + i)", None),
    ],
)
def test_bins_that_the_index_leaves_are_few(tmp_path, index, where, bins):
    source = SCATTER.replace("WHERE", where)
    one = found(tmp_path, source, f"*fp32,{index},*fp32,i32:16", "B=1024").get("atomic-contention")
    assert (one and one.severity) == (bins and "medium")
    if one is not None:
        assert 0.9 * bins <= one.evidence["addresses"] <= bins


BYTES = """
def product(a, b, c, sa, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :])
        y = tl.load(b + rn[None, :] * K + rk[:, None])
        acc += tl.dot(LEFT, RIGHT)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)
"""
WIDE = ("x.to(tl.bfloat16)", "y.to(tl.bfloat16)")


@pytest.mark.parametrize(
    ("types", "operands", "arch", "rate"),
    [
        ("*fp8e4nv,*fp8e4nv", WIDE, SM_90A, 2.0),
        ("*fp8e5,*fp8e5", ("x.to(tl.float32)", "y.to(tl.float32)"), SM_90A, 4.0),
        ("*i8,*i8", WIDE, SM_90A, 2.0),
        ("*i8,*i8", WIDE, SM_80, 2.0),
        ("*i8,*i8", WIDE, SM_103A, None),
        ("*bf16,*fp8e4nv", ("x", WIDE[1]), SM_90A, None),
        ("*fp8e4nv,*fp8e4nv", ("(x.to(tl.bfloat16) * tl.load(sa + rk)).to(tl.bfloat16)", WIDE[1]), SM_90A, None),
        ("*fp8e4nv,*fp8e4nv", ("x", "y"), SM_90A, None),
    ],
)
def test_bytes_are_multiplied_as_such_where_the_gpu_can(tmp_path, types, operands, arch, rate):
    source = BYTES.replace("LEFT", operands[0]).replace("RIGHT", operands[1])
    signature = f"{types},*fp32,*bf16,i32:16,i32:16,i32:16"
    one = found(tmp_path, source, signature, "BM=128", "BN=128", "BK=64", arch=arch, num_warps=8, num_stages=2)
    finding = one.get("widened-operands")
    assert (finding and finding.evidence["rate"]) == rate
    if finding is not None:
        assert (finding.severity, finding.source.line) == ("medium", 11)


HALVES = """
def gemm_of_halves(a, b, s, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :])
        y = tl.load(b + rk[:, None] * N + rn[None, :])
        acc = tl.dot(LEFT, RIGHT, acc, input_precision="PRECISION")
    tl.store(c + rm[:, None] * N + rn[None, :], acc)
"""
_TURNED = "y = tl.load(b + rn[:, None] * N + rk[None, :])"
_WIDE, _FLOAT = ("x.to(tl.float32)", "y.to(tl.float32)"), ("x.to(tl.float32)", "y + tl.load(s + rn)[None, :]")


@pytest.mark.parametrize(
    ("operands", "precision", "rule", "severity", "advice"),
    [
        (_WIDE, "ieee", "dot-on-fma", "high", "give tl.dot the float16 operands without a conversion"),
        (_FLOAT, "ieee", "dot-on-fma", "medium", "if float16 is precise enough, convert the other operand to float16"),
        (_WIDE, "tf32", "widened-operands", "high", "give tl.dot the float16 operands without a conversion"),
        (_FLOAT, "tf32", "widened-operands", "medium", "if float16 is precise enough, convert the other operand"),
    ],
)
def test_halves_that_are_widened_for_units_that_are_no_tensor_cores_are_one_finding(
    tmp_path, operands, precision, rule, severity, advice
):
    source = HALVES.replace("LEFT", operands[0]).replace("RIGHT", operands[1]).replace("PRECISION", precision)
    signature = "*fp16,*fp16,*fp32,*fp32,i32:16,i32:16"
    both = found(tmp_path, source, signature, "BM=64", "BN=64", "BK=32")
    assert {"dot-on-fma", "widened-operands"} & set(both) == {rule}
    one = both[rule]
    assert (one.severity, one.source.line) == (severity, 12)
    assert one.advice.startswith(advice)
    assert ("float16 in memory" in one.message, "of the MMA" in one.message) == (True, rule == "widened-operands")


COLUMNS = """
def columns(x, out, rows, stride, B: tl.constexpr):
    c = tl.program_id(0)
    total = 0.0
    for r in range(0, 8192, B):
        i = r + tl.arange(0, B)
        total += tl.sum(tl.exp(tl.load(x + AT).to(tl.float32)))
    for r in range(0, 8192, B):
        i = r + tl.arange(0, B)
        tl.store(out + AT, tl.exp(tl.load(x + AT).to(tl.float32)) / total)
"""


@pytest.mark.parametrize(("at", "kept"), [("i * stride + c", False), ("c * stride + i", True)])
def test_a_column_is_not_to_be_kept_in_registers_with_those_beside_it(tmp_path, at, kept):
    """Of which each CTA has to load 16: a sector has so many."""
    one = found(tmp_path, COLUMNS.replace("AT", at), "*fp16,*fp16,i32,i32:16", "B=1024")["redundant-load"]
    assert ("one tile of 8192 elements hold the whole row in registers" in one.advice) == kept


_MIXED = "*fp16,*i8,*fp32,*fp32,i32:16,i32:16"
_SCALES = "tl.load(s + rn)[None, :]"


@pytest.mark.parametrize(
    ("types", "operands", "severity", "message", "advice"),
    [
        (
            _MIXED,
            ("x.to(tl.float32)", f"y.to(tl.float32) * {_SCALES}"),
            "high",
            "the operands of the MMA are float16 and int8 in memory",
            "convert the int8 operand to float16, which is exact, and give tl.dot both; multiply what",
        ),
        (
            "*fp8e4nv,*fp8e4nv,*fp32,*fp32,i32:16,i32:16",
            ("x.to(tl.float32) * tl.load(s + rm)[:, None]", f"y.to(tl.float32) * {_SCALES}"),
            "medium",
            "both operands of the MMA are fp8 in memory, and are converted to float32 before the MMA",
            "give tl.dot the fp8 operands, which it sums in float32 (with fewer bits on Hopper: max_num_imprecise_acc)",
        ),
        (_MIXED, ("x.to(tl.float32)", "y.to(tl.float32) * tl.load(s + rk)[:, None]"), "medium", "an operand", "if fl"),
        (
            _MIXED,
            ("x.to(tl.float32)", "tl.trans(y.to(tl.float32) * tl.load(s + rn)[:, None])"),
            "high",
            "the operands of the MMA are float16 and int8 in memory",
            "convert the int8 operand to float16",
        ),
        (
            "*fp16,*fp16,*fp32,*fp32,i32:16,i32:16",
            ("x.to(tl.float32)", "(y.to(tl.float32) * 0.25)"),
            "high",
            "both operands of the MMA are float16",
            "give tl.dot the float16 operands without a conversion: tl.dot sums in float32 anyway; multiply what each",
        ),
    ],
)  # fmt: skip
def test_scales_that_are_the_same_along_the_sum_come_after_it(tmp_path, types, operands, severity, message, advice):
    """A scale for each number that is summed cannot."""
    source = HALVES.replace("LEFT", operands[0]).replace("RIGHT", operands[1]).replace("PRECISION", "tf32")
    if "tl.trans" in operands[1]:
        source = source.replace("y = tl.load(b + rk[:, None] * N + rn[None, :])", _TURNED)
    one = found(tmp_path, source, types, "BM=64", "BN=64", "BK=32")["widened-operands"]
    assert one.severity == severity
    assert one.message.startswith(message)
    assert one.advice.startswith(advice)


PACKED = """
def unpacked(q, out, stride, X: tl.constexpr, Y: tl.constexpr):
    x, y = tl.arange(0, X * 8) // GROUP, tl.program_id(0) * Y + tl.arange(0, Y)
    bits = tl.load(q + y[:, None] * stride + x[None, :])
    columns = tl.arange(0, X * 8)
    tl.store(out + y[:, None] * stride * 8 + columns[None, :], (bits >> (columns[None, :] % 8) * 4) & 15)
"""


@pytest.mark.parametrize("group", [8, 1])
def test_a_load_whose_neighbours_have_one_address_is_to_be_shorter(tmp_path, group):
    one = found(tmp_path, PACKED.replace("GROUP", str(group)), "*i32,*i32,i32:16", "X=32", "Y=32").get(
        "uncoalesced-access"
    )
    assert (one is not None) == (group == 8)
    if one is not None:
        assert one.message.endswith(
            "that lie apart, because 8 neighbours along a dimension of the tile have one address"
        )
        assert one.advice == (
            "load a tile 8 times as short along that dimension, and repeat its elements where they are used: "
            "tl.reshape(tl.broadcast_to(x[:, :, None], (n, m, group)), (n, m * group))"
        )


SCORES = """
def scores(k, q, out, stride, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    m, n, d = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    queries = tl.load(q + n[None, :] * D + d[:, None])
    for start in range(0, stride, BM):
        keys = tl.load(k + (start + m)[:, None] * D + d[None, :])
        tl.store(out + (start + m)[:, None] * BN + n[None, :], tl.dot(keys, queries))
"""


@pytest.mark.parametrize(
    ("columns", "why"), [(1, "1 column, and Triton takes wgmma from 16 on"), (8, "8 columns, and"), (16, None)]
)
def test_a_tile_of_few_columns_is_to_have_more(tmp_path, columns, why):
    one = found(tmp_path, SCORES, "*bf16,*bf16,*fp32,i32:16", "BM=128", f"BN={columns}", "D=64").get("wgmma-unused")
    assert (one is not None) == (why is not None)
    if one is not None:
        assert f"its tile has {why}" in one.message
        assert one.advice.startswith(
            "if there are more columns, let a CTA multiply 16 at once, which takes little longer"
        )
        assert one.severity == "low"  # nothing says that there are more


@pytest.mark.parametrize(
    ("types", "operands", "expected"),
    [
        # in-kernel quantisation: the MMA has 8 bits, and the float16 numbers in memory are no narrower operand of it
        ("*bf16,*fp8e4nv", ("(x.to(tl.float32) * 0.5).to(tl.float8e4nv)", "y"), None),
        # of two types of 16 bits one has to be converted
        ("*bf16,*fp16", ("x.to(tl.float32)", "y.to(tl.float32)"), "if bfloat16 is precise enough, convert the float16"),
        ("*i8,*fp8e4nv", ("x.to(tl.float32)", "y.to(tl.float32)"), None),
    ],
)
def test_operands_that_cannot_be_multiplied_as_they_are(tmp_path, types, operands, expected):
    source = HALVES.replace("LEFT", operands[0]).replace("RIGHT", operands[1]).replace("PRECISION", "tf32")
    one = found(tmp_path, source, f"{types},*fp32,*fp32,i32:16,i32:16", "BM=64", "BN=64", "BK=32").get(
        "widened-operands"
    )
    assert (one is not None) == (expected is not None)
    assert one is None or one.advice.startswith(expected)


def test_bytes_for_units_that_are_no_tensor_cores_are_found_too(tmp_path):
    source = HALVES.replace("LEFT", _WIDE[0]).replace("RIGHT", _WIDE[1]).replace("PRECISION", "ieee")
    both = found(tmp_path, source, "*i8,*i8,*fp32,*fp32,i32:16,i32:16", "BM=64", "BN=64", "BK=32")
    assert "widened-operands" not in both
    assert both["dot-on-fma"].severity == "high"
    assert "they are int8 in memory" in both["dot-on-fma"].message
    assert both["dot-on-fma"].advice.startswith(
        "give tl.dot the int8 operands without a conversion: tl.dot sums in int32"
    )


@pytest.mark.parametrize(("step", "neighbours"), [(2, 16), (6, 4), (24, 2)])
def test_a_tile_has_a_power_of_two_of_neighbours(tmp_path, step, neighbours):
    source = COLUMNS.replace("AT", f"i * stride + c * {step}")
    one = found(tmp_path, source, "*i8,*i8,i32,i32:16", "B=1024").get("uncoalesced-access")
    assert f"tl.program_id(0) * {neighbours} + tl.arange(0, {neighbours})" in one.advice


def test_addresses_that_lie_apart_are_not_excused_by_their_repetitions(tmp_path):
    source = PACKED.replace("// GROUP", "// 2 * 64").replace("% 8", "% 2")
    one = found(tmp_path, source, "*i32,*i32,i32:16", "X=32", "Y=32")["uncoalesced-access"]
    assert "have one address" not in one.message
    assert "a tile 2 times as short" not in one.advice
