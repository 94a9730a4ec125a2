"""What is known of a kernel: its findings, or what bounds it."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from kperf.record.store import Frozen
from kperf.trace.analyze.finding import Finding, Source

EDITED = "edited"
"""Evidence: what in the source the advice edits, where the advice of several rules may be the same edit."""

Unit = Literal["tensor core", "memory", "arithmetic", "unknown"]


class Bound(Frozen):
    """What bounds a kernel in which nothing was found: `unit`, and the sentence that says how that is known."""

    unit: Unit
    message: str


class Diagnosis(Frozen):
    """What is known of one kernel.

    source: where the kernel's source begins. constants: constexprs and compile options, by name; of compilations that
    are one here those that they share. skipped: rules that could not run, and what they lack. ignored: silenced ones.
    configurations: how many an autotuner has of it, of which this is the one with the least findings; 1 without one.
    not_tried: why no candidate of a finding was tried, where that was asked for; empty if some were.
    launches: of the script, without those of an autotuner's search; None without a GPU. launch_ms: mean milliseconds of
    those that were timed; None if none was.
    """

    kernel: str
    target: str
    findings: list[Finding]
    bound: Bound
    source: Source = Source(file="", line=0)
    constants: dict[str, bool | int | float | str] = Field(default_factory=dict)
    skipped: dict[str, str] = Field(default_factory=dict)
    ignored: list[str] = Field(default_factory=list)
    configurations: int = 1
    not_tried: str = ""
    launches: int | None = None
    launch_ms: float | None = None

    @property
    def total_ms(self) -> float:
        """Milliseconds of all its launches; 0 if that is not known."""
        return (self.launches or 0) * (self.launch_ms or 0.0)

    def apart_from(self, others: Iterable["Diagnosis"]) -> str:
        """Its constants that are not those of all others, in words: `BLOCK=128, num_warps=8`."""
        theirs = [one.constants for one in others]
        return ", ".join(
            f"{name}={value}" for name, value in self.constants.items() if any(one.get(name) != value for one in theirs)
        )


class Diagnoses(Frozen):
    """What `kperf diagnose --json` prints: docs/finding.schema.json is its schema.

    kernels: the one whose launches take longest first, if they were timed; else in the order of their first launches.
    """

    schema_version: Literal[2] = 2
    kernels: list[Diagnosis]
