"""A tile of Improved+ as Python: right however scores rise, and each row as if it were alone.

Its functions are run on tensors of torch, with what a consumer is of itself in place of MMAs, barriers and votes. As on
a GPU an exponential that is not normal is 0, and s * scale - m is rounded once. What only machine code has, tests on a
GPU hold (test_improved_plus).
"""

import math
from types import FunctionType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from triton.experimental.gluon import language as gl
from triton.runtime.jit import JITFunction

from kperf.attention.kernels import improved_plus, warp_specialized
from kperf.attention.variants import VARIANTS

ROWS, BLOCK = 64, 128
LEAST = 2.0**-126
STAGES = VARIANTS["improved_plus"].stages


class Numbers(torch.Tensor):
    """A tensor with what Gluon's have, whose values do not change.

    A product with a float32 is kept as a float64, exact, until something is added to it: one FFMA rounds once.
    """

    def __mul__(self, other):
        return super(Numbers, self.double() if isinstance(other, float) else self).__mul__(other)

    def __add__(self, other):
        return rounded(super().__add__(other))

    def __sub__(self, other):
        return rounded(super().__sub__(other))

    def __iadd__(self, other):
        return self + other

    def __imul__(self, other):
        return self * other

    @property
    def type(self):
        return SimpleNamespace(layout=None)

    def slice(self, start, length):
        return self[start : start + length]

    def to(self, dtype, bitcast=False):
        return self.contiguous().view(dtype) if bitcast else super().to(dtype)


def numbers(tensor):
    return tensor.as_subclass(Numbers)


def rounded(x):
    return x.float() if x.dtype == torch.float64 else x


class Ring:
    """k or v of the pairs, in a ring. A stage that is given back has the next pair at once, or NaN behind the last."""

    now: tuple = ()
    """Those of the tile that is computed."""

    def __init__(self, blocks):
        self.dtype, self.shape = blocks[0].dtype, (STAGES, *blocks[0].shape)
        self.behind = torch.full_like(blocks[0], math.nan)
        self.left = iter(blocks)
        self.blocks = [self.following() for _ in range(STAGES)]

    def following(self):
        return next(self.left, self.behind)

    def index(self, stage):
        return numbers(self.blocks[stage])

    @staticmethod
    def arrive(barrier, _):
        stage = barrier - improved_plus.EMPTY.value
        if 0 <= stage < STAGES:
            for ring in Ring.now:
                ring.blocks[stage] = ring.following()


def where(chosen, a, b):
    if isinstance(chosen, bool):
        return a if chosen else b
    return torch.where(chosen, torch.as_tensor(a, dtype=torch.float32), torch.as_tensor(b, dtype=torch.float32))


def exp2(x):
    found = torch.exp2(x)
    return torch.where(found < LEAST, torch.zeros_like(found), found)


LANGUAGE = SimpleNamespace(
    float32=torch.float32,
    int32=torch.int32,
    float16=torch.float16,
    NVMMADistributedLayout=lambda *_: None,
    SliceLayout=lambda *_: None,
    DotOperandLayout=lambda *_: None,
    convert_layout=lambda x, _: x,
    reshape=torch.reshape,
    expand_dims=torch.unsqueeze,
    arange=lambda start, end, _: torch.arange(start, end),
    zeros=lambda shape, dtype, _: numbers(torch.zeros(shape, dtype=dtype)),
    zeros_like=torch.zeros_like,
    max=lambda x, axis: x.amax(axis),
    sum=lambda x, axis: x.sum(axis),
    maximum=lambda a, b: torch.maximum(a, torch.as_tensor(b, dtype=a.dtype)),
    minimum=lambda a, b: torch.minimum(a, torch.as_tensor(b, dtype=a.dtype)),
    where=where,
    exp2=exp2,
    to_tensor=int,
)


def product(a, b, acc, use_acc=True, is_async=False):
    found = a.float() @ b.float()
    return found + acc if use_acc else found


IN_PLACE = {
    "gl": LANGUAGE,
    "headroom": {torch.bfloat16: 60.0, torch.float16: 0.0}.get,
    "most_p": {torch.bfloat16: 2.0**64, torch.float16: 2.0**14}.get,
    "pin": lambda x: x,
    "opaque": lambda x: x,
    "barrier_sync": lambda *_: None,
    "barrier_arrive": Ring.arrive,
    "mbarrier": SimpleNamespace(wait=lambda *_: None),
    "warpgroup_mma": product,
    "warpgroup_mma_wait": lambda _, deps: deps[0] if len(deps) == 1 else deps,
    "any_above": lambda _, top, limit, together: bool((top > limit).any()),
    "halves": lambda x, _: x.chunk(2, 1),
    "joined": lambda left, right: torch.cat([left, right], 1),
    "rounded_pairs": lambda x, dtype: x.to(dtype),
    "pack_pairs": lambda x: x,
    "unpack_pairs": lambda x, *_: x,
}


def in_python():
    """The functions of the kernel, which call each other and what is in their place here."""
    names = {}
    for module in (warp_specialized, improved_plus):
        for name, value in vars(module).items():
            if isinstance(value, JITFunction):
                names[name] = FunctionType(value.fn.__code__, names, name, value.fn.__defaults__)
            else:
                names[name] = value.value if isinstance(value, gl.constexpr) else value
    names |= IN_PLACE
    return SimpleNamespace(**names)


KERNEL = in_python()


@pytest.fixture(
    params=[(dtype, head_dim) for dtype in (torch.bfloat16, torch.float16) for head_dim in (128, 64)],
    ids=lambda kind: f"{kind[0]}-{kind[1]}".removeprefix("torch."),
)
def kind(request):
    """dtype and head_dim."""
    return request.param


def scale(head_dim):
    """The factor on q k^T that makes scores in units of log2, a float32."""
    return float(torch.tensor(head_dim**-0.5 / math.log(2)))


class First(NamedTuple):
    """Which keys of a tile's first block its rows see: of consumer W's with a causal mask, or of a block that ends."""

    W: int = 1
    causal: bool = False
    n_cols: int = BLOCK

    def seen(self, n_keys):
        """[64, n_keys], whether a row sees a key."""
        last = self.W * ROWS + torch.arange(ROWS)[:, None] if self.causal else self.n_cols - 1
        key = torch.arange(n_keys)
        return (key >= BLOCK) | (key <= last)


@pytest.fixture(
    params=[First(), First(0, causal=True), First(1, causal=True), First(n_cols=1), First(n_cols=63), First(n_cols=90)],
    ids=["whole", "consumer 0 on the diagonal", "consumer 1 on the diagonal", "1 key", "63 keys", "90 keys"],
)
def first(request):
    return request.param


def tile(q, k, v, first=First()):  # noqa: B008  (it does not change)
    """o and the log-sum-exp of 64 rows."""
    n_blocks = len(k) // BLOCK
    keys, values = k.chunk(n_blocks), v.chunk(n_blocks)
    # Beside k of block i lies v of block i - 1.
    Ring.now = Ring([*keys[1:], keys[0]]), Ring(values)
    smem = (None, *Ring.now, SimpleNamespace(index=lambda _: None), None)
    s = KERNEL.first_product(first.W, q, keys[0], first.causal)
    p_left, p_right, m_i, l_i, top = KERNEL.first_softmax(
        first.W, s, scale(q.shape[1]), BLOCK, q.dtype, None, first.causal, first.n_cols < BLOCK, first.n_cols
    )
    p = torch.cat([p_left, p_right], 1).to(q.dtype)
    acc = numbers(torch.zeros(q.shape))
    p, acc, m_i, l_i, top, stage, _ = KERNEL.attend_blocks(
        first.W, q, p, acc, m_i, l_i, top, smem, 0, 0, n_blocks, scale(q.shape[1]), STAGES
    )
    assert stage == (n_blocks - 1) % STAGES
    acc = product(p, Ring.now[1].index(stage), acc)
    l_row, l_norm = KERNEL.row_sums(l_i, top, q.dtype, None)
    return acc / l_norm[:, None], (m_i + l_row.log2()) * math.log(2)


def assert_right(q, k, v, first=First(), limit=4e-3):  # noqa: B008
    o, lse = tile(q, k, v, first)
    scores = (q.double() @ k.double().T * q.shape[1] ** -0.5).where(first.seen(len(k)), -math.inf)
    exact_o, exact_lse = scores.softmax(-1) @ v.double(), scores.logsumexp(-1)
    assert float((o - exact_o).norm() / exact_o.norm()) < limit
    assert float((o - exact_o).abs().max()) < 0.03
    assert float(((lse - exact_lse) / exact_lse.abs().clamp(min=1)).abs().max()) < 1e-4


def risen(kind, rises, n_blocks, seed):
    """q, k, v: scores near 0, but for rises {(row, key): by how many log2 that row's score of that key is above}."""
    dtype, head_dim = kind
    generator = torch.Generator().manual_seed(seed)
    q, k = torch.zeros(ROWS, head_dim), torch.zeros(n_blocks * BLOCK, head_dim)
    v = torch.randn(k.shape, generator=generator)
    q[:, 0], k[:, 0] = (10 * torch.randn(n, generator=generator) for n in (ROWS, len(k)))
    for place, ((row, key), rise) in enumerate(rises.items(), 1):
        q[row, place], k[key, place] = 16, rise / scale(head_dim) / 16  # a float16 ends at 65504
    return [numbers(one.to(dtype)) for one in (q, k, v)]


N_BLOCKS = 4
RISES = st.dictionaries(
    st.tuples(st.integers(0, 5) | st.integers(0, ROWS - 1), st.integers(0, N_BLOCKS * BLOCK - 1)),
    st.sampled_from(
        [14.0, 16, 20, 60, 65, 90, 110, 120, 124, 125, 126, 127, 128, 130, 150, 180, 186, 188, 190, 195, 250, 1e3, 3e4]
    )
    | st.floats(-200, 400, width=16),
    max_size=20,
)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(RISES, st.integers(0, 9))
@example({(0, 200): 120.0, (0, 300): 124.0, (1, 310): 1000.0}, 0)  # what row 0 had before has a share of it
@example({(0, 200): 130.0}, 1)
@example({(0, 200): 100.0, (1, 310): 150.0}, 0)
@example({(0, 200): 15.0, (1, 210): 150.0}, 0)
@example({(0, 100): 250.0}, 0)  # in the first block
def test_a_tile_is_right_however_its_rows_rise_and_each_row_as_if_alone(kind, first, rises, seed):
    q, k, v = risen(kind, rises, N_BLOCKS, seed)
    assert_right(q, k, v, first)
    together = tile(q, k, v, first)
    for row in {row for row, _ in rises}:
        alone = q.clone()
        alone[torch.arange(ROWS) != row, 1:] = 0
        for both, one in zip(together, tile(alone, k, v, first), strict=True):
            assert torch.equal(both[row], one[row])


@pytest.mark.parametrize("above", [124.0, 125, 127, 130])
def test_what_a_row_had_before_another_overflows_keeps_its_share(kind, above):
    """Row 0 has a p below 2^64, then one a little above, in the block in which row 1 has an infinity."""
    q, k, v = risen(kind, {(0, 200): 123.5, (0, 300): above, (1, 310): 1000.0}, N_BLOCKS, 0)
    q[0, 0] = 0
    assert_right(q, k, v)


@pytest.mark.parametrize("rise", [70.0, 123, 125, 127, 130, 150, 186, 190, 1000])
@pytest.mark.parametrize("key", [10, 90, 200, 511])
def test_a_row_with_one_key_has_its_value(kind, rise, key):
    """The largest p is rounded, and the sum by which o is divided with it."""
    q, k, v = risen(kind, {(0, key): rise}, N_BLOCKS, 0)
    q[0, 0] = 0
    o, _ = tile(q, k, v)
    assert float((o[0] - v[key].float()).abs().max()) < 1e-3


@pytest.mark.parametrize("spread", [30.0, 100, 1000, 2.0**13])
def test_scores_of_any_spread(kind, spread):
    dtype, head_dim = kind
    generator = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(n, head_dim, generator=generator) for n in (ROWS, 5 * BLOCK, 5 * BLOCK))
    assert_right(*(numbers(one.to(dtype)) for one in (q * spread, k, v)), limit=6e-3)


def test_rows_that_are_minus_infinity_at_first_take_no_part(kind, first):
    q, k, v = risen(kind, {}, N_BLOCKS, 0)
    q[:, 1], k[:140, 1] = 1, -math.inf
    assert_right(q, k, v, first)


@pytest.mark.parametrize("rise", [124.0, 126, 178, 187])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_v_may_be_as_large_as_the_page_says(rise, head_dim):
    """16384 keys, nearly all with the largest p that moves no reference, 2^64, or one above it."""
    q, k, v = risen((torch.bfloat16, head_dim), {}, 128, 0)
    q[:], k[:] = 0, 0
    q[:, 0], k[BLOCK:, 0] = 1, rise / scale(head_dim)
    o, _ = tile(q, k, numbers(torch.full(v.shape, 1e15, dtype=torch.bfloat16)))
    assert float((o / 1e15 - 1).abs().max()) < 0.01


@pytest.mark.parametrize("keys", [slice(0, 30), slice(70, 128), slice(200, 210), slice(None)])
@pytest.mark.parametrize("below", [10, 6, 3, 2, 1])
@pytest.mark.parametrize("size", [1, 1.0546875, 1.109375, 1.1640625, 1.0078125, 1.375])
def test_scores_up_to_what_the_page_says(kind, size, below, keys):
    """References are then so far apart as they are stored that not each move is in reach, and a p may be above 1."""
    dtype, head_dim = kind
    log2, rise = {torch.bfloat16: (30, 180), torch.float16: (28, 100)}[dtype]
    q, k, v = risen(kind, {}, 10, 0)
    q[:], k[:] = 0, 0
    q[:, :6] = k[keys, :6] = math.sqrt(size * 2.0 ** (log2 - below) / scale(head_dim) / 6)  # a float16 ends at 65504
    q[:, 6], k[BLOCK:, 6] = 16, rise / scale(head_dim) / 16
    o, _ = tile(q, k, v)
    exact = (q.double() @ k.double().T * scale(head_dim) * math.log(2)).softmax(-1) @ v.double()
    assert float((o - exact).abs().max()) < 0.01


@pytest.mark.parametrize("rise", [16.0, 70, 120])
def test_what_a_row_had_keeps_its_share_where_it_moves(kind, rise):
    """Both in one block and one after the other: 2^-1 and 2^-2 of the row."""
    for key in (200, 300):
        assert_right(*risen(kind, {(0, 100): rise + 60, (0, key): rise + 61, (0, 400): rise + 62}, N_BLOCKS, 0))
