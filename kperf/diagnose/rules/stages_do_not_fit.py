"""A kernel that needs more shared memory than a CTA may have."""

from collections.abc import Iterator

from kperf.diagnose.analyses.loops import buffers
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the metadata of the compiled kernel: the launch would fail."""
    shared, limit = kernel.shared_bytes, kernel.arch.cta_shared_bytes
    if shared is None or shared <= limit:
        return
    copies = [copy for loop in kernel.main_loops for copy in buffers(kernel, loop)]
    stage = sum(size for _, _, size in copies)
    depth = max((count for _, count, _ in copies), default=1)
    fit = depth - -(-(shared - limit) // stage) if stage else 0
    stages = f"launch with num_stages={max(kernel.num_stages or depth, depth) - depth + fit}" if fit >= 1 else ""
    yield kernel.finding(
        RULE.id,
        copies[0][0] if copies else None,
        "high",
        f"the kernel cannot be launched: a CTA needs {shared} bytes of shared memory and may have {limit} bytes",
        " or ".join(filter(None, [stages, "use a smaller tile"])),
        {"shared_bytes": shared, "limit": limit, "stage_bytes": stage, "stages_that_fit": max(fit, 0)},
    )


RULE = Rule("stages-do-not-fit", "Stages that do not fit", check, by_options=True)
