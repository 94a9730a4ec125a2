"""Folders for what one process needs for a while, which the next one removes where a process could not."""

import fcntl
import os
import shutil
import tempfile
import time
import weakref
from pathlib import Path

_NEW_S = 60.0
"""Seconds in which a folder may have been made and not be locked yet."""


class Scratch:
    """A new folder in that for temporary files, until it is closed or the process ends; its lock says that it is used.

    A process that was killed, or that aborted, leaves its folder: whoever makes one with the same `prefix` removes it.
    So nobody may call a folder of theirs so: begin the prefix with a dot.
    """

    def __init__(self, prefix: str) -> None:
        """Raises `OSError` if the folder cannot be made."""
        _remove_left(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._remove = weakref.finalize(self, _remove, self.path, _lock(self.path), os.getpid())

    def close(self) -> None:
        """Remove the folder."""
        self._remove()


def _remove(folder: Path, lock: int | None, process: int) -> None:
    """At the end of the process that made it, and not of one that was forked from there."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_left(prefix: str) -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        if not _is_new(folder) and (lock := _lock(folder)) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _is_new(folder: Path) -> bool:
    try:
        return time.time() - folder.lstat().st_mtime < _NEW_S
    except FileNotFoundError:
        return True


def _lock(folder: Path) -> int | None:
    """The descriptor that holds a folder's lock; None of one that another holds, that is another's, or that is none."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
