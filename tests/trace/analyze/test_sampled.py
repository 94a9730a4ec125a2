"""What is read from a sample of a launch's CTAs is said of these, and what a sample does not show is left out."""

import numpy as np
import pytest

from kperf.errors import UsageError
from kperf.report.sentences import verdict
from kperf.trace.analyze import read
from kperf.trace.analyze.decode import decode
from kperf.trace.analyze.models import SampledCtas, Timeline
from kperf.trace.instrument.sampled import Sample
from kperf.trace.instrument.session import Recording

from .synthetic import encode
from .test_decode import SMALL, steps
from .test_facts import SHARED, launched
from .test_views import about, norm, norm_cta, norm_program

SAMPLE = Sample(17, 5)
CTAS = 690
"""Of which 41 are recorded."""


def sampled(recorded: int, ctas: int) -> SampledCtas:
    return SampledCtas(stride=17, first=5, recorded=recorded, ctas=ctas)


def test_parts_of_the_buffer_are_of_the_ctas_of_the_sample():
    ctas = [[steps(1000 * part, 6), steps(1000 * part, 4), steps(1000 * part, 2)] for part in range(41)]
    buffer = encode(ctas, SMALL, sample=SAMPLE)
    records = decode(buffer, SMALL, SAMPLE)
    assert SAMPLE.count(CTAS) == 41 == records.n_ctas
    assert records.program_id.tolist() == list(range(5, 690, 17))
    assert records.counts.sum() == 41 * 12
    with pytest.raises(UsageError, match=r"part 0 of the trace buffer is of CTA 5 and not of 6: it is damaged"):
        decode(buffer, SMALL, Sample(17, 6))
    words = buffer.view(np.uint32).reshape(41, -1)
    words[7, 1] = 7
    with pytest.raises(UsageError, match="part 7 of the trace buffer is of CTA 7 and not of 124"):
        decode(buffer, SMALL, SAMPLE)
    words[7, 0] = 0
    with pytest.raises(UsageError, match="CTA 7 of the trace buffer has no header"):
        decode(buffer, SMALL, SAMPLE)


def norm_of_a_sample() -> read.Launch:
    program = norm_program()
    recording = Recording((0,), 8, 1024)
    return read.decode_launch(encode([[norm_cta()]] * 41, recording, sample=SAMPLE), recording, program, SAMPLE)


def test_a_sample_says_nothing_of_the_sms_and_estimates_the_bytes():
    every = read.timeline(norm(), about())
    found = read.timeline(norm_of_a_sample(), about(grid=(230, 3, 1), sampled=sampled(41, CTAS)))
    assert every.sms
    assert (found.sms, found.imbalance, found.ctas, found.units) == (None, None, 41, 41)
    assert found.cycles_per_unit == every.cycles_per_unit
    by_argument = {part.argument: (part.loaded_bytes, part.stored_bytes) for part in found.memory.traffic}
    row = CTAS * 4 * 4096
    assert by_argument == {"x": (2 * row, 0), "w": (row, 0), "y": (0, row)}
    assert found.memory.gb_per_s == pytest.approx(4 * row / 1e-3 / 1e9)
    words = " ".join(verdict(found))
    assert "41 of 690 CTAs are recorded, every 17th from CTA 5 on, and all cycles are theirs" in words
    assert "(estimated from the 41 CTAs recorded)" in words
    for word in ("waves", "idle", "return early", "slowest CTA"):
        assert word not in words
    assert Timeline.model_validate_json(found.model_dump_json()) == found


def test_ctas_that_differ_make_no_imbalance_of_a_sample():
    program, recording = norm_program(), Recording((0,), 8, 1024)
    ctas = [[norm_cta(iterations=8 if part % 8 == 0 else 1)] for part in range(41)]
    launch = read.decode_launch(encode(ctas, recording, sample=SAMPLE), recording, program, SAMPLE)
    assert read.timeline(launch, about()).view == "imbalance"
    found = read.timeline(launch, about(sampled=sampled(41, CTAS)))
    assert (found.view, found.imbalance) == ("memory", None)


def test_the_use_of_an_sm_is_not_known_from_a_sample():
    every, machines, _ = launched(SHARED, [0, 700, 1500])
    found, _, _ = launched(SHARED, [0, 700, 1500], sampled=sampled(3, 51))
    assert every.mma_use.sm > 0.5
    assert (found.mma_use.sm, found.mma_use.sm_recorded, found.mma_use.in_flight_sm) == (None, None, None)
    assert found.mma_use.cta_main_loop == every.mma_use.cta_main_loop
    assert found.cycles_per_unit.median == pytest.approx(machines[1].iteration_time(), rel=0.05)
    words = " ".join(verdict(found))
    assert "the MMAs of all CTAs" not in words
    assert "inside its main loop, one CTA alone reaches" in words


def test_why_all_ctas_were_recorded_is_a_reason_that_lowers_no_confidence():
    every = read.timeline(norm(), about())
    found = read.timeline(norm(), about(why_all="of its 8 CTAs a sample has 1, and 32 are needed"))
    assert found.confidence.level == every.confidence.level
    (reason,) = set(found.confidence.reasons) - set(every.confidence.reasons)
    assert reason == "all CTAs are recorded and not a sample: of its 8 CTAs a sample has 1, and 32 are needed"
    assert reason in " ".join(verdict(found))
