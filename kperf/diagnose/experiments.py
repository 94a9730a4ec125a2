"""Tries what findings advise: at a launch of the script, other configurations of its kernel are compiled and timed."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kperf.arch import of
from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.cache import own_cache
from kperf.compat.triton.launches import LaunchCall
from kperf.compat.triton.tuning import JitCall, current_call
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose, ranked
from kperf.diagnose.finding import Diagnosis
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.options import OPTIONS, other_options
from kperf.diagnose.results import with_results
from kperf.diagnose.rule import doubts_results
from kperf.diagnose.rules import launch_options
from kperf.diagnose.script.history import Histories
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.trace.analyze.finding import LEVELS, Checked, Dropped, Finding, Trial
from kperf.trace.analyze.models import Timeline
from kperf.trace.capture import kernels as capture
from kperf.trace.capture.capturer import why
from kperf.trace.capture.interceptor import Interceptor
from kperf.trace.capture.scheduler import Scheduler
from kperf.trace.capture.trial import LIMIT_S, Change, Measured, Tried, in_words, interval

MOST_CHANGES = 8
"""Configurations of a kernel that are tried, those of the worst findings first."""


@dataclass
class _Experiment:
    """What was tried of one kernel: `results` by change, in words; `seconds` of it; `why` nothing could be tried.

    checked: what launches computed, where a finding doubts it.
    """

    kernel: Kernel
    checked: Checked | None = None
    seconds: float = 0.0
    with_timeline: bool = False
    results: dict[str, Trial | Dropped] = field(default_factory=dict)
    why: str = ""


class Experiments:
    """The kernels that a script launches, by their hash, and what was tried at their launches, if it was asked for.

    A kernel is tried at the first launch that is traced, by what its code says, and once more, with what is left of its
    time, at the first launch after its timeline was read, by what that says.
    """

    def __init__(self, *, wanted: bool) -> None:
        """Nothing was launched yet; `wanted`: whether anything shall be tried."""
        self.launched: dict[str, tuple[CompiledKernel, tuple[int, int, int]]] = {}
        self._wanted = wanted
        self._histories = Histories()
        self._of: dict[str, _Experiment] = {}
        self._scheduler: Scheduler | None = None

    def before(
        self, launches: Interceptor, kernel: capture.Kernel, call: LaunchCall, traced: bool, timeline: Timeline | None
    ) -> None:
        """Ahead of a launch: try what is to be tried. An error costs the experiment, and the script nothing."""
        self._scheduler = launches.scheduler
        self.launched.setdefault(kernel.compiled.hash, (kernel.compiled, call.grid))
        self._histories.note(kernel.compiled, call)
        self._histories.note_arguments(kernel.compiled, call)
        known = self._of.get(kernel.compiled.hash)
        if not self._wanted or (known is None and not traced):
            return
        if known is not None and (timeline is None or known.with_timeline or known.why):
            return
        begin = device.own_seconds()
        try:
            if known is None:
                with launches.capturer.compiling, own_cache(launches.folder):
                    static = self._read(kernel.compiled, call.grid)
                known = self._of[kernel.compiled.hash] = _Experiment(static)
            known.with_timeline = timeline is not None
            with launches.capturer.compiling, own_cache(launches.folder):
                found = diagnose(known.kernel, [timeline] if timeline is not None else []).findings
            deadline = begin + LIMIT_S - known.seconds
            self._check(launches, kernel, call, known, found, deadline)
            self._try(launches, kernel, call, known, found, deadline)
        except (UsageError, MeasurementError) as error:
            if known is not None:
                known.why = str(error)
        except Exception as error:  # the script goes on
            if known is not None:
                known.why = why(error)
        finally:
            if known is not None:
                known.seconds += device.own_seconds() - begin

    def _check(
        self,
        launches: Interceptor,
        kernel: capture.Kernel,
        call: LaunchCall,
        known: _Experiment,
        found: Sequence[Finding],
        deadline: float,
    ) -> None:
        """Whether the kernel computes what it should, where a finding doubts it. Raises `UsageError` if it does not."""
        doubt = next((finding for finding in found if doubts_results(finding)), None)
        if doubt is None or known.checked is not None:
            return
        result = launches.capturer.check_results(kernel, call, doubt.right_with, current_call(), deadline)
        known.checked = Checked(than=result.than, launches=result.launches, different=result.different)
        if result.different:
            raise UsageError("its results are wrong")

    def _try(
        self,
        launches: Interceptor,
        kernel: capture.Kernel,
        call: LaunchCall,
        known: _Experiment,
        found: Sequence[Finding],
        deadline: float,
    ) -> None:
        wanted = [change for finding in found for change in finding.candidates]
        others = [one for one in other_options(known.kernel) if not wanted or "num_stages" in one]
        changes = {in_words(change): change for change in (*wanted, *others)}
        new = [change for words, change in changes.items() if words not in known.results]
        new = new[: MOST_CHANGES - len(known.results)]
        if not new:
            return
        now = current_call()
        tried = launches.capturer.try_changes(kernel, call, new, now, deadline)
        known.results |= _results(tried, known.kernel, now)

    def _read(self, compiled: CompiledKernel, grid: tuple[int, int, int]) -> Kernel:
        return inputs.of_launch(compiled, of(compiled.metadata.target), grid, self._histories)

    def diagnosis(
        self, compiled: CompiledKernel, grid: tuple[int, int, int], timelines: Sequence[Timeline]
    ) -> Diagnosis:
        """What rules find in a kernel, with what was measured of their candidates, and how long its launches take."""
        known, kernel = self._of.get(compiled.hash), self._read(compiled, grid)
        timed = self._timed(compiled)
        if known is None:
            return diagnose(kernel, timelines).model_copy(update=timed)
        results = [known.results.get(in_words(change)) for change in other_options(kernel)]
        explored = tuple(one for one in results if isinstance(one, Trial))
        diagnosis = diagnose(replace(kernel, explored=explored), timelines)
        findings = [with_results(_with_check(finding, known), known.results) for finding in diagnosis.findings]
        findings = [one for one in findings if one.id != launch_options.RULE.id or not _is_named(one, findings)]
        return diagnosis.model_copy(update={"findings": ranked(findings), "not_tried": known.why, **timed})

    def _timed(self, compiled: CompiledKernel) -> dict[str, Any]:
        """How often the script launched a kernel, and a launch's milliseconds."""
        known = self._scheduler.kernels.values() if self._scheduler is not None else ()
        mine = [one for one in known if one.compiled.hash == compiled.hash and one.launches]  # one on each GPU
        if self._scheduler is None or not mine:
            return {}
        launches = sum(one.launches for one in mine)
        total_ms = sum(one.launches * self._scheduler.launch_ms(one) for one in mine)
        return {"launches": launches, "launch_ms": total_ms / launches or None}


def _with_check(finding: Finding, known: _Experiment) -> Finding:
    """With what launches computed, if it doubts that: severe and sure, where it was wrong."""
    if not doubts_results(finding) or known.checked is None:
        return finding
    sure = {"severity": LEVELS[0], "confidence": LEVELS[0]} if known.checked.different else {}
    return finding.model_copy(update={"checked": known.checked, **sure})


def _is_named(explored: Finding, findings: Sequence[Finding]) -> bool:
    """Whether another finding has the fastest of its options, and a reason."""
    best = max(explored.tried, key=lambda one: one.low)
    return any(best in one.tried for one in findings if one is not explored)


def _results(tried: Tried, kernel: Kernel, call: JitCall | None) -> dict[str, Trial | Dropped]:
    found: dict[str, Trial | Dropped] = {}
    for change, reason in tried.dropped:
        found[in_words(change)] = Dropped(change=in_words(change), why=reason)
    for one in tried.measured:
        found[in_words(one.change)] = _trial(one, kernel, call)
    return found


def _trial(one: Measured, kernel: Kernel, call: JitCall | None) -> Trial:
    ratios = [before / after for before, after in zip(one.original_ms, one.changed_ms, strict=True)]
    low, high = interval(ratios)
    return Trial(
        change=in_words(one.change),
        speedup=statistics.median(ratios),
        low=low,
        high=high,
        equal=True,
        write=_line(one.change, kernel, call),
        original_ms=one.original_ms,
        changed_ms=one.changed_ms,
    )


def _line(change: Change, kernel: Kernel, call: JitCall | None) -> str:
    """What to write: an autotuner's configuration, or what the launch is given.

    Beside an autotuner a launch gives constexprs that no configuration has: Triton takes none from both.
    """
    if call is None or call.tuning is None:
        return f"{kernel.name}[grid](..., {in_words(change)})"
    of_launch = {name: value for name, value in change.items() if name not in (*call.tuning.best, *OPTIONS)}
    tuned = {name: value for name, value in change.items() if name not in of_launch}
    lines = [f"{kernel.name}[grid](..., {in_words(of_launch)})"] if of_launch else []
    return " and ".join([*lines, *([_configuration(call.tuning.best | tuned)] if tuned else [])])


def _configuration(chosen: Mapping[str, Any]) -> str:
    """A configuration of an autotuner, as it is written."""
    chosen = {name: value for name, value in chosen.items() if value is not None}
    options = {name: value for name, value in chosen.items() if name in OPTIONS and (name, value) != ("num_ctas", 1)}
    tiles = {name: value for name, value in chosen.items() if name not in (*OPTIONS, "ir_override")}
    return f"triton.Config({tiles!r}, {in_words(options)})"
