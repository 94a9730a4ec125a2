"""Kernels to read: what a script launches, a function with a signature, an entry of Triton's cache, a TTGIR file."""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kperf.arch import Arch, of
from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.sources import constexprs_of, python_function, unspecialised
from kperf.console import complain
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.options import OPTIONS
from kperf.diagnose.script import functions
from kperf.diagnose.script.history import Handover, Histories
from kperf.diagnose.script.without_gpu import Launches, NoLaunchError, launches_of
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir.ttgir import Module
from kperf.record.files import from_json_once, read_text
from kperf.trace.capture.script import Script


def read(
    what: str,
    arguments: Sequence[str],
    arch: Arch,
    *,
    signature: str | None = None,
    constexprs: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
) -> list[Kernel]:
    """The kernels that `what` names, compiled for `arch` where they are not compiled yet.

    `script.py` with its arguments, `file.py:function`, `package.module:function`, a folder of Triton's cache, or a
    TTGIR file. `signature`, `constexprs` and `options`: of a function, as `functions.compiled` takes them. Raises
    `UsageError` for anything else.
    """
    name, colon, function = what.rpartition(":")
    if colon and (name.endswith(".py") or functions.is_module(name)):
        if signature is not None:
            made = functions.compiled(name, function, arch, signature, constexprs, options or {})
            return [replace(of_compiled(kernel, arch), tuned=len(made) > 1) for kernel in made]
        if not name.endswith(".py"):
            raise UsageError(f"{what} is launched by nothing: {functions.wanted(name, function, arch)}")
        kernels = []
        with suppress(NoLaunchError):
            kernels = [one for one in _of_script(Script(name, tuple(arguments)), arch) if one.name == function]
        if not kernels:
            raise UsageError(f"{name} launches no kernel {function}: {functions.wanted(name, function, arch)}")
        return kernels
    path = Path(what)
    if path.is_dir():
        return _of_folder(path)
    if path.suffix == ".ttgir":
        return [_of_ttgir(path, arch)]
    if path.suffix == ".py":
        return _of_script(Script(what, tuple(arguments)), arch)
    missing = "there is no" if not path.exists() else "there is nothing to read in"
    raise UsageError(f"{missing} {what}: give a script, file.py:function, a folder of Triton's cache, or a TTGIR file")


def of_compiled(
    kernel: CompiledKernel | SimpleNamespace, arch: Arch, grid: tuple[int, int, int] | None = None
) -> Kernel:
    """What static rules read, of a kernel that Triton compiled."""
    native = "cubin" in kernel.asm
    found = compiler.read_compiled(kernel)
    module = Module(found.ttgir)
    return Kernel(
        kernel.name,
        arch,
        module,
        found,
        num_stages=getattr(kernel.metadata, "num_stages", None),
        shared_bytes=getattr(kernel.metadata, "shared", None),
        resources=compiler.resources(kernel) if native else None,
        grid=grid,
        constants=_constants(kernel),
        unspecialised=unspecialised(kernel) if isinstance(kernel, CompiledKernel) else {},
        is_gluon="ttir" not in kernel.asm,
    )


def of_launches(found: Launches, arch: Arch) -> list[Kernel]:
    """What static rules read of the kernels that a script launches, as far as they have TTGIR."""
    return [
        of_launch(launch.kernel, arch, launch.grid, found.histories, tuned=launch.kernel.hash in found.tuned)
        for launch in found.kernels
        if "ttgir" in launch.kernel.asm
    ]


def of_launch(
    kernel: CompiledKernel, arch: Arch, grid: tuple[int, int, int], histories: Histories, *, tuned: bool = False
) -> Kernel:
    """What static rules read of a kernel that a script launches. tuned: whether an autotuner tried it."""
    handover = histories.handover(kernel)
    return replace(
        of_compiled(kernel, arch, grid),
        numbers=histories.numbers(kernel),
        lengths=histories.lengths(kernel),
        multiples=histories.multiples(kernel),
        aliases=histories.aliases(kernel),
        tuned=tuned,
        history=histories.of(kernel, tuned=tuned),
        handover=handover,
        follower=_follower(handover, arch) if handover is not None else None,
        passes=histories.passes(kernel, tuned=tuned),
    )


def _follower(handover: Handover, arch: Arch) -> Kernel | None:
    """The kernel of the launch that is handed tensors; None of one without TTGIR."""
    if "ttgir" not in handover.kernel.asm:
        return None
    read = of_compiled(handover.kernel, arch, handover.grid)
    return replace(read, numbers=handover.numbers, lengths=handover.lengths)


def _constants(kernel: CompiledKernel | SimpleNamespace) -> dict[str, Any]:
    """Constexprs and options of a kernel that was compiled from its source, as far as they have a value."""
    if not isinstance(kernel, CompiledKernel) or python_function(kernel) is None:
        return {}
    given = {name: getattr(kernel.metadata, name, None) for name in OPTIONS} | constexprs_of(kernel)
    return {name: value for name, value in given.items() if value is not None}


def _of_script(script: Script, arch: Arch) -> list[Kernel]:
    found = launches_of(script, arch)
    if found.why is not None:
        complain(f"{script.name} ended early without a GPU ({found.why}): what it launches after that is not read")
    return of_launches(found, arch)


def _of_folder(path: Path) -> list[Kernel]:
    found = []
    for ttgir in sorted(path.rglob("*.ttgir")):
        metadata = ttgir.with_suffix(".json")
        if not metadata.exists():
            continue
        try:
            described = from_json_once(read_text(metadata).encode())
            name, target = described["name"], described["target"]
            arch = of(f"{target['backend']}:{target['arch']}")
            if ttgir.with_suffix(".cubin").is_file():
                described["shared"] = int(described["shared"])  # of the resources of machine code
        except (ValueError, LookupError, TypeError):
            raise UsageError(f"{metadata} describes no kernel: remove this entry of Triton's cache") from None
        asm: dict[str, Any] = {"ttgir": read_text(ttgir)}
        for suffix in ("source", "ttir", "llir", "ptx", "amdgcn", "cubin"):
            made = ttgir.with_suffix(f".{suffix}")
            if made.is_file():
                asm[suffix] = made.read_bytes() if suffix == "cubin" else read_text(made)
        kernel = SimpleNamespace(asm=asm, name=name, metadata=SimpleNamespace(**described | {"target": arch.target}))
        found.append(of_compiled(kernel, arch))
    if not found:
        raise UsageError(f"{path} holds no kernel: give an entry of Triton's cache (*.ttgir and *.json)")
    return found


def _of_ttgir(path: Path, arch: Arch) -> Kernel:
    text = read_text(path)
    written = re.search(r'ttg\.target = "([^"]+)"', text)
    if written is not None and of(written[1]) != arch:
        name = of(written[1]).name
        raise UsageError(f"{path} is for {name}, not for {arch.name}: say --target {name}")
    compiler.parse_ttgir(text)
    kernel = compiler.compile_ttgir(path, arch)
    made = {name: kernel.asm[name] for name in ("llir", "ptx", "amdgcn", "cubin") if name in kernel.asm}
    metadata = SimpleNamespace(shared=kernel.metadata.shared, target=arch.target, num_stages=None)
    read = of_compiled(SimpleNamespace(asm=made | {"ttgir": text}, name=kernel.name, metadata=metadata), arch)
    return replace(read, is_gluon=None)
