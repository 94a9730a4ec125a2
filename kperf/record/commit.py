"""The code's commit, without which no number can be traced."""

import hashlib
import os
import subprocess
from pathlib import Path

from kperf.installation import PACKAGE

_OWN = "kperf/__init__.py"
_SOURCES = ("kperf", "plots", "ttgir", ":(glob)*.py", ":(glob)*.sh", ":(glob)*.toml")
"""Where a file that git does not know yet can change what is measured."""


def git_commit(root: Path = PACKAGE.parent) -> str:
    """The code's commit; `-dirty-` and a hash of the difference if files differ or sources are new to git.

    KPERF_COMMIT where there is no git, else `unknown`: also where git knows the folder and not the code in it, as that
    of an environment with the installed package inside of somebody's checkout.
    """
    if commit := os.environ.get("KPERF_COMMIT"):
        return commit

    def git(*arguments: str) -> bytes:
        return subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=True).stdout

    try:
        git("ls-files", "--error-unmatch", _OWN)
        commit = git("rev-parse", "HEAD").decode().strip()
        # What measuring itself writes does not make the code another one.
        difference = git("diff", "--binary", "HEAD", "--", ".", ":!results")
        new = [name for name in git("ls-files", "--others", "--exclude-standard", "-z", *_SOURCES).split(b"\0") if name]
        contents = [name + b"\0" + Path(root, os.fsdecode(name)).read_bytes() for name in new]
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    if not difference and not new:
        return commit
    # Two uncommitted states are two codes: what one measured is not resumed by the other.
    state = hashlib.sha256(b"\0".join([difference, *contents])).hexdigest()
    return f"{commit}-dirty-{state[:8]}"
