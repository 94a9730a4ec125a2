"""`kperf trace`: run a script, trace its kernels, write and print what their events show."""

import difflib
import os
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kperf.compat.triton.launches import LaunchCall
from kperf.compat.triton.sources import interpreting
from kperf.console import printable, titled_table
from kperf.errors import MeasurementError, UsageError
from kperf.ir.override import refuse_environment_override
from kperf.record import device
from kperf.record.files import make_output
from kperf.trace.analyze.models import Timeline
from kperf.trace.capture.gpu import Gpu
from kperf.trace.capture.instrumented import resource_usage
from kperf.trace.capture.interceptor import Interceptor
from kperf.trace.capture.kernels import MOST_KERNELS, Kernel, TraceOptions
from kperf.trace.capture.script import Script
from kperf.trace.capture.selfcheck import why_no_events
from kperf.trace.ending import reported
from kperf.trace.instrument.events import read_rules
from kperf.trace.results import Formats, Kept, Results
from kperf.trace.streams import Stream

Page = Callable[[Sequence[Path]], None]
"""Puts timelines on one page, beside them."""
Before = Callable[[Interceptor, Kernel, LaunchCall, bool, Timeline | None], None]
"""Called before a launch: whether it is traced, and the kernel's timeline if that was read already."""


def run(
    console: Console,
    script: Script,
    options: TraceOptions,
    out: Path,
    formats: Formats,
    gpu: Gpu | None = None,
    page: Page | None = None,
    before: Before | None = None,
    untraced: int = 2,
) -> int:
    """Run the script, trace or list its kernels, and return the exit status of both together.

    `page` is called at the end with the timelines that were written, `before` ahead of each launch of the script's own.
    The script's own status if it is not 0; else 1 if a traced kernel did something wrong, `untraced` if nothing could
    be traced.
    Raises `UsageError` before the script runs if this cannot work at all.
    """
    script.check()
    refuse_what_cannot_work(options)
    shown = own_folder(out)
    if not options.listing:
        make_output(shown)
    output, error = Stream("stdout"), Stream("stderr")
    printed: set[str] = set()
    say = _sayer(error, printed)
    results = Results(shown.absolute(), shown, formats, say)
    printed_to = None if console.file is sys.stdout else console.file  # None: what standard output is then
    console.file = output.file
    launches: Interceptor

    def captured(kernel: Kernel) -> None:
        results.captured(launches, kernel)

    def ahead(launches: Interceptor, kernel: Kernel, call: LaunchCall, traced: bool) -> None:
        kept = results.kept.get(kernel.key)
        assert before is not None
        before(launches, kernel, call, traced, kept.timeline if kept is not None else None)

    def often() -> None:
        if options.stop and launches.scheduler.is_all_read(results.kept):
            say("all that was asked for is read: the script is ended (--stop)")
            if threading.current_thread() is not threading.main_thread():
                end(0)
            raise SystemExit(0)

    def report(status: int) -> int:
        launches.end()
        output.restore()
        error.restore()
        return _report(console, launches, results, say, printed, page, untraced, status)

    def report_and_leave() -> int:
        try:
            return report(0)
        finally:
            launches.close()

    try:
        ours = ahead if before is not None else None
        with Interceptor(options, read_rules(), gpu or Gpu(), say, captured, often, ours) as launches:
            if options.wait:
                launches.capturer.wait()
            with reported(report_and_leave) as end:
                status = script.run()
            if launches.is_in_a_fork:  # which ends as it would
                return status
            reported_status = report(status)
            if results.bugs:
                raise results.bugs[0]
            return status or reported_status
    finally:
        console.file = printed_to  # type: ignore[assignment]  # rich says so of None, and takes it
        for stream in (output, error):
            stream.close()


def _sayer(stream: Stream, printed: set[str]) -> Callable[[str], None]:
    def say(line: str) -> None:
        printed.add(line)
        print(f"kperf: {printable(line)}", file=stream.file, flush=True)

    return say


def refuse_what_cannot_work(options: TraceOptions) -> None:
    """Raise `UsageError` if nothing can be traced here, or with these options."""
    if reason := device.why_static():
        raise UsageError(f"{reason}; `kperf diagnose --static` needs no GPU")
    if interpreting():
        raise UsageError("TRITON_INTERPRET is set, with which no kernel reaches the GPU: unset it")
    refuse_environment_override()
    if not options.listing and (reason := why_no_events()):
        raise UsageError(reason)


def own_folder(out: Path) -> Path:
    """Where this process writes: of several that torchrun started, each has a folder of its own."""
    return out / f"rank{os.environ['RANK']}" if os.environ.get("RANK", "").isdigit() else out


def _report(
    console: Console,
    launches: Interceptor,
    results: Results,
    say: Callable[[str], None],
    printed: Collection[str],
    page: Page | None,
    untraced: int,
    ended: int,
) -> int:
    """Write and print what was traced, the slowest kernel first; returns the exit status of a script that had none.

    `ended`: with which the script ended itself.

    Problems that were printed while the script ran (`printed`) come again only if the exit status is not 0 for them.

    First all files and then all pictures are written, and then all is printed: nothing waits for a slow reader. The GPU
    is given back before the pictures.
    """
    if launches.options.listing:
        console.print(listing(launches))
        return 0
    kept = read_chosen(launches, results)
    launches.capturer.close()
    for kernel in kept:
        results.draw(kernel)
    for kernel in kept:
        results.print(console, kernel, checked=launches.options.check)
    if page is not None and kept:
        page([kernel.path.with_name(f"{kernel.path.name}.timeline.json") for kernel in kept])
    problems = problems_of(launches, results, ended)
    wrong = results.bugs or any(isinstance(problem, MeasurementError) for problem in problems)
    status = 1 if wrong else untraced if problems and not kept else 0
    for line in dict.fromkeys(map(str, problems)):
        if status or line not in printed:
            say(line)
    return status


def read_chosen(launches: Interceptor, results: Results) -> list[Kept]:
    """What is read of the kernels that were asked for, the slowest first; `problems_of` says why of others nothing."""
    launches.trace_graphs()
    chosen = launches.scheduler.chosen
    for kernel in chosen:
        if problem := _problem(kernel, launches, results):
            results.refuse(kernel, problem)
        else:
            results.keep(launches, kernel)
    return [results.kept[kernel.key] for kernel in chosen if kernel.key in results.kept]


def problems_of(launches: Interceptor, results: Results, ended: int = 0) -> list[UsageError | MeasurementError]:
    """Why some of the kernels that were asked for are not traced, or why there are none, a sentence each.

    `ended`: the exit status of the script.
    """
    return list(results.problems.values()) if launches.scheduler.chosen else [_nothing_chosen(launches, ended)]


def _problem(kernel: Kernel, launches: Interceptor, results: Results) -> UsageError | MeasurementError | None:
    """Why there is nothing to be read of a kernel; one that made room for another was perhaps read before."""
    if kernel.taken is None:
        if kernel.key in results.kept:
            return None
        return kernel.problem or _why_not(kernel, launches)
    if kernel.taken.same_outputs is False:
        return MeasurementError(
            "its instrumented kernel writes other bits than the original kernel, from the same arguments"
        )
    return None


def listing(launches: Interceptor) -> Table:
    """All kernels, the slowest first."""
    headers = ("kernel", "file", "launches", "grid", "warps", "registers", "shared", "CTAs an SM", "GPU time", "share")
    table = titled_table("kernels that the script launched", *headers, left={"kernel", "file"})
    scheduler = launches.scheduler
    total = sum(map(scheduler.total_ms, scheduler.kernels.values()))
    for kernel in scheduler.chosen:
        used = resource_usage(kernel.compiled, launches.folder)
        own_ms = scheduler.total_ms(kernel)
        table.add_row(
            kernel.name,
            f"{kernel.file}:{kernel.line}",
            str(kernel.launches),
            " x ".join(map(str, kernel.grid)),
            str(kernel.compiled.metadata.num_warps),
            str(used.registers),
            str(used.shared_bytes),
            str(used.occupancy),
            f"{own_ms:.3f} ms",
            f"{own_ms / total:.1%}" if total else "-",
        )
    return table


def _nothing_chosen(launches: Interceptor, ended: int) -> UsageError:
    """Why there is no kernel to trace."""
    wanted = ", ".join(launches.options.patterns)
    reach = "kernels of libraries, C++ wrappers, the driver's own launches and other processes are not in reach"
    names: Sequence[str] = sorted({kernel.name for kernel in launches.scheduler.kernels.values()})
    if not names and ended:
        return UsageError(
            f"the script ended with status {ended} before it launched a Triton kernel: what is printed above says why"
        )
    if not names:
        return UsageError(f"the script launched no Triton kernel; {reach}")
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.3) or names[:3]
    return UsageError(f"no Triton kernel is called {wanted}, but {', '.join(near)} (--list shows all); {reach}")


def _why_not(kernel: Kernel, launches: Interceptor) -> UsageError:
    launch = launches.options.launch
    if not kernel.launches:
        return UsageError(
            "it was launched into a CUDA graph alone, which is left as it is: launch it once before, or give --check, "
            "with which it is launched once more by itself"
        )
    if launch is not None and kernel.launches < launch:
        return UsageError(f"it was launched {kernel.launches} times, and --launch asks for launch {launch}")
    if launch is None and launches.scheduler.is_one_of_many(kernel):
        return UsageError(
            f"it is one of {launches.scheduler.siblings(kernel)} compilations that were launched a few times each, as "
            "by a tuner: --launch N traces that launch of each"
        )
    if launches.scheduler.is_full:
        return UsageError(f"{MOST_KERNELS} other kernels are traced: choose it with --kernel")
    return UsageError("the script ended before a launch of it was traced: let it run for longer")
