"""A loop that loads one number at a time."""

from collections.abc import Iterator, Sequence

from kperf.diagnose.analyses.numbers_at_once import gain_of_all_at_once, number_bytes
from kperf.diagnose.analyses.occupancy import warps_of_vectors
from kperf.diagnose.analyses.rarely import rarely_working
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import (
    ASYNC_COPIES,
    ATOMICS,
    LOADS,
    LOOPS,
    MMAS,
    STORES,
    TMA_LOADS,
    inside,
    loops_around,
    own,
)
from kperf.diagnose.reading.options import tile_for, with_option
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of innermost loops whose loads are of scalars alone, at addresses that follow the iteration.

    And of loops in which such a number decides in a branch whether the iteration does anything.
    """
    for loop in kernel.named("scf.while"):
        yield from _search(kernel, loop)
    for loop in kernel.named("scf.for"):
        yield from _rarely(kernel, loop)
        inner = list(inside(loop))
        if any(op.name in (*LOOPS, *TMA_LOADS, *ASYNC_COPIES, *MMAS) for op in inner):
            continue
        loads = [op for op in inner if op.name in LOADS]
        if not loads or any(tensor_types(op.rest) for op in loads):
            continue
        moving = [
            op for op in loads if (value := kernel.values.operand(op, 0)) is not None and loop.line in value.iterations
        ]
        if any(op.name in STORES and tensor_types(op.rest) for op in inner):
            continue
        elements = _elements(kernel, inner, loads)
        if elements < kernel.threads and moving:
            yield _of_numbers(kernel, loop, moving, elements)


def _of_numbers(kernel: Kernel, loop: Operation, moving: Sequence[Operation], elements: int) -> Finding:
    """Of a loop over numbers, by what it does with each. moving: the loads that follow the iteration."""
    inner = list(inside(loop))
    asked = [op for op in moving if any(one in moving for one in kernel.values.sources(op, 0))]
    counting = _is_counting(kernel, inner, asked)
    searching = [op for op in asked if counting or _is_awaited(kernel, inner, op)]
    if searching:
        return kernel.finding(
            RULE.id,
            searching[0],
            "medium",
            "each iteration loads one number, and waits for it because it decides where the next number is",
            "load a block of numbers at once (tl.arange) and count them with tl.histogram, or with tl.atomic_add"
            if counting
            else "load all numbers at once (tl.arange) and count with tl.sum those that are less than the wanted one; "
            "or search on the host",
            {"loads": len(searching)},
            estimate=(1.2, 1.0, 3.0),
        )
    beside = _is_beside_tiles(kernel, loop)
    # Of a row of 4096 numbers 36 x were measured (H200); how long the tiles take beside it is not known.
    gain = (1.05, 1.0, 3.0) if beside else gain_of_all_at_once(kernel, loop, moving) or (25.0, 2.0, 100.0)
    work = (
        f"computes with it for {elements} elements, fewer than the {kernel.threads} threads of the CTA"
        if elements > 1
        else "all threads of the CTA do the same work"
    )
    dimension = ", as another dimension of the tile" * (elements > 1)
    return kernel.finding(
        RULE.id,
        moving[0],
        "high" if gain[0] >= SEVERE_GAIN else "medium" if gain[0] >= MEDIUM_GAIN else "low",
        f"each iteration loads one number and waits for it, and {work}",
        f"load a block of numbers at once (tl.arange{dimension}), and {_use_of(kernel, inner, moving)}"
        + _fewer_warps(kernel, loop, moving, elements),
        {"loads": len(moving)},
        estimate=gain,
    )


def _use_of(kernel: Kernel, inner: Sequence[Operation], moving: Sequence[Operation]) -> str:
    """What to do with a block of numbers, in words: they are addresses, or are summed up to each, or to the end."""
    stores = [op for op in inner if op.name in ("tt.store", *ATOMICS)]
    at_numbers = [op for op in stores if any(one in moving for one in kernel.values.sources(op, 0))]
    if at_numbers:
        names = {"tt.store": "tl.store", "tt.atomic_rmw": "tl.atomic_add"}
        calls = " and ".join(sorted({names.get(op.name, "tl.atomic_cas") for op in at_numbers}))
        return f"give {calls} the tile of addresses that the numbers make, with the loop's conditions as the mask"
    return (
        "scan it with tl.cumsum" if any(op.name == "tt.store" for op in stores) else "reduce it with tl.sum or tl.max"
    )


def _fewer_warps(kernel: Kernel, loop: Operation, moving: Sequence[Operation], elements: int) -> str:
    """That a tile of all numbers of the loop leaves threads without work, and what to do, in words; else empty."""
    numbers = (kernel.iterations(loop) or 0) * elements
    if not 0 < numbers < kernel.threads:
        return ""
    tile = tile_for(numbers)
    warps = warps_of_vectors(kernel, tile * max(map(number_bytes, moving)))
    ways = [with_option(kernel, f"num_warps={warps}")] if warps < kernel.num_warps else []
    if (rows := kernel.threads // tile) > 1:
        ways.append(f"let a CTA have {rows} such rows")
    return f"; for {numbers} numbers {', or '.join(ways)}" if ways else ""


def _is_awaited(kernel: Kernel, inner: Sequence[Operation], op: Operation) -> bool:
    """Whether a number decides where the next one of the same load is, or the loop writes where it loads."""
    stored = frozenset[str]().union(*(kernel.memory_of(one) for one in inner if one.name in (*STORES, *ATOMICS)))
    return op in kernel.values.sources(op, 0) or bool(stored & kernel.memory_of(op))


def _search(kernel: Kernel, loop: Operation) -> Iterator[Finding]:
    """Of a `while` that looks at one number after the other for the first that ends it: each waits for the last.

    One that loads tiles, for its condition or beside it, does more than search.
    A latency of L1 an iteration is all that it does: 6.5 x were measured of 512 iterations on average, without which a
    CTA moves 2 KB (H100).
    """
    inner = list(inside(loop))
    ends = [op for op in inner if op.name == "scf.condition" and loops_around(op)[0] is loop]
    asked = [one for op in ends for one in kernel.values.sources(op, 0) if one in inner and one.name in LOADS]
    if not asked or any(op.name in (*LOOPS, *TMA_LOADS, *ASYNC_COPIES, *MMAS, *STORES, *ATOMICS) for op in inner):
        return
    if any(op.name in LOADS and tensor_types(op.rest) for op in inner):
        return
    values = [kernel.values.operand(op, 0) for op in asked]
    steps = [op for op in inner if op.name == "scf.yield" and loops_around(op)[0] is loop]
    chosen = any(
        one in asked for op in steps for place in range(len(op.operands)) for one in kernel.values.sources(op, place)
    )
    if chosen or any(value is None or value.loaded or loop.line not in value.iterations for value in values):
        return  # the number decides which one is next, as where the list is halved
    beside = _is_beside_tiles(kernel, loop)
    yield kernel.finding(
        RULE.id,
        asked[0],
        "low" if beside else "medium",
        "each iteration of the while loop loads one number and waits for it, until one ends the search",
        "if the numbers are sorted, search by halving: keep the first and the last place, and compare the number "
        "between them (log2(n) iterations); or load a block of numbers at once (tl.arange), and find the first that "
        "ends the search with tl.min of the indices",
        {"loads": len(asked)},
        confidence="medium",
        estimate=(1.05, 1.0, 3.0) if beside else (4.0, 1.0, 20.0),
    )


def _rarely(kernel: Kernel, loop: Operation) -> Iterator[Finding]:
    """Of a loop that looks at a number in each iteration, and loads and stores tiles only after some of them."""
    if (rarely := rarely_working(kernel, loop)) is None or rarely.gain < MEDIUM_GAIN:
        return
    some = f"{rarely.iterations} " if rarely.iterations else ""
    if rarely.working is None:
        which = "whether it does anything"
    elif rarely.is_sure:
        which = f"whether it does anything, as {rarely.working:.3g} of them do: {rarely.tensor} has no more elements"
    else:
        which = (
            f"whether it does anything, as {rarely.working:.3g} of them do if each element of {rarely.tensor} is "
            "loaded once"
        )
    again = ", and so again in each iteration of the loop around it" if rarely.is_repeated else ""
    yield kernel.finding(
        RULE.id,
        rarely.number,
        "low" if rarely.working is None else "high" if rarely.gain >= SEVERE_GAIN else "medium",
        f"each of {some}iterations loads one number, waits for it, and decides by it {which}{again}",
        "list the iterations that do something, and how many these are, before (another kernel, torch.nonzero or "
        "torch.sort), and loop over the list: for i in range(tl.load(count)): row = tl.load(rows + i)",
        {"iterations": rarely.iterations or 0, "working": rarely.working or 0},
        confidence="low" if rarely.working is None else "medium",
        estimate=(rarely.gain, 1.0, rarely.most),
    )


def _is_counting(kernel: Kernel, inner: Sequence[Operation], searching: Sequence[Operation]) -> bool:
    """Whether the loop stores what it makes of a number where it has loaded that: a counter of each bin."""
    counters = {op.operands[0]: op for op in searching}
    return any(
        op.name == "tt.store"
        and (load := counters.get(op.operands[0])) is not None
        and load in kernel.values.sources(op, 1)
        for op in inner
    )


def _elements(kernel: Kernel, inner: Sequence[Operation], loads: Sequence[Operation]) -> int:
    """Of the largest tensor that an iteration computes from the numbers; 1 where it computes numbers alone.

    With as many as there are threads each thread has elements of its own.
    """
    computed = (
        (types[0].size, op)
        for op in inner
        if op.name.startswith(("arith.", "math.")) and (types := tensor_types(op.rest))
    )
    sizes = (
        size
        for size, op in computed
        if any(one in loads for place in range(len(op.operands)) for one in kernel.values.sources(op, place))
    )
    return max(sizes, default=1)


def _is_beside_tiles(kernel: Kernel, loop: Operation) -> bool:
    """Whether the kernel multiplies matrices, or another loop moves tiles: as one that first finds its group."""
    if any(True for _ in kernel.named(*MMAS)):
        return True
    others = [op for other in kernel.named(*LOOPS) if other is not loop for op in own(other)]
    return any(op.name in TMA_LOADS or (op.name in LOADS and tensor_types(op.rest)) for op in others)


RULE = Rule(
    "scalar-loop",
    "A loop that loads single numbers",
    check,
    explained_by=("linear-search", "lookup-by-comparison", "quadratic-ranking", "window-summed-anew"),
)
