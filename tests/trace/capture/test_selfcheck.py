"""Whether kernels can be traced with a Triton is tried, not looked up: a broken one is refused in one sentence."""

import subprocess
import sys

import pytest

from kperf.compat.triton import instrumentation
from kperf.compat.triton.cache import own_cache
from kperf.compat.triton.instrumentation import EventLowering
from kperf.console import WholeConsole
from kperf.errors import UsageError
from kperf.record import device
from kperf.report.formats import formats
from kperf.trace import command
from kperf.trace.capture import selfcheck
from kperf.trace.capture.kernels import TraceOptions
from kperf.trace.capture.script import Script
from kperf.trace.instrument.events import read_rules
from kperf.trace.instrument.session import Recording, session
from tests.trace.kernels import compiled

pytestmark = pytest.mark.kernels


@pytest.fixture(autouse=True)
def tried_anew():
    selfcheck.why_no_events.cache_clear()
    yield
    selfcheck.why_no_events.cache_clear()


@pytest.fixture
def without_a_place(monkeypatch):
    """A Triton that has neither the class attribute nor the registry; gives a kernel that another one compiled."""
    kernel = compiled("add")
    assert selfcheck.why_no_events() is None  # its kernel is in the cache now: this Triton cannot compile without them
    selfcheck.why_no_events.cache_clear()
    monkeypatch.setattr(instrumentation, "registry", None)
    compiler = instrumentation.backends["nvidia"].compiler
    if hasattr(compiler, "instrumentation"):
        monkeypatch.delattr(compiler, "instrumentation")
    return kernel


def test_this_triton_lowers_events():
    assert selfcheck.why_no_events() is None


@pytest.mark.parametrize("name", ["add", "gemm_tma", "gemm_specialized"])
def test_an_attempt_counts_the_events_in_the_machine_code(tmp_path, name):
    tried = selfcheck.attempt(compiled(name), tmp_path, read_rules())
    in_code, in_ttgir = (int(word) for word in tried.message.replace(",", "").split() if word.isdigit())
    assert (tried.stage, tried.ok) == ("machine code", True)
    assert in_code == in_ttgir > 4


def test_without_a_place_for_our_passes_nothing_is_lowered(tmp_path, without_a_place):
    tried = selfcheck.attempt(without_a_place, tmp_path, read_rules())
    assert (tried.stage, tried.ok) == ("lowered", False)
    assert "has no place for the passes" in tried.message
    with pytest.raises(UsageError, match="has no place for the passes"), session(Recording((0,), 4)):
        pass


@pytest.mark.usefixtures("without_a_place")
def test_a_script_is_refused_before_it_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(device, "why_static", lambda: None)
    path = tmp_path / "it.py"
    path.write_text("raise SystemExit('it ran')")
    with pytest.raises(UsageError, match="does not lower events") as error:
        command.run(WholeConsole(), Script(str(path), ()), TraceOptions(), tmp_path / "out", formats(lambda *_: []))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_events_that_are_lost_on_the_way_are_noticed(tmp_path, monkeypatch):
    kernel = compiled("add")

    def forget(self, manager):  # as a Triton would whose pass drops what it does not know
        instrumentation.passes.common.add_canonicalizer(manager)

    monkeypatch.setattr(selfcheck, "_CLOCK_READS", {"cuda": "SR_NO_SUCH_CLOCK"})
    lost = selfcheck.attempt(kernel, tmp_path, read_rules())
    assert (lost.stage, lost.ok) == ("machine code", False)
    assert lost.message.startswith("0 events in machine code, ")
    monkeypatch.setattr(EventLowering, "add_to_ttgir", forget)
    with own_cache(tmp_path):
        dropped = selfcheck.attempt(kernel, tmp_path, read_rules())
    assert (dropped.stage, dropped.ok) == ("lowered", False)


def test_a_command_ends_without_words_of_tritons_bindings():
    """From 3.9 on they print what is left of them, unless garbage is collected at the end."""
    program = "import sys, kperf.compat.triton.modules; from kperf.cli import main; sys.argv[1:] = ['--help']; main()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "Usage" in done.stdout
    assert done.stderr == ""
