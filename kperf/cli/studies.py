"""Other profilers beside ours, what tracing costs, how right it is, and torch.compile."""

from pathlib import Path
from typing import Annotated

import typer

from kperf.cli.app import app, console
from kperf.cli.options import DeviceChoice, DeviceOption, NcuOption, Results, Rounds, WrittenGpu, listed, take_no_gpu
from kperf.record.store import RECORDED, recorded_folder

WrittenPages = Annotated[
    Path | None,
    typer.Option(help="Put what is recorded into this page and those in the folder of its name, and do no more."),
]


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
def disturbance(
    scripts: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[SCRIPT.py]...", help="More scripts, as of packages.", show_default=False),
    ] = None,
    results: Results = RECORDED,
    device: DeviceOption = DeviceChoice.auto,
    write: Annotated[Path | None, typer.Option(help="Put the recorded table into this file, and do no more.")] = None,
    gpu: WrittenGpu = None,
) -> None:
    """What events cost every example's kernels, and those of scripts, with all CTAs recorded and with sampled ones."""
    from kperf.paper import disturbance
    from kperf.record.files import write_between_marks

    if write is None:
        take_no_gpu(gpu)
        disturbance.run(console, results, scripts or [], require_gpu=device is DeviceChoice.cuda)
    else:
        folder = recorded_folder(results, "disturbance.jsonl", gpu=gpu)
        write_between_marks(write, "disturbance", disturbance.markdown(folder))


@app.command()
def proof(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Only these kernels.", show_default=False)
    ] = None,
    kernels: Annotated[Path, typer.Option(help="Folder of the proof set.")] = Path("tests/diagnose/kernels"),
    results: Results = RECORDED,
    device: DeviceOption = DeviceChoice.auto,
    beside_ncu: Annotated[
        bool, typer.Option("--beside-ncu", help="Run ncu --set full on the kernels instead: what do its rules say?")
    ] = False,
    ncu: NcuOption = None,
    write: WrittenPages = None,
    gpu: WrittenGpu = None,
) -> None:
    """Whether kperf diagnose names planted faults and is silent on clean kernels, and its estimates beside gains."""
    from kperf.paper import proof, proof_ncu, proof_page
    from kperf.record.files import write_sections

    require_gpu = device is DeviceChoice.cuda
    if write is not None:
        folder = recorded_folder(results, "diagnose.jsonl", gpu=gpu)
        write_sections(write, proof_page.sections(folder, kernels) | proof_ncu.sections(folder))
    elif beside_ncu:
        take_no_gpu(gpu)
        proof_ncu.run(console, results, kernels, names or [], ncu_path=ncu, require_gpu=require_gpu)
    else:
        take_no_gpu(gpu)
        proof.run(console, results, kernels, names or [], require_gpu=require_gpu)


@app.command()
def public(
    pairs: Annotated[
        Path | None, typer.Argument(metavar="[PAIRS.py]", help="Measure its PAIRS; else show what is recorded.")
    ] = None,
    results: Results = RECORDED,
    write: WrittenPages = None,
    gpu: WrittenGpu = None,
) -> None:
    """Kernels of public packages before and after a change: that a finding advises, or that their authors made."""
    from kperf.studies import public

    if write is None:
        take_no_gpu(gpu)
        public.run(console, results, pairs)
    else:
        public.write(write, recorded_folder(results, "public.jsonl", gpu=gpu))


@app.command()
def operators(
    checkout: Annotated[
        Path | None,
        typer.Argument(metavar="[TRITONBENCH]", help="A checkout of thunlp/TritonBench; else show what is recorded."),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Names of operators, separated by commas; all.")] = None,
    results: Results = RECORDED,
    write: Annotated[Path | None, typer.Option(help="Put the recorded table into this file, and do no more.")] = None,
    gpu: WrittenGpu = None,
) -> None:
    """The 184 operators of TritonBench-G under kperf diagnose --try: findings, and gains of other configurations."""
    from kperf.paper import operators
    from kperf.record.files import write_between_marks

    if write is None:
        take_no_gpu(gpu)
        operators.run(console, results, checkout, listed(only) or [])
    else:
        folder = recorded_folder(results, "operators.jsonl", gpu=gpu)
        write_between_marks(write, "operators", operators.markdown(folder))


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
    module: Annotated[
        str | None,
        typer.Option(
            help="A model of yours: file.py:function, which returns (module, (tensor, ...)). Records go to --out."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the sources that Inductor writes.")] = Path("kperf-inductor"),
    trace: Annotated[
        str | None, typer.Option(help="Then trace the kernels whose names fit, with * and ?, through kperf trace.")
    ] = None,
) -> None:
    """What torch.compile makes of a DiT and a Llama block, or of a model of yours: every kernel beside its ceiling."""
    from kperf.plots.inductor import draw
    from kperf.studies import inductor

    require_gpu = device is DeviceChoice.cuda
    inductor.run(console, results, draw, out=out, trace=trace, ncu_path=ncu, require_gpu=require_gpu, model=module)
