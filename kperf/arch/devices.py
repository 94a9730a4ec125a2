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
