"""Instrumented kernels lower to SASS without a GPU; what cannot be recorded is refused before the compiler crashes."""

from dataclasses import replace

import pytest
from triton import knobs

from kperf.arch import SM_90A
from kperf.attention import overrides
from kperf.attention.variants import VARIANTS, Specialization
from kperf.attention.workload import FIG11, Workload
from kperf.compat.triton.instrumentation import ALIGNMENT
from kperf.errors import UsageError
from kperf.ir.compile import resources, sass
from kperf.paper import instrumented
from kperf.paper.instrumented import RULES
from kperf.trace.capture import traced
from kperf.trace.instrument.events import instrument
from kperf.trace.instrument.program import Program, read_program
from kperf.trace.instrument.session import BUFFER_LIMIT, Recording, session

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize(
    ("variant", "special"),
    [*((variant, Specialization()) for variant in VARIANTS), ("vanilla", Specialization(causal=True))],
    ids=str,
)
def test_the_instrumented_kernel_lowers_without_a_gpu_and_spills_no_more(variant, special):
    original = overrides.find(variant, special)
    traced, program = instrumented.find(original)
    with session(traced.recording):
        kernel = original.replaced(original.path, traced.text).compile()
    assert sass(kernel).count("SR_CLOCKLO") == 2 * len(program.scopes)
    assert kernel.metadata.profile_scratch_size == traced.recording.block_bytes
    before, after = resources(original.compile()), resources(kernel)
    assert after.local_bytes == before.local_bytes == 0
    assert after.stack_bytes - before.stack_bytes <= 4 * len(program.groups)
    assert after.shared_bytes <= SM_90A.cta_shared_bytes


@pytest.mark.parametrize("options", [{"clock_bits": 64}, {"memory": "global"}, {"bytes_per_warp": 1024}])
def test_other_clocks_and_buffers_lower_too(options):
    original = overrides.find("vanilla", Specialization())
    traced, program = instrumented.find(original)
    recording = Recording(traced.recording.warps, program.total_warps, **options)
    with session(recording):
        kernel = original.replaced(original.path, traced.text).compile()
    assert kernel.metadata.profile_scratch_size == recording.block_bytes


def test_the_producer_is_recorded_whichever_warp_it_runs_on():
    traced, program = instrumented.find(overrides.find("vanilla", Specialization()))
    producer = program.group("producer")
    assert producer.num_warps == 1
    assert producer.first_warp in traced.recording.warps


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"bytes_per_warp": 3000}, "not a power of two"),
        ({"bytes_per_warp": 8}, "not a power of two"),
        ({"bytes_per_warp": 1 << 18}, "more than an SM's shared memory"),
    ],
)
def test_buffers_that_cannot_be_are_refused(options, said):
    with pytest.raises(UsageError, match=said):
        Recording((0, 4, 10), 12, **options)


def test_a_buffer_whose_last_byte_32_bits_reach_is_the_largest():
    assert BUFFER_LIMIT % ALIGNMENT == 0
    assert BUFFER_LIMIT <= (1 << 31) - 1 < BUFFER_LIMIT + ALIGNMENT


def test_there_is_one_session_at_a_time():
    recording = Recording((0, 4, 10), 12)
    with session(recording), pytest.raises(UsageError, match="another profiling session"), session(recording):
        pass
    with session(recording):
        pass


def test_a_session_leaves_the_mode_that_was_there(monkeypatch):
    """`TRITON_INSTRUMENTATION_MODE=consan`, say, by which the user's kernels are compiled."""
    monkeypatch.setattr(knobs.compilation, "instrumentation_mode", "consan")
    with session(Recording((0, 4, 10), 12)):
        assert knobs.compilation.instrumentation_mode.startswith("kperf")
    assert knobs.compilation.instrumentation_mode == "consan"


def with_shared_bytes_left(original: overrides.Override, left: int, workload: Workload = FIG11) -> traced.TracedKernel:
    return replace(instrumented.subject_of(original, workload), shared_bytes=SM_90A.cta_shared_bytes - left)


def test_a_kernel_that_takes_more_shared_memory_than_there_is_is_refused():
    original = overrides.find("vanilla", Specialization())
    program = read_program(instrument(original.text, rules=RULES), RULES)
    with pytest.raises(UsageError, match="cannot be launched"):
        traced.recording_for(program, with_shared_bytes_left(original, -8))


def test_less_shared_memory_makes_a_smaller_buffer_as_long_as_all_records_fit():
    original = overrides.find("vanilla", Specialization())
    program = read_program(instrument(original.text, rules=RULES), RULES)
    needed = 8 * instrumented.most_events(program, original, FIG11)
    assert 4096 < needed <= 8192
    short = with_shared_bytes_left(original, 3 * 2048, Workload(batch=1, seq_len=1024))
    tight = with_shared_bytes_left(original, 3 * 2048)
    assert traced.recording_for(program, short) == Recording(program_warps(program), 12, 2048, "shared")
    assert traced.recording_for(program, tight) == Recording(program_warps(program), 12, 8192, "global")


def program_warps(program: Program) -> tuple[int, ...]:
    return tuple(sorted(group.first_warp for group in program.groups))


def test_an_instrumented_kernel_of_another_file_is_refused():
    original = overrides.find("vanilla", Specialization())
    other = overrides.find("improved", Specialization())
    with pytest.raises(UsageError, match="is not the instrumented kernel"):
        traced.make_traced(instrumented.subject_of(original), instrument(other.text, rules=RULES), other.path)


def test_a_missing_instrumented_kernel_is_said(tmp_path):
    original = overrides.find("vanilla", Specialization())
    with pytest.raises(UsageError, match="make ttgir"):
        instrumented.find(original, tmp_path)
