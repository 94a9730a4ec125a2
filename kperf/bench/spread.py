"""Which GPUs a sweep is spread over: what `--gpus` says, against what this machine has."""

import importlib.util
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType

from rich.console import Console

from kperf.arch import SM_90A
from kperf.bench.sweep import Bench
from kperf.errors import UsageError
from kperf.installation import why_missing
from kperf.record import device, machine
from kperf.record.machine import Gpu

_EXTRA = ("distributed", "cryptography")
_GRAMMAR = "all, how many (2), which with commas (0,2), or the address of a scheduler (tcp://host:8786)"


@dataclass(frozen=True)
class Numbered:
    """A GPU of this machine and its number among those that CUDA_VISIBLE_DEVICES leaves, in nvidia-smi's order."""

    number: int
    gpu: Gpu


@contextmanager
def spread(asked: str | None) -> Iterator[Bench | None]:
    """The GPUs that are asked for, with a process each while this lasts; None where that is the GPU of this process.

    Also None on a machine that cannot measure, if it was to measure itself. Raises `UsageError` for what there is not,
    what cannot be compared, or a GPU on which another process measures.
    """
    if asked is None or asked == "1":
        yield None
    elif is_address(asked):
        with _many().joined(asked) as bench:
            yield bench
    else:
        well_formed(asked)
        gpus = () if device.why_static() else machine.probe().gpus
        chosen = choose(asked, gpus) if gpus else []
        if len(chosen) < 2 and all(card.number == 0 for card in chosen):
            yield None
            return
        with _many().processes(chosen) as bench:
            yield bench


def join(console: Console, address: str, asked: str) -> None:
    """`kperf worker`: GPUs of this machine, for a sweep that is started elsewhere.

    Raises `UsageError` without a Hopper GPU and for what `spread` does.
    """
    if not is_address(address):
        raise UsageError(f"{address!r} is no address of a scheduler: tcp://host:8786 is one")
    well_formed(asked)
    if reason := device.why_static():
        raise UsageError(reason)
    many = _many()
    chosen = choose(asked, machine.probe().gpus)
    console.print(f"{len(chosen)} GPUs join {address} until Ctrl-C")
    many.serve(address, chosen)


def _many() -> ModuleType:
    """The engine. Raises `UsageError` if packages of the extra `many` are not installed."""
    if absent := [name for name in _EXTRA if importlib.util.find_spec(name) is None]:
        raise UsageError(f"several GPUs need what is missing here: {why_missing(absent[0])}")
    from kperf.bench import many

    return many


def is_address(asked: str) -> bool:
    """Whether it names a scheduler and not GPUs of this machine. Raises `UsageError` if it only looks like it."""
    if "://" not in asked:
        return False
    if not re.fullmatch(r"(tcp|tls)://([^\s/:\[\]]+|\[[\da-fA-F:.]+(%\w+)?\]):\d{1,5}", asked):
        raise UsageError(f"{asked!r} is no address of a scheduler: tcp://host:8786 is one")
    return True


def well_formed(asked: str) -> None:
    """Raises `UsageError` unless it says which GPUs of some machine, each once."""
    if asked != "all" and not re.fullmatch(r"[1-9]\d{0,3}|\d{1,4},|\d{1,4}(,\d{1,4})+", asked):
        raise UsageError(f"--gpus {asked!r} says nothing: it is {_GRAMMAR}")
    for number, times in Counter(_listed(asked)).items():
        if times > 1:
            raise UsageError(f"GPU {number} is named twice")


def _listed(asked: str) -> list[int]:
    """The numbers between commas; none where it says how many."""
    return [int(number) for number in asked.split(",") if number] if "," in asked else []


def choose(asked: str, gpus: Sequence[Gpu]) -> list[Numbered]:
    """The GPUs that `asked` means, of those that there are.

    Raises `UsageError` for more than there are, a number that none has, one that is named twice, what is no whole
    Hopper GPU, and GPUs of several kinds: their points would stand in one figure.
    """
    well_formed(asked)
    if asked == "all":
        numbers = list(range(len(gpus)))
    elif "," in asked:
        numbers = _listed(asked)
    else:
        numbers = list(range(int(asked)))
        if len(numbers) > len(gpus):
            raise UsageError(
                f"--gpus {asked} are more than the {len(gpus)} that there are: a number with a comma is one"
            )
    for number in numbers:
        if number >= len(gpus):
            raise UsageError(f"there is no GPU {number}: this machine shows 0 to {len(gpus) - 1}")
    chosen = [Numbered(number, gpus[number]) for number in numbers]
    for card in chosen:
        if card.gpu.capability != SM_90A.compute_capability:
            raise UsageError(
                f"GPU {card.number} is {card.gpu.name}, not Hopper: leave it out, with --gpus 0,2 for instance"
            )
        if card.gpu.mig:
            raise UsageError(
                f"GPU {card.number} has MIG on, and only whole GPUs compare: leave it out, or turn MIG off"
            )
        if card.gpu.name != chosen[0].gpu.name:
            raise UsageError(
                f"GPU {card.number} is {card.gpu.name} and GPU {chosen[0].number} {chosen[0].gpu.name}: "
                "choose GPUs of one kind, with --gpus 0,2 for instance"
            )
    return chosen
