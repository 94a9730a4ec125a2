import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kperf.attention.workload import FIG11, Workload, fig12_grid, make_workload
from kperf.errors import UsageError


@given(batch=st.integers(1, 4), heads=st.integers(1, 4), blocks=st.integers(1, 8), head_dim=st.sampled_from([64, 128]))
def test_flops_count_two_products_of_every_pair_of_rows(batch, heads, blocks, head_dim):
    seq_len = 128 * blocks
    full = Workload(batch=batch, heads=heads, seq_len=seq_len, head_dim=head_dim)
    pairs = sum(1 for _ in range(batch * heads)) * seq_len * seq_len
    assert full.flops == pairs * 2 * (2 * head_dim)
    assert full.model_copy(update={"causal": True}).flops * 2 == full.flops


def test_the_grids_are_the_papers():
    assert [(w.batch, w.seq_len) for w in fig12_grid("seq_len")] == [(16, 2**n) for n in range(7, 15)]
    assert [(w.batch, w.seq_len) for w in fig12_grid("batch_size")] == [(2**n, 4096) for n in range(8)]
    assert all((w.heads, w.head_dim, w.dtype, w.causal) == (16, 128, "bfloat16", False) for w in fig12_grid("seq_len"))
    other = fig12_grid("batch_size", True, 64, "float16")
    assert [(w.batch, w.seq_len) for w in other] == [(2**n, 4096) for n in range(8)]
    assert all((w.heads, w.head_dim, w.dtype, w.causal) == (16, 64, "float16", True) for w in other)
    assert (FIG11.batch, FIG11.heads, FIG11.seq_len) == (8, 16, 8192)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch": 1, "seq_len": 200}, "seq_len: seq_len 200 is not a multiple of 128"),
        ({"batch": 1, "seq_len": 0}, "seq_len"),
        ({"batch": 0, "seq_len": 128}, "batch"),
        ({"batch": 1, "seq_len": 128, "head_dim": 96}, "head_dim 96 is not one of 64, 128, 256"),
        ({"batch": 1, "seq_len": 128, "heads": 6, "kv_heads": 4}, "kv_heads 4 does not divide heads 6"),
        ({"batch": 1, "seq_len": 128, "kv_heads": 0}, "kv_heads"),
        ({"batch": 1, "seq_len": 128, "dtype": "float8"}, "dtype"),
    ],
)
def test_a_wrong_shape_is_one_sentence(fields, words):
    with pytest.raises(UsageError) as raised:
        make_workload(**fields)
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


def test_as_many_heads_of_k_and_v_as_of_q_are_none_of_their_own():
    same, fewer = (Workload(batch=2, seq_len=128, heads=8, kv_heads=kv_heads) for kv_heads in (8, 2))
    assert same == Workload(batch=2, seq_len=128, heads=8)
    assert (same.kv_heads, fewer.kv_heads) == (None, 2)
    assert fewer.flops == same.flops  # each head of q is multiplied
    assert str(fewer) == "2 x 8/2 x 128 x 128 bfloat16 full"


def test_a_backward_pass_has_five_products():
    forward = Workload(batch=1, seq_len=128, causal=True)
    backward = forward.model_copy(update={"backward": True})
    assert backward.flops == forward.flops / 2 * 5
    assert str(backward) == f"{forward}, backward"


def test_a_workload_is_a_value():
    with pytest.raises(ValidationError):
        Workload(batch=1, seq_len=128).batch = 2
    assert len({Workload(batch=1, seq_len=128), Workload(batch=1, seq_len=128)}) == 1
