"""The recorded H200 run is whole, right, and of the overrides that are committed."""

import re
import statistics
from collections import Counter
from pathlib import Path

import pytest

from kperf.attention import overrides as override
from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.variants import VARIANTS, Specialization
from kperf.attention.workload import FIG11, Workload
from kperf.bench import walltime
from kperf.bench.cards import agreement, on_several, spread_note
from kperf.bench.points import MAX_LSE_ERROR, MAX_REL_ERROR, Store
from kperf.bench.repeatability import compare, pairs
from kperf.bench.tables import speedup, speedup_interval
from kperf.paper import fig12, fig12_inputs, goals, llama_block, proof, tritonbench, varlen
from kperf.record.store import RECORDED, RecordStore
from kperf.report.sentences import verdict
from kperf.studies import fig13, interleaved
from kperf.trace.analyze import facts
from kperf.trace.analyze.recorded import read_timeline
from tests.pages import between_marks, said

ROOT = Path(__file__).resolve().parents[2]
STORE = Store(RECORDED / "h200")
H100 = Store(RECORDED / "h100-80gb-hbm3")
MODES = [
    fig12.Mode(causal, **other) for other in ({}, {"head_dim": 64}, {"dtype": "float16"}) for causal in (False, True)
]
ON_AN_H200 = [mode for mode in MODES if mode != fig12.Mode(causal=True, dtype="float16")]
FIGURES = [(H100, mode) for mode in MODES] + [(STORE, mode) for mode in ON_AN_H200]


@pytest.fixture(scope="module", params=FIGURES, ids=lambda figure: f"{figure[0].folder.name}-{figure[1].stem}")
def recorded(request):
    store, mode = request.param
    return store, mode, fig12.figure_runs(store, mode)


def test_every_figure_is_of_the_overrides_of_now(recorded):
    _, mode, runs = recorded
    assert not [said for said in fig12.notes(runs, mode) if "another override" in said]


def test_every_place_has_every_bar_from_one_environment_and_two_cards_are_said(recorded):
    store, mode, runs = recorded
    assert list(runs) == fig12.grid(mode)
    points = [p for run in runs.values() for p in run.values()]
    assert all({*mode.keys} <= run.keys() for run in runs.values())
    assert {p.status for p in points} == {"ok"}
    assert all(len({p.environment for p in run.values()}) == 1 for run in runs.values())
    cards = {store.environments()[p.environment].gpu_uuid for p in points}
    assert len(cards) == 1 or all(card[:8] in spread_note(runs.values(), store.environments()) for card in cards)
    assert all(len(p.samples_ms) >= 10 for p in points)


def test_every_point_was_right_and_its_numbers_are_its_samples(recorded):
    *_, runs = recorded
    for run in runs.values():
        assert len({p.run for p in run.values()}) == 1
        for p in run.values():
            assert p.rel_error < MAX_REL_ERROR[p.dtype]
            assert p.lse_error is None or p.lse_error < MAX_LSE_ERROR
            assert p.median_ms == pytest.approx(statistics.median(p.samples_ms))
            assert p.tflops == pytest.approx(p.flops / p.median_ms / 1e9)
            assert p.ci95_ms[0] <= p.median_ms <= p.ci95_ms[1]
            assert sorted({len(p.samples_ms), len(p.round_order), len(p.device_states)}) == [len(p.samples_ms)]


def test_the_overrides_that_ran_are_those_that_are_committed(recorded):
    *_, runs = recorded
    for (_, workload), run in runs.items():
        for key in VARIANTS:
            if key in run:
                sha256 = override.find(key, override.specialization_of(workload)).sha256
                assert run[key].override_sha256 == sha256


def test_the_environment_names_a_commit_and_what_differed_from_it():
    """Some ran from a checkout with files that were not committed yet: the page of the method says which."""
    used = {
        p.environment for mode in ON_AN_H200 for run in fig12.figure_runs(STORE, mode).values() for p in run.values()
    }
    environments = STORE.environments()
    for name in used:
        assert environments[name].gpu == "NVIDIA H200"
        assert re.fullmatch("[0-9a-f]{7,40}(-dirty-[0-9a-f]{8})?", environments[name].git_commit)
        assert environments[name].triton == "3.6.0"


def test_the_improved_schedule_is_as_fast_as_promised():
    runs = [run for (_, w), run in fig12.figure_runs(STORE, fig12.Mode()).items() if w.seq_len >= 1024]
    assert speedup_interval(runs, "improved", "vanilla")[0] >= 1.15
    assert speedup_interval(runs, "improved", "fa3")[0] >= 0.93


@pytest.mark.parametrize("causal", [False, True])
def test_improved_plus_passes_fa3_and_cudnn_at_every_point_as_the_readme_says(causal):
    for run in fig12.figure_runs(STORE, fig12.Mode(causal)).values():
        assert speedup(run, "improved_plus", "fa3") > 1
        assert speedup(run, "improved_plus", "cudnn") > 1


def test_the_notes_have_the_recorded_numbers():
    notes = (ROOT / "kperf/attention/kernels/NOTES.md").read_text()
    written = notes.split("<!-- goals -->")[1].split("<!-- /goals -->")[0].strip()
    assert written == goals.markdown(H100.folder)


def test_the_page_has_the_recorded_table_of_inputs_all_of_them_of_the_committed_override():
    assert between_marks("docs/improved_plus.md", "inputs") == fig12_inputs.markdown(STORE.folder)
    places, slow = sum(map(len, fig12_inputs.groups())), []
    for store, gpu in ((STORE, "H200"), (H100, "H100")):
        rows = fig12_inputs.rows(fig12_inputs.recorded_runs(Store(store.folder, "fig12_inputs")))
        for key, form in (("improved_plus", "Fig. 12"), ("improved_plus_views", "the torch operator")):
            ratios = [ratio for row in rows if row.key == key for ratio in row.ratios]
            speeds = f"{min(ratios):.2f} to {max(ratios):.2f}"
            assert len(ratios) == places
            assert said(
                f"| the Improved+ of {form} | {gpu} | {speeds} | {sum(ratio < 1 for ratio in ratios)} of {places} |"
            )
            faster = ("", "times as fast ", "times as fast as FA3 ")
            assert any(said(f"{speeds} {words}on an {gpu}") for words in faster)
        slow += [(row.causal, row.kind, at) for row in rows for at, ratio in enumerate(row.ratios) if ratio < 1]
    assert slow == [(False, "jump200_rows", 0)] * 3
    assert said("Improved+ is slower than FA3 only on inputs of the kind `jump200_rows`, at seq_len 512 without a mask")


def timeline(name, gpu="h200"):
    return read_timeline(RECORDED / gpu / f"fig11/{name}.timeline.json")


@pytest.mark.parametrize("gpu", ["h200", "h100-80gb-hbm3"])
@pytest.mark.parametrize("name", ["vanilla", "improved"])
def test_the_timelines_are_of_the_committed_overrides_and_whole(name, gpu):
    found = timeline(name, gpu)
    assert found.ttgir_sha256 == override.find(name, override.specialization_of(FIG11)).sha256
    assert found.ctas == FIG11.rows // 128
    assert found.events.lost == 0
    assert found.lifetime_covered == pytest.approx(1, abs=0.01)
    assert found.overhead.ratio < 1.082
    if gpu == "h200":
        assert (STORE.folder / f"fig11/{name}.chrome_trace.json").stat().st_size < 2_000_000


@pytest.mark.parametrize("gpu", ["h200", "h100-80gb-hbm3"])
def test_the_timeline_of_improved_plus_is_whole_and_of_the_committed_override(gpu):
    found = timeline("improved_plus", gpu)
    sha256 = override.find("improved_plus", override.specialization_of(FIG11)).sha256
    assert found.ttgir_sha256 == sha256
    tiles, iterations = FIG11.rows // 128, FIG11.seq_len // 128 - 1  # the first block of a tile is not one of its trips
    assert found.units == tiles * iterations
    assert found.events.lost == 0
    assert found.lifetime_covered == pytest.approx(1, abs=0.01)
    assert found.tile_boundary_cycles is not None
    assert not facts.at_bound(found)
    if gpu == "h200":
        assert (STORE.folder / "fig11/improved_plus.chrome_trace.json").stat().st_size < 2_000_000


def test_the_timelines_explain_the_times():
    vanilla, improved = map(timeline, ("vanilla", "improved"))
    iteration_times = vanilla.cycles_per_unit.median / improved.cycles_per_unit.median
    plain = vanilla.overhead.original_ms / improved.overhead.original_ms
    assert iteration_times == pytest.approx(plain, rel=0.05)
    nearest = next(run for (_, w), run in fig12.figure_runs(STORE, fig12.Mode()).items() if w.seq_len == FIG11.seq_len)
    assert iteration_times == pytest.approx(speedup(nearest, "improved", "vanilla"), rel=0.05)


def share(count, of):
    return f"{count} ({count / of:.1%})".replace("%", " %")


def test_what_the_pages_say_of_repeated_and_of_unsettled_runs_is_what_the_records_give():
    newest = {p.run for run in fig12.figure_runs(STORE, fig12.Mode()).values() for p in run.values()}
    newest |= {p.run for run in fig12.figure_runs(STORE, fig12.Mode(causal=True)).values() for p in run.values()}
    cards = {name: environment.gpu_uuid for name, environment in H100.environments().items()}
    both = pairs(p for p in H100.points() if cards[p.environment].startswith("fd8e4ebc"))
    again = compare(list(both.values()))
    held, of = again.held, len(again.ratios)
    assert said(f"| ratios of other implementations to FA3 | {held} of {of} ({100 * held / of:.1f} %) |")
    held, of = again.times_held, again.times
    assert said(f"| times of all implementations | {held} of {of} ({100 * held / of:.1f} %) |")
    assert {workload.causal for _, workload in both} == {False}
    current = override.find("improved_plus", Specialization()).sha256
    assert {run["improved_plus"].override_sha256 for runs in both.values() for run in runs} == {current}
    assert said(f"The two runs of Fig. 12 have {len(both)} of the figure's 16 shapes in common")
    values = [re.search(r" (\S+) \(.*then (\S+)", line).groups() for line in again.missed]
    off = [abs(float(second) / float(first) - 1) for first, second in values]
    assert said(f"The {len(off)} ratios that lie outside of the first run's intervals")
    assert said(f"differ from the first run's ratios by at most {100 * max(off):.1f} %")
    assert said(f"The table leaves out {len(again.retuned)} ratios")
    waited = [p.idle_share for p in STORE.points() if p.status == "ok" and p.idle_share is not None]
    share_waited = f"{100 * max(waited):.1f} %"
    assert said(f"the GPU waits for at most {share_waited} of the time in which a point of Fig. 12 is measured")
    points = [p for p in STORE.points() if p.run in newest]
    of_kinds = [p for p in Store(STORE.folder, "fig12_inputs").points() if p.status == "ok"]
    assert said(f"{share(sum(p.shifts for p in points), len(points))} of the {len(points)} recorded points of Fig. 12")
    assert said(
        f"{share(sum(p.shifts for p in of_kinds), len(of_kinds))} of the {len(of_kinds)} points of `make inputs`"
    )
    assert sum(p.shifts for p in points) <= 0.06 * len(points)


def test_the_pages_say_how_many_rounds_a_record_has():
    def fewest(points):
        return min(len(point.samples_ms) for point in points if point.status == "ok")

    def of_figure(store, mode):
        return fewest(point for run in fig12.figure_runs(store, mode).values() for point in run.values())

    (usual,) = {of_figure(store, mode) for store in (STORE, H100) for mode in MODES[:2]}
    (others,) = {of_figure(STORE, mode) for mode in ON_AN_H200[2:]}
    (longer,) = {of_figure(H100, mode) for mode in MODES[2:5]}
    kinds = {fewest(Store(store.folder, "fig12_inputs").points()) for store in (STORE, H100)}
    assert said(
        f"Our recorded runs of Fig. 12 (without a mask and causal) and of `make inputs` have {usual} rounds. Our "
        f"recorded runs for head_dim 64, and for float16 without a mask, have {others} rounds on H200s and {longer} on "
        "H100s."
    )
    assert kinds == {of_figure(H100, MODES[5])} == {usual}


def test_the_pages_say_what_a_sweep_over_two_gpus_took():
    sweeps = walltime.SweepStore(RECORDED / "h200").points()
    (spread,) = (sweep for sweep in sweeps if len(sweep.gpus) > 1)
    cards = {name: environment.gpu_uuid[:8] for name, environment in STORE.environments().items()}
    alone = [one.seconds for one in sweeps if spread.same_work(one) and cards[one.gpus[0].environment] == "e3f95cb6"]
    assert len(spread.gpus) == 2
    assert said(
        f"Two H200s of one host measured the {len(spread.places)} causal shapes of Fig. 12 in {spread.seconds:.0f} s, "
        f"after {spread.start_s:.0f} s to start. One H200 alone measured the {len(spread.places)} causal shapes in "
        f"{min(alone):.0f} s and, in a second run, in {max(alone):.0f} s."
    )
    runs = [p for p in STORE.points() if p.run in spread.runs]
    found = agreement(on_several(runs, STORE.environments()).values())
    assert (found.times_held, found.ratios_held) == (found.times, found.ratios)
    assert said(
        f"each of the {found.times} times and each of the {found.ratios} ratios to FA3 lies in the other H200's 95 % "
        "interval"
    )


def test_improved_plus_is_called_eagerly_in_less_time_than_fa3_at_every_point():
    for causal in (False, True):
        runs = fig12.figure_runs(STORE, fig12.Mode(causal))
        assert all(run["improved_plus"].eager_ms < run["fa3"].eager_ms for run in runs.values())
    run = next(
        r for (sweep, w), r in fig12.figure_runs(STORE, fig12.Mode()).items() if (w.batch, w.seq_len) == (16, 128)
    )
    ours, fa3 = (f"{run[key].eager_ms * 1e3:.0f}" for key in ("improved_plus", "fa3"))
    assert said(f"{ours} us against {fa3} us at batch 16 and seq_len 128")


@pytest.mark.parametrize("variant", ["vanilla", "improved"])
def test_the_verdict_blames_no_load_that_a_what_if_saving_acquits(variant):
    timeline = read_timeline(RECORDED / "h200" / "fig11" / f"{variant}.timeline.json")
    assert abs(timeline.replay.error) < 0.02
    words = " ".join(verdict(timeline))
    assert "loads are on the critical path" not in words
    assert re.search(r"if no load took any time, an iteration would take at most \d{2,3} cycles less", words)


@pytest.mark.parametrize("backward", [False, True])
def test_the_pages_say_what_was_recorded_of_attention_at_large(backward):
    shape = Workload(batch=4, seq_len=8192, backward=backward)
    points = [point for point in Store(RECORDED / "h200", "attention").points() if point.workload == shape]
    fastest = sorted((p for p in points if p.status == "ok"), key=lambda p: -p.tflops)
    labels = {**{key: IMPLEMENTATIONS[key].label for key in IMPLEMENTATIONS}, "flex": "flex_attention"}
    labels |= {"improved_plus": "Improved+", "improved": "Improved"}
    assert len(fastest) == (6 if backward else 14)
    assert said(", ".join(f"{labels[p.implementation]} {p.tflops:.0f}" for p in fastest))


def test_the_pages_say_what_was_recorded_of_the_llama_block():
    rows = RecordStore(RECORDED / "h100-80gb-hbm3", llama_block.NAME, llama_block.ROWS).points()
    rows = [row for row in rows if row.run == rows[-1].run]
    for backward, words in ((False, "{:.3f} x with {} ({:.3f} to {:.3f})"), (True, "{:.3f} x with {}")):
        torchs, *others = (row for row in rows if row.backward == backward)
        assert [row.implementation for row in others] == ["fa3", "improved_plus"]
        for row, label in zip(others, ("FA3", "Improved+"), strict=True):
            value, *interval = interleaved.speedup(row, torchs)
            assert said(words.format(value, label, *interval))


@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 8), (64, 8), (32, 1)])
def test_the_pages_say_what_was_recorded_of_groups_of_heads(heads, kv_heads):
    shape = {"batch": 4, "heads": heads, "kv_heads": kv_heads, "causal": True}
    points = [p for p in Store(RECORDED / "h100-80gb-hbm3", "attention").points() if p.status == "ok"]
    times = {
        (point.implementation, seq_len): point.median_ms
        for point in points
        for seq_len in (512, 1024, 2048, 4096, 8192, 16384)
        if point.workload == Workload(**shape, seq_len=seq_len)
    }
    lengths = sorted({seq_len for key, seq_len in times if key == "improved_plus_views"})
    ratios = [times["fa3", seq_len] / times["improved_plus_views", seq_len] for seq_len in lengths]
    assert len(ratios) == 6
    assert said(
        f"| {heads} heads of q, {kv_heads} head{'s'[: kv_heads - 1]} of k and v, on an H100 | "
        + " | ".join(f"{ratio:.3f}" for ratio in ratios)
        + " |"
    )
    if (heads, kv_heads) == (32, 8):  # a row of improved_plus.md
        assert said(f"least and greatest of seq_len 512 to 16384 | H100 | - | {min(ratios):.3f} to {max(ratios):.3f} |")


def test_the_pages_say_what_was_recorded_of_sequences_of_different_lengths():
    rows = RecordStore(RECORDED / "h100-80gb-hbm3", varlen.NAME, varlen.ROWS).points()
    rows = [row for row in rows if row.run == rows[-1].run]
    ours = [row for row in rows if row.implementation == varlen.OURS and not row.equal]
    assert {row.case: row.seq_lens for row in ours} == varlen.CASES
    over_fa3 = {False: [], True: []}
    for row in ours:
        fa3, torchs = (varlen.counterpart(row, rows, key, equal=False) for key in (varlen.FA3, varlen.TORCH))
        equal = varlen.counterpart(row, rows, varlen.OURS, equal=True)
        over_fa3[row.causal].append(interleaved.speedup(row, fa3)[0])
        few, many = min(row.seq_lens), max(row.seq_lens)
        assert said(
            f"| {row.case}: {len(row.seq_lens)} sequences of {few} to {many} tokens "
            f"| {'causal' if row.causal else 'no mask'} | "
            f"{row.tflops:.0f} | {over_fa3[row.causal][-1]:.3f} | {interleaved.speedup(row, torchs)[0]:.2f} | "
            f"{varlen.over_equal(row, equal)[0]:.3f} |"
        )
    full, causal = (f"{min(ratios):.3f} to {max(ratios):.3f}" for ratios in over_fa3.values())
    assert said(f"least and greatest of four sets of sequences | H100 | {full} | {causal} |")
    at_equal = [row for row in rows if row.implementation == varlen.OURS and row.equal]
    slower = [interleaved.speedup(varlen.counterpart(row, rows, varlen.DENSE, equal=True), row)[0] for row in at_equal]
    assert said(f"takes {min(slower):.2f} to {max(slower):.2f} times as long as the torch operator `attention`")
    short = varlen.CASES["short"]
    in_tiles = sum((-(-length // 128) * 128) ** 2 for length in short) / sum(length**2 for length in short)
    assert said(f"and so computes {in_tiles:.2f} times the FLOPs of the short sequences")


def test_the_pages_say_how_often_samples_agree_with_a_planted_fault():
    agreements = []
    for row in proof.recorded_run(RECORDED / "h200", held_out=False).rows:
        named = [
            finding
            for kernel in row.kernels
            for finding in kernel.findings
            if row.fault and (finding.id, finding.source.line) == (row.fault, row.line)
        ]
        if named:
            witness = named[0].witness
            agreements.append("none" if witness is None else witness.agreement)
    counts = Counter(agreements)
    assert said(
        f"On an H200, findings name the fault of {len(agreements)} kernels of the [proof set](proof.md): samples agree "
        f"with {counts['agrees']} of these {len(agreements)} findings, disagree with {counts['disagrees']}, and "
        f"neither agree nor disagree with {counts['none']}"
    )


def test_the_pages_say_what_events_cost():
    def percent(share):
        return f"{100 * share:.1f} %"

    costs = {cost.kernel: cost for cost in fig13.kernel_costs(RECORDED / "h200")}
    found = fig13.summary(RECORDED / "h200").numbers
    added = [cost.ratio - 1 for cost in costs.values()]
    assert said(f"vanilla and improved | {percent(found['fig13 mean'])} | {percent(found['fig13 worst'])} |")
    slowed = f"{percent(statistics.fmean(added))} | {percent(max(added))} |"
    assert said(f"| all {len(costs)} recorded kernels of the examples and of Fig. 11 | {slowed}")
    vanilla, improved, plus = (
        percent(max(costs[name].several) - 1) for name in ("vanilla", "improved", "improved_plus")
    )
    assert said(
        f"makes a launch of vanilla {vanilla} slower, of improved {improved} and of Improved+ {plus}. Improved+"
    )
    choices = {cost.choice: percent(cost.ratio - 1) for cost in fig13.choices(RECORDED / "h200")["vanilla"]}
    mmas_alone, all_events = choices["matrix products only"], choices["as recorded"]
    assert said(f"takes {mmas_alone} longer with events only at MMAs, and {all_events} longer with all events.")


def test_the_pages_say_what_was_recorded_of_tritonbench():
    rows = RecordStore(RECORDED / "h100-80gb-hbm3", "tritonbench", tritonbench.ROWS).points()
    newest = [row for row in rows if row.run == rows[-1].run and row.off]
    off = [statistics.median(row.off) for row in newest]
    within = [one for one in off if abs(one) <= tritonbench.GOAL]
    assert said(
        f"In {len(within)} of the {len(off)} cases, the TFLOPS through run.py and the TFLOPS of the direct call differ "
        "by at most 3 %."
    )
    at_8192 = [(row.implementation, row.timer, one) for row, one in zip(newest, off, strict=True)][:4]
    (beyond,) = (case for case in at_8192 if abs(case[2]) > tritonbench.GOAL)
    assert beyond[:2] == ("improved_plus", "do_bench")
    assert said(
        f"At 8 x 8192 with `do_bench`, Improved+ reaches {-beyond[2]:.1%}"[:-1] + " % fewer TFLOPS through run.py"
    )
    assert said(
        f"At 8 x 512 with `do_bench`, Improved+ reaches {-min(off):.1%}"[:-1] + " % fewer TFLOPS through run.py"
    )
    graphs = [one for row, one in zip(newest, off, strict=True) if "cudagraph" in row.timer]
    assert newest[-1].workload.seq_len == 512
    graph = f"{-graphs[-1]:.1%}"[:-1]
    assert said(f"With `--cudagraph`, at 8 x 512, Improved+ reaches only {graph} % fewer TFLOPS through run.py")


def test_no_record_names_a_file_by_a_folder_of_the_machine_it_was_made_on():
    records = sorted(RECORDED.glob("*/*.jsonl"))
    assert records
    assert not [path for path in records if '"file":"/' in path.read_text().replace('"file": "', '"file":"')]
