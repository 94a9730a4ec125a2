"""`kperf operators` on a GPU that is not there: a checkout of two operators, and the sentences on the rows."""

import hashlib
import sys

import pytest
import torch

from kperf.console import WholeConsole
from kperf.errors import UsageError
from kperf.paper import operator_call, operators, proof
from kperf.paper.operators import ROWS
from kperf.record.store import RecordStore
from tests.conftest import kept
from tests.paper.test_proof import COMMON, GEMM, finding

OPERATOR = (
    GEMM.rpartition("\na, b = ")[0]
    + f"""
def matmul(a, b):
    c = torch.zeros(a.shape[0], b.shape[1], dtype=torch.bfloat16)
    gemm[(a.shape[0] // 64, 4)](a, b, c, a.shape[0], 256, 128, 64, 64, 64, num_warps=4, num_stages=1)
    return c

{"#" * 146}

raise SystemExit("the tests of an operator run")
"""
)
INPUTS = """
import torch
from TritonBench_v1.multiply import matmul
from performance_utils import Base

class performance_metrics(Base):
    def get_input_tensors(self):
        self.input_tensors = [
            (torch.randn(rows, 128, dtype=torch.bfloat16), [torch.randn(128, 256, dtype=torch.bfloat16)])
            for rows in (64, 1 << 18, 256, 128)
        ]

    def to_cuda(self, chosen):
        a, (b,) = chosen
        self.rows = len(a)
        return a, b

    def call_op(self, chosen):
        assert self.rows == 256, self.rows
        return matmul(*chosen)
"""


@pytest.fixture
def checkout(tmp_path):
    for name in ("multiply", "broken"):
        operator, inputs = operator_call.files_of(tmp_path / "corpus", name)
        operator.parent.mkdir(parents=True, exist_ok=True)
        inputs.parent.mkdir(parents=True, exist_ok=True)
        operator.write_text(OPERATOR)
        inputs.write_text(INPUTS if name == "multiply" else "raise ImportError('triton.ops')")
    (inputs.parents[1] / "performance_utils.py").write_text("class Base:\n    pass\n")
    (operator.parent / "without_inputs.py").write_text("")
    return tmp_path / "corpus"


@pytest.mark.long
def test_each_operator_is_diagnosed_on_the_largest_of_its_inputs_that_fits(
    tmp_path, checkout, monkeypatch, in_a_fork, h200, console
):
    session = (*in_a_fork, "-m", "tests.paper.proof_session_on_a_fake_gpu")
    monkeypatch.setattr(proof, "SESSION", session)
    operators.run(console, tmp_path / "results", checkout, [])
    rows = {row.name: row for row in RecordStore(tmp_path / "results/h200", "operators", ROWS).points()}
    assert set(rows) == {"multiply", "broken"}
    (kernel,) = rows["multiply"].kernels
    assert kernel.source.file == "data/TritonBench_G_v1/multiply.py"
    loads = next(one for one in kernel.findings if one.id == "loads-not-pipelined")
    assert (loads.source.file, loads.source.line) == (kernel.source.file, 13)
    assert {trial.change for trial in loads.tried} == {"num_stages=2", "num_stages=3", "num_stages=4"}
    files = [path.read_bytes() for path in operator_call.files_of(checkout, "multiply")]
    assert rows["multiply"].sha256 == hashlib.sha256(b"".join(files)).hexdigest()
    assert rows["broken"].kernels == []
    assert "triton.ops" in rows["broken"].why
    printed = console.export_text()
    assert "1 of 2 operators ran, and launched 1 kernel." in printed
    assert "An operator that did not run: broken." in printed


def test_inputs_are_chosen_by_their_bytes(checkout, monkeypatch):
    """The second of four is too large, and the third the largest of the others; no test of the operator runs."""
    chosen = []
    monkeypatch.setattr(torch, "set_default_device", lambda _: None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("TritonBench_v1", "TritonBench_v1.multiply", "multiply_perf", "performance_utils"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    operator, inputs = operator_call.files_of(checkout, "multiply")
    operator.write_text("\nmatmul = None\n" + OPERATOR.partition("    return c\n")[2])
    inputs.write_text(
        INPUTS.replace("return matmul(*chosen)", "CALLED.append(chosen)").replace(
            "import torch", "import torch\nCALLED = []"
        )
    )
    operator_call.call(str(checkout), "multiply")
    chosen, again = sys.modules["multiply_perf"].CALLED
    assert chosen is again
    assert [tensor.shape for tensor in chosen] == [(256, 128), (128, 256)]
    assert not list(checkout.rglob("multiply*.pyc"))  # of the whole files


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [(torch.zeros(3), 12), ((torch.zeros(3, dtype=torch.float16), 7, "a"), 6), ([{"a": torch.zeros(2)}, None], 8)],
)
def test_inputs_are_as_large_as_their_tensors(inputs, expected):
    assert operator_call.size(inputs) == expected


def test_without_a_checkout_or_an_operator_of_that_name_it_says_so(tmp_path, checkout, monkeypatch):
    with pytest.raises(
        UsageError, match=r"is no checkout of TritonBench: it has no operators in data/TritonBench_G_v1"
    ):
        list(operators.measure(WholeConsole(quiet=True), tmp_path, [], COMMON))
    with pytest.raises(UsageError, match="TritonBench-G has no operator without_inputs"):
        list(operators.measure(WholeConsole(quiet=True), checkout, ["multiply", "without_inputs"], COMMON))
    with pytest.raises(UsageError, match=r"holds no recorded operators\.jsonl"):
        operators.run(WholeConsole(quiet=True), tmp_path, None, [])


def made(name, *kernels, **changed):
    diagnoses = [
        {"kernel": f"k{place}", "target": "sm_90a", "findings": findings, "bound": {"unit": "memory", "message": "m"}}
        for place, findings in enumerate(kernels)
    ]
    return ROWS.validate_python(COMMON | {"name": name, "sha256": 64 * "0", "kernels": diagnoses} | changed)


SPILLS = finding("spills", 7, "high", (2, 1.2, 3), [("num_warps=8", 4.0, 3.9), ("num_warps=16", 4.1, 3.0)])
ROWS_MADE = [
    made(
        "first", [finding("tma", 3, "low"), SPILLS], [finding("stages", 5, "medium", (1.5, 1, 2), [("a", 1.25, 1.2)])]
    ),
    made("second", [finding("stages", 4, "medium", (1.2, 1, 2), [("num_stages=3", 0.9, 0.89)])], []),
    made("third", why="exit status 1: ModuleNotFoundError: No module named 'triton.ops'"),
]


def test_kernels_are_counted_by_severity_and_gain():
    assert operators.sentences(ROWS_MADE) == [
        "2 of 3 operators ran, and launched 4 kernels.",
        "The severest finding has severity high in 1 kernel, medium in 2 kernels, low in 0 kernels; 1 kernel has no "
        "finding.",
        "`--try` timed other configurations of 3 kernels. The fastest configuration makes 2 kernels at least 10% "
        "faster (1.25 to 4.00 x, median 2.62 x); 1 kernel becomes slower with every configuration that was timed.",
        "For 2 of 3 kernels, the estimated gain differs from the measured gain by a factor of at most 1.5.",
        "An operator that did not run: third.",
    ]


def test_the_page_has_the_kernels_that_become_faster(tmp_path):
    kept(RecordStore(tmp_path, "operators", ROWS), ROWS_MADE)
    text = operators.markdown(tmp_path)
    assert [line for line in text.splitlines() if line.startswith("|")][2:] == [
        "| k0 | spills | k.py:7 | high | 2 x, 1.2 to 3 | 4.00 x, 3.90 to 4.00 | num_warps=8 |",
        "| k1 | stages | k.py:5 | medium | 1.5 x, 1 to 2 | 1.25 x, 1.20 to 1.25 | a |",
    ]
    assert "- 2 of 3 operators ran" in text
