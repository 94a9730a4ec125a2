"""The numbers of a kernel's values in a CTA of its launch, and CTAs that stand for all of them."""

import math

import numpy as np

from kperf.diagnose.reading.kernel import Kernel
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value, Values

Cta = tuple[int, int, int]
"""Program ids along x, y and z."""


class CtaValues(Values):
    """As the kernel's `launched_values`, in one of the CTAs of the launch."""

    def __init__(self, kernel: Kernel, cta: Cta) -> None:
        """Of any CTA of the kernel's grid."""
        self.__dict__ |= vars(kernel.launched_values)
        self._found = {}
        self._programs = dict(zip("xyz", cta, strict=True))
        self._grid = dict(zip("xyz", kernel.grid or (), strict=True))

    def _of_operation(self, op: Operation) -> Value | None:
        if op.name == "tt.get_num_programs":
            return Value(np.array(self._grid[op.rest.split()[0]], dtype=np.int64))
        return super()._of_operation(op)


def some_ctas(kernel: Kernel, most: int) -> list[Cta]:
    """All CTAs of a launch; of more than `most` so many, by chance, and the same ones each time."""
    assert kernel.grid is not None
    count = math.prod(kernel.grid)
    drawn = np.random.default_rng(0).choice(count, most, replace=False) if count > most else range(count)
    return [cta_of(kernel, int(one)) for one in drawn]


def cta_of(kernel: Kernel, number: int) -> Cta:
    """The CTA of a launch that starts as the n-th one."""
    x, y, _ = kernel.grid or (1, 1, 1)
    return number % x, number // x % y, number // (x * y)


def last_cta(kernel: Kernel) -> Cta:
    """The CTA of a launch whose program ids are the largest."""
    x, y, z = kernel.grid or (1, 1, 1)
    return x - 1, y - 1, z - 1
