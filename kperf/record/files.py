"""Files that are either whole or not there."""

import errno
import os
import re
import tempfile
from pathlib import Path

from kperf.errors import MeasurementError, UsageError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""A disk, a quota or a limit of the process."""


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
            f"{folder} cannot be written ({error.strerror}): name another folder with --results; "
            "`kperf restore --results FOLDER` makes one that holds the recorded runs"
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
        path = path.resolve()
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
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


def write_between_marks(document: Path, name: str, text: str) -> None:
    """Put `text` between the marks `<!-- name -->` and `<!-- /name -->` of a document.

    Raises `UsageError` if it cannot be read or written, or has no such marks.
    """
    try:
        whole = document.read_text()
    except OSError as error:
        raise UsageError(f"{document} cannot be read: {error.strerror}") from None
    parts = re.split(rf"(<!-- /?{name} -->)", whole)
    if parts[1::2] != [f"<!-- {mark} -->" for mark in (name, f"/{name}")]:
        raise UsageError(f"{document} has no pair of marks <!-- {name} --> and <!-- /{name} -->")
    parts[2] = f"\n{text}\n"
    write_atomically(document, "".join(parts))
