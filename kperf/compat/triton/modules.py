"""Modules of IR: parsed, lowered, made by the front end."""

import contextlib
import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from triton._C.libtriton import amd, ir, nvidia, passes, proton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend


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
