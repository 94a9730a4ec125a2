"""Put any TTGIR in place of any JIT kernel's, and prove that it ran.

Triton's own ways miss silently: a wrong folder, file name or suffix is not applied, and a warm cache serves what was
compiled before. Here a file is copied to a path that contains its own sha256 and handed over as the compile option
`ir_override`, which is part of the cache key. So an edited file is another path and another kernel, and a kernel
without the option can never be served an override. The path names the assembler, too, which Triton's key may miss.
What was launched is then compared with the file.
"""

import hashlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import triton

from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.cache import cache_folder, own_cache
from kperf.compat.triton.instrumentation import instrumentation_option
from kperf.compat.triton.sources import compile_in_place, overriding
from kperf.compat.triton.tools import assembler
from kperf.errors import MeasurementError, UsageError
from kperf.ir import compile as compiler
from kperf.record.files import start_of, write_atomically

_own_cubins: dict[str, bytes] = {}
"""What a kernel's hash compiled to in this process, without Triton's cache."""


class Override:
    """A TTGIR that replaces a kernel's: `text` as Triton prints it without locations, `path` where it came from."""

    def __init__(self, path: Path, text: str, kernel_name: str) -> None:
        """Of the kernel `kernel_name`, the name of the text's public function."""
        self.path = path
        self.text = text
        self.kernel_name = kernel_name
        self.sha256 = sha256(text)
        self._proven: set[str] = set()

    def place(self) -> Path:
        """The content-addressed copy that `ir_override` names; made when it is not there, and re-read when it is."""
        # Beside the kernels that are compiled from it, and as durable as they are.
        folder = cache_folder() / "kperf-overrides" / f"{self.sha256}-{assembler()}"
        path = folder / f"{start_of(self.kernel_name)}.ttgir"
        if not path.is_file() or path.read_text() != self.text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, self.text)
        return path

    def prove(self, kernel: CompiledKernel) -> None:
        """Raise `MeasurementError` unless the TTGIR from which `kernel` was lowered is this override's."""
        if kernel.hash in self._proven:
            return
        if compiler.canonical_ttgir(kernel.asm["ttgir"]) != compiler.canonical_ttgir(self.text):
            raise MeasurementError(f"{self.path} was not put in place: another kernel was compiled")
        self._proven.add(kernel.hash)


def prove_launched(pairs: Sequence[tuple[Override, CompiledKernel]]) -> None:
    """As `prove` each, and its machine code is what that TTGIR compiles to here, now, without Triton's cache.

    Of several at once, compiled so in the session that is open. Raises `MeasurementError` for any other: Triton
    launches whatever lies in its cache under the kernel's hash.
    """
    for override, kernel in pairs:
        override.prove(kernel)
    # A kernel's hash is of its source, its options and, by `place`, this override.
    new = {kernel.hash: kernel for _, kernel in pairs if kernel.hash not in _own_cubins}
    # The file's path is in the machine code too: it stays where the user's cache is.
    places = {kernel.hash: str(override.place()) for override, kernel in pairs}

    def compile_again(kernel: CompiledKernel) -> CompiledKernel:
        options = compiler.options_of(kernel) | {"ir_override": places[kernel.hash]}
        return triton.compile(kernel.src, target=kernel.metadata.target, options=options)

    if new:
        with tempfile.TemporaryDirectory() as folder, own_cache(Path(folder)):
            own = compiler.several(compile_again, new.values())
        _own_cubins.update({name: made.asm["cubin"] for name, made in zip(new, own, strict=True)})
    for override, kernel in pairs:
        if _own_cubins[kernel.hash] != kernel.asm["cubin"]:
            raise MeasurementError(
                f"what was launched is not the machine code of {override.path}: Triton's cache {cache_folder()} holds "
                "another under its name; remove that folder and run again"
            )


def recompile(kernel: CompiledKernel, override: Override) -> CompiledKernel:
    """Somebody's compiled kernel once more, from its own source and options, with the TTGIR of `override` in place.

    What the session of `trace.instrument.session` asks for is lowered too. Raises `UsageError` while
    TRITON_KERNEL_OVERRIDE is set, `MeasurementError` if something else was compiled.
    """
    refuse_environment_override()
    options = compiler.options_of(kernel) | {"ir_override": str(override.place()), **instrumentation_option()}
    compiled = compile_in_place(kernel.src, kernel.metadata.target, options)
    override.prove(compiled)
    return compiled


def refuse_environment_override() -> None:
    """Raise `UsageError` while TRITON_KERNEL_OVERRIDE is set."""
    if overriding():
        raise UsageError("TRITON_KERNEL_OVERRIDE is set, which makes Triton ignore our overrides: unset it")


def sha256(text: str) -> str:
    """Of the text as UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
