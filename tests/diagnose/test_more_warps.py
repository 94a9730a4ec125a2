"""More warps, stages and CTAs are advised where they change what limits a kernel, and nowhere else."""

from dataclasses import replace
from functools import cache

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.analyses import ends_of_spills
from kperf.diagnose.analyses.largest import largest_value
from kperf.diagnose.analyses.spills import Spills, spills
from kperf.diagnose.analyses.warps import warps_repeat_work
from kperf.diagnose.engine import diagnose
from kperf.diagnose.rule import all_rules
from kperf.diagnose.rules import register_spills
from kperf.ir import compile as compiler
from tests.diagnose.test_kernels import KERNELS
from tests.diagnose.test_measured import recorded

pytestmark = pytest.mark.kernels

ADVISED = ("planted/while_loop", "drafts/attention_bwd_dkdv", "drafts/relu2_down_proj", "planted/spills")


@cache
def kernel_of(name):
    return inputs.read(str(KERNELS / f"{name}.py"), (), SM_90A)[0]


def found(kernel):
    """The first finding of each rule."""
    return {one.id: one for one in reversed(diagnose(kernel).findings)}


@pytest.fixture
def compilations(monkeypatch):
    """The changes with which kernels are compiled again."""
    asked = []
    compile_again = compiler.recompiled
    monkeypatch.setattr(compiler, "recompiled", lambda kernel, more: asked.append(more) or compile_again(kernel, more))
    return asked


def changed(finding):
    """The options and constexprs that a finding's candidates change."""
    return {name for candidate in finding.candidates for name in candidate}


@pytest.mark.parametrize(
    ("name", "repeat"),
    [
        ("planted/spills", False),
        ("drafts/nbody", False),
        ("drafts/attention_bwd_dkdv", True),
        ("drafts/w4a16_gemv", True),
    ],
)
def test_more_warps_that_repeat_work_are_known_from_their_machine_code(name, repeat):
    """Measured with twice as many warps on an H100: 5.40 x, 1.41 x, 0.66 x, 0.44 x."""
    assert warps_repeat_work(kernel_of(name)) == repeat


@pytest.mark.parametrize(
    ("name", "again"), [("clean/gemm", []), ("clean/softmax", []), ("planted/spills", [{"num_warps": 8}])]
)
def test_a_kernel_is_compiled_again_only_where_an_advice_depends_on_it(name, again, compilations):
    """A compilation takes longer than all rules together."""
    diagnose(kernel_of.__wrapped__(name))
    assert compilations == again


@pytest.mark.parametrize("change", [{"is_gluon": True}, {"is_gluon": None}, {"total_warps": 12}])
def test_a_kernel_of_fixed_warps_is_not_compiled_with_others(change, compilations):
    kernel = replace(kernel_of("planted/spills"))
    for name, value in change.items():
        object.__setattr__(kernel, name, value)
    assert not warps_repeat_work(kernel)
    assert compilations == []


@pytest.mark.parametrize(
    ("name", "severity", "advice", "warps"),
    [
        ("planted/spills", "high", "launch with num_warps=8", True),
        ("drafts/attention_bwd_dkdv", "low", "halve the tile", False),
        ("planted/while_loop", "low", "first write the loop as a for loop over tl.range; if", False),  # 8 warps: 0.81 x
    ],
)
def test_spills_have_the_advice_that_ends_their_cause(name, severity, advice, warps):
    finding = found(kernel_of(name))["register-spills"]
    assert finding.severity == severity
    assert finding.advice.startswith(advice)
    assert ("num_warps" in changed(finding)) == warps


def test_no_advice_names_a_finding_that_may_not_be_printed():
    ids = [rule.id for rule in all_rules()]
    advice = [one.advice for name in ADVISED for one in diagnose(kernel_of(name)).findings]
    assert not [words for words in advice if any(f"{one} advises" in words or f"({one})" in words for one in ids)]


def test_few_tiles_in_registers_do_not_explain_many_spills():
    kernel = kernel_of("planted/while_loop")
    many = replace(kernel, resources=replace(kernel.resources, local_bytes=512))
    assert found(many)["register-spills"].severity == "high"


@pytest.mark.parametrize(
    ("name", "severity", "warps"),
    [
        ("drafts/nbody", "medium", True),  # num_warps=8: 1.41 x
        ("drafts/matmul_by_hand", "low", True),  # 0.96 x
        ("drafts/w4a16_gemv", "low", False),  # 0.44 x
    ],
)
def test_instructions_of_an_iteration_hide_memorys_latency(name, severity, warps):
    finding = found(kernel_of(name))["low-occupancy"]
    assert finding.severity == severity
    assert ("num_warps" in changed(finding)) == warps
    assert (finding.evidence["issue_cycles"] >= 1200) == (severity == "low")


@pytest.mark.parametrize(("name", "severity"), [("planted/two_stages", "medium"), ("drafts/attention_bwd_dkdv", "low")])
def test_an_iteration_of_many_instructions_needs_no_more_stages(name, severity):
    """Measured on an H100: 1.35 x, 0.98 x."""
    assert found(kernel_of(name))["too-few-stages"].severity == severity


@pytest.mark.parametrize(
    ("name", "shared_bytes", "advice", "stages"),
    [
        ("planted/two_stages", 65536, "launch with num_stages=3: one more stage takes 32768 bytes of shared", [3]),
        (
            "planted/two_stages",
            16384,
            "launch with num_stages=3: one more stage takes 32768 bytes of shared",
            [3, 4, 5],
        ),
        (
            "planted/two_stages",
            98304,
            "use a smaller tile along the dimension of the loop (BLOCK_K in a GEMM): one ",
            [],
        ),
        (
            "planted/two_stages",
            204800,
            "use a smaller tile along the dimension of the loop (BLOCK_K in a GEMM): one ",
            [],
        ),
        (
            "planted/stages_fill_memory",
            None,
            "launch with num_stages=3, which leaves room for one more CTA on an SM",
            [3],
        ),
        (
            "planted/while_loop",
            None,
            "write the loop as a for loop over tl.range; num_stages alone changes nothing, as the load is not pipe",
            [],
        ),
    ],
)
def test_exposed_loads_name_the_stages_that_cost_no_cta(name, shared_bytes, advice, stages):
    """Two CTAs of planted/two_stages fit by their registers."""
    timeline, kernel = recorded("gemm_2_stages"), kernel_of(name)
    if shared_bytes is not None:
        kernel = replace(kernel, resources=replace(kernel.resources, shared_bytes=shared_bytes))
    kernel = replace(kernel, name=timeline.kernel)
    (finding,) = (one for one in diagnose(kernel, [timeline]).findings if one.id == "exposed-loads")
    assert finding.advice.startswith(advice)
    assert [one["num_stages"] for one in finding.candidates] == stages


@pytest.mark.parametrize(
    ("shared_bytes", "words"), [(98304, "1 CTA fits on an SM in place of 2"), (204800, "no CTA fits")]
)
def test_a_stage_that_costs_a_cta_is_not_advised(shared_bytes, words):
    timeline, kernel = recorded("gemm_2_stages"), kernel_of("planted/two_stages")
    full = replace(kernel, name=timeline.kernel, resources=replace(kernel.resources, shared_bytes=shared_bytes))
    (finding,) = (one for one in diagnose(full, [timeline]).findings if one.id == "exposed-loads")
    assert finding.advice.endswith(f"takes 32768 bytes of shared memory, with which {words}")


@pytest.mark.parametrize(("grid", "words"), [((64, 64, 1), "with which 1 CTA fits"), ((8, 8, 1), "which are enough")])
def test_a_launch_of_few_ctas_may_have_stages_for_one_of_them_on_an_sm(grid, words):
    timeline, kernel = recorded("gemm_2_stages"), kernel_of("planted/two_stages")
    half = replace(kernel.resources, shared_bytes=98304)
    full = replace(kernel, name=timeline.kernel, resources=half, grid=grid)
    (finding,) = (one for one in diagnose(full, [timeline]).findings if one.id == "exposed-loads")
    assert words in finding.advice


BRANCHED = """
import torch, triton, triton.language as tl

@triton.jit
def branched(a, b, c, K, D: tl.constexpr, B: tl.constexpr):
    i, d = tl.arange(0, B), tl.arange(0, D)
    left = tl.load(a + tl.program_id(0) * B * D + i[:, None] * D + d[None, :])
    acc = tl.zeros((B, D), tl.float32)
    for k in range(0, K, B):
        if k % 3 != tl.program_id(0) % 3:
            right = tl.load(b + (k + i)[:, None] * D + d[None, :])
            score = tl.dot(left, right.T).to(tl.bfloat16)
            acc = tl.dot(score, tl.load(c + (k + i)[:, None] * D + d[None, :]), acc)
    tl.store(a + tl.program_id(0) * B * D + i[:, None] * D + d[None, :], acc.to(tl.bfloat16))

a, b, c = (torch.empty(4096 * 256, dtype=torch.bfloat16, device="cuda") for _ in range(3))
branched[(4096 // 64,)](a, b, c, 4096, DEPTH, 64, num_warps=4, num_stages=STAGES)
"""


@pytest.mark.parametrize(
    ("depth", "stages", "option"),
    [
        (256, 2, ""),
        (256, 3, ""),
        (
            256,
            4,
            ", and launch with num_stages=3: 4 stages of these tiles need 262144 bytes of shared memory, and a CTA",
        ),
        (128, 3, ""),
        (128, 8, ", and launch with num_stages="),
    ],
)
def test_a_loop_that_can_be_pipelined_is_given_the_stages_that_fit(tmp_path, depth, stages, option):
    script = tmp_path / "branched.py"
    script.write_text(BRANCHED.replace("DEPTH", str(depth)).replace("STAGES", str(stages)))
    (kernel,) = inputs.read(str(script), (), SM_90A)
    advice = found(kernel)["loads-not-pipelined"].advice
    assert advice.startswith(f"load before the branch, with the branch's condition as the mask{option}")
    assert ("num_stages" in advice) == bool(option)


SCALED = """
import torch, triton, triton.language as tl

@triton.jit
def scaled(x_desc, w_desc, y, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, num_stages=1):
        acc = tl.dot(x_desc.load([tl.program_id(0) * BM, k]), w_desc.load([tl.program_id(1) * BN, k]).T, acc)
    at = tl.arange(0, BM)[:, None] * BN + tl.arange(0, BN)[None, :]
    tl.store(y + (tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)) * BM * BN + at, acc.to(tl.bfloat16))

from triton.tools.tensor_descriptor import TensorDescriptor
x = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
desc = TensorDescriptor.from_tensor(x, [128, DEPTH])
scaled[(32, 32)](desc, desc, x, 4096, 128, 128, DEPTH, num_warps=8)
"""


@pytest.mark.parametrize(
    ("depth", "gain", "advice"),
    [(64, 1.59, "write num_stages=3"), (128, 1.1, "halve the tile"), (256, 1.98, "use smaller tiles")],
)
def test_stages_that_cost_the_second_cta(tmp_path, depth, gain, advice):
    """The severity is medium, as the loop's own tl.range asks for no pipeline."""
    (tmp_path / "scaled.py").write_text(SCALED.replace("DEPTH", str(depth)))
    (kernel,) = inputs.read(str(tmp_path / "scaled.py"), (), SM_90A)
    finding = found(kernel)["loads-not-pipelined"]
    assert finding.severity == "medium"
    assert finding.estimate.speedup == pytest.approx(gain, rel=0.01)
    assert finding.advice.startswith(advice)


PRODUCT = """
import torch, triton, triton.language as tl

@triton.jit
def product(x, y, z, B: tl.constexpr):
    i, k = tl.arange(0, B), tl.arange(0, 32)
    a, b = tl.load(x + i[:, None] * 32 + k[None, :]), tl.load(y + k[:, None] * B + i[None, :])
    tl.store(z + i[:, None] * B + i[None, :], tl.dot(a, b, input_precision="ieee"))

x = torch.empty(1 << 20, device="cuda")
product[(64,)](x, x, x, ROWS, num_warps=8)
"""


@pytest.mark.parametrize(("rows", "slower"), [(64, True), (128, False)])
def test_three_products_of_tf32_want_large_tiles(tmp_path, rows, slower):
    (tmp_path / "product.py").write_text(PRODUCT.replace("ROWS", str(rows)))
    (kernel,) = inputs.read(str(tmp_path / "product.py"), (), SM_90A)
    assert found(kernel)["dot-on-fma"].advice.endswith("with these it is slower") == slower


GEMM = """
import torch, triton, triton.language as tl

@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm, rn = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc)

a, b, c = (torch.empty(4096, 4096, dtype=DTYPE, device="cuda") for _ in range(3))
gemm[(32, 32)](a, b, c, 4096, 4096, 4096, 128, 128, DEPTH, OPTIONS)
"""


def gemm(folder, dtype, depth, options):
    script = folder / "gemm.py"
    script.write_text(GEMM.replace("DTYPE", f"torch.{dtype}").replace("DEPTH", str(depth)).replace("OPTIONS", options))
    return inputs.read(str(script), (), SM_90A)[0]


@pytest.mark.parametrize(("depth", "stages"), [(64, [3]), (32, [3]), (16, [3, 4])])
def test_no_more_stages_are_advised_than_a_cta_may_have(tmp_path, depth, stages):
    """Of float32 four stages of 128 x 64 and 64 x 128 are 256 KB, and a CTA may have 227 KB; of half of it one fits."""
    finding = found(gemm(tmp_path, "float32", depth, "num_warps=8, num_stages=2"))["too-few-stages"]
    assert finding.advice.startswith(f"launch with num_stages={' or '.join(map(str, stages))}: one more stage")
    assert finding.candidates == [{"num_stages": wanted} for wanted in stages]


def test_a_cta_of_all_warps_is_given_no_more(tmp_path):
    kernel = gemm(tmp_path, "bfloat16", 32, "num_warps=32")
    near = replace(kernel, resources=replace(kernel.resources, registers=34))  # with 32 another CTA fits
    finding = found(near)["low-occupancy"]
    assert finding.advice == "try maxnreg=32"
    assert finding.candidates == [{"maxnreg": 32}]


SUMS = """
import torch, triton, triton.language as tl

@triton.jit
def weighted(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    u, v, w = tl.load(x + i), tl.load(x + n + i), tl.load(x + 2 * n + i)
    tl.store(y + i, u * tl.sum(v, 0) + v * tl.sum(w, 0) + w * tl.sum(u, 0))

x, y = torch.empty(3 << 22, device="cuda"), torch.empty(1 << 22, device="cuda")
weighted[((1 << 22) // TILE,)](x, y, 1 << 22, TILE, num_warps=WARPS, maxnreg=64)
"""


@pytest.mark.parametrize(("warps", "most"), [(4, 255), (16, 128)])
def test_spills_for_a_limit_of_the_launch_end_with_the_limit(tmp_path, warps, most):
    script = tmp_path / "sums.py"
    script.write_text(SUMS.replace("WARPS", str(warps)).replace("TILE", str(1024 * warps)))
    finding = found(inputs.read(str(script), (), SM_90A)[0])["register-spills"]
    assert finding.advice == f"launch with maxnreg={most}: maxnreg=64 leaves each thread only 64 registers"
    assert finding.candidates[0] == {"maxnreg": most}


SHIFTED = """
import torch, triton, triton.language as tl

@triton.jit
def shifted(x, y, n, BLOCK: tl.constexpr):
    i, rows = tl.arange(0, BLOCK), 8 * tl.program_id(0)
    LOOP:
        ROW
        u, v = tl.load(x + row + i, mask=i < n), tl.load(x + n + row + i, mask=i < n)
        w, z = tl.load(x + 2 * n + row + i, mask=i < n), tl.load(x + 3 * n + row + i, mask=i < n)
        STORE

x, y = torch.empty(8 << 22, device="cuda"), torch.empty(8 << 22, device="cuda")
shifted[(16,)](x, y, 32768, 32768, num_warps=WARPS)
"""
WHOLE = "tl.store(y + row + i, u * tl.sum(v, 0) + v * tl.sum(w, 0) + w * tl.sum(z, 0) + z * tl.max(u, 0), mask=i < n)"
ELEMENTWISE = "tl.store(y + row + i, tl.exp(u) * tl.sin(v) + tl.cos(w) / z, mask=i < n)"
EACH_ROW = ("for k in range(8)", "row = (rows + k) * n")
ONCE = ("if True", "row = rows * n")
ALONG = ("for k in range(0, 4 * n, BLOCK)", "row, i = k, k + tl.arange(0, BLOCK)")


def shifted(folder, loop, row, store, warps=16):
    script = folder / "shifted.py"
    script.write_text(
        SHIFTED.replace("LOOP", loop).replace("ROW", row).replace("STORE", store).replace("WARPS", str(warps))
    )
    (kernel,) = inputs.read(str(script), (), SM_90A)
    return kernel


def spilled_with(kernel, **options):
    return compiler.resources(compiler.recompiled(kernel.compiled.kernel, options)).spilled_bytes


@pytest.mark.parametrize(
    ("warps", "options", "shorter"),
    [
        (16, {"maxnreg": 128, "num_warps": 32}, "loop over the 32768 elements of the tile, 8192 at a time"),
        (8, {"num_warps": 32, "maxnreg": 255}, "loop over the 32768 elements of the tile, 4096 at a time"),
    ],
)
def test_spills_say_what_each_option_leaves_of_them_and_begin_with_the_least(tmp_path, warps, options, shorter):
    kernel = shifted(tmp_path, *ONCE, ELEMENTWISE, warps)
    finding = next(one for one in register_spills.check(kernel))
    left = {name: spilled_with(kernel, **{name: value}) for name, value in options.items()}
    assert sorted(left.values()) == list(left.values())
    said = ", ".join(f"{name}={options[name]} leaves {left[name]} bytes" for name in options)
    assert finding.message.endswith(f"; {said}")
    least, value = next(iter(options.items()))
    assert finding.advice.startswith(f"launch with {least}={value}")
    assert finding.advice.endswith(f"; so that nothing is spilled, also {shorter}")
    assert finding.candidates[:2] == [{name: value} for name, value in options.items()]
    gain = spills(kernel).gain
    remaining = 1 + (gain - 1) * left[least] / kernel.resources.spilled_bytes
    assert finding.estimate.speedup == pytest.approx(gain / remaining, rel=1e-3)
    assert finding.estimate.high == pytest.approx(1.6 * gain, rel=1e-3)


@pytest.mark.parametrize(
    ("loop", "store", "warps", "advice", "halved"),
    [
        (EACH_ROW, WHOLE, 8, "walk the row in a loop, in tiles of 8192", False),
        (EACH_ROW, WHOLE, 16, "walk the row in a loop, in tiles of 8192", False),
        (EACH_ROW, WHOLE, 32, "walk the row in a loop, in tiles of 8192", False),
        (ONCE, WHOLE, 16, "walk the row in a loop, in tiles of 8192", False),
        (ONCE, ELEMENTWISE, 16, "loop over the 32768 elements of the tile, 8192 at a time", False),
        (ALONG, WHOLE, 16, "take a quarter of the tile: BLOCK=8192", True),
        (ALONG, WHOLE, 32, "take a quarter of the tile: BLOCK=8192", True),
    ],
)
def test_a_row_that_is_one_tile_is_walked_and_not_halved(tmp_path, loop, store, warps, advice, halved):
    """In tiles of a quarter each thread needs a quarter of its registers."""
    finding = next(one for one in register_spills.check(shifted(tmp_path, *loop, store, warps)))
    assert finding.advice.rpartition("so that nothing is spilled, also ")[2] == advice
    assert ({"BLOCK": 16384} in finding.candidates) == halved


def test_more_warps_are_not_combined_with_registers_that_they_cannot_have(tmp_path):
    """1024 threads of 128 registers are twice as many registers as an SM has."""
    text = SHIFTED.replace("num_warps=WARPS", "num_warps=16, maxnreg=128")
    script = tmp_path / "shifted.py"
    script.write_text(text.replace("LOOP", EACH_ROW[0]).replace("ROW", EACH_ROW[1]).replace("STORE", WHOLE))
    (limited,) = inputs.read(str(script), (), SM_90A)
    finding = next(one for one in register_spills.check(limited))
    left = spilled_with(limited, num_warps=32, maxnreg=64)
    assert f"num_warps=32, maxnreg=64 leaves {left} bytes" in finding.message
    assert finding.advice.startswith("launch with num_warps=32, maxnreg=64; so that nothing is spilled, also ")
    assert finding.candidates == [{"num_warps": 32, "maxnreg": 64}]


def test_warps_that_are_too_few_say_what_more_of_them_leave(tmp_path):
    kernel = shifted(tmp_path, *EACH_ROW, WHOLE, 4)
    finding = found(kernel)["too-few-warps"]
    left = spilled_with(kernel, num_warps=32)
    assert finding.message.endswith(f"; num_warps=32 leaves {left} bytes")
    assert finding.advice == (
        "launch with num_warps=32; so that nothing is spilled, also walk the row in a loop, in tiles of 8192"
    )
    assert finding.estimate.speedup < spills(kernel).gain


@pytest.mark.parametrize(
    ("spilled", "severity", "words"),
    [
        (Spills(3, 1, 0.001), "low", "1 instruction of a loop loads or stores them"),
        (Spills(30, 20, 0.03), "medium", "20 instructions of loops load or store them"),
        (Spills(30, None, 0.03), "medium", "30 instructions load or store them"),
        (Spills(30, None, 0.05), "high", "30 instructions load or store them"),
    ],
)
def test_spills_are_as_bad_as_their_share_of_what_is_issued(monkeypatch, spilled, severity, words):
    monkeypatch.setattr(register_spills, "spills", lambda _: spilled)
    monkeypatch.setattr(register_spills, "serialised", lambda _: None)
    finding = found(kernel_of("planted/spills"))["register-spills"]
    assert finding.severity == severity
    assert f"({words})" in finding.message
    assert (finding.estimate.speedup >= 1.1) == (severity != "low")


WIDENED = """
import torch, triton, triton.language as tl

@triton.jit
def widened(x, y, M, N, BLOCK: tl.constexpr):
    r, c = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(x + r[:, None] * N + c[None, :]).to(tl.float64)
    tl.store(y + c[:, None] * M + r[None, :], tl.trans(tile))

x = torch.empty(8192, 8192, dtype=torch.int8, device="cuda")
y = torch.empty(8192, 8192, dtype=torch.float64, device="cuda")
widened[(64, 64)](x, y, 8192, 8192, 128, num_warps=8)
"""


def test_stages_are_no_cause_of_shared_memory_that_no_loop_fills(tmp_path):
    script = tmp_path / "widened.py"
    script.write_text(WIDENED)
    kernel = inputs.read(str(script), (), SM_90A)[0]
    full = replace(kernel, resources=replace(kernel.resources, shared_bytes=120 * 1024))  # one CTA on an SM
    finding = found(full)["low-occupancy"]
    assert "because of its shared memory" in finding.message
    assert finding.advice == "use a smaller tile: BLOCK=64"
    assert not any("num_stages" in candidate for candidate in finding.candidates)


TOKENS = """
import torch, triton, triton.language as tl

@triton.jit
def tokens(x, y, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    r, c = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    at = TOKEN * COLUMNS + r[:, None] * COLUMNS + c[None, :]
    u, v = tl.load(x + at), tl.load(x + n + at)
    RESULT

x, y = torch.empty(1 << 25, device="cuda"), torch.empty(1 << 25, device="cuda")
tokens[(132,)](x, y, 1 << 24, 128, 512, num_warps=WARPS)
"""
EACH, OF_COLUMNS = "tl.store(y + at, %s)", "tl.store(y + tl.program_id(0) * COLUMNS + c, %s)"
CARRIED = ", and carry what is reduced along them (of a softmax the running maximum and sum)"


@pytest.mark.parametrize(
    ("result", "walked"),
    [
        (EACH % "v * tl.softmax(u * v, 0)", "the 512 columns of the tile of 128 x 512, "),
        (EACH % "v * (u - tl.max(u * v, 1)[:, None])", "the 128 rows of the tile of 128 x 512, "),
        (
            "s = tl.sum(v * tl.softmax(u, 0), 0); " + OF_COLUMNS % "s * tl.rsqrt(tl.sum(s * s, 0))",
            "the 128 rows of the tile of 128 x 512, ",  # a norm of what they leave needs all columns
        ),
        (
            "tl.store(y + tl.program_id(0) * 128 + r, tl.sum(v * tl.exp(u - tl.max(u, 1)[:, None]), 1))",
            "the 128 rows of the tile",
        ),
        (EACH % "v * tl.cumsum(u, 0) + tl.cumsum(u, 1)", None),
    ],
)
@pytest.mark.parametrize("token", ["tl.program_id(0) * 128", "tl.program_id(0) * ROWS"], ids=["any", "of a tile"])
def test_a_loop_walks_along_a_dimension_that_no_norm_needs_as_a_whole(tmp_path, token, result, walked):
    script = tmp_path / "tokens.py"
    script.write_text(
        TOKENS.replace("RESULT", result).replace("TOKEN", token).replace("WARPS", "32" if walked is None else "8")
    )
    (kernel,) = inputs.read(str(script), (), SM_90A)
    value = largest_value(kernel)
    assert value.tensor.shape == (128, 512)
    advice = ends_of_spills.shorter_tile(kernel, value, [ends_of_spills.Option({"num_warps": 32}, 64 * 4 * 7, 64)])
    if walked is None:
        assert advice == "take an eighth of the tile"
        return
    if "tl.max" in result and "ROWS" in token:  # each row is for itself
        assert advice == "take an eighth of the tile: ROWS=16"
        return
    length = int(walked.split()[1])
    assert advice.startswith(f"loop over {walked}")
    assert f", {length // 8} at a time" in advice
    assert advice.endswith(CARRIED) == ("rsqrt" in result)


def test_a_tile_whose_largest_value_is_not_known_has_its_steps_shortened(tmp_path):
    kernel = gemm(tmp_path, "float32", 64, "num_warps=8")
    spilling = [ends_of_spills.Option({"num_warps": 16}, 128 * 4, 128)]
    assert ends_of_spills.shorter_tile(kernel, None, spilling) == "halve the tile: BM=64 or BN=64 or BK=32"
