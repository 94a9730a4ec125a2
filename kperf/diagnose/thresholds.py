"""Every number at which a rule speaks, with its reason."""

from typing import Final

from kperf.arch import H200, H200_SM_BYTES_IN_FLIGHT
from kperf.trace.analyze.finding import Level

SECTOR_BYTES = 32
"""Device memory and L2 are read and written by sectors (CUDA C++ Programming Guide, "Device Memory Accesses")."""

LINE_BYTES = 128
"""Of a line of L1 and of L2: four sectors (CUDA C++ Programming Guide)."""

POOR_SECTOR_USE = 0.55
"""Used share of the sectors that a request touches. Misaligned rows use 0.8 and more; every second element uses 0.5."""

BAD_SECTOR_USE = 0.3
"""Here a kernel that waits for memory takes more than three times as long: high."""

BUFFERED_ELEMENTS = 1024
"""Of a tile that is worth buffers that are filled ahead: vectors of scales or a bias are not."""

REGISTER_BYTES = 4
"""Of a register of a thread."""

VECTOR_BYTES = 16
"""A thread's largest access: a copy of 4-byte accesses reaches the bandwidth only with many more warps in flight."""

LEAST_AHEAD_BYTES = 4
"""Side by side for a thread, that cp.async copies and AMD's pipelines load. A load of fewer is never issued ahead."""

LEAST_TILE_BYTES = 1024
"""Of a tile that is worth a TMA descriptor: a vector of scales or of a norm's weights has fewer. Not measured."""

BYTES_IN_FLIGHT = 8
"""Bytes a thread asks for before it waits. Little's law on an H200: 4.8 TB/s * 700 ns = 3.4 MB in flight = 25 KB an SM,
12 bytes a thread at full occupancy; a kernel without a loop that asks for less cannot fill the memory's pipe."""

LEAST_SM_BYTES = H200_SM_BYTES_IN_FLIGHT
"""In flight on an SM, by the same law: with fewer a kernel cannot reach the memory's bandwidth."""

SM_BYTES_IN_FLIGHT = 2 * LEAST_SM_BYTES
"""Bytes that the CTAs of an SM ask for at once: twice the least, since a CTA also computes and stores.
A kernel of 8 warps an SM that asks for 190 KB reaches 96 % of a copy's rate on an H200."""

MEMORY_LATENCY_CYCLES = 1200
"""Of a load under load: the 700 ns of `BYTES_IN_FLIGHT` at 1.7 GHz."""

SPILLED_BYTES = 16
"""A few bytes around a call cost nothing that shows."""

SPILLED_SHARE = 0.04
"""Local loads and stores among the instructions of the loops, or of a kernel without loops: one in twenty-five.
An SM starts one of them a cycle and four other instructions (H100 whitepaper: 32 load/store units); what is rarer hides
behind the rest."""

OTHERS_A_CYCLE = 4
"""Instructions that an SM starts in the time of one local load or store: the same four."""

DEPENDENT_CYCLES = 4
"""From an integer instruction to one that needs its result (Jia et al., "Dissecting the NVIDIA Volta GPU Architecture
via Microbenchmarking", table 4.1): a scheduler with fewer warps issues chains of them in a part of its cycles."""

ELEMENTS_OF_THREAD = 128
"""Of one tensor of 32-bit numbers: half of the 255 registers of a thread. With a second such tensor it spills."""

LEAST_WARPS_OF_ROW = 2
"""A single warp has a single scheduler slot of four on its SM."""

BUSY_INTENSITY = H200.arch.flop_per_cycle["bf16"] / H200.l2_bytes_per_cycle
"""Operations per byte that an MMA loop loads, of 16-bit operands. An H200's L2 gives an SM 64 bytes a cycle and its
tensor cores do 4096 operations: 128 x 128 tiles have 64 a byte, 64 x 64 have 32, 32 x 32 have 16."""

SMALL_TILE_SHARE = 0.375
"""Share of what keeps the tensor cores busy: 24 operations a byte of 16-bit operands."""

MMA_SHARE = 0.65
"""Share of the tensor cores' rate at the highest clock that a GEMM of Triton's reaches: 677 TFLOPS with pointers and
753 with TMA, of 1070 (gemm_3_stages and gemm_tma in results/h200/examples/). At its power cap an H200 clocks lower."""

UPDATES_OF_BIN = 4
"""Elements of a CTA that meet on one address in the mean: where they are added before it, a quarter of the atomics is
left."""

RANDOM_SHARE = 0.5
"""Time of random numbers over that of all else from which on they are worth a remark: they may hide behind it."""

PADDED_SHARE = 0.5
"""Used share of the rows of an MMA's tile: with half of them a tile of half the length does the same work."""

STAGES_WANTED = 3
"""Buffers of a pipelined loop on Hopper: with two, one iteration must hide a load's whole latency."""

REGISTERS_NEAR = 0.12
"""Share of the registers by which a kernel may exceed what one CTA more would need for that to be worth a remark."""

FEW_WARPS_ON_SM = 16
"""A kernel that has more resident warps than this hides its latencies in most cases."""

REDUCTION_CYCLES = 200
"""Of a reduction across warps, an order of magnitude: five shuffles, a store, a barrier and a load of shared memory,
some 25 cycles each."""

WARPS_OF_MMAS = 8
"""On an SM, of a kernel that multiplies: two warp groups, of which one issues MMAs while the other waits or stores."""

CONVERSION_BYTES = 4096
"""A layout conversion in a loop of fewer bytes is lost among the rest."""

BANK_WAYS = 4
"""Lanes that meet in one bank. Two-way conflicts cost little beside what surrounds them."""

EXPOSED_SHARE = 0.15
"""Share of an iteration that waits: what is less is about what events themselves cost."""

SEVERE_SHARE = 0.4
"""Share of an iteration, or of the SMs' time, beyond which a kernel could be nearly twice as fast."""

SEVERE_WAIT = 0.6
"""Of an iteration of one CTA, where others of its SM may work meanwhile: with 0.4 more stages gave 1.24 x on an H200,
with 0.75 they gave 1.59 x."""

WITNESSED: Final[dict[Level, float]] = {"high": 0.25, "medium": 0.05, "low": 0.02}
"""Share of the GPU's samples from which on they show a finding of this severity: half of the time that it claims to
cost (half, a tenth), since a warp that waits may wait under another one's work; of a hint, more than chance."""

IDLE_SHARE = 0.1
"""Share of the SMs' time without a CTA: the last wave of ten costs as much."""

UNEVEN_CTAS = 1.5
"""Longest CTAs (95th percentile) over the median."""

EARLY_CTAS = 0.2
"""Share of the CTAs that return without work."""

NEAR_ROOF = 0.85
"""Share of a copy's bandwidth that few kernels exceed: what is left is not worth a day."""

ISSUE_BOUND = 0.6
"""Share of the cycles in which a scheduler issues: ncu's SpeedOfLight rule calls a unit busy from 60 % on."""

READY_BOUND = 0.5
"""Share of the warps that issue or are ready, from which on more of them would not help."""

BOUNDARY_ITERATIONS = 2.0
"""Iterations that the change from tile to tile of a persistent kernel may cost."""

COMPILATIONS = 4
"""Of one function for values of its arguments: two or three are what sizes of one and of 16 make anyhow."""

MANY_COMPILATIONS = 10
"""They take seconds: a Triton kernel compiles in 0.1 to 10 s."""

IN_LOOP = 8
"""How often what stands in a loop is done, a level, where nothing says it."""

MEDIUM_GAIN = 1.1
"""What the advice has to give for a finding to be more than a hint: a tenth."""

SEVERE_GAIN = 1.5
"""What the advice has to give for a finding to be severe, where its estimate is of the whole launch."""

TUNED_GAIN = 1.03
"""Time of the best configuration with another value over the best: less is what two runs of one kernel differ by."""

LAUNCH_MS = 0.004
"""A kernel's launch takes about as long: 4 us."""
LAUNCH_CYCLES = LAUNCH_MS * H200.max_mhz * 1e3
"""Of an SM, for a launch."""
