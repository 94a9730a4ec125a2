"""A fake AMD GPU: what is asked of torch and AMD SMI there ends in the same records as NVML's answers."""

import sys
from types import SimpleNamespace

import pytest
import torch

from kperf.record import device, rocm
from kperf.record.store import gpu_slug

PROPERTIES = SimpleNamespace(
    gcnArchName="gfx942:sramecc+:xnack-", clock_rate=2_100_000, memory_clock_rate=1_300_000, uuid="aa-bb"
)
SMI = SimpleNamespace(
    __spec__=object(),
    amdsmi_init=lambda: None,
    amdsmi_get_processor_handles=lambda: ["first", "second"],
    amdsmi_get_gpu_driver_info=lambda handle: {"driver_version": f"6.14 of {handle}"},
    amdsmi_get_power_cap_info=lambda handle: {"power_cap": 750_000_000},
)


@pytest.fixture
def mi300x(monkeypatch):
    """An MI300X, of two GPUs the second."""
    monkeypatch.setattr(torch.version, "hip", "7.2.1")
    monkeypatch.setitem(sys.modules, "amdsmi", SMI)
    answers = {
        "is_available": True,
        "get_device_properties": PROPERTIES,
        "get_device_name": "AMD Instinct MI300X",
        "current_device": 1,
        "clock_rate": 1900,
        "power_draw": 612,
        "temperature": 61,
        "list_gpu_processes": "GPU:1\nprocess       11 uses        1.0 MB GPU memory\nprocess       12 uses ...",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    return monkeypatch


def test_its_state_and_environment_are_those_of_a_record(mi300x, monkeypatch):
    assert device.why_not_timed() is None
    state = device.device_state()
    assert (state.sm_mhz, state.power_w, state.temperature_c, state.throttle) == (1900, 612.0, 61, [])
    assert device.other_processes() == 1
    monkeypatch.setattr(torch.cuda, "list_gpu_processes", lambda *_: "GPU:1\nno processes are running")
    assert device.other_processes() == 0
    found = device.environment()
    assert (found.gpu, found.gpu_uuid, found.compute_capability) == ("AMD Instinct MI300X", "aa-bb", "gfx942")
    assert (found.driver, found.cuda, found.power_limit_w) == ("6.14 of second", "ROCm 7.2.1", 750.0)
    assert (found.max_sm_mhz, found.max_memory_mhz) == (2100, 1300)
    assert gpu_slug(found.gpu) == "mi300x"


@pytest.mark.parametrize(
    ("what", "answer", "why"),
    [
        ("is_available", False, "ROCm shows no GPU"),
        ("get_device_properties", SimpleNamespace(gcnArchName="gfx90a"), "AMD Instinct MI300X is gfx90a: use"),
    ],
)
def test_what_is_missing_is_one_sentence(mi300x, what, answer, why):
    mi300x.setattr(torch.cuda, what, lambda *_: answer)
    assert device.why_not_timed().startswith(why)


def test_without_amd_smi_nothing_is_timed(mi300x):
    mi300x.delitem(sys.modules, "amdsmi")
    assert "amdsmi is not installed" in device.why_not_timed()


def test_where_torch_is_nvidias_the_hopper_is_asked_for(monkeypatch):
    monkeypatch.setattr(device, "why_static", lambda: "no Hopper")
    assert device.why_not_timed() == "no Hopper"
    assert "not built for ROCm" in rocm.why_not_measured()
