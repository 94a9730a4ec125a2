"""What tuning prints: what compiling leaves, the report's table before and after, and what the search found."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

from rich.table import Table

from kperf.attention.configs import Config
from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.workload import Workload
from kperf.bench.points import MeasuredPoint, Point
from kperf.console import titled_table
from kperf.tune.records import DEFAULT_KEY, GOAL, NATIVE, TUNED_KEY, Study
from kperf.tune.space import SPACES, Judged, SearchSpace


def pruning(judged: Mapping[str, Sequence[Judged]], workload: Workload) -> Table:
    """The same tile, order of loads, warps and stages side by side on all architectures, as often as one has it."""
    left = ", ".join(
        f"{name}: {sum(verdict.dropped is None for verdict in of_space)} of {len(of_space)} are left"
        for name, of_space in judged.items()
    )
    mask = "causal" if workload.causal else "full"
    title = f"the plain Triton kernel, head_dim {workload.head_dim}, {workload.dtype}, {mask}, from compiling alone"
    table = Table(title=f"{title} (nothing ran); {left}", title_justify="left")
    table.add_column("tile, warps, stages")
    for name in judged:
        item = SPACES[name]
        if item.has_waves:
            table.add_column("waves_per_eu", justify="right")
        table.add_column(f"{name} registers", justify="right")
        table.add_column(f"spilled {item.spill_unit}", justify="right")
        table.add_column(f"bytes of {item.arch.shared_name}", justify="right")
        table.add_column(f"{name}: left, or why not", min_width=16)
    rows: dict[str, dict[str, list[Judged]]] = {}
    for name, of_space in judged.items():
        for verdict in of_space:
            rows.setdefault(_short(verdict.config), {}).setdefault(name, []).append(verdict)
    for choices, by_name in rows.items():
        for beside in zip_longest(*(by_name.get(name, []) for name in judged)):
            cells = [
                cell for name, verdict in zip(judged, beside, strict=True) for cell in _needs(SPACES[name], verdict)
            ]
            table.add_row(choices, *cells)
    return table


def before_and_after(studies: Sequence[Study], stamp: str) -> Table:
    """The report's table: milliseconds of each, and how many times as fast as native each is."""
    keys = list(dict.fromkeys(key for study in studies for key in study.comparison))
    shape, configuration = "batch x heads x seq_len x head_dim", "tuned configuration"
    headers = (shape, *map(label, keys), "tuned over the fastest vendor's", configuration)
    title = f"before and after tuning, ms (times as fast as native); {stamp}"
    table = titled_table(title, *headers, left={shape, configuration})
    for study in studies:
        run = study.comparison
        native = next((point for key in NATIVE if isinstance(point := run.get(key), MeasuredPoint)), None)
        vendor = study.ratio_to_vendor
        table.add_row(
            str(study.workload),
            *(_time(run.get(key), native) for key in keys),
            f"{vendor[1]:.3f} ({label(vendor[0])})" if vendor else "-",
            str(study.chosen or "-"),
        )
    return table


def searches(studies: Sequence[Study], stamp: str) -> Table:
    """Trials and what they found, against the best of all where all were timed."""
    headers = ("workload", "architecture", "trials", "of", "failed", f"off the best of all (goal {GOAL:.0%})")
    table = Table(*headers, title=f"the search; {stamp}", title_justify="left")
    for study in studies:
        tried = study.tried("search")
        regret = "not all were timed" if study.regret is None else f"{study.regret:.1%}"
        failed = sum(cost is None for cost in tried.values())
        numbers = (str(len(tried)), str(study.runnable), str(failed))
        table.add_row(str(study.workload), study.architecture, *numbers, regret)
    return table


def label(key: str) -> str:
    """Of a column or a bar."""
    ours = {DEFAULT_KEY: "Triton before", TUNED_KEY: "Triton tuned"}
    return ours.get(key) or IMPLEMENTATIONS[key].label


def _time(point: Point | None, native: MeasuredPoint | None) -> str:
    if not isinstance(point, MeasuredPoint):
        return point.status if point else "-"
    over = f" ({native.median_ms / point.median_ms:.2f}x)" if native else ""
    return f"{point.median_ms:.3f}{over}"


def _short(config: Config) -> str:
    first = ", v first" if config.PRELOAD_V else ""
    return f"{config.BLOCK_M}x{config.BLOCK_N}{first}, {config.num_warps}, {config.num_stages}"


def _needs(space: SearchSpace, judged: Judged | None) -> list[str]:
    waves = [str(judged.config.waves_per_eu) if judged else ""] if space.has_waves else []
    if judged is None:
        return [*waves, "", "", "", ""]
    needs = judged.needs
    numbers = [str(needs.registers), str(needs.spills), str(needs.shared_bytes)] if needs else ["-", "-", "-"]
    return [*waves, *numbers, judged.dropped or "left"]
