"""Which instrumented kernel is taken where all regions cost too much."""

from pathlib import Path

from kperf.arch import SM_80
from kperf.trace.capture.instrumented import make_instrumented
from kperf.trace.instrument.events import LIFETIME, read_rules
from tests.trace.kernels import CASES, compile_case


def test_loads_are_not_recorded_where_that_spills_registers(tmp_path: Path):
    """On Ampere the GEMM with tensor descriptors has no register left, and its loads go to registers."""
    kernel = compile_case(CASES["gemm_tma"], arch=SM_80)
    made = make_instrumented(kernel, 100, tmp_path, memory=1 << 30, regions=("*",), rules=read_rules())
    assert {scope.name for scope in made.program.scopes} == {"lifetime of all", "store c"}
    assert made.spilled_more < 1000
    every = make_instrumented(kernel, 100, tmp_path, memory=1 << 30, regions=("load *",), rules=read_rules())
    assert [scope.name for scope in every.program.scopes if not scope.name.startswith(LIFETIME)] == ["load a", "load b"]
    assert every.spilled_more > 2 * made.spilled_more
