"""With a Triton that is not the locked one: what needs no lowering works, and the rest is refused in one sentence.

`make test-newest-triton` runs this in an environment with the newest Triton; elsewhere only the refusals are tried.
"""

import pytest
import triton
from triton.backends.nvidia.compiler import CUDABackend

from kperf.console import WholeConsole
from kperf.errors import UsageError
from kperf.ir.compile import named_ttgir, parse_ttgir
from kperf.record import device
from kperf.trace import command
from kperf.trace.capture.kernels import TraceOptions
from kperf.trace.capture.script import Script
from kperf.trace.instrument.events import instrument, strip
from kperf.trace.instrument.program import read_program
from kperf.trace.instrument.session import Recording, session
from tests.trace.kernels import CASES, compiled

KERNELS = sorted(CASES.keys() - {"calls", "gluon_gemm"})
"""Gluon's own interface changes from version to version."""
REFUSAL = "lowers events in a way that is not known here"


@pytest.fixture
def other_triton(monkeypatch):
    if hasattr(CUDABackend, "instrumentation"):
        monkeypatch.delattr(CUDABackend, "instrumentation")


@pytest.mark.skipif(triton.__version__ == "3.6.0", reason="the locked Triton has tests of its own")
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_instrumented(name):
    plain = named_ttgir(compiled(name).asm["ttgir"])
    traced = instrument(plain)
    parse_ttgir(traced)
    assert strip(traced) == plain
    assert read_program(traced).scopes


@pytest.mark.usefixtures("other_triton")
def test_a_twin_is_refused_in_one_sentence():
    with pytest.raises(UsageError, match=REFUSAL) as error, session(Recording((0,), 4)):
        pass
    assert "\n" not in str(error.value)


@pytest.mark.usefixtures("other_triton")
def test_a_script_is_refused_before_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "why_static", lambda: None)
    path = tmp_path / "it.py"
    path.write_text("raise SystemExit('it ran')")
    with pytest.raises(UsageError, match=REFUSAL):
        command.run(WholeConsole(), Script(str(path), ()), TraceOptions(), tmp_path / "out", lambda *_: [])
    assert not (tmp_path / "out").exists()
