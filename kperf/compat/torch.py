"""Torch's private interfaces outside of Inductor's graph (`kperf.compat.inductor_graph`)."""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch._C._autograd import DeviceType
from torch._library.custom_ops import OPDEFS, CustomOpDef
from torch._library.triton import set_wrap_triton_enabled
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["DeviceType", "set_wrap_triton_enabled"]

INDUCTOR_VARIABLES = {
    "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER": "0",  # it goes past `CompiledKernel.run`
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # kernels from other processes come without their source
}
"""With these in the environment, Inductor's kernels are launched as all others are."""

_PLAIN = {torch.Tensor, torch.nn.Parameter}
_ALIGNMENT = 512
"""Bytes, of what torch allocates on a GPU (c10/cuda/CUDACachingAllocator.h, `kMinBlockSize`)."""


def spin(cycles: int) -> None:
    """Keep the current stream of the GPU busy for so many cycles."""
    torch.cuda._sleep(cycles)


def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`torch.empty_strided` on the current device; on a GPU without the dispatcher, where none of `observed` asks.

    As torch does, filled with NaN where deterministic algorithms are asked for.
    """
    if device.type != "cuda" or torch.are_deterministic_algorithms_enabled():
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)
    guards: Any = torch._C._dynamo.guards
    allocated: torch.Tensor = guards._empty_strided_cuda(shape, strides, dtype)
    return allocated


@contextmanager
def allocated_on(device: torch.device) -> Iterator[None]:
    """Within it, what `empty` and the code that Inductor writes allocate on CUDA lies on another device."""

    def allocate(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    guards: Any = torch._C._dynamo.guards
    with patch.object(guards, "_empty_strided_cuda", allocate):
        yield


@contextmanager
def without_driver() -> Iterator[None]:
    """Within it the code that Inductor writes gets a device and a stream without asking the driver."""
    with (
        patch.object(torch.cuda, "_DeviceGuard", lambda *_: nullcontext()),
        patch.object(torch._C, "_cuda_getCurrentRawStream", lambda *_: 0, create=True),
    ):
        yield


@contextmanager
def no_fused_attention() -> Iterator[None]:
    """Within it, none of torch's fused attentions applies to any tensors: their rules ask the driver."""
    names = ("_can_use_flash_attention", "_can_use_mem_efficient_attention", "_can_use_cudnn_attention")
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(patch.object(torch._C, name, lambda *_: False))
        yield


def address_without_memory(tensor: torch.Tensor) -> int:
    """An address for a tensor that has no memory: views of one storage lie in it, other storages elsewhere.

    A storage begins at a multiple of `_ALIGNMENT`, as on a GPU.
    """
    storage: int = tensor.untyped_storage()._cdata
    return storage * _ALIGNMENT + int(tensor.storage_offset()) * tensor.element_size()


def writes_of(tensor: torch.Tensor) -> int | None:
    """How often torch has written the memory that a tensor is a view of; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version


def observed(*tensors: torch.Tensor) -> bool:
    """Whether torch does more with what these are handed to than compute it: autograd, a compiler, a tracer, a mode, a
    subclass.

    Then it has to be an operator of torch; else a function does.
    """
    if (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._is_torch_function_mode_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
    ):
        return True
    gradients = torch.is_grad_enabled()
    for tensor in tensors:  # noqa: SIM110  (`any` of a generator takes 0.3 us longer)
        if type(tensor) not in _PLAIN or (gradients and tensor.requires_grad):
            return True
    return False


def alike(*tensors: torch.Tensor) -> Callable[..., bool]:
    """Whether other tensors are as these, which are not `observed`, and are not observed either.

    Of the same type, dtype, device, shape and strides; torch.compile's guards ask it by one call of C++. They keep no
    tensor. Modes are in Python and asked for apart.
    """
    guards: Any = torch._C._dynamo.guards
    as_these: Callable[..., bool] = guards.TensorGuards(
        *tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None
    ).check
    dispatch_modes, function_mode = torch._C._len_torch_dispatch_stack, torch._C._is_torch_function_mode_enabled

    def are_alike(*others: torch.Tensor) -> bool:
        return as_these(*others) and not dispatch_modes() and not function_mode()

    return are_alike


def computed_by(op: object) -> Callable[..., Any] | None:
    """The Python function of a `custom_op` or `triton_op` on CUDA, with its backward pass; None for other operators."""
    if isinstance(op, torch._ops.OpOverload):
        name = op.name()
    elif isinstance(op, torch._ops.OpOverloadPacket):
        name = op._qualified_op_name
    else:
        return None
    operator = OPDEFS.get(name)
    functions = operator._backend_fns if operator is not None else {}
    function = functions.get("cuda") or functions.get(None)
    if operator is None or function is None or operator._backward_fn is None:
        return function
    return _differentiated(function, operator, operator._backward_fn)


def _differentiated(
    function: Callable[..., Any], operator: CustomOpDef, back: Callable[..., Any]
) -> Callable[..., Any]:
    """An operator's function as the operator is: its backward pass, by `back`, is that of `register_autograd`.

    Of tensors that an argument has in a list there are no gradients.
    """
    parameters = inspect.signature(operator._init_fn)

    def call(*given: Any, **named: Any) -> Any:
        bound = parameters.bind(*given, **named)
        bound.apply_defaults()

        class Operator(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, *args: Any) -> Any:
                output = function(*args, **bound.kwargs)
                by_name = {"keyword_only_inputs": bound.kwargs} if bound.kwargs else {}
                if operator._setup_context_fn is not None:
                    operator._setup_context_fn(ctx=ctx, inputs=args, output=output, **by_name)
                return output

            backward = staticmethod(back)

        return Operator.apply(*bound.args)

    return call


def inductor_autotuner() -> type | None:
    """Inductor's autotuner, whose method `bench` launches; None as long as Inductor is not imported."""
    module = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    return None if module is None else module.CachingAutotuner


@contextmanager
def backward_within(mode: TorchFunctionMode) -> Iterator[None]:
    """Within it, a mode holds for the Python functions that a backward pass calls too."""
    run: Callable[..., Any] = vars(torch.autograd)["_engine_run_backward"]

    def run_within(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return run(*args, **kwargs)

    with patch.object(torch.autograd, "_engine_run_backward", run_within):
        yield


@contextmanager
def compiled_anew(shapes: int) -> Iterator[None]:
    """Within it, torch.compile takes so many shapes of a function, and a backward pass may be run again and again."""
    with torch._dynamo.config.patch(recompile_limit=shapes), torch._functorch.config.patch(donated_buffer=False):
        yield


@dataclass(frozen=True)
class OperatorCall:
    """A call of one of torch's operators that is no view: `aten::mul_.Tensor` has the name `mul_`.

    reads, writes: tensors; what it makes is among the latter. is_elementwise: whether each element of the result needs
    the same element of the operands alone.
    """

    name: str
    reads: Sequence[torch.Tensor]
    writes: Sequence[torch.Tensor]
    is_elementwise: bool


_OVERWRITES = {"copy_", "fill_", "zero_"}
"""Operators that write their first operand without reading it."""


class _NotedOperators(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, note: Callable[[OperatorCall], None]) -> None:
        super().__init__()
        self._note = note

    def __torch_dispatch__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        call = _operator_call(func, args, kwargs or {}, result)
        if call.writes or not list(_tensors_in(result)):
            self._note(call)
        return result


@contextmanager
def noted_operators(note: Callable[[OperatorCall], None]) -> Iterator[None]:
    """Within it, what this thread computes with torch's operators; views are left out.

    torch.compile compiles nothing within it.
    """
    with _NotedOperators(note):
        yield


def _operator_call(func: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> OperatorCall:
    given, results = list(_tensors_in([*args, *kwargs.values()])), list(_tensors_in(result))
    if not isinstance(func, torch._ops.OpOverload):  # of higher order, which has no schema
        return OperatorCall(func.name(), given, results, is_elementwise=False)
    written: list[torch.Tensor] = []
    read: list[torch.Tensor] = []
    name = func.name().rpartition("::")[2].partition(".")[0]
    for place, parameter in enumerate(func._schema.arguments):
        tensors = list(_tensors_in(args[place] if place < len(args) else kwargs.get(parameter.name)))
        is_written = parameter.alias_info is not None and parameter.alias_info.is_write
        written += tensors if is_written else []
        read += tensors if not is_written or not (name in _OVERWRITES or parameter.is_out) else []
    if name.endswith("_like") or name.startswith("new_"):  # it takes the shape
        read = []
    known = {_storage_of(one) for one in given}
    made = [one for one in results if _storage_of(one) not in known]
    return OperatorCall(name, read, [*written, *made], torch.Tag.pointwise in func.tags)


def _storage_of(tensor: torch.Tensor) -> int | None:
    """None of a tensor without a memory of its own, as sparse ones."""
    try:
        storage: int = tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
    return storage


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors_in(one)
