"""The structure of a traced kernel, by this generator or edited by hand."""

import gzip
import re
from pathlib import Path

import pytest

from kperf.attention.overrides import TTGIR_DIR
from kperf.errors import UsageError
from kperf.paper.instrumented import RULES
from kperf.trace.instrument.events import instrument
from kperf.trace.instrument.program import Interval, read_program

TEXT = (TTGIR_DIR / "vanilla" / "d128_bf16_full.ttgir").read_text()
TRACED = instrument(TEXT, rules=RULES)
PROGRAM = read_program(TRACED, RULES)
IMPROVED_PLUS = (TTGIR_DIR / "improved_plus" / "d128_bf16_full.ttgir").read_text()
PERSISTENT = read_program(instrument(IMPROVED_PLUS, rules=RULES), RULES)
# An earlier form, which computed tiles that overflowed once more at its end: two loops over tiles, one in that of runs.
TWO_RUNS = gzip.decompress(Path(__file__).with_name("two_runs.ttgir.gz").read_bytes()).decode()
OF_TWO_RUNS = read_program(instrument(TWO_RUNS, rules=RULES), RULES)


def test_warp_groups_are_named_by_what_they_do_and_placed_as_triton_places_them():
    assert [(group.name, group.first_warp, group.num_warps) for group in PROGRAM.groups] == [
        ("consumer 0", 0, 4),
        ("consumer 1", 4, 4),
        ("producer", 10, 1),
    ]


def test_scopes_are_numbered_as_proton_numbers_them():
    from triton._C.libtriton import proton

    from kperf.ir.compile import parse_ttgir

    assert [(scope.number, scope.name) for scope in PROGRAM.scopes] == sorted(
        proton.get_scope_id_names(parse_ttgir(TRACED))
    )


def test_gaps_are_named_by_what_stands_in_them():
    found = {(interval.group, interval.name): interval.kind for interval in PROGRAM.intervals.values()}
    assert found["consumer 0", "QK issue"] == "issue"
    assert found["consumer 0", "softmax"] == "arithmetic"
    assert found["consumer 1", "PV wait"] == "tensor"
    assert found["producer", "wait K empty"] == "wait"


def test_what_stands_between_two_turns_of_a_region_is_not_called_by_the_region():
    program = read_program(instrument(TEXT, regions=("PV wait",), rules=RULES), RULES)
    numbers = [scope.number for scope in program.scopes if scope.name == "PV wait"]
    called = {key for key, interval in program.intervals.items() if interval.name == "PV wait"}
    assert called == {((number, True), (number, False)) for number in numbers}
    assert sum(((number, False), (number, True)) in program.intervals for number in numbers) == 2


def test_every_record_can_be_followed_by_another_except_the_last_of_a_group():
    followed = {first for first, _ in PROGRAM.intervals}
    marks = {(scope.number, start) for scope in PROGRAM.scopes for start in (True, False)}
    ends = {(scope.number, False) for scope in PROGRAM.scopes if scope.name.startswith("lifetime")}
    assert marks - followed == ends


def test_mmas_are_counted():
    in_loop = [
        interval for interval in PROGRAM.intervals.values() if interval.issues and interval.group == "consumer 0"
    ]
    assert sum(interval.flop for interval in in_loop) == 2 * 2 * 64 * 128 * 128


def test_sibling_loops_with_the_same_names_are_told_apart():
    # Both loops over tiles use one name for what they carry; either waits for the same rings.
    waits: dict[tuple[int, ...], list[str]] = {}
    for scope in OF_TWO_RUNS.scopes:
        if scope.group == "consumer 1" and scope.name.startswith("wait "):
            waits.setdefault(scope.loops, []).append(scope.name)
    tile, blocks = ["wait K+V full", "wait Q full", "wait turn"], ["wait turn", "wait K+V full"]
    before, first, first_blocks, run, again, again_blocks = sorted(waits)
    assert [first_blocks[:-1], first[:-1]] == [first, ()]
    assert [again_blocks[:-1], again[:-1], run[:-1]] == [again, run, ()]
    assert [waits[first], waits[first_blocks], waits[again], waits[again_blocks]] == [tile, blocks, tile, blocks]
    assert waits[before] == ["wait Q full", "wait K+V full"]
    assert waits[run] == ["wait all", *waits[before]]


def test_a_wait_before_a_load_of_the_groups_own_guards_nothing():
    # A consumer takes turns, and then loads what no other group waits for.
    load = (
        "ttng.async_tma_copy_global_to_local %arg15[%c0_i32, %c0_i32] %28, %9, %true : "
        "!tt.tensordesc<tensor<64x128xbf16, #shared>>, !ttg.memdesc<1xi64, #shared1, #smem, mutable> "
        "-> !ttg.memdesc<64x128xbf16, #shared, #smem, mutable>"
    )
    text, places = re.subn(
        r'(\n *)(%\d+ = tt.elementwise_inline_asm "bar.sync \$1, 256;.*)', rf"\1\2\1{load}", TWO_RUNS, count=1
    )
    program = read_program(instrument(text, rules=RULES), RULES)
    loads = {name for interval in program.intervals.values() for name, _ in interval.loads}
    assert (places, loads) == (1, {"Q", "K", "K+V", "O"})
    assert not [scope.name for scope in program.scopes if scope.name == "wait O empty"]


def test_named_barriers_guard_buffers_or_give_turns():
    def intervals(group: str, name: str) -> list[Interval]:
        return [i for i in PERSISTENT.intervals.values() if i.group == group and i.name == name]

    (empty,) = intervals("producer", "wait K+V empty")[0].waits
    turns = []
    for group in ("consumer 0", "consumer 1"):
        # At first all three stages are empty.
        assert max(i.signals.count(empty) for i in PERSISTENT.intervals.values() if i.group == group) == 3
        turns += intervals(group, "wait turn")[0].waits
    assert [intervals(group, "QK issue + PV issue")[0].signals for group in ("consumer 1", "consumer 0")] == [
        (turn,) for turn in turns
    ]
    assert {PERSISTENT.stages[stage_ring] for stage_ring in (empty, *turns)} == {0}


def test_a_named_barrier_at_which_all_wait_is_none_of_a_ring_of_as_many_threads():
    # Barriers 8 to 10 say that a pair is read; at barrier 6, of 288 threads too, the groups meet.
    waiting = {
        name: {(i.group, i.waits) for i in OF_TWO_RUNS.intervals.values() if i.name == name}
        for name in ("wait all", "wait K+V empty")
    }
    ((_, empty),) = waiting["wait K+V empty"]
    ((met,),) = {waits for _, waits in waiting["wait all"]}
    assert {group for group, _ in waiting["wait all"]} == {"consumer 0", "consumer 1", "producer"}
    assert (met,) != empty
    assert not [i for i in OF_TWO_RUNS.intervals.values() if met in i.signals]


def test_a_named_barrier_whose_number_may_be_any_is_one_of_all_of_as_many_threads():
    # Where a stage is doubled nothing says from which number on its barriers are.
    text, places = re.subn(r"(%\d+ = arith)\.addi (%[\w#]+), %c8_i32\w* : i32", r"\1.addi \2, \2 : i32", TWO_RUNS)
    program = read_program(instrument(text, rules=RULES), RULES)
    assert places > 0
    assert len({i.waits for i in program.intervals.values() if i.name == "wait Q+K+V empty"}) == 1
    assert not [i for i in program.intervals.values() if i.name == "wait all"]


def test_a_pair_under_one_barrier_is_one_load():
    loads = {name for interval in PERSISTENT.intervals.values() for name, _ in interval.loads}
    assert loads == {"Q", "K", "K+V"}
    assert all(len(interval.loads) <= 1 for interval in PERSISTENT.intervals.values())


def test_a_hand_edited_instrumented_kernel_is_read():
    lines = TRACED.splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if "math.exp2" in line)
    lines[at : at + 1] = ['proton.record start "my exp"\n', lines[at], 'proton.record end "my exp"\n']
    program = read_program("".join(lines))
    assert "my exp" in {interval.name for interval in program.intervals.values()}


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text.replace('proton.record end "QK wait"\n', "", 1), "has no partner|not ended"),
        (lambda text: text.replace('proton.record start "QK wait"\n', "", 1), "has no partner"),
        (lambda text: text.replace('proton.record start "QK wait"', "proton.record begin", 1), "a record reads"),
        (lambda text: TEXT, "has no events"),
    ],
    ids=["no end", "no start", "other word", "plain"],
)
def test_unbalanced_records_are_refused(edit, said):
    with pytest.raises(UsageError, match=said):
        read_program(edit(TRACED))
