"""Blocks on an SM, against cudaOccupancyMaxActiveBlocksPerMultiprocessor's numbers for sm_90."""

import pytest

from kperf.ir.occupancy import blocks_per_sm, shared_bytes_left


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "warps", "blocks"),
    [
        (168, 164_000, 12, 1),  # warp-specialised attention: registers and shared memory
        (255, 0, 8, 1),
        (128, 0, 8, 2),
        (129, 0, 4, 3),  # 136 after rounding: 4352 a warp
        (32, 0, 4, 16),
        (16, 0, 1, 32),
        (26, 0, 4, 16),
        (110, 98_304, 8, 2),
        (40, 0, 16, 3),
        (32, 116_736 - 1024, 4, 2),
        (32, 116_736 - 1023, 4, 1),
        (32, 232_448, 4, 1),
        (32, 232_449, 4, 0),
    ],
)
def test_blocks_on_an_sm(registers, shared_bytes, warps, blocks):
    assert blocks_per_sm(registers, shared_bytes, warps) == blocks


@pytest.mark.parametrize("used", [(168, 164_000, 12), (32, 98_304, 4), (26, 0, 4), (128, 1000, 8), (32, 232_448, 4)])
def test_what_is_left_takes_no_block_away_and_a_byte_more_does(used):
    registers, shared_bytes, warps = used
    left = shared_bytes_left(*used)
    assert blocks_per_sm(registers, shared_bytes + left, warps) == blocks_per_sm(*used)
    assert blocks_per_sm(registers, shared_bytes + left + 1, warps) < blocks_per_sm(*used)
