"""The structure of a traced kernel, by this generator or edited by hand."""

import pytest

from kperf.errors import UsageError
from kperf.override import TTGIR_DIR
from kperf.trace.instrument import instrument
from kperf.trace.program import read_program

TEXT = (TTGIR_DIR / "vanilla" / "d128_bf16_full.ttgir").read_text()
TRACED = instrument(TEXT)
PROGRAM = read_program(TRACED)


def test_warp_groups_are_named_by_what_they_do_and_placed_as_triton_places_them():
    assert [(group.name, group.first_warp, group.num_warps) for group in PROGRAM.groups] == [
        ("consumer 0", 0, 4),
        ("consumer 1", 4, 4),
        ("producer", 10, 1),
    ]


def test_scopes_are_numbered_as_proton_numbers_them():
    from triton._C.libtriton import proton

    from kperf.compile import parse_ttgir

    assert [(scope.number, scope.name) for scope in PROGRAM.scopes] == sorted(
        proton.get_scope_id_names(parse_ttgir(TRACED))
    )


def test_gaps_are_named_by_what_stands_in_them():
    found = {(interval.group, interval.name): interval.kind for interval in PROGRAM.intervals.values()}
    assert found["consumer 0", "QK issue"] == "issue"
    assert found["consumer 0", "softmax"] == "arithmetic"
    assert found["consumer 1", "PV wait"] == "tensor"
    assert found["producer", "wait K empty"] == "wait"


def test_every_record_can_be_followed_by_another_except_the_last_of_a_group():
    followed = {first for first, _ in PROGRAM.intervals}
    marks = {(scope.number, start) for scope in PROGRAM.scopes for start in (True, False)}
    ends = {(scope.number, False) for scope in PROGRAM.scopes if scope.name.startswith("lifetime")}
    assert marks - followed == ends


def test_products_are_counted():
    in_loop = [
        interval for interval in PROGRAM.intervals.values() if interval.issues and interval.group == "consumer 0"
    ]
    assert sum(interval.flop for interval in in_loop) == 2 * 2 * 64 * 128 * 128


def test_a_hand_edited_twin_is_read():
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
        (lambda text: TEXT, "has no records"),
    ],
    ids=["no end", "no start", "other word", "plain"],
)
def test_unbalanced_records_are_refused(edit, said):
    with pytest.raises(UsageError, match=said):
        read_program(edit(TRACED))
