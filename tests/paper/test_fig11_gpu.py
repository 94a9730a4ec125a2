"""On a Hopper GPU: several passes of each kernel are launched, and what they measured is one trip."""

import pytest

from kperf.attention.workload import Workload
from kperf.paper import fig11

pytestmark = pytest.mark.gpu

LONG = Workload(batch=2, heads=16, seq_len=8192)


@pytest.mark.parametrize("variant", [*fig11.VARIANTS, *fig11.ALONE])
def test_the_passes_of_a_kernel_make_one_trip(variant):
    item = fig11.in_passes(fig11.subject(variant), None, print)
    timeline, _ = fig11.trace(item, fig11.normal_qkv(LONG), LONG, rounds=5)
    assert len(timeline.passes) == len(item.passes.chosen)
    assert timeline.joined.one_pass.overhead.ratio > 0.98
    period = timeline.period_cycles.median
    for one in timeline.passes:
        assert 0.9 < one.trip_cycles / period < 1.2, one.regions
        assert 0.9 < one.overhead.ratio < 1.2, one.regions  # a record may bring ptxas to a faster order
    for group in ("consumer 0", "consumer 1", "producer"):
        inside = [region for region in timeline.regions if region.warp_group == group and region.per_trip]
        assert sum(region.per_trip for region in inside) == pytest.approx(period)
        assert all(region.passes for region in inside)
    # By the plain kernel's time the whole launch, its beginnings and ends of tiles too, is no shorter than its trips.
    sms = timeline.sms.sms
    trips = LONG.rows // 128 / sms * (LONG.seq_len // 128 - 1)
    launch = timeline.overhead.plain_ms * timeline.clock_mhz * 1e3
    assert 0.8 < timeline.joined.plain_cycles * trips / launch < 1.05
