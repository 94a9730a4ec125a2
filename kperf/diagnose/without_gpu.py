"""A script's launches on a machine without a GPU: its tensors are on torch's `meta` device, where nothing is computed.

`cuda` means `meta` meanwhile. What a script asks of numbers that do not exist (a comparison, `.item()`, a copy to the
CPU) is answered so that it goes on: comparisons hold, numbers are 1. It is run for the kernels that it launches alone.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import IO, Any, NoReturn
from unittest.mock import patch

import torch
import triton
from torch.overrides import TorchFunctionMode

from kperf.arch import Arch
from kperf.compat.torch import allocated_on, backward_within, computed_by, set_wrap_triton_enabled
from kperf.compat.triton import (
    CompilationError,
    CompiledKernel,
    LaunchCall,
    OutOfResources,
    PTXASError,
    intercepted_launches,
    noted_calls,
    noted_trials,
    refused_kernels,
    why_not_compiled,
)
from kperf.console import complain
from kperf.diagnose.history import Histories
from kperf.errors import UsageError
from kperf.ir import offline
from kperf.ir.offline import Launch, noted_launches
from kperf.trace.capture.script import INTERRUPTED, Script

_META = torch.device("meta")
_CUDA = torch.device("cuda", 0)
_HOLD = {"allclose", "equal", "is_nonzero", "__bool__", "__contains__"}
_PROPERTIES = {torch.Tensor.is_cuda.__get__: True, torch.Tensor.device.__get__: _CUDA}  # type: ignore[attr-defined]
_ONE = {"item", "__int__", "__float__", "__index__"}
_NOT_PYTHON = ("SyntaxError", "IndentationError", "TabError")
_MISSING = ("ModuleNotFoundError", "ImportError")
_MOST_NUMBERS = 20_000
"""A loop that ends when a number is small enough never ends where each is 1: it asks for one in each iteration."""
_PIPELINE_FAILED = "PassManager::run failed"
_LAST_BYTES = 1 << 20
"""Of standard error, which may be long: its last line is in them, and what a compiler says of a kernel that fails."""
_INDEXED = {"__getitem__", "__setitem__"}
_LARGEST = 1 << 26
"""Elements of a tensor that is copied to the CPU."""


class NoNumbersError(RuntimeError):
    """A script that would wait for numbers until it is ended."""


class _OnMeta(TorchFunctionMode):
    """Whatever asks for `cuda` gets `meta`."""

    def __init__(self) -> None:
        """No numbers were asked for yet."""
        super().__init__()
        self._asked = 0

    def __torch_function__(
        self, func: Any, _types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        first = args[0] if args else None
        if name == "cuda":
            return torch.Tensor.to(args[0], _META)
        if isinstance(first, torch.Tensor) and first.is_meta:
            if func in _PROPERTIES:
                return _PROPERTIES[func]
            if name in _HOLD or name in _ONE or name == "__format__":
                return self._number(name, args)
            to_cpu = name == "to" and any(str(one) == "cpu" for one in (*args[1:], *(kwargs or {}).values()))
            if to_cpu or name in ("cpu", "numpy", "tolist"):
                return _on_cpu(first, "cpu" if to_cpu else name)
        options = {key: _redirected(value) for key, value in (kwargs or {}).items()}
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
        is_device = func is torch.device  # of a name and a number: `meta` cannot stand for the name alone
        redirected = list(map(_redirected, args))
        return _redirected(func(*args, **(kwargs or {}))) if is_device else _computed(func, redirected, options)

    def _number(self, name: str, args: Sequence[Any]) -> Any:
        """A number where there is none: whatever is asked of it holds, and else it is 1."""
        self._asked += 1
        if self._asked > _MOST_NUMBERS:
            raise NoNumbersError(f"it asks for tensors' numbers {_MOST_NUMBERS} times: a loop may wait for them")
        if name in _HOLD:
            return True
        return {"__format__": format(1.0, args[1] if len(args) > 1 else ""), "__float__": 1.0}.get(name, 1)


def _computed(func: Any, args: list[Any], options: dict[str, Any]) -> Any:
    """What an operator gives; one whose result depends on numbers, as `unique`, is given ones."""
    try:
        return func(*args, **options)
    except (NotImplementedError, RuntimeError) as error:
        if "meta" not in str(error).lower():
            raise
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


class _Event:
    """Of a clock that stands still."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, _other: Any) -> float:
        return 1.0


class NoLaunchError(UsageError):
    """A script that runs, and launches no kernel."""


@dataclass(frozen=True)
class Launches:
    """The kernels that a script launches. tuned: hashes of those that an autotuner tried. why: what ended it early."""

    kernels: list[Launch]
    tuned: set[str]
    why: str | None
    histories: Histories


def launches_of(script: Script, arch: Arch) -> Launches:
    """The kernels that a script launches, compiled for an architecture.

    What it prints is dropped. Raises `UsageError` if there is no such script, and `NoLaunchError`.
    """
    script.check()
    why: list[str] = []
    tuned: set[str] = set()
    histories = Histories()

    def note(kernel: CompiledKernel) -> Callable[[LaunchCall], None]:
        def noted(call: LaunchCall) -> None:
            histories.note_arguments(kernel, call)
            if trying:
                tuned.add(kernel.hash)
            else:
                histories.note(kernel, call)
            call()

        return noted

    with (
        pretended_cuda(arch) as compiling,
        noted_trials() as trying,
        intercepted_launches(note),
        noted_calls(),
        refused_kernels() as refused,
        noted_launches(arch) as launches,
        quiet(why) as said,
    ):
        status = script.run()
        text = said()
    if why:
        why[-1] += compilers_words(why[-1], text)
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    if why and why[-1].startswith(OutOfResources.__name__) and refused:  # it ends here on a GPU too
        launches.append(Launch(refused[-1], (0, 0, 0)))
    if not launches:
        if compiling.called and not why and not status:
            raise NoLaunchError(
                f"{script.name} launches no kernel of its own, and torch.compile makes kernels only on a GPU: run it "
                "there without --static"
            )
        raise NoLaunchError(_without_launches(script, arch, why[-1] if why else "", status, text))
    return Launches(launches, tuned, why[-1] if why else None, histories)


def _without_launches(script: Script, arch: Arch, why: str, status: int, text: str) -> str:
    """What a script does instead of a launch, and how it comes to one. text: the end of its standard error."""
    if "non-ASCII" in why:
        return f"{script.name} ended with {why}: move it to a path of ASCII letters, which ptxas reads"
    if why.startswith(("CompilationError", "PTXASError")) or _PIPELINE_FAILED in why:
        return f"{script.name} ended with {why}: correct the kernel, or name another --target than {arch.name}"
    if why.startswith(_NOT_PYTHON):
        return f"{script.name} ended with {why}: correct it"
    if why.startswith(_MISSING) and "relative import" not in why:
        return f"{script.name} ended with {why}: install what it imports beside kperf"
    reason, advice = "a launch that depends on a tensor's numbers is not reached", ""
    if why:
        reason = f"it ended with {why}"
    elif status:
        last = text.strip().rpartition("\n")[2].strip()[:200]
        reason = f"it ended with status {status}{f': {last}' if last else ''}"
        advice = "give it its options after --, or "
    kernels = [] if script.is_module else _kernels_in(Path(script.name))
    return (
        f"{script.name} launches no kernel where tensors have no numbers ({reason}): {advice}name a kernel instead, "
        f"{script.name}:{'function' if len(kernels) != 1 else kernels[0]} --signature ..."
        + (f" (of {', '.join(kernels)})" if len(kernels) > 1 else "")
    )


def compilers_words(why: str, text: str) -> str:
    """Where a kernel fails and why, if a pass does: as MLIR says in `text`, of standard error; else empty."""
    if _PIPELINE_FAILED not in why:
        return ""
    errors = re.findall(r"^(.+):(\d+):\d+: error: (.+)$", text, re.MULTILINE)
    first = next((one for one in errors if not one[2].startswith("Failures have been detected")), None)
    return f": {Path(first[0]).name}:{first[1]}: {first[2]}" if first is not None else ""


def _kernels_in(path: Path) -> list[str]:
    """The names of a file's functions whose decorator is a `jit`, in the order of the file."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return [node.name for node in functions if any(_is_jit(one) for one in node.decorator_list)]


def _is_jit(decorator: ast.expr) -> bool:
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")) == "jit"


@contextmanager
def quiet(why: list[str]) -> Iterator[Callable[[], str]]:
    """Drop what a script prints, and keep the exception that ended it as words.

    Yields what gives the end of the text that stands in its standard error.
    """

    def ended(kind: type[BaseException], error: BaseException, _traceback: Any) -> None:
        if isinstance(error, CompilationError | PTXASError):
            why.append(f"{kind.__name__}: {why_not_compiled(error)}"[:200])
            return
        first = (str(error).splitlines() or [""])[0].rstrip(":;")
        why.append(f"{kind.__name__}: {first}{f': {error.__cause__}' if error.__cause__ else ''}"[:200])

    with (
        open(os.devnull, "w") as dropped,  # noqa: PTH123
        tempfile.TemporaryFile() as kept,
        open(os.dup(kept.fileno()), "w") as errors,  # noqa: PTH123 (of its own, which the script may close)
        contextlib.redirect_stdout(dropped),
        contextlib.redirect_stderr(errors),
        _led_to(dropped.fileno(), 1),
        _led_to(kept.fileno(), 2),
        patch.object(sys, "excepthook", ended),
        _exits_raised(),
    ):
        yield lambda: _end_of(errors, kept)


def _end_of(errors: IO[str], kept: IO[bytes]) -> str:
    with contextlib.suppress(ValueError):  # the script has closed it
        errors.flush()
    kept.seek(max(kept.seek(0, os.SEEK_END) - _LAST_BYTES, 0))
    return kept.read().decode(errors="replace")


@contextmanager
def _led_to(descriptor: int, number: int) -> Iterator[None]:
    """Within it a standard stream goes there, of programs too that a script starts; it may close it."""
    try:
        kept = os.dup(number)
    except OSError:  # it is closed already
        yield
        return
    try:
        os.dup2(descriptor, number)
        yield
    finally:
        os.dup2(kept, number)
        os.close(kept)


@contextmanager
def _exits_raised() -> Iterator[None]:
    """Within it `os._exit` ends a script and not what reads it; a process that the script forked ends here at last."""
    process, exit_at_once = os.getpid(), os._exit

    def ended(status: int) -> NoReturn:
        if os.getpid() != process:
            exit_at_once(status)
        raise SystemExit(status)

    try:
        with patch.object(os, "_exit", ended):
            yield
    finally:
        if os.getpid() != process:
            exit_at_once(0)


def imported(name: str, arch: Arch) -> tuple[dict[str, Any], str | None]:
    """What a file or a module defines, and the words of the exception that ended it, None without one.

    A file inside of a package is imported as the package's; where that needs what is not here, as a compiled extension,
    without what `__init__.py` does. Its launches do nothing. Raises `UsageError` if there is no such file or module.
    """
    path = Path(name) if name.endswith(".py") else None
    if path is not None and not path.is_file():
        raise UsageError(f"there is no file {path}")
    folder, dotted = _place_of(path.resolve()) if path is not None else (Path.cwd(), name)
    names: dict[str, Any] = {}
    why: list[str] = []
    left_out = ""
    before, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        with pretended_cuda(arch), noted_launches(arch), quiet(why):
            try:
                spec = _spec_of(path, folder, dotted)
            except Exception as error:
                if path is None or isinstance(error, UsageError):
                    raise
                left_out = f"{type(error).__name__}: {' '.join(str(error).split())}"
                _import_bare_packages(folder, dotted)
                spec = _spec_of(path, folder, dotted)
            if spec is not None and spec.loader is not None:
                if "." in dotted and dotted in sys.modules:  # its package has imported it
                    names = vars(sys.modules[dotted])
                else:
                    module = sys.modules[dotted] = importlib.util.module_from_spec(spec)
                    names = vars(module)
                    spec.loader.exec_module(module)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        sys.modules.pop(dotted, None)  # half of it is there
        why.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
    finally:
        sys.path[:] = before
        if left_out:  # the next file of the package finds it as this one did, and gets its sentence too
            _forget_new_modules(known, dotted.partition(".")[0])
    if left_out:
        complain(f"{dotted.rpartition('.')[0]} cannot be imported ({left_out}): {name} is, without its __init__.py")
    return names, why[-1] if why else None


def _forget_new_modules(known: Set[str], package: str) -> None:
    for name in set(sys.modules) - known:
        if name.partition(".")[0] == package:
            del sys.modules[name]


def _import_bare_packages(folder: Path, dotted: str) -> None:
    """Modules for the packages around one, as far as there are none: of each its folder alone is known."""
    parts = dotted.split(".")
    for count in range(1, len(parts)):
        package = ".".join(parts[:count])
        if package not in sys.modules:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = [str(folder.joinpath(*parts[:count]))]


def _spec_of(path: Path | None, folder: Path, dotted: str) -> ModuleSpec | None:
    """How a module is imported; packages around it are, here. Raises `UsageError` if there is none, or another."""
    if path is not None and "." not in dotted:
        return importlib.util.spec_from_file_location(dotted, path)
    spec = importlib.util.find_spec(dotted)
    if spec is None:
        raise UsageError(f"there is no module {dotted}: give package.module:function, or file.py:function")
    if path is not None and (spec.origin is None or not path.samefile(spec.origin)):
        raise UsageError(f"{path} is {dotted} of {folder}, and here {dotted} is {spec.origin}: name the kernel there")
    return spec


def _place_of(path: Path) -> tuple[Path, str]:
    """The folder from which a file is imported, and its name as a module's.

    That is the one outside of its packages, which have an `__init__.py`, or which its relative imports go through.
    """
    depth = _deepest_relative_import(path)
    while (path.parents[depth] / "__init__.py").is_file():
        depth += 1
    folder = path.parents[depth]
    parts = path.relative_to(folder).with_suffix("").parts
    if depth == 0:
        return folder, f"_kperf_{path.stem}"
    return folder, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _deepest_relative_import(path: Path) -> int:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return 0  # the import reports what is wrong
    levels = [node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return min(max(levels, default=0), len(path.parents) - 1)


@contextmanager
def pretended_cuda(arch: Arch) -> Iterator[_Compile]:
    """Within it torch has a GPU of this architecture, whose tensors are on `meta`. Yields what `torch.compile` is."""
    found = offline.properties(arch)
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
        "Event": _Event,
        "device": lambda *_: contextlib.nullcontext(),
        "stream": lambda *_: contextlib.nullcontext(),
        "current_stream": lambda *_: SimpleNamespace(cuda_stream=7, synchronize=_nothing()),
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(patch.object(offline.Driver, "get_active_torch_device", lambda _: _CUDA))
        stack.enter_context(patch.object(torch, "compile", compiling := _Compile()))
        stack.enter_context(allocated_on(_META))
        for name in ("do_bench", "do_bench_cudagraph"):
            stack.enter_context(patch.object(triton.testing, name, _bench))
        stack.enter_context(set_wrap_triton_enabled(False))  # else a wrapped kernel's launch is a node of a graph
        stack.enter_context(mode := _OnMeta())
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
