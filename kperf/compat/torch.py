"""Torch's private interfaces outside of Inductor's graph (`kperf.compat.inductor_graph`)."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C._autograd import DeviceType
from torch._library.custom_ops import OPDEFS
from torch._library.triton import set_wrap_triton_enabled

__all__ = ["DeviceType", "set_wrap_triton_enabled"]

INDUCTOR_VARIABLES = {
    "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER": "0",  # it goes past `CompiledKernel.run`
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # kernels from other processes come without their source
}
"""With these in the environment, Inductor's kernels are launched as all others are."""

_PLAIN = {torch.Tensor, torch.nn.Parameter}


def spin(cycles: int) -> None:
    """Keep the current stream of the GPU busy for so many cycles."""
    torch.cuda._sleep(cycles)


def observed(*tensors: torch.Tensor) -> bool:
    """Whether torch does more with what these are handed to than compute it: autograd, a compiler, a tracer, a mode, a
    subclass.

    Then it has to be an operator of torch; else a function does.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_torch_function_mode_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or any(type(tensor) not in _PLAIN for tensor in tensors)
        or (torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors))
    )


def computed_by(op: object) -> Callable[..., Any] | None:
    """The Python function of a `custom_op` or `triton_op` on CUDA; None for other operators."""
    if isinstance(op, torch._ops.OpOverload):
        name = op.name()
    elif isinstance(op, torch._ops.OpOverloadPacket):
        name = op._qualified_op_name
    else:
        return None
    functions = OPDEFS[name]._backend_fns if name in OPDEFS else {}
    return functions.get("cuda") or functions.get(None)


def inductor_autotuner() -> type | None:
    """Inductor's autotuner, whose method `bench` launches; None as long as Inductor is not imported."""
    module = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    return None if module is None else module.CachingAutotuner


@contextmanager
def compiled_anew(shapes: int) -> Iterator[None]:
    """Within it, torch.compile takes so many shapes of a function, and a backward pass may be run again and again."""
    with torch._dynamo.config.patch(recompile_limit=shapes), torch._functorch.config.patch(donated_buffer=False):
        yield
