"""PC sampling by CUPTI's own header: what is asked of it, what comes back, and how it refuses."""

import threading

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kperf.compat import cupti
from kperf.compat.cupti import PcSample, RefusedError
from kperf.errors import UsageError
from tests.compat import fake_cupti

KERNEL, OTHER = "kernel", "other_kernel"


@pytest.fixture
def fake(monkeypatch):
    made = fake_cupti.install(monkeypatch)
    yield made
    cupti._cupti.cache_clear()


def sampled(fake, period=10):
    with cupti.sampling() as sampler:
        sampler.start(period)
        assert fake.state == fake_cupti.STARTED
        return sampler.stop(KERNEL)


def test_samples_of_a_kernel_are_counted_by_address_and_reason_and_those_without_an_issue_apart(fake):
    fake.add(KERNEL, 0x10, "long_scoreboard", 100)
    fake.add(KERNEL, 0x10, "long_scoreboard_not_issued", 60)
    fake.add(KERNEL, 0x10, "gmma", 5)
    fake.add(KERNEL, 0x2340, "not_selected", 7)
    fake.add(OTHER, 0x10, "long_scoreboard", 1000)
    fake.add(KERNEL, 0x10, "long_scoreboard", 11)
    assert sampled(fake, 12) == (
        [
            PcSample(0x10, "gmma", 5, 0),
            PcSample(0x10, "long_scoreboard", 111, 60),
            PcSample(0x2340, "not_selected", 7, 0),
        ],
        0,
    )
    assert (fake.period, fake.state, fake.finalized) == (12, fake_cupti.DETACHED, 1)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.integers(0, 1 << 20).map(lambda n: 16 * n), st.integers(1, 1 << 20), min_size=1, max_size=50))
def test_any_samples_are_read_as_they_were_taken(fake, counts):
    fake.forget_samples()
    for address, count in counts.items():
        fake.add(KERNEL, address, "selected", count)
    found, _ = sampled(fake)
    assert {one.address: one.samples for one in found} == counts


def test_a_kernel_with_more_instructions_than_are_read_at_once_loses_none(fake):
    for number in range(5000):
        fake.add(KERNEL, 16 * number, "selected", 1 + number % 3)
    found, _ = sampled(fake)
    assert [one.address for one in found] == [16 * number for number in range(5000)]
    assert sum(one.samples for one in found) == sum(1 + number % 3 for number in range(5000))


def test_what_cuptis_threads_decode_late_is_waited_for(fake):
    fake.add(KERNEL, 0, "selected", 3)
    fake.wait(4)
    assert sampled(fake)[0] == [PcSample(0, "selected", 3, 0)]


def test_what_they_decode_piece_by_piece_is_whole_and_lost_samples_count_once(fake):
    """Between two pieces CUPTI has nothing, and says of nothing that it is to come."""
    for number in range(7):
        fake.add(KERNEL, 16 * number, "selected", 3)
    fake.decode_by(2)
    fake.drop(17)
    found, dropped = sampled(fake)
    assert (sum(one.samples for one in found), dropped) == (21, 17)


def test_counters_that_are_no_reasons_are_no_samples(fake):
    fake.add(KERNEL, 0, "long_scoreboard", 5)
    found, dropped = sampled(fake)
    assert (found, dropped) == ([PcSample(0, "long_scoreboard", 5, 0)], 0)


def test_a_kernel_that_was_not_sampled_is_not_waited_for_longer_than_said(fake, monkeypatch):
    monkeypatch.setattr(cupti, "_MOST_WAIT_S", 0.05)
    assert sampled(fake) == ([], 0)


def test_lost_samples_are_counted(fake):
    fake.add(KERNEL, 0, "selected", 3)
    fake.drop(17)
    assert sampled(fake)[1] == 17


def test_a_full_buffer_is_an_error_of_that_kernel_alone(fake):
    fake.fill()
    with pytest.raises(UsageError, match="the GPU's buffer of samples was full") as refused:
        sampled(fake)
    assert not isinstance(refused.value, RefusedError)
    assert (fake.state, fake.finalized) == (fake_cupti.DETACHED, 1)


@pytest.mark.parametrize(
    ("function", "code", "said", "finalized"),
    [
        ("cuptiPCSamplingEnable", 35, "NVreg_RestrictProfilingToAdminUsers=0", 1),
        ("cuptiSubscribe", 39, "another profiler is active in this process", 0),
        ("cuptiPCSamplingEnable", 40, "virtual GPU", 1),
        (
            "cuptiPCSamplingGetNumStallReasons",
            8,
            "cuptiPCSamplingGetNumStallReasons gives CUPTI_ERROR_OUT_OF_MEMORY",
            1,
        ),
    ],
)
def test_who_may_not_sample_is_told_what_to_do_and_nothing_stays_open(fake, function, code, said, finalized):
    fake.refuse(function, code)
    with pytest.raises(RefusedError) as refused:
        sampled(fake)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert (fake.state, fake.finalized) == (fake_cupti.DETACHED, finalized)


def test_an_error_while_a_kernel_runs_is_not_one_of_the_machine(fake):
    with pytest.raises(ZeroDivisionError), cupti.sampling() as sampler:
        sampler.start(1 // 0)
    assert (fake.state, fake.finalized) == (fake_cupti.DETACHED, 1)


def test_without_a_driver_or_cupti_it_is_one_sentence(monkeypatch, tmp_path):
    cupti._cupti.cache_clear()
    monkeypatch.setattr(cupti.knobs.proton, "cupti_lib_dir", str(tmp_path))
    with pytest.raises(RefusedError, match="TRITON_CUPTI_LIB_PATH"):
        cupti._cupti()
    monkeypatch.setattr(cupti.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    with pytest.raises(RefusedError, match="there is no driver of NVIDIA's"), cupti.sampling():
        pass


def test_under_torchs_profiler_nothing_is_sampled(fake):
    profiling = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with profiling, pytest.raises(RefusedError, match="another profiler"), cupti.sampling():
        pass
    assert fake.finalized == 0


def test_under_torchs_profiler_of_another_thread_nothing_is_sampled_either(fake):
    refused = []

    def sample():
        with pytest.raises(RefusedError, match="another profiler"), cupti.sampling():
            pass
        refused.append(True)

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()
    assert refused
    assert fake.finalized == 0


def test_threads_sample_one_after_another(fake, monkeypatch):
    """CUPTI would refuse the second, which reads as if a profiler of the script's were active."""
    fake.add(KERNEL, 0, "selected", 3)
    found = []
    with cupti.sampling():
        thread = threading.Thread(target=lambda: found.append(sampled(fake)))
        thread.start()
        thread.join(0.1)
        assert not found
    thread.join()
    assert found == [([PcSample(0, "selected", 3, 0)], 0)]


def test_a_thread_waits_for_another_ones_samples_no_longer_than_said(fake, monkeypatch):
    """The other one's kernel may wait for what this thread is to launch."""
    monkeypatch.setattr(cupti, "_MOST_TURN_S", 0.05)
    refused = []

    def sample():
        with pytest.raises(UsageError, match="another thread samples a kernel") as error, cupti.sampling():
            pass
        refused.append(error.value)

    with cupti.sampling():
        thread = threading.Thread(target=sample)
        thread.start()
        thread.join()
    assert not isinstance(refused[0], RefusedError)
    with cupti.sampling():
        pass


def test_samples_that_cupti_keeps_back_are_not_waited_for_for_ever(fake, monkeypatch):
    monkeypatch.setattr(cupti, "_MOST_WAIT_S", 0.05)
    fake.add(KERNEL, 0, "selected", 3)
    fake.keep(7)
    with pytest.raises(UsageError, match="CUPTI gave no samples of 7 instructions"):
        sampled(fake)
    assert (fake.state, fake.finalized) == (fake_cupti.DETACHED, 1)
