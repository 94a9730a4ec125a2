"""What this machine can run, and why not the rest. Asks NVML, the file system and Docker; never imports torch."""

import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import pynvml

from kperf.arch import SM_90A
from kperf.installation import PACKAGE, RESTORE, TTGIR_DIR, why_missing
from kperf.record.recorded import damage
from kperf.record.stack import look
from kperf.record.store import RECORDED

PINNED = ("torch", "triton", "fa3-fwd")
"""The packages whose versions decide what is measured."""

_DRIVER_OF_CUDA = {12: 525, 13: 580}
"""First NVIDIA driver branch of each CUDA major version (CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required
Driver Version"); a driver runs any minor version of its major one."""


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML sees it."""

    name: str
    capability: tuple[int, int]
    mig: bool
    processes: int
    """Compute processes on it now."""
    uuid: str
    """As CUDA writes it, without NVML's GPU- before."""


@dataclass(frozen=True)
class Machine:
    """The facts that decide what can run. A field that says why something is impossible is None when it is possible."""

    in_container: bool
    python: str
    packages: dict[str, str | None]
    pinned: dict[str, str]
    driver: str | None
    driver_cuda: tuple[int, int] | None
    wheels_cuda: tuple[int, int] | None
    gpus: tuple[Gpu, ...]
    why_no_gpu: str | None
    why_no_compiler: str | None
    why_no_cuda: str | None
    why_no_launcher: str | None
    why_no_cache: str | None
    why_no_results: str | None
    recorded: tuple[str, ...]
    why_no_recorded: str | None
    warnings: tuple[str, ...] = ()
    """Of the installed Triton."""
    why_no_overrides: str | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether something can run here; `why` is a sentence with the fix, or a warning where it can."""

    what: str
    possible: bool
    why: str = ""


def why_not_measured(machine: Machine) -> str | None:
    """None if kernels can be measured on this machine, else the first reason, one sentence with the fix."""
    return (
        machine.why_no_compiler
        or machine.why_no_cuda
        or machine.why_no_gpu
        or _why_old_driver(machine)
        or _why_not_hopper(machine.gpus)
        or machine.why_no_launcher
        or machine.why_no_cache
    )


def diagnose(machine: Machine) -> list[Verdict]:
    """What this machine can run: of kernels of one's own, of the figures, and of ttgir/."""
    not_traced = why_not_measured(machine)
    not_read = machine.why_no_compiler or machine.why_no_cache
    measured = not_traced or machine.why_no_overrides
    not_compiled = not_read or machine.why_no_overrides
    recorded = ", ".join(machine.recorded)
    why_not_drawn = not_compiled or machine.why_no_results or machine.why_no_recorded
    fa3 = (None if machine.packages["fa3-fwd"] else why_missing("fa3-fwd")) or measured
    return [
        Verdict("your kernels, without a GPU: `kperf diagnose --static`, `kperf ir`", not_read is None, not_read or ""),
        Verdict("your kernels, on this GPU: `kperf trace`, `kperf diagnose`", not_traced is None, not_traced or ""),
        Verdict("fig11 and fig12, measured here", measured is None, measured or _warnings(machine)),
        Verdict("FA3 in fig12, measured here", fa3 is None, fa3 or ""),
        Verdict(
            "fig11 and fig12, drawn from recorded runs",
            why_not_drawn is None,
            why_not_drawn or f"recorded on {recorded}",
        ),
        Verdict("ttgir, the overrides compiled and checked", not_compiled is None, not_compiled or "needs no GPU"),
    ]


def probe() -> Machine:
    """Look at this machine; takes well under two seconds."""
    driver, driver_cuda, gpus, why_no_gpu = _nvml()
    runtime = version("nvidia-cuda-runtime")
    stack = look()
    return Machine(
        in_container="KPERF_IN_CONTAINER" in os.environ,
        python=platform.python_version(),
        packages={"torch": stack.torch, "triton": stack.triton, "fa3-fwd": version("fa3-fwd")},
        pinned=_pinned(),
        driver=driver,
        driver_cuda=driver_cuda,
        wheels_cuda=_major_minor(runtime) if runtime else None,
        gpus=gpus,
        why_no_gpu=why_no_gpu,
        why_no_compiler=stack.why_no_compiler(),
        why_no_cuda=stack.why_no_cuda(),
        why_no_launcher=_why_no_launcher() or _why_no_execution(),
        why_no_cache=_why_no_cache(),
        why_no_results=_why_no_results(),
        recorded=_recorded(_results()),
        why_no_recorded=_why_no_recorded(_results()),
        warnings=tuple(stack.warnings()),
        why_no_overrides=_why_no_overrides(stack.triton, TTGIR_DIR),
    )


def visible_gpus() -> tuple[Gpu, ...]:
    """The NVIDIA GPUs that a program gets here, in its order; none without a driver."""
    return _nvml()[2]


def headline(machine: Machine) -> str:
    """One line for the start of a container: where the numbers will come from."""
    reason = why_not_measured(machine)
    if reason is None:
        return f"kperf: dynamic: measuring on {machine.gpus[0].name}, driver {machine.driver}"
    return f"kperf: static, from recorded runs: {reason}"


def _why_old_driver(machine: Machine) -> str | None:
    have, need = machine.driver_cuda, machine.wheels_cuda
    if have is None or need is None or have[0] >= need[0]:
        return None
    branch = _DRIVER_OF_CUDA.get(need[0])
    fix = f"install driver {branch} or newer" if branch else "install a newer driver"
    return f"driver {machine.driver} runs CUDA {_dotted(have)} and the wheels need {_dotted(need)}: {fix}"


def _why_not_hopper(gpus: tuple[Gpu, ...]) -> str | None:
    hoppers = [index for index, gpu in enumerate(gpus) if gpu.capability == SM_90A.compute_capability]
    if not hoppers:
        major, minor = gpus[0].capability
        return f"{gpus[0].name} is sm_{major}{minor}: use a machine with a Hopper GPU ({SM_90A.name}: {SM_90A.gpus})"
    if hoppers[0] != 0:
        return f"GPU 0 is {gpus[0].name}, not Hopper: set CUDA_VISIBLE_DEVICES={hoppers[0]}"
    return None


def _warnings(machine: Machine) -> str:
    gpu = machine.gpus[0]
    warnings = [*machine.warnings]
    warnings += [
        f"{name} is {installed}, not the {machine.pinned[name]} of the record"
        for name, installed in machine.packages.items()
        if installed and name in machine.pinned and installed.partition("+")[0] != machine.pinned[name]
    ]
    if gpu.mig:
        warnings.append("MIG is on: a slice is measured, not the whole GPU")
    if gpu.processes:
        warnings.append(f"{gpu.processes} other process(es) on the GPU will disturb the times")
    return "; ".join(warnings)


def _nvml() -> tuple[str | None, tuple[int, int] | None, tuple[Gpu, ...], str | None]:
    """Driver, the newest CUDA it runs, the GPUs, and why there is none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, None, (), _why_no_nvml(error)
    try:
        driver = pynvml.nvmlSystemGetDriverVersion()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        gpus = tuple(_gpu(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount()))
    except pynvml.NVMLError as error:
        return None, None, (), f"the NVIDIA driver answers with an error ({error}): check it with nvidia-smi"
    finally:
        pynvml.nvmlShutdown()
    visible, why = _visible(gpus), None
    if not visible:
        why = "the NVIDIA driver shows no GPU: check it with nvidia-smi"
        if gpus:
            why = "CUDA_VISIBLE_DEVICES hides every GPU: unset it"
    return driver, (cuda // 1000, cuda % 1000 // 10), visible, why


def _visible(gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs that CUDA programs get, by number or UUID (or its beginning); other names (MIG) are left to CUDA.

    As in CUDA, what comes after a GPU that is not there is hidden too (CUDA C++ Programming Guide, "CUDA Environment
    Variables").
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return gpus
    if re.fullmatch(r"[\d,\s-]*", chosen):
        numbers = [int(number) for number in re.findall(r"-?\d+", chosen)]
        return tuple(gpus[number] for number in takewhile(lambda number: 0 <= number < len(gpus), numbers))
    names = [name.strip() for name in chosen.split(",")]
    if all(name.startswith("GPU-") for name in names):
        named = ([gpu for gpu in gpus if f"GPU-{gpu.uuid}".startswith(name)] for name in names)
        return tuple(gpu for named_alike in takewhile(bool, named) for gpu in named_alike)
    return gpus


def _gpu(handle: object) -> Gpu:
    try:
        mig = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
    except pynvml.NVMLError:  # a GPU without MIG
        mig = False
    try:
        processes = len(pynvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except pynvml.NVMLError:
        processes = 0
    capability = tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    uuid = str(pynvml.nvmlDeviceGetUUID(handle)).removeprefix("GPU-")
    return Gpu(pynvml.nvmlDeviceGetName(handle), (capability[0], capability[1]), mig, processes, uuid)


def _why_no_nvml(error: Exception) -> str:
    if isinstance(error, pynvml.NVMLError_LibRmVersionMismatch):
        return "the NVIDIA driver was updated and the old one is still loaded: reboot"
    if "KPERF_IN_CONTAINER" not in os.environ:
        return "no NVIDIA driver answers: on a machine with a Hopper GPU, install driver 580 or newer"
    if Path("/proc/driver/nvidia/version").exists():  # the host's driver shows through, its libraries do not
        return "the host has an NVIDIA driver that this container does not see: start it with --gpus all"
    return "no GPU in this container: on a host with a Hopper GPU, start it with --gpus all"


def _why_no_launcher() -> str | None:
    """Triton compiles a launcher in C for each kernel signature."""
    if os.environ.get("CC") is None and not (shutil.which("gcc") or shutil.which("clang")):
        return "no C compiler, which Triton needs to launch kernels: install gcc"
    scheme = sysconfig.get_default_scheme().replace("posix_local", "posix_prefix")  # Debian's own, as Triton has it
    if not Path(sysconfig.get_path("include", scheme), "Python.h").exists():
        return f"Python.h is missing, which Triton needs to launch kernels: install python{sys.version_info[0]}-dev"
    return None


def triton_cache() -> Path:
    """Where Triton keeps what it compiles."""
    return Path(os.environ.get("TRITON_CACHE_DIR") or Path.home() / ".triton" / "cache")


def _why_no_cache() -> str | None:
    folder = triton_cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"0")
    except OSError as error:
        return f"Triton's cache {folder} cannot be written ({error.strerror}): set TRITON_CACHE_DIR to another folder"
    return None


def _why_no_execution() -> str | None:
    """Triton loads the launchers that it puts into its cache, so that folder must allow execution as well."""
    folder = triton_cache()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as inside:
            program = Path(inside, "probe")
            program.write_text("#!/bin/sh\n")
            program.chmod(0o700)
            subprocess.run([program], check=True)
    except OSError as error:
        if isinstance(error, PermissionError) and Path(str(error.filename)).name == "probe":
            return f"Triton's cache {folder} forbids execution: mount it without noexec (--tmpfs /tmp:exec)"
    return None  # also where it cannot be written, which is said of its own


def _why_no_results() -> str | None:
    folder = _results()
    if folder.is_dir() and os.access(folder, os.W_OK):
        return None
    return f"{folder} is not a folder that you can write: set KPERF_RESULTS to one; {RESTORE}"


def _recorded(results: Path) -> tuple[str, ...]:
    """GPUs for which both figures are recorded."""
    folders = sorted(path.parent for path in results.glob("*/fig12.jsonl"))
    return tuple(folder.name for folder in folders if any(folder.glob("fig11/*.timeline.json")))


def _why_no_recorded(results: Path) -> str | None:
    missing = f"{results} does not hold both: {RESTORE}"
    return damage(results) or (None if _recorded(results) else missing)


def _why_no_overrides(triton: str | None, root: Path) -> str | None:
    """None if the overrides are for this Triton; what else is wrong with a manifest is reported where it is read."""
    for path in sorted(root.glob("*/manifest.json")) if triton else ():
        try:
            made_for = json.loads(path.read_text())["triton"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if made_for != triton:
            fix = "install the locked wheels (`make setup`)"
            return f"the overrides are for Triton {made_for} and this is {triton}: {fix}"
    return None


def _results() -> Path:
    return Path(os.environ.get("KPERF_RESULTS") or RECORDED)


def _pinned() -> dict[str, str]:
    lock = PACKAGE.parent / "requirements" / "lock.txt"
    text = lock.read_text() if lock.exists() else ""
    versions = dict(re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", text, re.MULTILINE))
    return {name: versions[name] for name in PINNED if name in versions}


def version(distribution: str) -> str | None:
    """Of an installed package; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _major_minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


if __name__ == "__main__":
    print(headline(probe()))
