"""A GPU that is not there: `cuda` means torch's `meta` device, where nothing is computed.

What a script asks of numbers that do not exist (a comparison, `.item()`, a copy to the CPU) is answered so that it goes
on: comparisons hold, numbers are 1.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self
from unittest.mock import patch

import torch
import triton
from torch.overrides import TorchFunctionMode

from kperf.arch import Arch
from kperf.compat.torch import (
    address_without_memory,
    allocated_on,
    backward_within,
    computed_by,
    no_fused_attention,
    set_wrap_triton_enabled,
    without_driver,
)
from kperf.ir import offline

_META = torch.device("meta")
_CUDA = torch.device("cuda", 0)
_HOLD = {"allclose", "equal", "is_nonzero", "__bool__", "__contains__"}
_PROPERTIES = {torch.Tensor.is_cuda.__get__: True, torch.Tensor.device.__get__: _CUDA}  # type: ignore[attr-defined]
_PROPERTIES[torch.Tensor.get_device] = 0
_ONE = {"item", "__int__", "__float__", "__index__"}
_INDEXED = {"__getitem__", "__setitem__"}
_MOST_NUMBERS = 20_000
"""A loop that ends when a number is small enough never ends where each is 1: it asks for one in each iteration."""
_PHILOX_STATE_BYTES = 16
"""Of the state of a GPU's generator (aten/src/ATen/cuda/CUDAGeneratorImpl.cpp): a seed and an offset of 64 bits."""
_LARGEST = 1 << 26
"""Elements of a tensor that is copied to the CPU."""


class NoNumbersError(RuntimeError):
    """A script that would wait for numbers until it is ended."""


class _OnMeta(TorchFunctionMode):
    """Whatever asks for `cuda` gets `meta`."""

    def __init__(self, note_asked: Callable[[Any], None]) -> None:
        """No numbers were asked for yet; `note_asked` is called with each tensor whose numbers are."""
        super().__init__()
        self._asked = 0
        self._note_asked = note_asked

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if name == "cuda":
            return torch.Tensor.to(args[0], _META)
        if isinstance(first, torch.Tensor) and first.is_meta:
            kwargs = {key: value for key, value in (kwargs or {}).items() if key != "generator"}
            if func in _PROPERTIES:
                return _PROPERTIES[func]
            if name in _HOLD or name in _ONE or name in ("__format__", "data_ptr"):
                return address_without_memory(first) if name == "data_ptr" else self._number(name, args)
            to_cpu = name == "to" and any(str(one) == "cpu" for one in (*args[1:], *(kwargs or {}).values()))
            if to_cpu or name in ("cpu", "numpy", "tolist"):
                self._note_asked(first)
                return _on_cpu(first, "cpu" if to_cpu else name)
        if name == "to" and len(args) > 1 and type(args[1]) is int:
            args = (first, _CUDA, *args[2:])
        options = {key: _redirected(value) for key, value in (kwargs or {}).items()}
        if type(options.get("device")) is int:
            options["device"] = _META
        options.pop("pin_memory", None)
        if options.get("device") == _META:
            options.pop("generator", None)
        if (function := computed_by(func)) is not None:
            with (
                contextlib.suppress(NotImplementedError),
                self,
            ):  # of an operator in C++; what is registered for `meta` is left
                return function(*args, **(kwargs or {}))
        if name in _INDEXED:
            args = (first, _row(args[1]), *args[2:])
        is_device = func is torch.device  # which scripts compare with those of tensors
        redirected = list(map(_redirected, args))
        return func(*args, **(kwargs or {})) if is_device else self._computed(func, redirected, options)

    def _number(self, name: str, args: Sequence[Any]) -> Any:
        """A number where there is none: whatever is asked of it holds, and else it is 1."""
        self._asked += 1
        for one in args:
            self._note_asked(one)
        if self._asked > _MOST_NUMBERS:
            raise NoNumbersError(f"it asks for tensors' numbers {_MOST_NUMBERS} times: a loop may wait for them")
        if name in _HOLD:
            return True
        return {"__format__": format(1.0, args[1] if len(args) > 1 else ""), "__float__": 1.0}.get(name, 1)

    def _computed(self, func: Any, args: list[Any], options: dict[str, Any]) -> Any:
        """What an operator gives; one whose result depends on numbers, as `unique`, is given ones."""
        try:
            return func(*args, **options)
        except (NotImplementedError, RuntimeError) as error:
            if "meta" not in str(error).lower():
                raise
            for one in args:
                self._note_asked(one)
            of_ones = [_on_cpu(one, "cpu") if isinstance(one, torch.Tensor) and one.is_meta else one for one in args]
            result = func(*of_ones, **options)
            if isinstance(result, torch.Tensor):
                return result.to(_META)
            return tuple(one.to(_META) for one in result) if isinstance(result, tuple) else result


class _Compile:
    """In the place of `torch.compile`, which would need a GPU: nothing is compiled. `called`: whether it was asked."""

    def __init__(self) -> None:
        self.called = False

    def __call__(self, model: Any = None, **_: Any) -> Any:
        self.called = True
        return (lambda function: function) if model is None else model


def _row(index: Any) -> Any:
    """An index in which a number that was not computed is that of the first row: any has the same shape."""
    if isinstance(index, tuple):
        return tuple(map(_row, index))
    is_number = isinstance(index, torch.Tensor) and index.is_meta and index.dim() == 0 and index.dtype != torch.bool
    return 0 if is_number else index


def _redirected(value: Any) -> Any:
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(_redirected, value))
    if isinstance(value, torch.device) and value.type == "cuda":
        return _META
    return _META if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


def _on_cpu(tensor: torch.Tensor, name: str) -> Any:
    if tensor.numel() > _LARGEST:
        raise MemoryError(f"a tensor of {tensor.numel()} numbers that were not computed")
    ones = torch.ones(tensor.shape, dtype=tensor.dtype)
    return ones if name == "cpu" else getattr(ones, name)()


class _Nothing:
    """What is done on a GPU or waited for, and can stand in a `with`: each method of it does nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing()


class _Event(_Nothing):
    """Of a clock that stands still."""

    def elapsed_time(self, _other: Any) -> float:
        return 1.0

    def query(self) -> bool:
        return True


class _Stream(_Nothing):
    """The only stream, whose work is done."""

    cuda_stream = stream_id = 7
    device = _CUDA
    device_index = 0

    def query(self) -> bool:
        return True

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


class _Device(_Nothing):
    """As `torch.cuda.device`, which makes a device the current one."""

    idx = prev_idx = 0


_CPU_GENERATOR = torch.Generator


class _Generator(_CPU_GENERATOR):
    """One of a GPU's random numbers, which are not drawn, if its device is one; else torch's own."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return super().__new__(cls) if _redirected(device) == _META else _CPU_GENERATOR(device)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return _CUDA

    def get_state(self) -> torch.Tensor:
        """Of Philox: the seed and the offset."""
        return torch.zeros(_PHILOX_STATE_BYTES, dtype=torch.uint8)

    def set_state(self, _state: torch.Tensor) -> Any:
        return self


@contextmanager
def fake_cuda(arch: Arch, note_asked: Callable[[Any], None] = lambda _: None) -> Iterator[_Compile]:
    """Within it torch has a GPU of this architecture, whose tensors are on `meta`. Yields what `torch.compile` is.

    note_asked: is called with what a script asks for numbers, mostly tensors.
    """
    found, generator = offline.properties(arch), _Generator("cuda")
    set_default_device = torch.set_default_device  # what it sets comes below all modes
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "synchronize": _nothing(),
        "set_device": _nothing(),
        "empty_cache": _nothing(),
        "manual_seed": _nothing(),
        "manual_seed_all": _nothing(),
        "reset_peak_memory_stats": _nothing(),
        "current_device": lambda: 0,
        "device_count": lambda: 1,
        "get_device_capability": lambda *_: arch.device_capability,
        "get_device_properties": lambda *_: found,
        "get_device_name": lambda *_: found.name,
        "max_memory_allocated": lambda *_: 0,
        "memory_allocated": lambda *_: 0,
        "mem_get_info": lambda *_: (found.total_memory, found.total_memory),
        "init": _nothing(),
        "ipc_collect": _nothing(),
        "is_current_stream_capturing": lambda: False,
        "initial_seed": lambda: 0,
        "get_rng_state": lambda *_: generator.get_state(),
        "set_rng_state": _nothing(),
        "default_generators": (generator,),
        "Event": _Event,
        "Stream": _Stream,
        "CUDAGraph": type("CUDAGraph", (_Nothing,), {}),
        "graph": type("graph", (_Nothing,), {}),
        "device": _Device,
        "device_of": type("device_of", (_Device,), {}),
        "stream": lambda *_: contextlib.nullcontext(),
        "set_stream": _nothing(),
        "current_stream": lambda *_: _Stream(),
        "default_stream": lambda *_: _Stream(),
        "cudart": _Nothing,
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(offline.Driver, "get_active_torch_device", lambda _: _CUDA))
        stack.enter_context(patch.object(torch, "compile", compiling := _Compile()))
        stack.enter_context(patch.object(torch, "Generator", _Generator))
        default = patch.object(torch, "set_default_device", lambda device: set_default_device(_redirected(device)))
        stack.enter_context(default)
        stack.enter_context(patch.object(torch.Tensor, "record_stream", _nothing()))
        stack.enter_context(patch.object(torch.Tensor, "pin_memory", lambda tensor, *_: tensor))
        for name in ("start", "stop"):
            stack.enter_context(patch.object(torch.cuda.profiler, name, _nothing()))
        stack.enter_context(patch.object(torch.accelerator, "synchronize", _nothing()))
        stack.enter_context(patch.object(torch.accelerator, "current_device_index", lambda: 0))
        stack.enter_context(allocated_on(_META))
        stack.enter_context(without_driver())
        stack.enter_context(no_fused_attention())
        for name in ("do_bench", "do_bench_cudagraph"):
            stack.enter_context(patch.object(triton.testing, name, _bench))
        stack.enter_context(set_wrap_triton_enabled(False))  # else a wrapped kernel's launch is a node of a graph
        stack.enter_context(mode := _OnMeta(note_asked))
        stack.enter_context(_threads_within(mode))
        stack.enter_context(backward_within(mode))  # what handles an operator is outside of its mode
        yield compiling


@contextmanager
def _threads_within(mode: _OnMeta) -> Iterator[None]:
    """Within it the threads that a script starts are in the mode too, which torch keeps for each thread."""
    run = threading.Thread.run

    def within(thread: threading.Thread) -> None:
        with mode:
            run(thread)

    with patch.object(threading.Thread, "run", within):
        yield


def _nothing() -> Callable[..., None]:
    """A function that does nothing, another each time: torch.compile has rules for each function of `torch.cuda`."""
    return lambda *_, **__: None


def _bench(call: Callable[[], object], *_: Any, quantiles: Sequence[float] | None = None, **__: Any) -> Any:
    """As `triton.testing.do_bench` of a call that takes a millisecond."""
    call()
    return [1.0 for _ in quantiles] if quantiles else 1.0
