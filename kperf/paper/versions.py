"""What each Triton makes of the examples for each target: `results/versions.jsonl`, and the tables of docs/support.md.

`python -m kperf.paper.versions FILE [TARGET ...]` adds what this interpreter's Triton makes of them; it compiles, and
runs nothing. `--runs FILE [RESULTS]` adds what the traces of the examples in a folder of results say, of whichever
Triton; `--page FILE` writes the page's tables anew.
"""

import argparse
import multiprocessing
import os
import re
import resource
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from kperf.arch import KNOWN, Arch
from kperf.compat.triton import VERSION
from kperf.console import agreeing, complain, of_standard_output
from kperf.errors import MeasurementError, UsageError, root_cause
from kperf.ir import offline
from kperf.paper.examples import EXAMPLES, Script
from kperf.paper.readings import Place, Reading, reading
from kperf.paper.readings import tables as reading_tables
from kperf.record import markdown as md
from kperf.record.files import read_text, write_atomically, write_between_marks
from kperf.record.store import first_of
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture.selfcheck import Attempt, Stage, attempt
from kperf.trace.instrument.events import read_rules

LIMIT_S: float = 600
"""For a script on a target: a compiler that hangs is a row too."""

_USAGE = """python -m kperf.paper.versions FILE [TARGET ...]
       python -m kperf.paper.versions --runs FILE [RESULTS]
       python -m kperf.paper.versions --page FILE"""
_FOLDERS = re.compile(r"(?:/[\w.+-]+)+/")
_LONGEST = 200


class Row(BaseModel):
    """A kernel of the examples, compiled for a target with a Triton.

    stage: the last that was tried, `run` for what is recorded on a GPU; ok: whether it worked; message: the events
    that were found in its machine code, where it ran, or why not; reading: what its trace says, where it ran.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    triton: str
    torch: str
    target: str
    kernel: str
    stage: Stage
    ok: bool
    message: str
    reading: Reading | None = None


def read(path: Path) -> list[Row]:
    """The rows of a file, none if there is no file. Raises `UsageError` if it cannot be read, or a line is no row."""
    rows = []
    for number, line in enumerate(_text(path).split("\n")[:-1], 1):
        try:
            rows.append(Row.model_validate_json(line))
        except ValidationError as error:
            raise UsageError(f"{path}, line {number} is no row ({first_of(error)}): remove it") from None
    return rows


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a file, in one piece. Raises `UsageError` and `MeasurementError` as `write_atomically` does."""
    lines = [f"{row.model_dump_json(exclude_none=True)}\n" for row in rows]
    write_atomically(path, _text(path) + "".join(lines))


def _text(path: Path) -> str:
    """What a file holds, which may be missing, with the end of its last line."""
    text = read_text(path) if os.path.lexists(path) else ""
    return text if text.endswith("\n") or not text else f"{text}\n"


def record(path: Path, targets: Sequence[Arch]) -> None:
    """Append a row for each kernel and target that has none of this Triton's yet, script by script."""
    console = of_standard_output()
    for arch in targets:
        for script in different(EXAMPLES):
            known = {(row.triton, row.target, row.kernel) for row in read(path)}
            if all((VERSION, arch.name, name) in known for name in script.kernels):
                continue
            rows = [
                Row(
                    triton=VERSION,
                    torch=torch.__version__,
                    target=arch.name,
                    kernel=name,
                    stage=tried.stage,
                    ok=tried.ok,
                    message=_FOLDERS.sub("", tried.message)[:_LONGEST],
                )
                for name, tried in attempts(script, arch).items()
            ]
            append(path, rows)
            for row in rows:
                console.print(f"{row.target} {row.kernel}: {row.stage}, {row.message}")


def different(scripts: Sequence[Script]) -> list[Script]:
    """Those that compile here, one for each kernel: what differs in a number of stages or tiles is left out."""
    shown: dict[tuple[str, str], Script] = {}
    for script in scripts:
        if script.small is not None:
            shown.setdefault((script.name, next(iter(script.kernels.values()))), script)
    return list(shown.values())


def attempts(script: Script, arch: Arch) -> dict[str, Attempt]:
    """What becomes of each kernel of a script, tried in a process of its own: a back end may abort it.

    That process is forked from a server that has imported what it needs, and not from this one, which may have threads.
    """
    ours, theirs = multiprocessing.Pipe(duplex=False)
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload([offline.__name__, attempt.__module__])
    with tempfile.TemporaryDirectory() as folder:
        errors = Path(folder) / "errors"
        errors.touch()  # it may not have begun when its time is over
        process = server.Process(target=_try, args=(script, arch, theirs, errors))
        process.start()
        theirs.close()
        found: dict[str, Attempt] = {}
        ended = f"it took more than {LIMIT_S} s"
        try:
            while ours.poll(LIMIT_S):
                name, tried = ours.recv()
                found[name] = tried
        except EOFError:
            process.join()
            ended = f"the compiler's process ended with status {process.exitcode}"
        process.kill()
        process.join()
        printed = errors.read_text(errors="replace")
        fatal = re.search(r"^.*(?:LLVM ERROR|Assertion|fatal).*$", printed, re.MULTILINE)
    lost = Attempt("lowered", False, fatal[0] if fatal else ended)
    return {name: found.get(name, lost) for name in script.kernels}


def _try(script: Script, arch: Arch, answers: Connection, errors: Path) -> None:
    with errors.open("wb") as stream:
        os.dup2(stream.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # all of torch and LLVM: minutes on a slow disk
    assert script.small is not None
    try:
        launches = offline.launched_by(script.path, script.small, arch)
    except Exception as error:  # front end, passes and LLVM raise what they like
        refused = Attempt("instrumented", False, f"the kernel itself does not compile: {root_cause(error)}")
        for name in script.kernels:
            answers.send((name, refused))
        return
    for name, pattern in script.kernels.items():
        kernels = [launch.kernel for launch in launches if fnmatchcase(launch.name, pattern)]
        if not kernels:
            answers.send((name, Attempt("instrumented", False, "the script launches no such kernel here")))
            continue
        with tempfile.TemporaryDirectory() as folder:
            answers.send((name, attempt(kernels[0], Path(folder), read_rules())))


def runs(results: Path) -> Iterator[Row]:
    """A row for each example that `results` holds a trace of, from a GPU."""
    for path in sorted(results.glob("*/examples/*.timeline.json")):
        timeline = read_timeline(path)
        environment = timeline.environment
        for arch in KNOWN:
            if any(f" {gpu} " in f"{environment.gpu} " for gpu in arch.gpus.split(", ")):
                yield Row(
                    triton=environment.triton,
                    torch=environment.torch,
                    target=arch.name,
                    kernel=path.name.removesuffix(".timeline.json"),
                    stage="run",
                    ok=True,
                    message=f"{environment.gpu}, {environment.recorded_at[:10]}",
                    reading=reading(timeline),
                )


def tables(rows: Sequence[Row]) -> str:
    """Markdown: a line a target and a column a Triton; what does not compile, with the reason; what traces say."""
    versions = sorted({row.triton for row in rows}, key=lambda version: [*map(int, re.findall(r"\d+", version))])
    of_targets = [
        [arch.name]
        + [_cell([row for row in rows if (row.triton, row.target) == (version, arch.name)]) for version in versions]
        for arch in KNOWN
    ]
    of_rows = ((row, row.reading) for row in rows if row.reading)  # in the order of time: the newest of each counts
    readings = {Place(one.gpu, row.kernel, row.triton): one for row, one in of_rows}
    lines = [
        *md.table(["target", *(f"Triton {version}" for version in versions)], of_targets),
        "",
        *md.table(
            ("kernels", "Triton versions and targets for which the kernels do not compile", "the compiler's message"),
            _refusals(rows, versions),
        ),
    ]
    return "\n".join([*lines, *reading_tables(readings, versions)])


def _refusals(rows: Sequence[Row], versions: Sequence[str]) -> list[tuple[str, str, str]]:
    """What does not compile, a line for the kernels that fail in the same places with the same message."""
    places: dict[tuple[str, str], dict[str, list[str]]] = {}
    for row in rows:
        if not row.ok:
            places.setdefault((row.kernel, row.message), {}).setdefault(row.triton, []).append(row.target)
    kernels: dict[tuple[str, str], list[str]] = {}
    for (kernel, message), targets in sorted(places.items()):
        where = "; ".join(f"{version}: {', '.join(targets[version])}" for version in versions if version in targets)
        kernels.setdefault((where, message), []).append(kernel)
    return [(", ".join(failing), where, message) for (where, message), failing in kernels.items()]


def _cell(rows: Sequence[Row]) -> str:
    """How many kernels ran on a GPU of that target, and how many of the others compile with events."""
    tried = {row.kernel for row in rows}
    if not tried:
        return "not tried"
    ran = {row.kernel for row in rows if row.stage == "run"}
    compiled = {row.kernel for row in rows if row.ok and row.stage == "machine code"}
    if not ran:
        return f"{len(compiled)} of {len(tried)} kernels compile"
    traced = f"{len(ran)} {agreeing(len(ran), 'kernel', 'kernels')} ran"
    if not compiled - ran:
        return traced
    return f"{traced}; {len(compiled - ran)} of {len(tried - ran)} other kernels compile"


def main(words: Sequence[str]) -> None:
    """As the module's first lines say. Raises `SystemExit` for words that are none of that, and for what goes wrong."""
    try:
        _main(words)
    except (UsageError, MeasurementError) as error:
        complain(str(error))
        raise SystemExit(2 if isinstance(error, UsageError) else 1) from None


def _main(words: Sequence[str]) -> None:
    results = Path(__file__).resolve().parents[2] / "results"
    parser = argparse.ArgumentParser(description=__doc__, usage=_USAGE, formatter_class=argparse.RawTextHelpFormatter)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--runs", action="store_true", help="add what traces say")
    modes.add_argument("--page", action="store_true", help="write the page's tables")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("more", nargs="*", metavar="TARGET", help=f"all of {', '.join(arch.name for arch in KNOWN)}")
    given = parser.parse_args(words)
    if len(given.more) > (0 if given.page else 1 if given.runs else len(KNOWN)):
        parser.error(f"{given.more[-1]} is one too many")
    if given.page:
        write_between_marks(given.file, "versions", tables(read(results / "versions.jsonl")))
    elif given.runs:
        known = read(given.file)
        append(given.file, [row for row in runs(Path(given.more[0]) if given.more else results) if row not in known])
    else:
        if unknown := sorted({*given.more} - {arch.name for arch in KNOWN}):
            parser.error(f"unknown target {unknown[0]}: choose from {', '.join(arch.name for arch in KNOWN)}")
        record(given.file, [arch for arch in KNOWN if not given.more or arch.name in given.more])


if __name__ == "__main__":
    main(sys.argv[1:])
