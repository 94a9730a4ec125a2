"""The recorded figures are what the recorded runs draw, to the pixel: who changes how they look draws them anew."""

import io
import re
import shutil
import subprocess

import numpy as np
import pytest
from matplotlib.image import imread

from kperf.bench.points import Store
from kperf.console import WholeConsole
from kperf.paper import fig11, fig12
from kperf.plots import style
from kperf.plots import tune as plot_tune
from kperf.plots.style import content
from kperf.record.store import RECORDED
from kperf.trace.analyze.recorded import read_timeline
from kperf.tune import command as tune

FOLDER = RECORDED / "h200"
ROOT = RECORDED.parent


@pytest.fixture(autouse=True)
def _pictures(monkeypatch):
    """Of both files the one that is looked at."""
    monkeypatch.setattr(
        style, "content", lambda figure, suffix, dpi: content(figure, suffix, dpi) if suffix == "png" else b""
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The records without their figures."""
    root = tmp_path_factory.mktemp("results")
    shutil.copytree(FOLDER, root / "h200", ignore=shutil.ignore_patterns("*.png", "*.pdf", "examples"))
    return root


def is_the_recorded(path):
    drawn, recorded = (imread(file) for file in (path, FOLDER / path.name))
    assert drawn.shape == recorded.shape
    assert np.array_equal(drawn, recorded), f"`make figures` draws {path.name} anew"


def test_fig12(results):
    console = WholeConsole(file=io.StringIO())
    _, png = fig12.report(console, Store(results / "h200"), fig12.Mode(), measured=False)
    is_the_recorded(png)


def test_fig11(results):
    names = ("vanilla", "improved")
    timelines = [read_timeline(results / "h200" / "fig11" / f"{name}.timeline.json") for name in names]
    _, (_, png) = fig11.draw(timelines, results / "h200", names, measured=False)
    is_the_recorded(png)


def test_tuning(results):
    _, png = tune.report(WholeConsole(file=io.StringIO()), results / "h200", "recorded", plot_tune.draw)
    is_the_recorded(png)


SHOWN = sorted({
    path
    for document in (ROOT / "README.md", ROOT / "artifact.md", *(ROOT / "docs").glob("*.md"))
    for path in re.findall(r"\((?:\.\./)?(results/[^)]*\.png)\)", document.read_text())
})  # fmt: skip


def test_the_figures_that_documents_show_are_small_and_the_others_are_not_committed():
    listed = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True, check=True)
    drawn = [path for path in listed.stdout.splitlines() if path.endswith((".png", ".pdf"))]
    assert drawn == SHOWN
    assert max((ROOT / path).stat().st_size for path in drawn) < 160_000


def test_what_is_recorded_is_small():
    text = [path for path in FOLDER.rglob("*") if path.suffix in {".jsonl", ".json", ".hatchet"}]
    records = [path for path in text if not path.name.endswith(".chrome_trace.json")]
    assert sum(path.stat().st_size for path in records) < 10_000_000


def test_a_clone_of_the_newest_commit_is_small(tmp_path):
    """Its files, those of git too, of a history of one commit. A disk's blocks and folders are not counted."""
    clone = tmp_path / "clone"
    command = ["git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", str(clone)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    files = [path for path in clone.rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < 33_000_000
