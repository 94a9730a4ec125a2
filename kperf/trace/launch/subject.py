"""The traced twin of an override: `ttgir/<variant>/traced/<file>`, generated, and never trusted without a check."""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from kperf.attention.kernels.attn_fwd import KV_BOX_ROWS
from kperf.attention.overrides import TTGIR_DIR, Override
from kperf.attention.workload import FIG11, Workload
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir import sass
from kperf.record import device
from kperf.record.files import write_atomically
from kperf.trace.compiler.instrument import Detail, instrument, strip
from kperf.trace.compiler.program import Program, read_program
from kperf.trace.compiler.session import RECORD_BYTES, Recording, session
from kperf.trace.launch.capture import Traced

_SHARED_BYTES_PER_WARP = 8192
"""Of records, where the kernel leaves that much shared memory."""

_SMS = 132
"""Multiprocessors of the H200, for a machine without a GPU: the fewer, the more tiles a persistent block has."""


@dataclass(frozen=True)
class Orders:
    """The order of instructions in a plain kernel and in its traced twin, as compiled for sm_90a."""

    plain: list[str]
    traced: list[str]

    @property
    def differences(self) -> list[sass.Difference]:
        """Where they differ."""
        return sass.compare(self.plain, self.traced)


def recording_for(program: Program, override: Override, workload: Workload = FIG11) -> Recording:
    """Records of one warp of each group, all of a block's in the launch of `workload`.

    In shared memory, where a record costs least, if they fit into what the kernel leaves of it; else straight in device
    memory. Raises `UsageError` if the kernel leaves less than nothing.
    """
    free = compiler.SHARED_MEMORY_LIMIT - override.entry.shared_bytes
    if free < 0:
        raise UsageError(
            f"{override.path} takes {override.entry.shared_bytes} of {compiler.SHARED_MEMORY_LIMIT} bytes of shared "
            "memory: it cannot be launched"
        )
    warps = tuple(sorted(group.first_warp for group in program.groups))
    needed = RECORD_BYTES * most_records(program, override, workload)
    bytes_per_warp = _SHARED_BYTES_PER_WARP
    while bytes_per_warp * len(warps) > free and bytes_per_warp > needed:
        bytes_per_warp //= 2
    if needed <= bytes_per_warp and bytes_per_warp * len(warps) <= free:
        return Recording(warps, program.total_warps, bytes_per_warp)
    return Recording(warps, program.total_warps, 1 << (needed - 1).bit_length(), memory="global")


def most_records(program: Program, override: Override, workload: Workload) -> int:
    """How many records a warp writes at most in a launch of `workload`, whichever way it takes through the program.

    Of nested loops the outermost of a persistent kernel is over the tiles of a block, and any other over blocks of k.
    """
    sms = _SMS if device.why_static() else device.sm_count()
    tiles = -(-workload.rows // (override.manifest.tile_rows * override.grid(workload.rows, sms)[0]))
    trips = -(-workload.seq_len // KV_BOX_ROWS)
    rounds = (tiles, trips) if override.manifest.grid == "persistent" else (trips,)
    written: Counter[str] = Counter()
    for scope in program.scopes:
        written[scope.group] += 2 * math.prod(rounds[: len(scope.loops)])
    return max(written.values())


def make_traced(plain: Override, text: str, path: Path) -> tuple[Traced, Program]:
    """The traced override with this text. Raises `UsageError` if the text without its records is not `plain`'s."""
    if strip(text) != plain.text:
        raise UsageError(f"{path} is not the twin of {plain.path}: `make ttgir` writes it anew")
    program = read_program(text)
    return Traced(Override(path, text, plain.entry, plain.manifest), recording_for(program, plain)), program


def compile_orders(plain: Override, traced: Traced) -> Orders:
    """Compile both for sm_90a and read the order of their instructions.

    Raises `UsageError` if the twin spills more, or has less shared memory for its records than they are read from.
    """
    plain_kernel = plain.compile()
    with session(traced.recording):
        traced_kernel = traced.override.compile()
    before, after = (compiler.resources(kernel) for kernel in (plain_kernel, traced_kernel))
    counters = 4 * len(traced.recording.warps)  # each warp's counter may live on the stack outside the loops
    if after.local_bytes > before.local_bytes or after.stack_bytes > before.stack_bytes + counters:
        raise UsageError(
            f"{traced.override.path} spills {after.stack_bytes} bytes where the plain kernel spills "
            f"{before.stack_bytes}: record fewer regions (--regions)"
        )
    if traced.recording.memory == "shared" and after.shared_bytes < before.shared_bytes + traced.recording.buffer_bytes:
        # Proton shrinks a buffer that does not fit, and says nothing.
        raise UsageError(
            f"{plain.path} takes {before.shared_bytes} of {compiler.SHARED_MEMORY_LIMIT} bytes of shared memory: too "
            f"little is left for {traced.recording.buffer_bytes} bytes of records"
        )
    return Orders(*(sass.order(compiler.sass(kernel)) for kernel in (plain_kernel, traced_kernel)))


def choose(plain: Override, path: Path) -> str:
    """The twin to keep.

    First one that shows the arithmetic of the main loop apart from its waits, then one that shows the store of the
    output apart from them, then one that the assembler orders as the plain kernel, then the one with the fewest
    records. Raises `UsageError` if all of them spill.
    """
    candidates: list[tuple[bool, bool, bool, int, str]] = []
    refused: UsageError | None = None
    for text in {instrument(plain.text, detail=detail) for detail in get_args(Detail)}:
        traced, program = make_traced(plain, text, path)
        try:
            differs = bool(compile_orders(plain, traced).differences)
        except UsageError as error:
            refused = error
            continue
        looping = {scope.number for scope in program.scopes if scope.loop}
        shown = any(
            interval.kind == "arithmetic" and {first, second} <= looping
            for ((first, _), (second, _)), interval in program.intervals.items()
        )
        stored = any(interval.kind == "store" for interval in program.intervals.values())
        candidates.append((not shown, not stored, differs, text.count("proton.record"), text))
    if refused is not None and not candidates:
        raise refused
    return min(candidates)[-1]


def traced_path(plain: Override, root: Path = TTGIR_DIR) -> Path:
    """Where the twin of a variant's override is kept."""
    return root / plain.manifest.variant / "traced" / plain.entry.file


def generate(plain: Override, root: Path = TTGIR_DIR) -> Path:
    """Write the twin of an override; returns its path.

    Raises `UsageError`, and leaves no twin behind, if the kernel has no registers left for records.
    """
    path = traced_path(plain, root)
    try:
        text = choose(plain, path)
    except UsageError:
        path.unlink(missing_ok=True)
        raise
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    return path


def find(plain: Override, root: Path = TTGIR_DIR) -> tuple[Traced, Program]:
    """The committed twin of an override, checked. Raises `UsageError` if it is missing, edited or out of date."""
    path = traced_path(plain, root)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{path} is missing; `make ttgir` writes it") from None
    return make_traced(plain, text, path)
