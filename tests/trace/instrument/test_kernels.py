"""Kernels as people write them: what is recorded, what it is called, and that it lowers without a GPU."""

import re
from dataclasses import replace
from functools import cache

import pytest

from kperf.errors import UsageError
from kperf.ir.compile import canonical_ttgir, named_ttgir, resources
from kperf.trace.instrument.events import LIFETIME, instrument, strip
from kperf.trace.instrument.program import Program, read_program
from kperf.trace.instrument.session import Recording, session
from tests.trace.kernels import CASES, compile_case, compiled, recompiled

pytestmark = pytest.mark.kernels

COPIED = {"cp.async a + cp.async b", "wait a+b", "a @ b issue", "a @ b wait"}
BY_TMA = {"wait a+b full", "load a + load b", "a @ b issue", "a @ b wait", "store c"}
EXPECTED = {
    "add": {"load x", "load y", "use x+y", "store out"},
    "softmax": {"load x", "use x", "reduce", "exp", "store y"},
    "layer_norm": {"load x", "load w", "load b", "use x", "use w+b", "reduce", "store y"},
    "gemm_pointers_1": {"load a + load b + a @ b issue", "a @ b wait", "store c"},
    "gemm_pointers_2": COPIED,
    "gemm_pointers_3": COPIED,
    "gemm_fp8": COPIED,
    "gemm_int8": COPIED,
    "gemm_tf32": COPIED,
    "gemm_mma": {"a @ b + cp.async a + cp.async b", "wait a+b", "store c"},
    "gemm_tma": BY_TMA,
    "gemm_persistent": {"wait a+b full", "a @ b issue", "a @ b wait"},
    "gemm_persistent_specialized": {"wait a+b full", "a @ b issue", "a @ b wait"},
    "gemm_specialized": {"wait a empty", "wait b empty", "wait a full", "wait b full", "a @ b", "store c"},
    "gluon_gemm": {"wait a+b empty", "wait a+b full", "a @ b issue", "a @ b wait", "store c"},
    "split_k": {"a @ b wait", "atomic add c", "atomic cas locks", "atomic exchange locks"},
    "grouped": {"load offsets", "load ids + cp.async x + cp.async w", "wait x+w", "x @ w wait", "store y"},
    "attention": {"wait q full", "wait k full", "q @ k issue", "reduce + exp2", "q @ k+p @ v wait", "store o"},
    "flash_decoding": {"load q", "wait k+v", "q @ k", "reduce", "exp2", "store o", "store lse"},
}


@cache
def traced(name: str) -> tuple[str, Program]:
    text = instrument(named_ttgir(compiled(name).asm["ttgir"]))
    return text, read_program(text)


def test_every_kernel_has_expectations_or_is_refused():
    assert set(CASES) == {*EXPECTED, "calls"}


@pytest.mark.parametrize("name", EXPECTED)
def test_loads_mmas_and_operations_are_called_by_what_the_source_calls_them(name):
    text, program = traced(name)
    found = {interval.name for interval in program.intervals.values()}
    assert found >= EXPECTED[name] | set()
    assert "data" not in " ".join(found)
    original = compiled(name).asm["ttgir"]
    assert canonical_ttgir(strip(text)) == canonical_ttgir(original)


@pytest.mark.parametrize("name", EXPECTED)
def test_it_lowers_and_spills_at_most_the_counters_of_its_buffers(name):
    text, program = traced(name)
    original = compiled(name)
    recording = Recording(
        tuple(sorted(group.first_warp for group in program.groups)), program.total_warps, bytes_per_warp=2048
    )
    with session(recording):
        instrumented = recompiled(name, text)
    assert instrumented.metadata.profile_scratch_size == recording.block_bytes
    before, after = resources(original), resources(instrumented)
    assert after.shared_bytes >= before.shared_bytes + recording.buffer_bytes
    assert after.spilled_bytes - before.spilled_bytes <= (8 if len(recording.warps) < 3 else 16)


@pytest.mark.parametrize(
    ("name", "dtype", "flop"),
    [
        ("gemm_pointers_3", "bf16", 2 * 128 * 256 * 64),
        ("gemm_fp8", "fp8", 2 * 128 * 128 * 64),
        ("gemm_int8", "int8", 2 * 128 * 128 * 64),
        ("gemm_tf32", "tf32", 2 * 128 * 128 * 32),
        ("gemm_mma", "bf16", 2 * 32 * 64 * 64),
        ("gemm_specialized", "bf16", 2 * 64 * 128 * 64),
    ],
)
def test_an_iteration_has_its_mmas_operations_and_their_type(name, dtype, flop):
    _, program = traced(name)
    mmas = [loop.mmas for loop in program.loops.values() if loop.mmas]
    assert {(mma.name, mma.dtype, mma.flop) for found in mmas for mma in found} == {("a @ b", dtype, flop)}


def test_warps_that_run_the_same_code_are_recorded_in_the_first_and_the_last():
    _, program = traced("gemm_tma")
    assert [(group.name, group.first_warp) for group in program.groups] == [("all warps", 0), ("last warp", 7)]
    assert program.code("last warp") == "all warps"
    assert program.groups[0].issues == {"MMAs", "loads"}


@pytest.mark.parametrize(("warps", "recorded"), [(1, [0]), (2, [0, 1])])
def test_of_few_warps_none_is_recorded_twice(warps, recorded):
    case = CASES["add"]
    few = replace(case, options={**case.options, "num_warps": warps})
    program = read_program(instrument(named_ttgir(compile_case(few).asm["ttgir"])))
    assert [group.first_warp for group in program.groups] == recorded


def test_an_early_return_and_the_working_path_have_lifetimes_of_their_own():
    _, program = traced("grouped")
    lifetimes = [scope.number for scope in program.scopes if scope.name.startswith(LIFETIME)]
    assert len(lifetimes) == 2
    first, second = lifetimes
    # After the first CTA a warp returns, or goes on with the second: nothing else can follow.
    assert [later for earlier, later in program.intervals if earlier == (first, False)] == [(second, True)]
    assert not [later for earlier, later in program.intervals if earlier == (second, False)]


def test_the_end_of_a_tile_in_a_flattened_loop_is_told_apart():
    _, program = traced("gemm_persistent")
    assert [scope.name for scope in program.scopes if scope.ends_tile] == ["a @ b wait"]
    assert not any(scope.ends_tile for scope in traced("gemm_tma")[1].scopes)


def test_a_function_that_is_not_inlined_is_refused_in_one_sentence():
    with pytest.raises(UsageError, match=r"calls calls .*_doubled.*, which is not inlined.*noinline") as error:
        traced("calls")
    assert "\n" not in str(error.value)


def test_tokens_of_copies_are_followed_around_a_loop_and_through_two_waits():
    text = named_ttgir(compiled("gemm_mma").asm["ttgir"])
    (wait,) = re.findall(r"\n +(%\w+) = ttg\.async_wait (%\w+), (%\w+) ", text)
    both, (first, second) = wait[0], wait[1:]
    text = text.replace(
        f"{both} = ttg.async_wait {first}, {second} {{num = 2 : i32}}",
        f"%early = ttg.async_wait {first}, {second} {{num = 4 : i32}}\n"
        f"      {both} = ttg.async_wait %early {{num = 2 : i32}}",
    )
    passed = re.search(r"scf\.yield (?:%\w+, ){5}(%\w+)", text)
    looped = f"{text[: passed.start(1)]}{both}{text[passed.end(1) :]}"
    (begin,) = re.findall(rf"{first} = (%\w+)", text)
    from_one = re.sub(rf"{second} = %\w+", f"{second} = {begin}", text)
    for changed in (text, looped, from_one):
        assert canonical_ttgir(changed)
        names = re.findall(r'record start "([^"]*)"', instrument(changed))
        assert names.count("wait a+b") == 2


def test_a_copy_that_somebody_took_out_leaves_the_names_of_the_others():
    text = named_ttgir(compiled("gemm_mma").asm["ttgir"])
    for copy in re.findall(r".*ttg\.async_copy_global_to_local.*\n", text):
        assert '"wait a+b"' in instrument(text.replace(copy, ""))
