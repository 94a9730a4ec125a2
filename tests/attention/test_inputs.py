"""The kinds of inputs are what their names say, by the scores that they give."""

import math
from typing import get_args

import pytest
import torch

from kperf.attention.inputs import draw
from kperf.attention.workload import InputKind

SHAPE = (1, 2, 512, 128)


def weights(kind: str, shape: tuple[int, int, int, int] = SHAPE) -> torch.Tensor:
    """softmax of the scores, [batch, heads, seq_len, seq_len]."""
    q, k, _ = draw(kind, shape, torch.float32, seed=3, device="cpu")
    return torch.softmax(q @ k.mT * shape[-1] ** -0.5, dim=-1)


@pytest.mark.parametrize("kind", get_args(InputKind))
@pytest.mark.parametrize("head_dim", [64, 128])
def test_every_kind_is_fresh_by_seed_rounded_and_v_normal(kind, head_dim):
    shape = (2, 3, 256, head_dim)
    q, k, v = draw(kind, shape, torch.bfloat16, seed=5, device="cpu")
    for x, again in zip((q, k, v), draw(kind, shape, torch.bfloat16, seed=5, device="cpu"), strict=True):
        assert x.shape == shape
        assert x.dtype == torch.bfloat16
        assert torch.equal(x, again)
        assert torch.isfinite(x).all()
    assert not torch.equal(v, draw(kind, shape, torch.bfloat16, seed=6, device="cpu")[2])
    assert abs(float(v.float().std()) - 1) < 0.02
    assert abs(float(v.float().mean())) < 0.02


@pytest.mark.parametrize("kind", get_args(InputKind))
def test_fewer_heads_of_k_and_v_are_attended_to_as_each_of_as_many(kind):
    shape = (1, 4, 512, 128)
    q, k, v = draw(kind, shape, torch.float32, seed=3, device="cpu", kv_heads=2)
    assert (q.shape, k.shape, v.shape) == (shape, (1, 2, 512, 128), (1, 2, 512, 128))
    every, grouped = (draw(kind, shape, torch.float32, 3, "cpu", kv_heads)[0] for kv_heads in (4, None))
    assert torch.equal(every, grouped)
    share = torch.softmax(q @ k.repeat_interleave(2, 1).mT * shape[-1] ** -0.5, dim=-1).amax(-1).mean((0, 2))
    of_as_many = float(weights(kind, shape).amax(-1).mean())
    assert share.tolist() == pytest.approx([of_as_many] * 4, rel=0.4)  # another draw of k


@pytest.mark.parametrize(("kind", "factor"), [("x2", 2), ("x4", 4), ("x10", 10), ("x30", 30)])
def test_scaled_kinds_are_normal_with_larger_q(kind, factor):
    plain, scaled = (draw(name, SHAPE, torch.float32, seed=1, device="cpu") for name in ("normal", kind))
    assert torch.equal(scaled[0], plain[0] * factor)
    assert torch.equal(scaled[1], plain[1])


def test_a_sink_has_the_largest_share_of_nearly_every_row():
    assert (weights("sink").argmax(-1) == 0).float().mean() > 0.95
    assert (weights("normal").argmax(-1) == 0).float().mean() < 0.05


def test_the_maximum_of_a_ramp_moves_in_every_block():
    q, k, _ = draw("ramp", SHAPE, torch.float32, seed=3, device="cpu")
    blocks = (q @ k.mT).amax(dim=2)[0, 0].reshape(-1, 128).amax(-1)
    assert (blocks.diff() > 0).all()


def test_local_rows_attend_to_keys_near_them():
    share = weights("local")[0, 0]
    position = torch.arange(share.shape[0], dtype=torch.float32)
    distance = (share * (position[:, None] - position).abs()).sum(-1).mean()
    everywhere = (position[:, None] - position).abs().mean()
    assert distance < 0.25 * everywhere


def test_few_keys_have_most_of_a_row_that_is_scaled():
    def largest(kind: str) -> float:
        return float(weights(kind).amax(-1).mean())

    assert largest("normal") < largest("x2") < largest("x4") < largest("x10")
    assert largest("x10") > 0.5


def log2_scores(kind: str, head_dim: int = 128) -> torch.Tensor:
    """Of one head, in units of log2, [seq_len, seq_len]."""
    q, k, _ = draw(kind, (1, 2, 2048, head_dim), torch.float32, seed=3, device="cpu")
    return (q @ k.mT)[0, 1] * head_dim**-0.5 / math.log(2)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("log2", [130, 200])
@pytest.mark.parametrize(("rows", "first", "every"), [("few", 500, 1000), ("tiles", 64, 128), ("rows", 0, 1)])
def test_one_key_jumps_in_the_rows_that_the_kind_says(rows, first, every, log2, head_dim):
    scores = log2_scores(f"jump{log2}_{rows}", head_dim)
    others = scores[:, torch.arange(2048) != 1024]
    assert float(others.abs().max()) < 10
    jumping = torch.zeros(2048, dtype=torch.bool)
    jumping[first::every] = True
    assert scores[jumping, 1024].tolist() == pytest.approx([log2] * int(jumping.sum()), abs=10)
    assert (scores[~jumping, 1024].abs() < 10).all()


def test_steps_rise_by_146_and_fall_back():
    blocks = log2_scores("steps")[0].reshape(-1, 128)
    means = blocks.mean(1)
    assert means.diff()[:6].tolist() == pytest.approx([24.5] * 6, abs=0.5)  # 1.5 sqrt(128) / ln 2
    assert float(means[7]) == pytest.approx(0, abs=0.5)
    assert float(blocks.std(1).max()) < 1


def test_students_numbers_have_the_tails_of_three_degrees_of_freedom():
    q, k, _ = draw("student", (1, 4, 2048, 128), torch.float32, seed=3, device="cpu")
    for x in (q, k):
        assert float((x.abs() > 3.182).float().mean()) == pytest.approx(0.05, rel=0.03)
        assert float((x.abs() > 12.924).float().mean()) == pytest.approx(0.001, rel=0.1)
    assert not torch.equal(q, k)


def test_four_channels_stand_out():
    q, k, _ = draw("outliers", (1, 4, 2048, 128), torch.float32, seed=3, device="cpu")
    for x, factor in ((q, 12), (k, 6)):
        spread = x.std(dim=(0, 1, 2))
        assert spread[:4].tolist() == pytest.approx([factor] * 4, rel=0.05)
        assert spread[4:].tolist() == pytest.approx([1] * 124, rel=0.05)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_local_adds_one_vector_a_head_turned_by_its_position(head_dim):
    """RoFormer's rotary positions (arXiv 2104.09864), of base 10000, on pairs half a head apart."""
    shape = (1, 3, 300, head_dim)
    (q, k, v), (plain_q, plain_k, plain_v) = (
        draw(kind, shape, torch.float32, seed=3, device="cpu") for kind in ("local", "normal")
    )
    turned = q - plain_q / 2
    assert torch.allclose(turned, k - plain_k / 2, atol=1e-5)
    assert torch.equal(v, plain_v)
    pairs = torch.complex(turned[..., : head_dim // 2], turned[..., head_dim // 2 :])
    frequency = 10_000.0 ** (-2 * torch.arange(head_dim // 2, dtype=torch.float64) / head_dim)
    angle = torch.arange(300, dtype=torch.float64)[:, None] * frequency
    expected = pairs[:, :, :1] * torch.polar(torch.ones_like(angle), angle)
    assert torch.allclose(pairs, expected.to(pairs.dtype), atol=2e-4)
    assert float(turned[:, :, 0].std()) == pytest.approx(1.5, rel=0.15)
