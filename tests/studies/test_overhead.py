import io
import json
import re

import pytest
from pydantic import ValidationError

from kperf.console import WholeConsole
from kperf.errors import UsageError
from kperf.paper import claims, fig11
from kperf.paper import overhead as paper
from kperf.plots import overhead as plot
from kperf.record.store import RECORDED, RecordStore
from kperf.studies import fig13, overhead
from kperf.studies.fig13 import FIG13, ChoiceRow
from kperf.studies.overhead import Taken
from kperf.trace.capture.traced import Traced
from kperf.trace.instrument.session import Recording
from tests.conftest import COMMON


@pytest.fixture
def folder(tmp_path):
    """The paper's four kernels and one more, each with the cost that a test gives it."""
    made = tmp_path / "h200"
    for name in (*FIG13, "layer_norm"):
        place = "fig11" if name in ("vanilla", "improved") else "examples"
        (made / place).mkdir(parents=True, exist_ok=True)
        (made / place / f"{name}.timeline.json").write_text(
            (RECORDED / "h200" / place / f"{name}.timeline.json").read_text()
        )
    return made


def set_cost(folder, name, ratio, several=(), joined=False):
    """Of a launch with all records; and of several passes, of which a joined timeline is."""
    (path,) = folder.glob(f"*/{name}.timeline.json")
    found = json.loads(path.read_text())
    original = found["overhead"]["original_ms"]

    def one(ratio):
        overhead = {"original_ms": original, "instrumented_ms": original * ratio, "ratio": ratio}
        return found["passes"][0] | {"overhead": overhead}

    passes = list(map(one, several))
    found["passes"], found["apart"] = [one(ratio)], None
    if joined:
        found["joined"] = {"one_pass": one(ratio), "iteration_pass": 0, "original_cycles": None, "tolerance": 0.02}
        found["passes"] = passes
    elif passes:
        found["apart"] = {"passes": passes, "tolerance": 0.02, "why": ["they differ"]}
    found["overhead"] = found["passes"][-1]["overhead"]
    path.write_text(json.dumps(found))


def test_the_mean_of_the_papers_four_kernels_is_theirs_alone(folder):
    for name, ratio in zip(FIG13, (1.02, 1.04, 1.06, 1.20), strict=True):
        set_cost(folder, name, ratio)
    set_cost(folder, "layer_norm", 3.0)
    found = fig13.summary(folder).numbers
    assert found["fig13 mean"] == pytest.approx(0.08)
    assert found["fig13 worst"] == pytest.approx(0.20)
    said = fig13.sentences(folder, fig13.kernel_costs(folder))
    assert "8.0% on average, 20.0% at most, where the paper has 8.2% and below 15%" in said[0]
    assert "tracing costs 46.4% on average over 5 kernels" in said[1]  # (2 + 4 + 6 + 20 + 200) / 5
    assert "200.0% at most (layer_norm)" in said[1]
    verdicts = {
        one.id: claims.evaluate(one, folder).verdict for one in claims.read_claims() if one.figure == "overhead"
    }
    assert verdicts["fig13-mean"] == "holds"
    assert verdicts["fig13-worst"] == "does not hold"


def test_the_table_of_choices_has_the_words_of_the_picture():
    console = WholeConsole(file=io.StringIO(), width=120)
    console.print(overhead.table([overhead.Cost("matrix products only", 6, 1.02, False)], "vanilla"))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.file.getvalue().splitlines()]
    assert ["MMAs only", "6", "+2.0%", "another"] in rows


def test_several_passes_are_held_to_their_own_goal_by_the_costliest(folder):
    set_cost(folder, "vanilla", 1.5, several=(1.0, 1.02), joined=True)
    set_cost(folder, "improved", 1.4, several=(0.9, 1.05, 1.01))
    costs = {cost.kernel: cost for cost in fig13.kernel_costs(folder)}
    assert (costs["vanilla"].ratio, costs["improved"].ratio) == (pytest.approx(1.5), pytest.approx(1.4))
    assert costs["vanilla"].several_in_words == "2: +0.0% to +2.0%"
    assert costs["improved"].several_in_words == "3: -10.0% to +5.0%"
    said = fig13.sentences(folder, list(costs.values()))
    (dear, apart) = re.search("costs more than 3% in (.*); those of (.*) do not make", said[-1]).groups()
    assert ("improved (5.0%)" in dear, "vanilla (" in dear) == (True, False)
    assert ("improved" in apart.split(", "), "vanilla" in apart) == (True, False)
    (ticks,) = plot.figure(list(costs.values()), {}, "recorded").axes[0].collections
    places = {name: list(costs).index(name) for name in ("vanilla", "improved")}
    assert {(round(x, 6), y) for x, y in ticks.get_offsets() if y in places.values()} == {
        *((x, places["vanilla"]) for x in (0.0, 2.0)),
        *((x, places["improved"]) for x in (-10.0, 5.0, 1.0)),
    }


def test_cycles_of_a_record_follow_from_the_added_time(folder):
    before = next(cost for cost in fig13.kernel_costs(folder) if cost.kernel == "vanilla")
    set_cost(folder, "vanilla", 1 + 2 * (before.ratio - 1))
    after = next(cost for cost in fig13.kernel_costs(folder) if cost.kernel == "vanilla")
    assert after.cycles_a_record == pytest.approx(2 * before.cycles_a_record)
    # 64 blocks follow each other on an SM (8192 on 132, one at a time), so a block has 1/62 of the launch.
    timeline = json.loads((folder / "fig11/vanilla.timeline.json").read_text())
    added = timeline["overhead"]["instrumented_ms"] - timeline["overhead"]["original_ms"]
    by_hand = added * 1e3 * timeline["clock_mhz"] / (8192 / 132) / (timeline["events"]["written"] / 8192 / 3)
    assert after.cycles_a_record == pytest.approx(by_hand, rel=0.05)
    assert after.shared_left == 232_448 - timeline["resources"]["original"]["shared_bytes"]


def taken(choice="device memory", memory="global"):
    traced = Traced('proton.record start "a"\nproton.record end "a"\n', Recording((0, 4), 8, 4096, memory))
    return Taken(choice, traced, True, [1.0, 2.0, 4.0], [1.1, 2.1, 4.8])


def test_a_choice_is_recorded_with_how_it_was_kept_and_shown_before_older_costs(folder):
    made = fig13.row(COMMON, "vanilla", taken())
    assert (made.memory, made.warps, made.pairs, made.bytes_per_warp, made.passes) == ("global", 2, 1, 4096, 1)
    assert made.ratio == pytest.approx(1.1)
    old = [overhead.Cost("as recorded", 3, 1.5, False)]
    for name in ("vanilla", "improved"):
        overhead.write(old, folder / f"fig11/{name}.costs.json")
    with RecordStore(folder, "overhead", fig13.ROWS).writer() as writer:
        writer.append([made])
    found = fig13.choices(folder)
    assert [cost.choice for cost in found["vanilla"]] == ["device memory"]
    assert found["improved"] == old
    with pytest.raises(ValidationError):
        ChoiceRow(**(made.model_dump() | {"plain_ms": []}))


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"choice": "x"}]'])
def test_a_broken_list_of_costs_is_refused(tmp_path, text):
    path = tmp_path / "vanilla.costs.json"
    assert overhead.read(path) == []
    path.write_text(text)
    with pytest.raises(UsageError, match="is no list of costs"):
        overhead.read(path)


def test_every_choice_of_both_schedules_is_measured(monkeypatch):
    monkeypatch.setattr(fig11, "normal_qkv", lambda workload: ())
    monkeypatch.setattr(paper.instrumented, "subject_of", lambda original: original)
    monkeypatch.setattr(fig11, "subject", lambda name: type("TracedOverride", (), {"original": name, "traced": None}))
    monkeypatch.setattr(
        overhead, "take", lambda console, subject, traced, bind, rounds: [taken(), taken("as recorded")]
    )
    rows = list(paper.measure(WholeConsole(file=io.StringIO()), COMMON, rounds=10))
    assert [(row.kernel, row.choice) for row in rows] == [
        (name, choice) for name in fig11.VARIANTS for choice in ("device memory", "as recorded")
    ]


def test_without_a_gpu_what_is_recorded_is_told_and_drawn(folder, no_gpu, console):
    paper.run(console, folder.parent, rounds=10, require_gpu=False)
    text = console.export_text()
    assert "recorded on NVIDIA H200" in text
    assert "Of several passes, a few events each" in text
    assert (folder / "overhead.png").stat().st_size > 10_000
    with pytest.raises(UsageError, match="there is no GPU"):
        paper.run(console, folder.parent, rounds=10, require_gpu=True)
    with pytest.raises(UsageError, match="holds no recorded"):
        paper.run(console, folder / "fig11", rounds=10, require_gpu=False)


def test_the_figure_has_a_bar_a_kernel_and_the_papers_lines(folder):
    costs = fig13.kernel_costs(folder)
    figure = plot.figure(costs, {"vanilla": [overhead.Cost("as recorded", 3, 1.05, False)]}, "recorded")
    left, right = figure.axes
    assert sorted(bar.get_width() for bar in left.patches) == pytest.approx(sorted(100 * (c.ratio - 1) for c in costs))
    assert sorted(line.get_xdata()[0] for line in left.get_lines()) == pytest.approx([8.2, 15])
    assert [bar.get_width() for bar in right.patches if bar.get_width()] == pytest.approx([5])
    figure.canvas.draw()
    numbers, lines = left.texts[: len(costs)], left.texts[len(costs) :]
    assert [text.get_text() for text in numbers] == [f"{100 * (cost.ratio - 1):.1f}" for cost in costs]
    assert [text.xy[1] for text in numbers] == list(range(len(costs)))
    panel = left.get_window_extent()
    assert all(text.get_window_extent().x0 > panel.x1 for text in numbers), "no bar or line beneath them"
    assert [text.get_text() for text in lines] == ["paper's mean: 8.2 %", "paper's worst: 15 %"]
    assert all(text.get_window_extent().y0 > panel.y1 for text in lines)
    mean, worst = (text.get_window_extent() for text in lines)
    assert mean.x1 < worst.x0
    at_mean, at_worst = (left.transData.transform((percent, 0))[0] for percent in (8.2, 15))
    points = 72 / figure.dpi
    assert [(mean.x1 - at_mean) * points, (worst.x0 - at_worst) * points] == pytest.approx([6, -6], abs=0.5)
    assert [(text.y0 - panel.y1) * points for text in (mean, worst)] == pytest.approx([2, 2], abs=0.5)
