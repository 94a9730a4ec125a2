"""Fig. 12 from end to end: measure where there is a Hopper GPU, else verify the overrides by compiling; then draw."""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kperf.attention import overrides as override
from kperf.attention.implementations import FIG12, IMPLEMENTATIONS, RATIOS, from_override, implementations
from kperf.attention.schedule import IN_WORDS
from kperf.attention.variants import VARIANTS, Variant
from kperf.attention.workload import SweepName, Workload, fig12_grid
from kperf.bench import cards
from kperf.bench.measure import check
from kperf.bench.points import Key, PowerStore, Run, Store, fullest_runs, runs_by_place
from kperf.bench.progress import sweep_progress
from kperf.bench.spread import spread
from kperf.bench.sweep import Bench, run_sweep
from kperf.bench.tables import ratio_table, require_times, tritonbench_table
from kperf.console import announce
from kperf.errors import UsageError
from kperf.paper import power
from kperf.plots import fig12 as plot
from kperf.record import device
from kperf.record.files import require_writable
from kperf.record.provenance import Provenance
from kperf.record.store import gpu_slug, recorded_folder

PAPER_MIX_CAUSAL = ("fa2", "cudnn", "fa3")
"""The bars that the paper took from causal runs."""


@dataclass(frozen=True)
class Mode:
    """Which of the figures: the mask, head_dim and dtype of all its bars, or the paper's own mixture of masks."""

    causal: bool = False
    paper_mix: bool = False
    head_dim: int = 128
    dtype: str = "bfloat16"
    inputs: str = "normal"

    def __post_init__(self) -> None:
        """Raises `UsageError` for a figure that there is not."""
        if self.paper_mix and (self.causal or not self.of_the_paper):
            raise UsageError("--paper-mix and --causal, --head-dim, --dtype or --inputs are two figures: name one")
        grid(self)

    @property
    def of_the_paper(self) -> bool:
        """Whether head_dim, dtype and inputs are those of the paper's figure."""
        return (self.head_dim, self.dtype, self.inputs) == (128, "bfloat16", "normal")

    @property
    def stem(self) -> str:
        """File name of the figure without its suffix: fig12, fig12_causal, fig12_d64, fig12_fp16_local_causal."""
        parts = {
            "paper_mix": self.paper_mix,
            f"d{self.head_dim}": self.head_dim != 128,
            "fp16": self.dtype == "float16",
            self.inputs: self.inputs != "normal",
            "causal": self.causal,
        }
        return "_".join(["fig12", *(part for part, there in parts.items() if there)])

    @property
    def command(self) -> str:
        """What of `make` measures and draws it."""
        parts = {
            "PAPER_MIX=1": self.paper_mix,
            f"HEAD_DIM={self.head_dim}": self.head_dim != 128,
            f"DTYPE={self.dtype}": self.dtype != "bfloat16",
            f"INPUTS={self.inputs}": self.inputs != "normal",
            "CAUSAL=1": self.causal,
        }
        return " ".join(["fig12", *(part for part, there in parts.items() if there)])

    @property
    def title(self) -> str:
        """What the bars compare."""
        mask = "causal" if self.causal else "non-causal"
        if self.paper_mix:
            mask = "FA2, cuDNN, FA3 causal and Triton non-causal as in the paper (not a comparison)"
        inputs = "" if self.inputs == "normal" else f", inputs {self.inputs}"
        return f"Attention forward, {mask}, {self.dtype}, head_dim {self.head_dim}, 16 heads{inputs}"

    @property
    def absent(self) -> dict[str, str]:
        """Why an implementation has no bar here, by key."""
        _, workload = grid(self)[0]
        reasons = {i.key: i.unsupported(workload) or i.left_out(workload) for i in implementations(FIG12)}
        return {key: reason for key, reason in reasons.items() if reason}

    @property
    def keys(self) -> tuple[str, ...]:
        """The bars, in the order they are drawn."""
        absent = self.absent
        return tuple(key for key in FIG12 if key not in absent)


def grid(mode: Mode, sweeps: Sequence[SweepName] = ("seq_len", "batch_size")) -> list[Key]:
    """The places of the figure, in the order they are measured and drawn."""
    return [
        (sweep, workload)
        for sweep in sweeps
        for workload in fig12_grid(sweep, mode.causal, mode.head_dim, mode.dtype, mode.inputs)
    ]


def verify_overrides(
    console: Console, chosen: Iterable[Variant] = tuple(VARIANTS.values()), *, run_too: bool = True
) -> None:
    """Hold committed overrides against their definition and source, compile them, and print what they are made of.

    Where there is a Hopper GPU they also run on a small shape and are compared with float32; not where others than this
    process measure, and it would be a second one on a GPU of theirs.
    """
    for variant in chosen:
        for special in variant.specializations:
            put = override.find(variant.name, special)
            found = override.verify(put)
            override.check_source(put)
            console.print(
                f"override {found.variant}/{found.file} compiles to sm_90a in place of attn_fwd: "
                f"{IN_WORDS[found.schedule]}, {found.wgmma} wgmma, {found.registers} registers, "
                f"{found.spilled_bytes} bytes spilled, {found.shared_bytes} bytes shared"
            )
            if run_too and device.why_static() is None:
                console.print(f"override {found.variant}/{found.file} runs: relative error {_error_of(put):.1e}")


def _error_of(put: override.Override) -> float:
    """Of the override on a small shape. Raises `MeasurementError` if that is wrong."""
    special = put.entry.specialization
    small = Workload(
        batch=2, heads=2, seq_len=512, head_dim=special.head_dim, causal=special.causal, dtype=special.dtype
    )
    return check(from_override(put.manifest.variant, put.manifest.label, lambda _: put), small)


def measure_fig12(
    console: Console,
    store: Store,
    mode: Mode,
    keys: Sequence[str],
    *,
    sweeps: Sequence[SweepName] = ("seq_len", "batch_size"),
    rounds: int,
    fresh: bool = False,
    bench: Bench | None = None,
) -> None:
    """Measure what the store does not have of this environment yet, with progress and a table as it goes."""
    chosen, places = implementations(keys), grid(mode, sweeps)
    for item in chosen:  # an override that does not fit is known before the first minute of measuring
        for _, workload in places:
            if not item.unsupported(workload):
                item.override(workload)
    groups = [[place] for place in places]
    with sweep_progress(console) as progress:
        run_sweep(groups, chosen, store, figure="fig12", rounds=rounds, fresh=fresh, progress=progress, bench=bench)


def figure_runs(store: Store, mode: Mode, needed: Sequence[str] = (), prefer: Container[str] = ()) -> dict[Key, Run]:
    """For each place of the figure one run: the newest of those with the most of its bars, and with all of `needed`.

    For the paper's mixture two, as it mixed them. Runs that `prefer` has come before all others.
    """
    points = [point for point in store.points() if point.figure == "fig12"]
    if not mode.paper_mix:
        runs = fullest_runs(points, mode.keys, needed)
        runs |= fullest_runs([point for point in points if point.run in prefer], mode.keys, needed)
        return {key: runs[key] for key in grid(mode) if key in runs}
    causal, full = Mode(causal=True), Mode()
    causal_runs = fullest_runs(points, causal.keys, PAPER_MIX_CAUSAL)
    full_runs = fullest_runs(points, full.keys)
    mixed = {}
    for key, causal_key in zip(grid(full), grid(causal), strict=True):
        if key in full_runs and causal_key in causal_runs:
            baselines = {name: causal_runs[causal_key][name] for name in PAPER_MIX_CAUSAL}
            mixed[key] = full_runs[key] | baselines
    return mixed


def of_other_overrides(runs: Iterable[Run]) -> set[str]:
    """The variants whose recorded points are not of the committed TTGIR."""
    points = (point for run in runs for point in run.values())
    return power.of_other_overrides(point for point in points if point.status != "unsupported")


def notes(runs: dict[Key, Run], mode: Mode) -> list[str]:
    """What the figure does not show and why, and what of it is not of the committed overrides: a sentence each."""
    without: dict[str, list[str]] = defaultdict(list)
    for key, reason in mode.absent.items():
        without[reason].append(IMPLEMENTATIONS[key].label)
    for key in mode.keys:
        label = IMPLEMENTATIONS[key].label
        found = [run[key] for run in runs.values() if key in run]
        unsupported = [point for point in found if point.status == "unsupported"]
        if unsupported:
            without[unsupported[0].message].append(label + _at(len(unsupported), len(runs)))
        if len(found) < len(runs):
            without[f"not in the record, `make {mode.command}` measures it"].append(
                label + _at(len(runs) - len(found), len(runs))
            )
    for key in sorted({key for run in runs.values() for key in run} - IMPLEMENTATIONS.keys()):
        without["recorded, but registered no longer"].append(key)
    sentences = [f"no line for {', '.join(labels)}: {reason}" for reason, labels in without.items()]
    sentences += power.override_notes(of_other_overrides(runs.values()))
    if len(runs) < len(grid(mode)):
        sentences.append(f"{len(runs)} of {len(grid(mode))} workloads: the others are not recorded yet")
    return sentences


def unknown(store: Store, runs: Mapping[Key, Run]) -> list[str]:
    """Newer runs of these places that are not drawn and name an implementation that is not registered."""
    of_places: dict[str, set[str]] = defaultdict(set)
    for key, every in runs_by_place(store.points()).items():
        drawn = {point.run for point in runs.get(key, {}).values()}
        for run in reversed(every if drawn else []):
            if drawn & {point.run for point in run.values()}:
                break
            for name in run.keys() - IMPLEMENTATIONS.keys():
                of_places[name].add(run[name].run)
    return [
        f"{store.points_path} has {name!r} in run {min(ids)}{f' and {len(ids) - 1} more' if len(ids) > 1 else ''}, "
        "which is no registered implementation: older runs are drawn there, unless you correct the name"
        for name, ids in sorted(of_places.items())
    ]


def _at(places: int, everywhere: int) -> str:
    return "" if places == everywhere else f" at {places} of {everywhere} workloads"


def recorded_store(results: Path, mode: Mode, needed: Sequence[str] = ()) -> Store:
    """What to draw from without measuring: of several GPUs the first of which the figure, with `needed`, is recorded.

    Raises `UsageError` where nothing at all is recorded, or a record is broken.
    """
    return Store(recorded_folder(results, holds=lambda folder: bool(figure_runs(Store(folder), mode, needed))))


def _require_run(store: Store, mode: Mode) -> dict[Key, Run]:
    """What the figure shows. Raises `UsageError` if nothing of it is recorded."""
    runs = figure_runs(store, mode)
    if not runs:
        raise UsageError(f"{store.points_path} has no run of {mode.stem}: measure it on a Hopper GPU")
    return runs


def report(console: Console, store: Store, mode: Mode, *, measured: bool) -> list[Path]:
    """Draw the figure and print its table and ratios; says whether it was measured now or recorded before.

    Raises `UsageError` if nothing of it is recorded or its environment is missing; after drawing, `MeasurementError`
    if a point is wrong or failed.
    """
    runs = _require_run(store, mode)
    points = [point for run in runs.values() for point in run.values()]
    environments, provenance = store.environments_of(points), Provenance.of_records(store, points)
    stamp = provenance.stamp("measured" if measured else "recorded")
    sentences = notes(runs, mode)
    if several := cards.spread_note(runs.values(), environments):
        sentences.append(several)
    title = (mode.title, stamp)
    written = plot.draw(runs, environments, title, sentences, store.folder / mode.stem, in_turn=not mode.paper_mix)
    console.print(tritonbench_table(runs.values(), ["tflops"], title=f"{mode.title}: {stamp}"))
    if not mode.paper_mix:
        ratios = [
            (ours, theirs) for ours, theirs in RATIOS if any(ours in run and theirs in run for run in runs.values())
        ]
        console.print(ratio_table(runs, ratios))
    if several:
        cards.report(console, store, "fig12", runs)
    if mode.of_the_paper and not mode.paper_mix:
        power.report_beside(console, PowerStore(store.folder), provenance, causal=mode.causal)
    for sentence in unknown(store, runs):
        console.print(sentence)
    for sentence in sentences:
        console.print(sentence)
    announce(console, written, stamp)
    require_times(points)
    return written


def run(
    console: Console,
    results: Path,
    mode: Mode,
    *,
    rounds: int,
    fresh: bool,
    require_gpu: bool,
    gpus: str | None = None,
) -> None:
    """`make fig12`: verify the overrides, measure what is missing where there is a Hopper GPU, draw.

    `gpus` as `spread` takes it. Raises what that, `verify_overrides`, `run_sweep` and `report` raise, and `UsageError`
    without the GPU that is required.
    """
    with spread(gpus) as bench:
        reason = device.why_static() if bench is None else None
        if reason is not None and require_gpu:
            raise UsageError(reason)
        name = bench.environments[0].gpu if bench else None if reason else device.gpu_name()
        store = Store(results / gpu_slug(name)) if name else recorded_store(results, mode)
        require_writable(store.folder)
        if reason is not None:  # what is damaged or not there is refused now, and not after minutes of compiling
            _require_run(store, mode)  # measuring begins with that, and repairs a line that a kill has torn
        verify_overrides(console, run_too=bench is None)
        if reason is None:
            for one_mask in (Mode(), Mode(causal=True)) if mode.paper_mix else (mode,):
                measure_fig12(console, store, one_mask, one_mask.keys, rounds=rounds, fresh=fresh, bench=bench)
        else:
            console.print(f"static: the figure is drawn from recorded runs; {reason}")
    report(console, store, mode, measured=reason is None)
