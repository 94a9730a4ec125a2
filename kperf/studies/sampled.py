"""The script that `make lines` profiles: a Triton and a Gluon kernel of examples/, launched again and again.

`python -m kperf.studies.sampled PROFILER LAUNCHES FOLDER` writes FOLDER/seconds.json, how long the launches took
until the profiler was done with them, and FOLDER/<kernel>.cubin, the machine code that ran.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

from kperf.compat.triton.drivers import active_device
from kperf.compat.triton.sources import compiled_for
from kperf.errors import UsageError
from kperf.installation import EXAMPLES
from kperf.record import device
from kperf.record.files import write_atomically

KERNELS = ("attention_forward", "gemm_gluon")
_WARM = 2


def calls() -> tuple[list[Callable[[], object]], list[Any]]:
    """A launch of each kernel of `KERNELS`, and their JIT functions."""
    sys.path.insert(0, str(EXAMPLES))
    import attention  # type: ignore[import-not-found]
    import gemm_gluon_ws  # type: ignore[import-not-found]

    here = active_device()
    q, k, v = (torch.randn(1, 16, 4096, 64, device=here, dtype=torch.bfloat16) for _ in range(3))
    a, b = (torch.randn(4096, 4096, device=here, dtype=torch.bfloat16) for _ in range(2))
    launches = [lambda: attention.Attention.apply(q, k, v, False), lambda: gemm_gluon_ws.gemm(a, b)]
    return launches, [attention.attention_forward, gemm_gluon_ws.gemm_gluon]


@contextmanager
def _proton(folder: Path, mode: str | None) -> Iterator[None]:
    """Open before the first launch: Proton learns of the machine code as it is loaded."""
    import triton.profiler as proton

    session = proton.start(str(folder / "lines"), backend="cupti", mode=mode)
    yield
    proton.finalize(session)


@contextmanager
def _torch_profiler() -> Iterator[None]:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        yield
    profiled.key_averages()


@contextmanager
def _between_ncus_marks() -> Iterator[None]:
    torch.cuda.cudart().cudaProfilerStart()
    yield
    torch.cuda.cudart().cudaProfilerStop()


AROUND_ALL: dict[str, Callable[[Path], AbstractContextManager[None]]] = {
    "proton": lambda folder: _proton(folder, None),
    "proton_sampling": lambda folder: _proton(folder, "pcsampling"),
}
AROUND_LAUNCHES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "torch_profiler": _torch_profiler,
    "ncu": _between_ncus_marks,
}


def main(profiler: str, launches: str, folder: str) -> None:
    """Launch under a profiler of this process; `plain` is none."""
    if profiler not in {"plain", *AROUND_ALL, *AROUND_LAUNCHES}:
        raise UsageError(f"unknown profiler {profiler}")
    with device.exclusive(), AROUND_ALL.get(profiler, lambda _: nullcontext())(Path(folder)):
        each, functions = calls()
        for call in each * _WARM:
            call()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        with AROUND_LAUNCHES.get(profiler, nullcontext)():
            for call in each * int(launches):
                call()
            torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    for name, function in zip(KERNELS, functions, strict=True):
        write_atomically(Path(folder, f"{name}.cubin"), compiled_for(function)[0].asm["cubin"])
    write_atomically(Path(folder, "seconds.json"), json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
