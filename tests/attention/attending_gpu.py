"""A GPU that is not there, on which a launch of `attn_fwd` or `attn_fwd_views` writes what the kernel is to write.

The launch is Triton's own, down to the compiled override; in place of the machine code its arguments are read as the
kernel reads them: rows of [n_rows, head_dim] behind descriptors, in float32. Tensors lie on the CPU.
"""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from kperf.attention import views
from kperf.attention.kernels.improved_plus import Views
from tests.trace.capture import fake_gpu

TILE = 128
PROPERTIES = SimpleNamespace(multi_processor_count=132, uuid="pretended")


def attend(_, arguments):
    """o and lse of a launch, of either kernel."""
    attend_rows(arguments) if len(arguments) == 13 else attend_views(arguments)


def attend_views(arguments):
    """Of `attn_fwd_views`: tile by tile, from what TMA sees."""
    q_desc, k_desc, v_desc, o_desc, lse, sm_scale, *numbers, _, causal, tail = arguments
    views = Views(*numbers)
    q, k, v, o = (seen(descriptor) for descriptor in (q_desc, k_desc, v_desc, o_desc))
    for descriptor in (q_desc, k_desc, v_desc, o_desc):
        assert descriptor.base.data_ptr() % 16 == 0
        assert not any(stride * descriptor.base.element_size() % 16 for stride in descriptor.strides[:-1])
    assert not causal or not tail
    for batch, head in itertools.product(range(q.shape[0]), range(q.shape[1])):
        keys, values = k[batch, head // views.group].float(), v[batch, head // views.group].float()
        for tile in range(views.tiles):
            first = tile * TILE
            rows = list(range(first, min(first + TILE, views.q_len)))
            n_blocks = views.blocks + tile * causal
            columns = torch.arange(n_blocks * TILE)
            scores = torch.zeros(len(rows), len(columns))
            there = min(len(keys), len(columns))
            scores[:, :there] = q[batch, head, rows].float() @ keys[:there].T
            if causal:
                last = torch.tensor(rows) - first + (n_blocks - 1) * TILE
                scores.masked_fill_(columns > last[:, None], -math.inf)
            if tail:
                scores[:, (n_blocks - 1) * TILE + views.tail :] = -math.inf
            scores *= sm_scale
            found = torch.logsumexp(scores, -1)
            lse.view(-1)[(batch * views.heads + head) * views.q_len + torch.tensor(rows)] = found
            p = (scores - found[:, None]).exp()
            assert not p[:, there:].any()
            o[batch, head, rows] = (p[:, :there] @ values[:there]).to(o.dtype)


def seen(descriptor):
    """What TMA sees behind a descriptor."""
    base = descriptor.base
    return torch.as_strided(base, descriptor.shape, descriptor.strides, base.storage_offset())


def attend_rows(arguments):
    """Of `attn_fwd`: head by head, from the rows that the descriptors lead to."""
    q, k, v, o, lse, sm_scale, seq_len, n_rows, _, _, _, causal, _ = arguments
    for descriptor in (q, k, v, o):
        assert descriptor.base.is_contiguous()
        assert descriptor.base.data_ptr() % 16 == 0
        assert list(descriptor.shape) == [n_rows, descriptor.base.shape[1]]
    mask = torch.ones(seq_len, seq_len, dtype=torch.bool).triu(1)
    for first in range(0, n_rows, seq_len):
        rows = slice(first, first + seq_len)
        scores = q.base[rows].float() @ k.base[rows].float().T * sm_scale
        if causal:
            scores.masked_fill_(mask, -math.inf)
        found = torch.logsumexp(scores, -1)
        lse.view(-1)[rows] = found
        o.base[rows] = ((scores - found[:, None]).exp() @ v.base[rows].float()).to(o.base.dtype)


@pytest.fixture
def attending_gpu(monkeypatch, tmp_path):
    """Launches of `attn_fwd` since, as `fake_gpu.LAUNCHES` has them."""
    fake_gpu.install(tmp_path, monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: PROPERTIES)
    forget()
    monkeypatch.setattr(fake_gpu, "WRITES", [attend])
    fake_gpu.LAUNCHES.clear()
    yield fake_gpu.LAUNCHES
    forget()


def forget():
    """Plan and load anew: another GPU is in place."""
    views._plans.clear()
    views._kernel_on.cache_clear()
