"""Loops that wait for a few bytes in each iteration, and kernels that compute for longer than memory takes."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import diagnose
from tests.command import kperf

HEAD = "import torch\nimport triton\nimport triton.language as tl\n"
SCAN = """
@triton.jit
def recurrence(x, a, out, steps, width, BLOCK: tl.constexpr):
    d = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    h = tl.zeros([BLOCK], tl.float32)
    for t in range(steps):
        h = h * tl.load(a + t * width + d) + tl.load(x + t * width + d)
        tl.store(out + t * width + d, h)

x = torch.empty(4096, {width}, device="cuda")
recurrence[({width} // 128,)](x, x, torch.empty_like(x), 4096, {width}, BLOCK=128)
"""
CHUNKS = """
@triton.jit
def largest(x, out, n, BLOCK: tl.constexpr):
    m = -float("inf")
    for start in range(0, n, BLOCK):
        m = tl.maximum(m, tl.max(tl.load(x + tl.program_id(0) * n + start + tl.arange(0, BLOCK)), 0))
    tl.store(out + tl.program_id(0), m)

x = torch.empty(8192, 131072, device="cuda", dtype=torch.bfloat16)
largest[(8192,)](x, torch.empty(8192, device="cuda"), 131072, BLOCK={block})
"""
RANDOM = """
@triton.jit
def dropout(x, out, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, {what})

x = torch.empty(1 << 24, device="cuda", dtype=torch.bfloat16)
dropout[(1 << 14,)](x, torch.empty_like(x), 7, BLOCK=1024)
"""


def diagnosis(tmp_path, source):
    script = tmp_path / "script.py"
    script.write_text(HEAD + source)
    (kernel,) = inputs.read(str(script), (), SM_90A)
    return diagnose(kernel)


def few_bytes(tmp_path, source):
    return next((one for one in diagnosis(tmp_path, source).findings if one.id == "few-bytes-in-flight"), None)


def test_a_recurrence_of_few_ctas_waits_for_memory_in_each_step(tmp_path):
    found = few_bytes(tmp_path, SCAN.format(width=8192))
    assert found.evidence == {"bytes_in_flight": 1024, "ctas": 1}  # 64 CTAs, each 128 numbers of two tensors
    assert "write the loop as tl.range(..., num_stages=4)" in found.advice
    # An iteration waits for 1280 cycles of latency, and memory moves its 1536 bytes in 77: 16.7 at most.
    assert (found.estimate.speedup, found.estimate.high) == (pytest.approx(4.12, abs=0.05), 16.0)


@pytest.mark.parametrize(
    ("launch", "written"),
    [("BLOCK=128", "launch with num_warps=2, "), ("BLOCK=32, num_warps=1", "take BLOCK=64, ")],
)
def test_a_recurrence_of_16_bits_needs_4_bytes_a_thread_to_load_ahead(tmp_path, launch, written):
    source = SCAN.format(width=8192).replace('device="cuda"', 'device="cuda", dtype=torch.bfloat16')
    source = source.replace("BLOCK=128", launch)
    found = few_bytes(tmp_path, source)
    assert (
        f"; or {written}so that a thread loads the 4 bytes that the compiler needs to load ahead, and write"
        in found.advice
    )
    ahead = source.replace("range(steps)", "tl.range(0, steps, num_stages=4)")
    assert few_bytes(tmp_path, ahead) is not None  # stages alone change nothing
    assert few_bytes(tmp_path, ahead.replace(launch, "BLOCK=128, num_warps=2")) is None


@pytest.mark.parametrize(("block", "is_found"), [(128, True), (4096, False)])
def test_a_reduction_across_warps_keeps_the_next_loads_behind_it(tmp_path, block, is_found):
    found = few_bytes(tmp_path, CHUNKS.format(block=block))
    assert (found is not None) == is_found
    if found is not None:
        assert found.message.startswith("each iteration loads 2 bytes a thread and waits for them: the 16 CTAs")
        assert found.advice.endswith("or let an iteration work on several rows, or on a longer part of a row, at once")


@pytest.mark.parametrize(
    ("what", "unit"),
    [("tl.load(x + i) * 2", "memory"), ("tl.where(tl.rand(seed, i) > 0.1, tl.load(x + i), 0.0)", "arithmetic")],
)
def test_what_computes_for_longer_than_its_bytes_take_is_bound_by_that(tmp_path, what, unit):
    bound = diagnosis(tmp_path, RANDOM.format(what=what)).bound
    assert bound.unit == unit
    assert bound.message.startswith(f"{unit} bounds it: ")


REFUSED = """
@triton.jit
def multiply(a, out):
    r = tl.arange(0, 64)
    acc = tl.zeros((64, 64), tl.int32)
    acc = tl.dot(tl.load(a + r[:, None] * 64 + r), tl.load(a + r[:, None] * 64 + r), acc)
    tl.store(out + r[:, None] * 64 + r, acc)

a = torch.empty(64, 64, device="cuda", dtype=torch.int8)
multiply[(1,)](a, torch.empty(64, 64, device="cuda", dtype=torch.int32))
"""


def test_what_the_compiler_refuses_without_a_word_is_quoted(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(HEAD + REFUSED)
    done = kperf("diagnose", "--static", script)
    assert done.returncode == 2
    assert "CompilationError: at `acc = tl.dot(tl.load(a + r[:, None] * 64 + r)" in done.stderr
    assert "AssertionError (assert acc" in done.stderr
