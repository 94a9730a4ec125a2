"""Options that several commands have, and how their words are read."""

from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kperf.errors import UsageError

if TYPE_CHECKING:
    from kperf.attention.workload import Workload

ROUNDS = 40
"""Rounds of a measurement: enough for an interval, few enough for minutes."""


class DeviceChoice(StrEnum):
    """Where to run."""

    auto = "auto"
    cuda = "cuda"


class CtaChoice(StrEnum):
    """Which CTAs of a launch are recorded."""

    auto = "auto"
    all = "all"
    sampled = "sampled"


class Form(StrEnum):
    """How records are printed."""

    jsonl = "jsonl"
    csv = "csv"


class Sweep(StrEnum):
    """The two panels of Fig. 12."""

    seq_len = "seq_len"
    batch_size = "batch_size"


class Origin(StrEnum):
    """Who claims."""

    paper = "paper"
    ours = "ours"


class Gpus(StrEnum):
    """The GPUs of a container."""

    auto = "auto"
    all = "all"
    none = "none"


def is_no_file(folder: Path | None) -> Path | None:
    """A folder, or what can become one. Raises `UsageError` for a file, or a path through one."""
    if folder is not None:
        there = next((path for path in (folder, *folder.parents) if path.exists()), folder)
        if there.exists() and not there.is_dir():
            raise UsageError(f"{there} is a file, and recorded runs are in a folder: name a folder")
    return folder


Results = Annotated[
    Path,
    typer.Option(
        envvar="KPERF_RESULTS", help="Folder of recorded runs, one folder a GPU inside.", show_default=False,
        callback=is_no_file,
    ),
]  # fmt: skip
Gpu = Annotated[str | None, typer.Option(help="A folder in RESULTS; this machine's, else the newest record's.")]
WrittenGpu = Annotated[
    str | None, typer.Option("--gpu", help="Whose records --write takes: a folder in RESULTS; else as they are shown.")
]
DeviceOption = Annotated[DeviceChoice, typer.Option(help="auto: static without a Hopper GPU; cuda: fail without one.")]
Rounds = Annotated[int, typer.Option(min=10, help="Rounds in which all take turns; of long samples thrice as many.")]
Fresh = Annotated[bool, typer.Option(help="Measure again what this environment has recorded already.")]
Causal = Annotated[bool, typer.Option(help="With the causal mask.")]
Only = Annotated[str | None, typer.Option(help="Implementations, separated by commas; all that there are.")]
HeadDim = Annotated[int, typer.Option("--head-dim", "--d-head", help="64, 128 or 256.")]
Dtype = Annotated[str, typer.Option(help="bfloat16 or float16.")]
Inputs = Annotated[str, typer.Option(help="Kind of numbers in q, k, v: normal, x2, x4, x10, sink, ramp or local.")]
Target = Annotated[str, typer.Option(help="Architecture: sm_80, sm_90a, sm_100a, gfx942, ...")]
Signature = Annotated[
    str | None,
    typer.Option(help='Types of a function\'s arguments, in order or by name: "*bf16,i32:16", "*_ptr=*bf16,n=i32".'),
]
Constexpr = Annotated[
    list[str] | None,
    typer.Option(
        help="NAME=value of a tl.constexpr, as 64, tl.float16 or :name of its module; once for each.",
        show_default=False,
    ),
]
NumWarps = Annotated[int | None, typer.Option(min=1, max=32, help="Warps of a function's CTA.", show_default=False)]
Wait = Annotated[
    bool,
    typer.Option("--wait", help="Wait while another kperf measures on the GPU, and take turns with those that wait."),
]
NumStages = Annotated[int | None, typer.Option(min=0, help="Stages of a function's loops.", show_default=False)]
Image = Annotated[str, typer.Option(help="Tag of the image.")]
GpusOption = Annotated[Gpus, typer.Option(help="auto: all of them if this machine has an NVIDIA driver.")]
SpreadOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        help="Spread over GPUs: all, how many, which (0,2) or tcp://host:8786, a scheduler that `kperf worker` joined.",
        show_default=False,
    ),
]


def take_no_gpu(gpu: str | None) -> None:
    """Of a command that writes nothing. Raises `UsageError` if `--gpu` names one, which would be passed over."""
    if gpu is not None:
        raise UsageError(f"--gpu {gpu} says whose records --write takes: give --write FILE too")


def _program(given: Path | None) -> Path | None:
    """What `--ncu` names, also where nothing is measured. Raises `UsageError` if it is no program."""
    from kperf.studies import ncu

    return given and ncu.find(given)


NcuOption = Annotated[
    Path | None,
    typer.Option(
        "--ncu", help="Nsight Compute's ncu; found on PATH or beside CUDA.", show_default=False, callback=_program
    ),
]
Passes = Annotated[
    str, typer.Option(help="Launches over which an iteration's events are spread: auto, 1 or at most N.")
]
Memory = Annotated[str | None, typer.Option(help="Limit as Docker writes it, 32g; four fifths of the engine's memory.")]


def workload_of(seq_len: int, **fields: Any) -> "Workload":
    """Of tritonbench's options, where a `seq_len` below 32 is the power of two. Raises `UsageError`."""
    from kperf.attention.workload import make_workload

    return make_workload(seq_len=rows_of(seq_len), **fields)


def rows_of(seq_len: int) -> int:
    """Rows: a number below 32 is the power of two, as in tritonbench."""
    return 2**seq_len if 0 < seq_len < 32 else seq_len


def whole_numbers(text: str | None, option: str) -> list[int]:
    """The numbers of an option that is a list of them, each once. Raises `UsageError` if a word is none."""
    return [_whole_number(word, option) for word in listed(text) or []]


def _whole_number(word: str, option: str) -> int:
    if word.isdecimal():
        with suppress(ValueError):  # of thousands of digits
            return int(word)
    raise UsageError(f"{option} has {word!r}: give whole numbers with commas between them")


def given(**values: int | None) -> dict[str, int]:
    """The options that have a value, by name."""
    return {name: value for name, value in values.items() if value is not None}


def listed(text: str | None) -> list[str] | None:
    """The words between commas, each once; None if nothing is asked for.

    Raises `UsageError` if something is, and it has no word.
    """
    if text is None:
        return None
    words = list(dict.fromkeys(word for part in text.split(",") if (word := part.strip())))
    if not words:
        raise UsageError(f"{text!r} names nothing: give words with commas between them, or leave the option out")
    return words
