"""The models that `kperf inductor` profiles, and the scopes in which it does.

A model is named `dit` or `llama`, a block of examples/, or `file.py:function`: a function that is called without
arguments and returns a module and the tensors that it is called with, made on the device that kperf chooses.
"""

import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from kperf.errors import UsageError, kind_and_line
from kperf.installation import EXAMPLES

SCRIPT = EXAMPLES / "transformer_block.py"
"""Where the blocks are."""
ROUNDS = 20
"""Calls of the whole block under Proton."""


def blocks() -> ModuleType:
    """`SCRIPT` as a module: SIZES, and make(name, device, dtype)."""
    sys.path.insert(0, str(SCRIPT.parent))
    try:
        import transformer_block  # type: ignore[import-not-found]
    finally:
        del sys.path[0]
    found: ModuleType = transformer_block
    return found


def made(name: str, device: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """A model and its inputs on a device. Raises `UsageError` for a model of a user's own that gives something else."""
    if not is_own(name):
        module, inputs = blocks().make(name, device, torch.bfloat16)
        return module, inputs
    function = own_function(name)
    try:
        with torch.device(device):
            given = function()
    except Exception as error:
        on_gpu = device == "meta" and re.search("cuda|nvidia", str(error), re.IGNORECASE)
        hint = "; without a GPU it has to leave the device of tensors open" if on_gpu else ""
        raise UsageError(f"{name} ended with {kind_and_line(error)}{hint}") from None
    if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], torch.nn.Module)):
        raise UsageError(f"{name} gives no module with its inputs: return (module, (tensor, ...))")
    module, inputs = given[0], given[1] if isinstance(given[1], tuple | list) else (given[1],)
    if not inputs or not all(isinstance(tensor, torch.Tensor) for tensor in inputs):
        raise UsageError(f"{name} gives inputs that are no tensors: return (module, (tensor, ...))")
    return module.to(device), tuple(tensor.to(device) for tensor in inputs)


def is_own(name: str) -> bool:
    """Whether it is a user's own."""
    return ":" in name


def own_function(name: str) -> Callable[[], Any]:
    """The function that makes a model of a user's own. Raises `UsageError` if there is none."""
    file, _, function = name.rpartition(":")
    path = Path(file)
    if path.suffix != ".py" or not function:
        raise UsageError(f"{name} names no function of a file: give file.py:function")
    if not path.is_file():
        raise UsageError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path.resolve())
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules.setdefault(path.stem, module)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{path} cannot be imported: {kind_and_line(error)}") from None
    finally:
        del sys.path[0]
    made_by = getattr(module, function, None)
    if not callable(made_by):
        raise UsageError(f"{path} has no function {function}")
    return made_by  # type: ignore[no-any-return]


def sizes_of(name: str) -> dict[str, int]:
    """Of a block of examples/; empty for a user's own."""
    return {} if is_own(name) else dict(blocks().SIZES[name])


def folder_name(name: str) -> str:
    """What a model's files and folders are called."""
    file, _, function = name.rpartition(":")
    return f"{Path(file).stem}_{function}" if is_own(name) else name


def scope_of(number: int) -> str:
    """Proton's scope of a launch."""
    return f"launch {number}"


def round_of(number: int) -> str:
    """Proton's scope of a round."""
    return f"round {number}"
