"""What runs under compute-sanitizer (`tests/sanitize.py`): one override on small shapes, or a control.

It launches nothing else: inputs are made and outputs compared on the CPU.
"""

import sys
from collections.abc import Callable

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.variants import VARIANTS
from kperf.attention.workload import Workload
from kperf.bench.points import MAX_LSE_ERROR, MAX_REL_ERROR
from kperf.bench.reference import Exact, Inputs, errors, expected_of, make_inputs

WORKLOADS = [
    Workload(batch=1, heads=heads, seq_len=seq_len, causal=causal)
    for heads, seq_len in ((2, 256), (34, 512))  # 34: more tiles than an H200 has SMs, so that blocks compute two
    for causal in (False, True)
]


def run_override(key: str) -> None:
    """Every workload, then one whose maxima jump beyond 2^188: Improved+ computes a block again."""
    for workload in WORKLOADS:
        inputs = make_inputs(workload, seed=1, device_name="cpu")
        attend(key, workload, inputs, expected_of(workload, inputs))
    workload = WORKLOADS[0]
    inputs = make_inputs(workload, seed=2, device_name="cpu")
    inputs.k[:, :, -128:] *= 300
    attend(key, workload, inputs, expected_of(workload, inputs))


def attend(key: str, workload: Workload, inputs: Inputs, expected: Exact) -> None:
    """One call; raises `AssertionError` unless it agrees with the reference."""
    q, k, v = (tensor.cuda() for tensor in (inputs.q, inputs.k, inputs.v))
    o, lse = IMPLEMENTATIONS[key].bind(q, k, v, workload.causal, workload.sm_scale)()
    assert lse is not None
    rel_error, _ = errors((o.cpu(), None), expected)
    lse_error = float(((lse.cpu() - expected.lse) / expected.lse.abs().clamp(min=1)).abs().max())
    assert rel_error < MAX_REL_ERROR[workload.dtype], (workload, rel_error)
    assert lse_error < MAX_LSE_ERROR, (workload, lse_error)


@triton.jit
def write_beyond(x_ptr):
    tl.store(x_ptr + 4096 + tl.arange(0, 128), 1.0)


@triton.jit
def race(out_ptr):
    """128 threads write to one cell of shared memory and read it back without a barrier."""
    i = tl.arange(0, 128)
    x = tl.inline_asm_elementwise(
        "{ .shared .align 4 .b32 cell; st.volatile.shared.b32 [cell], $1; ld.volatile.shared.b32 $0, [cell]; }",
        "=r,r",
        [i],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
    tl.store(out_ptr + i, x)


@gluon.jit
def tma_copy(x_desc, out_ptr, row, WAIT: gl.constexpr):
    """Rows of x through shared memory by TMA, read after the copy's mbarrier or before."""
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    smem = gl.allocate_shared_memory(x_desc.dtype, x_desc.block_type.shape, x_desc.layout)
    arrived = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(arrived, count=1)
    fence_async_shared()
    mbarrier.expect(arrived, x_desc.block_type.nbytes)
    tma.async_copy_global_to_shared(x_desc, [row, 0], arrived, smem)
    if WAIT:
        mbarrier.wait(arrived, 0)
    x = smem.load(LAYOUT)
    rows = gl.arange(0, 64, gl.SliceLayout(1, LAYOUT))
    cols = gl.arange(0, 64, gl.SliceLayout(0, LAYOUT))
    gl.store(out_ptr + rows[:, None] * 64 + cols[None, :], x)
    mbarrier.wait(arrived, 0)
    mbarrier.invalidate(arrived)


def launch_tma_copy(row: int, rows: int, wait: bool) -> None:
    """From a tensor of 64 rows that the descriptor says has `rows`."""
    x = torch.zeros(64, 64, dtype=torch.bfloat16).cuda()
    layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    descriptor = TensorDescriptor(x, [rows, 64], [64, 1], [64, 64], layout)
    tma_copy[(1,)](descriptor, torch.empty_like(x), row, wait)


CONTROLS: dict[str, Callable[[], object]] = {
    "write_beyond": lambda: write_beyond[(1,)](torch.empty(128, device="cuda")),
    "race": lambda: race[(1,)](torch.empty(128, dtype=torch.int32, device="cuda")),
    "tma_read_before_arrival": lambda: launch_tma_copy(0, 64, wait=False),
    "tma_load_beyond": lambda: launch_tma_copy(4096, 8192, wait=True),
    "tma_load": lambda: launch_tma_copy(0, 64, wait=True),
}
"""What a tool that sees such things must find; in the last there is nothing to find."""

if __name__ == "__main__":
    (subject,) = sys.argv[1:]
    if subject in VARIANTS:
        run_override(subject)
    else:
        CONTROLS[subject]()
    torch.cuda.synchronize()
    print(f"{subject}: ran to its end")
