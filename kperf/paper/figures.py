"""`kperf figures`: every figure that the recorded runs of a GPU hold the numbers for, drawn and nothing measured."""

import dataclasses
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from kperf.bench.points import PowerStore, Store
from kperf.console import WholeConsole
from kperf.paper import attention, examples, fig11, fig12, fig12_inputs, overhead, power
from kperf.plots import accuracy as plot_accuracy
from kperf.plots import inductor as plot_inductor
from kperf.plots import lines as plot_lines
from kperf.plots import proton as plot_proton
from kperf.plots import timers as plot_timers
from kperf.plots import trace as plot_trace
from kperf.plots import tune as plot_tune
from kperf.record.store import recorded_folders
from kperf.studies import accuracy, inductor, lines, proton, records, timers
from kperf.trace.analyze.recorded import read_timeline
from kperf.tune import command as tune


def run(console: Console, results: Path) -> None:
    """Draw what is recorded of each GPU beside its records, and print each file.

    Raises `UsageError` for a broken record.
    """
    for folder in recorded_folders(results):
        for draw in _FIGURES:
            for path in draw(folder):
                console.print(f"drawn: {path}")


def _quiet() -> Console:
    """For what is printed with a figure."""
    return WholeConsole(file=io.StringIO())


def _fig11(folder: Path) -> Iterator[Path]:
    for names in (fig11.VARIANTS, *((name,) for name in fig11.ALONE)):
        paths = [folder / "fig11" / f"{name}.timeline.json" for name in names]
        if all(path.exists() for path in paths):
            yield from fig11.draw([read_timeline(path) for path in paths], folder, names, measured=False)[1]


def _fig12(folder: Path) -> Iterator[Path]:
    store = Store(folder)
    found = dict.fromkeys((p.causal, p.head_dim, p.dtype, p.inputs) for p in store.points() if p.figure == "fig12")
    for causal, head_dim, dtype, inputs in found:
        mode = fig12.Mode(causal=causal, head_dim=head_dim, dtype=dtype, inputs=inputs)
        if fig12.figure_runs(store, mode):
            yield from fig12.report(_quiet(), store, mode, measured=False)


def _fig12_inputs(folder: Path) -> Iterator[Path]:
    store = Store(folder, "fig12_inputs")
    if store.points():
        yield from fig12_inputs.report(_quiet(), store, measured=False)


def _power(folder: Path) -> Iterator[Path]:
    store = PowerStore(folder)
    for causal in sorted({point.causal for point in store.points()}):
        yield from power.report(_quiet(), store, causal=causal, measured=())


def _attention(folder: Path) -> Iterator[Path]:
    store = Store(folder, attention.FILE)
    shapes: dict[attention.Shapes, set[int]] = {}
    for w in (point.workload for point in store.points()):
        shape = attention.Shapes(w.batch, w.heads, w.kv_heads, (), w.head_dim, w.causal, w.dtype, w.inputs)
        shapes.setdefault(shape, set()).add(w.seq_len)
    for shape, seq_lens in shapes.items():
        of_all = dataclasses.replace(shape, seq_lens=tuple(seq_lens))
        yield from attention.report(_quiet(), store, of_all, None, measured=False)


def _overhead(folder: Path) -> Iterator[Path]:
    if any(folder.glob("fig11/*.timeline.json")):
        yield from overhead.report(_quiet(), folder)


def _accuracy(folder: Path) -> Iterator[Path]:
    if (folder / "accuracy.jsonl").exists():
        found = records.recorded(folder, "accuracy", accuracy.ROWS)
        yield from accuracy.report(_quiet(), folder, found, plot_accuracy.draw)


def _of_rows(name: str, rows: Any, draw: Callable[..., list[Path]], stem: str) -> Callable[[Path], Iterator[Path]]:
    """Draws the newest run of `<name>.jsonl` as `stem`."""

    def figures(folder: Path) -> Iterator[Path]:
        if (folder / f"{name}.jsonl").exists():
            found = records.recorded(folder, name, rows)
            yield from draw(found.rows, found.stamp, folder / stem)

    return figures


def _tune(folder: Path) -> Iterator[Path]:
    if (folder / "tune.jsonl").exists():
        yield from tune.report(_quiet(), folder, "recorded", plot_tune.draw)


def _examples(folder: Path) -> Iterator[Path]:
    timelines = dict(examples.recorded(folder / "examples", examples.names()))
    for name, timeline in timelines.items():
        stamp = f"recorded on {timeline.environment.gpu}, {timeline.environment.recorded_at[:10]}"
        yield from plot_trace.draw(timeline, stamp, folder / "examples" / name)
    if timelines:
        yield examples.write_gallery(timelines, folder / "examples")


_FIGURES: tuple[Callable[[Path], Iterator[Path]], ...] = (
    _fig11, _fig12, _fig12_inputs, _power, _attention, _overhead, _accuracy,
    _of_rows("timers", timers.ROWS, plot_timers.draw, "timers"),
    _of_rows("proton", proton.ROWS, plot_proton.draw, "proton_tflops"),
    _of_rows("lines", lines.ROWS, plot_lines.draw, "lines"),
    _of_rows("inductor", inductor.ROWS, plot_inductor.draw, "inductor"),
    _tune, _examples,
)  # fmt: skip
