"""The paper's claims as data (`claims.toml`), our numbers from the recorded runs, and a verdict for each."""

import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from rich.console import Console
from rich.table import Table

from kperf.attention.workload import Dtype, SweepName
from kperf.bench.points import Store
from kperf.bench.tables import speedup_interval
from kperf.errors import UsageError
from kperf.paper import fig12
from kperf.record import device
from kperf.record.files import write_atomically
from kperf.record.store import gpu_slug, recorded_folder

CLAIMS_FILE = Path(__file__).resolve().parents[2] / "claims.toml"

Verdict = Literal[
    "agrees", "same direction, smaller", "does not hold", "faster", "slower", "no difference", "not recorded whole"
]


class _Claim(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    figure: Literal["fig11", "fig12"]
    statement: str
    paper: float | None
    better: Literal["higher", "lower"] = "higher"
    tolerance: Annotated[float, Field(ge=0)] = 0
    command: str
    minutes: int
    hardware: str
    output: str


class SpeedupClaim(_Claim):
    """`ours` against `baseline`: a geometric mean over a figure; without the paper's value it is only reported."""

    kind: Literal["speedup"]
    paper: float | None = None
    ours: str
    baseline: str
    min_seq_len: int
    causal: bool = False
    head_dim: int = 128
    dtype: Dtype = "bfloat16"
    sweeps: tuple[SweepName, ...] = ("seq_len", "batch_size")


class TimelineClaim(_Claim):
    """A number of a Fig. 11 timeline: `field` is its path, separated by dots (`critical_path.0.share`)."""

    kind: Literal["timeline"]
    paper: float
    variant: str
    field: str


Claim = Annotated[SpeedupClaim | TimelineClaim, Field(discriminator="kind")]
_CLAIMS: TypeAdapter[list[Claim]] = TypeAdapter(list[Claim])


@dataclass(frozen=True)
class Outcome:
    """One claim with our value and its 95 % interval (the value itself where there is none)."""

    claim: Claim
    value: float | None
    interval: tuple[float, float] | None

    @property
    def verdict(self) -> Verdict:
        """agrees: within the tolerance of the paper's value, or beyond it on the better side.

        same direction, smaller: a speedup whose whole interval is above 1, yet short of the paper's.
        Where the paper has no value: faster or slower if the whole interval is, else no difference.
        """
        if self.value is None:
            return "not recorded whole"
        if self.claim.paper is None:
            low, high = self.interval or (self.value, self.value)
            return "faster" if low > 1 else "slower" if high < 1 else "no difference"
        higher = self.claim.better == "higher"
        limit = self.claim.paper * (1 - self.claim.tolerance if higher else 1 + self.claim.tolerance)
        if self.value >= limit if higher else self.value <= limit:
            return "agrees"
        if self.claim.kind == "speedup" and self.interval is not None and self.interval[0] > 1:
            return "same direction, smaller"
        return "does not hold"


def read_claims(path: Path = CLAIMS_FILE) -> list[Claim]:
    """The claims in file order; raises `UsageError` if the file is broken."""
    try:
        return _CLAIMS.validate_python(tomllib.loads(path.read_text())["claim"])
    except (OSError, KeyError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise UsageError(f"{path} is not a list of claims: {str(error).splitlines()[0]}") from None


def evaluate(claim: Claim, folder: Path) -> Outcome:
    """Our value of one claim from the newest whole runs in a results folder."""
    if isinstance(claim, SpeedupClaim):
        found = _speedup(claim, folder)
        return Outcome(claim, *(found or (None, None)))
    value = _timeline_value(claim, folder)
    return Outcome(claim, value, None)


def report(console: Console, results: Path) -> list[Outcome]:
    """Print the table of `make claims`; returns what it showed."""
    folder = _own_folder(results) or recorded_folder(results)
    outcomes = [evaluate(claim, folder) for claim in read_claims()]
    table = Table(title=f"the paper's claims and {folder.name}'s numbers", title_justify="left")
    for column in ("claim", "paper", "ours", "95 % interval", "verdict"):
        table.add_column(column)
    for outcome in outcomes:
        table.add_row(outcome.claim.statement, *cells(outcome), outcome.verdict)
    console.print(table)
    return outcomes


def cells(outcome: Outcome) -> tuple[str, str, str]:
    """The paper's value, ours, and our interval, as text."""
    value = "-" if outcome.value is None else f"{outcome.value:.3f}"
    interval = "-" if outcome.interval is None else f"{outcome.interval[0]:.3f} to {outcome.interval[1]:.3f}"
    paper = "-" if outcome.claim.paper is None else f"{outcome.claim.paper:g}"
    return paper, value, interval


def markdown(results: Path) -> str:
    """The claims table of artifact.md: claim, command, minutes, hardware, expected value and tolerance, output."""
    folder = recorded_folder(results)
    lines = [
        "| claim | command | minutes | hardware | paper | recorded (95 % interval) | tolerance | verdict | output |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for claim in read_claims():
        outcome = evaluate(claim, folder)
        paper, value, interval = cells(outcome)
        recorded = value if interval == "-" else f"{value} ({interval})"
        tolerance = "-" if claim.paper is None else f"{claim.tolerance:.0%}"
        cell = (claim.statement, f"`{claim.command}`", str(claim.minutes), claim.hardware, paper, recorded, tolerance)
        lines.append("| " + " | ".join([*cell, outcome.verdict, f"`{claim.output}`"]) + " |")
    return "\n".join(lines)


def _own_folder(results: Path) -> Path | None:
    """What was measured on this machine's GPU, if it has one and there is anything."""
    if device.why_static() is not None:
        return None
    folder = results / gpu_slug(device.gpu_name())
    return folder if (folder / "fig12.jsonl").exists() else None


def write_table(results: Path, document: Path) -> None:
    """Put `markdown` between the marks `<!-- claims -->` and `<!-- /claims -->` of a document.

    Raises `UsageError` if it cannot be read or written, or has no such marks.
    """
    try:
        text = document.read_text()
    except OSError as error:
        raise UsageError(f"{document} cannot be read: {error.strerror}") from None
    parts = re.split(r"(<!-- /?claims -->)", text)
    if parts[1::2] != [f"<!-- {mark} -->" for mark in ("claims", "/claims")]:
        raise UsageError(f"{document} has no pair of marks <!-- claims --> and <!-- /claims -->")
    parts[2] = f"\n{markdown(results)}\n"
    write_atomically(document, "".join(parts))


def _speedup(claim: SpeedupClaim, folder: Path) -> tuple[float, tuple[float, float]] | None:
    """From the runs that the figure shows, and only if it has every workload that the claim is about.

    What is no bar of the figure is taken from runs of its own with the baseline.
    """
    mode = fig12.Mode(claim.causal, head_dim=claim.head_dim, dtype=claim.dtype)
    pair = (claim.ours, claim.baseline)
    runs = fig12.figure_runs(Store(folder), mode, mode.keys if set(pair) <= set(mode.keys) else pair)
    wanted = [key for key in fig12.grid(mode, claim.sweeps) if key[1].seq_len >= claim.min_seq_len]
    if not all(key in runs for key in wanted):
        return None
    chosen = [runs[key] for key in wanted]
    found = speedup_interval(chosen, claim.ours, claim.baseline)
    return None if found is None else (found[0], found[1:])


def _timeline_value(claim: TimelineClaim, folder: Path) -> float | None:
    path = folder / "fig11" / f"{claim.variant}.timeline.json"
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_bytes())
        for key in claim.field.split("."):
            value = value[int(key)] if isinstance(value, list) else value[key]
        return float(value)
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        raise UsageError(f"{path} has no number {claim.field}") from None
