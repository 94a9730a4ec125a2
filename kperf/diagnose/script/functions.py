"""A function of a file or of a module, compiled by a signature: nothing is launched."""

import ast
import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
import triton

from kperf.arch import Arch
from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.sources import Decorated, canonical_type, default_options, undecorated, why_not_compiled
from kperf.console import complain
from kperf.diagnose.script.fake_cuda import fake_cuda
from kperf.diagnose.script.imported import imported
from kperf.diagnose.script.quiet import quiet
from kperf.diagnose.script.without_gpu import compilers_words
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir.layouts import split_commas
from kperf.ir.offline import noted_launches

Place = tuple[int, ...]
"""Of an argument: its number, and inside of a tuple the numbers there."""

_Call = tuple[dict[str, Any], dict[Place, Any], dict[Place, Any], Mapping[str, Any]]
"""Types by name, constants and attributes by place, and what is chosen, compile options among it."""

MOST_CONFIGURATIONS = 16
"""Of an autotuner: each takes a second and more to compile."""

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_TYPE = re.compile(r"(?P<pointer>\**)(?P<const>k?)(?P<kind>\w+?)(:(?P<value>\d+))?")
_ALIGNED = [["tt.divisibility", 16]]
_MODULES = {"tl": triton.language, "torch": torch}
_WORDS = {"true": True, "false": False, "null": None}
_DTYPES = {
    canonical_type(str(dtype)): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2),
    )
}


@dataclass(frozen=True)
class _Tensor:
    """What a heuristic may ask of a tensor that is not there."""

    dtype: torch.dtype

    def element_size(self) -> int:
        return self.dtype.itemsize


@dataclass
class _Signature:
    """What the JIT would know of arguments: types by name, attributes and constants by place.

    known: what stands for an argument in a heuristic, by name: numbers are not known.
    """

    types: dict[str, Any] = field(default_factory=dict)
    attributes: dict[Place, Any] = field(default_factory=dict)
    constants: dict[Place, Any] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, place: int, text: str) -> None:
        """An argument. Raises `UsageError` for what is no type."""
        self.types[name] = self._type(text, (place,))
        if (place,) in self.constants:
            self.known[name] = self.constants[place,]
        elif isinstance(kind := self.types[name], str) and kind.startswith("*") and kind[1:] in _DTYPES:
            self.known[name] = _Tensor(_DTYPES[kind[1:]])

    def _type(self, text: str, place: Place) -> Any:
        if text.startswith("("):
            return tuple(self._type(part, (*place, number)) for number, part in enumerate(split_commas(text[1:-1])))
        if text == "None":
            self.constants[place] = None
            return "constexpr"
        if text.startswith("tensordesc<"):
            return text
        found = _TYPE.fullmatch(text)
        try:
            kind = canonical_type(found["kind"]) if found else ""
        except KeyError:
            kind = ""
        pointer, value = (found["pointer"], found["value"]) if found else ("", None)
        whole = kind[:1] in {"i", "u"} and not pointer
        if not found or not kind or (value and not pointer and not (whole and value in {"1", "16"})):
            raise UsageError(f"{text} in --signature is no type: give one as *bf16, fp32, i32, i32:16 or None")
        if whole and value == "1":  # as the JIT does
            self.constants[place] = 1
            return "constexpr"
        # Tensors of torch begin at multiples of 16 bytes; of a number that is known only where `:16` says so.
        if value == "16" or (pointer and not value):
            self.attributes[place] = _ALIGNED
        return f"{pointer}{found['const']}{kind}"


def is_module(name: str) -> bool:
    """Whether this is how a module is named."""
    return _MODULE.fullmatch(name) is not None


def wanted(name: str, function: str, arch: Arch) -> str:
    """What a function of a file or of a module has to be given, in words.

    Raises `UsageError` if there is no such function.
    """
    decorated, _ = _found(name, function, arch)
    chosen = _chosen(decorated, decorated.configurations[0], {}, {})
    others = [one for one in decorated.declared if one not in chosen]
    constants = f", and --constexpr NAME=value for {', '.join(others)}" if others else ""
    of = ", ".join(one for one in decorated.arguments if one not in decorated.declared)
    return f'give the types of {of} with --signature, in order, as "*bf16,*bf16,i32:16", or as NAME=TYPE{constants}'


def compiled(
    name: str, function: str, arch: Arch, signature: str, constexprs: Sequence[str], options: Mapping[str, Any]
) -> list[CompiledKernel]:
    """The function of a file (`file.py`) or of a module (`package.module`), as the JIT would compile it for `arch`.

    `signature`: types of the arguments that are no constexprs, in order, or by name (`x_ptr=*bf16,stride_*=i32:16`,
    where the last that fits counts). Types are named as Triton or torch does: `*bf16`, `fp32`; `i32:16` is a multiple
    of 16, `i32:1` the number 1; `None`, `(*bf16,i32)` for a tuple, `tensordesc<bf16[128, 64]>`. `constexprs`:
    `NAME=value`, with a literal, `tl.float16`, `torch.float16`, `:name` of the function's module, or a bare string.
    `options`: num_warps and the like. What is not given is taken from heuristics, from an autotuner's configurations,
    or from defaults: of an autotuner each configuration that compiles, at most `MOST_CONFIGURATIONS`. Raises
    `UsageError`.
    """
    decorated, names = _found(name, function, arch)
    given = dict(_constant(text, names) for text in constexprs)
    if unknown := [one for one in given if one not in decorated.arguments]:
        raise UsageError(f"{function} has no argument {unknown[0]}: it has {', '.join(decorated.arguments)}")
    asked = {**options, **given}
    different: list[dict[str, Any]] = []
    for configuration in decorated.configurations:
        if (others := {one: value for one, value in configuration.items() if one not in asked}) not in different:
            different.append(others)
    step = -(-len(different) // MOST_CONFIGURATIONS)
    if step > 1:
        complain(f"{function} has {len(different)} configurations of its autotuner: one of {step} is read")
    calls = [_call(decorated, configuration, asked, signature) for configuration in different[::step]]
    with fake_cuda(arch), noted_launches(arch), quiet([]) as said:  # what it asks of a GPU while it is compiled
        made = compiler.several(lambda call: _compiled(decorated.function, arch, *call), calls)
        text = said()
    kernels = [one for one in made if isinstance(one, CompiledKernel)]
    if not kernels:
        refused = str(next(one for one in made if isinstance(one, UsageError)))
        raise UsageError(refused + compilers_words(refused, text))
    return kernels


def _found(name: str, function: str, arch: Arch) -> tuple[Decorated, Mapping[str, Any]]:
    """The function, and the names of its module. Raises `UsageError` if there is none."""
    names, why = imported(name, arch)
    decorated = undecorated(names.get(function))
    if decorated is None:
        ended = f" (it ended with {why})" if why else ""
        raise UsageError(f"{name} has no kernel {function}{ended}: name a @triton.jit function of it")
    return decorated, names


def _chosen(
    decorated: Decorated, configuration: Mapping[str, Any], asked: Mapping[str, Any], known: Mapping[str, Any]
) -> dict[str, Any]:
    """Constants and options by name: what is asked for, else by a heuristic, a configuration, or a default.

    `known`: of the arguments. As in Triton, a heuristic's value counts more than a configuration's or a default; what
    one asks for and is not known leaves its value unknown.
    """
    heuristics = {one: computes for one, computes in decorated.heuristics.items() if one not in asked}
    defaults = {one: value for one, value in decorated.declared.items() if value is not inspect.Parameter.empty}
    others = {**defaults, **configuration, **asked}
    chosen = {one: value for one, value in others.items() if one not in heuristics}
    for one, computes in heuristics.items():
        try:
            chosen[one] = computes({**known, **chosen})
        except Exception:  # it asks for a number of the launch, or for a shape
            continue
    return chosen


def _call(decorated: Decorated, configuration: Mapping[str, Any], asked: Mapping[str, Any], signature: str) -> _Call:
    """What the JIT would compile. Raises `UsageError` if something is missing, or is no type."""
    places = {one: place for place, one in enumerate(decorated.arguments)}
    at_launch = [one for one in places if one not in {*configuration, *asked, *decorated.declared}]
    read = _Signature()
    for one, kind in _types(decorated.function.__name__, at_launch, signature):
        read.add(one, places[one], kind)
    chosen = _chosen(decorated, configuration, asked, read.known)
    constants = {one: value for one, value in chosen.items() if one in places}
    if missing := [one for one in decorated.declared if one not in constants]:
        wants = " ".join(f"--constexpr {one}=..." for one in missing)
        raise UsageError(f"{decorated.function.__name__} has constants of no value: give {wants}")
    return (
        {one: read.types.get(one, "constexpr") for one in places},
        {(places[one],): value for one, value in constants.items()} | read.constants,
        read.attributes,
        chosen,
    )


def _constant(text: str, names: Mapping[str, Any]) -> tuple[str, Any]:
    """A name and its value, of `NAME=value`."""
    name, equals, word = (part.strip() for part in text.partition("="))
    if not equals:
        raise UsageError(f"--constexpr {text} has no value: write NAME=value")
    first, *attributes = word.removeprefix(":").split(".")
    if word.startswith(":") or (attributes and first in _MODULES):
        try:
            there = (names if word.startswith(":") else _MODULES)[first]
            return name, functools.reduce(getattr, attributes, there)
        except (KeyError, AttributeError):
            raise UsageError(f"--constexpr {text}: there is no {word.removeprefix(':')}") from None
    try:
        return name, _WORDS[word] if word in _WORDS else ast.literal_eval(word)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all that `literal_eval` may raise
        return name, word


def _types(function: str, arguments: Sequence[str], signature: str) -> list[tuple[str, str]]:
    """Each argument with the type that a signature gives it. Raises `UsageError` if it gives too few or too many."""
    parts = split_commas(signature)
    if not any("=" in part for part in parts):
        if len(parts) != len(arguments):
            raise UsageError(
                f"{function} takes {len(arguments)} arguments beside its constants ({', '.join(arguments)}), and "
                f"--signature has {len(parts)} types: give one each, and --constexpr NAME=value for what is a "
                "tl.constexpr"
            )
        return list(zip(arguments, parts, strict=True))
    by_name = [[word.strip() for word in part.partition("=")] for part in parts]
    fitting = {one: [kind for pattern, _, kind in by_name if fnmatchcase(one, pattern)] for one in arguments}
    idle = [pattern for pattern, _, _ in by_name if not any(fnmatchcase(one, pattern) for one in arguments)]
    if idle:
        raise UsageError(f"{function} has no argument {idle[0]} to give a type: it has {', '.join(arguments)}")
    if without := [one for one, kinds in fitting.items() if not kinds]:
        raise UsageError(f"--signature says nothing of {', '.join(without)}: give each argument of {function} a type")
    return [(one, kinds[-1]) for one, kinds in fitting.items()]


def _compiled(
    function: Any,
    arch: Arch,
    types: dict[str, Any],
    constants: dict[Place, Any],
    attributes: dict[Place, Any],
    chosen: Mapping[str, Any],
) -> CompiledKernel | UsageError:
    """The kernel, or why it does not compile: of an autotuner's configurations some need not."""
    options = {one: value for one, value in chosen.items() if one in default_options(arch.target)}
    try:
        return compiler.compile_kernel(function, types, constants, attributes=attributes, arch=arch, **options)
    except UsageError as error:
        return error
    except Exception as error:  # front end, passes and ptxas raise what they like
        if isinstance(error, OSError) and error.filename is not None:  # of Triton's cache, not of the kernel
            raise
        return UsageError(f"it does not compile for {arch.name}: {why_not_compiled(error, function)}")
