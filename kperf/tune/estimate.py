"""How long a configuration should take, from what compiling shows: good enough to say what to try first.

An iteration of the loop multiplies q by k, takes BLOCK_M x BLOCK_N exponentials and what goes with them, scales the
accumulator, and multiplies by v. Triton 3.6 has one warp group do that one after the other, and all warp groups of a
CTA at the same time, so that only other CTAs fill the gaps. With one stage it waits for each load. With more it
asks for the next tiles at the end of an iteration: two stages still wait for k, and only from the third on loads are
hidden. Where a CTA has fewer rows than its warp groups multiply at once, they repeat the MMA with k and the
exponentials, and share the rest.
"""

import heapq
import math

from kperf.arch import Device
from kperf.attention.configs import Config
from kperf.attention.workload import Workload

_BYTES = 2
"""Of a number in q, k and v."""
_OPERATIONS_A_SCORE = 8
"""Scale, mask, maximum, subtract, add, convert, and the shuffles of a row's maximum and sum, about."""
_SYNC = 100
"""Cycles from when something is ready until the warps that wait for it go on, about."""
_TEAM_WARPS, _TEAM_ROWS = 4, 64
"""Warps that multiply together, and the rows of an MMA: wgmma's on Hopper, a work group of CDNA 3's four SIMDs."""


def cycles(device: Device, workload: Workload, config: Config, resident: int) -> float:
    """Of the whole launch, about; `resident`: CTAs that fit on an SM at once.

    CTAs go in the order of the grid to the first place that is free: with a causal mask they differ in length, and
    in a short launch the last ones decide.
    """
    iteration, loop, cta = _costs(device, workload, config, resident)
    rows, columns = config.BLOCK_M, config.BLOCK_N
    lengths = []
    for row in range(0, workload.seq_len, rows):
        loops = [workload.seq_len]
        if workload.causal:
            before = row // columns * columns
            loops = [columns_seen for columns_seen in (before, row + rows - before) if columns_seen]
        iterations = sum(math.ceil(columns_seen / columns) for columns_seen in loops)
        lengths.append(cta + len(loops) * loop + iterations * iteration)
    places = [0.0] * (device.sms * resident)
    for _ in range(workload.batch * workload.heads):
        for length in lengths:
            heapq.heapreplace(places, places[0] + length)
    return max(places)


def _costs(device: Device, workload: Workload, config: Config, resident: int) -> tuple[float, float, float]:
    """Cycles of an iteration, and of what comes once a loop and once a CTA besides."""
    sm = device.arch
    rows, columns, depth = config.BLOCK_M, config.BLOCK_N, workload.head_dim
    teams = max(1, config.num_warps // _TEAM_WARPS)
    repeats = teams // min(teams, max(1, rows // _TEAM_ROWS))
    product = 2 * rows * columns * depth / sm.flop_per_cycle["bf16"]
    tile = columns * depth * _BYTES
    by_k = max(product, (rows * depth * _BYTES + teams * tile / repeats) / sm.shared_bytes_per_cycle) * repeats
    by_v = max(product, teams * tile / repeats / sm.shared_bytes_per_cycle)
    scores = repeats * rows * columns * (1 / sm.exponentials_per_cycle + _OPERATIONS_A_SCORE / sm.fp32_per_cycle)
    scaling = rows * depth / sm.fp32_per_cycle
    load = tile / device.l2_bytes_per_cycle
    arrival = device.l2_latency + load
    if config.num_stages == 1:
        alone = by_k + scores + scaling + by_v + 4 * _SYNC
        waits = 2 * arrival
    else:
        loads_at_once = 2 if config.PRELOAD_V else 1
        alone = by_k + scores + scaling + by_v + (4 - loads_at_once + (repeats > 1)) * _SYNC
        ahead = by_v + (config.num_stages - 2) * alone
        waits = max(0.0, device.l2_latency + loads_at_once * load - ahead)
    iteration = max(alone + waits, resident * max(by_k + by_v, scores + scaling, 2 * load))
    loop = 0.0 if config.num_stages == 1 else arrival + load
    cta = 2 * (device.l2_latency + rows * depth * _BYTES / device.l2_bytes_per_cycle)
    return iteration, loop, cta
