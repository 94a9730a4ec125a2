"""The trace in a real viewer in a real browser: speedscope from npm in Debian's Chromium, without a screen.

KPERF_REQUIRE_VIEWER=1, as in CI, makes a missing viewer a failure.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import tarfile

import matplotlib.image
import numpy as np
import pytest

from kperf.record.store import RECORDED
from kperf.trace.reading.read import export

from .test_analysis import launch

SPEEDSCOPE = "speedscope@1.25.0"
RECORDED_TRACES = sorted(RECORDED.glob("*/fig11/*.chrome_trace.json"))


def without(reason):
    """No viewer: skip, or fail where one is required."""
    if os.environ.get("KPERF_REQUIRE_VIEWER"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def speedscope(tmp_path_factory):
    if not (shutil.which("chromium") and shutil.which("npm")):
        without("needs chromium and npm (apt install chromium npm)")
    folder = tmp_path_factory.mktemp("speedscope")
    packed = subprocess.run(["npm", "pack", SPEEDSCOPE], cwd=folder, capture_output=True, text=True, check=False)
    if packed.returncode:
        without(f"npm could not fetch {SPEEDSCOPE}:\n{packed.stderr}")
    with tarfile.open(folder / packed.stdout.split()[-1]) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package/dist/release"


def view(speedscope, folder, name, text):
    """The page's final document, and a screenshot's path."""
    encoded = base64.b64encode(text.encode()).decode()
    script = folder / "profile.js"
    script.write_text(f"speedscope.loadFileFromBase64({json.dumps(name)}, {json.dumps(encoded)})")
    shot = folder / "shot.png"
    chromium = [
        "chromium", "--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
        "--allow-file-access-from-files", f"--user-data-dir={folder}/profile", "--window-size=1600,700",
        "--virtual-time-budget=20000", f"--screenshot={shot}", "--dump-dom",
        f"file://{speedscope}/index.html#localProfilePath={script}",
    ]  # fmt: skip
    page = subprocess.run(chromium, capture_output=True, text=True, check=True, timeout=120).stdout
    return page, shot


def rows(page):
    """What speedscope lists: (name, total microseconds) of each thread that it imported."""
    found = re.findall(r'<tr title="([^"]*)".*?<td[^>]*>([\d.]+)(µs|ms)</td>', page)
    return {name: float(value) * (1000 if unit == "ms" else 1) for name, value, unit in found}


@pytest.mark.parametrize(
    "path", [None, *RECORDED_TRACES], ids=lambda path: path.parts[-3] + path.name if path else "made"
)
def test_speedscope_shows_every_warp_group_for_as_long_as_it_lived(speedscope, tmp_path, path):
    text = path.read_text() if path else export(launch(blocks=1), 1700.0, {}).text
    page, shot = view(speedscope, tmp_path, "trace.json", text)
    shown = rows(page)
    events = [event for event in json.loads(text)["traceEvents"] if event["ph"] == "X"]
    for pid, tid in {(event["pid"], event["tid"]) for event in events}:
        mine = [event for event in events if (event["pid"], event["tid"]) == (pid, tid)]
        lived = mine[-1]["ts"] + mine[-1]["dur"] - mine[0]["ts"]
        weight = next(value for name, value in shown.items() if f"(pid {pid})" in name and f"(tid {tid})" in name)
        assert weight == pytest.approx(lived, rel=0.01)
    colours = np.ptp(matplotlib.image.imread(shot)[..., :3], axis=2)
    assert np.mean(colours > 0.1) > 0.05, "no coloured frames on the screen"
