"""Files that are either whole or not there."""

import errno
import os
import re
import tempfile
from pathlib import Path

from kperf.errors import MeasurementError, UsageError


def write_atomically(path: Path, data: str | bytes) -> None:
    """Write beside the target and rename: a reader sees the old file or the new one, never half of it.

    Raises `UsageError` if the target cannot be written, `MeasurementError` if the disk is full.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = None
    try:
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
            kind = MeasurementError if error.errno == errno.ENOSPC else UsageError
            raise kind(f"{path} cannot be written: {error.strerror}") from None
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
