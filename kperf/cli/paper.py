"""The paper's figures and claims, the overrides behind them, and what is recorded of both."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from kperf.cli.app import app, console, override_app
from kperf.cli.options import (
    ROUNDS,
    Causal,
    DeviceChoice,
    DeviceOption,
    Dtype,
    Fresh,
    Gpu,
    HeadDim,
    Inputs,
    Origin,
    Passes,
    Results,
    Rounds,
    SpreadOption,
    WrittenGpu,
    listed,
    take_no_gpu,
)
from kperf.console import shell_word
from kperf.installation import TTGIR_DIR, require_checkout
from kperf.record.store import RECORDED, recorded_folder
from kperf.trace import PASSES

_VARIANTS = "|".join(sorted(path.parent.name for path in TTGIR_DIR.glob("*/manifest.json")))


@app.command()
def fig11(
    results: Results = RECORDED,
    override: Annotated[Path | None, typer.Option(help="Trace this TTGIR, original or with events, instead.")] = None,
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
    gpu: WrittenGpu = None,
) -> None:
    """Measure and draw how the speed over FA3 depends on the numbers in q and k: fig12_inputs, both masks.

    Four of Fig. 12's shapes with 17 kinds of inputs, those of a shape interleaved; without a Hopper GPU the recorded
    run.
    """
    from kperf.paper import fig12_inputs
    from kperf.record.files import write_between_marks

    if write is None:
        take_no_gpu(gpu)
        fig12_inputs.run(console, results, rounds=rounds, fresh=fresh, gpus=gpus)
    else:
        folder = recorded_folder(results, "fig12_inputs.jsonl", gpu=gpu)
        write_between_marks(write, "inputs", fig12_inputs.markdown(folder))


@app.command()
def claims(
    results: Results = RECORDED,
    write: Annotated[Path | None, typer.Option(help="Put a table into this file, between its claims marks.")] = None,
    of: Annotated[Origin, typer.Option(help="Whose claims --write puts there.")] = Origin.paper,
) -> None:
    """Print the paper's claims and our goals, our values with intervals, and a verdict each, from recorded runs."""
    from kperf.paper import claims
    from kperf.record.files import write_between_marks

    if write is None:
        claims.report(console, results)
    else:
        write_between_marks(write, "claims", claims.markdown(results, of.value))


@app.command()
def goals(
    results: Results = RECORDED,
    gpu: Gpu = None,
    write: Annotated[Path | None, typer.Option(help="Put the table into this file, between its goals marks.")] = None,
) -> None:
    """Print what Improved+ set out to reach beside what is recorded, both masks."""
    from kperf.paper.goals import markdown
    from kperf.record.files import write_between_marks

    folder = recorded_folder(results, gpu=gpu, holds=lambda folder: (folder / "power.jsonl").exists())
    table = markdown(folder)
    if write is None:
        console.print(table)
    else:
        write_between_marks(write, "goals", table)


@app.command()
def record(
    results: Results = RECORDED,
    only: Annotated[str | None, typer.Option(help="Names of steps, separated by commas; all.")] = None,
    minutes: Annotated[float | None, typer.Option(min=0, help="Begin only what fits into so many minutes.")] = None,
    public: Annotated[
        Path | None,
        typer.Option(metavar="PAIRS.py", exists=True, help="Kernels of public packages too: `kperf public`."),
    ] = None,
) -> None:
    """Measure anew all that results/ holds, a command after the other; needs a Hopper GPU. Goes on where one fails."""
    from kperf.paper import everything

    everything.run(console, results, only=listed(only) or [], minutes=minutes, public=public)


@app.command()
def restore(results: Results = RECORDED) -> None:
    """Put recorded files back that are missing in a results folder, empty or cut short; all others stay."""
    from kperf.record import recorded

    for name in recorded.restore(results):
        console.print(f"restored {results / name}")


@app.command()
def ttgir(variant: Annotated[str, typer.Argument(help="One variant; without a name all of them.")] = "") -> None:
    """Generate ttgir/ and the instrumented kernels from the Gluon sources (no GPU needed), and verify by compiling."""
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
    from kperf.compat.triton.cache import own_cache
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


@app.command(name="llama-block")
def llama_block(
    results: Results = RECORDED, device: DeviceOption = DeviceChoice.auto, rounds: Rounds = 4 * ROUNDS
) -> None:
    """How much faster a whole compiled Llama block is with our attention and FA3's than with torch's, both passes."""
    from kperf.paper import llama_block

    llama_block.run(console, results, rounds=rounds, require_gpu=device is DeviceChoice.cuda)


@app.command()
def varlen(results: Results = RECORDED, device: DeviceOption = DeviceChoice.auto, rounds: Rounds = ROUNDS) -> None:
    """Attention over sequences of different lengths: Improved+, FA3 and torch's varlen_attn, beside equal lengths."""
    from kperf.paper import varlen

    varlen.run(console, results, rounds=rounds, require_gpu=device is DeviceChoice.cuda)


@app.command(name="tritonbench-compare")
def tritonbench_compare(results: Results = RECORDED, device: DeviceOption = DeviceChoice.auto) -> None:
    """Our override and FlashAttention-2 by tritonbench and us, interleaved on the same timers; see TRITONBENCH_DIR."""
    from kperf.paper import tritonbench

    tritonbench.run(console, results, require_gpu=device is DeviceChoice.cuda)
