"""Trace and diagnose kernels from Python: a `with` block, or a call of a function. docs/api.md is its users' page.

What a script sees of itself is as under `kperf trace`: its instrumented kernels are launched in the place of its own.
"""

import copy
import gzip
import itertools
import logging
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial, wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from kperf.errors import MeasurementError, UsageError
from kperf.record import stack
from kperf.trace import CTAS, PASSES

if TYPE_CHECKING:
    from kperf.compat.triton import CompiledKernel
    from kperf.compat.triton.launches import LaunchCall
    from kperf.diagnose.reading import kernel as read
    from kperf.diagnose.script.history import Histories
    from kperf.ir.kept import KeptIr
    from kperf.report.report import Report
    from kperf.trace.analyze.finding import Finding
    from kperf.trace.analyze.models import Timeline
    from kperf.trace.capture.interceptor import Interceptor
    from kperf.trace.capture.kernels import Kernel, TraceOptions
    from kperf.trace.results import Kept, Results

_P = ParamSpec("_P")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)

_LOG = logging.getLogger("kperf")


@dataclass(frozen=True)
class KernelTrace:
    """A traced kernel. `chrome_trace`: text of a Chrome trace (Trace Event Format), None where no CTA is whole.

    `compiled`: the original kernel as Triton compiled it. `ir`: its levels from TTIR to machine code, each line with
    its line of source; None where its machine code cannot be read. `histories`: the launches among which it was.
    """

    name: str
    timeline: "Timeline"
    chrome_trace: str | None
    compiled: "CompiledKernel" = field(repr=False)
    ir: "KeptIr | None" = field(repr=False)
    histories: "Histories" = field(repr=False)

    @cached_property
    def findings(self) -> "list[Finding]":
        """What can be changed about the kernel, as `kperf diagnose` finds it, the worst first."""
        from kperf.arch import of
        from kperf.compat.triton.cache import own_cache
        from kperf.diagnose.engine import diagnose
        from kperf.diagnose.inputs import of_launch

        with tempfile.TemporaryDirectory(prefix="kperf-findings-") as folder, own_cache(Path(folder)):
            x, y, z = self.timeline.grid
            kernel = of_launch(self.compiled, of(self.compiled.metadata.target), (x, y, z), self.histories)
            return diagnose(kernel, [self.timeline]).findings

    def report(self) -> str:
        """One self-contained HTML page of the kernel. Raises `UsageError` if the packages for it are missing."""
        return _page([self])

    def _repr_html_(self) -> str:
        return _shown(self)

    def __str__(self) -> str:
        return "\n".join(self.timeline.verdict)


class Trace(AbstractContextManager["Trace"]):
    """What `kperf.trace` gives: open as a `with` block, it traces; closed, it holds what was read.

    Attributes:
        kernels: traced kernels by name, the slowest first; a second compilation of a function is `name.<hash>`.
        problems: why kernels that were asked for were not traced, a `UsageError` or `MeasurementError` each.
        folder: where files were written, as `kperf trace` writes them; None if nowhere.
    """

    def __init__(self, options: "TraceOptions", out: Path | None) -> None:
        """What to trace, and the folder for its files, if any."""
        self.kernels: dict[str, KernelTrace] = {}
        self.problems: list[UsageError | MeasurementError] = []
        self.folder: Path | None = None
        self._options, self._out = options, out
        self._open = ExitStack()
        self._launches: Interceptor
        self._results: Results
        self._histories: Histories

    def __enter__(self) -> "Trace":
        """From now on launches of this process are seen. Raises `UsageError` if nothing can be traced here."""
        if reason := stack.look().why_no_cuda():
            raise UsageError(reason)
        from kperf.compat.triton.tuning import noted_calls
        from kperf.diagnose.script.history import Histories
        from kperf.record.files import make_output
        from kperf.report.formats import formats
        from kperf.trace import command
        from kperf.trace.capture.gpu import Gpu
        from kperf.trace.capture.interceptor import Interceptor
        from kperf.trace.instrument.events import read_rules
        from kperf.trace.results import Results

        command.refuse_what_cannot_work(self._options)
        if self._out is not None:
            self.folder = command.own_folder(self._out).absolute()
            make_output(self.folder)
        self.kernels, self.problems, histories = {}, [], Histories()

        def note(_: "Interceptor", kernel: "Kernel", call: "LaunchCall", _traced: bool) -> None:
            histories.note(kernel.compiled, call)
            histories.note_arguments(kernel.compiled, call)

        results = Results(self.folder, self.folder or Path(), formats(lambda *_: []), _LOG.info)
        launches = Interceptor(
            self._options,
            read_rules(),
            Gpu(),
            _LOG.info,
            lambda kernel: results.captured(launches, kernel),
            before=note,
        )
        self._launches, self._results = self._open.enter_context(launches), results
        self._histories = histories
        self._open.enter_context(noted_calls())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave everything as it was, and read what was captured.

        After an exception, which goes on, and in a process that was forked in the block, there is only what was read
        before it. Raises `MeasurementError` if an instrumented kernel wrote other bits (`check`) or could not be read,
        and `UsageError` if nothing was traced.
        """
        from kperf.trace import command

        with self._open:
            if error is not None or self._launches.is_in_a_fork:
                self._keep(list(self._results.kept.values()))
                return
            self._launches.end()
            self._keep(command.read_chosen(self._launches, self._results))
            self.problems = list(command.problems_of(self._launches, self._results))
        if self._results.bugs:
            raise self._results.bugs[0]
        if failed := [problem for problem in self.problems if isinstance(problem, MeasurementError)]:
            raise failed[0]
        if self.problems and not self.kernels:
            raise self.problems[0]

    def report(self) -> str:
        """One self-contained HTML page of all kernels, side by side where there are several.

        Raises `UsageError` if nothing was traced, or the packages for it are missing.
        """
        return _page(list(self.kernels.values()))

    def _keep(self, kept: "Sequence[Kept]") -> None:
        self.kernels = {
            each.path.name: KernelTrace(
                each.path.name,
                each.timeline,
                each.trace.text if each.trace else None,
                each.kernel.compiled,
                each.ir,
                self._histories,
            )
            for each in kept
        }

    def _repr_html_(self) -> str:
        return _shown(self)

    def __str__(self) -> str:
        return "\n".join([*map(str, self.kernels.values()), *map(str, self.problems)])

    def __repr__(self) -> str:
        return f"<Trace of {', '.join(self.kernels) or 'no kernel'}>"


def trace(
    kernel: str | Sequence[str] = "*",
    *,
    launch: int | None = None,
    regions: str | Sequence[str] = "*",
    check: bool = False,
    memory: int = 1024,
    passes: str = PASSES,
    ctas: str = CTAS,
    samples: bool = False,
    out: str | Path | None = None,
) -> Trace:
    """Trace the Triton kernels that a `with` block launches: `with kperf.trace(kernel="matmul*") as t: step()`.

    kernel: name of kernels with * and ?, or several. launch: which launch in the block; the third, or else the first.
    regions: names of regions to take events of. check: compare what instrumented and original kernel write, bit for
    bit. memory: MB on the GPU for the events of a launch. passes: over how many launches the events of an iteration
    are spread: "auto", "1" or at most "N". ctas: "all"; "sampled" to record every 17th (of small launches every 7th or
    5th) and let the others run the original code; "auto" for all, and sampled ones of later launches where that
    disturbs the kernel. samples: let the GPU sample the original kernels too. out: folder for the files of `kperf
    trace`; without it nothing is written.

    After the block the interceptor, Triton's hooks, caches and the environment are as they were, also when it raises.
    Raises `UsageError` and `MeasurementError` with the sentences of `kperf trace`.
    """
    installed = stack.look()
    if reason := installed.why_no_compiler():
        raise UsageError(reason)
    for warning in installed.warnings():
        _LOG.warning(warning)
    from kperf.trace.capture.kernels import TraceOptions, parse_ctas
    from kperf.trace.capture.passes import parse

    if launch is not None and launch < 1:
        raise UsageError(f"launch={launch} is no launch: the first is 1")
    options = TraceOptions(
        patterns=_names(kernel, "kernel"),
        launch=launch,
        regions=_names(regions, "regions"),
        memory=memory << 20,
        check=check,
        passes=parse(passes),
        ctas=parse_ctas(ctas),
        samples=samples,
    )
    return Trace(options, None if out is None else Path(out))


class Traced(Protocol[_P, _R_co]):
    """A function of which one call is traced; `trace` holds what that gave, None until then."""

    trace: Trace | None

    def __call__(self, *arguments: _P.args, **options: _P.kwargs) -> _R_co:
        """Call the function."""
        ...


@overload
def traced(function: Callable[_P, _R]) -> Traced[_P, _R]: ...


@overload
def traced(*, call: int = 1, **options: Any) -> Callable[[Callable[_P, _R]], Traced[_P, _R]]: ...


def traced(function: Callable[..., Any] | None = None, *, call: int = 1, **options: Any) -> Any:
    """Trace one call of a function, `@kperf.traced` the first and `@kperf.traced(call=100, kernel="matmul*")` another.

    `options` are those of `kperf.trace`. The function's attribute `trace` is what was read: None before that call. All
    other calls are left alone. Raises what `kperf.trace` raises, in that call.
    """
    if call < 1:
        raise UsageError(f"call={call} is no call: the first is 1")
    if function is None:
        return partial(traced, call=call, **options)
    calls = itertools.count(1)

    @wraps(function)
    def counted(*arguments: Any, **named: Any) -> Any:
        if next(calls) != call:
            return function(*arguments, **named)
        with trace(**options) as counted.trace:  # type: ignore[attr-defined]
            return function(*arguments, **named)

    counted.trace = None  # type: ignore[attr-defined]
    return counted


def diagnose(function: Callable[..., Any], *arguments: Any, **named: Any) -> "list[Finding]":
    """Call a function once and find what makes the Triton kernels that it launches slow, the worst first.

    On a GPU that can be traced, kernels are traced and sampled, and their timelines are read too. Elsewhere nothing is
    computed, as under `kperf diagnose --static`: `cuda` tensors, and those among the arguments, have shapes and no
    numbers, kernels are compiled for sm_90a, and what the function prints is dropped.

    Raises `UsageError` if it launches no kernel that can be read; on a GPU also what the function and `kperf.trace` do.
    """
    if reason := stack.look().why_no_compiler():
        raise UsageError(reason)
    from kperf.diagnose.compilations import diagnose_all
    from kperf.diagnose.engine import ranked
    from kperf.record import device

    if device.why_static() is None:
        with trace(samples=True) as t:
            function(*arguments, **named)
        for problem in t.problems:
            _LOG.warning(problem)
        return ranked(finding for kernel in t.kernels.values() for finding in kernel.findings)
    return ranked(
        finding
        for diagnosis in diagnose_all(_compiled_in(function, arguments, named))
        for finding in diagnosis.findings
    )


def _compiled_in(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> "list[read.Kernel]":
    """The kernels that a call launches where there is no GPU. Raises `UsageError` if there is none."""
    from kperf.arch import SM_90A
    from kperf.diagnose.inputs import of_launches
    from kperf.diagnose.script.without_gpu import launches_of
    from kperf.trace.capture.script import Script

    class Call(Script):
        """The function in the place of a script; an exception ends it as one ends a script."""

        def check(self) -> None:
            """There it is."""

        def run(self) -> int:
            """Call it, with shapes in the place of tensors."""
            try:
                _shapes_of(function)(*_shapes_of(arguments), **_shapes_of(named))
            except Exception as error:
                ended.append(error)
            return 0

    ended: list[Exception] = []
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        launches = launches_of(Call(name, ()), SM_90A)
    except UsageError:
        why = f": it ended with {type(ended[0]).__name__}: {ended[0]}" if ended else ""
        raise UsageError(f"{name} launches no Triton kernel without a GPU{why}") from None
    if ended:
        _LOG.warning("%s ended early without a GPU: what it launches after that is not read (%s)", name, ended[0])
    return of_launches(launches, SM_90A)


def _shapes_of(value: Any) -> Any:
    """Tensors and modules without their numbers (torch's `meta`), also in lists, tuples and dictionaries."""
    import torch

    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to("meta")
    if isinstance(value, torch.Tensor):
        return value.to("meta")
    if type(value) in (list, tuple):
        return type(value)(map(_shapes_of, value))
    return {key: _shapes_of(part) for key, part in value.items()} if type(value) is dict else value


def _names(given: str | Sequence[str], option: str) -> tuple[str, ...]:
    names = (given,) if isinstance(given, str) else tuple(given)
    if not all(names) or not names:
        raise UsageError(f"{option}={given!r} names nothing: give a name with * and ?, or several in a list")
    return names


def _page(kernels: Sequence[KernelTrace]) -> str:
    if not kernels:
        raise UsageError("there is no traced kernel to report")
    try:
        from kperf.report import html
    except ModuleNotFoundError as error:
        from kperf.installation import why_missing

        raise UsageError(why_missing(error.name or str(error))) from None
    return html.page([_report(kernel) for kernel in kernels], Path())


def _report(kernel: KernelTrace) -> "Report":
    from kperf.report.events import typical_cta
    from kperf.report.report import Report

    timeline = kernel.timeline.model_copy(update={"findings": [_recorded(finding) for finding in kernel.findings]})
    if kernel.chrome_trace is None:
        return Report(timeline, None, None, kernel.ir)
    packed = gzip.compress(kernel.chrome_trace.encode(), mtime=0)
    return Report(timeline, typical_cta(kernel.chrome_trace), packed, kernel.ir)


def _recorded(finding: "Finding") -> "Finding":
    """A finding as a timeline has it: its file named from this folder on where it lies inside."""
    from kperf.record.files import named_from

    named = named_from(Path.cwd(), finding.source.file)
    return finding.model_copy(update={"source": finding.source.model_copy(update={"file": named})})


def _shown(traced: Trace | KernelTrace) -> str:
    """A report inside of a page, as in a notebook: neither's styles and scripts reach the other's.

    What stands in the way of a report is shown instead.
    """
    from html import escape

    try:
        page = traced.report()
    except UsageError as error:
        return f"<pre>{escape(str(traced))}\n{escape(str(error))}</pre>"
    return f'<iframe srcdoc="{escape(page)}" style="width: 100%; height: 80vh; border: 0"></iframe>'
