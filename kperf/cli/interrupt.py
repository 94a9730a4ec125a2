"""Ctrl-C: one sentence and status 130 from the first moment on. Imports nothing that takes time."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

STATUS = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""
KEPT = "interrupted: what was recorded is kept"

_COMMANDS = str(Path(__file__).parent)


@contextmanager
def answered() -> Iterator[None]:
    """Ctrl-C ends the process at once, in a sentence: nothing is under way that has to be put in order.

    A process that was started with SIGINT ignored, as a shell starts those in its background, goes on to ignore it.
    """
    with _changed(signal.default_int_handler, _end):
        yield


@contextmanager
def raised() -> Iterator[None]:
    """Within `answered`, a command: Ctrl-C raises `KeyboardInterrupt`, but while the command is only being imported."""
    with _changed(_end, _raise):
        yield


@contextmanager
def as_python() -> Iterator[None]:
    """Within `raised`, a user's script: it finds Python's own handler, as asyncio looks for it."""
    with _changed(_raise, signal.default_int_handler):
        yield


@contextmanager
def _changed(before: Any, handler: Any) -> Iterator[None]:
    changes = signal.getsignal(signal.SIGINT) is before
    if changes:
        signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        if changes:
            signal.signal(signal.SIGINT, before)


def _end(_number: int, _frame: FrameType | None) -> NoReturn:
    try:
        os.write(2, f"kperf: {KEPT}\n".encode())
    finally:  # nobody may be listening
        os._exit(STATUS)


def _raise(number: int, frame: FrameType | None) -> None:
    """What torch and numpy import makes another error of the exception, and cannot be imported again to say so."""
    if _is_imported_by_a_command(frame):
        _end(number, frame)
    signal.default_int_handler(number, frame)


def _is_imported_by_a_command(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_back is not None:
        importing = frame.f_code.co_filename.startswith("<frozen importlib")
        if importing and frame.f_back.f_code.co_filename.startswith(_COMMANDS):
            return True
        frame = frame.f_back
    return False
