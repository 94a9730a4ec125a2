"""Profile and measure warp-specialised attention kernels on Hopper through TTGIR overrides."""

__version__ = "0.1.0"
