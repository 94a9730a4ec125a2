"""`python -m kperf ...`: thin commands, a module a group of them, and one sentence for what goes wrong."""

from kperf.cli.interrupt import answered


def main() -> None:
    """Run a command: status 2 for a person's mistake, 1 for a failed measurement, one sentence for each."""
    with answered():
        from kperf.cli.commands import run  # typer, rich and pydantic take a moment

        run()
