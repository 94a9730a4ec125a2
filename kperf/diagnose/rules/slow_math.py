"""Functions that take many instructions where a few would do."""

import math
import re
from collections.abc import Iterator

from kperf.diagnose.analyses.occupancy import arithmetic_cycles, bytes_or_mma_cycles, mma_cycles
from kperf.diagnose.analyses.tables import table_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LIBRARY_MATH, MMAS, loops_around, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MMA_SHARE
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_SMALL = 256
"""Elements: of each row of a tile one number may take long."""
_LONG = 12
"""Instructions an element: a function that takes fewer, as rounding, is not what a kernel waits for."""
_EXP_BESIDE_EXP2 = 3
"""Instructions an element that tl.exp takes on NVIDIA GPUs and tl.exp2 does not: it keeps subnormal numbers (a
comparison and two multiplications), as the machine code of both shows."""
_LEAST_OF_EXP = 0.2
"""Of the time for a loop's bytes: what these instructions take has to be more, or the bytes hide them."""
_PRODUCTS = (2.0, 3.0, 4.0)
"""Exponents of which a product is the shortest way to write a power."""
_INSTEAD = {
    "pow": "write tl.exp2(y * tl.log2(x)) if x is positive, or a product such as x * x if the exponent is an integer",
    "tanh": "write 2 * tl.sigmoid(2 * x) - 1",
    "exp": "use tl.exp or tl.exp2, which are one MUFU instruction",
    "log": "use tl.log or tl.log2, which are one MUFU instruction",
    "div": "multiply by the reciprocal of the divisor, computed once",
    "sqrt": "use tl.sqrt, which is approximate",
    "sin": "load it from a table that is computed once",
    "cos": "load it from a table that is computed once",
    "erf": "use the tanh form of GELU, if its error of 1e-3 is allowed",
}
_ON_NVIDIA = {
    "log": "use libdevice.fast_logf or fast_log2f, which are one MUFU instruction and a multiplication",
    "sin": "load it from a table that is computed once, or use libdevice.fast_sinf for arguments between -pi and pi",
    "cos": "load it from a table that is computed once, or use libdevice.fast_cosf for arguments between -pi and pi",
}
"""In place of those above: its tl.log and tl.sin are library functions too."""
_OF_ANY = "use Triton's own function (tl.*), or a polynomial that is accurate enough"
_NAME = re.compile(rf"f?({'|'.join(_INSTEAD)})(?:i|pi|2|10)?f?(?:_r[dnuz])?")
"""Of one of these for float32: powf, powi, exp10f, sinpif, fdiv_rn. No asinf, sinhf, expm1f or erfinvf."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of calls into libdevice and precise division and roots; of exp beside products, which exp2 does with less.

    Not of those that a table can hold, which `table-recomputed` names.
    """
    instead = _INSTEAD | (_ON_NVIDIA if kernel.arch.backend == "cuda" else {})
    largest = max((access.tensor.size for access in kernel.accesses), default=_SMALL)
    table = table_of(kernel)
    tabled = {op.line for op in table.functions} if table is not None else set()
    for op in kernel.operations:
        called = _called(op) if op.line not in tabled else None
        types = tensor_types(op.rest)
        if called is None or not types or types[-1].size < min(_SMALL, largest) or types[-1].element == "f64":
            continue
        if called == "exp":
            yield from _exp(kernel, op, types[-1].size)
            continue
        named = _NAME.fullmatch(called)
        if named is None and _instructions(kernel, op, types[-1].size) < _LONG:
            continue
        hidden = _is_hidden(kernel, op, types[-1].size)
        yield kernel.finding(
            RULE.id,
            op,
            "low" if hidden else "medium",
            f"{called} of {types[-1].size} elements is a library function of tens of instructions, where a "
            "hardware function takes one",
            _power(kernel, op) or (instead[named[1]] if named else _OF_ANY),
            {"function": called, "elements": types[-1].size, "in_loop": int(bool(loops_around(op)))},
            confidence="medium",
            estimate=(1.05, 1.0, 1.3) if hidden else (1.3, 1.0, 3.0),
        )


def _exp(kernel: Kernel, op: Operation, elements: int) -> Iterator[Finding]:
    """Where exp2 would save what MMAs wait for, or a good part of a loop's time."""
    loops = loops_around(op)
    if not loops:
        return
    if any(True for _ in kernel.named(*MMAS)):
        yield kernel.finding(
            RULE.id,
            op,
            "low",
            "tl.exp first multiplies each element by log2(e), and the MMAs of the loop wait for this",
            "multiply the scale of the scores by log2(e) = 1.44269504 once, before the loop, and use tl.exp2",
            {"elements": elements},
            confidence="medium",
            estimate=_gain_beside_mmas(kernel, loops[0], elements),
        )
        return
    others = bytes_or_mma_cycles(kernel, own(loops[0]))
    share = _EXP_BESIDE_EXP2 * elements / kernel.arch.fp32_per_cycle / others if others else 0.0
    if kernel.arch.backend == "cuda" and share >= _LEAST_OF_EXP:
        yield kernel.finding(
            RULE.id,
            op,
            "low",
            "tl.exp of an element takes five instructions, because it keeps subnormal numbers, and tl.exp2 takes two",
            "write tl.exp2(x * 1.44269504), and fold the factor into an earlier multiplication where there is one",
            {"elements": elements, "share": share},
            confidence="medium",
            estimate=(1 + min(share, 0.5), 1.0, 1 + min(2 * share, 1.0)),
        )


def _gain_beside_mmas(kernel: Kernel, loop: Operation, elements: int) -> tuple[float, float, float]:
    """Of a loop whose MMAs wait for exp, and exp for MMAs: by an SM's issue slots, and at most twice what they save.

    1.0 and 1.6 x were measured of two such loops (H200).
    """
    if kernel.arch.backend != "cuda":
        return 1.03, 1.0, 1.1
    done = list(own(loop))
    cycles = mma_cycles(kernel, done) / MMA_SHARE + arithmetic_cycles(kernel, done)
    saved = (_EXP_BESIDE_EXP2 + 1) * elements / kernel.arch.fp32_per_cycle  # and the multiplication by log2(e)
    gain = cycles / max(cycles - saved, cycles / 2)
    return gain, 1.0, max(2 * gain - 1, 1.1)


def _instructions(kernel: Kernel, op: Operation, elements: int) -> float:
    """Of the machine code of an operation's line, for each element of a thread; infinity without machine code."""
    found = len(kernel.instructions_of(op))
    return found / max(elements / kernel.threads, 1) if found else math.inf


def _is_hidden(kernel: Kernel, op: Operation, elements: int) -> bool:
    """Whether a CTA's bytes or MMAs around a function take longer than its instructions."""
    loops = loops_around(op)
    others = bytes_or_mma_cycles(kernel, own(loops[0]) if loops else kernel.operations)
    return _instructions(kernel, op, elements) * elements / kernel.arch.fp32_per_cycle < others


def _power(kernel: Kernel, op: Operation) -> str:
    """What to write for a power of a constant exponent; empty for anything else."""
    exponent = kernel.values.maker(op, 1) if "pow" in op.rest else None
    match = re.match(r"\s*dense<([-+.\deE]+)>", exponent.rest) if exponent is not None else None
    number = float(match[1]) if match and exponent is not None and exponent.name == "arith.constant" else 0.0
    if number == 0.5:
        return "write tl.sqrt(x)"
    return f"write {' * '.join(['x'] * int(number))}" if number in _PRODUCTS else ""


def _called(op: Operation) -> str | None:
    if op.name == "tt.extern_elementwise":
        symbol = re.search(r'symbol = "(?:__nv_|__ocml_)?(\w+?)(?:_f\d+)?"', op.rest)
        name = symbol[1] if symbol else "a library function"
        return None if re.match(r"(fast_|rsqrt|floor|ceil|trunc|rint|fabs|fma|abs|f?min|f?max)", name) else name
    if op.name in LIBRARY_MATH:
        return op.name.removeprefix("math.")
    if op.name == "tt.precise_divf":
        return "div_rn"
    if op.name == "tt.precise_sqrt":
        return "sqrt_rn"
    return "exp" if op.name == "math.exp" else None


RULE = Rule("slow-math", "Library functions of many instructions", check)
