import io
import math
import re
import shutil
from pathlib import Path

import pytest

from kperf.bench.points import Store
from kperf.console import WholeConsole
from kperf.errors import UsageError
from kperf.paper import claims, fig12
from kperf.paper.claims import Outcome, cells, evaluate, markdown, read_claims, report
from kperf.record.store import RECORDED
from kperf.trace.analyze.recorded import read_timeline
from tests.command import kperf
from tests.conftest import environment, point
from tests.paper.test_fig12 import committed

CLAIMS = {claim.id: claim for claim in read_claims()}
SPEEDUP = CLAIMS["improved-over-vanilla"]
ROOT = Path(__file__).resolve().parents[2]


TOLERANCE = SPEEDUP.paper * SPEEDUP.tolerance
OURS = CLAIMS["improved-plus-over-fa3"]
BOUND = CLAIMS["tracing-overhead-vanilla"]


@pytest.mark.parametrize(
    ("claim", "value", "interval", "verdict"),
    [
        (SPEEDUP, SPEEDUP.paper, (1.2, 1.3), "agrees"),
        (SPEEDUP, SPEEDUP.paper - TOLERANCE + 1e-6, (1.1, 1.3), "agrees"),
        (SPEEDUP, SPEEDUP.paper + TOLERANCE - 1e-6, (1.1, 1.3), "agrees"),
        (SPEEDUP, SPEEDUP.paper + TOLERANCE + 1e-6, (1.2, 1.3), "same direction, larger"),
        (SPEEDUP, SPEEDUP.paper * 2, (2.4, 2.5), "same direction, larger"),
        (SPEEDUP, 1.10, (1.05, 1.12), "same direction, smaller"),
        (SPEEDUP, 1.02, (0.99, 1.04), "no difference"),
        (SPEEDUP, 0.9, (0.8, 0.95), "opposite direction"),
        (SPEEDUP, None, None, "not recorded"),
        (OURS, OURS.yardstick + 0.02, (OURS.yardstick + 0.01, 2.0), "above"),
        (OURS, OURS.yardstick, (OURS.yardstick - 0.01, OURS.yardstick + 0.01), "equal"),
        (OURS, 1.02, (1.01, OURS.yardstick - 0.01), "below"),
        (BOUND, BOUND.at_most, None, "holds"),
        (BOUND, BOUND.at_most + 0.001, None, "does not hold"),
        (BOUND, 1.160, None, "does not hold"),
        (BOUND, 1.0, None, "holds"),
    ],
)
def test_verdicts(claim, value, interval, verdict):
    assert Outcome(claim, value, interval).verdict == verdict


def test_a_bound_is_the_papers_and_nothing_is_added_to_it():
    """8.2 % on average over its four kernels, less than 15 % for each."""
    assert {claim.at_most for claim in CLAIMS.values() if claim.kind == "timeline"} == {1.15}
    assert (CLAIMS["fig13-mean"].at_most, CLAIMS["fig13-worst"].at_most) == (0.082, 0.15)


def test_agreement_is_not_said_of_our_kernel_and_the_papers_number_for_its_own():
    assert {claim.ours for claim in CLAIMS.values() if claim.kind == "speedup" and claim.paper} == {"improved"}


def write(writer, times, run, workload, sweep, **changes):
    """One run of the committed overrides on one workload: times in units of what 600 TFLOPS take."""
    known = writer.record_environment(environment())
    writer.append(
        [
            point(
                key,
                time * workload.flops / 6e11,
                run,
                workload,
                sweep,
                **({"environment": known, "override_sha256": committed(key, workload)} | changes),
            )
            for key, time in times.items()
        ]
    )


def test_a_claim_is_computed_from_the_whole_figure_that_is_recorded(tmp_path):
    store = Store(tmp_path)
    ratios = []
    with store.writer() as writer:
        for n, (sweep, workload) in enumerate(fig12.grid(fig12.Mode())):
            begun = any(other.seq_len >= 1024 for _, other in fig12.grid(fig12.Mode())[:n])
            assert evaluate(SPEEDUP, tmp_path).verdict == ("not recorded whole" if begun else "not recorded")
            ratio = 9.0 if workload.seq_len < 1024 else 1.1 + n / 100  # the claim is about 1024 and more
            ratios += [ratio] if workload.seq_len >= 1024 else []
            times = dict.fromkeys(fig12.Mode().keys, 1.0) | {"vanilla": ratio}
            write(writer, times, str(n), workload, sweep)
        # A later run of two bars alone is not the figure's.
        for n, (sweep, workload) in enumerate(fig12.grid(fig12.Mode())):
            times = {"improved": 1.0, "vanilla": 3.0}
            write(writer, times, f"x{n}", workload, sweep)
    outcome = evaluate(SPEEDUP, tmp_path)
    assert outcome.value == pytest.approx(math.prod(ratios) ** (1 / len(ratios)))
    assert outcome.interval[0] <= outcome.value <= outcome.interval[1]


@pytest.mark.parametrize(
    ("value", "interval", "verdict"),
    [
        (1.2, (1.1, 1.3), "faster"),
        (1.001, (0.99, 1.01), "no difference"),
        (0.9, (0.8, 0.95), "slower"),
        (None, None, "not recorded"),
    ],
)
def test_what_the_paper_does_not_claim_is_reported(value, interval, verdict):
    outcome = Outcome(CLAIMS["improved-plus-over-fa3-d64"], value, interval)
    assert outcome.verdict == verdict
    assert cells(outcome)[:2] == ("-", "-")


def test_another_head_dim_dtype_or_layout_is_taken_from_its_own_runs(tmp_path):
    store = Store(tmp_path)
    ids = {
        "improved-plus-over-cudnn-d64": (fig12.Mode(head_dim=64), 1.25),
        "improved-plus-over-cudnn-fp16-causal": (fig12.Mode(True, dtype="float16"), 1.5),
        "improved-plus-over-fa3": (fig12.Mode(), 2.0),
        "fa3-views": (fig12.Mode(), 1.0),
    }
    with store.writer() as writer:
        for id_, (mode, ratio) in ids.items():
            claim = CLAIMS[id_]
            keys = (claim.ours, claim.baseline) if claim.ours == "fa3_views" else mode.keys
            for n, (sweep, workload) in enumerate(fig12.grid(mode, claim.sweeps)):
                times = dict.fromkeys(keys, 1.0) | {claim.baseline: ratio}
                write(writer, times, f"{id_}-{n}", workload, sweep)
    for id_, (_, ratio) in ids.items():
        assert evaluate(CLAIMS[id_], tmp_path).value == pytest.approx(ratio), id_
    assert evaluate(CLAIMS["improved-plus-over-cudnn-fp16"], tmp_path).value is None


def whole_figure(folder, **changes):
    with Store(folder).writer() as writer:
        for n, (sweep, workload) in enumerate(fig12.grid(fig12.Mode())):
            write(writer, dict.fromkeys(fig12.Mode().keys, 1.0), str(n), workload, sweep, **changes)


def test_what_was_recorded_of_other_overrides_is_not_judged(tmp_path):
    whole_figure(tmp_path / "now")
    assert evaluate(SPEEDUP, tmp_path / "now").verdict == "no difference"
    whole_figure(tmp_path / "other", override_sha256="0" * 64)
    assert evaluate(SPEEDUP, tmp_path / "other").verdict == "of another override"
    assert evaluate(CLAIMS["tracing-overhead-vanilla"], RECORDED / "h200").verdict == "holds"


def test_records_without_their_environment_are_refused_as_by_the_figure(tmp_path):
    whole_figure(tmp_path)
    Store(tmp_path).environments_path.unlink()
    with pytest.raises(UsageError, match="lacks the environment"):
        evaluate(SPEEDUP, tmp_path)


def test_a_timeline_of_another_override_is_not_judged_and_a_broken_one_is_refused(tmp_path):
    assert evaluate(BOUND, tmp_path).verdict == "not recorded"
    path = tmp_path / "fig11/vanilla.timeline.json"
    path.parent.mkdir()
    recorded = read_timeline(RECORDED / "h200/fig11/vanilla.timeline.json")
    for sha256, verdict in ((recorded.ttgir_sha256, "holds"), ("0" * 64, "of another override")):
        path.write_text(recorded.model_copy(update={"ttgir_sha256": sha256}).model_dump_json())
        assert evaluate(BOUND, tmp_path).verdict == verdict
    path.write_text("{}")
    with pytest.raises(UsageError, match="is not a timeline"):
        evaluate(BOUND, tmp_path)


def test_a_claim_of_a_timeline_is_about_the_very_entry_that_it_names():
    recorded = read_timeline(RECORDED / "h200/fig11/vanilla.timeline.json")
    cycles = [region.cycles.median for region in recorded.regions]
    assert len(set(cycles[:4])) > 2
    for place, expected in enumerate(cycles):
        claim = BOUND.model_copy(update={"field": f"regions.{place}.cycles.median"})
        assert evaluate(claim, RECORDED / "h200").value == expected
    for field in (f"regions.{len(cycles)}.cycles.median", "regions.first.cycles", "regions", "nosuch", "kernel"):
        with pytest.raises(UsageError, match=f"vanilla.timeline.json has no number {field}"):
            evaluate(BOUND.model_copy(update={"field": field}), RECORDED / "h200")


@pytest.mark.parametrize("content", ["", "claim = 3", "[[claim]]\nid = 'x'\n", "not toml ["])
def test_a_broken_file_is_one_sentence(tmp_path, content):
    path = tmp_path / "claims.toml"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not a list of claims"):
        read_claims(path)


@pytest.mark.parametrize(("page", "origin"), [("artifact.md", "paper"), ("docs/goals.md", "ours")])
def test_the_pages_hold_the_numbers_of_the_recorded_runs(page, origin):
    text = (ROOT / page).read_text()
    written = text.split("<!-- claims -->")[1].split("<!-- /claims -->")[0].strip()
    assert written == markdown(RECORDED, origin)


def test_each_claim_stands_on_one_page():
    tables = [markdown(RECORDED, origin) for origin in ("paper", "ours")]
    for claim in read_claims():
        assert [claim.statement in table for table in tables] == [claim.origin == "paper", claim.origin == "ours"]


def test_a_claim_of_workloads_on_several_cards_says_so(tmp_path):
    store = Store(tmp_path)
    mode = fig12.Mode()
    claim = next(c for c in read_claims() if (getattr(c, "ours", ""), c.command) == ("improved_plus", "make fig12"))
    with store.writer() as writer:
        known = [writer.record_environment(environment(gpu_uuid=f"card{n}")) for n in range(2)]
        for n, (sweep, workload) in enumerate(fig12.grid(mode)):
            times = {claim.ours: 1.0, claim.baseline: 1.5}
            writer.append(
                [
                    point(key, workload.flops / 6e11 * time, f"r{n}", workload, sweep, environment=known[n // 10])
                    for key, time in times.items()
                ]
            )
    outcome = evaluate(claim, tmp_path)
    assert outcome.value == pytest.approx(1.5)
    assert outcome.cards.startswith("on 2 cards, each workload whole on one: card0 ")
    console = WholeConsole(width=300, file=io.StringIO(), record=True)
    (tmp_path / "results").mkdir()
    tmp_path.joinpath("results", "h200").symlink_to(tmp_path, target_is_directory=True)
    report(console, tmp_path / "results")
    assert f"{claim.statement}: on 2 cards" in console.export_text()


def test_the_command_prints_each_claim_with_the_numbers_of_each_gpu(tmp_path):
    (tmp_path / "h200").symlink_to(RECORDED / "h200")
    with_fig11_alone(tmp_path / "a100")
    shown = kperf("claims", "--results", tmp_path, COLUMNS="400").stdout
    for gpu in ("h200", "a100"):
        printed = shown.partition(f"the paper's claims and {gpu}'s numbers")[2].partition("the paper's claims and")[0]
        of_the_paper, _, our_goals = printed.partition(f"our goals and {gpu}'s numbers")
        missing = {"the paper's claims": 0, "our goals": 0}
        for claim in read_claims():
            outcome = evaluate(claim, tmp_path / gpu)
            row = [claim.statement, *cells(outcome), outcome.verdict] if outcome.value is not None else []
            lines = (of_the_paper if claim.origin == "paper" else our_goals).splitlines()
            assert [cell.strip() for line in lines for cell in line.split("│")[1:-1] if claim.statement in line] == row
            missing["the paper's claims" if claim.origin == "paper" else "our goals"] += outcome.value is None
        for whose, number in missing.items():
            line = f"not recorded on {gpu}, or not whole: {number} more of {whose}"
            assert (line in printed) == (number > 0)


def with_fig11_alone(folder):
    """A GPU's folder of which Fig. 12 was begun and Fig. 11 is whole."""
    folder.mkdir()
    (folder / "fig12.jsonl").touch()
    (folder / "fig11").symlink_to(RECORDED / "h200/fig11")


def test_the_table_has_two_columns_a_gpu_of_which_one_of_its_claims_is_recorded(tmp_path):
    (tmp_path / "h200").symlink_to(RECORDED / "h200")
    alone = markdown(tmp_path, "paper")
    with_fig11_alone(tmp_path / "a100")
    (tmp_path / "l4").mkdir()
    (tmp_path / "l4" / "fig12.jsonl").touch()
    head, line, *rows = [row.split(" | ") for row in markdown(tmp_path, "paper").splitlines()]
    assert head[6:] == ["a100 (95 % interval)", "verdict", "h200 (95 % interval)", "verdict", "output |"]
    assert line[0].count("---") == len(head)
    of_fig12, of_fig11 = (row for row in rows if "over FA3" in row[0] or "slows the vanilla" in row[0])
    assert of_fig12[6:8] == ["-", "not recorded"]
    assert of_fig12[8].startswith("0.")
    assert of_fig11[6:8] == of_fig11[8:10]
    assert [" | ".join([*row[:6], *row[8:]]) for row in rows] == alone.splitlines()[2:]


@pytest.mark.parametrize("name", ["regions-of-known-cycles", "fig13-mean", "tune-regret"])
def test_a_claim_of_which_a_part_is_recorded_says_so(tmp_path, name):
    claim = CLAIMS[name]
    assert evaluate(claim, tmp_path).verdict == "not recorded"
    (tmp_path / "examples").mkdir()
    for file in ("accuracy.jsonl", "tune.jsonl"):
        line = (RECORDED / "h200" / file).read_text().splitlines(keepends=True)[0]
        (tmp_path / file).write_text(line)
    shutil.copy(RECORDED / "h200/examples/gemm_2_stages.timeline.json", tmp_path / "examples")
    assert evaluate(claim, tmp_path).verdict == "not recorded whole"


def test_the_table_of_a_gpu_of_which_no_claim_is_recorded_has_no_column_of_it(tmp_path):
    (tmp_path / "l4").mkdir()
    (tmp_path / "l4" / "fig12.jsonl").touch()
    head, _, *rows = [row.split(" | ") for row in markdown(tmp_path, "paper").splitlines()]
    assert head[5:] == ["tolerance", "output |"]
    assert len(rows) == sum(claim.origin == "paper" for claim in read_claims())
    assert {len(row) for row in rows} == {len(head)}


@pytest.mark.parametrize(
    ("gpu", "folders"),
    [
        ("NVIDIA H100 80GB HBM3", ["h100-80gb-hbm3"]),
        ("NVIDIA L4", ["h100-80gb-hbm3", "h200"]),
        (None, ["h100-80gb-hbm3", "h200"]),
    ],
    ids=["recorded", "not recorded", "none"],
)
def test_claims_are_of_this_machines_gpu_if_something_is_recorded_of_it(tmp_path, monkeypatch, gpu, folders):
    (tmp_path / "h200").symlink_to(RECORDED / "h200")
    older = tmp_path / "h100-80gb-hbm3"
    older.mkdir()
    (older / "environment.json").write_text("{}")
    (older / "fig12.jsonl").symlink_to(RECORDED / "h200/fig12.jsonl")
    monkeypatch.setattr(claims.device, "why_static", lambda: None if gpu else "there is no GPU")
    monkeypatch.setattr(claims.device, "gpu_name", lambda: gpu)
    monkeypatch.setattr(claims, "read_claims", list)
    console = WholeConsole(record=True, width=200, file=io.StringIO())
    assert report(console, tmp_path) == []
    assert sorted(re.findall(r"the paper's claims and (\S+)'s numbers", console.export_text())) == folders
