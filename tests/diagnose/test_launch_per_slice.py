"""The rule `launch-per-slice`: launches of one kernel on slices of the same tensors, one after another."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose

pytestmark = pytest.mark.kernels

SCALE = """
import torch, triton, triton.language as tl

@triton.jit
def scale(x, out, weight, row, N: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    {begin}
    tl.store(out + i, tl.load(x + i) * tl.load(weight + i % N))

@triton.jit
def other(x):
    tl.store(x, 1.0)

n, rows = 1 << 16, 64
x = torch.rand(rows, n, device="cuda")
out, weight = torch.empty_like(x), torch.rand(n, device="cuda")
def launch(x, out, row=0, n=n, weight=weight):
    scale[(n // 1024,)](x, out, weight, row, 1 << 16, 1024)
{launches}
"""


def found(tmp_path, launches, begin="", kernel=SCALE):
    script = tmp_path / "it.py"
    script.write_text(kernel.format(launches=launches, begin=begin))
    every = [one for kernel in inputs.read(str(script), (), SM_90A) for one in diagnose(kernel).findings]
    return [one for one in every if one.id == "launch-per-slice"]


@pytest.mark.parametrize(
    ("launches", "begin", "moves"),
    [
        ("for row in range(rows): launch(x[row], out[row])", "", "x += tl.program_id(1) * 65536; out += tl.program_id"),
        ("[launch(*both) for both in zip(x.unbind(), out.unbind())]", "", "x += tl.program_id(1) * 65536; out += "),
        ("for row in range(rows): launch(x[row], x[row])", "", "x += tl.program_id(1) * 65536; out += "),
        ("for row in reversed(range(rows)): launch(x[row], out[row])", "", "x += tl.program_id(1) * -65536"),
        ("for row in range(rows): launch(x, out, row)", "i += row * N", "row += tl.program_id(1)"),
        ("for row in range(rows): launch(x, out[row], row)", "x += row * N", "out += tl.program_id(1) * 65536; row +="),
        ("[launch(x[row], out[row]) for _ in range(3) for row in range(rows)]", "", "x += tl.program_id(1) * 65536"),
    ],
)
def test_launches_for_each_slice_could_be_one(tmp_path, launches, begin, moves):
    for one in found(tmp_path, launches, begin) or pytest.fail("nothing is found"):
        assert (one.severity, one.source.line, one.evidence["launches"]) == ("high", 5, 64)
        assert moves in one.advice
        assert "second axis of the grid that is 64 long" in one.advice


def test_the_estimate_compares_launches_with_bytes(tmp_path):
    (one,) = found(tmp_path, "for row in range(rows): launch(x[row], out[row])")
    assert one.message.startswith(
        "64 launches, one after another, do the same for other slices (they differ in out, x alone): a launch has work"
    )
    all_bytes, launch = 64 * 12 * 2**16, 4e-6
    assert one.estimate.speedup == pytest.approx(64 * launch / (launch + all_bytes / 4.8e12), rel=0.1)


@pytest.mark.parametrize(
    ("launches", "begin"),
    [
        ("for _ in range(rows): launch(x[0], out[0])", ""),  # a benchmark
        ("for row in range(3): launch(x[row], out[row])", ""),
        ("for row in range(rows - 1): launch(x[row], x[row + 1])", ""),  # each loads what the last one stored
        ("for row in range(rows): launch(x[row], out[0])", ""),  # all store the same elements
        ("for row in range(rows): launch(x, x, row)", "i += row * N"),
        ("for row in range(rows): launch(x[row], out[row], weight=out[0])", ""),
        ("for row in range(rows): launch(x[row], out[row]); other[(1,)](out)", ""),
        ("for row in range(rows): launch(x[row], out[row]); out[row].add_(1)", ""),
        ("for row in (0, 1, 4, 9, 16, 25, 36, 49): launch(x[row], out[row])", ""),
        ("for row in range(rows): launch(x.flatten()[row:], out.flatten()[row:])", ""),
        ("for one in [torch.rand(n, device='cuda') for _ in range(rows)]: launch(one, one)", ""),
        ("for row in range(rows): launch(x[row], out[row], n=n - 1024 * row)", ""),
        ("for row in range(rows): x, out = torch.empty(2, rows, n, device='cuda'); launch(x[row], out[row])", ""),
        ("big = torch.empty(2, 8, 1 << 25, device='cuda')\nfor row in range(8): launch(*big[:, row], n=1 << 25)", ""),
    ],
)  # fmt: skip
def test_launches_that_wait_for_each_other_or_are_large_are_none(tmp_path, launches, begin):
    assert found(tmp_path, launches, begin) == []


COLUMNS = """
import torch, triton, triton.language as tl

@triton.jit
def walk(x, out, n, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    for start in range(0, {end}, BLOCK):
        tl.store(out + (start + i) * STRIDE, tl.sqrt(tl.load(x + (start + i) * STRIDE)))

x, out = torch.rand(2, 1 << 12, 16, device="cuda")
for column in range(16):
    walk[(1,)](x[:, column], {out}, 1 << 12, 16, 1024)
"""


@pytest.mark.parametrize(("out", "end", "count"), [
    ("out[:, column]", "n", 1), ("x[:, column]", "n", 1),
    ("out.flatten()[column:]", "n", 0),  # it may store any of the elements that the next one stores
    ("out[:, column]", "tl.load(x).to(tl.int32)", 0),  # how long a launch takes is not known
])  # fmt: skip
def test_columns_are_slices_too(tmp_path, out, end, count):
    script = tmp_path / "it.py"
    script.write_text(COLUMNS.format(out=out, end=end))
    every = [one for kernel in inputs.read(str(script), (), SM_90A) for one in diagnose(kernel).findings]
    slices = [one for one in every if one.id == "launch-per-slice"]
    assert len(slices) == count
    assert all("x += tl.program_id(1); out += tl.program_id(1)" in one.advice for one in slices)
