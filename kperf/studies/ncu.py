"""Nsight Compute's command line: found by search, run on a process of ours, its CSV read; what it lacks, it says."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from kperf.errors import UsageError, first_line
from kperf.record.store import Frozen
from kperf.studies import child, foreign

_FOLDERS = (
    "/usr/local/cuda*/bin",
    "/opt/nvidia/nsight-compute/*",
    "/usr/local/NVIDIA-Nsight-Compute*",
    "/opt/cuda*/bin",
)
_LIMIT_S = 120
_VERSION = re.compile(r"^Version (\S+)", re.MULTILINE)
_SENTENCE = re.compile(r"\.\s")
_LINE_OF_PYTHON = re.compile(r"\.py\W{1,2}\d")


class Rule(Frozen):
    """What a rule of ncu says of a kernel.

    rule: its name, as `UncoalescedGlobalAccess`. kind: `OPT`, `WRN`, `INF` or what else ncu calls it. text: its first
    sentence. names_line: whether its whole text names a line of Python. percent: the estimated speedup, None where it
    has none; of scope `global` that is how much less time the kernel would take, of `local` how much better one unit
    of the hardware would be used.
    """

    rule: str
    kind: str
    text: str
    names_line: bool
    scope: Literal["global", "local", ""]
    percent: float | None


def find(given: Path | None = None) -> Path:
    """`given`, or the newest on PATH, in CUDA_HOME and where CUDA is installed. Raises `UsageError` with the fix."""
    if given is not None:
        if not os.access(given, os.X_OK) or given.is_dir():
            raise UsageError(f"{given} is no program: name Nsight Compute's ncu with --ncu")
        return given
    if on_path := shutil.which("ncu"):
        return Path(on_path)
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    patterns = [*([f"{home}/bin"] if home else []), *_FOLDERS]
    paths = [path / "ncu" for pattern in patterns for path in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)]
    for path in paths:
        if os.access(path, os.X_OK):
            return path
    raise UsageError(
        "there is no ncu on PATH nor where CUDA is installed: install Nsight Compute, or name it with --ncu"
    )


def version(ncu: Path) -> str:
    """`2025.3.1.0`. Raises `UsageError` for a program that does not say so."""
    try:
        match = _VERSION.search(child.run([ncu, "--version"], _LIMIT_S).stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{ncu} does not run: {first_line(error)}") from None
    if match is None:
        raise UsageError(f"{ncu} does not say its version: name Nsight Compute's ncu with --ncu")
    return match[1]


def run(
    ncu: Path,
    options: Sequence[str],
    command: Sequence[str | Path],
    limit_s: float = _LIMIT_S,
    page: str = "raw",
    *,
    in_part: bool = False,
) -> str:
    """What ncu prints as CSV for the launches between cudaProfilerStart and cudaProfilerStop of `command`.

    Clocks stay as they are: by itself ncu holds them at base, for all who use the card, and measures another machine.
    in_part: a table will do that ncu printed although the command failed.
    Raises `UsageError` with the fix where this user may not read the GPU's counters, and for any other failure.
    """
    words = [str(ncu), "--csv", "--page", page, "--print-units", "base", "--profile-from-start", "off"]
    words += ["--clock-control", "none", *options]
    try:
        done = child.run([*words, *command], limit_s, ending=signal.SIGINT)
    except subprocess.TimeoutExpired:
        raise UsageError(f"ncu took more than {limit_s:.0f} s") from None
    except OSError as error:
        raise UsageError(f"{ncu} does not run: {first_line(error)}") from None
    printed = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in printed:
        raise UsageError(
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM): the administrator allows it to all with "
            "`options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d/ and a restart, or a container "
            "is started with --cap-add SYS_ADMIN"
        )
    if done.returncode and not (in_part and '\n"ID"' in f"\n{done.stdout}"):
        lines = [line for line in printed.splitlines() if "==ERROR==" in line] or printed.splitlines()[-1:]
        raise UsageError(f"ncu failed: {lines[0].removeprefix('==ERROR== ') if lines else done.returncode}")
    return done.stdout


def rows(text: str) -> list[dict[str, str]]:
    """The rows of such a table: column -> text; of the raw page a kernel a row, and the line of units is left out.

    Lines that ncu or the program print before are passed over. Raises `UsageError` if there is no table.
    """
    lines = [f"{line}\n" for line in text.split("\n")]  # a cell may hold what else ends a line
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise UsageError("ncu printed no table: it saw no kernel")
    header, *cells = foreign.read_csv(lines[start:], "ncu")
    return [dict(zip(header, row, strict=False)) for row in cells if row and row[0].isdecimal()]


def metrics(text: str, names: Sequence[str]) -> list[dict[str, float]]:
    """Of each kernel in such a table these numbers. Raises `UsageError` if one is not there, or is no number."""
    kernels = rows(text)
    if missing := [name for name in names if any(name not in row for row in kernels)]:
        raise UsageError(f"ncu's table has no {missing[0]}")
    return [{name: foreign.number(row[name], "ncu") for name in names} for row in kernels]


def rules(text: str) -> list[tuple[str, list[Rule]]]:
    """Of each kernel in the details page, in the order of launches, its name and what rules say of it.

    Raises `UsageError` if there is no such table, if it has no rules, or for an estimate that is none.
    """
    names: dict[str, str] = {}
    by_kernel: dict[str, list[Rule]] = {}
    for row in rows(text):
        names.setdefault(row["ID"], row.get("Kernel Name", ""))
        of_kernel = by_kernel.setdefault(row["ID"], [])
        if row.get("Rule Name"):
            of_kernel.append(_rule(row))
    if not any(by_kernel.values()):
        raise UsageError("ncu's table has no rules: it wants --page details and sections that have some")
    return [(names[number], by_kernel[number]) for number in sorted(by_kernel, key=int)]


def _rule(row: dict[str, str]) -> Rule:
    text = " ".join(row.get("Rule Description", "").split())
    scope, percent = row.get("Estimated Speedup Type", ""), row.get("Estimated Speedup", "")
    if scope not in ("global", "local", ""):
        raise UsageError(f"ncu printed {scope!r} as the type of an estimated speedup: this program knows global, local")
    return Rule(
        rule=row["Rule Name"],
        kind=row.get("Rule Type", ""),
        text=_SENTENCE.split(text, maxsplit=1)[0].removesuffix("."),
        names_line=_LINE_OF_PYTHON.search(text) is not None,
        scope=scope,  # type: ignore[arg-type]
        percent=foreign.number(percent.removesuffix("%"), "ncu") if percent else None,
    )
