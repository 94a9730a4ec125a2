"""Whether processes have ended: one that was killed is there for a moment still."""

import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_S = 200.0


def soon(ended: Callable[[], bool]) -> bool:
    """Whether it becomes true within some seconds."""
    until = time.monotonic() + PATIENCE_S
    while not ended():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def has_ended(process: int) -> bool:
    """Whether it is gone, or nobody has asked yet how it ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
