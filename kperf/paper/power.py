"""Each implementation alone and sustained, from end to end: measure where there is a Hopper GPU, tell, draw."""

from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from kperf.attention import overrides
from kperf.attention.implementations import FIG12, IMPLEMENTATIONS, implementations
from kperf.attention.variants import VARIANTS
from kperf.bench.points import CUBLAS, Point, PowerPoint, PowerStore
from kperf.bench.power import measure
from kperf.console import announce, titled_table
from kperf.errors import MeasurementError, UsageError, first_line
from kperf.plots import power as plot
from kperf.record import device
from kperf.record.provenance import Provenance
from kperf.record.store import gpu_slug, recorded_folder


def run(
    console: Console,
    results: Path,
    keys: Sequence[str] | None,
    *,
    causal: bool,
    seconds: float,
    passes: int,
    fresh: bool = False,
) -> None:
    """`make power`: measure where there is a Hopper GPU, else show what is recorded; `seconds` a turn, `passes` turns.

    What a run before this one has measured is not measured again, unless `fresh`.

    Raises `UsageError` for an unknown implementation or a record that is missing or broken, `MeasurementError` if an
    implementation is wrong or the GPU is lost.
    """
    implementations(keys or ())  # an unknown key is a mistake without a GPU too
    reason = device.why_static()
    measured: set[str] = set()
    if reason is None:
        store = PowerStore(results / gpu_slug(device.gpu_name()))
        begin = device.now()
        try:
            measure(console, store, keys, causal=causal, seconds=seconds, passes=passes, fresh=fresh)
        except torch.AcceleratorError as error:
            raise MeasurementError(f"the GPU's context broke: {first_line(error)}") from None
        measured = {point.run for point in store.points() if point.recorded_at >= begin}
    else:
        console.print(f"static: drawn from recorded runs; {reason}")

        def holds(folder: Path) -> bool:
            return bool(newest_runs(PowerStore(folder).points(), causal, keys))

        store = PowerStore(recorded_folder(results, "power.jsonl", holds=holds))
    report(console, store, keys, causal=causal, measured=measured)


def report(
    console: Console, store: PowerStore, keys: Sequence[str] | None = None, *, causal: bool, measured: Container[str]
) -> list[Path]:
    """Print the newest runs of one mask, of those in `measured` if there is one; draw them, return the figure's files.

    Raises `UsageError` if there is no such run, or its environment is missing.
    """
    points = store.points()
    now = [point for point in points if point.run in measured]
    asked = newest_runs(now or points, causal, keys)
    if not asked:
        raise UsageError(f"{store.points_path} has no such run: measure it on a Hopper GPU")
    whole = newest_runs(points, causal)
    console.print(table(asked, _stamp(store, asked, measured)))
    stamp, sentences = _stamp(store, whole, measured), notes(whole)
    for sentence in sentences:
        console.print(sentence)
    stem = "power_causal" if causal else "power"
    return announce(console, plot.draw(whole, stamp, sentences, store.folder / stem), stamp)


def report_beside(console: Console, store: PowerStore, figure: Provenance, *, causal: bool) -> None:
    """Print the newest runs of one mask on the cards of a figure; a sentence in their place if there are none.

    Raises `UsageError` if the environment of a run is missing.
    """
    points = [point for point in store.points() if point.causal == causal]
    environments = store.environments_of(points)
    on_its_cards = [point for point in points if environments[point.environment].gpu_uuid in figure.cards]
    command = "make power CAUSAL=1" if causal else "make power"
    if on_its_cards:
        runs = newest_runs(on_its_cards, causal)
        console.print(table(runs, _stamp(store, runs, ())))
    elif points:
        elsewhere = Provenance.of_records(store, [point for run in newest_runs(points, causal) for point in run])
        console.print(
            f"each implementation alone at the power cap: recorded on another card than this figure "
            f"({elsewhere.in_words()}): `{command}` prints that record, and measures on a Hopper GPU"
        )
    else:
        console.print(f"each implementation alone at the power cap: not in the record, `{command}` measures it")


def _stamp(store: PowerStore, runs: Sequence[Sequence[PowerPoint]], measured: Container[str]) -> str:
    shown = [point for run in runs for point in run]
    how = "measured" if all(point.run in measured for point in shown) else "recorded"
    return Provenance.of_records(store, shown).stamp(how)


def notes(runs: Sequence[Sequence[PowerPoint]]) -> list[str]:
    """What the figure does not show, and what of it is not of the committed overrides: a sentence each."""
    sentences = []
    there = {point.implementation for run in runs for point in run}
    if lacking := [IMPLEMENTATIONS[key].label for key in FIG12 if key not in there]:
        sentences.append(f"no bar for {', '.join(lacking)}: not in these runs")
    return sentences + override_notes(of_other_overrides(chain.from_iterable(runs)))


def of_other_overrides(points: Iterable[Point | PowerPoint]) -> set[str]:
    """The variants whose recorded points are not of the committed TTGIR."""
    ran = {
        (point.implementation, overrides.specialization_of(point.workload), point.override_sha256)
        for point in points
        if point.implementation in VARIANTS
    }
    return {key for key, special, sha256 in ran if overrides.find(key, special).sha256 != sha256}


def override_notes(others: Iterable[str]) -> list[str]:
    """A sentence for each variant of `of_other_overrides`."""
    return [
        f"{IMPLEMENTATIONS[key].label}: recorded with another override than the one in ttgir/{key}/"
        for key in sorted(others)
    ]


def newest_runs(
    points: Sequence[PowerPoint], causal: bool, keys: Sequence[str] | None = None
) -> list[list[PowerPoint]]:
    """For each workload, in the order of seq_len, the newest of the runs with the most implementations.

    Runs with more variants of committed overrides come first; a variant of another override counts against a run. Only
    runs that have all of `keys` are looked at, and of them these and cuBLAS are returned; so a partial run never hides
    a whole one of the same overrides.
    """

    def rank(run: Mapping[str, PowerPoint]) -> tuple[int, int]:
        return len(run.keys() & VARIANTS.keys()) - 2 * len(of_other_overrides(run.values())), len(run)

    runs: dict[int, dict[str, dict[str, PowerPoint]]] = {}
    for point in points:
        if point.causal == causal:
            runs.setdefault(point.seq_len, {}).setdefault(point.run, {})[point.implementation] = point
    newest = []
    for seq_len in sorted(runs):
        found = [run for run in runs[seq_len].values() if run.keys() >= {*(keys or ())}]
        if found:
            run = max(reversed(found), key=rank)
            newest.append([p for key, p in run.items() if keys is None or key in (*keys, CUBLAS)])
    return newest


def table(runs: Sequence[Sequence[PowerPoint]], title: str) -> Table:
    """Medians over the passes: TFLOPS alone, watts, MHz, and TFLOPS a watt."""
    mask = "causal" if runs[0][0].causal else "non-causal"
    headers = ("batch x seq_len", "implementation", "TFLOPS", "range", "W", "MHz", "C", "TFLOPS/W", "run")
    made = titled_table(f"alone and sustained, {mask}, median of the passes; {title}", *headers)
    for run in runs:
        for p in run:
            rates = [sample.tflops for sample in p.samples]
            middle = {
                name: float(np.median([getattr(sample, name) for sample in p.samples]))
                for name in ("tflops", "power_w", "sm_mhz", "temperature_c", "tflops_per_watt")
            }
            made.add_row(
                f"{p.batch} x {p.seq_len}",
                p.implementation,
                f"{middle['tflops']:.0f}",
                f"{min(rates):.0f} to {max(rates):.0f}",
                f"{middle['power_w']:.0f}",
                f"{middle['sm_mhz']:.0f}",
                f"{middle['temperature_c']:.0f}",
                f"{middle['tflops_per_watt']:.3f}",
                p.run,
            )
        made.add_section()
    return made
