"""Pointers that two nested loops carry, and those that one loop or none does."""

import pytest

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import FAILED, diagnose

pytestmark = pytest.mark.kernels

RULE = "pointers-through-loops"
GEMM = """
    rows, k, cols = tl.program_id(0) * 128 + tl.arange(0, 128), tl.arange(0, 64), tl.arange(0, 128)
    a = x_ptr + rows[:, None] * n + k[None, :]
    b = z_ptr + k[:, None] * 512 + cols[None, :]
    for tile in range(4):
        acc = tl.zeros((128, 128), tl.float32)
        for _ in range(0, n, 64):
            acc = tl.dot(tl.load(a), tl.load(b), acc)
            a += 64
            b += 64 * 512
        tl.store(y_ptr + rows[:, None] * 512 + tile * 128 + cols[None, :], acc)
        a -= n
        b += 128 - n * 512
"""
OFFSETS = (
    GEMM.replace("a = x_ptr + ", "a = ")
    .replace("b = z_ptr + ", "b = ")
    .replace("tl.load(a), tl.load(b)", "tl.load(x_ptr + a), tl.load(z_ptr + b)")
)
SEGMENTS = """
    rows = tl.program_id(0) * 16 + tl.arange(0, 16)
    p = x_ptr + rows[:, None] * n + tl.arange(0, 128)[None, :]
    for segment in range(8):
        acc = tl.zeros((16, 128), tl.float32)
        for _ in range(0, n // 8, 128):
            acc += tl.load(p)
            p += 128
        tl.store(y_ptr + rows * 8 + segment, tl.sum(acc, 1))
"""
ONE_LOOP = """
    p = x_ptr + tl.program_id(0) * n + tl.arange(0, 1024)
    acc = tl.zeros((1024,), tl.float32)
    for _ in range(n // 1024):
        acc += tl.load(p)
        p += 1024
    acc += tl.load(p, mask=tl.arange(0, 1024) < n % 1024, other=0.0)
    tl.store(y_ptr + tl.program_id(0), tl.sum(acc, 0))
"""
SCALAR = """
    p = x_ptr + tl.program_id(0) * n
    for segment in range(8):
        acc = tl.zeros((1024,), tl.float32)
        for _ in range(0, n // 8, 1024):
            acc += tl.load(p + tl.arange(0, 1024))
            p += 1024
        tl.store(y_ptr + tl.program_id(0) * 8 + segment, tl.sum(acc, 0))
"""
OUTER = """
    p = x_ptr + tl.program_id(0) * n + tl.arange(0, 1024)
    for segment in range(8):
        acc = tl.zeros((1024,), tl.float32)
        for k in range(0, n // 8, 1024):
            acc += tl.load(p + k)
        p += n // 8
        tl.store(y_ptr + tl.program_id(0) * 8 + segment, tl.sum(acc, 0))
"""
ONE_ELEMENT = (
    SCALAR.replace("* n\n", "* n + tl.arange(0, 128)\n").replace("1024", "128").replace("p + tl.arange(0, 128))", "p)")
)
COUNT = """
    count = tl.zeros((1024,), tl.int32)
    for segment in range(8):
        for k in range(0, n // 8, 1024):
            at = tl.program_id(0) * n + segment * (n // 8) + k + tl.arange(0, 1024)
            count += (tl.load(x_ptr + at) > 0).to(tl.int32)
        count = count * 2
    tl.store(y_ptr + tl.program_id(0) * 1024 + tl.arange(0, 1024), count.to(tl.float32))
"""


def diagnosed(folder, body, dtype="float16", warps=8):
    path = folder / "script.py"
    path.write_text(
        "import torch, triton, triton.language as tl\n\n@triton.jit\n"
        f"def kernel(x_ptr, z_ptr, y_ptr, n):{body}\n"
        f"x, z = (torch.zeros(1 << 24, device='cuda', dtype=torch.{dtype}) for _ in range(2))\n"
        f"y = torch.zeros(1 << 24, device='cuda')\nkernel[(1024,)](x, z, y, 8192, num_warps={warps})\n"
    )
    (kernel,) = inputs.read(str(path), (), SM_90A)
    diagnosis = diagnose(kernel)
    assert not [rule for rule, why in diagnosis.skipped.items() if FAILED in why]
    return {one.id: one for one in diagnosis.findings}


@pytest.mark.parametrize(("body", "registers", "conversions"), [(GEMM, 128, 0), (OFFSETS, 64, 2)])
def test_pointers_and_offsets_that_two_loops_carry_are_found(tmp_path, body, registers, conversions):
    """64 elements of both tiles a thread: pointers have two registers each, offsets one."""
    found = diagnosed(tmp_path, body)
    one = found[RULE]
    assert (one.severity, one.source.line) == ("high", 12)
    assert "(also line 13)" in one.message
    assert (one.evidence["registers"], one.evidence["conversions"]) == (registers, conversions)
    assert one.evidence["instructions"] / (one.evidence["instructions"] - one.evidence["needless_instructions"]) > 2.5
    assert "conversion-in-loop" not in found


def test_computed_anew_they_are_not_found(tmp_path):
    made, body = GEMM.partition("    for tile")[0], GEMM
    a, b = (line for line in made.splitlines() if line.startswith(("    a =", "    b =")))
    body = body.replace(f"{a}\n{b}\n", "").replace("range(4):\n", f"range(4):\n    {a}\n    {b} + tile * 128\n")
    body = body.replace("        a -= n\n        b += 128 - n * 512\n", "")
    assert RULE not in diagnosed(tmp_path, body)


def test_where_memory_takes_longer_it_is_a_hint(tmp_path):
    """16 pointers a thread go through shared memory in each iteration, while 2 KB of each warp are loaded."""
    found = diagnosed(tmp_path, SEGMENTS, dtype="float32", warps=4)
    assert (found[RULE].severity, found[RULE].evidence["conversions"]) == ("low", 1)
    assert "conversion-in-loop" not in found


@pytest.mark.parametrize("body", [ONE_LOOP, SCALAR, OUTER, ONE_ELEMENT, COUNT])
def test_what_one_loop_carries_or_no_tensor_is_not_found(tmp_path, body):
    assert RULE not in diagnosed(tmp_path, body, dtype="float32", warps=4)


def test_registers_that_spill_because_of_them_are_a_hint(tmp_path):
    found = diagnosed(tmp_path, GEMM, warps=4)
    assert found[RULE].severity == "high"
    assert found["register-spills"].severity == "low"
    assert "pointers that two loops carry" in found["register-spills"].message
