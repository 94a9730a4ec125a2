"""How large a circular buffer is and where it lies, and what a comparison of outputs says."""

from types import SimpleNamespace

import pytest
import torch

from kperf.trace.capture.capturer import _compare
from kperf.trace.capture.check import Memory
from kperf.trace.capture.instrumented import ResourceUsage, recording_of_launch
from kperf.trace.instrument.events import instrument
from kperf.trace.instrument.program import read_program
from tests.trace.kernels import compiled

MEGABYTES_100 = 100 << 20


@pytest.fixture(scope="module")
def program():
    """Of 8 warps, the first and the last of them recorded."""
    found = read_program(instrument(compiled("gemm_pointers_3").asm["ttgir"]))
    assert (found.total_warps, len(found.groups)) == (8, 2)
    return found


@pytest.mark.parametrize(
    ("records", "shared_bytes", "ctas", "memory", "expected"),
    [
        (None, 0, 1, MEGABYTES_100, (8192, "shared")),
        (100, 0, 1, MEGABYTES_100, (1024, "shared")),
        (128, 0, 1, MEGABYTES_100, (1024, "shared")),
        (129, 0, 1, MEGABYTES_100, (2048, "shared")),
        (1, 0, 1, MEGABYTES_100, (64, "shared")),
        (None, 232_448 - 2 * 4096, 1, MEGABYTES_100, (4096, "shared")),
        (None, 232_448 - 2 * 1024, 1, MEGABYTES_100, (1024, "shared")),
        (None, 232_448 - 2 * 1024 + 16, 1, MEGABYTES_100, (8192, "global")),
        (100, 232_448 - 2 * 1024 + 16, 1, MEGABYTES_100, (1024, "global")),
        (4000, 0, 1, MEGABYTES_100, (32768, "shared")),
        (40_000, 0, 1, MEGABYTES_100, (524_288, "global")),
        # A CTA has 2 buffers, a header of 40 bytes and 4 for each warp, up to a multiple of 128.
        (None, 0, 6000, 6000 * (2 * 8192 + 128), (8192, "shared")),
        (None, 0, 6000, 6000 * (2 * 8192 + 128) - 1, (4096, "shared")),
        (100, 0, 6000, 6000 * (2 * 1024 + 128) - 1, (512, "global")),
    ],
)  # fmt: skip
def test_a_buffer_holds_what_a_warp_writes_and_no_more(program, records, shared_bytes, ctas, memory, expected):
    found = recording_of_launch(program, ResourceUsage(168, 0, shared_bytes, 1), ctas, memory, records)
    assert (found.bytes_per_warp, found.memory) == expected


@pytest.mark.parametrize(
    ("plain", "traced", "says"),
    [
        ([5, 5], 5, True),
        ([5, 5], 6, False),
        ([5, 4], 6, None),
        ([5, 4], 5, True),  # by chance the original kernel does not repeat itself, and both agree all the same
        ([5, 4], 4, None),
    ],
)
def test_what_a_comparison_of_outputs_says(plain, traced, says):
    out = torch.zeros(4, dtype=torch.int32)
    memory, values, starts = Memory([SimpleNamespace(base=out)]), iter(plain), []

    def writes(values):
        starts.append(out.tolist())
        out.fill_(next(values))

    before = memory.copy()
    assert _compare(lambda: writes(values), lambda: writes(iter([traced])), memory, before) is says
    assert starts == [[0] * 4] * 3  # each begins from the same bytes
