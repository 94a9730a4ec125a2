"""A process that a command starts to measure in, and that never outlives it."""

import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_GRACE_S = 10.0
"""Until a process that was told to end is killed: it writes what it has, and ends those that it started itself."""


def run(
    command: Sequence[str | Path],
    limit_s: float,
    *,
    cwd: Path | None = None,
    output: int | None = subprocess.PIPE,
    errors: int | None = subprocess.PIPE,
    ending: signal.Signals = signal.SIGTERM,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run`; `output` and `errors` are where stdout and stderr go, None being where ours go. No input.

    Raises `TimeoutExpired` after `limit_s` seconds. Then, and where we are interrupted, it and all that it has started
    get `ending`. For that they are a process group, which Ctrl-C on a terminal does not reach: one process answers it.
    """
    with _interrupts_held() as let_go, _begun(command, cwd, output, errors) as child:
        try:
            let_go()
            out, err = child.communicate(timeout=limit_s)
        except BaseException:
            _end(child, ending)
            raise
    return subprocess.CompletedProcess(command, child.returncode, out, err)


def _begun(
    command: Sequence[str | Path], cwd: Path | None, output: int | IO[str] | None, errors: int | IO[str] | None
) -> subprocess.Popen[str]:
    """A process without input, in a process group of its own."""
    return subprocess.Popen(
        command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, text=True, process_group=0
    )


@contextmanager
def _interrupts_held() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back until the end, or until the yielded function is called, while a process begins.

    Until we know of it, nothing would end it.

    Only the main thread is interrupted, and only it may say what an interrupt does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    held: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: held.append(number))

    def let_go() -> None:
        signal.signal(signal.SIGINT, before)
        if held:
            held.clear()
            signal.raise_signal(signal.SIGINT)

    try:
        yield let_go
    finally:
        let_go()


def last_line(printed: str) -> str:
    """The last line of what a process that failed has printed."""
    return (printed.strip().splitlines() or ["no word"])[-1]


def _end(child: subprocess.Popen[str], ending: signal.Signals) -> None:
    for number in (ending, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)


_POLL_S = 0.05
_CORES = 4


def at_once() -> int:
    """How many processes that want the GPU are begun: those that import take a few of the cores that timing leaves."""
    return 1 + (os.cpu_count() or 1) // _CORES


@dataclass(frozen=True)
class Ended:
    """A process of several: the place of its command, its exit status (None: it took too long), what it printed."""

    place: int
    status: int | None
    printed: str


def side_by_side(
    commands: Sequence[Sequence[str | Path]], at_once: int, limit_s: float, *, cwd: Path | None = None
) -> Iterator[Ended]:
    """Run commands, so many at a time and each for `limit_s` seconds at most, and yield each as it ends. No input.

    Of several that have the GPU one after the other the next ones begin meanwhile: most of a process's time is imports.
    Where we are interrupted, they and all that they have started get SIGTERM, as with `run`.
    """
    waiting = list(enumerate(commands))
    running: list[tuple[int, subprocess.Popen[str], float, IO[str]]] = []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                place, command = waiting.pop(0)
                output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed when its process has ended
                with _interrupts_held():
                    child = _begun(command, cwd, output, output)
                    running.append((place, child, time.monotonic() + limit_s, output))
            for entry in list(running):
                place, child, until, printed = entry
                late = child.poll() is None and time.monotonic() > until
                if child.poll() is None and not late:
                    continue
                if late:
                    _end(child, signal.SIGTERM)
                running.remove(entry)
                printed.seek(0)
                with printed:
                    yield Ended(place, None if late else child.returncode, printed.read())
            time.sleep(_POLL_S)
    finally:
        for _, child, _, printed in running:
            _end(child, signal.SIGTERM)
            printed.close()
