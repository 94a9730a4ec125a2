"""Blackwell's MMAs in TTGIR: what is issued, where its end is seen, what guards tensor memory; counted by hand.

The kernels are those of Triton's tutorials: a GEMM with tensor descriptors, a persistent one and attention, the last
two with automatic warp specialisation.
"""

from collections import Counter
from dataclasses import replace
from functools import cache

import pytest

from kperf.arch import SM_90A, SM_100A
from kperf.ir.compile import named_ttgir
from kperf.ir.dataflow import Dataflow
from kperf.ir.operations import COMMIT, WAIT
from kperf.ir.ttgir import Module
from kperf.trace.instrument.events import LIFETIME, instrument
from kperf.trace.instrument.program import Program, read_program
from tests.ir import printed
from tests.trace.kernels import CASES, compile_case

_ATTENTION = CASES["attention"]
KERNELS = {
    **{name: CASES[name] for name in ("gemm_tma", "gemm_specialized", "gemm_persistent_specialized", "attention")},
    "attention_specialized": replace(_ATTENTION, constants={**_ATTENTION.constants, "special": True}),
}


@cache
def plain(name: str) -> str:
    return named_ttgir(compile_case(KERNELS[name], arch=SM_100A).asm["ttgir"])


@cache
def program(name: str) -> Program:
    return read_program(instrument(plain(name)))


def loops(name: str) -> dict[tuple[str, ...], int]:
    """Of the loops that multiply: the names of an iteration's MMAs and its operations."""
    return {tuple(mma.name for mma in loop.mmas): loop.flop for loop in program(name).loops.values() if loop.mmas}


@pytest.mark.parametrize(
    ("name", "mmas", "commits", "completions"),
    [
        ("gemm_tma", 2, 0, 2),  # one before the loop, one in it; the last iteration's is waited for behind the loop
        ("gemm_specialized", 1, 1, 1),
        ("gemm_persistent_specialized", 1, 1, 2),
        ("attention", 5, 0, 4),  # three before the loop, two in it; waits: one before, two in it, one behind
    ],
)
def test_operations_as_counted_in_the_text(name, mmas, commits, completions):
    text = plain(name)
    assert text.count("ttng.tc_gen5_mma ") == mmas
    module = Module(text)
    dataflow = Dataflow(module)
    kinds = Counter(op.name for op in module.walk())
    assert kinds[COMMIT] == commits
    waits = [op for op in module.walk() if op.name == WAIT and dataflow.guards.completes(op)]
    assert len(waits) == completions
    assert module.arch is SM_100A


def test_an_iteration_multiplies_what_the_tiles_say():
    assert loops("gemm_tma") == {("a @ b",): 2 * 128 * 256 * 64}
    assert loops("gemm_specialized") == loops("gemm_persistent_specialized") == {("a @ b",): 2 * 128 * 128 * 64}
    assert loops("attention_specialized") == {("p @ v", "q @ k"): 2 * 2 * 128 * 128 * 64}
    assert {mma.dtype for loop in program("gemm_tma").loops.values() for mma in loop.mmas} == {"bf16"}
    cycles = loops("gemm_tma")["a @ b",] / program("gemm_tma").arch.flop_per_cycle["bf16"]
    assert cycles == 512  # half of Hopper's


def test_one_warp_group_waits_for_its_own_mmas_in_the_order_of_their_issue():
    """Two accumulators' barriers: the loop waits for the MMA before the one that it issued."""
    found = [(one.name, one.queue) for one in program("gemm_tma").intervals.values() if one.kind == "tensor"]
    assert found == [("a @ b wait", (1,)), ("a @ b wait", (0,))]
    assert all(not one.waits for one in program("gemm_tma").intervals.values() if one.kind == "tensor")


def regions(name: str, group: str) -> list[str]:
    scopes = program(name).scopes
    return [one.name for one in scopes if one.group == group and not one.name.startswith(LIFETIME)]


def test_who_waits_for_whom_in_a_persistent_gemm():
    name = "gemm_persistent_specialized"
    assert regions(name, "default")[-2:] == ["a @ b wait", "a @ b wait"]
    assert set(regions(name, "consumer 0")) == {"wait a+b full", "wait a @ b empty"}
    assert set(regions(name, "producer")) == {"wait a+b empty"}
    intervals = program(name).intervals.values()
    issue = next(one for one in intervals if one.name == "a @ b issue")
    (emptied,) = {stage_ring for one in intervals if one.name == "wait a+b empty" for stage_ring in one.waits}
    (done,) = {stage_ring for one in intervals if one.name == "a @ b wait" for stage_ring in one.waits}
    assert issue.arrives[0] == emptied  # the tensor core gives the tiles back
    assert {done} == {stage_ring for one in intervals for stage_ring in one.arrives} - {emptied}
    # Three stages of tiles are free at the start, two accumulators too; no result is there.
    assert (program(name).stages[emptied], program(name).stages[done]) == (3, 0)


def test_attention_with_warp_specialisation_is_read_as_it_is_written():
    name = "attention_specialized"
    mine = program(name)
    assert [group.num_warps for group in mine.groups] == [4, 1, 2, 4]
    assert {"q @ k wait", "p @ v wait"} <= set(regions(name, "default"))  # softmax: scores there, p may be overwritten
    assert {"wait k full", "wait v full", "wait p full", "wait p @ v full", "wait q @ k empty"} == set(
        regions(name, "consumer 0")
    )
    assert set(regions(name, "producer")) == {"wait k empty", "wait v empty"}
    assert "p @ v wait" in regions(name, "partition2")  # the correction of the accumulator
    traffic = Counter()
    for interval in {id(one): one for one in mine.intervals.values()}.values():
        traffic.update({part.argument for part in interval.traffic})
    assert set(traffic) == {"q", "k", "v", "o"}


def test_hoppers_reading_knows_no_tensor_memory():
    text = named_ttgir(compile_case(CASES["gemm_tma"], arch=SM_90A).asm["ttgir"])
    module = Module(text)
    assert module.arch is SM_90A
    dataflow = Dataflow(module)
    assert not [op for op in module.walk() if dataflow.guards.completes(op) or dataflow.barriers.arrives(op)]


def test_a_commit_that_is_passed_again_and_again_is_followed_to_an_end():
    """examples/gemm_persistent_ws.py as Triton 3.9 prints it: its loop comes by the commit without an MMA before."""
    text = (printed.FOLDER / "gemm_persistent_ws.sm_100a.3.9.0.ttgir").read_text()
    module = Module(text)
    dataflow = Dataflow(module)
    waits = [op for op in module.walk() if op.name == WAIT and dataflow.guards.completes(op)]
    assert len(waits) == text.count("ttng.tc_gen5_commit") == 2
