"""Accesses of a few bytes because of a mask: it may end anywhere, or it is data."""

from collections.abc import Iterator
from functools import partial

import numpy as np

from kperf.diagnose.analyses.pieces import quotients_at_end
from kperf.diagnose.analyses.vectors import OF_MASKS, Vector, findings
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import compared_with
from kperf.diagnose.rule import Rule
from kperf.trace.analyze.finding import Finding

_MULTIPLE = 16
"""Of an argument that Triton specialises a kernel for."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of aligned rows under a mask whose limit is not known to be a multiple of 16, or that was loaded."""
    of_quotient = partial(_of_quotient, kernel)
    return findings(kernel, RULE.id, {**OF_MASKS, "divided mask": of_quotient})


def _of_quotient(kernel: Kernel, vector: Vector) -> tuple[str, str]:
    """As of a group's part of a row: its length is no argument, of which Triton would see that it is a multiple."""
    comparison, _ = quotients_at_end(kernel, vector.access)[0]
    written, launched = compared_with(comparison), kernel.launched_values.operand(comparison, 1)
    name = written or "the quotient"
    odd = launched is not None and launched.arguments <= kernel.numbers.keys() and np.any(launched.numbers % _MULTIPLE)
    return (
        f"its mask ends at {f'{written}, ' if written else ''}a quotient of {', '.join(vector.unknown)}, which the "
        f"compiler does not know to be a multiple of {_MULTIPLE}",
        f"{f'pad {name} to a multiple of {_MULTIPLE}, and ' if odd else ''}pass {name} as an argument (Triton then "
        f"specialises the kernel for multiples of {_MULTIPLE}), or leave out the mask if the tile divides {name}",
    )


RULE = Rule("mask-stops-vectors", "A mask that stops vectorisation", check, needs="machine code")
