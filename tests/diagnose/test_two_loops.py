"""Loops over the same lines of source: which of them a finding is about, how much of the work, and what is measured."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.analyses.loops import longest_loops
from kperf.diagnose.engine import _with_measured, diagnose
from kperf.trace.analyze.finding import Finding

pytestmark = pytest.mark.kernels

HEAD = """
import torch, triton, triton.language as tl

@triton.jit
def block(q, k, v, n, cols, D: tl.constexpr, MASK: tl.constexpr, rows):
    dims = tl.arange(0, D)
    keys = tl.load(k + (n + cols)[:, None] * D + dims[None, :])
    s = tl.dot(q, keys.T)
    if MASK:
        s = tl.where(rows[:, None] >= (n + cols)[None, :], s, 0.0)
    values = tl.load(v + (n + cols)[:, None] * D + dims[None, :])
    return tl.dot(s.to(tl.bfloat16), values)

@triton.jit
def attention(q, k, v, out, lengths, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    m = tl.program_id(0) * BM
    rows, cols, dims = m + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    x = tl.load(q + rows[:, None] * D + dims[None, :])
    acc = tl.zeros((BM, D), tl.float32)
"""
TAIL = """
    tl.store(out + rows[:, None] * D + dims[None, :], acc.to(tl.bfloat16))

x = torch.empty(1 << 15, 128, device="cuda", dtype=torch.bfloat16)
lengths = torch.empty(1 << 15, device="cuda", dtype=torch.int32)
attention[(512,)](x, x, x, x, lengths, 128, ROWS, 32, num_warps=4, num_stages=STAGES)
"""
MAIN = """
    for n in range(0, m, BN):
        acc += block(x, k, v, n, cols, D, False, rows)
"""
DIAGONAL = """
    for n in tl.range(
        m, m + BM, BN, num_stages=OWN
    ):
        acc += block(x, k, v, n, cols, D, True, rows)
"""
ANY = """
    for n in tl.range(0, tl.load(lengths + m), BN, num_stages=OWN):
        acc += block(x, k, v, n, cols, D, True, rows)
"""
AGAIN = """
    for n in range(0, m, BN):
        acc += block(x, k, v, n, cols, D, True, rows)
"""


def kernel_of(folder, *loops, stages, own=0):
    path = folder / "attention.py"
    text = (HEAD + "".join(loops) + TAIL).replace("STAGES", str(stages))
    path.write_text(text.replace("OWN", str(own)).replace("ROWS", "64" if stages > 2 else "128"))  # of 64: 4 CTAs an SM
    return inputs.read(str(path), (), SM_90A)[0]


def line_of(folder, text):
    lines = (folder / "attention.py").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def found(kernel):
    return {(one.id, one.source.line): one for one in reversed(diagnose(kernel).findings)}


@pytest.mark.parametrize("own", [0, 1])
def test_a_short_loop_that_its_author_does_not_pipeline_is_a_hint_and_named(tmp_path, own):
    kernel = kernel_of(tmp_path, MAIN, DIAGONAL, stages=3, own=own)
    finding = found(kernel)["loads-not-pipelined", line_of(tmp_path, "keys = ")]
    line = line_of(tmp_path, "for n in tl.range(")
    assert finding.severity == "low"
    assert finding.message == (
        f"the load is not pipelined, so each iteration of the loop on line {line} waits for memory: num_stages={own}"
    )
    assert finding.advice == "write num_stages=3 (or 4) in the loop's tl.range"
    assert finding.evidence["loop_line"] == line
    ahead = (1200 + 256 + 394 + 48) / (3 * 394)  # three CTAs of an SM wait, load, multiply and compute
    assert finding.estimate.speedup == pytest.approx(1 / (1 - 2 / 10 * (1 - 1 / ahead)), rel=1e-3)


@pytest.mark.parametrize(
    ("loops", "stages", "severity"),
    [
        ((MAIN, AGAIN), 1, "medium"),  # both wait: they gain together, but two CTAs with as many rows again hide more
        ((ANY,), 3, "medium"),  # the only loop
        ((MAIN, ANY), 3, "low"),  # one of two that may be equally long
    ],
)
def test_loops_gain_by_their_share_of_the_bytes(tmp_path, loops, stages, severity):
    finding = found(kernel_of(tmp_path, *loops, stages=stages))["loads-not-pipelined", line_of(tmp_path, "keys = ")]
    assert finding.severity == severity


def test_a_pipelined_main_loop_is_named_where_another_one_has_its_lines(tmp_path):
    rules = found(kernel_of(tmp_path, MAIN, DIAGONAL, stages=2))
    finding = rules["too-few-stages", line_of(tmp_path, "keys = ")]
    assert finding.message.startswith(f"the loop on line {line_of(tmp_path, 'for n in range(')} has 2 buffers")


def test_a_line_in_one_loop_alone_needs_no_name(tmp_path):
    (tmp_path / "gemm.py").write_text(
        "import torch, triton, triton.language as tl\n\n@triton.jit\n"
        "def gemm(a, b, c, K, B: tl.constexpr):\n"
        "    i = tl.arange(0, B)\n"
        "    acc = tl.zeros((B, B), tl.float32)\n"
        "    for k in range(0, K, B):\n"
        "        x = tl.load(a + i[:, None] * K + (k + i)[None, :])\n"
        "        acc = tl.dot(x, tl.load(b + (k + i)[:, None] * B + i[None, :]), acc)\n"
        "    tl.store(c + i[:, None] * B + i[None, :], acc)\n\n"
        'a = torch.empty(64, 4096, device="cuda", dtype=torch.bfloat16)\n'
        "gemm[(512,)](a, a, a, 4096, 64, num_stages=1)\n"
    )
    (kernel,) = inputs.read(str(tmp_path / "gemm.py"), (), SM_90A)
    finding = found(kernel)["loads-not-pipelined", 8]
    assert finding.message == "the load is not pipelined, so each iteration waits for memory: num_stages=1"
    assert "loop_line" not in finding.evidence


def measured_at(finding):
    return Finding(
        id="exposed-loads",
        severity="high",
        confidence="high",
        source=finding.source,
        kernel=finding.kernel,
        message="loads are exposed",
        evidence={},
        advice="raise num_stages",
    )


@pytest.mark.parametrize(
    ("loops", "stages", "joined"),
    [
        ((MAIN, DIAGONAL), 2, {"too-few-stages"}),  # a trace times the main loop
        ((MAIN, ANY), 2, set()),  # either may be the longer one
        ((MAIN, AGAIN), 1, {"loads-not-pipelined"}),  # both have the fault
    ],
)
def test_a_measured_wait_is_joined_to_the_loop_that_a_trace_times(tmp_path, loops, stages, joined):
    kernel = kernel_of(tmp_path, *loops, stages=stages)
    at_line = [
        one
        for (rule, line), one in found(kernel).items()
        if line == line_of(tmp_path, "keys = ") and rule in ("too-few-stages", "loads-not-pipelined")
    ]
    if len(loops) == 2 and loops[1] is AGAIN:  # of one line and rule one finding is left; the rules give both
        lines = longest_loops(kernel, at_line[0].source)
        at_line = [at_line[0].model_copy(update={"evidence": {"loop_line": line}}) for line in lines]
    causes = ("loads-not-pipelined", "too-few-stages")
    together = _with_measured(at_line, measured_at(at_line[0]), causes, kernel)
    assert {one.id for one in together if "exposed" in one.message} - {"exposed-loads"} == joined
    assert any(one.id == "exposed-loads" for one in together) == (not joined)
