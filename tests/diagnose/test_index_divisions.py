"""Divisions of indices outside of loops: they are named where they take longer than the bytes that the kernel moves."""

import pytest

from kperf.arch import GFX942, SM_80, SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.analyses import divisions
from kperf.diagnose.rules import loop_division
from tests.diagnose.test_severities import found as found_in_script
from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

SCALED = """
def scaled(x, scale, bias, y, n, width, channels, groups, T: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0).to(T) * B + tl.arange(0, B)
    inside = at < n
    c = CHANNEL
    value = tl.load(x + at, mask=inside).to(tl.float32) * tl.load(scale + c, mask=inside)
    tl.store(y + at, value.to(y.dtype.element_ty), mask=inside)
"""
TYPES = "*bf16,*fp32,*fp32,*bf16,i32,i32,i32,i32"
PLANE = "(at // width) % channels"
CALIBRATED = 0.8


def division(folder, channel, *, bits=64, types=TYPES, block=1024, **options):
    """The finding on the divisions in a kernel that scales each channel, compiled by its signature."""
    source = SCALED.replace("CHANNEL", channel)
    return found(folder, source, types, f"T=tl.int{bits}", f"B={block}", **options).get("loop-division")


@pytest.mark.parametrize(
    ("channel", "bits", "divisions", "cycles"),
    [
        (PLANE, 64, 2, 2 * 24 * 8),  # 8 numbers of each thread, 4 warps on 4 sub-partitions
        ("at // width", 64, 1, 24 * 8),
        ("(at // (width * channels)) * channels + at // width % channels", 64, 3, 3 * 24 * 8),
        (f"{PLANE} + at // groups", 32, 3, 3 * 14 * 8),
        (f"{PLANE} + at // groups % width", 32, 4, 4 * 14 * 8),
        (f"{PLANE} + at // width % groups + at // groups", 32, 4, 4 * 14 * 8),  # the first is there twice
        (f"{PLANE} + at % width // groups", 64, 3, 3 * 24 * 8),  # quotient and remainder are one division
        ("(at // tl.num_programs(0)) % channels", 64, 2, 2 * 24 * 8),
    ],
)
def test_divisions_that_take_longer_than_the_bytes_are_found(tmp_path, channel, bits, divisions, cycles):
    one = division(tmp_path, channel, bits=bits)
    assert (one.source.line, one.evidence["bits"], one.evidence["divisions"]) == (7, bits, divisions)
    assert one.evidence["division_cycles"] == cycles
    copied = 3900e3 / 1980 / 132  # bytes of an SM in a cycle
    assert one.evidence["memory_cycles"] == pytest.approx((2 * 2 * 1024 + 32) / copied, rel=0.01)
    others, memory = one.evidence["other_cycles"], one.evidence["memory_cycles"]
    gain = (cycles + others) / max(others, memory)
    assert one.estimate.speedup == pytest.approx(gain**CALIBRATED, rel=1e-3)
    assert (one.estimate.low, one.estimate.high) == (1.0, pytest.approx((cycles + others) / memory, rel=1e-3))
    assert one.severity == ("high" if gain**CALIBRATED >= 1.5 else "medium")
    assert ("in 32 bits" in one.advice) == (bits == 64)
    assert "tl.constexpr" in one.advice
    assert one.advice.startswith("give what the divisions compute, such as the row, an axis of the grid")


DATA = """
def divided(x, y, d, n, B: tl.constexpr):
    LOOP
        at = start + tl.arange(0, B)
        value = tl.load(x + at, mask=at < n).to(tl.int32)
        tl.store(y + at, RESULT, mask=at < n)
"""


@pytest.mark.parametrize(
    ("loop", "whose"),
    [("start = tl.program_id(0) * B\n    if True:", "a CTA"), ("for start in range(0, n, B):", "an iteration")],
    ids=["elements", "loop"],
)
@pytest.mark.parametrize(
    ("result", "is_found"),
    [
        ("value // d + value % (d + 3)", True),
        ("value // 7 + value % 11 + value // 13", False),
        ("value // (value + 3) + value % (value + 5)", False),  # by data: no constant is possible
    ],
)
def test_divisions_of_data_are_found_where_they_take_longer_than_the_bytes(tmp_path, loop, whose, result, is_found):
    source = DATA.replace("LOOP", loop).replace("RESULT", f"({result}).to(tl.int8)")
    one = found(tmp_path, source, "*i8,*i8,i32,i32", "B=1024").get("loop-division")
    assert (one is not None) == is_found
    if one is not None:
        assert one.message.startswith(f"{whose} divides 1024 numbers 2 times by a number known only at run time, in 32")
        assert one.evidence["division_cycles"] == 2 * 14 * 8
        assert one.advice.startswith("make the divisors tl.constexpr")
        assert "axis of the grid" not in one.advice


@pytest.mark.parametrize(
    "loop", ["start = tl.program_id(0) * B\n    if True:", "for start in range(0, n, B):"], ids=["elements", "loop"]
)
@pytest.mark.parametrize(
    "result", ["tl.load(x + value // d + value % (d + 3)).to(tl.int32)", "value + at // d + at % (d + 3)"]
)
def test_loaded_and_computed_indices_are_found(tmp_path, loop, result):
    source = DATA.replace("LOOP", loop).replace("RESULT", f"({result}).to(tl.int8)")
    assert "divides 1024 indices" in found(tmp_path, source, "*i8,*i8,i32,i32", "B=1024")["loop-division"].message


HASHED = """
def hashed(ids, rows, n, size, SIZE: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(ids + at, mask=at < n, other=0)
    tl.store(rows + at, (ROW).to(tl.int8), mask=at < n)
"""


@pytest.mark.parametrize(
    ("row", "bits", "cycles"),
    [
        ("(x * 0x7F51AFD7ED558CCD & 0x7FFFFFFFFFFF) % size", 64, 90),
        ("(x ^ (x << 13)).to(tl.uint64) // size.to(tl.uint64)", 64, 90),
        ("x % size", 64, 0),  # identifiers are small: it hides behind the bytes
        ("(x * 0x7F51AFD7ED558CCD & 0x7FFFFFFFFFFF) % SIZE", 64, 0),
        ("((x * 0x7F51AFD7ED558CCD) >> 32).to(tl.uint32) % size.to(tl.uint32)", 32, 0),
    ],
)
def test_a_hash_modulo_an_argument_calls_a_routine(tmp_path, row, bits, cycles):
    """A kernel with four such remainders an identifier is 2.12 times as fast with a constexpr (H100)."""
    source = HASHED.replace("ROW", row)
    one = found(tmp_path, source, "*i64,*i8,i32,i32", "SIZE=10000019", "B=1024").get("loop-division")
    assert (one.evidence["division_cycles"] if one is not None else 0) == cycles * 8
    if one is not None:
        assert one.evidence["bits"] == bits
        assert "tl.uint32" in one.advice
        assert ("power of two" in one.advice) == ("%" in row)


MANY_HASHES = """
def signature(x, a, out, p, H, B: tl.constexpr, P: tl.constexpr):
    values = tl.load(x + tl.program_id(0) * B + tl.arange(0, B)).to(tl.int64)
    for h in HASHES:
        factor = tl.load(a + h).to(tl.int64)
        least = tl.min(HASHED, 0)
        tl.store(out + tl.program_id(0) * H + h, least.to(tl.int32))
"""


@pytest.mark.parametrize(
    ("hashed", "hashes", "divided"),
    [
        ("(factor * values + h) % p", "range(H)", "an iteration divides 256 numbers by"),
        ("(p * values + factor) % p", "range(H)", "an iteration divides 256 numbers by"),
        ("(factor * values + h) % p", "tl.static_range(16)", "a CTA divides 256 numbers 16 times by"),
        ("(factor * values + h) % P", "range(H)", None),
        ("(factor * values + h) & p", "range(H)", None),
        ("(factor % p) * values", "range(H)", None),  # one division of a CTA
    ],
)
@pytest.mark.parametrize("prime", [2**31 - 1, 2**31 - 19])
def test_many_hashes_of_numbers_in_registers_are_found(tmp_path, hashed, hashes, divided, prime):
    launch = (
        "x = torch.empty(1 << 20, device='cuda', dtype=torch.int32)\n"
        f"signature[(4096,)](x, x, x, {prime}, 64, B=256, P={prime})"
    )
    source = MANY_HASHES.replace("HASHED", hashed).replace("HASHES", hashes)
    one = found_in_script(tmp_path, source, launch).get("loop-division")
    assert (one is not None) == (divided is not None)
    if one is not None:
        assert one.message.startswith(divided)
        assert one.message.endswith("it moves no tile" if hashes == "range(H)" else "to move the bytes")
        assert one.severity == "high"
        assert ("as the divisor p is 2^31 - 1" in one.advice) == (prime == 2**31 - 1)


SILU = """
def affine(x, scale, shift, y, n, C, L, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    c = i // L % C
    v = tl.load(x + i, mask=i < n) * tl.load(scale + c, mask=i < n).to(tl.float32) + tl.load(shift + c, mask=i < n)
    tl.store(y + i, (v * tl.sigmoid(v)).to(tl.float16), mask=i < n)

"""
LAUNCH = """
x, s = torch.empty(16, 1280, 3000, device="cuda", dtype=torch.float16), torch.empty(1280, device="cuda").half()
affine[GRID](x, s, s, x, x.numel(), 1280, 3000, 1024)
"""


def test_the_estimate_is_what_was_measured(tmp_path):
    """Of such a kernel 188.6 us became 95.3 us on an H100 with an axis of the grid for its rows: 1.98 x."""
    one = found_in_script(tmp_path, SILU, LAUNCH.replace("GRID", "(60000,)"))["loop-division"]
    assert (one.severity, one.source.line) == ("high", 6)
    assert one.estimate.speedup == pytest.approx(1.98, rel=0.05)
    assert one.estimate.low < 1.98 < one.estimate.high < 2.7
    assert one.message.startswith("a CTA divides 1024 indices 2 times by a number known only at run time, in 64 bits: ")


IMAGES = """
def normalised(x, scale, y, total, H, W, C, B: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    c = at // (H * W) % C
    v = tl.load(x + ((at // (C * H * W) * H + at // W % H) * W + at % W) * C + c, mask=at < total).to(tl.float32)
    tl.store(y + at, (v * tl.load(scale + c, mask=at < total)).to(tl.float16), mask=at < total)

"""


@pytest.mark.parametrize(("channels", "sectors"), [(3, 3 * 1024), (31, 31 * 1024), (32, 32 * 1024), (64, 32 * 1024)])
def test_a_launchs_small_stride_is_the_sectors_that_it_touches(tmp_path, channels, sectors):
    """Of images of 3 channels 247 us became 111 us on an H100, in 32 bits and with constexprs: 2.23 x."""
    launch = f"""
x = torch.empty(128, 512, 512, {channels}, device="cuda", dtype=torch.uint8)
scale = torch.empty({channels}, device="cuda")
y = torch.empty(x.shape, device="cuda", dtype=torch.float16)
normalised[(y.numel() // 1024,)](x, scale, y, y.numel(), 512, 512, {channels}, 1024)
"""
    rules = found_in_script(tmp_path, IMAGES, launch)
    poor = rules["uncoalesced-access"]
    assert poor.evidence["tile_sector_use"] == pytest.approx(1024 / sectors, abs=1e-4)
    assert (poor.severity == "high") == (channels > 3)  # without a gain of 1.5 x it is not severe
    one = rules.get("loop-division")
    assert (one is not None) == (channels == 3)
    if one is not None:
        assert (one.severity, one.evidence["divisions"]) == ("high", 5)
        assert one.estimate.speedup == pytest.approx(2.23, rel=0.05)


@pytest.mark.parametrize(("grid", "is_found"), [("(131,)", False), ("(132,)", True), ("(66, 2)", True)])
def test_a_launch_of_few_ctas_waits_for_latencies(tmp_path, grid, is_found):
    assert ("loop-division" in found_in_script(tmp_path, SILU, LAUNCH.replace("GRID", grid))) == is_found


def test_a_tensor_that_all_ctas_read_is_moved_once(tmp_path):
    one = found_in_script(
        tmp_path, SILU.replace("i // L % C", "i // L % C + i % C"), LAUNCH.replace("GRID", "(60000,)")
    )
    copied = 3900e3 / 1980 / 132
    assert one["loop-division"].evidence["memory_cycles"] == pytest.approx(2 * 2 * 1024 / copied, rel=0.001)


def test_indices_beyond_32_bits_call_a_routine(tmp_path):
    launch = LAUNCH.replace("GRID", "(1 << 23,)").replace("16, 1280", "1600, 1280")
    one = found_in_script(tmp_path, SILU, launch)["loop-division"]
    assert one.evidence["division_cycles"] == 2 * 90 * 8
    assert "in 32 bits" not in one.advice


@pytest.mark.parametrize(
    ("channel", "bits", "types"),
    [
        ("(at // 3000) % 1280", 64, TYPES),
        ("(at // 64) % channels.to(tl.int64) * 0", 64, TYPES),
        ("tl.program_id(0) // width % channels + at * 0", 64, TYPES),
        ("(tl.zeros((B,), T) + tl.program_id(0)) // width % channels + at * 0", 64, TYPES),
        ("at // width", 32, TYPES),  # it hides behind the bytes
        ("at % channels + at // channels", 32, TYPES),  # one division
        (PLANE, 32, TYPES.replace("bf16", "fp32")),
        (PLANE, 64, TYPES.replace("bf16", "fp32")),
        ("at", 64, TYPES),
        (f"(at.to(tl.float32) * 0.5).to(tl.int32) + {PLANE}", 64, TYPES),  # what is moved is not known
        (f"tl.load(bias + at * 32).to(tl.int32) + {PLANE}", 64, TYPES),  # more bytes than divisions
    ],
)
def test_divisions_that_cost_nothing_are_not(tmp_path, channel, bits, types):
    assert division(tmp_path, channel, bits=bits, types=types) is None


def test_a_loaded_number_has_no_axis_of_the_grid(tmp_path):
    types = TYPES.replace("*fp32,*fp32", "*fp32,*i8")
    one = division(tmp_path, "tl.load(bias + at).to(tl.int64) // width % channels + at // groups", types=types)
    assert one.evidence["divisions"] == 3
    assert one.advice == "compute the indices in 32 bits; or make the divisors tl.constexpr"


def test_a_division_known_to_have_32_bits_calls_nothing(tmp_path):
    wide = "((at.to(tl.uint32).to(tl.int64) // width.to(tl.uint32).to(tl.int64)) % channels.to(tl.uint32).to(tl.int64))"
    one = division(tmp_path, f"{wide} + at // groups % width", bits=32)
    assert one.evidence["division_cycles"] == 4 * 14 * 8
    assert "in 32 bits" not in one.advice


DESCRIBED = """
def described(x, scale, y, n, width, channels, B: tl.constexpr):
    first = tl.program_id(0) * B
    at = first.to(tl.int64) + tl.arange(0, B)
    value = tl.make_tensor_descriptor(x, [n], [1], [B]).load([first])
    value *= tl.load(scale + at // width % channels)
    tl.make_tensor_descriptor(y, [n], [1], [B]).store([first], value)
"""


def test_bytes_that_tma_moves_count_too(tmp_path):
    one = found(tmp_path, DESCRIBED, "*bf16,*bf16,*bf16,i32,i32,i32", "B=1024")["loop-division"]
    copied = 3900e3 / 1980 / 132
    assert one.evidence["memory_cycles"] == pytest.approx((2 * 2 * 1024 + 32) / copied, rel=0.01)


ROWS = """
def rows(x, y, n, width, M: tl.constexpr, N: tl.constexpr):
    row, col = tl.program_id(0) * M + tl.arange(0, M), tl.arange(0, N)
    at = (row // width * 7 + row % width)[:, None] * N + col[None, :]
    tl.store(y + row[:, None] * N + col[None, :], tl.load(x + at))
"""


@pytest.mark.parametrize("bits", [32, 64])
def test_a_division_of_each_row_is_one_of_few(tmp_path, bits):
    source = ROWS.replace("tl.program_id(0)", f"tl.program_id(0).to(tl.int{bits})")
    assert "loop-division" not in found(tmp_path, source, "*bf16,*bf16,i32,i32", "M=16", "N=128")
    (kernel,) = inputs.read(
        f"{tmp_path}/kernel.py:rows",
        (),
        SM_90A,
        signature="*bf16,*bf16,i32,i32",
        constexprs=("M=64", "N=128"),
        options={"num_warps": 4},
    )
    rows = [divisions.numbers_of_thread(kernel, op) for op in kernel.named("arith.divsi")]
    assert rows == [8]  # 16 threads have a row together, and 64 rows are 8 of each thread


POOLED = SCALED.replace(
    "value = ", "value = tl.zeros((B,), tl.float32)\n    for k in range(groups):\n        value += "
).replace("x + at,", "x + at + k,")


def test_what_a_loop_moves_is_beside_divisions_before_it(tmp_path):
    shape = (TYPES, "T=tl.int64", "B=1024")
    assert "loop-division" not in found(tmp_path, POOLED.replace("CHANNEL", PLANE), *shape)
    one = found(tmp_path, POOLED.replace("CHANNEL", "at").replace("x + at + k", "x + (at + k) // width"), *shape)
    assert one["loop-division"].source.line == 10


@pytest.mark.parametrize("arch", [SM_80, GFX942], ids=lambda arch: arch.name)
def test_other_targets_divide_too(tmp_path, arch):
    one = division(tmp_path, f"{PLANE} + at // groups % width", arch=arch)
    assert one.evidence["divisions"] == 4
    assert 1.1 < one.estimate.speedup <= one.estimate.high


COUNTED = """
def counted(y, n, width, T: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0).to(T) * B + tl.arange(0, B)
    tl.store(y + at, (VALUE).to(tl.int32))
"""


def listing(folder, value, bits):
    """(opcodes up to the last EXIT, those behind it) of a kernel of which each thread has 8 numbers."""
    path = folder / "counted.py"
    path.write_text(f"import triton, triton.language as tl\n\n@triton.jit\n{COUNTED.replace('VALUE', value).strip()}\n")
    (kernel,) = inputs.read(
        f"{path}:counted",
        (),
        SM_90A,
        signature="*i32,i32,i32",
        constexprs=(f"T=tl.int{bits}", "B=1024"),
        options={"num_warps": 4},
    )
    opcodes = [one.opcode for one in kernel.code.instructions]
    end = len(opcodes) - opcodes[::-1].index("EXIT")
    return opcodes[:end], opcodes[end:]


@pytest.mark.parametrize("value", ["at // width", "at % width"])
def test_instructions_are_those_of_the_machine_code(tmp_path, value):
    short, _ = listing(tmp_path, value, 32)
    none, _ = listing(tmp_path, "at", 32)
    assert (len(short) - len(none)) / 8 == pytest.approx(divisions.SHORT, abs=2)
    long, routine = listing(tmp_path, value, 64)
    none, _ = listing(tmp_path, "at", 64)
    written = (len(long) - len(none)) / 8
    assert written == pytest.approx(loop_division._WRITTEN, abs=2)
    calls = sum(opcode.startswith("CALL") for opcode in long)
    assert calls == 8
    moves = 4  # the call's own and those around it, of which the short way has none
    assert written - moves - calls / 8 == pytest.approx(divisions.LONG, abs=2)
    tests = 5  # of the upper halves, before either way
    assert tests + moves + len(routine) == pytest.approx(divisions.CALLED, abs=10)


SUMMED = """
def summed(x, w, y, p, stride, K: tl.constexpr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    acc = tl.zeros((B,), tl.int64)
    for k in RANGE(K):
        t = tl.load(x + k * stride + at).to(tl.int64) * tl.load(w + k).to(tl.int64)
        STEP
    tl.store(y + at, RESULT)
"""
IN_TILE = """
def summed(x, w, y, p, stride, K: tl.constexpr, B: tl.constexpr):
    at, k = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, K)
    left = tl.load(x + k[:, None] * stride + at[None, :]).to(tl.int64)
    t = left * tl.load(w + k)[:, None].to(tl.int64)
    # as a tile
    terms = TERMS
    tl.store(y + at, tl.sum(terms, axis=0) % p)
"""
AFTER_LOOP, WHOLE = "take one remainder after the loop", "take one remainder of the whole sum"


def summed(folder, source):
    return found(folder, source, "*i32,*i32,*i64,i64,i32", "K=16", "B=512").get("loop-division")


def in_loop(step, result="acc", loop="range"):
    return SUMMED.replace("RANGE", loop).replace("STEP", step).replace("RESULT", result)


@pytest.mark.parametrize(
    ("source", "divisions", "advice"),
    [
        (in_loop("acc = (acc + t) % p"), 1, AFTER_LOOP),
        (in_loop("acc = (t + k + acc) % 268435399"), 1, AFTER_LOOP),
        (in_loop("acc += t % p", "acc % p"), 1, AFTER_LOOP),
        (in_loop("acc = (acc + t % p) % p"), 2, AFTER_LOOP),
        (in_loop("acc = (acc + t) % p", loop="tl.static_range"), 15, WHOLE),
        (IN_TILE.replace("TERMS", "t % p"), 1, WHOLE),
    ],
)
def test_remainders_of_terms_can_wait_for_the_sum(tmp_path, source, divisions, advice):
    """A kernel of 24 terms is 9.17 times as fast with one remainder after the loop (H200)."""
    one = summed(tmp_path, source)
    assert (one.source.line, one.evidence["divisions"]) == (9, divisions)
    assert one.severity == ("medium" if "268435399" in source else "high")  # by a constant it takes 20 instructions
    assert advice in one.advice
    assert ("below 2^59;" in one.advice) == (advice == AFTER_LOOP)


@pytest.mark.parametrize(
    "source",
    [
        in_loop("acc += t", "acc % p"),
        in_loop("acc = (acc + t) % 65536"),
        in_loop("acc += t % p"),  # the sum of remainders itself is wanted
        in_loop("acc += t % 1000003", "acc % p"),
        in_loop("acc = (acc * 31 + t) % p"),  # grows too fast
        in_loop("acc = (acc + acc + t) % p"),
        in_loop("acc = (acc + t) % p\n        tl.store(y + k * stride + at, acc)"),
        in_loop("acc = (acc + tl.load(x + acc)) % p"),
        in_loop("tl.store(y + k * stride + at, (t % p + p) % p)"),  # makes it positive
        IN_TILE.replace("TERMS", "t"),
    ],
)
def test_remainders_that_are_needed_are_no_terms(tmp_path, source):
    one = summed(tmp_path, source)
    assert one is None or "terms of sums" not in one.message


def test_remainders_of_two_sums_are_one_finding(tmp_path):
    source = in_loop("acc = (acc + t) % p\n        more = (more + t * 3) % p", "acc + more")
    one = summed(tmp_path, source.replace("acc =", "more, acc = tl.zeros((B,), tl.int64),", 1))
    assert one.evidence["divisions"] == 2
    assert "likewise on line 10" in one.message


TABLE = """
def gathered(x, table, out, n, length, stride, WIDTH: tl.constexpr, B: tl.constexpr):
    at = tl.arange(0, B)
    first = tl.load(table + tl.program_id(0))
    acc = tl.zeros((B,), tl.float32)
    for start in range(0, n, B):
        slots = tl.load(table + start + at)
        place = PLACE
        acc += tl.load(x + place * stride)
    tl.store(out + at, acc)
"""
COUNTED_WAY = "carry quotient and remainder from iteration to iteration in variables"
WIDENED_WAY = "divide in 32 bits and widen the remainder afterwards, as (x % n).to(tl.int64) of x and n in 32 bits"
CONSTANT_WAY = "make the divisor a tl.constexpr: a division then takes 5 instructions in place of 14"


@pytest.mark.parametrize(
    ("place", "table", "length", "advice", "end"),
    [
        ("(slots.to(tl.int64) + length) % length", "i32", "i32", WIDENED_WAY, "5 if n is a tl.constexpr too"),
        ("slots.to(tl.int64) % length", "i32", "i32", WIDENED_WAY, "a tl.constexpr leaves 20)"),
        ("slots.to(tl.int64) % WIDTH", "i32", "i32", WIDENED_WAY, "takes 5 instructions in place of 20"),
        ("slots % length", "i64", "i32", f"if the loaded numbers and the divisor are below 2^31, {WIDENED_WAY}", ""),
        ("slots.to(tl.int64) % length", "i32", "i64", "if the loaded numbers and the divisor are below 2^31", ""),
        ("(slots * slots).to(tl.int64) // length", "i32", "i32", "if the loaded numbers and the divisor are", ""),
        ("slots.to(tl.int64) // length", "i32", "i32", "divide in 32 bits and widen the quotient", "(x // n)"),
        ("slots % length", "i32", "i32", CONSTANT_WAY, ""),
        ("(slots + start) // length", "i32", "i32", CONSTANT_WAY, ""),
        ("slots % WIDTH", "i32", "i32", None, ""),  # as cheap as a division gets
        ("(start + at).to(tl.int64) % length", "i32", "i32", COUNTED_WAY, "write a loop for each dimension"),
        ("(first + start + at) % length", "i32", "i32", COUNTED_WAY, "write a loop for each dimension"),
        ("(first + start + at) % WIDTH", "i64", "i32", COUNTED_WAY, "variables, or write a loop for each dimension"),
    ],
)
def test_no_iterations_quotient_of_a_tables_slots_follows_from_the_last_ones(
    tmp_path, place, table, length, advice, end
):
    source = TABLE.replace("PLACE", place)
    one = found(tmp_path, source, f"*fp32,*{table},*fp32,i32,{length},i32", "WIDTH=48", "B=256").get("loop-division")
    assert (one is not None) == (advice is not None)
    if one is not None:
        is_counted = advice == COUNTED_WAY
        assert one.advice.startswith(advice)
        assert end in one.advice
        assert (COUNTED_WAY in one.advice, "loop for each dimension" in one.advice) == (is_counted, is_counted)


def test_what_narrower_divisions_save_is_by_their_instructions(tmp_path):
    """In 64 bits a constant divisor spares little: 20 instructions of 24. In 32 bits it takes 14, or 5."""
    ways = ["slots.to(tl.int64) % length", "slots.to(tl.int64) % WIDTH"]
    types = "*fp32,*i32,*fp32,i32,i32,i32"
    run_time, constant = (
        found(tmp_path, TABLE.replace("PLACE", way), types, "WIDTH=48", "B=256")["loop-division"] for way in ways
    )
    for one, now, then in ((run_time, 24, 14), (constant, 20, 5)):
        share = 1 - 1 / one.estimate.high
        assert one.estimate.speedup == pytest.approx(1 / (1 - share * (1 - then / now)), rel=1e-2)
        assert f"{then} instructions in place of {now}" in one.advice
    assert run_time.estimate.high > 1.1


def test_a_launch_says_whether_a_divisor_has_32_bits(tmp_path):
    source = TABLE.replace("PLACE", "slots.to(tl.int64) % length")
    launch = """
x, table = torch.empty(1 << 20, device="cuda"), torch.empty(1 << 20, device="cuda", dtype=torch.int32)
gathered[(132,)](x, table, x, 4096, LENGTH, 1, 48, 256)
"""
    for length, fits in ((1 << 20, True), (1 << 40, False)):
        one = found_in_script(tmp_path, source, launch.replace("LENGTH", str(length)))["loop-division"]
        assert one.advice.startswith("if the loaded numbers") != fits
