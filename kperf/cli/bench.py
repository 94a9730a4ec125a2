"""Time attention and choose: bench, attention, sweep, worker, power, tune; print and draw what is recorded."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kperf.cli.app import app, console
from kperf.cli.options import (
    ROUNDS,
    Causal,
    Dtype,
    Form,
    Fresh,
    Gpu,
    HeadDim,
    Inputs,
    Only,
    Results,
    Rounds,
    Sweep,
    is_no_file,
    listed,
    rows_of,
    whole_numbers,
    workload_of,
)
from kperf.installation import require_checkout
from kperf.record.store import RECORDED


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

    lengths = tuple(rows_of(length) for length in whole_numbers(seq_len, "--seq-len"))
    shapes = attention.Shapes(batch, n_heads, n_kv_heads, lengths, head_dim, causal, dtype, inputs)
    attention.run(console, results, shapes, listed(only), rounds=rounds, fresh=fresh)


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
    results: Annotated[
        Path | None, typer.Option(help="Also append the points to RESULTS/<gpu>/bench.jsonl.", callback=is_no_file)
    ] = None,
) -> None:
    """Check and time implementations on one shape, with tritonbench's options and columns."""
    from kperf.bench import commands as bench

    workload = workload_of(
        seq_len, batch=batch, heads=n_heads, head_dim=head_dim, causal=causal, dtype=dtype, inputs=inputs
    )
    bench.run_one(console, workload, listed(only), listed(metrics) or [], as_csv=csv, rounds=rounds, results=results)


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
    panel.run_panel(console, results, which.value, listed(only) or [], mode, rounds=rounds, fresh=fresh)


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
def export(
    name: Annotated[str, typer.Argument(help="A kind of record: fig12, attention, tune, ... as in results/<gpu>/.")],
    gpu: Gpu = None,
    form: Annotated[Form, typer.Option("--format", help="An object of JSON, or a row of CSV, a record.")] = Form.jsonl,
    results: Results = RECORDED,
) -> None:
    """Recorded points with what is computed from them: medians, intervals, rates."""
    from kperf.paper import export

    export.run(sys.stdout, results, name, gpu, form.value)


@app.command()
def figures(results: Results = RECORDED) -> None:
    """Every figure of the recorded runs, drawn beside them and nothing measured."""
    from kperf.paper import figures

    figures.run(console, results)


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

    power.run(console, results, listed(only), causal=causal, seconds=seconds, passes=passes, fresh=fresh)


@app.command()
def repeatability(
    results: Results = RECORDED,
    other: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the second runs; without it they are the newest of RESULTS.", callback=is_no_file
        ),
    ] = None,
) -> None:
    """Of two runs of the same grid: how many points had not settled, and how often the first's intervals hold."""
    from kperf.bench import repeatability

    repeatability.run(console, results, other)


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
    gpu: Gpu = None,
) -> None:
    """Which implementation to use for a shape, by what is recorded; where it changes, and what choosing so costs."""
    from kperf.tune import choose

    workload = None
    if seq_len is not None:
        workload = workload_of(
            seq_len, batch=batch, heads=n_heads, head_dim=head_dim, causal=causal, dtype=dtype, inputs=inputs
        )
    choose.run(console, results, workload, listed(only), gpu)


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

    shape = {"batch": batch, "heads": n_heads, "head_dim": head_dim, "dtype": dtype, "causal": causal}
    workloads = [workload_of(length, **shape) for length in whole_numbers(seq_len, "--seq-len")]
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
