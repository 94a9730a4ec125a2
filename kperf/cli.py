"""`python -m kperf ...`: thin commands, and one sentence for what goes wrong."""

import errno
import io
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperOption
from typer.exceptions import TyperException

from kperf import __version__
from kperf.console import complain, of_standard_output, shell_word
from kperf.errors import MeasurementError, UsageError
from kperf.installation import TTGIR_DIR, require_checkout
from kperf.record.store import RECORDED
from kperf.trace import PASSES

if TYPE_CHECKING:
    from kperf.attention.workload import Workload

ROUNDS = 40
"""Rounds of a measurement: enough for an interval, few enough for minutes."""

_PURPOSE = """Look inside GPU kernels: where a Triton kernel's warp groups wait, and how fast attention is for it.

Reproduces Fig. 11 and Fig. 12 of KPerfIR (OSDI'25) on a Hopper GPU, or from recorded runs without one; `kperf doctor`
says which. Status 2 for a mistake in what was asked, 1 for a failed measurement or check, 130 after Ctrl-C.
"""

_VARIANTS = "|".join(sorted(path.parent.name for path in TTGIR_DIR.glob("*/manifest.json")))


_INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Command(TyperCommand):
    """A command that takes an option once: the last of two would win, and the first be ignored."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Raises `UsageError` for an option that is given twice, and for an empty path: it would be this folder."""
        given, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter in order:
            if order.count(parameter) > 1 and not parameter.multiple:
                raise UsageError(f"{parameter.opts[0]} is given twice: give it once, lists with commas")
            assert isinstance(parameter, TyperArgument | TyperOption)
            if parameter.type_descriptor.annotation is Path and given[parameter.name] == "":
                raise UsageError(f"{parameter.opts[0]} is empty: give a path, . is this folder")
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """As typer's, but Ctrl-C is answered with a sentence: what is kept, and with what else is known of it."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            _end(", ".join(["interrupted: what was recorded is kept", *map(str, interrupt.args)]), _INTERRUPTED)


class _App(typer.Typer):
    def command(self, name: str | None = None, **settings: Any) -> Callable[[_Function], _Function]:
        """As typer's, of a `_Command`."""
        return super().command(name, cls=_Command, **settings)


app = _App(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help=_PURPOSE,
    context_settings={"help_option_names": ["-h", "--help"]},
)
override_app = _App(no_args_is_help=True, help="The TTGIR overrides.")
app.add_typer(override_app, name="override")
image_app = _App(no_args_is_help=True, help="The container image, built and run through the Docker SDK.")
app.add_typer(image_app, name="image")
console = of_standard_output()


def _say_version(wanted: bool) -> None:
    if wanted:
        from kperf.record.commit import git_commit

        console.print(f"kperf {__version__}, commit {git_commit()}")
        raise typer.Exit


@app.callback()
def _of_all_commands(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print version and commit.")
    ] = False,
) -> None:
    pass


class DeviceChoice(StrEnum):
    """Where to run."""

    auto = "auto"
    cuda = "cuda"


class Sweep(StrEnum):
    """The two panels of Fig. 12."""

    seq_len = "seq_len"
    batch_size = "batch_size"


class Gpus(StrEnum):
    """The GPUs of a container."""

    auto = "auto"
    all = "all"
    none = "none"


Results = Annotated[
    Path,
    typer.Option(envvar="KPERF_RESULTS", help="Folder of recorded runs, one folder a GPU inside.", show_default=False),
]
DeviceOption = Annotated[DeviceChoice, typer.Option(help="auto: static without a Hopper GPU; cuda: fail without one.")]
Rounds = Annotated[int, typer.Option(min=10, help="Rounds in which all take turns; of long samples thrice as many.")]
Fresh = Annotated[bool, typer.Option(help="Measure again what this environment has recorded already.")]
Causal = Annotated[bool, typer.Option(help="With the causal mask.")]
Only = Annotated[str | None, typer.Option(help="Implementations, separated by commas; all that there are.")]
HeadDim = Annotated[int, typer.Option("--head-dim", "--d-head", help="64, 128 or 256.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float16.")]
Inputs = Annotated[str, typer.Option(help="Kind of numbers in q, k, v: normal, x2, x4, x10, sink, ramp or local.")]
Image = Annotated[str, typer.Option(help="Tag of the image.")]
GpusOption = Annotated[Gpus, typer.Option(help="auto: all of them if this machine has an NVIDIA driver.")]
SpreadOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        help="Spread over GPUs: all, how many, which (0,2) or tcp://host:8786, a scheduler that `kperf worker` joined.",
        show_default=False,
    ),
]
NcuOption = Annotated[
    Path | None, typer.Option("--ncu", help="Nsight Compute's ncu; found on PATH or beside CUDA.", show_default=False)
]
Passes = Annotated[str, typer.Option(help="Launches over which a trip's records are spread: auto, 1 or at most N.")]
Memory = Annotated[str | None, typer.Option(help="Limit as Docker writes it, 32g; four fifths of the engine's memory.")]


@app.command()
def fig12(
    results: Results = RECORDED,
    causal: Causal = False,
    head_dim: HeadDim = 128,
    dtype: Dtype = "bfloat16",
    inputs: Inputs = "normal",
    paper_mix: Annotated[bool, typer.Option(help="The paper's own mixture of masks, labelled as such.")] = False,
    device: DeviceOption = DeviceChoice.auto,
    rounds: Rounds = ROUNDS,
    fresh: Fresh = False,
    gpus: SpreadOption = None,
) -> None:
    """Measure, check and draw Fig. 12; without a Hopper GPU verify the overrides and draw the recorded run.

    Another head_dim, dtype or kind of inputs than the paper's makes a figure of its own, fig12_d64 or fig12_local. Its
    bars are FA2, cuDNN, FA3 and our overrides, where there are: autotuning Triton's own would take longer than all.
    """
    from kperf.paper import fig12

    mode = fig12.Mode(causal, paper_mix, head_dim, dtype, inputs)
    require_gpu = device is DeviceChoice.cuda
    fig12.run(console, results, mode, rounds=rounds, fresh=fresh, require_gpu=require_gpu, gpus=gpus)


@app.command()
def inputs(
    results: Results = RECORDED,
    rounds: Annotated[int, typer.Option(min=10, help="Rounds in which all kinds and kernels take turns.")] = 16,
    fresh: Fresh = False,
    gpus: SpreadOption = None,
    write: Annotated[Path | None, typer.Option(help="Put the recorded table into this file, and do no more.")] = None,
) -> None:
    """Measure and draw how the speed over FA3 depends on the numbers in q and k: fig12_inputs, both masks.

    Fig. 12's shapes with seven kinds of inputs, all kinds of a shape in turn; without a Hopper GPU the recorded run.
    """
    from kperf.paper import fig12_inputs
    from kperf.record.files import write_between_marks

    if write is None:
        fig12_inputs.run(console, results, rounds=rounds, fresh=fresh, gpus=gpus)
    else:
        write_between_marks(write, "inputs", fig12_inputs.markdown(results))


@app.command()
def worker(
    scheduler: Annotated[str, typer.Argument(help="Its address: tcp://host:8786.", show_default=False)],
    gpus: Annotated[str, typer.Option(help="all, how many, or which (0,2).")] = "all",
) -> None:
    """Join GPUs of this host to a scheduler (`dask scheduler`), for `kperf fig12 --gpus tcp://host:8786` on another.

    Whoever reaches the scheduler's port can run programs here: use it in a network that you trust alone.
    """
    from kperf.bench import spread

    spread.join(console, scheduler, gpus)


@app.command()
def attention(
    results: Results = RECORDED,
    batch: Annotated[int, typer.Option(min=1)] = 4,
    n_heads: Annotated[int, typer.Option(min=1)] = 16,
    n_kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Heads of k and v, which groups of q's share; as many.")
    ] = None,
    seq_len: Annotated[
        str, typer.Option(help="Multiples of 128, separated by commas; below 32 it is the power of two.")
    ] = "512,1024,2048,4096,8192,16384",
    head_dim: HeadDim = 128,
    causal: Causal = False,
    dtype: Dtype = "bfloat16",
    inputs: Inputs = "normal",
    only: Only = None,
    rounds: Rounds = ROUNDS,
    fresh: Fresh = False,
) -> None:
    """Compare all implementations on your shapes, both passes: time, error, peak memory; where memory runs out.

    Those of Fig. 12 beside eager torch, all of SDPA's back ends, compiled flex_attention, and TileLang, xFormers,
    FlashInfer and TransformerEngine where they are installed. Without a Hopper GPU what torch computes on the CPU is
    checked at a small shape, and a recorded run is shown.
    """
    from kperf.paper import attention

    try:
        lengths = tuple(_length(int(word)) for word in _keys(seq_len) or [])
    except ValueError:
        raise UsageError(f"--seq-len {seq_len!r} is no list of numbers: separate them with commas") from None
    shapes = attention.Shapes(batch, n_heads, n_kv_heads, lengths, head_dim, causal, dtype, inputs)
    attention.run(console, results, shapes, _keys(only), rounds=rounds, fresh=fresh)


@app.command()
def fig11(
    results: Results = RECORDED,
    override: Annotated[Path | None, typer.Option(help="Trace this TTGIR, plain or with records, instead.")] = None,
    device: DeviceOption = DeviceChoice.auto,
    rounds: Rounds = ROUNDS,
    costs: Annotated[bool, typer.Option("--costs", help="Also time other clocks, buffers and regions.")] = False,
    passes: Passes = PASSES,
) -> None:
    """Trace the kernels of Fig. 11, read and draw the timelines; without a Hopper GPU from the recorded ones."""
    from kperf.paper import fig11

    require_gpu = device is DeviceChoice.cuda
    fig11.run(console, results, file=override, rounds=rounds, require_gpu=require_gpu, with_costs=costs, passes=passes)


@app.command()
def instrument(
    file: Annotated[Path, typer.Argument(help="A TTGIR file.")],
    regions: Annotated[str, typer.Option(help="Names of regions, with * and ?, separated by commas.")] = "*",
    detail: Annotated[
        str, typer.Option(help="fine: every wait by itself; coarse: as few records as show the loop.")
    ] = "fine",
    rules: Annotated[
        Path | None, typer.Option(help="A rule file in place of kperf/trace/instrument/regions.toml.")
    ] = None,
    strip: Annotated[bool, typer.Option("--strip", help="Take the records out instead.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write here instead of to standard output.")] = None,
) -> None:
    """Put records into a TTGIR file by the rules, or take them out."""
    from kperf.trace.instrument import events

    events.run(file, regions=_keys(regions) or [], detail=detail, rules=rules, strip_only=strip, out=out)


@app.command(context_settings={"allow_interspersed_args": False})
def trace(
    script: Annotated[
        list[str], typer.Argument(metavar="SCRIPT.py [ARGUMENTS]", help="Run as python runs it.", show_default=False)
    ],
    kernel: Annotated[str, typer.Option(help="Names of kernels, with * and ?, separated by commas.")] = "*",
    launch: Annotated[int | None, typer.Option(min=1, help="The launch to trace; the third, or the first.")] = None,
    listing: Annotated[bool, typer.Option("--list", help="Only list the kernels that the script launches.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for what is written.")] = Path("kperf-trace"),
    regions: Annotated[str, typer.Option(help="Names of regions, with * and ?, separated by commas.")] = "*",
    check: Annotated[bool, typer.Option("--check", help="Compare what the twins write, bit for bit.")] = False,
    memory: Annotated[int, typer.Option(min=1, help="MB that the records of a launch may take.")] = 1024,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m.")] = False,
    passes: Passes = PASSES,
) -> None:
    """Run a script of yours, unchanged, and see inside the Triton kernels that it launches; needs a Hopper GPU."""
    from kperf.trace import command
    from kperf.trace.capture.interceptor import TraceOptions
    from kperf.trace.capture.passes import parse
    from kperf.trace.capture.script import Script

    def draw(*arguments: Any) -> list[Path]:
        from kperf.plots.trace import draw  # only after the script has run: it changes matplotlib's settings

        return draw(*arguments)

    most = parse(passes)
    options = TraceOptions(_keys(kernel) or [], launch, _keys(regions) or [], memory << 20, listing, check, most)
    name, *arguments = script
    raise typer.Exit(command.run(console, Script(name, tuple(arguments), module), options, out, draw))


@app.command()
def power(
    results: Results = RECORDED,
    causal: Causal = False,
    only: Only = None,
    # Half of it is the sample: no shorter than the second over which NVML averages (nvml.h, nvmlDeviceGetPowerUsage).
    seconds: Annotated[float, typer.Option(min=2.0, max=600.0, help="How long each runs in a pass.")] = 2.0,
    passes: Annotated[int, typer.Option(min=1, help="Passes, each in a rotated order.")] = 5,
    fresh: Fresh = False,
) -> None:
    """Each implementation alone and sustained: TFLOPS, watts, MHz, TFLOPS a watt."""
    from kperf.paper import power

    power.run(console, results, _keys(only), causal=causal, seconds=seconds, passes=passes, fresh=fresh)


@app.command()
def accuracy(results: Results = RECORDED, device: DeviceOption = DeviceChoice.auto) -> None:
    """How right regions of known cycles, launches and the performance models are; models need records alone."""
    from kperf.plots.accuracy import draw
    from kperf.studies import accuracy

    accuracy.run(console, results, draw, require_gpu=device is DeviceChoice.cuda)


@app.command()
def timers(
    results: Results = RECORDED,
    device: DeviceOption = DeviceChoice.auto,
    ncu: NcuOption = None,
    perf_report: Annotated[
        bool, typer.Option("--perf-report", help="Only run y = x * x as a perf_report of Triton's, into RESULTS.")
    ] = False,
) -> None:
    """One call under ten timers: how far they disagree, and what each counts; y = x * x in five languages."""
    from kperf.plots.timers import draw
    from kperf.studies import timers

    if perf_report:
        timers.perf_report(results / "perf_report")
    else:
        timers.run(console, results, draw, ncu_path=ncu, require_gpu=device is DeviceChoice.cuda)


@app.command()
def proton(results: Results = RECORDED, device: DeviceOption = DeviceChoice.auto) -> None:
    """Proton over attention and SDPA's back ends: scopes, launch hooks, trees and their difference."""
    from kperf.plots.proton import draw
    from kperf.studies import proton

    proton.run(console, results, draw, require_gpu=device is DeviceChoice.cuda)


@app.command()
def overhead(results: Results = RECORDED, device: DeviceOption = DeviceChoice.auto, rounds: Rounds = 10) -> None:
    """What tracing costs every recorded kernel, beside the paper's Fig. 13; other ways to record measured."""
    from kperf.paper import overhead

    overhead.run(console, results, rounds=rounds, require_gpu=device is DeviceChoice.cuda)


@app.command()
def lines(results: Results = RECORDED, device: DeviceOption = DeviceChoice.auto, ncu: NcuOption = None) -> None:
    """Samples and stalled samples by line of source (Proton, ncu), and what each profiler costs on one script."""
    from kperf.plots.lines import draw
    from kperf.studies import lines

    lines.run(console, results, draw, ncu_path=ncu, require_gpu=device is DeviceChoice.cuda)


@app.command()
def inductor(
    results: Results = RECORDED,
    device: DeviceOption = DeviceChoice.auto,
    ncu: NcuOption = None,
    out: Annotated[Path, typer.Option(help="Folder for the sources that Inductor writes.")] = Path("kperf-inductor"),
    trace: Annotated[
        str | None, typer.Option(help="Then trace the kernels whose names fit, with * and ?, through kperf trace.")
    ] = None,
) -> None:
    """What torch.compile makes of a DiT and a Llama block: time, FLOPs, bytes, share of the ceiling of every kernel."""
    from kperf.plots.inductor import draw
    from kperf.studies import inductor

    require_gpu = device is DeviceChoice.cuda
    inductor.run(console, results, draw, out=out, trace=trace, ncu_path=ncu, require_gpu=require_gpu)


@app.command(name="llama-block")
def llama_block(
    results: Results = RECORDED, device: DeviceOption = DeviceChoice.auto, rounds: Rounds = 4 * ROUNDS
) -> None:
    """How much faster a whole compiled Llama block is with our attention and FA3's than with torch's, both passes."""
    from kperf.paper import llama_block

    llama_block.run(console, results, rounds=rounds, require_gpu=device is DeviceChoice.cuda)


@app.command()
def repeatability(
    results: Results = RECORDED,
    other: Annotated[
        Path | None, typer.Option(help="Folder with the second runs; without it they are the newest of RESULTS.")
    ] = None,
) -> None:
    """Of two runs of the same grid: how many points had not settled, and how often the first's intervals hold."""
    from kperf.bench import repeatability

    repeatability.run(console, results, other)


@app.command()
def sweep(
    which: Sweep,
    only: Annotated[str, typer.Option(help="Implementations, separated by commas.")],
    results: Results = RECORDED,
    causal: Causal = False,
    head_dim: HeadDim = 128,
    dtype: Dtype = "bfloat16",
    inputs: Inputs = "normal",
    rounds: Rounds = ROUNDS,
    fresh: Fresh = False,
) -> None:
    """Measure one panel of Fig. 12 for some implementations, into the same store (bench_fa.sh, benchmark_attn.py)."""
    from kperf.paper import fig12, panel

    mode = fig12.Mode(causal, head_dim=head_dim, dtype=dtype, inputs=inputs)
    panel.run_panel(console, results, which.value, _keys(only) or [], mode, rounds=rounds, fresh=fresh)


@app.command()
def bench(
    batch: Annotated[int, typer.Option(min=1)] = 16,
    n_heads: Annotated[int, typer.Option(min=1)] = 16,
    seq_len: Annotated[int, typer.Option(help="Rows; below 32 it is the power of two, as in tritonbench.")] = 4096,
    head_dim: HeadDim = 128,
    causal: Causal = False,
    dtype: Dtype = "bfloat16",
    inputs: Inputs = "normal",
    metrics: Annotated[
        str, typer.Option(help="tflops, latency, eager_latency, accuracy; separated by commas.")
    ] = "tflops",
    only: Only = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV as tritonbench does.")] = False,
    rounds: Rounds = ROUNDS,
    results: Annotated[Path | None, typer.Option(help="Also append the points to RESULTS/<gpu>/bench.jsonl.")] = None,
) -> None:
    """Check and time implementations on one shape, with tritonbench's options and columns."""
    from kperf.bench import commands as bench

    workload = _workload(
        seq_len, batch=batch, heads=n_heads, head_dim=head_dim, causal=causal, dtype=dtype, inputs=inputs
    )
    bench.run_one(console, workload, _keys(only), _keys(metrics) or [], as_csv=csv, rounds=rounds, results=results)


@app.command()
def choose(
    seq_len: Annotated[
        int | None, typer.Option(help="Rows; below 32 it is the power of two. Without it: all crossovers, and regrets.")
    ] = None,
    batch: Annotated[int, typer.Option(min=1)] = 16,
    n_heads: Annotated[int, typer.Option(min=1)] = 16,
    head_dim: HeadDim = 128,
    causal: Causal = False,
    dtype: Dtype = "bfloat16",
    inputs: Inputs = "normal",
    only: Only = None,
    results: Results = RECORDED,
) -> None:
    """Which implementation to use for a shape, by what is recorded; where it changes, and what choosing so costs."""
    from kperf.tune import choose

    workload = None
    if seq_len is not None:
        workload = _workload(
            seq_len, batch=batch, heads=n_heads, head_dim=head_dim, causal=causal, dtype=dtype, inputs=inputs
        )
    choose.run(console, results, workload, _keys(only))


@app.command()
def tune(
    results: Results = RECORDED,
    batch: Annotated[int, typer.Option(min=1)] = 4,
    n_heads: Annotated[int, typer.Option(min=1)] = 8,
    seq_len: Annotated[
        str, typer.Option(help="Rows, separated by commas: a class of shapes each.")
    ] = "512,1024,2048,4096",
    head_dim: HeadDim = 256,
    dtype: Dtype = "float16",
    causal: Annotated[bool, typer.Option("--causal/--full", help="The mask.")] = True,
    trials: Annotated[int | None, typer.Option(min=1, help="Of a search; a tenth of what can be launched.")] = None,
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Also time all that can be launched.")] = False,
    rounds: Annotated[int, typer.Option(min=10, help="Rounds of a trial; four times as many decide.")] = 10,
    fresh: Fresh = False,
) -> None:
    """Search tiles, warps, stages and the order of loads of the plain Triton kernel, and write what it then runs in.

    Compiling drops what spills much or does not fit, for sm_90a and gfx942, and needs no GPU. On one the rest is
    searched: each trial is checked, timed and recorded, so that a search that was killed goes on.
    KPERF_TRITON_AUTOTUNE=1 makes the kernel autotune itself again; KPERF_TRITON_CONFIGS names the folder of the files.
    """
    from kperf.plots.tune import draw
    from kperf.tune import command

    rows = [_whole_number(word, "--seq-len") for word in _keys(seq_len) or []]
    shape = {"batch": batch, "heads": n_heads, "head_dim": head_dim, "dtype": dtype, "causal": causal}
    workloads = [_workload(number, **shape) for number in rows]
    command.run(console, results, command.Asked(workloads, trials, exhaustive, rounds, fresh), draw)


@app.command()
def resources() -> None:
    """Compile the plain Triton kernels for sm_90a and AMD's gfx942: registers, spills, shared memory; no GPU needed."""
    require_checkout("what `kperf resources` compiles, examples/,")
    from kperf.paper.examples import EXAMPLES
    from kperf.tune import resources

    resources.run(console, [(script.path, script.small) for script in EXAMPLES if script.small is not None])


@app.command(context_settings={"ignore_unknown_options": True})
def tritonbench(
    arguments: Annotated[list[str], typer.Argument(help="Those of tritonbench's run.py.", show_default=False)],
) -> None:
    """Run tritonbench with our overrides in its flash_attention: --only kperf_improved_plus; see TRITONBENCH_DIR."""
    from kperf.integrations import tritonbench

    tritonbench.run(arguments)


@app.command(name="tritonbench-compare")
def tritonbench_compare(results: Results = RECORDED, device: DeviceOption = DeviceChoice.auto) -> None:
    """Our override and FlashAttention-2 by tritonbench and by us, on the same timers, in turn; see TRITONBENCH_DIR."""
    from kperf.paper import tritonbench

    tritonbench.run(console, results, require_gpu=device is DeviceChoice.cuda)


@app.command()
def ttgir(variant: Annotated[str, typer.Argument(help="One variant; without a name all of them.")] = "") -> None:
    """Generate ttgir/ and the traced twins from the Gluon sources (no GPU needed) and verify it by compiling."""
    require_checkout("what `kperf ttgir` writes, ttgir/,")
    from kperf.attention import overrides as override
    from kperf.attention.variants import FULL_AND_CAUSAL, VARIANTS, variant_named
    from kperf.attention.workload import FIG11
    from kperf.paper import fig12, instrumented

    chosen = [variant_named(variant)] if variant else list(VARIANTS.values())
    for one in chosen:
        override.generate(one)
        for special in FULL_AND_CAUSAL:
            instrumented.generate(override.find(one.name, special))
        instrumented.generate_passes(override.find(one.name, override.specialization_of(FIG11)), console.print)
    fig12.verify_overrides(console, chosen)


@override_app.command()
def verify() -> None:
    """Hold every override against its definition and source, compile it outside the cache, run it if there is a GPU."""
    from kperf.ir.override import own_cache
    from kperf.paper import fig12

    with tempfile.TemporaryDirectory() as folder, own_cache(Path(folder)):
        fig12.verify_overrides(console)


@override_app.command()
def stage(
    variant: Annotated[str, typer.Argument(metavar=_VARIANTS, help="Whose override.")],
    to: Annotated[Path, typer.Option(help="Folder that becomes TRITON_OVERRIDE_DIR.")],
    causal: Causal = False,
) -> None:
    """Lay an override out for Triton's own TRITON_KERNEL_OVERRIDE, for those who use the original's way."""
    from kperf.attention import overrides as override
    from kperf.attention.variants import Specialization

    override.stage(override.find(variant, Specialization(causal=causal)), to)
    folder = shell_word(to.resolve())
    settings = f"TRITON_ALWAYS_COMPILE=1 TRITON_KERNEL_OVERRIDE=1 TRITON_OVERRIDE_DIR={folder}"
    console.print(f"{settings} python -m kperf bench --only attn_fwd{' --causal' if causal else ''}")


@app.command()
def claims(
    results: Results = RECORDED,
    write: Annotated[Path | None, typer.Option(help="Put the table into this file, between its claims marks.")] = None,
) -> None:
    """Print the paper's claims, ours with its interval, and a verdict, from the recorded runs."""
    from kperf.paper import claims
    from kperf.record.files import write_between_marks

    if write is None:
        claims.report(console, results)
    else:
        write_between_marks(write, "claims", claims.markdown(results))


@app.command()
def goals(
    results: Results = RECORDED,
    write: Annotated[Path | None, typer.Option(help="Put the table into this file, between its goals marks.")] = None,
) -> None:
    """Print what Improved+ set out to reach beside what is recorded, both masks."""
    from kperf.paper.goals import markdown
    from kperf.record.files import write_between_marks
    from kperf.record.store import recorded_folder

    table = markdown(recorded_folder(results))
    if write is None:
        console.print(table)
    else:
        write_between_marks(write, "goals", table)


@app.command()
def examples(
    results: Results = RECORDED,
    only: Annotated[str | None, typer.Option(help="Names of examples, separated by commas; all.")] = None,
    device: DeviceOption = DeviceChoice.auto,
    write: Annotated[Path | None, typer.Option(help="Put the recorded table into this file, and do no more.")] = None,
) -> None:
    """Trace the scripts of examples/, a row each; without a Hopper GPU lower them and draw the recorded runs."""
    from kperf.paper import examples
    from kperf.record.files import write_between_marks

    if write is None:
        examples.run(console, results, only=_keys(only) or [], require_gpu=device is DeviceChoice.cuda)
    else:
        write_between_marks(write, "examples", examples.markdown(results))


@app.command()
def record(
    results: Results = RECORDED,
    only: Annotated[str | None, typer.Option(help="Names of steps, separated by commas; all.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Begin only what fits into so many minutes.")] = None,
) -> None:
    """Measure anew all that results/ holds, a command after the other; needs a Hopper GPU. Goes on where one fails."""
    from kperf.paper import everything

    everything.run(console, results, only=_keys(only) or [], minutes=minutes)


@app.command()
def restore(results: Results = RECORDED) -> None:
    """Put recorded files back that are missing in a results folder, empty or cut short; all others stay."""
    from kperf.record import recorded

    for name in recorded.restore(results):
        console.print(f"restored {results / name}")


@image_app.command()
def build(
    image: Image = "kperf",
    base: Annotated[str | None, typer.Option(help="Another base image than the pinned one.")] = None,
    triton: Annotated[
        str | None, typer.Option(help="Another Triton: a version, a wheel's address, git+https://...")
    ] = None,
    with_flash_attn: Annotated[bool, typer.Option(help="Build the flash-attn package for fa2; takes hours.")] = False,
) -> None:
    """Build the image from the Dockerfile, one line a step."""
    require_checkout("what the image is made from")
    from kperf import container

    container.build(image, base=base, triton=triton, with_flash_attn=with_flash_attn, console=console)


@image_app.command(context_settings={"ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(help="What to run in the container.")],
    results: Results = RECORDED,
    image: Image = "kperf",
    gpus: GpusOption = Gpus.auto,
    memory: Memory = None,
) -> None:
    """Run a command in the image: read-only, without network; results come back however it ends."""
    from kperf import container

    raise typer.Exit(container.run(command, results, image=image, gpus=gpus.value, memory=memory))


@image_app.command()
def shell(
    results: Results = RECORDED, image: Image = "kperf", gpus: GpusOption = Gpus.auto, memory: Memory = None
) -> None:
    """Bash in the image; what it leaves in /results comes back."""
    from kperf import container

    raise typer.Exit(container.shell(results, image=image, gpus=gpus.value, memory=memory))


@app.command()
def doctor() -> None:
    """What this machine can run, and why not the rest; status 1 if not even the recorded figures."""
    from kperf import doctor
    from kperf.record import machine

    if not doctor.report(machine.probe()):
        raise typer.Exit(1)


def main() -> None:
    """Run a command: status 2 for a person's mistake, 1 for a failed measurement, one sentence for each."""
    if sys.stdout is None:
        _end("standard output is closed: send it to a file, or to /dev/null", 2)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that has no letter for a sign gets a question mark
    try:
        status = app(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(status)
    except (UsageError, MeasurementError) as error:
        _end(str(error), 2 if isinstance(error, UsageError) else 1)
    except TyperException as error:
        _end_usage(error)
    except typer.Abort:
        _end("aborted", 1)
    except ModuleNotFoundError as error:
        _end(f"{error.name} is not installed: run `make setup`", 2)
    except OSError as error:
        _end_refused(error)
    except Exception as error:
        if (sentence := _failure_of_the_gpu(error)) is None:
            raise
        _end(sentence, 1)


def _end(sentence: str, status: int) -> NoReturn:
    complain(sentence)
    sys.exit(status)


def _end_refused(error: OSError) -> NoReturn:
    """What the system refuses and nothing else has caught: which file, why, and what can be done about it."""
    from kperf.record.machine import triton_cache

    reason = error.strerror or str(error)
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    unwritten = full or error.errno in {errno.EBADF, errno.EIO}
    file = error.filename or (_open_where_raised(error) if unwritten else None)
    if file is None and unwritten:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter would try once more
        _end(f"standard output cannot be written ({reason}): send it elsewhere, or free some space there", 1)
    if file is None:
        _end(reason, 1)
    path = Path(os.fsdecode(file))
    mends = ["free some space there"] if full else []
    if path.is_relative_to(triton_cache()):
        mends.append("set TRITON_CACHE_DIR to another folder")
    elif unwritten and path.is_relative_to(os.environ.get("TMPDIR") or "/tmp"):
        mends.append("set TMPDIR to another folder")
    _end(f"{path} cannot be used ({reason})" + (": " + ", or ".join(mends) if mends else ""), 1)


def _open_where_raised(error: OSError) -> str | None:
    """An error of writing, as on a full disk, does not name the file: it is the one open in the frame that wrote."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        for value in frame.f_locals.values():
            if hasattr(value, "writable") and isinstance(name := getattr(value, "name", None), str):
                return None if value is sys.stdout else name
    return None


def _end_usage(error: TyperException) -> NoReturn:
    """What typer says of a command line, in one sentence; a command without arguments gets its help."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # the help was printed as the error was made
        sys.exit(error.exit_code)
    said = " ".join(error.format_message().split()).rstrip(".")
    help_of = f" (`{context.command_path} --help` says more)" if context else ""
    _end(f"{said[0].lower()}{said[1:]}{help_of}", error.exit_code)


def _workload(seq_len: int, **fields: Any) -> "Workload":
    """Of tritonbench's options, where a `seq_len` below 32 is the power of two. Raises `UsageError`."""
    from kperf.attention.workload import make_workload

    return make_workload(seq_len=_length(seq_len), **fields)


def _length(seq_len: int) -> int:
    """Rows: a number below 32 is the power of two, as in tritonbench."""
    return 2**seq_len if 0 < seq_len < 32 else seq_len


def _whole_number(word: str, option: str) -> int:
    if not word.isdecimal():
        raise UsageError(f"{option} has {word!r}: give whole numbers with commas between them")
    return int(word)


def _keys(text: str | None) -> list[str] | None:
    """The words between commas, each once; None if nothing is asked for.

    Raises `UsageError` if something is, and it has no word.
    """
    if text is None:
        return None
    words = list(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))
    if not words:
        raise UsageError(f"{text!r} names nothing: give words with commas between them, or leave the option out")
    return words


def _failure_of_the_gpu(error: Exception) -> str | None:
    """One sentence for what the GPU or its driver refuses; None for what only a bug raises."""
    import pynvml
    import torch
    from triton.runtime.errors import OutOfResources

    if isinstance(error, RuntimeError) and "Triton Error [CUDA]" in str(error):
        return f"{str(error).splitlines()[0]}: if it comes again, remove ~/.triton/cache"
    kinds = (torch.OutOfMemoryError, torch.AcceleratorError, pynvml.NVMLError, OutOfResources)
    return f"{type(error).__name__}: {str(error).splitlines()[0]}" if isinstance(error, kinds) else None
