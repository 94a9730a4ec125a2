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
