"""The traced twins of attention's overrides, `ttgir/<variant>/traced/<file>`: generated, and checked before use."""

import math
from collections import Counter
from pathlib import Path

from triton.compiler import CompiledKernel

from kperf.attention.kernels.attn_fwd import KV_BOX_ROWS
from kperf.attention.overrides import ALIASES, TTGIR_DIR, Override
from kperf.attention.workload import FIG11, Workload
from kperf.errors import UsageError
from kperf.record import device
from kperf.record.files import write_atomically
from kperf.trace.compiler.instrument import read_rules
from kperf.trace.compiler.program import Program
from kperf.trace.launch.subject import Subject, Traced, choose, make_traced

RULES = read_rules(aliases=ALIASES)
"""What is recorded of any kernel, in the words of attention."""

_SMS = 132
"""Multiprocessors of the H200, for a machine without a GPU: the fewer, the more tiles a persistent block has."""


def subject_of(plain: Override, workload: Workload = FIG11) -> Subject:
    """An override as the trace sees it, in a launch of `workload`."""

    def compile_with(text: str) -> CompiledKernel:
        return plain.replaced(plain.path, text).compile()

    return Subject(
        name=str(plain.path),
        text=plain.text,
        shared_bytes=plain.entry.shared_bytes,
        compile=compile_with,
        most_records=lambda program: most_records(program, plain, workload),
        rules=RULES,
    )


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


def path_of(plain: Override, root: Path = TTGIR_DIR) -> Path:
    """Where the twin of a variant's override is kept."""
    return root / plain.manifest.variant / "traced" / plain.entry.file


def generate(plain: Override, root: Path = TTGIR_DIR) -> Path:
    """Write the twin of an override; returns its path.

    Raises `UsageError`, and leaves what was there, if the kernel has no registers left for records: `find` refuses a
    twin that is not this kernel's.
    """
    path = path_of(plain, root)
    text = choose(subject_of(plain))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    return path


def find(plain: Override, root: Path = TTGIR_DIR) -> tuple[Traced, Program]:
    """The committed twin of an override, checked. Raises `UsageError` if it is missing, edited or out of date."""
    path = path_of(plain, root)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{path} is missing; `make ttgir` writes it") from None
    return make_traced(subject_of(plain), text, path)
