"""What came of a finding's candidates, in the finding: its advice, its severity, and what was measured."""

import re
from collections.abc import Iterable

from kperf.diagnose.rule import has_only_options
from kperf.diagnose.thresholds import TUNED_GAIN
from kperf.trace.analyze.finding import LEVELS, Dropped, Finding, Trial
from kperf.trace.capture.trial import SAME_CODE, in_words

_CHOICE = re.compile(r"\w+=\d+(?: or \w+=\d+)*")
"""Candidates in an advice: `BLOCK_M=64 or BLOCK_N=128`."""


def with_results(finding: Finding, results: dict[str, Trial | Dropped]) -> Finding:
    """With what was measured of its candidates; a hint where nothing else is advised, and none is faster.

    The advice names the fastest, where that is another candidate than the likeliest.
    """
    words = [in_words(change) for change in finding.candidates]
    mine = [results[one] for one in words if one in results]
    if not mine:
        return finding
    tried = [one for one in mine if isinstance(one, Trial)]
    best = max(tried, key=lambda one: one.low, default=None)
    advice = finding.advice
    if best is not None and best.low >= TUNED_GAIN:
        advice = naming(advice, words[0], best.change)
    dropped = [one for one in mine if isinstance(one, Dropped)]
    found = finding.model_copy(update={"advice": advice, "tried": tried, "dropped": dropped})
    return found.model_copy(update={"severity": LEVELS[-1]}) if is_refuted(found) else found


def naming(advice: str, likeliest: str, fastest: str) -> str:
    """Advice with the fastest candidate in place of the likeliest, or of all among which it lets one choose.

    A reason for the likeliest one (`launch with maxnreg=128: why; what else`) goes with it, and so does another number
    beside it (`num_stages=3 (or 4)`), which was timed too.
    """
    advice = re.sub(rf"\b({re.escape(likeliest)}) \(or [^)]*\)", r"\1", advice)
    parts = set(fastest.split(", "))
    choices = [one for one in _CHOICE.findall(advice) if parts <= set(one.split(" or "))]
    if choices:
        return advice.replace(choices[0], fastest)
    reason = r"(: [^;]*)?" if fastest.partition("=")[0] != likeliest.partition("=")[0] else ""
    return re.sub(rf"\b{re.escape(likeliest)}\b{reason}", fastest, advice, count=1)


def without(advice: str, changes: Iterable[str]) -> str:
    """Advice without these changes, as far as other advice stands beside them: in it, before it or behind it.

    `launch with num_warps=32, or halve the tile` becomes `halve the tile`.
    """
    for change in map(re.escape, changes):
        among_choices = rf"\b{change} or (?=\w+=\d)|(?<=\d) or {change}\b"
        option = rf"(?:launch with|put) {change}\b(?: into its triton\.Config)?(?:(?:,(?! or )|:) [^;]*)?"
        before = rf"^{option}(?:, or |; or |; )(?:if values are still spilled, )?(?=[a-z])"
        behind = rf"(?:, or |; or ){option}$|, with {change}\b(?:, and autotune around this value)?$"
        advice = re.sub("|".join((among_choices, before, behind)), "", advice)
    return advice


def names(advice: str, changes: Iterable[str]) -> bool:
    """Whether an advice names one of these changes."""
    return any(re.search(rf"\b{re.escape(change)}\b", advice) for change in changes)


def is_refuted(finding: Finding) -> bool:
    """Whether all that it advises was tried, and nothing of that is faster."""
    tried: list[Trial | Dropped] = [*finding.tried, *finding.dropped]
    return has_only_options(finding) and bool(tried) and not any(map(_may_gain, tried))


def _may_gain(result: Trial | Dropped) -> bool:
    """Whether a configuration is faster, or was not timed for a reason that does not say that it is not."""
    return result.speedup >= TUNED_GAIN if isinstance(result, Trial) else result.why != SAME_CODE
