"""What computes an MMA, and which work stands in one interval, read from kernels that are compiled here."""

from pathlib import Path

import pytest
import triton
import triton.language as tl

from kperf.ir.compile import named_ttgir
from kperf.trace.instrument.events import instrument, read_rules
from kperf.trace.instrument.program import Mma, Program, read_program
from tests.trace.kernels import Case, compile_case, compiled

pytestmark = pytest.mark.kernels


@triton.jit
def mma(a, b, c, n, PRECISION: tl.constexpr, M: tl.constexpr):
    rows, inner, columns = tl.arange(0, M), tl.arange(0, 32), tl.arange(0, 64)
    acc = tl.zeros((M, 64), tl.float32)
    for i in range(n):
        x = tl.load(a + rows[:, None] * 32 + inner[None, :] + i * M * 32)
        y = tl.load(b + inner[:, None] * 64 + columns[None, :] + i * 32 * 64)
        acc = tl.dot(x, y, acc, input_precision=PRECISION)
    tl.store(c + rows[:, None] * 64 + columns[None, :], acc)


@triton.jit
def ahead(x, y, n, BLOCK: tl.constexpr):
    """Each iteration uses what the iteration before has loaded."""
    i = tl.arange(0, BLOCK)
    part = tl.load(x + i)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        following = tl.load(x + start + BLOCK + i)
        total += tl.exp(part)
        tl.debug_barrier()
        part = following
    tl.store(y + i, total)


def program_of(kernel, types: list[str], constants: dict[str, object]) -> Program:
    text = named_ttgir(compile_case(Case(kernel, tuple(types), constants, {})).asm["ttgir"])
    return read_program(instrument(text, rules=read_rules()))


@pytest.mark.parametrize(
    ("precision", "rows", "element", "dtype", "instruction", "cycles"),
    [
        ("ieee", 32, "*fp32", "fp32", "FMA", 2 * 32 * 32 * 64 / 256),
        ("ieee", 64, "*fp32", "fp32", "FMA", 2 * 64 * 32 * 64 / 256),
        ("tf32", 16, "*fp32", "tf32", "mma", 2 * 16 * 32 * 64 / 2048),
        ("tf32", 64, "*fp32", "tf32", "wgmma", 2 * 64 * 32 * 64 / 2048),
        ("ieee", 16, "*bf16", "bf16", "mma", 2 * 16 * 32 * 64 / 4096),
    ],
)
def test_what_computes_an_mma_is_read_from_its_instruction_and_layout(
    precision, rows, element, dtype, instruction, cycles
):
    program = program_of(mma, [element, element, "*fp32", "i32"], {"PRECISION": precision, "M": rows})
    found = {step for i in program.intervals.values() for step in i.queue if isinstance(step, Mma)}
    assert {(one.dtype, one.instruction, program.cycles(one)) for one in found} == {(dtype, instruction, cycles)}


def test_a_loop_carried_load_is_used_where_the_next_iteration_uses_it():
    program = program_of(ahead, ["*fp32", "*fp32", "i32"], {"BLOCK": 512})
    using = [interval for interval in program.intervals.values() if interval.uses]
    assert using
    assert all(interval.uses == ("x",) for interval in using)
    assert all("arithmetic" in {i.kind, *(part.kind for part in i.parts)} for i in using), [i.name for i in using]


def test_an_mma_that_waits_for_its_loads_is_a_wait_and_has_parts():
    program = read_program(instrument(named_ttgir(compiled("gemm_pointers_1").asm["ttgir"]), rules=read_rules()))
    mixed = next(i for i in program.intervals.values() if i.uses and i.issues)
    assert mixed.kind == "wait"
    assert [part.kind for part in mixed.parts] == ["load", "wait", "load", "issue"]
    assert [part.name for part in mixed.parts] == ["load a", "use a+b", "load b", "a @ b issue"]


@triton.jit
def once(x, y, n, BLOCK: tl.constexpr):
    """Other bounds, another offset, and two ways of one branch: no address is loaded twice."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        total += tl.load(x + start + tl.arange(0, BLOCK))
    for start in range(n, 2 * n, BLOCK):
        total += tl.load(x + start + tl.arange(0, BLOCK))
    total += tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))
    tl.store(y + tl.arange(0, BLOCK), total)


def test_two_loops_that_load_the_same_addresses_are_found():
    text = instrument(named_ttgir(compiled("layer_norm").asm["ttgir"]), rules=read_rules())
    assert read_program(text).rereads == {"x": 2}
    assert program_of(once, ["*fp32", "*fp32", "i32"], {"BLOCK": 512}).rereads == {}
    for name in ("add", "gemm_pointers_1", "gemm_pointers_3"):
        text = instrument(named_ttgir(compiled(name).asm["ttgir"]), rules=read_rules())
        assert read_program(text).rereads == {}


@triton.jit
def squared(x):
    return tl.sqrt(x) * x


@triton.jit
def inlined(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    values = tl.load(x + i)
    tl.store(y + i, squared(values))


def test_intervals_stand_at_the_users_lines_inlined_calls_included():
    located = compile_case(Case(inlined, ("*fp32", "*fp32"), {"BLOCK": 512}, {})).asm["ttgir"]
    text = instrument(named_ttgir(located), rules=read_rules())
    assert all(interval.source is None for interval in read_program(text).intervals.values())
    program = read_program(text, located=located)
    lines = Path(__file__).read_text().splitlines()
    said = {}
    for interval in program.intervals.values():
        if interval.source:
            file, line = interval.source
            assert Path(file).name == Path(__file__).name
            said[interval.name] = lines[line - 1].strip()
    assert said["load x"] == "values = tl.load(x + i)"
    assert said["store y"] == "tl.store(y + i, squared(values))"
    assert said["sqrt"] == "return tl.sqrt(x) * x"
    other = compiled("add").asm["ttgir"]
    assert all(interval.source is None for interval in read_program(text, located=other).intervals.values())


@triton.jit
def sometimes(a, b, c, n, M: tl.constexpr):
    rows, inner, columns = tl.arange(0, M), tl.arange(0, 32), tl.arange(0, 64)
    acc = tl.zeros((M, 64), tl.float32)
    for i in range(n):
        if tl.load(a + i) > 0:
            x = tl.load(b + rows[:, None] * 32 + inner[None, :])
            y = tl.load(c + inner[:, None] * 64 + columns[None, :])
            acc = tl.dot(x, y, acc)
    tl.store(c + rows[:, None] * 64 + columns[None, :], acc)


def test_an_mma_in_one_branch_of_a_loop_is_one_of_its_iteration():
    program = program_of(sometimes, ["*fp32", "*bf16", "*bf16", "i32"], {"M": 16})
    assert [[one.flop for one in loop.mmas] for loop in program.loops.values()] == [[2 * 16 * 32 * 64]]
