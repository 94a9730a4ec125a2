"""Choosing by records: the nearest measured shapes decide, ties and gaps are said, and the regret is what it cost."""

import re
from typing import get_args
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.attention.implementations import FIG12
from kperf.attention.variants import VARIANTS
from kperf.attention.workload import InputKind, Workload
from kperf.bench.points import Store
from kperf.errors import UsageError
from kperf.record.store import RECORDED
from kperf.tune import choose as chooser
from kperf.tune.choose import (
    REGRET_GOAL,
    _best_single,
    choose,
    crossovers,
    distance,
    measured_runs,
    recorded_points,
    regrets,
    sentence,
)
from tests.command import kperf
from tests.conftest import environment, failed, point
from tests.pages import said


def shape(seq_len, batch=16, **more):
    return Workload(batch=batch, seq_len=seq_len, **more)


def recorded(times, **kind):
    """Points of {seq_len: {implementation: milliseconds}}, a run each."""
    return [
        point(key, milliseconds, run=f"r{seq_len}", workload=shape(seq_len, **kind))
        for seq_len, run in times.items()
        for key, milliseconds in run.items()
    ]


KEYS = ["fa2", "fa3", "cudnn"]
CROSSING = {
    256: {"fa3": 1.5, "cudnn": 1.0},
    512: {"fa3": 1.2, "cudnn": 1.0},
    1024: {"fa3": 1.0, "cudnn": 1.5},
    2048: {"fa3": 1.0, "cudnn": 1.3},
}


@pytest.mark.parametrize(("seq_len", "key", "ratio"), [(512, "cudnn", 1.2), (2048, "fa3", 1.3)])
def test_of_a_measured_shape_the_fastest_is_chosen(seq_len, key, ratio):
    choice = choose(shape(seq_len), measured_runs(recorded(CROSSING), KEYS))
    assert (choice.key, choice.distance, choice.nearest, choice.ties) == (key, 0, (shape(seq_len),), ())
    assert choice.ratio[0] == pytest.approx(ratio)
    assert choice.ratio[1] < ratio < choice.ratio[2]
    assert "measured at this shape" in sentence(shape(seq_len), choice)


def test_between_measured_shapes_both_speak():
    choice = choose(shape(768), measured_runs(recorded(CROSSING), KEYS))
    assert set(choice.nearest) == {shape(512), shape(1024)}
    assert choice.key == "fa3"
    assert choice.ratio[0] == pytest.approx((1.5 / 1.2) ** 0.5)
    assert not choice.gap
    said = sentence(shape(768), choice)
    assert "; not measured at this shape, but at 16 x 16 x 1024 and 16 x 16 x 512, the nearest a factor of 1.33" in said


def test_far_from_all_it_says_that_there_is_a_gap():
    choice = choose(shape(16384), measured_runs(recorded(CROSSING), KEYS))
    assert (choice.distance, choice.gap) == (3, True)
    assert "a gap, so measure it" in sentence(shape(16384), choice)


def test_the_distance_is_in_factors_of_two_of_rows_and_of_heads():
    assert distance(shape(512), shape(1024)) == 1
    assert distance(shape(512), shape(512, batch=4)) == 2
    assert distance(shape(512, batch=16, heads=4), shape(512, batch=4, heads=16)) == 0
    assert distance(shape(512), shape(4096, batch=1)) == 5


@pytest.mark.parametrize(("low", "ties"), [(0.999, ("fa3",)), (1.0, ("fa3",)), (1.001, ())])
def test_an_interval_that_holds_1_is_a_tie(monkeypatch, low, ties):
    monkeypatch.setattr("kperf.tune.choose.speedup_interval", lambda *_: (1.2, low, 1.4))
    assert choose(shape(512), measured_runs(recorded(CROSSING), KEYS)).ties == ties


def test_what_the_intervals_do_not_tell_apart_is_a_tie():
    times = {512: {"fa2": 2.0, "fa3": 1.002, "cudnn": 1.0}}
    choice = choose(shape(512), measured_runs(recorded(times), KEYS))
    assert (choice.key, choice.second, choice.ties) == ("cudnn", "fa3", ("fa3",))
    assert "a tie with fa3 within the intervals" in sentence(shape(512), choice)


def test_only_what_can_run_the_workload_and_is_measured_at_all_of_the_nearest_is_chosen():
    times = {256: {"fa2": 2.0, "fa3": 1.0}, 512: {"fa2": 2.0}}
    runs = measured_runs([*recorded(times), failed("fa3", run="r512", workload=shape(512))], KEYS)
    assert choose(shape(384), runs).key == "fa2"
    assert "the only one recorded" in sentence(shape(384), choose(shape(384), runs))
    half = measured_runs(recorded({512: {"fa3": 0.5, "cudnn": 1.0}}, dtype="float16"), KEYS)
    assert choose(shape(512, dtype="float16"), half).key == "cudnn"  # whatever a record says, FA3 has no float16


@pytest.mark.parametrize("other", [{"head_dim": 64}, {"causal": True}, {"dtype": "float16"}, {"inputs": "local"}])
def test_another_kind_says_nothing(other):
    with pytest.raises(UsageError, match="`kperf bench` measures it"):
        choose(shape(512, **other), measured_runs(recorded(CROSSING), KEYS))


def test_the_newest_whole_run_speaks():
    old = [point(key, ms, run="old", workload=shape(512)) for key, ms in {"fa3": 1.0, "cudnn": 2.0}.items()]
    new = [
        point(key, ms, run="new", workload=shape(512), sweep=sweep, recorded_at="2026-02-02T03:04:05+00:00")
        for sweep in ("seq_len",)
        for key, ms in {"fa3": 2.0, "cudnn": 1.0}.items()
    ]
    part = [point("fa3", 0.1, run="part", workload=shape(512), recorded_at="2026-03-02T03:04:05+00:00")]
    assert choose(shape(512), measured_runs([*old, *new, *part], KEYS)).key == "cudnn"
    elsewhere = [one.model_copy(update={"sweep": "batch_size"}) for one in old]
    assert choose(shape(512), measured_runs([*new, *elsewhere], KEYS)).key == "cudnn"


def test_the_regret_is_that_of_shapes_that_were_left_out():
    found = {regret.workload.seq_len: regret for regret in regrets(measured_runs(recorded(CROSSING), KEYS))}
    # Without 512 its neighbours 256 (1.5 for cudnn) and 1024 (1.5 for fa3) weigh the same; fa3 comes first.
    assert found[512].chosen == "fa3"
    assert found[512].value == pytest.approx(0.2)
    assert found[256].chosen == "fa3"  # from 512 (1.2 for cudnn) and 1024 (1.5 for fa3)
    assert found[256].value == pytest.approx(0.5)
    assert found[2048].value == 0
    assert [found[n].distance for n in (256, 512, 1024, 2048)] == [1, 1, 1, 1]
    alone = recorded({512: {"fa3": 1.0}}, causal=True)
    assert regrets(measured_runs(alone, KEYS)) == []
    assert len(regrets(measured_runs([*alone, *recorded(CROSSING)], KEYS))) == len(CROSSING)


def test_crossovers_cut_where_the_fastest_changes():
    rows = [([w.seq_len for w in workloads], choice.key) for workloads, choice in crossovers(
        measured_runs(recorded(CROSSING), KEYS))]  # fmt: skip
    assert rows == [([256, 512], "cudnn"), ([1024, 2048], "fa3")]


@pytest.mark.parametrize(("other", "rows"), [((8, 512), [2]), ((8, 1024), [1, 1]), ((4, 1024), [2])])
def test_shapes_of_a_row_are_of_one_batch_or_of_one_length(other, rows):
    points = [
        point(key, milliseconds, run=f"r{batch}", workload=shape(seq_len, batch))
        for batch, seq_len in ((4, 512), other)
        for key, milliseconds in (("fa3", 1.0), ("cudnn", 1.5))
    ]
    assert [len(workloads) for workloads, _ in crossovers(measured_runs(points, KEYS))] == rows


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.sampled_from([128, 256, 512, 1024, 2048, 4096]),
        st.fixed_dictionaries({key: st.floats(3, 12) for key in KEYS}),
        min_size=2,
    )
)
def test_choosing_a_measured_shape_costs_nothing_and_a_left_out_one_never_less(times):
    runs = measured_runs(recorded(times), KEYS)
    for seq_len, run in times.items():
        assert run[choose(shape(seq_len), runs).key] == pytest.approx(min(run.values()), rel=1e-12)
    assert all(regret.value >= 0 for regret in regrets(runs))
    assert sum(len(workloads) for workloads, _ in crossovers(runs)) == len(times)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (FIG12, "the mean regret is {:.2f} % if `kperf choose` may choose from all implementations"),
        (
            [key for key in FIG12 if key not in VARIANTS],
            "and {:.2f} % if it may choose only from FA2, cuDNN, FA3 and Triton",
        ),
    ],
)
def test_on_the_recorded_runs_choosing_costs_what_the_pages_say(keys, words):
    found = regrets(measured_runs(recorded_points(RECORDED / "h200"), keys))
    assert len(found) > 70
    mean = sum(regret.value for regret in found) / len(found)
    assert mean <= REGRET_GOAL
    assert said(words.format(100 * mean))


def test_the_page_says_at_how_many_recorded_shapes_ours_is_the_fastest():
    found = regrets(measured_runs(recorded_points(RECORDED / "h200"), FIG12))
    ours = sum(regret.best == "improved_plus" for regret in found)
    assert said(f"Improved+ is the fastest at {ours} of the {len(found)} shapes")
    assert said("we measured 16 x 512, 16 x 1024, 16 x 4096 and 16 x 8192 (batch x seq_len)")
    others = [one.workload for one in found if one.workload.inputs != "normal"]
    assert {workload.seq_len for workload in others} == {512, 1024, 4096, 8192}
    assert all(one.distance <= 1 for one in found)


@pytest.mark.parametrize("inputs", get_args(InputKind))
def test_every_kind_of_inputs_is_chosen_for_by_what_was_measured_on_it(inputs):
    runs = measured_runs(recorded_points(RECORDED / "h200"), FIG12)
    choice = choose(Workload(batch=16, seq_len=512, causal=True, inputs=inputs), runs)
    assert choice.distance == 0


def a_hundred_times(times):
    """So long that no GPU is too fast for the longest shape."""
    return {seq_len: {key: 100 * each for key, each in run.items()} for seq_len, run in times.items()}


def tables(points, results, keys=None):
    """The cells of both tables that `kperf choose` prints, and the caption of the second."""
    with Store(results / "h200").writer() as writer:
        writer.append(points)
        writer.record_environment(environment())
    console = Mock()
    chooser.run(console, results, None, keys)
    shown = [call.args[0] for call in console.print.call_args_list]
    cells = [[list(row) for row in zip(*(column.cells for column in table.columns), strict=True)] for table in shown]
    return *cells, shown


def test_the_table_of_crossovers_has_a_row_for_each_stretch_and_a_line_between_kinds(tmp_path):
    """A stretch of three shapes, and of one; ties, a shape that one alone can run, and another kind."""
    times = {
        128: {"fa2": 2.0, "fa3": 1.0}, 256: {"fa2": 3.0, "fa3": 1.0}, 512: {"fa2": 4.0, "fa3": 1.0},
        1024: {"fa2": 1.0, "fa3": 1.5}, 2048: {"fa2": 1.0, "fa3": 1.002}, 4096: {"fa2": 1.0},
    }  # fmt: skip
    points = [*recorded(a_hundred_times(times)), *recorded({256: {"fa2": 1.0, "fa3": 2.0}}, causal=True)]
    rows, _, shown = tables(points, tmp_path, ["fa2", "fa3"])
    kind = ["128", "bfloat16", "full", "normal", "16 x 16"]
    assert rows == [
        [*kind, "128 to 512", "fa3", "2.000 of fa2 at 16 x 128", "-"],
        [*kind, "1024", "fa2", "1.500 of fa3 at 16 x 1024", "-"],
        [*kind, "2048", "fa2", "1.002 of fa3 at 16 x 2048", "fa3"],
        [*kind, "4096", "fa2", "-", "-"],
        [*kind[:2], "causal", *kind[3:], "256", "fa2", "2.000 of fa3 at 16 x 256", "-"],
    ]
    assert [row.end_section for row in shown[0].rows] == [False, False, False, True, False]


def test_the_table_of_regrets_counts_and_names_the_worst_and_the_best_single_one(tmp_path):
    """As `test_the_regret_is_that_of_shapes_that_were_left_out` has them: 0.5, 0.2 and 0.5 of three, none of one."""
    points = recorded(a_hundred_times(CROSSING | {8192: {"fa3": 1.0, "cudnn": 1.25}}))
    found = regrets(measured_runs(points, KEYS))
    values = {regret.workload.seq_len: regret.value for regret in found}
    assert values == {256: 0.5, 512: pytest.approx(0.2), 1024: pytest.approx(0.0), 2048: 0.0, 8192: 0.0}
    _, rows, shown = tables(points, tmp_path, ["fa3", "cudnn"])
    mean = f"{(0.5 + 0.2) / 5:.2%}"
    where = "50.0%, fa3 for cudnn on 16 x 16 x 256 x 128 bfloat16 full"
    assert rows == [["fa3, cudnn", "5", "2", mean, where, f"fa3, {(0.5 + 0.2) / 5:.2%}"]]
    assert "at most a factor of 4 away" in shown[1].caption  # 8192 of 2048; all others are 1 apart


def test_without_names_the_regret_is_told_with_and_without_ours(tmp_path):
    times = {256: {"fa3": 1.0, "improved_plus": 2.0}, 512: {"fa3": 1.0, "improved_plus": 2.0}}
    _, rows, _ = tables(recorded(times), tmp_path)
    assert [(row[0], row[1]) for row in rows] == [("all", "2"), ("without ours", "0")]
    assert rows[1][2:] == ["-", "-", "-", "-"]
    assert rows[0][2:] == ["0", "0.00%", "0", "fa3, 0.00%"]


def test_of_a_shape_alone_the_table_of_regrets_has_both_rows_and_no_numbers(tmp_path):
    _, rows, _ = tables(recorded({256: {"fa3": 1.0, "cudnn": 2.0, "improved_plus": 3.0}}), tmp_path)
    assert rows == [[name, "0", "-", "-", "-", "-"] for name in ("all", "without ours")]


def test_the_best_single_one_is_of_those_that_all_runs_have():
    times = {256: {"fa2": 1.0, "fa3": 1.5}, 512: {"fa2": 4.0, "fa3": 2.0, "cudnn": 1.0}, 1024: {"cudnn": 1.0}}
    key, regret = _best_single(measured_runs(recorded(times), KEYS))
    assert (key, regret) == ("fa3", pytest.approx((0.5 + 1.0) / 2))
    apart = {256: {"fa2": 1.0, "fa3": 1.5}, 512: {"cudnn": 1.0, "triton": 2.0}}
    assert _best_single(measured_runs(recorded(apart), [*KEYS, "triton"])) is None


def test_of_two_runs_as_full_the_newer_speaks_and_of_two_sweeps_the_fuller():
    times = ("2026-02-02T03:04:05+00:00", "2026-03-02T03:04:05+00:00")
    older, newer = (
        [
            point(key, milliseconds, run=at, workload=shape(512), sweep=sweep, recorded_at=at)
            for key, milliseconds in (("fa3", first), ("cudnn", 2.0))
        ]
        for at, sweep, first in zip(times, ("seq_len", "batch_size"), (1.0, 3.0), strict=True)
    )
    mixed = [*older[:1], older[1].model_copy(update={"recorded_at": "2026-01-01T00:00:00+00:00"})]
    for points in ([*mixed, *newer], [*newer, *mixed]):
        assert choose(shape(512), measured_runs(points, KEYS)).key == "cudnn"
    assert choose(shape(512), measured_runs([*newer[:1], *older], KEYS)).key == "fa3"
    at_once = [one.model_copy(update={"recorded_at": times[0]}) for one in newer]
    for points, key in (([*older, *at_once], "fa3"), ([*at_once, *older], "cudnn")):
        assert choose(shape(512), measured_runs(points, KEYS)).key == key, "of one second the first that is read"


def test_the_command_says_what_to_use_and_where_it_changes(tmp_path):
    with Store(tmp_path / "h200").writer() as writer:
        writer.append(recorded(CROSSING))
        writer.record_environment(environment())
    said = kperf("choose", "--seq-len", "9", "--only", "fa3,cudnn", "--results", tmp_path)
    assert said.returncode == 0, said.stderr
    assert re.match(
        r"16 x 16 x 512 x 128 bfloat16 full: cudnn, 1\.200 \(1\.\d+ to 1\.\d+\) times as fast as fa3", said.stdout
    )
    table = kperf("choose", "--only", "fa3,cudnn", "--results", tmp_path, COLUMNS="200").stdout
    assert re.search("┃ seq_len +┃ fastest +┃ over the second +┃ tie", table)
    assert re.search("┃ chosen from +┃ shapes +┃ wrong +┃ mean +┃ largest, and where", table)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in table.splitlines()]
    kind = ["128", "bfloat16", "full", "normal", "16 x 16"]
    assert [*kind, "256 to 512", "cudnn", "1.500 of fa3 at 16 x 256", "-"] in rows
    assert [*kind, "1024 to 2048", "fa3", "1.500 of cudnn at 16 x 1024", "-"] in rows
    assert re.search(r"fa3, cudnn +│ 4 +│ 2 ", table)
    assert kperf("choose", "--results", "/nonexistent").returncode == 2
    assert "unknown implementation 'fa9'" in kperf("choose", "--only", "fa9", "--results", tmp_path).stderr
    far = kperf("choose", "--seq-len", "512", "--d-head", "64", "--results", tmp_path)
    assert far.returncode == 2
    assert far.stderr.count("\n") == 1
