"""What a TTGIR file takes of an SM with its events and without, compiled to machine code; no GPU is needed."""

import tempfile
from pathlib import Path

from kperf.arch import of
from kperf.compat.triton import CompiledKernel
from kperf.errors import UsageError
from kperf.ir.amd import amd_resources
from kperf.ir.compile import compile_ttgir, resources
from kperf.ir.ttgir import Module
from kperf.trace.instrument.events import Rules, strip
from kperf.trace.instrument.program import read_program
from kperf.trace.instrument.session import Recording, session

_BYTES_PER_WARP = 1024
"""Of the circular buffer that it is compiled with."""


def costs(text: str, target: str, rules: Rules | None = None) -> str:
    """One sentence on the instrumented module `text`: registers, spilled bytes and shared bytes, before and after.

    Raises `UsageError` for a target that is not known or not the module's own, and if the compiler refuses it.
    """
    arch, own = of(target), Module(text).arch
    if arch is not own:
        raise UsageError(f"the TTGIR is for {own.name}, not for {arch.name}: have Triton make it for {arch.name}")
    program = read_program(text, rules)
    warps = tuple(sorted({group.first_warp for group in program.groups}))
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder, name) / f"{program.kernel_name}.ttgir" for name in ("original", "instrumented")}
        for path, content in zip(paths.values(), (strip(text), text), strict=True):
            path.parent.mkdir()
            path.write_text(content)
        original = compile_ttgir(paths["original"], arch)
        with session(Recording(warps, program.total_warps, _BYTES_PER_WARP, arch=arch)):
            instrumented = compile_ttgir(paths["instrumented"], arch)
    before, after = (_taken(kernel, arch.backend) for kernel in (original, instrumented))
    words = ("registers", "bytes spilled", "bytes of shared memory")
    changes = ", ".join(f"{a} -> {b} {word}" for a, b, word in zip(before, after, words, strict=True))
    return f"{program.kernel_name} for {arch.name}, without -> with events: {changes}"


def _taken(kernel: CompiledKernel, backend: str) -> tuple[int, int, int]:
    if backend == "hip":
        amd = amd_resources(kernel)
        return amd.vgprs, amd.scratch_bytes, amd.lds_bytes
    used = resources(kernel)
    return used.registers, used.spilled_bytes, used.shared_bytes
