"""Our overrides beside tritonbench's own implementations, in its `flash_attention` operator and on its timers.

`register()` is the one line in front of tritonbench's run.py; `kperf tritonbench ...` runs run.py with that line in
front. It times with `triton.testing.do_bench` (events around eager calls, the L2 flushed), so launches that take longer
than the kernel count, which `kperf bench` replays from CUDA graphs; tritonbench's own --cudagraph does too. `kperf
tritonbench-compare` measures how far both agree. Nothing of tritonbench is part of this repository.
"""

import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from kperf.attention.variants import VARIANTS
from kperf.errors import UsageError
from kperf.integrations.operator import attention, why_not
from kperf.record import device

OPERATOR = "flash_attention"
PREFIX = "kperf_"
"""kperf_vanilla, kperf_improved, kperf_improved_plus: what `--only` takes."""

_refused: list[UsageError] = []
"""What ours refused: tritonbench goes on after an exception, prints what it has, and ends as if all were well."""

_LISTS = {"--list-backends", "--list-metrics"}
_POWERS_OF_TWO = 32
_MEND = "set TRITONBENCH_DIR to a checkout of meta-pytorch/tritonbench"


def find_run_py() -> Path:
    """tritonbench's run.py: of the checkout that TRITONBENCH_DIR names, or beside the package that is installed.

    Raises `UsageError` when there is none.
    """
    if folder := os.environ.get("TRITONBENCH_DIR"):
        root = Path(folder).resolve()
        why = f"TRITONBENCH_DIR={folder} is no checkout of tritonbench"
    else:
        spec = importlib.util.find_spec("tritonbench")
        if spec is None or spec.origin is None:
            raise UsageError(f"tritonbench is not installed: {_MEND}")
        root = Path(spec.origin).parents[1]
        why = "tritonbench is installed without its run.py"
    if not ((root / "run.py").is_file() and (root / "tritonbench" / "__init__.py").is_file()):
        raise UsageError(f"{why}: {_MEND}")
    return root / "run.py"


def register() -> None:
    """Make every override a benchmark of tritonbench's `flash_attention`, by its public `register_benchmark`.

    Raises `UsageError` if tritonbench, or what it imports, is not there.
    """
    try:
        from tritonbench.operators.flash_attention.operator import Operator
        from tritonbench.utils.triton_op import register_benchmark
    except ImportError as error:
        raise UsageError(f"tritonbench cannot be imported ({error}): install it, or {_MEND}") from None
    for variant in VARIANTS:
        name = f"{PREFIX}{variant}"
        registered = register_benchmark(operator_name=OPERATOR, func_name=name)(_benchmark(variant))
        setattr(Operator, name, registered)


def _benchmark(variant: str) -> Callable[..., Callable[[], torch.Tensor]]:
    """As tritonbench's own are: a method that takes an input and returns what is timed."""

    def benchmark(self: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], torch.Tensor]:
        if reason := why_not(q, k, v, self.causal, variant):
            _refused.append(UsageError(f"{PREFIX}{variant} does not compute this input: {reason}"))
            raise _refused[-1]
        return lambda: attention(q, k, v, causal=self.causal, sm_scale=self.sm_scale, implementation=variant)

    return benchmark


def run(arguments: Sequence[str]) -> None:
    """tritonbench's run.py with these arguments, in this process, our overrides registered.

    `--seq-len` below 32 is the power of two, as it was in the tritonbench that the paper's artifact ran on; today's
    takes rows. Raises `UsageError` where nothing can be measured, and for what would run without our registration.
    """
    path = find_run_py()
    if "--isolate" in arguments or "," in _value(arguments, "--op"):
        raise UsageError("tritonbench isolates operators in processes that know nothing of ours: name one --op")
    if not _LISTS & {*arguments} and (reason := device.why_static()):
        raise UsageError(f"tritonbench measures, and {reason}")
    sys.path.insert(0, str(path.parent))
    register()
    with nullcontext() if _LISTS & {*arguments} else device.exclusive():
        call(path, _in_rows(arguments))


def call(path: Path, arguments: Sequence[str]) -> None:
    """Its run.py once, after `register`. Raises `UsageError` for an input that ours does not compute."""
    sys.argv = [str(path), *arguments]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except ModuleNotFoundError as error:
        raise UsageError(f"tritonbench needs what is not installed ({error}): install it") from None
    if _refused:
        raise _refused[0]


def _value(arguments: Sequence[str], option: str) -> str:
    """What an option is given, as `--option value` or `--option=value`; the empty string without it."""
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        if argument == option:
            return following
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
    return ""


def _in_rows(arguments: Sequence[str]) -> list[str]:
    given = _value(arguments, "--seq-len")
    if not (given.isdecimal() and 0 < int(given) < _POWERS_OF_TWO):
        return list(arguments)
    rows = str(2 ** int(given))
    print(f"--seq-len {given}: 2^{given} = {rows} rows", file=sys.stderr)
    place = next(i for i, argument in enumerate(arguments) if argument.partition("=")[0] == "--seq-len")
    after = place + (1 if "=" in arguments[place] else 2)
    return [*arguments[:place], "--seq-len", rows, *arguments[after:]]
