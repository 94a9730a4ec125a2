"""The figure and its page, from made-up points."""

import contextlib
import functools
import io
import random
from unittest.mock import patch

import pytest

from kperf.attention.implementations import FIG12, IMPLEMENTATIONS
from kperf.attention.variants import VARIANTS
from kperf.bench.points import PowerStore, Store
from kperf.console import WholeConsole
from kperf.errors import MeasurementError, UsageError
from kperf.paper import fig12
from kperf.record.store import recorded_folder
from tests.conftest import environment, failed, point
from tests.paper.test_power import alone

pytestmark = pytest.mark.usefixtures("unrendered")


@functools.cache
def committed(key, workload):
    """The sha256 of the override that an implementation runs, as a record has it."""
    found = IMPLEMENTATIONS[key].override(workload) if key in VARIANTS else None
    return found and found.sha256


def fill(folder, mode=fig12.Mode(), *, keys=None, spoil=None, seed=1, places=slice(None)):  # noqa: B008
    """A whole figure, or some places of it; `spoil` turns one implementation's points into failures of that status."""
    chance = random.Random(seed)
    store = Store(folder)
    with store.writer() as writer:
        known = writer.record_environment(environment())
        for n, (sweep, workload) in enumerate(fig12.grid(mode)[places]):
            milliseconds = workload.flops / 6e11
            points = []
            for key in keys or mode.keys:
                if spoil and key == spoil[0]:
                    points.append(failed(key, spoil[1], f"{seed}-{n}", workload, sweep))
                else:
                    time = milliseconds * chance.uniform(0.9, 1.8)
                    sha256 = committed(key, workload)
                    points.append(point(key, time, f"{seed}-{n}", workload, sweep, override_sha256=sha256))
            writer.append([p.model_copy(update={"environment": known}) for p in points])
    return store


def page(store, mode=fig12.Mode(), measured=False):  # noqa: B008
    console = WholeConsole(width=400, file=io.StringIO(), record=True)
    files = fig12.report(console, store, mode, measured=measured)
    return files, console.export_text()


def said(store, mode=fig12.Mode(), measured=False):  # noqa: B008
    """The page without its figure."""
    with patch.object(fig12.plot, "draw", return_value=[]):
        return page(store, mode, measured)[1]


def test_the_page_says_what_was_recorded_where_and_when(tmp_path):
    store = fill(tmp_path)
    files, text = page(store)
    assert [path.name for path in files] == ["fig12.pdf", "fig12.png"]
    assert "recorded on NVIDIA H200, 2026-01-02" in text
    assert "measured" not in text
    assert "measured on NVIDIA H200" in said(store, measured=True)
    assert "improved/vanilla" in text
    assert "improved/fa3" in text
    assert "improved/cudnn" in text
    assert text.count("(16, 16, 4096, 128)") == 2  # a bar group in each panel


def test_a_newer_whole_run_replaces_the_older_one_and_a_partial_one_does_not(tmp_path):
    store = fill(tmp_path, seed=1)
    fill(tmp_path, seed=2)
    fill(tmp_path, seed=3, keys=FIG12[:-1])
    runs = fig12.figure_runs(store, fig12.Mode())
    assert {p.run.split("-")[0] for run in runs.values() for p in run.values()} == {"2"}


def test_a_ratio_that_some_workloads_have_is_a_column(tmp_path):
    store = fill(tmp_path, keys=[key for key in FIG12 if key != "fa3"])
    assert "improved/fa3" not in said(store)
    fill(tmp_path, seed=2, places=slice(1))
    assert "improved/fa3" in said(store)


@pytest.mark.parametrize("status", ["oom", "unsupported"])
def test_a_point_without_a_time_is_said_and_the_rest_is_drawn(tmp_path, status):
    files, text = page(fill(tmp_path, spoil=("triton", status)))
    assert status in text
    assert all(path.exists() for path in files)


@pytest.mark.parametrize("status", ["wrong", "failed"])
def test_a_wrong_point_fails_the_command_after_drawing(tmp_path, status):
    store = fill(tmp_path, spoil=("fa3", status))
    with pytest.raises(MeasurementError, match="16 points have no time; the first: fa3"):
        page(store)
    assert (tmp_path / "fig12.png").exists()


def test_an_older_run_is_not_drawn_in_silence_where_the_newest_has_a_name_that_nobody_knows(tmp_path):
    store = fill(tmp_path)
    assert "is no registered implementation" not in page(store)[1]
    first = store.points()[0].run
    fill(tmp_path, seed=2, places=slice(1))
    newest = store.points()[-1].run
    assert newest != first
    *lines, last = store.points_path.read_text().splitlines()
    store.points_path.write_text("\n".join([*lines, last.replace('"improved"', '"improvde"'), ""]))
    text = page(store)[1]
    assert f"has 'improvde' in run {newest}, which is no registered implementation: older runs are drawn" in text
    fill(tmp_path, seed=3, places=slice(1))
    *lines, last = store.points_path.read_text().splitlines()
    store.points_path.write_text("\n".join([*lines, last.replace('"improved"', '"improvde"'), ""]))
    both = {newest, store.points()[-1].run}
    assert f"has 'improvde' in run {min(both)} and 1 more, which is no registered implementation" in page(store)[1]


def test_that_nothing_is_recorded_at_the_power_cap_is_said(tmp_path):
    store = fill(tmp_path)
    assert "alone at the power cap: not in the record, `make power` measures it" in page(store)[1]


def test_masks_are_never_mixed_unless_asked_and_labelled(tmp_path, monkeypatch):
    draw, in_turn = fig12.plot.draw, []
    monkeypatch.setattr(fig12.plot, "draw", lambda *of, **how: in_turn.append(how["in_turn"]) or draw(*of, **how))
    store = fill(tmp_path)
    with pytest.raises(UsageError, match="no run of fig12_causal"):
        page(store, fig12.Mode(causal=True))
    fill(tmp_path, fig12.Mode(causal=True), seed=4)
    files, text = page(store, fig12.Mode(causal=True))
    assert files[1].name == "fig12_causal.png"
    assert {p.causal for run in fig12.figure_runs(store, fig12.Mode()).values() for p in run.values()} == {False}

    files, text = page(store, fig12.Mode(paper_mix=True))
    assert files[1].name == "fig12_paper_mix.png"
    assert in_turn == [True, False]
    assert "not a comparison" in text
    assert "speedup" not in text
    mixed = next(iter(fig12.figure_runs(store, fig12.Mode(paper_mix=True)).values()))
    assert {key for key, p in mixed.items() if p.causal} == {"fa2", "cudnn", "fa3"}


@pytest.mark.parametrize(
    ("mode", "stem", "bars"),
    [
        (fig12.Mode(head_dim=64), "fig12_d64", {"fa2", "cudnn", "fa3", "improved_plus"}),
        (fig12.Mode(inputs="local"), "fig12_local", {"fa2", "cudnn", "fa3", "vanilla", "improved", "improved_plus"}),
        (fig12.Mode(True, head_dim=64), "fig12_d64_causal", {"fa2", "cudnn", "fa3", "improved_plus"}),
        (fig12.Mode(dtype="float16"), "fig12_fp16", {"fa2", "cudnn", "improved_plus"}),
        (fig12.Mode(True, dtype="float16"), "fig12_fp16_causal", {"fa2", "cudnn", "improved_plus"}),
    ],
)
def test_another_head_dim_or_dtype_is_a_figure_of_its_own_in_the_same_store(tmp_path, mode, stem, bars):
    store = fill(tmp_path)
    paper = said(store)
    with pytest.raises(UsageError, match=f"no run of {stem}: measure it on a Hopper GPU"):
        page(store, mode)
    fill(tmp_path, mode, seed=5)
    assert said(store) == paper
    files, text = page(store, mode)
    assert [path.name for path in files] == [f"{stem}.pdf", f"{stem}.png"]
    assert f"{'causal' if mode.causal else 'non-causal'}, {mode.dtype}, head_dim {mode.head_dim}" in text
    assert "improved_plus/cudnn" in text
    assert ("no line for Triton-FA3 Improved: ttgir/improved/ holds no d" in text) == ("improved" not in bars)
    assert ("no line for FA3: the fa3-fwd wheel holds bfloat16 kernels only" in text) == ("fa3" not in bars)
    runs = fig12.figure_runs(store, mode)
    assert list(runs) == fig12.grid(mode)
    assert {frozenset(run) for run in runs.values()} == {frozenset(bars)}
    assert {(p.head_dim, p.dtype, p.causal, p.inputs) for run in runs.values() for p in run.values()} == {
        (mode.head_dim, mode.dtype, mode.causal, mode.inputs)
    }


def sustained(folder, *points, **changes):
    """Record these points of `make power`, in the figure's environment with `changes`."""
    with PowerStore(folder).writer() as writer:
        known = {"environment": writer.record_environment(environment(**changes))}
        writer.append([point.model_copy(update=known) for point in points])


def test_each_mask_stands_beside_its_own_sustained_run(tmp_path):
    store = fill(tmp_path)
    sustained(tmp_path, alone("fa3", 600, 700), alone("fa3", 500, 700, causal=True))
    assert "alone and sustained, non-causal, median of the passes; recorded on NVIDIA H200, 2026-01-02" in said(store)
    for mode, words in ((fig12.Mode(True), "alone and sustained, causal"), (fig12.Mode(head_dim=64), None)):
        fill(tmp_path, mode)
        text = said(store, mode)
        assert words in text if words else "alone and sustained" not in text


def test_sustained_runs_of_another_card_than_the_figures_are_named_and_not_shown(tmp_path):
    store = fill(tmp_path)
    elsewhere = {"gpu_uuid": "1e5e4e44-5e"}
    sustained(tmp_path, alone("fa3", 600, 700), alone("fa3", 600, 700, causal=True), **elsewhere)
    named = "alone at the power cap: recorded on another card than this figure (2026-01-02, card 1e5e4e44): "
    text = said(store)
    assert f"{named}`make power` prints that record" in text
    assert "alone and sustained" not in text
    fill(tmp_path, fig12.Mode(True))
    assert f"{named}`make power CAUSAL=1` prints that record" in said(store, fig12.Mode(True))
    # One workload of the figure's card, and more that were recorded later on the other.
    sustained(tmp_path, alone("fa3", 512, 700, run="mine"))
    sustained(tmp_path, alone("fa3", 600, 700, run="theirs"), alone("cudnn", 600, 700, run="theirs"), **elsewhere)
    text = said(store)
    assert "another card" not in text
    table = text.partition("alone and sustained, non-causal")[2].partition("drawn: ")[0]
    assert "mine" in table
    assert "theirs" not in table


def test_an_implementation_that_is_unsupported_is_said_and_leaves_no_gap(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("kperf.plots.fig12._lines", lambda _axis, _runs, keys, _value: drawn.append(keys) or [])
    text = page(fill(tmp_path, spoil=("fa3", "unsupported")))[1]
    assert "no line for FA3: too large" in text
    page(fill(tmp_path, spoil=("fa3", "oom"), seed=2))
    everything = list(FIG12)
    without = [key for key in everything if key != "fa3"]
    assert drawn == [*[without] * 6, *[everything] * 6]


def test_a_record_that_lacks_an_implementation_is_drawn_without_it_and_says_so(tmp_path):
    store = fill(tmp_path, keys=[key for key in FIG12 if key != "improved"])
    files, text = page(store)
    assert "no line for Triton-FA3 Improved: not in the record, `make fig12` measures it" in text
    assert all(path.exists() for path in files)
    assert "improved_plus/fa3" in text
    place, *others = fig12.grid(fig12.Mode())
    with store.writer() as writer:  # one workload is measured with all of them
        writer.append([point(key, 1.0, "whole", place[1], place[0]) for key in FIG12])
        writer.append([point("fa3", 1.0, "partial", place[1], place[0])])
    runs = fig12.figure_runs(store, fig12.Mode())
    assert {p.run for p in runs[place].values()} == {"whole"}
    assert all("improved" not in runs[other] for other in others)
    said = fig12.notes(runs, fig12.Mode())
    assert f"no line for Triton-FA3 Improved at {len(others)} of {len(others) + 1} workloads: " in said[0]


def test_a_bar_that_is_recorded_and_registered_no_longer_is_said(tmp_path):
    store = fill(tmp_path)
    sweep, workload = fig12.grid(fig12.Mode())[0]
    with store.writer() as writer:
        writer.append([point(key, 1.0, "new", workload, sweep) for key in (*FIG12, "of_old")])
    said = fig12.notes(fig12.figure_runs(store, fig12.Mode()), fig12.Mode())
    assert "no line for of_old: recorded, but registered no longer" in said


def test_points_of_another_override_are_said_on_the_page(tmp_path):
    store = fill(tmp_path)
    assert "another override" not in said(store)
    place = fig12.grid(fig12.Mode())[3]
    with store.writer() as writer:
        known = writer.record_environment(environment())
        hashes = {key: committed(key, place[1]) for key in FIG12} | {"improved": "0" * 64}
        writer.append(
            [
                point(key, 1.0, "new", place[1], place[0], environment=known, override_sha256=sha256)
                for key, sha256 in hashes.items()
            ]
        )
    text = said(store)
    assert "Triton-FA3 Improved: recorded with another override than the one in ttgir/improved/" in text
    assert "Triton-FA3: recorded" not in text


@pytest.mark.parametrize("other", [{"causal": True}, {"head_dim": 64}, {"dtype": "float16"}])
def test_the_papers_mixture_is_one_figure(other):
    with pytest.raises(UsageError, match="two figures: name one"):
        fig12.Mode(paper_mix=True, **other)


def test_points_without_their_environment_are_refused(tmp_path):
    store = fill(tmp_path)
    store.environments_path.unlink()
    with pytest.raises(UsageError, match="lacks the environment"):
        page(store)


def test_of_several_recorded_gpus_the_newest_is_found(tmp_path):
    with pytest.raises(UsageError, match="holds no recorded fig12"):
        recorded_folder(tmp_path)
    for name in ("a100", "h200", "l40"):
        fill(tmp_path / name)
    kept = tmp_path / "h200" / "fig12.jsonl"
    kept.write_text(kept.read_text().replace("2026-01-02", "2026-01-03"))
    assert recorded_folder(tmp_path).name == "h200"


@pytest.mark.parametrize(("causal", "gpu"), [(False, "h100"), (True, "h200")])
def test_a_figure_that_the_newest_gpu_lacks_is_drawn_from_another(tmp_path, monkeypatch, causal, gpu, no_gpu):
    for mode in (fig12.Mode(), fig12.Mode(causal=True)):
        fill(tmp_path / "h200", mode)
    fill(tmp_path / "h100", fig12.Mode())
    newer = tmp_path / "h100" / "fig12.jsonl"
    newer.write_text(newer.read_text().replace("2026-01-02", "2026-01-03"))
    monkeypatch.setattr(fig12, "verify_overrides", lambda console, run_too: None)
    mode = fig12.Mode(causal=causal)
    fig12.run(WholeConsole(quiet=True), tmp_path, mode, rounds=10, fresh=False, require_gpu=False)
    assert [path.parent.name for path in tmp_path.glob(f"*/{mode.stem}.png")] == [gpu]


def test_ctrl_c_says_that_the_sweep_goes_on(tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(fig12, "run_sweep", interrupted)
    with pytest.raises(KeyboardInterrupt, match="the same command goes on from there"):
        fig12.measure_fig12(WholeConsole(quiet=True), Store(tmp_path), fig12.Mode(), ["fa3"], rounds=10)


@pytest.mark.parametrize("mix", [False, True])
def test_on_a_gpu_its_masks_are_measured_and_the_page_is_of_the_measured(tmp_path, monkeypatch, mix, h200):
    """The paper's mix takes FA2 and FA3 of one mask and the others of the other: both are measured."""
    measured, reported = [], []
    monkeypatch.setattr(fig12, "verify_overrides", lambda console, run_too: None)
    monkeypatch.setattr(fig12, "measure_fig12", lambda console, store, mode, *_, **__: measured.append(mode.causal))
    monkeypatch.setattr(
        fig12, "report", lambda console, store, mode, measured: reported.append((store.folder, measured))
    )
    mode = fig12.Mode(causal=not mix, paper_mix=mix)
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200/fig12.jsonl").write_text('{"a')  # torn by a kill: measuring repairs it
    fig12.run(WholeConsole(quiet=True), tmp_path, mode, rounds=10, fresh=False, require_gpu=True)
    assert measured == ([False, True] if mix else [True])
    assert reported == [(tmp_path / "h200", True)]


def test_without_a_gpu_it_says_so_and_draws_what_is_recorded(tmp_path, monkeypatch, no_gpu, console):
    fill(tmp_path / "h200")
    monkeypatch.setattr(fig12, "verify_overrides", lambda console, run_too: None)
    fig12.run(console, tmp_path, fig12.Mode(), rounds=10, fresh=False, require_gpu=False)
    said = console.export_text()
    assert "static: the figure is drawn from recorded runs; there is no GPU" in said
    assert all(f"drawn: {tmp_path}/h200/fig12.{kind} (recorded on " in said for kind in ("pdf", "png"))
    assert (tmp_path / "h200" / "fig12.png").exists()
    with pytest.raises(UsageError, match="there is no GPU"):
        fig12.run(console, tmp_path, fig12.Mode(), rounds=10, fresh=False, require_gpu=True)


def test_several_gpus_measure_into_the_folder_of_their_kind_and_this_process_uses_none(tmp_path, monkeypatch):
    class Bench:
        environments = (environment(gpu="NVIDIA H100 80GB HBM3"),)

    ran, measured, asked = [], [], []

    @contextlib.contextmanager
    def spread(gpus):
        asked.append(gpus)
        yield Bench

    monkeypatch.setattr(fig12, "spread", spread)
    monkeypatch.setattr(fig12, "verify_overrides", lambda console, run_too: ran.append(run_too))
    monkeypatch.setattr(
        fig12, "measure_fig12", lambda console, store, *_, bench, **__: measured.append((store.folder.name, bench))
    )
    monkeypatch.setattr(fig12, "report", lambda *_, **__: None)
    # There is no GPU here: to ask this process's for its name would fail.
    fig12.run(WholeConsole(quiet=True), tmp_path, fig12.Mode(), rounds=10, fresh=False, require_gpu=True, gpus="all")
    assert (ran, measured, asked) == ([False], [("h100-80gb-hbm3", Bench)], ["all"])


def test_workloads_of_several_cards_are_said_and_compared(tmp_path):
    places = fig12.grid(fig12.Mode())
    store = fill(tmp_path)
    assert "cards" not in said(store)
    with store.writer() as writer:
        known = [writer.record_environment(environment(gpu_uuid=f"card{n}-and-more")) for n in range(2)]
        for n, (sweep, workload) in enumerate(places):
            writer.append(
                [
                    point(key, workload.flops / 6e11 * (1 + i), f"a{n}", workload, sweep, environment=known[n % 2])
                    for i, key in enumerate(fig12.Mode().keys)
                ]
            )
    text = said(store)
    assert "on 2 cards, each workload whole on one: card0-an 8, card1-an 8" in text
    assert "how far they agree is unknown" in text
    sweep, workload = places[5]
    with store.writer() as writer:  # that of card1, on card0 and 3 % slower
        writer.append(
            [
                point(key, workload.flops / 6e11 * 1.03 * (1 + i), "again", workload, sweep, environment=known[0])
                for i, key in enumerate(fig12.Mode().keys)
            ]
        )
    text = said(store)
    assert "card0-an 9, card1-an 7" in text
    assert "the same workload on each card" in text
    row = next(line for line in text.splitlines() if "card1-an" in line and "%" in line and "|" not in line)
    assert "-1.4" in row
    assert "SW_POWER_CAP 100%" in row
    assert "of the times 0 of 8 lie in another card's 95 % interval, of the ratios to fa3 7 of 7" in text


def test_an_override_that_does_not_fit_is_known_before_anything_is_measured(tmp_path, monkeypatch):
    """Of each place that its implementation can run, and of no other."""
    looked, measured = [], []

    class Made:
        def __init__(self, key, runs, fits=True):
            self.key, self.runs, self.fits = key, runs, fits

        def unsupported(self, workload):
            return "" if workload.seq_len in self.runs else "too long"

        def override(self, workload):
            looked.append((self.key, workload.seq_len))
            if not self.fits:
                raise UsageError(f"{self.key} does not fit")

    def measure(*made):
        looked.clear()
        monkeypatch.setattr(fig12, "implementations", lambda _: list(made))
        console = WholeConsole(file=io.StringIO())
        fig12.measure_fig12(console, Store(tmp_path), fig12.Mode(), ["a"], sweeps=("seq_len",), rounds=10)

    monkeypatch.setattr(fig12, "run_sweep", lambda groups, *_, **__: measured.append(len(groups)))
    lengths = [workload.seq_len for _, workload in fig12.grid(fig12.Mode(), ("seq_len",))]
    measure(Made("a", lengths[:2]), Made("b", lengths[-1:]))
    assert looked == [("a", lengths[0]), ("a", lengths[1]), ("b", lengths[-1])]
    assert measured == [len(lengths)]
    with pytest.raises(UsageError, match="b does not fit"):
        measure(Made("a", lengths), Made("b", lengths[-1:], fits=False))
    assert measured == [len(lengths)]
    measure(Made("a", [], fits=False))
    assert len(measured) == 2
