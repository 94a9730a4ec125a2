"""`kperf trace`: run a script, launch the twins of its kernels once each, write and say what their records show."""

import difflib
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kperf.compat.triton import interpreting, why_no_events
from kperf.console import complain
from kperf.errors import MeasurementError, UsageError
from kperf.ir.override import refuse_environment_override, sha256
from kperf.record import bandwidth, device
from kperf.record.files import make_output, write_atomically
from kperf.trace.analyze import read
from kperf.trace.analyze.joining import Captured, join
from kperf.trace.analyze.models import About, KernelResources, Overhead, Pass, Resources, Timeline
from kperf.trace.analyze.read import Exported, decode_launch, export, sass_order
from kperf.trace.capture.gpu import Gpu
from kperf.trace.capture.instrumented import InstrumentedKernel, ResourceUsage, orders, resource_usage
from kperf.trace.capture.interceptor import MOST_KERNELS, CapturedLaunch, Interceptor, Kernel, TraceOptions
from kperf.trace.capture.multipass import MultiPass
from kperf.trace.capture.script import Script
from kperf.trace.instrument.events import read_rules, strip

Draw = Callable[[Timeline, str, Path], list[Path]]
"""Draws a timeline, with a stamp on it, as files of a name without a suffix."""


def run(console: Console, script: Script, choice: TraceOptions, out: Path, draw: Draw, gpu: Gpu | None = None) -> int:
    """Run the script, trace or list its kernels, and return the exit status of both together.

    The script's own status if it is not 0; else 1 if a traced kernel did something wrong, 2 if nothing could be traced.
    Raises `UsageError` before the script runs if this cannot work at all.
    """
    script.check()
    _refuse_what_cannot_work(choice)
    folder = _own_folder(out)
    if not choice.listing:
        make_output(folder)
    with Interceptor(choice, read_rules(), gpu or Gpu(), complain) as launches:
        status = script.run()
        sys.stdout.flush()
    if choice.listing:
        console.print(listing(launches))
        return status
    problems, written = _report(console, launches, folder, draw)
    for problem in problems:
        complain(str(problem))
    if status or not problems:
        return status
    if any(isinstance(problem, MeasurementError) for problem in problems):
        return 1
    return 0 if written else 2


def _refuse_what_cannot_work(choice: TraceOptions) -> None:
    if reason := device.why_static():
        raise UsageError(f"{reason}; `kperf instrument` needs no GPU and puts records into a TTGIR file")
    if interpreting():
        raise UsageError("TRITON_INTERPRET is set, with which no kernel reaches the GPU: unset it")
    refuse_environment_override()
    if not choice.listing and (reason := why_no_events()):
        raise UsageError(reason)


def _own_folder(out: Path) -> Path:
    """Where this process writes: of several that torchrun started, each has a folder of its own."""
    return out / f"rank{os.environ['RANK']}" if os.environ.get("RANK", "").isdigit() else out


def listing(launches: Interceptor) -> Table:
    """All kernels, the slowest first."""
    table = Table(title="kernels that the script launched", title_justify="left")
    for column in ("kernel", "file", "launches", "grid", "warps", "registers", "shared", "blocks an SM"):
        table.add_column(column, justify="left" if column in {"kernel", "file"} else "right")
    table.add_column("GPU time", justify="right")
    table.add_column("share", justify="right")
    total = sum(map(launches.total_ms, launches.kernels.values()))
    for kernel in launches.chosen:
        used = resource_usage(kernel.compiled)
        mine = launches.total_ms(kernel)
        table.add_row(
            kernel.name,
            f"{kernel.file}:{kernel.line}",
            str(kernel.launches),
            " x ".join(map(str, kernel.grid)),
            str(kernel.compiled.metadata.num_warps),
            str(used.registers),
            str(used.shared_bytes),
            str(used.occupancy),
            f"{mine:.3f} ms",
            f"{mine / total:.1%}" if total else "-",
        )
    return table


def _report(console: Console, launches: Interceptor, folder: Path, draw: Draw) -> tuple[list[Exception], int]:
    """Write and print what was traced, the slowest kernel first; returns what went wrong, and how many were written."""
    chosen, choice = launches.chosen, launches.choice
    if not chosen:
        return [_nothing_chosen(launches)], 0
    problems: list[Exception] = []
    bugs: list[Exception] = []
    used: set[str] = set()
    for kernel in chosen:
        try:
            if kernel.taken is None:
                raise kernel.problem or _why_not(kernel, choice)
            if kernel.taken.same_outputs is False:
                raise MeasurementError("its twin writes other bits than the plain kernel from the same arguments")
            timeline, exported = _read(launches, kernel, kernel.taken)
        except (UsageError, MeasurementError) as error:
            problems.append(type(error)(f"{kernel.name} is not traced: {error}"))
            continue
        except Exception as error:  # the other kernels are written all the same
            error.add_note(f"while what {kernel.name} recorded was read")
            bugs.append(error)
            continue
        path = folder / _file_name(kernel, used)
        _write(path, timeline, exported.text, draw)
        for line in timeline.verdict:
            console.print(line)
        if choice.check:
            console.print(_checked(kernel.taken))
        console.print(f"The Chrome trace shows {exported.shows}.")
        console.print(f"written: {path}.timeline.json, .chrome_trace.json, .png, .pdf")
    if bugs:
        raise bugs[0]
    return problems, len(used)


def _write(path: Path, timeline: Timeline, events: str, draw: Draw) -> None:
    """All files of a kernel, each whole or not there; the timeline last, so that with it all are there."""
    environment = timeline.environment
    write_atomically(path.with_name(f"{path.name}.chrome_trace.json"), events)
    draw(timeline, f"measured on {environment.gpu}, {environment.recorded_at[:10]}", path)
    write_atomically(path.with_name(f"{path.name}.timeline.json"), timeline.model_dump_json(indent=1) + "\n")


def _nothing_chosen(launches: Interceptor) -> UsageError:
    """Why there is no kernel to trace."""
    wanted = ", ".join(launches.choice.patterns)
    reach = "kernels of libraries, C++ wrappers and the driver's own launches are not in reach"
    names = sorted({kernel.name for kernel in launches.kernels.values()})
    if not names:
        return UsageError(f"the script launched no Triton kernel; {reach}")
    near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.3) or names[:3]
    return UsageError(f"no Triton kernel is called {wanted}, but {', '.join(near)} (--list shows all); {reach}")


def _why_not(kernel: Kernel, choice: TraceOptions) -> UsageError:
    if not kernel.launches:
        return UsageError("it was launched into a CUDA graph alone, which is left as it is: launch it once before")
    if choice.launch is not None and kernel.launches < choice.launch:
        return UsageError(f"it was launched {kernel.launches} times, and --launch asks for launch {choice.launch}")
    return UsageError(f"{MOST_KERNELS} other kernels are traced: choose it with --kernel")


_LETTERS = 120
"""Of a kernel's name in a file's: with ending and a temporary name's letters it may have 255 bytes."""


def _file_name(kernel: Kernel, used: set[str]) -> str:
    """The kernel's name; with the start of its hash if another of that name has the file."""
    name = re.sub(r"[^\w.-]", "_", kernel.name)[:_LETTERS]
    name = f"{name}.{kernel.compiled.hash[:8]}" if name in used else name
    used.add(name)
    return name


def _read(launches: Interceptor, kernel: Kernel, taken: CapturedLaunch) -> tuple[Timeline, Exported]:
    """From the bytes of a traced launch to its timeline and its Chrome trace."""
    twin = taken.twin
    order = sass_order(orders(twin))
    plain_ms, traced_ms = launches.plain_ms(kernel), launches.median_ms(taken.spans)
    overhead = Overhead(plain_ms=plain_ms, traced_ms=traced_ms, ratio=traced_ms / plain_ms if plain_ms else None)
    environment = device.environment()
    about = About(
        kernel=kernel.name,
        label=kernel.name,
        file=f"{_from_here(Path(kernel.file))}:{kernel.line}",
        ttgir_sha256=sha256(strip(twin.text)),
        grid=taken.grid,
        blocks_per_sm=twin.original_usage.occupancy,
        resources=Resources(plain=_resources(twin.original_usage), twin=_resources(twin.resource_usage)),
        arguments=taken.arguments,
        environment=environment,
        overhead=overhead,
        passes=[Pass(regions=list(launches.choice.regions), overhead=overhead, sass_order=order)],
        bandwidth=bandwidth.measure(),
    )
    launch = decode_launch(taken.buffer, twin.recording, twin.program)
    timeline = read.timeline(launch, about)
    why = _why_one(taken, launches.choice)
    if taken.several and why is None:
        try:
            timeline = join(timeline, launch, taken.several.edges, _captured(launches, taken.several))
        except UsageError as error:
            why = f"for several cannot be joined: {error}"
    if why is not None:
        timeline = timeline.model_copy(update={"verdict": [*timeline.verdict, f"{kernel.name}: one pass, {why}."]})
    timeline = timeline.model_copy(update={"verdict": [*timeline.verdict, *_disturbance(kernel, twin)]})
    told = {"kernel": kernel.name, "gpu": environment.gpu, "recorded_at": environment.recorded_at}
    told["passes"] = "one, with all records"
    return timeline, export(launch, timeline.clock_mhz, told)


def _why_one(taken: CapturedLaunch, choice: TraceOptions) -> str | None:
    """Why there are not several passes, if they were asked for."""
    if choice.passes == 1:
        return None
    if taken.why_one:
        return f"for {taken.why_one}"
    if taken.several is None:
        return "for the script launches it too few times"
    if waiting := len(taken.several.waiting):
        count = len(taken.several.passes)
        return f"for {waiting} of the {count} launches of grid {taken.grid} that several would want did not come"
    return None


def _captured(launches: Interceptor, several: MultiPass) -> list[Captured]:
    """The passes of a kernel as they ran, in turn with the plain kernel."""
    found = []
    plain_ms = launches.median_ms(several.plain_spans)
    for one in several.passes:
        assert one.buffer is not None
        twin, traced_ms = one.chosen.twin, launches.median_ms(one.spans)
        told = Pass(
            regions=several.edges.named(twin.places),
            overhead=Overhead(plain_ms=plain_ms, traced_ms=traced_ms, ratio=traced_ms / plain_ms),
            sass_order=sass_order(one.chosen.orders),
            resources=_resources(one.chosen.built.resource_usage),
            records_a_trip=max(map(len, twin.places)),
        )
        found.append(Captured(twin, decode_launch(one.buffer, one.recording, twin.program), told))
    return found


def _checked(taken: CapturedLaunch) -> str:
    if taken.same_outputs is None:
        return "Checked: the plain kernel itself does not write the same bits twice, so they are not compared."
    return "Checked: its twin writes what the plain kernel writes, bit for bit."


def _resources(found: ResourceUsage) -> KernelResources:
    return KernelResources(
        registers=found.registers,
        spilled_bytes=found.spilled_bytes,
        shared_bytes=found.shared_bytes,
        occupancy=found.occupancy,
    )


def _disturbance(kernel: Kernel, twin: InstrumentedKernel) -> Sequence[str]:
    """Sentences on what records change in the kernel that they observe."""
    sentences = []
    if twin.spilled_more:
        sentences.append(
            f"{kernel.name}: its records make it spill {twin.spilled_more} bytes a thread more: record fewer regions "
            "with --regions."
        )
    if twin.blocks_lost:
        sentences.append(
            f"{kernel.name}: its records leave room for {twin.resource_usage.occupancy} blocks an SM where "
            f"{twin.original_usage.occupancy} fit: record fewer regions with --regions."
        )
    return sentences


def _from_here(file: Path) -> Path:
    """Relative to the working directory if it lies in there: a record that travels names no folder of one machine."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file
