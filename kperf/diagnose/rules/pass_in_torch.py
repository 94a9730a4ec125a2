"""An operator of torch over a whole tensor that a launch stores, or loads, whose work the kernel could do itself."""

import math
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kperf.diagnose.analyses.traffic import asked_bytes, gain_of_bytes, iterations_in, launch_bytes, tensor_bytes
from kperf.diagnose.reading.cta_values import Cta, CtaValues, some_ctas
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, LOADS, STORES, TMA_LOADS, TMA_STORES, loops_around, mask_place
from kperf.diagnose.rule import Rule
from kperf.diagnose.script.operators import Pass
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.layouts import element_bytes
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_CTAS = 8
"""Of a launch, whose elements are counted."""
_LEAST_ONCE, _MOST_ONCE = 0.8, 1.25
"""Elements that all CTAs ask for over those of the tensor: what is counted in a few CTAs may differ in others."""
_ALL = 0.999
"""The same of a tensor that is stored wholly: zeros stay where no CTA stores."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of passes around a kernel's first launch, if each CTA has the elements that a pass needs, and no other CTA."""
    written = kernel.as_written if kernel.passes else None
    if written is None:
        return
    for one in kernel.passes:
        operations = _operations(written, one)
        if operations is not None:
            yield from _finding(kernel, written, one, operations)


def _finding(kernel: Kernel, written: Kernel, one: Pass, operations: Sequence[Operation]) -> Iterator[Finding]:
    own = sum(tensor_bytes(written, name) for name in one.arguments)
    launch = launch_bytes(written)
    alone = launch if one.when == "fill" else launch - own + one.kept
    likely = gain_of_bytes((kernel,), launch + one.takes, launch + one.takes - alone)
    if likely < MEDIUM_GAIN:
        return
    names, operators = " and ".join(sorted(one.arguments)), ", ".join(one.operators)
    together = (
        f"the launch and torch together move {(launch + one.bytes) / 1e9:.2f} GB, and the kernel alone "
        f"would move {alone / 1e9:.2f} GB"
    )
    message, advice = _WORDS[one.when]
    words = {"names": names, "operators": operators, "size": f"{own / 1e9:.2f} GB", "together": together}
    if one.when != "fill":
        advice = f"{_how(one)}{advice}"
    yield kernel.finding(
        RULE.id,
        max(operations, key=lambda op: asked_bytes(written, op)),
        "high" if likely >= SEVERE_GAIN else "medium",
        message.format(**words),
        advice.format(**words),
        {"bytes": own, "moved_gb": (launch + one.bytes) / 1e9, "least_gb": alone / 1e9, "operators": operators},
        confidence="medium",
        estimate=(likely, 1.0, (launch + one.takes) / max(alone, 1.0)),
    )


_WORDS = {
    "after": (
        "torch reads the {size} of {names} that this launch stores, to compute {operators}: {together}",
        "; this holds if nothing else reads {names} as the launch stores it",
    ),
    "before": (
        "torch computes the {size} of {names} ({operators}) for this launch alone, which loads each element once: "
        "{together}",
        "; this holds if nothing else reads {names}",
    ),
    "fill": (
        "torch fills the {size} of {names} ({operators}), and this launch overwrites each element: {together}",
        "if each launch stores all elements of {names}, allocate the tensor with torch.empty",
    ),
}


def _how(one: Pass) -> str:
    """What to write in the kernel in place of torch's operators."""
    casts = [name for name in one.operators if name.startswith("to(")]
    copies = {"cat", "stack", "copy", "contiguous or clone"} & {*one.operators}
    if one.when == "before":
        if len(casts) == len(one.operators):
            return "give the kernel the tensor that torch converts, and convert each tile after tl.load"
        if copies and len(copies) + len(casts) == len(one.operators):
            return "give the kernel the tensor that torch copies, and its strides"
        return "give the kernel the tensors that torch reads, and compute {operators} after tl.load"
    if len(casts) == len(one.operators):
        return f"allocate {{names}} with the dtype {casts[-1][len('to(') : -1]}: tl.store converts to it"
    if copies and len(copies) + len(casts) == len(one.operators):
        return "allocate the result of {operators}, give it to the kernel with its strides, and store there"
    return "compute {operators} in the kernel, before tl.store"


def _operations(kernel: Kernel, one: Pass) -> list[Operation] | None:
    """The stores that the pass follows, or the loads ahead of which it is; None where it has to stay.

    It has to where atomics update a tensor, and where CTAs have elements more than once or not at all.
    """
    wanted: tuple[str, ...]
    others: tuple[str, ...]
    if one.when == "before":
        wanted, others = (*LOADS, *TMA_LOADS), (*STORES, *TMA_STORES, *ATOMICS)
    elif one.when == "after":
        wanted, others = (*STORES, *TMA_STORES), ATOMICS
    else:
        wanted, others = STORES, (*LOADS, *TMA_LOADS, *TMA_STORES, *ATOMICS)
    known = _on(kernel, wanted, one.arguments)
    if known is None or (left := _on(kernel, others, one.arguments)) is None or any(left.values()):
        return None
    for name, operations in known.items():
        elements = _elements(kernel, operations, exactly=one.when == "fill")
        share = 0.0 if elements is None else elements / max(kernel.lengths.get(name, 0), 1)
        if not (_ALL if one.when == "fill" else _LEAST_ONCE) <= share <= _MOST_ONCE:
            return None
    return [op for operations in known.values() for op in operations]


def _on(kernel: Kernel, names: Iterable[str], tensors: frozenset[str]) -> dict[str, list[Operation]] | None:
    """Operations on each of these tensors; None if one may be on any tensor, or on another one too."""
    found: dict[str, list[Operation]] = {name: [] for name in tensors}
    for op in kernel.named(*names):
        on = kernel.tensors_of(op)
        if not on or (on & tensors and len(on) > 1):
            return None
        for name in on & tensors:
            found[name].append(op)
    return found


def _elements(kernel: Kernel, operations: Sequence[Operation], *, exactly: bool) -> float | None:
    """How many elements all CTAs ask for by these loads or stores, by some CTAs; None if not known.

    exactly: whether the data must not decide which these are.
    """
    ctas = some_ctas(kernel, _CTAS)
    asked = 0.0
    for op in operations:
        if exactly and _is_conditional(op):
            return None
        for cta in ctas:
            one = _elements_of_cta(kernel, op, cta, exactly=exactly)
            if one is None:
                return None
            asked += one
    return asked / len(ctas) * math.prod(kernel.grid or ())


def _elements_of_cta(kernel: Kernel, op: Operation, cta: Cta, *, exactly: bool) -> float | None:
    """In each iteration of loops as many as in the first one."""
    if op.name in (*TMA_LOADS, *TMA_STORES):
        (name,) = kernel.tensors_of(op)
        return asked_bytes(kernel, op) / math.prod(kernel.grid or ()) / element_bytes(kernel.parameters[name].type)
    values, place = CtaValues(kernel, cta), mask_place(op)
    address = values.operand(op, 0)
    mask = values.operand(op, place) if len(op.operands) > place else None
    if address is None or (address.loaded and exactly):
        return None
    kept = address.numbers
    if len(op.operands) > place:
        if exactly and (mask is None or mask.loaded):
            return None
        if mask is not None and not mask.loaded:
            kept = kept[np.broadcast_to(mask.numbers != 0, kept.shape)]
    times = [iterations_in(values, loop) for loop in loops_around(op)]
    known = [one for one in times if one is not None]
    return float(len(np.unique(kept)) * math.prod(known)) if len(known) == len(times) else None


def _is_conditional(op: Operation) -> bool:
    """Whether an operation is in a branch, or behind one that may end the kernel."""
    region = op.parent
    while region is not None and region.owner is not None:
        if region.owner.name == "scf.if" or len(region.blocks) > 1:
            return True
        region = region.owner.parent
    return False


RULE = Rule(
    "pass-in-torch",
    "A pass of torch over a kernel's tensor that the kernel could make itself",
    check,
    needs="history",
    targets=("sm_",),
    moves_less=True,
)
