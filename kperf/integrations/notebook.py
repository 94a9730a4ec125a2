"""`%load_ext kperf` in IPython and Jupyter, and `%%kperf`: run a cell, trace its kernels, show the report inline."""

import argparse
import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError as ShownInOneLine

from kperf.api import Trace, trace
from kperf.errors import MeasurementError, UsageError
from kperf.trace import CTAS, PASSES


class _Options(argparse.ArgumentParser):
    """Of the line `%%kperf ...`."""

    def __init__(self) -> None:
        super().__init__(prog="%%kperf", add_help=False, allow_abbrev=False)
        self.add_argument("kernel", nargs="*", default=["*"])
        self.add_argument("--launch", type=int)
        self.add_argument("--regions", nargs="+", default="*")
        self.add_argument("--check", action="store_true")
        self.add_argument("--memory", type=int, default=1024)
        self.add_argument("--passes", default=PASSES)
        self.add_argument("--ctas", default=CTAS)
        self.add_argument("--out")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"%%kperf: {message}")

    def read(self, line: str) -> dict[str, Any]:
        """What the line says, as `kperf.trace` takes it. Raises `UsageError`."""
        try:
            words = shlex.split(line)
        except ValueError as error:  # a quotation that is not closed
            self.error(str(error))
        return vars(self.parse_args(words))


def load(shell: Any) -> None:
    """Register `%%kperf`."""

    def kperf(line: str, cell: str) -> Trace | None:
        """%%kperf [KERNEL ...] [--launch N] [--regions R] [--check] [--memory MB] [--passes N] [--ctas C] [--out D]."""
        return _run(shell, line, cell)

    shell.register_magic_function(kperf, "cell", "kperf")


def _run(shell: Any, line: str, cell: str) -> Trace | None:
    """Run a cell under `kperf.trace`. What its code raises IPython has shown; nothing is then shown of the trace."""
    raised: BaseException | None = None
    try:
        with trace(**_Options().read(line)) as traced:
            result = shell.run_cell(cell)
            raised = result.error_before_exec or result.error_in_exec
            if raised is not None:
                raise raised
    except (UsageError, MeasurementError) as error:
        if error is not raised:
            raise ShownInOneLine(str(error)) from None
        return None
    except BaseException as error:
        if error is not raised:
            raise
        return None
    return traced
