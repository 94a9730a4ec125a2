"""The process that `make inductor` profiles: one compiled model, its kernels in scopes.

`python -m kperf.studies.inductor_session MODEL FOLDER` writes FOLDER/program.json, what Inductor wrote and what each
kernel has to do, FOLDER/rounds.hatchet, Proton's tree with a scope a round and in it a scope a launch, which carries
FLOPs and bytes, and FOLDER/session.json. With `ncu` in place of FOLDER it launches every kernel once, between the marks
that ncu waits for; with `run` a few times, for `kperf trace`.
"""

import copy
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import triton.profiler as proton

from kperf.bench.turns import FLUSH_BYTES, Ceiling, timed_replay
from kperf.compat.inductor_graph import noted, watched
from kperf.compat.inductor_program import Kernel, Program
from kperf.errors import MeasurementError, UsageError
from kperf.record import bandwidth
from kperf.record.files import write_atomically
from kperf.studies.inductor_program import ROUNDS, is_own, made, round_of, scope_of
from kperf.studies.interleaved import relative_error

MAX_REL_ERROR = 1e-2
_WARM = 3
_SEED = 14


@contextmanager
def scopes(kernels: list[Kernel]) -> Iterator[None]:
    """Within it every launch of the program is in a Proton scope with its FLOPs and bytes."""
    opened: list[proton.scope] = []

    def close() -> None:
        if opened:
            opened.pop().__exit__(None, None, None)

    def at(number: int) -> None:
        close()
        counts = kernels[number].counts
        opened.append(proton.scope(scope_of(number), {"flops": float(counts.flops), "bytes": float(counts.bytes)}))
        opened[0].__enter__()

    with watched(at):
        try:
            yield
        finally:
            close()


def compiled(name: str) -> tuple[Program, Callable[[], torch.Tensor], float]:
    """What Inductor wrote, a call of it, and its relative error against float32.

    Raises `MeasurementError` if that is too large: above 1 %, and for a model of a user's own above twice its error
    without compilation.
    """
    torch.manual_seed(_SEED)
    block, inputs = made(name, "cuda")
    with torch.no_grad(), noted() as program:
        run = torch.compile(block)
        y = run(*inputs)
    if not isinstance(y, torch.Tensor):
        raise UsageError(f"the model of {name} returns a {type(y).__name__}: let it return one tensor")
    with torch.no_grad():
        floats = (tensor.float() if tensor.is_floating_point() else tensor for tensor in inputs)
        reference = copy.deepcopy(block).float()(*floats)
        error = relative_error(y, reference)
        limit = max(MAX_REL_ERROR, 2 * relative_error(block(*inputs), reference)) if is_own(name) else MAX_REL_ERROR
        if not error <= limit:  # a NaN is not
            raise MeasurementError(f"the compiled {name} model is off by {error:.2e} from float32")

    def call() -> torch.Tensor:
        with torch.no_grad(), torch.compiler.set_stance("fail_on_recompile"):  # it would not be the program noted
            result: torch.Tensor = run(*inputs)
        return result

    for _ in range(_WARM):
        call()
    torch.cuda.synchronize()
    return program, call, error


def profile(name: str, folder: Path) -> None:
    """Rounds of the whole block, cuBLAS in turn with it."""
    program, call, error = compiled(name)
    ceiling, flush = Ceiling(), torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    session = proton.start(str(folder / "rounds"), backend="cupti")
    ceiling_ms = []
    for number in range(ROUNDS):
        proton.deactivate(session)
        elapsed = timed_replay(ceiling.graph, flush)
        torch.cuda.synchronize()
        ceiling_ms.append(elapsed())
        proton.activate(session)
        with proton.scope(round_of(number)), scopes(program.kernels):
            call()
        torch.cuda.synchronize()
    proton.finalize(session)
    memory = bandwidth.measure()
    if memory is None:
        raise MeasurementError("the GPU has no 512 MiB left to measure its bandwidth: free some of its memory")
    measured: dict[str, Any] = {"rel_error": error, "ceiling_ms": ceiling_ms, "copy_gb_per_s": memory.copy_gb_per_s}
    write_atomically(folder / "session.json", json.dumps(measured))
    write_atomically(folder / "program.json", json.dumps(asdict(program)))


def once_for_ncu(name: str) -> None:
    """Launch every kernel of the block once where ncu looks."""
    _, call, _ = compiled(name)
    torch.cuda.cudart().cudaProfilerStart()
    call()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()


def main(name: str, folder: str) -> None:
    """Under Proton, where ncu looks, or as it is."""
    try:
        if folder == "ncu":
            once_for_ncu(name)
        elif folder == "run":
            compiled(name)
        else:
            profile(name, Path(folder))
    except (UsageError, MeasurementError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(*sys.argv[1:])
