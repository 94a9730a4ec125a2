"""One cause is one finding: the accesses that it costs are named in it, and what it explains is its evidence."""

from dataclasses import replace

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.analyses import spills
from kperf.diagnose.engine import diagnose
from kperf.diagnose.reading.kernel import Kernel
from tests.diagnose.test_kernels import KERNELS, diagnosis_of
from tests.diagnose.test_wasted_work import found

pytestmark = pytest.mark.kernels

ROWS = """
def rows(x, y, stride, n, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < n
    v = tl.load(x + tl.program_id(0) * stride + cols, mask=mask, other=0.0)
    tl.store(y + tl.program_id(0) * stride + cols, v * 2, mask=mask)
"""


@pytest.mark.parametrize(
    ("stride", "n", "rule", "unknown"),
    [
        ("i32:16", "i32", "mask-stops-vectors", "n"),
        ("i32", "i32:16", "narrow-access", "stride"),
        ("i32:16", "i32:16", None, ""),
    ],
)
def test_a_number_that_may_be_a_multiple_of_16_is_a_hint_and_named_once(tmp_path, stride, n, rule, unknown):
    rules = found(tmp_path, ROWS, f"*bf16,*bf16,{stride},{n}", "BLOCK=1024")
    assert set(rules) == ({rule} if rule else set())
    if rule is not None:
        one = rules[rule]
        assert (one.severity, one.source.line, one.evidence["accesses"]) == ("low", 7, 2)
        assert "2 bytes at a time where 16 bytes are contiguous (likewise on line 8): " in one.message
        assert one.advice.startswith(f"if {unknown} is a multiple of 16, say so with i32:16 in --signature; else ")


def test_a_pointer_that_is_not_aligned_is_none_that_may_be(tmp_path):
    one = found(tmp_path, ROWS, "*bf16:1,*bf16,i32:16,i32:16", "BLOCK=1024")["narrow-access"]
    assert (one.severity, one.source.line, one.evidence["accesses"]) == ("medium", 7, 1)
    both = found(tmp_path, ROWS, "*bf16:1,*bf16,i32,i32:16", "BLOCK=1024")["narrow-access"]
    assert (both.severity, both.source.line) == ("medium", 7)


SUMS = """
def sums(x, y, stride, n, BR: tl.constexpr, BC: tl.constexpr):
    rows = tl.program_id(0) * BR + tl.arange(0, BR)
    acc = tl.zeros((BR, BC), tl.float32)
    for start in range(0, n, BC):
        cols = start + tl.arange(0, BC)
        acc += tl.exp2(tl.load(x + rows[:, None] * stride + cols[None, :]).to(tl.float32))
    tl.store(y + rows, tl.sum(acc, 1))
"""


def test_registers_of_single_elements_are_evidence_of_the_narrow_access(tmp_path):
    rules = found(tmp_path, SUMS, "*bf16,*fp32,i32,i32", "BR=32", "BC=256")
    assert set(rules) == {"narrow-access"}
    assert rules["narrow-access"].evidence["explains"] == "low-occupancy"
    assert rules["narrow-access"].evidence["warps_per_sm"] < 16
    assert found(tmp_path, SUMS, "*bf16,*fp32,i32:16,i32:16", "BR=32", "BC=256") == {}


@pytest.mark.parametrize(("kernel", "lines"), [("rope_pairs", [15, 17]), ("point_norms", [10])])
def test_parts_of_an_element_are_one_finding_of_loads_and_one_of_stores(kernel, lines):
    findings = diagnosis_of(KERNELS / f"drafts/{kernel}.py").findings
    assert [one.source.line for one in findings if one.id == "uncoalesced-access"] == lines


def test_wgmma_that_waits_for_want_of_registers_is_said_of_the_spills_alone():
    (kernel,) = inputs.read(str(KERNELS / "planted/spills.py"), (), SM_90A)
    found = {one.id: one for one in diagnose(kernel).findings if one.severity != "low"}
    assert set(found) == {"register-spills"}
    assert (
        "; because registers run out, the warps wait for 8 of the 8 wgmma instructions in loops before they issue"
        in (found["register-spills"].message)
    )
    shown = {name: found["register-spills"].evidence[name] for name in ("wgmma", "waited_for", "warning")}
    assert shown == {"wgmma": 8, "waited_for": 8, "warning": "C7511"}
    assert found["register-spills"].estimate.speedup > 4  # without the spills; 1.8 without the waits alone
    whole = replace(kernel, resources=replace(kernel.resources, stack_bytes=0, local_bytes=0))
    alone = {one.id: one for one in diagnose(whole).findings if one.severity != "low"}
    assert set(alone) == {"wgmma-serialised"}
    assert (alone["wgmma-serialised"].severity, alone["wgmma-serialised"].evidence) == ("high", shown)


def test_few_spills_are_severe_where_wgmma_waits_for_them(monkeypatch):
    (kernel,) = inputs.read(str(KERNELS / "planted/spills.py"), (), SM_90A)
    monkeypatch.setattr(spills, "SPILLED_SHARE", 1.0)
    few = next(one for one in diagnose(kernel).findings if one.id == "register-spills")
    assert (few.severity, few.estimate.speedup, few.estimate.high) == ("high", 1.8, 3.0)
    monkeypatch.setattr(Kernel, "ptxas", "")
    of_others = next(one for one in diagnose(replace(kernel)).findings if one.id == "register-spills")
    assert (of_others.severity, of_others.estimate.speedup) == ("medium", 1.1)
    assert "wgmma" not in of_others.message
