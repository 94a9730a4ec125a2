import io
import json
import math
import re
import shutil
from pathlib import Path

import pytest

from kperf.bench.points import Store
from kperf.console import WholeConsole
from kperf.errors import UsageError
from kperf.paper import claims, fig12
from kperf.paper.claims import Outcome, evaluate, expected, markdown, numbered, ours, read_claims, report
from kperf.record.machine import Gpu
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
    assert expected(outcome.claim) == "no goal"


@pytest.mark.parametrize(
    ("id_", "in_words"),
    [
        ("improved-over-vanilla", "1.241 x +/- 3 %"),
        ("improved-plus-over-fa3", "1.076 x, the paper's value for its kernel improved, no mask"),
        ("tracing-overhead-vanilla", "at most 15 %"),
        ("improved-predicted-from-vanilla", "at most 2 %"),
        ("fig13-mean", "at most 8.2 %"),
        ("cycles-a-record", "at most 33 cycles"),
        ("ncu-above-1000x", "at least 1,000 x"),
        ("tune-vendor", "at least 0.95 x"),
    ],
)
def test_what_is_expected_has_its_unit(id_, in_words):
    assert expected(CLAIMS[id_]) == in_words


@pytest.mark.parametrize(
    ("id_", "value", "interval", "in_words"),
    [
        ("improved-over-vanilla", 1.17512, (1.1649, 1.18501), "1.175 x (1.165 to 1.185 x)"),
        ("improved-over-fa3", 0.94, (0.9, 1.0), "0.940 x (0.900 to 1.000 x)"),
        ("tracing-overhead-vanilla", 1.0564, None, "5.6 %"),
        ("tracing-overhead-improved", 0.99, None, "-1.0 %"),
        ("fig13-mean", 0.0434, None, "4.3 %"),
        ("cycles-a-record", 22.993, None, "23.0 cycles"),
        ("ncu-above-1000x", 1793.418, None, "1,793 x"),
        ("ncu-above-1000x", 12345.6, None, "12,346 x"),
        ("proton-sampling-20x", 54.412, None, "54.41 x"),
    ],
)
def test_our_value_has_its_unit_and_the_digits_that_count(id_, value, interval, in_words):
    assert ours(Outcome(CLAIMS[id_], value, interval)) == in_words


def test_claims_of_one_command_need_the_same_time_and_hardware():
    of_command = {claim.command: (claim.minutes, claim.hardware) for claim in CLAIMS.values()}
    assert {claim.command: (claim.minutes, claim.hardware) for claim in reversed(CLAIMS.values())} == of_command


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
    for place, median in enumerate(cycles):
        claim = BOUND.model_copy(update={"field": f"regions.{place}.cycles.median"})
        assert evaluate(claim, RECORDED / "h200").value == median
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
    assert evaluate(claim, tmp_path).value == pytest.approx(1.5)
    (tmp_path / "results").mkdir()
    tmp_path.joinpath("results", "h200").symlink_to(tmp_path, target_is_directory=True)
    assert printed(tmp_path / "results")[claim.statement][-1] == "2026-01-02, cards card0 and card1"


def printed(results):
    """Statement of a claim -> the cells of its row in `make claims`."""
    console = WholeConsole(width=400, file=io.StringIO(), record=True)
    report(console, results)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in console.export_text().splitlines()]
    return {row[0].partition(": ")[2]: row for row in rows if row}


@pytest.mark.parametrize(
    ("id_", "files"),
    [
        ("tracing-overhead-improved", ["fig11/improved.timeline.json"]),
        ("improved-predicted-from-vanilla", ["fig11/vanilla.timeline.json", "fig11/improved.timeline.json"]),
        ("fig13-mean", ["fig11/improved.timeline.json", "examples/gemm_2_stages.timeline.json"]),
        ("graph-model", ["fig11/improved.timeline.json", "examples/gemm_2_stages.timeline.json"]),
        ("improved-over-fa3", ["fig12.jsonl"]),
        ("inputs-least-full", ["fig12_inputs.jsonl"]),
        ("regions-of-known-cycles", ["accuracy.jsonl"]),
        ("ncu-above-1000x", ["lines.jsonl"]),
        ("timers-agree", ["timers.jsonl"]),
        ("inductor-bytes", ["inductor.jsonl"]),
        ("tune-regret", ["tune.jsonl"]),
    ],
)
def test_a_value_has_the_day_and_the_card_of_its_records(id_, files):
    folder = RECORDED / "h200"
    known = json.loads((folder / "environment.json").read_text())
    made = set()
    for file in files:
        *_, last = (folder / file).read_text().splitlines()
        record = json.loads(last if file.endswith("jsonl") else (folder / file).read_text())
        record = record.get("measured", record)
        where = record["environment"]
        where = where if isinstance(where, dict) else known[where]
        instant = record.get("recorded_at") or record.get("points", [where])[0]["recorded_at"]
        made.add((where["gpu_uuid"], instant[:10]))
    provenance = evaluate(CLAIMS[id_], folder).provenance
    assert (provenance.cards, provenance.days) == tuple(map(set, zip(*made, strict=True)))
    assert provenance.gpus == {"NVIDIA H200"}


def test_a_value_of_two_timelines_has_both_their_cards(tmp_path):
    folder = tmp_path / "h200"
    (folder / "fig11").mkdir(parents=True)
    (folder / "fig12.jsonl").touch()
    for variant, card in (("vanilla", "1111aaaa-1"), ("improved", "2222bbbb-2")):
        timeline = read_timeline(RECORDED / f"h200/fig11/{variant}.timeline.json")
        moved = timeline.model_copy(update={"environment": environment(gpu_uuid=card)})
        (folder / f"fig11/{variant}.timeline.json").write_text(moved.model_dump_json())
    assert evaluate(BOUND, folder).provenance.cards == {"1111aaaa-1"}
    predicted = evaluate(CLAIMS["improved-predicted-from-vanilla"], folder)
    assert predicted.provenance.cards == {"1111aaaa-1", "2222bbbb-2"}
    day = environment().recorded_at[:10]
    assert printed(tmp_path)[predicted.claim.statement][-1] == f"{day}, cards 1111aaaa and 2222bbbb"


def test_a_pages_numbers_lead_from_each_claim_to_its_command():
    for origin in ("paper", "ours"):
        known, _, commands = markdown(RECORDED, origin).partition("\n\n")
        number_of = {
            line.split(": ", 1)[1].partition(" | ")[0]: line[2:].partition(":")[0] for line in known.splitlines()[2:]
        }
        claims_of = {line.split("`")[1]: line.split(" | ")[1] for line in commands.splitlines()[2:]}
        for claim in (claim for claim in read_claims() if claim.origin == origin):
            number = number_of[claim.statement]
            spans = [span.split(" to ") for span in claims_of[claim.command].split(", ")]
            assert any(int(span[0][1:]) <= int(number[1:]) <= int(span[-1][1:]) for span in spans), claim.id


def test_values_of_this_machines_card_are_told_from_recorded_ones(tmp_path, monkeypatch):
    (tmp_path / "h200").symlink_to(RECORDED / "h200")
    *_, timeline = sorted((RECORDED / "h200/fig11").glob("*.timeline.json"))
    card = read_timeline(timeline).environment.gpu_uuid
    gpu = Gpu(name="NVIDIA H200", capability=(9, 0), mig=False, processes=0, uuid=card)
    monkeypatch.setattr(claims, "visible_gpus", lambda: (gpu,))
    rows = printed(tmp_path)
    assert rows[BOUND.statement][-1] == "2026-11-24, this machine"
    assert rows[CLAIMS["fig13-mean"].statement][-1] == "2026-11-24, this machine, card 87b41bd1"
    assert rows[CLAIMS["ncu-above-1000x"].statement][-1] == "2026-11-29, card 27926151"


def test_a_page_says_which_claims_a_command_measures_and_when_it_was_recorded(tmp_path):
    (tmp_path / "h200").symlink_to(RECORDED / "h200")
    with_fig11_alone(tmp_path / "a100")
    _, _, table = markdown(tmp_path, "paper").partition("\n\n")
    assert table.splitlines() == [
        "| command | claims | run time on an H200, hardware | output in `results/<gpu>` | measured on A100 (UTC day) "
        "| measured on H200 (UTC day) |",
        "|---|---|---|---|---|---|",
        "| `make fig12` | C1, C2 | 5 min, 1 GPU | `fig12.jsonl` | not recorded | 2026-11-24 |",
        "| `make fig11` | C3 to C5 | 3 min, 1 GPU | `fig11/` | 2026-11-24 | 2026-11-24 |",
        "| `make overhead` | C6 to C8 | 2 min, no GPU, after `make fig11 examples` | `overhead.png` | not recorded "
        "| 2026-11-24 |",
        "| `make lines` | C9, C10 | 2 min, 1 GPU | `lines.jsonl` | not recorded | 2026-11-29 |",
    ]


def test_the_command_prints_each_claim_with_the_numbers_of_each_gpu(tmp_path):
    (tmp_path / "h200").symlink_to(RECORDED / "h200")
    with_fig11_alone(tmp_path / "a100")
    shown = kperf("claims", "--results", tmp_path, COLUMNS="400").stdout
    for gpu in ("h200", "a100"):
        on = f"measured on {gpu.upper()} GPUs"
        for origin, whose in (("paper", "the paper's claims"), ("ours", "our goals")):
            lines = re.split(r"(?:our goals|the paper's claims), measured", shown.partition(f"{whose}, {on}")[2])[0]
            for number, claim in numbered(origin).items():
                outcome = evaluate(claim, tmp_path / gpu)
                recorded = outcome.provenance.in_words()
                row = []
                if outcome.value is not None:
                    row = [f"{number}: {claim.statement}", expected(claim), ours(outcome), outcome.verdict, recorded]
                rows = [line.split("│")[1:-1] for line in lines.splitlines() if f"{claim.statement} " in line]
                assert [cell.strip() for cells in rows for cell in cells] == row
    assert "not recorded on A100 GPUs, or not whole: C1, C2, C6 to C10 of the paper's claims" in shown
    assert "not recorded on H200 GPUs, or not whole: G9 of our goals" in shown
    assert shown.rindex("our goals, measured") < shown.index("the paper's claims, measured")


def test_a_statement_names_the_claim_whose_kernels_it_means():
    of_number = numbered("paper") | numbered("ours")
    named = {number for claim in read_claims() for number in re.findall(r"\b[CG]\d+", claim.statement)}
    assert {number: of_number[number].id for number in named} == {"C6": "fig13-mean"}


def with_fig11_alone(folder):
    """A GPU's folder of which Fig. 12 was begun and Fig. 11 is whole."""
    folder.mkdir()
    (folder / "fig12.jsonl").touch()
    (folder / "fig11").symlink_to(RECORDED / "h200/fig11")


def test_the_table_has_a_column_for_each_gpu_of_which_one_of_its_claims_is_recorded(tmp_path):
    (tmp_path / "h200").symlink_to(RECORDED / "h200")
    alone = markdown(tmp_path, "paper").partition("\n\n")[0]
    with_fig11_alone(tmp_path / "a100")
    (tmp_path / "l4").mkdir()
    (tmp_path / "l4" / "fig12.jsonl").touch()
    both = markdown(tmp_path, "paper").partition("\n\n")[0]
    head, line, *rows = [row.split(" | ") for row in both.splitlines()]
    assert head[2:] == [f"our value on {gpu}: verdict{end}" for gpu, end in (("A100", ""), ("H200", " |"))]
    assert line[0].count("---") == len(head)
    of_fig12, of_fig11 = (row for row in rows if "over FA3" in row[0] or "of vanilla by tracing" in row[0])
    assert of_fig12[1:] == [
        "1.076 x +/- 3 %",
        "not recorded",
        "0.936 x (0.927 to 0.944 x): opposite direction |",
    ]
    assert of_fig11[1:] == ["at most 15 %", "5.2 %: holds", "5.2 %: holds |"]
    assert [" | ".join([*row[:2], *row[3:]]) for row in rows] == alone.splitlines()[2:]


@pytest.mark.parametrize("name", ["regions-of-known-cycles", "fig13-mean", "tune-regret"])
def test_a_claim_of_which_a_part_is_recorded_says_so(tmp_path, name):
    claim = CLAIMS[name]
    assert evaluate(claim, tmp_path).verdict == "not recorded"
    (tmp_path / "examples").mkdir()
    shutil.copy(RECORDED / "h200/environment.json", tmp_path)
    for file in ("accuracy.jsonl", "tune.jsonl"):
        line = (RECORDED / "h200" / file).read_text().splitlines(keepends=True)[0]
        (tmp_path / file).write_text(line)
    shutil.copy(RECORDED / "h200/examples/gemm_2_stages.timeline.json", tmp_path / "examples")
    assert evaluate(claim, tmp_path).verdict == "not recorded whole"


def test_the_table_of_a_gpu_of_which_no_claim_is_recorded_has_no_column_of_it(tmp_path):
    (tmp_path / "l4").mkdir()
    (tmp_path / "l4" / "fig12.jsonl").touch()
    table = markdown(tmp_path, "paper").partition("\n\n")[0]
    head, _, *rows = [row.split(" | ") for row in table.splitlines()]
    assert head[1:] == ["the paper's value |"]
    assert len(rows) == sum(claim.origin == "paper" for claim in read_claims())
    assert {len(row) for row in rows} == {len(head)}


@pytest.mark.parametrize(
    ("gpu", "gpus"),
    [
        ("NVIDIA H100 80GB HBM3", ["H100"]),
        ("NVIDIA L4", ["H100", "H200"]),
        (None, ["H100", "H200"]),
    ],
    ids=["recorded", "not recorded", "none"],
)
def test_claims_are_of_this_machines_gpu_if_something_is_recorded_of_it(tmp_path, monkeypatch, gpu, gpus, console):
    (tmp_path / "h200").symlink_to(RECORDED / "h200")
    older = tmp_path / "h100-80gb-hbm3"
    older.mkdir()
    (older / "environment.json").write_text("{}")
    (older / "fig12.jsonl").symlink_to(RECORDED / "h200/fig12.jsonl")
    monkeypatch.setattr(claims.device, "why_static", lambda: None if gpu else "there is no GPU")
    monkeypatch.setattr(claims.device, "gpu_name", lambda: gpu)
    monkeypatch.setattr(claims, "read_claims", list)
    assert report(console, tmp_path) == []
    assert sorted(re.findall(r"the paper's claims, measured on (\S+) GPUs", console.export_text())) == gpus
