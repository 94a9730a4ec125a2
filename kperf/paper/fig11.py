"""Fig. 11 from end to end: trace where there is a Hopper GPU, else read the recorded timelines; then draw and tell."""

import functools
import io
import re
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from rich.console import Console

from kperf.attention import overrides as override
from kperf.attention import variants
from kperf.attention.implementations import bind_attn_fwd
from kperf.attention.overrides import Override
from kperf.attention.variants import Specialization
from kperf.attention.workload import FIG11, Workload
from kperf.compat.triton import TritonError
from kperf.console import announce
from kperf.errors import UsageError
from kperf.ir.compile import several
from kperf.ir.override import prove_launched
from kperf.paper import instrumented
from kperf.plots import fig11 as plot
from kperf.record import device
from kperf.record.files import require_writable, write_atomically
from kperf.record.store import gpu_slug, recorded_folder
from kperf.report.chrome import export
from kperf.report.sentences import between, table, verdict
from kperf.studies import overhead as costs
from kperf.trace import PASSES
from kperf.trace.analyze.joining import Captured, join
from kperf.trace.analyze.models import About, KernelResources, Overhead, Pass, Resources, Timeline
from kperf.trace.analyze.predict import NoPredictionError, predict
from kperf.trace.analyze.read import decode_launch, pipeline, sass_order, with_sources_from
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture.buffers import Call, Capture, capture
from kperf.trace.capture.instrumented import resource_usage
from kperf.trace.capture.passes import ChosenPass, parse, recording_of_pass
from kperf.trace.capture.traced import Orders, Traced, choose, compile_orders, make_traced
from kperf.trace.instrument.events import strip
from kperf.trace.instrument.program import Program
from kperf.trace.instrument.session import Recording, session

VARIANTS = tuple(name for name, variant in variants.VARIANTS.items() if variant.in_fig11)
"""The timelines of the figure, from above."""

ALONE = tuple(name for name, variant in variants.VARIANTS.items() if not variant.in_fig11)
"""Not of the paper's figure: each has a picture of its own."""

SEED = 11


@dataclass(frozen=True)
class TracedOverride:
    """An override to look into, its instrumented kernel, and what is known of both.

    `passes`: over which its records are spread besides; none if the kernel with all events is the only one.
    """

    name: str
    label: str
    original: Override
    traced: Traced
    program: Program
    orders: Orders
    passes: instrumented.Passes | None = None


def subject(variant: str) -> TracedOverride:
    """A variant with its committed instrumented kernel.

    Raises `UsageError` if a file is missing, edited or out of date.
    """
    original = override.find(variant, Specialization())
    traced, program = instrumented.find(original)
    orders = compile_orders(instrumented.subject_of(original), traced)
    return TracedOverride(variant, original.manifest.label, original, traced, program, orders)


def in_passes(item: TracedOverride, most: int | None, say: Callable[[str], None]) -> TracedOverride:
    """The same with its passes compiled: as many as were chosen for it, or at most so many."""
    return replace(item, passes=instrumented.compile_passes_of(item.original, most, say))


def subject_from_file(path: Path) -> TracedOverride:
    """A person's TTGIR: one with events, which is run as it is, or one without, which gets them.

    Raises `UsageError` if it does not fit in the place of `attn_fwd`, does not compile, or leaves no room for records.
    """
    like = override.find(VARIANTS[0], Specialization())
    given = override.from_file(path, like)
    original = Override(path, strip(given.text), given.entry, given.manifest)
    entry = given.entry.model_copy(update={"shared_bytes": _shared_bytes(original)})
    original = Override(path, original.text, entry, given.manifest)
    kernel = instrumented.subject_of(original)
    traced, program = make_traced(kernel, given.text if given.text != original.text else choose(kernel), path)
    # The name keeps its files apart from those of the variants.
    return TracedOverride(f"override_{path.stem}", path.stem, original, traced, program, compile_orders(kernel, traced))


def _shared_bytes(original: Override) -> int:
    """The shared memory of an override, from compiling it. Raises `UsageError` if it does not compile."""
    try:
        with redirect_stdout(io.StringIO()):  # on which Triton prints the whole PTX that ptxas refuses
            shared_bytes: int = original.compile().metadata.shared
    except (RuntimeError, TritonError) as error:  # a pass of Triton's, or ptxas
        first = re.search(r"; error\s*: (.+)", str(error))
        why = first.group(1) if first else str(error).partition("\n")[0]
        raise UsageError(f"{original.path} does not compile for sm_90a: {why}") from None
    return shared_bytes


def normal_qkv(workload: Workload) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Normal q, k and v on the GPU, the same in every run: the original kernel's output is the reference here."""
    generator = torch.Generator(device="cuda").manual_seed(SEED)
    dtype = getattr(torch, workload.dtype)
    q, k, v = (torch.randn(workload.shape, generator=generator, device="cuda").to(dtype) for _ in range(3))
    return q, k, v


def bind(
    original: Override, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], workload: Workload, text: str
) -> Call:
    """A launch of `attn_fwd` with this TTGIR in place of the override's; returns o and lse."""
    call = bind_attn_fwd(*inputs, workload.causal, workload.sm_scale, original.replaced(original.path, text))
    return lambda: [written for written in call() if written is not None]


def prove(subjects: Sequence[TracedOverride]) -> None:
    """Compile all that will be launched, of all kernels at once, and prove it (`ir.override.prove_launched`).

    Raises `UsageError` and `MeasurementError` as that does.
    """
    by_recording: dict[Recording | None, list[Override]] = {}
    for item in subjects:
        kernel = instrumented.subject_of(item.original)
        of_passes = [(one.probed.text, recording_of_pass(one.probed.program, kernel)) for one in _chosen(item)]
        for text, recording in [(item.original.text, None), (item.traced.text, item.traced.recording), *of_passes]:
            by_recording.setdefault(recording, []).append(item.original.replaced(item.original.path, text))
    for recording, launched in by_recording.items():
        with session(recording) if recording else nullcontext():
            prove_launched(list(zip(launched, several(Override.compile, launched), strict=True)))


def _chosen(item: TracedOverride) -> list[ChosenPass]:
    return item.passes.chosen if item.passes else []


def trace(
    item: TracedOverride, inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], workload: Workload, rounds: int
) -> tuple[Timeline, str]:
    """Launch a kernel and its instrumented kernels on the GPU; returns the timeline, and the Chrome trace as JSON text.

    The Chrome trace is of the kernel with all events, the timeline of all passes where there are several. Raises
    `UsageError` and `MeasurementError` as `capture`, `decode_launch` and `export` do.
    """
    call_original, call_traced = (
        bind(item.original, inputs, workload, text) for text in (item.original.text, item.traced.text)
    )
    captured = capture(str(item.original.path), call_original, call_traced, item.traced.recording, rounds)
    launch = decode_launch(captured.buffer, item.traced.recording, item.program)
    environment = device.environment()
    resources = _resources(item)
    overhead = _overhead(captured)
    about = About(
        kernel=item.program.kernel_name,
        label=item.label,
        file=f"{item.original.path.parent.name}/{item.original.path.name}",
        ttgir_sha256=item.original.sha256,
        grid=item.original.grid(workload.rows, device.sm_count()),
        ctas_per_sm=resources.original.occupancy,
        resources=resources,
        workload=str(workload),
        environment=environment,
        overhead=overhead,
        passes=[Pass(regions=["*"], overhead=overhead, sass_order=sass_order(item.orders))],
    )
    timeline = pipeline(launch, about)
    more = []
    if item.passes:
        captured_passes = _captured(item, item.passes, inputs, workload, rounds)
        try:
            timeline = join(timeline, launch, item.passes.all_probes, captured_passes)
        except UsageError as error:
            more = [f"One pass, for several cannot be joined: {error}."]
    timeline = with_sources_from(Path.cwd(), timeline)
    timeline = timeline.model_copy(update={"verdict": [*verdict(timeline), *more]})
    told = {
        "passes": "one, with all events",
        "variant": item.name,
        "label": item.label,
        "gpu": environment.gpu,
        "recorded_at": environment.recorded_at,
    }
    return timeline, export(launch, timeline.clock_mhz, told).text


def _captured(
    item: TracedOverride,
    passes: instrumented.Passes,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    workload: Workload,
    rounds: int,
) -> list[Captured]:
    """Launch the instrumented kernel of each pass in turn with the original kernel."""
    kernel = instrumented.subject_of(item.original)
    call_original = bind(item.original, inputs, workload, item.original.text)
    all_captured = []
    for chosen in passes.chosen:
        recording = recording_of_pass(chosen.probed.program, kernel)
        traced = bind(item.original, inputs, workload, chosen.probed.text)
        taken = capture(str(item.original.path), call_original, traced, recording, rounds)
        all_captured.append(Captured.of(chosen, taken.buffer, recording, passes.all_probes, _overhead(taken)))
    return all_captured


def _overhead(captured: Capture) -> Overhead:
    original_ms, instrumented_ms = map(statistics.median, (captured.original_ms, captured.instrumented_ms))
    return Overhead(original_ms=original_ms, instrumented_ms=instrumented_ms, ratio=instrumented_ms / original_ms)


def _resources(item: TracedOverride) -> Resources:
    kernel = instrumented.subject_of(item.original)
    original = resource_usage(kernel.compile(kernel.text))
    with session(item.traced.recording):
        traced = resource_usage(kernel.compile(item.traced.text))
    return Resources(original=KernelResources(**asdict(original)), instrumented=KernelResources(**asdict(traced)))


def record(console: Console, subjects: Sequence[TracedOverride], workload: Workload, folder: Path, rounds: int) -> None:
    """Trace each kernel on the GPU; when all are traced, write the two files of each into `folder`.

    Raises `UsageError` where there is no Hopper GPU or the records are not whole, and `MeasurementError` if a traced
    kernel computes something else than the original one; what was recorded before is then left as it is.
    """
    begin = time.monotonic()
    inputs = normal_qkv(workload)
    traced = [trace(item, inputs, workload, rounds) for item in subjects]
    folder.mkdir(parents=True, exist_ok=True)
    for item, (timeline, events) in zip(subjects, traced, strict=True):
        write_atomically(folder / f"{item.name}.chrome_trace.json", events)
        write_atomically(folder / f"{item.name}.timeline.json", timeline.model_dump_json() + "\n")
        console.print(
            f"traced {timeline.label}: {timeline.ctas} CTAs, {timeline.events.written} events "
            f"({timeline.events.lost} lost), {timeline.overhead}, "
            f"written {time.monotonic() - begin:.1f} s after the start"
        )


def record_costs(
    console: Console, subjects: Sequence[TracedOverride], workload: Workload, folder: Path, rounds: int
) -> None:
    """Time other ways to record each kernel and write `<name>.costs.json` into `folder`; needs a Hopper GPU."""
    inputs = normal_qkv(workload)
    for item in subjects:
        calls = functools.partial(bind, item.original, inputs, workload)
        found = costs.measure(console, instrumented.subject_of(item.original), item.traced, calls, rounds)
        costs.write(found, folder / f"{item.name}.costs.json")
        console.print(costs.table(found, item.label))


def report(console: Console, folder: Path, subjects: Sequence[TracedOverride], *, measured: bool) -> list[Path]:
    """Draw the figure from the files of `subjects` and print table and verdict; returns the figure's files.

    Raises `UsageError` if one of the files is missing or broken.
    """
    names = [item.name for item in subjects]
    timelines = [read_timeline(folder / "fig11" / f"{name}.timeline.json") for name in names]
    stamp, written = draw(timelines, folder, names, measured=measured)
    console.print(table(timelines, stamp))
    for item, timeline in zip(subjects, timelines, strict=True):
        if timeline.ttgir_sha256 != item.original.sha256:
            console.print(
                f"{item.label}: recorded of an earlier override ({timeline.ttgir_sha256[:12]}, and "
                f"{item.original.path.name} is {item.original.sha256[:12]}): `make fig11` on a Hopper GPU records it "
                "anew"
            )
    for line in [line for timeline in timelines for line in verdict(timeline)]:
        console.print(line)
    if len(timelines) == 2:
        for line in [*between(*timelines), *_predicted(timelines, subjects)]:
            console.print(line)
    return announce(console, written, stamp)


def draw(
    timelines: Sequence[Timeline], folder: Path, names: Sequence[str], *, measured: bool
) -> tuple[str, list[Path]]:
    """Draw the timelines of these names; where they come from in words, and the figure's files."""
    gpus = ", ".join(dict.fromkeys(timeline.environment.gpu for timeline in timelines))
    newest = max(timeline.environment.recorded_at for timeline in timelines)
    stamp = f"{'measured' if measured else 'recorded'} on {gpus}, {newest[:10]}; {timelines[0].workload}"
    stem = "fig11" if (*names,) == VARIANTS else f"fig11_{'_'.join(names)}"
    return stamp, plot.draw(timelines, stamp, folder / stem)


def _predicted(timelines: Sequence[Timeline], subjects: Sequence[TracedOverride]) -> list[str]:
    """Each schedule's iteration time from the other's stage times, where those were recorded."""
    lines = []
    for measured, predicted, item in zip(timelines, timelines[::-1], subjects[::-1], strict=True):
        if measured.replay is not None:
            try:
                cycles = predict(item.program, measured)
            except NoPredictionError as error:
                lines.append(f"{predicted.label}: nothing is predicted from {measured.label}: {error}.")
                continue
            lines.append(
                f"{predicted.label}: from stage times measured in {measured.label} and its own schedule an iteration "
                f"takes {cycles:.0f} cycles, {cycles / predicted.cycles_per_unit.median - 1:+.1%} of what was measured."
            )
    return lines


def run(
    console: Console,
    results: Path,
    *,
    file: Path | None,
    rounds: int,
    require_gpu: bool,
    with_costs: bool = False,
    passes: str = PASSES,
) -> None:
    """`make fig11`: both variants and ours, or one file of a person's own.

    `passes`: auto, 1, or the most launches over which the records of an iteration are spread.
    `with_costs` also times other ways to record, of ours none: its records fit into device memory only. Without a GPU
    ours is drawn if it is recorded.

    Raises `UsageError` if what is asked for needs a Hopper GPU and there is none, or another process measures on it, an
    override or its instrumented kernel is not fit, nothing is recorded to draw, or `results` cannot be written;
    `MeasurementError` as `record` does.
    """
    most = parse(passes)
    reason = device.why_static()
    if reason is not None and (require_gpu or with_costs):
        raise UsageError(reason)
    if reason is not None and file:
        subject_from_file(file)
        raise UsageError(f"{file} fits, but tracing it wants a GPU: {reason}")
    recorded = f"fig11/{VARIANTS[0]}.timeline.json"
    folder = recorded_folder(results, recorded) if reason else results / gpu_slug(device.gpu_name())
    require_writable(folder)
    drawn = [subject_from_file(file)] if file else [subject(name) for name in VARIANTS]
    ours = [] if file else [subject(name) for name in ALONE]
    subjects = drawn + ours
    if reason is None:
        if most != 1:
            subjects = [in_passes(item, most, console.print) for item in subjects]
        with device.exclusive():
            console.print(f"compiling and proving {sum(2 + len(_chosen(item)) for item in subjects)} kernels")
            prove(subjects)
            record(console, subjects, FIG11, folder / "fig11", rounds)
            if with_costs:
                record_costs(console, drawn, FIG11, folder / "fig11", rounds)
    else:
        console.print(f"static: the figure is drawn from recorded timelines; {reason}")
        for item in subjects:
            same = "the original's order" if not item.orders.differences else "another order than the original's"
            console.print(f"traced/{item.original.path.name} of {item.name} compiles to sm_90a, with {same}")
            if most != 1:
                console.print(instrumented.passes_table(instrumented.read_passes(item.original), item.label))
    report(console, folder, drawn, measured=reason is None)
    for item in ours:
        if (folder / "fig11" / f"{item.name}.timeline.json").exists():
            report(console, folder, [item], measured=reason is None)
        else:
            console.print(f"{item.label}: no timeline in {folder / 'fig11'}; `make fig11` on a Hopper GPU records it")
