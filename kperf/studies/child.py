"""A process that a command starts to measure in, and that never outlives it."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

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
    with started(command, cwd=cwd, output=output, errors=errors, ending=ending) as child:
        out, err = child.communicate(timeout=limit_s)
    return subprocess.CompletedProcess(command, child.returncode, out, err)


@contextmanager
def started(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    output: int | None = subprocess.PIPE,
    errors: int | None = subprocess.PIPE,
    ending: signal.Signals = signal.SIGTERM,
) -> Iterator[subprocess.Popen[str]]:
    """The process itself, as of `run`: one that has not ended when this is left, ends with all that it has started."""
    with subprocess.Popen(
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        text=True,
        process_group=0,
    ) as child:
        try:
            yield child
        except BaseException:
            _end(child, ending)
            raise
        if child.poll() is None:
            _end(child, ending)


def _end(child: subprocess.Popen[str], ending: signal.Signals) -> None:
    for number in (ending, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_GRACE_S)
