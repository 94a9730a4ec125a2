"""The append-only store of records of any kind, and the environment in which they were measured.

Everything that is read from disk is validated here; what a record holds is its reader's business.
"""

import fcntl
import functools
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Generic, NoReturn, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import from_json

from kperf.errors import MeasurementError, UsageError
from kperf.installation import CHECKOUT
from kperf.record.files import write_atomically

SCHEMA = 1
"""First version of every kind of record; a reader refuses what is newer than its kind."""

RECORDED = (CHECKOUT or Path.cwd()) / "results"
"""Where the recorded runs of this repository lie, one folder a GPU; where it is installed, those of the folder."""


class Frozen(BaseModel):
    """What every record is: immutable, no unknown field, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DeviceState(Frozen):
    """The GPU while it works, through NVML: MHz, watts, degrees Celsius, and why its clock is held down, if it is.

    at_s: when it was asked, power_at_s: when this reading of the power was first seen, in seconds of Unix time (None in
    old records). The driver reads some ten times a second: states of one power_at_s share one reading.
    """

    sm_mhz: int
    power_w: float
    temperature_c: int
    throttle: list[str]
    at_s: float | None = None
    power_at_s: float | None = None


def _as_the_line_before(given: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo) -> list[DeviceState]:
    """What is timed in turn has the states of the same rounds, most of its line: they are made once, not each time."""
    before = info.context
    if before is None:
        return cast(list[DeviceState], validate(given))
    if before["given"] != given:
        before |= {"made": validate(given), "given": given}
    return cast(list[DeviceState], before["made"])


DeviceStates = Annotated[list[DeviceState], WrapValidator(_as_the_line_before)]

_Record = TypeVar("_Record", bound=BaseModel)


class Environment(Frozen):
    """Where and with what a run was measured. MHz, watts."""

    gpu: str
    gpu_uuid: str
    compute_capability: str
    driver: str
    cuda: str
    max_sm_mhz: int
    max_memory_mhz: int
    power_limit_w: float
    torch: str
    triton: str
    cudnn: str
    fa3_fwd: str | None
    flash_attn: str | None
    python: str
    platform: str
    image: str | None
    git_commit: str
    command_line: str
    recorded_at: str

    @property
    def id(self) -> str:
        """A hash of all but the command and the time: the same machine, software and commit give the same id."""
        same = self.model_dump(exclude={"command_line", "recorded_at"})
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def setting(self) -> dict[str, Any]:
        """What has to be the same for points of two cards to stand in one figure: all but card, host and command."""
        return self.model_dump(exclude={"gpu_uuid", "platform", "image", "command_line", "recorded_at"})


_ENVIRONMENTS: TypeAdapter[dict[str, Environment]] = TypeAdapter(dict[str, Environment])


def gpu_slug(name: str) -> str:
    """Folder name of a GPU: `h200` for NVIDIA H200, `h100-80gb-hbm3` for NVIDIA H100 80GB HBM3, `mi300x` for AMD's."""
    return "-".join(name.removeprefix("NVIDIA ").removeprefix("AMD Instinct ").lower().split())


class RecordStore(Generic[_Record]):
    """`<folder>/<name>.jsonl` and `<folder>/environment.json`."""

    def __init__(self, folder: Path, name: str, records: TypeAdapter[_Record], schema: int = SCHEMA) -> None:
        """`schema`: the newest version that `records` knows. Nothing is opened until something is read or written."""
        self.folder = folder
        self.points_path = folder / f"{name}.jsonl"
        self.environments_path = folder / "environment.json"
        self._records = records
        self._schema = schema

    def points(self) -> list[_Record]:
        """All recorded points, in the order they were written; none if there is no file yet.

        Raises `UsageError` for a line that is not a point, a torn last line or a newer schema.
        """
        return [point for point, _ in self._read(allow_torn=False)]

    def environments(self) -> dict[str, Environment]:
        """All recorded environments by id; empty if there is no file yet."""
        if not self.environments_path.exists():
            return {}
        try:
            return _ENVIRONMENTS.validate_json(self.environments_path.read_bytes())
        except ValidationError as error:
            raise UsageError(f"{self.environments_path} is broken: {first_of(error)}") from None
        except OSError as error:
            raise UsageError(f"{self.environments_path} cannot be read: {error.strerror}") from None

    @contextmanager
    def writer(self) -> Iterator["Writer[_Record]"]:
        """Exclusive access for appending; repairs a torn last line first and says so through `Writer.repaired`.

        Raises `UsageError` if the folder is not writable or another process is measuring into it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.points_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except OSError as error:
            raise UsageError(
                f"{self.points_path} cannot be written ({error.strerror}); name another --results"
            ) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UsageError(f"another process is measuring into {self.points_path}; wait for it") from None
            if not _is_at(self.points_path, descriptor):
                raise UsageError(f"{self.points_path} was replaced by results that came home just now; run again")
            yield Writer(self, descriptor)
        finally:
            os.close(descriptor)

    def _read(self, *, allow_torn: bool) -> Iterator[tuple[_Record, int]]:
        """Points with the offset at which each line ends; a torn last line ends the reading if that is allowed."""
        try:
            data = self.points_path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise UsageError(f"{self.points_path} cannot be read: {error.strerror}") from None
        *lines, tail = data.split(b"\n")
        end = 0
        for number, line in enumerate(lines, 1):
            end += len(line) + 1
            if line.strip():
                yield self._parse(line, number), end
        if not tail:
            return
        try:  # an editor may have left out the last newline
            last = self._parse(tail, len(lines) + 1)
        except UsageError:
            if allow_torn:
                return
            raise UsageError(
                f"{self.points_path} ends in the middle of line {len(lines) + 1}: measuring again repairs it, "
                f"or delete that line"
            ) from None
        yield last, end + len(tail)

    def _parse(self, line: bytes, number: int) -> _Record:
        try:
            return cast(_Record, _parsed(self._records, self._schema, line))
        except UsageError as error:
            raise UsageError(f"{self.points_path}, line {number} {error}") from None


_LINE_BEFORE: dict[str, Any] = {"given": [], "made": []}
"""Of the line that was read last, what the next may have as well."""


@functools.lru_cache(maxsize=1 << 14)
def _parsed(records: TypeAdapter[Any], schema: int, line: bytes) -> Any:
    """The record in a line. Each claim, figure and table reads the file anew; the same bytes are the same record.

    There is room for all of results/: with less, who reads its files in turn finds none of their lines.

    Raises `UsageError` that says what is wrong with the line.
    """
    try:
        record = from_json(line)
    except ValueError:
        raise UsageError("is not JSON: restore the file or delete that line") from None
    if not isinstance(record, dict):
        raise UsageError("is not a recorded point: it is no object")
    version = record.get("schema_version")
    if type(version) is not int or version < SCHEMA:
        raise UsageError(f"is not a recorded point: schema_version is {json.dumps(version)}")
    if version > schema:
        raise UsageError(f"has schema {version} and this program knows {schema}: use a newer one")
    try:
        return records.validate_python(record, context=_LINE_BEFORE)
    except ValidationError as error:
        raise UsageError(f"is not a recorded point: {first_of(error)}") from None


class Writer(Generic[_Record]):
    """Appends to a locked store. A failed write leaves the file as it was."""

    def __init__(self, store: RecordStore[_Record], descriptor: int) -> None:
        """Read what is there; cut a torn last line off, into a file beside."""
        self._store = store
        self._descriptor = descriptor
        self._appended = b""
        self.points: list[_Record] = []
        end = 0
        for point, line_end in store._read(allow_torn=True):
            self.points.append(point)
            end = line_end
        size = os.fstat(descriptor).st_size
        self.repaired = size - end
        if self.repaired:
            torn = os.pread(descriptor, self.repaired, end)
            with store.points_path.with_suffix(".jsonl.torn").open("ab") as beside:
                beside.write(torn + b"\n")
            os.ftruncate(descriptor, end)
            os.fsync(descriptor)
        elif size and os.pread(descriptor, 1, size - 1) != b"\n":
            os.write(descriptor, b"\n")

    def append(self, points: Sequence[_Record]) -> None:
        """Write the points of one workload in one piece and flush it to the disk.

        Raises `MeasurementError` if the disk is full, or if another file has taken this one's place, as an editor or
        git puts it there: what was measured since goes into a file beside.
        """
        data = b"".join(point.model_dump_json().encode() + b"\n" for point in points)
        if not _is_at(self._store.points_path, self._descriptor):
            self._keep_beside(self._appended + data)
        before = os.fstat(self._descriptor).st_size
        try:
            written = 0
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
            os.fsync(self._descriptor)
        except BaseException as error:
            os.ftruncate(self._descriptor, before)
            if isinstance(error, OSError):
                message = f"{self._store.points_path}: {error.strerror}; what was recorded before is intact"
                raise MeasurementError(message) from None
            raise
        self._appended += data
        self.points.extend(points)

    def _keep_beside(self, data: bytes) -> NoReturn:
        path = self._store.points_path
        beside = path.with_suffix(f".jsonl.{os.getpid()}")
        write_atomically(beside, data)
        raise MeasurementError(
            f"{path} was replaced while it was measured into: the points since then are in {beside.name}; append them "
            "to it and run again"
        )

    def record_environment(self, environment: Environment) -> str:
        """Add the environment to environment.json if it is new; returns its id."""
        folder = os.open(self._store.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # the other stores of the folder write the same file
            known = self._store.environments()
            if environment.id not in known:
                known[environment.id] = environment
                text = json.dumps({key: value.model_dump() for key, value in known.items()}, indent=2) + "\n"
                write_atomically(self._store.environments_path, text)
        finally:
            os.close(folder)
        return environment.id


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def recorded_folder(results: Path, file: str = "fig12.jsonl") -> Path:
    """The folder to draw from without a GPU: the one under `results` that has `file`, h200 if there are several.

    Raises `UsageError` when none has.
    """
    folders = sorted(folder for folder in results.glob("*") if (folder / file).is_file())
    if not folders:
        raise UsageError(f"{results} holds no recorded {file}: measure on a Hopper GPU, or name another --results")
    return next((folder for folder in folders if folder.name == "h200"), folders[0])


def first_of(error: ValidationError) -> str:
    """The first thing that is wrong with a record, on one line: where, and what."""
    detail = error.errors()[0]
    place = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    return " ".join((f"{place}: {message}" if place else message).split())  # a key may hold a line's end
