"""What a script prints and how it ends, while it is run for the kernels that it launches."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NoReturn
from unittest.mock import patch

from kperf.compat.triton import CompilationError, PTXASError
from kperf.compat.triton.sources import why_not_compiled

_LAST_BYTES = 1 << 20
"""Of standard error, which may be long: its last line is in them, and what a compiler says of a kernel that fails."""


@contextmanager
def quiet(why: list[str]) -> Iterator[Callable[[], str]]:
    """Drop what a script prints, and keep the exception that ended it as words.

    Yields what gives the end of the text that stands in its standard error.
    """

    def ended(kind: type[BaseException], error: BaseException, _traceback: Any) -> None:
        if isinstance(error, CompilationError | PTXASError):
            why.append(f"{kind.__name__}: {why_not_compiled(error)}"[:200])
            return
        first = (str(error).splitlines() or [""])[0].rstrip(":;")
        why.append(f"{kind.__name__}: {first}{f': {error.__cause__}' if error.__cause__ else ''}"[:200])

    with (
        open(os.devnull, "w") as dropped,  # noqa: PTH123
        tempfile.TemporaryFile() as kept,
        open(os.dup(kept.fileno()), "w") as errors,  # noqa: PTH123 (of its own, which the script may close)
        contextlib.redirect_stdout(dropped),
        contextlib.redirect_stderr(errors),
        _led_to(dropped.fileno(), 1),
        _led_to(kept.fileno(), 2),
        patch.object(sys, "excepthook", ended),
        _exits_raised(),
    ):
        yield lambda: _end_of(errors, kept)


def _end_of(errors: IO[str], kept: IO[bytes]) -> str:
    with contextlib.suppress(ValueError):  # the script has closed it
        errors.flush()
    kept.seek(max(kept.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
    return kept.read().decode(errors="replace")


@contextmanager
def _led_to(descriptor: int, number: int) -> Iterator[None]:
    """Within it a standard stream goes there, of programs too that a script starts; it may close it."""
    try:
        kept = os.dup(number)
    except OSError:  # it is closed already
        yield
        return
    try:
        os.dup2(descriptor, number)
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


@contextmanager
def _exits_raised() -> Iterator[None]:
    """Within it `os._exit` ends a script and not what reads it; a process that the script forked ends here at last."""
    process, exit_at_once = os.getpid(), os._exit

    def ended(status: int) -> NoReturn:
        if os.getpid() != process:
            exit_at_once(status)
        raise SystemExit(status)

    try:
        with patch.object(os, "_exit", ended):
            yield
    finally:
        if os.getpid() != process:
            exit_at_once(0)
