"""The code's commit, without which no number can be traced."""

import hashlib
import os
import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]


def git_commit() -> str:
    """The code's commit; `-dirty-` and a hash of the difference if files differ; KPERF_COMMIT where there is no git."""
    if commit := os.environ.get("KPERF_COMMIT"):
        return commit

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "HEAD")
        # What measuring itself writes does not make the code another one.
        dirty = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!results")
        difference = git("diff", "HEAD", "--", ".", ":!results") if dirty else ""
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    if not dirty:
        return commit
    # Two uncommitted states are two codes: what one measured is not resumed by the other.
    return f"{commit}-dirty-{hashlib.sha256(difference.encode()).hexdigest()[:8]}"
