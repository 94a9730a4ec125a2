"""Estimates and severities end at what bounds a launch beside the fault: instructions, or device memory."""

import pytest

from tests.diagnose.test_severities import found

pytestmark = pytest.mark.kernels

FEW = """
def few(x, y, n, width, height, B: tl.constexpr):
    i = tl.program_id(0).to(tl.INDEX) * B + tl.arange(0, B)
    tl.store(y + i, WORK)
"""


@pytest.mark.parametrize(
    ("index", "work", "most"),
    [
        ("int32", "tl.load(x + i)", 7),
        ("int32", "tl.load(x + i // width * width + i % width)", 6),
        ("int64", "tl.load(x + i // width % height * width + i % width)", 2),
        (
            "int64",
            "tl.load(x + i // width % height * width + i % width + i // (width * height) % 3 + i // (n // 5))",
            0,
        ),
        ("int32", "tl.sin(tl.sin(tl.load(x + i).to(tl.float32)))", 2.5),
        ("int32", "tl.sin(tl.sin(tl.sin(tl.sin(tl.load(x + i).to(tl.float32)))))", 0),
    ],
    ids=["copy", "one division", "two long divisions", "five long divisions", "two sines", "four sines"],
)
def test_more_bytes_in_flight_give_no_more_than_the_instructions_leave(tmp_path, index, work, most):
    kernel = FEW.replace("INDEX", index).replace("WORK", work)
    launch = (
        'x = torch.empty(1 << 26, device="cuda", dtype=torch.float16)\ny = torch.empty_like(x)\n'
        "few[(1 << 19,)](x, y, 1 << 26, 230, 231, B=128)"
    )
    finding = found(tmp_path, kernel, launch).get("few-bytes-in-flight")
    assert (finding is not None) == bool(most)
    if finding is not None:
        assert most / 2 < finding.estimate.speedup <= most
        assert finding.estimate.speedup <= finding.estimate.high


GRAM = """
def gram(x, y, MEMBERS: tl.constexpr, D: tl.constexpr, B: tl.constexpr):
    which, d = tl.program_id(0), tl.arange(0, D)
    other = OTHER
    acc = tl.zeros((D, D), tl.float32)
    for start in range(0, MEMBERS, B):
        i = start + tl.arange(0, B)
        left = tl.load(x + which * MEMBERS * D + d[:, None] * MEMBERS + i[None, :])
        right = tl.load(x + other * MEMBERS * D + i[:, None] + d[None, :] * MEMBERS)
        acc = tl.dot(left, right, acc)
    tl.store(y + (which * 64 + other % 64) * D * D + d[:, None] * D + d[None, :], acc)
"""


@pytest.mark.parametrize(
    ("other", "grid", "severity"),
    [("which + 4096", "(4096,)", "low"), ("tl.program_id(1)", "(128, 128)", "high")],
    ids=["each tile once", "tiles shared through L2"],
)
def test_larger_tiles_save_nothing_of_what_is_loaded_once(tmp_path, other, grid, severity):
    launch = (
        'x = torch.empty(8192 * 512 * 32, device="cuda", dtype=torch.float16)\n'
        'y = torch.empty(1 << 24, device="cuda")\n'
        f"gram[{grid}](x, y, MEMBERS=512, D=32, B=32, num_warps=1, num_stages=1)"
    )
    findings = found(tmp_path, GRAM.replace("OTHER", other), launch)
    assert findings["small-tile"].severity == severity
    assert findings["loads-not-pipelined"].severity == "low"  # of CTAs of one warp many work while one waits
    assert ("device memory" in findings["small-tile"].message) == (severity == "low")


def test_one_cta_on_an_sm_waits_for_its_loads_although_memory_bounds_the_launch(tmp_path):
    launch = (
        'x = torch.empty(8192 * 512 * 32, device="cuda", dtype=torch.float16)\n'
        'y = torch.empty(1 << 24, device="cuda")\n'
        "gram[(132,)](x, y, MEMBERS=512, D=32, B=32, num_warps=1, num_stages=1)"
    )
    findings = found(tmp_path, GRAM.replace("OTHER", "which + 4096"), launch)
    assert findings["loads-not-pipelined"].severity == "high"


def test_four_numbers_of_a_call_are_other_numbers(tmp_path):
    kernel = "def drop(x, y, B: tl.constexpr):\n    i = tl.program_id(0) * B + tl.arange(0, B)\n"
    kernel += "    tl.store(y + i, tl.where(tl.rand(7, i) > 0.5, tl.load(x + i), 0.0))"
    launch = 'x = torch.empty(1 << 24, device="cuda", dtype=torch.float16)\ndrop[(1 << 14,)](x, x, B=1024)'
    assert "Both draw other numbers from the same seed" in found(tmp_path, kernel, launch)["random-numbers"].advice


def test_one_number_is_no_numbers(tmp_path):
    kernel = "def scaled(x, s, y, n, B: tl.constexpr):\n    i = tl.arange(0, B)\n    acc = tl.zeros((B,), tl.float32)\n"
    kernel += "    for k in range(n):\n        acc += tl.load(x + i + k * B) * tl.load(s + k + i // B)\n"
    kernel += "    tl.store(y + i, acc)"
    launch = 'x = torch.empty(1 << 24, device="cuda")\nscaled[(1,)](x, x, x, 64, B=1024)'
    message = found(tmp_path, kernel, launch)["redundant-load"].message
    assert "each iteration loads 1 number of s 1024 times: " in message
