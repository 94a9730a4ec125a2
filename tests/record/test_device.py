"""What NVML is asked, and in which units it answers."""

from types import SimpleNamespace

import pytest

from kperf.record import device


@pytest.fixture
def nvml(monkeypatch):
    """NVML says 612,345 mW, 45,678 mJ, 1575 MHz of the SMs, 64 degrees, and that the power cap holds them down."""
    field = SimpleNamespace(value=SimpleNamespace(uiVal=612_345), timestamp=0)
    answers = {
        "nvmlDeviceGetFieldValues": lambda handle, fields: [field],
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x4 | 0x1,
        "nvmlDeviceGetClockInfo": lambda handle, which: {device.pynvml.NVML_CLOCK_SM: 1575}[which],
        "nvmlDeviceGetTemperature": lambda handle, which: {device.pynvml.NVML_TEMPERATURE_GPU: 64}[which],
        "nvmlDeviceGetTotalEnergyConsumption": lambda handle: 45_678,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: ["this one", "another", "a third"],
    }
    monkeypatch.setattr(device, "nvml_handle", lambda: None)
    monkeypatch.setattr(device, "_power_read", [])
    for name, answer in answers.items():
        monkeypatch.setattr(device.pynvml, name, answer)
    return field


def test_the_state_is_in_megahertz_watts_and_degrees(nvml):
    state = device.device_state()
    assert (state.sm_mhz, state.power_w, state.temperature_c) == (1575, 612.345, 64)
    assert state.throttle == ["SW_POWER_CAP"]


def test_a_power_that_is_read_again_keeps_the_time_of_its_first_reading(nvml, monkeypatch):
    now = iter([10.0, 10.05, 10.1])
    monkeypatch.setattr(device.time, "time", lambda: next(now))
    first, again = device.device_state(), device.device_state()
    nvml.value.uiVal = 600_000
    third = device.device_state()
    assert [state.at_s for state in (first, again, third)] == [10.0, 10.05, 10.1]
    assert [state.power_at_s for state in (first, again, third)] == [10.0, 10.0, 10.1]


def test_energy_is_in_joules(nvml):
    assert device.energy_j() == 45.678


def test_other_processes_are_all_but_this_one(nvml):
    assert device.other_processes() == 2
