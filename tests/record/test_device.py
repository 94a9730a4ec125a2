"""What NVML is asked, and in which units it answers."""

from datetime import UTC, datetime
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


@pytest.mark.parametrize(
    ("bit", "names"),
    [
        ("nvmlClocksThrottleReasonSwPowerCap", ["SW_POWER_CAP"]),
        ("nvmlClocksThrottleReasonHwSlowdown", ["HW_SLOWDOWN"]),
        ("nvmlClocksThrottleReasonSyncBoost", ["SYNC_BOOST"]),
        ("nvmlClocksThrottleReasonSwThermalSlowdown", ["SW_THERMAL_SLOWDOWN"]),
        ("nvmlClocksThrottleReasonHwThermalSlowdown", ["HW_THERMAL_SLOWDOWN"]),
        ("nvmlClocksThrottleReasonHwPowerBrakeSlowdown", ["HW_POWER_BRAKE_SLOWDOWN"]),
        ("nvmlClocksThrottleReasonGpuIdle", []),
        ("nvmlClocksThrottleReasonApplicationsClocksSetting", []),
    ],
)
def test_each_reason_that_holds_the_clock_down_has_nvmls_bit(nvml, monkeypatch, bit, names):
    reasons = getattr(device.pynvml, bit)
    monkeypatch.setattr(device.pynvml, "nvmlDeviceGetCurrentClocksThrottleReasons", lambda handle: reasons)
    assert device.device_state().throttle == names


def test_no_process_at_all_is_no_other(nvml, monkeypatch):
    monkeypatch.setattr(device.pynvml, "nvmlDeviceGetComputeRunningProcesses", lambda handle: [])
    assert device.other_processes() == 0


def test_the_environment_is_the_gpus_the_softwares_and_the_commands(nvml, monkeypatch):
    """In megahertz and watts, by the UUID, with what is not installed left out."""
    properties = SimpleNamespace(uuid="5a1b", multi_processor_count=132)
    monkeypatch.setattr(device.torch.cuda, "get_device_properties", lambda: properties)
    monkeypatch.setattr(device.torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(device.torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(device.torch.backends.cudnn, "version", lambda: 91900)
    megahertz = {device.pynvml.NVML_CLOCK_SM: 1980, device.pynvml.NVML_CLOCK_MEM: 3201}
    monkeypatch.setattr(device.pynvml, "nvmlDeviceGetMaxClockInfo", lambda handle, which: megahertz[which])
    monkeypatch.setattr(device.pynvml, "nvmlSystemGetDriverVersion", lambda: "580.159")
    monkeypatch.setattr(device.pynvml, "nvmlDeviceGetPowerManagementLimit", lambda handle: 700_000)
    monkeypatch.setattr(device, "git_commit", lambda: "abc")
    monkeypatch.setattr(device.sys, "argv", ["/somewhere/bin/kperf", "fig12", "--causal"])
    monkeypatch.setenv("KPERF_IMAGE_ID", "sha256:1")
    monkeypatch.setattr(device.machine, "version", {"fa3-fwd": "0.0.3"}.get)
    found = device.environment()
    assert (found.gpu, found.gpu_uuid, found.compute_capability) == ("NVIDIA H200", "5a1b", "9.0")
    assert (found.driver, found.max_sm_mhz, found.max_memory_mhz) == ("580.159", 1980, 3201)
    assert found.power_limit_w == 700.0
    assert (found.cudnn, found.fa3_fwd, found.flash_attn) == ("91900", "0.0.3", None)
    assert (found.git_commit, found.image, found.command_line) == ("abc", "sha256:1", "kperf fig12 --causal")
    recorded = datetime.fromisoformat(found.recorded_at)
    assert abs((datetime.now(UTC) - recorded).total_seconds()) < 60
    assert recorded.microsecond == 0
    assert device.sm_count() == 132

    def refuse():
        raise RuntimeError("cuDNN version incompatibility: built for (9, 26, 0) but found (9, 19, 0). PyTorch ...")

    monkeypatch.setattr(device.torch.backends.cudnn, "version", refuse)
    refused = "refused: cuDNN version incompatibility: built for (9, 26, 0) but found (9, 19, 0)"
    assert device.environment().cudnn == refused


def test_sms_are_those_of_the_current_gpu(monkeypatch):
    sms = [132, 78]
    monkeypatch.setattr(
        device.torch.cuda, "get_device_properties", lambda: SimpleNamespace(multi_processor_count=sms.pop(0))
    )
    assert [device.sm_count(), device.sm_count()] == [132, 78]


def test_the_handle_is_of_cudas_gpu_and_not_of_nvmls_first(monkeypatch):
    """CUDA_VISIBLE_DEVICES and CUDA's own order make device 0 another one than NVML's."""
    asked = []
    monkeypatch.setattr(device.torch.cuda, "get_device_properties", lambda: SimpleNamespace(uuid="5a1b"))
    monkeypatch.setattr(device.pynvml, "nvmlInit", lambda: asked.append("init"))
    monkeypatch.setattr(device.pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: asked.append(uuid) or "handle")
    device._nvml_handle.cache_clear()
    assert device.nvml_handle() == device.nvml_handle() == "handle"
    assert asked == ["init", "GPU-5a1b"]
    device._nvml_handle.cache_clear()
