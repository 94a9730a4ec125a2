"""`kperf::attention_varlen`: right in both directions, and a good citizen of torch; tensors lie on the CPU."""

import math

import pytest
import torch
from torch import library
from torch._subclasses.fake_tensor import FakeTensorMode

from kperf.errors import UsageError
from kperf.integrations import varlen
from kperf.integrations.varlen import attention_varlen, why_not
from tests.attention.attending_gpu import attending_gpu  # noqa: F401
from tests.attention.handed_in import SCALE, begins_of, exact_ragged, normal, ragged_operands
from tests.integrations.test_operator import LIMIT, distance

SAME = ([5, 0, 130, 1], [5, 0, 130, 1])
OTHER = ([5, 0, 30, 4, 3], [9, 2, 33, 0, 1])
"""Without keys, and under a causal mask with rows of q before the first key."""


def lengths_of(lengths, causal, device="cpu"):
    """The last arguments of `attention_varlen`; causal ones of equal lengths share one tensor."""
    begins = [begins_of(one, device) for one in lengths]
    if causal and lengths[0] == lengths[1]:
        begins[1] = begins[0]
    return (*begins, *map(max, lengths))


def forward(*tensors, lengths=SAME, causal=False):
    """The operator itself: o and the log-sum-exp."""
    rest = lengths_of(lengths, causal, tensors[0].device)
    return torch.ops.kperf.attention_varlen(*tensors, *rest, causal, SCALE)


def assert_right(o, lse, tensors, lengths, causal, limit):
    exact_o, exact_lse = exact_ragged(*(tensor.detach().double().cpu() for tensor in tensors), *lengths, causal)
    assert o.is_contiguous()
    assert distance(o, exact_o) < limit
    lse, to_nothing = lse.cpu(), exact_lse.isneginf()
    assert torch.equal(lse.isneginf(), to_nothing)
    assert float((lse - exact_lse)[~to_nothing].abs().max()) < 1e-3
    assert not o.cpu().transpose(0, 1)[to_nothing].any()


def assert_gradients_are_right(tensors, lengths, causal, limit, device="cpu"):
    grad_o = normal(*tensors[0].shape, seed=9).to(tensors[0].dtype)
    ours = [tensor.detach().to(device).requires_grad_() for tensor in tensors]
    o = attention_varlen(*ours, *lengths_of(lengths, causal, device), causal=causal, softmax_scale=SCALE)
    found = torch.autograd.grad(o, ours, grad_o.to(device))
    theirs = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected = torch.autograd.grad(exact_ragged(*theirs, *lengths, causal)[0], theirs, grad_o.double())
    for gradient, exact in zip(found, expected, strict=True):
        assert distance(gradient, exact) < limit


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [SAME, OTHER])
@pytest.mark.parametrize("dtype", LIMIT)
def test_the_formula_computes_what_the_kernel_does_not(dtype, lengths, causal):
    tensors = ragged_operands(*lengths, head_dim=24, dtype=dtype)
    o, lse = forward(*tensors, lengths=lengths, causal=causal)
    assert lse.dtype == torch.promote_types(dtype, torch.float32)
    assert_right(o, lse, tensors, lengths, causal, LIMIT[dtype])
    assert_gradients_are_right(tensors, lengths, causal, LIMIT[dtype])


def test_the_scale_is_that_of_head_dim_unless_given():
    tensors = ragged_operands(*SAME, head_dim=16, dtype=torch.float32)
    rest = lengths_of(SAME, causal=True)
    assert torch.equal(attention_varlen(*tensors, *rest), attention_varlen(*tensors, *rest, softmax_scale=0.25))


@pytest.mark.parametrize("causal", [False, True])
def test_the_kernel_is_what_runs_and_its_gradients_are_right(attending_gpu, causal):  # noqa: F811
    tensors = ragged_operands(*SAME)
    rest = lengths_of(SAME, causal)
    with torch.autograd.profiler.profile() as profile:
        o = attention_varlen(*tensors, *rest, causal=causal, softmax_scale=SCALE)
    assert "kperf::attention_varlen" not in {event.name for event in profile.function_events}
    assert [launch.name for launch in attending_gpu] == ["fill_table", "attn_fwd_ragged"]
    of_operator, lse = forward(*tensors, causal=causal)
    assert torch.equal(o, of_operator)
    assert_right(o, lse, tensors, SAME, causal, 4e-3)
    assert_gradients_are_right(tensors, SAME, causal, LIMIT[torch.bfloat16])
    assert len(attending_gpu) == 6


@pytest.mark.parametrize(
    ("changes", "lengths", "causal", "words"),
    [
        ({"dtype": torch.float32}, SAME, False, "q is float32: the kernel computes bfloat16 and float16"),
        ({"head_dim": 96}, SAME, False, "head_dim 96 is not one of 64, 128"),
        ({}, OTHER, True, "hand in one tensor as both cu_seqlens"),
    ],
)
def test_where_it_does_not_apply_it_says_why_and_falls_back(attending_gpu, changes, lengths, causal, words):  # noqa: F811
    tensors = ragged_operands(*lengths, **changes)
    begins_q, begins_k, _, longest_k = rest = lengths_of(lengths, causal)
    assert words in why_not(*tensors, begins_q, begins_k, longest_k, causal)
    o = attention_varlen(*tensors, *rest, causal=causal, softmax_scale=SCALE)
    assert not attending_gpu
    assert distance(o, exact_ragged(*tensors, *lengths, causal)[0].double()) < 4e-3


def test_without_a_gpu_it_falls_back():
    begins = begins_of(SAME[0])
    assert "move q, k and v to a Hopper GPU" in why_not(*ragged_operands(*SAME), begins, begins, 130, True)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_no_attention_is_refused_on_every_way(attending_gpu, requires_grad):  # noqa: F811
    q, k, v = (tensor.requires_grad_(requires_grad) for tensor in ragged_operands(*SAME))
    rest = lengths_of(SAME, causal=True)
    with pytest.raises(UsageError, match="q has 3 heads and k 2"):
        attention_varlen(q[:, :3], k, v, *rest)
    for scale in (-0.1, 0, math.nan):
        with pytest.raises(UsageError, match="takes a positive softmax_scale, not"):
            attention_varlen(q, k, v, *rest, softmax_scale=scale)
    assert not attending_gpu


def test_fake_tensors_have_the_shapes_of_real_ones_and_are_refused_likewise():
    tensors = [tensor.transpose(0, 1).contiguous().transpose(0, 1) for tensor in ragged_operands(*SAME)]
    real = forward(*tensors)
    with FakeTensorMode() as mode:
        given = [mode.from_tensor(tensor) for tensor in (*tensors, *lengths_of(SAME, causal=False)[:2])]
        fake = torch.ops.kperf.attention_varlen(*given, 130, 130, False, SCALE)
        with pytest.raises(UsageError, match="q has 3 heads and k 2"):
            torch.ops.kperf.attention_varlen(given[0][:, :3], *given[1:], 130, 130, False, SCALE)
    for one, other in zip(fake, real, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)


def test_the_log_sum_exp_refuses_gradients():
    o, lse = forward(*(tensor.requires_grad_() for tensor in ragged_operands(*SAME, dtype=torch.float32)))
    assert o.requires_grad
    assert not lse.requires_grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_opcheck_on_the_cpu_and_where_the_kernel_applies(attending_gpu, dtype):  # noqa: F811
    tensors = [tensor.requires_grad_() for tensor in ragged_operands(*SAME, dtype=dtype)]
    library.opcheck(torch.ops.kperf.attention_varlen.default, (*tensors, *lengths_of(SAME, False), False, SCALE))
    assert bool(attending_gpu) == (dtype == torch.bfloat16)


def loss(q, k, v, begins_q, begins_k, longest_q, longest_k):
    return attention_varlen(q * 2, k, v, begins_q, begins_k, longest_q, longest_k, causal=True).cos().sum()


def test_torch_compile_keeps_one_graph_in_both_directions(attending_gpu):  # noqa: F811
    tensors = [tensor.requires_grad_() for tensor in ragged_operands(*SAME)]
    rest = lengths_of(SAME, causal=True)
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(compiled(*tensors, *rest), tensors)
    expected = torch.autograd.grad(loss(*tensors, *rest), tensors)
    assert all(map(torch.equal, found, expected))
    assert attending_gpu


def test_under_autocast_float32_is_cast_and_the_formula_is_left_alone(attending_gpu):  # noqa: F811
    tensors = ragged_operands(*SAME, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        o = attention_varlen(*tensors, *lengths_of(SAME, causal=False), softmax_scale=SCALE)
        by_formula, _ = forward(*tensors)  # the operator itself, on float32
    assert len(attending_gpu) == 2
    assert o.dtype == torch.bfloat16
    exact_o = exact_ragged(*tensors, *SAME, False)[0].double()
    assert distance(o, exact_o) < 8e-3
    assert distance(by_formula, exact_o) < LIMIT[torch.float32]


def test_autocast_does_not_reach_into_the_gradients_of_the_formula():
    tensors = [tensor.requires_grad_() for tensor in ragged_operands(*SAME, head_dim=16, dtype=torch.float32)]
    o = attention_varlen(*tensors, *lengths_of(SAME, causal=True), causal=True)
    expected = torch.autograd.grad(o, tensors, o.detach(), retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(o, tensors, o.detach())
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize(("shape", "refusal"), [((136, 2, 0), "hand in one head or more"), ((), "q has 0 dimensions")])
def test_what_has_no_head_dim_is_refused(shape, refusal):
    with pytest.raises(UsageError, match=refusal):
        attention_varlen(*(torch.zeros(shape) for _ in range(3)), *lengths_of(SAME, causal=False))


def test_on_meta_the_result_has_its_shape_and_dtype():
    tensors, (begins_q, begins_k, *longest) = ragged_operands(*SAME), lengths_of(SAME, causal=False)
    o = attention_varlen(*(tensor.to("meta") for tensor in (*tensors, begins_q, begins_k)), *longest)
    assert (o.device.type, o.shape, o.dtype) == ("meta", tensors[0].shape, tensors[0].dtype)


def test_flash_attention_2_is_called_as_torch_declares_it(monkeypatch):
    """On tensors of a GPU that have shapes and no numbers: torch's own rules for the calls' arguments and results."""
    monkeypatch.setattr(varlen, "rows_aligned", lambda tensor: tensor)  # nor do they lie anywhere
    with FakeTensorMode():
        q = torch.empty(136, 4, 96, device="cuda", dtype=torch.bfloat16)
        k, v = (torch.empty(140, 2, 96, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        begins = torch.empty(5, device="cuda", dtype=torch.int32)
        rest = (130, 132, True, SCALE)
        o, lse = varlen._flash(q, k, v, begins, begins, *rest)
        assert (o.shape, o.dtype, lse.shape, lse.dtype) == (q.shape, q.dtype, (4, 136), torch.float32)
        found = varlen._flash_backward(torch.empty_like(o), q, k, v, begins, begins, o, lse, *rest)
        assert [gradient.shape for gradient in found] == [q.shape, k.shape, v.shape]


@pytest.fixture
def flash(monkeypatch):
    """A stand-in for torch's FlashAttention-2 on tensors that lie on the CPU: inf is what attends to nothing there."""
    calls = []

    def flash_forward(
        q, k, v, begins_q, begins_k, longest_q, longest_k, dropout, causal, return_mask, scale=None,
        window_size_left=None, window_size_right=None, seqused_k=None, alibi_slopes=None,
    ):  # fmt: skip
        assert (longest_q, longest_k, dropout, return_mask) == (30, 33, 0.0, False)
        assert not any(tensor.data_ptr() % 16 for tensor in (q, k, v))
        calls.append("forward")
        o, lse = varlen._formula(q, k, v, begins_q, begins_k, causal, scale)
        return o, lse.masked_fill(lse == -math.inf, math.inf), *(torch.empty(0) for _ in range(3))

    def flash_backward(
        grad_o, q, k, v, o, lse, begins_q, begins_k, longest_q, longest_k, dropout, causal, seed, offset, scale=None,
        window_size_left=None, window_size_right=None,
    ):  # fmt: skip
        assert (longest_q, longest_k, dropout) == (30, 33, 0.0)
        calls.append("backward")
        return varlen._formula_backward(grad_o, q, k, v, begins_q, begins_k, o, lse, causal, scale)

    monkeypatch.setattr(varlen, "_flash_applies", lambda _: True)
    with library._scoped_library("aten", "IMPL") as aten:
        aten.impl("_flash_attention_forward", flash_forward, "CPU")
        aten.impl("_flash_attention_backward", flash_backward, "CPU")
        yield calls


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_2_computes_what_the_kernel_does_not(flash, causal):
    tensors = ragged_operands(*OTHER)
    off = torch.cat([tensors[1].flatten(), tensors[1][0, 0]])[1:][: tensors[1].numel()].view(tensors[1].shape)
    o, lse = forward(tensors[0], off, tensors[2], lengths=OTHER, causal=causal)
    assert_right(o, lse, (tensors[0], off, tensors[2]), OTHER, causal, 4e-3)
    assert_gradients_are_right(tensors, OTHER, causal, LIMIT[torch.bfloat16])
    assert flash == ["forward", "forward", "backward"]


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_on_a_gpu_it_is_right_in_both_directions(causal, head_dim):
    lengths = ([100, 0, 300, 1, 129],) * 2
    tensors = ragged_operands(*lengths, head_dim=head_dim)
    on_gpu = [tensor.cuda() for tensor in tensors]
    begins_q, begins_k, _, longest_k = lengths_of(lengths, causal, "cuda")
    assert why_not(*on_gpu, begins_q, begins_k, longest_k, causal) is None
    assert_right(*forward(*on_gpu, lengths=lengths, causal=causal), tensors, lengths, causal, 4e-3)
    assert_gradients_are_right(tensors, lengths, causal, LIMIT[torch.bfloat16], "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize(("head_dim", "dtype"), [(96, torch.bfloat16), (64, torch.bfloat16), (64, torch.float32)])
def test_on_a_gpu_the_fallbacks_are_right(head_dim, dtype):
    """Under a causal mask of different lengths: of FlashAttention-2, and of the formula in float32."""
    tensors = ragged_operands(*OTHER, head_dim=head_dim, dtype=dtype)
    o, lse = forward(*(tensor.cuda() for tensor in tensors), lengths=OTHER, causal=True)
    assert_right(o, lse, tensors, OTHER, True, LIMIT[dtype])
    assert_gradients_are_right(tensors, OTHER, True, LIMIT[dtype], "cuda")


@pytest.mark.gpu
def test_on_a_gpu_one_graph_is_compiled_and_opcheck_passes():
    tensors = [tensor.cuda().requires_grad_() for tensor in ragged_operands(*SAME)]
    rest = lengths_of(SAME, True, "cuda")
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*tensors, *rest), loss(*tensors, *rest))
    arguments = (*(tensor.detach() for tensor in tensors), *rest, False, SCALE)
    library.opcheck(torch.ops.kperf.attention_varlen.default, arguments)
