"""What torch.compile makes of a module: its kernels in the order of their launches, each with its FLOPs and bytes.

`noted` watches Inductor write its program: a `Scheduler` of ours in Inductor's place tells where the code of each node
begins, and puts a call of `reached` there, so that whoever runs the program knows which kernel is next, one of Triton's
or of a library alike. Without a GPU `kperf.compat.inductor_fake` has Inductor write the same program.
"""

import ast
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch._inductor.scheduler
from torch._inductor import config, ir
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import BaseSchedulerNode, NopKernelSchedulerNode, Scheduler
from torch._inductor.virtualized import V

from kperf.compat.inductor_counts import count
from kperf.compat.inductor_program import Kernel, Program
from kperf.errors import MeasurementError

_REACHED = "_kperf_reached"


_watchers: list[Callable[[int], None]] = []


def reached(number: int) -> None:
    """Called by the program that Inductor wrote where kernel `number` is next."""
    for watcher in _watchers:
        watcher(number)


@contextmanager
def watched(watcher: Callable[[int], None]) -> Iterator[None]:
    """Within it `watcher` is called with each number."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def noted() -> Iterator[Program]:
    """Within it what is compiled is written anew, whatever Inductor has in its caches; at its end the program is whole.

    Raises `MeasurementError` if it came in several graphs: their launches would not be numbered in one order.
    """
    program = Program()
    kernels: list[Kernel] = []
    codes: list[str] = []

    class Noting(Scheduler):
        def codegen(self) -> None:
            self._launching: list[BaseSchedulerNode] = []
            V.graph.wrapper_code.add_import_once(f"from {__name__} import reached as {_REACHED}")
            super().codegen()
            removed = {*V.graph.removed_buffers, *V.graph.inplaced_to_remove}
            kernels.extend(_kernel(node, removed) for node in self._launching)

        def enter_context(self, node: BaseSchedulerNode) -> None:
            super().enter_context(node)
            if _launches(node):
                V.graph.wrapper_code.writeline(f"{_REACHED}({len(self._launching)})")
                self._launching.append(node)

    with (
        patch.object(torch._inductor.scheduler, "Scheduler", Noting),
        patch.object(GraphLowering, "save_output_code", staticmethod(codes.append)),
        config.patch(fx_graph_cache=False),  # and AOTAutograd keeps nothing without it
    ):
        yield program
    if len(codes) != 1:
        raise MeasurementError(f"torch.compile made {len(codes)} graphs of it: only a module of one graph is profiled")
    program.code = codes[0]
    program.sources = sources_in(program.code)
    calls = _calls_in(program.code, program.sources)
    program.kernels = [_named(kernel, calls[number]) for number, kernel in enumerate(kernels)]


def _launches(node: BaseSchedulerNode) -> bool:
    """Not what only names a part of another's result."""
    return not isinstance(node, NopKernelSchedulerNode) and not isinstance(node.node, ir.MultiOutput)


def _kernel(node: BaseSchedulerNode, removed: set[str]) -> Kernel:
    """Without the name of a kernel of Triton's, which is given as the program is written."""
    counts = count(node, removed)
    if not node.is_extern():
        return Kernel("", "triton", "", counts)
    operation: Any = node.node
    name = str(operation.get_kernel_name()).removeprefix("torch.ops.").removeprefix("extern_kernels.")
    tensors = (tensor for tensor in operation.inputs if isinstance(tensor, ir.IRNode) and tensor.has_tensor_output())
    return Kernel(name, "extern", ", ".join(map(_shape, tensors)), counts)


def _named(kernel: Kernel, calls: list[str]) -> Kernel:
    if kernel.kind == "extern":
        return kernel
    if not calls:
        raise MeasurementError("Inductor wrote no call of a kernel where one was due: this version is not known here")
    return replace(kernel, name=" + ".join(calls))


def _shape(tensor: ir.IRNode) -> str:
    return "x".join(str(size) for size in tensor.get_size()) or "scalar"


def sources_in(code: str) -> dict[str, str]:
    """Kernel of Triton's -> source, from a program of Inductor's: what it hands to `async_compile.triton`."""
    sources = {}
    for node in ast.walk(ast.parse(code)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="async_compile"), attr="triton"),
                args=[ast.Constant(value=str(name)), ast.Constant(value=str(source)), *_],
            ):
                sources[name] = source
    return sources


def _calls_in(code: str, sources: dict[str, str]) -> dict[int, list[str]]:
    """Number of a launch -> the kernels of Triton's that the program calls before it reaches the next."""
    parts = re.split(rf"\b{_REACHED}\((\d+)\)", code)
    names = "|".join(map(re.escape, sources)) or "(?!)"
    return {
        int(number): re.findall(rf"\b({names})\.run\(", part)
        for number, part in zip(parts[1::2], parts[2::2], strict=True)
    }
