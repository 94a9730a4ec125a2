"""Every launch of a Triton kernel in this process: counted, timed, and a few of each kernel's replaced by its twin.

The twin is launched *instead of* the plain kernel, so that what the script sees is what it would have
seen: nothing is copied and nothing runs twice.
"""

import math
import os
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kperf.compat.torch import INDUCTOR_VARIABLES, inductor_autotuner
from kperf.compat.triton import (
    Autotuner,
    CompiledKernel,
    Launch,
    LaunchCall,
    argument_names,
    intercepted_launches,
    profile_buffer,
    python_function,
)
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.trace import PASSES
from kperf.trace.capture.check import Memory
from kperf.trace.capture.gpu import Gpu, Mark
from kperf.trace.capture.instrumented import InstrumentedKernel, make_instrumented, orders
from kperf.trace.capture.multipass import MultiPass, plan
from kperf.trace.capture.passes import parse
from kperf.trace.instrument.events import Rules
from kperf.trace.instrument.session import HEADER_BYTES

MOST_KERNELS = 10
"""Kernels that are traced in a run."""
WARM = 3
"""The launch of a kernel that is traced, if there are so many; the first is too, for scripts that launch it once."""
ROUNDS = 5
"""Of the launches from there on, the twin stands for every other one so often: in turn with the plain kernel, since a
GPU that waited for a compiler and one that is hot are two."""
LITTLE = 0.03
"""Of the plain kernel's time: a launch with all records that costs no more, in the plain kernel's order, is enough."""
_TIMED_LAUNCHES = 32
"""So many launches of a kernel get events, and then one in so many; the time of all is reckoned from these."""
_ALONE = 2
"""The launch of a kernel, still a warm-up, before which the GPU spins as it does before the traced ones."""
_SHORT_MS = 0.1
"""Of a shorter kernel an event before the launch may lie before the host is ready: only launches alone are compared."""

Span = tuple[Mark, Mark]


@dataclass(frozen=True)
class TraceOptions:
    """What to trace.

    `patterns`: names of kernels, with * and ?. `launch`: the launch of each kernel; None for the first and a warm one.
    `memory`: bytes for the records of a launch. `check`: launch the plain kernel and the twin in turn on the same
    bytes, and compare what they wrote. `passes`: over how many more launches a trip's records are spread at most, None
    for as many as choosing finds, 1 for none.
    """

    patterns: Sequence[str] = ("*",)
    launch: int | None = None
    regions: Sequence[str] = ("*",)
    memory: int = 1 << 30
    listing: bool = False
    check: bool = False
    passes: int | None = field(default_factory=lambda: parse(PASSES))


@dataclass
class CapturedLaunch:
    """A launch that was traced: the bytes of its records, and when the twin began and ended in each round.

    `plain_spans`: of the plain launches between. `same_outputs`: whether the twin wrote what the plain kernel wrote;
    None if that was not asked for, or if the plain kernel does not write the same twice.
    """

    number: int
    grid: tuple[int, int, int]
    buffer: NDArray[np.uint8]
    spans: list[Span]
    twin: InstrumentedKernel
    arguments: dict[str, str]
    same_outputs: bool | None
    plain_spans: list[Span] = field(default_factory=list)
    rounds: int = ROUNDS
    """How many of each there are to be."""
    several: MultiPass | None = None
    """Its passes, taken from later launches of the same grid."""
    why_one: str = ""
    """Why there are none."""

    @property
    def records_of_a_warp(self) -> int:
        """The most records that a warp wrote."""
        recording = self.twin.recording
        blocks = self.buffer.view(np.uint32).reshape(-1, recording.block_bytes // 4)
        counters = blocks[:, HEADER_BYTES // 4 : HEADER_BYTES // 4 + recording.total_warps]
        return int(counters.max()) // 2


@dataclass
class Kernel:
    """A kernel that the script launched, as compiled for one signature."""

    compiled: CompiledKernel
    name: str
    file: str
    line: int
    launches: int = 0
    captured: int = 0
    """Interceptor into a CUDA graph, which are left alone."""
    grids: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    spans: list[Span] = field(default_factory=list)
    alone: list[Span] = field(default_factory=list)
    taken: CapturedLaunch | None = None
    problem: UsageError | MeasurementError | None = None
    """Why it is not traced: a sentence without its name."""

    @property
    def grid(self) -> tuple[int, int, int]:
        """That of most of its launches; (0, 0, 0) if all of them went into a CUDA graph."""
        return max(self.grids, key=lambda grid: self.grids[grid], default=(0, 0, 0))


@dataclass(frozen=True)
class _Seen:
    """What launching it gave: the bytes of its records, the times, whether it wrote the same (see `CapturedLaunch`)."""

    records: NDArray[np.uint8] | None
    spans: list[Span]
    plain_spans: list[Span]
    same: bool | None


class Interceptor(AbstractContextManager["Interceptor"]):
    """While it is open, launches are seen and the chosen ones traced; afterwards `kernels` says what there was."""

    def __init__(self, choice: TraceOptions, rules: Rules, gpu: Gpu, say: Callable[[str], None]) -> None:
        """`say` gets a line whenever something takes a while."""
        self.choice = choice
        self.kernels: dict[str, Kernel] = {}
        self._rules = rules
        self._gpu = gpu
        self._say = say
        self._tuning = threading.local()
        self._tracing = threading.Lock()
        self._launch_of: Callable[[CompiledKernel], Launch]
        """What launches a kernel without being seen here."""
        self._folder = tempfile.TemporaryDirectory(prefix="kperf-trace-")
        self._patches = ExitStack()
        """Undoes what was put in place of others' functions and variables."""
        self._alone = ExitStack()
        """Holds the GPU's lock from the first launch that is traced to the script's end."""

    def __enter__(self) -> "Interceptor":
        for name, value in {
            **INDUCTOR_VARIABLES,
            "TORCHINDUCTOR_CACHE_DIR": str(Path(self._folder.name) / "inductor"),
        }.items():
            self._set_variable(name, value)
        self._launch_of = self._patches.enter_context(intercepted_launches(self._intercept))
        self._mark_tuning(Autotuner, "_bench")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._patches.close()
        self._alone.close()
        self._folder.cleanup()

    @property
    def chosen(self) -> list[Kernel]:
        """Those whose names fit the patterns, the slowest first."""
        fitting = [kernel for kernel in self.kernels.values() if self._fits(kernel)]
        return sorted(fitting, key=self.total_ms, reverse=True)

    def total_ms(self, kernel: Kernel) -> float:
        """GPU time of all its launches, reckoned from those that had events; 0 if nothing is known of them."""
        traced = [*kernel.taken.spans, *kernel.taken.plain_spans] if kernel.taken else []
        times = self._times([*kernel.spans, *kernel.alone, *traced])
        return statistics.fmean(times) * kernel.launches if times else 0.0

    def plain_ms(self, kernel: Kernel) -> float | None:
        """Median time of the plain launches in turn with the twin, else of all; None if there is only the first."""
        if kernel.taken and kernel.taken.plain_spans:
            return statistics.median(self._times(kernel.taken.plain_spans))
        alone, others = self._times(kernel.alone), self._times(kernel.spans[1:])
        if alone and statistics.median(alone) < _SHORT_MS:
            others = []
        return statistics.median([*alone, *others]) if alone or others else None

    def median_ms(self, spans: Sequence[Span]) -> float:
        """Median time of some launches."""
        return statistics.median(self._times(spans))

    def _times(self, spans: Sequence[Span]) -> list[float]:
        return [self._gpu.milliseconds(*span) for span in spans]

    def _fits(self, kernel: Kernel) -> bool:
        """By the name of its function, or by that which a profiler shows."""
        names = (kernel.name, kernel.compiled.name)
        return any(fnmatchcase(name, pattern) for name in names for pattern in self.choice.patterns)

    def _intercept(self, kernel: CompiledKernel) -> Callable[[LaunchCall], None]:
        self._mark_inductors_tuning()
        return partial(self._launched, kernel)

    def _launched(self, kernel: CompiledKernel, call: LaunchCall) -> None:
        if getattr(self._tuning, "depth", 0):
            call()
        elif self._gpu.capturing():
            self._kernel(kernel).captured += 1
            call()
        else:
            self._see(kernel, call)

    def _see(self, compiled: CompiledKernel, call: LaunchCall) -> None:
        """One launch of the script's own."""
        kernel = self._kernel(compiled)
        kernel.launches += 1
        kernel.grids[call.grid] += 1
        instead = self._instead(kernel, call.grid)
        if instead and self._tracing.acquire(blocking=False):
            try:
                if instead(kernel, call):
                    return
            finally:
                self._tracing.release()
        if kernel.launches > _TIMED_LAUNCHES and kernel.launches % _TIMED_LAUNCHES:
            call()
        elif kernel.launches == _ALONE and not self.choice.listing:
            kernel.alone.append(self._timed(call, call.stream))
        else:
            start = self._gpu.mark(call.stream)
            call()
            kernel.spans.append((start, self._gpu.mark(call.stream)))

    def _kernel(self, compiled: CompiledKernel) -> Kernel:
        if compiled.hash in self.kernels:
            return self.kernels[compiled.hash]
        function = python_function(compiled)
        code = getattr(function, "__code__", None)
        name = getattr(function, "__name__", compiled.name)
        made = Kernel(compiled, name, code.co_filename if code else "", code.co_firstlineno if code else 0)
        self.kernels[compiled.hash] = made
        return made

    def _instead(self, kernel: Kernel, grid: tuple[int, int, int]) -> Callable[[Kernel, LaunchCall], bool] | None:
        """What to do in the place of a launch; None for those that stay as they are."""
        taken = kernel.taken
        if taken and self._wants_a_round(taken, grid):
            return self._take_round
        if taken and self._wants_a_pass(taken, grid):
            return self._take_pass
        return self._trace if self._is_due(kernel, grid) else None

    def _is_due(self, kernel: Kernel, grid: tuple[int, int, int]) -> bool:
        """Whether this launch is one to trace."""
        if self.choice.listing or kernel.problem or not self._fits(kernel) or 0 in grid:
            return False
        traced = [other for other in self.kernels.values() if other.taken]
        if self.choice.launch is not None:
            return kernel.launches == self.choice.launch and len(traced) < MOST_KERNELS
        if len(traced) < MOST_KERNELS or kernel.taken:
            return kernel.launches in (1, WARM)
        return kernel.launches == WARM and self._displaces(kernel, traced)

    def _displaces(self, kernel: Kernel, traced: Sequence[Kernel]) -> bool:
        """Whether a kernel that comes late takes more time than one that is traced, which then makes room for it."""
        fastest = min(traced, key=self.total_ms)
        if self.total_ms(kernel) <= self.total_ms(fastest):
            return False
        fastest.taken = None
        fastest.problem = UsageError(f"{MOST_KERNELS} slower kernels are traced: choose it with --kernel")
        return True

    def _trace(self, kernel: Kernel, call: LaunchCall) -> bool:
        """Launch the twin; False, with the reason in `kernel.problem`, if the plain kernel still has to be launched."""
        begin = time.monotonic()
        try:
            self._alone.enter_context(device.exclusive())
            twin = self._twin(kernel, call.grid)
            seen = self._launch_twin(twin.kernel, twin.block_bytes, call, check=self.choice.check)
        except (UsageError, MeasurementError) as error:
            kernel.problem = error
            return self._give_up(kernel)
        except Exception as error:  # a pass of Triton's, ptxas or the driver refuses the twin: the script goes on
            kernel.problem = UsageError(f"its twin is refused: {_first_line(error)}")
            return self._give_up(kernel)
        assert seen.records is not None
        described = _described(kernel.compiled, call.arguments)
        kernel.taken = CapturedLaunch(
            kernel.launches, call.grid, seen.records, seen.spans, twin, described, seen.same, seen.plain_spans
        )
        took = time.monotonic() - begin
        megabytes = seen.records.size >> 20
        self._say(f"traced {kernel.name}, launch {kernel.launches}, {megabytes} MB of records ({took:.1f} s)")
        return True

    def _launch_twin(
        self,
        twin: CompiledKernel,
        block_bytes: int,
        call: LaunchCall,
        *,
        check: bool,
        read: bool = True,
    ) -> "_Seen":
        """Launch a twin in the place of the plain kernel; to check it both, several times. Its records if to be read.

        Raises `UsageError` if the driver refuses it, before anything was written.
        """
        stream = call.stream
        twin_call = call.of(twin, self._launch_of(twin))
        with self._gpu.on(stream):
            buffer = self._gpu.buffer(math.prod(call.grid) * block_bytes)
            memory = Memory(call.arguments) if check else None
            before = memory.copy() if memory else []

        def launch_traced() -> None:
            with profile_buffer(lambda _size, _alignment, _stream: buffer):
                twin_call()

        try:
            with self._gpu.on(stream):
                if memory is None:
                    spans = [self._timed(launch_traced, stream)]
                    return _Seen(self._gpu.to_host(buffer) if read else None, spans, [], None)
                same = self._compare(call, launch_traced, memory, before)
                spans, plain_spans = self._in_turn(call, launch_traced, memory, before, stream)
                return _Seen(self._gpu.to_host(buffer), spans, plain_spans, same)
        except Exception as error:  # the driver refuses it; what the plain kernel meets, the script is told by it
            raise UsageError(f"its twin cannot be launched: {_first_line(error)}") from None

    def _wants_a_round(self, taken: CapturedLaunch, grid: tuple[int, int, int]) -> bool:
        """Whether this launch is one of those in turn, in which the twin and the plain kernel are compared."""
        return self._is_warm(taken) and len(taken.plain_spans) < taken.rounds and grid == taken.grid

    def _is_warm(self, taken: CapturedLaunch) -> bool:
        return taken.number == (self.choice.launch or WARM)

    def _take_round(self, kernel: Kernel, call: LaunchCall) -> bool:
        """Launch the plain kernel or the twin, whose turn it is; False if the plain kernel still has to be launched."""
        taken = kernel.taken
        assert taken is not None
        if len(taken.plain_spans) < len(taken.spans):
            taken.plain_spans.append(self._timed(call, call.stream))
            return True
        twin, last = taken.twin, len(taken.spans) == taken.rounds - 1
        try:
            seen = self._launch_twin(twin.kernel, twin.block_bytes, call, check=False, read=last)
        except Exception as error:  # as in `_trace`; what was recorded before stands
            taken.rounds = len(taken.plain_spans)
            self._say(f"{kernel.name}: round {len(taken.spans) + 1} is left out: {_first_line(error)}")
            return False
        taken.spans += seen.spans
        if seen.records is not None:
            taken.buffer = seen.records
        return True

    def _plan_passes(self, kernel: Kernel, taken: CapturedLaunch) -> MultiPass | None:
        """Choose and compile the passes of a kernel, while the script waits; None, with the reason, without any."""
        if self.choice.passes is None and (cost := self._small_cost(kernel, taken)) is not None:
            taken.why_one = f"one launch with all records costs {cost:.1%} and keeps the order of instructions"
            return None
        begin = time.monotonic()
        try:
            taken.several = plan(
                kernel.compiled,
                math.prod(taken.grid),
                Path(self._folder.name),
                most=self.choice.passes,
                memory=self.choice.memory,
                regions=self.choice.regions,
                rules=self._rules,
                say=lambda line: self._say(f"{kernel.name}: {line}"),
            )
        except (UsageError, MeasurementError) as error:
            taken.why_one = str(error)
        except Exception as error:  # as above
            taken.why_one = f"a twin of a few records is refused: {_first_line(error)}"
        else:
            count, took = len(taken.several.passes), time.monotonic() - begin
            self._say(f"{kernel.name}: {count} passes for the next launches of grid {taken.grid} ({took:.1f} s)")
        return taken.several

    def _small_cost(self, kernel: Kernel, taken: CapturedLaunch) -> float | None:
        """What the launch with all records costs, if no passes are wanted for that: it is little, and moves nothing."""
        plain_ms = self.plain_ms(kernel)
        cost = self.median_ms(taken.spans) / plain_ms - 1 if plain_ms else math.inf
        return cost if cost <= LITTLE and not orders(taken.twin).differences else None

    def _wants_a_pass(self, taken: CapturedLaunch, grid: tuple[int, int, int]) -> bool:
        """Whether this launch is one for a pass: all of them have to be like the one with all records."""
        if self.choice.passes == 1 or taken.why_one or grid != taken.grid or not self._is_warm(taken):
            return False
        return taken.several is None or bool(taken.several.waiting)

    def _take_pass(self, kernel: Kernel, call: LaunchCall) -> bool:
        """Launch the plain kernel or the pass whose turn it is; False, the reason in `CapturedLaunch`, if neither."""
        taken = kernel.taken
        assert taken is not None
        several = taken.several or self._plan_passes(kernel, taken)
        if several is None:
            return False
        if len(several.plain_spans) + len(several.waiting) == len(several.passes):
            several.plain_spans.append(self._timed(call, call.stream))
            return True
        one = several.waiting[0]
        block_bytes = one.recording.block_bytes * kernel.compiled.metadata.num_ctas
        try:
            seen = self._launch_twin(one.kernel, block_bytes, call, check=self.choice.check)
        except Exception as error:  # as in `_trace`
            taken.why_one = f"a pass was refused: {_first_line(error)}"
            return False
        one.buffer, one.spans = seen.records, seen.spans
        if seen.same is False:
            taken.same_outputs = False
        return True

    def _give_up(self, kernel: Kernel) -> bool:
        self._say(f"{kernel.name} is not traced: {kernel.problem}")
        return False

    def _timed(self, launch: Callable[[], None], stream: int) -> Span:
        """A launch, with the host ahead of it."""
        self._gpu.spin(stream)
        start = self._gpu.mark(stream)
        launch()
        return start, self._gpu.mark(stream)

    def _twin(self, kernel: Kernel, grid: tuple[int, int, int]) -> InstrumentedKernel:
        """The twin for this launch: the last one's, if what its records showed would not make another ring."""
        blocks, before = math.prod(grid), kernel.taken
        records = before.records_of_a_warp if before else None
        if before and before.twin.recording == before.twin.ring_for(blocks, self.choice.memory, records):
            return before.twin
        return make_instrumented(
            kernel.compiled,
            blocks,
            Path(self._folder.name),
            memory=self.choice.memory,
            regions=self.choice.regions,
            rules=self._rules,
            records=records,
        )

    def _compare(
        self,
        plain: Callable[[], None],
        traced: Callable[[], None],
        memory: Memory,
        before: Sequence[torch.Tensor],
    ) -> bool | None:
        """Whether both write the same bits from the same bytes; None if the plain kernel alone does not."""
        plain()
        expected = memory.copy()
        memory.restore(before)
        plain()
        repeats = memory.equals(expected)
        memory.restore(before)
        traced()
        same = memory.equals(expected)
        return same if same or repeats else None

    def _in_turn(
        self,
        plain: Callable[[], None],
        traced: Callable[[], None],
        memory: Memory,
        before: Sequence[torch.Tensor],
        stream: int,
    ) -> tuple[list[Span], list[Span]]:
        """Both, several times from the same bytes; what stays is the plain kernel's if they differ."""
        spans, plain_spans = [], []
        for _ in range(ROUNDS):
            memory.restore(before)
            spans.append(self._timed(traced, stream))
            memory.restore(before)
            plain_spans.append(self._timed(plain, stream))
        return spans, plain_spans

    def _mark_inductors_tuning(self) -> None:
        autotuner = inductor_autotuner()
        if autotuner is not None and not hasattr(autotuner.bench, "__wrapped__"):  # type: ignore[attr-defined]
            self._mark_tuning(autotuner, "bench")

    def _mark_tuning(self, owner: type, name: str) -> None:
        """Interceptor inside an autotuner's benchmark are not the script's own."""
        plain = getattr(owner, name)

        def tuning(*arguments: Any, **options: Any) -> Any:
            self._tuning.depth = getattr(self._tuning, "depth", 0) + 1
            try:
                return plain(*arguments, **options)
            finally:
                self._tuning.depth -= 1

        tuning.__wrapped__ = plain  # type: ignore[attr-defined]
        self._set(owner, name, tuning)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = owner.__dict__[name]
        self._patches.callback(setattr, owner, name, before)
        setattr(owner, name, value)

    def _set_variable(self, name: str, value: str) -> None:
        before = os.environ.get(name)

        def restore() -> None:
            os.environ.pop(name, None)
            if before is not None:
                os.environ[name] = before

        self._patches.callback(restore)
        os.environ[name] = value


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _described(kernel: CompiledKernel, arguments: Sequence[Any]) -> dict[str, str]:
    """The arguments of a launch in words: shapes and dtypes of tensors, the values of numbers."""
    return {name: _in_words(value) for name, value in zip(argument_names(kernel), arguments, strict=False)}


def _in_words(value: Any) -> str:
    tensor = getattr(value, "base", value)  # a tensor descriptor's
    if hasattr(tensor, "shape") and hasattr(tensor, "dtype"):
        return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    return str(value)
