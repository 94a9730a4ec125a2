"""The code's commit, without which no number can be traced."""

import os
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def git_commit() -> str:
    """The code's commit, with `-dirty` if files differ; KPERF_COMMIT where there is no git (in the image)."""
    if commit := os.environ.get("KPERF_COMMIT"):
        return commit

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        # What measuring itself writes does not make the code another one.
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return f"{commit}-dirty" if dirty else commit
