"""The recorded runs that come with this repository, put into another results folder whole or not at all.

`python -m kperf.record.recorded` does it for a container whose results are empty.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from kperf.console import complain, shell_word
from kperf.errors import UsageError
from kperf.installation import require_checkout
from kperf.record.files import files_below
from kperf.record.store import RECORDED


def damage(results: Path) -> str | None:
    """What is wrong with the first recorded file in `results` that was cut as it was copied; a sentence with the fix.

    That is one which is empty, or the beginning of the recorded one (records may end after any line: those are older).
    """
    damaged = _damaged(results)
    if not damaged:
        return None
    others = f" (and {len(damaged) - 1} more)" if len(damaged) > 1 else ""
    return f"{results / damaged[0]} is empty or cut short{others}: {_fix(results)}"


def _fix(results: Path) -> str:
    if results.resolve() == RECORDED:
        return "`git checkout -- results` restores it"
    return f"`python -m kperf restore --results {shell_word(results)}` puts the recorded ones back"


def _damaged(results: Path) -> list[Path]:
    damaged = []
    for name in files_below(RECORDED):
        path, here = RECORDED / name, results / name
        if not here.is_file() or here.stat().st_size >= path.stat().st_size:
            continue
        content = here.read_bytes()
        whole_lines = path.suffix == ".jsonl" and content.endswith(b"\n")
        if path.read_bytes().startswith(content) and not whole_lines:
            damaged.append(name)
    return damaged


def restore(results: Path) -> list[str]:
    """Put the recorded files into `results` that are missing there, empty or cut short; returns their names.

    All others stay as they are. Everything is copied to temporary names first and renamed last. Raises `UsageError`,
    and leaves what was there, if the folder cannot be written or has too little space, is the recorded one itself or a
    GPU's, or if there is no checkout to copy from.
    """
    require_checkout("what `kperf restore` copies, the recorded runs in results/,")
    if results.resolve().is_relative_to(RECORDED.resolve()):
        raise UsageError(
            f"{results} is where the recorded runs are kept: `git checkout -- results` restores them; name a folder "
            "outside of it for a copy"
        )
    if (results / "environment.json").exists():
        raise UsageError(f"{results} holds the runs of one GPU: name the folder around it, {results.parent}")
    names = _damaged(results) + [name for name in files_below(RECORDED) if not (results / name).exists()]
    try:
        results.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=results, prefix=".seed-") as folder:
            for name in names:
                copy = Path(folder, name)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(RECORDED / name, copy)
            os.sync()  # a network's file system may say only now that it is full
            for name in names:
                (results / name).parent.mkdir(parents=True, exist_ok=True)
                Path(folder, name).replace(results / name)
    except OSError as error:
        need = sum((RECORDED / name).stat().st_size for name in names)
        raise UsageError(
            f"the recorded runs ({need / 1e6:.1f} MB) cannot be put into {results} ({error.strerror}): "
            "give it a larger volume, or one that you can write"
        ) from None
    return [str(name) for name in names]


if __name__ == "__main__":
    folder = Path(os.environ["KPERF_RESULTS"])
    try:
        if not files_below(folder):
            restore(folder)
    except UsageError as error:
        complain(str(error))
        sys.exit(2)
    if sentence := damage(folder):
        complain(sentence)
