"""The trace in a real viewer in a real browser: speedscope from npm in Debian's Chromium, without a screen.

KPERF_REQUIRE_VIEWER=1, as in CI, makes a missing viewer a failure.
"""

import base64
import html
import json
import re
import subprocess
import tarfile

import matplotlib.image
import numpy as np
import pytest

from kperf.record.store import RECORDED
from kperf.report.chrome import export
from tests.report.browser import npm_package
from tests.trace.analyze.test_analysis import launch

SPEEDSCOPE = "speedscope@1.25.0"
TRACES = [None, *sorted(RECORDED.glob("*/fig11/*.chrome_trace.json"))]
"""One that is made, and those that are recorded."""


@pytest.fixture(scope="module")
def speedscope(tmp_path_factory):
    folder = tmp_path_factory.mktemp("speedscope")
    with tarfile.open(npm_package(SPEEDSCOPE, folder)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "package/dist/release"


WIDTH, HEIGHT = 800, 400
SHOW = """<!doctype html>
<style>body {{ margin: 0 }} iframe {{ border: 0; display: block; width: {width}px; height: {height}px }}</style>
{frames}<script>const look = (seconds) => {{
  const shown = [...document.querySelectorAll("iframe")].map((frame) => frame.contentDocument.body.innerHTML)
  if (seconds < 50 && !shown.every((page) => page.includes("<tr title"))) return setTimeout(look, 1000, seconds + 1)
  const data = document.body.appendChild(document.createElement("textarea"))
  data.textContent = JSON.stringify(shown)
}}
setTimeout(look, 10000, 10)</script>"""
"""A viewer below the other, and at the end what each of them has in its document."""


@pytest.fixture(scope="module")
def viewed(speedscope, tmp_path_factory):
    """Trace -> (speedscope's final document, what it looks like): all of them in one browser, which takes seconds."""
    folder = tmp_path_factory.mktemp("viewed")
    frames = ""
    for number, path in enumerate(TRACES):
        encoded = base64.b64encode(text_of(path).encode()).decode()
        script = folder / f"profile{number}.js"
        script.write_text(f"speedscope.loadFileFromBase64({json.dumps('trace.json')}, {json.dumps(encoded)})")
        frames += f'<iframe src="file://{speedscope}/index.html#localProfilePath={script}"></iframe>'
    (folder / "show.html").write_text(SHOW.format(frames=frames, width=WIDTH, height=HEIGHT))
    chromium = [
        "chromium", "--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
        "--allow-file-access-from-files", f"--user-data-dir={folder}/profile",
        f"--window-size={WIDTH},{HEIGHT * len(TRACES)}", "--virtual-time-budget=60000",
        f"--screenshot={folder}/shot.png", "--dump-dom", f"file://{folder}/show.html",
    ]  # fmt: skip
    page = subprocess.run(chromium, capture_output=True, text=True, check=True, timeout=280).stdout
    documents = json.loads(html.unescape(page.partition("<textarea>")[2].partition("</textarea>")[0]))
    shot = matplotlib.image.imread(folder / "shot.png")[..., :3]
    return dict(zip(TRACES, zip(documents, np.split(shot, len(TRACES)), strict=True), strict=True))


def text_of(path):
    return path.read_text() if path else export(launch(ctas=1), 1700.0, {}).text


def rows(document):
    """What speedscope lists: (name, total microseconds) of each thread that it imported."""
    found = re.findall(r'<tr title="([^"]*)".*?<td[^>]*>([\d.]+)(µs|ms)</td>', document)
    return {name: float(value) * (1000 if unit == "ms" else 1) for name, value, unit in found}


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.parts[-3] + path.name if path else "made")
def test_speedscope_shows_every_warp_group_for_as_long_as_it_lived(viewed, path):
    document, shot = viewed[path]
    shown = rows(document)
    events = [event for event in json.loads(text_of(path))["traceEvents"] if event["ph"] == "X"]
    for pid, tid in {(event["pid"], event["tid"]) for event in events}:
        mine = [event for event in events if (event["pid"], event["tid"]) == (pid, tid)]
        lived = mine[-1]["ts"] + mine[-1]["dur"] - mine[0]["ts"]
        weight = next(value for name, value in shown.items() if f"(pid {pid})" in name and f"(tid {tid})" in name)
        assert weight == pytest.approx(lived, rel=0.01)
    colours = np.ptp(shot, axis=2)
    assert np.mean(colours > 0.1) > 0.05, "no coloured frames on the screen"
