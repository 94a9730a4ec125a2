"""Run the overrides under compute-sanitizer and say what it said: `python -m tests.sanitize --help`."""

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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).resolve().parents[1]

TOOLS = {
    "memcheck": ["--report-api-errors", "no", "--check-tensor-ops", "yes"],
    "racecheck": ["--num-cuda-barriers", "64"],
    "initcheck": [],
    "synccheck": ["--num-cuda-barriers", "64"],
}
"""Options of each tool; one that the installed version does not know is left out (TMA in memcheck needs 2026.2)."""

OVERRIDES = ("vanilla", "improved", "improved_plus")

CONTROLS = {
    "memcheck": ("write_beyond", "tma_load_beyond", "tma_load"),
    "racecheck": ("race", "tma_read_before_arrival", "tma_load"),
    "initcheck": ("read_unwritten", "tma_load"),
    "synccheck": ("tma_load",),
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


def find() -> str | None:
    """compute-sanitizer on PATH, of the package nvidia-cuda-sanitizer-api or of CUDA's toolkit; None without."""
    spec = importlib.util.find_spec("nvidia")
    packages = [f"{path}/cu13/bin" for path in (spec.submodule_search_locations or () if spec else ())]
    places = [os.environ.get("PATH", ""), *packages, "/usr/local/cuda/bin"]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(places))


def version(sanitizer: str) -> str:
    """As it prints it."""
    done = subprocess.run([sanitizer, "--version"], capture_output=True, text=True, check=False)
    return next((line for line in done.stdout.splitlines() if line.startswith("Version")), done.stdout + done.stderr)


def run(sanitizer: str, tool: str, subject: str, timeout: float) -> Outcome:
    """One process of `tests/sanitized.py` under one tool, ended after so many seconds."""
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        log, output = Path(folder) / "log", Path(folder) / "output"
        command = [sanitizer, "--tool", tool, "--log-file", str(log), "--target-processes", "application-only"]
        command += ["--print-limit", "20", *_known_options(sanitizer, tool)]
        command += [sys.executable, "-m", "tests.sanitized", subject]
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


def _known_options(sanitizer: str, tool: str) -> Iterator[str]:
    known = subprocess.run([sanitizer, "--help"], capture_output=True, text=True, check=False).stdout
    for option, value in zip(TOOLS[tool][::2], TOOLS[tool][1::2], strict=True):
        if f"{option} " in known:
            yield from (option, value)


def main() -> None:
    """Print every outcome; status 1 unless each override was clean under each tool."""
    parser = argparse.ArgumentParser(prog="python -m tests.sanitize", description=__doc__)
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), help="all")
    parser.add_argument("--overrides", nargs="*", choices=OVERRIDES, default=list(OVERRIDES), help="all")
    parser.add_argument(
        "--controls", action=argparse.BooleanOptionalAction, default=True, help="and what shows that it sees"
    )
    parser.add_argument("--timeout", type=float, default=240, help="seconds a program; %(default)s")
    options = parser.parse_args()
    sanitizer = find()
    if sanitizer is None:
        sys.exit("compute-sanitizer is missing: `pip install nvidia-cuda-sanitizer-api`, or install CUDA's toolkit")
    print(f"{sanitizer}: {version(sanitizer)}", flush=True)
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
