"""What an implementation is given, without a GPU."""

import re
import sys
import warnings
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend

from kperf.attention import kernels, libraries
from kperf.attention.implementations import COMPARED, FIG12, IMPLEMENTATIONS
from kperf.attention.libraries import rows_first
from kperf.attention.variants import VARIANTS
from kperf.attention.workload import Workload
from kperf.errors import UsageError
from tests.attention.handed_in import SCALE, exact, normal, operands


@pytest.mark.parametrize(("key", "copied"), [("fa3", True), ("fa3_views", False)])
def test_fa3_gets_its_own_layout_or_views_of_ours(key, copied, monkeypatch):
    q, k, v = (torch.randn(2, 3, 128, 64) for _ in range(3))
    given = []

    def flash_attn_func(*tensors, **_):
        given.extend(tensors)
        return tensors[0], torch.empty(2, 3, 128)

    monkeypatch.setitem(sys.modules, "fa3_fwd_interface", SimpleNamespace(flash_attn_func=flash_attn_func))
    o, _ = IMPLEMENTATIONS[key].bind(q, k, v, False, 0.125)()
    assert torch.equal(o, q)
    for ours, theirs in zip((q, k, v), given, strict=True):
        assert torch.equal(theirs, ours.transpose(1, 2))
        assert theirs.is_contiguous() == copied
        assert (theirs.data_ptr() != ours.data_ptr()) == copied


def test_the_figure_has_the_papers_and_ours_and_the_comparison_all_but_the_views_and_the_plain_kernel():
    assert set(FIG12) == {"fa2", "cudnn", "fa3", "triton", "triton_autows", *VARIANTS}
    assert IMPLEMENTATIONS.keys() - set(COMPARED) == {"fa3_views", "attn_fwd"}


def test_lines_are_told_apart():
    styles = [IMPLEMENTATIONS[key].style for key in COMPARED]
    assert len({(style.colour, style.marker) for style in styles}) == len(styles)


ON_CPU = [key for key, item in IMPLEMENTATIONS.items() if item.on_cpu != "neither"]


@pytest.fixture
def uncompiled(monkeypatch):
    """flex_attention as it is: compiling takes many seconds a shape."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("key", ON_CPU)
def test_what_torch_computes_on_the_cpu_is_the_formula(uncompiled, key, head_dim, causal, kv_heads):
    given = operands(kv_heads=kv_heads, head_dim=head_dim, dtype=torch.float32)
    o, lse = IMPLEMENTATIONS[key].forward(*given, causal, SCALE)()
    expected, _ = exact(*given, causal)
    assert lse is None
    assert float((o - expected).abs().max()) < 2e-5


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key", [key for key in ON_CPU if IMPLEMENTATIONS[key].on_cpu == "both"])
def test_backward_gives_the_formulas_gradients_as_often_as_it_is_called(key, causal, kv_heads):
    given = operands(kv_heads=kv_heads, head_dim=64, dtype=torch.float32)
    do = normal(*given[0].shape, dtype=torch.float32, seed=3)
    leaves = [tensor.double().requires_grad_() for tensor in given]
    expected = torch.autograd.grad(exact(*leaves, causal)[0], leaves, do.double())
    call = IMPLEMENTATIONS[key].backward(*given, do, causal, SCALE)
    for _ in range(2):
        for found, right in zip(call(), expected, strict=True):
            assert found.shape == right.shape
            assert float((found - right).abs().max()) < 1e-4
    assert not any(tensor.requires_grad for tensor in given)


def test_flex_attention_is_compiled_whole(monkeypatch):
    """Else it would compute its formula, in O(seq_len^2) memory, and say so in a warning alone."""
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda function, **how: compiled.append((function.__name__, how)) or function)
    IMPLEMENTATIONS["flex"].forward(*operands(kv_heads=2, dtype=torch.float32), True, SCALE)
    assert compiled[0] == ("flex_attention", {"dynamic": False, "fullgraph": True})


def test_what_has_no_backward_pass_refuses_it():
    workload = Workload(batch=1, seq_len=128, backward=True)
    refusing = {key for key in COMPARED if IMPLEMENTATIONS[key].refuses(workload) == "it computes forward only"}
    assert refusing == {
        "fa3",
        "triton",
        "triton_autows",
        "flashinfer",
        "tilelang",
        "aiter",
        "improved_plus_views",
        *VARIANTS,
    }
    assert all(
        IMPLEMENTATIONS[key].refuses(workload.model_copy(update={"backward": False})) is None
        for key in ("fa3", "eager")
    )


@pytest.mark.parametrize("key", [key for key in COMPARED if not IMPLEMENTATIONS[key].grouped and key not in VARIANTS])
def test_who_knows_no_groups_is_given_all_heads(monkeypatch, key):
    given = []
    stand_in = replace(IMPLEMENTATIONS[key], bind=lambda *tensors: given.extend(tensors[:3]))
    q, k, v = operands(kv_heads=2)
    stand_in.forward(q, k, v, False, SCALE)
    assert [tensor.shape for tensor in given] == [q.shape] * 3
    assert torch.equal(given[1][:, 0], given[1][:, 1])
    assert torch.equal(given[1][:, 2], k[:, 1])


def formula(q, k, v, *, causal, scale, key=None):
    """On [batch, seq_len, heads, head_dim]."""
    assert scale == SCALE
    o, _ = exact(*(tensor.transpose(1, 2) for tensor in (q, k, v)), causal)
    return o.transpose(1, 2).to(q.dtype)


class Wrapper:
    """FlashInfer's, as its documentation has it: begins of sequences, then rows of all of them."""

    def __init__(self, workspace, kv_layout):
        assert (workspace.dtype, kv_layout) == (torch.uint8, "NHD")

    def plan(self, q_begins, kv_begins, heads, kv_heads, head_dim, *, causal, sm_scale, q_data_type, kv_data_type):
        assert q_begins.dtype == torch.int32
        assert (q_begins.tolist(), kv_begins.tolist()) == ([0, 256, 512], [0, 256, 512])
        assert (heads, kv_heads, head_dim) == (4, 2, 128)
        assert q_data_type == kv_data_type == torch.bfloat16
        self.causal, self.sm_scale = causal, sm_scale

    def run(self, *rows):
        split = (tensor.unflatten(0, (2, 256)) for tensor in rows)
        return formula(*split, causal=self.causal, scale=self.sm_scale).flatten(0, 1)


class DotProductAttention:
    """TransformerEngine's: heads and head_dim of the output are one dimension."""

    def __init__(
        self, heads, head_dim, *, num_gqa_groups, attention_dropout, qkv_format, attn_mask_type, softmax_scale
    ):
        assert (heads, head_dim, num_gqa_groups, attention_dropout, qkv_format) == (4, 128, 2, 0.0, "bshd")
        self.causal, self.scale = {"causal": True, "no_mask": False}[attn_mask_type], softmax_scale

    def __call__(self, *rows):
        return formula(*rows, causal=self.causal, scale=self.scale).flatten(2)


class LowerTriangularMask:
    pass


def memory_efficient_attention(q, k, v, *, attn_bias, scale):
    return formula(q, k, v, causal=isinstance(attn_bias, LowerTriangularMask), scale=scale)


PACKAGES = {
    "xformers": {
        "xformers": {},
        "xformers.ops": {
            "memory_efficient_attention": memory_efficient_attention, "LowerTriangularMask": LowerTriangularMask
        },
    },
    "flashinfer": {"flashinfer": {"BatchPrefillWithRaggedKVCacheWrapper": Wrapper}},
    "transformer_engine": {
        "transformer_engine": {},
        "transformer_engine.pytorch": {"DotProductAttention": DotProductAttention},
    },
}  # fmt: skip


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("key", PACKAGES)
def test_a_package_that_is_there_is_given_its_own_layout(monkeypatch, key, causal):
    """Stand-ins with the signatures of the packages' documentation, which compute the formula."""
    for name, content in PACKAGES[key].items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    given = operands(kv_heads=2)
    assert IMPLEMENTATIONS[key].missing() is None
    o, lse = IMPLEMENTATIONS[key].forward(*given, causal, SCALE)()
    expected, _ = exact(*given, causal)
    assert lse is None
    assert float((o.double() - expected).norm() / expected.norm()) < 3e-3


def test_tilelang_is_given_the_shape_and_k_and_v_as_they_are(monkeypatch):
    given = operands(kv_heads=2)
    o, lse = exact(*given, True)
    shapes = []
    stand_in = SimpleNamespace(compiled=lambda **shape: shapes.append(shape) or (lambda q, k, v: [o, lse]))
    monkeypatch.setattr(kernels, "in_tilelang", stand_in, raising=False)
    monkeypatch.setitem(sys.modules, "kperf.attention.kernels.in_tilelang", stand_in)
    found = IMPLEMENTATIONS["tilelang"].forward(*given, True, SCALE)()
    assert (found[0] is o, found[1] is lse) == (True, True)
    shape = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_len": 256, "head_dim": 128}
    assert shapes == [{**shape, "dtype": "bfloat16", "causal": True, "sm_scale": SCALE}]


@pytest.mark.parametrize("head_dim", [64, 128, 256])
@pytest.mark.parametrize("causal", [False, True])
def test_where_tilelang_is_installed_its_kernel_compiles_to_tma_and_wgmma(head_dim, causal):
    tilelang = pytest.importorskip("tilelang")
    from tilelang.engine.lower import lower

    from kperf.attention.kernels.in_tilelang import program

    target = tilelang.tvm.target.Target({"kind": "cuda", "arch": "sm_90a"})
    with target:
        lowered = lower(program(2, 8, 4, 1024, head_dim, "bfloat16", causal, SCALE), target=target)
    assert lowered.kernel_source.count("tma_load(") >= 3
    assert lowered.kernel_source.count("wgmma_") >= 2


def test_tilelang_without_nvcc_is_a_sentence(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    assert "nvcc" in IMPLEMENTATIONS["tilelang"].missing()
    monkeypatch.setattr("shutil.which", lambda name, path: f"/usr/local/cuda/bin/{name}")
    assert IMPLEMENTATIONS["tilelang"].missing() is None


def test_on_an_amd_gpu_there_is_aiter_and_not_what_is_hoppers(monkeypatch):
    given = operands(kv_heads=2)
    expected, lse = exact(*given, True)

    def flash_attn_func(*rows, softmax_scale, causal, return_lse):
        assert return_lse
        return formula(*rows, causal=causal, scale=softmax_scale), lse

    module = ModuleType("aiter")
    module.__spec__ = ModuleSpec("aiter", None)
    module.flash_attn_func = flash_attn_func
    monkeypatch.setitem(sys.modules, "aiter", module)
    assert "docker/rocm.dockerfile" in IMPLEMENTATIONS["aiter"].missing()
    assert all(IMPLEMENTATIONS[key].missing() is None for key in ("cudnn", *VARIANTS))
    monkeypatch.setattr(torch.version, "hip", "7.2")
    assert IMPLEMENTATIONS["aiter"].missing() is None
    assert all(IMPLEMENTATIONS[key].missing() is None for key in ("fa2", "triton", "eager", "sdpa_math"))
    of_hopper = ("cudnn", "triton_autows", "attn_fwd", *VARIANTS)
    assert all("NVIDIA's Hopper" in IMPLEMENTATIONS[key].missing() for key in of_hopper)
    o, found = IMPLEMENTATIONS["aiter"].forward(*given, True, SCALE)()
    assert found is lse
    assert float((o.double() - expected).norm() / expected.norm()) < 3e-3


LIBRARIES = re.findall(
    r"^([a-z][\w-]*)==", Path(__file__).parents[2].joinpath("requirements/libraries.in").read_text(), re.MULTILINE
)


@pytest.mark.parametrize("key", [*PACKAGES, "tilelang"])
def test_a_package_that_is_not_there_is_a_sentence_with_the_mend(monkeypatch, key):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = IMPLEMENTATIONS[key].missing()
    pinned = key.replace("flashinfer", "flashinfer-python")
    if pinned in LIBRARIES:
        assert said == f"{pinned} is not installed: `make libraries` in a checkout installs it"
    else:
        assert re.fullmatch(r"(\S+) is not installed: `pip install '\1' torch==2.11.0` if there is one for it", said)


def test_a_back_end_of_torch_that_cannot_says_why(monkeypatch):
    def refuses(params, debug):
        warnings.warn("Only head_dim up to 128 is there\n(sdp.cpp:1)", stacklevel=1)
        return False

    monkeypatch.setitem(libraries._FUSED, SDPBackend.CUDNN_ATTENTION, refuses)
    monkeypatch.setattr(libraries, "SDPAParams", lambda *_: None)
    q = SimpleNamespace(shape=(1, 2, 128, 256), is_cuda=True)
    with pytest.raises(UsageError, match=r"CUDNN_ATTENTION refuses: Only head_dim up to 128 is there$"):
        IMPLEMENTATIONS["cudnn"].forward(q, q, q, False, SCALE)


def test_calls_on_the_same_tensors_share_a_copy_of_the_other_layout():
    q, k, _ = operands()
    (first,), (again,), (other,) = rows_first(q), rows_first(q), rows_first(k)
    assert again is first
    assert torch.equal(first, q.transpose(1, 2))
    assert torch.equal(other, k.transpose(1, 2))
    q[0, 0, 0, 0] += 1  # who writes to the tensor asks for other numbers
    (written,) = rows_first(q)
    assert torch.equal(written, q.transpose(1, 2))
    assert not torch.equal(first, written)
    leaf = q.clone().requires_grad_()
    assert rows_first(leaf)[0] is not rows_first(leaf)[0]  # each call has gradients of its own
