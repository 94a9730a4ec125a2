"""The rule `persistent-grid`: how many programs a persistent kernel is launched with."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose

pytestmark = pytest.mark.kernels

GEMM = """
import torch, triton, triton.language as tl

@triton.jit
def gemm(a, b, c, M, N, K, programs, per, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tiles_n = N // BN
    for tile in {loop}:
        m = tile // tiles_n * BM + tl.arange(0, BM)
        n = tile % tiles_n * BN + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for start in range(0, K, BK):
            k = start + tl.arange(0, BK)
            acc = tl.dot(tl.load(a + m[:, None] * K + k), tl.load(b + k[:, None] * N + n), acc)
        tl.store(c + m[:, None] * N + n, acc.to(tl.bfloat16))

M, N, K = {shape}
BM, BN, warps, programs = {launch}
a, b, c = (torch.empty(*of, device="cuda", dtype=torch.bfloat16) for of in ((M, K), (K, N), (M, N)))
per = triton.cdiv(M // BM * (N // BN), programs)
gemm[(programs,)](a, b, c, M, N, K, programs, per, BM, BN, 64, num_warps=warps, num_stages=3)
"""
STRIDE = "range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, {})"
BY_ARGUMENT, BY_GRID = STRIDE.format("programs"), STRIDE.format("tl.num_programs(0)")
LARGE = "8192, 8192, 4096"
WIDE, SMALL = "128, 256, 8", "64, 128, 4"
"""Tiles of which an SM holds one, and two or more."""


def found(tmp_path, text):
    script = tmp_path / "it.py"
    script.write_text(text)
    every = [one for kernel in inputs.read(str(script), (), SM_90A) for one in diagnose(kernel).findings]
    return [one for one in every if one.id in ("persistent-grid", "launch-too-small")]


def of_gemm(tmp_path, loop, launch, shape=LARGE):
    return found(tmp_path, GEMM.format(loop=loop, launch=launch, shape=shape))


@pytest.mark.parametrize("loop", [BY_ARGUMENT, BY_GRID])
def test_programs_that_wait_for_others_are_a_second_wave(tmp_path, loop):
    (one,) = of_gemm(tmp_path, loop, f"{WIDE}, 144")
    assert (one.id, one.severity, one.source.line) == ("persistent-grid", "high", 5)
    assert one.evidence == {"programs": 144, "tiles": 2048, "ctas_per_sm": 1, "sms": 132}
    assert one.message == (
        "132 programs fit on 132 SMs at once, and the launch has 144: the last 12 begin when others end, and take 14 "
        "tiles each"
    )
    assert one.advice.startswith("launch 132 programs: min(tiles, sms), where sms is torch.cuda.get_device_properties(")
    assert one.estimate.high == pytest.approx((15 + 14) / 16)


WHILE = """
    tile = tl.program_id(0)
    while tile < M // BM * tiles_n:"""


def test_a_while_loop_over_tiles_is_one_too(tmp_path):
    text = GEMM.replace("\n    for tile in {loop}:", WHILE).replace(
        "tl.bfloat16))\n", "tl.bfloat16))\n        tile += {loop}\n"
    )
    launch = {"launch": f"{WIDE}, 144", "shape": LARGE}
    (one,) = found(tmp_path, text.format(loop="tl.num_programs(0)", **launch))
    assert (one.id, one.evidence["tiles"]) == ("persistent-grid", 2048)
    assert found(tmp_path, text.format(loop="128", **launch)) == []


def test_a_flattened_loop_over_tiles_is_one_too(tmp_path):
    flat = BY_GRID.replace("range(", "tl.range(", 1).removesuffix(")") + ", flatten=True)"
    (one,) = of_gemm(tmp_path, flat, f"{WIDE}, 144")
    assert (one.id, one.evidence["tiles"]) == ("persistent-grid", 2048)


def test_the_programs_of_a_smaller_gpu_leave_sms_idle(tmp_path):
    (one,) = of_gemm(tmp_path, BY_GRID, f"{WIDE}, 108")
    assert (one.id, one.severity) == ("persistent-grid", "medium")
    assert one.evidence["explains"] == "launch-too-small"
    assert one.message == "108 persistent programs leave 24 of 132 SMs without work"
    assert one.estimate.high == pytest.approx(19 / 16)


def test_some_sms_have_one_program_more(tmp_path):
    (one,) = of_gemm(tmp_path, BY_GRID, f"{SMALL}, 144")
    assert (one.id, one.severity) == ("persistent-grid", "high")
    assert "the launch has 144: 12 SMs have one program more than the other SMs" in one.message
    assert "* sms)" in one.advice


@pytest.mark.parametrize(
    ("loop", "launch", "shape"),
    [
        (BY_GRID, f"{WIDE}, 132", LARGE),
        (BY_GRID, f"{WIDE}, 128", LARGE),  # 16 tiles each, as with 132
        (BY_GRID, f"{SMALL}, 132", LARGE),
        (BY_GRID, f"{SMALL}, 264", LARGE),
        (BY_GRID, f"{WIDE}, 2048", LARGE),  # a tile each
        (BY_GRID, f"{WIDE}, 144", "1536, 3072, 4096"),  # there are no more tiles
        (BY_GRID, f"{WIDE}, 1320", "16384, 16896, 4096"),  # ten whole waves
        ("range(tl.program_id(0) * per, min(tl.program_id(0) * per + per, M // BM * tiles_n))", f"{WIDE}, 144", LARGE),
        ("range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, 128)", f"{WIDE}, 144", LARGE),
    ],
)
def test_grids_that_fit_or_that_share_no_tiles_by_their_number_are_none(tmp_path, loop, launch, shape):
    assert [one for one in of_gemm(tmp_path, loop, launch, shape) if one.id == "persistent-grid"] == []


WALK = """
import torch, triton, triton.language as tl

@triton.jit
def walk(x, y, n, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(x + i)
        for _ in tl.static_range({steps}):
            v = v * v + 0.5
        tl.store(y + i, v)

n = 1 << 26
x, y = torch.empty(2, n, device="cuda")
walk[({programs},)](x, y, n, 1024, num_warps=32)
"""


@pytest.mark.parametrize(("steps", "programs", "count"), [(400, 300, 1), (400, 264, 0), (1, 300, 0)])
def test_elements_that_are_computed_count_and_those_that_memory_brings_do_not(tmp_path, steps, programs, count):
    assert len(found(tmp_path, WALK.format(steps=steps, programs=programs))) == count


OFFSETS = """
import torch, triton, triton.language as tl

@triton.jit
def fill(begins, counts, out, n, ranks):
    at = tl.load(begins)
    for item in tl.range({begin}, n, step={step}):
        for rank in range(ranks):
            count = tl.load(counts + rank * n + item)
            tl.store(out + item * ranks + rank, at + count)

begins, counts, out = (torch.empty(64, 4, device="cuda", dtype=torch.int32) for _ in range(3))
fill[({programs},)](begins, counts, out, 64, 4)
"""
"""Each program waits for one number after another."""


def of_offsets(tmp_path, programs, begin="tl.program_id(0)", step="tl.num_programs(0)"):
    return found(tmp_path, OFFSETS.format(programs=programs, begin=begin, step=step))


def test_a_single_program_that_waits_may_be_as_many_as_there_are_items(tmp_path):
    (one,) = of_offsets(tmp_path, 1)
    assert (one.id, one.severity, one.source.line) == ("persistent-grid", "high", 5)
    assert one.message == "1 persistent program leaves 131 of 132 SMs without work"
    assert one.advice.startswith("launch 64 programs: min(tiles, sms)")
    assert one.evidence["tiles"] == 64
    waiting, launch = 64 * 4 * 270 / 1980e3, 0.004  # ms
    assert one.estimate.high == pytest.approx((waiting + launch) / (waiting / 64 + launch))


def test_few_programs_that_wait_leave_sms_without_work(tmp_path):
    (one,) = of_offsets(tmp_path, 3)
    assert one.message == "3 persistent programs leave 129 of 132 SMs without work"
    waiting, launch = 22 * 4 * 270 / 1980e3, 0.004  # the first program has 22 of 64 items
    assert one.estimate.high == pytest.approx((waiting + launch) / (waiting / 22 + launch))
    (one,) = (one for one in of_offsets(tmp_path, 60) if one.id == "persistent-grid")
    waiting = 2 * 4 * 270 / 1980e3  # of two items, as the first four of 60 programs have
    assert one.estimate.high == pytest.approx((waiting + launch) / (waiting / 2 + launch))
    assert one.severity == "medium"


def test_programs_along_another_axis_are_named_so(tmp_path):
    (one,) = of_offsets(tmp_path, "1, 3", "tl.program_id(1)", "tl.num_programs(1)")
    assert one.id == "persistent-grid"
    assert one.advice.endswith("or tl.num_programs(1)")


STATE = """
import torch, triton, triton.language as tl

@triton.jit
def fill(x, y, out, n):
    last = 0.0
    for item in tl.range(tl.program_id(0), n, step=tl.num_programs(0)):
        {body}
    {end}

x, y, out = (torch.empty(4096, device="cuda") for _ in range(3))
fill[(1,)](x, y, out, 4095)
"""


@pytest.mark.parametrize(
    ("body", "end", "shared"),
    [
        ("tl.store(out + item, tl.load(x + item))", "", True),
        ("last += tl.load(x + item)", "tl.store(out, last)", False),
        ("last += tl.load(x + item)", "tl.store(out + tl.program_id(0), last)", False),
        ("last += tl.load(x + item); tl.store(out + item, last)", "", False),
        ("tl.store(x + item + 1, tl.load(x + item) * 2)", "", False),
        ("tl.store(out, tl.load(x + item))", "", False),
        ("tl.store(out + item, tl.load(x + item))", "tl.store(y, 1.0)", False),
        ("at = tl.load(y + item).to(tl.int32); tl.store(out + at, tl.load(out + at) + 1)", "", False),
    ],
)
def test_a_loop_is_shared_only_where_no_iteration_needs_another(tmp_path, body, end, shared):
    """More programs would compute something else, or store where nobody has room."""
    every = found(tmp_path, STATE.format(body=body, end=end))
    assert ("persistent-grid" in {one.id for one in every}) == shared


@pytest.mark.parametrize("step", ["1", "tl.num_programs(0) * 0 + 1"])
def test_a_loop_of_one_program_that_more_programs_would_all_run_is_left(tmp_path, step):
    assert [one for one in of_offsets(tmp_path, 1, "0", step) if one.id == "persistent-grid"] == []


def test_as_many_programs_as_items_are_enough(tmp_path):
    assert [one for one in of_offsets(tmp_path, 64) if one.id == "persistent-grid"] == []
