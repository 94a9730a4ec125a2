"""`kperf tune` as a whole, on a GPU whose times are known: what is found, recorded, written, and gone on with."""

import json
import multiprocessing
import os
import random
import signal
from types import SimpleNamespace

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.text import Text

from kperf.attention import configs
from kperf.attention.configs import Config
from kperf.attention.workload import Workload
from kperf.bench.points import MeasuredPoint
from kperf.errors import UsageError
from kperf.plots.tune import figure
from kperf.tune import command, records, tables
from kperf.tune.records import DEFAULT_KEY, TUNED_KEY, Study, store_in, studies, summary
from kperf.tune.space import DEFAULT, SPACES, Judged, Needs
from tests.command import kperf
from tests.tune.fake import OTHERS, SHAPE, SPACE, FakeSearch, milliseconds

BEST = min(SPACE, key=milliseconds)

pytestmark = pytest.mark.usefixtures("unrendered")


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Of the results, and of the configurations."""
    monkeypatch.setenv(configs.FOLDER, str(tmp_path / "configs"))
    (tmp_path / "configs").mkdir()
    return tmp_path / "results", tmp_path / "configs"


def tune(folders, *more, seq_len="128"):
    return kperf("tune", "--results", folders[0], *SHAPE, "--seq-len", seq_len, *more, COLUMNS="250")


def recorded(folders) -> list[Study]:
    return studies(store_in(folders[0] / "h200").points())


def test_all_of_it(folders, monkeypatch):
    wrong = {sorted(SPACE, key=milliseconds)[1]}
    FakeSearch(monkeypatch, wrong=wrong)
    done = tune(folders, "--exhaustive", "--trials", "12")
    assert done.returncode == 0, done.stderr
    (study,) = recorded(folders)
    assert study.workload == Workload(batch=1, heads=1, seq_len=128, head_dim=64, causal=True, dtype="float16")
    assert len(study.tried("search")) == 12
    assert set(study.tried("exhaustive")) == set(SPACE)
    assert {config for config, cost in study.tried("exhaustive").items() if cost is None} == wrong
    statuses = {row.config: row.point.status for row in study.rows if row.part == "exhaustive"}
    assert all(statuses[config] == ("wrong" if config in wrong else "ok") for config in SPACE)
    assert study.chosen == BEST
    final = study.tried("final")
    found = min((c for c in study.tried("search") if c not in wrong), key=lambda c: study.tried("search")[c])
    assert study.regret == final[found] / final[BEST] - 1
    assert set(study.comparison) == {*OTHERS, DEFAULT_KEY, TUNED_KEY}
    assert len({point.run for point in study.comparison.values()}) == 1
    vendor, ratio = study.ratio_to_vendor
    assert vendor == "cudnn"
    assert ratio == pytest.approx(OTHERS["cudnn"] / milliseconds(BEST), rel=0.05)
    written = json.loads((folders[1] / "sm_90a-MHA-DEFAULT.json").read_text())
    assert written == {"fwd": {"d64_s128_causal": BEST.options()}}
    rows = [[cell.strip() for cell in line.split("│")] for line in done.stdout.splitlines()]
    failed = str(len(wrong & set(study.tried("search"))))
    assert [row[2:6] for row in rows if "sm_90a" in row] == [["sm_90a", "12", str(len(SPACE)), failed]]
    native, ours = (study.comparison[key].median_ms for key in ("eager", TUNED_KEY))
    assert f"{ours:.3f} ({native / ours:.2f}x)" in done.stdout
    assert all((folders[0] / "h200" / f"tune.{kind}").exists() for kind in ("pdf", "png"))
    drawn = figure([study], "recorded")
    plt.close(drawn)
    before = study.comparison[DEFAULT_KEY].median_ms
    (legend,) = drawn.legends
    title = f"Tuning makes the Triton kernel {before / ours:.1f} x as fast (geometric mean)\nrecorded"
    assert legend.get_title().get_text() == title
    below = " ".join(" ".join(text.get_text() for text in drawn.findobj(Text)).split())
    assert "head_dim 64, float16, causal; all of a length interleaved. Right: how much slower the" in below
    assert "than the best of all, after so many trials. Grey: within 2%." in below
    _, searches = drawn.axes
    assert [text.get_text() for text in searches.get_legend().get_texts()] == ["128"]
    (goal,) = searches.patches
    assert (goal.get_y(), goal.get_height()) == (0, pytest.approx(2))


def test_a_trial_costs_the_same_whatever_the_clock_does(folders, monkeypatch):
    fake = FakeSearch(monkeypatch)
    fake.gpu.slowdown = lambda now_ms: 1.5 if now_ms > 20_000 else 1.0
    assert tune(folders, "--exhaustive", "--trials", "4").returncode == 0
    (study,) = recorded(folders)
    assert study.chosen == BEST
    medians = [row.point.median_ms for row in study.rows if row.config == BEST]
    assert max(medians) > 1.4 * min(medians)  # it did slow down
    costs = [row.cost for row in study.rows if row.config == BEST]
    assert max(costs) < 1.05 * min(costs)


def test_run_again_it_times_nothing_and_fresh_all_anew(folders, monkeypatch):
    fake = FakeSearch(monkeypatch)
    first = tune(folders, "--trials", "5")
    before, timed = recorded(folders)[0].rows, len(fake.timed)
    again = tune(folders, "--trials", "5")
    assert again.returncode == 0
    assert (recorded(folders)[0].rows, len(fake.timed)) == (before, timed)
    assert first.stdout.replace("measured", "") == again.stdout.replace("measured", "")
    assert tune(folders, "--trials", "7").returncode == 0  # two more
    assert recorded(folders)[0].rows[: len(before)] == before
    assert len(recorded(folders)[0].tried("search")) == 7
    assert tune(folders, "--trials", "5", "--fresh").returncode == 0
    assert recorded(folders)[0].rows[0] not in before
    assert len(recorded(folders)[0].tried("search")) == 5


def tune_until(last, folders):
    """The command in a process of its own: killed as the trial with this number begins."""
    torch.set_num_threads(1)  # OpenMP's threads are not forked: more than one would be waited for without end
    bound = []

    def on_bind(config):
        bound.append(config)
        if len(bound) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    FakeSearch(pytest.MonkeyPatch(), on_bind=on_bind)
    tune(folders, "--trials", "12")


@pytest.mark.parametrize("killed_at", [4, 9])
def test_killed_it_goes_on_and_no_trial_is_lost_or_done_twice(folders, monkeypatch, killed_at):
    killed = multiprocessing.get_context("fork").Process(target=tune_until, args=(killed_at, folders))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    (study,) = recorded(folders)
    before = study.rows
    assert len(before) == len(study.tried("search")) == killed_at - 1  # the one that ran is all that is lost
    fake = FakeSearch(monkeypatch)
    assert tune(folders, "--trials", "12").returncode == 0
    (study,) = recorded(folders)
    assert list(study.rows[: len(before)]) == list(before)
    searched = [row.config for row in study.rows if row.part == "search"]
    assert len(searched) == len(set(searched)) == 12
    assert not {row.config for row in before} & set(fake.timed[: 12 - len(before)])
    assert study.chosen is not None


def test_another_size_begins_with_what_was_best_for_the_nearest(folders, monkeypatch):
    FakeSearch(monkeypatch)
    assert tune(folders, "--exhaustive", "--trials", "3").returncode == 0
    assert tune(folders, "--trials", "3", seq_len="256").returncode == 0
    small, large = recorded(folders)
    assert next(iter(large.tried("search"))) == small.chosen == BEST
    written = json.loads((folders[1] / "sm_90a-MHA-DEFAULT.json").read_text())
    assert list(written["fwd"]) == ["d64_s128_causal", "d64_s256_causal"]


def test_a_broken_file_of_configurations_is_said_before_anything_is_timed(folders, monkeypatch):
    fake = FakeSearch(monkeypatch)
    (folders[1] / "sm_90a-MHA-DEFAULT.json").write_text("{")
    done = tune(folders)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "is no file of configurations" in done.stderr
    assert not fake.timed


def test_where_nothing_is_right_it_fails_in_one_sentence(folders, monkeypatch):
    FakeSearch(monkeypatch, wrong=set(SPACE))
    done = tune(folders, "--trials", "3")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "none of the configurations tried is right" in done.stderr
    assert not list(folders[1].iterdir())


def test_where_compiling_leaves_nothing_it_fails_in_one_sentence(folders, monkeypatch):
    FakeSearch(monkeypatch)
    monkeypatch.setattr(command, "prune", lambda *_, **__: [Judged(one, None, "spills") for one in SPACE])
    done = tune(folders)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "compiling leaves no configuration" in done.stderr


@pytest.mark.parametrize("words", ["0", "130", "512,x", ",", "-512"])
def test_rows_that_are_none_are_one_sentence(folders, words):
    done = tune(folders, seq_len=words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_an_architecture_that_is_not_tuned_is_one_sentence(folders, monkeypatch):
    FakeSearch(monkeypatch)
    monkeypatch.setattr(configs, "architecture", lambda: "sm_100a")
    done = tune(folders)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the GPU is sm_100a: tuned are sm_90a and gfx942" in done.stderr


def test_without_a_gpu_it_prunes_for_both_and_says_that_nothing_was_timed(folders, monkeypatch):
    dropped = Judged(SPACE[0], Needs(255, 8, 64), "spills 8 bytes")
    left = Judged(SPACE[1], Needs(128, 0, 4242), None)
    monkeypatch.setattr(command, "prune", lambda *_, **__: [dropped, left])
    done = tune(folders)
    assert done.returncode == 0, done.stderr
    for words in ("spills 8 bytes", "4242", "sm_90a", "gfx942", "1 of 2 are left"):
        assert words in done.stdout
    said = [line for line in done.stdout.splitlines() if "nothing was timed" in line]
    assert len(said) == 1
    assert "nothing is recorded of `make tune`" in said[0]


def test_without_a_gpu_what_is_recorded_is_shown_and_drawn(folders, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        FakeSearch(patch)
        measured = tune(folders, "--trials", "4")
    machine = {key: SimpleNamespace(label=key) for key in OTHERS}
    monkeypatch.setattr(tables, "IMPLEMENTATIONS", machine)
    monkeypatch.setattr(command, "prune", lambda *_, **__: [Judged(one, Needs(1, 0, 1), None) for one in SPACE])
    shown = tune(folders)
    assert shown.returncode == 0, shown.stderr
    assert "recorded on NVIDIA H200" in shown.stdout
    for line in measured.stdout.splitlines():
        if "Triton tuned" in line or "x)" in line:
            assert line in shown.stdout


def test_a_row_that_contradicts_itself_is_refused(folders, monkeypatch):
    FakeSearch(monkeypatch)
    assert tune(folders, "--trials", "1").returncode == 0
    path = folders[0] / "h200" / "tune.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for given, words in (([None], "config: is missing"), ([], "configs: not as many as points")):
        path.write_text(json.dumps(rows[0] | {"configs": given}) + "\n")
        with pytest.raises(UsageError, match=words):
            store_in(path.parent).points()


def test_before_tuning_is_the_reports_default():
    assert DEFAULT.options() == {
        "BLOCK_M": 128, "BLOCK_N": 64, "PRELOAD_V": False, "num_warps": 4, "num_ctas": 1, "num_stages": 1
    }  # fmt: skip
    assert SPACES["gfx942"].default == Config(**DEFAULT.options() | {"waves_per_eu": 2})


def test_the_comparisons_times_are_its_own(folders, monkeypatch):
    FakeSearch(monkeypatch)
    tune(folders, "--trials", "3")
    comparison = recorded(folders)[0].comparison
    assert all(isinstance(point, MeasuredPoint) for point in comparison.values())
    assert comparison[DEFAULT_KEY].median_ms == pytest.approx(milliseconds(DEFAULT), rel=0.1)


def test_a_trial_that_breaks_the_gpu_is_recorded_and_left_out_by_the_next_run(folders, monkeypatch):
    broken = []

    def on_bind(config):
        broken.append(config)
        if len(broken) == 3:
            raise torch.AcceleratorError("illegal memory access")

    fake = FakeSearch(monkeypatch, on_bind=on_bind)
    done = tune(folders, "--trials", "5")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "broke the GPU's context" in done.stderr
    (study,) = recorded(folders)
    assert [row.point.status for row in study.rows] == ["ok", "ok", "failed"]
    assert study.rows[-1].config == broken[2]
    before = len(fake.timed)
    assert tune(folders, "--trials", "5").returncode == 0
    assert broken[2] not in fake.timed[before:]
    assert len(recorded(folders)[0].tried("search")) == 5


@pytest.mark.parametrize("part", ["exhaustive", "final"])
def test_what_breaks_the_gpu_among_others_is_recorded_and_the_next_run_goes_past_it(folders, monkeypatch, part):
    breaking = SPACE[7] if part == "exhaustive" else BEST

    def on_bind(config):
        reached = part == "exhaustive" or any(study.is_exhaustive for study in recorded(folders))
        if config == breaking and reached:
            raise torch.AcceleratorError("illegal memory access")

    search = ("--trials", "1", "--exhaustive")
    monkeypatch.setattr(command, "next_trial", lambda *_, **__: SPACE[0])
    monkeypatch.setattr(command, "BATCH", len(SPACE))
    FakeSearch(monkeypatch, on_bind=on_bind)
    done = tune(folders, *search)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"{breaking}" in done.stderr
    (study,) = recorded(folders)
    of_part = [row for row in study.rows if row.part == part]
    assert [(row.config, row.point.status) for row in of_part] == [(breaking, "failed")]  # the others' times are lost
    assert tune(folders, *search).returncode == 0
    (study,) = recorded(folders)
    assert study.is_exhaustive
    assert study.chosen == min({*SPACE} - {breaking}, key=milliseconds)


def test_configurations_that_cannot_be_written_are_said_before_anything_is_timed(folders, monkeypatch):
    fake = FakeSearch(monkeypatch)
    monkeypatch.setenv(configs.FOLDER, "/proc/configs")
    done = tune(folders)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "set KPERF_TRITON_CONFIGS to a folder that you can write" in done.stderr
    assert not fake.timed


def test_the_claims_are_of_the_whole_experiment_and_its_worst_seq_len(folders, monkeypatch):
    FakeSearch(monkeypatch)
    names = random.Random(1)  # the study's is the search's seed: two trials of this one do not find the best
    monkeypatch.setattr(command, "secrets", SimpleNamespace(token_hex=lambda size: names.randbytes(size).hex()))
    assert tune(folders, "--exhaustive", "--trials", "2").returncode == 0
    folder = folders[0] / "h200"
    assert summary(folder).numbers == {}  # of another shape
    (study,) = recorded(folders)
    monkeypatch.setattr(records, "REPORTED", (study.workload,))
    assert summary(folder).numbers == {"regret": study.regret, "over the vendor": study.ratio_to_vendor[1]}
    assert study.regret > 0
    monkeypatch.setattr(records, "REPORTED", (study.workload, study.workload.model_copy(update={"seq_len": 256})))
    assert summary(folder).numbers == {}
    tune(folders, "--trials", "2", seq_len="256")  # not exhaustive
    assert [*summary(folder).numbers] == ["over the vendor"]
    assert summary(folder).numbers["over the vendor"] == min(study.ratio_to_vendor[1] for study in recorded(folders))
