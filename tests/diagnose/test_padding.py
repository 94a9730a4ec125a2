"""Work of MMAs on zeros: padded dimensions, and rows that take part in few iterations."""

import pytest

from kperf.diagnose.analyses import masked_rows
from tests.diagnose.test_severities import found as found_in_script
from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels


ATTENTION = """
def attention(q, k, v, out, n, D: tl.constexpr, P: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    rows, dims = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, P)
    inside = dims[None, :] < D
    x = tl.load(q + rows[:, None] * D + dims[None, :], mask=inside, other=0.0)
    acc = tl.zeros((BM, P), tl.float32)
    for start in range(0, n, BN):
        cols = start + tl.arange(0, BN)
        valid = cols < n
        y = tl.load(k + cols[:, None] * D + dims[None, :], mask=KEYS, other=OTHER)
        s = tl.dot(x, tl.trans(y))
        z = tl.load(v + cols[:, None] * D + dims[None, :], mask=KEYS, other=OTHER)
        acc = tl.dot(tl.exp2(s).to(tl.bfloat16), z, acc)
    tl.store(out + rows[:, None] * D + dims[None, :], acc, mask=inside)
"""


@pytest.mark.parametrize(
    ("dim", "padded", "keys", "other", "tiles"),
    [
        (80, 128, "inside", "0.0", "64 and 16"),
        (72, 128, "inside", "0.0", "64 and 16"),
        (96, 128, "inside & valid[:, None]", "0.0", "64 and 32"),
        (192, 256, "inside", "0.0", "128 and 64"),
        (112, 128, "inside", "0.0", None),
        (128, 128, "inside", "0.0", None),
        (80, 128, "valid[:, None]", "0.0", None),
        (80, 128, "inside", "1.0", None),
    ],
)
def test_a_padded_head_is_split_where_two_tiles_are_shorter_together(tmp_path, dim, padded, keys, other, tiles):
    source = ATTENTION.replace("KEYS", keys).replace("OTHER", other)
    shape = ("*bf16,*bf16,*bf16,*fp32,i32:16", f"D={dim}", f"P={padded}", "BM=128", "BN=64")
    one = found(tmp_path, source, *shape, num_warps=8, num_stages=2).get("padded-tile")
    assert (one and f"split the {dim} into tiles of {tiles}" in one.advice) == (True if tiles else None)
    if one is not None:
        assert (one.severity, one.source.line, one.evidence["used"]) == ("medium", 13, dim)
        assert "likewise on line 15" in one.message
        assert 1.0 < one.estimate.speedup < one.estimate.high == pytest.approx(1 / (1 - one.evidence["saved"]), 1e-3)


def test_columns_that_tl_where_makes_0_are_padding_too(tmp_path):
    load = "tl.load(v + cols[:, None] * D + dims[None, :], mask=KEYS, other=OTHER)"
    source = ATTENTION.replace(load, f"tl.where(inside, {load}, 0.0)").replace("KEYS", "valid[:, None]")
    shape = ("*bf16,*bf16,*bf16,*fp32,i32:16", "D=80", "P=128", "BM=128", "BN=64")
    one = found(tmp_path, source.replace("OTHER", "0.0"), *shape, num_warps=8, num_stages=2)["padded-tile"]
    assert one.evidence["padding"] == 0.375  # without the columns of v it were half of that


@pytest.mark.parametrize(("dim", "is_found"), [(80, True), (128, False)])
def test_a_launch_says_the_length_of_a_head_that_is_an_argument(tmp_path, dim, is_found):
    source = ATTENTION.replace("D: tl.constexpr", "D").replace("KEYS", "inside").replace("OTHER", "0.0")
    launch = f"""
q, k, v, out = (torch.empty(1 << 20, device="cuda", dtype=torch.bfloat16) for _ in range(4))
attention[(32,)](q, k, v, out, 4096, {dim}, P=128, BM=128, BN=64, num_warps=8, num_stages=2)
"""
    assert ("padded-tile" in found_in_script(tmp_path, source, launch)) == is_found


GEMM = """
def gemm(x, w, out, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, LAST: tl.constexpr):
    rows, cols, depth = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rows[:, None] * K + k + depth[None, :], mask=MASK, other=0.0)
        b = tl.load(w + (k + depth[:, None]) * BN + cols[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out + rows[:, None] * BN + cols[None, :], acc)
"""


@pytest.mark.parametrize(
    ("mask", "advice"),
    [
        ("depth[None, :] < LAST", "split the 48 into tiles of 32 and 16"),
        ("depth[None, :] < 20", "use a tile of 32"),
        ("depth[None, :] < K - k", None),
        ("rows[:, None] < LAST", None),
    ],
)
def test_the_dimension_that_is_summed_over_may_be_padded(tmp_path, mask, advice):
    shape = ("*bf16,*bf16,*fp32,i32:16", "BM=128", "BN=128", "BK=64", "LAST=48")
    one = found(tmp_path, GEMM.replace("MASK", mask), *shape, num_warps=8, num_stages=3).get("padded-tile")
    assert (one and one.advice.startswith(advice)) == (True if advice else None)
    if one is not None:
        assert "elements that it sums over" in one.message


CONVOLUTION = """
def upsample(x, w, y, TIME, S: tl.constexpr, C: tl.constexpr, B: tl.constexpr):
    t, c = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, C)
    acc = tl.zeros(SHAPE, tl.float32)
    for tap in range(16):
        HIT
        weights = tl.load(w + tap * C * C + c[:, None] * C + c[None, :])
        PRODUCT
    STORE
"""
ROWS = {
    "SHAPE": "(B, C)",
    "PRODUCT": "acc = tl.dot(tl.load(x + at[:, None] * C + c[None, :], mask=hit[:, None], other=0.0), weights, acc)",
    "STORE": "tl.store(y + t[:, None] * C + c[None, :], acc)",
}
COLUMNS = {
    "SHAPE": "(C, B)",
    "PRODUCT": "acc = tl.dot(weights, tl.load(x + c[:, None] * TIME + at[None, :], mask=hit[None, :], other=0.0), acc)",
    "STORE": "tl.store(y + c[:, None] * TIME * S + t[None, :], acc)",
}
LAUNCH = """
x, w, y = (torch.empty(1 << 24, device="cuda", dtype=torch.bfloat16) for _ in range(3))
upsample[(64,)](x, w, y, 1024, S=8, C=128, B=128, num_warps=8, num_stages=3)
"""
UPSAMPLED = "at = (t - tap) // S; hit = ((t - tap) % S == 0) & (t >= tap) & (at < TIME)"


@pytest.mark.parametrize(
    ("hit", "written", "taking_part"),
    [
        (UPSAMPLED, ROWS, 2),
        (UPSAMPLED, COLUMNS, 2),
        ("at = t; hit = t // 32 % 16 == tap", ROWS, 1),
        ("at = t - tap; hit = (at >= 0) & (at < TIME * S)", ROWS, None),
        ("at = t - tap; hit = tl.arange(0, B) // 8 >= tap", ROWS, None),
        ("at = t; hit = tl.load(w + t) == tap", ROWS, None),
        ("at = t; hit = t < 4", ROWS, None),
        ("at = t; hit = t % 2 == 0", ROWS, None),
        ("at = t - tap; hit = (tl.program_id(0) != 32) | ((t - tap) % S == 0)", ROWS, None),  # few in one CTA alone
        ("at = t - tap; hit = (tl.program_id(0) == 32) | ((t - tap) % S == 0)", ROWS, 2),
    ],
)
def test_rows_that_take_part_in_few_iterations_are_found_by_their_masks(tmp_path, hit, written, taking_part):
    source = CONVOLUTION.replace("HIT", hit.replace("; ", "\n        "))
    for name, text in written.items():
        source = source.replace(name, text)
    one = found_in_script(tmp_path, source, LAUNCH).get("masked-tiles")
    assert (one and one.evidence.get("taking_part")) == taking_part
    if one is not None:
        assert one.source.line == 7
        assert one.evidence["iterations"] == 16
        assert ("columns" if written is COLUMNS else "rows") in one.message
        assert one.estimate.high == 16 / taking_part


def test_of_a_long_loop_few_ctas_masks_are_computed(tmp_path, monkeypatch):
    computed = []
    some_ctas = masked_rows.some_ctas
    monkeypatch.setattr(masked_rows, "some_ctas", lambda *args: computed.append(some_ctas(*args)) or computed[-1])
    source = CONVOLUTION.replace("HIT", UPSAMPLED.replace("; ", "\n        ")).replace("range(16)", "range(240)")
    for name, text in ROWS.items():
        source = source.replace(name, text)
    one = found_in_script(tmp_path, source, LAUNCH)["masked-tiles"]
    assert (one.evidence["iterations"], list(map(len, computed))) == (240, [2])


DEPTHWISE = """
def depthwise(x, w, y, length, CHANNELS: tl.constexpr, BP: tl.constexpr, BC: tl.constexpr, BO: tl.constexpr):
    at, c, o = tl.program_id(0) * BP + tl.arange(0, BP), tl.arange(0, BC), tl.arange(0, BO)
    acc = tl.zeros((BP, BO), tl.float32)
    for k in range(9):
        a = tl.load(x + c[None, :] * length + at[:, None] + k, mask=(c < CHANNELS)[None, :], other=0.0)
        mask = (c < CHANNELS)[:, None] & (o < CHANNELS)[None, :]
        b = tl.load(w + (o[None, :] * CHANNELS + c[:, None]) * 9 + k, mask=mask, other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(y + o[None, :] * length + at[:, None], acc, mask=(o < 32)[None, :])
"""


@pytest.mark.parametrize(
    ("channels", "words", "without"),
    [
        (
            1,
            "more than 99% of the work of the MMAs is on padding: masks keep 1 of 32 columns and 1 of 32 elements",
            True,
        ),
        (4, "98% of the work of the MMAs is on padding: masks keep 4 of 32 columns and 4 of 32 elements", False),
    ],
)
def test_all_padding_of_an_mma_is_counted_and_one_channel_needs_none(tmp_path, channels, words, without):
    shape = ("*fp16,*fp16,*fp32,i32:16", f"CHANNELS={channels}", "BP=64", "BC=32", "BO=32")
    one = found(tmp_path, DEPTHWISE, *shape)["padded-tile"]
    assert one.message.startswith(words)
    assert one.advice.startswith("use a tile of 16 columns and 16 elements that it sums over")
    assert one.advice.endswith("; or multiply without tl.dot: acc += a * b, with a single number a or b") == without


SHRINK = """
def shrink(x, w, y, limit, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    blocks = tl.cdiv(N, BN)
    block, last = tl.program_id(0) % blocks, tl.load(limit)
    rows, depth = tl.program_id(0) // blocks * BM + tl.arange(0, BM), tl.arange(0, BK)
    cols = block * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        a = tl.load(x + rows[:, None] * K + k + depth[None, :], mask=rows[:, None] < last, other=0.0)
        b = tl.load(w + (INDEX)[None, :] * K + k + depth[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(y + rows[:, None] * N + cols[None, :], acc, mask=(rows[:, None] < last) & (cols[None, :] < KEPT))
"""


@pytest.mark.parametrize(
    ("index", "kept", "columns", "used"),
    [
        ("cols % N", "N", 16, 16),
        ("tl.where(cols < N, cols, 0)", "N", 16, 16),
        ("tl.minimum(cols, N - 1)", "N", 20, 20),
        ("cols % N", "N", 32, 32),
        ("cols % N", "N", 48, None),
        ("cols % N", "N", 80, None),
        ("cols % N", "last", 16, None),
    ],
    ids=["modulo", "the first one again", "the last one again", "half", "most", "several tiles", "data"],
)
def test_columns_that_are_loaded_and_multiplied_again_are_counted(tmp_path, index, kept, columns, used):
    source = SHRINK.replace("INDEX", index).replace("KEPT", kept)
    launch = (
        f"x, w = (torch.empty(n, 4096, device='cuda', dtype=torch.bfloat16) for n in (2048, {columns}))\n"
        f"y = torch.empty(2048, {columns}, device='cuda')\n"
        "limit = torch.empty(1, device='cuda', dtype=torch.int32)\n"
        f"shrink[(32 * triton.cdiv({columns}, 64),)](x, w, y, limit, {columns}, 4096, 64, 64, 64)"
    )
    one = found_in_script(tmp_path, source, launch).get("padded-tile")
    assert (one and one.evidence["used"]) == used
    if one is not None:
        tile = max(16, 1 << (used - 1).bit_length())
        assert one.advice.startswith(f"use a tile of {tile} columns")
        assert f"{(1 - used / 64) / 2:.0%} of its loads are thrown away" in one.message
        assert one.estimate.speedup == pytest.approx(128 / (64 + tile), rel=1e-6)
        assert one.severity == ("high" if one.estimate.speedup >= 1.5 else "medium")
