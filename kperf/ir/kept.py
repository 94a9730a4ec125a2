"""The levels of a kernel in a file beside its timeline: `<name>.ir.json.gz`, each line with its line of source."""

import gzip
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt, ValidationError

from kperf.compat.triton import CompiledKernel
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir.levels import LEVELS, Line, read_levels
from kperf.ir.locations import Frame
from kperf.record.files import named_from

SUFFIX = ".ir.json.gz"
_LARGEST = 200 << 20
"""Bytes of a file, unpacked, that is read: a hundred times those of a large kernel."""


class KeptIr(BaseModel):
    """What a file holds: of each level its lines, each with the places (numbers in `places`) that it is from.

    places: (file, line, column), each once. A line's innermost place is its first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_version: Literal[1] = 1
    kernel: str
    target: str
    places: list[tuple[str, int, int]]
    levels: dict[str, list[tuple[str, list[NonNegativeInt]]]]

    def packed(self) -> bytes:
        """The file's content, the same for the same levels."""
        return gzip.compress(self.model_dump_json().encode(), mtime=0)

    def lines(self) -> dict[str, list[Line]]:
        """The levels as they were read. Raises `IndexError` if a line is of a place that there is not."""
        frames = [Frame(*place) for place in self.places]
        return {
            level: [Line(text, tuple(frames[at] for at in places)) for text, places in self.levels[level]]
            for level in LEVELS
            if level in self.levels
        }


def levels_of_compiled(kernel: CompiledKernel) -> dict[str, list[Line]]:
    """From TTIR to machine code, of a kernel that Triton compiled, as far as there are.

    Raises `UsageError` if its machine code cannot be read.
    """
    read_back = compiler.read_compiled(kernel)
    return read_levels(read_back.texts, read_back.code, read_back.moved)


def of_levels(kernel: str, target: str, levels: Mapping[str, Sequence[Line]], here: Path) -> KeptIr:
    """What is kept of a kernel's levels. Files that lie in `here` are named from there."""
    numbers: dict[Frame, int] = {}
    kept = {
        level: [(line.text, [numbers.setdefault(frame, len(numbers)) for frame in line.frames]) for line in lines]
        for level, lines in levels.items()
    }
    places = [(named_from(here, frame.file), frame.line, frame.column) for frame in numbers]
    return KeptIr(kernel=kernel, target=target, places=places, levels=kept)


def read(path: Path) -> KeptIr:
    """What `packed` gave. Raises `UsageError` if the file is missing, too large, damaged, or another program's."""
    try:
        with gzip.open(path) as stream:
            content = stream.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise UsageError(f"{path} is larger than {_LARGEST >> 20} MB: it is no IR of kperf")
        kept = KeptIr.model_validate_json(content)
        kept.lines()
    except FileNotFoundError:
        raise UsageError(f"{path} is missing: `kperf trace` writes it beside the timeline") from None
    except (OSError, EOFError, zlib.error, ValidationError, IndexError):
        raise UsageError(f"{path} is not the IR of a kernel that kperf wrote: trace the kernel again") from None
    return kept
