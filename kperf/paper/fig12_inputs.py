"""Does the lead over FA3 depend on the numbers in q and k? Four shapes of Fig. 12, every kind of inputs, both masks.

All kinds of a shape are timed in turn in one run, so how a kernel's time changes with the kind is a ratio within
rounds, as is its speed over FA3, which is given the same numbers.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table

from kperf.attention.implementations import IMPLEMENTATIONS, implementations
from kperf.attention.workload import InputKind, fig12_grid
from kperf.bench import cards
from kperf.bench.points import Key, Run, Store, fullest_runs
from kperf.bench.progress import sweep_progress
from kperf.bench.spread import spread
from kperf.bench.sweep import run_sweep
from kperf.bench.tables import require_times, speedup, without_times
from kperf.console import announce, titled_table
from kperf.errors import UsageError
from kperf.paper.fig12 import of_other_overrides, verify_overrides
from kperf.plots import fig12_inputs as plot
from kperf.record import device
from kperf.record import markdown as md
from kperf.record.provenance import Provenance, Summary
from kperf.record.store import gpu_slug, recorded_folder

BASELINE = "fa3"
COMPARED = {"improved_plus": "", "improved_plus_views": "views_"}
"""Those whose time can depend on the numbers, and what the names of their numbers in `summary` begin with."""
_TITLES = {
    "improved_plus": "speedup of the Improved+ of Fig. 12 over FA3, on inputs of the kind",
    "improved_plus_views": "speedup of the Improved+ of the torch operator over FA3, on inputs of the kind",
}
KINDS: tuple[InputKind, ...] = get_args(InputKind)
GENTLE: tuple[InputKind, ...] = ("normal", "x2", "x4", "x10", "sink", "ramp", "local")
"""Kinds on which no reference has to move."""
SEQ_LENS = (512, 1024, 4096, 8192)
"""All kinds of a shape are in memory at a time: 8192 takes 74 GB."""


def groups() -> list[list[Key]]:
    """The places, all kinds of a shape together; both masks."""
    grid = [workload for causal in (False, True) for workload in fig12_grid("seq_len", causal)]
    shapes = [workload for workload in grid if workload.seq_len in SEQ_LENS]
    return [[("seq_len", shape.model_copy(update={"inputs": kind})) for kind in KINDS] for shape in shapes]


@dataclass(frozen=True)
class Row:
    """One kernel with one mask and one kind of inputs: its speed over FA3 at every shape.

    off_normal: of the ratios over those on normal inputs of their shape and run, less 1, the least; None of normal
    inputs themselves.
    """

    key: str
    causal: bool
    kind: InputKind
    ratios: list[float]
    off_normal: float | None

    @property
    def mean(self) -> float:
        """Geometric mean over shapes."""
        return statistics.geometric_mean(self.ratios)


def rows(runs: dict[Key, Run]) -> list[Row]:
    """By kernel, mask and kind; those of which something is recorded."""
    made = []
    for key, causal, kind in product(COMPARED, (False, True), KINDS):
        ratios, off = [], []
        for (sweep, workload), run in runs.items():
            if (workload.causal, workload.inputs) != (causal, kind):
                continue
            if (ratio := speedup(run, key, BASELINE)) is None:
                continue
            ratios.append(ratio)
            normal = runs.get((sweep, workload.model_copy(update={"inputs": "normal"})), {})
            on_normal = speedup(normal, key, BASELINE)
            if kind != "normal" and on_normal is not None and normal[key].run == run[key].run:
                off.append(ratio / on_normal - 1)
        if ratios:
            made.append(Row(key, causal, kind, ratios, min(off, default=None)))
    return made


def table(found: Sequence[Row], title: str) -> Table:
    """A row a kernel, mask and kind: smallest, geometric mean and largest ratio to FA3, and the most below normal."""
    words, ratios = ("kernel", "mask", "inputs"), ("smallest", "geometric mean", "largest", "at worst off normal")
    made = titled_table(title, *words, *ratios, left=words)
    for row in found:
        made.add_row(row.key, "causal" if row.causal else "full", row.kind, *_numbers(row))
    return made


def _numbers(row: Row) -> tuple[str, str, str, str]:
    least, mean, most = (f"{value:.3f}" for value in (min(row.ratios), row.mean, max(row.ratios)))
    return least, mean, most, "-" if row.off_normal is None else f"{row.off_normal:+.1%}"


def summary(folder: Path) -> Summary:
    """Of each of `COMPARED` over FA3, for each mask: the least ratio on any kind, the least mean of a `GENTLE` one.

    And the most by which its ratio on one of those falls below that on normal inputs. Nothing of one unless all of it
    is recorded, each kind in turn with normal inputs, of the committed override.
    """
    store = Store(folder, "fig12_inputs")
    runs = recorded_runs(store)
    found = rows(runs)
    numbers: dict[str, float] = {}
    for key, prefix in COMPARED.items():
        of_key = _summary([row for row in found if row.key == key])
        numbers |= {f"{prefix}{name}": value for name, value in of_key.items()}
    return Summary(numbers, Provenance.of_records(store, [point for run in runs.values() for point in run.values()]))


def _summary(found: Sequence[Row]) -> dict[str, float]:
    if sum(len(row.ratios) for row in found) < sum(map(len, groups())):
        return {}
    off = {(row.kind, row.causal): row.off_normal for row in found if row.off_normal is not None}
    if len(off) < sum(row.kind != "normal" for row in found):
        return {}
    numbers = {"lost": -min(least for (kind, _), least in off.items() if kind in GENTLE)}
    for mask, causal in (("full", False), ("causal", True)):
        numbers[f"least_{mask}"] = min(min(row.ratios) for row in found if row.causal == causal)
        numbers[f"mean_{mask}"] = min(row.mean for row in found if row.causal == causal and row.kind in GENTLE)
    return numbers


def markdown(folder: Path) -> str:
    """The tables of docs/improved_plus.md: of each of `COMPARED` over FA3 a row a kind, a column a mask and seq_len.

    Raises `UsageError` if nothing is recorded.
    """
    store = Store(folder, "fig12_inputs")
    runs = recorded_runs(store)
    tables = [_markdown(runs, key) for key in COMPARED if any(key in run for run in runs.values())]
    if not tables:
        raise UsageError(f"{store.points_path} has no kind of inputs: `make inputs` on a Hopper GPU measures them")
    return "\n\n".join(tables)


def _markdown(runs: dict[Key, Run], key: str) -> str:
    ratios = {
        (workload.inputs, workload.causal, workload.seq_len): speedup(run, key, BASELINE)
        for (_, workload), run in runs.items()
    }
    shapes = list(dict.fromkeys((causal, seq_len) for _, causal, seq_len in ratios))
    head = [_TITLES[key], *(f"{'causal' if causal else 'no mask'}, seq_len {seq_len}" for causal, seq_len in shapes)]
    rows = []
    for kind in KINDS:
        found = [ratios.get((kind, *shape)) for shape in shapes]
        rows.append([kind, *("-" if one is None else f"{one:.3f}" for one in found)])
    return "\n".join(md.table(head, rows))


def recorded_runs(store: Store) -> dict[Key, Run]:
    """Runs of the committed override: another's may have another time on other kinds."""
    fullest = fullest_runs(store.points(), (BASELINE, *COMPARED), (BASELINE,))
    runs = {key: fullest[key] for group in groups() for key in group if key in fullest}
    return {key: run for key, run in runs.items() if not of_other_overrides([run])}


def report(console: Console, store: Store, *, measured: bool) -> list[Path]:
    """Draw and print what is recorded.

    Raises `UsageError` if that is nothing; after drawing, of what was measured now, `MeasurementError` if a point is
    wrong or failed. Recorded ones are printed.
    """
    runs = recorded_runs(store)
    places = sum(map(len, groups()))
    if not runs:
        raise UsageError(
            f"{store.points_path} has no run of the kinds of inputs with the override in ttgir/improved_plus/: "
            "`make inputs` on a Hopper GPU records one"
        )
    points = [point for run in runs.values() for point in run.values()]
    stamp = Provenance.of_records(store, points).stamp("measured" if measured else "recorded")
    sentences = []
    if several := cards.spread_note(runs.values(), store.environments()):
        sentences.append(several)
    if len(runs) < places:
        sentences.append(f"{len(runs)} of {places} workloads: the others are not recorded yet")
    title = ("Speed over FA3 by kind of inputs, bfloat16, head_dim 128, 16 heads", stamp)
    there = [key for key in COMPARED if any(key in run for run in runs.values())]
    if lacking := [IMPLEMENTATIONS[key].label for key in COMPARED if key not in there]:
        sentences.append(f"no rows for {', '.join(lacking)}: not in the record, `make inputs` measures it")
    written = plot.draw(runs, there, title, sentences, store.folder / "fig12_inputs")
    console.print(table(rows(runs), f"speed over {BASELINE} on the same inputs: {stamp}"))
    if several:
        cards.report(console, store, "fig12_inputs", runs)
    for sentence in [*sentences, *without_times(points)]:
        console.print(sentence)
    announce(console, written, stamp)
    if measured:
        require_times(points)
    return written


def run(console: Console, results: Path, *, rounds: int, fresh: bool, gpus: str | None = None) -> None:
    """`make inputs`: measure what is missing where there is a Hopper GPU; draw.

    `gpus` as `spread` takes it. Raises what that, `verify_overrides`, `run_sweep` and `report` raise.
    """
    with spread(gpus) as bench:
        reason = device.why_static() if bench is None else None
        name = bench.environments[0].gpu if bench else None if reason else device.gpu_name()
        store = Store(
            results / gpu_slug(name) if name else recorded_folder(results, "fig12_inputs.jsonl"), "fig12_inputs"
        )
        if reason is None:
            verify_overrides(console, run_too=bench is None)
            chosen = implementations((BASELINE, *COMPARED))
            with sweep_progress(console) as progress:
                run_sweep(
                    groups(),
                    chosen,
                    store,
                    figure="fig12_inputs",
                    rounds=rounds,
                    fresh=fresh,
                    progress=progress,
                    bench=bench,
                )
        else:
            console.print(f"static: the figure is drawn from recorded runs; {reason}")
    report(console, store, measured=reason is None)
