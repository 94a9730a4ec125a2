"""Every implementation of attention beside each other on a person's own shapes: time, error, memory, both passes.

All implementations of a shape are timed in turn in one run, as Fig. 12's are; the backward passes in a second one, as
they keep what their forward passes saved. What runs out of memory stays in the table and in the figures as that.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from kperf.attention.implementations import COMPARED, FORWARD_ONLY, IMPLEMENTATIONS, Implementation, implementations
from kperf.attention.workload import Workload, make_workload
from kperf.bench.measure import check_on_cpu
from kperf.bench.points import FailedPoint, Key, MeasuredPoint, Point, Run, Store, fullest_runs
from kperf.bench.progress import sweep_progress
from kperf.bench.sweep import run_sweep
from kperf.bench.tables import SHIFTS, require_times
from kperf.console import announce
from kperf.errors import UsageError
from kperf.paper.fig12 import of_other_overrides
from kperf.paper.power import override_notes
from kperf.plots import attention as plot
from kperf.record import device
from kperf.record.provenance import Provenance
from kperf.record.store import gpu_slug, recorded_folders

FILE: Literal["attention"] = "attention"


@dataclass(frozen=True)
class Shapes:
    """What is compared: the fields of `Workload`, with a line of seq_len in place of one."""

    batch: int = 4
    heads: int = 16
    kv_heads: int | None = None
    seq_lens: tuple[int, ...] = (512, 1024, 2048, 4096, 8192, 16384)
    head_dim: int = 128
    causal: bool = False
    dtype: str = "bfloat16"
    inputs: str = "normal"

    def __post_init__(self) -> None:
        """Raises `UsageError` for what makes no workload."""
        self.workloads(backward=False)

    def workloads(self, *, backward: bool) -> list[Workload]:
        """One a seq_len, from the shortest."""
        return [
            make_workload(
                batch=self.batch,
                heads=self.heads,
                kv_heads=self.kv_heads,
                seq_len=seq_len,
                head_dim=self.head_dim,
                causal=self.causal,
                dtype=self.dtype,
                inputs=self.inputs,
                backward=backward,
            )
            for seq_len in sorted(set(self.seq_lens))
        ]

    @property
    def passes(self) -> tuple[bool, ...]:
        """Of `Workload.backward`. Where few keys dominate, gradients cancel, and a relative error says nothing."""
        return (False, True) if self.inputs == "normal" else (False,)

    @property
    def places(self) -> list[Key]:
        """The workloads of both passes, a seq_len after the other."""
        pairs = zip(*(self.workloads(backward=backward) for backward in self.passes), strict=True)
        return [("seq_len", workload) for pair in pairs for workload in pair]

    @property
    def stem(self) -> str:
        """File name of the figures without suffix: attention, attention_b1_h32_kv8_d64_fp16_local_causal."""
        usual = Shapes()
        kv_heads = self.workloads(backward=False)[0].kv_heads
        parts = {
            f"b{self.batch}": self.batch != usual.batch,
            f"h{self.heads}": self.heads != usual.heads,
            f"kv{kv_heads}": kv_heads is not None,
            f"d{self.head_dim}": self.head_dim != usual.head_dim,
            "fp16": self.dtype == "float16",
            self.inputs: self.inputs != usual.inputs,
            "causal": self.causal,
        }
        return "_".join([FILE, *(part for part, there in parts.items() if there)])

    @property
    def title(self) -> str:
        """All but seq_len."""
        mask = "causal" if self.causal else "non-causal"
        kv_heads = "" if self.kv_heads in {None, self.heads} else f" ({self.kv_heads} of k and v)"
        inputs = "" if self.inputs == "normal" else f", inputs {self.inputs}"
        return (
            f"Attention, {mask}, {self.dtype}, head_dim {self.head_dim}, batch {self.batch}, {self.heads} heads"
            f"{kv_heads}{inputs}"
        )


def verify(console: Console, shapes: Shapes, chosen: Iterable[Implementation]) -> None:
    """Hold those that torch computes on the CPU too against float32: a small shape, as asked for but normal inputs.

    Raises `MeasurementError` for one that is wrong.
    """
    first = shapes.workloads(backward=False)[0]
    groups = first.heads // (first.kv_heads or first.heads)
    small = {"batch": 1, "heads": 2 * groups, "kv_heads": 2 if groups > 1 else None}
    for implementation in chosen:
        if implementation.on_cpu == "neither":
            continue
        for backward in (False, True) if implementation.on_cpu == "both" else (False,):
            workload = first.model_copy(update={**small, "seq_len": 256, "inputs": "normal", "backward": backward})
            found = check_on_cpu(implementation, workload)
            console.print(f"{implementation.key} on this CPU, {workload}: relative error {found:.1e}")


def rows(runs: dict[Key, Run], keys: Sequence[str]) -> list[tuple[int, str, Point | None, Point | None]]:
    """seq_len, implementation, its forward and its backward point, for each of which there is one."""
    forward = {workload.seq_len: run for (_, workload), run in runs.items() if not workload.backward}
    backward = {workload.seq_len: run for (_, workload), run in runs.items() if workload.backward}
    return [
        (seq_len, key, forward.get(seq_len, {}).get(key), backward.get(seq_len, {}).get(key))
        for seq_len in sorted({*forward, *backward})
        for key in keys
        if key in forward.get(seq_len, {}) or key in backward.get(seq_len, {})
    ]


def table(runs: dict[Key, Run], keys: Sequence[str], title: str) -> Table:
    """A row a seq_len and implementation: both passes' milliseconds with the interval, TFLOPS, error, peak memory."""
    made = Table(title=title, title_justify="left")
    made.caption = "memory: the most beyond q, k and v during one call, backward with its forward pass; the times' " + (
        f"intervals: where a second run's median falls 19 times in 20; {SHIFTS}: had not settled"
    )
    made.caption_justify = "left"
    for column in ("seq_len", "implementation"):
        made.add_column(column, no_wrap=True)
    for name in ("forward", "backward"):
        for column in (f"{name} ms", "95 %", "TFLOPS", "error", "memory"):
            made.add_column(column, justify="right")
    found = rows(runs, keys)
    for place, (seq_len, key, *points) in enumerate(found):
        last = place + 1 == len(found) or found[place + 1][0] != seq_len
        cells = [cell for point in points for cell in _cells(point)]
        made.add_row(str(seq_len), key, *cells, end_section=last)
    return made


def _cells(point: Point | None) -> list[str]:
    if not isinstance(point, MeasuredPoint):
        status = "-" if point is None or point.status == "unsupported" else point.status
        error = "-" if point is None or point.rel_error is None else f"{point.rel_error:.1e}"
        return [status, "-", "-", error, "-"]
    low, high = point.ci95_ms
    return [
        f"{SHIFTS if point.shifts else ''}{point.median_ms:.4g}",
        f"{low:.4g} to {high:.4g}",
        f"{point.tflops:.0f}",
        f"{point.rel_error:.1e}",
        "-" if point.peak_bytes is None else plot.in_bytes(point.peak_bytes),
    ]


def sentences(runs: dict[Key, Run], keys: Sequence[str], shapes: Shapes) -> list[str]:
    """Where memory ends, why what is absent is, and what the numbers do not hold: a sentence each."""
    lines = []
    for backward in shapes.passes:
        of_pass = {workload.seq_len: run for (_, workload), run in runs.items() if workload.backward is backward}
        without: dict[tuple[str, tuple[int, ...]], list[str]] = defaultdict(list)
        for key in keys:
            reasons: dict[str, list[int]] = defaultdict(list)
            for seq_len, run in of_pass.items():
                if isinstance(point := run.get(key), FailedPoint):
                    reasons["out of memory" if point.status == "oom" else point.message].append(seq_len)
            for why, places in reasons.items():
                without[why, tuple(places)].append(IMPLEMENTATIONS[key].label)
        for (why, seq_lens), labels in without.items():
            where = "any seq_len" if len(seq_lens) == len(of_pass) else f"seq_len {', '.join(map(str, seq_lens))}"
            which = "backward" if backward else "forward"
            if why == FORWARD_ONLY:
                lines.append(f"{', '.join(labels)}: forward only")
                continue
            lines.append(f"no {which} time of {', '.join(labels)} at {where}: {why}")
    there = {key for run in runs.values() for key in run}
    if lacking := [IMPLEMENTATIONS[key].label for key in keys if key not in there]:
        lines.append(f"not recorded: {', '.join(lacking)}")
    grouped = any(workload.kv_heads is not None for _, workload in runs)
    repeated = [IMPLEMENTATIONS[key].label for key in keys if key in there and not IMPLEMENTATIONS[key].grouped]
    if grouped and repeated:
        lines.append(
            f"given k and v of all heads, as they know no groups: {', '.join(repeated)}; forward, that copy is neither "
            "in their time nor in their memory"
        )
    if len(shapes.passes) == 1:
        lines.append("backward passes are measured on normal inputs alone: where few keys dominate, gradients cancel")
    if len(runs) < len(shapes.places):
        lines.append(f"{len(runs)} of {len(shapes.places)} workloads: the others are not recorded yet")
    return lines + override_notes(of_other_overrides(runs.values()))


def report(console: Console, store: Store, shapes: Shapes, keys: Sequence[str] | None, *, measured: bool) -> list[Path]:
    """Print and draw what is recorded of these shapes; returns the figures' files, none if nothing is recorded.

    Raises `UsageError` for a broken record and, after drawing, `MeasurementError` if a point is wrong or failed.
    """
    wanted = tuple(keys or COMPARED)
    found = fullest_runs(store.points(), wanted, keys or ())
    runs = {place: found[place] for place in shapes.places if place in found}
    if not runs:
        return []
    shown = [run[key] for run in runs.values() for key in wanted if key in run]
    stamp = Provenance.of_records(store, shown).stamp("measured" if measured else "recorded")
    console.print(table(runs, wanted, f"{shapes.title}: {stamp}"))
    lines = sentences(runs, wanted, shapes)
    for line in lines:
        console.print(line)
    written = plot.draw(runs, wanted, (shapes.title, stamp), lines, store.folder / shapes.stem)
    announce(console, written, stamp)
    require_times(shown)
    return written


def run(
    console: Console, results: Path, shapes: Shapes, keys: Sequence[str] | None, *, rounds: int, fresh: bool
) -> None:
    """`make attention`: measure what is missing where there is a Hopper GPU, else verify on the CPU; show, draw.

    Raises `UsageError` for an unknown implementation, and what `run_sweep`, `verify` and `report` raise.
    """
    chosen = implementations(keys or COMPARED)
    if keys is None:
        absent = {item.key: reason for item in chosen if (reason := item.missing())}
        chosen = [item for item in chosen if item.key not in absent]
        for key, reason in absent.items():
            console.print(f"without {key}: {reason}")
    reason = device.why_not_timed()
    if reason is None:
        store = Store(results / gpu_slug(device.gpu_name()), FILE)
        with sweep_progress(console) as progress:
            groups = [[place] for place in shapes.places]
            run_sweep(groups, chosen, store, figure="attention", rounds=rounds, fresh=fresh, progress=progress)
        report(console, store, shapes, keys, measured=True)
        return
    console.print(f"static: what torch computes on the CPU is checked, and recorded runs are shown; {reason}")
    verify(console, shapes, chosen)
    try:
        folders = recorded_folders(results, f"{FILE}.jsonl")
    except UsageError:
        folders = []
    if not any(report(console, Store(folder, FILE), shapes, keys, measured=False) for folder in folders):
        console.print(f"nothing of {shapes.title} is recorded yet: `make attention` on a Hopper GPU records it")
