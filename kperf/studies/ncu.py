"""Nsight Compute's command line: found by search, run on a process of ours, its CSV read; what it lacks, it says."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from kperf.errors import UsageError
from kperf.studies import child, foreign

_FOLDERS = (
    "/usr/local/cuda*/bin",
    "/opt/nvidia/nsight-compute/*",
    "/usr/local/NVIDIA-Nsight-Compute*",
    "/opt/cuda*/bin",
)
_LIMIT_S = 120


def find(given: Path | None = None) -> Path:
    """`given`, or the newest on PATH, in CUDA_HOME and where CUDA is installed. Raises `UsageError` with the mend."""
    if given is not None:
        if not os.access(given, os.X_OK) or given.is_dir():
            raise UsageError(f"{given} is no program: name Nsight Compute's ncu with --ncu")
        return given
    if on_path := shutil.which("ncu"):
        return Path(on_path)
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    patterns = [*([f"{home}/bin"] if home else []), *_FOLDERS]
    found = [path / "ncu" for pattern in patterns for path in sorted(Path("/").glob(pattern.lstrip("/")), reverse=True)]
    for path in found:
        if os.access(path, os.X_OK):
            return path
    raise UsageError(
        "there is no ncu on PATH nor where CUDA is installed: install Nsight Compute, or name it with --ncu"
    )


def run(ncu: Path, options: Sequence[str], command: Sequence[str], limit_s: float = _LIMIT_S, page: str = "raw") -> str:
    """What ncu prints as CSV for the launches between cudaProfilerStart and cudaProfilerStop of `command`.

    Clocks stay as they are: by itself ncu holds them at base, for all who use the card, and measures another machine.
    Raises `UsageError` with the mend where this user may not read the GPU's counters, and for any other failure.
    """
    words = [str(ncu), "--csv", "--page", page, "--print-units", "base", "--profile-from-start", "off"]
    words += ["--clock-control", "none", *options]
    try:
        done = child.run([*words, *command], limit_s, ending=signal.SIGINT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{ncu} does not run: {str(error).splitlines()[0]}") from None
    said = done.stdout + done.stderr
    if "ERR_NVGPUCTRPERM" in said:
        raise UsageError(
            "this user may not read the GPU's counters (ERR_NVGPUCTRPERM): the administrator allows it to all with "
            "`options nvidia NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d/ and a restart, or a container "
            "is started with --cap-add SYS_ADMIN"
        )
    if done.returncode:
        lines = [line for line in said.splitlines() if "==ERROR==" in line] or said.splitlines()[-1:]
        raise UsageError(f"ncu failed: {lines[0].removeprefix('==ERROR== ') if lines else done.returncode}")
    return done.stdout


def rows(text: str) -> list[dict[str, str]]:
    """The rows of `--page raw --csv`: column -> text, a kernel a row; the line of units is left out.

    Lines that ncu or the program print before are passed over. Raises `UsageError` if there is no table.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise UsageError("ncu printed no table: it saw no kernel")
    header, *cells = foreign.read_csv(lines[start:], "ncu")
    return [dict(zip(header, row, strict=False)) for row in cells if row and row[0].isdecimal()]


def metrics(text: str, names: Sequence[str]) -> list[dict[str, float]]:
    """Of each kernel in such a table these numbers. Raises `UsageError` if one is not there, or is no number."""
    found = rows(text)
    if missing := [name for name in names if any(name not in row for row in found)]:
        raise UsageError(f"ncu's table has no {missing[0]}")
    return [{name: foreign.number(row[name], "ncu") for name in names} for row in found]
