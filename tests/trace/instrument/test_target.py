"""`kperf instrument --target`: the result compiles for a GPU that is not here, and what that costs is one sentence."""

import re

import pytest

from kperf.arch import GFX950, SM_80, SM_90A, SM_100A
from kperf.ir.compile import named_ttgir
from tests.command import kperf
from tests.trace.kernels import CASES, compile_case

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(
    ("one", "name"), [(SM_80, "softmax"), (SM_90A, "gemm_tma"), (SM_100A, "gemm_specialized"), (GFX950, "softmax")]
)
def test_what_events_cost_is_said(tmp_path, one, name):
    path, out = tmp_path / "plain.ttgir", tmp_path / "out.ttgir"
    path.write_text(named_ttgir(compile_case(CASES[name], arch=one).asm["ttgir"]))
    done = kperf("instrument", path, "--out", out, "--target", one.name)
    assert (done.returncode, done.stdout) == (0, "")
    kernel = CASES[name].kernel.__name__
    words = " ".join(done.stderr.split())
    found = re.search(
        rf"{kernel} for {one.name}, without -> with events: (\d+) -> (\d+) registers, (\d+) -> (\d+) bytes spilled, "
        r"(\d+) -> (\d+) bytes of shared memory",
        words,
    )
    assert found, done.stderr
    before, after, _, _, shared, more = map(int, found.groups())
    assert 0 < before <= one.thread_registers
    assert 0 < after <= one.thread_registers
    assert shared + 1024 <= more <= shared + 4 * 1024 + 512, "a circular buffer of 1 KB for each recorded warp"
    assert "proton.record" in out.read_text()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--target", "sm_75"), "no GPU architecture 'sm_75' is known: choose from sm_80,"),
        (("--target", "sm_100a"), "the TTGIR is for sm_80, not for sm_100a: have Triton make it for sm_100a"),
        (("--target", "sm_80", "--strip"), "leave --target out"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, options, said):
    path = tmp_path / "plain.ttgir"
    path.write_text(named_ttgir(compile_case(CASES["add"], arch=SM_80).asm["ttgir"]))
    done = kperf("instrument", path, "--out", tmp_path / "out.ttgir", *options)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())
