"""What shows a page in a real browser: Debian's Chromium, and packages that npm fetches."""

import os
import shutil
import subprocess

import pytest


def without(reason):
    """No browser: skip, or fail where one is required."""
    if os.environ.get("KPERF_REQUIRE_VIEWER"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def npm_package(name, folder):
    """The archive of a package, fetched into `folder`.

    Without npm, or a browser to show it in, there is no test: `without`.
    """
    if not (shutil.which("chromium") and shutil.which("npm")):
        without("needs chromium and npm (apt install chromium npm)")
    packed = subprocess.run(["npm", "pack", name], cwd=folder, capture_output=True, text=True, check=False)
    if packed.returncode:
        without(f"npm could not fetch {name}:\n{packed.stderr}")
    return folder / packed.stdout.split()[-1]
