"""A GPU that is not there, on which a launch of `attn_fwd` writes what the kernel is to write.

The launch is Triton's own, down to the compiled override; in place of the machine code its arguments are read as the
kernel reads them: rows of [n_rows, head_dim] behind descriptors, in float32. Tensors lie on the CPU.
"""

import math
from types import SimpleNamespace

import pytest
import torch

from kperf.record.device import sm_count
from tests.trace.capture import fake_gpu

PROPERTIES = SimpleNamespace(multi_processor_count=132, uuid="pretended")


def attend(_, arguments):
    """o and lse of a launch, head by head, from the rows that the descriptors lead to."""
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
    sm_count.cache_clear()
    monkeypatch.setattr(fake_gpu, "WRITES", [attend])
    fake_gpu.LAUNCHES.clear()
    yield fake_gpu.LAUNCHES
    sm_count.cache_clear()
