"""Standard output and error as they were before a script ran, whatever it does to `sys.stdout` and `sys.stderr`."""

import os
import sys
from contextlib import suppress
from typing import TextIO


class Stream:
    """A standard stream, through a file descriptor of our own.

    One that has none, as where Python code catches what is printed, is used as it is; one that is closed is nowhere.
    """

    def __init__(self, name: str) -> None:
        """`name`: stdout or stderr."""
        self._name = name
        self._theirs: TextIO | None = getattr(sys, name)
        try:
            self._descriptor = self._theirs.fileno() if self._theirs is not None else None
        except (OSError, ValueError):
            self._descriptor = None
        self.file = self._own()

    def _own(self) -> TextIO:
        if self._theirs is not None and self._descriptor is not None:
            encoding = self._theirs.encoding
            return open(  # noqa: PTH123
                os.dup(self._descriptor), "w", buffering=1, encoding=encoding, errors="replace"
            )
        return self._theirs if self._theirs is not None else open(os.devnull, "w")  # noqa: PTH123

    def restore(self) -> None:
        """Let the script's last words out, and put `sys`'s stream back where it was."""
        with suppress(OSError, ValueError, AttributeError):
            getattr(sys, self._name).flush()
        if self._theirs is None:
            return
        with suppress(OSError, ValueError, AttributeError):
            self._theirs.flush()
        if self._descriptor is not None:
            os.dup2(self.file.fileno(), self._descriptor)
        setattr(sys, self._name, self.file if self._theirs.closed else self._theirs)

    def close(self) -> None:
        """Give our descriptor back, unless `sys` needs it."""
        if self.file is not self._theirs and self.file is not getattr(sys, self._name):
            self.file.close()
