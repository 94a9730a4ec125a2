"""`kperf export`: recorded points with what is computed from them, whatever the lines on disk look like."""

import csv
import json
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TextIO

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from kperf.bench.points import Point, PowerStore, Store
from kperf.bench.walltime import SweepStore
from kperf.errors import UsageError
from kperf.paper import disturbance, llama_block, operators, proof, proof_ncu, tritonbench, varlen
from kperf.record.store import RecordStore, recorded_folder
from kperf.studies import accuracy, fig13, inductor, lines, proton, public_rows, timers
from kperf.tune.records import store_in

Format = Literal["jsonl", "csv"]

NAMES = (
    "fig12", "fig12_inputs", "attention", "bench", "power", "sweeps", "tune", "llama-block", "varlen",
    "tritonbench",
    "accuracy", "overhead", "timers", "proton", "lines", "inductor", "diagnose", "ncu_rules",
    "disturbance", "public", "operators",
)  # fmt: skip
"""Every kind of record: the name of its file."""

_FIRST = (
    "figure", "run", "sweep", "implementation", "batch", "heads", "seq_len", "head_dim", "causal", "dtype", "flops",
    "status", "message", "rel_error", "samples_ms", "median_ms", "ci95_ms", "tflops", "timer", "round_order",
    "override_sha256", "environment", "recorded_at",
)  # fmt: skip
"""Fields of a point that come first, those that it has."""


def run(out: TextIO, results: Path, name: str, gpu: str | None, form: Format) -> None:
    """Print the records of one kind and one GPU, in the order of writing.

    A record is an object of JSON a line, or a row of CSV, in which what is no number or text is JSON.

    Raises `UsageError` for a kind that there is not, a GPU of which none is recorded, or a broken record.
    """
    if name not in NAMES:
        raise UsageError(f"nothing is recorded as {name!r}: there are {', '.join(NAMES)}")
    folder = recorded_folder(results, f"{name}.jsonl", gpu=gpu)
    rows = [exported(record) for record in _store(folder, name).points()]
    if form == "jsonl":
        out.writelines(f"{json.dumps(row)}\n" for row in rows)
        return
    writer = csv.DictWriter(out, list(dict.fromkeys(field for row in rows for field in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows({field: _cell(value) for field, value in row.items()} for row in rows)


def exported(record: BaseModel) -> dict[str, Any]:
    """Fields and computed values of a record by name; of one with a point, those of the point beside its own."""
    found = {name: getattr(record, name) for name in type(record).model_fields} | _computed(record)
    point = found.pop("point", None)
    if isinstance(point, BaseModel):
        return _jsonable(found) | exported(point)
    ordered = {name: found[name] for name in _FIRST if name in found} if isinstance(record, Point) else {}
    return _jsonable(ordered | found)


def _computed(record: BaseModel) -> dict[str, Any]:
    """The properties of its classes: what follows from its fields. A workload is among the fields already."""
    names = [
        name
        for kind in reversed(type(record).__mro__)
        if kind.__module__.startswith("kperf.")
        for name, member in vars(kind).items()
        if isinstance(member, property | cached_property)
    ]
    return {name: value for name in names if not isinstance(value := getattr(record, name), BaseModel)}


def _jsonable(found: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = to_jsonable_python({name: _whole(value) for name, value in found.items()})
    return made


def _whole(value: Any) -> Any:
    """Records inside a record with what is computed of them, too."""
    if isinstance(value, BaseModel):
        return {name: getattr(value, name) for name in type(value).model_fields} | _computed(value)
    return [_whole(one) for one in value] if isinstance(value, list | tuple) else value


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict | bool) else value


_ROWS: dict[str, Any] = {
    "llama-block": llama_block.ROWS,
    "varlen": varlen.ROWS,
    "tritonbench": tritonbench.ROWS,
    "accuracy": accuracy.ROWS,
    "overhead": fig13.ROWS,
    "timers": timers.ROWS,
    "proton": proton.ROWS,
    "lines": lines.ROWS,
    "inductor": inductor.ROWS,
    "diagnose": proof.ROWS,
    "ncu_rules": proof_ncu.ROWS,
    "disturbance": disturbance.ROWS,
    "public": public_rows.ROWS,
    "operators": operators.ROWS,
}


def _store(folder: Path, name: str) -> RecordStore[Any]:
    match name:
        case "fig12" | "fig12_inputs" | "attention" | "bench":
            return Store(folder, name)
        case "power":
            return PowerStore(folder)
        case "sweeps":
            return SweepStore(folder)
        case "tune":
            return store_in(folder)
        case _:
            return RecordStore(folder, name, _ROWS[name])
