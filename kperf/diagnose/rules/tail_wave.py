"""A last wave that leaves SMs idle."""

from collections.abc import Iterator
from math import ceil, prod, sqrt

from kperf.diagnose.analyses.measured import finding
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import IDLE_SHARE, SEVERE_SHARE, UNEVEN_CTAS
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline


def check(timeline: Timeline) -> Iterator[Finding]:
    """By the SMs' idle time, where CTAs take about equally long, and by the part of it that the last wave explains.

    The likely factor is the middle of none and all of it, sqrt(all): tiles of other lengths are seldom as efficient,
    and busy SMs share the GPU's power and bandwidth. With 264 smaller tiles in place of 136 on 132 SMs a GEMM became
    1.27 times as fast, of the 1.82 that the idle time allows (H100).
    """
    sms, blocks = timeline.sms, prod(timeline.grid)
    if sms is None or _uneven(timeline):
        return
    slots = sms.sms * max(sms.most_resident, 1)
    waves = blocks / slots
    tail = min(sms.idle, 1 - waves / ceil(waves))
    if waves <= 1 or tail < IDLE_SHARE:
        return
    yield finding(
        RULE.id,
        timeline,
        None,
        "high" if tail >= SEVERE_SHARE else "medium",
        f"{blocks} CTAs are {waves:.2f} waves of {slots} CTAs: SMs are idle for {sms.idle:.0%} of the launch, "
        + (f"{tail:.0%} because of the last wave" if tail < sms.idle else "mostly at its end"),
        f"choose tiles that give {slots} CTAs, a multiple of {slots}, or slightly fewer; or split the tiles of the "
        "last wave (stream-K)",
        {"ctas": blocks, "waves": waves, "idle": sms.idle},
        (sqrt(1 / (1 - tail)), 1.0, ceil(waves) / waves),
    )


def _uneven(timeline: Timeline) -> bool:
    one = timeline.imbalance
    return one is not None and one.cta_us.p95 >= UNEVEN_CTAS * max(one.cta_us.median, 1e-9)


RULE = DynamicRule("tail-wave", "A last wave that leaves SMs idle", check, explained_by=("persistent-grid",))
