"""`make inductor`: a transformer block of FLUX and one of Llama through torch.compile, every kernel of it listed.

Time by Proton, a scope a launch that carries the FLOPs and bytes which `kperf.compat.inductor_counts` derives from
Inductor's graph; the ceilings are cuBLAS in turn with the rounds (bfloat16, 8192 cubed) and a copy. What is derived is
held against ncu's counters where there is an ncu. Without a GPU Inductor writes the same program for an H200, and the
kernels are listed with what they have to do. The sources are kept, and each of Triton's goes to `kperf trace`.
"""

import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, model_validator
from rich.console import Console
from rich.table import Table

from kperf.bench.turns import CEILING_FLOPS
from kperf.compat.inductor_program import PROGRAM, Program
from kperf.console import announce, titled_table
from kperf.errors import MeasurementError, UsageError, kind_and_line
from kperf.installation import require_checkout
from kperf.ir import offline
from kperf.record import device
from kperf.record.files import make_output, write_atomically
from kperf.record.provenance import Provenance, Summary
from kperf.record.store import Frozen, RecordStore
from kperf.studies import child, foreign, ncu
from kperf.studies.hatchet import TIME, Tree, compact, read_tree
from kperf.studies.inductor_program import (
    ROUNDS,
    SCRIPT,
    folder_name,
    is_own,
    made,
    own_function,
    round_of,
    scope_of,
    sizes_of,
)
from kperf.studies.proton import under_proton
from kperf.studies.records import Common, Row, folder_of, measured_or_recorded, newest

BLOCKS = ("dit", "llama")
GOAL = 0.10
"""How far what is derived may lie from ncu's counters."""
_SESSION = "kperf.studies.inductor_session"
_LIMIT_S = 300
_FP32 = {
    "smsp__sass_thread_inst_executed_op_fadd_pred_on.sum": 1,
    "smsp__sass_thread_inst_executed_op_fmul_pred_on.sum": 1,
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": 2,
}
"""Instructions of threads -> FLOPs."""
_PRODUCTS = "sm__ops_path_tensor_src_bf16_dst_fp32.sum"
_READ = "dram__bytes_read.sum"
_WRITTEN_DRAM = "dram__bytes_write.sum"
_WRITTEN_L2 = "lts__t_sectors_srcunit_tex_op_write.sum"
_SECTOR_BYTES = 32
METRICS = (*_FP32, _PRODUCTS, _READ, _WRITTEN_DRAM, _WRITTEN_L2)

_Positive = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(ge=0)]


class Counters(Frozen):
    """What ncu counted in the kernels of one launch.

    flops: without the tensor cores, whose are `products`. bytes: read from DRAM with caches that were empty before, and
    written into L2, where part of what is written stays beyond the kernel's end (or to DRAM, if that is more).
    """

    flops: Annotated[float, Field(ge=0)]
    products: Annotated[float, Field(ge=0)]
    bytes: Annotated[float, Field(ge=0)]


class InductorRow(Row):
    """One launch of a block's program. `samples_us`: of each round, all kernels that ran for it; or `message` says why.

    number: its place. kind: Triton's, written by Inductor, or a library's. operands: shapes, of a library's. flops,
    products, functions, reduced, bytes: what has to be done, derived from the graph (`inductor_program.Counts`).
    kernels, launches: what ran on the device, and how many in a round. ceiling_ms: cuBLAS bfloat16 8192^3 in turn with
    the rounds. copy_gb_per_s: of a copy of 256 MiB. rel_error: of the block, against float32. counters: ncu's, or
    `ncu_message` says why there are none.
    """

    block: str
    sizes: dict[str, int]
    number: _Count
    name: str
    kind: Literal["triton", "extern"]
    operands: str
    flops: _Count
    products: _Count
    functions: _Count
    reduced: _Count
    bytes: _Count
    kernels: list[str]
    launches: _Count
    samples_us: list[_Positive]
    ceiling_ms: Annotated[list[_Positive], Field(min_length=1)]
    copy_gb_per_s: _Positive
    rel_error: Annotated[float, Field(ge=0)]
    counters: Counters | None = None
    ncu_message: str = ""
    message: str = ""

    @model_validator(mode="after")
    def _has_samples_or_a_reason(self) -> Self:
        if bool(self.samples_us) == bool(self.message) or bool(self.kernels) != bool(self.samples_us):
            raise ValueError("samples_us: samples of kernels, or a message, and not both")
        if (self.counters is None) != bool(self.ncu_message):
            raise ValueError("counters: ncu's counters, or a message, and not both")
        if not max(self.products + self.functions, self.products + self.reduced) <= self.flops:
            raise ValueError("flops: products, functions and those of reductions are among them")
        return self

    @property
    def time_us(self) -> float | None:
        """The median; None where there is no sample."""
        return statistics.median(self.samples_us) if self.samples_us else None

    @property
    def ceiling_tflops(self) -> float:
        """cuBLAS's median."""
        return CEILING_FLOPS / statistics.median(self.ceiling_ms) / 1e9

    @property
    def at_ceilings_us(self) -> tuple[float, float]:
        """The least time by each ceiling: its products on the tensor cores, its bytes at the speed of a copy."""
        return self.products / self.ceiling_tflops / 1e6, self.bytes / self.copy_gb_per_s / 1e3

    @property
    def share(self) -> float | None:
        """Of the ceiling: that least time over the measured one, by the ceiling that is nearer."""
        return max(self.at_ceilings_us) / self.time_us if self.time_us else None


ROWS: TypeAdapter[InductorRow] = TypeAdapter(InductorRow)
Draw = Callable[[Sequence[InductorRow], str, Path], list[Path]]


def run(
    console: Console,
    results: Path,
    draw: Draw,
    *,
    out: Path,
    trace: str | None,
    ncu_path: Path | None,
    require_gpu: bool,
    model: str | None = None,
) -> None:
    """Measure, or tell what is written without a GPU and what is recorded; sources go to `out`.

    `model`: `file.py:function` of a user's own in place of the two blocks; its records go to `out`, too. `trace`: a
    pattern of names; the kernels of Triton's that fit go through `kperf trace`. Raises `UsageError` where that, or
    `require_gpu`, wants a GPU, for a pattern that fits none, for a model that is none, and for the blocks without a
    checkout.
    """
    if model is None:
        require_checkout("what `kperf inductor` compiles, examples/,")
    else:
        own_function(model)
    models, results = (BLOCKS, results) if model is None else ((model,), out)
    reason = device.why_static()
    if reason and (require_gpu or trace):
        raise UsageError(reason)
    make_output(out)
    if reason:
        for name in models:
            program = written_without_gpu(name)
            keep(program, out / folder_name(name))
            console.print(listing(name, program))
            console.print(f"sources: {out / folder_name(name)}")
        if not any(results.glob("*/inductor.jsonl")):
            console.print(
                f"no time is recorded of `make inductor` in {results} yet: that command records it on a Hopper GPU, "
                f"and here {reason}"
            )
            return
    measure_here = partial(measure, models=models, results=results, out=out, ncu_path=ncu_path)
    shown = measured_or_recorded(console, results, "inductor", ROWS, measure_here, require_gpu=require_gpu)
    for name in dict.fromkeys(row.block for row in shown.rows):
        console.print(table([row for row in shown.rows if row.block == name], shown.stamp))
    for line in [*sentences(shown.rows), *trace_commands(shown.rows)]:
        console.print(line)
    announce(console, draw(shown.rows, shown.stamp, shown.folder / "inductor"), shown.stamp)
    if trace:
        _trace(shown.rows, trace, out)


def written_without_gpu(name: str) -> Program:
    """What Inductor writes of a block for an H200."""
    from kperf.compat.inductor_fake import program_of  # Inductor takes seconds to import

    block, inputs = made(name, "meta")
    try:
        return program_of(block, inputs, offline.properties(), offline.Driver())
    except MeasurementError:
        raise
    except Exception as error:
        if not is_own(name):
            raise
        raise UsageError(f"the model of {name} cannot be compiled for its inputs: {kind_and_line(error)}") from None


def keep(program: Program, folder: Path) -> None:
    """The program, and each kernel of Triton's in a file of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "program.py", program.code)
    for name, source in program.sources.items():
        write_atomically(folder / f"{name}.py", source)


def measure(
    common: Common, *, results: Path, out: Path, ncu_path: Path | None, models: Sequence[str] = BLOCKS
) -> Iterator[InductorRow]:
    """A row for each launch of each model, measured by a process a model; Proton's tree is kept beside the records."""
    for name in models:
        with tempfile.TemporaryDirectory(prefix="kperf-inductor-") as folder:
            under_proton([sys.executable, "-m", _SESSION, name, folder], _LIMIT_S)
            session = foreign.read_json(Path(folder, "session.json"), foreign.Json, "the process under Proton")
            program = foreign.read_json(Path(folder, "program.json"), PROGRAM, "the process under Proton")
            profile = Path(folder, "rounds.hatchet").read_bytes()
        kept = folder_of(results) / "inductor"
        kept.mkdir(parents=True, exist_ok=True)
        tree = kept / f"{folder_name(name)}.hatchet"
        write_atomically(tree, compact(profile))
        keep(program, out / folder_name(name))
        rounds = [read_tree(tree).child(round_of(number)) for number in range(ROUNDS)]
        frames = [_seen(rounds, number) for number in range(len(program.kernels))]
        counters, ncu_message = _by_ncu(name, [launches for _, launches, _ in frames], ncu_path)
        for number, kernel in enumerate(program.kernels):
            kernels, launches, samples = frames[number]
            yield InductorRow(
                **common,
                **session,
                block=name,
                sizes=sizes_of(name),
                number=number,
                name=kernel.name,
                kind=kernel.kind,
                operands=kernel.operands,
                **vars(kernel.counts),
                kernels=kernels,
                launches=launches,
                samples_us=samples,
                message="" if samples else "Proton saw no kernel of it",
                counters=counters[number] if counters else None,
                ncu_message=ncu_message,
            )


def _seen(rounds: Sequence[Tree], number: int) -> tuple[list[str], int, list[float]]:
    """Of a launch: the kernels that ran, how many in a round, microseconds a round; nothing if one round lacks it."""
    scope = scope_of(number)
    if any(scope not in {frame.name for frame in tree.children} for tree in rounds):
        return [], 0, []
    frames = [tree.child(scope) for tree in rounds]
    samples = [frame.total(TIME) / 1e3 for frame in frames]
    if not all(samples):
        return [], 0, []
    kernels = list(dict.fromkeys(kernel.name for kernel in frames[0].kernels()))
    return kernels, int(frames[0].total("count")), samples


def _by_ncu(name: str, launches: Sequence[int], given: Path | None) -> tuple[list[Counters], str]:
    """The counters of each launch, whose kernels come in the order of the program; or why there are none."""
    try:
        command = [sys.executable, "-m", _SESSION, name, "ncu"]
        counted = ncu.metrics(ncu.run(ncu.find(given), ["--metrics", ",".join(METRICS)], command, _LIMIT_S), METRICS)
        if len(counted) != sum(launches):
            raise UsageError(f"ncu saw {len(counted)} kernels where Proton saw {sum(launches)}")
        rows = iter(counted)
        return [_counters([next(rows) for _ in range(count)]) for count in launches], ""
    except UsageError as error:
        return [], str(error)


def _counters(kernels: Sequence[dict[str, float]]) -> Counters:
    return Counters(
        flops=sum(row[metric] * flops for row in kernels for metric, flops in _FP32.items()),
        products=sum(row[_PRODUCTS] for row in kernels),
        bytes=sum(row[_READ] + max(row[_WRITTEN_DRAM], row[_WRITTEN_L2] * _SECTOR_BYTES) for row in kernels),
    )


def listing(name: str, program: Program) -> Table:
    """What each kernel of a block has to do."""
    title = f"{_titled_by(name, sizes_of(name))}: what Inductor writes for an H200"
    made = titled_table(title, "kernel", "launches", "GFLOP", "of products", "MB", "FLOP a byte", left={"kernel"})
    same = Counter((_label(kernel.name, kernel.operands), kernel.counts) for kernel in program.kernels)
    for (label, counts), times in same.items():
        intensity = f"{counts.flops / counts.bytes:.1f}" if counts.bytes else "-"
        made.add_row(
            label, str(times), f"{counts.flops / 1e9:.2f}", f"{counts.products / 1e9:.2f}", f"{counts.bytes / 1e6:.2f}",
            intensity,
        )  # fmt: skip
    return made


def table(rows: Sequence[InductorRow], stamp: str) -> Table:
    """Of one block: a row for the launches of a kernel that have the same to do, in the order of the program."""
    whole = sum(row.time_us or 0.0 for row in rows)
    first = rows[0]
    title = f"{_titled_by(first.block, first.sizes)}: {whole / 1e3:.3f} ms of kernels; {stamp}"
    headers = ("us", "of the block", "GFLOP", "MB", "TFLOP/s", "GB/s", "of the ceiling", "which")
    made = titled_table(title, "kernel", "launches", *headers, left={"kernel", "which"})
    for group in grouped(rows):
        row, time = group[0], sum(launch.time_us or 0.0 for launch in group) / len(group)
        cells = ["-"] * 7 + [row.message]
        if time:
            products, memory = row.at_ceilings_us
            cells = [
                f"{time:.1f}", f"{len(group) * time / whole:.1%}", f"{row.flops / 1e9:.2f}", f"{row.bytes / 1e6:.2f}",
                f"{row.flops / time / 1e6:.1f}", f"{row.bytes / time / 1e3:.0f}", f"{max(products, memory) / time:.1%}",
                "tensor cores" if products > memory else "memory",
            ]  # fmt: skip
        made.add_row(_label(row.name, row.operands), str(len(group)), *cells)
    return made


def grouped(rows: Sequence[InductorRow]) -> list[list[InductorRow]]:
    """The launches of one kernel that have the same to do."""
    groups: dict[Any, list[InductorRow]] = {}
    for row in rows:
        groups.setdefault((row.block, row.name, row.operands, row.flops, row.bytes), []).append(row)
    return list(groups.values())


def _titled_by(block: str, sizes: dict[str, int]) -> str:
    return f"{block} block {', '.join(f'{name} {size}' for name, size in sizes.items())}" if sizes else block


def _label(name: str, operands: str) -> str:
    """A name in lines that a table has room for, and what a library's function is called with."""
    lines = [""]
    for part in name.replace("_", "_\0").split("\0"):
        if len(lines[-1]) + len(part) > _LABEL:
            lines.append("")
        lines[-1] += part
    return "\n".join([*lines, *([operands] if operands else [])])


_LABEL = 44
"""Letters of a line."""


_KINDS = {"triton": "kernels that Inductor wrote", "extern": "kernels of libraries"}


def sentences(rows: Sequence[InductorRow]) -> list[str]:
    """Where a block's time goes, and how far what is derived lies from ncu's counters."""
    lines = []
    for block in dict.fromkeys(row.block for row in rows):
        of_block = [row for row in rows if row.block == block]
        whole = sum(row.time_us or 0.0 for row in of_block)
        for kind, words in _KINDS.items():
            time = sum(row.time_us or 0.0 for row in of_block if row.kind == kind)
            least = sum(max(row.at_ceilings_us) for row in of_block if row.kind == kind and row.time_us)
            if time:
                lines.append(
                    f"{block}: {time / whole:.1%} of its time is in {words}, at {least / time:.1%} of their ceilings."
                )
        lines += _held_against_ncu(block, of_block)
    return lines


def deviations(row: InductorRow) -> dict[str, float]:
    """What is derived over what ncu counted, less 1: of bytes, of products, and of other FLOPs.

    Those of a kernel with functions, or with a reduction, are only a floor: the machine takes more instructions for
    them, and 0 says that they are below it. So are the products of fewer than eight rows or columns: the tensor
    cores compute eight. Nothing is compared where next to nothing moves.
    """
    if row.counters is None or row.bytes < _LEAST_BYTES:
        return {}
    arithmetic = row.flops - row.products
    pairs = {
        "bytes": (row.bytes, row.counters.bytes),
        "products": (row.products, row.counters.products),
        "FLOPs": (arithmetic, row.counters.flops),
    }
    off = {counter: derived / counted - 1 for counter, (derived, counted) in pairs.items() if derived and counted}
    if row.functions + row.reduced > _FEW * arithmetic and "FLOPs" in off:
        off["FLOPs"] = max(off["FLOPs"], 0.0)
    matrices = [shape.split("x") for shape in row.operands.split(", ") if shape.count("x") == 1]
    if "products" in off and any(int(size) < _LEAST_TILE for size in chain.from_iterable(matrices)):
        off["products"] = max(off["products"], 0.0)
    return off


_FEW = 0.01
"""Functions and reductions among the FLOPs of a kernel beside which its arithmetic is all that counts."""
_LEAST_TILE = 8
"""Rows or columns of a product that one instruction of the tensor cores computes at least."""
_LEAST_BYTES = 1_000_000
"""Beside it what a launch itself moves is nothing."""


def summary(folder: Path) -> Summary:
    """For the table of claims: how far bytes, products and FLOPs of any kernel that Inductor wrote lie from ncu's."""
    store = RecordStore(folder, "inductor", ROWS)
    rows = newest(store.points())
    largest: dict[str, float] = {}
    for row in rows:
        for counter, off in deviations(row).items():
            if row.kind == "triton" or counter == "products":
                largest[counter] = max(largest.get(counter, 0.0), abs(off))
    return Summary(largest, Provenance.of_records(store, rows))


def _held_against_ncu(block: str, rows: Sequence[InductorRow]) -> Iterator[str]:
    if reason := next((row.ncu_message for row in rows if row.ncu_message), ""):
        yield f"{block}: not held against ncu: {reason}"
        return
    for kind, words in _KINDS.items():
        for counter in ("bytes", "products", "FLOPs"):
            of_kind = [row for row in rows if row.kind == kind]
            errors = {
                f"{row.name} {row.operands}".strip(): off[counter]
                for row in of_kind
                if counter in (off := deviations(row))
            }
            beyond = [f"{name} {off:+.1%}" for name, off in errors.items() if abs(off) > GOAL]
            line = (
                f"{block}: {counter} of {len(errors) - len(beyond)} of {len(errors)} {words} within {GOAL:.0%} of ncu's"
            )
            if errors:
                yield f"{line}, not of {', '.join(beyond)}." if beyond else f"{line}."


def trace_commands(rows: Sequence[InductorRow]) -> list[str]:
    """How to look inside each kernel that Inductor wrote."""
    names = dict.fromkeys((row.block, row.name) for row in rows if row.kind == "triton")
    return [f"inside: kperf {shlex.join(_trace_words(block, name))}" for block, name in names]


def _trace_words(block: str, pattern: str, *options: str) -> list[str]:
    of = ["-m", _SESSION, block, "run"] if is_own(block) else [str(_from_here(SCRIPT)), "--block", block]
    return ["trace", "--kernel", pattern, *options, *of]


def _from_here(file: Path) -> Path:
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file


def _trace(rows: Sequence[InductorRow], pattern: str, out: Path) -> None:
    fitting = [row for row in rows if row.kind == "triton" and fnmatchcase(row.name, pattern)]
    if not fitting:
        raise UsageError(f"no kernel that Inductor wrote fits {pattern}: give one of the names above, with * and ?")
    for block in dict.fromkeys(row.block for row in fitting):
        words = _trace_words(block, pattern, "--out", str(out / folder_name(block) / "trace"))
        command = [sys.executable, "-m", "kperf", *words]
        try:
            failed = child.run(command, _LIMIT_S, output=None, errors=None, ending=signal.SIGINT).returncode != 0
        except subprocess.TimeoutExpired:
            failed = True
        if failed:
            raise MeasurementError(f"kperf {shlex.join(words)} failed, or took more than {_LIMIT_S} s")
