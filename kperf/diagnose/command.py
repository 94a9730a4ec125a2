"""`kperf diagnose`: read kernels, run the rules, print, and say by the exit status whether findings are bad."""

import itertools
import json
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kperf.arch import SM_90A, of
from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.launches import LaunchCall, intercepted_launches, refused_kernels
from kperf.compat.triton.tuning import noted_calls
from kperf.console import WholeConsole, agreeing
from kperf.diagnose import inputs
from kperf.diagnose.compilations import diagnose_all
from kperf.diagnose.engine import OF_A_TIMELINE, diagnose_timeline
from kperf.diagnose.experiments import Experiments
from kperf.diagnose.finding import EDITED, Diagnoses, Diagnosis
from kperf.diagnose.page import page
from kperf.diagnose.reading.lines import source_line
from kperf.diagnose.results import is_refuted
from kperf.diagnose.rule import has_only_options
from kperf.diagnose.sarif import sarif
from kperf.diagnose.thresholds import TUNED_GAIN
from kperf.errors import UsageError
from kperf.record import device
from kperf.record.files import write_atomically
from kperf.report import diff
from kperf.report.formats import formats
from kperf.report.styles import STYLES
from kperf.trace import command as trace
from kperf.trace.analyze.finding import LEVELS, Checked, Finding, Source
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture.gpu import Gpu
from kperf.trace.capture.kernels import TraceOptions
from kperf.trace.capture.script import Script
from kperf.trace.capture.trial import in_words

_SHOWN = 3
"""Findings a kernel that are printed unless all are wanted."""


@dataclass(frozen=True)
class Request:
    """What is asked for.

    target: an architecture. signature, constexprs, options: of `file.py:function`. as_json, as_sarif: print or write
    this instead of text. fail_if: a severity at which, or above, the exit status is 1. explain: print all findings,
    with the rules' pages. try_out: compile and time the configurations that findings name; None is yes for a script.
    samples: let the GPU sample the original kernels; None is yes for a script. wait: for others that measure on the
    GPU, before the script runs.
    """

    target: str = SM_90A.name
    signature: str | None = None
    constexprs: Sequence[str] = ()
    options: dict[str, Any] = field(default_factory=dict)
    as_json: bool = False
    as_sarif: Path | None = None
    fail_if: str | None = None
    explain: bool = False
    try_out: bool | None = None
    samples: bool | None = None
    wait: bool = False


def run(console: Console, what: str, arguments: Sequence[str], request: Request, *, static: bool) -> int:
    """`kperf diagnose`; returns the exit status. Raises `UsageError` if a GPU is asked for and there is none."""
    if request.fail_if is not None and request.fail_if not in LEVELS:
        raise UsageError(f"--fail-if {request.fail_if} is no severity: choose from {', '.join(LEVELS)}")
    recorded = what.endswith(".json") and all(other.endswith(".json") for other in arguments)
    if request.try_out and (static or recorded):
        raise UsageError("--try times kernels, which only a script on a GPU launches: leave it out here")
    if request.samples and (static or recorded):
        raise UsageError("--samples takes samples of kernels that a script launches on a GPU: leave it out here")
    if request.wait and (static or recorded):
        raise UsageError("--wait waits for a GPU, and nothing is launched on one: leave it out here")
    if recorded:
        return run_recorded(console, [what, *arguments], request)
    if static:
        return run_static(console, what, arguments, request)
    return run_traced(console, what, arguments, request)


def run_recorded(console: Console, files: Sequence[str], request: Request) -> int:
    """Diagnose recorded timelines; of two say what `kperf diff` says, and which findings are gone and new.

    Raises `UsageError` for what is no timeline.
    """
    if len(files) > 2:
        raise UsageError("more than two timelines: give one to diagnose it, or two to compare them")
    timelines = [read_timeline(Path(file)) for file in files]
    found = Diagnoses(kernels=[diagnose_timeline(timeline) for timeline in timelines])
    show(console, found, request)
    if len(timelines) == 2 and not request.as_json and str(request.as_sarif) != "-":
        before, after = ({finding.id for finding in one.findings} for one in found.kernels)
        diff.run(console, Path(files[0]), Path(files[1]), markdown=False, most_slower=None)
        for word, ids in (("gone", before - after), ("new", after - before)):
            if ids:
                console.print(Text(f"  {word}: {', '.join(sorted(ids))}"))
    return exit_status(found, request.fail_if)


def run_traced(
    console: Console, script: str, arguments: Sequence[str], request: Request, gpu: Gpu | None = None
) -> int:
    """Trace a script's kernels and diagnose them by what was measured and by how they were compiled.

    Returns the script's exit status if it is not 0, and 2 if it launches no kernel. A kernel that cannot be traced is
    diagnosed by how it was compiled. Raises `UsageError` without a GPU.
    """
    if reason := device.why_static():
        raise UsageError(f"{reason}; `kperf diagnose --static` needs no GPU")
    experiments = Experiments(wanted=request.try_out is not False)
    asked = gpu or Gpu()

    def note(kernel: CompiledKernel) -> Callable[[LaunchCall], None]:
        def noted(call: LaunchCall) -> None:
            if asked.capturing():  # into a CUDA graph: no launch of its own
                experiments.launched.setdefault(kernel.hash, (kernel, call.grid))
            call()

        return noted

    with (
        tempfile.TemporaryDirectory() as folder,
        intercepted_launches(note),
        noted_calls(),
        refused_kernels() as refused,
    ):

        def before(*launch: Any) -> None:
            refused.clear()  # a tuner's, which the script goes on without
            experiments.before(*launch)

        traced = Script(script, tuple(arguments))
        status = trace.run(
            WholeConsole(quiet=True),
            traced,
            TraceOptions(samples=request.samples is not False, wait=request.wait),
            Path(folder),
            formats(lambda *_: []),
            asked,
            before=before,
            untraced=0,
        )
        timelines = [read_timeline(path) for path in sorted(Path(folder).glob("*.timeline.json"))]
    if status and refused:  # the script ended with it
        experiments.launched.setdefault(refused[-1].hash, (refused[-1], (0, 0, 0)))
    kernels = [
        experiments.diagnosis(kernel, grid, timelines)
        for kernel, grid in experiments.launched.values()
        if "proton.record" not in kernel.asm.get("ttgir", "proton.record")
    ]
    found = Diagnoses(kernels=sorted(kernels, key=lambda one: one.total_ms, reverse=True))
    show(console, found, request)
    return status or (exit_status(found, request.fail_if) if found.kernels else 2)


def run_static(console: Console, what: str, arguments: Sequence[str], request: Request) -> int:
    """Diagnose without a GPU; returns the exit status.

    Raises `UsageError` for what cannot be read, compiled or is not known.
    """
    arch = of(request.target)
    kernels = inputs.read(
        what,
        arguments,
        arch,
        signature=request.signature,
        constexprs=request.constexprs,
        options=request.options,
    )
    found = Diagnoses(kernels=diagnose_all(kernels))
    show(console, found, request)
    return exit_status(found, request.fail_if)


def show(console: Console, found: Diagnoses, request: Request) -> None:
    """Print what was found, as text, JSON or SARIF."""
    if request.as_sarif is not None:
        text = json.dumps(sarif(found), indent=1) + "\n"
        if str(request.as_sarif) == "-":
            console.out(text, end="", highlight=False)
        else:
            write_atomically(request.as_sarif, text)
    if request.as_json:
        console.out(found.model_dump_json(indent=1), highlight=False)
    elif str(request.as_sarif) != "-":
        for diagnosis in found.kernels:
            name, times = _name_among(found.kernels, diagnosis), _times(diagnosis, found.kernels)
            _show_kernel(console, diagnosis, name, times, explain=request.explain)


def exit_status(found: Diagnoses, fail_if: str | None) -> int:
    """1 if there is a finding of this severity or a worse one."""
    if fail_if is None:
        return 0
    bad = LEVELS[: LEVELS.index(fail_if) + 1]  # type: ignore[arg-type]
    return int(any(finding.severity in bad for one in found.kernels for finding in one.findings))


def _name_among(kernels: Sequence[Diagnosis], one: Diagnosis) -> str:
    """Its name; with the line where it begins, or its constants, where these tell it from another one of the name."""
    others = [other for other in kernels if other.kernel == one.kernel and other is not one]
    place = f" ({_place(one.source)})" if any(other.source != one.source for other in others) else ""
    constants = one.apart_from(other for other in others if other.source == one.source)
    return f"{one.kernel}{place}{f' with {constants}' if constants else ''}"


def _times(diagnosis: Diagnosis, kernels: Sequence[Diagnosis]) -> str:
    """How long a kernel's launches take, and their part of all kernels' time; empty if that was not measured."""
    if diagnosis.launches is None or diagnosis.launch_ms is None:
        return ""
    count, share = diagnosis.launches, diagnosis.total_ms / sum(one.total_ms for one in kernels)
    launches = f", {count} {agreeing(count, 'launch', 'launches')} of {diagnosis.launch_ms:.3g} ms"
    return launches + (f", {share:.0%} of the kernels' time" if len(kernels) > 1 else "")


def _show_kernel(console: Console, diagnosis: Diagnosis, name: str, times: str, *, explain: bool) -> None:
    many = diagnosis.configurations
    constants = in_words(diagnosis.constants)
    best = f", the best of {many} configurations of its autotuner by what is found: {constants}" if many > 1 else ""
    read_from = ", read from its timeline" if diagnosis.target == OF_A_TIMELINE else f" for {diagnosis.target}"
    console.print(Text(f"{name}{read_from}{times}{best}", style="bold"))
    alike = _alike(diagnosis.findings)
    shown = [[one] for one in alike] if explain else _by_edit(one for one in alike if not _is_idle(one[0]))[:_SHOWN]
    for findings, *others in shown:
        _show_findings(console, findings, list(itertools.chain(*others)))
    if explain:
        for rule in dict.fromkeys(first.id for first, *_ in alike):
            console.print(Text(page(rule)))
    hidden = len(diagnosis.findings) - sum(len(findings) for together in shown for findings in together)
    if hidden:
        console.print(Text(f"  and {hidden} more: --explain shows all"))
    if not shown:
        nothing = "nothing that helps was found" if hidden else "nothing found"
        console.print(Text(f"  {nothing}; {diagnosis.bound.message}"))
    if diagnosis.not_tried:
        what = "the rest was not" if any(one.tried or one.dropped for one in diagnosis.findings) else "nothing was"
        console.print(Text(f"  {what} tried: {diagnosis.not_tried}"))
    for ignored in diagnosis.ignored:
        console.print(Text(f"  ignored: {ignored}"))
    if diagnosis.skipped:
        reasons, count = sorted(set(diagnosis.skipped.values())), len(diagnosis.skipped)
        rules = agreeing(count, "rule", "rules")
        console.print(Text(f"  {count} {rules} could not run ({'; '.join(reasons)}): {', '.join(diagnosis.skipped)}"))


def _is_idle(finding: Finding) -> bool:
    """Whether it is a hint because nothing that it advises is faster."""
    return finding.severity == LEVELS[-1] and is_refuted(finding)


def _alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Findings that say the same of several lines, as of all loads of a loop, together; in the order of the first.

    So do those that one change serves, of which the first names the others' lines.
    """
    together: dict[str, list[Finding]] = {}
    for finding in findings:
        lines = finding.evidence.get("lines_together")
        own = finding.model_dump_json(exclude={"source", "evidence"})
        together.setdefault(f"{finding.id} {finding.severity} {lines}" if lines else own, []).append(finding)
    return list(together.values())


def _by_edit(alike: Iterable[list[Finding]]) -> list[list[list[Finding]]]:
    """Those whose advice is the same edit together, in the order of the first, which leads."""
    together: dict[object, list[list[Finding]]] = {}
    for findings in alike:
        edited = findings[0].evidence.get(EDITED)
        together.setdefault(edited or id(findings), []).append(findings)
    return list(together.values())


def _show_findings(console: Console, findings: Sequence[Finding], others: Sequence[Finding]) -> None:
    """Their lines, once what they all say, and the other findings that the advice serves."""
    for each in findings:
        place = _place(each.source) or each.kernel
        head = Text("  ")
        head.append(f"{each.severity:<6}", style=STYLES[each.severity])
        head.append(f"  {place}  {source_line(each.source)}")
        console.print(head)
    finding = findings[0]
    console.print(Text(f"          {finding.message} [{finding.id}]"))
    console.print(Text(f"          {finding.advice}{_gain(finding)}"))
    if others:
        console.print(Text(f"          the same change serves {_served(others)}"))
    best = max(finding.tried, key=lambda one: one.low, default=None)
    faster = best is not None and best.low >= TUNED_GAIN
    telling = ("agrees",) if faster else ("agrees", "disagrees")
    if finding.witness is not None and finding.witness.agreement in telling:
        decides = ", and decide" if finding.witness.decides else ""
        verb = "agree" if finding.witness.agreement == "agrees" else "disagree"
        console.print(Text(f"          samples {verb}{decides}: {finding.witness.message}"))
    if finding.checked is not None:
        console.print(Text(f"          {_checked(finding.checked)}"))
    if best is not None:
        line = f"write: {best.write}  # {best.speedup:.2f} x, {best.low:.2f} to {best.high:.2f}"
        rest = "" if has_only_options(finding) else "; the rest of the advice was not timed"
        console.print(Text(f"          {line if faster else f'none of these is at least 3% faster here{rest}'}"))
    for why in dict.fromkeys(one.why for one in finding.dropped):
        changes = "; ".join(one.change for one in finding.dropped if one.why == why)
        console.print(Text(f"          left out {changes}: {why}"))


def _served(findings: Sequence[Finding]) -> str:
    """Their rules, each with its places: `[uncoalesced-access] (it.py:8) and [narrow-access] (it.py:8, it.py:9)`."""
    places: dict[str, dict[str, None]] = {}
    for finding in findings:
        places.setdefault(finding.id, {})[_place(finding.source)] = None
    *first, last = (f"[{rule}] ({', '.join(of_rule)})" for rule, of_rule in places.items())
    return f"{', '.join(first)} and {last}" if first else last


def _checked(checked: Checked) -> str:
    """What launches of a kernel computed whose results are in doubt."""
    others = f"those with {checked.than}" if checked.than else "those of the first launch"
    if checked.different:
        return f"wrong here: the results of {checked.different} of {checked.launches} launches are not {others}"
    return f"no wrong result seen here: the results of all {checked.launches} launches are {others}"


def _place(source: Source) -> str:
    """File and line; empty where neither is known."""
    name = Path(source.file).name
    return f"{name}:{source.line}" if source.line else name


def _gain(finding: Finding) -> str:
    """What the advice gives, as estimated and as measured."""
    words = [_estimated(finding)] if finding.estimate is not None else []
    if finding.tried:
        first = finding.tried[0].change.partition("=")[0]
        changes = [trial.change.removeprefix(f"{first}=") for trial in finding.tried[1:]]
        named = zip(finding.tried, [finding.tried[0].change, *changes], strict=True)
        words.append("measured " + ", ".join(f"{trial.speedup:.2f} x ({change})" for trial, change in named))
    return f" ({', '.join(filter(None, words))})" if any(words) else ""


def _estimated(finding: Finding) -> str:
    """Its estimate in words: of one that rounds to 1, the most that it may give; empty where that is 1 too."""
    one = finding.estimate
    assert one is not None
    likely, high = _rounded(one.speedup), _rounded(one.high)
    if likely == "1":
        return "" if high == "1" else f"estimated at most {high} x"
    return f"estimated {likely} x" + ("" if finding.tried else f", {_rounded(one.low)} to {high}")


def _rounded(number: float) -> str:
    """To two digits, and never as a power of ten."""
    return f"{number:.2g}" if number < 99.5 else f"{number:.0f}"
