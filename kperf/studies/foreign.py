"""What other programs wrote, read in one strict way: numbers are finite, fields are there, and all else is a sentence.

ncu prints CSV, Proton and tritonbench write JSON, and so do the processes in which we profile. Any of them may be of
another version, be killed half-way, or print a warning where a table belongs.
"""

import csv
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from kperf.errors import UsageError, first_line
from kperf.record.store import first_of

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Json: TypeAdapter[dict[str, Any]] = TypeAdapter(dict[str, Any], config=ConfigDict(strict=True))
"""An object of anything."""

_Content = TypeVar("_Content")


def read_json(path: Path, content: TypeAdapter[_Content], program: str) -> _Content:
    """What `program` wrote. Raises `UsageError` if it wrote nothing, or something else."""
    try:
        return content.validate_python(from_json(path.read_bytes()))
    except FileNotFoundError:
        raise UsageError(f"{program} wrote no {path.name}: it ended before") from None
    except ValidationError as error:
        why = first_of(error)
    except (OSError, ValueError, RecursionError) as error:
        why = first_line(error)
    raise UsageError(f"{path.name} is not what {program} writes: {why}")


def read_csv(lines: Sequence[str], program: str) -> Iterator[list[str]]:
    """The cells of each line. Raises `UsageError` for what is no CSV."""
    try:
        yield from csv.reader(lines)
    except csv.Error as error:
        raise UsageError(f"{program} printed what is no table: {error}") from None


def number(text: str, program: str) -> float:
    """1,234.5 as well. Raises `UsageError` for what is none, or not finite."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"{program} printed {text!r} where a number belongs")
    return value
