"""Bank conflicts by printed layouts, held to what Triton itself counts for the same layouts."""

import pytest
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from kperf.arch import SM_90A
from kperf.diagnose.engine import diagnose
from kperf.diagnose.inputs import of_compiled, read
from kperf.diagnose.rules import bank_conflicts
from kperf.ir.compile import compile_kernel
from kperf.ir.layouts import Layouts, TensorType

pytestmark = pytest.mark.kernels

SIDE = 64
STORED = gl.BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0])
READ = {
    "rows": gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0]),
    "columns": gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1]),
    "vectors": gl.BlockedLayout([1, 8], [32, 1], [1, 4], [1, 0]),
    "tiles": STORED,
}


@gluon.jit
def turn(
    x, SHARED: gl.constexpr, STORED: gl.constexpr, READ: gl.constexpr, SIDE: gl.constexpr, CONFLICTS: gl.constexpr
):
    i, j = gl.arange(0, SIDE, gl.SliceLayout(1, STORED)), gl.arange(0, SIDE, gl.SliceLayout(0, STORED))
    buffer = gl.allocate_shared_memory(x.dtype.element_ty, [SIDE, SIDE], SHARED)
    if CONFLICTS >= 0:
        read: gl.constexpr = gl.distributed_type(x.dtype.element_ty, [SIDE, SIDE], READ)
        gl.static_assert(gl.bank_conflicts(read, buffer.type) == CONFLICTS)
    buffer.store(gl.load(x + i[:, None] * SIDE + j[None, :]))
    turned = buffer.load(READ)
    p, q = gl.arange(0, SIDE, gl.SliceLayout(1, READ)), gl.arange(0, SIDE, gl.SliceLayout(0, READ))
    gl.store(x + p[:, None] * SIDE + q[None, :], turned)


WARP = "#ttg.blocked<{sizePerThread = [1, 1], threadsPerWarp = [8, 4], warpsPerCTA = [1, 1], order = [1, 0]}>"


def ways(shared, read, dtype, conflicts=-1):
    """Of the load of a buffer, as the rule counts them; Triton's front end holds `conflicts` to be right."""
    constants = {"SHARED": shared, "STORED": STORED, "READ": READ[read], "SIDE": SIDE, "CONFLICTS": conflicts}
    compiled = compile_kernel(turn, {"x": f"*{dtype}", **dict.fromkeys(constants, "constexpr")}, constants)
    kernel = of_compiled(compiled, SM_90A)
    (load,) = kernel.named("ttg.local_load")
    line = kernel.finding("", load, "low", "", "", {}).source
    found = [one for one in bank_conflicts.check(kernel) if one.source == line]
    return found[0].evidence["ways"] if found else 1


def tma(width, bits, transposed=False):
    return gl.NVMMASharedLayout(width, bits, 2, transposed)


@pytest.mark.parametrize(
    ("shared", "read", "dtype", "conflicts"),
    [
        (gl.SwizzledSharedLayout(1, 1, 1, [1, 0]), "columns", "fp32", 31),
        (gl.SwizzledSharedLayout(4, 1, 8, [1, 0]), "columns", "fp32", 3),
        (gl.SwizzledSharedLayout(4, 1, 8, [1, 0]), "tiles", "fp16", 3),
        (tma(128, 32), "columns", "fp32", 3),
        (tma(128, 16), "vectors", "fp16", 0),
        (tma(64, 16), "columns", "fp16", 3),
        (tma(32, 32), "rows", "fp32", 3),
        (tma(0, 16), "columns", "fp16", 31),
        (tma(0, 32), "vectors", "fp32", 7),
        (tma(128, 32, transposed=True), "rows", "fp32", 3),
        (tma(128, 32, transposed=True), "columns", "fp32", 0),
    ],
)
def test_the_count_is_tritons(shared, read, dtype, conflicts):
    assert ways(shared, read, dtype, conflicts) == conflicts + 1


@pytest.mark.parametrize(
    ("every", "more", "expected"),
    [(64, 4, 4), (64, 1, 1), (64, 16, 16)],  # rows of 68, 65 and 80 words: 32 rows begin in 8, 32 and 2 banks
)
def test_padded_rows_meet_by_their_length(every, more, expected):
    padded = gl.PaddedSharedLayout.with_identity_for([[every, more]], [SIDE, SIDE], [1, 0])
    assert ways(padded, "columns", "fp32") == expected


def test_offsets_by_bases_are_those_of_the_gluon_documents_example():
    """PaddedSharedLayout: x0y0 x0y1 x0y2 x0y3 x2y0 ... p x4y0 ..., padded by one after every eight."""
    layout = "#ttg.padded_shared<[8:+1] {offset = [[0, 1], [0, 2], [2, 0], [4, 0], [1, 0]], block = []}>"
    shared = TensorType((8, 4), "f32", layout)
    every = Layouts([]).elements(TensorType((8, 4), "f32", WARP))
    offsets = Layouts([]).offsets(shared, every)[0, 0].reshape(8, 4) // 4
    assert offsets[:, 0].tolist() == [0, 18, 4, 22, 9, 27, 13, 31]
    assert (offsets - offsets[:, :1]).tolist() == [[0, 1, 2, 3]] * 8


def test_of_a_part_of_a_buffer_nothing_is_known():
    places = Layouts([]).elements(TensorType((8, 4), "f32", WARP))
    shared = "#ttg.swizzled_shared<{vec = 1, perPhase = 1, maxPhase = 1, order = [1, 0]}>"
    assert Layouts([]).offsets(TensorType((8, 4), "f32", shared, (8, 16)), places) is None
    assert Layouts([]).offsets(TensorType((8, 4), "f32", shared, (3, 8, 4)), places) is not None


MASKED = """
import torch, triton, triton.language as tl

@triton.jit
def masked_sum(x, mask, y, K, ROWS, COLS, sm, B0: tl.constexpr, B1: tl.constexpr):
    r, c = tl.program_id(0) * B0 + tl.arange(0, B0)[:, None], tl.program_id(1) * B1 + tl.arange(0, B1)[None, :]
    inside = (r < ROWS) & (c < COLS)
    total = tl.zeros((B0, B1), tl.float32)
    for k in tl.range(0, K, num_stages=2):
        one = tl.load(x + k * ROWS * COLS + r * COLS + c, mask=inside, other=0.0)
        one = one.to(tl.float32)
        keep = tl.load(mask + k + MASK)
        total += tl.where(keep != 0, one, 0.0)
    tl.store(y + r * COLS + c, total, mask=inside)

x = torch.empty(8, 4096, 4096, device="cuda", dtype=torch.float16)
mask = torch.empty(4096 * 8, device="cuda", dtype=torch.int8)
masked_sum[(64, 32)](x, mask, torch.empty(4096, 4096, device="cuda"), 8, 4096, 4096, 8, 64, 128)
"""


def of_masked(tmp_path, mask):
    script = tmp_path / "masked.py"
    script.write_text(MASKED.replace("MASK", mask))
    (kernel,) = read(str(script), (), SM_90A)
    return {one.id: one for one in diagnose(kernel).findings}


def test_a_tile_that_takes_its_layout_from_repeated_numbers_is_no_finding_of_its_own(tmp_path):
    """Its rows lie in order: to swap its strides changes nothing."""
    found = of_masked(tmp_path, "r * sm + c * 0")
    assert "bank-conflicts" not in found
    one = found["redundant-load"]
    assert one.source.line == 12
    assert one.message.startswith("each iteration loads 64 numbers of mask 128 times each")
    assert one.message.endswith(
        "; the compiler reads the tile of line 11 from shared memory in this tile's layout, in which 32 lanes of a "
        "warp use the same bank, so each access takes 32 turns instead of one"
    )
    assert one.advice.startswith("load each number once, as a row or a column")
    assert (one.severity, one.evidence["ways"]) == ("medium", 32)
    conflicts = 8**0.4, 32.0
    assert (one.estimate.speedup, one.estimate.high) >= conflicts
    assert (one.estimate.speedup, one.estimate.high) <= (1.3 * conflicts[0], 1.7 * conflicts[1])


def test_with_the_numbers_as_a_column_the_conflicts_go(tmp_path):
    assert not {"bank-conflicts", "redundant-load"} & set(of_masked(tmp_path, "r * sm"))


def test_a_tile_whose_layout_another_access_has_too_has_its_own_finding(tmp_path):
    """The mask is a tile of numbers that differ: its own threads lie along its columns."""
    found = of_masked(tmp_path, "r + c * 4096")
    assert "redundant-load" not in found
    assert found["bank-conflicts"].evidence["ways"] >= 4
