"""wgmma that waits for each MMA before the next."""

from collections.abc import Iterable, Iterator

from kperf.arch import SM_90A
from kperf.diagnose.analyses.loops import carried, read
from kperf.diagnose.analyses.occupancy import ctas
from kperf.diagnose.analyses.operands import dot_of
from kperf.diagnose.analyses.serialised import Serialised, serialised
from kperf.diagnose.analyses.spills import gain_without_spills, spills
from kperf.diagnose.analyses.warps import with_warps
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import loops_around, mma_element, mma_shape
from kperf.diagnose.reading.options import halved, more_warps, warps_advice
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.ir.loops import BOUNDS
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_WARP_GROUP = 4
"""Warps that issue a wgmma together; a second group of them issues its own meanwhile."""
_HALF_A_TILE = 1.2, 0.9, 1.8
"""Of what is left to advise. Not measured."""
_SHAPED = ("tt.broadcast", "tt.expand_dims", "tt.splat", "tt.reshape", "ttg.convert_layout", "tt.trans")
_DOT, _WAIT = "ttng.warp_group_dot", "ttng.warp_group_dot_wait"
_SAME = (_WAIT, "arith.mulf", "arith.truncf", "arith.extf", "ttg.convert_layout")
"""What leaves an element where it is: it may be scaled, and rounded."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the waits of the machine code, with ptxas' reason; and where a sum is read in each iteration."""
    mmas = sorted(kernel.named(_DOT), key=lambda op: -len(loops_around(op)))
    waiting = serialised(kernel)
    if waiting is not None:
        if waiting.for_registers and spills(kernel) is not None:  # register-spills says so
            return
        why = f" (ptxas {waiting.warning}: {waiting.reason})" if waiting.warning else ""
        still = _waits_with_more_warps(kernel, waiting)
        yield kernel.finding(
            RULE.id,
            dot_of(kernel, mmas[0]),
            "medium" if still else "high",
            f"the warps wait for {waiting.awaited} of the {waiting.issued} wgmma instructions in loops before they "
            f"issue the next one{why}" + still,
            _advice(kernel, mmas[0], waiting, more=not still),
            waiting.evidence,
            estimate=_HALF_A_TILE if still else waiting.estimate,
            candidates=more_warps(kernel) if waiting.for_registers and not still else (),
        )
        return
    for op in mmas:
        reader = _read_in_loop(op)
        if reader is not None:
            yield _added_outside(kernel, op, reader)
        elif kernel.is_gluon and (wait := _awaited_at_once(op)) is not None:  # Triton places its own waits
            groups = kernel.module.warp_groups()
            warps = sum(group.num_warps for group in groups if any(one.name == _DOT for one in group.region.walk()))
            alone = warps <= _WARP_GROUP
            yield kernel.finding(
                RULE.id,
                wait,
                "medium" if alone else "low",
                "each iteration waits for its own MMA before it goes on, and then no wgmma is in flight",
                "wait for the MMA of the iteration before, with warpgroup_mma_wait(1, ...), free that MMA's buffer "
                "then, and call warpgroup_mma_wait(0, ...) after the loop",
                {"pendings": 0, "warps": warps},
                confidence="medium",
                estimate=(1.2, 0.95, 1.6) if alone else (1.05, 1.0, 1.2),
            )


def _waits_with_more_warps(kernel: Kernel, waiting: Serialised) -> str:
    """In words that twice as many warps, compiled, wait as well, for ptxas' next reason, in fewer CTAs of an SM.

    Empty if they do not. Fewer CTAs work while another one waits for its MMAs: of attention with tiles of 128 x 64
    8 warps took 1.5 times as long as 4 (H200), also where the next reason was removed.
    """
    other = with_warps(kernel, 2 * kernel.num_warps) if waiting.for_registers else None
    left = serialised(other) if other is not None and ctas(other) < ctas(kernel) else None
    if left is None:
        return ""
    return f"; with num_warps={2 * kernel.num_warps} they wait too ({left.warning or 'for no reason that ptxas gives'})"


def _advice(kernel: Kernel, mma: Operation, waiting: Serialised, *, more: bool) -> str:
    """By ptxas' reason, and by whether the TTGIR itself leaves the sum alone. more: whether more warps may help."""
    if waiting.for_registers:
        return (
            f"{warps_advice(kernel) if more else halved(kernel, mma_shape(mma) or ())}: the values that the loop keeps "
            "during MMAs do not fit into a thread's registers"
        )
    bound = _unknown_end(kernel, mma)
    if waiting.for_its_sum and bound is not None and _read_in_loop(mma) is None:
        peeled = any(not loops_around(op) for op in kernel.named(_DOT))
        return (
            f"say before the loop that it runs at least once, tl.assume({bound}), or make its bounds tl.constexpr"
            + (", or do the last step in the loop too, with a mask" if peeled else "")
            + ": for the compiler, the sum is otherwise either zeros or the MMA's result"
        )
    return (
        "leave the accumulator untouched between MMAs (rescale it after the wait), unroll no loop by hand, and keep "
        "fewer values during the loop"
    )


def _unknown_end(kernel: Kernel, mma: Operation) -> str | None:
    """What holds if an MMA's loop runs at all, in words; None without a loop or with constant bounds."""
    loops = loops_around(mma)
    if not loops or loops[0].name != "scf.for":
        return None
    first, last = (kernel.values.operand(loops[0], place) for place in BOUNDS[:2])
    if first is not None and last is not None and not (first.arguments or last.arguments or last.loaded):
        return None
    from_zero = first is not None and not first.arguments and not first.numbers.any()
    is_argument = last is not None and kernel.values.maker(loops[0], BOUNDS[1]) is None and len(last.arguments) == 1
    return f"{next(iter(last.arguments))} > 0" if last is not None and is_argument and from_zero else "end > start"


def _added_outside(kernel: Kernel, mma: Operation, reader: Operation) -> Finding:
    """An MMA whose result another instruction adds to the sum, with a factor that may change in each iteration."""
    factors = _factors(kernel, mma)
    more = gain_without_spills(kernel)  # the product needs registers beside the sum
    types = tensor_types(reader.rest)
    rounded = f", rounded to {types[0].element} in each iteration" if types and types[0].element != "f32" else ""
    varying = any(loops_around(mma)[0] in loops_around(factor) for factor in factors)
    return kernel.finding(
        RULE.id,
        dot_of(kernel, mma),
        "low" if varying else "medium",
        "each iteration waits for its own MMA, because another instruction adds the MMA's result to the sum"
        + (", multiplied by a factor of that iteration" if varying else rounded),
        _larger_steps(kernel) if varying else _one_sum(mma, rounded=bool(rounded), scaled=bool(factors)),
        {"read_by": reader.name, "factors_of_an_iteration": int(varying)},
        estimate=(1.1, 1.0, 1.5) if varying else (1.3 * more, 1.0, 1.8 * more),
    )


def _larger_steps(kernel: Kernel) -> str:
    """What to do where each iteration has a factor of its own."""
    turns = ", or let two warp groups of a CTA take turns (num_warps=8)" if kernel.num_warps <= _WARP_GROUP else ""
    return f"take a larger BLOCK_K for each factor{turns}"


def _one_sum(mma: Operation, *, rounded: bool, scaled: bool) -> str:
    """What to do where the MMA itself could add to the sum.

    Of fp8 operands wgmma keeps about 14 bits of a sum (DeepSeek-V3 Technical Report (2024), section 3.3.2).
    """
    accumulate = "accumulate with acc = tl.dot(a, b, acc)"
    fewer_bits = (
        "; the tensor cores keep fewer bits of a sum of fp8 products, which max_num_imprecise_acc of tl.dot limits"
        if mma_element(mma).startswith("f8")
        else ""
    )
    if rounded:
        return f"{accumulate} in float32, and round the sum once after the loop{fewer_bits}"
    if not scaled and not _accumulates_in_float32(mma):
        return f"{accumulate}, without out_dtype: an MMA adds to a sum of its own type"
    return f"{accumulate}, and scale the sum once after the loop, or an operand before it{fewer_bits}"


def _accumulates_in_float32(mma: Operation) -> bool:
    types = tensor_types(mma.rest.partition(" : ")[2])
    return bool(types) and types[-1].element == "f32"


def _factors(kernel: Kernel, mma: Operation) -> list[Operation]:
    """What made the numbers by which an MMA's result is multiplied, seen through changes of shape."""
    found = []
    for reader in _readers(mma):
        for place in range(len(reader.operands)):
            maker = kernel.values.maker(reader, place)
            while maker is not None and maker.name in _SHAPED:
                maker = kernel.values.maker(maker, 0)
            if reader.name == "arith.mulf" and maker is not None and maker.name not in (_DOT, _WAIT, "arith.mulf"):
                found.append(maker)
    return found


def _read_in_loop(mma: Operation) -> Operation | None:
    """The arithmetic that adds what an MMA computes from zero to a sum that a loop carries: the MMA could do it."""
    added = (op for op in _readers(mma) if op.name in ("arith.addf", "math.fma"))
    return next((op for op in added if _is_carried(loops_around(mma)[0], op)), None)


def _is_carried(loop: Operation, op: Operation) -> bool:
    """Whether an operation of a loop makes the next iteration's value of what it reads of the last one's."""
    results = _seen_as(loop, op.results)
    return any(end in results and _seen_as(loop, [begin]) & read(op) for begin, end in carried(loop))


def _seen_as(loop: Operation, names: Iterable[str]) -> set[str]:
    """These names, and those of what is scaled or rounded of them in a loop."""
    seen = set(names)
    for op in loop.regions[-1].operations:
        if op.name in _SAME and seen & read(op):
            seen |= set(op.results)
    return seen


def _readers(mma: Operation) -> list[Operation]:
    """What reads an MMA's result in its loop, directly, after the wait, a multiplication or rounding."""
    loops = loops_around(mma)
    if not loops or not mma.results:
        return []
    found = []
    names = {mma.results[0]}
    for op in (inner for region in loops[0].regions for inner in region.operations):
        if not names & read(op) or op is mma:
            continue
        found.append(op)
        if op.name in _SAME:
            names |= set(op.results)
    return found


def _awaited_at_once(mma: Operation) -> Operation | None:
    """The wait for an asynchronous MMA in its iteration, where nothing but the next MMA reads its result."""
    readers = [op for op in _readers(mma) if op.name != "scf.yield"]
    waits = [op for op in readers if op.name == _WAIT and "pendings = 0 " in op.rest]
    return waits[0] if waits and waits == readers and "isAsync = true" in mma.rest else None


RULE = Rule(
    "wgmma-serialised",
    "MMAs that wait for each other",
    check,
    needs="machine code",
    targets=(SM_90A.name,),
    explained_by=("emulated-float32",),
    by_options=True,
)
