"""Compile without a GPU, and read what came out: canonical TTGIR, registers, spills, SASS."""

import gc
import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

import triton

from kperf.arch import KNOWN, OPERATIONS, SM_90A, Arch, of
from kperf.compat.triton import ASTSource, CompiledKernel, TritonError
from kperf.compat.triton.cache import cache_folder, cache_key, cached_file, keep_in_cache
from kperf.compat.triton.instrumentation import instrumentation_option
from kperf.compat.triton.modules import front_end_ir, lower_to_ttgir, parse_module, watch_front_end
from kperf.compat.triton.sources import (
    constexprs_of,
    default_options,
    interpreting,
    python_function,
    source_of,
    source_with,
)
from kperf.compat.triton.tools import binary_tool, ptxas
from kperf.errors import MeasurementError, UsageError, first_line
from kperf.ir import locations
from kperf.ir.levels import TEXTS
from kperf.ir.locations import STAYED, Moved, split
from kperf.ir.machine import MachineCode, read_machine_code
from kperf.ir.paths import parted
from kperf.ir.ptx import with_registers
from kperf.ir.ttgir import Module

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Compiled:
    """What Triton made of a kernel: texts by level, and machine code, which is disassembled once it is asked for.

    moved: from where its lines stand in the texts to where they stand now, as `ttgir` and `code` have them.
    """

    kernel: CompiledKernel = field(repr=False)
    texts: dict[str, str]
    moved: Moved

    @cached_property
    def ttgir(self) -> str:
        """The TTGIR, with its lines where they stand now."""
        return self.moved.text(self.texts["ttgir"])

    def lines_with(self, word: str) -> set[tuple[str, int]]:
        """Files and lines of which the front end made something with this word, before any pass rewrote it.

        Empty where its IR is not kept.
        """
        lines, locations = split(self.kernel.asm.get("source", ""))
        frames = (at.frame for line, at in zip(lines, locations, strict=True) if word in line and at is not None)
        return {(now.file, now.line) for frame in frames if frame and (now := self.moved.frame(frame))}

    @cached_property
    def code(self) -> MachineCode | None:
        """None where none is read (AMD's). Raises `UsageError` if it cannot be read."""
        if "cubin" not in self.kernel.asm:
            return None
        return machine_code(self.kernel).moved(self.moved)

    def again(self, **changes: int) -> CompiledKernel | None:
        """Its source with other constexprs and compile options, compiled once; None as of `recompiled`."""
        key = tuple(sorted(changes.items()))
        if key not in self._again:
            self._again[key] = recompiled(self.kernel, changes)
        return self._again[key]

    @cached_property
    def _again(self) -> dict[tuple[tuple[str, int], ...], CompiledKernel | None]:
        return {}


_STACK_STEP = 8
"""A thread's stack is a multiple of so many bytes."""


@dataclass(frozen=True)
class Resources:
    """What ptxas reports of one kernel: registers a thread, bytes of stack and local memory, shared bytes.

    array_bytes: of the stack, those of arrays that the PTX declares. The sine of a large number has one.
    """

    registers: int
    stack_bytes: int
    local_bytes: int
    shared_bytes: int
    array_bytes: int = 0

    @property
    def spilled_bytes(self) -> int:
        """Bytes of a thread's registers that were spilled to local memory."""
        return max(self.stack_bytes - self.array_bytes, 0) + self.local_bytes


def parse_ttgir(text: str) -> Any:
    """The module in `text`, in a context of its own that knows Triton's dialects and Proton's events.

    Raises `UsageError` if it does not parse or verify.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.ttgir"
        path.write_text(text)
        with _standard_error_to(Path(folder) / "diagnostics") as diagnostics:
            try:
                return parse_module(path)
            except RuntimeError:
                pass
        match = re.search(r":(\d+):\d+\W.*?error: (.*)", diagnostics.read_text())
        where = f", line {match.group(1)}: {match.group(2)}" if match else ""
        raise UsageError(f"the TTGIR does not parse with Triton {triton.__version__}{where}")


_one_standard_error = threading.Lock()
"""The process has one file descriptor 2; kernels are compiled in several threads."""


@contextmanager
def _standard_error_to(path: Path) -> Iterator[Path]:
    """What the C++ below writes to file descriptor 2 goes to a file meanwhile.

    A script that is traced may have closed that, and `sys.stderr`, or put something else there.
    """
    with _one_standard_error:
        with suppress(AttributeError, OSError, ValueError):
            sys.stderr.flush()
        try:
            kept = os.dup(2)
        except OSError:
            kept = os.open(os.devnull, os.O_WRONLY)
        try:
            with path.open("wb") as stream:
                os.dup2(stream.fileno(), 2)
                yield path
        finally:
            os.dup2(kept, 2)
            os.close(kept)


@lru_cache(maxsize=16)
def canonical_ttgir(text: str) -> str:
    """The text as Triton's printer gives it, without locations: equal strings are equal modules.

    Raises `UsageError` if it does not parse or verify.
    """
    return str(parse_ttgir(text).str_nodebug())


def named_ttgir(text: str) -> str:
    """A compiled kernel's `asm["ttgir"]` without its locations, but with the names that values have in the source.

    It is the same module as `canonical_ttgir` gives, where values are numbered.
    """
    return locations.strip(text)


def several(compile_one: Callable[[Item], Made], items: Iterable[Item]) -> list[Made]:
    """Compile as many at a time as there are processors: ptxas is a process of its own.

    Ctrl-C waits for those that are running, and does not reach their ptxas: of one that it ends Triton would print the
    whole PTX. No garbage is collected meanwhile: CPython before 3.11.8 counts the depth of all threads' `ast.parse` in
    one place (python/cpython#106905), and where a collection lets another thread in, Triton's front end ends with a
    SystemError.
    """
    deaf = partial(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})
    with uncollected(), ThreadPoolExecutor(len(os.sched_getaffinity(0)), initializer=deaf) as pool:
        return list(pool.map(compile_one, items))


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile, but what loses its last reference."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def compile_kernel(
    kernel: Any,
    signature: Mapping[str, Any],
    constexprs: Mapping[Any, Any],
    *,
    attributes: Mapping[tuple[int, ...], Any] | None = None,
    ir_override: Path | None = None,
    num_warps: int = 4,
    arch: Arch = SM_90A,
    **options: Any,
) -> CompiledKernel:
    """Compile a @triton.jit or @gluon.jit kernel; `ir_override` replaces its TTGIR by a file's.

    `attributes` are what the JIT knows of an argument's value: {(index,): [["tt.divisibility", 16]]}. Raises
    `UsageError` under TRITON_INTERPRET, if Triton's cache is damaged, and for what `arch` cannot compile: a Gluon
    kernel of another architecture, or an `ir_override` on AMD, where Triton would ignore it.
    """
    source = _source(kernel, signature, constexprs, attributes)
    if arch.backend == "hip" and ir_override is not None:
        raise UsageError(f"Triton replaces no TTGIR for {arch.name}: give the TTGIR file itself as the source")
    if kernel.is_gluon():
        watch_front_end(source, partial(_refuse_foreign, source.name, arch))
    override = {} if arch.backend == "hip" else {"ir_override": str(ir_override) if ir_override else None}
    with whole_cache():
        return triton.compile(source, target=arch.target, options=_options(num_warps, **override, **options))


def compile_for(arch: Arch, source: ASTSource, *, num_warps: int, num_stages: int, **more: Any) -> CompiledKernel:
    """A plain Triton kernel for any architecture; `more` are options of that target's own.

    Raises `MeasurementError` if it does not compile there.
    """
    options = {"num_warps": num_warps, "num_stages": num_stages, **more}
    with whole_cache():
        try:
            return triton.compile(source, target=arch.target, options=options)
        except json.JSONDecodeError:  # half a file in Triton's cache
            raise
        except Exception as error:  # front end, passes and LLVM raise what they like
            words = str(error).strip().splitlines() or [type(error).__name__]
            raise MeasurementError(f"{source.name} does not compile for {arch.name}: {words[-1]}") from None


def compile_ttgir(path: Path, arch: Arch) -> CompiledKernel:
    """Compile a TTGIR file. Raises `UsageError` if the compiler refuses it."""
    with tempfile.TemporaryDirectory() as folder, _standard_error_to(Path(folder) / "diagnostics"), whole_cache():
        try:
            return triton.compile(str(path), target=arch.target, options=instrumentation_option())
        except RuntimeError as error:
            raise UsageError(f"{path.name} does not compile for {arch.name}: {first_line(error)}") from None


def recompiled(kernel: Any, changes: Mapping[str, Any]) -> CompiledKernel | None:
    """A kernel's source with other constexprs and compile options, by name.

    None where it was not compiled here from its source, or does not compile so.
    """
    if not isinstance(kernel, CompiledKernel) or python_function(kernel) is None:
        return None
    own, options = constexprs_of(kernel), options_of(kernel)
    constexprs = {name: value for name, value in changes.items() if name in own}
    # A launch's `num_stages=3` is both, where a kernel declares a constexpr of this name.
    options |= {name: value for name, value in changes.items() if name in options or name not in own}
    with (
        tempfile.TemporaryDirectory() as folder,
        _standard_error_to(Path(folder) / "diagnostics"),
        redirect_stdout(io.StringIO()),  # Triton prints the PTX that ptxas refuses
        whole_cache(),
    ):
        try:
            return triton.compile(source_with(kernel, constexprs), target=kernel.metadata.target, options=options)
        except json.JSONDecodeError:  # half a file in Triton's cache
            raise
        except Exception:  # front end, passes, LLVM and ptxas raise what they like
            return None


def _refuse_foreign(name: str, arch: Arch, front_end: Callable[[], Any]) -> Any:
    """The module that a Gluon kernel's front end makes.

    Raises `UsageError` for one with an operation of another architecture: LLVM ends the process on it.
    """
    with tempfile.TemporaryDirectory() as folder, _standard_error_to(Path(folder) / "diagnostics"):
        try:
            module = front_end()
        except RuntimeError:  # a layout that is another's
            raise UsageError(f"{name} is written for another GPU: it does not compile for {arch.name}") from None
    used = set(re.findall(r"\b(?:ttng|amdg)\.\w+", module.str_nodebug()))
    foreign = sorted(operation for operation in used if operation in OPERATIONS and operation not in arch.operations)
    if foreign:
        has = ", ".join(other.name for other in KNOWN if foreign[0] in other.operations)
        raise UsageError(f"{name} does {foreign[0]}, which {arch.name} has not: it is written for {has}")
    return module


def ttgir_of_source(kernel: Any, signature: Mapping[str, str], constexprs: Mapping[str, Any]) -> str:
    """The canonical TTGIR of a @gluon.jit kernel of 4 warps, as `compile_kernel` lowers it, in a tenth of its time.

    Triton's cache keeps it under the key of that kernel. Raises `UsageError` under TRITON_INTERPRET.
    """
    source, target, options = _source(kernel, signature, constexprs), SM_90A.target, _options(num_warps=4)
    key = cache_key(source, target, options)
    return _kept(_sha256(key.encode()), "canonical-ttgir", lambda: lower_to_ttgir(source, target, options))


def _source(
    kernel: Any,
    signature: Mapping[str, Any],
    constexprs: Mapping[Any, Any],
    attributes: Mapping[tuple[int, ...], Any] | None = None,
) -> ASTSource:
    if interpreting():
        raise UsageError("TRITON_INTERPRET is set, which makes Triton compile nothing: unset it")
    return source_of(kernel, signature, constexprs, attributes)


def _options(num_warps: int, **more: Any) -> dict[str, Any]:
    # As the JIT does: the cache must not mix up a kernel with and without its records lowered.
    return {"num_warps": num_warps, **more, **instrumentation_option()}


def options_of(kernel: CompiledKernel) -> dict[str, Any]:
    """The options that `kernel` was compiled with, read back from its metadata."""
    known = default_options(kernel.metadata.target)
    # The metadata went through JSON: what are lists there were tuples, and options are hashed.
    options = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in kernel.metadata._asdict().items()
        if name in known
    }
    # Triton's cache goes by a library's content: it may lie where another installation, since removed, compiled it.
    options["extern_libs"] = {
        name: path if Path(path).is_file() else dict(known["extern_libs"]).get(name, path)
        for name, path in options["extern_libs"]
    }
    # After lowering, `num_warps` counts the warps of all partitions; the option is the default partition's.
    options["num_warps"] = Module(canonical_ttgir(kernel.asm["ttgir"])).num_warps
    return options


@contextmanager
def whole_cache() -> Iterator[None]:
    """Raises `UsageError` for what Triton stumbles over if its cache holds half a file: it reads them unchecked."""
    try:
        yield
    except json.JSONDecodeError as error:
        raise _damaged_cache(f"its metadata is no JSON: {error}") from None


def _damaged_cache(why: str) -> UsageError:
    return UsageError(f"Triton's cache {cache_folder()} is damaged ({why}): remove that folder and run again")


def resources(kernel: CompiledKernel) -> Resources:
    """Read registers and spills from the cubin, shared memory from the metadata, a thread's own arrays from the PTX.

    Raises `UsageError` if the cubin is not one: Triton's cache is damaged.
    """
    report = _dump(kernel, "cuobjdump", "-res-usage")
    usage = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}
    arrays = _array_bytes(kernel.asm.get("ptx", ""))
    return Resources(usage["REG"], usage["STACK"], usage["LOCAL"], kernel.metadata.shared, arrays)


def _array_bytes(ptx: str) -> int:
    """Bytes on the stack of arrays that each thread has of its own, in steps of ptxas."""
    sizes = map(int, re.findall(r"^\s*\.local \.align \d+ \.b8\s+\w+\[(\d+)\];", ptx, re.MULTILINE))
    return sum(-(-size // _STACK_STEP) * _STACK_STEP for size in sizes)


def sass(kernel: CompiledKernel) -> str:
    """The machine code, an instruction a line, all of it: Triton's own `asm["sass"]` ends after 64 KB of code."""
    return "".join(f"\t{line}\n" for line in re.findall(r"/\*[0-9a-f]{4,}\*/\s+([^;]+;)", _listing(kernel)))


def sass_paths(kernel: CompiledKernel) -> tuple[str, str] | None:
    """As `sass`, of the path without events and of the path with, where the code parts once; None where it does not."""
    return parted(_dump(kernel, "nvdisasm", "-c"))  # its dataflow lists the targets of jumps by a table


def machine_code(kernel: CompiledKernel) -> MachineCode:
    """The kernel's instructions with their lines of source.

    Raises `UsageError` if the cubin is not one (Triton's cache is damaged), or too new for Triton's tools.
    """
    return read_machine_code(_listing(kernel), kernel.name)


def read_compiled(kernel: CompiledKernel) -> Compiled:
    """What Triton made of a kernel. Raises `UsageError` if its TTGIR cannot be read."""
    texts = {level: kernel.asm[name] for level, name in TEXTS.items() if name in kernel.asm}
    return Compiled(kernel, texts, _moved(kernel))


def _moved(kernel: CompiledKernel) -> Moved:
    """From where a kernel's lines stood when it was compiled to where they stand now, each of its functions' by itself.

    The key of Triton's cache has the text of each function and the line of its first decorator: neither its file nor
    the line of its `def`. So a kernel comes as it was compiled when its file lay elsewhere, or before a decorator took
    another line, and the same kernel on one line of two files comes as it was compiled of the first. A kernel without
    its source, or whose source compiles no longer, has moved nowhere.
    """
    if not isinstance(kernel, CompiledKernel) or python_function(kernel) is None or "source" not in kernel.asm:
        return STAYED
    try:
        now = front_end_ir(kernel.src, kernel.metadata.target, options_of(kernel))
    except TritonError:
        return STAYED
    return Moved.between(kernel.asm["source"], now)


def ptxas_says(ptx: str, arch: Arch) -> str:
    """What ptxas prints of a kernel's PTX, its warnings among it: Triton throws that away, its cache keeps it here."""
    assert isinstance(arch.number, int)  # NVIDIA's
    tool, version = ptxas(arch.number)

    def assemble() -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.ptx"
            path.write_text(ptx)
            options = ["-lineinfo", "-v", f"--gpu-name={arch.name}", str(path), "-o", f"{path}.cubin"]
            command = [str(tool), *options]
            return subprocess.run(command, capture_output=True, text=True, check=False).stderr.replace(folder, "")

    return _kept(_sha256(ptx.encode()), f"ptxas-{version}-{arch.name}", assemble)


def spilled_with(ptx: str, arch: Arch, registers: int) -> int | None:
    """Bytes of a thread's registers that ptxas spills with `maxnreg=registers`; None if it assembles nothing so.

    Or if the PTX is not understood.
    """
    text = re.sub(r"^\.maxnreg \d+\n", "", ptx, flags=re.MULTILINE)
    try:
        stack = re.findall(r"(\d+) bytes stack frame", ptxas_says(with_registers(text, registers), arch))
    except UsageError:  # PTX that is not understood
        return None
    return max(max(map(int, stack)) - _array_bytes(ptx), 0) if stack else None


def _listing(kernel: CompiledKernel) -> str:
    # One for all who read it: however short the code, nvdisasm takes a fifth of a second, with its dataflow a third.
    return _dump(kernel, "nvdisasm", "-c", "-gi", "-ndf")


def _dump(kernel: CompiledKernel, tool: str, *options: str) -> str:
    """What a tool prints of a cubin, up to half a second of work: Triton's cache keeps it, and its hash."""
    cubin = kernel.asm["cubin"]

    def dump() -> str:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(cubin)
            dumped = subprocess.run([binary_tool(tool), *options, path], capture_output=True, text=True, check=False)
        if "Cannot decode architecture" in dumped.stderr:
            arch = of(kernel.metadata.target)
            raise UsageError(
                f"the {tool} of Triton {triton.__version__} cannot read machine code of {arch.name} ({arch.gpus}): "
                "install triton 3.7 or newer"
            )
        if dumped.returncode or not dumped.stdout.strip():
            raise _damaged_cache("a cubin is cut short")
        return dumped.stdout

    return _kept(_sha256(cubin), f"{tool}-{triton.__version__}{''.join(options)}", dump)


def _kept(key: str, name: str, make: Callable[[], str]) -> str:
    """What Triton's cache keeps in its folder `key` under this name, beside its hash; made where it is not whole."""
    if path := cached_file(key, name):
        digest, _, known = path.read_bytes().partition(b"\n")  # it may be damaged, and then is no text
        if digest == _sha256(known).encode():
            return known.decode()
    made = make()
    keep_in_cache(key, name, f"{_sha256(made.encode())}\n{made}")
    return made


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
