"""What operations on float32 become in machine code: instructions of a thread for each element.

Counted in what Triton 3.6 compiles for sm_90a, of the way that a thread takes in most cases (a sine of a small angle, a
division without overflow). The special function unit (XU) does functions and roundings at a rate of its own, beside the
other instructions: Nsight Compute, Kernel Profiling Guide, "Metrics Decoder", XU.
"""

import re
from typing import NamedTuple


class Price(NamedTuple):
    """instructions: of an element, all of them. special: those of the special function unit."""

    instructions: int
    special: int = 0


ONE = Price(1)
"""Of any operation that has no other price."""

LIBRARY = Price(20)
"""Of a library function that has no price here: an order of magnitude."""

MATH = {
    "math.absf": ONE,  # LOP3
    "math.absi": ONE,  # IABS
    "math.fma": ONE,
    "math.floor": Price(1, 1),  # FRND
    "math.ceil": Price(1, 1),
    "math.exp2": Price(1, 1),  # MUFU
    "math.exp": Price(5, 1),
    "math.sqrt": Price(1, 1),
    "math.rsqrt": Price(1, 1),
    "math.log": Price(25),  # of FFMA, without MUFU
    "math.log2": Price(27),
    "math.sin": LIBRARY,
    "math.cos": LIBRARY,
    "math.erf": LIBRARY,
    "tt.precise_sqrt": Price(12, 1),
    "tt.precise_divf": Price(12, 1),
    "tt.clampf": ONE,  # FMNMX
}
"""All functions of `triton.language.math`, by operation."""

DIVISION = Price(9, 1)
DIVISION_OF_ROW = Price(3)
"""By a number for many elements of a thread: its reciprocal is computed once. A division by a constant is ONE."""

SHORT_INTEGER_DIVISION, LONG_INTEGER_DIVISION, CALLED_INTEGER_DIVISION = 14, 24, 90
"""Of integers by a number known at run time, of which the reciprocal is computed once: of 32 bits, of 64 bits where the
upper halves are 0, and of 64 bits else, which is a called routine."""
CONSTANT_INTEGER_DIVISION = {4: 5, 8: 20}
"""By a constant that is no power of two, by the bytes of a number: a multiplication, of which the upper half is kept,
and shifts."""

_FUNCTIONS = {
    **dict.fromkeys(("abs", "fabs", "fma", "fmin", "fmax", "min", "max", "copysign", "isnan"), ONE),
    **dict.fromkeys(("floor", "ceil", "trunc", "rint", "nearbyint"), Price(1, 1)),
    **dict.fromkeys(("sqrt", "rsqrt", "popc", "clz", "brev", "ffs"), Price(1, 1)),
    "exp": Price(8, 1),
    "exp2": Price(1, 1),
}
"""Of libdevice, by name without the letter of its type."""


def of_function(symbol: str) -> Price:
    """The price of a function of the library, by its symbol: `__nv_fabsf`; the fast ones use the XU."""
    name = re.sub(r"^__(nv|ocml)_|_f(16|32|64)$", "", symbol)
    known = _FUNCTIONS.get(name) or _FUNCTIONS.get(re.sub(r"(f|ll)$", "", name))
    return known or (Price(2, 1) if name.startswith("fast_") else LIBRARY)
