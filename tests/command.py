"""The command line without a process of its own: to import torch and Triton takes seconds each time."""

import contextlib
import io
import os
from dataclasses import dataclass
from unittest.mock import patch

from kperf import cli
from kperf.cli.app import console
from kperf.console import of_standard_output


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


def kperf(*arguments: object, **settings: str) -> Done:
    """Run `kperf ARGUMENTS` with these settings in the environment, on a machine that shows no GPU and no terminal."""
    said, complained = io.StringIO(), io.StringIO()
    with (
        patch("sys.argv", ["kperf", *map(str, arguments)]),
        patch.dict(os.environ),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(complained),
    ):
        os.environ.pop("COLUMNS", None)  # a worker of the tests has the width of a terminal that is not this command's
        os.environ |= {"CUDA_VISIBLE_DEVICES": ""} | settings
        console.width = of_standard_output().width  # as it is where the command starts, not where tests began
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = ended.code or 0
    return Done(code, said.getvalue(), complained.getvalue())
