"""What is kept and printed of the kernels of a traced script: each one's files as soon as it has been read."""

import math
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from kperf.arch import of
from kperf.compat.triton.cache import own_cache
from kperf.errors import MeasurementError, UsageError
from kperf.ir import compile as compiler
from kperf.ir import kept as kept_ir
from kperf.ir.kept import KeptIr
from kperf.ir.override import sha256
from kperf.record import bandwidth, device
from kperf.record.files import make_output, named_from, start_of, write_atomically
from kperf.record.store import Environment
from kperf.trace.analyze import read, stalls
from kperf.trace.analyze.both import of_all, of_both
from kperf.trace.analyze.joining import Captured, join
from kperf.trace.analyze.models import (
    About,
    KernelResources,
    Overhead,
    Pass,
    PcSamples,
    Resources,
    SampledCtas,
    Timeline,
)
from kperf.trace.analyze.read import decode_launch, sass_order
from kperf.trace.analyze.timeline import Launch
from kperf.trace.capture.capturer import why
from kperf.trace.capture.gpu import times
from kperf.trace.capture.instrumented import InstrumentedKernel, orders
from kperf.trace.capture.interceptor import Interceptor
from kperf.trace.capture.kernels import CapturedLaunch, Kernel, KernelKey, TraceOptions
from kperf.trace.capture.multipass import MultiPass
from kperf.trace.capture.sampled import disturbs
from kperf.trace.instrument.events import strip, why_left_out
from kperf.trace.instrument.sampled import Sample

Draw = Callable[[Timeline, str, Path], list[Path]]
"""Draws a timeline, with a stamp on it, as files of a name without a suffix."""


@dataclass(frozen=True)
class Exported:
    """The text of a Chrome trace, and what part of the launch it shows, in words."""

    text: str
    shows: str


@dataclass(frozen=True)
class Formats:
    """How a timeline is drawn and put into sentences, and how CTAs of a launch are exported as a Chrome trace.

    `export` is given the launch, its SM clock in MHz, and what the trace says about itself.
    """

    draw: Draw
    sentences: Callable[[Timeline], list[str]]
    export: Callable[[Launch, float, Mapping[str, object]], Exported]


_FRAMES = 10_000
"""Depth of calls that reading and drawing may have, whatever the script allows itself."""


@dataclass
class Kept:
    """A kernel whose files are written: what they hold, and which of its launches that was read from.

    `one_pass`: its timeline by `launch` alone; `timeline`: what a sample or passes add, with its sentences.
    """

    kernel: Kernel
    path: Path
    buffer: NDArray[np.uint8]
    launch: Launch
    one_pass: Timeline
    timeline: Timeline
    more: object = None
    """What was known of its sample and its passes."""
    trace: Exported | None = None
    drawn: Launch | None = None
    """The launch that `trace` shows: `launch`, or the sample."""
    ir: KeptIr | None = None
    suffixes: list[str] = field(default_factory=list)
    """Of the files that are written."""

    @property
    def is_there(self) -> bool:
        """Whether all of its files are."""
        return all(self.path.with_name(self.path.name + suffix).exists() for suffix in self.suffixes)


class Results:
    """The files of a run, in `folder`, which is called `shown` in what is printed; without a folder no file is written.

    One kernel's error costs no other kernel anything, and none of its own files that was written before: the timeline
    comes first, the picture last. `problems` and `bugs` say what went wrong.
    """

    def __init__(self, folder: Path | None, shown: Path, formats: Formats, say: Callable[[str], None]) -> None:
        """Made before the script runs, which may go to another folder and change `sys.argv`."""
        self.problems: dict[KernelKey, UsageError | MeasurementError] = {}
        self.bugs: list[Exception] = []
        self.kept: dict[KernelKey, Kept] = {}
        self._folder = folder
        self._shown = shown
        self._formats = formats
        self._say = say
        self._here = Path.cwd()
        self._command_line = device.command_line()
        self._environments: dict[int, Environment] = {}

    def captured(self, launches: Interceptor, kernel: Kernel) -> None:
        """After a launch that was traced: reads and writes the kernel if its launches in turn, or its passes, are over.

        What is to be known of the GPU is asked now: an error of the script's own kernels may leave it without answers.
        """
        taken = kernel.taken
        if taken is None or taken.same_outputs is False:
            return
        with launches.gpu.at(kernel.device):
            try:
                if kernel.device not in self._environments:
                    environment = device.environment()
                    about = {"command_line": self._command_line}
                    self._environments[kernel.device] = environment.model_copy(update=about)
            except Exception as error:  # of NVML's or torch's: this is in the script's own launch
                self._refuse(kernel, MeasurementError(f"the GPU does not say what it is: {why(error)}"))
                return
            if launches.scheduler.is_timed(kernel) and (
                kernel.key not in self.kept or launches.scheduler.is_whole(kernel)
            ):
                self.keep(launches, kernel)

    def keep(self, launches: Interceptor, kernel: Kernel) -> None:
        """Read a kernel and write what was read, unless that is done already."""
        taken = kernel.taken
        if self._folder is not None and kernel.key in self.kept and not self.kept[kernel.key].is_there:
            del self.kept[kernel.key]  # the script has removed what was written
        if taken is None or kernel.device not in self._environments or self._is_current(kernel, taken):
            return
        known = kernel.key in self.kept
        begin = time.monotonic()
        try:
            with launches.capturer.compiling, _own_settings():
                kept = self._read(launches, kernel, taken)
        except (UsageError, MeasurementError) as error:
            self._refuse(kernel, error)
        except Exception as error:  # the other kernels are written all the same
            error.add_note(f"while what {kernel.name} recorded was read")
            self.bugs.append(error)
        else:
            beside = "its sample" if taken.sampled else "its passes" if taken.several else ""
            took, again = time.monotonic() - begin, f" again, with {beside}" if known and beside else ""
            where = "" if self._folder is None else f": {self._shown / kept.path.name}.timeline.json"
            self._say(f"read {kernel.name}{where}{again} ({took:.1f} s)")

    def draw(self, kept: Kept) -> None:
        """The picture of a kernel."""
        environment = kept.timeline.environment
        stamp = f"measured on {environment.gpu}, {environment.recorded_at[:10]}"
        try:
            with _own_settings():
                drawn = self._formats.draw(kept.timeline, stamp, kept.path)
        except (UsageError, MeasurementError) as error:
            self._refuse(kept.kernel, error, "has no picture")
        except Exception as error:  # its timeline is there
            self._refuse(kept.kernel, MeasurementError(why(error)), "has no picture")
        else:
            kept.suffixes += sorted((path.suffix for path in drawn), reverse=True)

    def print(self, console: Console, kept: Kept, *, checked: bool) -> None:
        """What was read of a kernel, and where it is."""
        for line in kept.timeline.verdict:
            console.print(line)
        if checked and kept.kernel.taken is not None:
            console.print(_checked(kept.kernel.taken))
        if kept.trace is not None:
            console.print(f"The Chrome trace shows {kept.trace.shows}.")
        console.print(f"written: {self._shown / kept.path.name}{', '.join(kept.suffixes)}")

    def refuse(self, kernel: Kernel, error: UsageError | MeasurementError) -> None:
        """Say at the end why a kernel is not traced; what was written of it before is no longer so."""
        self._refuse(kernel, error)
        if (kept := self.kept.pop(kernel.key, None)) and self._folder is not None:
            for suffix in kept.suffixes:
                kept.path.with_name(kept.path.name + suffix).unlink(missing_ok=True)

    def _refuse(self, kernel: Kernel, error: UsageError | MeasurementError, does: str = "is not traced") -> None:
        self.problems[kernel.key] = type(error)(f"{kernel.name} {does}: {error}")

    def _is_current(self, kernel: Kernel, taken: CapturedLaunch) -> bool:
        kept = self.kept.get(kernel.key)
        return kept is not None and kept.buffer is taken.buffer and kept.more == _more_of(taken)

    def _read(self, launches: Interceptor, kernel: Kernel, taken: CapturedLaunch) -> Kept:
        kept = self.kept.get(kernel.key)
        if kept is None or kept.buffer is not taken.buffer:
            launch = decoded(taken)
            timeline = self._of_one_pass(launches, kernel, taken, launch)
            kept = Kept(kernel, self._path(kernel), taken.buffer, launch, timeline, timeline)
        drawn, kept.timeline = self._with_more(launches, kernel, taken, kept)
        kept.more = _more_of(taken)
        path = kept.path.with_name(f"{kept.path.name}.timeline.json")
        self._write(path, kept.timeline.model_dump_json() + "\n")
        self.kept[kernel.key] = kept
        if kept.trace is None or kept.drawn is not drawn:
            environment = kept.timeline.environment
            about = {"kernel": kernel.name, "gpu": environment.gpu, "recorded_at": environment.recorded_at}
            about |= {"passes": "one, with all events"}
            kept.drawn, kept.trace = drawn, self._formats.export(drawn, kept.timeline.clock_mhz, about)
            self._write(kept.path.with_name(f"{kept.path.name}.chrome_trace.json"), kept.trace.text)
        if not kept.suffixes:
            kept.suffixes += [".timeline.json", ".chrome_trace.json"]
            self._keep_ir(launches, kernel, kept)
        return kept

    def _keep_ir(self, launches: Interceptor, kernel: Kernel, kept: Kept) -> None:
        """The levels that the original kernel was compiled through, for a page to show beside its timeline."""
        try:
            with own_cache(launches.folder):
                levels = kept_ir.levels_of_compiled(kernel.compiled)
        except UsageError as error:
            self._say(f"the IR of {kernel.name} is not kept: {error}")
            return
        target = of(kernel.compiled.metadata.target).name
        kept.ir = kept_ir.of_levels(kernel.name, target, levels, self._here)
        self._write(kept.path.with_name(kept.path.name + kept_ir.SUFFIX), kept.ir.packed())
        kept.suffixes.append(kept_ir.SUFFIX)

    def _path(self, kernel: Kernel) -> Path:
        """A file without a suffix: the kernel's name, and as much of its hash and its GPU as tells it from others."""
        if kernel.key in self.kept:
            return self.kept[kernel.key].path
        used = {kept.path.name for kept in self.kept.values()}
        name = start_of(re.sub(r"[^\w.-]", "_", kernel.name))
        names = (name, f"{name}.{kernel.compiled.hash[:8]}", f"{name}.{kernel.compiled.hash[:8]}.gpu{kernel.device}")
        return (self._folder or Path()) / next(unused for unused in names if unused not in used)

    def _write(self, path: Path, text: str | bytes) -> None:
        if self._folder is not None:
            make_output(self._folder)  # a script may remove what it takes for old results
            write_atomically(path, text)

    def _with_more(
        self, launches: Interceptor, kernel: Kernel, taken: CapturedLaunch, kept: Kept
    ) -> tuple[Launch, Timeline]:
        """The launch to draw, and the timeline with what a sample or passes add to it, or with why there are none.

        And with what events change.
        """
        drawn, timeline, why_one = kept.launch, kept.one_pass, _why_one(taken, launches.options)
        if taken.sampled and taken.sampled.original_spans:
            drawn, timeline = self._with_sample(launches, kernel, taken.sampled, kept)
        elif why_all := _why_all(launches, kernel, taken):
            timeline = of_all(timeline, drawn, why_all)
        if taken.several and why_one is None:
            try:
                timeline = join(timeline, kept.launch, taken.several.all_probes, _passes(launches, taken.several))
            except UsageError as error:
                why_one = f"for several cannot be joined: {error}"
        more = [] if why_one is None else [f"{kernel.name}: one pass, {why_one}."]
        timeline = stalls.decided(read.with_sources_from(self._here, timeline))
        sentences = self._formats.sentences(timeline)
        instrumented = taken.sampled.instrumented if taken.sampled and timeline.all_ctas else taken.instrumented
        return drawn, timeline.model_copy(update={"verdict": [*sentences, *more, *_disturbance(kernel, instrumented)]})

    def _with_sample(
        self, launches: Interceptor, kernel: Kernel, sample: CapturedLaunch, kept: Kept
    ) -> tuple[Launch, Timeline]:
        """The launch to draw, and the timeline of both; of all CTAs where nothing can be read from the sample."""
        try:
            launch = decoded(sample)
            timeline = of_both(kept.one_pass, kept.launch, self._of_one_pass(launches, kernel, sample, launch))
        except UsageError as error:
            return kept.launch, of_all(kept.one_pass, kept.launch, f"its sample is not read: {error}")
        return (launch if timeline.all_ctas else kept.launch), timeline

    def _of_one_pass(self, launches: Interceptor, kernel: Kernel, taken: CapturedLaunch, launch: Launch) -> Timeline:
        instrumented, scheduler = taken.instrumented, launches.scheduler
        original_ms = scheduler.median_ms(taken.original_spans) or scheduler.original_ms(kernel)
        instrumented_ms = scheduler.median_ms(taken.spans)
        if instrumented_ms is None:
            raise MeasurementError("the GPU did not say how long it took: an error of the script's ended its work")
        overhead = Overhead(
            original_ms=original_ms,
            instrumented_ms=instrumented_ms,
            ratio=instrumented_ms / original_ms if original_ms else None,
            original_samples_ms=times(taken.original_spans, launches.gpu, wait=True),
            instrumented_samples_ms=times(taken.spans, launches.gpu, wait=True),
        )
        order = sass_order(orders(instrumented, launches.folder))
        about = About(
            kernel=kernel.name,
            label=kernel.name,
            file=f"{named_from(self._here, str(kernel.file))}:{kernel.line}",
            ttgir_sha256=sha256(strip(instrumented.text)),
            grid=taken.grid,
            ctas_per_sm=instrumented.original_usage.occupancy,
            resources=Resources(
                original=KernelResources(**asdict(instrumented.original_usage)),
                instrumented=KernelResources(**asdict(instrumented.resource_usage)),
            ),
            arguments=taken.arguments,
            environment=self._environments[kernel.device],
            overhead=overhead,
            passes=[Pass(regions=list(launches.options.regions), overhead=overhead, sass_order=order)],
            bandwidth=bandwidth.measure(),
            sampled=_sampled(instrumented.sample, math.prod(taken.grid)),
            why_all=instrumented.why_all,
        )
        samples, no_samples = self._samples(launches, kernel, taken)
        return read.timeline(launch, about).model_copy(update={"samples": samples, "no_samples": no_samples})

    def _samples(self, launches: Interceptor, kernel: Kernel, taken: CapturedLaunch) -> tuple[PcSamples | None, str]:
        """What the GPU sampled of the original kernel by line; or why there is nothing, if it was asked for."""
        if taken.samples is None:
            return None, taken.no_samples
        try:
            with own_cache(launches.folder):
                code = compiler.read_compiled(kernel.compiled).code
        except UsageError as error:
            return None, str(error)
        assert code is not None
        sampled = taken.samples
        about = {"launches": sampled.launches, "period": sampled.period_cycles, "dropped": sampled.dropped}
        return stalls.by_line(code, sampled.pcs, lambda file: named_from(self._here, file), **about), ""


@contextmanager
def _own_settings() -> Iterator[None]:
    """What a script can set for its whole process, and what reading and drawing would stumble over."""
    frames = sys.getrecursionlimit()
    sys.setrecursionlimit(max(frames, _FRAMES))
    try:
        with np.errstate(all="warn"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.setrecursionlimit(frames)


def decoded(taken: CapturedLaunch) -> Launch:
    """The events of a launch, of the CTAs that were recorded; raises `UsageError` as `decode_launch` does."""
    instrumented = taken.instrumented
    return decode_launch(taken.buffer, instrumented.recording, instrumented.program, instrumented.sample)


def _more_of(taken: CapturedLaunch) -> object:
    """What is known of a kernel's sample and its passes: equal as long as nothing more is."""
    passes = taken.several and (len(taken.several.passes), len(taken.several.waiting))
    sample = taken.sampled and (len(taken.sampled.spans), len(taken.sampled.original_spans))
    return taken.why_all, sample, taken.why_one, passes


def _why_all(launches: Interceptor, kernel: Kernel, taken: CapturedLaunch) -> str:
    """Why no sample is read beside the launch of all CTAs, if one is wanted."""
    if taken.why_all is not None or not launches.options.wants_sampled_ctas:
        return taken.why_all or ""
    cost = launches.scheduler.cost(kernel, taken)
    if cost is None or not disturbs(taken.instrumented, cost, launches.folder):
        return ""
    return "the script launches it too few times"


def _why_one(taken: CapturedLaunch, options: TraceOptions) -> str | None:
    """Why there are not several passes, if they were asked for."""
    if options.passes == 1:
        return None
    if taken.why_one:
        return f"for {taken.why_one}"
    if taken.several is None:
        return "for the script launches it too few times"
    if waiting := len(taken.several.waiting):
        count = len(taken.several.passes)
        grid = " x ".join(map(str, taken.grid))
        return f"for {waiting} of the {count} launches of grid {grid} that several would want did not come"
    return None


def _passes(launches: Interceptor, several: MultiPass) -> list[Captured]:
    """The passes of a kernel as they ran, in turn with the original kernel."""
    captured = []
    original_ms = launches.scheduler.median_ms(several.original_spans)
    for one_pass in several.passes:
        assert one_pass.buffer is not None
        instrumented_ms = launches.scheduler.median_ms(one_pass.spans)
        if instrumented_ms is None or original_ms is None:
            raise UsageError("the GPU did not say how long they took")
        ratio = instrumented_ms / original_ms
        overhead = Overhead(original_ms=original_ms, instrumented_ms=instrumented_ms, ratio=ratio)
        recording, probes = one_pass.recording, several.all_probes
        captured.append(Captured.of(one_pass.chosen, one_pass.buffer, recording, probes, overhead))
    return captured


def _checked(taken: CapturedLaunch) -> str:
    if taken.same_outputs is None:
        return "Checked: the original kernel itself does not write the same bits twice, so they are not compared."
    return "Checked: its instrumented kernel writes what the original kernel writes, bit for bit."


def _sampled(sample: Sample | None, ctas: int) -> SampledCtas | None:
    if sample is None:
        return None
    return SampledCtas(stride=sample.stride, first=sample.first, recorded=sample.count(ctas), ctas=ctas)


def _disturbance(kernel: Kernel, instrumented: InstrumentedKernel) -> list[str]:
    """Sentences on what events change in the kernel that they observe, and on what has none."""
    sentences = []
    if instrumented.left_out:
        sentences.append(f"{kernel.name}: {why_left_out(instrumented.left_out)}.")
    if instrumented.without:
        kinds = " and ".join(f"{kind}s" if kind == "load" else kind for kind in instrumented.without)
        sentences.append(
            f"{kernel.name}: its {kinds} have no events, which would make it spill more, and are parts of the gaps "
            "between other regions."
        )
    if places := instrumented.own_order_differs:
        sentences.append(
            f"{kernel.name}: the code of the CTAs that are not recorded has another order of instructions than the "
            f"original, in {places} place{'s' * (places != 1)}."
        )
    if instrumented.spilled_more:
        sentences.append(
            f"{kernel.name}: its events make it spill {instrumented.spilled_more} bytes a thread more: record fewer "
            "regions with --regions."
        )
    if instrumented.ctas_lost:
        sentences.append(
            f"{kernel.name}: its events leave room for {instrumented.resource_usage.occupancy} CTAs an SM where "
            f"{instrumented.original_usage.occupancy} fit: trace fewer regions with --regions."
        )
    return sentences
