"""Estimates of kernels whose gain was measured on an H200, each within a factor of 1.5."""

from dataclasses import replace

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from tests.diagnose.test_kernels import KERNELS

pytestmark = pytest.mark.kernels

MEASURED = {
    ("ell_spmv", "uncoalesced-access"): 4.82,
    ("euler_flux", "register-spills"): 8.76,
    ("l1_cdist", "register-spills"): 3.23,
    ("length_regulator", "lookup-by-comparison"): 6.59,
    ("masked_patch_mse", "zeroed-after-reading"): 2.23,
    ("nerf_layer", "padded-tile"): 2.62,
    ("softmax_one_warp", "too-few-warps"): 1.45,
}


def estimate(kernel, rule):
    return next(one for one in diagnose(kernel).findings if one.id == rule).estimate.speedup


@pytest.mark.parametrize(("name", "rule"), MEASURED)
def test_an_estimate_is_near_what_was_measured(name, rule):
    kernel, *_ = inputs.read(str(KERNELS / f"drafts/{name}.py"), (), SM_90A)
    assert 1 / 1.5 <= MEASURED[name, rule] / estimate(kernel, rule) <= 1.5


def test_a_gather_from_a_tensor_that_l2_does_not_keep_moves_its_sectors():
    kernel, *_ = inputs.read(str(KERNELS / "drafts/ell_spmv.py"), (), SM_90A)
    large = replace(kernel, lengths=kernel.lengths | {"x_ptr": 1 << 30})
    assert estimate(large, "uncoalesced-access") < estimate(kernel, "uncoalesced-access") / 2


def test_spills_that_stay_in_l1_cost_their_issue_slots_alone():
    """Of l1_cdist 16 CTAs are on an SM, and spill what its L1 has; of a launch of 132 CTAs one is."""
    kernel, *_ = inputs.read(str(KERNELS / "drafts/l1_cdist.py"), (), SM_90A)
    few = next(one for one in diagnose(replace(kernel, grid=(132, 1, 1))).findings if one.id == "register-spills")
    share = few.evidence["share_of_instructions"]
    assert few.estimate.speedup == pytest.approx(1 + 4 * share / (1 - share), rel=1e-3)
    assert estimate(kernel, "register-spills") > 1.3 * few.estimate.speedup
    assert few.severity == "high"


def gain_of_stages(folder, rows, columns, depth, m, k, n=4096):
    """Of a matmul with one stage that is given others: `rows` x `columns` of its sums a CTA, `depth` an iteration."""
    text = (KERNELS / "drafts/matmul_one_stage.py").read_text()
    text = text.replace("m, n, k = 4096, 4096, 4096", f"m, n, k = {m}, {n}, {k}")
    text = text.replace("(m // 128, n // 128)", f"(m // {rows}, n // {columns})")
    (folder / "gemm.py").write_text(
        text.replace("128, 128, 64, num_warps=8", f"{rows}, {columns}, {depth}, num_warps=4")
    )
    kernel, *_ = inputs.read(str(folder / "gemm.py"), (), SM_90A)
    return estimate(kernel, "loads-not-pipelined")


def test_loads_arrive_no_faster_because_they_are_ahead(tmp_path):
    """One CTA on an SM, with 1200 cycles of a load, 160 of its bytes from L2, and 49 of its MMAs: two loads are ahead.

    Beside its loop of 128 iterations it waits for the launch, of 4 us.
    """
    looping = 128 * (1200 + 160 + 49.2)
    share = looping / (looping + 4 * 1980)
    expected = 1 / (1 - share + share * 600 / (1200 + 160 + 49.2))
    assert gain_of_stages(tmp_path, 16, 64, 64, 16, 8192) == pytest.approx(expected, rel=0.02)


def test_few_iterations_have_little_to_load_ahead(tmp_path):
    gains = [gain_of_stages(tmp_path, 16, 64, 64, 16, k) for k in (256, 1024, 8192)]
    assert gains == sorted(gains)
    assert gains[0] < 1.4
    assert gains[2] > 2


def test_loads_ahead_come_no_faster_than_device_memory_brings_them(tmp_path):
    """16 rows by 128 columns, on each SM one CTA: 16 KB of b an iteration take 1100 cycles, at a copy's rate."""
    gain = gain_of_stages(tmp_path, 16, 128, 64, 16, 8192, n=132 * 128)
    assert gain == pytest.approx((1200 + 288 + 98.5) / 1100, rel=0.03)
