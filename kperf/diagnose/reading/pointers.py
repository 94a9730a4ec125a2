"""The pointer arguments of an address, as messages name them."""

from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.ir.values import Value

MOST_NAMES = 3
"""Of pointers that a message lists."""


def name_of(value: Value, kernel: Kernel) -> str:
    """The pointer argument of an address, for messages; without one those on which it depends."""
    names = names_of(value, kernel)
    if len(names) > MOST_NAMES:
        return f"{names[0]} and {len(names) - 1} other pointers"
    return ", ".join(names) or "the pointer"


def names_of(value: Value, kernel: Kernel) -> list[str]:
    """The pointer arguments that `name_of` names; empty where none is known."""
    pointers = [name for name in sorted(value.arguments) if kernel.parameters[name].is_pointer]
    return [name for name in pointers if kernel.values.is_in(value, name)] or pointers


def tensor_of(access: Access, kernel: Kernel) -> str:
    """The pointer argument that a load or store goes to, for messages; an index that was loaded may lead anywhere."""
    names = kernel.tensors_of(access.operation) if access.value.loaded else frozenset()
    return ", ".join(sorted(names)) or name_of(access.value, kernel)
