"""A finding: what is wrong, at which line, by which numbers, what to do, and what it gives."""

from typing import Literal

from pydantic import Field

from kperf.record.store import Frozen

Level = Literal["high", "medium", "low"]
LEVELS: tuple[Level, ...] = ("high", "medium", "low")
"""Worst first."""


class Source(Frozen):
    """A line of source. `file` is empty and `line` 0 where the kernel has no locations."""

    file: str
    line: int = Field(ge=0)
    function: str = ""


class Estimate(Frozen):
    """How many times as fast the kernel becomes by the advice: the likely factor, and its interval."""

    speedup: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)


class Trial(Frozen):
    """An advice that was tried at the launch.

    change: what was changed, as it is written. speedup: original time over changed time, the median of interleaved
    rounds, with its 95 % interval. equal: whether both computed the same, within the tolerance of the outputs' type;
    what did not is in `dropped`. write: the line to write. original_ms, changed_ms: the rounds.
    """

    change: str
    speedup: float
    low: float
    high: float
    equal: bool
    write: str = ""
    original_ms: list[float] = Field(default_factory=list)
    changed_ms: list[float] = Field(default_factory=list)


class Dropped(Frozen):
    """A change that does not help, or was tried and has no time: why, in words."""

    change: str
    why: str


class Checked(Frozen):
    """How often a kernel whose results may be wrong was launched again, and computed something else than it should.

    than: the configuration without the fault whose results are the right ones, as it is written; empty where none is
    known, and the results are those of the kernel's own first launch. launches: how many. different: those whose
    results differ from them, beyond the tolerance of the outputs' type.
    """

    than: str
    launches: int = Field(gt=0)
    different: int = Field(ge=0)


class Witness(Frozen):
    """What the GPU's samples of the original kernel say of a finding.

    agreement: "none" where they say nothing; why, in `message`. share: of the samples of the warps that run its line,
    those that show it; `stalls`: of all samples, by what the warps wait for. by_events: the share of an iteration that
    events show, where the finding is about one. decides: the share is that of the samples, since events disturb the
    kernel more than a tenth, change the order of its instructions, or show more than twice as much.
    """

    agreement: Literal["agrees", "disagrees", "none"]
    share: float | None = None
    by_events: float | None = None
    decides: bool = False
    stalls: dict[str, float] = Field(default_factory=dict)
    message: str


class Finding(Frozen):
    """One finding.

    Attributes:
        id: the rule's; docs/rules/<id>.md describes it.
        severity: high: the kernel loses half of its speed or more, cannot run, or may compute wrong results; medium: a
            tenth or more; low: a hint.
        confidence: high: the machine code or the compiler says so; medium: it follows from layouts and types; low: it
            depends on numbers that are not known before the kernel runs.
        source: the line to change.
        kernel: its name.
        message: what is wrong, a sentence.
        evidence: the numbers behind it, by name.
        advice: what to change, a sentence.
        estimate: what the advice gives; None where nothing can be estimated.
        candidates: configurations that may be faster: constexprs and compile options by name, the likeliest first.
        tried: what was measured of them.
        dropped: which of them do not help, or could not be measured.
        right_with: a configuration that computes right results, of a finding that doubts them.
        checked: what launches computed; None where nothing doubts it, or none was checked.
        witness: what samples of the original kernel say; None where none were asked for.
    """

    id: str
    severity: Level
    confidence: Level
    source: Source
    kernel: str
    message: str
    evidence: dict[str, float | int | str]
    advice: str
    estimate: Estimate | None = None
    candidates: list[dict[str, int]] = Field(default_factory=list)
    tried: list[Trial] = Field(default_factory=list)
    dropped: list[Dropped] = Field(default_factory=list)
    right_with: dict[str, int] = Field(default_factory=dict)
    checked: Checked | None = None
    witness: Witness | None = None
