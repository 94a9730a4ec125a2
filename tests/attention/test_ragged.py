"""Improved+ on sequences of different lengths: each is right, and none reads or writes another's rows."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kperf.attention import ragged, views
from kperf.attention.kernels import improved_plus
from kperf.attention.kernels import ragged as tables
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir.ttgir import Module
from tests.attention.attending_gpu import attending_gpu  # noqa: F401
from tests.attention.handed_in import SCALE, begins_of, exact_ragged, normal, ragged_operands
from tests.attention.kernels.in_python import Pointer, in_python, program_in_python
from tests.attention.kernels.test_improved_plus import loop_bounds
from tests.attention.test_views import consumers_loops, loops_over_blocks, mmas, ttgir_of

KINDS = [
    ragged.Kind(head_dim, dtype, causal)
    for head_dim, dtype, causal in itertools.product((64, 128), (torch.bfloat16, torch.float16), (True, False))
]


TWO_AND_ON_A_GPU_ALL = [
    pytest.param(kind, marks=[] if kind[:2] == (128, torch.bfloat16) else pytest.mark.gpu) for kind in KINDS
]
"""Each is compiled for seconds, so without a GPU they are those whose registers are fewest."""


def attend(q, k, v, lengths_q, lengths_k, causal):
    begins = begins_of(lengths_q, q.device)
    keys = begins if causal else begins_of(lengths_k, q.device)
    return ragged.attend(q, k, v, begins, keys, causal, max(lengths_k, default=0), SCALE)


def assert_right(q, k, v, lengths_q, lengths_k, causal, limit=4e-3):
    o, lse = attend(q, k, v, lengths_q, lengths_k, causal)
    exact_o, exact_lse = exact_ragged(q, k, v, lengths_q, lengths_k, causal)
    assert o.is_contiguous()
    assert o.shape == q.shape
    assert float((o.float() - exact_o).norm()) <= limit * float(exact_o.norm())
    assert torch.equal(lse.isneginf(), exact_lse.isneginf())
    there = ~exact_lse.isneginf()
    assert not there.any() or float((lse - exact_lse)[there].abs().max()) < 1e-3


LENGTHS = [
    ([1, 128, 0, 257], [1, 128, 0, 257]),
    ([100, 0, 7, 130], [50, 300, 0, 129]),
    ([3, 2], [0, 0]),
    ([0], [9]),
    ([], []),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_lengths(attending_gpu, lengths, causal):  # noqa: F811
    lengths_q, lengths_k = lengths[:1] * 2 if causal else lengths
    assert_right(*ragged_operands(lengths_q, lengths_k), lengths_q, lengths_k, causal)
    names = [launch.name for launch in attending_gpu]
    assert names == (["fill_table", "attn_fwd_ragged"] if sum(lengths_q) and sum(lengths_k) else [])


@pytest.mark.parametrize(("heads", "causal"), [((6, 2), True), ((3, 3), False)])
def test_groups(attending_gpu, heads, causal):  # noqa: F811
    lengths = [130, 1]
    assert_right(*ragged_operands(lengths, lengths, *heads, head_dim=128), lengths, lengths, causal)
    assert attending_gpu


@pytest.mark.parametrize("causal", [False, True])
def test_views_are_read_where_they_lie_and_others_copied(attending_gpu, causal):  # noqa: F811
    lengths = [130, 70]
    wide = normal(200, 4 * 3, 64)
    q, k, v = wide[:, :4], wide[:, 4:8], wide[:, 8:]
    assert_right(q, k, v, lengths, lengths, causal)
    descriptors = attending_gpu[-1].arguments[:3]
    assert [one.base.data_ptr() for one in descriptors] == [one.data_ptr() for one in (q, k, v)]
    off = torch.cat([wide.flatten(), wide[0, 0]])[1 : 1 + wide.numel()].view(wide.shape)
    for other in (wide.repeat_interleave(2, -1)[..., ::2], off):
        assert_right(q, other[:, 4:8], v, lengths, lengths, causal)
        assert attending_gpu[-1].arguments[1].base.data_ptr() != other[:, 4:8].data_ptr()


@pytest.mark.parametrize("causal", [False, True])
def test_what_lies_in_other_sequences_is_not_read(attending_gpu, causal):  # noqa: F811
    """NaN and infinities in the second of three reach no other, from either side."""
    lengths = [100, 60, 130]
    q, k, v = ragged_operands(lengths, lengths, 2, 1)
    o, lse = attend(q, k, v, lengths, lengths, causal)
    for tensor, number in ((q, math.nan), (k, math.inf), (v, math.nan)):
        tensor[100:160] = number
    other_o, other_lse = attend(q, k, v, lengths, lengths, causal)
    kept = torch.arange(290).lt(100) | torch.arange(290).ge(160)
    assert torch.equal(o[kept], other_o[kept])
    assert torch.equal(lse[:, kept], other_lse[:, kept])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"head_dim": 96}, "head_dim 96 is not one of 64, 128"),
        ({"dtype": torch.float32}, "q is float32: the kernel computes bfloat16 and float16"),
    ],
)
def test_what_the_kernel_does_not_compute_is_refused_by_one_sentence(attending_gpu, change, words):  # noqa: F811
    with pytest.raises(UsageError, match=words):
        attend(*ragged_operands([5], [5], **change), [5], [5], True)
    assert not attending_gpu


def test_a_causal_mask_needs_one_tensor_of_lengths(attending_gpu):  # noqa: F811
    q, k, v = ragged_operands([5], [5])
    with pytest.raises(UsageError, match="hand in one tensor as both cu_seqlens"):
        ragged.attend(q, k, v, begins_of([5]), begins_of([5]), True, 5, SCALE)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (lambda q, k, v, b: (q[0], k, v, b, b), "q has 2 dimensions"),
        (lambda q, k, v, b: (q, k[:, :0], v, b, b), "hand in one head or more"),
        (lambda q, k, v, b: (q, k.float(), v, b, b), "hand in one floating-point dtype"),
        (lambda q, k, v, b: (q, k, v, b.long(), b), "cu_seqlens_q is torch.int64"),
        (lambda q, k, v, b: (q, k, v, b, b[:1]), "cu_seqlens_k has 1 numbers"),
        (lambda q, k, v, b: (q, k, v, b.to("meta"), b), "on different devices"),
        (lambda q, k, v, b: (q, k, v[:1], b, b), "k and v are of q's head_dim"),
        (lambda q, k, v, b: (q[:, :3], k, v, b, b), "q has 3 heads and k 2"),
    ],
)
def test_what_is_no_attention_is_one_sentence(given, words):
    with pytest.raises(UsageError, match=words):
        ragged.plan(*given(*ragged_operands([5], [5]), begins_of([5])), False, 5)


def table_of(lengths_q, lengths_k, heads, in_section, spare, causal, step=256):
    """The table that `fill_table` writes, in Python, between guards."""
    batch, total_q = len(lengths_q), sum(lengths_q)
    slots = tables.most_slots(batch, heads, in_section, total_q)
    table = torch.full((tables.numbers(slots, spare),), -7, dtype=torch.int32)
    o, lse = torch.full((total_q, heads, 1), torch.nan), torch.full((heads, total_q), torch.nan)
    numbers = (batch, total_q, heads, in_section, spare, 1, causal, step)
    program_in_python(tables, "fill_table", batch)(begins_of(lengths_q), begins_of(lengths_k), table, o, lse, *numbers)
    return table, o, lse


@settings(max_examples=25)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 700), st.integers(0, 700)), min_size=1, max_size=7),
    kv_heads=st.integers(1, 3), group=st.integers(1, 4), causal=st.booleans(), n_ctas=st.integers(1, 140),
    part=st.integers(1, 3), step=st.sampled_from([2, 256]),
)  # fmt: skip
def test_the_ctas_share_out_each_tile_once(lengths, kv_heads, group, causal, n_ctas, part, step):
    """By the kernels' own functions, in Python: each row of q once, to its keys and head of k and v."""
    heads = kv_heads * group
    in_section = heads // part if heads % part == 0 else heads
    lengths_q, lengths_k = zip(*lengths, strict=True)
    lengths_k = lengths_q if causal else lengths_k
    table, o, lse = table_of(lengths_q, lengths_k, heads, in_section, n_ctas, causal, step)
    kernel = in_python(improved_plus, n_programs=n_ctas)
    shape = improved_plus.Ragged(Pointer(table), *map(torch.tensor, (in_section, group, sum(lengths_q))))
    own = kernel.own_tiles(shape)
    far, found = improved_plus.FAR.value, []
    for t in range(int(own.max())):
        q_row, kv_row, n_blocks = kernel.own_tile_at(torch.where(own > t, t, 0), shape, 512, causal)
        (_, q_end, head), row = kernel.q_place(q_row.clone(), shape)
        (_, kv_end, kv_head) = kernel.kv_head_of(q_row.clone(), shape)
        tail = kernel.tail_of(q_row.clone(), shape)
        numbers = (q_end, far - row, kv_end, far - kv_row, head, kv_head, n_blocks, tail)
        found += torch.stack([one.expand(n_ctas) for one in numbers], 1)[own > t].tolist()
    wanted = []
    for (q_end, q_len), (kv_end, kv_len) in zip(
        zip(itertools.accumulate(lengths_q), lengths_q, strict=True),
        zip(itertools.accumulate(lengths_k), lengths_k, strict=True),
        strict=True,
    ):
        nothing = q_len > 0 and kv_len == 0
        assert bool((o[q_end - q_len : q_end] == 0).all()) == (nothing or not q_len)
        assert bool((lse[:, q_end - q_len : q_end] == -math.inf).all()) == (nothing or not q_len)
        assert nothing or bool(o[q_end - q_len : q_end].isnan().all())
        for first, head in itertools.product(range(0, q_len if kv_len else 0, 128), range(heads)):
            n_blocks = first // 128 + 1 if causal else -(-kv_len // 128)
            tail = kv_len - (-(-kv_len // 128) - 1) * 128
            wanted.append((q_end, q_len - first, kv_end, kv_len, head, head // group, n_blocks, tail))
    # A CTA without a tile has an empty one.
    empty = [one for one in found if one[1] == 0]
    assert all(one[0] == one[2] == one[3] == 0 and one[6:] == [1, 128] for one in empty)
    assert len(empty) == max(n_ctas - len(wanted), 0)
    assert sorted(tuple(one) for one in found if one[1]) == sorted(wanted)


@pytest.mark.kernels
@pytest.mark.parametrize("kind", TWO_AND_ON_A_GPU_ALL, ids=str)
def test_nothing_spills_and_mmas_are_waited_for_where_the_source_does(kind):
    """As on views: where ptxas serialises wgmma, it waits after each of its instructions."""
    table, kernel = ragged.compiled(kind)
    ptx, code = kernel.asm["ptx"], compiler.sass(kernel)
    assert compiler.resources(table).spilled_bytes == compiler.resources(kernel).spilled_bytes == 0
    assert compiler.resources(kernel).registers == 168
    assert code.count("HGMMA") == ptx.count("wgmma.mma_async") == mmas(kind)
    assert code.count("WARPGROUP.DEPBAR") == ptx.count("wgmma.wait_group") > 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.dtype == torch.bfloat16], ids=str)
def test_its_main_loops_are_those_on_views(kind):
    text = compiler.ttgir_of_source(improved_plus.attn_fwd_ragged, kind.signature(), kind.constexprs())
    loops = consumers_loops(text)
    assert len(loops) == 2
    assert loops == consumers_loops(ttgir_of(views.Kind(*kind, tail=not kind.causal)))
    assert loop_bounds(Module(text)) == [True] * loops_over_blocks(kind)  # every tile has a number of blocks of its own


@pytest.fixture
def poisoned_outputs():
    """What is allocated holds NaN."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def within_nan(tensor):
    """The same numbers on a GPU in a view with NaN before, after and beside."""
    total, heads, head_dim = tensor.shape
    wide = torch.full((total + 500, heads + 2, head_dim), torch.nan, dtype=tensor.dtype, device="cuda")
    wide[300 : 300 + total, 1 : 1 + heads] = tensor
    return wide[300 : 300 + total, 1 : 1 + heads]


ON_A_GPU = [
    ([100, 60, 300, 0, 1, 129, 127, 500, 64], [77, 300, 1, 9, 200, 130, 64, 129, 1000]),
    ([0, 0, 0, 1], [3, 0, 0, 1]),
    ([1025, 17] * 40, [64, 257] * 40),
]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_on_a_gpu_lengths_and_what_lies_around_them(kind, poisoned_outputs):
    """The same bits twice, and the same without what lies around."""
    for lengths_q, lengths_k in ON_A_GPU:
        keys = lengths_q if kind.causal else lengths_k
        tensors = [tensor.cuda() for tensor in ragged_operands(lengths_q, keys, 8, 2, kind.head_dim, kind.dtype)]
        around = [within_nan(tensor) for tensor in tensors]
        assert_right(*around, lengths_q, keys, kind.causal)
        first, *others = (attend(*given, lengths_q, keys, kind.causal) for given in (around, around, tensors))
        for other in others:
            assert all(map(torch.equal, first, other))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_on_a_gpu_what_lies_in_other_sequences_is_not_read(kind, poisoned_outputs):
    """NaN and infinities in every second sequence reach no other."""
    lengths_q, lengths_k = ON_A_GPU[0]
    keys = lengths_q if kind.causal else lengths_k
    tensors = [tensor.cuda() for tensor in ragged_operands(lengths_q, keys, 8, 2, kind.head_dim, kind.dtype)]
    o, lse = attend(*tensors, lengths_q, keys, kind.causal)
    ill_q, ill_k = (
        (torch.arange(len(lengths)) % 2 == 1).repeat_interleave(torch.tensor(lengths)).cuda()
        for lengths in (lengths_q, keys)
    )
    for number in (math.nan, math.inf):
        for place, ill in enumerate((ill_q, ill_k, ill_k)):
            given = [tensor.clone() for tensor in tensors]
            given[place][ill] = number
            other_o, other_lse = attend(*given, lengths_q, keys, kind.causal)
            assert torch.equal(o[~ill_q], other_o[~ill_q])
            assert torch.equal(lse[:, ~ill_q], other_lse[:, ~ill_q])


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_on_a_gpu_what_overflows_is_computed_again(kind):
    lengths = [700, 1000, 333]
    q, k, v = (tensor.cuda() for tensor in ragged_operands(lengths, lengths, 8, 2, kind.head_dim, kind.dtype))
    k[1200:1203] *= 300
    assert_right(q, k, v, lengths, lengths, kind.causal, limit=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", [64, 128])
def test_on_a_gpu_equal_lengths_have_the_bits_of_views(head_dim):
    batch, seq_len = 3, 256
    q, k, v = (tensor.cuda() for tensor in ragged_operands([seq_len] * batch, [seq_len] * batch, 8, 2, head_dim))
    o, lse = attend(q, k, v, [seq_len] * batch, [seq_len] * batch, True)
    of_views, lse_of_views = views.attend(
        *(tensor.unflatten(0, (batch, seq_len)).transpose(1, 2) for tensor in (q, k, v)), True, SCALE
    )
    assert torch.equal(o.unflatten(0, (batch, seq_len)).transpose(1, 2), of_views)
    assert torch.equal(lse.unflatten(1, (batch, seq_len)).transpose(0, 1), lse_of_views)


@pytest.mark.gpu
@pytest.mark.parametrize("causal", [False, True])
def test_on_a_gpu_a_cuda_graph_computes_the_lengths_of_its_replay(causal):
    lengths = [1000, 24, 500, 1, 523]
    q, k, v = (tensor.cuda() for tensor in ragged_operands(lengths, lengths, 8, 2, 128))
    begins = begins_of(lengths, "cuda")
    given = (q, k, v, begins, begins, causal, 2048, SCALE)
    ragged.attend(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ragged.attend(*given)
    for now in ([1, 1, 2, 2000, 44], lengths, [0, 2048, 0, 0, 0]):
        begins.copy_(begins_of(now))
        captured[0].fill_(math.nan)
        graph.replay()
        assert all(map(torch.equal, captured, ragged.attend(*given)))
        assert_right(q, k, v, now, now, causal)
