"""Triton's private interfaces, from 3.6 to 3.9, as functions and types of the field's names.

Where versions differ, the branch stands here and says from which version on. These are the types; what is done with
them is in the modules beside.
"""

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.compiler.errors import CompilationError
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.autotuner import Autotuner
from triton.runtime.errors import OutOfResources, PTXASError, TritonError

from kperf.errors import UsageError

if not hasattr(knobs.compilation, "instrumentation_mode"):
    raise UsageError(f"Triton {triton.__version__} is too old for kperf: install triton 3.6 or newer, with its torch")

__all__ = [
    "VERSION",
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
