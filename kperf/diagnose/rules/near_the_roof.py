"""A kernel that moves its bytes as fast as a copy does: nothing is to be gained inside of it."""

from collections.abc import Iterator

from kperf.diagnose.analyses.measured import finding, moved_gb_per_s, share_of_copy
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import NEAR_ROOF
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline

_PASSES = "`kperf diagnose --static` names what torch does with the kernel's tensors"


def check(timeline: Timeline) -> Iterator[Finding]:
    """By the bytes a second that come from device memory, at least, over those of a copy on the same GPU.

    Where it is not known which bytes are requested twice, they do not count beyond what a copy moves: those beyond come
    from a cache, and nobody knows how many more do. What is left until the roof is not estimated then.
    """
    if timeline.memory is None or timeline.bandwidth is None:
        return
    unique = timeline.memory.unique_gb_per_s
    gb_per_s, share = moved_gb_per_s(timeline), share_of_copy(timeline)
    if share < NEAR_ROOF or (unique is None and share > 1):
        return
    yield finding(
        RULE.id,
        timeline,
        None,
        "low",
        f"the kernel moves {gb_per_s:.0f} GB/s, {share:.0%} of the rate of a copy in device memory: nothing but fewer "
        "bytes makes it faster",
        "move fewer bytes: fuse the kernel with the kernel before or after it, or use a narrower type",
        {"gb_per_s": gb_per_s, "share_of_copy": share},
        None if unique is None else (1.0, 1.0, max(1 / share, 1.0)),
    )


def _of_kernel(finding: Finding, kernel: Kernel) -> Finding:
    """With where to look for torch's passes over what it loads and stores, which no launch on a GPU shows."""
    if kernel.grid is None or kernel.as_written is None:
        return finding
    return finding.model_copy(update={"advice": f"{finding.advice}; {_PASSES}"})


RULE = DynamicRule("near-the-roof", "A kernel as fast as memory allows", check, is_bound=True, of_kernel=_of_kernel)
