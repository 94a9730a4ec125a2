"""Which launches are traced: of which kernels, which of their launches, and what is still to come."""

import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from kperf.errors import UsageError
from kperf.trace.capture.gpu import Gpu, Span, times
from kperf.trace.capture.kernels import (
    MOST_KERNELS,
    WARM,
    CapturedLaunch,
    FunctionKey,
    Kernel,
    KernelKey,
    TraceOptions,
)

SHORT_MS = 0.1
"""Of a shorter kernel a mark before the launch may lie before the host is ready: only launches alone are compared."""
MANY = 3
"""From so many compilations of one function on they look like a tuner's configurations."""
GOES_ON = 4
"""Times as many launches as its siblings typically have: a kernel that a tuner has chosen."""
IDLE = 1000
"""After so many launches of other kernels, one is not waited for."""


@dataclass
class _Function:
    """The compilations of one function, in order, and which was launched last."""

    kernels: list[Kernel] = field(default_factory=list)
    last: Kernel | None = None
    returned: set[KernelKey] = field(default_factory=set)
    """Those that were launched again after another one was."""


class Scheduler:
    """Decides for each launch whether it is traced. It asks the GPU for nothing that is not over."""

    def __init__(self, options: TraceOptions, gpu: Gpu) -> None:
        """Nothing was launched yet."""
        self.options = options
        self.kernels: dict[KernelKey, Kernel] = {}
        self._gpu = gpu
        self._functions: dict[FunctionKey, _Function] = {}
        self.launches = 0
        """Of all kernels."""

    def note(self, kernel: Kernel, grid: tuple[int, int, int]) -> int:
        """A launch of the script's own; returns its number among the kernel's."""
        function = self._functions.setdefault(kernel.function, _Function())
        if not kernel.launches:
            function.kernels.append(kernel)
        elif function.last is not kernel:
            function.returned.add(kernel.key)
        function.last = kernel
        self.launches += 1
        kernel.last_launch = self.launches
        kernel.launches += 1
        kernel.grids[grid] += 1
        return kernel.launches

    @property
    def chosen(self) -> list[Kernel]:
        """The kernels whose names fit the patterns, the slowest first; waits for the ends of their launches."""
        fitting = [kernel for kernel in list(self.kernels.values()) if self.fits(kernel)]
        return sorted(fitting, key=self.total_ms, reverse=True)

    def fits(self, kernel: Kernel) -> bool:
        """By the name of its function, or by that which a profiler shows."""
        names = (kernel.name, kernel.compiled.name)
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.options.patterns)

    def total_ms(self, kernel: Kernel, *, wait: bool = True) -> float:
        """GPU time of all launches of a kernel, estimated from those that were timed; 0 if nothing is known of them."""
        captured = [*kernel.taken.spans, *kernel.taken.original_spans] if kernel.taken else []
        cold = [kernel.cold] if kernel.cold else []
        measured = times([*cold, *kernel.alone, *list(kernel.spans), *captured], self._gpu, wait=wait)
        return statistics.fmean(measured) * kernel.launches if measured else 0.0

    def original_ms(self, kernel: Kernel, *, wait: bool = True) -> float | None:
        """Median time of the original kernel in turn with the instrumented one, else of all its launches but the first.

        None if nothing is known of them.
        """
        in_turn = times(kernel.taken.original_spans, self._gpu, wait=wait) if kernel.taken else []
        if in_turn:
            return statistics.median(in_turn)
        alone, others = (times(list(spans), self._gpu, wait=wait) for spans in (kernel.alone, kernel.spans))
        if alone and statistics.median(alone) < SHORT_MS:
            others = []
        return statistics.median([*alone, *others]) if alone or others else None

    def launch_ms(self, kernel: Kernel) -> float:
        """Mean time of a kernel's launches, the median of a short kernel's, in milliseconds; 0 if nothing is known."""
        median_ms = self.original_ms(kernel)
        if median_ms is not None and median_ms < SHORT_MS:
            return median_ms
        return self.total_ms(kernel) / kernel.launches if kernel.launches else 0.0

    def cost(self, kernel: Kernel, taken: CapturedLaunch, *, wait: bool = True) -> float | None:
        """By what share a captured launch of a kernel is longer than the original's; None if nothing is known."""
        original_ms, instrumented_ms = self.original_ms(kernel, wait=wait), self.median_ms(taken.spans, wait=wait)
        return None if original_ms is None or instrumented_ms is None else instrumented_ms / original_ms - 1

    def median_ms(self, spans: Sequence[Span], *, wait: bool = True) -> float | None:
        """Median time of some launches; None if nothing is known of them."""
        measured = times(spans, self._gpu, wait=wait)
        return statistics.median(measured) if measured else None

    def is_due(self, kernel: Kernel, number: int, grid: tuple[int, int, int]) -> bool:
        """Whether launch `number` of a kernel, with this grid, is one to trace.

        The warm launch is the third, or the first after it that no other thread's work hides.
        """
        if self.options.listing or kernel.problem or not self.fits(kernel) or 0 in grid:
            return False
        if self.options.launch is not None:
            return number == self.options.launch and not self.is_full
        if kernel.taken is not None:
            return number >= WARM and not kernel.taken.warm
        if 1 < number < WARM or self.is_one_of_many(kernel):
            return False
        return not self.is_full or (number == WARM and self._displaces(kernel, self._traced()))

    @property
    def is_full(self) -> bool:
        """Whether as many kernels are traced as there may be."""
        return len(self._traced()) >= MOST_KERNELS

    def _traced(self) -> list[Kernel]:
        return [kernel for kernel in self.kernels.values() if kernel.taken]

    def is_one_of_many(self, kernel: Kernel) -> bool:
        """Whether it looks like a configuration that a tuner tries, of which there are many and one goes on.

        That is one which is launched again after another, or much more often than the others.
        """
        function = self._functions[kernel.function]
        if kernel in function.kernels[: MANY - 1] or kernel.key in function.returned:
            return False
        others = [other.launches for other in function.kernels if other is not kernel]
        return kernel.launches < GOES_ON * statistics.median(others)

    def siblings(self, kernel: Kernel) -> int:
        """How many compilations there are of its function."""
        return len(self._functions[kernel.function].kernels)

    def _displaces(self, kernel: Kernel, traced: Sequence[Kernel]) -> bool:
        """Whether a kernel that comes late takes more time than one that is traced, which then makes room for it."""
        fastest = min(traced, key=lambda other: self.total_ms(other, wait=False))
        if fastest.busy or self.total_ms(kernel, wait=False) <= self.total_ms(fastest, wait=False):
            return False
        fastest.taken = None
        fastest.problem = UsageError(f"{MOST_KERNELS} slower kernels are traced: choose it with --kernel")
        return True

    def wants_a_round(self, kernel: Kernel, grid: tuple[int, int, int]) -> bool:
        """Whether this launch is one of those in turn, in which both kernels are compared."""
        taken = kernel.taken
        return taken is not None and taken.in_rounds and grid == taken.grid

    def wants_sampled_ctas(self, kernel: Kernel, grid: tuple[int, int, int]) -> bool:
        """Whether this launch is one to record sampled CTAs of, or to see whether that is needed."""
        taken = kernel.taken
        return taken is not None and taken.warm and grid == taken.grid and self._lacks_sampled_ctas(kernel)

    def _lacks_sampled_ctas(self, kernel: Kernel) -> bool:
        taken = kernel.taken
        if taken is None or not self.options.wants_sampled_ctas:
            return False
        return taken.why_all is None if taken.sampled is None else taken.sampled.in_rounds

    def wants_a_pass(self, kernel: Kernel, grid: tuple[int, int, int]) -> bool:
        """Whether this launch is one for a pass: all of them have to be like the one with all events."""
        taken = kernel.taken
        return taken is not None and taken.warm and grid == taken.grid and self._lacks_passes(kernel)

    def _lacks_passes(self, kernel: Kernel) -> bool:
        taken = kernel.taken
        if taken is None or self.options.passes == 1 or taken.why_one:
            return False
        return taken.several is None or bool(taken.several.waiting)

    def is_timed(self, kernel: Kernel) -> bool:
        """Whether the launch with all events, and its rounds, are over."""
        return kernel.taken is not None and kernel.taken.warm and not kernel.taken.in_rounds

    def is_whole(self, kernel: Kernel) -> bool:
        """Whether all was captured of a kernel that is wanted."""
        return self.is_timed(kernel) and not self._lacks_sampled_ctas(kernel) and not self._lacks_passes(kernel)

    def is_all_read(self, read: Collection[KernelKey]) -> bool:
        """Whether all that was asked for was `read`: of each pattern a kernel, and every kernel that is launched still.

        A kernel that was not launched for a while, that cannot be traced, or that a tuner tried is not waited for.
        """
        fitting = [kernel for kernel in self.kernels.values() if self.fits(kernel)]
        done = [kernel for kernel in fitting if kernel.key in read and self.is_whole(kernel)]
        names = {name for kernel in done for name in (kernel.name, kernel.compiled.name)}
        if not all(any(fnmatchcase(name, pattern) for name in names) for pattern in self.options.patterns):
            return False
        return not any(self._is_awaited(kernel) for kernel in fitting if kernel not in done)

    def _is_awaited(self, kernel: Kernel) -> bool:
        if kernel.problem or not kernel.launches or self.launches - kernel.last_launch > IDLE:
            return False
        if kernel.taken is None and self.is_full:
            return False
        return kernel.taken is not None or not self.is_one_of_many(kernel)
