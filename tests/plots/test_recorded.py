"""The recorded figures are what the recorded runs draw, to the pixel: who changes how they look draws them anew."""

import io
import shutil

import numpy as np
import pytest
from matplotlib.image import imread

from kperf.bench.points import Store
from kperf.console import WholeConsole
from kperf.paper import fig12, power
from kperf.plots import fig11 as plot_fig11
from kperf.plots import style
from kperf.plots.style import content
from kperf.record.store import RECORDED
from kperf.trace.analyze.recorded import read_timeline

FOLDER = RECORDED / "h200"


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


@pytest.mark.parametrize("names", [("vanilla", "improved"), ("improved_plus",)])
def test_fig11(results, names):
    timelines = [read_timeline(results / "h200" / "fig11" / f"{name}.timeline.json") for name in names]
    newest = max(timeline.environment.recorded_at for timeline in timelines)
    stamp = f"recorded on {timelines[0].environment.gpu}, {newest[:10]}; {timelines[0].workload}"
    stem = "fig11" if len(names) == 2 else f"fig11_{names[0]}"
    _, png = plot_fig11.draw(timelines, stamp, results / "h200" / stem)
    is_the_recorded(png)


def test_power(results, monkeypatch):
    monkeypatch.setattr("kperf.record.device.why_static", lambda: "there is no GPU")
    power.run(WholeConsole(file=io.StringIO()), results, None, causal=False, seconds=2.0, passes=5)
    is_the_recorded(results / "h200" / "power.png")
