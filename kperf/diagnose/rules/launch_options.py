"""A launch that is faster with another number of warps or stages, as was measured: nothing in the code says why."""

from collections.abc import Iterator

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.options import other_options
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN, TUNED_GAIN
from kperf.trace.analyze.finding import Finding
from kperf.trace.capture.trial import in_words


def check(kernel: Kernel) -> Iterator[Finding]:
    """The fastest of those that were tried, if it is faster."""
    best = max(kernel.explored, key=lambda one: one.low, default=None)
    if best is None or best.low < TUNED_GAIN:
        return
    timed = {one.change for one in kernel.explored}
    option = best.change.partition("=")[0]
    own = {"num_warps": kernel.num_warps, "num_stages": kernel.num_stages or 1}[option]
    yield kernel.finding(
        RULE.id,
        None,
        "high" if best.low >= SEVERE_GAIN else "medium" if best.low >= MEDIUM_GAIN else "low",
        f"with {best.change} this launch takes less time than with {option}={own}",
        f"launch with {best.change}, and time it with your other inputs too: kperf has no other reason than the time",
        {option: own},
        candidates=[one for one in other_options(kernel) if in_words(one) in timed],
    )


RULE = Rule("launch-options", "Another number of warps or stages", check, needs="launch")
