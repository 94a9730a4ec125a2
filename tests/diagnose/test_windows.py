"""Elements apart of which nothing, or another tap of a window, uses the bytes between; rows that taps shift."""

import pytest

from tests.diagnose.test_severities import found

pytestmark = pytest.mark.kernels

DIAGONAL = """
def diagonal(x, y, rows, columns, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + STORED, tl.load(x + LOADED))
"""


@pytest.mark.parametrize(
    ("loaded", "stored", "grid", "severity"),
    [
        ("i * (rows + columns)", "i", "(16,)", None),
        ("i", "tl.program_id(1) * 16384 + i * (rows + 1)", "(16, 8)", None),
        ("i * rows", "i", "(16,)", None),
        ("i * rows + tl.program_id(1)", "i", "(16,)", None),
        ("i * rows + tl.program_id(1)", "tl.program_id(1) * 16384 + i", "(16, 64)", "medium"),
        ("i * rows + tl.program_id(1) % 64", "tl.program_id(1) * 16384 + i", "(16, 64)", "medium"),
        ("i * 4", "i", "(16,)", "high"),
    ],
    ids=[
        "diagonal",
        "stored",
        "one column",
        "one column by its number",
        "columns",
        "columns by a remainder",
        "a channel",
    ],
)
def test_what_nothing_uses_the_bytes_between_of_is_no_fault(tmp_path, loaded, stored, grid, severity):
    kernel = DIAGONAL.replace("LOADED", loaded).replace("STORED", stored)
    launch = (
        'x = torch.empty(16384, 16384, device="cuda")\ny = torch.empty(1 << 20, device="cuda")\n'
        f"diagonal[{grid}](x, y, x.stride(0), x.stride(1), B=1024)"
    )
    finding = found(tmp_path, kernel, launch).get("uncoalesced-access")
    assert (finding and finding.severity) == severity


POOLED = """
def pooled(x, y, width, K: tl.constexpr, S: tl.constexpr, B: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    for a in range(K):
        for b in range(K):
            acc += tl.load(x + (row * S + a) * width + AT)
    tl.store(y + row * B + column, acc)
"""


@pytest.mark.parametrize(
    ("at", "window", "stride", "is_found"),
    [
        ("column * S + b", 2, 2, False),
        ("column * S + b - 1", 3, 2, False),
        ("column * S + b * 4096", 2, 2, True),
        ("column * S + b", 1, 2, True),
        ("column * S", 3, 2, True),
        ("column * S + b", 4, 8, True),
    ],
    ids=["whole", "overlapping", "far", "one tap", "no tap between", "half of the taps"],
)
def test_taps_that_use_the_bytes_between_make_no_parts_of_records(tmp_path, at, window, stride, is_found):
    launch = (
        'x = torch.empty(4096, 16384, device="cuda")\ny = torch.empty(1 << 20, device="cuda")\n'
        f"pooled[(512,)](x, y, x.stride(0), K={window}, S={stride}, B=128)"
    )
    assert ("uncoalesced-access" in found(tmp_path, POOLED.replace("AT", at), launch)) == is_found


CONVOLVED = """
def convolved(x, w, y, length, C: tl.constexpr, K: tl.constexpr, BO: tl.constexpr, BL: tl.constexpr, BC: tl.constexpr):
    o, at = tl.arange(0, BO), tl.program_id(0) * BL + tl.arange(0, BL)
    acc = tl.zeros((BL, BO), tl.float32)
    for k in range(K):
        for s in range(0, C, BC):
            c = s + tl.arange(0, BC)
            a = tl.load(x + ADDRESS)
            b = tl.load(w + (k * C + c)[:, None] * BO + o[None, :])
            acc = tl.dot(a, b, acc)
    tl.store(y + at[:, None] * BO + o[None, :], acc)
"""


@pytest.mark.parametrize(
    ("address", "window", "narrow"),
    [
        ("c[None, :] * length + (at + k)[:, None]", True, False),
        ("(c // K)[None, :] * length + at[:, None] + (c % K)[None, :] + 1", True, False),
        ("(at + k)[:, None] * C + c[None, :]", False, False),
        ("c[None, :] * length + at[:, None] + 3", False, True),
    ],
    ids=["taps of a loop", "taps of a tile", "channels last", "shifted once"],
)
def test_taps_of_a_convolution_begin_anywhere_unless_channels_are_contiguous(tmp_path, address, window, narrow):
    launch = (
        'x = torch.empty(4096 * 256, device="cuda", dtype=torch.float16)\n'
        'w = torch.empty(1024, 128, device="cuda", dtype=torch.float16)\ny = torch.empty(4096, 128, device="cuda")\n'
        "convolved[(32,)](x, w, y, 4096, C=128, K=4, BO=128, BL=128, BC=64, num_warps=8)"
    )
    findings = found(tmp_path, CONVOLVED.replace("ADDRESS", address), launch)
    assert ("narrow-access" in findings) == narrow
    pipelined = findings.get("loads-not-pipelined")
    assert (pipelined is not None and "because the taps of a window shift them" in pipelined.message) == window
    if window:
        assert pipelined.advice.startswith("keep the tensor with another dimension contiguous, such as the channels")
