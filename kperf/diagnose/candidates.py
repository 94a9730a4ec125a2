"""Compiles what findings advise, and diagnoses that, before it is advised: what brings another fault is left out."""

from collections.abc import Mapping, Sequence
from functools import cached_property

from kperf.diagnose.analyses.recompiled import can_be_recompiled, with_change, without_launch
from kperf.diagnose.engine import EXPLAINS, diagnose, ranked
from kperf.diagnose.finding import Diagnosis
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.options import OPTIONS
from kperf.diagnose.results import names, naming, without
from kperf.diagnose.rule import has_only_options, may_be_brought
from kperf.trace.analyze.finding import LEVELS, Dropped, Finding
from kperf.trace.capture.trial import SAME_CODE, in_words

MOST_CHANGES = 4
"""Of a kernel that are compiled, those of the worst findings first: each takes as long as the kernel itself."""
NOT_COMPILED = "it does not compile"
REMAINS = "the same is then found again"
NONE_HELPS = "no {} that kperf compiled changes this"
IN_LIST = "the autotuner has it in its list"


def checked(kernel: Kernel, diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis without what its own rules speak against.

    Of each finding candidates are compiled, in their order, up to the first that rids the kernel of it, which the
    advice names then; `dropped` has those before it, which the advice no longer names. A finding that advises options
    alone, of which none helps, is a hint. A kernel that cannot be compiled again keeps its advice.
    """
    if not can_be_recompiled(kernel):
        return diagnosis
    changes = _Changes(kernel, diagnosis.findings)
    findings = [changes.checked(finding) for finding in diagnosis.findings]
    return diagnosis.model_copy(update={"findings": ranked(findings)})


class _Changes:
    """A kernel, its findings, and what is found in it as changed: each change is compiled once."""

    def __init__(self, kernel: Kernel, findings: Sequence[Finding]) -> None:
        self._kernel = kernel
        self._findings = findings
        self._made: dict[str, tuple[Kernel, Sequence[Finding]] | None] = {}

    def checked(self, finding: Finding) -> Finding:
        """With its candidates that do not help as `dropped`, and the first that does in its advice.

        None of a hint is compiled.
        """
        listed = [one for one in finding.candidates if _is_in_list(self._kernel, one)]
        if listed and listed == finding.candidates:
            return _with_all_dropped(finding, [Dropped(change=in_words(one), why=IN_LIST) for one in listed])
        if finding.severity == LEVELS[-1]:
            return finding
        dropped: list[Dropped] = []
        for change in finding.candidates:
            words, why = in_words(change), self._why_not(change, finding)
            if why is None:
                break
            if not why:
                likeliest = in_words(finding.candidates[0])
                advice = naming(finding.advice, likeliest, words) if dropped else finding.advice
                return _with_dropped(finding, advice, dropped)
            dropped.append(Dropped(change=words, why=why))
        if 0 < len(finding.candidates) == len(dropped):
            return _with_all_dropped(finding, dropped)
        return _with_dropped(finding, finding.advice, dropped)

    def _why_not(self, change: Mapping[str, int], finding: Finding) -> str | None:
        """Why a change does not do what a finding advises it for; empty if it does, None if that is not known.

        Another tile may fail with what the script computes from its own, such as a descriptor's box.
        """
        words = in_words(change)
        if _is_in_list(self._kernel, change):
            return IN_LIST
        if words not in self._made:
            if len(self._made) >= MOST_CHANGES:
                return None
            made = with_change(self._kernel, change)
            self._made[words] = (made, diagnose(made).findings) if made is not None else None
        changed = self._made[words]
        if changed is None:
            return NOT_COMPILED if change.keys() <= set(OPTIONS) else None
        kernel, after = changed
        if kernel.compiled.kernel.asm.get("cubin") == self._kernel.compiled.kernel.asm.get("cubin"):
            return SAME_CODE
        before = self._findings if kernel.grid == self._kernel.grid else self._without_launch
        brought = next((one for one in after if _is_brought(one, before) and not _outweighs(finding, one)), None)
        if brought is not None:
            return f"then {brought.message} [{brought.id}]"
        return REMAINS if any(_is_again(one, finding) for one in after) else ""

    @cached_property
    def _without_launch(self) -> Sequence[Finding]:
        return diagnose(without_launch(self._kernel)).findings


def _with_dropped(finding: Finding, advice: str, dropped: Sequence[Dropped]) -> Finding:
    """With what does not help, which the advice names no longer, where it says something else too."""
    left = without(advice, [one.change for one in dropped])
    return finding.model_copy(update={"advice": left, "dropped": dropped})


def _with_all_dropped(finding: Finding, dropped: Sequence[Dropped]) -> Finding:
    """With candidates of which none helps: without advice, if it says nothing else, and then a hint of options alone.

    A configuration of the autotuner's list is none that is to be advised: its times decide.
    """
    left = _with_dropped(finding, finding.advice, dropped)
    changes = [one.change for one in dropped]
    if not has_only_options(finding) and not names(left.advice, changes):
        return left
    is_tile = any(name not in OPTIONS for change in finding.candidates for name in change)
    advice = NONE_HELPS.format("tile size" if is_tile else "launch option")
    if all(one.why == IN_LIST for one in dropped):
        advice = f"the autotuner has {' and '.join(changes)} in its list: its times decide"
    severity = LEVELS[-1] if has_only_options(finding) else finding.severity
    return left.model_copy(update={"severity": severity, "advice": advice, "estimate": None})


def _is_in_list(kernel: Kernel, change: Mapping[str, int]) -> bool:
    """Whether a change makes another configuration of the autotuner's list."""
    changed = {**kernel.configuration, **change}
    return any(
        change.keys() <= config.keys() and all(changed.get(name) == value for name, value in config.items())
        for tuning in (kernel.history.tunings if kernel.history is not None else ())
        for config in tuning.configs
    )


def _is_brought(one: Finding, before: Sequence[Finding]) -> bool:
    """Whether a change of options brings a finding, or makes it more severe; what else is new was hidden before.

    So was what another finding explains.
    """
    return may_be_brought(one) and all(
        LEVELS.index(other.severity) > LEVELS.index(one.severity) for other in before if one.id in _shown_by(other)
    )


def _shown_by(finding: Finding) -> list[str]:
    """Its rule, and those whose findings it explains."""
    return [finding.id, *str(finding.evidence.get(EXPLAINS, "")).split(", ")]


def _outweighs(finding: Finding, brought: Finding) -> bool:
    """Whether its advice gives more than what it brings costs, which is less severe, or is estimated to be less."""
    if LEVELS.index(brought.severity) > LEVELS.index(finding.severity):
        return True
    return _gain(finding) > _gain(brought)


def _is_again(one: Finding, finding: Finding) -> bool:
    """Whether a finding of a changed kernel says what one said before, and costs as much."""
    same = (one.id, one.source) == (finding.id, finding.source)
    return same and one.severity == finding.severity and _gain(one) >= _gain(finding)


def _gain(finding: Finding) -> float:
    return finding.estimate.speedup if finding.estimate is not None else 1.0
