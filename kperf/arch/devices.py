"""GPUs whose numbers are used where none is there, and in estimates."""

from kperf.arch.arch import Device
from kperf.arch.cdna3 import GFX942
from kperf.arch.hopper import SM_90A

H200 = Device(
    # NVIDIA H100 Tensor Core GPU Architecture (2022), whose chip the H200 has; memory and L2 as the driver gives them.
    name="NVIDIA H200",
    arch=SM_90A,
    sms=132,
    max_mhz=1980,
    memory_bytes=150_754_820_096,
    l2_bytes=62_914_560,
    l2_bytes_per_cycle=64,
    l2_latency=800,
)

H200_COPY_GB_PER_S = 3900.0
"""Bytes that a copy on an H200 reads and writes: the median of the copies beside the recorded examples
(`bandwidth.copy_gb_per_s` in results/h200/examples/*.timeline.json), of which the fastest moved 4005."""

H200_L2_KEPT_BYTES = H200.l2_bytes // 2
"""Of an H200's L2, for what SMs of all GPCs load: each of its two partitions caches for the GPCs connected to it
(NVIDIA A100 Tensor Core GPU Architecture (2020), "A100 L2 cache"), so both hold such bytes."""

H200_PARTIAL_STORE_GB_PER_S = 2050.0
"""Bytes of sectors that stores write in part, each request its part: 537 MB took 0.262 ms, with all else that the
kernel does (rope_pairs in results/h200/diagnose.jsonl)."""

H200_CTA_NS = 0.604
"""From the start of a launch's CTA to that of the next, however many SMs have room: 1.05 million CTAs of 4 warps took
0.634 ms (beam_kv_reorder on an H100), and 2.10 million 1.27 ms, with one warp too (edge_scores on an H200)."""

H200_ATOMIC_NS = 1.76
"""From one atomic to the next on one address of an H200's L2: 16.8 million of float32 took 29.5 ms
(atomic_sum in results/h200/diagnose.jsonl)."""

H200_ATOMIC_BYTES_PER_CYCLE = 25.0
"""Atomics on float32 of an SM, each on another address: of 64 KB a CTA they took 2591 cycles, until all were issued
(split_k in results/h200/examples/)."""

H100_FENCE_NS = 850.0
"""From one atomic with fences around it to the next of the same thread, on full SMs: 780 to 840 ns in CTAs of 16 and of
32 of them (split_k, many_splits and cic_deposit on an H100, each against its copy with relaxed atomics)."""

H100_HIDDEN_FENCES = 3
"""Fences of a CTA that hide behind the work of the SM's other CTAs: 2 to 4 of them cost 0.4 to 0.9 us a wave of CTAs
(embedding_backward, graph_scatter_add, rms_norm_backward and moe_combine on an H100, likewise)."""

H100_LOCK_NS = 1300.0
"""From one CTA to the next that holds a lock: compare-and-swap, load, store and exchange, with their fences. 128 CTAs
in line for each of 32 locks took 167 us (bias_gelu_backward on an H100)."""

H100_TIME_OVER_COPY = 1.65
"""Time of a kernel whose CTAs wait for no lock over that of its bytes at a copy's rate: 86 us for 201 MB (the fixed
copy of bias_gelu_backward on an H100)."""

H100_UPDATE_NS = 0.0042
"""Of an element that L2 updates by an atomic at an address that is data: 67 million took 280 us and 33 million 135 us
(cic_deposit and embedding_backward on an H100, relaxed)."""

COPY_OVER_ATOMICS = 1.6
"""Bytes that memory copies while L2 updates one byte of float32 by atomics, where all CTAs update the same kilobytes:
beside 403 MB of loads and stores, 268 MB of updates took 151 us (rms_norm_backward in
results/h100-80gb-hbm3/diagnose.jsonl)."""

H200_SM_BYTES_IN_FLIGHT = 25 * 1024
"""Bytes that an SM of an H200 has to have asked for, so that its memory is never idle, by Little's law: 4.8 TB/s for
the 700 ns of a load, of 132 SMs."""

H200_L1_BYTES_PER_CYCLE = 128
"""From an SM's L1 cache to its registers: a line a cycle; from published microbenchmarks."""

H200_L1_LATENCY, H200_FIRST_L2_LATENCY = 35, 270
"""Cycles until a load arrives from L1 and from L2, where no other load is on its way; both about, from published
microbenchmarks."""

H200_L2_LINE_BYTES_PER_CYCLE = 28
"""From a line of 128 bytes of an H200's L2 to all SMs together, at the highest clock: 67 million gathers past L1 from 8
lines, in requests of 20.4 sectors in the mean, took 3.12 ms (palette_lookup in results/h200/diagnose.jsonl)."""

MI300X = Device(
    # AMD CDNA 3 Architecture (white paper, 2023).
    name="AMD Instinct MI300X",
    arch=GFX942,
    sms=304,
    max_mhz=2100,
    memory_bytes=192 << 30,
    l2_bytes=4 << 20,  # of each of its eight dies
    l2_bytes_per_cycle=64,
    l2_latency=700,
)
