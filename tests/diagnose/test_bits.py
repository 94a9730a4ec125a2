"""Set bits that are counted one at a time, and loops over bits that count none or do more."""

import pytest

from tests.diagnose.test_severities import found

pytestmark = pytest.mark.kernels

COUNT = """
def count(x_ptr, out_ptr, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    x = tl.load(x_ptr + at)
    u = x.to(tl.uint32, bitcast=True)
    n, b = tl.zeros((B,), tl.int32), tl.zeros((B,), tl.int32)
    BODY
    tl.store(out_ptr + at, n)
"""
LAUNCH = """
x = torch.empty(1 << 24, device="cuda", dtype=torch.int32)
count[(1 << 14,)](x, torch.empty_like(x), 1024)
"""


def finding(folder, *body):
    return found(folder, COUNT.replace("BODY", "\n    ".join(body)), LAUNCH).get("bit-loop")


@pytest.mark.parametrize(
    "body",
    [
        ("for i in range(32):", "    n += (x >> i) & 1"),
        ("for i in range(32):", "    n += tl.where(((x >> (31 - i)) & 1) == 1, 1, 0)"),
        ("for i in range(32):", "    n += ((x & (1 << i)) != 0).to(tl.int32)"),
        ("for i in range(32):", "    n += (u & 1).to(tl.int32)", "    u >>= 1"),
        ("for i in range(32):", "    n += (x != 0).to(tl.int32)", "    x &= x - 1"),
        ("while tl.max(x, 0) != 0:", "    n += (x != 0).to(tl.int32)", "    x &= x - 1"),
        ("while tl.max(u, 0) > 0:", "    n += (u & 1).to(tl.int32)", "    u >>= 1"),
        ("for i in tl.static_range(32): n += (x >> i) & 1",),
        ("for i in tl.static_range(32): n += x & 1; x = x >> 1",),
        ("for i in range(32):", "    n += (x >> i) & 1", "    b += ((u >> i) & 1).to(tl.int32)", "n += b"),
        ("n = tl.sum((x[:, None] >> tl.arange(0, 32)[None, :]) & 1, axis=1)",),
    ],
)
def test_bits_that_are_counted_one_at_a_time(tmp_path, body):
    one = finding(tmp_path, *body)
    assert (one.severity, one.source.line) == ("high", 9)
    assert (one.evidence["bits"], one.evidence["elements"]) == (32, 1024)
    assert one.estimate.low <= one.estimate.speedup <= one.estimate.high


@pytest.mark.parametrize(
    "body",
    [
        ("for i in range(32):", "    n += ((x >> i) & 1) * (i * i)"),
        ("for i in range(32):", "    n ^= (x >> i) & 1"),
        ("for i in range(32):", "    x = (x >> 1) ^ ((x & 1) * 0x5EB88320)", "n = x"),
        ("for i in range(32):", "    n += (x != 0).to(tl.int32)", "    x = x >> 1"),  # how long the number is
        ("for i in range(32):", "    n += (x >> (i // 2)) & 1"),
        ("for i in range(32):", "    n += x & 1", "    x = tl.where((x & 1) == 1, 3 * x + 1, x >> 1)"),
        ("for i in range(32):", "    n += (tl.load(x_ptr + at + i) >> i) & 1"),
        ("for i in range(8):", "    n += (x >> (i * 4)) & 15"),
        ("for i in tl.static_range(4): n += (x >> i) & 1",),
        ("for i in range(32):", "    n += (x >> i) & 1", "    b += n", "n = b"),
        ("for i in range(32):", "    n += (x >> i) & 1", "    b ^= tl.cos(at * 1.5 * i).to(tl.int32)", "n += b"),
        ("for i in tl.static_range(32): n += (x >> i) & 1; b += n", "n = b"),
        ("for i in tl.static_range(32): n += ((x >> i) & 1) + ((x >> i) & 1)",),
        ("for i in tl.static_range(40): n += n + 1",),  # of 2 ** 40 parts
        ("w = (x[:, None] >> tl.arange(0, 32)[None, :]) & 1", "n = tl.sum(w * tl.load(x_ptr + tl.arange(0, 32)), 1)"),
    ],
)
def test_a_loop_that_does_more_with_bits_than_count(tmp_path, body):
    assert finding(tmp_path, *body) is None


def test_popc_takes_the_words_that_the_advice_gives_it(tmp_path):
    """It has no function for other words than int32 and int64."""
    one = finding(tmp_path, "for i in range(32):", "    n += ((u >> i) & 1).to(tl.int32)")
    assert "a uint32 with .to(tl.int32)" in one.advice
    taken = "n = libdevice.popc(u.to(tl.int32)) + libdevice.popc(x.to(tl.uint8).to(tl.int32) & 0xFF)"
    text = COUNT.replace("BODY", taken)
    assert "bit-loop" not in found(tmp_path, text, f"from triton.language.extra import libdevice{LAUNCH}")
