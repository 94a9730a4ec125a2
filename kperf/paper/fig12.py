"""Fig. 12 from end to end: measure where there is a Hopper GPU, else verify the overrides by compiling; then draw."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from kperf.attention import overrides as override
from kperf.attention.implementations import FIG12, IMPLEMENTATIONS, RATIOS, implementations
from kperf.attention.variants import VARIANTS
from kperf.attention.workload import SweepName, fig12_grid
from kperf.bench.points import Key, Point, PowerStore, Store, newest_whole_runs
from kperf.bench.progress import sweep_progress
from kperf.bench.sweep import run_sweep
from kperf.bench.tables import ratio_table, tritonbench_table
from kperf.errors import MeasurementError, UsageError
from kperf.paper import power
from kperf.record import device
from kperf.record.store import gpu_slug, recorded_folder
from plots import fig12 as plot

PAPER_MIX_CAUSAL = ("fa2", "cudnn", "fa3")
"""The bars that the paper took from causal runs."""


@dataclass(frozen=True)
class Mode:
    """Which of the figures: the mask, head_dim and dtype of all its bars, or the paper's own mixture of masks."""

    causal: bool = False
    paper_mix: bool = False
    head_dim: int = 128
    dtype: str = "bfloat16"

    def __post_init__(self) -> None:
        """Raises `UsageError` for a figure that there is not."""
        if self.paper_mix and (self.causal or not self.of_the_paper):
            raise UsageError("--paper-mix and --causal, --head-dim or --dtype are two figures: name one")
        grid(self)

    @property
    def of_the_paper(self) -> bool:
        """Whether head_dim and dtype are those of the paper's figure."""
        return (self.head_dim, self.dtype) == (128, "bfloat16")

    @property
    def stem(self) -> str:
        """File name of the figure without its suffix: fig12, fig12_causal, fig12_d64, fig12_fp16_causal."""
        parts = {
            "paper_mix": self.paper_mix,
            f"d{self.head_dim}": self.head_dim != 128,
            "fp16": self.dtype == "float16",
            "causal": self.causal,
        }
        return "_".join(["fig12", *(part for part, there in parts.items() if there)])

    @property
    def title(self) -> str:
        """What the bars compare."""
        shape = f"attention forward, 16 heads, head_dim {self.head_dim}, {self.dtype}"
        if self.paper_mix:
            return f"{shape}: the paper's mixture (FA2, cuDNN, FA3 causal; Triton non-causal), not a comparison"
        return f"{shape}, {'causal' if self.causal else 'non-causal'}"

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
        (sweep, workload) for sweep in sweeps for workload in fig12_grid(sweep, mode.causal, mode.head_dim, mode.dtype)
    ]


def verify_overrides(console: Console, root: Path = override.TTGIR_DIR) -> None:
    """Compile every committed override in place of `attn_fwd` and print what it is made of."""
    for variant in VARIANTS:
        for entry in override.read_manifest(variant, root).overrides:
            found = override.verify(override.find(variant, entry.specialization, root))
            console.print(
                f"override {found.variant}/{found.file} compiles to sm_90a in place of attn_fwd: {found.schedule}, "
                f"{found.wgmma} wgmma, {found.registers} registers, {found.spilled_bytes} bytes spilled, "
                f"{found.shared_bytes} bytes shared"
            )


def measure_fig12(
    console: Console,
    store: Store,
    mode: Mode,
    keys: Sequence[str],
    *,
    sweeps: Sequence[SweepName] = ("seq_len", "batch_size"),
    rounds: int,
    fresh: bool = False,
) -> None:
    """Measure what the store does not have of this environment yet, with progress and a table as it goes."""
    chosen, places = implementations(keys), grid(mode, sweeps)
    for item in chosen:  # an override that does not fit is known before the first minute of measuring
        for _, workload in places:
            if not item.unsupported(workload):
                item.override(workload)
    try:
        with sweep_progress(console) as progress:
            run_sweep(places, chosen, store, figure="fig12", rounds=rounds, fresh=fresh, progress=progress)
    except KeyboardInterrupt:
        console.print("interrupted: what was recorded is kept, and the same command goes on from there")
        raise


def figure_runs(store: Store, mode: Mode, keys: Sequence[str] | None = None) -> dict[Key, dict[str, Point]]:
    """For each place of the figure one run: the newest that has all of `keys`, which without a word are its bars.

    For the paper's mixture two, as it mixed them.
    """
    points = [point for point in store.points() if point.figure == "fig12"]
    if not mode.paper_mix:
        runs = newest_whole_runs(points, keys or mode.keys)
        return {key: runs[key] for key in grid(mode) if key in runs}
    causal, full = Mode(causal=True), Mode()
    causal_runs = newest_whole_runs(points, PAPER_MIX_CAUSAL)
    full_runs = newest_whole_runs(points, full.keys)
    mixed = {}
    for key, causal_key in zip(grid(full), grid(causal), strict=True):
        if key in full_runs and causal_key in causal_runs:
            baselines = {name: causal_runs[causal_key][name] for name in PAPER_MIX_CAUSAL}
            mixed[key] = full_runs[key] | baselines
    return mixed


def report(console: Console, store: Store, mode: Mode, *, measured: bool) -> list[Path]:
    """Draw the figure and print its table and ratios; says whether it was measured now or recorded before.

    Raises `UsageError` if there is no whole run or its environment is missing; after drawing, `MeasurementError` if
    a point is wrong or failed.
    """
    runs = figure_runs(store, mode)
    if not runs:
        raise UsageError(f"{store.points_path} has no whole run of {mode.stem}: measure it on a Hopper GPU")
    environments = store.environments()
    newest = max(point.recorded_at for run in runs.values() for point in run.values())
    used = {point.environment for run in runs.values() for point in run.values()}
    missing = used - environments.keys()
    if missing:
        raise UsageError(
            f"{store.environments_path} lacks the environment {min(missing)} of recorded points: restore it"
        )
    gpus = ", ".join(sorted({environments[name].gpu for name in used}))
    stamp = f"{'measured' if measured else 'recorded'} on {gpus}, {newest[:10]}"
    written = plot.draw(runs, environments, stamp, mode.title, store.folder / mode.stem)
    console.print(tritonbench_table(runs.values(), ["tflops"], title=f"{mode.title}: {stamp}"))
    if not mode.paper_mix:
        ratios = [
            (ours, theirs) for ours, theirs in RATIOS if any(ours in run and theirs in run for run in runs.values())
        ]
        console.print(ratio_table(runs, ratios))
    for key, reason in mode.absent.items():
        console.print(f"no bar for {IMPLEMENTATIONS[key].label}: {reason}")
    with_power = mode.of_the_paper and not mode.paper_mix
    alone = power.newest_runs(PowerStore(store.folder).points(), mode.causal) if with_power else []
    if alone:
        console.print(power.table(alone, f"recorded {alone[0][0].recorded_at[:10]}"))
    for key in _of_other_overrides(runs):
        console.print(f"{key} was recorded with another override than the one in ttgir/: measure again, or restore it")
    wanted = len(grid(mode))
    if len(runs) < wanted:
        console.print(f"the figure has {len(runs)} of {wanted} workloads: the others have no whole run yet")
    for path in written:
        console.print(f"drawn: {path} ({stamp})")
    failures = [p for run in runs.values() for p in run.values() if p.status in {"wrong", "failed"}]
    if failures:
        worst = failures[0]
        raise MeasurementError(
            f"{len(failures)} points have no time; the first: {worst.implementation}, {worst.message} (FRESH=1 repeats)"
        )
    return written


def _of_other_overrides(runs: dict[Key, dict[str, Point]]) -> list[str]:
    """The variants whose recorded points are not of the committed TTGIR."""
    other = set()
    for run in runs.values():
        for key in VARIANTS.keys() & run.keys():
            if run[key].status == "unsupported":
                continue
            found = override.find(key, override.specialization_of(run[key].workload))
            if run[key].override_sha256 != found.sha256:
                other.add(key)
    return sorted(other)


def run(console: Console, results: Path, mode: Mode, *, rounds: int, fresh: bool, require_gpu: bool) -> None:
    """`make fig12`: verify the overrides, measure what is missing where there is a Hopper GPU, draw.

    Raises what `verify_overrides`, `run_sweep` and `report` raise, and `UsageError` without the GPU that is required.
    """
    reason = device.why_static()
    if reason is not None and require_gpu:
        raise UsageError(reason)
    verify_overrides(console)
    if reason is None:
        folder = results / gpu_slug(device.gpu_name())
        store = Store(folder)
        for one_mask in (Mode(), Mode(causal=True)) if mode.paper_mix else (mode,):
            measure_fig12(console, store, one_mask, one_mask.keys, rounds=rounds, fresh=fresh)
    else:
        console.print(f"static: {reason}; the figure is drawn from recorded runs")
        store = Store(recorded_folder(results))
    report(console, store, mode, measured=reason is None)
