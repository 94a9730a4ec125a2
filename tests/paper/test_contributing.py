"""CONTRIBUTING.md is followed to the letter in a copy of the project: a bar and a variant come, are drawn, and go."""

import io
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kperf.attention.implementations import FIG12, IMPLEMENTATIONS
from kperf.bench.points import Store
from kperf.console import WholeConsole
from kperf.paper import claims, fig12
from kperf.plots import fig12 as plot
from kperf.record.store import RECORDED

pytestmark = pytest.mark.kernels

ROOT = Path(__file__).resolve().parents[2]

GENERATE_LOOK_MEASURE_LOOK = """
import json, runpy, sys
from pathlib import Path
tests, *sys.argv = sys.argv[1:]
try:  # as `python -m` does; torch and Triton are imported once for all of it
    runpy.run_module(sys.argv[0], run_name="__main__")
except SystemExit as ended:
    assert not ended.code, ended.code
sys.path.append(tests)  # the program is the copy's
from tests.paper.test_contributing import look, measure
results = Path("results/h200")
print(json.dumps([look(results), measure(results), look(results)]))
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stranger")
    unwanted = shutil.ignore_patterns("__pycache__", "*.pdf", "*.png")
    for name in ("kperf", "plots", "ttgir", "results"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True, ignore=unwanted)
    for name in ("claims.toml", "bench_fa.sh"):
        shutil.copy(ROOT / name, folder)
    return folder


def run(folder, *command, status=0, given=""):
    done = subprocess.run(
        command, cwd=folder, input=given, capture_output=True, text=True, check=False,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(folder)},
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout + done.stderr


def look(folder):
    """What the page and the figure say, what the figure holds, and the verdicts of the claims."""
    console = WholeConsole(width=300, file=io.StringIO(), record=True)
    with pytest.MonkeyPatch.context() as patched:
        drawn = []
        patched.setattr(plot, "save", lambda figure, _: drawn.append(figure) or [])
        patched.setattr(plot, "write_atomically", lambda *_: None)
        fig12.report(console, Store(folder), fig12.Mode(), measured=False)
    (figure,) = drawn
    heights = [[list(line.get_ydata()) for line in axis.get_lines()] for axis in figure.axes]
    legend = [text.get_text() for text in figure.axes[0].texts]
    below = " ".join(figure._supxlabel.get_text().split())
    verdicts = {one.claim.id: one.verdict for one in claims.evaluate_all(claims.read_claims(), folder)}
    return [console.export_text(), below, legend, heights, verdicts]


def measure(folder):
    """Whole runs of what is recorded there, with what is new in them: as long as FA3 takes."""
    store = Store(folder)
    with store.writer() as writer:
        for key, run in fig12.figure_runs(store, fig12.Mode()).items():
            name = secrets.token_hex(6)
            added = []
            for new in set(FIG12) - run.keys():
                override = IMPLEMENTATIONS[new].override(key[1])
                made = {"implementation": new, "override_sha256": override and override.sha256}
                added.append(run["fa3"].model_copy(update=made))
            writer.append([p.model_copy(update={"run": name}) for p in (*run.values(), *added)])


def files(folder):
    """All that is there but what Python compiled."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


@pytest.mark.long
def test_a_bar_and_a_variant_are_added_as_contributing_md_says_drawn_and_taken_away(copy):
    page = (ROOT / "CONTRIBUTING.md").read_text()
    patches = re.findall(r"```diff\n(.*?)```", page, re.DOTALL)
    assert len(patches) == 2
    (generate,) = re.findall(r"^    \.venv/bin/python -m (kperf ttgir \w+)", page, re.MULTILINE)
    *_, legend, heights, verdicts = look(RECORDED / "h200")
    recorded = (copy / "results/h200/fig12.jsonl").read_bytes()
    before = files(copy)

    for patch in patches:
        run(copy, "git", "apply", "--unsafe-paths", "-", given=patch)
    said = run(copy, sys.executable, "-c", GENERATE_LOOK_MEASURE_LOOK, str(ROOT), *generate.split())
    assert "one_stage/d128_bf16_causal.ttgir compiles to sm_90a in place of attn_fwd: in_order" in said
    assert len(list((copy / "ttgir/one_stage/traced").glob("*.ttgir"))) == 2
    assert "|one_stage|" in run(copy, "bash", "bench_fa.sh", status=2)
    recorded_only, _, with_new = json.loads(said.splitlines()[-1])

    text, below, *shown = recorded_only
    missing = "no line for Efficient, Triton-FA3, one stage: not in the record, `make fig12` measures it"
    assert missing in text
    assert missing in below
    assert shown == [legend, heights, verdicts]  # all that was there is there, and no claim went dark

    text, below, new_legend, _, new_verdicts = with_new
    assert "no line" not in text + below
    assert set(new_legend) == {*legend, "Efficient", "Triton-FA3, one stage"}
    for ratio in ("efficient/fa2", "efficient/fa3", "one_stage/vanilla", "one_stage/fa3"):
        assert ratio in text
    assert new_verdicts == verdicts

    for patch in patches:
        run(copy, "git", "apply", "--unsafe-paths", "-R", "-", given=patch)
    shutil.rmtree(copy / "ttgir/one_stage")
    (copy / "results/h200/fig12.jsonl").write_bytes(recorded)
    assert files(copy) == before
