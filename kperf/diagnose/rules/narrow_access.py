"""Accesses of a few bytes because the compiler does not know that rows are aligned, or that a stride is 1."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from kperf.console import agreeing
from kperf.diagnose.analyses.pieces import Cause, offset_of_rows
from kperf.diagnose.analyses.vectors import FROM_MEMORY, Vector, findings, no_multiple, passed_in_parts, wrapped
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import VECTOR_BYTES
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of contiguous rows whose beginning may lie anywhere, and of launches whose rows alone are contiguous."""
    reasons = _REASONS | {
        "alignment": partial(_of_alignment, kernel),
        "remainder": lambda vector: wrapped(kernel, vector.unknown),
    }
    return findings(kernel, RULE.id, reasons)


def _of_alignment(kernel: Kernel, vector: Vector) -> tuple[str, str]:
    return (
        f"its address depends on {no_multiple(vector.unknown)}, so that rows may begin anywhere",
        "; ".join(filter(None, [_of_tensors(kernel, vector.unknown), _of_numbers(kernel, vector.unknown)])),
    )


def _of_tensors(kernel: Kernel, names: Sequence[str]) -> str:
    tensors = [name for name in names if kernel.parameters[name].is_pointer]
    return f"let {' and '.join(tensors)} begin at a multiple of 16 bytes" if tensors else ""


def _of_numbers(kernel: Kernel, names: Sequence[str]) -> str:
    """A stride, or another number, such as one of rows. As a constant an even number leaves larger pieces too."""
    numbers = [name for name in names if not kernel.parameters[name].is_pointer]
    multiple = agreeing(len(numbers), "a multiple", "multiples")
    even = all(kernel.numbers.get(name, 0) % 2 == 0 for name in numbers)
    return (
        f"round {' and '.join(numbers)} up to {multiple} of 16 (of a stride: pad the rows)"
        + (f", or pass {'it' if len(numbers) == 1 else 'them'} as tl.constexpr" if even else "")
        if numbers
        else ""
    )


def _of_an_offset(vector: Vector) -> tuple[str, str]:
    return (
        f"rows begin up to {offset_of_rows(vector.access)} bytes after a multiple of {VECTOR_BYTES} bytes",
        f"begin rows at multiples of {VECTOR_BYTES} bytes: pad what stands before them, or move it to a tensor of its "
        "own",
    )


def _of_a_program(vector: Vector) -> tuple[str, str]:
    """As of a dimension of length 1 behind the one that is reduced: `n * K + tl.program_id(1)`, where K is 1."""
    axes = " and ".join(f"tl.program_id({axis})" for axis in vector.unknown)
    return (
        f"the compiler does not know that {axes} {agreeing(len(vector.unknown), 'is', 'are')} 0 at this launch, whose "
        "grid has one CTA along that axis, so that rows may begin anywhere",
        f"leave {axes} out of the address at such a launch, under an `if` of a tl.constexpr or of a length that is 1 "
        "then (`if K != 1:`), which Triton specialises the kernel for",
    )


def _of_a_quotient(vector: Vector) -> tuple[str, str]:
    """As where a CTA's share of a row is computed: `tl.cdiv(N, SPLIT)`."""
    return (
        f"rows begin at a quotient of {', '.join(vector.unknown)}, which the compiler does not know to be a multiple "
        "of 16",
        "pass the quotient as an argument, so that the JIT specialises the kernel for multiples of 16; or, where it is "
        "one, write tl.multiple_of(n // d, 16), with // in place of tl.cdiv, which loses it",
    )


def _of_a_stride(vector: Vector) -> tuple[str, str]:
    """An annotated parameter, or one of do_not_specialize, is compiled for any number."""
    names, are = " and ".join(vector.unknown), "is" if len(vector.unknown) == 1 else "are"
    return (
        f"{names} {are} 1 at this launch, and the kernel is compiled for any number",
        f"declare {names} as tl.constexpr; or remove the annotation (such as `: int`) and do_not_specialize, so that "
        "Triton compiles the kernel for 1",
    )


def _of_memory(_: Vector) -> tuple[str, str]:
    return FROM_MEMORY


def _of_a_descriptor(vector: Vector) -> tuple[str, str]:
    return passed_in_parts(vector.unknown[0])


def _of_a_layout(_: Vector) -> tuple[str, str]:
    return (
        "tl.join takes this tile, and in the layout that tl.join gives it a thread has few elements of a row",
        "let TMA load the tile, whose copies have no layout of threads: desc = tl.make_tensor_descriptor(...), and "
        "desc.load (transposed with .T, if another dimension than the last one is contiguous)",
    )


_REASONS: dict[Cause, Callable[[Vector], tuple[str, str]]] = {
    "memory": _of_memory,
    "offset": _of_an_offset,
    "program": _of_a_program,
    "quotient": _of_a_quotient,
    "stride": _of_a_stride,
    "descriptor": _of_a_descriptor,
    "layout": _of_a_layout,
}

RULE = Rule("narrow-access", "Narrow accesses to contiguous rows", check, needs="machine code", by_options=True)
