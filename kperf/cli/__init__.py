"""`python -m kperf ...`: thin commands, a module a group of them, and one sentence for what goes wrong."""

import sys

from kperf.cli.interrupt import answered
from kperf.installation import why_missing


def main() -> None:
    """Run a command: status 2 for a person's mistake, 1 for a failed measurement, one sentence for each."""
    with answered():
        try:
            from kperf.cli.commands import run  # typer, rich and pydantic take a moment
        except ModuleNotFoundError as error:
            sys.stderr.write(f"kperf: {why_missing(str(error.name))}\n")
            raise SystemExit(2) from None

        run()
