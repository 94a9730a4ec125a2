"""Launch instrumented kernels in the place of a script's own, and bring their events home.

The instrumented kernel is launched *instead of* the original, so that what the script sees is what it would have seen:
nothing is copied and nothing runs twice, but where `check` or `samples` asks for both.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from kperf.compat.cupti import RefusedError
from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.launches import Launch, LaunchCall, profile_buffer
from kperf.compat.triton.sources import argument_names
from kperf.compat.triton.tuning import JitCall
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.trace.capture.check import Memory
from kperf.trace.capture.gpu import Gpu, Span
from kperf.trace.capture.instrumented import InstrumentedKernel, make_instrumented, orders
from kperf.trace.capture.kernels import ROUNDS, WARM, CapturedLaunch, Kernel, TraceOptions
from kperf.trace.capture.multipass import plan
from kperf.trace.capture.pc_sampling import Sampled, sample
from kperf.trace.capture.repeated import Repeated, repeated
from kperf.trace.capture.sampled import disturbs, with_sampled_ctas
from kperf.trace.capture.scheduler import Scheduler
from kperf.trace.capture.trial import Change, Check, Trial, Tried
from kperf.trace.instrument.events import Rules
from kperf.trace.instrument.sampled import Sample

LITTLE = 0.03
"""Of the original kernel's time: a launch with all events that costs no more, in its order, is enough."""
_SLOW_S = 2.0
"""An instrumented kernel that takes longer to compile is not compiled again for a smaller buffer."""


@dataclass(frozen=True)
class _Launched:
    """What launching it gave: the bytes of its events, the times, whether it wrote the same (see `CapturedLaunch`)."""

    events: NDArray[np.uint8] | None
    spans: list[Span]
    original_spans: list[Span]
    same: bool | None


@dataclass(frozen=True)
class _BeforeLaunch:
    """What was done before a launch that is traced: its samples, or why there are none; and the launch on copies."""

    samples: Sampled | None = None
    why_none: str = ""
    repeated: Repeated | None = None


class Capturer:
    """Traces launches. Each method returns whether it launched; else the original kernel still has to be.

    Threads of the script compile one after another: what Triton's compiler is asked to add, and where its cache lies,
    is one for the whole process. For the same reason an instrumented kernel is not compiled beside the running script:
    a launch of another thread would meanwhile be compiled with events, into our cache. To launch, a thread waits only
    for another's launch and never for the GPU: what a kernel waits for may be launched by another thread.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        rules: Rules,
        gpu: Gpu,
        say: Callable[[str], None],
        folder: Path,
        launch_of: Callable[[CompiledKernel], Launch],
    ) -> None:
        """`folder`: where what is compiled here is kept; `launch_of`: loads a kernel, and gives its own launch."""
        self.compiling = device.Compiling()
        self._launching = threading.Lock()
        self._scheduler = scheduler
        self._options: TraceOptions = scheduler.options
        self._rules = rules
        self._gpu = gpu
        self._say = say
        self._folder = folder
        self._launch_of = launch_of
        self._no_samples = ""
        """Why the GPU samples nothing in this process, once that is known."""
        self._alone = ExitStack()
        """Holds the lock of each GPU from its first launch that is traced on, or from the script's begin on."""

    def wait(self) -> None:
        """Take turns on the current GPU with others that measure there: they have it while this process compiles."""
        self._alone.enter_context(device.in_turn())

    def close(self) -> None:
        """Give the GPUs' locks back."""
        self._alone.close()

    def trace(self, kernel: Kernel, number: int, call: LaunchCall) -> bool:
        """Trace launch `number` of a kernel; why not, is in `kernel.problem`."""
        begin = time.monotonic()
        try:
            with self.compiling:
                self._alone.enter_context(device.exclusive())
                instrumented = self._instrumented(kernel, call.grid)
            compiled_s = time.monotonic() - begin
            sampled = self._sampled(kernel, call) if self._options.samples else _BeforeLaunch()
            begin = time.monotonic() - compiled_s
            kernel.taken = self._capture(kernel, number, call, instrumented)
            if sampled.repeated is not None and not kernel.taken.is_complete:
                kernel.taken = self._capture_whole(kernel, kernel.taken, sampled.repeated)
            kernel.taken.samples, kernel.taken.no_samples = sampled.samples, sampled.why_none
        except (UsageError, MeasurementError) as error:
            kernel.problem = error
        except Exception as error:  # a pass of Triton's, ptxas or the driver refuses it: the script goes on
            kernel.problem = UsageError(f"its instrumented kernel is refused: {why(error)}")
        if kernel.problem:
            self._say(f"{kernel.name} is not traced: {kernel.problem}")
            return False
        assert kernel.taken is not None
        self._decide_on_ctas(kernel, kernel.taken)
        took, megabytes = time.monotonic() - begin, kernel.taken.buffer.size >> 20
        self._say(f"traced {kernel.name}, launch {number}, {megabytes} MB of events ({took:.1f} s)")
        return True

    def take_round(self, kernel: Kernel, _number: int, call: LaunchCall) -> bool:
        """Launch the original or the instrumented kernel, whose turn it is."""
        assert kernel.taken is not None
        launched = self._take_turn(kernel, kernel.taken, call)
        self._decide_on_ctas(kernel, kernel.taken)
        return launched

    def take_sampled_ctas(self, kernel: Kernel, number: int, call: LaunchCall) -> bool:
        """Launch the kernel that records sampled CTAs, or the original in turn; if `why_all` forbids it, a pass."""
        taken = kernel.taken
        assert taken is not None
        if taken.sampled is not None:
            return self._take_turn(kernel, taken.sampled, call)
        try:
            with self.compiling:
                made = self._sampling(kernel, taken)
            if made is not None:
                taken.sampled = self._capture(kernel, number, call, made)
        except Exception as error:  # as in `trace`
            taken.why_all = why(error)
        if taken.sampled is None:
            return self._scheduler.wants_a_pass(kernel, call.grid) and self.take_pass(kernel, number, call)
        taken.why_one = "sampled CTAs have all events in one launch"
        if taken.sampled.same_outputs is False:
            taken.same_outputs = False
        return True

    def _capture(
        self, kernel: Kernel, number: int, call: LaunchCall, instrumented: InstrumentedKernel
    ) -> CapturedLaunch:
        """Launch it in the place of launch `number`. Raises what `_launch` raises."""
        size = instrumented.buffer_bytes(math.prod(call.grid))
        launched = self._launch(instrumented.kernel, size, call, check=self._options.check)
        assert launched.events is not None
        return CapturedLaunch(
            number,
            number >= WARM or self._options.launch is not None,
            call.grid,
            launched.events,
            launched.spans,
            instrumented,
            _described(kernel.compiled, call.arguments),
            launched.same,
            launched.original_spans,
        )

    def _capture_whole(self, kernel: Kernel, taken: CapturedLaunch, repeated: Repeated) -> CapturedLaunch:
        """The launch once more, with room for all events that it wrote; as it was taken if there is no more room."""
        try:
            with self.compiling:
                larger = self._instrumented(kernel, taken.grid)
            if larger is taken.instrumented:
                return taken
            return self._capture(kernel, taken.number, repeated.call, larger)
        except Exception as error:  # as in `trace`; the script's own launch is over
            self._say(f"{kernel.name} is not launched again with room for all events: {why(error)}")
            return taken

    def _sampled(self, kernel: Kernel, call: LaunchCall) -> _BeforeLaunch:
        """Let the GPU sample the original kernel before a launch, on copies, which the launch may be made on once more.

        Not where it sampled an equal launch, or could not: how much room events need is known from that one.
        """
        before = kernel.taken
        if before and (before.grid, before.arguments) == (call.grid, _described(kernel.compiled, call.arguments)):
            return _BeforeLaunch(before.samples, before.no_samples)
        if self._no_samples:
            return _BeforeLaunch(None, self._no_samples)
        begin = time.monotonic()
        try:
            made = repeated(kernel.compiled, call, self._gpu)
            samples = sample(kernel.compiled, made, self._gpu)
            with self._gpu.on(call.stream):
                made.begin()
        except Exception as error:  # as in `trace`
            return _BeforeLaunch(None, self._not_sampled(kernel, error))
        count, took = sum(pc.samples for pc in samples.pcs), time.monotonic() - begin
        self._say(f"sampled {kernel.name}, {count} samples ({took:.1f} s)")
        return _BeforeLaunch(samples, "", made)

    def _not_sampled(self, kernel: Kernel, error: Exception) -> str:
        """The reason, printed: one that holds for the whole process is printed once."""
        if not isinstance(error, RefusedError):
            self._say(f"{kernel.name} is not sampled: {why(error)}")
            return why(error)
        self._say(f"nothing is sampled: {error}")
        self._no_samples = str(error)
        return self._no_samples

    def _take_turn(self, kernel: Kernel, taken: CapturedLaunch, call: LaunchCall) -> bool:
        """Launch the original or the instrumented kernel, whose turn it is, of a launch with all or sampled CTAs."""
        if len(taken.original_spans) < len(taken.spans):
            taken.original_spans.append(self.timed(call, call.stream))
            return True
        instrumented, last = taken.instrumented, len(taken.spans) == taken.rounds - 1
        try:
            size = instrumented.buffer_bytes(math.prod(call.grid))
            launched = self._launch(instrumented.kernel, size, call, check=False, read=last)
        except Exception as error:  # as in `trace`; what was recorded before stands
            taken.rounds = len(taken.original_spans)
            self._say(f"{kernel.name}: round {len(taken.spans) + 1} is left out: {why(error)}")
            return False
        taken.spans += launched.spans
        if launched.events is not None:
            taken.buffer = launched.events
        return True

    def take_pass(self, kernel: Kernel, _number: int, call: LaunchCall) -> bool:
        """Launch the original kernel or the pass whose turn it is; why neither, is in `CapturedLaunch.why_one`."""
        taken = kernel.taken
        assert taken is not None
        if taken.several is None:
            with self.compiling:
                self._plan_passes(kernel, taken)
        if taken.several is None:
            return False
        several = taken.several
        if len(several.original_spans) + len(several.waiting) == len(several.passes):
            several.original_spans.append(self.timed(call, call.stream))
            return True
        next_pass = several.waiting[0]
        size = next_pass.recording.block_bytes * kernel.compiled.metadata.num_ctas * math.prod(call.grid)
        try:
            launched = self._launch(next_pass.kernel, size, call, check=self._options.check)
        except Exception as error:  # as in `trace`
            taken.why_one = f"a pass was refused: {why(error)}"
            return False
        next_pass.buffer, next_pass.spans = launched.events, launched.spans
        if launched.same is False:
            taken.same_outputs = False
        return True

    def try_changes(
        self, kernel: Kernel, call: LaunchCall, changes: Sequence[Change], made_by: JitCall | None, deadline: float
    ) -> Tried:
        """Other configurations of a kernel, timed before this launch, which is still to be made.

        `made_by`: the call of a JIT function that launches it, if it is one. Raises `UsageError` if none can be tried.
        """
        begin, tried = time.monotonic(), Tried()
        trial = Trial(kernel.compiled, call, made_by, self._gpu, self._folder, deadline)
        with self.compiling:
            self._alone.enter_context(device.exclusive())
            compiled = trial.compile(changes, tried)
        trial.run(compiled, tried)
        count, took = len(tried.measured), time.monotonic() - begin
        self._say(f"{kernel.name}: {count} of {len(changes)} other configurations timed ({took:.1f} s)")
        return tried

    def check_results(
        self, kernel: Kernel, call: LaunchCall, right: Change, made_by: JitCall | None, deadline: float
    ) -> Check:
        """What a kernel computes, compared with configuration `right`, before this launch, which is still to be made.

        With its own first launch, if `right` is empty, does not compile, or compiles to the same machine code.
        `made_by`: as for `try_changes`. Raises `UsageError` if it cannot be checked.
        """
        begin = time.monotonic()
        trial = Trial(kernel.compiled, call, made_by, self._gpu, self._folder, deadline)
        with self.compiling:
            self._alone.enter_context(device.exclusive())
            compiled = trial.compile([right] if right else [], Tried())
        found = trial.check(compiled)
        self._say(f"{kernel.name}: results of {found.launches} launches checked ({time.monotonic() - begin:.1f} s)")
        return found

    def timed(self, launch: Callable[[], None], stream: int) -> Span:
        """A launch, with the host ahead of it."""
        self._gpu.spin(stream)
        return self.span(launch, stream)

    def span(self, launch: Callable[[], None], stream: int) -> Span:
        """A launch between two marks."""
        start = self._gpu.mark(stream)
        launch()
        return Span(start, self._gpu.mark(stream))

    def _instrumented(self, kernel: Kernel, grid: tuple[int, int, int]) -> InstrumentedKernel:
        """The kernel for this launch: the last one's, if what its events showed would not make another buffer."""
        ctas, before = math.prod(grid), kernel.taken
        if before and self._options.ctas == "sampled" and ctas != math.prod(before.grid):
            before = None  # of another launch perhaps other CTAs are recorded
        events = before.events_of_a_warp if before else None
        if before and before.instrumented.recording == before.instrumented.recording_of_launch(
            ctas, self._options.memory, events
        ):
            return before.instrumented
        if before and kernel.compiled_s > _SLOW_S and ctas == math.prod(before.grid) and before.is_complete:
            return before.instrumented
        begin = time.monotonic()
        made = make_instrumented(
            kernel.compiled,
            ctas,
            self._folder,
            memory=self._options.memory,
            regions=self._options.regions,
            rules=self._rules,
            events=events,
        )
        if self._options.ctas == "sampled":
            made = with_sampled_ctas(
                made, Sample.of(ctas), ctas, self._folder, memory=self._options.memory, events=events
            )
        kernel.compiled_s = time.monotonic() - begin
        return made

    def _decide_on_ctas(self, kernel: Kernel, taken: CapturedLaunch) -> None:
        """Take none where all CTAs were recorded, and timed, and that disturbs little."""
        if not taken.warm or taken.in_rounds or not self._options.wants_sampled_ctas:
            return
        cost = self._scheduler.cost(kernel, taken, wait=False)
        try:
            with self.compiling:  # machine code is read, and kept where compiled kernels are
                if cost is None or not disturbs(taken.instrumented, cost, self._folder):
                    taken.why_all = ""
        except Exception as error:  # as in `trace`
            taken.why_all = f"whether events disturb it is not known: {why(error)}"

    def _sampling(self, kernel: Kernel, taken: CapturedLaunch) -> InstrumentedKernel | None:
        """The kernel that records sampled CTAs, compiled while the script waits; None, and `why_all`, if none can."""
        begin, ctas = time.monotonic(), math.prod(taken.grid)
        made = with_sampled_ctas(
            taken.instrumented,
            Sample.of(ctas),
            ctas,
            self._folder,
            memory=self._options.memory,
            events=taken.events_of_a_warp,
        )
        took = f"({time.monotonic() - begin:.1f} s)"
        if made.sample is None:
            taken.why_all = made.why_all
            self._say(f"{kernel.name}: recording all CTAs disturbs it, and no sample is taken: {made.why_all} {took}")
            return None
        count, grid = made.sample.count(ctas), " x ".join(map(str, taken.grid))
        self._say(f"{kernel.name}: {count} sampled CTAs are recorded in the next launches of grid {grid} {took}")
        return made

    def _plan_passes(self, kernel: Kernel, taken: CapturedLaunch) -> None:
        """Choose and compile the passes of a kernel, while the script waits; or say why there are none."""
        if taken.instrumented.sample:
            taken.why_one = "sampled CTAs have all events in one launch"
            return
        if self._options.passes is None and (cost := self._small_cost(kernel, taken)) is not None:
            taken.why_one = f"one launch with all events costs {cost:.1%} and keeps the order of instructions"
            return
        begin = time.monotonic()
        try:
            taken.several = plan(
                kernel.compiled,
                math.prod(taken.grid),
                self._folder,
                most=self._options.passes,
                memory=self._options.memory,
                regions=self._options.regions,
                rules=self._rules,
                say=lambda line: self._say(f"{kernel.name}: {line}"),
            )
        except (UsageError, MeasurementError) as error:
            taken.why_one = str(error)
        except Exception as error:  # as in `trace`
            taken.why_one = f"an instrumented kernel of a few events is refused: {why(error)}"
        else:
            count, took = len(taken.several.passes), time.monotonic() - begin
            grid = " x ".join(map(str, taken.grid))
            self._say(f"{kernel.name}: {count} passes for the next launches of grid {grid} ({took:.1f} s)")

    def _small_cost(self, kernel: Kernel, taken: CapturedLaunch) -> float | None:
        """What the launch with all events costs, if no passes are wanted for that: it is little, and moves nothing."""
        if (cost := self._scheduler.cost(kernel, taken, wait=False)) is None or cost > LITTLE:
            return None
        return None if orders(taken.instrumented, self._folder).differences else cost

    def _launch(
        self, instrumented: CompiledKernel, size: int, call: LaunchCall, *, check: bool, read: bool = True
    ) -> _Launched:
        """Launch an instrumented kernel in the place of the original; to check it both, several times.

        `size`: bytes of its buffer. Its events if they are to be read. Raises `UsageError` if the driver refuses it, or
        has no memory for a check; the memory of the arguments then holds what it held before.
        """
        instead = call.of(instrumented, self._launch_of(instrumented))
        stream = call.stream
        with self._gpu.on(stream):
            buffer = self._gpu.buffer(size)
            memory = Memory(call.arguments) if check else None
            before = memory.copy() if memory else []

        def launch_traced() -> None:
            with self._launching, profile_buffer(lambda _size, _alignment, _stream: buffer):
                instead()

        try:
            with self._gpu.on(stream):
                if memory is None:
                    spans = [self.timed(launch_traced, stream)]
                    return _Launched(self._gpu.to_host(buffer) if read else None, spans, [], None)
                same = _compare(call, launch_traced, memory, before)
                spans, original_spans = self._in_turn(call, launch_traced, memory, before, stream)
                return _Launched(self._gpu.to_host(buffer), spans, original_spans, same)
        except Exception as error:  # the driver refuses it; what the original kernel meets, the script is told by it
            if memory is not None:  # a check has launched: the original kernel is still to be, once
                with self._gpu.on(stream), suppress(RuntimeError):  # of a GPU that an earlier kernel broke
                    memory.restore(before)
            raise UsageError(f"its instrumented kernel cannot be launched: {why(error)}") from None

    def _in_turn(
        self,
        original: Callable[[], None],
        traced: Callable[[], None],
        memory: Memory,
        before: Sequence[torch.Tensor],
        stream: int,
    ) -> tuple[list[Span], list[Span]]:
        """Both, several times from the same bytes; what stays is the original kernel's if they differ."""
        spans, original_spans = [], []
        for _ in range(ROUNDS):
            memory.restore(before)
            spans.append(self.timed(traced, stream))
            memory.restore(before)
            original_spans.append(self.timed(original, stream))
        return spans, original_spans


def _compare(
    original: Callable[[], None], traced: Callable[[], None], memory: Memory, before: Sequence[torch.Tensor]
) -> bool | None:
    """Whether both write the same bits from the same bytes; None if the original kernel alone does not."""
    original()
    expected = memory.copy()
    memory.restore(before)
    original()
    repeats = memory.equals(expected)
    memory.restore(before)
    traced()
    same = memory.equals(expected)
    return same if same or repeats else None


def why(error: Exception) -> str:
    """An error in a few words: the first line of what it says; of one that says no sentence, what it is."""
    lines = str(error).splitlines()
    if not lines or isinstance(error, LookupError | AssertionError | AttributeError | TypeError):
        return f"{type(error).__name__}, an error in this program"
    return lines[0]


def _described(kernel: CompiledKernel, arguments: Sequence[Any]) -> dict[str, str]:
    """The arguments of a launch in words: shapes and dtypes of tensors, the values of numbers."""
    return {name: _in_words(value) for name, value in zip(argument_names(kernel), arguments, strict=False)}


def _in_words(value: Any) -> str:
    tensor = getattr(value, "base", value)  # a tensor descriptor's
    if hasattr(tensor, "shape") and hasattr(tensor, "dtype"):
        return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
    return str(value)
