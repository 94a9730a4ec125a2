"""What compiling for sm_90a leaves of head_dim 256, float16, causal, and what it needs: 45 of 96 configurations, one of
which spills a little. Of the others 26 take too much shared memory, and 25 could be launched, though they spill. And
what the autotuner's configurations need of head_dim 128, bfloat16."""

from kperf.attention.configs import Config
from kperf.attention.kernels.stock import PLAIN_CONFIGS
from kperf.tune.space import Judged, Needs

RUNNABLE = 70

_SPILLS = {(64, 128, 0, 4, 1): 56}
_ROWS = [
    (64, 32, 0, 4, 1, 204, 49160),
    (64, 32, 0, 4, 2, 196, 98336),
    (64, 32, 0, 4, 3, 192, 132096),
    (64, 32, 0, 4, 4, 193, 164864),
    (64, 32, 0, 8, 1, 188, 49160),
    (64, 32, 0, 8, 2, 140, 98336),
    (64, 32, 0, 8, 3, 138, 132096),
    (64, 32, 0, 8, 4, 138, 164864),
    (64, 32, 1, 4, 1, 203, 65544),
    (64, 32, 1, 4, 2, 191, 98320),
    (64, 32, 1, 4, 3, 192, 132096),
    (64, 32, 1, 4, 4, 192, 164864),
    (64, 32, 1, 8, 1, 186, 65544),
    (64, 32, 1, 8, 2, 138, 98320),
    (64, 32, 1, 8, 3, 137, 132096),
    (64, 32, 1, 8, 4, 137, 164864),
    (64, 64, 0, 4, 1, 218, 65544),
    (64, 64, 0, 4, 2, 219, 164864),
    (64, 64, 0, 4, 3, 221, 230400),
    (64, 64, 0, 8, 1, 227, 65544),
    (64, 64, 0, 8, 2, 143, 164864),
    (64, 64, 0, 8, 3, 146, 230400),
    (64, 64, 1, 4, 1, 221, 98312),
    (64, 64, 1, 4, 2, 223, 164864),
    (64, 64, 1, 4, 3, 223, 230400),
    (64, 64, 1, 8, 1, 232, 98312),
    (64, 64, 1, 8, 2, 151, 164864),
    (64, 64, 1, 8, 3, 155, 230400),
    (64, 128, 0, 4, 1, 255, 99328),
    (64, 128, 0, 8, 1, 254, 99328),
    (64, 128, 1, 8, 1, 255, 164864),
    (128, 32, 0, 8, 1, 206, 81928),
    (128, 32, 0, 8, 2, 198, 131104),
    (128, 32, 0, 8, 3, 198, 163896),
    (128, 32, 0, 8, 4, 198, 196672),
    (128, 32, 1, 8, 1, 201, 98312),
    (128, 32, 1, 8, 2, 200, 131088),
    (128, 32, 1, 8, 3, 198, 163864),
    (128, 32, 1, 8, 4, 198, 196640),
    (128, 64, 0, 8, 1, 228, 98312),
    (128, 64, 0, 8, 2, 243, 196640),
    (128, 64, 1, 8, 1, 251, 131080),
    (128, 64, 1, 8, 2, 241, 196624),
    (128, 128, 0, 8, 1, 255, 131080),
    (128, 128, 1, 8, 1, 255, 196616),
]
"""BLOCK_M, BLOCK_N, PRELOAD_V, num_warps, num_stages, registers, bytes of shared memory."""

JUDGED = [
    Judged(
        Config(BLOCK_M=m, BLOCK_N=n, PRELOAD_V=bool(first), num_warps=warps, num_stages=stages),
        Needs(registers, _SPILLS.get((m, n, first, warps, stages), 0), shared_bytes),
        None,
    )
    for m, n, first, warps, stages, registers, shared_bytes in _ROWS
]

_OF_THE_AUTOTUNER = {
    False: [(187, 0, 163872), (138, 0, 131128), (255, 8, 131128), (187, 0, 147488), (138, 0, 114744), (138, 0, 81952)],
    True: [(186, 0, 164864), (150, 0, 132096), (255, 56, 132096), (223, 0, 148480), (142, 0, 115712), (142, 0, 82944)],
}
AUTOTUNED = {
    causal: [Judged(config, Needs(*needs), None) for config, needs in zip(PLAIN_CONFIGS, rows, strict=True)]
    for causal, rows in _OF_THE_AUTOTUNER.items()
}
"""By mask."""
