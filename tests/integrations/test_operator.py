"""`kperf::attention`: right in both directions, and a good citizen of torch, on tensors that lie on the CPU."""

import importlib.util
import re
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import library
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kperf.attention.variants import VARIANTS
from kperf.attention.workload import Workload
from kperf.errors import UsageError
from kperf.integrations import operator
from kperf.integrations.operator import IMPLEMENTED, attention, why_not
from tests.attention.attending_gpu import attending_gpu  # noqa: F401
from tests.attention.handed_in import LAYOUTS, SCALE, exact, operands

LIMIT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""Relative error of o and of gradients against float64: bfloat16's own gradients round o, p and ds."""


@pytest.fixture
def gpu(attending_gpu):  # noqa: F811
    """The operator on a GPU that is not there: it forgets what it launched before."""
    operator._launcher.cache_clear()
    yield attending_gpu
    operator._launcher.cache_clear()


@pytest.fixture
def fa3(monkeypatch):
    """A stand-in for the FA3 wheel: a call of its interface, right and in its layout."""
    calls = []

    def flash_attn_func(q, k, v, softmax_scale, causal, return_attn_probs):
        calls.append(q.stride())
        assert return_attn_probs
        assert softmax_scale == pytest.approx(SCALE)
        o, lse = exact(*(tensor.transpose(1, 2) for tensor in (q, k, v)), causal)
        return o.to(q.dtype).transpose(1, 2).contiguous(), lse.float()

    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", SimpleNamespace(flash_attn_func=flash_attn_func))
    find_spec = importlib.util.find_spec

    def find(name, *package):
        return name if name == "fa3_fwd_interface" else find_spec(name, *package)

    monkeypatch.setattr(importlib.util, "find_spec", find)
    return calls


def forward(*tensors, causal=False, implementation="vanilla"):
    return torch.ops.kperf.attention(*tensors, causal, SCALE, implementation)


def distance(found, expected):
    return float((found.double().cpu() - expected).norm() / expected.norm())


def gradients(tensors, causal, implementation, device="cpu"):
    """Of the operator and of float64, for one random gradient of o."""
    grad_o = torch.randn(tensors[0].shape, generator=torch.Generator().manual_seed(9)).to(tensors[0].dtype)
    ours = [tensor.detach().to(device).requires_grad_() for tensor in tensors]
    o = attention(*ours, causal=causal, sm_scale=SCALE, implementation=implementation)
    theirs = [tensor.detach().double().requires_grad_() for tensor in tensors]
    return torch.autograd.grad(o, ours, grad_o.to(device)), torch.autograd.grad(
        exact(*theirs, causal)[0], theirs, grad_o.double()
    )


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("seq_len", [256, 77])
@pytest.mark.parametrize("dtype", LIMIT)
def test_the_formula_computes_what_the_kernels_do_not(dtype, seq_len, kv_heads, causal):
    q, k, v = operands(kv_heads=kv_heads, seq_len=seq_len, head_dim=72, dtype=dtype)
    o, lse = forward(q, k, v, causal=causal)
    exact_o, exact_lse = exact(q, k, v, causal)
    assert distance(o, exact_o) < LIMIT[dtype]
    assert float((lse - exact_lse).abs().max()) < 1e-4
    for found, expected in zip(*gradients((q, k, v), causal, "vanilla"), strict=True):
        assert distance(found, expected) < LIMIT[dtype]


def test_gradients_are_those_of_differences_of_o():
    q, k, v = (tensor.requires_grad_() for tensor in operands(2, 1, 5, 3, torch.float64, 1))
    for causal in (False, True):
        assert torch.autograd.gradcheck(lambda *three: attention(*three, causal=causal), (q, k, v))  # noqa: B023


def test_a_longer_k_falls_back_and_is_right():
    q, _, _ = operands(seq_len=128, dtype=torch.float32)
    _, k, v = operands(seq_len=256, dtype=torch.float32)
    assert distance(forward(q, k, v)[0], exact(q, k, v, False)[0]) < LIMIT[torch.float32]


@pytest.mark.parametrize("layout", ["contiguous", "rows_first", "of_one_product"])
@pytest.mark.parametrize("variant", ["vanilla", "improved"])
def test_an_override_is_what_runs_and_its_gradients_are_right(gpu, variant, layout):
    q, k, v = (LAYOUTS[layout](tensor) for tensor in operands(kv_heads=2))
    assert why_not(q, k, v, True, variant) is None
    o, lse = forward(q, k, v, causal=True, implementation=variant)
    (launch,) = gpu
    assert launch.grid == (min(2 * 4 * 2, 132), 1, 1)
    exact_o, exact_lse = exact(q, k, v, True)
    assert distance(o, exact_o) < 4e-3
    assert float((lse - exact_lse).abs().max()) < 1e-4
    for found, expected in zip(*gradients((q, k, v), True, variant), strict=True):
        assert distance(found, expected) < LIMIT[torch.bfloat16]


def test_shapes_that_share_a_kernel_are_launched_each_with_its_own_grid(gpu):
    for seq_len in (128, 256, 128):
        tensors = operands(heads=2, kv_heads=2, seq_len=seq_len, batch=1)
        assert distance(forward(*tensors)[0], exact(*tensors, False)[0]) < 4e-3
    assert [launch.grid for launch in gpu] == [(2, 1, 1), (4, 1, 1), (2, 1, 1)]


def test_fa3_gets_views_of_contiguous_rows_as_they_are_and_a_copy_of_others(gpu, fa3):
    q, k, v = operands(kv_heads=2)
    rows_first = q.transpose(1, 2).contiguous().transpose(1, 2)  # [batch, seq_len, heads, head_dim] in memory
    columns_apart = k.transpose(2, 3).contiguous().transpose(2, 3)
    seen = []
    interface = sys.modules["fa3_fwd_interface"]
    plain = interface.flash_attn_func
    interface.flash_attn_func = lambda *tensors, **options: seen.append(tensors) or plain(*tensors, **options)
    o, _ = forward(rows_first, columns_apart, v, implementation="fa3")
    assert distance(o, exact(q, k, v, False)[0]) < 4e-3
    ((there, copied, _),) = seen
    assert there.data_ptr() == rows_first.data_ptr()
    assert columns_apart.stride(-1) != 1
    assert copied.stride(-1) == 1


def test_fa3_is_wrapped_the_same_way(gpu, fa3):
    q, k, v = operands(kv_heads=2)
    o, lse = forward(q, k, v, causal=True, implementation="fa3")
    assert len(fa3) == 1
    assert not gpu
    assert o.transpose(1, 2).is_contiguous()
    exact_o, exact_lse = exact(q, k, v, True)
    assert distance(o, exact_o) < 4e-3
    assert float((lse - exact_lse).abs().max()) < 1e-4
    for found, expected in zip(*gradients((q, k, v), True, "fa3"), strict=True):
        assert distance(found, expected) < LIMIT[torch.bfloat16]


@pytest.mark.parametrize(
    ("changes", "implementation", "words"),
    [
        ({"seq_len": 200}, "vanilla", "seq_len 200 is not a multiple of 128"),
        ({"dtype": torch.float32}, "improved_plus", "dtype: Input should be 'bfloat16' or 'float16'"),
        ({"head_dim": 64}, "vanilla", "ttgir/vanilla/ holds no d64_bf16_full.ttgir"),
        ({"dtype": torch.float16}, "fa3", "the fa3-fwd wheel holds bfloat16 kernels only"),
    ],
)
def test_where_it_does_not_apply_it_says_why_and_falls_back(gpu, changes, implementation, words):
    tensors = operands(**changes)
    assert words in why_not(*tensors, False, implementation)
    o = attention(*tensors, sm_scale=SCALE, implementation=implementation)
    assert not gpu
    assert distance(o, exact(*tensors, False)[0]) < 4e-3


def test_without_a_gpu_it_falls_back():
    assert "move q, k and v to a Hopper GPU" in why_not(*operands(), False)


def test_an_unknown_implementation_and_no_attention_are_refused():
    q, k, v = operands()
    with pytest.raises(UsageError, match="no 'fa9': choose from vanilla, improved, improved_plus, fa3"):
        attention(q, k, v, implementation="fa9")
    with pytest.raises(UsageError, match=re.escape("k is [2, 1, 256, 128] and v [2, 4, 256, 128]")):
        attention(q, k[:, :1], v)


def test_the_log_sum_exp_refuses_gradients_and_so_does_a_gradient_of_gradients():
    q, k, v = (tensor.requires_grad_() for tensor in operands(dtype=torch.float32))
    o, lse = forward(q, k, v)
    assert o.requires_grad
    assert not lse.requires_grad
    (first,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="no autograd formula was registered"):
        first.sum().backward()


@pytest.mark.parametrize("implementation", ["vanilla", "fa3"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck_on_the_cpu(implementation, requires_grad):
    tensors = [LAYOUTS["rows_first"](tensor) for tensor in operands(kv_heads=2, seq_len=64, dtype=torch.float32)]
    tensors = [tensor.requires_grad_(requires_grad) for tensor in tensors]
    library.opcheck(torch.ops.kperf.attention.default, (*tensors, True, SCALE, implementation))


@pytest.mark.parametrize("implementation", ["vanilla", "fa3"])
def test_opcheck_where_the_kernels_apply(gpu, fa3, implementation):
    tensors = [tensor.requires_grad_() for tensor in operands(kv_heads=2)]
    # The gradients of bfloat16 are compared with themselves, traced: to the bit, so no tolerance hides anything.
    library.opcheck(torch.ops.kperf.attention.default, (*tensors, True, SCALE, implementation))
    assert gpu if implementation == "vanilla" else fa3


def loss(q, k, v, implementation):
    """A little of a model around the operator, in its layout."""
    heads_first = [(tensor * 2).transpose(1, 2) for tensor in (q, k, v)]
    return attention(*heads_first, causal=True, implementation=implementation).transpose(1, 2).flatten(2).cos().sum()


@pytest.mark.parametrize("implementation", ["vanilla", "fa3"])
def test_torch_compile_keeps_one_graph_in_both_directions(gpu, fa3, monkeypatch, implementation):
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 128**-0.5)
    tensors = [tensor.transpose(1, 2).contiguous().requires_grad_() for tensor in operands(kv_heads=2)]
    explained = torch._dynamo.explain(loss)(*tensors, implementation)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*tensors, implementation), tensors)
    expected = torch.autograd.grad(loss(*tensors, implementation), tensors)
    assert all(map(torch.equal, found, expected))
    assert gpu if implementation == "vanilla" else fa3


def test_inductor_compiles_it_with_any_shape():
    compiled = torch.compile(forward, fullgraph=True, backend="inductor", dynamic=True)
    for seq_len in (128, 256):
        tensors = operands(kv_heads=2, seq_len=seq_len, dtype=torch.float32)
        assert all(map(torch.equal, compiled(*tensors, causal=True), forward(*tensors, causal=True)))


@pytest.mark.parametrize("compiled", [False, True])
def test_under_autocast_float32_is_cast_as_for_torchs_own(gpu, compiled):
    tensors = [tensor.float().requires_grad_() for tensor in operands(kv_heads=2)]
    call = torch.compile(attention, fullgraph=True, backend="aot_eager") if compiled else attention
    with torch.autocast("cpu", torch.bfloat16):
        o = call(*tensors, causal=True, sm_scale=SCALE, implementation="vanilla")
    assert len(gpu) == 1
    assert o.dtype == torch.bfloat16
    assert distance(o.detach(), exact(*tensors, True)[0].detach()) < 4e-3
    assert torch.autograd.grad(o.sum(), tensors[0])[0].dtype == torch.float32


def test_autocast_does_not_reach_into_the_formula():
    tensors = operands(seq_len=64, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        o, _ = forward(*tensors)  # the operator itself, on float32
    assert distance(o, exact(*tensors, False)[0]) < LIMIT[torch.float32]


def test_torch_takes_the_question_whether_its_flash_attention_2_applies():
    q, k, v = operands(kv_heads=2)
    assert not operator._flash_applies(q, k, v, True)
    assert not operator.can_use_flash_attention(operator.SDPAParams(q, k, v, None, 0.0, True, True))


class NoWaiting(TorchDispatchMode):
    """Refuses what makes the host wait for a GPU: a CUDA graph cannot capture it."""

    WAITS = frozenset({"_local_scalar_dense", "nonzero", "equal", "is_nonzero", "_unique2", "masked_select"})

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function.overloadpacket.__name__ not in self.WAITS
        assert function.overloadpacket.__name__ != "_to_copy" or "device" not in (kwargs or {})
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("implementation", ["vanilla", "fa3"])
def test_nothing_waits_for_the_gpu(gpu, fa3, implementation):
    q, k, v = operands(kv_heads=2)
    apply = {"vanilla": lambda: operator._override("vanilla", q, k, v, True, SCALE),
             "fa3": lambda: operator._fa3(q, k, v, True, SCALE)}[implementation]  # fmt: skip
    with NoWaiting() if implementation == "vanilla" else FlopCounterMode(display=False):
        o, lse = apply()
    with NoWaiting():
        operator._formula_backward(torch.ones_like(q), q, k, v, o, lse, True, SCALE)


@pytest.mark.parametrize("causal", [False, True])
def test_it_counts_the_flops_of_the_workload(causal):
    q, k, v = (tensor.requires_grad_() for tensor in operands(kv_heads=2))
    with FlopCounterMode(display=False) as counter:
        attention(q, k, v, causal=causal).sum().backward()  # by the formula here: its own products do not count
    forward_flops = Workload(batch=2, heads=4, seq_len=256, causal=causal).flops
    assert counter.get_flop_counts()["Global"] == {
        torch.ops.kperf.attention: forward_flops,
        torch.ops.kperf.attention_backward: forward_flops * 5 // 2,
    }


def test_flash_attention_2_is_called_as_torch_declares_it():
    """On tensors of a GPU that have shapes and no numbers: torch's own rules for the calls' arguments and results."""
    with FakeTensorMode():
        q = torch.empty(2, 256, 4, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        k, v = (torch.empty(2, 256, 2, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(2))
        o, lse = operator._flash(q, k, v, True, SCALE)
        assert (o.shape, o.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, (2, 4, 256), torch.float32)
        found = operator._flash_backward(torch.empty_like(o), q, k, v, o, lse, True, SCALE)
        assert [gradient.shape for gradient in found] == [q.shape, k.shape, v.shape]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["contiguous", "rows_first"])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("implementation", IMPLEMENTED)
def test_on_a_gpu_it_is_right_in_both_directions(implementation, causal, kv_heads, layout):
    tensors = [LAYOUTS[layout](tensor) for tensor in operands(kv_heads=kv_heads)]
    on_gpu = [tensor.cuda() for tensor in tensors]
    assert why_not(*on_gpu, causal, implementation) is None
    o, lse = forward(*on_gpu, causal=causal, implementation=implementation)
    exact_o, exact_lse = exact(*tensors, causal)
    assert distance(o, exact_o) < 4e-3
    assert float((lse.cpu() - exact_lse).abs().max()) < 1e-3
    for found, expected in zip(*gradients(tensors, causal, implementation, "cuda"), strict=True):
        assert distance(found, expected) < LIMIT[torch.bfloat16]


@pytest.mark.gpu
@pytest.mark.parametrize(("seq_len", "dtype"), [(200, torch.bfloat16), (256, torch.float16), (256, torch.float32)])
def test_on_a_gpu_the_fallbacks_are_right(seq_len, dtype):
    tensors = operands(kv_heads=2, seq_len=seq_len, dtype=dtype)
    for found, expected in zip(*gradients(tensors, True, "vanilla", "cuda"), strict=True):
        assert distance(found, expected) < LIMIT[dtype]


@pytest.mark.gpu
@pytest.mark.parametrize("implementation", IMPLEMENTED)
def test_on_a_gpu_opcheck_passes(implementation):
    tensors = [tensor.cuda().requires_grad_() for tensor in operands(kv_heads=2)]
    # FlashAttention-2 adds to dq in any order.
    arguments = (*tensors, True, SCALE, implementation)
    library.opcheck(torch.ops.kperf.attention.default, arguments, atol=1e-4, rtol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("implementation", IMPLEMENTED)
def test_on_a_gpu_one_graph_is_compiled_and_captured(implementation, mode):
    tensors = [t.cuda().transpose(1, 2).contiguous().requires_grad_() for t in operands(kv_heads=2)]
    explained = torch._dynamo.explain(loss)(*tensors, implementation)
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
    compiled = torch.compile(loss, fullgraph=True, mode=mode)
    expected = torch.autograd.grad(loss(*tensors, implementation), tensors)
    for _ in range(4):  # the third is replayed from a CUDA graph
        torch.compiler.cudagraph_mark_step_begin()
        found = torch.autograd.grad(compiled(*tensors, implementation), tensors)
        assert all(distance(ours, theirs.double().cpu()) < 1e-2 for ours, theirs in zip(found, expected, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("variant", VARIANTS)
def test_on_a_gpu_a_cuda_graph_computes_new_numbers(variant):
    q, k, v = (tensor.cuda() for tensor in operands(kv_heads=2))
    forward(q, k, v, implementation=variant)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, _ = forward(q, k, v, implementation=variant)
    q.neg_()
    graph.replay()
    assert distance(o, exact(q.cpu(), k.cpu(), v.cpu(), False)[0]) < 4e-3
