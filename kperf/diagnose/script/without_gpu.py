"""A script's launches on a machine without a GPU: it is run for the kernels that it launches alone."""

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kperf.arch import Arch
from kperf.compat.triton import CompiledKernel, OutOfResources
from kperf.compat.triton.launches import LaunchCall, intercepted_launches, refused_kernels
from kperf.compat.triton.tuning import noted_calls, noted_trials
from kperf.diagnose.script.fake_cuda import fake_cuda
from kperf.diagnose.script.history import Histories
from kperf.diagnose.script.quiet import quiet
from kperf.errors import UsageError
from kperf.ir.offline import Launch, noted_launches
from kperf.trace.capture.script import INTERRUPTED, Script

_NOT_PYTHON = ("SyntaxError", "IndentationError", "TabError")
_MISSING = ("ModuleNotFoundError", "ImportError")
_PIPELINE_FAILED = "PassManager::run failed"


class NoLaunchError(UsageError):
    """A script that runs, and launches no kernel."""


@dataclass(frozen=True)
class Launches:
    """The kernels that a script launches. tuned: hashes of those that an autotuner tried. why: what ended it early."""

    kernels: list[Launch]
    tuned: set[str]
    why: str | None
    histories: Histories


def launches_of(script: Script, arch: Arch) -> Launches:
    """The kernels that a script launches, compiled for an architecture.

    What it prints is dropped. Raises `UsageError` if there is no such script, and `NoLaunchError`.
    """
    script.check()
    why: list[str] = []
    tuned: set[str] = set()
    histories = Histories()

    def note(kernel: CompiledKernel) -> Callable[[LaunchCall], None]:
        def noted(call: LaunchCall) -> None:
            histories.note_arguments(kernel, call)
            if trying:
                tuned.add(kernel.hash)
            else:
                histories.note(kernel, call)
            call()

        return noted

    with (
        fake_cuda(arch, histories.operators.note_asked) as compiling,
        noted_trials() as trying,
        intercepted_launches(note),
        noted_calls(),
        refused_kernels() as refused,
        noted_launches(arch) as launches,
        quiet(why) as said,
        histories.operators.noted(),
    ):
        status = script.run()
        text = said()
    if why:
        why[-1] += compilers_words(why[-1], text)
    if status == INTERRUPTED:
        raise KeyboardInterrupt
    if why and why[-1].startswith(OutOfResources.__name__) and refused:  # it ends here on a GPU too
        launches.append(Launch(refused[-1], (0, 0, 0)))
    if not launches:
        ended = why[-1] if why else ""
        raise NoLaunchError(_without_launches(script, arch, ended, status, text, compiles=compiling.called))
    return Launches(launches, tuned, why[-1] if why else None, histories)


def _without_launches(script: Script, arch: Arch, why: str, status: int, text: str, *, compiles: bool) -> str:
    """What a script does instead of a launch, and how it comes to one.

    text: the end of its standard error. compiles: whether it calls torch.compile.
    """
    if "non-ASCII" in why:
        return f"{script.name} ended with {why}: move it to a path of ASCII letters, which ptxas reads"
    if why.startswith(("CompilationError", "PTXASError")) or _PIPELINE_FAILED in why:
        return f"{script.name} ended with {why}: correct the kernel, or name another --target than {arch.name}"
    if why.startswith(_NOT_PYTHON):
        return f"{script.name} ended with {why}: correct it"
    if why.startswith(_MISSING) and "relative import" not in why:
        return f"{script.name} ended with {why}: install what it imports beside kperf"
    if compiles and not why and not status:
        return (
            f"{script.name} launches no kernel of its own, and torch.compile makes kernels only on a GPU: run it there "
            "without --static"
        )
    reason, advice = "a launch that depends on a tensor's numbers is not reached", ""
    if why:
        reason = f"it ended with {why}"
    elif status:
        last = text.strip().rpartition("\n")[2].strip()[:200]
        reason = f"it ended with status {status}{f': {last}' if last else ''}"
        advice = "give it its options after --, or "
    advice += _kernel_to_name(script)
    return f"{script.name} launches no kernel where tensors have no numbers ({reason}): {advice}"


def _kernel_to_name(script: Script) -> str:
    """What to give `kperf diagnose` in place of the script."""
    kernels = [] if script.is_module else _kernels_in(Path(script.name))
    if not kernels and not script.is_module:
        return (
            f"name a kernel of another file instead, package.module:function --signature ... ({script.name} has no "
            "Triton kernel)"
        )
    named = f"name a kernel instead, {script.name}:{'function' if len(kernels) != 1 else kernels[0]} --signature ..."
    return named + (f" (of {', '.join(kernels)})" if len(kernels) > 1 else "")


def compilers_words(why: str, text: str) -> str:
    """Where a kernel fails and why, if a pass does: as MLIR says in `text`, of standard error; else empty."""
    if _PIPELINE_FAILED not in why:
        return ""
    errors = re.findall(r"^(.+):(\d+):\d+: error: (.+)$", text, re.MULTILINE)
    first = next((one for one in errors if not one[2].startswith("Failures have been detected")), None)
    return f": {Path(first[0]).name}:{first[1]}: {first[2]}" if first is not None else ""


def _kernels_in(path: Path) -> list[str]:
    """The names of a file's functions whose decorator is a `jit`, in the order of the file."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    return [node.name for node in functions if any(_is_jit(one) for one in node.decorator_list)]


def _is_jit(decorator: ast.expr) -> bool:
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (named.attr if isinstance(named, ast.Attribute) else getattr(named, "id", "")) == "jit"
