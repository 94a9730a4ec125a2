"""Passes are chosen by what the assembler makes of them: here one is made up, whose order depends on the probes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kperf.attention import overrides
from kperf.attention.variants import Specialization
from kperf.errors import UsageError
from kperf.ir.sass import Difference
from kperf.paper import instrumented
from kperf.trace.capture import passes
from kperf.trace.capture.instrumented import ResourceUsage
from kperf.trace.capture.passes import Built, choose_passes, parse, single_probes, spread
from kperf.trace.instrument.events import strip
from kperf.trace.instrument.probes import ANCHOR, BodyClass, ProbedKernel, Probes, find_probes, probed_kernel

VANILLA = overrides.find("vanilla", Specialization())
FITS = ResourceUsage(168, 8, 1000, 1)
ORIGINAL = Built(["wgmma", "exp2"], ResourceUsage(168, 0, 1000, 1))


@pytest.fixture(scope="module")
def all_probes():
    return find_probes(VANILLA.text, instrumented.RULES)


class Assembler:
    """Moves instructions for the pairs of places that it does not like together, of the class with most."""

    def __init__(self, *dislikes: set[int], spills: frozenset[int] = frozenset()) -> None:
        self.dislikes, self.spills, self.compiled = dislikes, spills, []

    def __call__(self, some: list[ProbedKernel]) -> list[Built]:
        return [self.build(probed) for probed in some]

    def build(self, probed: ProbedKernel) -> Built:
        self.compiled.append(probed.places)
        here = set(max(probed.places, key=len))
        moved = any(dislike <= here for dislike in self.dislikes)
        return Built(
            ORIGINAL.order[::-1] if moved else ORIGINAL.order,
            ResourceUsage(168, 200, 1000, 1) if here & self.spills else FITS,
        )


def chosen(all_probes, assembler, cycles, say=lambda _: None):
    return choose_passes(all_probes, ORIGINAL, assembler, cycles=cycles, say=say)


def covered(all_probes, found):
    """Of each class the places that some pass records."""
    return [set().union(*(places[index] for places in found)) for index in range(len(all_probes.classes))]


def test_a_probe_that_moves_instructions_is_alone_and_last_and_what_it_moves_is_told(all_probes):
    found = chosen(all_probes, Assembler({3}), 2048)
    assert [one.probed.places[0] for one in found] == [(0, 1), (0, 2), (0, 4), (0, 5), (0, 6), (0, 3)]
    assert [bool(one.differences) for one in found] == [False] * 5 + [True]
    assert found[-1].differences == [Difference("the start", "", "exp2"), Difference("wgmma", "exp2", "")]
    assert all(one.cost <= passes.MOST_COST for one in found)


def test_probes_are_put_together_as_long_as_the_order_stays_and_the_cost_is_small(all_probes):
    together = chosen(all_probes, Assembler(), 100_000)
    assert [one.probed.places[0] for one in together] == [(0, 1, 2, 3, 4, 5), (0, 6)]
    assert [one.probed.places[0] for one in chosen(all_probes, Assembler(), 4 * 1000)] == [(0, 1, 2, 3), (0, 4, 5, 6)]
    apart = chosen(all_probes, Assembler({1, 3}), 100_000)
    assert [one.probed.places[0] for one in apart] == [(0, 1), (0, 2, 3, 4, 5, 6)]
    for found in (together, apart):
        assert all(
            one.probed.text.count("proton.record") == 2 * 3 + 4 * len(one.probed.places[0]) // 2 + 2 for one in found
        )


def test_what_a_pass_costs_is_estimated_of_the_warp_group_with_the_most_records(all_probes):
    places = [(ANCHOR, of.measured[0]) for of in all_probes.classes]
    places[0] = (ANCHOR, *all_probes.classes[0].measured[:3])
    (one,) = passes.compile_passes(all_probes, ORIGINAL, Assembler(), [tuple(places)], cycles=1000)
    assert one.cost == 4 * passes.CYCLES_AN_EVENT / 1000


def test_a_probe_for_which_registers_spill_is_alone(all_probes):
    found = chosen(all_probes, Assembler(spills=frozenset({2})), 100_000)
    assert found[-1].probed.places[0] == (0, 2)
    assert not any(2 in one.probed.places[0] for one in found[:-1])


def test_an_instrumented_kernel_is_compiled_once_and_not_too_many(all_probes, monkeypatch):
    assembler, said = Assembler({1, 3}), []
    chosen(all_probes, assembler, 100_000, said.append)
    assert len(assembler.compiled) == len(set(assembler.compiled))
    assert said == [
        "compiling kernels with a few events an iteration: 6",
        *["compiling kernels with a few events an iteration: 1"] * 3,
    ]
    monkeypatch.setattr(passes, "MOST_COMPILES", 6)
    few = Assembler()
    assert len(chosen(all_probes, few, 100_000)) == len(few.compiled) == 6


@given(st.integers(1, 12), st.data())
def test_whatever_the_number_of_passes_every_probe_is_in_one_and_records_are_pairs(number, data):
    classes = []
    for _ in range(data.draw(st.integers(1, 3))):
        scopes = data.draw(st.integers(1, 6))
        same = data.draw(st.dictionaries(st.integers(1, 2 * scopes - 1), st.just(0)))
        classes.append(BodyClass((), tuple("x" * 2 * scopes), same))
    all_probes = Probes("", None, tuple(classes), None)
    found = spread(all_probes, number)
    assert len(found) <= max(number, 1)
    for of, places in zip(classes, covered(all_probes, found), strict=True):
        assert places >= {ANCHOR, *of.measured}
    for one in found:
        assert all(len(mine) % 2 == 0 and list(mine) == sorted(set(mine)) and mine[0] == ANCHOR for mine in one)


def test_an_instrumented_kernel_of_a_few_probes_is_the_kernel_with_these_records_and_lifetimes(all_probes):
    for places in single_probes(all_probes):
        probed = probed_kernel(all_probes, places)
        assert strip(probed.text) == VANILLA.text
        records = [line.strip() for line in probed.text.splitlines() if "proton.record" in line]
        assert len(records) == 2 * 3 + 2 * 3
        # Each stands where the finest instrumented kernel has the one of its probe.
        for probe, finest in probed.probes.items():
            assert following(probed.text, probe) == following(all_probes.text, finest)
    with pytest.raises(ValueError, match="argument 2 is shorter"):  # a pass has places of every class
        probed_kernel(all_probes, single_probes(all_probes)[0][:-1])


def following(text, probe):
    """The operation after a record, found by counting starts, and the ends that belong to them."""
    number, opened, lines = -1, {}, text.splitlines()
    for at, line in enumerate(lines):
        if "proton.record" not in line:
            continue
        word, name = line.strip().removeprefix("proton.record ").split(" ", 1)
        if word == "start":
            number += 1
            opened[name] = number
        if probe == (opened[name], word == "start"):
            return next(line.split(" loc(")[0].strip() for line in lines[at:] if "proton.record" not in line)
    raise AssertionError(probe)


@pytest.mark.parametrize("variant", ["vanilla", "improved", "improved_plus"])
def test_the_committed_passes_record_every_probe_and_name_what_they_move(variant):
    original = overrides.find(variant, Specialization())
    all_probes = find_probes(original.text, instrumented.RULES)
    found = instrumented.read_passes(original)
    assert [set(places) >= {ANCHOR, *of.measured} for of, places in zip(
        all_probes.classes, covered(all_probes, [one.places for one in found.passes]), strict=True
    )] == [True] * len(all_probes.classes)  # fmt: skip
    assert all(one.cost <= passes.MOST_COST and one.registers == 168 and one.spilled_bytes <= 8 for one in found.passes)
    assert [all_probes.named(one.places) for one in found.passes] == [one.edges for one in found.passes]


def test_a_pass_of_improved_plus_records_both_consumers_loop_of_blocks_and_not_what_corrects_an_overflow():
    """Its loop of blocks is in one that it leaves where a row overflows, which is in that of tiles."""
    original = overrides.find("improved_plus", Specialization())
    all_probes = find_probes(original.text, instrumented.RULES)
    first = instrumented.read_passes(original).passes[0]
    scopes = probed_kernel(all_probes, first.places).program.scopes
    depths = {(scope.group, len(scope.loops)) for scope in scopes if scope.group != "producer" and scope.loops}
    assert depths == {("consumer 0", 3), ("consumer 1", 3)}


@pytest.mark.kernels
def test_the_committed_passes_of_vanilla_are_what_the_assembler_says_of_them():
    """Of one in the original kernel's order and one in another; of all, `make ttgir` writes the file anew."""
    found = instrumented.read_passes(VANILLA).passes
    all_probes = find_probes(VANILLA.text, instrumented.RULES)
    subject = instrumented.subject_of(VANILLA)
    original = passes.built(subject.compile(subject.text))
    for one in (found[0], found[-1]):
        (made,) = passes.compile_passes(
            all_probes, original, passes.builder(subject), [one.places], cycles=all_probes.least_cycles
        )
        assert instrumented.sass_order(made.orders).differences == one.differences
        assert made.built.resource_usage.registers == one.registers
    assert [bool(found[at].differences) for at in (0, -1)] == [False, True]


def test_passes_of_another_override_are_refused(tmp_path):
    folder = tmp_path / "vanilla/traced"
    folder.mkdir(parents=True)
    path = instrumented.passes_path(VANILLA, tmp_path)
    for text, said in (
        (None, "is missing"),
        ("{}", "no file of passes"),
        (instrumented.passes_path(VANILLA).read_text().replace(VANILLA.sha256, "0" * 64), "another override"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(UsageError, match=said) as error:
            instrumented.read_passes(VANILLA, tmp_path)
        assert "\n" not in str(error.value)


def test_what_is_asked_for():
    assert [parse(wanted) for wanted in ("auto", "1", "12")] == [None, 1, 12]
