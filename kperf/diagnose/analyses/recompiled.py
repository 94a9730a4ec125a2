"""A kernel as it is compiled with other constexprs and compile options."""

from collections.abc import Mapping
from dataclasses import replace

from kperf.compat.triton.sources import python_function
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.options import MOST_WARPS, OPTIONS
from kperf.ir import compile as compiler
from kperf.ir.ttgir import Module


def can_be_recompiled(kernel: Kernel) -> bool:
    """Whether a kernel's source is known, and does not say itself how many warps it has; AMD's code is not read."""
    has_groups = kernel.total_warps != kernel.num_warps
    known = python_function(kernel.compiled.kernel) is not None and "cubin" in kernel.compiled.kernel.asm
    return known and kernel.is_gluon is False and not has_groups


def with_change(kernel: Kernel, change: Mapping[str, int]) -> Kernel | None:
    """The kernel with other constexprs and options, by name; of other tiles no launch is known, since the grid changes.

    None where a CTA has no so many warps, or the kernel does not compile so, or cannot be compiled again: that takes
    long. Raises `UsageError` if its machine code cannot be read.
    """
    if change.get("num_warps", 1) > MOST_WARPS or not can_be_recompiled(kernel):
        return None
    made = kernel.compiled.again(**change)
    if made is None:
        return None
    compiled = compiler.read_compiled(made)
    changed = replace(
        kernel,
        module=Module(compiled.ttgir),
        compiled=compiled,
        num_stages=made.metadata.num_stages,
        resources=compiler.resources(made),
        shared_bytes=made.metadata.shared,
        constants={**kernel.constants, **change},
    )
    return changed if change.keys() <= set(OPTIONS) else without_launch(changed)


def without_launch(kernel: Kernel) -> Kernel:
    """The kernel as if nothing were known of how it is launched but its arguments."""
    return replace(kernel, grid=None, history=None, handover=None, follower=None)
