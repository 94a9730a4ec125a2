"""What `make accuracy`, `timers`, `proton`, `overhead` and `lines` have in common: a run is measured, or is read again.

Each has a file of its own in results/<gpu>/, a row a line, written as soon as it is known.
"""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from pydantic import ValidationError
from rich.console import Console

from kperf.errors import MeasurementError, UsageError, first_line
from kperf.record import device
from kperf.record.provenance import Provenance
from kperf.record.store import (
    Frozen,
    Instant,
    Records,
    RecordStore,
    by_preference,
    first_of,
    gpu_slug,
    refuse_one_gpus,
)


class Row(Frozen):
    """One line. run: what was measured by one command; environment: its id in environment.json; recorded_at: UTC."""

    schema_version: Literal[1] = 1
    run: str
    environment: str
    recorded_at: Instant


R = TypeVar("R", bound=Row)
Common = dict[str, Any]
"""The fields of `Row`, for those that are made of them."""


@dataclass(frozen=True)
class Run(Generic[R]):
    """The rows of one run, the folder of results that they are in, and where they come from in words."""

    folder: Path
    rows: list[R]
    stamp: str


def measured_or_recorded(
    console: Console,
    results: Path,
    name: str,
    rows: Records[R],
    measure: Callable[[Common], Iterator[R]],
    *,
    require_gpu: bool = False,
    in_children: bool = False,
    command: str = "",
) -> Run[R]:
    """Measure on a Hopper GPU and append each row to `<name>.jsonl` as it comes; without a GPU the newest run recorded.

    `in_children`: all is measured by processes that `measure` starts, each of which takes the GPU's lock itself.
    `command`: of make, if it is not called as the record is.

    Raises `UsageError` if there is no GPU and `require_gpu`, or no record, and `MeasurementError` if the GPU is lost.
    """
    reason = device.why_static()
    if reason is not None:
        if require_gpu:
            raise UsageError(reason)
        run = recorded(_recorded_in(results, name, reason, command or name), name, rows)
        console.print(f"static: what was recorded is shown; {reason}")
        return run
    store = RecordStore(folder_of(results), name, rows)
    made: list[R] = []
    with nullcontext() if in_children else device.exclusive(), store.writer() as writer:
        common = {
            "run": secrets.token_hex(6),
            "environment": writer.record_environment(device.environment()),
            "recorded_at": device.now(),
        }
        try:
            for row in measure(common):
                writer.append([row])
                made.append(row)
        except torch.AcceleratorError as error:
            raise MeasurementError(f"the GPU's context broke: {first_line(error)}") from None
        except ValidationError as error:  # what other programs measured may be anything
            raise MeasurementError(f"what was measured is no record of {name}: {first_of(error)}") from None
    if not made:  # nothing was left to measure
        return recorded(store.folder, name, rows)
    return Run(store.folder, made, stamp(store, made, "measured"))


def recorded(folder: Path, name: str, rows: Records[R], counts: Callable[[R], bool] = lambda _: True) -> Run[R]:
    """The newest run in `<name>.jsonl`, of the rows that count. Raises `UsageError` if it is broken or has no row."""
    store = RecordStore(folder, name, rows)
    rows_of_run = newest([row for row in store.points() if counts(row)])
    return Run(folder, rows_of_run, stamp(store, rows_of_run, "recorded"))


def folder_of(results: Path) -> Path:
    """Where records of this machine's GPU go."""
    return results / gpu_slug(device.gpu_name())


def _recorded_in(results: Path, name: str, reason: str, command: str) -> Path:
    folders = sorted(path.parent for path in results.glob(f"*/{name}.jsonl"))
    if not folders:
        refuse_one_gpus(results, f"{name}.jsonl")
        raise UsageError(
            f"nothing is recorded of `make {command}` in {results} yet: that command records it on a Hopper GPU, "
            f"and here {reason}"
        )
    return by_preference(folders, f"{name}.jsonl")[0]


def newest(rows: Sequence[R]) -> list[R]:
    """Of the runs with the most rows the last: one that was killed does not hide a whole one."""
    runs: dict[str, list[R]] = {}
    for row in rows:
        runs.setdefault(row.run, []).append(row)
    return max(reversed(runs.values()), key=len, default=[])


def stamp(store: RecordStore[R], rows: Sequence[R], how: str) -> str:
    """`recorded on NVIDIA H200, 2026-11-21`, or two dates. Raises `UsageError` without a row, or its environment."""
    if not rows:
        raise UsageError(f"{store.points_path} has no row: measure on a Hopper GPU")
    return Provenance.of_records(store, rows).stamp(how)
