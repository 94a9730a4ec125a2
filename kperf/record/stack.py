"""The torch and the Triton that are installed, and what is wrong with them. Reads their files; imports neither."""

import ast
import importlib.metadata
import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from kperf.installation import why_missing

OLDEST_TRITON = (3, 6)
"""The first whose buffers of events are read; torch 2.10 brings it."""

_REINSTALL = "`pip install --force-reinstall torch`"


@dataclass(frozen=True)
class Stack:
    """What `torch/version.py` and `triton/__init__.py` say; None for what is not installed or not stated.

    `cuda`, `hip`: for which version of CUDA or ROCm torch is built. `tritons`: name and version of each distribution
    that brings the folder `triton`; there is none of a Triton that was built in place.
    """

    torch: str | None = None
    cuda: str | None = None
    hip: str | None = None
    triton: str | None = None
    tritons: tuple[str, ...] = ()

    def why_no_compiler(self) -> str | None:
        """None if kernels can be compiled, else the first reason, one sentence with the fix."""
        if self.torch is None:
            return why_missing("torch")
        if self.triton is None:
            return self.why_no_cuda() or why_missing("triton")
        if len(self.tritons) > 1:
            names = [name.split()[0] for name in self.tritons]
            return (
                f"{' and '.join(self.tritons)} have overwritten files of each other: "
                f"run `pip uninstall {' '.join(names)}`, then {_REINSTALL}"
            )
        version = re.match(r"(\d+)\.(\d+)", self.triton)
        if version and (int(version[1]), int(version[2])) < OLDEST_TRITON:
            return (
                f"triton {self.triton} is older than 3.6, the first whose events are read: install torch 2.10 or newer"
            )
        return None

    def warnings(self) -> list[str]:
        """What may go well, a sentence each."""
        if self.triton is None or (self.tritons and "+git" not in self.triton):
            return []
        return [f"triton {self.triton} is built from source: its private interfaces may differ from the release's"]

    def why_no_cuda(self) -> str | None:
        """None if this torch is for NVIDIA GPUs, else a sentence."""
        if self.torch is None:
            return None
        if self.hip is not None:
            return (
                f"torch {self.torch} is built for ROCm {self.hip}, and events are read on NVIDIA GPUs alone: "
                "use an environment whose torch is built for CUDA"
            )
        if self.cuda is None:
            return f"torch {self.torch} is built without CUDA: {_REINSTALL} installs one with it"
        return None


def look() -> Stack:
    """Find both as `import` would."""
    torch, triton = _folder("torch"), _folder("triton")
    facts = _constants(torch / "version.py") if torch else {}
    return Stack(
        torch=(facts.get("__version__") or "of unknown version") if torch else None,
        cuda=facts.get("cuda"),
        hip=facts.get("hip"),
        triton=(_constants(triton / "__init__.py").get("__version__") or "of unknown version") if triton else None,
        tritons=tuple(sorted(_that_bring(triton))) if triton else (),
    )


def _folder(package: str) -> Path | None:
    """Of an importable package; a folder without `__init__.py`, as an uninstalled package leaves it, is none."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec is not None and spec.origin is not None else None


def _constants(path: Path) -> dict[str, str]:
    """The strings that a module assigns to names."""
    try:
        statements = ast.parse(path.read_text()).body
    except (OSError, ValueError, SyntaxError):
        return {}
    constants = {}
    for statement in statements:
        match statement:
            case ast.Assign([ast.Name(name)], ast.Constant(str(text))):
                constants[name] = text
            case ast.AnnAssign(ast.Name(name), _, ast.Constant(str(text))):
                constants[name] = text
    return constants


def _that_bring(triton: Path) -> set[str]:
    """The distributions whose files are those of this very folder: they lie beside it. Of others nothing is read."""
    packages = set()
    for folder in triton.parent.glob("*[tT][rR][iI][tT][oO][nN]*.dist-info"):
        package = importlib.metadata.Distribution.at(folder)
        if any(file.as_posix() == "triton/__init__.py" for file in package.files or ()):
            packages.add(f"{package.name} {package.version}")
    return packages
