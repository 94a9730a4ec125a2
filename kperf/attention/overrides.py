"""The variants' TTGIR files, `ttgir/<variant>/`: what each promises, whether it fits `attn_fwd`, and how it is run."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import triton
from pydantic import BaseModel, ConfigDict, ValidationError

from kperf.arch import SM_90A
from kperf.attention.kernels.attn_fwd import attn_fwd
from kperf.attention.schedule import Schedule, schedule
from kperf.attention.variants import TILE_ROWS, VARIANTS, Grid, Specialization, Variant, variant_named
from kperf.attention.workload import Workload
from kperf.compat.triton import ASTSource, CompiledKernel, TritonError
from kperf.compat.triton.sources import override_folder
from kperf.errors import MeasurementError, UsageError, root_cause
from kperf.installation import TTGIR_DIR
from kperf.ir import compile as compiler
from kperf.ir import override as any_kernel
from kperf.ir.ttgir import Module
from kperf.record.files import write_atomically
from kperf.record.store import first_of

ALIASES = Path(__file__).with_name("aliases.toml")
"""The words of attention, for the trace."""
KERNEL_NAME = attn_fwd.__name__

_Compiled = TypeVar("_Compiled")


class ManifestEntry(BaseModel):
    """One TTGIR file of a variant and all that must hold where it is put in place."""

    model_config = ConfigDict(extra="forbid")

    file: str
    sha256: str
    head_dim: int
    dtype: str
    causal: bool
    signature: dict[str, str]
    q_box: tuple[int, int]
    kv_box: tuple[int, int]
    num_warps: int
    shared_bytes: int
    schedule: Schedule

    @property
    def specialization(self) -> Specialization:
        """The compile-time choices that this file serves."""
        return Specialization(self.head_dim, self.dtype, self.causal)


class Manifest(BaseModel):
    """`ttgir/<variant>/manifest.json`."""

    model_config = ConfigDict(extra="forbid")

    schema_version: Literal[1] = 1
    variant: str
    label: str
    kernel: str
    triton: str
    target: str
    generator: str
    grid: Grid
    tile_rows: int
    overrides: list[ManifestEntry]


class Override(any_kernel.Override):
    """One TTGIR file, read and checked: `text` replaces the kernel's, `entry` and `manifest` say how it fits."""

    def __init__(self, path: Path, text: str, entry: ManifestEntry, manifest: Manifest) -> None:
        """Use `find` or `from_file`."""
        super().__init__(path, text, KERNEL_NAME)
        self.entry = entry
        self.manifest = manifest

    def replaced(self, path: Path, text: str) -> "Override":
        """Another text, from `path`, launched as this one is."""
        return Override(path, text, self.entry, self.manifest)

    def compile(self) -> CompiledKernel:
        """`attn_fwd` with this override in place, compiled for sm_90a; no GPU is needed."""
        any_kernel.refuse_environment_override()
        return _compile_in_place(self, self.entry.specialization)

    def grid(self, n_rows: int, n_sms: int) -> tuple[int]:
        """The manifest's launch grid for n_rows rows of q on a GPU of n_sms multiprocessors."""
        tiles = n_rows // self.manifest.tile_rows
        return (min(tiles, n_sms) if self.manifest.grid == "persistent" else tiles,)

    def launcher(self, n_rows: int, n_sms: int) -> Callable[..., None]:
        """A function that runs `attn_fwd` with this override on its runtime arguments, in order.

        The first call compiles, and proves what was compiled; that very kernel is launched from then on, without
        Triton's look at each argument, which takes longer than the shortest kernels. So all calls have to be on tensors
        of the same shapes and types, on the device of the first. That call raises `UsageError` while
        TRITON_KERNEL_OVERRIDE is set or if Triton's cache is damaged, `MeasurementError` if something else was
        compiled.
        """
        grid = self.grid(n_rows, n_sms)
        constants = tuple(self.entry.specialization.constexprs().values())
        launch: Callable[..., None] | None = None

        def run(*arguments: Any) -> None:
            nonlocal launch
            if launch is None:
                kernel = self.compile()
                any_kernel.prove_launched([(self, kernel)])
                launch = kernel[(*grid, 1, 1)]
            launch(*arguments, *constants)

        return run


class Verification(BaseModel):
    """What compiling an override showed."""

    variant: str
    file: str
    sha256: str
    schedule: Schedule
    wgmma: int
    registers: int
    spilled_bytes: int
    shared_bytes: int


def find(variant: str, specialization: Specialization, root: Path = TTGIR_DIR) -> Override:
    """The override of `variant` for these compile-time choices, its integrity and fit checked.

    Raises `UsageError` when the variant or file is not there, was edited, or is for another Triton or kernel.
    """
    manifest = read_manifest(variant, root)
    for entry in manifest.overrides:
        if entry.specialization == specialization:
            break
    else:
        raise UsageError(f"{variant} has no override for {specialization.file_name.removesuffix('.ttgir')}")
    path = root / variant / entry.file
    text = _read_text(path)
    if any_kernel.sha256(text) != entry.sha256:
        raise UsageError(
            f"{path} was edited: its sha256 is not the manifest's; `make ttgir` restores it, "
            "and `--override FILE` runs an edited one as such"
        )
    _check_fit(path, text, entry)
    return Override(path, text, entry, manifest)


def from_file(path: Path, like: Override) -> Override:
    """A person's own TTGIR file in the place of `like`: same kernel, boxes and launch grid, any content."""
    if not path.is_file():
        raise UsageError(f"{path} is no file: name one that holds a TTGIR of {KERNEL_NAME}")
    try:
        text = compiler.canonical_ttgir(_read_text(path))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    entry = like.entry.model_copy(update={"file": path.name, "sha256": any_kernel.sha256(text)})
    _check_fit(path, text, entry)
    return Override(path, text, entry, like.manifest)


def read_manifest(variant: str, root: Path = TTGIR_DIR) -> Manifest:
    """Read `root/<variant>/manifest.json`; raises `UsageError` when it is missing, broken or for another Triton."""
    variant_named(variant)
    path = root / variant / "manifest.json"
    text = _read_text(path)
    try:
        manifest = Manifest.model_validate_json(text)
    except ValidationError as error:
        raise UsageError(f"{path} is not a manifest ({first_of(error)}); `make ttgir` writes it anew") from None
    if manifest.triton != triton.__version__:
        raise UsageError(
            f"{path} is for Triton {manifest.triton} and this is {triton.__version__}: install the locked wheels "
            "(`make setup`) or generate the overrides anew (`make ttgir`)"
        )
    definition = VARIANTS[variant]
    _hold(path, manifest, _defined(definition))
    entries = {entry.specialization: entry for entry in manifest.overrides}
    if len(entries) != len(manifest.overrides) or set(entries) != set(definition.specializations):
        files = ", ".join(special.file_name for special in definition.specializations)
        raise UsageError(f"{path} is not of {files}, each once; `make ttgir` writes it anew")
    for special, entry in entries.items():
        _hold(path, entry, _promised(definition, special))
    return manifest


def _hold(path: Path, recorded: BaseModel, defined: dict[str, Any]) -> None:
    """Raise `UsageError` for the first field that is not as defined."""
    for name, value in defined.items():
        value_there = getattr(recorded, name)
        if value_there != value or (isinstance(value, dict) and list(value_there) != list(value)):
            where = f"{recorded.file}: " if isinstance(recorded, ManifestEntry) else ""
            raise UsageError(f"{path} says {where}{name} {value_there!r}, not {value!r}; `make ttgir` writes it anew")


def verify(override: Override) -> Verification:
    """Compile the override in place of `attn_fwd` and check what its name promises, from IR, cubin and PTX.

    Raises `MeasurementError` if there is no wgmma, anything spills, shared memory exceeds Hopper's, or the order of
    the matrix products, the warps or the shared memory are not the manifest's.
    """
    kernel = override.compile()
    used = compiler.resources(kernel)
    found = Verification(
        variant=override.manifest.variant,
        file=override.entry.file,
        sha256=override.sha256,
        schedule=schedule(Module(override.text)),
        wgmma=kernel.asm["ptx"].count("wgmma.mma_async"),
        registers=used.registers,
        spilled_bytes=used.spilled_bytes,
        shared_bytes=used.shared_bytes,
    )
    if found.schedule != override.entry.schedule:
        raise MeasurementError(f"{override.path} promises {override.entry.schedule} and is {found.schedule}")
    for name, value in (("num_warps", kernel.metadata.num_warps), ("shared_bytes", found.shared_bytes)):
        if (promised := getattr(override.entry, name)) != value:
            raise MeasurementError(
                f"the manifest of {override.path} says {name} {promised}, and it compiles to {value}"
            )
    if not found.wgmma:
        raise MeasurementError(f"{override.path} compiles without wgmma: the tensor cores' fast path is not used")
    if found.spilled_bytes:
        raise MeasurementError(f"{override.path} spills {found.spilled_bytes} bytes of registers")
    if found.shared_bytes > SM_90A.cta_shared_bytes:
        limit = SM_90A.cta_shared_bytes
        raise MeasurementError(f"{override.path} wants {found.shared_bytes} bytes of shared memory; an SM has {limit}")
    return found


def generate(variant: Variant, root: Path = TTGIR_DIR) -> Manifest:
    """Compile the Gluon source for sm_90a and write `root/<variant>/`: one file a specialisation, and the manifest.

    Raises `UsageError` while TRITON_KERNEL_OVERRIDE is set, and for a Triton that does not compile the source, before
    anything is written.
    """
    any_kernel.refuse_environment_override()
    texts = {special: _text_of_source(variant, special) for special in variant.specializations}
    folder = root / variant.name
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for special, text in texts.items():
        write_atomically(folder / special.file_name, text)
        kernel = _compile_in_place(any_kernel.Override(folder / special.file_name, text, KERNEL_NAME), special)
        entries.append(
            ManifestEntry(
                sha256=any_kernel.sha256(text),
                num_warps=kernel.metadata.num_warps,
                shared_bytes=kernel.metadata.shared,
                **_promised(variant, special),
            )
        )
    manifest = Manifest(overrides=entries, **_defined(variant))
    write_atomically(folder / "manifest.json", json.dumps(manifest.model_dump(), indent=2) + "\n")
    return manifest


def check_source(override: Override) -> None:
    """Raise `MeasurementError` unless the override is, byte for byte, what its Gluon source compiles to."""
    variant = VARIANTS[override.manifest.variant]
    if _text_of_source(variant, override.entry.specialization) != override.text:
        raise MeasurementError(f"{override.path} is not what {variant.source} compiles to: `make ttgir` writes it anew")


def _text_of_source(variant: Variant, special: Specialization) -> str:
    """Raises `UsageError` if this Triton does not compile it: Gluon's interface changes from one to the next."""
    constexprs = variant.constexprs(special)
    try:
        return compiler.ttgir_of_source(variant.kernel, special.gluon_signature(constexprs), constexprs)
    except TritonError as error:
        raise UsageError(_does_not_compile(variant, error)) from None


def _does_not_compile(variant: Variant, error: Exception) -> str:
    """The sentence for an error of this Triton on the variant's source."""
    return (
        f"{variant.source} does not compile with Triton {triton.__version__} ({root_cause(error)}): "
        "install the locked wheels (`make setup`)"
    )


def compiled_or_why(variant: Variant, compiled: Callable[[], _Compiled]) -> _Compiled | str:
    """What `compiled` makes of the variant's source, or one sentence on why it makes nothing."""
    try:
        return compiled()
    except UsageError as error:
        return str(error)
    except (TritonError, RuntimeError) as error:  # of Triton's front end and of ptxas, and of the passes in between
        return _does_not_compile(variant, error)


def _compile_in_place(put: any_kernel.Override, special: Specialization) -> CompiledKernel:
    kernel = compiler.compile_kernel(attn_fwd, special.signature(), special.constexprs(), ir_override=put.place())
    put.prove(kernel)
    return kernel


def _defined(variant: Variant) -> dict[str, Any]:
    """What a manifest says of the variant as a whole, from its definition."""
    return {
        "variant": variant.name,
        "label": variant.label,
        "kernel": KERNEL_NAME,
        "triton": triton.__version__,
        "target": SM_90A.name,
        "generator": f"make ttgir, from {variant.source}",
        "grid": variant.grid,
        "tile_rows": TILE_ROWS,
    }


def _promised(variant: Variant, special: Specialization) -> dict[str, Any]:
    """What a manifest says of one file, from its definition: all but what only compiling shows."""
    constexprs = special.constexprs()
    return {
        "file": special.file_name,
        "head_dim": special.head_dim,
        "dtype": special.dtype,
        "causal": special.causal,
        "signature": special.signature(),
        "q_box": (constexprs["BLOCK_M"], special.head_dim),
        "kv_box": (constexprs["BLOCK_N"], special.head_dim),
        "schedule": variant.schedule,
    }


def stage(override: Override, directory: Path) -> Path:
    """Lay the override out where `TRITON_KERNEL_OVERRIDE=1 TRITON_OVERRIDE_DIR=directory` looks for it.

    The folder's name is the base32 of Triton's hash of `attn_fwd`'s source and signature as they are now. Raises
    `UsageError` if the folder cannot be written.
    """
    special = override.entry.specialization
    source = ASTSource(attn_fwd, special.signature(), special.constexprs(), {})
    path = directory / override_folder(source) / f"{KERNEL_NAME}.ttgir"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{path.parent} cannot be made: {error.strerror}") from None
    write_atomically(path, override.text)
    return path


def specialization_of(workload: Workload) -> Specialization:
    """The compile-time choices that a workload asks for."""
    return Specialization(workload.head_dim, workload.dtype, workload.causal)


def _check_fit(path: Path, text: str, entry: ManifestEntry) -> None:
    kernel_name, boxes = _interface(text)
    if kernel_name != KERNEL_NAME:
        raise UsageError(f"{path} holds the kernel {kernel_name}, not {KERNEL_NAME}")
    there = [entry.q_box, entry.kv_box, entry.kv_box, entry.q_box]
    if boxes != there:
        raise UsageError(
            f"{path} expects descriptor boxes {boxes} where {KERNEL_NAME} has {there}: "
            "it would compile and read the wrong rows"
        )


@functools.lru_cache(maxsize=64)
def _interface(text: str) -> tuple[str, list[tuple[int, ...]]]:
    """Name of a kernel and the boxes of its descriptors: each point of a figure asks for those of the same files."""
    module = Module(text)
    return module.kernel_name, [box for box, _ in module.descriptor_boxes()]


def _read_text(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise UsageError(f"{path} is missing; `make ttgir` writes it") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
