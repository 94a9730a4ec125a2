"""The rule `pass-in-torch`: what torch does with whole tensors around a launch, in the function that launches."""

import pytest
import torch

from kperf.arch import SM_90A
from kperf.diagnose import inputs
from kperf.diagnose.engine import FAILED, diagnose
from kperf.diagnose.script.operators import Operators

pytestmark = pytest.mark.kernels

HEAD = """
import torch, triton, triton.language as tl

@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    {store}

@triton.jit
def rows(x, y, stride, N: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    for start in tl.range(0, N, BLOCK):
        c = start + tl.arange(0, BLOCK)
        v = tl.load(x + row * stride + c, mask=c < N, other=0.0).to(tl.float32)
        tl.store(y + row * N + c, v * tl.sigmoid(v), mask=c < N)

@triton.jit
def count(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + i // 2, tl.load(x + i, mask=i < n), mask=i < n)

n = 1 << 26
def launch(x, y, kernel=scale):
    kernel[(triton.cdiv(n, 1024),)](x, y, n, 1024)
{host}
"""
STORE = "tl.store(y + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)"
GIVEN = "x = torch.rand(n, device='cuda')\n"
OPERATOR = """
def operator(x, *others):
    y = torch.empty_like(x)
    scale[(triton.cdiv(n, 1024),)](x, y, n, 1024)
    {after}
"""


def found(tmp_path, host, store=STORE):
    script = tmp_path / "it.py"
    script.write_text(HEAD.format(host=host, store=store))
    diagnoses = [diagnose(kernel) for kernel in inputs.read(str(script), (), SM_90A)]
    assert not [name for one in diagnoses for name, why in one.skipped.items() if FAILED in why]
    return [one for diagnosis in diagnoses for one in diagnosis.findings if one.id == "pass-in-torch"]


def after(lines, call="operator(x)"):
    return OPERATOR.format(after=lines) + GIVEN + call


@pytest.mark.parametrize(
    ("host", "operators", "least", "advice"),
    [
        (after("return y / 3"), "div", 8, "compute div in the kernel, before tl.store"),
        (after("return y.mul_(3)"), "mul", 8, "compute mul in the kernel"),
        (after("y *= 3; return y"), "mul", 8, "compute mul in the kernel"),
        (after("return (y + 1).to(torch.float16)"), "add, to(torch.float16)", 6, "compute add, to(torch.float16) in"),
        (after("y = y.view(-1, 64).half()\n    return y"), "to(torch.float16)", 6, "allocate y with the dtype"),
        (after("return torch.cat([y, others[0]])", "operator(x, x.clone())"), "cat", 16, "allocate the result of cat"),
        (after("return torch.nn.functional.gelu(y + others[0])", "operator(x, x.clone())"), "add, gelu", 12, "comp"),
        (after("out = torch.empty_like(x); out.copy_(y); return out"), "copy", 8, "allocate the result of copy"),
        (after("return (y / 3).reshape(-1)", "print((operator(x) - x).abs().max().item())"), "div", 8, "compute div"),
        (after("return y.view(64, 128, -1, 64).transpose(1, 2).contiguous()"), "contiguous or clone", 8, "allocate"),
    ],
)
def test_a_pass_behind_a_launch(tmp_path, host, operators, least, advice):
    (one,) = found(tmp_path, host)
    assert (one.source.line, one.evidence["operators"]) == (7, operators)
    assert one.evidence["least_gb"] == pytest.approx(least * 2**26 / 1e9, abs=1e-4)
    assert one.advice.startswith(advice)
    assert one.estimate.speedup > 1.2


def test_the_estimate_compares_bytes(tmp_path):
    (one,) = found(tmp_path, after("return y / 3"))
    assert (one.severity, one.estimate.speedup) == ("high", pytest.approx(2, rel=0.03))
    assert one.message == (
        "torch reads the 0.27 GB of y that this launch stores, to compute div: the launch and torch together move 1.07 "
        "GB, and the kernel alone would move 0.54 GB"
    )


def test_short_rows_are_joined_element_by_element(tmp_path):
    joined = "return torch.cat([y.view(-1, {width}), others[0]], 1)"
    call = "operator(x, torch.rand(n // {width}, 1, device='cuda'))"
    (slow,) = found(tmp_path, after(joined.format(width=32), call.format(width=32)))
    (fast,) = found(tmp_path, after("return torch.cat([y, others[0]])", "operator(x, x[:n // 32])"))
    assert slow.evidence["moved_gb"] == pytest.approx(fast.evidence["moved_gb"])
    assert slow.estimate.speedup > 1.4 * fast.estimate.speedup


BEFORE = "def operator(x):\n    {before}\n    y = torch.empty(n, device='cuda')\n    launch(t, y)\n    return y\n"
DIRECT = BEFORE.replace("launch(t, y)", "scale[(triton.cdiv(n, 1024),)](t, y, n, 1024)")


@pytest.mark.parametrize(
    ("before", "given", "operators", "advice"),
    [
        ("t = x.float()", "torch.rand(n, device='cuda').half()", "to(torch.float32)", "give the kernel the tensor"),
        ("t = x.contiguous()", "torch.rand(n // 64, 128, device='cuda')[:, :64]", "contiguous or clone", "give"),
        ("t = (x - 1).relu()", "torch.rand(n, device='cuda')", "sub, relu", "give the kernel the tensors that torch"),
        ("t = x * 2", "torch.rand(n, device='cuda')", "mul", "give the kernel the tensors that torch"),
    ],
)
def test_a_pass_ahead_of_a_launch(tmp_path, before, given, operators, advice):
    (one,) = found(tmp_path, DIRECT.format(before=before) + f"operator({given})")
    assert (one.source.line, one.evidence["operators"]) == (7, operators)
    assert one.advice.startswith(advice)


@pytest.mark.parametrize("made", ["zeros_like(x)", "ones_like(x)", "full_like(x, 7)", "empty_like(x).zero_()"])
def test_a_fill_that_the_kernel_overwrites(tmp_path, made):
    host = OPERATOR.format(after="return y").replace("empty_like(x)", made) + GIVEN + "operator(x)"
    (one,) = found(tmp_path, host)
    assert (one.severity, one.source.line) == ("medium", 7)
    assert one.estimate.speedup == pytest.approx(1.5, rel=0.03)
    assert one.advice == "if each launch stores all elements of y, allocate the tensor with torch.empty"


def test_a_pass_behind_a_loop(tmp_path):
    host = """
def silu(x):
    y = torch.empty(x.shape, device="cuda")
    rows[(x.shape[0],)](x, y, x.stride(0), x.shape[1], 1024)
    return y.to(x.dtype)

silu(torch.rand(8192, 5000, device="cuda", dtype=torch.bfloat16))
"""
    (one,) = found(tmp_path, host)
    assert (one.source.line, one.evidence["operators"]) == (15, "to(torch.bfloat16)")
    assert one.estimate.speedup == pytest.approx((2 + 4 + 4 + 2) / 4, rel=0.35)


@pytest.mark.parametrize(
    "host",
    [
        GIVEN + "y = torch.zeros_like(x)\nlaunch(x, y)\nprint((y.half() - x).abs().max().item())",
        GIVEN + "y = torch.zeros_like(x)\nlaunch(x, y)\ny.half()",
        "def main():\n x = torch.rand(n, device='cuda').half().float(); y = torch.zeros_like(x)\n "
        "scale[(triton.cdiv(n, 1024),)](x, y, n, 1024); return y * 2\nmain()",
        after("return torch.allclose(y.half(), x.half())"),
        after("return (y.double() - x).abs().max()"),
        after("torch.testing.assert_close(y * 1, x * 2); return 1"),
        after("return (y * 3).cpu()"),
        after("return y, y.half()", "a, b = operator(x); a.add_(1)"),
        after("z = y.half(); return z, y.sum()"),
        after("launch(y, z := torch.empty_like(y)); return y.half(), z"),
        after("return y * y.mean()"),
        after("return y.sum()"),
        after("return y.sort()"),
        after("return y[: n // 2] * 2"),
        after("return y.view(8192, -1).t().contiguous()"),
        after("return y * torch.rand_like(y)"),
        after("return y"),
        "n = 1 << 18\n" + after("return y / 3"),
        after("return y", "operator(x) * 2"),
        DIRECT.format(before="t = x.float()") + "a = torch.rand(n, device='cuda').half()\noperator(a.float())",
        DIRECT.format(before="t = x.float()").replace("return y", "return y, t")
        + "y, t = operator(torch.rand(n, device='cuda').half()); t.add_(1)",
        DIRECT.format(before="t = x.cumsum(0)") + "operator(torch.rand(n, device='cuda'))",
        DIRECT.format(before="t = x.t().contiguous()") + "operator(torch.rand(8192, n // 8192, device='cuda'))",
        DIRECT.format(before="t = torch.rand_like(x).half().float()") + "operator(torch.rand(n, device='cuda'))",
        OPERATOR.format(after="return y").replace("empty_like", "zeros_like").replace("scale[", "count[")
        + GIVEN + "operator(x)",
        OPERATOR.format(after="return y").replace("empty_like(x)", "zeros(2 * n, device='cuda')") + GIVEN
        + "operator(x)",
        OPERATOR.format(after="return y.half()").replace("empty_like", "zeros_like").replace("scale[", "count[")
        + GIVEN + "operator(x)",
    ],
    ids=[
        "a module's check", "a module's own", "main makes it all", "allclose", "largest difference", "assert_close",
        "to the CPU", "returned as it is", "a sum too", "another launch", "a mean of it", "a reduction", "a sort",
        "a part", "transposed", "random numbers", "none", "small", "the caller's", "setup", "both returned", "cumsum",
        "columns", "random", "atomics", "a part stays zero", "atomics, then a cast",
    ],
)  # fmt: skip
def test_what_has_to_stay(tmp_path, host):
    assert found(tmp_path, host) == []


@pytest.mark.parametrize(
    "store",
    [
        "tl.store(y + i, tl.load(y + i, mask=i < n) + tl.load(x + i, mask=i < n), mask=i < n)",
        "v = tl.load(x + i, mask=i < n); tl.store(y + i, v, mask=v > 0)",
        "v = tl.load(x + i, mask=i < n)\n    if tl.sum(v) > 0:\n        tl.store(y + i, v, mask=i < n)",
        "tl.store(y + i, tl.load(x + i, mask=i < n), mask=i % 1024 < 1000)",
        "tl.store(y + tl.load(x + i, mask=i < n).to(tl.int64), 1.0, mask=i < n)",
    ],
    ids=["added to", "where data says", "in a branch", "a part of each tile", "scattered"],
)
def test_zeros_that_a_kernel_needs(tmp_path, store):
    host = OPERATOR.format(after="return y").replace("empty_like", "zeros_like") + GIVEN + "operator(x)"
    assert found(tmp_path, host, store) == []


def test_elements_that_are_loaded_twice_are_converted_once_by_torch(tmp_path):
    twice = "tl.store(y + i, tl.load(x + i, mask=i < n) + tl.load(x + n - 1 - i, mask=i < n), mask=i < n)"
    host = DIRECT.format(before="t = x.float()") + "operator(torch.rand(n, device='cuda').half())"
    assert found(tmp_path, host, twice) == []


def test_gradients_go_through_autograd(tmp_path):
    host = """
class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        scale[(triton.cdiv(n, 1024),)](x, y, n, 1024)
        return y / 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

x = torch.rand(n, device="cuda", requires_grad=True)
Scaled.apply(x).sum().backward()
"""
    (one,) = found(tmp_path, host)
    assert one.evidence["operators"] == "div"


def test_a_script_goes_on_with_whatever_torch_has(tmp_path):
    """Sparse tensors have no memory of their own, operators of higher order no schema, and threads a stack each."""
    host = f"""
import threading
from torch.nn.attention.flex_attention import flex_attention

{after("return y / 3")}
torch.sparse_coo_tensor(torch.zeros(1, 3, dtype=torch.long, device="cuda"), torch.rand(3, device="cuda"), (5,))
q = torch.rand(1, 2, 128, 64, device="cuda")
flex_attention(q, q, q)
other = threading.Thread(target=lambda: operator(x))
other.start()
other.join()
count[(1,)](x, x, 1024, 1024)
"""
    assert [one.kernel for one in found(tmp_path, host)] == ["scale"]
    kernels = inputs.read(str(tmp_path / "it.py"), (), SM_90A)
    assert {one.name for one in kernels} == {"scale", "count"}


def test_nothing_is_noted_outside():
    operators = Operators()
    x = torch.rand(1 << 21)
    operators.note_launch(["it"], {"x": x})
    assert operators.passes("it") == ()
