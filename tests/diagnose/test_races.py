"""Loops that use a buffer in shared memory too early are found by their compiled code, and right ones are not."""

import pytest
import triton

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.compilations import diagnose_all
from kperf.diagnose.engine import diagnose, ranked
from kperf.ir.races import races
from kperf.trace.analyze.finding import Estimate
from tests.diagnose.test_kernels import KERNELS

pytestmark = pytest.mark.kernels

NORM_GEMM = """
import torch, triton, triton.language as tl

@triton.jit
def norm_gemm(x, w, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    squares = tl.zeros((BM,), tl.float32)
    for k in RANGE:
        a = tl.load(x + rm[:, None] * K + k + rk[None, :])
        b = tl.load(w + (k + rk)[:, None] * N + rn[None, :])
        acc = PRODUCT
        READ
        squares += tl.sum(f * f, 1)
    acc = acc / tl.sqrt(squares / K)[:, None]
    tl.store(out + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))

x, w = torch.randn(2, 4096, 4096, device="cuda").bfloat16()
out = torch.empty_like(x)
norm_gemm[(32, 32)](x, w, out, 4096, 4096, 4096, 128, 128, 64, num_warps=8, num_stages=STAGES)
"""
MIXED = {"RANGE": "range(0, K, BK)", "PRODUCT": "tl.dot(a, b, acc)", "READ": "f = a.to(tl.float32)", "STAGES": "3"}
TMA = """
import torch, triton, triton.language as tl
triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device="cuda", dtype=torch.int8))

@triton.jit
def norm_gemm(x, w, out, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    xs = tl.make_tensor_descriptor(x, [M, K], [K, 1], [BM, BK])
    ws = tl.make_tensor_descriptor(w, [K, N], [N, 1], [BK, BN])
    row, col = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    most = tl.zeros((BM,), tl.float32)
    tl.assume(K > 0)
    for k in range(0, K, BK):
        a = xs.load([row, k])
        acc = tl.dot(a, ws.load([k, col]), acc)
        most = tl.maximum(most, tl.max(READ.to(tl.float32), 1))
    rm, rn = row + tl.arange(0, BM), col + tl.arange(0, BN)
    tl.store(out + rm[:, None] * N + rn[None, :], (acc / most[:, None]).to(tl.bfloat16))

x, w = torch.randn(2, 4096, 4096, device="cuda").bfloat16()
out = torch.empty_like(x)
norm_gemm[(32, 32)](x, w, out, 4096, 4096, 4096, 128, 128, 64, num_warps=8, num_stages=3)
"""
POINTERS = "tl.load(x + (row + tl.arange(0, BM))[:, None] * K + k + tl.arange(0, BK)[None, :])"
CP_ASYNC = """
import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, warpgroup_mma, warpgroup_mma_wait

# Its name from Triton 3.9 on, and the one until 3.8.
copy = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared

@gluon.jit
def fetch(a, b, a_tiles, b_tiles, i, N, K, STAGES: gl.constexpr, blocked: gl.constexpr):
    BM: gl.constexpr = a_tiles.shape[1]
    BK: gl.constexpr = b_tiles.shape[1]
    BN: gl.constexpr = b_tiles.shape[2]
    rows: gl.constexpr = gl.SliceLayout(1, blocked)
    cols: gl.constexpr = gl.SliceLayout(0, blocked)
    a += (gl.program_id(0) * BM + gl.arange(0, BM, rows))[:, None] * K + i * BK + gl.arange(0, BK, cols)[None, :]
    b += (i * BK + gl.arange(0, BK, rows))[:, None] * N + gl.program_id(1) * BN + gl.arange(0, BN, cols)[None, :]
    copy(a_tiles.index(i % STAGES), a)
    copy(b_tiles.index(i % STAGES), b)
    async_copy.commit_group()

@gluon.jit
def gemm(a, b, c, N, K, flag, STAGES: gl.constexpr, in_a: gl.constexpr, in_b: gl.constexpr):
    BM: gl.constexpr = 64
    BN: gl.constexpr = 128
    BK: gl.constexpr = 64
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    blocked: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    a_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BM, BK], in_a)
    b_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, BK, BN], in_b)
    for i in gl.static_range(STAGES - 2):
        fetch(a, b, a_tiles, b_tiles, i, N, K, STAGES, blocked)
    acc = gl.zeros([BM, BN], gl.float32, sums)
    for i in range(K // BK):
        fetch(a, b, a_tiles, b_tiles, i + STAGES - 2, N, K, STAGES, blocked)
        async_copy.wait_group(COPIES)
        fence_async_shared()
        acc = warpgroup_mma(a_tiles.index(i % STAGES), b_tiles.index(i % STAGES), acc, is_async=True)
        WAIT
    acc = warpgroup_mma_wait(0, deps=(acc,))
    rows = gl.program_id(0) * BM + gl.arange(0, BM, gl.SliceLayout(1, sums))
    cols = gl.program_id(1) * BN + gl.arange(0, BN, gl.SliceLayout(0, sums))
    gl.store(c + gl.expand_dims(rows * N, 1) + gl.expand_dims(cols, 0), acc.to(gl.bfloat16))

a, b = torch.randn(2, 4096, 4096, device="cuda").bfloat16()
in_a, in_b = [gl.NVMMASharedLayout.get_default_for(tile, gl.bfloat16) for tile in ([64, 64], [64, 128])]
c = torch.empty_like(a)
gemm[(64, 32)](a, b, c, 4096, 4096, 5, STAGES=4, in_a=in_a, in_b=in_b, num_warps=4)
"""
MANY = "acc = warpgroup_mma_wait(5, deps=(acc,))"
EITHER = "if flag > i:\n            warpgroup_mma_wait(1, deps=(acc,))\n        else:\n            "
ALWAYS_WAITED = EITHER.replace("(1", "(0") + "warpgroup_mma_wait(0, deps=(acc,))"
SYNCHRONOUS = "acc = warpgroup_mma(a_tiles.index(i % STAGES), b_tiles.index(i % STAGES), acc, is_async=False)"
RIGHT = {"COPIES": "STAGES - 2", "WAIT": "acc = warpgroup_mma_wait(1, deps=(acc,))"}


def replaced(text, **names):
    for name, value in names.items():
        text = text.replace(name, value)
    return text


@pytest.fixture
def found(tmp_path):
    """Of a script's kernel: the findings of the rule, and its races."""

    def of(text):
        script = tmp_path / "it.py"
        script.write_text(text)
        kernel = inputs.read(str(script), (), SM_90A)[0]
        findings = [one for one in diagnose(kernel).findings if one.id == "buffer-race"]
        lines = text.splitlines()
        return [(one, lines[one.source.line - 1].strip()) for one in findings], list(races(kernel.module))

    return of


@pytest.mark.parametrize(
    ("changes", "buffers"),
    [
        ({}, 2),
        ({"STAGES": "4"}, 3),
        ({"RANGE": "tl.range(0, K, BK, num_stages=3)"}, 2),
        ({"PRODUCT": "acc + tl.dot(a, b)"}, 2),
    ],
)
def test_a_tile_that_an_mma_and_registers_use_has_a_buffer_too_few(found, changes, buffers):
    findings, (race,) = found(replaced(NORM_GEMM, **(MIXED | changes)))
    ((finding, line),) = findings
    assert line == "a = tl.load(x + rm[:, None] * K + k + rk[None, :])"
    assert finding.severity == "high"
    assert "that the MMA on line 14 may still read" in finding.message
    assert f"has {buffers} buffer" in finding.message
    assert 'eviction_policy="evict_last"' in finding.advice
    assert (race.buffers, race.later) == (buffers, 0)


@pytest.mark.skipif(not triton.__version__.startswith("3.6"), reason="newer ones know that this loop runs")
def test_a_race_that_ptxas_hides_is_a_hint(found):
    """With two stages ptxas cannot tell whether the loop runs at least once, and lets no wgmma overlap (C7515)."""
    ((finding, _),), (race,) = found(replaced(NORM_GEMM, **(MIXED | {"STAGES": "2"})))
    assert race.buffers == 1
    assert finding.severity == "low"
    assert "ptxas waits after each wgmma" in finding.message
    known = "acc = tl.zeros((BM, BN), tl.float32)"
    ((finding, _),), _ = found(replaced(NORM_GEMM, **(MIXED | {"STAGES": "2", known: f"{known}; tl.assume(K > 0)"})))
    assert finding.severity == "high"


@pytest.mark.parametrize(
    "changes",
    [
        {"READ": 'f = tl.load(x + rm[:, None] * K + k + rk[None, :], eviction_policy="evict_last").to(tl.float32)'},
        {"READ": "f = rm[:, None].to(tl.float32)"},  # no other use
        {"STAGES": "1"},
        {"PRODUCT": "tl.dot(a, b, acc) * (1 + 1 / (k + 1))"},  # each iteration waits for its MMA
    ],
)
def test_the_advice_and_loops_that_wait_are_right(found, changes):
    assert found(replaced(NORM_GEMM, **(MIXED | changes))) == ([], [])


@pytest.mark.parametrize("text", [NORM_GEMM, TMA])
def test_more_stages_are_not_advised_for_a_tile_that_would_get_a_buffer_too_few(tmp_path, text):
    """One stage is right; what kperf advises for its speed stays so. The other tile needs no second load."""
    changes = MIXED | {"STAGES": "1"} if text is NORM_GEMM else {"READ": "a", "num_stages=3": "num_stages=1"}
    (tmp_path / "k.py").write_text(replaced(text, **changes))
    (kernel,) = inputs.read(str(tmp_path / "k.py"), (), SM_90A)
    found = [one for one in diagnose(kernel).findings if one.id == "loads-not-pipelined"]
    assert [one.advice.partition(",")[0] for one in sorted(found, key=lambda one: one.source.line)] == [
        "first load the tile a second time for the code that uses it beside the MMA",
        "launch with num_stages=3 (or 4)",
    ]


@pytest.mark.parametrize("stages", [(1, 3), (4, 3), (1, 1)])
def test_what_one_configuration_of_an_autotuner_may_compute_is_said(tmp_path, stages):
    """Though another one has fewer findings: which one the autotuner chooses is not known."""
    configs = ", ".join(f"triton.Config({{'BN': {64 << at}}}, 8, {one})" for at, one in enumerate(stages))
    text = replaced(NORM_GEMM, **(MIXED | {"@triton.jit": f"@triton.autotune([{configs}], key=[])\n@triton.jit"}))
    text = text.replace("128, 128, 64, num_warps=8, num_stages=3", "BM=128, BK=64")
    (tmp_path / "k.py").write_text(text)
    (diagnosis,) = diagnose_all(inputs.read(str(tmp_path / "k.py"), (), SM_90A))
    assert diagnosis.configurations == 2
    found = [one for one in diagnosis.findings if one.id == "buffer-race"]
    assert len(found) == (max(stages) > 1)
    if stages == (1, 3):
        such = " (1 of 2 configurations of the autotuner, such as num_stages=3, BN=128)"
        assert found[0].message.endswith(such)
        assert found[0].advice.endswith("; or leave these configurations out")
        assert found[0] == diagnosis.findings[0]
    elif found:
        assert "of the autotuner" not in found[0].message


def test_two_loads_that_keep_a_race_away_are_left_apart(tmp_path):
    """One load in their place is what the race is made of; without an MMA they are one too many."""
    again = 'f = tl.load(x + rm[:, None] * K + k + rk[None, :], eviction_policy="evict_last").to(tl.float32)'
    text = replaced(NORM_GEMM, **(MIXED | {"RANGE": "tl.range(0, K, BK, num_stages=3)", "READ": again}))
    script = tmp_path / "it.py"
    for product, redundant in (("tl.dot(a, b, acc)", False), ("acc + tl.sum(a.to(tl.float32), 1)[:, None]", True)):
        script.write_text(text.replace("tl.dot(a, b, acc)", product))
        (kernel,) = inputs.read(str(script), (), SM_90A)
        rules = {one.id for one in diagnose(kernel).findings}
        assert ("redundant-load" in rules) == redundant
        assert "buffer-race" not in rules


def test_tma_loads_into_too_few_buffers_too(found):
    findings, _ = found(TMA.replace("READ", "a"))
    ((finding, line),) = findings
    assert line == "a = xs.load([row, k])"
    assert "tl.load" in finding.advice
    assert found(TMA.replace("READ", POINTERS)) == ([], [])


@pytest.mark.parametrize(
    ("changes", "line", "words"),
    [
        ({"COPIES": "STAGES - 1"}, "acc = warpgroup_mma(", "that the copy on line 20, 2 iterations before, may not"),
        (
            {"WAIT": "acc = warpgroup_mma_wait(2, deps=(acc,))"},
            "copy(",
            "the MMA on line 40, 2 iterations before,",
        ),
        (
            {"WAIT": f"if flag > 3:\n            warpgroup_mma_wait(1, deps=(acc,))\n        {MANY}"},
            "copy(",
            "the MMA on line 40, 2 iterations before,",
        ),
        (
            {"WAIT": f"{EITHER.replace('(1', '(2')}warpgroup_mma_wait(0, deps=(acc,))\n        {MANY}"},
            "copy(",
            "the MMA on line 40, 2 iterations before,",
        ),
        ({"i + STAGES - 2": "i + STAGES - 1"}, "copy(", "the MMA on line 40, one iteration before, may still"),
    ],
)
def test_in_gluon_each_wait_counts(found, changes, line, words):
    findings, _ = found(replaced(CP_ASYNC, **(RIGHT | changes)))
    assert findings
    for finding, at in findings:
        assert at.startswith(line)
        assert words in finding.message
        assert "has 4 buffers" in finding.message


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"COPIES": "0"},
        {"WAIT": "acc = warpgroup_mma_wait(0, deps=(acc,))"},
        {"WAIT": f"if i > 0:\n            warpgroup_mma_wait(1, deps=(acc,))\n        {MANY}"},
        {"WAIT": f"{EITHER}warpgroup_mma_wait(0, deps=(acc,))\n        {MANY}"},
        {"WAIT": f"{ALWAYS_WAITED}\n        {MANY}", "i + STAGES - 2": "i + STAGES - 1"},
        {"WAIT": SYNCHRONOUS, "i + STAGES - 2": "i + STAGES - 1"},
        {"WAIT": MANY, "range(K // BK)": "range(2)"},  # no buffer is filled twice
    ],
)
def test_in_gluon_enough_buffers_and_waits_are_enough(found, changes):
    assert found(replaced(CP_ASYNC, **(RIGHT | changes))) == ([], [])


@pytest.mark.parametrize(
    ("old", "new", "later"),
    [
        ("ahead = i + STAGES - 1", "ahead = i + STAGES", 0),
        ("warpgroup_mma_wait(1, deps=(acc,))", "warpgroup_mma_wait(2, deps=(acc,))", 1),
    ],
)
def test_in_gluon_tma_fills_what_an_mma_reads(found, old, new, later):
    text = (KERNELS / "fixed" / "wait_for_all.py").read_text()
    assert found(text) == ([], [])
    findings, of_both_tiles = found(text.replace(old, new))
    assert {line.partition("_desc")[0] for _, line in findings} == {"tma_load(a", "tma_load(b"}
    assert [race.later for race in of_both_tiles] == [later, later]


def test_buffers_whose_number_another_loop_counts_are_passed_over(found):
    """The loop that fills the first buffers says how many there are, and it is not run."""
    text = (KERNELS / "fixed" / "wait_for_all.py").read_text()
    counted = replaced(
        text,
        **{
            "    for i in gl.static_range(STAGES - 1):": "    ahead = 0\n    for i in range(STAGES - 1):",
            ", i, row, col, STAGES, True)": ", i, row, col, STAGES, True)\n        ahead += 1",
            "        ahead = i + STAGES - 1\n": "",
            "ahead < K // BK)": "ahead < K // BK)\n        ahead += 1",
        },
    )
    assert found(counted) == ([], [])


@pytest.mark.parametrize(("stages", "depth"), [(1, 64), (2, 64), (3, 64), (3, 16)])
def test_an_operand_in_registers_is_written_while_an_mma_reads_it(found, stages, depth):
    """Triton 3.9 waits for those of the iteration before; a tile of one part is waited for at once."""
    changes = {"PRODUCT": "tl.dot((a * f).to(tl.bfloat16), b, acc)", "READ": "pass", "STAGES": str(stages)}
    text = replaced(NORM_GEMM, **(MIXED | changes)).replace("squares += tl.sum(f * f, 1)", "pass")
    text = text.replace("        acc = tl.dot", "        f = rm[:, None].to(tl.float32)\n        acc = tl.dot")
    text = text.replace("for k in", "tl.assume(K > 0)\n    for k in").replace("128, 128, 64,", f"128, 128, {depth},")
    findings, of_buffers = found(text)
    assert of_buffers == []
    is_early = stages > 1 and depth > 16 and tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)
    assert {(one.severity, line.partition("(")[0]) for one, line in findings} == (
        {("low", "acc = tl.dot")} if is_early else set()
    )
    assert all("3.9" in one.advice and "next iteration" in one.message for one, _ in findings)


def test_wrong_results_come_before_slow_ones(found):
    findings, _ = found(replaced(NORM_GEMM, **MIXED))
    race = findings[0][0]
    slow = race.model_copy(update={"id": "float64", "estimate": Estimate(speedup=30.0, low=20.0, high=40.0)})
    assert [one.id for one in ranked([slow, race])] == ["buffer-race", "float64"]
