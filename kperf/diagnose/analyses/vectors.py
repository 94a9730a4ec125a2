"""How many bytes a thread asks for at once, how many it could, and what is in the way."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from kperf.compat.triton.sources import ANNOTATION
from kperf.console import agreeing
from kperf.diagnose.analyses.loops import UNPIPELINED, never_ahead, stages_of
from kperf.diagnose.analyses.pieces import (
    QUOTIENTS,
    Cause,
    in_the_way,
    mask_limits,
    of_layout,
    of_mask,
    offset_of_rows,
    possible_bytes,
    side_by_side,
    wrapped_by,
)
from kperf.diagnose.finding import EDITED
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import lines_of
from kperf.diagnose.reading.operations import LOADS, MMAS, STORES, loops_around, own
from kperf.diagnose.reading.strides import hidden_arguments, unless_multiple
from kperf.diagnose.thresholds import LEAST_AHEAD_BYTES, MEDIUM_GAIN, VECTOR_BYTES
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

FROM_MEMORY = (
    "its address is computed from numbers that the kernel loads, whose alignment the compiler does not know",
    "if they are multiples of 16, say so: pointer = tl.multiple_of(pointer, 16), and likewise for each loaded stride",
)
"""Why the compiler cuts an access into pieces, and what to do."""


_BY_TMA = (1.1, 1.0, 1.3)
"""As of `tma-unused`: a copy of 4 bytes takes more instructions, and waits no longer."""
_MOST_WIDER = 4.0
"""Of a kernel all of whose accesses become wider."""


def passed_in_parts(descriptor: str) -> tuple[str, str]:
    """As `FROM_MEMORY`, where a descriptor is made on the host for a target without TMA."""
    return (
        f"without TMA the kernel gets the descriptor {descriptor} as a pointer and numbers, and the compiler does not "
        "know that the last stride is 1",
        "make the descriptor in the kernel, with tl.make_tensor_descriptor and a last stride of 1",
    )


def no_multiple(names: tuple[str, ...]) -> str:
    """These arguments, and what the compiler does not know of them."""
    multiples = "a multiple" if len(names) == 1 else "multiples"
    return f"{', '.join(names)}, which the compiler does not know to be {multiples} of 16"


def wrapped(kernel: Kernel, divisors: tuple[str, ...]) -> tuple[str, str]:
    """As `FROM_MEMORY`, where indices are taken modulo these arguments.

    An index that is also divided by one is that of a row and a column in one: without the modulo it is no column.
    """
    names = ", ".join(divisors)
    return (
        f"its index is taken modulo {no_multiple(divisors)}, so that any two elements may lie apart",
        f"let a CTA's tile lie in one row of {names} elements: compute the row from tl.program_id, let tl.arange run "
        f"along the row, and mask the elements beyond {names}; or pad {names} to a multiple of 16"
        if _are_split(kernel, divisors)
        else f"leave out the modulo and mask the elements beyond {names} instead, or pad {names} to a multiple of 16",
    )


def _are_split(kernel: Kernel, divisors: tuple[str, ...]) -> bool:
    """Whether indices that lie side by side are divided by one of these arguments too."""
    for op in kernel.named(*QUOTIENTS):
        index, divisor = kernel.values.operand(op, 0), kernel.values.operand(op, 1)
        if index is not None and divisor is not None and side_by_side(index) and divisor.arguments & set(divisors):
            return True
    return False


@dataclass(frozen=True)
class Hidden:
    """Arguments that the launch gives as multiples of 16, or as 1, of which the source keeps it from the compiler.

    by: what keeps each argument's value from the compiler, by name, in the order of the function. A tensor begins at a
    multiple of 16 bytes, and has no number in the launch.
    """

    kernel: Kernel = field(repr=False)
    by: Mapping[str, str]

    @property
    def reason(self) -> tuple[str, str]:
        """As `FROM_MEMORY`. What to do names all such arguments of the kernel, so that one edit serves each access."""
        all_of_kernel = self._of_kernel
        rewrites = _and(all_of_kernel._rewrites())
        return (
            f"because of {_and(_distinct(self.by.values()))}, the compiler does not know that at this launch "
            + ", and that ".join(self._facts()),
            _and(all_of_kernel._removals()) + (f"; or {rewrites}" if rewrites else ""),
        )

    @property
    def evidence(self) -> dict[str, float | int | str]:
        """What the advice edits."""
        return {EDITED: ", ".join(self._of_kernel.by)}

    @cached_property
    def _of_kernel(self) -> "Hidden":
        """With those of all accesses of the kernel."""
        return hidden_of(self.kernel, self.kernel.accesses) or self

    def _facts(self) -> list[str]:
        """What is so at the launch."""
        ones, multiples, tensors = self._kinds()
        facts = []
        if multiples:
            at = ", ".join(_distinct(str(self.kernel.numbers[name]) for name in multiples))
            facts.append(f"{_are_multiples(multiples)} ({at})")
        if tensors:
            facts.append(f"{_and(tensors)} {agreeing(len(tensors), 'begins', 'begin')} at a multiple of 16 bytes")
        if ones:
            facts.append(f"{_and(ones)} {agreeing(len(ones), 'is', 'are')} 1")
        return facts

    def _removals(self) -> list[str]:
        """What lets Triton specialise the kernel."""
        removals = []
        for what in _distinct(self.by.values()):
            names = _and([name for name in self.by if self.by[name] == what])
            removals.append(f"remove {f'the annotation of {names}' if what == ANNOTATION else f'{names} from {what}'}")
        return removals

    def _rewrites(self) -> list[str]:
        """What to do instead. `tl.multiple_of` of an argument has no effect in Triton 3.6: operations keep the hint."""
        ones, multiples, tensors = self._kinds()
        if tensors:
            return []
        rewrites = []
        if multiples:
            likewise = f" (likewise for {_and(multiples[1:])})" if multiples[1:] else ""
            rewrites.append(
                f"where {_are_multiples(multiples)} at each launch, write {multiples[0]} // 16 * 16 in place of "
                f"{multiples[0]}{likewise}"
            )
        if ones:
            rewrites.append(f"declare {_and(ones)} as tl.constexpr")
        return rewrites

    def _kinds(self) -> tuple[list[str], list[str], list[str]]:
        """Numbers that are 1, other numbers, tensors."""
        known = self.kernel.numbers
        numbers = [name for name in self.by if name in known]
        ones = [name for name in numbers if known[name] == 1]
        return ones, [name for name in numbers if name not in ones], [name for name in self.by if name not in numbers]


@dataclass(frozen=True)
class Vector:
    """Of one access: bytes of an instruction in the machine code, bytes that were possible, what forbade them.

    unknown: arguments of which the compiler does not know that they are multiples of 16, or 1 where the cause is a
    stride, or the divisors where it is a remainder, or what is divided where it is a quotient, or the descriptor; none
    of a mask that is data, or of a base that is read from memory; of a mask that ends at a loaded number, the variables
    to which the source assigns what is loaded. hidden: arguments without which nothing forbids it,
    and of which the source keeps from the compiler what they are; else empty.
    """

    access: Access
    machine_bytes: int
    possible_bytes: int
    cause: Cause
    unknown: tuple[str, ...]
    hidden: frozenset[str]


def _of_a_limit(vector: Vector) -> tuple[str, str]:
    return (
        f"its mask ends at {no_multiple(vector.unknown)}",
        f"pass a multiple of 16 as {' and '.join(vector.unknown)} (Triton then specialises the kernel for it), or "
        "leave out the mask if the tile divides the size",
    )


def _of_a_loaded_limit(vector: Vector) -> tuple[str, str]:
    name, *others = vector.unknown
    numbers = _and(vector.unknown)
    likewise = f", and likewise for {_and(others)}" if others else ""
    return (
        f"its mask ends at a number that depends on {numbers}, which the kernel loads, so that the compiler does not "
        "know it to be a multiple of 16",
        f"if {_are_multiples(vector.unknown)} in each launch, say so: {name} = tl.multiple_of({name}, 16){likewise}; "
        f"else {_of_a_loaded_mask(vector)[1]}",
    )


def _of_a_loaded_mask(vector: Vector) -> tuple[str, str]:
    why = "its mask is computed from loaded numbers, so that it may leave out any element"
    if vector.access.operation.name in STORES:
        return why, (
            "store all elements (where the mask is false, the old value: load it, and choose with tl.where), if no "
            "other CTA writes to them"
        )
    return why, "load with the mask of the tensor's bounds alone, and then choose with tl.where(mask, x, other)"


OF_MASKS: Mapping[Cause, Callable[[Vector], tuple[str, str]]] = {
    "mask": _of_a_limit,
    "loaded limit": _of_a_loaded_limit,
    "loaded mask": _of_a_loaded_mask,
}
"""By cause, as `FROM_MEMORY`."""


def split_by_mask(kernel: Kernel, access: Access) -> tuple[str, str] | None:
    """As `FROM_MEMORY`, of a mask that alone makes a thread load single elements of aligned rows; None of others."""
    if access.value.scattered or access.contiguous is None or offset_of_rows(access) or wrapped_by(kernel, access):
        return None
    cause = of_mask(kernel, access)
    if cause is None or cause[0] not in OF_MASKS:
        return None
    return OF_MASKS[cause[0]](Vector(access, access.tensor.bytes, possible_bytes(kernel, access), *cause, frozenset()))


def gain_of_wider(machine_bytes: int, possible_bytes: int, share: float = 1.0) -> tuple[float, float]:
    """The likely and the most gain of a kernel, a share of whose requests ask for so many bytes in place of possible.

    The most: so many fewer requests. The likely gain is the root: bytes and latency stay.
    """
    fewer = 1 / (1 - share * (1 - max(machine_bytes / possible_bytes, 1 / _MOST_WIDER)))
    return fewer**0.5, 1 / (1 - share * (1 - 1 / _MOST_WIDER))


def findings(
    kernel: Kernel, rule: str, reasons: Mapping[Cause, Callable[[Vector], tuple[str, str]]]
) -> Iterator[Finding]:
    """One a cause, at the access that it costs most; the other accesses are named in it.

    `reasons`: by cause, what forbids larger pieces and what to do. Without a launch a number of which no multiple is
    known may be one: then the finding is a hint.
    """
    of_cause: dict[tuple[Cause, tuple[str, ...]] | None, list[Vector]] = defaultdict(list)
    for vector in vectors(kernel):
        if vector.cause in reasons:
            of_cause[None if vector.hidden else (vector.cause, vector.unknown)].append(vector)
    for alike in of_cause.values():
        worst = max(alike, key=_cost)
        hidden = _hidden(kernel, (name for one in alike for name in one.hidden))
        why, advice = hidden.reason if hidden is not None else reasons[worst.cause](worst)
        others = lines_of((one.access.operation for one in alike), worst.access.operation)
        share = _share(kernel, alike)
        gain, most = gain_of_wider(worst.machine_bytes, worst.possible_bytes, share)
        declared = worst.cause not in ("stride", "quotient", "divided mask", "program", "loaded limit")
        unless = unless_multiple(kernel, worst.unknown) if worst.unknown and declared else ""
        verb = "stores" if worst.access.operation.name in STORES else "loads"
        yield kernel.finding(
            rule,
            worst.access.operation,
            "low" if unless or gain < MEDIUM_GAIN or worst.cause == "layout" else "medium",
            f"a thread {verb} {worst.machine_bytes} {agreeing(worst.machine_bytes, 'byte', 'bytes')} at a time where "
            f"{worst.possible_bytes} bytes are contiguous"
            + (f" (likewise on {others})" if others else "")
            + f": {why}",
            f"if {unless} is a multiple of 16, say so with i32:16 in --signature; else {advice}" if unless else advice,
            {
                "machine_bytes": worst.machine_bytes,
                "possible_bytes": worst.possible_bytes,
                "accesses": len(alike),
                "share": share,
                **(hidden.evidence if hidden is not None else {}),
            },
            confidence="low" if unless else "high",
            estimate=_BY_TMA if worst.cause == "layout" else (gain, 1.0, most),
        )


def _share(kernel: Kernel, alike: list[Vector]) -> float:
    """Share of the requests of a CTA that are these, as of the indices of a page table beside the pages."""
    narrow = sum(_requests(kernel, one.access.operation) for one in alike)
    return narrow / max(sum(_requests(kernel, op) for op in kernel.named(*LOADS, *STORES)), 1.0)


def _requests(kernel: Kernel, op: Operation) -> float:
    """Of a load's or a store's tile, with as many bytes as its widest instruction has; those in loops count more."""
    size = max((tensor.size * tensor.bytes for tensor in tensor_types(op.rest)), default=0)
    return kernel.times(op) * size / (kernel.machine_bytes(op) or VECTOR_BYTES)


def _cost(vector: Vector) -> tuple[int, float]:
    """What a loop does counts more; then by how much smaller the pieces are."""
    return len(loops_around(vector.access.operation)), vector.possible_bytes / vector.machine_bytes


def vectors(kernel: Kernel) -> list[Vector]:
    """The accesses that the machine code cuts into pieces, though their rows are contiguous."""
    found = []
    for access in kernel.accesses:
        why, possible = in_the_way(kernel, access) or of_layout(kernel, access), possible_bytes(kernel, access)
        machine = kernel.machine_bytes(access.operation) if why is not None else None
        if why is not None and machine is not None and machine < possible:
            found.append(Vector(access, machine, possible, *why, frozenset(_hidden_from(kernel, access))))
    return found


def hidden_of(kernel: Kernel, accesses: Iterable[Access]) -> Hidden | None:
    """The arguments that alone forbid larger pieces of some of these accesses, because of what the source says.

    None where the compiler knows all that it can, or where something else is in the way too.
    """
    return _hidden(kernel, (name for access in accesses for name in _hidden_from(kernel, access)))


def hidden_in_loop(kernel: Kernel, loop: Operation) -> Hidden | None:
    """Those for which alone a loop with MMAs loads tiles into registers when they are due, and not ahead.

    A thread has to ask for `LEAST_AHEAD_BYTES` at once, and gets one element. None as of `hidden_of`.
    """
    operations = list(own(loop))
    if not any(op.name in MMAS for op in operations) or stages_of(kernel, loop) in UNPIPELINED:
        return None
    due = {op.line for op in operations if op.name == "tt.load" and never_ahead(kernel, loop, op) is None}
    narrow = (one for one in kernel.accesses if one.operation.line in due and one.tensor.bytes < LEAST_AHEAD_BYTES)
    return hidden_of(kernel, narrow)


def _hidden(kernel: Kernel, names: Iterable[str]) -> Hidden | None:
    found = set(names)
    hidden = hidden_arguments(kernel)
    by = {name: hidden[name] for name in kernel.parameters if name in found}
    return Hidden(kernel, by) if by else None


def _hidden_from(kernel: Kernel, access: Access) -> list[str]:
    """The arguments of an access that the compiler would have to know, where this is enough; empty where it is not."""
    names = [
        name
        for name in hidden_arguments(kernel)
        if name in access.value.arguments or name in mask_limits(kernel, access)
    ]
    if not names or not _is_cut(kernel, access, ()) or _is_cut(kernel, access, names):
        return []
    needed = [name for name in names if _is_cut(kernel, access, [other for other in names if other != name])]
    return needed or names


def _is_cut(kernel: Kernel, access: Access, assumed: Iterable[str]) -> bool:
    """Whether something forbids larger pieces of an access where the compiler knows these arguments."""
    informed = replace(kernel, assumed=frozenset(assumed))
    return in_the_way(informed, informed.reread(access)) is not None


def _and(words: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _are_multiples(names: Sequence[str]) -> str:
    return f"{_and(names)} {agreeing(len(names), 'is a multiple', 'are multiples')} of 16"


def _distinct(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))


def narrowed_by(kernel: Kernel, name: str) -> bool:
    """Whether a mask ends at this argument, of an access that is wide only if it is known to be a multiple of 16."""
    return any(
        name in mask_limits(kernel, access) and possible_bytes(kernel, access) > access.tensor.bytes
        for access in kernel.accesses
    )
