"""Files that are either whole or not there."""

import errno
import json
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from kperf.errors import MeasurementError, UsageError
from kperf.installation import RESTORE

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""A disk, a quota or a limit of the process."""

_NAME_BYTES = 120
"""Of a name that is not ours, in a file's: endings and a temporary file's letters have room in the 255 bytes of one."""


def named_from(folder: Path, file: str) -> str:
    """A file's name from a folder that it lies in: a record that travels then names no machine's folder; else whole."""
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder by its path from there, sorted, without what is hidden (unfinished copies)."""
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [path for path in paths if not any(part.startswith(".") for part in path.parts)]


def require_writable(folder: Path) -> None:
    """Before minutes of work whose results go into `folder`, which may be missing, and not after them.

    Raises `UsageError` if nothing can be written there.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written ({error.strerror}): name another folder with --results; {RESTORE}"
        ) from None


def make_output(folder: Path) -> None:
    """Make the folder that --out names, before the work whose results go there.

    Raises `UsageError` if it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be made: {error.strerror}; choose another folder with --out") from None
    if not os.access(folder, os.W_OK):
        raise UsageError(f"{folder} cannot be written: choose another folder with --out")


def require_regular(descriptor: int) -> None:
    """Raise OSError for an open pipe, device or folder: its reading might never end."""
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")


def read_regular(path: Path) -> bytes:
    """The content of a file, or of the file that a link names.

    Raises FileNotFoundError if it is missing, and `UsageError` if it cannot be read or is no regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb", closefd=True) as stream:
            require_regular(descriptor)
            return stream.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None


def read_text(path: Path) -> str:
    """A text file. Raises `UsageError` if it is missing, no regular file, or no text in UTF-8."""
    try:
        return read_regular(path).decode().replace("\r\n", "\n")
    except FileNotFoundError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read: it is no text in UTF-8 ({error.reason})") from None


class RepeatedKeyError(ValueError):
    """An object of JSON that has a key twice: which of the values counts is anybody's guess."""


def from_json_once(data: bytes) -> Any:
    """What a JSON text in UTF-8 holds, each key once in its object, and no NaN or infinity.

    Raises ValueError for anything else, of these `RepeatedKeyError` for a key that stands twice.
    """

    def no_number(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise RepeatedKeyError(f"{json.dumps(twice)} stands twice in one object")
        return content

    try:
        return json.loads(data.decode(), object_pairs_hook=each_once, parse_constant=no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write beside the target and rename: a reader sees the old file or the new one, never half of it.

    A link stays, and its file is written; what is no file, as a device or a pipe, is written to and never replaced.
    Raises `UsageError` if the target cannot be written, `MeasurementError` if the disk is full.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = None
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
            return
        path = Path(os.path.realpath(path))
        if path.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{start_of(path.name)}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):
            if error.errno in _FULL:
                message = f"{path} cannot be written ({error.strerror}): free some space there; what it held is intact"
                raise MeasurementError(message) from None
            raise UsageError(f"{path} cannot be written ({error.strerror}): name a place that you can write") from None
        raise


def start_of(name: str) -> str:
    """As much of a name as leaves room for an ending and a temporary file's letters: a file's name has 255 bytes."""
    return name.encode()[:_NAME_BYTES].decode(errors="ignore")


def write_sections(document: Path, sections: Mapping[str, str]) -> None:
    """Put sections between their marks, in a document and in the pages of the folder beside it that has its name.

    Raises `UsageError` if a page cannot be read or written, or if they have marks of none of the sections.
    """
    pages = [document, *sorted(document.with_suffix("").glob("*.md"))]
    wanted = [(page, name) for page in pages for name in sections if f"<!-- {name} -->" in read_text(page)]
    if not wanted:
        raise UsageError(f"{document} has no marks of {', '.join(sections)}, as in <!-- {next(iter(sections))} -->")
    for page, name in wanted:
        write_between_marks(page, name, sections[name])


def write_between_marks(document: Path, name: str, text: str) -> None:
    """Put `text` between the marks `<!-- name -->` and `<!-- /name -->` of a document.

    Raises `UsageError` if it cannot be read or written, or has no such marks.
    """
    whole = read_text(document)
    parts = re.split(rf"(<!-- /?{name} -->)", whole)
    if parts[1::2] != [f"<!-- {mark} -->" for mark in (name, f"/{name}")]:
        raise UsageError(f"{document} has no pair of marks <!-- {name} --> and <!-- /{name} -->")
    parts[2] = f"\n{text}\n"
    write_atomically(document, "".join(parts))
