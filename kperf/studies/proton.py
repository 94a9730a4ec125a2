"""`make proton`: Proton over attention's implementations and SDPA's back ends, as its users use it.

Scopes carry floating-point operations and bytes; a launch hook renames our kernels with their configuration; warm-up
lies outside of the session (deactivate, activate). Its `.hatchet` files are kept, printed as trees and subtracted; the
names of the kernels say which code torch ran. `proton`, the command, is run on a script of examples/.
"""

import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, TypeAdapter, model_validator
from rich.console import Console
from rich.table import Table

from kperf.console import announce, titled_table
from kperf.errors import MeasurementError, UsageError
from kperf.installation import EXAMPLES, require_checkout
from kperf.record.files import write_atomically
from kperf.studies import child, foreign
from kperf.studies.hatchet import TIME, Tree, read_tree, rendered, subtract
from kperf.studies.proton_session import ALL, KEYS, WORKLOADS, bytes_of
from kperf.studies.records import Common, Row, folder_of, measured_or_recorded

LAUNCHES = 20
CLI = "cli"
"""The session of the `proton` command."""
_SCRIPT = EXAMPLES / "attention.py"
_LIMIT_S = 120


class ProtonRow(Row):
    """One implementation in one session. time_us: of a call, all its kernels; or `message` says why there is none.

    flops and bytes: of a call. kernels: the names that Proton gives, those of Triton renamed by the launch hook.
    """

    session: str
    implementation: str
    kernels: list[str]
    launches: int
    flops: int
    bytes: int
    time_us: Annotated[float, Field(gt=0)] | None
    message: str = ""

    @model_validator(mode="after")
    def _has_a_time_or_a_reason(self) -> Self:
        if (self.time_us is None) != bool(self.message) or bool(self.kernels) != (self.time_us is not None):
            raise ValueError("time_us: a time with the kernels that took it, or a message, and not both")
        return self

    @property
    def tflops(self) -> float | None:
        """None where there is no time."""
        return None if self.time_us is None else self.flops / self.time_us / 1e6

    @property
    def gb_per_s(self) -> float | None:
        """Likewise."""
        return None if self.time_us is None else self.bytes / self.time_us / 1e3


ROWS: TypeAdapter[ProtonRow] = TypeAdapter(ProtonRow)
_REASONS: TypeAdapter[dict[str, dict[str, str]]] = TypeAdapter(dict[str, dict[str, str]])
Draw = Callable[[Sequence[ProtonRow], str, Path], list[Path]]


def run(console: Console, results: Path, draw: Draw, *, require_gpu: bool) -> None:
    """Profile, or read what is recorded: tables, trees and their difference.

    Raises `UsageError` without a record, and without a checkout.
    """
    require_checkout("what `kperf proton` profiles, examples/,")
    shown = measured_or_recorded(
        console, results, "proton", ROWS, partial(measure, results=results), require_gpu=require_gpu
    )
    console.print(table(shown.rows, shown.stamp))
    folder = shown.folder / "proton"
    trees = {path.stem: read_tree(path) for path in sorted(folder.glob("*.hatchet"))}
    for name, tree in trees.items():
        console.print(f"{folder / name}.hatchet: TFLOP/s, GB/s, ms and calls of each frame")
        console.print(rendered(tree, COLUMNS))
    if {"full", "causal"} <= trees.keys():
        console.print("full less causal: ms of each frame")
        console.print(rendered(subtract(trees["full"], trees["causal"]), (_milliseconds,)))
    for line in sentences(shown.rows):
        console.print(line)
    if importlib.util.find_spec("hatchet") is None:
        console.print("proton-viewer opens these files with llnl-hatchet and pandas: pip install llnl-hatchet pandas")
    announce(console, draw(shown.rows, shown.stamp, shown.folder / "proton_tflops"), shown.stamp)


def measure(common: Common, *, results: Path) -> Iterator[ProtonRow]:
    """Both sessions in a process of their own, then the command; the files are kept before they are read."""
    kept = folder_of(results) / "proton"
    with tempfile.TemporaryDirectory(prefix="kperf-proton-") as name:
        folder = Path(name)
        under_proton([sys.executable, "-m", "kperf.studies.proton_session", ",".join(KEYS), str(LAUNCHES), name])
        reasons = foreign.read_json(folder / "reasons.json", _REASONS, "the process under Proton")
        message = ""
        try:
            command = [sys.executable, "-m", "triton.profiler.proton", "-n", str(folder / CLI), "-k", "triton"]
            under_proton([*command, str(_SCRIPT), "--batch", "1", "--seq-len", "1024"])
        except MeasurementError as error:
            message = str(error)
        kept.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("*.hatchet"):
            write_atomically(kept / path.name, path.read_bytes())
    for session, workload in WORKLOADS.items():
        tree = read_tree(kept / f"{session}.hatchet")
        for key in KEYS:
            counts = {"flops": workload.flops, "bytes": bytes_of(workload)}
            yield _row(common | counts, session, key, tree, reasons.get(session, {}).get(key, ""))
    cli = {"session": CLI, "implementation": _SCRIPT.name, "launches": 1, "flops": 0, "bytes": 0}
    tree = Tree("", {}) if message else read_tree(kept / f"{CLI}.hatchet")
    kernels = _kernels(tree)
    time_us = tree.total(TIME) / 1e3 or None
    message = message or ("" if time_us else "the command saw no kernel")
    yield ProtonRow(**common, **cli, kernels=kernels, time_us=time_us, message=message)


def under_proton(command: Sequence[str], limit_s: float = _LIMIT_S) -> None:
    """Run a process that profiles itself. Raises `MeasurementError` if it fails, with the last line that it printed."""
    try:
        done = child.run(command, limit_s)
    except subprocess.TimeoutExpired:
        raise MeasurementError(f"profiling under Proton took more than {limit_s:g} s") from None
    if done.returncode:
        raise MeasurementError(f"profiling under Proton failed: {child.last_line(done.stderr or done.stdout)[:200]}")


def _row(common: Common, session: str, key: str, tree: Tree, reason: str) -> ProtonRow:
    kernels: list[str] = []
    time_us = None
    if not reason:
        try:
            scope = tree.child(key)
            kernels = _kernels(scope)
            time_us = scope.total(TIME) / LAUNCHES / 1e3 or None
            reason = "" if time_us else "Proton saw no kernel of it"
        except UsageError as error:
            reason = str(error)
    fields = {"session": session, "implementation": key, "kernels": kernels if time_us else [], "launches": LAUNCHES}
    return ProtonRow(**common, **fields, time_us=time_us, message=reason)


def _kernels(tree: Tree) -> list[str]:
    return list(dict.fromkeys(frame.name for frame in tree.kernels()))


def _per_second(tree: Tree, metric: str, unit: float) -> str:
    time, amount = tree.total(TIME), tree.total(metric)
    return f"{amount / time / unit:.0f}" if time > 0 and amount else "-"


def _milliseconds(tree: Tree) -> str:
    return f"{tree.total(TIME) / 1e6:.3f}"


COLUMNS = (
    lambda tree: _per_second(tree, "flops", 1e3),
    lambda tree: _per_second(tree, "bytes", 1.0),
    _milliseconds,
    lambda tree: f"{tree.total('count'):.0f}",
)
"""TFLOP/s, GB/s, milliseconds and calls of a frame and all below; the metrics are over nanoseconds."""


def table(rows: Sequence[ProtonRow], stamp: str) -> Table:
    """A row an implementation and session."""
    headers = ("session", "implementation", "us", "TFLOP/s", "GB/s", "kernels")
    made = titled_table(f"by Proton; {stamp}", *headers, left={"session", "implementation", "kernels"})
    for row in rows:
        numbers = ("-" if value is None else f"{value:.1f}" for value in (row.time_us, row.tflops, row.gb_per_s))
        made.add_row(
            row.session,
            label(row.implementation),
            *numbers,
            row.message or "\n".join(_short(name) for name in row.kernels),
        )
    return made


def label(key: str) -> str:
    """What an implementation is called; its key for one that this program does not know, as an example's."""
    return ALL[key].label if key in ALL else key


def _names(row: ProtonRow, between: str) -> str:
    return between.join(_short(name) for name in row.kernels)


def _short(name: str) -> str:
    return name if len(name) <= 90 else f"{name[:87]}..."


def sentences(rows: Sequence[ProtonRow]) -> list[str]:
    """Which code SDPA ran, by the names of its kernels."""
    return [
        f"{label(row.implementation)}, {row.session}, ran {_names(row, ', ')}."
        for row in rows
        if row.implementation.startswith("sdpa_") and row.kernels
    ]
