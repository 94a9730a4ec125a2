"""The append-only store of records of any kind, and the environment in which they were measured.

Everything that is read from disk is validated here; what a record holds is its reader's business.
"""

import fcntl
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Generic, NoReturn, Protocol, Self, TypeVar, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from kperf.errors import MeasurementError, UsageError
from kperf.installation import CHECKOUT
from kperf.record.files import RepeatedKeyError, from_json_once, read_regular, require_regular, write_atomically

SCHEMA = 1
"""First version of every kind of record; a reader refuses what is newer than its kind."""

RECORDED = (CHECKOUT or Path.cwd()) / "results"
"""Where the recorded runs of this repository lie, one folder a GPU; where it is installed, those of the folder."""


class Frozen(BaseModel):
    """What every record is: immutable, no unknown field, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _instant(text: str) -> str:
    if datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text} has no time zone")
    return text


Instant = Annotated[str, AfterValidator(_instant)]
"""ISO 8601, with a time zone."""

_MHz = Annotated[int, Field(ge=0, le=10_000)]
_Watts = Annotated[float, Field(ge=0, le=10_000)]
_Celsius = Annotated[int, Field(ge=-100, le=200)]
_Seconds = Annotated[float, Field(ge=0, le=1e11)]
"""Beyond these is no GPU, and no time of ours."""


class DeviceState(Frozen):
    """The GPU while it works, through NVML: MHz, watts, degrees Celsius, and why its clock is held down, if it is.

    at_s: when it was asked, power_at_s: when this reading of the power was first seen, in seconds of Unix time (None in
    old records). The driver reads some ten times a second: states of one power_at_s share one reading.
    """

    sm_mhz: _MHz
    power_w: _Watts
    temperature_c: _Celsius
    throttle: list[str]
    at_s: _Seconds | None = None
    power_at_s: _Seconds | None = None


class DeviceStates(Frozen):
    """The GPU in each of several rounds, a column a field of `DeviceState`; at_s, power_at_s: None in old records."""

    sm_mhz: list[_MHz]
    power_w: list[_Watts]
    temperature_c: list[_Celsius]
    throttle: list[list[str]]
    at_s: list[_Seconds] | None = None
    power_at_s: list[_Seconds] | None = None

    @classmethod
    def of(cls, states: Sequence[DeviceState]) -> "DeviceStates":
        """The columns of these; a time that one of them lacks is of none."""
        columns = {name: [getattr(state, name) for state in states] for name in cls.model_fields}
        return cls(**{name: None if None in column else column for name, column in columns.items()})

    def __len__(self) -> int:
        """Rounds."""
        return len(self.sm_mhz)

    @model_validator(mode="after")
    def _are_equally_long(self) -> Self:
        columns = [getattr(self, name) for name in type(self).model_fields]
        if len({len(column) for column in columns if column is not None}) > 1:
            raise ValueError("its columns are not equally long")
        return self


_Record = TypeVar("_Record", bound=BaseModel)


@dataclass(frozen=True)
class Layout(Generic[_Record]):
    """How records of one kind lie in the lines of a file.

    schema: the newest version that is known, which is written; read: the records in the object of a line, raises
    ValueError if they are none; lines: these records as lines.
    """

    schema: int
    read: Callable[[dict[str, Any]], Sequence[_Record]]
    lines: Callable[[Sequence[_Record]], Iterable[str]]


@functools.cache
def a_line_each(records: TypeAdapter[_Record], schema: int = SCHEMA) -> Layout[_Record]:
    """Each record has a line of its own."""
    return Layout(
        schema,
        lambda line: [records.validate_python(line)],
        lambda points: [record.model_dump_json() for record in points],
    )


Records = TypeAdapter[_Record] | Layout[_Record]
"""What is recorded of one kind: a layout, or the type of records of which each has a line."""


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
    recorded_at: Instant

    @property
    def id(self) -> str:
        """A hash of all but the command and the time: the same machine, software and commit give the same id."""
        same = self.model_dump(exclude={"command_line", "recorded_at"})
        return hashlib.sha256(json.dumps(same, sort_keys=True).encode()).hexdigest()[:12]

    @property
    def setting(self) -> dict[str, Any]:
        """What has to be the same for points of two cards to stand in one figure: all but card, host and command."""
        return self.model_dump(exclude={"gpu_uuid", "platform", "image", "command_line", "recorded_at"})


class Recorded(Protocol):
    """What every record says of where it comes from: the id of its environment, and the instant (`Instant`)."""

    @property
    def environment(self) -> str:
        """Its key in environment.json."""

    @property
    def recorded_at(self) -> str:
        """When it was made."""


_RECORDED_AT = re.compile(rb'"recorded_at": ?"([^"]*)"')
_ENVIRONMENTS: TypeAdapter[dict[str, Environment]] = TypeAdapter(dict[str, Environment])


def gpu_slug(name: str) -> str:
    """Folder name of a GPU: `h200` for NVIDIA H200, `h100-80gb-hbm3` for NVIDIA H100 80GB HBM3, `mi300x` for AMD's."""
    return "-".join(name.removeprefix("NVIDIA ").removeprefix("AMD Instinct ").lower().split())


def gpu_in_words(slug: str) -> str:
    """Name of a GPU as people write it, of its folder's: `H200` of h200, `H100` of h100-80gb-hbm3."""
    return re.sub(r"-\d+gb.*", "", slug).upper()


class RecordStore(Generic[_Record]):
    """`<folder>/<name>.jsonl` and `<folder>/environment.json`."""

    def __init__(self, folder: Path, name: str, records: Records[_Record]) -> None:
        """Nothing is opened until something is read or written."""
        self.folder = folder
        self.points_path = folder / f"{name}.jsonl"
        self.environments_path = folder / "environment.json"
        self.layout: Layout[_Record] = records if isinstance(records, Layout) else a_line_each(records)

    def points(self) -> list[_Record]:
        """All recorded points, in the order they were written; none if there is no file yet.

        Raises `UsageError` for a line that is not a point, a torn last line or a newer schema.
        """
        return [point for points, _ in self._read(allow_torn=False) for point in points]

    def environments(self) -> dict[str, Environment]:
        """All recorded environments by id; empty if there is no file yet."""
        try:
            return _ENVIRONMENTS.validate_python(from_json_once(read_regular(self.environments_path)))
        except FileNotFoundError:
            return {}
        except ValidationError as error:
            raise UsageError(f"{self.environments_path} is broken: {first_of(error)}") from None
        except RepeatedKeyError as error:
            raise UsageError(f"{self.environments_path} is broken: {error}") from None
        except ValueError:
            raise UsageError(f"{self.environments_path} is broken: it is not JSON") from None

    def environments_of(self, records: Iterable[Recorded]) -> dict[str, Environment]:
        """Those in which `records` were measured, by id; raises `UsageError` if one is not in environment.json."""
        used = {record.environment for record in records}
        known = self.environments()
        if missing := used - known.keys():
            raise UsageError(
                f"{self.environments_path} lacks the environment {min(missing)} of recorded points: restore it"
            )
        return {name: known[name] for name in sorted(used)}

    @contextmanager
    def writer(self) -> Iterator["Writer[_Record]"]:
        """Exclusive access for appending; repairs a torn last line first and says so through `Writer.repaired`.

        Raises `UsageError` if the folder is not writable or another process is measuring into it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.points_path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644)
            require_regular(descriptor)
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

    def _read(self, *, allow_torn: bool) -> Iterator[tuple[Sequence[_Record], int]]:
        """The points of each line and the offset of its end; a torn last line ends the reading if that is allowed."""
        try:
            data = read_regular(self.points_path)
        except FileNotFoundError:
            return
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

    def _parse(self, line: bytes, number: int) -> Sequence[_Record]:
        try:
            return cast(Sequence[_Record], _parsed(self.layout, line))
        except UsageError as error:
            raise UsageError(f"{self.points_path}, line {number} {error}") from None


_LONG = re.compile(rb"[:,\[]\s*-?\d{19}")
"""Where a number may stand that no machine word holds: few lines have as much as that."""


def _too_large(value: Any) -> int | None:
    """A whole number in it that is no 64-bit one."""
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return next((number for part in parts if (number := _too_large(part))), None)
    return value if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63 else None


@functools.lru_cache(maxsize=1 << 14)
def _parsed(layout: Layout[Any], line: bytes) -> Any:
    """The records in a line. Each claim, figure and table reads the file anew; the same bytes are the same records.

    There is room for all of results/: with less, who reads its files in turn finds none of their lines.

    Raises `UsageError` that says what is wrong with the line.
    """
    try:
        record = from_json_once(line)
    except RepeatedKeyError as error:
        raise UsageError(f"is not a recorded point: {error}") from None
    except ValueError:
        raise UsageError("is not JSON: restore the file or delete that line") from None
    if _LONG.search(line) and (number := _too_large(record)):
        raise UsageError(f"is not a recorded point: {str(number)[:20]}... is no number that anything here counts")
    if not isinstance(record, dict):
        raise UsageError("is not a recorded point: it is no object")
    version = record.get("schema_version")
    if type(version) is not int or version < SCHEMA:
        raise UsageError(f"is not a recorded point: schema_version is {json.dumps(version)}")
    if version > layout.schema:
        raise UsageError(f"has schema {version} and this program knows {layout.schema}: use a newer one")
    try:
        return layout.read(record)
    except ValidationError as error:
        raise UsageError(f"is not a recorded point: {first_of(error)}") from None
    except ValueError as error:
        raise UsageError(f"is not a recorded point: {error}") from None


class Writer(Generic[_Record]):
    """Appends to a locked store. A failed write leaves the file as it was."""

    def __init__(self, store: RecordStore[_Record], descriptor: int) -> None:
        """Read what is there; cut a torn last line off, into a file beside."""
        self._store = store
        self._descriptor = descriptor
        self._appended = b""
        self.points: list[_Record] = []
        end = 0
        for points, line_end in store._read(allow_torn=True):
            self.points.extend(points)
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
        data = b"".join(line.encode() + b"\n" for line in self._store.layout.lines(points))
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


def recorded_folder(
    results: Path, file: str = "fig12.jsonl", *, gpu: str | None = None, holds: Callable[[Path], bool] | None = None
) -> Path:
    """The folder to draw from without measuring: that of the GPU which is named, else the first of `recorded_folders`.

    `holds`: whether a folder has what is asked for; the first that has it comes before those that lack it.

    Raises `UsageError` when none has `file`, or not the one that is named.
    """
    if gpu is not None:
        names = sorted(path.relative_to(results).parts[0] for path in results.glob(f"*/{file}"))
        if gpu not in names:
            there = f"there is {', '.join(names)}" if names else "of no GPU at all"
            raise UsageError(f"{results} holds no recorded {file} of {gpu!r}: {there}")
        return results / gpu
    folders = recorded_folders(results, file)
    return next(filter(holds, folders), folders[0])


def recorded_folders(results: Path, file: str = "fig12.jsonl") -> list[Path]:
    """Those under `results` that have `file`, in the order of `by_preference`. Raises `UsageError` when none has."""
    folders = sorted(folder for folder in results.glob("*") if os.path.lexists(folder / file))
    if not folders:
        refuse_one_gpus(results, file)
        raise UsageError(f"{results} holds no recorded {file}: measure on a Hopper GPU, or name another --results")
    return by_preference(folders, file)


def refuse_one_gpus(results: Path, file: str) -> None:
    """Raise `UsageError` for the folder of one GPU, in which `file` itself is, and not a folder that holds it."""
    if os.path.lexists(results / file):
        raise UsageError(f"{results} is the folder of one GPU: name the one around it, {results.absolute().parent}")


def by_preference(folders: Sequence[Path], file: str) -> list[Path]:
    """Folders that have `file`: first that of this machine's GPU, then the one whose record is the newest."""
    from kperf.record.machine import visible_gpus  # it reads where records are from here

    own = [gpu_slug(gpu.name) for gpu in visible_gpus()[:1]]
    return sorted(folders, key=lambda folder: (folder.name in own, _newest(folder / file)), reverse=True)


def _newest(path: Path) -> bytes:
    """When the last of a file's records was made; empty where that is not known."""
    try:
        return max(_RECORDED_AT.findall(read_regular(path)), default=b"")
    except (OSError, UsageError):
        return b""


def first_of(error: ValidationError) -> str:
    """The first thing that is wrong with a record, on one line: where, and what."""
    detail = error.errors()[0]
    place = ".".join(str(part) for part in detail["loc"])
    message = detail["msg"].removeprefix("Value error, ")
    text = " ".join((f"{place}: {message}" if place else message).split())  # a key may hold a line's end
    return text.encode(errors="backslashreplace").decode()
