"""The instrumented kernels of attention's overrides, `ttgir/<variant>/traced/<file>`: generated, checked before use."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import triton
from pydantic import ValidationError
from rich.table import Table

from kperf.arch import H200
from kperf.attention.kernels.attn_fwd import KV_BOX_ROWS
from kperf.attention.overrides import ALIASES, Override
from kperf.attention.workload import FIG11, Workload
from kperf.compat.triton import CompiledKernel
from kperf.console import agreeing
from kperf.errors import UsageError
from kperf.installation import TTGIR_DIR
from kperf.record import device
from kperf.record.files import write_atomically
from kperf.record.store import Frozen
from kperf.trace.analyze.read import sass_order
from kperf.trace.capture.passes import Built, ChosenPass, builder, built, choose_passes, compile_passes, spread
from kperf.trace.capture.traced import Traced, TracedKernel, choose, make_traced
from kperf.trace.instrument.events import read_rules
from kperf.trace.instrument.probes import ProbedKernel, Probes, find_probes
from kperf.trace.instrument.program import Program

RULES = read_rules(aliases=ALIASES)
"""What is recorded of any kernel, in the words of attention."""


def subject_of(original: Override, workload: Workload = FIG11) -> TracedKernel:
    """An override as the trace sees it, in a launch of `workload`."""

    def compile_with(text: str) -> CompiledKernel:
        return original.replaced(original.path, text).compile()

    return TracedKernel(
        name=str(original.path),
        text=original.text,
        shared_bytes=original.entry.shared_bytes,
        compile=compile_with,
        most_events=lambda program: most_events(program, original, workload),
        rules=RULES,
    )


def most_events(program: Program, override: Override, workload: Workload) -> int:
    """How many records a warp writes at most in a launch of `workload`, whichever way it takes through the program.

    Of nested loops the outermost of a persistent kernel is over the tiles of a block, and any other over blocks of k.
    """
    # The fewer SMs, the more tiles a persistent CTA has.
    sms = H200.sms if device.why_static() else device.sm_count()
    tiles = -(-workload.rows // (override.manifest.tile_rows * override.grid(workload.rows, sms)[0]))
    iterations = -(-workload.seq_len // KV_BOX_ROWS)
    rounds = (tiles, iterations) if override.manifest.grid == "persistent" else (iterations,)
    written: Counter[str] = Counter()
    for scope in program.scopes:
        written[scope.group] += 2 * math.prod(rounds[: len(scope.loops)])
    return max(written.values())


def path_of(original: Override, root: Path = TTGIR_DIR) -> Path:
    """Where the instrumented kernel of a variant's override is kept."""
    return root / original.manifest.variant / "traced" / original.entry.file


def generate(original: Override, root: Path = TTGIR_DIR) -> Path:
    """Write the instrumented kernel of an override; returns its path.

    Raises `UsageError`, and leaves what was there, if the kernel has no registers left for records: `find` refuses a
    instrumented kernel that is not this kernel's.
    """
    path = path_of(original, root)
    text = choose(subject_of(original))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text)
    return path


class PassOnFile(Frozen):
    """A chosen pass: its places of each class of bodies, and what choosing it showed; differences in words."""

    places: tuple[tuple[int, ...], ...]
    edges: list[str]
    cost: float
    differences: list[str]
    registers: int
    spilled_bytes: int
    occupancy: int


class PassesOnFile(Frozen):
    """`ttgir/<variant>/traced/<stem>.passes.json`: passes chosen by compiling `compiles` kernels."""

    ttgir_sha256: str
    triton: str
    compiles: int
    passes: list[PassOnFile]


def passes_path(original: Override, root: Path = TTGIR_DIR) -> Path:
    """Where the passes of a variant's override are kept."""
    return path_of(original, root).with_suffix(".passes.json")


@dataclass(frozen=True)
class Passes:
    """The passes of an override, compiled."""

    all_probes: Probes
    chosen: list[ChosenPass]


def choose_passes_of(original: Override, say: Callable[[str], None]) -> tuple[Passes, int]:
    """Choose by compiling; returns the passes, and how many kernels were compiled for that."""
    all_probes = find_probes(original.text, RULES)
    subject = subject_of(original)
    compiled = 0

    def build(kernels: Sequence[ProbedKernel]) -> list[Built]:
        nonlocal compiled
        compiled += len(kernels)
        return builder(subject)(kernels)

    chosen = choose_passes(
        all_probes, built(subject.compile(subject.text)), build, cycles=all_probes.least_cycles, say=say
    )
    return Passes(all_probes, chosen), compiled


def compile_passes_of(original: Override, most: int | None, say: Callable[[str], None]) -> Passes:
    """At most so many passes; else those on file, and of a person's own TTGIR those that are chosen now."""
    all_probes = find_probes(original.text, RULES)
    if most is not None:
        wanted = spread(all_probes, most)
    elif (on_file := _passes_on_file(original)) is not None:
        wanted = [one.places for one in on_file.passes]
    else:
        return choose_passes_of(original, say)[0]
    subject = subject_of(original)
    say(f"{original.manifest.label}: compiling {len(wanted)} passes")
    built_original = built(subject.compile(subject.text))
    return Passes(
        all_probes, compile_passes(all_probes, built_original, builder(subject), wanted, cycles=all_probes.least_cycles)
    )


def _passes_on_file(original: Override) -> PassesOnFile | None:
    try:
        return read_passes(original)
    except UsageError:
        return None


def generate_passes(original: Override, say: Callable[[str], None]) -> Path:
    """Choose the passes of an override by compiling kernels with a few events, and write them; returns the path."""
    passes, compiled = choose_passes_of(original, say)
    found = PassesOnFile(
        ttgir_sha256=original.sha256,
        triton=triton.__version__,
        compiles=compiled,
        passes=[
            PassOnFile(
                places=one.probed.places,
                edges=passes.all_probes.named(one.probed.places),
                cost=round(one.cost, 4),
                differences=sass_order(one.orders).differences,
                registers=one.built.resource_usage.registers,
                spilled_bytes=one.built.resource_usage.spilled_bytes,
                occupancy=one.built.resource_usage.occupancy,
            )
            for one in passes.chosen
        ],
    )
    path = passes_path(original)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, found.model_dump_json(indent=1) + "\n")
    return path


def read_passes(original: Override, root: Path = TTGIR_DIR) -> PassesOnFile:
    """The committed passes of an override. Raises `UsageError` if they are missing, broken or another override's."""
    path = passes_path(original, root)
    try:
        found = PassesOnFile.model_validate_json(path.read_text())
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{path} is missing; `make ttgir` writes it") from None
    except ValidationError:
        raise UsageError(f"{path} is no file of passes; `make ttgir` writes it anew") from None
    if found.ttgir_sha256 != original.sha256:
        raise UsageError(f"{path} is of another override than {original.path}; `make ttgir` writes it anew")
    return found


def passes_table(found: PassesOnFile, label: str) -> Table:
    """For the console."""
    result = Table(
        title=f"passes of {label}, chosen by compiling {found.compiles} instrumented kernels", title_justify="left"
    )
    for column in (
        "pass",
        "probes besides the one in all passes",
        "estimated cost",
        "registers",
        "order of instructions",
    ):
        result.add_column(column)
    for number, one in enumerate(found.passes):
        moved = len(one.differences)
        order = f"{moved} {agreeing(moved, 'difference', 'differences')}" if moved else "the original kernel's"
        result.add_row(str(number + 1), "\n".join(one.edges), f"{one.cost:.1%}", str(one.registers), order)
    return result


def find(original: Override, root: Path = TTGIR_DIR) -> tuple[Traced, Program]:
    """The committed instrumented kernel of an override, checked.

    Raises `UsageError` if it is missing, edited or out of date.
    """
    path = path_of(original, root)
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError):
        raise UsageError(f"{path} is missing; `make ttgir` writes it") from None
    return make_traced(subject_of(original), text, path)
