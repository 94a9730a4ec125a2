"""What an implementation is given, without a GPU."""

import sys
from types import SimpleNamespace

import pytest
import torch

from kperf.attention.implementations import FIG12, IMPLEMENTATIONS


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


def test_the_figure_has_neither_the_views_nor_the_plain_kernel():
    assert IMPLEMENTATIONS.keys() - set(FIG12) == {"fa3_views", "attn_fwd"}
