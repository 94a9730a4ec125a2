"""The paper's claims as data (`claims.toml`), our numbers from the recorded runs, and a verdict for each."""

import tomllib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, reduce
from operator import or_
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError, model_validator
from rich.console import Console
from rich.table import Column, Table

from kperf.attention import overrides as override
from kperf.attention.workload import FIG11, Dtype, SweepName
from kperf.bench.points import Store
from kperf.bench.tables import speedup_interval
from kperf.errors import UsageError, first_line
from kperf.installation import CLAIMS
from kperf.paper import fig12, fig12_inputs, instrumented
from kperf.paper.units import Unit, between, measured, stated
from kperf.record import device
from kperf.record import markdown as md
from kperf.record.machine import visible_gpus
from kperf.record.provenance import Provenance, Summary, when
from kperf.record.store import Frozen, gpu_in_words, gpu_slug, recorded_folders
from kperf.studies import accuracy, fig13, inductor, lines, models, timers
from kperf.trace.analyze.predict import NoPredictionError, predict
from kperf.trace.analyze.recorded import read_timeline
from kperf.tune import records as tuning

Verdict = Literal[
    "agrees",
    "same direction, smaller",
    "same direction, larger",
    "opposite direction",
    "no difference",
    "above",
    "below",
    "equal",
    "faster",
    "slower",
    "holds",
    "does not hold",
    "of another override",
    "not recorded whole",
    "not recorded",
]


Origin = Literal["paper", "ours"]
"""Who claims: the paper and its authors' slides, or this project."""


class _Claim(Frozen):
    id: str
    origin: Origin = "ours"
    figure: Literal[
        "fig11", "fig12", "fig12_inputs", "accuracy", "models", "overhead", "lines", "timers", "inductor", "tune"
    ]
    statement: str
    unit: Unit
    command: str
    minutes: int
    hardware: str
    output: str


class SpeedupClaim(_Claim):
    """`ours` against `baseline`: a geometric mean over a figure.

    paper: the paper's value for this very pair, which ours agrees with within `tolerance` (relative, on either side).
    yardstick: the paper's value for a kernel of its own, beside which ours is put. With neither it is only reported.
    """

    kind: Literal["speedup"]
    paper: Annotated[float, Field(gt=1)] | None = None
    tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None
    yardstick: Annotated[float, Field(gt=0)] | None = None
    ours: str
    baseline: str
    min_seq_len: int
    causal: bool = False
    head_dim: int = 128
    dtype: Dtype = "bfloat16"
    sweeps: tuple[SweepName, ...] = ("seq_len", "batch_size")

    @model_validator(mode="after")
    def _one_kind_of_value(self) -> Self:
        if (self.paper is None) != (self.tolerance is None):
            raise ValueError("a value of the paper and a tolerance belong together")
        if self.paper is not None and self.yardstick is not None:
            raise ValueError("paper and yardstick are two kinds of claim")
        return self


class TimelineClaim(_Claim):
    """A number of a Fig. 11 timeline and its bound: `field` is its path, separated by dots (`overhead.ratio`)."""

    kind: Literal["timeline"]
    at_most: float
    variant: str
    field: str


class PredictionClaim(_Claim):
    """How far `variant`'s iteration time, predicted from stage times of `measured`, is off its own, and the bound."""

    kind: Literal["prediction"]
    at_most: float
    variant: str
    measured: str


class ProfilingClaim(_Claim):
    """A number of the records of a figure's command, by name, and its bound: what profiling costs, how right it is."""

    kind: Literal["profiling"]
    at_most: float | None = None
    at_least: float | None = None
    number: str

    @model_validator(mode="after")
    def _one_bound(self) -> Self:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("at_most or at_least, and one of them")
        return self

    def holds(self, value: float) -> bool:
        """Whether a value keeps the bound."""
        return value <= self.at_most if self.at_most is not None else value >= (self.at_least or 0.0)


_RECORDED: dict[str, tuple[str, Callable[[Path], Summary]]] = {
    "fig12_inputs": ("fig12_inputs.jsonl", fig12_inputs.summary),
    "accuracy": ("accuracy.jsonl", accuracy.summary),
    "models": ("*/*.timeline.json", models.summary),
    "overhead": ("*/*.timeline.json", fig13.summary),
    "lines": ("lines.jsonl", lines.summary),
    "timers": ("timers.jsonl", timers.summary),
    "inductor": ("inductor.jsonl", inductor.summary),
    "tune": ("tune.jsonl", tuning.summary),
}
"""Of each of these figures the files that it is recorded in, and what they hold, as numbers with names."""

Claim = Annotated[SpeedupClaim | TimelineClaim | PredictionClaim | ProfilingClaim, Field(discriminator="kind")]
_CLAIMS: TypeAdapter[list[Claim]] = TypeAdapter(list[Claim])


@dataclass(frozen=True)
class Outcome:
    """One claim with our value and its 95 % interval (the value itself where there is none)."""

    claim: Claim
    value: float | None
    interval: tuple[float, float] | None
    other_override: bool = False
    """Whether what was recorded is not of the committed override."""
    begun: bool = False
    """Whether a part of what the value needs is recorded."""
    provenance: Provenance = field(default_factory=Provenance)
    """Of the records that the value is computed from."""

    @property
    def verdict(self) -> Verdict:
        """What the value and its interval say, in the words of the kind of claim.

        A bound: *holds* or *does not hold*. The paper's value of the same pair: *agrees* within the tolerance; else
        *same direction* (smaller, larger) or *opposite direction* if the whole interval is on that side of 1, and *no
        difference* if it is not. The paper's value of another kernel: *above* or *below* if the whole interval is,
        else *equal*. No value: *faster* or *slower* if the whole interval is, else *no difference*.
        """
        if self.value is None:
            return "not recorded whole" if self.begun else "not recorded"
        if self.other_override:
            return "of another override"
        if isinstance(self.claim, ProfilingClaim):
            return "holds" if self.claim.holds(self.value) else "does not hold"
        if isinstance(self.claim, TimelineClaim | PredictionClaim):
            return "holds" if self.value <= self.claim.at_most else "does not hold"
        return _speedup_verdict(self.claim, self.value, self.interval or (self.value, self.value))


def _speedup_verdict(claim: SpeedupClaim, value: float, interval: tuple[float, float]) -> Verdict:
    if claim.yardstick is not None:
        return _side(interval, claim.yardstick, ("below", "equal", "above"))
    if claim.paper is None or claim.tolerance is None:
        return _side(interval, 1, ("slower", "no difference", "faster"))
    if abs(value / claim.paper - 1) <= claim.tolerance:
        return "agrees"
    same: Verdict = "same direction, smaller" if value < claim.paper else "same direction, larger"
    return _side(interval, 1, ("opposite direction", "no difference", same))


def _side(interval: tuple[float, float], of: float, words: tuple[Verdict, Verdict, Verdict]) -> Verdict:
    """The first word if the whole interval is below `of`, the last if it is above, else the one between."""
    low, high = interval
    return words[0] if high < of else words[2] if low > of else words[1]


def read_claims(path: Path = CLAIMS) -> list[Claim]:
    """The claims in file order; raises `UsageError` if the file is broken."""
    try:
        return _CLAIMS.validate_python(tomllib.loads(path.read_text())["claim"])
    except (OSError, KeyError, tomllib.TOMLDecodeError, ValidationError) as error:
        raise UsageError(f"{path} is not a list of claims: {first_line(error)}") from None


def evaluate(claim: Claim, folder: Path) -> Outcome:
    """`evaluate_all` of one claim."""
    return evaluate_all([claim], folder)[0]


def evaluate_all(claims: Sequence[Claim], folder: Path) -> list[Outcome]:
    """Our value of each claim from the runs that the figures show.

    Raises `UsageError` as drawing them would: a record that is broken, or that lacks its environment.
    """

    @cache
    def summary(figure: str) -> Summary:
        return _RECORDED[figure][1](folder)

    return [_evaluate(claim, folder, summary) for claim in claims]


def _evaluate(claim: Claim, folder: Path, summary: Callable[[str], Summary]) -> Outcome:
    if isinstance(claim, ProfilingClaim):
        value = (found := summary(claim.figure)).numbers.get(claim.number)
        if value is None:
            begun = any(path.stat().st_size for path in folder.glob(_RECORDED[claim.figure][0]))
            return Outcome(claim, None, None, begun=begun)
        return Outcome(claim, value, None, provenance=found.provenance)
    if isinstance(claim, PredictionClaim):
        return _prediction(claim, folder)
    if isinstance(claim, TimelineClaim):
        return _timeline_value(claim, folder)
    return _speedup(claim, folder)


def numbered(origin: Origin) -> dict[str, Claim]:
    """The claims of the paper (C1, C2 ...) or our goals (G1, G2 ...) by the numbers that the pages give them."""
    of_origin = [claim for claim in read_claims() if claim.origin == origin]
    return {f"{_LETTER[origin]}{number}": claim for number, claim in enumerate(of_origin, 1)}


def report(console: Console, results: Path) -> list[Outcome]:
    """Print the tables of `make claims`, of this machine's GPU or of each that is recorded; returns what they showed.

    The paper's claims are last: that is where a reader of the console looks first.
    """
    own = _own_folder(results)
    here = {gpu.uuid for gpu in visible_gpus()}
    shown: list[Outcome] = []
    for origin, whose in _WHOSE.items():
        claims = numbered(origin)
        for folder in [own] if own else recorded_folders(results):
            outcomes = dict(zip(claims, evaluate_all([*claims.values()], folder), strict=True))
            _print_table(console, outcomes, whose, gpu_in_words(folder.name), here)
            shown += outcomes.values()
    return shown


_WHOSE: dict[Origin, str] = {"ours": "our goals", "paper": "the paper's claims"}
"""In the order in which they are printed."""


def _print_table(console: Console, outcomes: Mapping[str, Outcome], whose: str, gpu: str, here: Container[str]) -> None:
    """A row for each that is recorded, and which are not. here: UUIDs of this machine's cards."""
    value = Column("our value (95 % interval)", no_wrap=True)
    title = f"{whose}, measured on {gpu} GPUs"
    table = Table("claim", "expected", value, "verdict", "recorded (UTC)", title=title, title_justify="left")
    known = {number: outcome for number, outcome in outcomes.items() if outcome.value is not None}
    for number, outcome in known.items():
        claim, recorded = outcome.claim, outcome.provenance.in_words(here)
        table.add_row(f"{number}: {claim.statement}", expected(claim), ours(outcome), outcome.verdict, recorded)
    console.print(table)
    if missing := [number for number in outcomes if number not in known]:
        console.print(f"not recorded on {gpu} GPUs, or not whole: {_span(missing)} of {whose}")


def expected(claim: Claim) -> str:
    """The paper's value with its tolerance, or the bound: 1.241 x +/- 3 %, at most 8.2 %."""
    if isinstance(claim, TimelineClaim | PredictionClaim | ProfilingClaim):
        if claim.at_most is not None:
            return f"at most {stated(claim.at_most, claim.unit)}"
        assert claim.at_least is not None
        return f"at least {stated(claim.at_least, claim.unit)}"
    if claim.yardstick is not None:
        return f"{stated(claim.yardstick, claim.unit)}, the paper's value for its kernel improved, no mask"
    if claim.paper is None or claim.tolerance is None:
        return "no goal"
    return f"{stated(claim.paper, claim.unit)} +/- {stated(claim.tolerance, '%')}"


def ours(outcome: Outcome) -> str:
    """Our value, which has to be recorded, and in brackets its interval if there is one: 1.175 x (1.165 to 1.185 x)."""
    assert outcome.value is not None
    value = measured(outcome.value, outcome.claim.unit)
    return value if outcome.interval is None else f"{value} ({between(*outcome.interval, outcome.claim.unit)})"


_EXPECTED = {"paper": "the paper's value", "ours": "our goal"}
"""Over the column of what is expected."""

_MEASURED = {"paper": "claim", "ours": "quantity"}
"""Over the column of what is measured."""

_LETTER = {"paper": "C", "ours": "G"}
"""Before the number of a claim: C1, G12."""

_FOLDER = "results/<gpu>"


def markdown(results: Path, origin: Origin) -> str:
    """The claims table of artifact.md ("paper") or docs/goals.md: numbered claims, what is expected, and our values.

    There is a column for each GPU on which any of these claims is recorded, ordered by the folder's name. A second
    table has a row a command: its claims, its run time and hardware, its output, and the days of its records.
    """
    claims = numbered(origin)
    of_gpus = {folder.name: evaluate_all([*claims.values()], folder) for folder in sorted(recorded_folders(results))}
    known = {
        gpu_in_words(folder): outcomes
        for folder, outcomes in of_gpus.items()
        if any(outcome.value is not None for outcome in outcomes)
    }
    head = [_MEASURED[origin], _EXPECTED[origin], *(f"our value on {gpu}: verdict" for gpu in known)]
    rows = [
        [f"{number}: {claim.statement}", expected(claim), *map(_judged, outcomes)]
        for (number, claim), *outcomes in zip(claims.items(), *known.values(), strict=True)
    ]
    return "\n".join([*md.table(head, rows), "", *_commands(claims, known)])


def _judged(outcome: Outcome) -> str:
    """A cell: our value and the verdict, or only that it is not recorded."""
    return outcome.verdict if outcome.value is None else f"{ours(outcome)}: {outcome.verdict}"


def _commands(claims: Mapping[str, Claim], of_gpus: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """A table of the commands that measure the claims, by the claims' numbers.

    It has a column a GPU with the days of the values.
    """
    rows = []
    for command in dict.fromkeys(claim.command for claim in claims.values()):
        of_command = {number: claim for number, claim in claims.items() if claim.command == command}
        first = next(iter(of_command.values()))
        outputs = dict.fromkeys(f"`{claim.output.removeprefix(f'{_FOLDER}/')}`" for claim in of_command.values())
        recorded = (_recorded(outcomes, command) for outcomes in of_gpus.values())
        needs = f"{first.minutes} min, {first.hardware}"
        rows.append([f"`{command}`", _span(list(of_command)), needs, ", ".join(outputs), *recorded])
    recorded_on = (f"measured on {gpu} (UTC day)" for gpu in of_gpus)
    head = ["command", "claims", "run time on an H200, hardware", f"output in `{_FOLDER}`", *recorded_on]
    return md.table(head, rows)


def _span(numbers: Sequence[str]) -> str:
    """Numbers of claims, three and more in a row as a span: C1, G11 to G17, G4, G6."""
    spans: list[list[int]] = []
    for number in (int(number[1:]) for number in numbers):
        if spans and spans[-1][-1] == number - 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    letter = numbers[0][0]
    ends = (f"{letter}{span[0]} to {letter}{span[-1]}" if len(span) > 2 else _each(letter, span) for span in spans)
    return ", ".join(ends)


def _each(letter: str, numbers: Sequence[int]) -> str:
    return ", ".join(f"{letter}{number}" for number in numbers)


def _recorded(outcomes: Sequence[Outcome], command: str) -> str:
    """The days on which the values of a command were recorded, if any were. `make claims` prints the cards, too."""
    of_command = (outcome.provenance for outcome in outcomes if outcome.claim.command == command)
    days = reduce(or_, of_command).days
    return when(days) if days else "not recorded"


def _own_folder(results: Path) -> Path | None:
    """What was measured on this machine's GPU, if it has one and there is anything."""
    if device.why_static() is not None:
        return None
    folder = results / gpu_slug(device.gpu_name())
    return folder if (folder / "fig12.jsonl").exists() else None


def _speedup(claim: SpeedupClaim, folder: Path) -> Outcome:
    """From the runs that the figure shows, and only if they have every workload that the claim is about.

    What is no bar of the figure is taken from the runs that have it and the baseline.
    """
    mode = fig12.Mode(claim.causal, head_dim=claim.head_dim, dtype=claim.dtype)
    pair = (claim.ours, claim.baseline)
    store = Store(folder)
    runs = fig12.figure_runs(store, mode, () if set(pair) <= set(mode.keys) else pair)
    wanted = [key for key in fig12.grid(mode, claim.sweeps) if key[1].seq_len >= claim.min_seq_len]
    if not all(key in runs for key in wanted):
        return Outcome(claim, None, None, begun=any(key in runs for key in wanted))
    chosen = [{key: run[key] for key in pair if key in run} for run in (runs[key] for key in wanted)]
    provenance = Provenance.of_records(store, [point for run in chosen for point in run.values()])
    found = speedup_interval(chosen, claim.ours, claim.baseline)
    if found is None:
        return Outcome(claim, None, None, begun=True)
    other_override = bool(fig12.of_other_overrides(chosen))
    return Outcome(claim, found[0], found[1:], other_override, provenance=provenance)


def _timeline_value(claim: TimelineClaim, folder: Path) -> Outcome:
    path = folder / "fig11" / f"{claim.variant}.timeline.json"
    if not path.exists():
        return Outcome(claim, None, None)
    timeline = read_timeline(path)
    value: Any = timeline.model_dump()
    try:
        for key in claim.field.split("."):
            value = value[int(key)] if isinstance(value, list) else value[key]
        number = float(value)
    except (ValueError, KeyError, IndexError, TypeError):
        raise UsageError(f"{path} has no number {claim.field}") from None
    committed = override.find(claim.variant, override.specialization_of(FIG11))
    provenance = Provenance.of_timelines([timeline.environment])
    return Outcome(claim, number, None, timeline.ttgir_sha256 != committed.sha256, provenance=provenance)


def _prediction(claim: PredictionClaim, folder: Path) -> Outcome:
    paths = [folder / "fig11" / f"{name}.timeline.json" for name in (claim.measured, claim.variant)]
    if not all(path.exists() for path in paths):
        return Outcome(claim, None, None, begun=any(path.exists() for path in paths))
    measured, predicted = map(read_timeline, paths)
    if measured.replay is None:  # recorded before stage times were
        return Outcome(claim, None, None, begun=True)
    committed = override.find(claim.variant, override.specialization_of(FIG11))
    try:
        error = predict(instrumented.find(committed)[1], measured) / predicted.cycles_per_unit.median - 1
    except NoPredictionError:
        return Outcome(claim, None, None, begun=True)
    provenance = Provenance.of_timelines([measured.environment, predicted.environment])
    return Outcome(claim, abs(error), None, predicted.ttgir_sha256 != committed.sha256, provenance=provenance)
