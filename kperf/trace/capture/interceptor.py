"""Every launch of a Triton kernel in this process: counted, timed, and a few of each kernel's traced."""

import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Any

from kperf.compat.torch import INDUCTOR_VARIABLES, inductor_autotuner
from kperf.compat.triton import Autotuner, CompiledKernel
from kperf.compat.triton.launches import LaunchCall, compilations_within, intercepted_launches
from kperf.compat.triton.sources import python_function
from kperf.errors import UsageError
from kperf.record.scratch import Scratch
from kperf.trace.capture.capturer import Capturer
from kperf.trace.capture.gpu import Gpu
from kperf.trace.capture.kernels import Kernel, KernelKey, TraceOptions
from kperf.trace.capture.scheduler import Scheduler
from kperf.trace.instrument.events import Rules

_TIMED_LAUNCHES = 32
"""So many launches of a kernel are timed, and then one in so many; the time of all is estimated from these."""
_ALONE = 2
"""The launch of a kernel, still a warm-up, before which the GPU spins as it does before the traced ones."""
_OFTEN = 100
"""Launches between which it is asked whether the script can be ended."""

_one_at_a_time = threading.Lock()

_Instead = Callable[[Kernel, int, LaunchCall], bool]
"""Does something in the place of a launch; whether it launched."""


Before = Callable[["Interceptor", Kernel, LaunchCall, bool], None]
"""Called before a launch of the script's own, with whether that launch is traced."""


class Interceptor(AbstractContextManager["Interceptor"]):
    """While it is open, launches are seen and the chosen ones traced; `scheduler.kernels` says what there was.

    A process that the script forks launches as ever: the GPU's lock and the folder are this one's.
    """

    def __init__(
        self,
        options: TraceOptions,
        rules: Rules,
        gpu: Gpu,
        say: Callable[[str], None],
        captured: Callable[[Kernel], None] = lambda _: None,
        often: Callable[[], None] = lambda: None,
        before: Before | None = None,
    ) -> None:
        """`say` gets a line whenever something takes a while; `captured` a kernel after each launch to be traced.

        `often` is called after these too, and between other launches now and then, `before` ahead of each.
        """
        self.options = options
        self.gpu = gpu
        self.scheduler = Scheduler(options, gpu)
        self._rules = rules
        self._say = say
        self._captured = captured
        self._often = often
        self._before = before
        self._tuning = threading.local()
        self._counting = threading.Lock()
        """Of what is counted and decided; held for no longer than that."""
        self._over = False
        self._process = os.getpid()
        self._scratch = Scratch(".kperf-trace-")
        self.folder = self._scratch.path
        """Where what is compiled here is kept, until this is closed: no cache of the user's sees it."""
        self._open = ExitStack()
        self.capturer: Capturer

    @property
    def is_in_a_fork(self) -> bool:
        """Whether this process was forked since this was made."""
        return os.getpid() != self._process

    def __enter__(self) -> "Interceptor":
        """From now on launches are seen. Raises `UsageError` inside of another trace of this process."""
        if not _one_at_a_time.acquire(blocking=False):
            raise UsageError("another trace of this process is open: end it first, there can be one at a time")
        self._open.callback(_one_at_a_time.release)
        cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor")}
        for name, value in {**INDUCTOR_VARIABLES, **cache}.items():
            self._set_variable(name, value)
        launch_of = self._open.enter_context(intercepted_launches(self._intercept))
        self.capturer = Capturer(self.scheduler, self._rules, self.gpu, self._say, self.folder, launch_of)
        self._mark_tuning(Autotuner, "_bench")
        # They wait for ours in another thread, which asks the whole compiler for events.
        self._open.enter_context(compilations_within(self.capturer.compiling))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave everything as it was."""
        self.close()

    def close(self) -> None:
        """Let launches be, give the GPUs back and remove what was compiled."""
        self.end()
        if not self.is_in_a_fork:
            self.capturer.close()
            self._scratch.close()

    def end(self) -> None:
        """From now on launches are the script's own again, those that are under way too."""
        self._over = True
        self._open.close()

    def trace_graphs(self) -> None:
        """Trace the kernels that were launched into CUDA graphs alone, by one more launch of each.

        It has the arguments of the graph, and so only `check`, which puts back what it wrote, allows for it.
        """
        if not self.options.check or self.options.listing:
            return
        for kernel in self.scheduler.chosen:
            call = kernel.graph_call
            if call is None or kernel.launches or kernel.problem:
                continue
            with self.gpu.at(kernel.device):
                if self.capturer.trace(kernel, 1, call.again(self.gpu.stream())):
                    self._captured(kernel)

    def _intercept(self, compiled: CompiledKernel) -> Callable[[LaunchCall], None]:
        self._mark_inductors_tuning()
        return partial(self._launched, compiled)

    def _launched(self, compiled: CompiledKernel, call: LaunchCall) -> None:
        if self._over or self.is_in_a_fork or getattr(self._tuning, "depth", 0) > 0:
            call()
        elif self.gpu.capturing():
            with self._counting:
                self._kernel(compiled).graph_call = call
            call()
        else:
            self._see(compiled, call)

    def _see(self, compiled: CompiledKernel, call: LaunchCall) -> None:
        """One launch of the script's own."""
        with self._counting:
            kernel = self._kernel(compiled)
            number = self.scheduler.note(kernel, call.grid)
            instead = None if kernel.busy else self._instead(kernel, number, call.grid)
            ours = not kernel.busy and (instead is not None or self._before is not None)
            kernel.busy = kernel.busy or ours
        launched = False
        if ours:
            try:
                if self._before is not None:
                    self._before(self, kernel, call, instead == self.capturer.trace)
                if instead is not None:
                    launched = instead(kernel, number, call)
            finally:
                kernel.busy = False
        if instead is not None:
            if not launched:
                call()
            self._captured(kernel)
            self._often()
            return
        if number == 1:
            kernel.cold = self.capturer.span(call, call.stream)
        elif number == _ALONE and not self.options.listing:
            kernel.alone.append(self.capturer.timed(call, call.stream))
        elif number <= _TIMED_LAUNCHES or number % _TIMED_LAUNCHES == 0:
            kernel.spans.append(self.capturer.span(call, call.stream))
        else:
            call()
        if self.scheduler.launches % _OFTEN == 0:
            self._often()

    def _kernel(self, compiled: CompiledKernel) -> Kernel:
        key = KernelKey(compiled.hash, self.gpu.device())
        if key not in self.scheduler.kernels:
            function = python_function(compiled)
            code = getattr(function, "__code__", None)
            name = getattr(function, "__name__", compiled.name)
            file, line = (code.co_filename, code.co_firstlineno) if code else ("", 0)
            self.scheduler.kernels[key] = Kernel(compiled, key.device, name, file, line)
        return self.scheduler.kernels[key]

    def _instead(self, kernel: Kernel, number: int, grid: tuple[int, int, int]) -> _Instead | None:
        """What to do in the place of a launch; None for those that stay as they are."""
        if self.scheduler.wants_a_round(kernel, grid):
            return self.capturer.take_round
        if self.scheduler.wants_sampled_ctas(kernel, grid):
            return self.capturer.take_sampled_ctas
        if self.scheduler.wants_a_pass(kernel, grid):
            return self.capturer.take_pass
        return self.capturer.trace if self.scheduler.is_due(kernel, number, grid) else None

    def _mark_inductors_tuning(self) -> None:
        autotuner = inductor_autotuner()
        if autotuner is not None and not hasattr(autotuner.bench, "__wrapped__"):  # type: ignore[attr-defined]
            self._mark_tuning(autotuner, "bench")

    def _mark_tuning(self, owner: type, name: str) -> None:
        """Launches inside an autotuner's benchmark are not the script's own."""
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
        self._open.callback(setattr, owner, name, owner.__dict__[name])
        setattr(owner, name, value)

    def _set_variable(self, name: str, value: str) -> None:
        before = os.environ.get(name)

        def restore() -> None:
            os.environ.pop(name, None)
            if before is not None:
                os.environ[name] = before

        self._open.callback(restore)
        os.environ[name] = value
