"""Arguments that decide what lies side by side: strides that are 1, sizes that are multiples of 16."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel

_NO_STRIDE = 0
"""With it all elements are one, and none lie side by side."""


def unless_one(kernel: Kernel, access: Access) -> str:
    """The strides of which one, if it is 1, lets elements lie side by side, in words: `am or ak`.

    Of a kernel without a launch: of a launch the JIT knows which arguments are 1. Empty where there is none, or
    where the only one is a multiple of 16. Of the two strides of a matrix one may be 1, whatever was said of both.
    """
    if kernel.grid is not None or access.has_neighbours:
        return ""
    names = [name for name in _numbers_of(kernel, access) if _if(kernel, access, name, 1).has_neighbours]
    return "" if len(names) == 1 and kernel.parameters[names[0]].divisible else " or ".join(names)


def unless_multiple(kernel: Kernel, names: Sequence[str]) -> str:
    """Numbers of which nothing says that they are no multiples of 16, in words; of a kernel without a launch."""
    may_be = [name for name in names if re.fullmatch(r"i\d+", kernel.parameters[name].type)]
    return " and ".join(may_be) if kernel.grid is None and len(may_be) == len(names) else ""


def next_cta(kernel: Kernel, access: Access) -> tuple[str, int]:
    """The axis of the grid along which the next CTA's addresses are closest, and how many bytes they lie apart.

    An empty name and 0 where no CTA has others, or where they are not known.
    """
    found = []
    for axis in "xyz" if access.value.program and not access.value.loaded else "":
        moved = replace(kernel, next_along=axis).reread(access).value.numbers - access.value.numbers
        if np.all(moved == moved.flat[0]) and moved.flat[0]:
            found.append((abs(int(moved.flat[0])), axis))
    apart, axis = min(found, default=(0, ""))
    return axis, apart


def strides_of_one(kernel: Kernel, access: Access) -> tuple[str, ...]:
    """The arguments that are 1 at the launch and the stride by which elements lie side by side.

    The compiler does not know it: else they were no arguments. Another argument of the address may be 1 too, as a
    number of heads.
    """
    if not access.has_neighbours:
        return ()
    ones = [name for name in _numbers_of(kernel, access) if kernel.known.get(name) == 1 and name not in kernel.assumed]
    return tuple(name for name in ones if not _if(kernel, access, name, _NO_STRIDE).has_neighbours)


def hidden_arguments(kernel: Kernel) -> dict[str, str]:
    """Arguments that are 1 or multiples of 16 at the launch, and what keeps this from the compiler."""
    found = {}
    for name, one in kernel.unspecialised.items():
        by = one.one if kernel.numbers.get(name) == 1 else one.multiple if name in kernel.multiples else ""
        if by and name in kernel.parameters:
            found[name] = by
    return found


def descriptor_in_parts(kernel: Kernel, access: Access) -> str:
    """The descriptor, made on the host, whose parts the kernel gets and computes the address from; else empty."""
    return next((base for stride, base in kernel.inner_strides.items() if stride in access.value.arguments), "")


def _numbers_of(kernel: Kernel, access: Access) -> list[str]:
    integers = (name for name, one in kernel.parameters.items() if re.fullmatch(r"i\d+", one.type))
    return [name for name in integers if name in access.value.arguments]


def _if(kernel: Kernel, access: Access, name: str, number: int) -> Access:
    """The same access if an argument were another number, 0 or 1."""
    return replace(kernel, numbers={**kernel.numbers, name: number}).reread(access)
