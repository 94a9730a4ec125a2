"""`python -m kperf ...`: thin commands, a module a group of them, and one sentence for what goes wrong."""

import atexit
import gc
import sys

from kperf.cli.interrupt import answered
from kperf.installation import why_missing


def main() -> None:
    """Run a command: status 2 for a person's mistake, 1 for a failed measurement, one sentence for each."""
    atexit.register(_leave_to_the_system)  # registered first, it runs last
    with answered():
        try:
            from kperf.cli.commands import run  # typer, rich and pydantic take a moment
        except ModuleNotFoundError as error:
            sys.stderr.write(f"kperf: {why_missing(str(error.name))}\n")
            raise SystemExit(2) from None

        run()


def _leave_to_the_system() -> None:
    """Look for no garbage at the end: in all of torch that took a fifth of a short command's time.

    What was imported goes with the process. A Triton that prints what is left of it gets its garbage collected.
    """
    compat = sys.modules.get("kperf.compat.triton")
    if compat is None or not compat.PRINTS_LEAKS:
        gc.freeze()
