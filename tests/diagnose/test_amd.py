"""AMD's GPUs: their pipelines, and their words."""

import re

import pytest

from kperf.arch import GFX942, SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.analyses.bound import bound_of
from kperf.diagnose.engine import diagnose
from kperf.diagnose.reading.operations import own
from tests.diagnose.test_kernels import FAULTY, KERNELS
from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

PRODUCT = """
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + k + rk[None, :], mask=rk[None, :] < K - k)
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)
"""
TYPES = "*bf16,*bf16,*fp32,i32:16,i32:16,i32:16"
TILES = ("BM=128", "BN=128", "BK=64")


@pytest.mark.parametrize(("stages", "said"), [(1, True), (2, False), (3, False)])
def test_a_tile_that_is_loaded_for_a_later_iteration_is_pipelined(tmp_path, stages, said):
    rules = found(tmp_path, PRODUCT, TYPES, *TILES, arch=GFX942, num_stages=stages)
    assert ("loads-not-pipelined" in rules) == said
    if said:
        assert rules["loads-not-pipelined"].advice.startswith("launch with num_stages=2 (or 3)")


@pytest.mark.parametrize(
    ("stages", "wide", "advice"),
    [
        (3, "64", None),
        (4, "64", "launch with num_stages=3 or use a smaller tile"),
        (2, "512", "use a smaller tile"),  # one buffer of 256 KB
    ],
)
def test_a_tile_that_does_not_fit_into_lds_is_said(tmp_path, stages, wide, advice):
    tiles = (*TILES[:2], f"BK={wide}")
    rules = found(tmp_path, PRODUCT, TYPES, *tiles, arch=GFX942, num_stages=stages)
    assert ("stages-do-not-fit" in rules) == (advice is not None)
    if advice is not None:
        one = rules["stages-do-not-fit"]
        assert (one.severity, one.source.line, one.advice) == ("high", 8, advice)
        needed = one.evidence["shared_bytes"]
        assert needed > 65536
        assert f"a work group needs {needed} bytes of LDS and may have 65536" in one.message


RECURRENCE = """
def recurrence(x, gate, out, n, B: tl.constexpr):
    lane = tl.arange(0, B)
    total = tl.zeros((B,), tl.float32)
    for i in range(n):
        total = total * tl.load(gate + i) + LOADED
        STORED
    tl.store(out + lane, total)
"""


@pytest.mark.parametrize("arch", [GFX942, SM_90A])
@pytest.mark.parametrize(
    ("loaded", "stored"),
    [("tl.load(x + i * B + lane)", "pass"), ("lane", "tl.store(x + i * B + lane, total)"), ("lane", "pass")],
    ids=["loads a row", "stores a row", "elements of each thread's own"],
)  # fmt: skip
def test_a_loop_of_rows_loads_no_single_numbers(tmp_path, arch, loaded, stored):
    source = RECURRENCE.replace("LOADED", loaded).replace("STORED", stored)
    rules = found(tmp_path, source, "*fp32,*fp32,*fp32,i32", "B=256", arch=arch)
    assert "scalar-loop" not in rules


def test_buffer_loads_are_loads_into_registers_too():
    kernel, *_ = inputs.read(str(KERNELS / "drafts/matmul_one_stage.py"), (), GFX942)
    assert any(True for _ in kernel.named("amdg.buffer_load"))
    assert ("loads-not-pipelined", 18) in {(one.id, one.source.line) for one in diagnose(kernel).findings}


BYTES = PRODUCT.replace("tl.dot(x, y, acc)", "tl.dot(x.to(tl.float16), y.to(tl.float16), acc)")


@pytest.mark.parametrize(("element", "said"), [("fp8e4nv", False), ("fp8e4b8", True), ("i8", True)])
def test_amd_multiplies_bytes_of_its_own(tmp_path, element, said):
    rules = found(tmp_path, BYTES, TYPES.replace("*bf16", f"*{element}"), *TILES, arch=GFX942)
    assert ("widened-operands" in rules) == said


def test_a_loop_around_a_pipelined_one_is_no_main_loop():
    kernel, *_ = inputs.read(str(KERNELS / "clean/stream_k.py"), (), GFX942)
    (outer,) = kernel.named("scf.while")
    assert any(op.name == "tt.dot" for op in own(outer))  # the last iterations of the inner one
    assert [loop.name for loop in kernel.main_loops] == ["scf.for"]
    assert [one.id for one in diagnose(kernel).findings] == ["stages-do-not-fit"]  # four are for 227 KB


BESIDE = """
def product(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn, rk = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for row in range(0, M, BM):
        y = tl.load(b + rk[:, None] * N + rn[None, :])
        for k in range(0, K, BK):
            y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
            acc = tl.dot(tl.load(a + (row + rm)[:, None] * K + k + rk[None, :]), y, acc)
        acc = tl.dot(tl.load(c + (row + rm)[:, None] * K + rk[None, :]), y, acc)
    tl.store(a + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))
"""


def test_a_loop_that_multiplies_beside_its_inner_one_is_a_main_loop(tmp_path):
    finding = found(tmp_path, BESIDE, TYPES.replace("fp32", "bf16"), *TILES, arch=GFX942)["loads-not-pipelined"]
    assert "another loop is inside this loop" in finding.message


STRIDED = PRODUCT.replace("M, N, K,", "M, N, K, sk,").replace("k + rk[None, :]", "(k + rk[None, :]) * sk")


@pytest.mark.parametrize(
    ("element", "stride", "said"),
    [("fp32", "i32", None), ("bf16", "i32", 2), ("bf16", "i32:1", None), ("fp8e4b8", "i32", 1)],
)
def test_amds_pipelines_load_four_bytes_or_more(tmp_path, element, stride, said):
    types = f"{TYPES},{stride}".replace("*bf16", f"*{element}")
    rules = found(tmp_path, STRIDED, types, "BM=64", "BN=64", "BK=64", arch=GFX942, num_stages=2)
    assert ("loads-not-pipelined" in rules) == (said is not None)
    if said is not None:
        text = f"the compiler can prove only {said} contiguous bytes of a thread, and pipelines load 4 or more, unless"
        assert text in rules["loads-not-pipelined"].message


def test_findings_are_in_the_vendors_words():
    text = (
        "an SM holds 8 warps of a CTA, by shared memory: launch with num_warps=8, and the tensor cores of all SMs work"
    )
    assert SM_90A.in_its_words(text) == text
    assert GFX942.in_its_words(text) == (
        "a CU holds 8 wavefronts of a work group, by LDS: launch with num_warps=8, and the matrix cores of all CUs work"
    )
    assert GFX942.in_its_words("a warp, an SMALL tile, a tensor core") == "a wavefront, an SMALL tile, a matrix core"


WITH_AMD = [
    path
    for path in FAULTY
    if path.parent.name == "drafts" and not any(word in path.read_text() for word in ("maxnreg=", "tf32x3"))
]
"""Triton's back end for AMD refuses `maxnreg` and `input_precision="tf32x3"`."""


@pytest.mark.parametrize("path", WITH_AMD, ids=lambda path: path.stem)
def test_no_finding_of_an_amd_gpu_has_cudas_words(path):
    kernel, *_ = inputs.read(str(path), (), GFX942)
    texts = [text for one in diagnose(kernel).findings for text in (one.message, one.advice)]
    for text in [*texts, bound_of(kernel).message]:
        assert not re.search(r"\b(SMs?|CTAs?|warps?|shared memory|tensor cores?|MUFU)\b", text)
