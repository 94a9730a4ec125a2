"""Say what to change in a kernel: diagnose."""

from pathlib import Path
from typing import Annotated

import typer

from kperf.arch import SM_90A
from kperf.cli.app import app, console
from kperf.cli.options import Constexpr, NumStages, NumWarps, Signature, Target, Wait, given


@app.command()
def diagnose(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT [-- ARGUMENTS]",
            help="script.py, kernel.py:function, package.module:function, an entry of Triton's cache, a TTGIR file, "
            "one or two timelines.",
            show_default=False,
        ),
    ],
    static: Annotated[bool, typer.Option("--static", help="Read the compiled kernels alone: needs no GPU.")] = False,
    target: Target = SM_90A.name,
    signature: Signature = None,
    constexpr: Constexpr = None,
    num_warps: NumWarps = None,
    num_stages: NumStages = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: docs/finding.schema.json.")] = False,
    sarif: Annotated[Path | None, typer.Option(help="Write SARIF 2.1.0 here; - prints it.", show_default=False)] = None,
    fail_if: Annotated[
        str | None, typer.Option(help="Exit with status 1 at a finding this severe: high, medium or low.")
    ] = None,
    try_out: Annotated[
        bool | None,
        typer.Option(
            "--try/--no-try",
            help="Compile and time, at the script's launches, the configurations that findings name (20 s a kernel at "
            "most).",
            show_default="--try of a script, where there is a GPU",
        ),
    ] = None,
    samples: Annotated[
        bool | None,
        typer.Option(
            "--samples/--no-samples",
            help="Let the GPU sample the original kernels too: whether its samples agree with each finding.",
            show_default="--samples of a script",
        ),
    ] = None,
    wait: Wait = False,
    explain: Annotated[bool, typer.Option("--explain", help="Print all findings, and their rules' pages.")] = False,
) -> None:
    """Find what makes Triton kernels slow, at which line, and what to write instead.

    `# kperf: ignore\\[id] reason` in the source silences a finding at its line.
    """
    from kperf.diagnose import command

    request = command.Request(
        target=target,
        signature=signature,
        constexprs=tuple(constexpr or ()),
        options=given(num_warps=num_warps, num_stages=num_stages),
        as_json=as_json,
        as_sarif=sarif,
        fail_if=fail_if,
        explain=explain,
        try_out=try_out,
        samples=samples,
        wait=wait,
    )
    name, *arguments = what
    raise typer.Exit(command.run(console, name, arguments, request, static=static))
