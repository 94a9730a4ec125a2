"""Sums, maxima and other reductions that many CTAs of a launch compute of the same numbers."""

import math
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from kperf.arch import H200, H200_L1_BYTES_PER_CYCLE
from kperf.diagnose.analyses.cta_order import origins_of
from kperf.diagnose.analyses.different_rows import Numbers
from kperf.diagnose.analyses.occupancy import arithmetic_of_cta, bytes_or_mma_cycles, ctas, launched_ctas
from kperf.diagnose.analyses.same_values import TILE_LOADS, numbers_of_ctas
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, LOOPS, MMAS, STORES, TMA_STORES, inside, loops_around
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import FEW_WARPS_ON_SM, LAUNCH_CYCLES, MEDIUM_GAIN, MMA_SHARE, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.loops import BOUNDS
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_WRITES = (*STORES, *TMA_STORES, *ATOMICS)
_AGAIN = 2.0
"""CTAs for each that computes other numbers."""
Costs = dict[str, float]
"""Cycles of an SM by what is busy for them."""


@dataclass(frozen=True)
class _Statistic:
    """A reduction, or a loop that only computes: what it is computed from, and how often the launch computes it.

    numbers: a number for each CTA; CTAs with equal ones compute the same.
    """

    root: Operation
    sources: tuple[Operation, ...]
    numbers: Numbers

    @property
    def times(self) -> float:
        """CTAs that compute the same, in the mean."""
        return len(self.numbers) / len(np.unique(self.numbers))


@dataclass(frozen=True)
class _Repeated:
    """All statistics of a kernel that the same CTAs repeat.

    kernel: by its TTIR. warps: on an SM.
    """

    kernel: Kernel
    warps: int
    statistics: tuple[_Statistic, ...]

    @cached_property
    def saved(self) -> list[Operation]:
        """What is done for the statistics alone: not what the kernel computes something else of."""
        roots = {one.root.line for one in self.statistics}
        lines = {op.line for one in self.statistics for op in one.sources} | roots
        shared = [op for op in self._operations(lines - roots) if self._is_read_beyond(op, lines)]
        kept = {op.line for op in shared} | {op.line for one in shared for op in _sources(self.kernel, one)}
        return self._operations(lines - (kept - roots))

    @cached_property
    def costs(self) -> Costs:
        """Of what is saved in one CTA. What L1 keeps for the next CTA comes from there."""
        kernel = self.kernel
        costs = _costs(kernel, self.saved)
        loaded = sum(_tile_bytes(op) * kernel.times(op) for op in self.saved if op.name in TILE_LOADS)
        rate = H200_L1_BYTES_PER_CYCLE if loaded <= kernel.arch.sm_shared_bytes / 2 else H200.l2_bytes_per_cycle
        return costs | {"loads": loaded / rate}

    @cached_property
    def others(self) -> Costs:
        """Of all else that a CTA does, and of loading the statistics instead."""
        lines = {op.line for op in self.saved}
        costs = _costs(self.kernel, [op for op in self.kernel.operations if op.line not in lines])
        results = sum(_result_bytes(one.root) * self.kernel.times(one.root) for one in self.statistics)
        return costs | {"loads": costs["loads"] + results / H200.l2_bytes_per_cycle}

    @property
    def share(self) -> float:
        """Of a CTA's time."""
        return 1 - max(self.others.values()) / self._now

    @property
    def gain(self) -> float:
        """Time of the launch over that of one which loads them, after another launch that computes them once."""
        of_sm = launched_ctas(self.kernel)
        once = of_sm * max(self.costs.values()) / self.statistics[0].times
        return of_sm * self._now / (of_sm * max(self.others.values()) + once + LAUNCH_CYCLES)

    @cached_property
    def _now(self) -> float:
        """Cycles of an SM for a CTA. With many warps one CTA loads while another one computes."""
        if self.warps > FEW_WARPS_ON_SM:
            return max(self.costs[unit] + self.others[unit] for unit in self.costs)
        return max(self.costs.values()) + max(self.others.values())

    def _is_read_beyond(self, op: Operation, lines: Set[int]) -> bool:
        return any(reader.line not in lines for reader, _ in self.kernel.readers.get(op.line, ()))

    def _operations(self, lines: Iterable[int]) -> list[Operation]:
        wanted = set(lines)
        return [op for op in self.kernel.operations if op.line in wanted]


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the addresses of all CTAs of the launch, in the TTIR; silent where how often a loop runs is not known."""
    written = kernel.as_written
    if (
        written is None
        or kernel.resources is None
        or any(written.iterations(loop) is None for loop in written.named(*LOOPS))
    ):
        return
    warps = ctas(kernel) * kernel.total_warps
    groups = [_Repeated(written, warps, together) for together in _groups(_statistics(written))]
    best = max(groups, key=lambda one: one.gain, default=None)
    if best is not None and best.gain >= MEDIUM_GAIN:
        yield _finding(kernel, best)


def _finding(kernel: Kernel, repeated: _Repeated) -> Finding:
    written, gain = repeated.kernel, repeated.gain
    largest = max(repeated.statistics, key=lambda one: sum(_costs(written, [one.root, *inside(one.root)]).values()))
    times = largest.times
    loads = [op for op in repeated.saved if op.name in TILE_LOADS]
    moved = sum(_tile_bytes(op) * written.times(op) for op in loads)
    tensors = " and ".join(sorted({name for op in loads for name in written.tensors_of(op)}))
    read = f", for which each CTA loads {moved:.0f} bytes{f' of {tensors}' if tensors else ''}" if moved else ""
    after = (
        "; a factor that is the same for a whole row may multiply the accumulator after the loop of tl.dot"
        if any(True for _ in written.named(*MMAS))
        else ""
    )
    return kernel.finding(
        RULE.id,
        largest.root,
        "high" if gain >= SEVERE_GAIN else "medium",
        f"{times:.0f} CTAs each reduce the same numbers{read}: this takes about {repeated.share:.0%} of a CTA's time",
        "reduce them once, in a kernel of its own or in the kernel that stores "
        f"{tensors or 'them'}, store the results, and load them here" + after,
        {"repeated": times, "bytes": moved, "share": repeated.share},
        confidence="medium",
        estimate=(gain, 1.0, min(2 * gain, times)),
    )


def _groups(statistics: Iterable[_Statistic]) -> list[tuple[_Statistic, ...]]:
    """Those that the same CTAs repeat."""
    found: dict[bytes, list[_Statistic]] = {}
    for one in statistics:
        found.setdefault(one.numbers.tobytes(), []).append(one)
    return [tuple(together) for together in found.values()]


def _statistics(kernel: Kernel) -> Iterator[_Statistic]:
    """The reductions of numbers from memory that several CTAs compute, none of them of an MMA's results."""
    origins = origins_of(kernel)
    if origins is None:
        return
    stored = {name for op in kernel.named(*_WRITES) for name in kernel.memory_of(op)}
    for root in kernel.operations:
        if (root.name != "tt.reduce" and not _only_computes(root)) or _is_in_branch(root) or _is_of_sort(root):
            continue
        sources = _sources(kernel, root)
        names = {op.name for op in sources}
        own_memory = any(stored & kernel.tensors_of(op) for op in sources if op.name == "tt.load")
        if names.isdisjoint(TILE_LOADS) or not names.isdisjoint((*MMAS, *ATOMICS)) or own_memory:
            continue
        numbers = numbers_of_ctas(origins, [*sources, root, *loops_around(root)], math.prod(kernel.grid or ()))
        if numbers is not None and len(numbers) >= _AGAIN * len(np.unique(numbers)):
            yield _Statistic(root, tuple(sources), numbers)


def _is_of_sort(op: Operation) -> bool:
    """Whether it is a step of Triton's sorting network, whose tensors have an axis of length two for each index bit."""
    types = tensor_types(op.rest)
    return op.name == "tt.reduce" and bool(types) and len(types[0].shape) > 1 and set(types[0].shape) == {2}


def _only_computes(op: Operation) -> bool:
    """Whether it is a loop that gives results, and neither multiplies matrices nor writes."""
    return op.name == "scf.for" and bool(op.results) and not any(one.name in (*MMAS, *_WRITES) for one in inside(op))


def _is_in_branch(op: Operation) -> bool:
    region = op.parent
    while region is not None and region.owner is not None:
        if region.owner.name in ("scf.if", "scf.while"):
            return True
        region = region.owner.parent
    return False


def _sources(kernel: Kernel, root: Operation) -> list[Operation]:
    """What an operation is computed from, with the bodies of loops, and what decides how often those around it run."""
    around = loops_around(root)
    ends = [region.operations[-1] for region in root.regions if region.operations]
    read = [(one, place) for one in (root, *ends) for place in range(len(one.operands))]
    read += [(loop, place) for loop in around for place in BOUNDS]
    found = {op.line: op for one, place in read for op in kernel.values.sources(one, place)}
    found = {line: op for line, op in found.items() if op not in around}
    bodies = {op.line: op for loop in (root, *found.values()) if loop.name in LOOPS for op in inside(loop)}
    return [op for _, op in sorted((found | bodies).items())]


def _costs(kernel: Kernel, operations: Iterable[Operation]) -> Costs:
    """Cycles of an SM for a CTA's loads from L2, its MMAs, its arithmetic, and what the launch moves in memory."""
    operations = list({op.line: op for op in operations}.values())
    loaded = sum(_tile_bytes(op) * kernel.times(op) for op in operations if op.name in TILE_LOADS)
    multiplied = sum(bytes_or_mma_cycles(kernel, [op]) * kernel.times(op) for op in operations if op.name in MMAS)
    moved = sum(_memory_bytes(kernel, op) for op in operations if op.name in (*TILE_LOADS, *_WRITES))
    reduced = sum(_reduced(kernel, op) * kernel.times(op) for op in operations if op.name == "tt.reduce")
    computed = arithmetic_of_cta(kernel, operations)
    return {
        "loads": loaded / H200.l2_bytes_per_cycle,
        "MMAs": multiplied / MMA_SHARE,
        "arithmetic": computed + reduced / kernel.arch.fp32_per_cycle,
        "memory": moved / kernel.arch.memory_bytes_per_cycle,
    }


def _reduced(kernel: Kernel, op: Operation) -> int:
    """Elements that a reduction reads: its own line does not have their type."""
    maker = kernel.values.maker(op, 0)
    types = tensor_types(maker.rest) if maker is not None else []
    return types[-1].size if types else 0


def _memory_bytes(kernel: Kernel, op: Operation) -> float:
    """A CTA's part of what a load or store moves in device memory: at most its whole tensor, once a launch."""
    moved = _tile_bytes(op) * kernel.times(op)
    lengths = [kernel.lengths[name] for name in kernel.tensors_of(op) if name in kernel.lengths]
    element = max((tensor.bytes for tensor in tensor_types(op.rest)), default=4)
    return min(moved, max(lengths) * element / math.prod(kernel.grid or (1,))) if lengths else moved


def _tile_bytes(op: Operation) -> int:
    """Bytes of the tile of a load or a store."""
    sized = [tensor.size * tensor.bytes for tensor in tensor_types(op.rest)]
    return max(sized, default=4)


def _result_bytes(op: Operation) -> int:
    """Bytes of the results of a reduction or of a loop."""
    types = op.rest.rpartition("->")[2]
    return sum(tensor.size * tensor.bytes for tensor in tensor_types(types)) or 4


RULE = Rule("statistics-per-tile", "CTAs that repeat each other's reductions", check, needs="launch")
