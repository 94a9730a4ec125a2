"""Loads whose addresses earlier loads gave: their latencies add up, and more CTAs on an SM hide them."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.analyses.chains import chained_loads, is_chase
from tests.diagnose.test_severities import found

pytestmark = pytest.mark.kernels

KERNEL = """
def walks(next, value, y, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    acc = tl.zeros((B,), tl.float32)
    BODY
    tl.store(y + i, acc)
"""
LISTS = """for turn in range(n):
        node = i + turn
        for _ in range(16):
            acc += tl.load(value + node)
            node = tl.load(next + node)"""
ONE_LIST = """node = i
    for _ in range(n):
        acc += tl.load(value + node)
        node = tl.load(next + node)"""
GATHERED = """for k in range(n):
        acc += tl.load(value + tl.load(next + i * n + k))"""
GATHERED_TWICE = """for k in range(n):
        acc += tl.load(value + tl.load(next + tl.load(next + i * n + k)))"""
BRANCH = """node = i
    for k in range(n):
        top = tl.max(node, 0)
        if top > 7:
            node = tl.load(next + node)
        else:
            node = tl.load(next + n + node)
        acc += node"""
COLUMNS = """for k in range(n):
        acc += tl.load(value + i * n + k) * tl.load(value + k)"""
MOVING = """at = value + i
    for k in range(n):
        acc += tl.load(at)
        at += 4096"""
TENSORS = """
next = torch.empty(1 << 24, device="cuda", dtype=torch.int32)
value, y = torch.empty(1 << 24, device="cuda"), torch.empty(1 << 20, device="cuda")
"""


@pytest.mark.parametrize(
    ("body", "loads", "chases"),
    [
        (LISTS, 1, True),
        (ONE_LIST, 1, True),
        (BRANCH, 1, True),
        (GATHERED, 2, False),
        (GATHERED_TWICE, 3, False),
        (COLUMNS, 0, False),
        (MOVING, 0, False),
    ],
    ids=["lists", "one list", "in a branch", "gathered", "gathered twice", "columns", "a moving pointer"],
)
def test_loads_that_wait_for_each_other_are_counted(tmp_path, body, loads, chases):
    script = tmp_path / "script.py"
    kernel = KERNEL.strip().replace("BODY", body)
    launch = f"{TENSORS}walks[(64,)](next, value, y, 256, 128, num_warps=4)"
    script.write_text(f"import torch, triton, triton.language as tl\n\n@triton.jit\n{kernel}\n\n{launch}\n")
    (kernel,) = inputs.read(str(script), (), SM_90A)
    (loop,) = kernel.main_loops
    assert (chained_loads(loop), is_chase(loop)) == (loads, chases)


@pytest.mark.parametrize(
    ("body", "ctas", "gain"),
    [
        (LISTS, 32, 270 / (2 * 128 * 32 / 64 * 32 / 132)),
        (LISTS, 120, 270 / (2 * 128 * 32 / 64 * 120 / 132)),
        (GATHERED_TWICE, 33, 810 / (3 * 128 * 32 / 64 * 33 / 132)),
        (ONE_LIST, 32, None),
        (COLUMNS, 32, None),
    ],
    ids=["lists", "lists, more CTAs", "gathered twice", "one list", "columns"],
)
def test_more_ctas_hide_loads_that_wait_for_each_other(tmp_path, body, ctas, gain):
    """Until L2 brings a CTA of each SM its sectors all the time. A list that is one for all turns cannot be shared."""
    kernel = KERNEL.replace("BODY", body)
    findings = found(tmp_path, kernel, f"{TENSORS}walks[({ctas},)](next, value, y, 256, 128, num_warps=4)")
    one = findings["launch-too-small"]
    assert ("one after another" in one.message or "the last one gave" in one.message) == (gain is not None)
    assert one.estimate.speedup == pytest.approx((132 / ctas) ** 0.65 if gain is None else gain, rel=0.02)


ROWS = """
def rows(index, table, y, n, D: tl.constexpr):
    d = tl.arange(0, D)
    for k in range(n):
        at = tl.program_id(0) * n + k
        tl.store(y + at * D + d, tl.load(table + tl.load(index + at) * D + d) * 2)
"""


@pytest.mark.parametrize(("rows", "moved"), [(1 << 16, 2 * 512 * 2), (1 << 10, 512 * 2)])
def test_device_memory_limits_what_more_ctas_give(tmp_path, rows, moved):
    """Of rows that are read, and rows that are stored: L2 keeps a small table."""
    tensors = """
index = torch.zeros(1 << 16, device="cuda", dtype=torch.int32)
table = torch.empty(ROWS, 512, device="cuda", dtype=torch.bfloat16)
y = torch.empty(1 << 16, 512, device="cuda", dtype=torch.bfloat16)
""".replace("ROWS", str(rows))
    one = found(tmp_path, ROWS, f"{tensors}rows[(32,)](index, table, y, 2048, 512, num_warps=4)")["launch-too-small"]
    gain = 2 * 270 / (moved / SM_90A.memory_bytes_per_cycle * 32 / 132)
    assert one.estimate.speedup == pytest.approx(gain, rel=0.02)


@pytest.mark.parametrize(("ctas", "said"), [(200, True), (600, False)])
def test_a_cta_on_each_sm_hides_none_of_them(tmp_path, ctas, said):
    kernel = KERNEL.replace("BODY", GATHERED_TWICE)
    findings = found(tmp_path, kernel, f"{TENSORS}walks[({ctas},)](next, value, y, 64, 128, num_warps=4)")
    assert ("launch-too-small" in findings) == said
    if said:
        assert findings["launch-too-small"].message == (
            "the launch has 1.5 CTAs for each SM, which has room for 16, and each iteration of a CTA waits for 3 loads "
            "one after another"
        )
