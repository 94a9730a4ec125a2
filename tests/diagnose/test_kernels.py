"""The proof set: planted faults, first drafts as people write them, and kernels in which nothing is wrong.

A line `# planted: rule` says what is to be found there, first or second of all.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import engine, inputs
from kperf.diagnose.engine import FAILED, diagnose
from kperf.diagnose.rule import static_rules
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.paper import proof
from kperf.record.store import RECORDED, RecordStore

pytestmark = pytest.mark.kernels

KERNELS = Path(__file__).parent / "kernels"
FAULTY = sorted([*KERNELS.glob("planted/*.py"), *KERNELS.glob("drafts/*.py")])
CLEAN = sorted(KERNELS.glob("clean/*.py"))
HELD_OUT = sorted(KERNELS.glob("heldout/*.py"))
FIXED = [path for path in sorted(KERNELS.glob("fixed/*.py")) if path.name not in {one.name for one in HELD_OUT}]
REMAINING = {
    "atomic_sum": {"low"},
    "bilateral_filter": {"low"},
    "byte_histogram": {"low"},
    "norm_backward": {"low"},
    "rms_norm_backward": {"low"},
    "symmetric": {"medium"},
}
"""What the rule of the fault still finds in a fixed copy: less of it, or a conversion at another line."""


def planted(path):
    lines = enumerate(path.read_text().splitlines(), 1)
    return {(match[1], number) for number, line in lines if (match := re.search(r"# planted: (\S+)", line))}


def diagnosis_of(path):
    kernel, *_ = inputs.read(str(path), (), SM_90A)
    found = diagnose(kernel)
    assert not [rule for rule, why in found.skipped.items() if FAILED in why]
    estimates = [(one.id, one.estimate) for one in found.findings if one.estimate is not None]
    assert [rule for rule, one in estimates if not one.low <= one.speedup <= one.high] == []
    return found


def test_there_are_enough():
    assert len(FAULTY) >= 30
    assert len([path for path in FAULTY if path.parent.name == "drafts"]) >= 15
    assert len(CLEAN) >= 15


def test_each_faulty_kernel_marks_its_fault_and_no_clean_one_does():
    assert [path.stem for path in FAULTY if not planted(path)] == []
    assert [path.stem for path in CLEAN if planted(path)] == []


def test_each_static_rule_has_a_kernel_with_its_fault_and_a_page():
    rules = {rule.id for rule in static_rules()}
    assert {rule for path in FAULTY for rule, _ in planted(path)} == rules - {"launch-options"}  # only times show it
    pages = {path.stem for path in (KERNELS.parents[2] / "docs/rules").glob("*.md")}
    assert rules <= pages


@pytest.mark.parametrize("path", FAULTY, ids=lambda path: path.stem)
def test_a_fault_is_named_first_or_second_at_its_line(path):
    found = diagnosis_of(path).findings
    assert planted(path) <= {(finding.id, finding.source.line) for finding in found[:2]}
    assert {finding.source.file for finding in found} == {str(path)}


@pytest.mark.parametrize("path", FIXED, ids=lambda path: path.stem)
def test_a_fixed_copy_has_neither_the_fault_nor_a_severe_one(path):
    (faulty,) = (one for one in FAULTY if one.name == path.name)
    ((rule, _),) = planted(faulty)
    findings = [finding for kernel in inputs.read(str(path), (), SM_90A) for finding in diagnose(kernel).findings]
    assert {finding.severity for finding in findings if finding.id == rule} == REMAINING.get(path.stem, set())
    assert [finding for finding in findings if finding.severity == "high"] == []


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
def test_nothing_is_severe_in_a_clean_kernel(path):
    found = diagnosis_of(path)
    assert [finding for finding in found.findings if finding.severity == "high"] == []
    assert found.bound.unit in ("tensor core", "memory", "arithmetic")


@pytest.mark.parametrize("path", HELD_OUT, ids=lambda path: path.stem)
def test_a_held_out_kernel_reads_as_it_was_recorded_or_better(path):
    stores = [RecordStore(RECORDED / gpu, "diagnose", proof.ROWS) for gpu in ("h200", "h100-80gb-hbm3")]
    recorded_as = [
        row for store in stores for row in store.points() if (row.name, row.is_held_out) == (path.stem, True)
    ]
    if not recorded_as:
        pytest.skip("it waits for its record, which comes before any rule knows it")
    (row,) = recorded_as
    kernels = [diagnose(kernel).findings for kernel in inputs.read(str(path), (), SM_90A)]
    first = {(finding.id, finding.source.line) for findings in kernels for finding in findings[:2]}
    if row.is_clean:
        assert [finding for findings in kernels for finding in findings if finding.severity == "high"] == []
    elif row.rank is not None and row.fault in {rule.id for rule in static_rules()}:
        assert planted(path) <= first


def test_barriers_between_stores_and_loads_are_not_advised_away():
    found = diagnosis_of(KERNELS / "clean/exchange.py").findings
    assert "debug-in-kernel" not in {finding.id for finding in found}
    assert not any("parts of an element" in finding.advice for finding in found)  # a permutation has none


@pytest.mark.parametrize("name", ["vector_add", "graph_scatter_add"])
def test_machine_code_is_read_where_the_ttgir_asks_for_it(name):
    """To disassemble it takes longer than all rules together, of atomics on float32 too."""
    kernel, *_ = inputs.read(str(KERNELS / f"clean/{name}.py"), (), SM_90A)
    assert diagnose(kernel).skipped == {}
    assert "code" not in vars(kernel.compiled)
    assert kernel.code.instructions


@pytest.mark.parametrize(("name", "assembled"), [("clean/gemm", False), ("planted/spills", True)])
def test_a_kernel_is_assembled_again_only_where_its_wgmma_wait_for_each_other(monkeypatch, name, assembled):
    asked = []
    monkeypatch.setattr("kperf.diagnose.reading.kernel.ptxas_says", lambda *given: asked.append(given) or "")
    diagnose(inputs.read(str(KERNELS / f"{name}.py"), (), SM_90A)[0])
    assert len(asked) == assembled


def test_machine_code_that_cannot_be_read_is_no_fault_of_a_rule(monkeypatch):
    def fail(_):
        raise UsageError("Triton's cache is damaged")

    kernel, *_ = inputs.read(str(KERNELS / "planted/odd_mask.py"), (), SM_90A)
    monkeypatch.setattr(compiler, "machine_code", fail)
    with pytest.raises(UsageError, match="is damaged"):
        diagnose(kernel)


def test_a_rule_that_fails_costs_its_own_findings_alone(monkeypatch):
    def fail(_):
        yield from ()
        raise ZeroDivisionError

    path = KERNELS / "planted/two_stages.py"
    kernel, *_ = inputs.read(str(path), (), SM_90A)
    known = diagnose(kernel)
    broken = [replace(rule, check=fail) if rule.id == "tma-unused" else rule for rule in static_rules()]
    monkeypatch.setattr(engine, "static_rules", lambda: broken)
    found = diagnose(kernel)
    assert found.findings == [finding for finding in known.findings if finding.id != "tma-unused"] != known.findings
    assert found.skipped == known.skipped | {"tma-unused": "the rule itself failed with ZeroDivisionError"}
