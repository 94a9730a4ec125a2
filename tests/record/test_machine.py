"""The doctor: every obstacle has a sentence with its mend, and looking takes no two seconds."""

import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from kperf import doctor as report
from kperf.installation import RESTORE, why_missing
from kperf.record import machine as doctor
from kperf.record.machine import Gpu, Machine
from kperf.record.stack import Stack
from tests.command import kperf

H200 = Gpu("NVIDIA H200", (9, 0), mig=False, processes=0, uuid="5a1b-h")
A100 = Gpu("NVIDIA A100-SXM4-80GB", (8, 0), mig=False, processes=0, uuid="77c0-a")
PINNED = {"torch": "2.11.0", "triton": "3.6.0", "fa3-fwd": "0.0.3"}
READY = Machine(
    in_container=False,
    python="3.12.1",
    packages=PINNED | {"torch": "2.11.0+cu130"},
    pinned=PINNED,
    driver="580.159",
    driver_cuda=(13, 0),
    wheels_cuda=(13, 0),
    gpus=(H200,),
    why_no_gpu=None,
    why_no_compiler=None,
    why_no_cuda=None,
    why_no_launcher=None,
    why_no_cache=None,
    why_no_results=None,
    recorded=("h200",),
    why_no_recorded=None,
)

READ = "your kernels, without a GPU: `kperf diagnose --static`, `kperf ir`"
TRACED = "your kernels, on this GPU: `kperf trace`, `kperf diagnose`"


def verdicts(machine: Machine) -> dict[str, tuple[bool, str]]:
    return {verdict.what: (verdict.possible, verdict.why) for verdict in doctor.diagnose(machine)}


def test_a_machine_that_has_everything():
    found = verdicts(READY)
    assert all(possible for possible, _ in found.values())
    assert doctor.headline(READY) == "kperf: dynamic: measuring on NVIDIA H200, driver 580.159"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"gpus": (), "why_no_gpu": "no GPU"}, "no GPU"),
        ({"gpus": (), "why_no_gpu": "no GPU", "why_no_cuda": "built without CUDA"}, "built without CUDA"),
        ({"driver": "550.54", "driver_cuda": (12, 4)},
         "driver 550.54 runs CUDA 12.4 and the wheels need 13.0: install driver 580 or newer"),
        ({"driver_cuda": (13, 0), "wheels_cuda": (14, 1)},
         "driver 580.159 runs CUDA 13.0 and the wheels need 14.1: install a newer driver"),
        ({"gpus": (A100,)},
         "NVIDIA A100-SXM4-80GB is sm_80: use a machine with a Hopper GPU (sm_90a: H100, H200, GH200)"),
        ({"gpus": (A100, H200)}, "GPU 0 is NVIDIA A100-SXM4-80GB, not Hopper: set CUDA_VISIBLE_DEVICES=1"),
        ({"why_no_launcher": "no C compiler"}, "no C compiler"),
    ],
)  # fmt: skip
def test_what_stands_in_the_way_of_measuring(change, reason):
    machine = replace(READY, **change)
    assert verdicts(machine)["fig11 and fig12, measured here"] == (False, reason)
    assert verdicts(machine)[TRACED] == (False, reason)
    assert verdicts(machine)[READ] == (True, "")
    assert verdicts(machine)["fig11 and fig12, drawn from recorded runs"] == (True, "recorded on h200")
    assert doctor.headline(machine) == f"kperf: static, from recorded runs: {reason}"
    assert report.report(machine)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"why_no_compiler": "torch is not installed"}, "torch is not installed"),
        ({"why_no_cache": "no cache"}, "no cache"),
    ],
)
def test_what_stands_in_the_way_of_compiling_stands_in_that_of_drawing_too(change, reason):
    """The overrides are compiled before a figure is drawn from recorded runs."""
    machine = replace(READY, **change)
    assert {what: why for what, (possible, why) in verdicts(machine).items() if not possible} == {
        READ: reason,
        TRACED: reason,
        "fig11 and fig12, measured here": reason,
        "FA3 in fig12, measured here": reason,
        "fig11 and fig12, drawn from recorded runs": reason,
        "ttgir, the overrides compiled and checked": reason,
    }
    assert not report.report(machine)


def test_the_overrides_of_another_triton_stand_in_the_way_of_figures(tmp_path):
    (tmp_path / "vanilla").mkdir()
    manifest = tmp_path / "vanilla" / "manifest.json"
    for text in ("", "[]", "{}", '{"triton": "3.9.0"}'):  # what is damaged is said by who reads it
        manifest.write_text(text)
        assert doctor._why_no_overrides("3.9.0", tmp_path) is None
    assert doctor._why_no_overrides(None, tmp_path) is None
    why = doctor._why_no_overrides("3.10.0", tmp_path)
    assert why == ("the overrides are for Triton 3.9.0 and this is 3.10.0: install the locked wheels (`make setup`)")
    found = verdicts(replace(READY, why_no_overrides=why))
    assert (found.pop(READ), found.pop(TRACED)) == ((True, ""), (True, ""))  # kernels of one's own need no override
    assert set(found.values()) == {(False, why)}
    assert doctor.probe().why_no_overrides is None


def test_a_newer_minor_cuda_than_the_drivers_is_no_obstacle():
    assert doctor.why_not_measured(replace(READY, wheels_cuda=(13, 2))) is None


def test_missing_fa3_alone_leaves_the_rest():
    found = verdicts(replace(READY, packages=PINNED | {"fa3-fwd": None}))
    assert found["FA3 in fig12, measured here"] == (False, why_missing("fa3-fwd"))
    assert found["fig11 and fig12, measured here"][0]


def test_warnings_where_measuring_is_possible():
    gpu = replace(H200, mig=True, processes=2)
    machine = replace(READY, gpus=(gpu,), packages=PINNED | {"triton": "3.7.0"})
    possible, why = verdicts(machine)["fig11 and fig12, measured here"]
    assert possible
    assert why == (
        "triton is 3.7.0, not the 3.6.0 of the record; MIG is on: a slice is measured, not the whole GPU; "
        "2 other process(es) on the GPU will disturb the times"
    )


@pytest.mark.parametrize(
    ("why", "engine", "toolkit"),
    [
        ((None, None), (True, ""), (True, "")),
        (("no engine", None), (False, "no engine"), (False, "no engine")),
        ((None, "no toolkit"), (True, ""), (False, "no toolkit")),
    ],
)
def test_what_the_engine_can_run(monkeypatch, capsys, why, engine, toolkit):
    monkeypatch.setattr("kperf.container.why_no_engine", lambda: why)
    found = [(verdict.possible, verdict.why) for verdict in report.diagnose_engine()]
    assert found == [engine, toolkit]
    report.report(READY)
    assert "docker-fig12" in capsys.readouterr().out
    report.report(replace(READY, in_container=True))
    assert "docker-fig12" not in capsys.readouterr().out


def test_nothing_at_all_is_reported_as_such(capsys):
    nothing = {"gpus": (), "why_no_gpu": "no GPU", "driver": None, "why_no_compiler": "no torch"}
    assert not report.report(replace(READY, in_container=True, **nothing))
    printed = capsys.readouterr().out
    assert printed.startswith("no usable NVIDIA GPU; Python 3.12.1, torch 2.11.0+cu130")
    first, *others = printed.splitlines()[1:]
    assert first == f"no   {READ}: no torch"
    assert len(others) == 5
    assert all(line.endswith(": for the same reason") for line in others)


def test_what_can_run_is_said_before_what_cannot_and_each_reason_once(monkeypatch, capsys):
    monkeypatch.setattr("kperf.container.why_no_engine", lambda: ("no engine", None))
    assert report.report(replace(READY, gpus=(), why_no_gpu="no GPU"))
    assert capsys.readouterr().out.splitlines()[1:] == [
        f"yes  {READ}",
        "yes  fig11 and fig12, drawn from recorded runs: recorded on h200",
        "yes  ttgir, the overrides compiled and checked: needs no GPU",
        f"no   {TRACED}: no GPU",
        "no   fig11 and fig12, measured here: for the same reason",
        "no   FA3 in fig12, measured here: for the same reason",
        "no   image, docker-fig11 and docker-fig12: no engine",
        "no   the GPU inside containers: for the same reason",
    ]


def test_a_results_folder_that_is_not_writable(monkeypatch, tmp_path):
    monkeypatch.setenv("KPERF_RESULTS", str(tmp_path / "missing"))
    machine = doctor.probe()
    mend = f"set KPERF_RESULTS to one; {RESTORE}"
    assert machine.why_no_results == f"{tmp_path}/missing is not a folder that you can write: {mend}"
    assert machine.recorded == ()
    (tmp_path / "missing/h100/fig11").mkdir(parents=True)
    (tmp_path / "missing/h100/fig12.jsonl").touch()
    machine = doctor.probe()
    assert machine.why_no_results is None
    assert machine.recorded == ()
    (tmp_path / "missing/h100/fig11/vanilla.timeline.json").touch()
    assert doctor.probe().recorded == ("h100",)


def test_an_empty_record_is_no_recorded_run(monkeypatch, tmp_path):
    monkeypatch.setenv("KPERF_RESULTS", str(tmp_path))
    assert "does not hold both: `python -m kperf restore" in doctor.probe().why_no_recorded
    (tmp_path / "h200/fig11").mkdir(parents=True)
    for name in ("fig12.jsonl", "fig11/vanilla.timeline.json"):
        (tmp_path / "h200" / name).touch()
    sentence = (
        f"{tmp_path}/h200/fig11/vanilla.timeline.json is empty or cut short (and 1 more): `python -m kperf restore"
    )
    machine = replace(READY, why_no_recorded=doctor.probe().why_no_recorded)
    possible, why = verdicts(machine)["fig11 and fig12, drawn from recorded runs"]
    assert not possible
    assert why.startswith(sentence)


def test_a_cache_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file" / "cache"))
    done = kperf("doctor")
    assert done.returncode == 1
    said = f"Triton's cache {tmp_path}/file/cache cannot be written (Not a directory): set TRITON_CACHE_DIR to another"
    lines = done.stdout.splitlines()
    assert [line[:10] for line in lines if said in line] == ["no   your ", "no   fig11"]
    assert "no   ttgir, the overrides compiled and checked: for the same reason" in lines


def test_a_cache_on_a_full_disk_cannot_be_written(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    full = Path("/dev/full").open("wb")  # noqa: SIM115 - the doctor closes it, and that writes
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: full)
    done = kperf("doctor")
    assert done.returncode == 1
    assert f"Triton's cache {tmp_path} cannot be written (No space left on device)" in done.stdout


def test_a_cache_that_is_not_there_yet_is_made(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "new" / "cache"))
    assert "Triton's cache" not in kperf("doctor").stdout
    assert (tmp_path / "new" / "cache").is_dir()


def test_a_home_that_cannot_be_written_is_no_place_for_triton(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    done = kperf("doctor", HOME=str(tmp_path / "file"))
    assert done.returncode == 1
    assert f"no   {READ}: Triton's cache {tmp_path}/file/.triton/cache" in done.stdout


@pytest.mark.parametrize(
    ("error", "inside", "sentence"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, False, "reboot"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, False, "install driver 580 or newer"),
        (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, True, "--gpus all"),
    ],
)
def test_no_driver_answers(monkeypatch, error, inside, sentence):
    def fail() -> None:
        raise pynvml.NVMLError(error)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    if inside:
        monkeypatch.setenv("KPERF_IN_CONTAINER", "1")
    else:
        monkeypatch.delenv("KPERF_IN_CONTAINER", raising=False)
    machine = doctor.probe()
    assert machine.why_no_gpu.endswith(sentence)
    assert machine.gpus == ()


@pytest.mark.parametrize(
    ("chosen", "found"),
    [(None, (A100, H200)), ("1", (H200,)), ("1,0", (H200, A100)), ("", ()), ("-1", ()), ("7", ()),
     ("1,-1,0", (H200,)), ("7,1", ()), ("GPU-5a1b,GPU-nosuch,GPU-77c0", (H200,)),
     ("GPU-5a1b", (H200,)), ("GPU-5a1b-h, GPU-77c0-a", (H200, A100)), ("GPU-nosuch", ()), ("MIG-5a1b", (A100, H200)),
     ("GPU-5a1b, MIG-5a1b", (A100, H200))],
)  # fmt: skip
@pytest.mark.parametrize(("version", "driver_cuda"), [(13020, (13, 2)), (13000, (13, 0)), (12080, (12, 8))])
def test_cuda_visible_devices_chooses(monkeypatch, chosen, found, version, driver_cuda):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    monkeypatch.setattr(doctor, "_gpu", lambda index: (A100, H200)[index])
    for name, answer in {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "580.159",
        "nvmlSystemGetCudaDriverVersion_v2": lambda: version,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
    }.items():
        monkeypatch.setattr(pynvml, name, answer)
    machine = doctor.probe()
    assert machine.gpus == found
    assert machine.driver_cuda == driver_cuda
    assert machine.why_no_gpu == (None if found else "CUDA_VISIBLE_DEVICES hides every GPU: unset it")


@pytest.mark.gpu
def test_a_hopper_machine_can_measure():
    machine = doctor.probe()
    assert doctor.why_not_measured(machine) is None
    assert doctor.headline(machine).startswith("kperf: dynamic: measuring on NVIDIA ")


def test_looking_takes_less_than_two_seconds_and_no_torch():
    program = (
        "import sys; from kperf import doctor; from kperf.record import machine; "
        "doctor.report(machine.probe()); sys.exit('torch' in sys.modules)"
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Of the processor: a busy machine shares it.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 2


@pytest.mark.parametrize(
    ("mig", "processes", "found"),
    [
        ([pynvml.NVML_DEVICE_MIG_DISABLE, 0], ["one"], (False, 1)),
        ([pynvml.NVML_DEVICE_MIG_ENABLE, 0], [], (True, 0)),
        (None, None, (False, 0)),  # neither is answered
    ],
)
def test_a_gpu_is_what_nvml_says_of_it(monkeypatch, mig, processes, found):
    def answer(value):
        def ask(handle):
            if value is None:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
            return value

        return ask

    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", answer(mig))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetComputeRunningProcesses", answer(processes))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetCudaComputeCapability", lambda handle: (9, 0))
    monkeypatch.setattr(pynvml, "nvmlDeviceGetName", lambda handle: "NVIDIA H200")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetUUID", lambda handle: "GPU-5a1b")
    assert doctor._gpu("handle") == Gpu("NVIDIA H200", (9, 0), mig=found[0], processes=found[1], uuid="5a1b")


def test_what_the_wheels_and_the_lock_say_is_read(monkeypatch):
    monkeypatch.setattr(doctor, "version", {"nvidia-cuda-runtime": "13.0.96"}.get)
    monkeypatch.setattr(doctor, "look", lambda: Stack(torch="2.11.0+cu130", cuda="13.0"))
    machine = doctor.probe()
    assert machine.wheels_cuda == (13, 0)
    assert machine.packages == {"torch": "2.11.0+cu130", "triton": None, "fa3-fwd": None}
    assert (machine.why_no_compiler, machine.why_no_cuda) == (why_missing("triton"), None)
    assert machine.pinned == PINNED
    monkeypatch.setattr(doctor, "version", lambda name: None)
    assert doctor.probe().wheels_cuda is None


@pytest.mark.parametrize(
    ("have", "cc", "header", "why"),
    [
        ({"gcc"}, None, True, None),
        ({"clang"}, None, True, None),
        (set(), "cc", True, None),
        (set(), None, True, "no C compiler, which Triton needs to launch kernels: install gcc"),
        ({"gcc"}, None, False, "Python.h is missing, which Triton needs to launch kernels: install python3-dev"),
    ],
)
def test_what_triton_needs_to_launch(monkeypatch, tmp_path, have, cc, header, why):
    monkeypatch.delenv("CC", raising=False)
    if cc:
        monkeypatch.setenv("CC", cc)
    if header:
        (tmp_path / "Python.h").touch()
    monkeypatch.setattr(doctor.shutil, "which", lambda name: name if name in have else None)
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda name, scheme: str(tmp_path))
    assert doctor.probe().why_no_launcher == why
