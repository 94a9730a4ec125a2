"""What kernels are compiled from, and with: sources, signatures, constexprs, options."""

import inspect
import re
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton._utils import canonicalize_dtype
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel, make_backend
from triton.compiler.errors import CompilationError
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.cache import _base32
from triton.runtime.jit import JITFunction


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
    return getattr(getattr(getattr(kernel, "src", None), "fn", None), "fn", None)


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
