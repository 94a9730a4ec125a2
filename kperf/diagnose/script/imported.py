"""A module whose kernels are wanted, imported without a GPU."""

import ast
import importlib.util
import sys
from collections.abc import Set
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

from kperf.arch import Arch
from kperf.console import complain
from kperf.diagnose.script.fake_cuda import fake_cuda
from kperf.diagnose.script.quiet import quiet
from kperf.errors import UsageError
from kperf.ir.offline import noted_launches


def imported(name: str, arch: Arch) -> tuple[dict[str, Any], str | None]:
    """What a file or a module defines, and the words of the exception that ended it, None without one.

    A file inside of a package is imported as the package's; where that needs what is not here, as a compiled extension,
    without what `__init__.py` does. Its launches do nothing. Raises `UsageError` if there is no such file or module.
    """
    path = Path(name) if name.endswith(".py") else None
    if path is not None and not path.is_file():
        raise UsageError(f"there is no file {path}")
    folder, dotted = _place_of(path.resolve()) if path is not None else (Path.cwd(), name)
    names: dict[str, Any] = {}
    why: list[str] = []
    left_out = ""
    before, known = list(sys.path), set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        with fake_cuda(arch), noted_launches(arch), quiet(why):
            try:
                spec = _spec_of(path, folder, dotted)
            except Exception as error:
                if path is None or isinstance(error, UsageError):
                    raise
                left_out = f"{type(error).__name__}: {' '.join(str(error).split())}"
                _import_bare_packages(folder, dotted)
                spec = _spec_of(path, folder, dotted)
            if spec is not None and spec.loader is not None:
                if "." in dotted and dotted in sys.modules:  # its package has imported it
                    names = vars(sys.modules[dotted])
                else:
                    module = sys.modules[dotted] = importlib.util.module_from_spec(spec)
                    names = vars(module)
                    spec.loader.exec_module(module)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        sys.modules.pop(dotted, None)  # half of it is there
        why.append(f"{type(error).__name__}: {' '.join(str(error).split())}")
    finally:
        sys.path[:] = before
        if left_out:  # the next file of the package finds it as this one did, and gets its sentence too
            _forget_new_modules(known, dotted.partition(".")[0])
    if left_out:
        complain(f"{dotted.rpartition('.')[0]} cannot be imported ({left_out}): {name} is, without its __init__.py")
    return names, why[-1] if why else None


def _forget_new_modules(known: Set[str], package: str) -> None:
    for name in set(sys.modules) - known:
        if name.partition(".")[0] == package:
            del sys.modules[name]


def _import_bare_packages(folder: Path, dotted: str) -> None:
    """Modules for the packages around one, as far as there are none: of each its folder alone is known."""
    parts = dotted.split(".")
    for count in range(1, len(parts)):
        package = ".".join(parts[:count])
        if package not in sys.modules:
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = [str(folder.joinpath(*parts[:count]))]


def _spec_of(path: Path | None, folder: Path, dotted: str) -> ModuleSpec | None:
    """How a module is imported; packages around it are, here. Raises `UsageError` if there is none, or another."""
    if path is not None and "." not in dotted:
        return importlib.util.spec_from_file_location(dotted, path)
    spec = importlib.util.find_spec(dotted)
    if spec is None:
        raise UsageError(f"there is no module {dotted}: give package.module:function, or file.py:function")
    if path is not None and (spec.origin is None or not path.samefile(spec.origin)):
        raise UsageError(f"{path} is {dotted} of {folder}, and here {dotted} is {spec.origin}: name the kernel there")
    return spec


def _place_of(path: Path) -> tuple[Path, str]:
    """The folder from which a file is imported, and its name as a module's.

    That is the one outside of its packages, which have an `__init__.py`, or which its relative imports go through.
    """
    depth = _deepest_relative_import(path)
    while (path.parents[depth] / "__init__.py").is_file():
        depth += 1
    folder = path.parents[depth]
    parts = path.relative_to(folder).with_suffix("").parts
    if depth == 0:
        return folder, f"_kperf_{path.stem.replace('.', '_')}"
    return folder, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _deepest_relative_import(path: Path) -> int:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return 0  # the import reports what is wrong
    levels = [node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return min(max(levels, default=0), len(path.parents) - 1)
