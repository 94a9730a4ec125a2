"""Files that are either whole or not there."""

import errno
import os
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
