"""What the stock compiler makes of attention at its best: plain Triton, and Triton with automatic warp specialisation.

These kernels are free of the signature that the overrides need. The plain one runs in the configuration that it is
given (`configs` has those that were tuned); without one either is autotuned over a short list for each shape. Automatic
specialisation fires on Hopper only with 4 warps, 128 rows a tile, and q and o behind descriptors made on the device.
"""

import time
from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kperf.attention.configs import Config
from kperf.ir.compile import uncollected

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _attend(
    acc, l_i, m_i, q, k_desc, v_desc, kv_row, lo, hi, rows, qk_scale,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr, PRELOAD_V: tl.constexpr, WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """Online softmax over the columns lo..hi of k and v; with PRELOAD_V the load of v is before the product with k."""
    for start in tl.range(lo, hi, BLOCK_N, warp_specialize=WARP_SPECIALIZE):
        k = k_desc.load([kv_row + start, 0])
        if PRELOAD_V:
            v = v_desc.load([kv_row + start, 0])
        s = tl.dot(q, k.T)
        if MASKED:
            s = tl.where(rows[:, None] >= start + tl.arange(0, BLOCK_N)[None, :], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1) * qk_scale)
        p = tl.exp2(s * qk_scale - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        if not PRELOAD_V:
            v = v_desc.load([kv_row + start, 0])
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    return acc, l_i, m_i


@triton.jit
def attention(
    q, k_desc, v_desc, o, lse_ptr, sm_scale, seq_len, n_rows,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
    PRELOAD_V: tl.constexpr, WARP_SPECIALIZE: tl.constexpr,
):  # fmt: skip
    """q, o: [n_rows, HEAD_DIM] as descriptors, as pointers if WARP_SPECIALIZE; k_desc, v_desc: BLOCK_N rows."""
    if WARP_SPECIALIZE:
        q_desc = tl.make_tensor_descriptor(q, [n_rows, HEAD_DIM], [HEAD_DIM, 1], [BLOCK_M, HEAD_DIM])
        o_desc = tl.make_tensor_descriptor(o, [n_rows, HEAD_DIM], [HEAD_DIM, 1], [BLOCK_M, HEAD_DIM])
    else:
        q_desc = q
        o_desc = o
    row_in_head = tl.program_id(0) * BLOCK_M
    kv_row = tl.program_id(1) * seq_len
    rows = row_in_head + tl.arange(0, BLOCK_M)
    qk_scale = sm_scale * LOG2_E
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    tile = q_desc.load([kv_row + row_in_head, 0])
    if CAUSAL:
        diagonal = row_in_head // BLOCK_N * BLOCK_N
        acc, l_i, m_i = _attend(acc, l_i, m_i, tile, k_desc, v_desc, kv_row, 0, diagonal, rows, qk_scale,
                                BLOCK_N, False, PRELOAD_V, WARP_SPECIALIZE)  # fmt: skip
        acc, l_i, m_i = _attend(acc, l_i, m_i, tile, k_desc, v_desc, kv_row, diagonal, row_in_head + BLOCK_M, rows,
                                qk_scale, BLOCK_N, True, PRELOAD_V, WARP_SPECIALIZE)  # fmt: skip
    else:
        acc, l_i, m_i = _attend(acc, l_i, m_i, tile, k_desc, v_desc, kv_row, 0, seq_len, rows, qk_scale,
                                BLOCK_N, False, PRELOAD_V, WARP_SPECIALIZE)  # fmt: skip
    o_desc.store([kv_row + row_in_head, 0], (acc / l_i[:, None]).to(o_desc.dtype))
    tl.store(lse_ptr + kv_row + rows, (m_i + tl.log2(l_i)) * LN_2)


def _set_boxes(arguments: dict[str, object]) -> None:
    """The autotuner's hook: the descriptors' boxes follow the tile of the configuration that is tried."""
    boxes = {"q": "BLOCK_M", "o": "BLOCK_M", "k_desc": "BLOCK_N", "v_desc": "BLOCK_N"}
    for name, rows in boxes.items():
        descriptor = arguments[name]
        if isinstance(descriptor, TensorDescriptor):
            descriptor.block_shape = [arguments[rows], arguments["HEAD_DIM"]]


def for_autotuner(config: Config) -> triton.Config:
    """As Triton's autotuner takes it."""
    options = config.options()
    own = {name: options.pop(name) for name in ("num_warps", "num_ctas", "num_stages")}
    return triton.Config(options, **own, pre_hook=_set_boxes)


def _config(block_m: int, block_n: int, num_warps: int, num_stages: int) -> Config:
    return Config(BLOCK_M=block_m, BLOCK_N=block_n, PRELOAD_V=False, num_warps=num_warps, num_stages=num_stages)


PLAIN_CONFIGS = [
    _config(128, 128, 8, 2),
    _config(128, 64, 8, 3),
    _config(128, 64, 4, 3),
    _config(64, 128, 4, 2),
    _config(64, 64, 4, 3),
    _config(64, 64, 4, 2),
]
# Not with three stages or more: Triton 3.6.0's automatic warp specialisation then gives NaN from the second block on.
AUTOWS_CONFIGS = [_config(128, block_n, 4, stages) for block_n in (64, 128) for stages in (1, 2)]


_PAUSE_S = 0.3
_SAMPLE_MS = 2.0
_SAMPLES = 5


def _bench(call: Callable[[], object], quantiles: Sequence[float]) -> list[float]:
    """Quantiles of five replays of a CUDA graph, in milliseconds a call: how the autotuner times a configuration.

    A launch from Python takes longer than a short kernel, and hides which of them is the shortest. And a configuration
    that is timed where the power cap holds the clock down, after others or for long, has another clock than the next:
    so it begins after a pause, and has ended long before the cap counts (a mean of about a second).
    """
    call()
    calls = max(1, round(_SAMPLE_MS / _milliseconds(call)))
    graph = torch.cuda.CUDAGraph()
    with uncollected(), torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    time.sleep(_PAUSE_S)
    times = [_milliseconds(graph.replay) / calls for _ in range(_SAMPLES)]
    return torch.tensor(times).quantile(torch.tensor(quantiles)).tolist()


def _milliseconds(action: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    action()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


_KEY = ["seq_len", "n_rows", "HEAD_DIM", "CAUSAL"]
plain = triton.autotune([*map(for_autotuner, PLAIN_CONFIGS)], key=_KEY, do_bench=_bench)(attention)
autows = triton.autotune([*map(for_autotuner, AUTOWS_CONFIGS)], key=_KEY, do_bench=_bench)(attention)


_ran: dict[bool, str] = {}


def ran_with(*, warp_specialize: bool) -> str:
    """The configuration of the last call, for the record."""
    return _ran[warp_specialize]


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    sm_scale: float,
    *,
    warp_specialize: bool = False,
    config: Config | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k, v: contiguous [batch, heads, seq_len, head_dim] on the GPU; returns o and the float32 lse.

    `config`: the one to run in, of the plain kernel; without it the fastest of a list, found at a shape's first call.
    """
    batch, heads, seq_len, head_dim = q.shape
    n_rows = batch * heads * seq_len
    o = torch.empty_like(q)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    flat = [tensor.view(n_rows, head_dim) for tensor in (q, k, v, o)]
    # Without a configuration the box is a placeholder: the autotuner's hook sets it before each launch.
    q_rows, kv_rows = (config.BLOCK_M, config.BLOCK_N) if config else (64, 64)
    boxes = (q_rows, kv_rows, kv_rows, q_rows)
    descriptors = [TensorDescriptor.from_tensor(one, [rows, head_dim]) for one, rows in zip(flat, boxes, strict=True)]
    q_arg, o_arg = (flat[0], flat[3]) if warp_specialize else (descriptors[0], descriptors[3])
    tuned = autows if warp_specialize else plain
    if warp_specialize:
        triton.set_allocator(lambda size, _align, _stream: torch.empty(size, dtype=torch.int8, device=q.device))

    def grid(meta: dict[str, int]) -> tuple[int, int]:
        return seq_len // meta["BLOCK_M"], batch * heads

    (attention if config else tuned)[grid](
        q_arg, descriptors[1], descriptors[2], o_arg, lse, sm_scale, seq_len, n_rows,
        HEAD_DIM=head_dim, CAUSAL=causal, WARP_SPECIALIZE=warp_specialize, **(config.options() if config else {}),
    )  # fmt: skip
    _ran[warp_specialize] = str(config or tuned.best_config)
    return o, lse
