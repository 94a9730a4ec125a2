"""Which instrumented kernel is taken where all regions cost too much."""

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import triton
import triton.language as tl

from kperf.arch import SM_80, SM_90A
from kperf.errors import UsageError
from kperf.ir.compile import compile_kernel
from kperf.ir.ptx import with_registers
from kperf.trace import results
from kperf.trace.capture import instrumented
from kperf.trace.capture.instrumented import InstrumentedKernel, make_instrumented, most_registers
from kperf.trace.instrument.events import LIFETIME, read_rules
from tests.trace.capture.fake_gpu import INSTRUMENTED
from tests.trace.kernels import CASES, compile_case

pytestmark = pytest.mark.kernels


@triton.jit
def two_sums(x_ptr, y_ptr, mean_ptr, out_ptr, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of 256 numbers a thread of each x and y, which leaves no register for anything else."""
    rows, cols = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    place = tl.program_id(0) * columns + rows[:, None] * 512 * columns + cols[None, :]
    mask = (rows[:, None] < 8) & (cols[None, :] < columns)
    y = tl.load(y_ptr + place, mask=mask, other=0.0).to(tl.float32)
    x = tl.load(x_ptr + place, mask=mask, other=0.0).to(tl.float32)
    mean = tl.load(mean_ptr + rows, mask=rows < 8, other=0.0).to(tl.float32)[:, None]
    tl.store(out_ptr + 2 * tl.program_id(0), tl.sum((x - mean) * y))
    tl.store(out_ptr + 2 * tl.program_id(0) + 1, tl.sum(y))


@pytest.fixture(scope="module")
def spilling():
    types = {"x_ptr": "*bf16", "y_ptr": "*bf16", "mean_ptr": "*bf16", "out_ptr": "*fp32", "columns": "i32"}
    constants = {"ROWS": 8, "COLUMNS": 4096}
    aligned = {(index,): [["tt.divisibility", 16]] for index in range(5)}
    return compile_kernel(two_sums, types | dict.fromkeys(constants, "constexpr"), constants, attributes=aligned)


def made_of(kernel, *regions: str) -> InstrumentedKernel:
    return make_instrumented(kernel, 512, INSTRUMENTED, memory=1 << 30, regions=regions or ("*",), rules=read_rules())


def names(made: InstrumentedKernel) -> list[str]:
    return [scope.name for scope in made.program.scopes if not scope.name.startswith(LIFETIME)]


def test_ptxas_is_given_the_registers_that_leave_the_originals_ctas_where_events_spill(spilling, monkeypatch):
    monkeypatch.setattr(instrumented, "_HELD", ())
    made = made_of(spilling, "reduce", "store out")
    used = made.original_usage
    assert (used.registers, used.occupancy) == (255, 2)
    assert (made.resource_usage.registers, made.resource_usage.occupancy) == (255, 2)
    assert re.findall(r"\.maxnreg (\d+)", made.kernel.asm["ptx"]) == ["255"]
    monkeypatch.setattr(instrumented, "_unused_registers", lambda _: None)
    by_ptxas = made_of(spilling, "reduce", "store out")
    assert by_ptxas.resource_usage.registers < 64
    assert by_ptxas.spills > 2 * made.spills


def test_loads_and_reductions_are_not_recorded_where_a_kernel_has_no_register_for_them(spilling, monkeypatch):
    """The original needs 255 and spills itself; with stores alone nothing is spilled beyond that."""
    made = made_of(spilling)
    assert set(names(made)) == {"store out"}
    assert made.without == ("load", "arithmetic")
    assert (made.spills, made.spilled_more, made.spills_more) == (0, 0, False)
    assert made.resource_usage.registers == 255
    assert any("reduce" in interval.name for interval in made.program.intervals.values())
    (sentence,) = results._disturbance(SimpleNamespace(name="two_sums"), made)
    assert sentence == (
        "two_sums: its loads and arithmetic have no events, which would make it spill more, and are parts of the gaps "
        "between other regions."
    )
    monkeypatch.setattr(instrumented, "VERSIONS_S", 0.0)
    compiled, compile_one = [], instrumented._compile
    monkeypatch.setattr(instrumented, "_compile", lambda *given: compiled.append(given) or compile_one(*given))
    late = made_of(spilling)
    assert len(compiled) == 1  # of all regions, and no other
    assert {"load x", "load y", "reduce"} < set(names(late))
    assert late.without == ()
    assert late.spills > 100


def test_a_kernel_that_spills_itself_is_compared_by_its_spills(spilling):
    """The bytes of its stack say little: more loads and stores may use the same ones."""
    made = made_of(spilling)
    few = replace(made, original_usage=made.resource_usage, spills=8)
    assert not few.spills_more
    assert replace(few, spills=9).spills_more


def test_a_limit_that_cannot_be_given_leaves_what_was_made(spilling, tmp_path, monkeypatch):
    def refuses(_text, _most):
        raise UsageError("its PTX says at 0 places how many threads a CTA has, and one is needed")

    monkeypatch.setattr(instrumented, "with_registers", refuses)
    monkeypatch.setattr(instrumented, "_HELD", ())
    made = make_instrumented(spilling, 512, tmp_path, memory=1 << 30, regions=("*",), rules=read_rules())
    assert made.spills_more
    assert ".maxnreg" not in made.kernel.asm["ptx"]


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "most"), [(255, 0, 4, 255), (32, 0, 4, 32), (40, 0, 4, 40), (26, 100_000, 4, 255)]
)
def test_the_most_registers_that_leave_the_originals_ctas(registers, shared, warps, most):
    original = instrumented.ResourceUsage(registers, 0, shared, SM_90A.ctas_per_sm(registers, shared, warps))
    assert most_registers(SM_90A, original, shared, warps) == most
    assert most_registers(SM_90A, replace(original, occupancy=original.occupancy + 99), shared, warps) is None


def test_a_limit_of_registers_stands_behind_the_threads_of_a_cta_once():
    text = ".visible .entry f(\n)\n.reqntid 128\n{\n\tret;\n}\n"
    limited = with_registers(text, 255)
    assert limited == text.replace("128\n", "128\n.maxnreg 255\n")
    assert with_registers(limited, 64) == limited
    for none in (text.replace(".reqntid 128\n", ""), text + text):
        with pytest.raises(UsageError, match="how many threads a CTA has"):
            with_registers(none, 255)


def test_loads_are_not_recorded_where_that_spills_registers():
    """On Ampere the GEMM with tensor descriptors has no register left, and its loads go to registers."""
    kernel = compile_case(CASES["gemm_tma"], arch=SM_80)
    made = made_of(kernel)
    assert made.without == ("load",)
    assert {scope.name for scope in made.program.scopes} == {"lifetime of all", "store c"}
    assert made.spilled_more < 1000
    every = made_of(kernel, "load *")
    assert [scope.name for scope in every.program.scopes if not scope.name.startswith(LIFETIME)] == ["load a", "load b"]
    assert every.spilled_more > made.spilled_more
