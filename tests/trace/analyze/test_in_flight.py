"""When an MMA is done: what a wait leaves in flight is followed along the tensor core's queue."""

import numpy as np
import pytest

from kperf.ir.compile import named_ttgir
from kperf.trace.analyze.decode import decode
from kperf.trace.analyze.timeline import InFlight, Launch
from kperf.trace.instrument.events import instrument
from kperf.trace.instrument.program import read_program
from tests.trace.kernels import compiled

from .synthetic import Record, encode, recording_of

ITERATIONS = 4
STEP = 100


def in_flight(kernel: str) -> list[InFlight]:
    """Of one CTA: all records are STEP cycles apart, and the loop is gone through ITERATIONS times."""
    program = read_program(instrument(named_ttgir(compiled(kernel).asm["ttgir"])))
    lifetime, *scopes = program.scopes
    loop = [scope for scope in scopes if scope.loop]
    before = [scope for scope in scopes if not scope.loop and scope.number < loop[0].number]
    after = [scope for scope in scopes if not scope.loop and scope.number > loop[-1].number]
    inside = [(scope.number, start) for scope in [*before, *loop * ITERATIONS, *after] for start in (True, False)]
    probes = [(lifetime.number, True), *inside, (lifetime.number, False)]
    records: list[Record] = [(*probe, STEP * place) for place, probe in enumerate(probes)]
    recording = recording_of(program)
    buffer = encode([[records] * len(recording.warps)], recording)
    launch = Launch(decode(buffer, recording), program, recording.warps)
    (cta,) = launch.ctas(np.array([0]))
    return [mma for mma in cta.in_flight if mma.group == launch.groups[0]]


@pytest.mark.parametrize(("kernel", "iterations_in_flight"), [("gemm_pointers_1", 0), ("gemm_tma", 1), ("gemm_fp8", 1)])
def test_a_wait_with_pendings_completes_the_mma_of_an_earlier_iteration(kernel, iterations_in_flight):
    found = in_flight(kernel)
    assert len(found) == ITERATIONS
    starts = [mma.start for mma in found]
    iteration = starts[1] - starts[0]
    for mma in found[:-1]:
        assert iterations_in_flight * iteration < mma.end - mma.start <= (iterations_in_flight + 1) * iteration
    # The last is waited for after the loop.
    assert found[-1].end > found[-2].end
