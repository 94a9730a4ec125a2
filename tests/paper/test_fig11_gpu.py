"""On a Hopper GPU: several passes of each kernel are launched, and make one iteration or are told apart."""

import pytest

from kperf.attention.workload import Workload
from kperf.paper import fig11

pytestmark = pytest.mark.gpu

LONG = Workload(batch=2, heads=16, seq_len=8192)


@pytest.mark.parametrize("variant", [*fig11.VARIANTS, *fig11.ALONE])
def test_the_passes_of_a_kernel_make_one_iteration_or_are_told_apart(variant):
    item = fig11.in_passes(fig11.subject(variant), None, print)
    timeline, _ = fig11.trace(item, fig11.normal_qkv(LONG), LONG, rounds=5)
    assert (timeline.joined is None) == (timeline.apart is not None)
    passes, one = (timeline.apart.passes, timeline.passes[0]) if timeline.apart else (
        timeline.passes, timeline.joined.one_pass
    )  # fmt: skip
    assert one.overhead.ratio > 0.98
    assert len(passes) == len(item.passes.chosen)
    iteration_time = timeline.cycles_per_unit.median
    for each in passes:
        assert 0.75 < each.iteration_cycles / iteration_time < 1.2, each.regions
        assert 0.9 < each.overhead.ratio < 1.2, each.regions  # a record may bring another schedule, and a faster one
    for group in ("consumer 0", "consumer 1", "producer"):
        inside = [region for region in timeline.regions if region.warp_group == group and region.per_iteration]
        assert sum(region.per_iteration for region in inside) == pytest.approx(iteration_time, rel=0.05)
        assert all(bool(region.passes) == (timeline.joined is not None) for region in inside)
