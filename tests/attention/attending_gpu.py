"""A GPU that is not there, on which launches of `attn_fwd`, `attn_fwd_views` and `attn_fwd_ragged` write their o.

The launch is Triton's own, down to the override's TTGIR; in place of the machine code, of which none is made, its
arguments are read as the kernel reads them: rows of [n_rows, head_dim] behind descriptors, in float32. Tensors lie on
the CPU.
"""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from kperf.attention import kernels, ragged, views
from kperf.attention.kernels import improved_plus
from kperf.attention.kernels.improved_plus import Ragged, Views
from kperf.integrations import operator
from tests.attention import lowered_only
from tests.attention.kernels.in_python import Pointer, in_python, program_in_python
from tests.trace.capture import fake_gpu

TILE = 128
PROPERTIES = SimpleNamespace(multi_processor_count=132, uuid="fake")


def attend(_, arguments):
    """What a launch of any of the kernels writes."""
    first = arguments[0]
    with torch.autocast("cpu", enabled=False):
        if isinstance(first, torch.Tensor):
            program_in_python(kernels.ragged, "fill_table", len(first) - 1)(*arguments)
        else:
            {2: attend_rows, 4: attend_views, 5: attend_ragged}[len(first.shape)](arguments)


def attend_ragged(arguments):
    """Of `attn_fwd_ragged`: the tiles of one CTA, as the kernel's own functions find them, from what TMA sees."""
    q, k, v, o, lse, sm_scale, table, *numbers, _, causal, tail = arguments
    kernel = in_python(improved_plus, n_programs=1)
    shape = Ragged(Pointer(table), *map(torch.tensor, numbers))
    for t in range(int(kernel.own_tiles(shape))):
        q_row, kv_row, n_blocks = kernel.own_tile_at(torch.tensor(t), shape, 512, causal)
        assert n_blocks == kernel.blocks_of(q_row.clone(), shape, causal)
        kv_head = kernel.kv_head_of(q_row.clone(), shape)
        rows = [kernel.block_row(kv_row, n_blocks, i, TILE, True) for i in range(int(n_blocks))]
        keys, values = (torch.cat([box(desc, (*kv_head, row)) for row in rows]).float() for desc in (k, v))
        columns = torch.arange(TILE)
        for w in range(2):
            row = q_row + w * (TILE // 2)
            scores = box(q, (*(place := kernel.q_place(row.clone(), shape))[0], place[1])).float() @ keys.T
            if causal:
                scores[:, :TILE].masked_fill_(columns > torch.arange(TILE // 2)[:, None] + w * (TILE // 2), -math.inf)
            if tail:
                scores[:, :TILE].masked_fill_(columns >= kernel.tail_of(q_row, shape), -math.inf)
            scores *= sm_scale
            found = torch.logsumexp(scores, -1)
            p = (scores - found[:, None]).exp()
            at, (_, lse_at, exists) = kernel.output_at(row.clone(), None, shape, None)
            stored = box(o, at[:-1], (p @ values).to(o.base.dtype))
            assert stored == int(exists.sum())
            lse.view(-1)[lse_at.flatten()[exists.flatten()].long()] = found[exists.flatten()]


def box(descriptor, at, written=None):
    """A box of rows that TMA reads, or writes and then says how many rows of it; addresses count modulo 2^64."""
    *outer, row = (int(one) for one in at)
    base, size = descriptor.base, descriptor.base.element_size()
    assert all(0 <= one < extent for one, extent in zip(outer, descriptor.shape, strict=False))
    assert written is None or row >= 0
    rows = torch.arange(row, row + descriptor.block_shape[-2])
    there = (rows >= 0) & (rows < descriptor.shape[-2])
    begin = sum(one * stride for one, stride in zip(outer, descriptor.strides, strict=False))
    begins = [((begin + int(one) * descriptor.strides[-2]) * size % 2**64) // size for one in rows[there]]
    memory = torch.as_strided(base, (base.untyped_storage().nbytes() // size - base.storage_offset(),), (1,))
    places = torch.tensor(begins, dtype=torch.int64)[:, None] + torch.arange(descriptor.shape[-1])
    if written is not None:
        memory[places] = written[there]
        return int(there.sum())
    found = torch.zeros(len(rows), descriptor.shape[-1], dtype=base.dtype)
    found[there] = memory[places]
    return found


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
            if lse is not None:
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
    lowered_only.install(monkeypatch)
    monkeypatch.setattr(fake_gpu, "PROOFS", lowered_only.FOLDER)
    fake_gpu.install(tmp_path, monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: PROPERTIES)
    forget()
    monkeypatch.setattr(fake_gpu, "WRITES", [attend])
    fake_gpu.LAUNCHES.clear()
    yield fake_gpu.LAUNCHES
    forget()


def forget():
    """Plan and load anew: another GPU is in place."""
    for kept in (views._plans, ragged._plans, operator._before):
        kept.clear()
    views._kernel_on.cache_clear()
    ragged._kernels_on.cache_clear()
    ragged._launchers_on.cache_clear()
