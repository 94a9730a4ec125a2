"""Triton's private interfaces, from 3.6 to 3.9, as functions and types of the field's names.

Where versions differ, the branch stands here and says from which version on.
"""

import contextlib
import copy
import hashlib
import inspect
import io
import re
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import triton
from triton import knobs
from triton._C.libtriton import amd, get_cache_invalidating_env_vars, ir, nvidia, passes, proton
from triton._utils import canonicalize_dtype
from triton.backends import backends
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel, make_backend
from triton.compiler.errors import CompilationError
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime import driver
from triton.runtime._allocation import _profile_allocator, set_profile_allocator
from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.cache import FileCacheManager, _base32, get_cache_key, get_cache_manager
from triton.runtime.errors import OutOfResources, PTXASError, TritonError
from triton.runtime.jit import JITFunction

from kperf.errors import UsageError

if not hasattr(knobs.compilation, "instrumentation_mode"):
    raise UsageError(f"Triton {triton.__version__} is too old for kperf: install triton 3.6 or newer, with its torch")
try:
    from triton import _instrumentation as registry  # from 3.9 on
except ImportError:
    registry = None

__all__ = [
    "ASTSource",
    "Autotuner",
    "CompilationError",
    "CompiledKernel",
    "GPUTarget",
    "GluonASTSource",
    "OutOfResources",
    "PTXASError",
    "TritonError",
]

VERSION: str = triton.__version__

Launch = Callable[..., None]
"""What `CompiledKernel.run` gives: called with the grid, the stream, the function, metadata, hooks and arguments."""


# Sources and options


def source_of(
    kernel: Any,
    signature: Mapping[str, Any],
    constexprs: Mapping[Any, Any],
    attributes: Mapping[tuple[int, ...], Any] | None = None,
) -> ASTSource:
    """What a @triton.jit or @gluon.jit kernel is compiled from.

    `signature`: types by name, of a tuple a tuple. `constexprs`: values by name, or by place. `attributes`: what the
    JIT knows of an argument's value, {(index,): [["tt.divisibility", 16]]}.
    """
    source_class = GluonASTSource if kernel.is_gluon() else ASTSource
    return source_class(kernel, dict(signature), dict(constexprs), dict(attributes or {}))


@dataclass(frozen=True)
class Decorated:
    """A @triton.jit or @gluon.jit function, and what the decorators around it say.

    arguments: their names. declared: its constexprs, with their defaults (`inspect.Parameter.empty` without one).
    configurations: of an autotuner, constexprs and options by name; an empty one without an autotuner. heuristics:
    constexprs that are computed from the other arguments, by name.
    """

    function: Any
    arguments: tuple[str, ...]
    declared: Mapping[str, Any]
    configurations: tuple[Mapping[str, Any], ...]
    heuristics: Mapping[str, Callable[[Mapping[str, Any]], Any]]


def undecorated(named: Any) -> Decorated | None:
    """The JIT function inside of `named`, None if there is none: each decorator keeps what is inside of it as `fn`.

    Autotuners of others are known by their `configs`, heuristics by their `values`.
    """
    configurations: tuple[Mapping[str, Any], ...] = ({},)
    heuristics: dict[str, Callable[[Mapping[str, Any]], Any]] = {}
    while not isinstance(named, JITFunction):
        if configs := getattr(named, "configs", None):
            configurations = tuple(config.all_kwargs() for config in configs)
        if isinstance(values := getattr(named, "values", None), Mapping):
            heuristics |= values
        if not hasattr(named, "fn"):
            return None
        named = named.fn
    parameters = list(named.signature.parameters.values())
    declared = {parameters[place].name: parameters[place].default for place in named.constexprs}
    return Decorated(named, tuple(named.arg_names), declared, configurations, heuristics)


def canonical_type(name: str) -> str:
    """Triton's name of a type that Triton or torch names: `bf16` of `bfloat16`. Raises `KeyError` if there is none."""
    return str(canonicalize_dtype(name))


def why_not_compiled(error: BaseException, function: Any = None) -> str:
    """Why a JIT function does not compile: its line, if the front end names one, and the first cause, in words.

    Where the function is not known, its line is quoted.
    """
    where = ""
    named = isinstance(error, CompilationError) and hasattr(error.node, "lineno")
    if isinstance(error, CompilationError) and named and function is None:
        lines = (error.src or "").splitlines()
        where = f"at `{lines[error.node.lineno - 1].strip()}`: " if error.node.lineno <= len(lines) else ""
    elif isinstance(error, CompilationError) and named:
        lines, first = inspect.getsourcelines(function.fn)
        decorators = next(number for number, line in enumerate(lines) if re.match(r"\s*def\b", line))
        where = f"{Path(function.fn.__code__.co_filename).name}:{first + decorators + error.node.lineno - 1}: "
    while error.__cause__ is not None:
        error = error.__cause__
    said = str(error)
    if isinstance(error, CompilationError) and (error.error_message or hasattr(error.node, "lineno")):
        said = error.error_message  # else its words are all that it has
    words = (said or "").strip().splitlines() or [_without_words(error)]
    errors = [line for line in words if re.match(r"ptxas\S* .*(error|fatal)\s*:", line)]
    words += errors[:1]  # else it is how to run ptxas
    quoted = re.fullmatch(r"""\w+\((['"])(.*)\1\)""", words[-1])  # an exception's repr
    return f"{where}{quoted[2] if quoted else words[-1]}"


def _without_words(error: BaseException) -> str:
    """An exception that says nothing, by where it was raised: an assertion is its own words."""
    raised = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}{f' ({raised[-1].line})' if raised and raised[-1].line else ''}"


def is_gluon(source: Any) -> bool:
    """Whether a source is a Gluon kernel's."""
    return isinstance(source, GluonASTSource)


def python_function(kernel: CompiledKernel) -> Callable[..., None] | None:
    """The Python function that a kernel was compiled from; None if it came without its source."""
    return getattr(getattr(kernel.src, "fn", None), "fn", None)


def argument_names(kernel: CompiledKernel) -> tuple[str, ...]:
    """Of the kernel's function, in order; empty if it came without its source."""
    return tuple(getattr(getattr(kernel.src, "fn", None), "arg_names", ()))


def constexprs_of(kernel: CompiledKernel) -> dict[str, Any]:
    """What its function's parameters that are declared `tl.constexpr` were compiled with, by name."""
    function: Any = getattr(kernel.src, "fn", None)
    declared = set(getattr(function, "constexprs", ()))
    constants = getattr(kernel.src, "constants", {})
    return {function.arg_names[path[0]]: value for path, value in constants.items() if path[0] in declared}


def specialisation_of(kernel: CompiledKernel) -> dict[str, str]:
    """What the compiler assumed of each argument's value, by name, in words; empty if it came without its source."""
    source = kernel.src
    found = {}
    for place, name in enumerate(argument_names(kernel)):
        kind = str(source.signature.get(name, ""))
        if (place,) in source.constants:
            value = source.constants[place,]
            found[name] = f"the constexpr {value}" if place in source.fn.constexprs else f"the value {value}"
        elif not kind.startswith(("*", "i", "u")):
            continue
        elif ["tt.divisibility", 16] in source.attrs.get((place,), []):
            found[name] = "aligned to 16 bytes" if kind.startswith("*") else "a multiple of 16"
        else:
            found[name] = "not aligned to 16 bytes" if kind.startswith("*") else "no multiple of 16"
    return found


ANNOTATION = "a type annotation"
"""What keeps the JIT from specialising a kernel for the number 1, beside its lists of arguments."""


@dataclass(frozen=True)
class Unspecialised:
    """What keeps the JIT from specialising a kernel for an argument's value, as the source has it.

    multiple: from knowing that it is a multiple of 16, or begins at one; one: that it is 1. Empty where nothing does.
    """

    multiple: str
    one: str


def unspecialised(kernel: CompiledKernel) -> dict[str, Unspecialised]:
    """Of arguments that are no constexprs, by name; empty if the kernel came without its source.

    `do_not_specialize` keeps both from the compiler, `do_not_specialize_on_alignment` multiples alone, and a type as
    annotation (`stride: int`) the number 1 alone (`create_function_from_signature`).
    """
    found = {}
    for one in getattr(getattr(kernel.src, "fn", None), "params", ()):
        if not one.is_constexpr:
            both = "do_not_specialize" if one.do_not_specialize else ""
            found[one.name] = Unspecialised(
                both or ("do_not_specialize_on_alignment" if one.do_not_specialize_on_alignment else ""),
                both or (ANNOTATION if one.annotation_type else ""),
            )
    return found


def source_with(kernel: CompiledKernel, constexprs: Mapping[str, Any]) -> ASTSource:
    """What a kernel was compiled from, with other values of some of its constexprs."""
    source = kernel.src
    constants = source.constants | {(source.fn.arg_names.index(name),): value for name, value in constexprs.items()}
    made: ASTSource = type(source)(source.fn, source.signature, constants, source.attrs)
    return made


def compiled_for(function: Any) -> list[CompiledKernel]:
    """All that was compiled of a JIT function in this process, on any device."""
    return [kernel for cache, *_ in function.device_caches.values() for kernel in cache.values()]


def default_options(target: GPUTarget) -> dict[str, Any]:
    """Every compile option of a target, with what it is where nobody gives it."""
    return dict(vars(make_backend(target).parse_options({})))


def compile_in_place(source: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> CompiledKernel:
    """Compile a source with the TTGIR of the file `ir_override`, one of the options, in place of its own."""
    if "ir_override" in default_options(target):
        return triton.compile(source, target=target, options=dict(options))
    # AMD's back end drops the option in silence (to 3.9): there the file is the source.
    others = {name: value for name, value in options.items() if name != "ir_override"}
    return triton.compile(options["ir_override"], target=target, options=others)


def instrumentation_option() -> dict[str, str]:
    """The compile option by which the cache tells kernels of one instrumentation from those of another."""
    return {"instrumentation_mode": _apart or knobs.compilation.instrumentation_mode}


def interpreting() -> bool:
    """Whether TRITON_INTERPRET is set: nothing is compiled."""
    return bool(knobs.runtime.interpret)


def overriding() -> bool:
    """Whether TRITON_KERNEL_OVERRIDE is set: `ir_override` is ignored."""
    return bool(knobs.compilation.override)


def override_folder(source: ASTSource) -> str:
    """Name of the folder in TRITON_OVERRIDE_DIR where Triton looks for a source's IR."""
    folder: str = _base32(source.hash())
    return folder


# Modules


def parse_module(path: Path) -> Any:
    """The printed module in a file, in a context of its own with the dialects of every GPU and of Proton.

    Raises `RuntimeError` if it does not parse or verify; why is written to file descriptor 2.
    """
    context = ir.context()
    ir.load_dialects(context)
    for dialects in (nvidia, amd, proton):
        dialects.load_dialects(context)
    module = ir.parse_mlir_module(str(path), context)
    module.context = context
    return module


def allocate_warp_groups(module: Any) -> None:
    """Write into a module where the warps of each partition begin."""
    manager = ir.pass_manager(module.context)
    passes.ttgpuir.add_allocate_warp_groups(manager)
    manager.run(module, "allocate_warp_groups")


def front_end_ir(source: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> str:
    """What the front end makes of a source, as `asm["source"]` has it: printed with locations, no function inlined.

    What `tl.static_print` says was said when the kernel was compiled, and is dropped here.
    """
    with contextlib.redirect_stdout(io.StringIO()):
        return str(_front_end(source, make_backend(target), target, options)[0])


def watch_front_end(source: ASTSource, run: Callable[[Callable[[], Any]], Any]) -> None:
    """Whenever this source is compiled, `run` calls its front end, and returns the module that this makes."""
    front_end = source.make_ir
    source.make_ir = lambda *arguments: run(partial(front_end, *arguments))


def lower_to_ttgir(source: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> str:
    """The TTGIR of a Gluon source, printed without locations: no further stage is run."""
    backend = make_backend(target)
    module, parsed = _front_end(source, backend, target, options)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    return str(stages["ttgir"](module, {}).str_nodebug())


def _front_end(source: ASTSource, backend: Any, target: GPUTarget, options: Mapping[str, Any]) -> tuple[Any, Any]:
    """The module that the front end makes of a source, and the back end's options."""
    parsed = backend.parse_options(dict(options) | source.parse_options())
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    implementation, modules = backend.get_codegen_implementation(parsed), backend.get_module_map()
    module = source.make_ir(target, parsed, implementation, modules, context)
    module.context = context
    return module, parsed


# The cache


def cache_folder() -> Path:
    """Where Triton keeps what it compiled."""
    return Path(knobs.cache.dir)


def cache_key(source: ASTSource, target: GPUTarget, options: Mapping[str, Any]) -> str:
    """What tells one compilation from another."""
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options) | source.parse_options())
    key: str = get_cache_key(source, backend, parsed, get_cache_invalidating_env_vars())
    return key


def cached_file(key: str, name: str) -> Path | None:
    """The file of this name that the cache keeps under a key (hexadecimal digits)."""
    found = get_cache_manager(key).get_file(name)
    return Path(found) if found else None


def keep_in_cache(key: str, name: str, text: str) -> None:
    """Put a file of this name into the cache."""
    get_cache_manager(key).put(text, name, binary=False)


@contextmanager
def own_cache(folder: Path) -> Iterator[None]:
    """What is compiled while this is open is kept in `folder`: no cache, dump or listener of the user's sees it.

    Nor does Triton warn of the source once more, as it did when the script compiled it.
    """
    with knobs.cache.scope(), knobs.compilation.scope(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        knobs.cache.dir = str(folder)
        knobs.cache.manager_class = FileCacheManager
        knobs.compilation.dump_ir = False
        knobs.compilation.listener = None
        yield


def assembler() -> str:
    """The versions of both ptxas that would assemble now, "12.8-12.9"; empty where Triton has none, as in ROCm's build.

    TRITON_PTXAS_PATH names another first one. torch.compile sets it in the process that it runs in, to torch's own,
    while the key of Triton's cache goes on with the version that it read first (`get_ptxas_version` is cached).
    """
    try:
        return f"{knobs.nvidia.ptxas.version}-{knobs.nvidia.ptxas_blackwell.version}"
    except RuntimeError:
        return ""


def ptxas(number: int) -> tuple[Path, str]:
    """Which ptxas assembles for a target (90 for sm_90a), and its version.

    Triton has one for Blackwell beside the older one; from 3.9 on Hopper is assembled by that, too, and the older one
    does not know the PTX that is written for it.
    """
    from triton.backends.nvidia.compiler import get_ptxas  # a build for ROCm lacks it

    tool = get_ptxas(number)
    return Path(tool.path), str(tool.version)


def binary_tool(name: str) -> Path:
    """cuobjdump or nvdisasm: of Triton's wheel."""
    return Path(triton.__file__).parent / "backends/nvidia/bin" / name


# Instrumentation

ALIGNMENT = 128
"""Bytes at whose multiples each CTA's part of the profile buffer begins."""

_UNCAPPED = 1 << 24
"""What Proton is given as an SM's shared memory. Of the true size it would keep no more than 4 % for events where two
CTAs fit (`maxSharedMemRatio`), and say nothing; how large the circular buffer is, is chosen before."""

_LOWERING = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
"""What is lowered in another way than in this file is another kernel, to Triton's cache too."""

_POINTS = ("load-dialects", "ttgpuir-to-llvmir", "llvmir-to-llvm")
_BACKENDS = {"cuda": "nvidia", "hip": "amd"}

_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class EventLowering:
    """How events become code: taken by `warps` of a CTA, each in a circular buffer of `bytes_per_warp`.

    `memory`: where the buffer is until the CTA ends; `clock_bits`: of a timestamp.
    """

    warps: tuple[int, ...]
    bytes_per_warp: int
    memory: Literal["shared", "global"]
    clock_bits: Literal[32, 64]

    @property
    def key(self) -> str:
        """What tells two lowerings of one module apart: the compile options carry it, or the cache mixes them up."""
        warps = ".".join(map(str, self.warps))  # a comma would separate modes
        return f"kperf-{_LOWERING}:{warps}:{self.bytes_per_warp}:{self.memory}:{self.clock_bits}"

    def add_to_ttgir(self, manager: Any) -> None:
        """The passes that run when TTGIR becomes LLVM's dialect."""
        proton.add_convert_proton_to_protongpu(
            manager,
            proton.METRIC_TYPE.CYCLE,
            proton.SAMPLING_STRATEGY.SELECTIVE,
            ",".join(map(str, self.warps)),
            proton.GRANULARITY.WARP,
            proton.BUFFER_STRATEGY.CIRCULAR,
            {"shared": proton.BUFFER_TYPE.SHARED, "global": proton.BUFFER_TYPE.GLOBAL}[self.memory],
            self.bytes_per_warp * len(self.warps),
            _UNCAPPED,
            1,  # the least size of the device buffer: it is made to measure
            ALIGNMENT,
            self.clock_bits == 64,
        )
        # Not Proton's schedule-buffer-store pass: it writes an outer scope's start after the inner scopes' events.
        passes.common.add_cse(manager)
        proton.add_allocate_proton_shared_memory(manager)

    def add_to_llvm_dialect(self, target: GPUTarget, manager: Any) -> None:
        """The passes that run before LLVM's dialect becomes LLVM IR."""
        if hasattr(proton, "add_allocate_proton_global_scratch_buffer"):  # to 3.7
            proton.add_allocate_proton_global_scratch_buffer(manager)
        if target.backend == "cuda":
            proton.add_convert_proton_nvidia_gpu_to_llvm(manager)
        else:
            proton.add_convert_proton_amd_gpu_to_llvm(manager, target.arch)


class _Hook:
    """What the compiler calls at its two instrumentation points, to 3.8."""

    def __init__(self, lowering: EventLowering, target: GPUTarget) -> None:
        self.lowering, self.target = lowering, target

    def load_dialects(self, context: Any) -> None:
        proton.load_dialects(context)

    def patch(self, stage: str, manager: Any, context: Any) -> None:
        proton.load_dialects(context)
        if stage == "ttgpuir_to_llvmir":
            self.lowering.add_to_ttgir(manager)
        elif stage == "llvmir_to_llvm":
            self.lowering.add_to_llvm_dialect(self.target, manager)


@contextmanager
def instrumentation(lowering: EventLowering, target: GPUTarget, *, apart: bool = False) -> Iterator[None]:
    """Within it, kernels with events are compiled for `target` so that they take them.

    `apart`: what has `instrumentation_option` alone, and not what the JIT launches meanwhile, in any thread.

    Raises `UsageError` when another profiling session is open, this one's or Proton's own: they share the compiler; and
    with a Triton that lowers events in another way.
    """
    backend = _BACKENDS[target.backend]
    if registry is None and not hasattr(backends[backend].compiler, "instrumentation"):
        raise UsageError(f"Triton {VERSION} has no place for the passes that lower events: install triton 3.6 to 3.9")
    if _is_instrumented(backend) or not _one_at_a_time.acquire(blocking=False):
        raise UsageError("another profiling session is open: end it first, there can be one at a time")
    with ExitStack() as stack:
        stack.callback(_one_at_a_time.release)
        if registry is None:
            compiler = backends[backend].compiler
            compiler.instrumentation = _Hook(lowering, target)
            stack.callback(setattr, compiler, "instrumentation", None)
        else:
            callbacks = (proton.load_dialects, lowering.add_to_ttgir, partial(lowering.add_to_llvm_dialect, target))
            for point, callback in zip(_POINTS, callbacks, strict=True):
                registry.register_instrumentation(point=point, backend=backend, callback=callback)
                stack.callback(registry.unregister_instrumentation, point=point, backend=backend)
        if apart:
            stack.enter_context(_compiled_apart(lowering.key))
        else:
            before, knobs.compilation.instrumentation_mode = knobs.compilation.instrumentation_mode, lowering.key
            stack.callback(setattr, knobs.compilation, "instrumentation_mode", before)
        yield


_apart = ""
"""The mode of what is compiled with `instrumentation_option` alone."""


@contextmanager
def _compiled_apart(mode: str) -> Iterator[None]:
    global _apart  # noqa: PLW0603
    before, _apart = _apart, mode
    try:
        yield
    finally:
        _apart = before


@contextmanager
def changed_ptx(change: Callable[[str], str], key: str) -> Iterator[None]:
    """Within it, what has `instrumentation_option` is compiled from PTX that was changed.

    `key` tells one change from another: what changes the stages of the compiler is not in the key of Triton's cache.
    What `change` raises comes out of the compiler as it is. To be opened inside `instrumentation` with `apart`.
    """
    mode, before = f"{_apart}:{key}", knobs.runtime.add_stages_inspection_hook

    def hook(*arguments: Any) -> Any:
        if not arguments:  # from 3.7 on: what else is to be in the key of whatever is compiled meanwhile
            return before() if before is not None else ("", "")
        if before is not None:
            before(*arguments)
        _, stages, options, *_ = arguments
        if getattr(options, "instrumentation_mode", "") == mode:
            make = stages["ptx"]
            stages["ptx"] = lambda source, metadata: change(make(source, metadata))
        return None

    with _compiled_apart(mode):
        knobs.runtime.add_stages_inspection_hook = hook
        try:
            yield
        finally:
            knobs.runtime.add_stages_inspection_hook = before


def _is_instrumented(backend: str) -> bool:
    if registry is not None:
        return any((point, backend) in registry._callbacks for point in _POINTS)
    return bool(backends[backend].compiler.instrumentation)


# Launches


@dataclass(frozen=True)
class LaunchCall:
    """A launch as it reaches `CompiledKernel.run`; `rest`: packed metadata, launch metadata, two hooks, arguments."""

    launch: Launch
    grid: tuple[int, int, int]
    stream: int
    function: int
    rest: tuple[Any, ...]

    def __call__(self) -> None:
        """Launch what was to be launched."""
        self.launch(*self.grid, self.stream, self.function, *self.rest)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The kernel's, in order."""
        return self.rest[4:]

    def of(self, kernel: CompiledKernel, launch: Launch) -> "LaunchCall":
        """The same grid, stream, hooks and arguments for another kernel, which `launch` launches and has loaded."""
        rest = (kernel.packed_metadata, *self.rest[1:])
        return LaunchCall(launch, self.grid, self.stream, kernel.function, rest)

    def elsewhere(self, grid: tuple[int, int, int], arguments: Sequence[Any]) -> "LaunchCall":
        """The same launch with another grid and other arguments."""
        return replace(self, grid=grid, rest=(*self.rest[:4], *arguments))

    def again(self, stream: int) -> "LaunchCall":
        """The same launch on another stream, without the hooks of a profiler."""
        return replace(self, stream=stream, rest=(self.rest[0], None, None, None, *self.arguments))


_load = CompiledKernel._init_handles


def own_launch(kernel: CompiledKernel) -> Launch:
    """Load a kernel and give its launch, which nobody intercepts. Raises `OutOfResources` if the GPU has too little."""
    _load(kernel)  # not among `refused_kernels`
    launch: Launch = kernel._run
    return launch


def loaded_again(kernel: CompiledKernel) -> tuple[CompiledKernel, Launch]:
    """The same kernel and its own launch, its machine code loaded once more: a profiler may not know what was before.

    Triton unloads no kernel: the copy stays on the GPU too.
    """
    copied = copy.copy(kernel)
    copied.module = copied.function = copied._run = None
    return copied, own_launch(copied)


class DirectLaunch:
    """`kernel[grid]` without what Triton does in Python at each launch: 2 us in place of 12.

    The kernel's first arguments may be TMA descriptors, which the caller keeps encoded. Launches that somebody watches,
    and those of other Tritons and drivers, are not direct: `usable` says which.
    """

    def __init__(self, kernel: CompiledKernel, launch: Launch) -> None:
        """`direct_launch` makes it; launch: the kernel's own."""
        around: Any = launch
        self._launcher, self._boxes = around.launch, ()
        if kernel.metadata.tensordesc_meta:
            held = inspect.getclosurevars(around.launch).nonlocals
            self._launcher, self._boxes = held["launcher"], held["tensordesc_meta"]
        self._encode = sys.modules[type(launch).__module__].make_tensordesc_arg
        options = (around.launch_cooperative_grid, around.launch_pdl)
        self._head = (kernel.function, *options, None, None, kernel.packed_metadata, None, None, None)
        self._stream = driver.active.get_current_stream

    def encoded(self, place: int, descriptor: Any) -> tuple[Any, ...]:
        """A host's descriptor as the kernel's descriptor number `place`: of memory that may come and go."""
        return tuple(self._encode(descriptor, self._boxes[place]))

    def __call__(self, device: int, grid: tuple[int, int, int], *arguments: Any) -> None:
        """Launch on the current stream of a device, the current one; arguments: with descriptors as `encoded`, flat."""
        self._launcher(*grid, self._stream(device), *self._head, *arguments)

    @staticmethod
    def usable() -> bool:
        """Whether nobody watches launches now: a profiler's hooks, or who put himself in place of them."""
        enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
        hooked = getattr(enter, "calls", enter) or getattr(leave, "calls", leave)
        return not hooked and CompiledKernel.__dict__["run"] is _run


_run = CompiledKernel.__dict__["run"]


def direct_launch(kernel: CompiledKernel) -> DirectLaunch | None:
    """The direct launch of a kernel on CUDA with Triton 3.6; None of others. Loads it."""
    launch: Any = own_launch(kernel)
    known = VERSION.startswith("3.6.") and type(launch).__module__ == backends["nvidia"].driver.__module__
    if not known or launch.global_scratch_size or launch.profile_scratch_size:
        return None
    return DirectLaunch(kernel, launch)


@contextmanager
def intercepted_launches(
    intercept: Callable[[CompiledKernel], Callable[[LaunchCall], None]],
) -> Iterator[Callable[[CompiledKernel], Launch]]:
    """Within it, what `intercept` gives for a kernel is called in the place of its launches, all of this process.

    They go through the property `CompiledKernel.run`, and `intercept` is asked whenever it is read: the JIT does at
    each launch, `kernel[grid]` too, Inductor once. Yields what gives a kernel's own launch; it loads the kernel.
    """
    original = CompiledKernel.__dict__["run"]

    def run(kernel: CompiledKernel) -> Launch:
        launch, instead = original.fget(kernel), intercept(kernel)

        def intercepted(gx: int, gy: int, gz: int, stream: int, function: int, *rest: Any) -> None:
            instead(LaunchCall(launch, (gx, gy, gz), stream, function, rest))

        return intercepted

    CompiledKernel.run = property(run)
    try:
        yield original.fget
    finally:
        CompiledKernel.run = original


@dataclass(frozen=True)
class Tuning:
    """What an autotuner chose for a call: constexprs and options by name, of each configuration and of the best.

    milliseconds: of each configuration, in their order, where the autotuner kept them; infinite where one failed. Empty
    where it measured nothing: it has one configuration, or its choice was read from a file.
    """

    configs: tuple[dict[str, Any], ...]
    best: dict[str, Any]
    milliseconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class JitCall:
    """A call of a JIT function.

    grid: as it was given, a tuple or a function. tuning: of the autotuner that calls it. heuristics: constexprs that
    are computed from the other arguments, by name.
    """

    grid: Any
    tuning: Tuning | None = None
    heuristics: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)

    def grid_of(self, bound: Mapping[str, Any]) -> tuple[int, int, int]:
        """The grid for these arguments, where it is a function."""
        x, y, z = (*map(int, self.grid(bound)), 1, 1)[:3]
        return x, y, z


_calls = threading.local()


def current_call() -> JitCall | None:
    """The call of a JIT function that this thread is in, within `noted_calls`; None of a compiled kernel's."""
    grids, around = getattr(_calls, "grids", []), getattr(_calls, "around", [])
    if not grids:
        return None
    tuners = [one for one in around if isinstance(one, Autotuner)]
    values = {name: value for one in around if isinstance(one, Heuristics) for name, value in one.values.items()}
    return JitCall(grids[-1], _tuning_of(tuners[-1]) if tuners else None, values)


def _tuning_of(tuner: Any) -> Tuning:
    timings = getattr(tuner, "configs_timings", {}) if len(tuner.configs) > 1 else {}
    configs = tuple(timings) or tuple(tuner.configs)
    return Tuning(
        tuple(dict(one.all_kwargs()) for one in configs),
        dict(tuner.best_config.all_kwargs()),
        tuple(float(times[0] if isinstance(times, list | tuple) else times) for times in timings.values()),
    )


@contextmanager
def noted_calls() -> Iterator[None]:
    """Within it, `current_call` knows the calls of JIT functions, in any thread."""
    originals = {owner: owner.run for owner in (JITFunction, Autotuner, Heuristics)}

    def noted(owner: Any, about: Callable[..., Any], kept: str) -> Callable[..., Any]:
        def run(called: Any, *arguments: Any, **options: Any) -> Any:
            stack = _calls.__dict__.setdefault(kept, [])
            stack.append(about(called, options))
            try:
                return originals[owner](called, *arguments, **options)
            finally:
                stack.pop()

        return run

    try:
        JITFunction.run = noted(JITFunction, lambda _, options: options["grid"], "grids")
        for owner in (Autotuner, Heuristics):
            owner.run = noted(owner, lambda called, _: called, "around")
        yield
    finally:
        for owner, original in originals.items():
            owner.run = original


@contextmanager
def compilations_within(lock: AbstractContextManager[Any]) -> Iterator[None]:
    """Within it, whatever the JIT compiles, in any thread, is compiled while `lock` is held."""
    original = JITFunction._do_compile

    def compile_within(*arguments: Any, **options: Any) -> Any:
        with lock:
            return original(*arguments, **options)

    JITFunction._do_compile = compile_within
    try:
        yield
    finally:
        JITFunction._do_compile = original


@contextmanager
def refused_kernels() -> Iterator[list[CompiledKernel]]:
    """Within it, the list gets each kernel that the JIT does not launch because it needs more than the GPU has."""
    original = CompiledKernel._init_handles
    refused: list[CompiledKernel] = []

    def load(kernel: CompiledKernel) -> None:
        try:
            original(kernel)
        except OutOfResources:
            refused.append(kernel)
            raise

    CompiledKernel._init_handles = load
    try:
        yield refused
    finally:
        CompiledKernel._init_handles = original


@contextmanager
def own_tuning() -> Iterator[None]:
    """Within it, autotuners know nothing of what they chose before; afterwards, nothing of what they chose here.

    What they keep on disk (`cache_results`) is neither read nor written.
    """
    original, on_disk = Autotuner.run, Autotuner.check_disk_cache
    chosen: dict[int, dict[Any, Any]] = {}

    def run(tuner: Any, *arguments: Any, **options: Any) -> Any:
        before, tuner.cache = tuner.cache, chosen.setdefault(id(tuner), {})
        try:
            return original(tuner, *arguments, **options)
        finally:
            tuner.cache = before

    def tune(_tuner: Any, _key: Any, _configs: Any, bench: Callable[[], object]) -> bool:
        bench()
        return False

    Autotuner.run, Autotuner.check_disk_cache = run, tune
    try:
        yield
    finally:
        Autotuner.run, Autotuner.check_disk_cache = original, on_disk


@contextmanager
def noted_trials() -> Iterator[list[object]]:
    """Within it, the list has the autotuners that try a configuration just then, Triton's and those derived from it."""
    original = Autotuner._bench
    trying: list[object] = []

    def bench(tuner: Any, *arguments: Any, **options: Any) -> Any:
        trying.append(tuner)
        try:
            return original(tuner, *arguments, **options)
        finally:
            trying.pop()

    Autotuner._bench = bench
    try:
        yield trying
    finally:
        Autotuner._bench = original


@contextmanager
def profile_buffer(allocate: Callable[[int, int, int | None], torch.Tensor]) -> Iterator[None]:
    """Within it, instrumented kernels ask `allocate(bytes, alignment, stream)` for their profile buffer."""
    before = _profile_allocator.get()
    set_profile_allocator(allocate)
    try:
        yield
    finally:
        set_profile_allocator(before)


# Drivers


def active_device() -> torch.device:
    """Where the tensors of kernels that are launched now lie. Raises `RuntimeError` if Triton finds no driver."""
    device: torch.device = driver.active.get_active_torch_device()
    return device


def active_target() -> GPUTarget:
    """What kernels that are launched now are compiled for. Raises `RuntimeError` if Triton finds no driver."""
    return driver.active.get_current_target()


@contextmanager
def driver_in_place(stand_in: Any) -> Iterator[None]:
    """Within it, Triton asks `stand_in` and no GPU's driver."""
    before = driver._active, driver._default
    driver._active = driver._default = stand_in
    try:
        yield
    finally:
        driver._active, driver._default = before
