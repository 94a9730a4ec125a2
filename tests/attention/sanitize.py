"""Run the overrides under compute-sanitizer and say what it said: `python -m tests.attention.sanitize --help`."""

import argparse
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[2]

TOOLS = {
    "memcheck": ["--report-api-errors", "no", "--check-tensor-ops", "yes"],
    "racecheck": ["--num-cuda-barriers", "64"],
}
"""Options of each tool. Not initcheck: it takes what TMA writes for unwritten."""

OLDEST = (2026, 4)
"""A version known to take neither mbarriers nor warp groups for races; 2025.3 reports some in every override."""

OVERRIDES = ("vanilla", "improved", "improved_plus")

CONTROLS = {
    "memcheck": ("write_beyond", "tma_load_beyond", "tma_load"),
    "racecheck": ("race", "tma_read_before_arrival", "tma_load"),
}
"""Kernels of `tests/sanitized.py`: the first is wrong in plain memory, the others show what the tool sees of TMA."""

Verdict = Literal["clean", "errors", "program failed", "timed out", "cannot run here"]


@dataclass(frozen=True)
class Outcome:
    """One program under one tool; `said` is the tool's own words."""

    tool: str
    subject: str
    verdict: Verdict
    said: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.tool} {self.subject}: {self.verdict}, {self.seconds:.0f} s\n{self.said}"


class MissingError(Exception):
    """No compute-sanitizer that could tell; the message has the mend."""


def find() -> tuple[str, str]:
    """Path and version of compute-sanitizer: of nvidia-cuda-sanitizer-api, else on PATH or in CUDA's toolkit.

    Raises `MissingError` if there is none, or only one older than `OLDEST`.
    """
    spec = importlib.util.find_spec("nvidia")
    packages = [f"{path}/cu13/bin" for path in (spec.submodule_search_locations or () if spec else ())]
    places = [*packages, os.environ.get("PATH", ""), "/usr/local/cuda/bin"]
    sanitizer = shutil.which("compute-sanitizer", path=os.pathsep.join(places))
    mend = "`pip install nvidia-cuda-sanitizer-api` brings one"
    if sanitizer is None:
        raise MissingError(f"compute-sanitizer is missing: {mend}")
    printed = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"Version (\d+)\.(\d+)", printed)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        version = found[0] if found else "of no version"
        raise MissingError(f"{sanitizer}, {version}, takes mbarriers for races: {mend}")
    return sanitizer, found[0]


def run(sanitizer: str, tool: str, subject: str, timeout: float) -> Outcome:
    """One process of `tests/sanitized.py` under one tool, ended after so many seconds."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        log, output = Path(folder) / "log", Path(folder) / "output"
        command = [sanitizer, "--tool", tool, "--log-file", str(log), "--target-processes", "application-only"]
        command += ["--print-limit", "20", *TOOLS[tool]]
        command += [sys.executable, "-m", "tests.attention.sanitized", subject]
        # Without its own cache torch gives each tensor an allocation, whose ends the tool knows.
        settings = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        with output.open("wb") as stream:
            process = subprocess.Popen(
                command, cwd=ROOT, env=settings, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True
            )
            ended = True
            try:
                process.wait(timeout)
            except subprocess.TimeoutExpired:
                ended = False
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        said = log.read_text(errors="replace") if log.exists() else ""
        printed = output.read_text(errors="replace")
    seconds = time.monotonic() - begin
    verdict = judge(said, printed, ended=ended)
    tail = [line for line in printed.splitlines() if line][-8:]
    words = [line.removeprefix("=========").strip() for line in said.splitlines()]
    shown = [line for line in words if line and not line.startswith(("Host Frame", "Saved host backtrace"))]
    if verdict != "clean":
        shown += [f"(program) {line}" for line in tail]
    return Outcome(tool, subject, verdict, "\n".join(f"    {line}" for line in shown[:60]), seconds)


def judge(said: str, printed: str, *, ended: bool) -> Verdict:
    """What the tool's log and the program's output amount to."""
    if not ended:
        return "timed out"
    if "Device not supported" in said + printed:
        return "cannot run here"
    summary = re.search(r"SUMMARY: (\d+) ", said)
    if summary and int(summary.group(1)):
        return "errors"
    return "clean" if summary and "ran to its end" in printed else "program failed"


def main() -> None:
    """Print every outcome; status 1 unless each override was clean under each tool."""
    parser = argparse.ArgumentParser(prog="python -m tests.attention.sanitize", description=__doc__)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), help="all")
    parser.add_argument("--overrides", nargs="*", choices=OVERRIDES, default=list(OVERRIDES), help="all")
    parser.add_argument(
        "--controls", action=argparse.BooleanOptionalAction, default=True, help="and what shows that it sees"
    )
    parser.add_argument("--timeout", type=float, default=240, help="seconds a program; %(default)s")
    options = parser.parse_args()
    try:
        sanitizer, version = find()
    except MissingError as error:
        sys.exit(str(error))
    print(f"{sanitizer}, {version}", flush=True)
    failed = []
    for tool in options.tools:
        for subject in (*(CONTROLS[tool] if options.controls else ()), *options.overrides):
            outcome = run(sanitizer, tool, subject, options.timeout)
            print(outcome, flush=True)
            if subject in OVERRIDES and outcome.verdict != "clean":
                failed.append(f"{tool} {subject}: {outcome.verdict}")
    if failed:
        sys.exit("not clean: " + "; ".join(failed))


if __name__ == "__main__":
    main()
