"""However a script ends its process, what was traced is reported first."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""What ends a process from outside: a time limit, a scheduler, a closed terminal. Ctrl-C is Python's KeyboardInterrupt,
which the script may catch."""


@contextmanager
def reported(report: Callable[[], int]) -> Iterator[Callable[[int], None]]:
    """Within it, SIGTERM, SIGHUP and `os._exit` call `report` before the process ends.

    As under Python nothing of the script runs then, and the exit status is 128 + the signal's number, or the script's
    own; what `report` returns if that is 0. A process that the script forked ends as ever. Yields what ends the process
    so, with an exit status.
    """
    process, exit_at_once = os.getpid(), os._exit
    begun = threading.Lock()

    def end(status: int) -> None:
        try:
            if os.getpid() == process and begun.acquire(blocking=False):
                reported_status = report()
                status = status or reported_status
        finally:
            exit_at_once(status)

    def stopped(number: int, _frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)  # the next one ends the report too
        if os.getpid() == process:
            end(128 + number)
        os.kill(os.getpid(), number)

    os._exit = end  # type: ignore[assignment]
    listening = [number for number in _SIGNALS if _is_default(number)]
    for number in listening:
        signal.signal(number, stopped)
    try:
        yield end
    finally:
        os._exit = exit_at_once
        for number in listening:
            if signal.getsignal(number) is stopped:
                signal.signal(number, signal.SIG_DFL)


def _is_default(number: int) -> bool:
    """Whether a signal ends this process, and may be listened to: in another thread none may."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(number) is signal.SIG_DFL
