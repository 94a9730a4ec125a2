"""A persistent kernel that loses iterations from tile to tile."""

from collections.abc import Iterator

from kperf.diagnose.analyses.measured import finding
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import BOUNDARY_ITERATIONS
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline


def check(timeline: Timeline) -> Iterator[Finding]:
    """By the cycles between two tiles beyond those between two iterations."""
    boundary, iteration_time = timeline.tile_boundary_cycles, timeline.cycles_per_unit.median
    if boundary is None or boundary.median < BOUNDARY_ITERATIONS * iteration_time:
        return
    yield finding(
        RULE.id,
        timeline,
        None,
        "medium",
        f"between one output tile and the next a CTA loses {boundary.median:.0f} cycles, the time of "
        f"{boundary.median / iteration_time:.1f} iterations",
        "store a tile while the next tile is computed: loop over tiles with tl.range(..., flatten=True), use two "
        "accumulators, wait later for the TMA store, or store the tile in parts",
        {"boundary_cycles": boundary.median, "iteration_cycles": iteration_time},
    )


RULE = DynamicRule("persistent-overhead", "Iterations lost between two tiles", check)
