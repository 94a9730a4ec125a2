"""Look inside Triton kernels: `with kperf.trace(kernel="matmul*") as t: step()`, `kperf.diagnose(step)`; docs/api.md.

Importing it imports neither torch nor Triton: each name is looked up where it is first used.
"""

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kperf import diagnose as _diagnose_package
from kperf import trace as _trace_package
from kperf.errors import MeasurementError, UsageError

if TYPE_CHECKING:
    from kperf.api import KernelTrace, Trace, Traced, diagnose, trace, traced

__version__ = "0.3.0"

__all__ = [
    "KernelTrace",
    "MeasurementError",
    "Trace",
    "Traced",
    "UsageError",
    "__version__",
    "diagnose",
    "trace",
    "traced",
]


class _CallablePackage(ModuleType):
    """A package and a function, as `kperf.trace`: as a package it is imported from, as a function it is called."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self._function()(*arguments, **options)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._function())

    def _function(self) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(
            importlib.import_module("kperf.api"), self.__name__.removeprefix("kperf.")
        )
        return function


_trace_package.__class__ = _diagnose_package.__class__ = _CallablePackage


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("kperf.api"), name)
    raise AttributeError(f"module 'kperf' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def load_ipython_extension(shell: Any) -> None:
    """Register `%%kperf` in IPython; `%load_ext kperf` calls it."""
    importlib.import_module("kperf.integrations.notebook").load(shell)
