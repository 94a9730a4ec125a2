"""Which constexprs are lengths of tiles, by a kernel's source, and what advice makes of it."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.reading.options import halved, scaled
from kperf.diagnose.reading.tile_lengths import TileLengths, tile_lengths
from kperf.ir.locations import Frame

SOURCE = """
from elsewhere import helper, ramp

@triton.jit
def row(x, N, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * STRIDE + tl.arange(0, BLOCK)
    tl.store(x + i, tl.exp(tl.load(x + i, mask=i < COLUMNS)))

@triton.jit
def gemm(a, b, c, K, GROUP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, DEPTH: tl.constexpr):
    m = tl.program_id(0) // GROUP * BM
    p = tl.make_block_ptr(a, (K, K), (K, 1), (m, 0), block_shape=(BM, BK), order=(1, 0))
    q = tl.make_block_ptr(b, (K, DEPTH), (DEPTH, 1), (0, tl.program_id(1) * BN), (BK, BN), (1, 0))
    acc = tl.zeros([BM, BN], tl.float32)
    for k in range(0, K, BK):
        acc += tl.dot(tl.load(p), tl.load(q))
        p, q = tl.advance(p, (0, BK)), tl.advance(q, (BK, 0))

@triton.jit
def cached(x, y, which, N, ROWS: tl.constexpr, D: tl.constexpr, HEAD: tl.constexpr):
    rows, d, h = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, D), tl.arange(0, HEAD)
    tile = tl.load(x + tl.program_id(1) * N * D + rows[:, None] * D + d[None, :])
    tl.store(y + tl.load(which + tl.program_id(0)) * HEAD + tl.program_id(1) * HEAD + h, tl.sum(tile))

@triton.jit
def halves(x, HEADS: tl.constexpr, D: tl.constexpr, WIDE: tl.constexpr):
    half: tl.constexpr = D // 2 if WIDE else D
    tile = tl.zeros((HEADS, half), tl.float32).reshape(HEADS * half)
    tl.store(x + tl.program_id(0) * HEADS * half + tl.arange(0, half), tile)

@triton.jit
def inner(x, start, SIZE: tl.constexpr, SCALE: tl.constexpr):
    return tl.load(x + start * SIZE + tl.arange(0, SIZE)) * SCALE

@triton.jit
def outer(x, FACTOR: tl.constexpr, B: tl.constexpr):
    tl.store(x, tl.sum(inner(x, tl.program_id(0), SIZE=B, SCALE=FACTOR), 0))

@triton.jit
def by_descriptor(desc, out, N, ROWS: tl.constexpr, STEP: tl.constexpr, SCALE: tl.constexpr):
    for start in range(0, N, STEP):
        out.store([tl.program_id(0) * ROWS, start], desc.load([tl.program_id(0) * ROWS, start]) * SCALE)

@triton.jit
def elsewhere(x, COUNT: tl.constexpr, SEEN: tl.constexpr, B: tl.constexpr):
    tile = tl.load(x + tl.program_id(0) * SEEN + ramp(0, B))
    tl.store(x, tl.exp(helper(tile)), mask=tile < COUNT)

@triton.jit
def shaped(x, SCALE: tl.constexpr, B: tl.constexpr):
    tile = tl.load(x + tl.program_id(0) * SCALE + tl.arange(0, B))
    tl.store(x, tl.where(tile > 0, tile, tl.full(tile.shape, 0, tile.dtype)))
"""


@pytest.mark.parametrize(
    ("kernel", "of_ctas", "steps", "others", "bounds"),
    [
        ("row", "", "", "BLOCK", ""),  # it holds the whole row
        ("gemm", "BM BN", "BK", "", "K"),
        ("cached", "ROWS", "", "D HEAD", ""),  # the lengths of rows
        ("halves", "HEADS", "D", "", ""),
        ("outer", "", "B", "", ""),
        ("by_descriptor", "ROWS", "STEP", "", "N"),
        ("elsewhere", "", "B", "", ""),  # a function of another file may make a tile of it
        ("shaped", "", "", "B", ""),
    ],
)
def test_lengths_of_tiles_are_what_the_source_makes_tiles_of(tmp_path, kernel, of_ctas, steps, others, bounds):
    (tmp_path / "kernels.py").write_text(SOURCE)
    line = next(number for number, text in enumerate(SOURCE.splitlines(), 1) if f"def {kernel}(" in text)
    for begin in (line, line - 1):  # Python says that a function begins at its decorator
        lengths = tile_lengths(Frame(str(tmp_path / "kernels.py"), begin))
        assert lengths == TileLengths(
            frozenset(f"{of_ctas} {steps} {others}".split()),
            frozenset(f"{of_ctas} {steps}".split()),
            frozenset(of_ctas.split()),
            frozenset(bounds.split()),
        )


def test_nothing_is_known_of_source_that_cannot_be_read(tmp_path):
    assert tile_lengths(Frame(str(tmp_path / "missing.py"), 3)) is None
    (tmp_path / "broken.py").write_text("def row(:")
    assert tile_lengths(Frame(str(tmp_path / "broken.py"), 1)) is None


SUM = """
import torch, triton, triton.language as tl

@triton.jit
def rows(x, y, COLUMNS: tl.constexpr, STRIDE: tl.constexpr, BLOCK: tl.constexpr, WIDTH: tl.constexpr):
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, COLUMNS, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x + tl.program_id(0) * STRIDE + i, mask=i < COLUMNS, other=0)
    tl.store(y + tl.program_id(0) * WIDTH + tl.arange(0, WIDTH), tl.sum(total, 0))

x = torch.empty(4096, 1024, device="cuda")
rows[(4096,)](x, x, 1024, 1024, 1024, 1024)
"""


@pytest.mark.kernels
@pytest.mark.parametrize("whole", [False, True])
def test_candidates_of_a_tile_change_no_other_constexpr_of_the_same_value(tmp_path, whole):
    (tmp_path / "sum.py").write_text(SUM)
    (kernel,) = inputs.read(str(tmp_path / "sum.py"), (), SM_90A)
    both = [{"BLOCK": 512}, {"WIDTH": 512}, {"BLOCK": 512, "WIDTH": 512}]
    assert scaled(kernel, [1024], 0.5, whole=whole) == both
    assert halved(kernel, [1024]) == "halve the tile: BLOCK=512 or WIDTH=512"
    (tmp_path / "one.py").write_text(SUM.replace("tl.program_id(0) * WIDTH", "tl.program_id(0)"))
    (kernel,) = inputs.read(str(tmp_path / "one.py"), (), SM_90A)
    assert scaled(kernel, [1024], 0.5, whole=whole) == (both if whole else [{"BLOCK": 512}])
    assert halved(kernel, [64]) == "halve the tile"
