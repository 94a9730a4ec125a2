"""Build the image and run commands in it, through the Docker SDK.

A container gets no network, a read-only root, no capabilities and a volume for its results. The recorded runs go into
that volume before the start and everything in it comes back afterwards, however the command ended. So nothing depends
on where the engine is or on whose user ids it knows, and a client that dies loses nothing: the container stays, and
the next run brings its results home first. Runs into one folder take turns, and what was appended on both sides
meanwhile, in the container and here, is merged.
"""

import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound
from docker.types import DeviceRequest, Mount
from docker.utils import parse_bytes
from rich.console import Console
from rich.text import Text

from kperf.console import of_standard_error, of_standard_output
from kperf.errors import MeasurementError, UsageError
from kperf.record.commit import git_commit
from kperf.record.files import files_below, write_atomically

IMAGE = "kperf"
RESULTS = "/results"
"""Where a container writes its results; the image sets KPERF_RESULTS to it."""

Gpus = Literal["auto", "all", "none"]

_NO_TOOLKIT = (
    "Docker has no NVIDIA container toolkit: install nvidia-container-toolkit, then "
    "`sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker`"
)

_ROOT = Path(__file__).resolve().parents[1]
_OWNER = 1000
"""User and group id of the image's user."""

_RESULTS_LABEL = "kperf.results"
_SEEDED_LABEL = "kperf.seeded"
_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")
_LAYER = re.compile(r"\[\d+/\d+\] (FROM|COPY|RUN) ")
_KEPT_LINES = 15
_STOP_SECONDS = 20
_INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it: 128 + SIGINT."""

_KILLED, _STOPPED = 137, 143
_LEAST_MEMORY = 6 << 20
"""Bytes that Docker wants for a container."""


@dataclass(frozen=True)
class BuiltImage:
    """What `build` made. bytes: the sum of its layers on disk; seconds: of the build."""

    tag: str
    id: str
    bytes: int
    layers: int
    seconds: float


def why_no_engine() -> tuple[str | None, str | None]:
    """Why no image can be built or run here, and why no GPU reaches a container; None where nothing is in the way."""
    try:
        with _engine(timeout=2) as engine:
            info = engine.info()
    except UsageError as error:
        return str(error), None
    # `--gpus` works with the toolkit's hook, its runtime, or a device that the engine discovered (CDI).
    runtimes, devices = info.get("Runtimes") or {}, info.get("DiscoveredDevices") or []
    hook = shutil.which("nvidia-container-runtime-hook")
    if hook or "nvidia" in runtimes or any("nvidia.com/gpu" in str(device) for device in devices):
        return None, None
    return None, _NO_TOOLKIT


def build(
    tag: str = IMAGE,
    *,
    base: str | None = None,
    triton: str | None = None,
    with_flash_attn: bool = False,
    context: Path = _ROOT,
    console: Console | None = None,
) -> BuiltImage:
    """Build the image, one line a step with its seconds.

    base, triton and with_flash_attn are the Dockerfile's build arguments. Raises `UsageError` if there is no engine or
    no space, `MeasurementError` with the failing step and its last lines if a step fails.
    """
    console = console or of_standard_output()
    arguments = {"COMMIT": git_commit()}
    arguments |= {"BASE": base} if base else {}
    arguments |= {"TRITON": triton} if triton else {}
    arguments |= {"WITH_FLASH_ATTN": "1"} if with_flash_attn else {}
    start = time.monotonic()
    with _engine() as engine:
        events = engine.api.build(path=str(context), tag=tag, buildargs=arguments, decode=True, rm=True, forcerm=True)
        _follow_build(events, console)
        image = engine.images.get(tag)
        layers = len(image.attrs["RootFS"]["Layers"])
        built = BuiltImage(tag, str(image.id), int(image.attrs["Size"]), layers, time.monotonic() - start)
    console.print(f"{tag}: {built.bytes / 1e9:.2f} GB, {layers} layers, built in {built.seconds:.0f} s, {built.id}")
    return built


def run(
    command: Sequence[str],
    results: Path,
    *,
    image: str = IMAGE,
    gpus: Gpus = "auto",
    memory: str | None = None,
    console: Console | None = None,
) -> int:
    """Run a command in a fresh container, its output streamed, and bring its results back; returns its exit status.

    results: the folder that goes in and comes back, made if missing. gpus: "auto" takes them if this machine has an
    NVIDIA driver. memory: as Docker writes it ("32g"), four fifths of the engine's if None. Ctrl-C stops the container
    and returns 130. Raises `UsageError` for what a person has to fix, `MeasurementError` if the container is killed.
    """
    console = console or of_standard_error()
    with _session(command, results, image, gpus, memory, console) as container:
        output = container.attach(stream=True, demux=True)
        container.start()
        with _sigterm_as_ctrl_c():
            try:
                _copy_output(output)
                status = int(container.wait()["StatusCode"])
            except KeyboardInterrupt:
                console.print("stopping the container; its results come back")
                container.stop(timeout=_STOP_SECONDS)
                return _INTERRUPTED
        container.reload()
        if status == _KILLED and container.attrs["State"]["OOMKilled"]:
            limit = int(container.attrs["HostConfig"]["Memory"])
            raise MeasurementError(f"the container ran out of its {limit / 1e9:.1f} GB of memory: raise --memory")
        if status in {_KILLED, _STOPPED}:
            raise MeasurementError("the container was ended from outside; run the command again, it resumes")
        return status


def shell(
    results: Path, *, image: str = IMAGE, gpus: Gpus = "auto", memory: str | None = None, console: Console | None = None
) -> int:
    """Bash in a fresh container, on this terminal; its results come back when it ends. Returns its exit status.

    The terminal is handed to Docker's own client, which knows raw mode and resizing.
    """
    client = shutil.which("docker")
    if client is None:
        raise UsageError("no docker command on the PATH, which the shell needs: install Docker's client")
    terminal = sys.stdin.isatty()
    options = {"tty": terminal, "stdin_open": True}
    with _session(["bash"], results, image, gpus, memory, console or of_standard_error(), **options) as container:
        return subprocess.run([client, "start", "--attach", "--interactive", container.id], check=False).returncode


@contextmanager
def _session(
    command: Sequence[str],
    results: Path,
    image: str,
    gpus: Gpus,
    memory: str | None,
    console: Console,
    **options: bool,
) -> Iterator[Any]:
    """A created container with the results in it; afterwards they come back and it is removed."""
    results = _writable(results)
    with _turn(results, console), _engine() as engine, tempfile.TemporaryFile() as archive:
        _collect_earlier(engine, results, console)
        try:
            image_id = str(engine.images.get(image).id)
        except ImageNotFound:
            raise UsageError(f"there is no image {image}: run `make image`") from None
        with_gpu = gpus == "all" or (gpus == "auto" and Path("/dev/nvidiactl").exists())
        limit = _memory_limit(memory, int(engine.info()["MemTotal"]))
        seeds = _pack(results, archive)
        container = engine.containers.create(
            image,
            list(command),
            environment={"KPERF_IMAGE_ID": image_id},
            device_requests=[DeviceRequest(count=-1, capabilities=[["gpu"]])] if with_gpu else [],
            labels={_RESULTS_LABEL: str(results), _SEEDED_LABEL: json.dumps(seeds)},
            mounts=[Mount(RESULTS, None)],  # a volume of its own, made as the image has the folder
            init=True,
            network_mode="none",
            read_only=True,
            tmpfs={"/tmp": "rw,exec,nosuid,nodev,mode=1777"},  # exec: Triton loads the launchers it compiles
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            pids_limit=4096,
            mem_limit=limit,
            **options,
        )
        try:
            container.put_archive(RESULTS, archive)
        except BaseException:  # what came in is cut short: it must not come back as results
            container.remove(v=True, force=True)
            raise
        try:
            yield container
        finally:
            _bring_home(container, console)


def _memory_limit(memory: str | None, total: int) -> int:
    """Bytes, four fifths of the engine's if nothing is asked for; Docker itself takes 0 for no limit at all."""
    if memory is None:
        return int(0.8 * total)
    limit = int(parse_bytes(memory))
    if not _LEAST_MEMORY <= limit <= total:
        raise UsageError(f"--memory {memory} is not between 6m and the engine's {total / 1e9:.0f} GB: name one that is")
    return limit


def _writable(results: Path) -> Path:
    with suppress(OSError):
        results.mkdir(parents=True, exist_ok=True)
        if os.access(results, os.W_OK):
            return results.resolve()
    raise UsageError(f"{results} is not a folder that you can write: name another with --results")


@contextmanager
def _turn(results: Path, console: Console) -> Iterator[None]:
    """The only run into these results: another one that has begun is waited for, as it has the GPU too."""
    folder = os.open(results, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.print(f"another run into {results} is under way: waiting for its end")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _collect_earlier(engine: Any, results: Path, console: Console) -> None:
    """Results of a run whose client died come home before the next run starts."""
    label = f"{_RESULTS_LABEL}={results}"
    for container in engine.containers.list(all=True, filters={"label": label}):
        if container.status == "running":
            raise UsageError(
                f"container {container.short_id} of an earlier run is still measuring into {results}: wait for it, "
                f"or end it with `docker stop {container.short_id}`"
            )
        console.print(f"container {container.short_id} of an earlier run is there: its results come first")
        _bring_home(container, console)


def _bring_home(container: Any, console: Console) -> None:
    """Copy the results back, each file whole or not at all, then remove the container and its volume.

    Records that were appended on both sides since the start are merged. Any other file that changed on both sides, or
    into which a process here is measuring, is kept twice, the container's with its id as a suffix. If anything fails
    the container stays, so that the results do.
    """
    results = Path(container.labels[_RESULTS_LABEL])
    seeds = {name: _Seed(*seed) for name, seed in json.loads(container.labels[_SEEDED_LABEL]).items()}
    try:
        stream, _ = container.get_archive(RESULTS)
        with tempfile.TemporaryDirectory(dir=results, prefix=".container-") as folder:
            _unpack(stream, Path(folder))
            for name in map(str, files_below(Path(folder, "results"))):
                theirs = Path(folder, "results", name).read_bytes()
                if name in seeds and seeds[name].is_start_of(theirs, exactly=True):
                    continue
                if not _merge(results / name, theirs, seeds.get(name)):
                    here = results / f"{name}.{container.short_id}"
                    console.print(f"{name} changed here and in the container: the container's is {here.name}")
                    write_atomically(here, theirs)
    except APIError as error:
        raise _kept(results, container, str(error.explanation or error)) from None
    except requests.RequestException:  # an OSError too, but of the engine
        raise
    except (OSError, tarfile.TarError) as error:
        raise _kept(results, container, getattr(error, "strerror", None) or str(error)) from None
    container.remove(v=True, force=True)


def _kept(results: Path, container: Any, reason: str) -> MeasurementError:
    return MeasurementError(
        f"the results could not be brought to {results} ({reason}): they are safe in container {container.short_id}; "
        "mend that and run again, which brings them first"
    )


@dataclass(frozen=True)
class _Seed:
    """What a file was when it went into a container."""

    sha256: str
    size: int

    def is_start_of(self, content: bytes, *, exactly: bool = False) -> bool:
        """Whether the content is the seed with something appended, or nothing."""
        if len(content) < self.size or (exactly and len(content) > self.size):
            return False
        return _digest(content[: self.size]) == self.sha256


def _merge(here: Path, theirs: bytes, seed: _Seed | None) -> bool:
    """Put the container's content where it came from, with what was appended here meanwhile; False if neither fits."""
    here.parent.mkdir(parents=True, exist_ok=True)
    with _unshared(here) as ours:
        if ours is None:
            return False
        merged = theirs if _unchanged(ours, seed) else _merged(here.name, ours, theirs, seed)
        if merged is not None and merged != ours:
            write_atomically(here, merged)
        return merged is not None


@contextmanager
def _unshared(path: Path) -> Iterator[bytes | None]:
    """The content of a file, empty if there is none, under its store's lock; None if a process is measuring into it."""
    if not path.is_file():
        yield b""
        return
    with path.open("rb") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield stream.read()


def _unchanged(ours: bytes, seed: _Seed | None) -> bool:
    return not ours if seed is None else seed.is_start_of(ours, exactly=True)


def _merged(name: str, ours: bytes, theirs: bytes, seed: _Seed | None) -> bytes | None:
    """Both sides' records: the lines of the one appended to the other's, environments by their id; None if not both."""
    if ours == theirs:
        return ours
    seed = seed or _Seed(_digest(b""), 0)
    if name.endswith(".jsonl") and seed.is_start_of(ours) and seed.is_start_of(theirs):
        added, known = theirs[seed.size :], ours[seed.size :]
        if added in known:  # an earlier try to bring them home came this far
            return ours
        return ours + added if ours.endswith(b"\n") else None
    if name == "environment.json":
        with suppress(ValueError, TypeError):
            return json.dumps(json.loads(theirs) | json.loads(ours), indent=2).encode() + b"\n"
    return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _pack(results: Path, archive: IO[bytes]) -> dict[str, tuple[str, int]]:
    """Write the results as a tar archive that belongs to the image's user; returns sha256 and size of what is in it."""

    def member(name: Path, kind: bytes, size: int = 0) -> tarfile.TarInfo:
        made = tarfile.TarInfo(str(name))
        made.type, made.size, made.mtime = kind, size, (results / name).stat().st_mtime
        made.uid = made.gid = _OWNER
        made.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
        return made

    names = files_below(results)
    seeds = {}
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for folder in sorted({folder for name in names for folder in name.parents} - {Path()}):
            tar.addfile(member(folder, tarfile.DIRTYPE))
        for name in names:
            content = (results / name).read_bytes()  # once: a process here may be appending
            tar.addfile(member(name, tarfile.REGTYPE, len(content)), io.BytesIO(content))
            seeds[str(name)] = (_digest(content), len(content))
    archive.seek(0)
    return seeds


def _unpack(stream: Iterable[bytes], folder: Path) -> None:
    """Extract an archive that a container made: nothing lands outside the folder, no links, no odd modes."""
    with tempfile.TemporaryFile() as archive:
        for chunk in stream:
            archive.write(chunk)
        archive.seek(0)
        with tarfile.open(fileobj=archive) as tar:
            plain = [member for member in tar if member.isfile() or member.isdir()]
            tar.extractall(folder, members=plain, filter="data")


def _copy_output(output: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    for out, err in output:
        for data, stream in ((out, sys.stdout), (err, sys.stderr)):
            if data:
                stream.buffer.write(data)  # bytes: a piece may end inside a character
                stream.buffer.flush()


@contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """`timeout` and CI systems end a command with SIGTERM: the container has to be stopped then too."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _follow_build(events: Iterable[dict[str, Any]], console: Console) -> None:
    """Print a line a finished step; on a terminal also what the step in progress says."""
    step, since, last_lines = "", time.monotonic(), deque[str](maxlen=_KEPT_LINES)

    def finish() -> None:
        if _LAYER.match(step):
            took = "cached" if " ---> Using cache" in last_lines else f"{time.monotonic() - since:.0f} s"
            console.print(Text.assemble(f"{step} ", (took, "dim")))

    with console.status("sending the build context") as status:
        for event in events:
            if "error" in event:
                raise _build_failure(str(event["error"]), step, last_lines)
            for line in str(event.get("stream", "")).splitlines():
                if match := _STEP.match(line):
                    finish()
                    step, since = _shorten(f"[{match[1]}/{match[2]}] {match[3]}"), time.monotonic()
                    last_lines.clear()
                elif line.strip():
                    last_lines.append(line)
                status.update(Text(f"{step}  {_shorten(line)}"))
    finish()


def _shorten(line: str) -> str:
    words = " ".join(line.split())
    return words if len(words) <= 100 else words[:97] + "..."


def _build_failure(error: str, step: str, last_lines: Iterable[str]) -> Exception:
    text = "\n".join([*last_lines, error])
    if _is_disk_full(text):
        return UsageError(_disk_full(f"at {step}"))
    if "] FROM " in step:
        return UsageError(f"the base image cannot be had ({error}): check the network, or name another with --base")
    return MeasurementError(f"the build failed at {step}\n{text}")


def _is_disk_full(text: str) -> bool:
    return "no space left on device" in text.lower()


def _disk_full(where: str) -> str:
    return f"the disk of the Docker engine is full {where}: free some with `docker system prune`, then run again"


@contextmanager
def _engine(timeout: int = 60) -> Iterator[Any]:
    """A client of an engine that answers; errors of the engine leave as sentences."""
    try:
        engine = docker.from_env(timeout=timeout)
    except (DockerException, requests.RequestException) as error:
        raise _unreachable(error) from None
    try:
        yield engine
    except APIError as error:
        raise _refused(str(error.explanation or error)) from None
    except DockerException as error:  # the SDK's own checks of what it was given
        raise UsageError(f"Docker does not take that: {error}") from None
    except requests.RequestException:
        raise MeasurementError(
            "the Docker engine stopped answering: start it and run again; what a container recorded is safe in it, and "
            "the next run brings it first"
        ) from None
    finally:
        engine.close()


def _unreachable(error: Exception) -> UsageError:
    where = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    if "Permission denied" in str(error):
        return UsageError(
            f"you may not use the Docker engine at {where}: `sudo usermod -aG docker $USER`, then log in again"
        )
    return UsageError(f"no Docker engine answers at {where}: `sudo systemctl start docker`, or set DOCKER_HOST")


def _refused(text: str) -> Exception:
    if "could not select device driver" in text:
        return UsageError(f"{_NO_TOOLKIT}; or run static, with --gpus none")
    if reason := re.search(r"nvidia-container-cli: (.*?)(: unknown)?$", text.strip()):
        return UsageError(f"the NVIDIA container toolkit cannot use the driver ({reason[1]}): check it with nvidia-smi")
    if _is_disk_full(text):
        return UsageError(_disk_full("and nothing was started"))
    return MeasurementError(f"the Docker engine refused: {text.strip()}")
