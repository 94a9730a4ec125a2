"""How many blocks of a kernel an SM of Hopper holds at once."""

from kperf.ir.compile import SHARED_MEMORY_LIMIT

SM_REGISTERS = 65_536
SM_WARPS = 64
SM_BLOCKS = 32
SM_SHARED_BYTES = 233_472
"""228 KB, of which the system keeps RESERVED_SHARED_BYTES for each block."""
RESERVED_SHARED_BYTES = 1024
_REGISTERS_OF_A_WARP = 256
"""Registers are given to a warp in units of this many: 8 a thread."""
_SHARED_UNIT = 128
"""Sizes: CUDA C++ Programming Guide, "Compute Capabilities", and the occupancy tables of the CUDA toolkit, for 9.0."""


def blocks_per_sm(registers: int, shared_bytes: int, warps: int) -> int:
    """Blocks that fit at once, by registers a thread, bytes of shared memory a block, and warps a block; 0 if none."""
    if shared_bytes > SHARED_MEMORY_LIMIT:
        return 0
    of_a_warp = -(-registers * 32 // _REGISTERS_OF_A_WARP) * _REGISTERS_OF_A_WARP
    by_registers = SM_REGISTERS // max(of_a_warp, _REGISTERS_OF_A_WARP) // warps
    rounded = -(-shared_bytes // _SHARED_UNIT) * _SHARED_UNIT
    return min(SM_BLOCKS, SM_WARPS // warps, by_registers, SM_SHARED_BYTES // (rounded + RESERVED_SHARED_BYTES))


def shared_bytes_left(registers: int, shared_bytes: int, warps: int) -> int:
    """Bytes of shared memory that a block may take besides without one block less fitting on an SM."""
    fit = max(blocks_per_sm(registers, shared_bytes, warps), 1)
    each = SM_SHARED_BYTES // fit // _SHARED_UNIT * _SHARED_UNIT - RESERVED_SHARED_BYTES
    return max(min(each, SHARED_MEMORY_LIMIT) - shared_bytes, 0)
