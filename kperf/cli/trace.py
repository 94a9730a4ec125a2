"""Look inside kernels of one's own: instrument, trace, examples."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kperf.arch import KNOWN
from kperf.cli import interrupt
from kperf.cli.app import app, console
from kperf.cli.options import (
    CtaChoice,
    DeviceChoice,
    DeviceOption,
    Passes,
    Results,
    Wait,
    WrittenGpu,
    listed,
    take_no_gpu,
)
from kperf.console import complain
from kperf.errors import UsageError
from kperf.installation import why_missing
from kperf.record import stack
from kperf.record.store import RECORDED, recorded_folder
from kperf.trace import PASSES


@app.command()
def instrument(
    file: Annotated[Path, typer.Argument(help="A TTGIR file.")],
    regions: Annotated[str, typer.Option(help="Names of regions, with * and ?, separated by commas.")] = "*",
    detail: Annotated[
        str, typer.Option(help="fine: every wait by itself; coarse: as few events as show the loop.")
    ] = "fine",
    rules: Annotated[
        Path | None, typer.Option(help="A rule file in place of kperf/trace/instrument/regions.toml.")
    ] = None,
    strip: Annotated[bool, typer.Option("--strip", help="Take the events out instead.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write here instead of to standard output.")] = None,
    target: Annotated[
        str | None,
        typer.Option(help=f"Compile the result too, for {', '.join(arch.name for arch in KNOWN)}."),
    ] = None,
) -> None:
    """Put events into a TTGIR file by the rules, or take them out."""
    from kperf.arch import of
    from kperf.trace.instrument import events, lowered

    if target is not None:
        of(target)
        if strip:
            raise UsageError("--strip takes all events out: leave --target out")
    result = events.run(file, regions=listed(regions) or [], detail=detail, rules=rules, strip_only=strip, out=out)
    if target is not None:
        complain(lowered.costs(result, target, events.read_rules(rules or events.RULES)))


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
    check: Annotated[bool, typer.Option("--check", help="Compare what both kernels write, bit for bit.")] = False,
    memory: Annotated[int, typer.Option(min=1, max=2047, help="MB that the events of a launch may take.")] = 1024,
    stop: Annotated[bool, typer.Option("--stop", help="End the script when all that was asked for is read.")] = False,
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as for python -m.")] = False,
    passes: Passes = PASSES,
    page: Annotated[bool, typer.Option("--html", help="Also put all kernels on one page, report.html.")] = False,
    ctas: Annotated[
        CtaChoice,
        typer.Option(
            help="CTAs to record: all; sampled, every 17th (of small launches every 7th or 5th), and the others run as "
            "they are; auto: all, and where that disturbs the kernel, sampled ones in later launches."
        ),
    ] = CtaChoice.auto,
    samples: Annotated[
        bool,
        typer.Option(
            "--samples", help="Let the GPU sample the original kernel too, in launches on copies of its data."
        ),
    ] = False,
    wait: Wait = False,
) -> None:
    """Run a script of yours, unchanged, and see inside the Triton kernels that it launches; needs a Hopper GPU."""
    installed = stack.look()
    if reason := installed.why_no_compiler() or installed.why_no_cuda():
        raise UsageError(reason)
    for warning in installed.warnings():
        complain(warning)
    from kperf.report.formats import formats
    from kperf.trace import command
    from kperf.trace.capture.kernels import TraceOptions
    from kperf.trace.capture.passes import parse
    from kperf.trace.capture.script import Script

    def draw(*arguments: Any) -> list[Path]:
        if not drawn:
            return []
        from kperf.plots.trace import draw  # only after the script has run: it changes matplotlib's settings

        return draw(*arguments)

    def write_page(timelines: Sequence[Path]) -> None:
        from kperf.diagnose.engine import found_in
        from kperf.report import command

        command.write(console, timelines, here, timelines[0].with_name("report.html"), found_in)

    if page and not listing and (lacks := [name for name in ("bokeh", "jinja2") if not importlib.util.find_spec(name)]):
        raise UsageError(why_missing(lacks[0]))
    here = Path.cwd()
    drawn = importlib.util.find_spec("matplotlib") is not None
    if not drawn and not listing:
        complain(f"timelines are written without pictures: {why_missing('matplotlib')}")
    most = parse(passes)
    options = TraceOptions(
        patterns=listed(kernel) or [],
        launch=launch,
        regions=listed(regions) or [],
        memory=memory << 20,
        listing=listing,
        check=check,
        passes=most,
        stop=stop,
        ctas=ctas.value,
        wait=wait,
        samples=samples,
    )
    name, *arguments = script
    with interrupt.as_python():
        status = command.run(
            console,
            Script(name, tuple(arguments), module),
            options,
            out,
            formats(draw),
            page=write_page if page else None,
        )
    raise typer.Exit(status)


@app.command()
def report(
    timelines: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="*.timeline.json files, or folders of them.", show_default=False),
    ],
    out: Annotated[Path, typer.Option(help="The page: .html, or .md for a table.")] = Path("kperf-report.html"),
    source: Annotated[Path, typer.Option(help="Folder from which the kernels' files are named.")] = Path(),
    samples: Annotated[
        list[Path] | None,
        typer.Option(help="Samples by line: Proton's .hatchet (pcsampling), or a lines.jsonl.", show_default=False),
    ] = None,
) -> None:
    """Put traced kernels on one HTML page: findings, timeline, source, IR, provenance; several side by side."""
    from kperf.diagnose.engine import found_in
    from kperf.report import command
    from kperf.studies.lines import read_samples

    sampled = [profile for path in samples or () for profile in read_samples(path)]
    command.write(console, timelines, source, out, found_in, sampled)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="A *.timeline.json.", show_default=False)],
    after: Annotated[Path, typer.Argument(help="Another.", show_default=False)],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table in Markdown.")] = False,
    fail_if_slower: Annotated[
        float | None,
        typer.Option(min=0, help="Exit with status 1 if a launch takes so many percent longer.", show_default=False),
    ] = None,
) -> None:
    """Compare two timelines of a kernel: times, use of the units, resources, regions, and what changed."""
    from kperf.report import diff

    diff.run(console, before, after, markdown=markdown, most_slower=fail_if_slower)


@app.command()
def examples(
    results: Results = RECORDED,
    only: Annotated[str | None, typer.Option(help="Names of examples, separated by commas; all.")] = None,
    device: DeviceOption = DeviceChoice.auto,
    write: Annotated[Path | None, typer.Option(help="Put the recorded table into this file, and do no more.")] = None,
    gpu: WrittenGpu = None,
) -> None:
    """Trace the scripts of examples/, a row each; without a Hopper GPU lower them and draw the recorded runs."""
    from kperf.paper import examples
    from kperf.record.files import write_between_marks

    if write is None:
        take_no_gpu(gpu)
        examples.run(console, results, only=listed(only) or [], require_gpu=device is DeviceChoice.cuda)
    else:
        folder = recorded_folder(results, examples.FIRST, gpu=gpu)
        write_between_marks(write, "examples", examples.markdown(folder))
