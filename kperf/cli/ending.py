"""How a command ends: one sentence for what went wrong, and an exit status."""

import errno
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from typer.exceptions import TyperException

from kperf.console import complain
from kperf.errors import first_line


def end(sentence: str, status: int) -> NoReturn:
    """Say it, and exit with the status."""
    complain(sentence)
    sys.exit(status)


def end_refused(error: OSError) -> NoReturn:
    """What the system refuses and nothing else has caught: which file, why, and what can be done about it."""
    from kperf.record.machine import triton_cache

    reason = error.strerror or str(error)
    full = error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
    unwritten = full or error.errno in {errno.EBADF, errno.EIO}
    file = error.filename or (_open_where_raised(error) if unwritten else None)
    if file is None and unwritten:
        with suppress(OSError, ValueError, AttributeError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())  # the interpreter would try once more
        end(f"standard output cannot be written ({reason}): send it elsewhere, or free some space there", 1)
    if file is None:
        end(reason, 1)
    path = Path(os.fsdecode(file))
    fixes = ["free some space there"] if full else []
    if path.is_relative_to(triton_cache()):
        fixes.append("set TRITON_CACHE_DIR to another folder")
    elif unwritten and path.is_relative_to(os.environ.get("TMPDIR") or "/tmp"):
        fixes.append("set TMPDIR to another folder")
    end(f"{path} cannot be used ({reason})" + (": " + ", or ".join(fixes) if fixes else ""), 1)


def _open_where_raised(error: OSError) -> str | None:
    """An error of writing, as on a full disk, does not name the file: it is the one open in the frame that wrote."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        for value in frame.f_locals.values():
            if hasattr(value, "writable") and isinstance(name := getattr(value, "name", None), str):
                return None if value is sys.stdout else name
    return None


def end_usage(error: TyperException) -> NoReturn:
    """What typer says of a command line, in one sentence; a command without arguments gets its help."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":  # the help was printed as the error was made
        sys.exit(error.exit_code)
    sentence = " ".join(error.format_message().split()).rstrip(".")
    if context and type(error).__name__ == "NoSuchOption" and _runs_a_script(context.command):
        sentence += "; options of the script come after --"
    help_of = f" (`{context.command_path} --help` says more)" if context else ""
    end(f"{sentence[0].lower()}{sentence[1:]}{help_of}", error.exit_code)


def _runs_a_script(command: Any) -> bool:
    return any("[-- ARGUMENTS]" in (parameter.metavar or "") for parameter in command.params)


def failure_of_the_gpu(error: Exception) -> str | None:
    """One sentence for what the GPU or its driver refuses; None for what only a bug raises, as without torch."""
    if "torch" not in sys.modules:
        return None
    import pynvml
    import torch

    from kperf.compat.triton import OutOfResources

    if isinstance(error, RuntimeError) and "Triton Error [CUDA]" in str(error):
        return f"{first_line(error)}: if it comes again, remove ~/.triton/cache"
    kinds = (torch.OutOfMemoryError, torch.AcceleratorError, pynvml.NVMLError, OutOfResources)
    return f"{type(error).__name__}: {first_line(error)}" if isinstance(error, kinds) else None
