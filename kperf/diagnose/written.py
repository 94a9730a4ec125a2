"""A kernel by its TTIR, as it was written: each load stands in the iteration that uses it, and no copy is ahead."""

from dataclasses import replace

from kperf.diagnose.kernel import Kernel
from kperf.ir.ttgir import Module


def as_written(kernel: Kernel) -> Kernel | None:
    """The kernel with its TTIR in place of its TTGIR, which has no layouts; None where no TTIR is known (Gluon)."""
    text = kernel.compiled.texts.get("ttir", "")
    return replace(kernel, module=Module(kernel.compiled.moved.text(text))) if "tt.func" in text else None
