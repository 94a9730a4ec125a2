"""The command line without a process of its own: to import torch and Triton takes seconds each time."""

import contextlib
import io
import os
from dataclasses import dataclass
from unittest.mock import patch

from kperf import cli
from kperf.cli.app import console
from kperf.console import of_standard_output

IN_FORKS = """
import importlib, json, os, sys
from kperf.cli import main
commands, *shared = sys.argv[1:]
for module in shared:
    importlib.import_module(module)
for words, missing in json.loads(commands):
    if (child := os.fork()) == 0:
        sys.modules.update(dict.fromkeys(missing))
        sys.argv = ["kperf", *words.split()]
        try:
            main()
        except SystemExit as ended:  # without the end of an interpreter, which takes seconds to forget what it imported
            sys.stdout.flush()
            os._exit(ended.code or 0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print("END", words, status, os.listdir(), file=sys.stderr, flush=True)
"""
"""A program that runs commands, each in a fork of a process that has imported what they share.

Its arguments: JSON of pairs, the words of a command and the modules that it does not find; then the modules that are
shared. A line follows what a command wrote to standard error: END, the words, the status, what is in the folder.
"""


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
