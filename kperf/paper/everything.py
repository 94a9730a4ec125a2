"""`make record`: measure anew what results/<gpu> holds, one command after the other, each as a person would run it.

The longest-lived numbers come first: what they are compared with has to be measured on the same card, and a machine
that is lent for half an hour is given back before the list ends. What is left is printed, with its command. Kernels of
public packages are a step where a file of pairs is given: the packages are not in this repository.
"""

import math
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kperf.console import titled_table
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.studies import child

KPERF = (sys.executable, "-m", "kperf")
LIMIT = 3.0
"""A step that takes so many times as long as on an H200 hangs: it is ended."""


@dataclass(frozen=True)
class Step:
    """A command of ours that records something, and how many minutes it takes on an H200."""

    name: str
    command: str
    minutes: float


STEPS = (
    Step("fig12", "fig12", 5),
    Step("fig12_causal", "fig12 --causal", 3),
    Step("fig11", "fig11", 3),
    Step("fig12_d64", "fig12 --head-dim 64", 3),
    Step("fig12_d64_causal", "fig12 --head-dim 64 --causal", 2),
    Step("fig12_float16", "fig12 --dtype float16", 3),
    Step("fig12_float16_causal", "fig12 --dtype float16 --causal", 3),
    Step("power", "power --only cudnn,fa3,improved,improved_plus", 2),
    Step("power_causal", "power --causal --only cudnn,fa3,improved,improved_plus", 2),
    Step("inputs", "inputs", 4),
    Step("examples", "examples", 4),
    Step("accuracy", "accuracy", 2),
    Step("overhead", "overhead", 2),
    Step("timers", "timers", 2),
    Step("proton", "proton", 1),
    Step("lines", "lines", 2),
    Step("inductor", "inductor", 3),
    Step("llama-block", "llama-block", 2),
    Step("varlen", "varlen", 2),
    Step("tritonbench", "tritonbench-compare", 2),
    Step("attention", "attention", 8),
    Step("tune", "tune --exhaustive", 10),
    Step("proof", "proof", 5),
    Step("disturbance", "disturbance", 6),
)
"""In the order in which they are run."""
PUBLIC_MINUTES = 2.0
"""Of eleven pairs on an H200, whose packages are there."""


@dataclass(frozen=True)
class Ended:
    """How a step ended. status: of the command; None where it was not begun, or ended by us."""

    step: Step
    status: int | None
    seconds: float


def run(
    console: Console, results: Path, *, only: Sequence[str], minutes: float | None, public: Path | None = None
) -> None:
    """Run the steps `only` (all of them if empty) that fit into `minutes`, each with its own output.

    `public`: a file of pairs for `kperf public`, which is then the last step. Raises `UsageError` for a step that there
    is not and without a Hopper GPU, at the end `MeasurementError` if a step failed.
    """
    steps = list(STEPS)
    if public is not None:
        steps.append(Step("public", f"public {shlex.quote(str(public))}", PUBLIC_MINUTES))
    if unknown := [name for name in only if name not in {step.name for step in steps}]:
        wanted = "--public PAIRS.py" if unknown[0] == "public" else f"one of {', '.join(step.name for step in steps)}"
        raise UsageError(f"unknown step {unknown[0]!r}: give {wanted}")
    if why := device.why_static():
        raise UsageError(f"{why}: there is nothing to record with (`make figures` draws what is recorded)")
    begin = time.monotonic()
    ends: list[Ended] = []
    for step in [step for step in steps if not only or step.name in only]:
        left = None if minutes is None else minutes - (time.monotonic() - begin) / 60
        if left is not None and left < step.minutes:
            ends.append(Ended(step, None, 0))
            continue
        console.print(f"==> kperf {step.command} (about {step.minutes:g} minutes)")
        ends.append(_run(step, results, left))
    console.print(_table(ends))
    if later := [end.step.name for end in ends if end.seconds == 0]:
        console.print(f"No time was left for {len(later)}: `{_again(later, public)}` runs them.")
    if failed := [end.step.name for end in ends if end.seconds and end.status != 0]:
        raise MeasurementError(f"these failed: {', '.join(failed)} (`{_again(failed, public)}` tries again)")


def _again(names: Sequence[str], public: Path | None) -> str:
    given = f" --public {shlex.quote(str(public))}" if "public" in names else ""
    return f"kperf record --only {','.join(names)}{given}"


def _run(step: Step, results: Path, left: float | None) -> Ended:
    command = [*KPERF, *shlex.split(step.command), "--results", str(results)]
    begin = time.monotonic()
    status: int | None = None
    with suppress(subprocess.TimeoutExpired):
        limit_s = 60 * min(LIMIT * step.minutes, left or math.inf)
        status = child.run(command, limit_s, output=None, errors=None, ending=signal.SIGINT).returncode
    return Ended(step, status, time.monotonic() - begin)


def _table(ends: Sequence[Ended]) -> Table:
    words = ("step", "command", "ended")
    table = titled_table("recorded", *words, "minutes", "expected", left=words)
    for end in ends:
        how = "well" if end.status == 0 else f"with status {end.status}"
        if end.status is None:
            how = "out of time" if end.seconds else "not begun"
        row = (end.step.name, f"kperf {end.step.command}", how, f"{end.seconds / 60:.1f}", f"{end.step.minutes:g}")
        table.add_row(*row)
    return table
