"""What timers and profilers are pointed at: y = x * x in five languages, a copy, and one attention kernel.

Run as a program it is a process of its own for a profiler that wants one, as CUPTI takes one subscriber in a process:
`python -m kperf.studies.operations PROFILER KEYS N LAUNCHES OUT`.
"""

import functools
import importlib.util
import json
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton

from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.workload import Workload
from kperf.bench.points import MAX_REL_ERROR
from kperf.bench.reference import errors, expected_of, make_inputs
from kperf.errors import MeasurementError, UsageError
from kperf.record.files import write_atomically
from kperf.studies.kernels import square_kernel

N = 1 << 26
"""Numbers of y = x * x: 268 MB to read and as many to write, five times what the L2 caches hold, each."""
ATTENTION = Workload(batch=4, seq_len=4096)
ATTENTION_KEY = "improved"
SQUARE_BLOCK = 1024
_SEED = 14

_CUDA = """
__global__ void square_cuda(const float* x, float* y, long n) {
  long i = (long)blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * x[i];
}
void square(long x, long y, long n, long stream) {
  square_cuda<<<(n + 255) / 256, 256, 0, (cudaStream_t)stream>>>((const float*)x, (float*)y, n);
}
"""
_CPP = """
#include <pybind11/pybind11.h>
void square(long x, long y, long n, long stream);
"""
"""Addresses instead of tensors: torch's headers take most of a minute to compile."""

Call = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Operation:
    """Something that launches one kernel.

    `make`: a call for so many numbers, whose result is what it computed. `flops` and `bytes`: of a call, of so many
    numbers. `missing`: why it cannot run on this machine, a sentence with the fix, or None.
    """

    key: str
    label: str
    make: Callable[[int], Call]
    flops: Callable[[int], int]
    bytes: Callable[[int], int]
    missing: Callable[[], str | None] = lambda: None


def _numbers(n: int) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(_SEED)
    return torch.rand(n, generator=generator, device="cuda")


def _eager(n: int) -> Call:
    x = _numbers(n)
    return lambda: x * x


def _compiled(n: int) -> Call:
    x = _numbers(n)
    square = torch.compile(lambda given: given * given)
    return lambda: square(x)


def _triton(n: int) -> Call:
    x = _numbers(n)
    y = torch.empty_like(x)

    def call() -> torch.Tensor:
        square_kernel[(triton.cdiv(n, SQUARE_BLOCK),)](x, y, n, BLOCK=SQUARE_BLOCK)
        return y

    return call


@functools.cache
def cuda_extension() -> Any:
    """The CUDA C++ of y = x * x, built by nvcc for Hopper (cached by torch)."""
    from torch.utils.cpp_extension import load_inline

    return load_inline(
        "kperf_square",
        cpp_sources=_CPP,
        cuda_sources=_CUDA,
        functions=["square"],
        extra_cuda_cflags=["-gencode=arch=compute_90a,code=sm_90a", "-O3"],
        with_pytorch_error_handling=False,
        no_implicit_headers=True,
    )


def _cuda(n: int) -> Call:
    square = cuda_extension().square
    x = _numbers(n)
    y = torch.empty_like(x)

    def call() -> torch.Tensor:
        square(x.data_ptr(), y.data_ptr(), n, torch.cuda.current_stream().cuda_stream)
        return y

    return call


def _cuda_missing() -> str | None:
    from torch.utils.cpp_extension import CUDA_HOME

    if CUDA_HOME is None or shutil.which("nvcc", path=f"{CUDA_HOME}/bin") is None:
        return "there is no nvcc for CUDA C++: install a CUDA toolkit, or set CUDA_HOME"
    return None if shutil.which("ninja") else "load_inline wants ninja: pip install ninja"


def _numba(n: int) -> Call:
    from numba import cuda

    @cuda.jit("void(float32[:], float32[:])")  # type: ignore[untyped-decorator]
    def square(x: Any, y: Any) -> None:
        i = cuda.grid(1)
        if i < x.shape[0]:
            y[i] = x[i] * x[i]

    x = _numbers(n)
    y = torch.empty_like(x)
    here = [cuda.as_cuda_array(tensor) for tensor in (x, y)]

    def call() -> torch.Tensor:
        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)  # a graph captures another than before
        square[triton.cdiv(n, 256), 256, stream](*here)
        return y

    return call


def _numba_missing() -> str | None:
    spec = importlib.util.find_spec("numba")
    return None if spec else "Numba is not installed: `make libraries` in a checkout installs it"


def _copy(n: int) -> Call:
    x = _numbers(n)
    y = torch.empty_like(x)
    return lambda: y.copy_(x)


def _attention(_: int) -> Call:
    inputs = make_inputs(ATTENTION, _SEED)
    implementation = IMPLEMENTATIONS[ATTENTION_KEY]
    call = implementation.bind(inputs.q, inputs.k, inputs.v, ATTENTION.causal, ATTENTION.sm_scale)
    error, _lse = errors(call(), expected_of(ATTENTION, inputs))
    if not error <= MAX_REL_ERROR[ATTENTION.dtype]:
        raise MeasurementError(f"{implementation.label} on {ATTENTION} is off by {error:.2e}")
    return lambda: call()[0]


def _squares(n: int) -> int:
    return n


def _moved(n: int) -> int:
    return 8 * n


OPERATIONS = {
    operation.key: operation
    for operation in (
        Operation("eager", "torch, eager", _eager, _squares, _moved),
        Operation("compile", "torch.compile", _compiled, _squares, _moved),
        Operation("triton", "Triton", _triton, _squares, _moved),
        Operation("cuda", "CUDA C++", _cuda, _squares, _moved, _cuda_missing),
        Operation("numba", "Numba", _numba, _squares, _moved, _numba_missing),
        Operation("copy", "a copy", _copy, lambda _: 0, _moved),
        Operation(
            "attention",
            f"attention, {IMPLEMENTATIONS[ATTENTION_KEY].label}",
            _attention,
            lambda _: ATTENTION.flops,
            lambda _: 8 * ATTENTION.rows * ATTENTION.head_dim,  # q, k, v and o in two bytes each
        ),
    )
}


def made(key: str, n: int) -> Call:
    """A call that was seen to be right. Raises `MeasurementError` if it is not."""
    call = OPERATIONS[key].make(n)
    if key != "attention":
        x = _numbers(n)
        expected = x if key == "copy" else x * x
        if not torch.equal(call(), expected):
            raise MeasurementError(f"{OPERATIONS[key].label} does not compute x * x")
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    return call


Samples = dict[str, list[float]]
"""Operation -> microseconds."""


def _times(kernels: Sequence[tuple[str, float]], launches: int) -> list[float]:
    """Of each of so many launches; one that runs several kernels has their sum."""
    each, left = divmod(len(kernels), launches)
    if left or not each:
        raise MeasurementError(f"{len(kernels)} kernels were seen of {launches} launches")
    return [sum(time for _, time in kernels[i : i + each]) for i in range(0, len(kernels), each)]


def _launch(call: Call, launches: int) -> None:
    for _ in range(launches):
        call()


def _by_torch_profiler(calls: dict[str, Call], launches: int, out: Path) -> Samples:
    from kperf.studies.cupti import kernel_times

    trace = out.with_suffix(".chrome_trace.json")  # the last operation's stays
    return {key: _times(kernel_times(partial(_launch, call, launches), trace), launches) for key, call in calls.items()}


def _by_autograd_profiler(calls: dict[str, Call], launches: int, _out: Path) -> Samples:
    from kperf.studies.cupti import autograd_kernel_times

    return {
        key: _times(autograd_kernel_times(partial(_launch, call, launches)), launches) for key, call in calls.items()
    }


def _by_proton(calls: dict[str, Call], launches: int, out: Path) -> Samples:
    """Proton adds launches up: a mean."""
    import triton.profiler as proton

    from kperf.studies.hatchet import read_tree

    session = proton.start(str(out.with_suffix("")), backend="cupti")
    for key, call in calls.items():
        with proton.scope(key):
            _launch(call, launches)
        torch.cuda.synchronize()
    proton.finalize(session)
    tree = read_tree(out.with_suffix(".hatchet"))
    return {key: [tree.child(key).total("time (ns)") / launches / 1e3] for key in calls}


def _by_ncu(calls: dict[str, Call], launches: int, _out: Path) -> Samples:
    """ncu watches from outside, between these two calls; it prints what it saw."""
    torch.cuda.cudart().cudaProfilerStart()
    for call in calls.values():
        _launch(call, launches)
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    return {}


PROFILERS = {
    "proton": _by_proton,
    "torch_profiler": _by_torch_profiler,
    "autograd_profiler": _by_autograd_profiler,
    "ncu": _by_ncu,
}


def main(profiler: str, keys: str, n: str, launches: str, out: str) -> None:
    """Launch each operation under a profiler, and write its samples as JSON to `out`."""
    if profiler not in PROFILERS:
        raise UsageError(f"unknown profiler {profiler}: choose from {', '.join(PROFILERS)}")
    calls = {key: made(key, int(n)) for key in keys.split(",")}
    samples = PROFILERS[profiler](calls, int(launches), Path(out))
    write_atomically(Path(out), json.dumps(samples))


if __name__ == "__main__":
    main(*sys.argv[1:])
