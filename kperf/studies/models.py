"""The performance models against what was measured: how far off each model's iteration time of a recorded kernel is.

bound    the cycles of the MMAs of an iteration at the tensor cores' peak: what a roofline says.
graph    three CTAs run again over what hangs on what (kperf/trace/analyze/replay.py), with their work and without
         their waiting, which has to come out of the graph anew, against the mean iteration of the same three: where
         CTAs differ, as those of a grouped GEMM do, the median iteration of all of them says how typical three are.
         stages   the iteration time from stage times that were measured in another kernel
         (kperf/trace/analyze/predict.py): nothing of the predicted kernel is measured. Only for warp-specialised
         kernels with a partner that does the same work.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kperf.attention.overrides import ALIASES, find
from kperf.attention.variants import Specialization
from kperf.errors import UsageError
from kperf.installation import TTGIR_DIR
from kperf.record.provenance import Provenance, Summary
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.predict import NoPredictionError, predict
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.instrument.events import read_rules
from kperf.trace.instrument.program import Program, read_program

PARTNERS = (("vanilla", "improved"), ("improved", "vanilla"))
"""Where stage times come from, and whose iteration time they predict."""

PAPER_TABLE_5 = (
    "The paper's Table 5 has 199,381 cycles for vanilla, and 224,981 modelled beside 229,663 actual: its 2 % is the "
    "model against the actual. Both are 13 to 15 % above vanilla's, so as cycles they say slower; its model of rates, "
    "527 and 582 TFLOPS, says 10.4 % faster, and its Fig. 12 24.1 %: no two of the three agree."
)


@dataclass(frozen=True)
class Prediction:
    """An iteration time in cycles, as a model gives it and as it was measured. `source`: what the model was given."""

    kernel: str
    model: Literal["bound", "graph", "stages"]
    source: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """With its sign."""
        return self.predicted / self.measured - 1


def predictions(folder: Path) -> list[Prediction]:
    """Of every recorded kernel with MMAs, by name. Raises `UsageError` for a broken record."""
    timelines = dict(_pipelines(folder))
    made = []
    for name, timeline in timelines.items():
        iteration_time = timeline.cycles_per_unit.median
        if timeline.bound is not None:
            made.append(Prediction(name, "bound", "the peak rate", timeline.bound.cycles, iteration_time))
        if timeline.replay is not None:
            source = f"the work of {timeline.replay.ctas} CTAs"
            made.append(Prediction(name, "graph", source, timeline.replay.cycles, timeline.replay.measured_cycles))
    for measured, variant in PARTNERS:
        if {measured, variant} <= timelines.keys() and timelines[measured].replay is not None:
            try:
                cycles = predict(_program(variant), timelines[measured])
            except NoPredictionError:
                continue
            iteration_time = timelines[variant].cycles_per_unit.median
            made.append(Prediction(variant, "stages", f"stage times of {measured}", cycles, iteration_time))
    return made


def summary(folder: Path) -> Summary:
    """For the table of claims: the largest error of the replay's iteration times."""
    errors = [abs(one.error) for one in predictions(folder) if one.model == "graph"]
    replayed = [timeline.environment for _, timeline in _pipelines(folder) if timeline.replay is not None]
    return Summary({"graph": max(errors)} if errors else {}, Provenance.of_timelines(replayed))


def stamp(folder: Path) -> str:
    """Where and when the recorded kernels ran. Raises `UsageError` if a record is broken."""
    environments = [timeline.environment for _, timeline in _pipelines(folder)]
    gpus = ", ".join(dict.fromkeys(environment.gpu for environment in environments))
    return f"kernels recorded on {gpus}, {max(environment.recorded_at for environment in environments)[:10]}"


def _pipelines(folder: Path) -> Iterator[tuple[str, Timeline]]:
    for path in sorted([*folder.glob("fig11/*.timeline.json"), *folder.glob("examples/*.timeline.json")]):
        timeline = read_timeline(path)
        if timeline.bound is not None:
            yield path.name.removesuffix(".timeline.json"), timeline


def _program(variant: str) -> Program:
    original = find(variant, Specialization())
    path = TTGIR_DIR / variant / "traced" / original.entry.file
    try:
        return read_program(path.read_text(), read_rules(aliases=ALIASES))
    except OSError:
        raise UsageError(f"{path} is missing; `make ttgir` writes it") from None
