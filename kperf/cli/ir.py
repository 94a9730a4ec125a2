"""See what the compiler makes of a kernel, level by level: ir."""

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kperf.arch import SM_90A, of
from kperf.cli.app import app, console
from kperf.cli.options import Constexpr, NumStages, NumWarps, Signature, Target, given, listed
from kperf.console import shell_word
from kperf.errors import UsageError

if TYPE_CHECKING:
    from kperf.diagnose.reading.kernel import Kernel
    from kperf.report.ladder import Ladder
    from kperf.trace.analyze.finding import Finding


@app.command()
def ir(
    what: Annotated[
        list[str],
        typer.Argument(
            metavar="WHAT [-- ARGUMENTS]",
            help="script.py, kernel.py:function, package.module:function, an entry of Triton's cache, or a TTGIR file.",
            show_default=False,
        ),
    ],
    target: Target = SM_90A.name,
    level: Annotated[
        str | None,
        typer.Option(help="Of ttir, ttgir, llir, ptx, sass, gcn, separated by commas; all that the target has."),
    ] = None,
    line: Annotated[str | None, typer.Option(help="N or A-B: lines of the kernel's file, with what they call.")] = None,
    kernel: Annotated[str, typer.Option(help="Names of kernels, with * and ?, separated by commas.")] = "*",
    page: Annotated[
        Path | None, typer.Option("--html", help="Write one HTML page here instead of printing.", show_default=False)
    ] = None,
    signature: Signature = None,
    constexpr: Constexpr = None,
    num_warps: NumWarps = None,
    num_stages: NumStages = None,
) -> None:
    """Show a kernel's TTIR, TTGIR, LLVM IR, PTX and machine code by line of source, with findings; needs no GPU."""
    from kperf.ir.levels import LEVELS

    wanted = listed(level)
    if unknown := [name for name in wanted or () if name not in LEVELS]:
        raise UsageError(f"--level {unknown[0]} is no level: choose from {', '.join(LEVELS)}")
    lines = _lines(line) if line is not None else None
    patterns = listed(kernel) or []
    arch = of(target)
    if page is not None:
        from kperf.report import ladder_page
    from kperf.diagnose import inputs
    from kperf.diagnose.compilations import kernels_with_diagnoses
    from kperf.record.files import make_output, write_atomically
    from kperf.report import ladder

    options = given(num_warps=num_warps, num_stages=num_stages)
    name, *arguments = what
    read = inputs.read(name, arguments, arch, signature=signature, constexprs=tuple(constexpr or ()), options=options)
    chosen = [each for each in read if any(fnmatchcase(each.name, pattern) for pattern in patterns)]
    if not chosen:
        names = ", ".join(dict.fromkeys(each.name for each in read))
        raise UsageError(f"{name} has no kernel {kernel}: it has {names}")
    ladders = [_ladder(each, found.findings, wanted) for each, found in kernels_with_diagnoses(chosen)]
    if lines is not None:
        ladders = ladder.restricted(ladders, *lines)
    if page is None:
        for each in ladders:
            ladder.show(console, each)
        return
    make_output(page.parent)
    write_atomically(page, ladder_page.page(ladders))
    console.print(f"written: {shell_word(page)}")


def _lines(text: str) -> tuple[int, int]:
    """First and last line of `N` or `A-B`."""
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= first <= last:
        raise UsageError(f"--line {text} is no line: give N, or A-B with A not after B")
    return first, last


def _ladder(kernel: "Kernel", findings: "list[Finding]", wanted: list[str] | None) -> "Ladder":
    """The levels that are wanted of a kernel, all that it has if None, with what was found.

    Raises `UsageError` if it has none of them.
    """
    from kperf.diagnose.reading.lines import frame_of
    from kperf.ir.levels import LEVELS, levels_of
    from kperf.report.ladder import Ladder

    has = kernel.levels
    goes_through = levels_of(kernel.arch)
    notes = []
    for level in [name for name in LEVELS if name in (wanted or goes_through) and name not in has]:
        why = "its machine code is " + goes_through[-1] if level not in goes_through else "what was read holds none"
        notes.append(f"no {level} of {kernel.name} for {kernel.arch.name}: {why}")
    levels = {level: lines for level, lines in has.items() if wanted is None or level in wanted}
    if not levels:
        raise UsageError(notes[0])
    frame = frame_of(kernel.module.function)
    return Ladder(kernel.name, kernel.arch.name, frame.file if frame else "", levels, findings, notes)
