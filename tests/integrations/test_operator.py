"""`kperf::attention`: right in both directions, and a good citizen of torch, on tensors that lie on the CPU."""

import importlib.util
import re
import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import library
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from kperf.attention.variants import VARIANTS
from kperf.attention.workload import Workload
from kperf.errors import UsageError
from kperf.integrations import operator
from kperf.integrations.operator import IMPLEMENTED, attention, why_not
from kperf.ir import compile as compiler
from tests.attention.attending_gpu import attending_gpu  # noqa: F401
from tests.attention.handed_in import LAYOUTS, SCALE, exact, normal, operands, rows_first

LIMIT = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 1e-3}
"""Relative error of o and of gradients against float64: bfloat16's own gradients round o, p and ds."""


@pytest.fixture
def gpu(attending_gpu):  # noqa: F811
    """The operator on a GPU that is not there: it forgets what it launched before."""
    operator._launcher.cache_clear()
    yield attending_gpu
    operator._launcher.cache_clear()


def assert_rows_are_aligned(*tensors):
    """As TMA and loads of 16 bytes need it."""
    for tensor in tensors:
        assert tensor.stride(-1) == 1
        begins = tensor.data_ptr(), *(stride * tensor.element_size() for stride in tensor.stride()[:-1])
        assert not any(begin % 16 for begin in begins)


@pytest.fixture
def fa3(monkeypatch):
    """A stand-in for the FA3 wheel: a call of its interface, right and in its layout."""
    calls = []

    def flash_attn_func(q, k, v, softmax_scale, causal, return_attn_probs):
        calls.append(q.stride())
        assert_rows_are_aligned(q, k, v)
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


def test_rows_that_are_aligned_are_not_copied():
    q, *_ = operands()
    rows_of_136 = torch.cat([q, q[..., :8]], -1)[..., : q.shape[-1]]
    for view in (q, LAYOUTS["rows_first"](q), LAYOUTS["of_one_product"](q), rows_of_136):
        assert operator.rows_aligned(view) is view


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
        ({"dtype": torch.float32}, "improved", "dtype: Input should be 'bfloat16' or 'float16'"),
        ({"dtype": torch.float32}, "improved_plus", "q is float32: the kernel computes bfloat16 and float16"),
        ({"head_dim": 96}, "improved_plus", "head_dim 96 is not one of 64, 128"),
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


@pytest.mark.parametrize("sm_scale", [-0.2, 0, 0.2])
@pytest.mark.parametrize(("seq_len", "causal"), [(256, True), (200, False)])
def test_any_scale_is_right_in_both_directions(gpu, sm_scale, seq_len, causal):
    q, k, v = tensors = [tensor.requires_grad_() for tensor in operands(kv_heads=2, seq_len=seq_len)]
    expected, _ = exact(q.double() * (sm_scale / SCALE), k, v, causal)
    with torch.no_grad():
        assert distance(attention(q, k, v, causal=causal, sm_scale=sm_scale), expected.detach()) < 4e-3
    o = attention(q, k, v, causal=causal, sm_scale=sm_scale)
    assert [launch.name for launch in gpu] == ["attn_fwd_views"] * 2
    assert distance(o.detach(), expected.detach()) < 4e-3
    grad_o = normal(*o.shape, seed=9)
    wanted = torch.autograd.grad(expected, tensors, grad_o.double())
    for found, one in zip(torch.autograd.grad(o, tensors, grad_o), wanted, strict=True):
        assert float((found - one).norm()) <= LIMIT[torch.bfloat16] * float(one.norm())


def test_a_call_like_one_before_is_not_planned_again(gpu, monkeypatch):
    q, k, v = operands(batch=1)
    expected = exact(q, k, v, True)[0]
    assert distance(attention(q, k, v, causal=True, sm_scale=SCALE), expected) < LIMIT[torch.bfloat16]
    monkeypatch.setattr(operator.views, "plan", None)
    assert gpu[-1].arguments[4] is None  # nobody asks for the log-sum-exp
    others = q.flip(2), k.flip(2), v.flip(2)
    found = attention(*others, causal=True, sm_scale=SCALE)
    assert distance(found, exact(*others, True)[0]) < LIMIT[torch.bfloat16]
    assert len(gpu) == 2


def test_calls_that_take_turns_with_other_keys_are_each_planned_once(gpu, monkeypatch):
    q, k, v = operands(batch=1)
    both = (q, k, v), (q, k[:, :, :128], v[:, :, :128])
    for given in both:
        attention(*given, sm_scale=SCALE)
    monkeypatch.setattr(operator.views, "plan", None)
    for given in both:
        found = attention(*given, sm_scale=SCALE)
        assert distance(found, exact(*given, False)[0]) < LIMIT[torch.bfloat16]


class _FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class _Subclass(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("change", "within"),
    [
        (lambda q, k, v: (q, rows_first(k), v), nullcontext),
        (lambda q, k, v: (q, k[:, :2], v[:, :2]), nullcontext),
        (lambda q, k, v: (q.half(), k.half(), v.half()), nullcontext),
        (lambda q, k, v: (q, k, v.clone().requires_grad_()), nullcontext),
        (lambda q, k, v: (q.as_subclass(_Subclass), k, v), nullcontext),
        (lambda *given: given, lambda: FlopCounterMode(display=False)),
        (lambda *given: given, _FunctionMode),
        (lambda *given: given, lambda: torch.autocast("cpu")),
    ],
    ids=["strides", "heads", "dtype", "gradients", "subclass", "dispatch mode", "function mode", "autocast"],
)
def test_what_is_unlike_the_call_before_is_right(gpu, change, within):
    given = operands(batch=1)
    attention(*given, causal=True, sm_scale=SCALE)
    (before,) = operator._before.values()
    changed = change(*given)
    with within():
        assert not before.serves(*changed)
        o = attention(*changed, causal=True, sm_scale=SCALE)
    assert before.serves(*given)
    plain = [tensor.detach().as_subclass(torch.Tensor) for tensor in changed]
    assert distance(o.detach().as_subclass(torch.Tensor), exact(*plain, True)[0]) < LIMIT[torch.bfloat16]


@pytest.mark.parametrize("changes", [{"causal": False}, {"sm_scale": -SCALE}, {"sm_scale": 0.0}, {"sm_scale": 0.5}])
def test_other_options_are_not_those_of_the_call_before(gpu, changes):
    q, k, v = operands(batch=1)
    options = {"causal": True, "sm_scale": SCALE}
    for asked in (options, options | changes, options | changes):
        scale = asked["sm_scale"]
        found = attention(q, k, v, **asked)
        expected = exact(q.double() * (scale / SCALE), k, v, asked["causal"])[0]
        assert distance(found, expected) < LIMIT[torch.bfloat16]


def test_the_call_before_serves_where_its_gpu_is_the_current_one(gpu, monkeypatch):
    given = operands(batch=1)
    attention(*given)
    (before,) = operator._before.values()
    elsewhere = before._replace(device=torch.device("cuda", 1))
    for current in (0, 1):
        monkeypatch.setattr(torch.cuda, "current_device", lambda current=current: current)
        assert elsewhere.serves(*given) is (current == 1)


def test_the_bare_operator_refuses_a_scale_that_is_not_positive():
    with pytest.raises(UsageError, match="takes a positive sm_scale, not -1"):
        torch.ops.kperf.attention(*operands(), True, -1.0, "improved_plus")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_torchscript_traces_it_as_one_operator(gpu):
    q, k, v = operands(kv_heads=2)
    traced = torch.jit.trace(attention, (q, k, v), check_trace=False)
    assert [node.kind() for node in traced.graph.nodes()].count("kperf::attention") == 1
    other = q + 1, k, v
    assert torch.equal(traced(*other), attention(*other))
    assert [launch.name for launch in gpu] == ["attn_fwd_views"] * 3


@pytest.mark.parametrize("implementation", ["vanilla", "improved_plus", "fa3"])
def test_o_is_allocated_once(gpu, fa3, implementation):
    """Not again as a place to copy it to, where it lies right."""
    tensors = operands(kv_heads=2)
    forward(*tensors, implementation=implementation)
    with torch.autograd.profiler.profile() as profile:
        forward(*tensors, implementation=implementation)
    names = {event.name for event in profile.function_events}
    assert "kperf::attention" in names
    assert not names & {"aten::new_empty", "aten::new_empty_strided"}


def test_where_triton_does_not_compile_it_falls_back(gpu, monkeypatch):
    def fails(*_):
        raise RuntimeError("PassManager::run failed")

    monkeypatch.setattr(compiler, "compile_kernel", fails)
    tensors = operands()
    assert "PassManager::run failed" in why_not(*tensors, True)
    assert distance(attention(*tensors, causal=True, sm_scale=SCALE), exact(*tensors, True)[0]) < 4e-3
    assert not gpu


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


def test_opcheck_of_the_backward_pass_whose_gradients_lie_as_the_compiler_expects():
    q, k, v = operands(kv_heads=2, seq_len=64)
    o, lse = exact(q, k, v, True)
    tensors = o.to(q.dtype), q, k, v, o.to(q.dtype), lse.float()
    library.opcheck(torch.ops.kperf.attention_backward.default, (*tensors, True, SCALE))
    found = torch.ops.kperf.attention_backward(*tensors, True, SCALE)
    with FakeTensorMode() as mode:
        expected = torch.ops.kperf.attention_backward(*map(mode.from_tensor, tensors), True, SCALE)
    assert [one.stride() for one in found] == [one.stride() for one in expected]


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


def test_autocast_does_not_reach_into_the_gradients_of_the_formula():
    tensors = [tensor.requires_grad_() for tensor in operands(seq_len=64, dtype=torch.float32)]
    o = attention(*tensors)
    expected = torch.autograd.grad(o, tensors, o.detach(), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(o, tensors, o.detach())
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("shape", "refusal"), [((1, 2, 64, 0), "q is empty"), ((), "q has 0 dimensions"), ((64,), "q has 1 dimensions")]
)
def test_what_has_no_head_dim_is_refused(shape, refusal):
    with pytest.raises(UsageError, match=refusal):
        attention(*(torch.zeros(shape) for _ in range(3)))


def test_on_meta_the_result_has_its_shape_and_dtype():
    o = attention(*(tensor.to("meta") for tensor in operands(kv_heads=2)))
    expected = attention(*operands(kv_heads=2))
    assert (o.device.type, o.shape, o.stride(), o.dtype) == (
        "meta", expected.shape, expected.stride(), expected.dtype,
    )  # fmt: skip


def test_torch_takes_the_question_whether_its_own_apply():
    q, k, v = operands(kv_heads=2)
    assert not operator._flash_applies(q, k, v, True)
    assert not operator._cudnn_applies(q, k, v, True)
    assert not operator.can_use_flash_attention(operator._asked(q, k, v, True))


@pytest.fixture
def cudnn(monkeypatch):
    """A stand-in for torch's call of cuDNN's backward pass, as careless as that is.

    The kernels that the first call is given serve all later ones with q, k and v of those layouts, and read o and its
    gradient, wherever these lie, in the layouts that the first call had.
    """
    kernels = {}

    def backward(
        grad_o, q, k, v, o, lse, seed, offset, bias, seq_q, seq_k, q_len, k_len, dropout, causal, scale=None
    ):  # fmt: skip
        assert (bias, seq_q, seq_k, q_len, k_len, dropout) == (None, None, None, q.shape[2], k.shape[2], 0)
        assert lse.shape == (*q.shape[:3], 1)
        assert_rows_are_aligned(grad_o, q, k, v, o)
        key = *((tensor.shape, tensor.stride()) for tensor in (q, k, v)), str(dropout), causal
        grad_layout, o_layout = kernels.setdefault(key, (grad_o.stride(), o.stride()))
        grad_o, o = grad_o.as_strided(grad_o.shape, grad_layout), o.as_strided(o.shape, o_layout)
        found = operator.formula_backward(grad_o, q, k, v, o, lse[..., 0], causal, scale)
        return tuple(torch.empty_like(like).copy_(one) for like, one in zip((q, k, v), found, strict=True))

    monkeypatch.setattr(operator, "_cudnn_applies", lambda *_: True)
    with library._scoped_library("aten", "IMPL") as aten:
        aten.impl("_scaled_dot_product_cudnn_attention_backward", backward, "CPU")
        yield


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_by_cudnn_are_right_whatever_lies_where(gpu, fa3, cudnn, layout):
    q, k, v = (LAYOUTS[layout](tensor) for tensor in operands(kv_heads=2, heads=4))
    grad_o = normal(*q.shape, seed=9)
    theirs = [tensor.double().requires_grad_() for tensor in (q, k, v)]
    expected = torch.autograd.grad(exact(*theirs, True)[0], theirs, grad_o.double())
    columns_apart = grad_o.mT.contiguous().mT
    for implementation in ("vanilla", "fa3"):  # of which one writes o plainly, the other rows first
        ours = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
        o = attention(*ours, causal=True, sm_scale=SCALE, implementation=implementation)
        for given in (grad_o, LAYOUTS["rows_first"](grad_o), LAYOUTS["of_one_product"](grad_o), columns_apart):
            found = torch.autograd.grad(o, ours, given, retain_graph=True)
            assert all(distance(one, other) < LIMIT[torch.bfloat16] for one, other in zip(found, expected, strict=True))


def test_gradients_by_cudnn_are_right_after_a_call_of_torchs_own(gpu, cudnn):
    q, k, v = (tensor.requires_grad_() for tensor in operands())
    plain, rows_first = normal(*q.shape), LAYOUTS["rows_first"](normal(*q.shape))
    lse = normal(*q.shape[:3], 1, dtype=torch.float32)
    unused = torch.empty(0, dtype=torch.int64)
    torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        plain, q, k, v, rows_first, lse, unused, unused, None, None, None, 256, 256, 0.0, False, scale=SCALE
    )
    for found, expected in zip(*gradients((q, k, v), False, "vanilla"), strict=True):
        assert distance(found, expected) < LIMIT[torch.bfloat16]


@pytest.fixture
def flash(monkeypatch):
    """A stand-in for torch's FlashAttention-2 on tensors that lie on the CPU."""

    def forward(q, k, v, dropout=0.0, causal=False, return_debug_mask=False, scale=None):
        assert (dropout, scale) == (0.0, SCALE)
        assert_rows_are_aligned(q, k, v)
        o, lse = exact(q, k, v, causal)
        nothing = [torch.empty(0) for _ in range(5)]
        return o.to(q.dtype), lse.float(), *nothing[:2], q.shape[2], k.shape[2], *nothing[2:]

    def backward(grad_o, q, k, v, o, lse, seq_q, seq_k, q_len, k_len, dropout, causal, seed, offset, scale=None):
        assert (seq_q, seq_k, q_len, k_len, dropout) == (None, None, q.shape[2], k.shape[2], 0.0)
        assert_rows_are_aligned(grad_o, q, k, v)
        return operator.formula_backward(grad_o, q, k, v, o, lse, causal, scale)

    monkeypatch.setattr(operator, "_flash_applies", lambda *_: True)
    with library._scoped_library("aten", "IMPL") as aten:
        aten.impl("_scaled_dot_product_flash_attention", forward, "CPU")
        aten.impl("_scaled_dot_product_flash_attention_backward", backward, "CPU")
        yield


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_falls_back_to_flash_attention_2_is_right_in_both_directions(flash, layout):
    q, k, v = (LAYOUTS[layout](tensor) for tensor in operands(kv_heads=2, dtype=torch.float16))
    o, lse = forward(q, k, v, causal=True)
    exact_o, exact_lse = exact(q, k, v, True)
    assert distance(o, exact_o) < LIMIT[torch.float16]
    assert float((lse - exact_lse).abs().max()) < 1e-4
    for found, expected in zip(*gradients((q, k, v), True, "vanilla"), strict=True):
        assert distance(found, expected) < LIMIT[torch.float16]


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
        operator.formula_backward(torch.ones_like(q), q, k, v, o, lse, True, SCALE)


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


def test_flash_attention_2_and_cudnn_are_called_as_torch_declares_it(monkeypatch):
    """On tensors of a GPU that have shapes and no numbers: torch's own rules for the calls' arguments and results."""
    monkeypatch.setattr(operator, "rows_aligned", lambda tensor: tensor)  # nor do they lie anywhere
    with FakeTensorMode():
        q = torch.empty(2, 256, 4, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
        k, v = (torch.empty(2, 256, 2, 128, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(2))
        o, lse = operator._flash(q, k, v, True, SCALE)
        assert (o.shape, o.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, (2, 4, 256), torch.float32)
        for backward in (operator._flash_backward, operator._cudnn_backward):
            found = backward(torch.empty_like(o), q, k, v, o, lse, True, SCALE)
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
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("implementation", ["improved_plus", "fa3"])
def test_on_a_gpu_gradients_by_cudnn_stay_right_beside_torchs_own_calls(implementation, layout):
    """torch keeps cuDNN's kernels by the layouts of q, k and v: neither caller may spoil the other's."""
    q, k, v = (LAYOUTS[layout](tensor.cuda()).requires_grad_() for tensor in operands(kv_heads=4))
    grad_o = normal(*q.shape, seed=9)
    theirs = [tensor.detach().cpu().double().requires_grad_() for tensor in (q, k, v)]
    expected = torch.autograd.grad(exact(*theirs, True)[0], theirs, grad_o.double())

    def by_torch():
        if layout in ("off_by_an_element", "rows_of_132", "every_other_column"):  # which cuDNN does not take
            return expected
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            o = scaled_dot_product_attention(q, k, v, is_causal=True, scale=SCALE)
        return torch.autograd.grad(o, (q, k, v), grad_o.cuda())

    def ours():
        o = attention(q, k, v, causal=True, sm_scale=SCALE, implementation=implementation)
        return torch.autograd.grad(o, (q, k, v), LAYOUTS["rows_first"](grad_o.cuda()))

    assert operator._cudnn_applies(q, k, v, True) == (layout != "every_other_column")
    for call in (by_torch, ours, by_torch, ours):
        for found, wanted in zip(call(), expected, strict=True):
            assert distance(found, wanted) < LIMIT[torch.bfloat16]


@pytest.mark.gpu
def test_on_a_gpu_deterministic_gradients_are_flash_attentions_twice_the_same():
    tensors = [tensor.cuda().requires_grad_() for tensor in operands(seq_len=1024)]
    torch.use_deterministic_algorithms(True)
    try:
        assert not operator._cudnn_applies(*tensors, True)
        first, second = (torch.autograd.grad(attention(*tensors, causal=True).sum(), tensors) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(map(torch.equal, first, second))


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


class OnGpu(torch.Tensor):
    """One that says that it lies on a GPU."""

    is_cuda = property(lambda self: True)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("applies", "rule"),
    [("_flash_applies", "can_use_flash_attention"), ("_cudnn_applies", "can_use_cudnn_attention")],
)
def test_torchs_rule_is_asked_about_groups_of_heads_where_there_are_groups(
    monkeypatch, kv_heads, causal, applies, rule
):
    """Without that torch has no fused kernel for them, and the formula in O(seq_len^2) memory computes them."""
    q, k = (torch.zeros(2, heads, 128, 64, dtype=torch.bfloat16).as_subclass(OnGpu) for heads in (4, kv_heads))
    asked = []
    monkeypatch.setattr(operator, rule, lambda params: asked.append(params) or True)
    assert getattr(operator, applies)(q, k, k, causal)
    (params,) = asked
    assert params.enable_gqa == (kv_heads < 4)
    assert params.is_causal == causal
    assert params.dropout == 0.0
    assert params.attn_mask is None
    assert [tuple(tensor.shape) for tensor in (params.query, params.key, params.value)] == [q.shape, k.shape, k.shape]
    monkeypatch.setattr(operator, rule, lambda params: False)
    assert not getattr(operator, applies)(q, k, k, causal)
    monkeypatch.setattr(operator, rule, lambda params: pytest.fail("there is no GPU"))
    assert not getattr(operator, applies)(
        *(torch.zeros_like(one).as_subclass(torch.Tensor) for one in (q, k, k)), causal
    )
