"""What CTAs that run at the same time share: the order of programs, and split-K. The estimates by hand, and silence."""

from dataclasses import replace

import numpy as np
import pytest

from kperf.arch import H200, H200_COPY_GB_PER_S, H200_L2_KEPT_BYTES, SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.analyses.different_rows import different
from kperf.diagnose.analyses.waits import cycles_beside_loops
from kperf.diagnose.analyses.waves import schedule_of, traffic
from kperf.diagnose.engine import FAILED, diagnose
from kperf.diagnose.thresholds import LAUNCH_MS, MMA_SHARE
from tests.diagnose.test_kernels import KERNELS

pytestmark = pytest.mark.kernels

HEAD = """
import torch, triton, triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

def bf16(*shape):
    return torch.empty(*shape, device="cuda", dtype=torch.bfloat16)

"""
GEMM = """
@triton.jit
def gemm(x, w, out, table, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    ORDER
    rm, rn, rk = pid_m * BM + tl.arange(0, BM), pid_n * BN + tl.arange(0, BN), tl.arange(0, BK)
    x_ptrs, w_ptrs = x + rm[:, None] * K + rk[None, :], w + rn[None, :] * K + rk[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(x_ptrs), tl.load(w_ptrs), acc)
        x_ptrs += BK
        w_ptrs += BK
    tl.store(out + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))

m, n, k = SHAPE
table = torch.empty(1 << 20, device="cuda", dtype=torch.int32)
gemm[GRID](bf16(m, k), bf16(n, k), bf16(m, n), table, n, k, 128, 128, 64, num_warps=4, num_stages=4)
"""
WIDE, LARGE, SMALL = "4096, 131072, 2048", "32768, 32768, 4096", "2048, 4096, 1024"
FLAT, TILES = "(m // 128 * (n // 128),)", "(n // 128, m // 128)"
ROWS = "pid_m, pid_n = tl.program_id(0) // tiles_n, tl.program_id(0) % tiles_n"
COLUMNS = """pid, tiles_m = tl.program_id(0), tl.num_programs(0) // tiles_n
    pid_m, pid_n = pid % tiles_m, pid // tiles_m"""
SWIZZLE = f"{ROWS}; pid_m, pid_n = tl.swizzle2d(pid_m, pid_n, tl.num_programs(0) // tiles_n, tiles_n, 8)"
GROUPED = """pid, width = tl.program_id(0), 8 * tiles_n
    first = pid // width * 8
    size = min(tl.num_programs(0) // tiles_n - first, 8)
    pid_m, pid_n = first + pid % width % size, pid % width // size"""
AXES = "pid_n, pid_m = tl.program_id(0), tl.program_id(1)"
BRANCH = """pid_m, pid_n = tl.program_id(1), tl.program_id(0)
    if BN > K: pid_n += 1
    if pid_m % 2 == 1: pid_n = tiles_n - 1 - pid_n"""
LOADED = "pid_m, pid_n = tl.program_id(1), tl.load(table + tl.program_id(0))"
SHARED, PANEL = 132, 128 * 2048 * 2
CYCLES = 2 * 128 * 128 * 64 / SM_90A.flop_per_cycle["bf16"] / MMA_SHARE
"""Of an SM for an iteration of 128 x 128 x 64."""


def read(folder, source):
    script = folder / "script.py"
    script.write_text(HEAD + source)
    (kernel,) = inputs.read(str(script), (), SM_90A)
    return kernel


def found(folder, source, rule="program-order"):
    diagnosis = diagnose(read(folder, source))
    assert not [name for name, why in diagnosis.skipped.items() if FAILED in why]
    return next((one for one in diagnosis.findings if one.id == rule), None)


def gemm(order, shape, grid=FLAT):
    return GEMM.replace("ORDER", order).replace("SHAPE", shape).replace("GRID", grid)


def line_of(source, text):
    return next(number for number, line in enumerate((HEAD + source).splitlines(), 1) if text in line)


def test_rows_of_a_wide_product_load_its_weights_again_and_again(tmp_path):
    source = gemm(ROWS, WIDE)
    one = found(tmp_path, source)
    assert (one.severity, one.source.line) == ("medium", line_of(source, "pid_m, pid_n ="))
    # 249 waves of 132 CTAs: each a tile of w of its own, and one row of x, or two where one of the 32 rows ends.
    moved = (32768 + 249 + 31) * PANEL
    least = (1024 + 32) * PANEL  # a wave has all rows of x, which stay in L2
    assert one.evidence == {
        "moved_gb": pytest.approx(moved / 1e9, abs=1e-4), "least_gb": pytest.approx(least / 1e9, abs=1e-4),
        "waves": 249, "ctas_at_once": SHARED, "group": 1,
    }  # fmt: skip
    computed = 249 * 32 * CYCLES / (H200.max_mhz * 1e6)
    memory = (moved + 4096 * 131072 * 2) / (H200_COPY_GB_PER_S * 1e9)
    assert memory > computed
    assert one.estimate.speedup == pytest.approx(memory / computed, rel=1e-6)
    assert (one.estimate.low, one.estimate.high) == (1.0, 4.0)
    assert "let consecutive programs load the same tile of w: swap the axes of the grid" in one.advice


@pytest.mark.parametrize(
    ("order", "shape", "grid", "advice"),
    [
        (AXES, WIDE, TILES, "load the same tile of w: swap"),
        (BRANCH, WIDE, TILES, "load the same tile of w: swap"),
        (COLUMNS, "131072, 4096, 2048", FLAT, "load the same tile of x: swap"),
        (ROWS, LARGE, FLAT, "GROUP_SIZE_M=16: 16 consecutive programs load 16 tiles of x and the same tile of w"),
        (COLUMNS, LARGE, FLAT, "GROUP_SIZE_M=16"),
        (ROWS, "8192, 131072, 2048", FLAT, "load the same tile of w: swap"),  # groups load less, and are no faster
        (COLUMNS, "65536, 12288, 4096", FLAT, "in groups, as"),  # rows are faster, and groups faster still
        (COLUMNS, WIDE, FLAT, None),
        (GROUPED, WIDE, FLAT, None),
        (GROUPED, LARGE, FLAT, None),
        (SWIZZLE, LARGE, FLAT, None),
        (ROWS, SMALL, FLAT, None),
        (ROWS, "8192, 8192, 8192", FLAT, None),
        (LOADED, WIDE, TILES, None),
    ],
)
def test_an_order_is_compared_with_rows_columns_and_groups(tmp_path, order, shape, grid, advice):
    one = found(tmp_path, gemm(order, shape, grid))
    assert (one is not None) == (advice is not None)
    assert one is None or advice in one.advice


def test_of_a_grid_with_axes_the_line_is_that_of_the_program_id(tmp_path):
    source = gemm(AXES, WIDE, TILES)
    assert found(tmp_path, source).source.line == line_of(source, "tl.program_id(0)")


def test_windows_that_overlap_are_not_counted_as_different_bytes(tmp_path):
    source = gemm(ROWS, LARGE)
    assert found(tmp_path, source) is not None
    windows = source.replace("range(0, K, BK)", "range(0, 4 * K, BK)").replace("_ptrs += BK", "_ptrs += BK // 4")
    assert found(tmp_path, windows) is None


def test_windows_that_are_loaded_one_by_one_overlap_too(tmp_path):
    source = gemm(ROWS, LARGE)
    steps = "for j in tl.static_range(4):\n            acc = tl.dot(tl.load(x_ptrs + AT), tl.load(w_ptrs + AT), acc)"
    unrolled = source.replace("acc = tl.dot(tl.load(x_ptrs), tl.load(w_ptrs), acc)", steps)
    unrolled = unrolled.replace("num_stages=4", "num_stages=1")
    windows = unrolled.replace("+ AT", "+ j * BK")
    parts = windows.replace("range(0, K, BK)", "range(0, K, 4 * BK)").replace("_ptrs += BK", "_ptrs += 4 * BK")
    assert "GROUP_SIZE_M=" in found(tmp_path, parts).advice
    assert found(tmp_path, windows) is None


JAGGED = """
@triton.jit
def covariances(x, y, out, ends, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    group, rows, cols = tl.program_id(GROUP), tl.program_id(ROWS), tl.program_id(COLS)
    begin = tl.load(ends + group - 1, mask=group > 0, other=0)
    end = tl.load(ends + group)
    i, j = rows * BLOCK + tl.arange(0, BLOCK), cols * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for at in range(begin, end, 32):
        k = at + tl.arange(0, 32)
        left = tl.load(x + k[None, :] * WIDTH + i[:, None], mask=k[None, :] < end, other=0.0)
        acc = tl.dot(left, tl.load(y + k[:, None] * WIDTH + j[None, :], mask=k[:, None] < end, other=0.0), acc)
    tl.store(out + group * WIDTH * WIDTH + i[:, None] * WIDTH + j[None, :], acc.to(tl.bfloat16))

samples, groups, tiles = SAMPLES, 200, 1024 // 128
ends = torch.arange(samples // groups, samples + 1, samples // groups, device="cuda", dtype=torch.int32)
covariances[GRID](bf16(samples, 1024), bf16(samples, 1024), bf16(groups, 1024, 1024), ends, 1024, 128)
"""


def jagged(axes, grid, samples=200_000):
    source = JAGGED.replace("GRID", grid).replace("SAMPLES", str(samples))
    for name, axis in zip(("GROUP", "ROWS", "COLS"), axes, strict=True):
        source = source.replace(f"({name})", f"({axis})")
    return source


def test_groups_of_rows_between_offsets_in_memory_are_taken_to_have_equal_parts(tmp_path):
    """The 8 x 8 CTAs of a group read 2 x 2 MB of it: with all groups at once L2 keeps nothing for the next wave."""
    source = jagged((0, 1, 2), "(groups, tiles, tiles)")
    one = found(tmp_path, source)
    assert (one.severity, one.source.line) == ("high", line_of(source, "group, rows, cols ="))
    part = 200_000 // 200 * 128 * 2
    wave = one.evidence["ctas_at_once"]
    waves = -(-200 * 64 // wave)
    assert one.evidence["least_gb"] == pytest.approx(2 * 200 * 8 * part / 1e9, abs=0.02)
    assert 200 * 64 * part / 1e9 < one.evidence["moved_gb"] < (200 * 64 + (wave + 200) * waves) * part / 1e9
    assert "if the offsets that it reads part the rows evenly" in one.message


@pytest.mark.parametrize(
    ("axes", "grid", "samples"),
    [
        ((2, 1, 0), "(tiles, tiles, groups)", 200_000),
        ((0, 1, 2), "(groups, tiles, tiles)", 10_000),  # both tensors stay in L2
        ((0, 1, 2), "(groups, 1, 1)", 200_000),  # no CTA reads what another one does
    ],
)
def test_groups_that_share_their_rows_at_the_same_time_are_in_order(tmp_path, axes, grid, samples):
    assert found(tmp_path, jagged(axes, grid, samples)) is None


def test_a_launch_that_sums_nothing_has_no_order(tmp_path):
    assert schedule_of(read(tmp_path, split("4096, 4096, 0, 4"))) is None


def test_a_load_that_all_ctas_share_does_not_hide_the_others(tmp_path):
    source = gemm(ROWS, LARGE)
    code = "tl.load(table + rk[:, None] * 128 + tl.arange(0, BN)[None, :] + step * 64)"
    both = f"tl.load(w_ptrs) + {code}.to(tl.bfloat16),"
    source = source.replace("for _ in", "for step in").replace("tl.load(w_ptrs),", both)
    assert "GROUP_SIZE_M=16" in found(tmp_path, source).advice


PERSISTENT = """
@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SMS: tl.constexpr):
    MADE
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, SMS, OPTION):
        pid_m, pid_n = TILE
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(a.load([pid_m * BM, k]), b.load([pid_n * BN, k]).T, acc)
        c.store([pid_m * BM, pid_n * BN], acc.to(tl.bfloat16))

m, n, k = 4096, 131072, 2048
triton.set_allocator(lambda size, _align, _stream: torch.empty(size, device="cuda", dtype=torch.int8))
a, b, c = bf16(m, k), bf16(n, k), bf16(m, n)
DESCRIPTORS
gemm[(132,)](a, b, c, m, n, k, 128, 128, 64, 132, num_warps=4, num_stages=3)
"""
ON_THE_HOST = (
    """a, b, c = (TensorDescriptor.from_tensor(t, [128, length]) for t, length in ((a, 64), (b, 64), (c, 128)))"""
)
IN_THE_KERNEL = """a = tl.make_tensor_descriptor(a, [M, K], [K, 1], [BM, BK])
    b = tl.make_tensor_descriptor(b, [N, K], [K, 1], [BN, BK])
    c = tl.make_tensor_descriptor(c, [M, N], [N, 1], [BM, BN])"""


@pytest.mark.parametrize(
    ("made", "descriptors", "option"),
    [("pass", ON_THE_HOST, "num_stages=None"), (IN_THE_KERNEL, "", "num_stages=None"),
     (IN_THE_KERNEL, "", "warp_specialize=True")],
    ids=["descriptors of the host", "of the kernel", "warp-specialised"],
)  # fmt: skip
@pytest.mark.parametrize(
    ("tile", "is_found"),
    [("tile // tiles_n, tile % tiles_n", True), ("tile % tiles_m, tile // tiles_m", False)],
    ids=["rows", "columns"],
)
def test_tiles_of_a_persistent_kernel_are_its_ctas(tmp_path, made, descriptors, option, tile, is_found):
    source = PERSISTENT.replace("MADE", made).replace("OPTION", option).replace("TILE", tile)
    source = source.replace("DESCRIPTORS", descriptors)
    one = found(tmp_path, source)
    assert (one is not None) == is_found
    if one is not None:
        assert (one.evidence["waves"], one.evidence["ctas_at_once"]) == (249, 132)
        assert one.evidence["moved_gb"] == pytest.approx((32768 + 249 + 31) * PANEL / 1e9, abs=1e-4)
        assert one.source.line == line_of(source, "pid_m, pid_n =")


def test_a_coordinate_that_is_loaded_is_not_known(tmp_path):
    known = PERSISTENT.replace("MADE", "pass").replace("OPTION", "num_stages=None")
    known = known.replace("DESCRIPTORS", ON_THE_HOST).replace("TILE", "tile // tiles_n, tile % tiles_n")
    assert found(tmp_path, known) is not None
    loaded = known.replace("(a, b, c, M,", "(a, b, c, table, M,").replace("(a, b, c, m,", "(a, b, c, table, m,")
    loaded = loaded.replace("a.load([pid_m * BM, k])", "a.load([tl.load(table + pid_m) * BM, k])")
    loaded = loaded.replace("m, n, k = ", "table = torch.empty(4096, device='cuda', dtype=torch.int32)\nm, n, k = ", 1)
    assert found(tmp_path, loaded) is None


BLOCKS = """
@triton.jit
def gemm(x, w, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid_n, pid_m = tl.program_id(0), tl.program_id(1)
    a = tl.make_block_ptr(x, (M, K), (K, 1), (pid_m * BM, 0), (BM, BK), (1, 0))
    b = tl.make_block_ptr(w, (K, N), (1, K), (0, pid_n * BN), (BK, BN), (0, 1))
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(a), tl.load(b), acc)
        a, b = tl.advance(a, (0, BK)), tl.advance(b, (BK, 0))
    c = tl.make_block_ptr(out, (M, N), (N, 1), (pid_m * BM, pid_n * BN), (BM, BN), (1, 0))
    tl.store(c, acc.to(tl.bfloat16))

m, n, k = 4096, 131072, 2048
gemm[(n // 128, m // 128)](bf16(m, k), bf16(n, k), bf16(m, n), m, n, k, 128, 128, 64, num_warps=4, num_stages=4)
"""


def test_block_pointers_are_read_as_others(tmp_path):
    one = found(tmp_path, BLOCKS)
    assert one.evidence["moved_gb"] == pytest.approx((32768 + 249 + 31) * PANEL / 1e9, abs=1e-4)


HEADS = """
@triton.jit
def attention(q, k, v, out, stride, n, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    head, block, dims = tl.program_id(AXIS) * stride, tl.program_id(1 - AXIS), tl.arange(0, D)
    rows = block * BM + tl.arange(0, BM)
    x = tl.load(q + head + rows[:, None] * D + dims[None, :])
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, n, BN):
        cols = start + tl.arange(0, BN)
        s = tl.dot(x, tl.trans(tl.load(k + head + cols[:, None] * D + dims[None, :])))
        acc = tl.dot(s.to(tl.bfloat16), tl.load(v + head + cols[:, None] * D + dims[None, :]), acc)
    tl.store(out + head + rows[:, None] * D + dims[None, :], acc.to(tl.bfloat16))

h, n, d = 2048, 4096, 64
attention[GRID](*(bf16(h, n, d) for _ in range(4)), n * d, n, d, 64, 64)
"""


@pytest.mark.parametrize(("axis", "grid"), [("0", "(h, n // 64)"), ("1", "(n // 64, h)")], ids=["heads", "blocks"])
def test_ctas_of_one_head_run_together(tmp_path, axis, grid):
    one = found(tmp_path, HEADS.replace("AXIS", axis).replace("GRID", grid))
    assert (one is not None) == (axis == "0")
    if one is not None:
        assert (one.severity, one.evidence["group"]) == ("high", 1)
        assert one.evidence["least_gb"] == pytest.approx(2 * 2048 * 4096 * 64 * 2 / 1e9, abs=1e-4)  # k and v, once


def test_loops_before_and_at_the_diagonal_may_sweep_the_same_tensor(tmp_path):
    before, loop, after = HEADS.partition(HEADS[HEADS.index("    for start") : HEADS.index("    tl.store")])
    both = loop.replace("(0, n", "(0, block * BM") + loop.replace("(0, n", "(block * BM, (block + 1) * BM")
    source = f"{before}{both}{after}".replace("AXIS", "0").replace("GRID", "(h, n // 64)")
    assert found(tmp_path, source).severity == "high"


BATCH = """
@triton.jit
def bmm(x, w, out, n, BM: tl.constexpr, BK: tl.constexpr):
    batch, rows, k = tl.program_id(0) * n * n, tl.arange(0, BM), tl.arange(0, BK)
    acc = tl.zeros((BM, BM), tl.float32)
    for start in range(0, n, BK):
        a = tl.load(x + batch + rows[:, None] * n + (start + k)[None, :])
        acc = tl.dot(a, tl.load(w + batch + (start + k)[:, None] * n + rows[None, :]), acc)
    tl.store(out + batch + rows[:, None] * n + rows[None, :], acc.to(tl.bfloat16))

bmm[(8192,)](*(bf16(8192, 128, 128) for _ in range(3)), 128, 128, 32)
"""
ADD = """
@triton.jit
def add(x, y, out, n, BM: tl.constexpr, BN: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    for start in range(0, n, BN):
        i = rows[:, None] * n + (start + tl.arange(0, BN))[None, :]
        tl.store(out + i, tl.load(x + i) + tl.load(y + i))

add[(65536,)](*(bf16(65536 * 4, 4096) for _ in range(3)), 4096, 4, 256)
"""


@pytest.mark.parametrize("source", [BATCH, ADD], ids=["batch", "elementwise"])
def test_ctas_that_share_nothing_may_run_in_any_order(tmp_path, source):
    schedule = schedule_of(read(tmp_path, source))
    assert len(schedule.waves) > 2
    assert schedule.memory_cycles(schedule.traffic()) > 1.1 * schedule.compute_cycles
    assert found(tmp_path, source) is None


MAPS = """
@triton.jit
def scale(x, gain, out, order, n, FRAMES: tl.constexpr, BLOCK: tl.constexpr):
    TILE
    at = tl.arange(0, BLOCK)
    i = FIRST + at
    g = tl.load(gain + i, mask=i < n)
    tl.store(out + frame * n + i, tl.load(x + frame * n + i, mask=i < n) * g, mask=i < n)

n, frames = SIZES
x, gain = bf16(frames, n), torch.empty(n, device="cuda")
order = torch.empty(frames, device="cuda", dtype=torch.int32)
scale[GRID](x, gain, torch.empty_like(x), order, n, FRAMES=frames, BLOCK=1024)
"""
OF_AXES = "pixels, frame = tl.program_id(0), tl.program_id(1)"
OF_FRAMES = "pid, parts = tl.program_id(0), tl.cdiv(n, BLOCK); frame, pixels = pid // parts, pid % parts"
OF_PIXELS = "pid = tl.program_id(0); frame, pixels = pid % FRAMES, pid // FRAMES"
OF_DATA = "pixels, frame = tl.program_id(0), tl.load(order + tl.program_id(1))"
PLANE, LINE = "(triton.cdiv(n, 1024), frames)", "(triton.cdiv(n, 1024) * frames,)"


def maps(tile, grid, pixels=1 << 24, frames=16, first="pixels * BLOCK"):
    source = MAPS.replace("TILE", tile).replace("FIRST", first).replace("GRID", grid)
    return source.replace("SIZES", f"{pixels}, {frames}")


@pytest.mark.parametrize(("tile", "grid"), [(OF_AXES, PLANE), (OF_FRAMES, LINE)], ids=["axes", "division"])
def test_maps_that_each_frame_loads_again_come_from_memory_each_time(tmp_path, tile, grid):
    source = maps(tile, grid)
    one = found(tmp_path, source)
    assert (one.severity, one.source.line) == ("high", line_of(source, "tl.program_id(0)"))
    n = 1 << 24
    moved, least = 16 * (2 + 4) * n, (16 * 2 + 4) * n  # a wave of one frame, whose maps L2 drops before the next frame
    assert one.evidence["moved_gb"] == pytest.approx(moved / 1e9, abs=1e-4)
    assert one.evidence["least_gb"] == pytest.approx(least / 1e9, rel=0.01)  # a group of frames may lie in two waves
    stored = 16 * 2 * n
    assert one.estimate.speedup == pytest.approx((moved + stored) / (least + stored), rel=0.01)
    assert "share few tiles of gain, so" in one.message
    assert one.advice.endswith("or let one program do what these programs do, in a loop behind the load")


@pytest.mark.parametrize(
    "source",
    [
        maps(OF_PIXELS, LINE),
        maps(OF_AXES, PLANE, pixels=1 << 20, frames=64),
        maps(OF_AXES, PLANE, pixels=6 << 20),
        maps(OF_AXES, PLANE, first="frame * n + pixels * BLOCK"),
        maps(OF_DATA, PLANE),
    ],
    ids=[
        "frames are next to each other",
        "L2 keeps the map",
        "and a larger one",
        "a map for each frame",
        "data says which frame",
    ],
)
def test_maps_that_come_from_memory_once_have_no_better_order(tmp_path, source):
    assert found(tmp_path, source) is None


def test_taps_of_a_stencil_overlap_without_a_loop_too(tmp_path):
    tap = "tl.load(gain + i, mask=i < n)"
    assert found(tmp_path, maps(OF_AXES, PLANE).replace(tap, f"{tap} - tl.load(gain + i + 1, mask=i + 1 < n)")) is None


def test_l2_keeps_what_was_used_last():
    half = H200_L2_KEPT_BYTES // 2
    sizes = np.array([half, half, half, 3 * half])
    waves = [np.array(wave) for wave in ([0], [1], [0], [2], [0], [1], [3], [3])]
    # 1 goes when 2 comes, since 0 was used after it; 3 is larger than L2, and nothing of it is kept.
    assert traffic(waves, sizes) == (1 + 1 + 0 + 1 + 0 + 1 + 3 + 3) * half


@pytest.mark.parametrize(("ctas", "waves"), [(1, 1), (200, 1), (20 * 132, 1), (40 * 132, 2)])
def test_ctas_that_all_run_at_once_are_one_wave(ctas, waves):
    """20 CTAs of this kernel fit on an SM. Beside its loop, each has its wave's share of what a launch takes."""
    (kernel,) = inputs.read(str(KERNELS / "clean/second_order_pool.py"), (), SM_90A)
    few, endless = (cycles_beside_loops(replace(kernel, grid=(count, 1, 1))) for count in (ctas, 1 << 40))
    assert few - endless == pytest.approx(LAUNCH_MS * 1e3 * H200.max_mhz / waves, rel=1e-3)


@pytest.mark.parametrize("shape", [(1, 3), (1000, 1), (1000, 3)])
@pytest.mark.parametrize("most", [1, 7, 1 << 40])
def test_rows_are_told_apart_by_all_columns(shape, most):
    rows = np.random.default_rng(0).integers(0, most, shape)
    _, first, inverse = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    found, which = different(rows.T, len(rows))
    assert found.tolist() == first.tolist()
    assert which.tolist() == inverse.reshape(-1).tolist()


SPLIT = """
@triton.jit
def gemm(a, b, c, N, K, SPLIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.program_id(2) * PART + tl.arange(0, BK)
    a_ptrs, b_ptrs = a + rm[:, None] * K + rk[None, :], b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K // SPLIT, BK):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += STEP
        b_ptrs += STEP * N
    tl.atomic_add(c + OUT + rm[:, None] * N + rn[None, :], acc, sem="relaxed")

m, n, k, parts = SHAPE
c = torch.zeros(16, m, n, device="cuda")
gemm[(m // 128, n // 128, parts)](bf16(m, k), bf16(k, n), c, n, k, parts, 128, 128, 64, num_warps=4, num_stages=STAGES)
"""
DIAGONAL = "tl.where((tl.program_id(0) > 0) & (tl.program_id(1) > 0), -128 * N - 128, 0)"
STRIDED, WHOLE = ("BK", "BK * SPLIT"), ("(K // SPLIT)", "BK")


def split(shape, part=STRIDED, out="0", stages=4):
    source = SPLIT.replace("PART", part[0]).replace("STEP", part[1]).replace("OUT", out)
    return source.replace("SHAPE", shape).replace("STAGES", str(stages))


@pytest.mark.parametrize("part", [STRIDED, WHOLE], ids=["strided", "whole"])
def test_tiles_that_fill_the_gpu_need_no_split(tmp_path, part):
    source = split("4096, 4096, 4096, 8", part)
    one = found(tmp_path, source, "needless-split-k")
    assert (one.severity, one.source.line) == ("medium", line_of(source, "tl.atomic_add"))
    assert one.evidence == {"tiles": 1024, "parts": 8, "advised": 1, "iterations": 8, "ctas_at_once": 132}
    size, latency = 128 * 128 * 4, H200.l2_latency
    now = 63 * (8 * CYCLES + size / 25) + 63 * latency  # 8192 CTAs are 62.06 for each SM
    then = 8 * (64 * CYCLES + size / H200.l2_bytes_per_cycle) + 8 * latency
    cleared = 4096 * 4096 * 4 / (H200_COPY_GB_PER_S * 1e3 / H200.max_mhz)
    assert one.estimate.speedup == pytest.approx(now / then, rel=1e-6)
    assert (one.estimate.low, one.estimate.high) == (1.0, pytest.approx(1.7 * (now + cleared) / then, rel=1e-6))
    assert "write its tile with tl.store" in one.advice


@pytest.mark.parametrize("splits", ["SPLIT: tl.constexpr", "SPLIT"], ids=["compiled", "at run time"])
@pytest.mark.parametrize(
    ("condition", "is_found"),
    [("SPLIT > 1", True), ("not SPLIT == 1", True), ("tl.program_id(2) > 0", False), ("tl.load(c) < 1", False)],
)
def test_parts_are_added_where_all_ctas_take_that_branch(tmp_path, splits, condition, is_found):
    always = split("4096, 4096, 4096, 8").replace("SPLIT: tl.constexpr", splits)
    before, _, added = always.partition("    tl.atomic_add(")
    added, rest = added.split("\n", 1)
    stored = added.replace(', sem="relaxed"', "")
    branch = f"    if {condition}:\n        tl.atomic_add({added}\n    else:\n        tl.store({stored}\n"
    one, other = (found(tmp_path, source, "needless-split-k") for source in (f"{before}{branch}{rest}", always))
    assert (one is not None) == is_found
    if one is not None:
        assert (one.evidence, one.estimate) == (other.evidence, other.estimate)


def test_atomics_on_more_than_l2_read_and_write_device_memory(tmp_path):
    source = split("8192, 8192, 1024, 4")
    one, schedule = found(tmp_path, source, "needless-split-k"), schedule_of(read(tmp_path, source))
    output = 8192 * 8192 * 4
    rate = H200_COPY_GB_PER_S * 1e3 / H200.max_mhz
    now = (schedule.traffic() + 4 * 2 * output) / rate  # a wave of each part has other tiles than the one before
    then = 32 * (16 * CYCLES + 128 * 128 * 4 / H200.l2_bytes_per_cycle) + 32 * H200.l2_latency
    assert one.estimate.speedup == pytest.approx(now / then, rel=1e-6)


@pytest.mark.parametrize(
    ("source", "advised"),
    [
        (split("1024, 1024, 16384, 16"), 4),  # 64 tiles: four parts of each fill 132 SMs
        (split("1024, 1024, 16384, 4"), None),
        (split("512, 512, 65536, 16"), None),
        (split("1536, 1536, 8192, 4"), None),  # 144 tiles are two waves, 576 parts five of a quarter's length
        (split("4096, 4096, 4096, 8", out="tl.program_id(2) * N * N"), None),
        (split("4096, 4096, 4096, 1"), None),
        (split("4096, 4096, 4096, 8", part=("0", "BK")), None),  # each part is the same one
        (split("4096, 4096, 4096, 8", out=DIAGONAL), None),  # tiles of the first row and column have 16
        (split("4096, 4096, 4096, 8").replace("    tl.atomic", "        tl.atomic"), None),
    ],
    ids=[
        "too many",
        "few tiles",
        "fewer",
        "uneven waves",
        "own outputs",
        "one part",
        "no parts",
        "uneven parts",
        "in the loop",
    ],
)
def test_a_split_that_fills_the_sms_is_right(tmp_path, source, advised):
    one = found(tmp_path, source, "needless-split-k")
    assert (one and one.evidence["advised"]) == advised
    if one is not None:
        assert one.advice == f"split K into {advised} parts"
