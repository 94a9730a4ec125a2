"""How long a configuration should take, from what compiling shows: good enough to say what to try first.

A trip of the loop multiplies twice, takes BLOCK_M x BLOCK_N exponentials and what goes with them, and loads a tile of k
and of v. Alone on a processor a block does one after the other, and waits for loads as far as its stages do not reach
ahead. Several blocks fill each other's gaps, until one of the three takes all of the time.
"""

import math
from dataclasses import dataclass

from kperf.attention.configs import Config
from kperf.attention.workload import Workload

_BYTES = 2
"""Of a number in q, k and v."""
_OPERATIONS_A_SCORE = 8
"""Scale, mask, maximum, subtract, add, convert, and the accumulator's share, about."""


@dataclass(frozen=True)
class Processor:
    """A streaming multiprocessor or compute unit, a cycle: dense 16-bit FLOPs, exponentials, float32 operations, bytes
    from L2. latency: cycles until a load from L2 begins to arrive; number: of them on the GPU."""

    number: int
    flops: int
    exponentials: int
    operations: int
    load_bytes: int
    latency: int


H200 = Processor(132, 4096, 16, 128, 64, 800)
"""NVIDIA H100 Tensor Core GPU Architecture (2022); CUDA C++ Programming Guide, "Arithmetic Instructions"; L2's rate and
latency are about those of published microbenchmarks."""
MI300X = Processor(304, 2048, 16, 64, 64, 700)
"""AMD CDNA 3 Architecture (white paper, 2023): 1307 TFLOPS of 304 units at 2.1 GHz; the rest about."""


def cycles(processor: Processor, workload: Workload, config: Config, resident: int) -> float:
    """Of the whole launch, about; `resident`: blocks that fit on a processor at once."""
    rows, columns = config.BLOCK_M, config.BLOCK_N
    products = 4 * rows * columns * workload.head_dim / processor.flops
    scores = rows * columns * (1 / processor.exponentials + _OPERATIONS_A_SCORE / processor.operations)
    load = 2 * columns * workload.head_dim * _BYTES / processor.load_bytes
    waits = max(0.0, processor.latency + load - (config.num_stages - 1) * (products + scores))
    beside = resident * math.sqrt(config.num_warps / 4)  # warp groups of one block wait for each other
    trip = max(products, scores, load, (products + scores + waits) / beside)
    seen = (workload.seq_len + rows + columns) / 2 if workload.causal else workload.seq_len
    blocks = workload.rows / rows
    slots = processor.number * resident
    idle = math.ceil(blocks / slots) * slots / blocks
    return blocks * math.ceil(seen / columns) * trip * idle / processor.number
