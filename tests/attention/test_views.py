"""Improved+ on tensors as they lie: each layout, group and length is right, and what TMA can read is not copied."""

import itertools
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime import driver

from kperf.attention import overrides, views
from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.kernels import improved_plus
from kperf.attention.variants import VARIANTS
from kperf.compat.triton import TritonError
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir.ttgir import Module
from tests.attention.attending_gpu import attending_gpu  # noqa: F401
from tests.attention.handed_in import LAYOUTS, SCALE, exact, normal, operands
from tests.attention.kernels.in_python import in_python
from tests.attention.kernels.test_improved_plus import LOOPS, loop_bounds

READABLE = ("contiguous", "rows_first", "of_one_product")
KINDS = [
    views.Kind(head_dim, dtype, causal, tail)
    for head_dim, dtype in itertools.product(views.HEAD_DIMS, (torch.bfloat16, torch.float16))
    for causal, tail in ((True, False), (False, False), (False, True))
]
FOUR_AND_ON_A_GPU_ALL = [
    pytest.param(
        kind, marks=[] if kind.dtype == torch.bfloat16 and (kind.head_dim == 128 or kind.causal) else pytest.mark.gpu
    )
    for kind in KINDS
]
"""Each is compiled for seconds, so without a GPU they are those whose registers are fewest, and one of head_dim 64."""


def assert_right(q, k, v, causal, limit=4e-3):
    o, lse = views.attend(q, k, v, causal, SCALE)
    exact_o, exact_lse = exact(*(tensor.cpu() for tensor in (q, k, v)), causal)
    assert o.transpose(1, 2).is_contiguous()
    assert float((o.cpu() - exact_o).norm() / exact_o.norm()) < limit
    assert float((lse.cpu() - exact_lse).abs().max()) < 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_layouts_and_fewer_heads(attending_gpu, layout, kv_heads, causal):  # noqa: F811
    q, k, v = (LAYOUTS[layout](tensor) for tensor in operands(kv_heads=kv_heads))
    assert_right(q, k, v, causal)
    (launch,) = attending_gpu
    assert launch.name == "attn_fwd_views"
    copied = [
        descriptor.base.data_ptr() != tensor.data_ptr()
        for descriptor, tensor in zip(launch.arguments, (q, k, v), strict=False)
    ]
    assert copied == [layout not in READABLE] * 3


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (100, 100), (129, 257), (200, 328), (256, 384), (130, 130)])
def test_lengths(attending_gpu, lengths, causal):  # noqa: F811
    head_dim = 64 if causal else 128
    q, *_ = operands(seq_len=lengths[0], head_dim=head_dim)
    _, k, v = operands(kv_heads=2, seq_len=lengths[1], head_dim=head_dim)
    assert_right(q, k, v, causal)
    (launch,) = attending_gpu
    assert launch.grid == (2 * 4 * -(-lengths[0] // 128), 1, 1)


@pytest.mark.parametrize("lengths", [(1, 300), (300, 1), (129, 200)])
def test_lengths_of_any_difference_without_a_mask(attending_gpu, lengths):  # noqa: F811
    q, *_ = operands(seq_len=lengths[0])
    _, k, v = operands(kv_heads=2, seq_len=lengths[1])
    assert_right(q, k, v, False)
    assert attending_gpu


def test_a_slice_of_a_cache_is_read_where_it_lies_and_not_beyond(attending_gpu):  # noqa: F811
    q, *_ = operands(seq_len=100)
    cache = torch.full((2, 2, 2, 512, 128), torch.nan, dtype=torch.bfloat16)
    cache[:, :, :, :356] = normal(2, 2, 2, 356, 128, seed=3)
    k, v = cache[:, :, :, :356]
    assert_right(q, k, v, True)
    assert attending_gpu[0].arguments[1].base.data_ptr() == cache.data_ptr()


def test_an_expanded_head_is_copied_and_right(attending_gpu):  # noqa: F811
    q, k, v = operands(kv_heads=1)
    assert_right(q, k.expand(2, 4, 256, 128), v.expand(2, 4, 256, 128), True)
    (launch,) = attending_gpu
    assert launch.arguments[1].strides[1] == launch.arguments[2].strides[1] == 128


def test_what_is_planned_once_is_launched_with_each_calls_tensors(attending_gpu):  # noqa: F811
    given = operands(kv_heads=2)
    for tensors in (given, [tensor + 1 for tensor in given], given):
        assert_right(*tensors, True)
    assert len(attending_gpu) == 3


def test_a_misaligned_tensor_of_a_planned_shape_is_copied(attending_gpu):  # noqa: F811
    q, k, v = operands()
    off = LAYOUTS["off_by_an_element"](k)
    assert off.stride() == k.stride()
    for keys in (k, off):
        assert_right(q, keys, v, False)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        (operands(head_dim=96), "head_dim 96 is not one of 64, 128"),
        (operands(dtype=torch.float32), "q is float32: the kernel computes bfloat16 and float16"),
        (tuple(tensor.to("meta") for tensor in operands()), "q is on meta, and kernels run on cpu"),
        (
            [torch.empty(1, 1, 1, 64, dtype=torch.bfloat16).expand(1, 2**13, 2**18, 64)] * 3,
            "8192 heads of 262144 rows are more than the kernel's 32-bit row numbers",
        ),
        (
            (operands()[0], *operands(seq_len=300)[1:]),
            "k has 44 rows more than q: under a causal mask these are to be a multiple of 128",
        ),
    ],
)
def test_what_the_kernel_does_not_compute_is_refused_by_one_sentence(attending_gpu, tensors, words):  # noqa: F811
    assert words in views.plan(*tensors, True).why_not
    for compute in (views.attend, IMPLEMENTATIONS["improved_plus_views"].bind):
        with pytest.raises(UsageError, match=words):
            compute(*tensors, True, SCALE)
    assert not attending_gpu


@pytest.fixture
def two_gpus(attending_gpu, monkeypatch):  # noqa: F811
    """`of` makes one the current device, as torch's `device_of` does; `loaded` has the device of each kernel loaded."""
    current = torch.device("cuda:0")
    loaded = []

    @contextmanager
    def of(tensor):
        nonlocal current
        before, current = current, tensor.device if tensor.is_cuda else current
        yield
        current = before

    def load(name, binary, shared, device):
        loaded.append(device)
        return object(), device, 64, 0, 1024

    monkeypatch.setattr(torch.cuda, "device_of", of)
    monkeypatch.setattr(driver.active, "get_active_torch_device", lambda: current, raising=False)
    monkeypatch.setattr(driver.active, "get_current_device", lambda: current.index, raising=False)
    monkeypatch.setattr(driver.active.utils, "load_binary", load)
    with FakeTensorMode():
        on = [torch.empty(1, 2, 128, 128, dtype=torch.bfloat16, device=f"cuda:{index}") for index in range(2)]
    return on, of, loaded


def test_each_gpu_loads_a_kernel_of_its_own(two_gpus):
    (first, second), _, loaded = two_gpus
    for q in (first, second, first[:, :1], second[:, :1]):
        assert views.plan(q, q, q, False).why_not is None
    assert loaded == [0, 1]


def test_what_is_planned_while_another_gpu_is_current_serves_where_the_tensors_lie(two_gpus):
    (first, second), of, loaded = two_gpus
    with of(first):
        assert views.plan(second, second, second, False).why_not is None
    with of(second):
        assert views.plan(second, second, second, False).why_not is None
    assert loaded == [1]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (TritonError("no such layout"), "does not compile with Triton .* no such layout.*: install the locked wheels"),
        (RuntimeError("PassManager::run failed"), "does not compile with Triton .*PassManager::run failed"),
        (UsageError("Triton's cache is damaged"), "^Triton's cache is damaged$"),
    ],
)
def test_a_kernel_that_does_not_compile_is_one_sentence_and_tried_once(attending_gpu, monkeypatch, error, words):  # noqa: F811
    tries = []

    def fails(*_):
        tries.append(1)
        raise error

    monkeypatch.setattr(compiler, "compile_kernel", fails)
    for seq_len in (128, 256):
        with pytest.raises(UsageError, match=words):
            views.attend(*operands(seq_len=seq_len), True, SCALE)
    assert len(tries) == 1
    assert not attending_gpu


@given(
    st.lists(st.integers(1, 40), min_size=4, max_size=4), st.permutations(range(4)), st.integers(0, 9), st.booleans()
)
def test_strides_are_taken_where_they_are_multiples_of_16_bytes(shape, order, more, contiguous):
    """Of any permutation of a padded buffer."""
    wide = torch.empty([shape[axis] + more * (place == 3) for place, axis in enumerate(order)], dtype=torch.bfloat16)
    view = wide[..., : shape[order[3]]].permute([order.index(axis) for axis in range(4)])
    assert list(view.shape) == shape
    found = views.readable_strides(view.shape, view.stride(), 2)
    fits = view.stride(3) == 1 and all(
        stride * 2 % 16 == 0 for stride, size in zip(view.stride()[:3], shape, strict=False) if size > 1
    )
    if found is None:
        # A last dimension of one element may have any stride, and one of 40 columns is no head of these kernels.
        assert not fits or shape[3] * 2 % 16
    else:
        assert fits
        assert all(stride * 2 % 16 == 0 for stride in found[:3])
        indices = [torch.arange(size) for size in shape]
        assert torch.equal(_offsets(indices, found), _offsets(indices, view.stride()))


def _offsets(indices, strides):
    a, b, c, d = (index * stride for index, stride in zip(indices, strides, strict=True))
    return a[:, None, None, None] + b[:, None, None] + c[:, None] + d


@given(
    batch=st.integers(1, 3), kv_heads=st.integers(1, 5), group=st.integers(1, 6), q_len=st.integers(1, 1500),
    more=st.integers(0, 700), causal=st.booleans(), n_sms=st.integers(1, 140), sections=st.sampled_from([1, 2, 5, 99]),
)  # fmt: skip
def test_the_blocks_share_out_each_tile_once(batch, kv_heads, group, q_len, more, causal, n_sms, sections):
    """By the kernel's own functions, in Python: each row of q once, to its keys and head of k and v."""
    heads, kv_len = kv_heads * group, q_len + (more // 128 * 128 if causal else more)
    made = improved_plus.views(batch, heads, kv_heads, q_len, kv_len, (16 << 20) // (sections * kv_len), causal=causal)
    n_blocks_run = min(made.n_tiles, n_sms)
    kernel = in_python(improved_plus, n_programs=n_blocks_run)
    numbers = improved_plus.Views(*map(torch.tensor, made))
    own = kernel.own_tiles(numbers)
    assert int(own.sum()) == made.n_tiles
    assert int(own.min()) >= 1
    found = []
    for t in range(int(own.max())):
        q_row, kv_row, n_blocks = kernel.own_tile_at(torch.where(own > t, t, 0), numbers, 512, causal)
        assert int(kv_row) == 0
        (of_batch, head), row = kernel.q_place(q_row.clone(), numbers)
        also_batch, kv_head = kernel.kv_head_of(q_row.clone(), numbers)
        assert torch.equal(of_batch, also_batch)
        also_blocks = kernel.blocks_of(q_row.clone(), numbers, causal)
        assert torch.equal(also_blocks.expand(n_blocks_run), n_blocks.expand(n_blocks_run))
        columns = [tensor.expand(n_blocks_run) for tensor in (of_batch, head, kv_head, row, n_blocks)]
        found += torch.stack(columns, 1)[own > t].tolist()
    wanted = [
        (
            one,
            head,
            head // group,
            row,
            # of the tile's last row, whether or not there is one
            -(-(row + 128 + kv_len - q_len if causal else kv_len) // 128),
        )
        for one in range(batch)
        for head in range(heads)
        for row in range(0, q_len, 128)
    ]
    assert sorted(map(tuple, found)) == wanted


@pytest.mark.parametrize("group", [4, 32])
@pytest.mark.parametrize("seq_len", [1024, 2048, 4096, 8192])
def test_causal_tiles_are_dealt_evenly(group, seq_len):
    """Of 32 heads on 132 SMs: the busiest block has at most 4 % more to do than the mean."""
    made = improved_plus.views(1, 32, 32 // group, seq_len, seq_len, 512, causal=True)
    kernel = in_python(improved_plus, n_programs=132)
    numbers = improved_plus.Views(*map(torch.tensor, made))
    own, work = kernel.own_tiles(numbers), torch.zeros(132)
    for t in range(int(own.max())):
        _, _, n_blocks = kernel.own_tile_at(torch.where(own > t, t, 0), numbers, 512, True)
        work += (n_blocks + 0.7) * (own > t)
    assert float(work.max() / work.mean()) < 1.04


@pytest.mark.kernels
@pytest.mark.parametrize("kind", FOUR_AND_ON_A_GPU_ALL, ids=str)
def test_nothing_spills_and_products_are_waited_for_where_the_source_does(kind):
    """As of the override: where ptxas serialises wgmma, it waits after each of its instructions."""
    kernel = views.compiled(kind)
    ptx, code = kernel.asm["ptx"], compiler.sass(kernel)
    assert compiler.resources(kernel).spilled_bytes == 0
    assert code.count("HGMMA") == ptx.count("wgmma.mma_async") == mmas(kind)
    assert code.count("WARPGROUP.DEPBAR") == ptx.count("wgmma.wait_group") > 0
    # A consumer votes as a whole where it may leave the loop, and bfloat16 then whether a block is computed again.
    votes = {(128, torch.bfloat16): 2, (128, torch.float16): 1}.get((kind.head_dim, kind.dtype), 0)
    assert [ptx.count(f"bar.red.or.pred p, {13 + w}, 128, p") for w in range(2)] == [votes, votes]


def mmas(kind):
    """Of both consumers: an iteration's, the first tile's first, a tile's last, and with head_dim 128 QK again."""
    return 96 if kind.head_dim == 128 else 56


def consumers_loops(text):
    """The operations of the loops over blocks of k and v, in order: of both consumers."""
    loops = [op for op in Module(text).walk() if op.name in LOOPS and "ttng.warp_group_dot" in names_in(op)]
    return [names_in(loop) for loop in loops if not set(LOOPS) & set(names_in(loop)[1:])]


def names_in(loop):
    return [op.name for op in loop.walk()]


def ttgir_of(kind):
    return compiler.ttgir_of_source(improved_plus.attn_fwd_views, kind.signature(), kind.constexprs())


@pytest.mark.parametrize("special", VARIANTS["improved_plus"].specializations, ids=lambda special: special.file_name)
def test_its_main_loops_are_those_of_the_override(special):
    kind = views.Kind(special.head_dim, getattr(torch, special.dtype), special.causal, tail=False)
    ours = consumers_loops(ttgir_of(kind))
    theirs = consumers_loops(overrides.find("improved_plus", special).text)
    assert len(theirs) == 2
    assert ours == theirs


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.causal], ids=str)
def test_every_tile_has_a_number_of_blocks_of_its_own(kind):
    """As of the override: Triton's loop-aware CSE can take a number that the tile loop carries for the first tile's."""
    bounds = loop_bounds(Module(ttgir_of(kind)))
    assert bounds == [True] * loops_over_blocks(kind)


def loops_over_blocks(kind):
    """Of both consumers and the producer; with head_dim 128 a consumer has one in another, left to correct rows."""
    return 5 if kind.head_dim == 128 else 3


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("causal", [False, True])
def test_on_a_gpu_layouts_and_fewer_heads(layout, kv_heads, causal):
    assert_right(*(LAYOUTS[layout](tensor.cuda()) for tensor in operands(kv_heads=kv_heads)), causal)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_on_a_gpu_lengths_and_what_lies_around_them(kind):
    """In a cache of NaN; o is allocated as NaN; the same bits twice."""
    torch.use_deterministic_algorithms(True)
    try:
        for q_len, kv_len in ((1, 1), (1, 1000), (65, 193), (200, 328), (128, 1152), (1000, 1000), (1152, 1152)):
            if (kv_len - q_len) % 128 if kind.causal else (kv_len % 128 != 0) != kind.tail:
                continue
            cache = torch.full((3, 3, 8, 1300, kind.head_dim), torch.nan, dtype=kind.dtype, device="cuda")
            q, k, v = cache[2, :, :, :q_len], cache[0, :, :2, 100 : 100 + kv_len], cache[1, :, :2, 7 : 7 + kv_len]
            for seed, tensor in enumerate((q, k, v)):
                tensor.copy_(normal(*tensor.shape, seed=seed).to(kind.dtype))
            assert_right(q, k, v, kind.causal)
            first, second = (views.attend(q, k, v, kind.causal, SCALE) for _ in range(2))
            assert all(map(torch.equal, first, second))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_on_a_gpu_what_overflows_is_computed_again(kind):
    q, k, v = (normal(8, heads, 1000 + 152 * (not kind.tail), kind.head_dim, seed=heads) for heads in (8, 2, 2))
    k[1::2, :, 500:503] *= 300
    assert_right(*(tensor.to(kind.dtype).cuda() for tensor in (q, k, v)), kind.causal, limit=2e-2)


@pytest.mark.gpu
def test_on_a_gpu_a_call_allocates_its_outputs_and_nothing_else():
    q, k, v = (LAYOUTS["rows_first"](tensor.cuda()) for tensor in operands(heads=8, kv_heads=2, seq_len=1024))
    views.attend(q, k, v, True, SCALE)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    o, lse = views.attend(q, k, v, True, SCALE)
    assert torch.cuda.max_memory_allocated() - before == o.nbytes + lse.nbytes
