"""What splits an access: a mask that ends at a loaded number, or the layout of tl.join; and its share of the work."""

import pytest

from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

GROUPS = """
def grouped(x, w, out, ranks, K, sx, sw, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    group = tl.program_id(1)
    rank = RANK
    m, n, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, rank, BK):
        a = tl.load(x + m[:, None] * sx + (at + k)[None, :], mask=k[None, :] < rank - at, other=0.0)
        b = tl.load(w + group * sw + n[None, :] * sx + (at + k)[:, None], mask=k[:, None] < rank - at, other=0.0)
        acc = tl.dot(a, b, acc)
    tl.store(out + m[:, None] * BN + n[None, :], acc.to(tl.bfloat16))
"""
TILES = ("BM=64", "BN=64", "BK=64")
BF16 = "*bf16,*bf16,*bf16,*i32,i32:16,i32:16,i32:16"
LOADED = "tl.load(ranks + group)"


def test_loads_that_a_loaded_limit_splits_are_not_pipelined_and_say_so(tmp_path):
    rules = found(tmp_path, GROUPS.replace("RANK", f"tl.minimum(K, {LOADED})"), BF16, *TILES)
    not_ahead, narrow = rules["loads-not-pipelined"], rules["mask-stops-vectors"]
    reason = (
        "its mask ends at a number that depends on rank, which the kernel loads, so that the compiler does not know it "
        "to be a multiple of 16"
    )
    assert not_ahead.message.endswith(
        f"the compiler can prove only 2 contiguous bytes of a thread, and cp.async copies 4 or more: {reason}"
    )
    assert not_ahead.advice.startswith(
        "if rank is a multiple of 16 in each launch, say so: rank = tl.multiple_of(rank, 16)"
    )
    assert not_ahead.advice == narrow.advice
    assert narrow.message.endswith(f"2 bytes at a time where 16 bytes are contiguous (likewise on line 11): {reason}")
    assert not_ahead.estimate.speedup == pytest.approx(1.8 * 2)
    assert not_ahead.severity == "high"


@pytest.mark.parametrize(
    ("rank", "types"),
    [
        (f"tl.multiple_of({LOADED}, 16)", BF16),
        (f"tl.minimum(K, tl.multiple_of({LOADED}, 16))", BF16),
        ("K", BF16),
        (LOADED, BF16.replace("bf16", "fp32")),  # of single elements cp.async copies 4 bytes
    ],
)
def test_loads_are_pipelined_where_a_thread_has_four_bytes(tmp_path, rank, types):
    assert "loads-not-pipelined" not in found(tmp_path, GROUPS.replace("RANK", rank), types, *TILES)


def test_loads_that_an_argument_splits_name_it(tmp_path):
    finding = found(tmp_path, GROUPS.replace("RANK", "K"), BF16.replace("i32:16", "i32", 1), *TILES)
    assert "cp.async copies 4 or more: its mask ends at K, which the compiler" in finding["loads-not-pipelined"].message
    assert finding["loads-not-pipelined"].advice.startswith("pass a multiple of 16 as K")


ROWS = """
def rows(x, y, lengths, flags, stride, B: tl.constexpr):
    i, j = tl.arange(0, B), tl.arange(0, 16)
    length = tl.load(lengths + tl.program_id(0))
    v = tl.load(x + (tl.program_id(0) * 16 + j)[:, None] * stride + i[None, :], mask=MASK, other=0.0)
    tl.store(y + (tl.program_id(0) * 16 + j)[:, None] * stride + i[None, :], v)
"""
ROW_TYPES = "*bf16,*bf16,*i32,*i1,i32:16"


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        ("i[None, :] < length", "its mask ends at a number that depends on length, which the kernel loads"),
        ("i[None, :] < tl.multiple_of(length, 16)", ""),
        ("j[:, None] < length", ""),  # whole rows
        ("tl.load(flags + i)[None, :]", "its mask is computed from loaded numbers"),
    ],
)
def test_which_loaded_numbers_split_a_row(tmp_path, mask, why):
    finding = found(tmp_path, ROWS.replace("MASK", mask), ROW_TYPES, "B=256").get("mask-stops-vectors")
    assert (finding is not None) == bool(why)
    if finding is not None:
        assert why in finding.message
        assert finding.source.line == 7


JOINED = """
def joined(w, x, out, offsets, K, N, M: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    n, k, half = tl.program_id(0) * BN + tl.arange(0, BN), tl.arange(0, BK), tl.arange(0, BK // 2)
    m = tl.arange(0, M)
    acc = tl.zeros((BN, M), tl.float32)
    for s in range(0, K, BK):
        packed = tl.load(w + BASE + (s // 2 + half)[None, :] * N + n[:, None])
        low, high = UNPACKED
        a = TOGETHER
        acc = tl.dot(a, tl.load(x + m[None, :] * K + (s + COLUMNS)[:, None]), acc)
    tl.store(out + n[:, None] * M + m[None, :], acc)
"""
SHIFTED = "(packed & 0xF).to(tl.bfloat16), ((packed >> 4) & 0xF).to(tl.bfloat16)"
ASM = """tl.inline_asm_elementwise(
            "{ and.b32 $0, $2, 15; shr.u32 $1, $2, 4; }", "=r,=r,r", [packed], (tl.int32, tl.int32), True, 1
        )"""
JOIN = "tl.reshape(tl.join(low, high), (BN, BK)).to(tl.bfloat16)"
OF_JOIN = "tl.join takes this tile, and in the layout that tl.join gives it a thread has few elements of a row"
OF_MEMORY = "its address is computed from numbers that the kernel loads"


@pytest.mark.parametrize(
    ("base", "unpacked", "together", "why", "severity"),
    [
        ("0", SHIFTED, JOIN, OF_JOIN, "low"),
        ("tl.load(offsets) * N", SHIFTED, JOIN, OF_JOIN, "low"),  # a multiple of 16, whatever is loaded
        ("tl.load(offsets) * N", ASM, JOIN, OF_JOIN, "low"),
        ("tl.load(offsets)", SHIFTED, JOIN, OF_MEMORY, "medium"),
        ("tl.load(offsets)", SHIFTED, "low + high", OF_MEMORY, "medium"),
        ("tl.load(offsets) * N", SHIFTED, "low + high", None, None),
    ],
)
def test_the_layout_of_a_join_is_told_from_an_unknown_alignment(tmp_path, base, unpacked, together, why, severity):
    text = JOINED.replace("BASE", base).replace("UNPACKED", unpacked).replace("TOGETHER", together)
    text = text.replace("COLUMNS", "k" if together == JOIN else "half")
    finding = found(tmp_path, text, "*i32,*bf16,*fp32,*i32,i32:16,i32:16", "M=32", "BN=64", "BK=64").get(
        "narrow-access"
    )
    assert (finding is not None) == (why is not None)
    if finding is not None:
        assert f"a thread loads 4 bytes at a time where 16 bytes are contiguous: {why}" in finding.message
        assert (finding.severity, finding.source.line) == (severity, 9)


STORED = """
def stored(x, y, n, stride, B: tl.constexpr, R: tl.constexpr):
    i, r = tl.arange(0, B), tl.arange(0, R)
    acc = tl.zeros((R, B), tl.float32)
    for k in range(0, STEPS):
        acc += tl.load(x + (tl.program_id(0) * STEPS + k) * R * B + r[:, None] * B + i[None, :])
    tl.store(y + (tl.program_id(0) * R + r)[:, None] * stride + i[None, :], acc)
"""


@pytest.mark.parametrize(("steps", "severity"), [(4, "medium"), (8, "medium"), (32, "low"), (64, "low")])
def test_a_narrow_access_gains_by_its_share_of_the_requests(tmp_path, steps, severity):
    text = STORED.replace("STEPS", str(steps))
    finding = found(tmp_path, text, "*fp32,*fp32:1,i32:16,i32:16", "B=128", "R=16")["narrow-access"]
    share = 4 / (4 + steps)  # a store of 4 bytes beside loads of 16
    assert finding.evidence["share"] == pytest.approx(share, abs=1e-4)
    assert finding.estimate.speedup == pytest.approx((1 / (1 - share * 3 / 4)) ** 0.5)
    assert finding.severity == severity
