"""In what configuration the plain Triton kernel of attention runs: files in the form of AITER's, one an architecture.

`sm_90a-MHA-DEFAULT.json` holds, for each class of shapes that was tuned, the tiles, warps and stages found best:

    {"fwd": {"d256_s512_causal": {"BLOCK_M": 64, "BLOCK_N": 32, "PRELOAD_V": true, "num_warps": 4, ...}, ...}}

A class is a head_dim, a mask, and rows up to `s`; a shape is of the smallest class that holds it, or of the longest if
it is longer than all. `default`, which may be missing, is for shapes of which no class speaks. What the file says
nothing about is autotuned, and all is with KPERF_TRITON_AUTOTUNE=1. KPERF_TRITON_CONFIGS names another folder.
"""

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from kperf.arch import of
from kperf.attention.workload import Workload
from kperf.compat.triton.drivers import active_target
from kperf.errors import UsageError
from kperf.record.files import write_atomically
from kperf.record.store import Frozen, first_of

FOLDER = "KPERF_TRITON_CONFIGS"
AUTOTUNE = "KPERF_TRITON_AUTOTUNE"

_SHIPPED = Path(__file__).with_name("tuned")
_CLASS = re.compile(r"d(\d+)_s(\d+)_(causal|full)")
_DEFAULT = "default"


class Config(BaseModel):
    """Compile-time choices of one kernel, by the names that AITER's files have.

    BLOCK_M, BLOCK_N: rows of q, and of k and v, a tile; PRELOAD_V: whether v is loaded before the product with k;
    waves_per_eu: how many waves a SIMD unit of an AMD GPU is to hold, None where there is no such choice.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    BLOCK_M: Literal[16, 32, 64, 128]  # no more, as tiles have no tail: `workload.SEQ_LEN_STEP`
    BLOCK_N: Literal[16, 32, 64, 128]
    PRELOAD_V: bool
    waves_per_eu: Annotated[int, Field(ge=0, le=8)] | None = None
    num_warps: Literal[1, 2, 4, 8, 16]
    num_ctas: Literal[1] = 1
    num_stages: Annotated[int, Field(ge=1, le=8)]

    def options(self) -> dict[str, Any]:
        """As a launch takes them."""
        return self.model_dump(exclude_none=True)

    def __str__(self) -> str:
        return " ".join(f"{name}={int(value)}" for name, value in self.options().items())


def _class_name(name: str) -> str:
    if name != _DEFAULT and not _CLASS.fullmatch(name):
        raise ValueError(f"{name!r} is no class of shapes as d256_s512_causal is, and not {_DEFAULT!r}")
    return name


class ConfigFile(Frozen):
    """What a file holds: of the forward pass, a configuration a class of shapes."""

    fwd: dict[Annotated[str, AfterValidator(_class_name)], Config]


def class_of(workload: Workload) -> str:
    """The class that a shape stands for when it is tuned."""
    return f"d{workload.head_dim}_s{workload.seq_len}_{'causal' if workload.causal else 'full'}"


def architecture() -> str:
    """Of the GPU that kernels are launched on now: sm_90a, gfx942; one that `kperf.arch` does not know too."""
    target = active_target()
    with suppress(UsageError):
        return of(target).name
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch)


def path_of(architecture: str) -> Path:
    """The file of an architecture."""
    folder = os.environ.get(FOLDER)
    return (Path(folder) if folder else _SHIPPED) / f"{architecture}-MHA-DEFAULT.json"


def read(architecture: str) -> dict[str, Config]:
    """Class -> configuration; empty if there is no file. Raises `UsageError` if there is one that is not right."""
    path = path_of(architecture)
    try:
        classes = ConfigFile.model_validate_json(path.read_bytes()).fwd
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): remove it, or set {FOLDER}") from None
    except ValidationError as error:
        raise UsageError(f"{path} is no file of configurations ({first_of(error)}): `make tune` writes one") from None
    if architecture.startswith("sm_") and any(config.waves_per_eu is not None for config in classes.values()):
        raise UsageError(f"{path} says waves_per_eu, which {architecture} has not: it is of another architecture")
    return classes


def write(architecture: str, tuned: dict[str, Config]) -> Path:
    """Put these classes into the file, beside those that it has. Raises `UsageError` if it is broken."""
    path = path_of(architecture)
    content = ConfigFile(fwd=dict(sorted((read(architecture) | tuned).items(), key=_order)))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (content.model_dump_json(indent=2, exclude_none=True) + "\n").encode())
    return path


def _order(item: tuple[str, Config]) -> tuple[int, int, str]:
    match = _CLASS.fullmatch(item[0])
    return (int(match[1]), int(match[2]), match[3]) if match else (0, 0, "")


def configured(workload: Workload) -> Config | None:
    """What the GPU's file says of a shape; None if nothing, or if the environment asks for autotuning.

    Raises `UsageError` if the file is not right, or the environment's switch is neither 0 nor 1.
    """
    switch = os.environ.get(AUTOTUNE) or "0"
    if switch not in ("0", "1"):
        raise UsageError(f"{AUTOTUNE} is 0 or 1, not {switch}")
    if switch == "1":
        return None
    name = architecture()
    classes = read(name)
    alike: dict[int, Config] = {}
    for key, config in classes.items():
        shapes = _CLASS.fullmatch(key)
        if shapes and (int(shapes[1]), shapes[3] == "causal") == (workload.head_dim, workload.causal):
            alike[int(shapes[2])] = config
    holding = [seq_len for seq_len in alike if seq_len >= workload.seq_len]
    if not alike:
        return classes.get(_DEFAULT)
    return alike[min(holding) if holding else max(alike)]
