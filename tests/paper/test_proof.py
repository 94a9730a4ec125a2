"""`make proof` on a GPU that is not there: each script in a process of its own, and the sentences on the rows."""

from pathlib import Path

import pytest

from kperf.errors import UsageError
from kperf.paper import proof, proof_page
from kperf.paper.proof import ROWS
from kperf.record.store import RecordStore
from tests.conftest import kept

ROOT = Path(__file__).resolve().parents[2]
COMMON = {"run": "r", "environment": "e", "recorded_at": "2026-11-23T00:00:00Z"}

GEMM = """
import torch, triton, triton.language as tl

@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a_ptrs = a + rm[:, None] * K + rk[None, :]
    b_ptrs = b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a_ptrs)  # planted: loads-not-pipelined
        y = tl.load(b_ptrs)
        acc = tl.dot(x, y, acc)
        a_ptrs += BK
        b_ptrs += BK * N
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(c.dtype.element_ty))

a, b = torch.randn(256, 128, dtype=torch.bfloat16), torch.randn(128, 256, dtype=torch.bfloat16)
c = torch.zeros(256, 256, dtype=torch.bfloat16)
gemm[(4, 4)](a, b, c, 256, 256, 128, 64, 64, 64, num_warps=4, num_stages=1)
"""
WHILE = GEMM.replace("num_stages=1", "num_stages=3").replace(
    "for k in range(0, K, BK):", "k = 0\n    while k < K:\n        k += BK"
)
PLUS = """
import torch, triton, triton.language as tl

@triton.jit
def plus(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) + tl.load(y + i, mask=i < n), mask=i < n)

x = torch.zeros(1 << 20)
plus[(1024,)](x, x, x, 1 << 20, 1024)
"""


@pytest.fixture
def on_a_fake_gpu(monkeypatch, in_a_fork, h200):
    monkeypatch.setattr(proof, "SESSION", (*in_a_fork, "-m", "tests.paper.proof_session_on_a_fake_gpu"))


def written(folder, **texts):
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.long
@pytest.mark.usefixtures("on_a_fake_gpu")
def test_each_kernel_is_tried_or_timed_beside_its_fixed_copy(tmp_path, console):
    kernels = written(
        tmp_path / "set",
        planted__stages=GEMM,
        drafts__loop=WHILE,
        fixed__loop=GEMM.replace("num_stages=1", "num_stages=3"),
        planted__other=WHILE,
        fixed__other=GEMM.replace("torch.randn(256", "torch.rand(256"),
        clean__plus=PLUS,
        clean__broken="raise SystemExit(3)",
    )
    proof.run(console, tmp_path / "results", kernels, [], require_gpu=True)
    rows = {row.name: row for row in RecordStore(tmp_path / "results/h200", "diagnose", ROWS).points()}
    assert set(rows) == {"stages", "loop", "other", "plus", "broken"}
    stages = rows["stages"]
    assert (stages.kind, stages.fault, stages.line, stages.rank) == (
        "planted",
        "loads-not-pipelined",
        13,
        2,
    )  # nothing is faster
    assert stages.finding.source.file == "planted/stages.py"
    assert [one.source.file for one in stages.kernels] == ["planted/stages.py"]
    assert {trial.change for trial in stages.finding.tried} == {"num_stages=2", "num_stages=3", "num_stages=4"}
    assert (stages.gain.speedup, len(stages.finding.tried[0].original_ms)) == (1.0, 21)
    loop = rows["loop"]
    assert (loop.kind, loop.rank, loop.finding.tried) == ("drafts", 1, [])
    assert (loop.fixed.compared, len(loop.fixed.fixed_ms)) == (["a", "b", "c"], 21)
    assert (loop.gain.by, loop.gain.speedup) == ("a fixed copy", 1.0)
    assert rows["other"].fixed is None
    assert rows["other"].why == "a of the fixed other.py is not that of other.py"
    assert (rows["plus"].kind, rows["plus"].fault, rows["plus"].severe) == ("clean", "", [])
    assert rows["broken"].why.startswith("the script ends with exit status 3: ")
    said = console.export_text()
    assert "first or second finding names 3 of 3 faults and their lines: " in said
    assert "The severest finding of a clean kernel has severity high in 0, " in said
    assert "a of the fixed other.py is not that of other.py" in said
    assert "Kernels whose gain was not measured: other." in said
    assert "Failed: broken (the script ends with exit status 3: " in said


def finding(rule, line, severity="medium", estimate=None, tried=()):
    gains = ("change", "speedup", "low", "high", "equal")
    return {
        "id": rule, "severity": severity, "confidence": "high", "source": {"file": "planted/k.py", "line": line},
        "kernel": "k", "message": "m", "evidence": {}, "advice": "a",
        "estimate": estimate and dict(zip(("speedup", "low", "high"), estimate, strict=True)),
        "tried": [dict(zip(gains, (change, gain, low, gain, True), strict=True)) for change, gain, low in tried],
    }  # fmt: skip


def made(name, *findings, **changed):
    kernel = {"kernel": "k", "target": "sm_90a", "findings": findings, "bound": {"unit": "memory", "message": "m"}}
    fields = {"kind": "planted", "name": name, "fault": "spills", "line": 7, "kernels": [kernel]}
    return ROWS.validate_python(COMMON | fields | changed)


ROWS_MADE = [
    made("first", finding("spills", 7, "high", (2, 1.2, 3), [("num_warps=8", 4.0, 3.9), ("num_warps=16", 4.1, 3.0)])),
    made("second", finding("tma", 3), finding("spills", 7, "high", (2, 1, 3)),
         fixed={"compared": ["c"], "original_ms": [3.0] * 6, "fixed_ms": [1.5] * 5 + [3.0]}),
    made("third", finding("tma", 3), finding("spills", 6), finding("spills", 7)),
    made("other", finding("spills", 8)),
    made("silent", kernels=[], why="exit status 1: -"),
    made("good", finding("tma", 3, "low"), kind="clean", fault="", line=0),
    made("alarm", finding("spills", 3, "high"), finding("tma", 3, "low"), kind="clean", fault="", line=0),
    made("nothing", kind="clean", fault="", line=0),
]  # fmt: skip


def test_a_row_says_where_its_fault_is_named_and_what_the_advice_gives():
    first, second, third, other, silent, *_ = ROWS_MADE
    assert [row.rank for row in ROWS_MADE] == [1, 2, 3, None, None, None, None, None]
    assert (first.gain.by, first.gain.speedup, first.off) == ("num_warps=8", 4.0, 2.0)  # by what is sure
    assert (second.gain.by, second.gain.speedup, second.gain.low, second.off) == ("a fixed copy", 2.0, 1.0, 1.0)
    assert (third.gain, third.off, other.finding, silent.gain) == (None, None, None, None)


def test_a_fault_that_is_not_named_has_the_gain_of_its_fixed_copy():
    timed = {"compared": ["c"], "original_ms": [3.0] * 6, "fixed_ms": [1.5] * 6}
    cells = proof.cells(made("missed", finding("spills", 8), fixed=timed))
    assert cells == ("missed", "spills", "7", "-", "", "", "2.00 x, 2.00 to 2.00", "a fixed copy")


def test_totals_name_what_misses_them():
    assert proof.sentences(ROWS_MADE) == [
        "kperf's first or second finding names 2 of 5 faults and their lines: the first finding names 1, and the "
        "second finding names 1.",
        "Neither the first nor the second finding names the fault of other (spills, kperf reports spills at line 8), "
        "silent (spills, exit status 1: -), third (spills, finding 3, after tma at line 3 and spills at line 6).",
        "Of 3 clean kernels, 1 has no finding. The severest finding of a clean kernel has severity high in 1 (alarm: "
        "spills at line 3), medium in 0, low in 1 kernels. `--try` timed candidates on none of the clean kernels.",
        "For 1 of 2 faulty kernels (50%), the estimated gain differs from the measured gain by a factor of at most "
        "1.5. The two gains differ by a factor above 1.5 for first.",
        "For 1 of 2 faulty kernels, the measured gain lies in the interval of the estimate. The measured gain "
        "lies outside of the interval for first.",
        "The advice was timed on 2 faulty kernels: `--try` made 1 of the changes, and 1 was made by hand.",
        "With the advised change, 2 of 2 kernels become at least 10% faster, 0 gain less than 10%, and 0 become "
        "slower.",
        "The median of the 2 measured gains is 3.00 x, and the geometric mean 2.83 x; without first (4 x) the "
        "geometric mean is 2.00 x.",
        "Kernels whose gain was not measured: other, silent, third.",
    ]


def test_files_are_named_from_the_folder_of_the_set_or_of_the_packages():
    (kernel,) = made("first", finding("spills", 7), finding("bound", 8)).kernels
    places = ("/home/me/set/planted/k.py", "/opt/lib/site-packages/triton/language/random.py")
    findings = [
        one.model_copy(update={"source": one.source.model_copy(update={"file": file})})
        for one, file in zip(kernel.findings, places, strict=True)
    ]
    seen = proof.seen_from(Path("/home/me/set"), kernel.model_copy(update={"findings": findings}))
    assert [one.source.file for one in seen.findings] == ["planted/k.py", "triton/language/random.py"]


def test_wrong_results_stand_where_a_gain_would():
    """A script whose check fails has no fixed copy beside it; a doubt that was not confirmed is counted, too."""
    doubt = {"than": "num_stages=1", "launches": 20}
    wrong = made("head", finding("spills", 7) | {"checked": doubt | {"different": 18}}, why="exit status 1: -")
    right = made("norm", finding("spills", 7) | {"checked": doubt | {"different": 0}})
    assert proof.cells(wrong)[-2:] == ("", "the results of 18 of 20 launches are wrong")
    assert proof.cells(right)[-2:] == ("", "no change was timed")
    assert (
        "Findings say that these kernels may compute wrong results. `--try` compared the results of several launches: "
        "wrong results came from 18 of 20 launches of head, 0 of 20 launches of norm."
    ) in proof.sentences([right, wrong])


def test_gains_that_are_small_or_losses_are_counted_apart():
    rows = [
        made("loses", finding("spills", 7, "high", (2, 1.2, 3), [("num_warps=8", 0.7, 0.6), ("num_warps=4", 0.8, 0.7)]),
             finding("tma", 3, "low", None, [("num_warps=2", 0.9, 0.8)])),
        made("gains_little", finding("spills", 7, "high", (1.05, 0.9, 1.2), [("num_warps=8", 1.09, 0.9)])),
        made("gains", finding("spills", 7, "high", (1.05, 0.9, 1.2), [("num_warps=8", 1.1, 1.0)])),
        made("copied", finding("spills", 7),
             fixed={"compared": ["c"], "original_ms": [3.0] * 6, "fixed_ms": [4.0] * 6}),
        made("tried", finding("tma", 3, "medium", None, [("num_warps=2", 0.5, 0.4)]), kind="clean", fault="", line=0),
    ]  # fmt: skip
    lines = proof.sentences(rows)
    assert (
        "With the advised change, 1 of 4 kernels becomes at least 10% faster, 1 gains less than 10%, and 2 "
        "become slower: copied, loses." in lines
    )
    assert (
        "have no finding. The severest finding of a clean kernel has severity high in 0, medium in 1, low in 0 kernels."
        in lines[1]
    )
    assert lines[1].endswith("`--try` timed candidates on 1 of the clean kernels.")
    inside = "For 2 of 3 faulty kernels, the measured gain lies in the interval of the estimate."
    assert f"{inside} The measured gain lies outside of the interval for loses." in lines
    assert proof.slower(rows) == [
        ("copied", "spills", "7", "1", "medium", "", "0.75 x, 0.75 to 0.75", "a fixed copy"),
        ("loses", "spills", "7", "1", "high", "2 x, 1.2 to 3", "0.80 x, 0.70 to 0.80", "num_warps=4"),
        ("loses", "tma", "3", "2", "low", "", "0.90 x, 0.80 to 0.90", "num_warps=2"),
        ("tried", "tma", "3", "1", "medium", "", "0.50 x, 0.40 to 0.50", "num_warps=2"),
    ]
    assert proof.slower(ROWS_MADE) == []


def test_the_totals_of_one_kernel_of_each_kind_are_in_the_singular():
    rows = [
        made("copied", finding("spills", 7, "high", (2, 1, 3)),
             fixed={"compared": ["c"], "original_ms": [3.0] * 6, "fixed_ms": [1.5] * 6}),
        made("good", kind="clean", fault="", line=0),
    ]  # fmt: skip
    assert proof.sentences(rows) == [
        "kperf's first or second finding names 1 of 1 fault and its line: the first finding names 1, and the second "
        "finding names 0.",
        "Of 1 clean kernel, 1 has no finding. The severest finding of a clean kernel has severity high in 0, medium in "
        "0, low in 0 kernels. `--try` timed candidates on none of the clean kernels.",
        "For 1 of 1 faulty kernel (100%), the estimated gain differs from the measured gain by a factor of at most "
        "1.5.",
        "For 1 of 1 faulty kernel, the measured gain lies in the interval of the estimate.",
        "The advice was timed on 1 faulty kernel: `--try` made 0 of the changes, and 1 was made by hand.",
        "With the advised change, 1 of 1 kernel becomes at least 10% faster, 0 gain less than 10%, and 0 become "
        "slower.",
    ]


def test_the_pages_have_totals_and_a_row_a_fault_from_the_record(tmp_path):
    kernels = written(tmp_path / "set", planted__first="", drafts__held="")
    held_out = [made("held", kind="heldout", fault="nameless"), made("right", kind="heldout", fault="", line=0)]
    kept(RecordStore(tmp_path / "h200", "diagnose", ROWS), [*ROWS_MADE, *held_out])
    sections = proof_page.sections(tmp_path / "h200", kernels)
    assert sections["proof"].splitlines()[4:] == [
        "| kernels with a fault | 5 | 1 |",
        "| faults that the first or second finding names | 2 | 0 |",
        "| clean kernels with a finding of severity high | 1 of 3 | 0 of 1 |",
        "| advised changes that were timed | 2 | 0 |",
        "| of these changes, at least 10% faster | 2 | 0 |",
        "| of these changes, slower | 0 | 0 |",
        "| median of the measured gains | 3.00 x | none |",
        "| estimated gains within a factor of 1.5 of the measured gain | 1 of 2 | 0 of 0 |",
        "| measured gains in the interval of the estimate | 1 of 2 | 0 of 0 |",
    ]
    lines = sections["kernels"].splitlines()
    assert lines[0].startswith("Recorded on ")
    assert lines[4:12] == [
        "| [first:7](../../tests/diagnose/kernels/planted/first.py#L7) | spills | 1, high | 2 x, 1.2 to 3 "
        "| 4.00 x, 3.90 to 4.00, by num_warps=8 |",
        "| other:7 | spills | - |  | no change was timed |",
        "| second:7 | spills | 2, high | 2 x, 1 to 3 | 2.00 x, 1.00 to 2.00 |",
        "| silent:7 | spills | - |  | exit status 1 |",
        "| third:7 | spills | 3, medium |  | no change was timed |",
        "",
        "In all:",
        "",
    ]
    assert lines[12:] == [f"- {line}" for line in proof.sentences(ROWS_MADE)]
    held = "| [held:7](../../tests/diagnose/kernels/drafts/held.py#L7) | nameless | - |  | no change was timed |"
    assert held in sections["held-out"].splitlines()


def test_the_page_lists_advice_that_makes_a_kernel_slower(tmp_path):
    row = made("loses", finding("float64", 7, "high", (2, 1.2, 3), [("num_warps=8", 0.7, 0.6)]), fault="float64")
    held_out = made("held", kind="heldout")
    kept(RecordStore(tmp_path / "h200", "diagnose", ROWS), [row, held_out])
    lines = proof_page.sections(tmp_path / "h200", written(tmp_path, planted__k=""))["kernels"].splitlines()
    assert lines[-5:] == [
        f"{proof.SLOWER}:", "", f"| {' | '.join(proof_page.SLOWER_HEAD)} |",
        "|---|---|---|---|---|",
        "| loses:7 | [float64](../rules/float64.md) | 1, high | 2 x, 1.2 to 3 | 0.70 x, 0.60 to 0.70, by num_warps=8 |",
    ]  # fmt: skip


def test_without_a_gpu_and_a_record_one_sentence_says_so(tmp_path, no_gpu, console):
    with pytest.raises(UsageError, match="nothing is recorded of `make proof`"):
        proof.run(console, tmp_path, tmp_path, [], require_gpu=False)


def test_without_a_gpu_only_the_kernels_that_are_named_are_shown(no_gpu, console):
    """One that is not there is refused, and one that is not recorded."""
    kernels = ROOT / "tests/diagnose/kernels"
    proof.run(console, ROOT / "results", kernels, ["softmax"], require_gpu=False)
    said = console.export_text()
    assert "softmax" in said
    assert "matmul_one_stage" not in said
    with pytest.raises(UsageError, match="has no kernel nothing"):
        proof.run(console, ROOT / "results", kernels, ["nothing"], require_gpu=False)
    with pytest.raises(UsageError, match="nothing is recorded of csr_spmm"):
        proof.run(console, ROOT / "results", kernels, ["csr_spmm"], require_gpu=False)


def test_kernels_that_are_not_there_are_refused_in_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="has no kernels: give the folder of the proof set with --kernels"):
        proof.scripts(tmp_path, [])
    with pytest.raises(UsageError, match="has no kernel nothing"):
        proof.scripts(ROOT / "tests/diagnose/kernels", ["gemm", "nothing"])
