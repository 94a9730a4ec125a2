"""Other configurations of a kernel, compiled and timed at one of the script's launches, on copies of its tensors.

The script's own tensors are read and never written, so it computes what it would have computed. Compilers run in
processes of their own: one that aborts, or takes too long, costs its configuration alone.
"""

import gc
import json
import math
import os
import resource
import signal
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import triton

from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.cache import own_cache
from kperf.compat.triton.launches import LaunchCall, own_launch
from kperf.compat.triton.sources import argument_names, constexprs_of, python_function, source_with
from kperf.compat.triton.tuning import JitCall
from kperf.errors import UsageError
from kperf.ir.compile import options_of
from kperf.ir.memory import why_not_again, write_only
from kperf.ir.races import races
from kperf.ir.ttgir import Module
from kperf.record import device
from kperf.trace.capture.copies import Copies
from kperf.trace.capture.gpu import Gpu, Mark

LIMIT_S = 20.0
"""Of a kernel: to compile, to check and to time."""
ROUNDS = 21
LEAST_ROUNDS = 6
"""Fewer have no 95 % interval of a median."""
CHECKS = 20
"""Launches of a kernel whose results are in doubt."""
_ATOMICS = ("tt.atomic_rmw", "tt.atomic_cas")
_POLL_S = 0.0002

SAME_CODE = "it compiles to the same machine code"
"""Why a configuration is not timed that cannot be faster."""

Change = Mapping[str, int]
"""Constexprs and compile options by name, as they are written at the launch: {"num_stages": 3}."""


def in_words(change: Mapping[str, object]) -> str:
    """`BLOCK_M=128, num_warps=8`."""
    return ", ".join(f"{name}={value}" for name, value in change.items())


@dataclass(frozen=True)
class Measured:
    """A configuration that computes the same, and both kernels' times in milliseconds, interleaved."""

    change: dict[str, int]
    original_ms: list[float]
    changed_ms: list[float]


@dataclass
class Tried:
    """What came of the configurations of a kernel: times, or in words why there are none."""

    measured: list[Measured] = field(default_factory=list)
    dropped: list[tuple[dict[str, int], str]] = field(default_factory=list)

    def drop(self, change: Change, why: str) -> None:
        """Leave a configuration out."""
        self.dropped.append((dict(change), why))


@dataclass(frozen=True)
class Check:
    """Of how many launches the results are `different` from those `than` a configuration gives, beyond the tolerance.

    than: in words; empty: than those of the kernel's own first launch.
    """

    than: str
    launches: int
    different: int


def why_not_repeated(compiled: CompiledKernel) -> str | None:
    """Why one more launch of a kernel, on copies of its tensors, is not like the script's; None if it is."""
    if int(os.environ.get("WORLD_SIZE", "1") or 1) > 1:
        return "it is one of several processes, whose kernels may wait for each other"
    return why_not_again(Module(compiled.asm["ttgir"]))


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % interval of a median, from the order of at least six samples: the sign test's (Thompson 1936)."""
    ordered, count = sorted(ratios), len(ratios)
    below, outside = 0.0, 0
    while (below := below + math.comb(count, outside) / 2**count) <= 0.025:
        outside += 1
    return ordered[outside - 1], ordered[count - outside]


class Trial:
    """One kernel at one launch: `run` tries configurations until `deadline` (of `device.own_seconds`)."""

    def __init__(
        self,
        compiled: CompiledKernel,
        call: LaunchCall,
        made_by: JitCall | None,
        gpu: Gpu,
        folder: Path,
        deadline: float,
    ) -> None:
        """`made_by`: what launches it, if that is known; `folder`: where what is compiled here is kept."""
        self._compiled = compiled
        self._call = call.again(call.stream)
        self._made_by = made_by
        self._gpu = gpu
        self._folder = folder
        self._deadline = deadline

    def compile(self, changes: Sequence[Change], tried: Tried) -> list[tuple[Change, CompiledKernel]]:
        """Each configuration, compiled beside the others; nothing else may compile meanwhile.

        Raises `UsageError` if the kernel cannot be launched again, or not without changing what the script computes.
        """
        self._refuse_what_cannot_be_repeated()
        own = options_of(self._compiled) | constexprs_of(self._compiled)
        possible: list[Change] = []
        for change in changes:
            if all(own.get(name) == value for name, value in change.items()):
                continue
            if why := self._why_fixed(change):
                tried.drop(change, why)
            else:
                possible.append(change)
        compiled = []
        for change, why in zip(possible, self._compile_apart(possible), strict=True):
            if why:
                tried.drop(change, why)
                continue
            with own_cache(self._folder):
                kernel = self._compile_one(change)
            if _code(kernel) == _code(self._compiled):
                tried.drop(change, SAME_CODE)
            elif _may_be_wrong(kernel) and not _may_be_wrong(self._compiled):
                tried.drop(change, "its results may be wrong: a tile gets one buffer too few (buffer-race)")
            else:
                compiled.append((change, kernel))
        return compiled

    def run(self, compiled: Sequence[tuple[Change, CompiledKernel]], tried: Tried) -> None:
        """Check and time what was compiled.

        Raises `UsageError` if there is no memory for copies, or if the kernel takes too long or is never the same.
        """
        calls = []
        for change, kernel in compiled:
            try:
                calls.append((change, self._changed_call(change, kernel)))
            except Exception as error:  # more shared memory than there is; what the script's function of a grid raises
                tried.drop(change, _why(error))
        if not calls:
            return
        self._sees_end("what was launched before it")
        with self._gpu.on(self._call.stream):
            self._measure(*self._with_copies(calls, tried), tried)

    def check(self, right: Sequence[tuple[Change, CompiledKernel]]) -> Check:
        """Launch the kernel `CHECKS` times, and compare its results with those of the first configuration of `right`.

        With those of its own first launch, where `right` has none without the same doubt.

        Raises `UsageError` if there is no memory for copies or no time, if that configuration does not compute the same
        twice, or if nothing says what is right of a kernel whose atomics are done in another order each time.
        """
        sure = [(change, kernel) for change, kernel in right if not _may_be_wrong(kernel)]
        if not sure and any(op.name in _ATOMICS for op in Module(self._compiled.asm["ttgir"]).walk()):
            raise UsageError("its atomics may compute something else each time, so two launches say nothing")
        calls = [(change, self._changed_call(change, kernel)) for change, kernel in sure] or [({}, self._call)]
        self._sees_end("what was launched before it")
        with self._gpu.on(self._call.stream):
            ((change, call), *_), copies = self._with_copies(calls, Tried())
            return self._checked(in_words(change), _on(call, copies), copies)

    def _checked(self, than: str, right: LaunchCall, copies: Copies) -> Check:
        self._launch(right, copies)
        expected = copies.results()
        self._launch(right, copies)
        if than and not copies.equal(expected, bits=False):
            raise UsageError(f"with {than}, too, it does not compute the same twice")
        original, different = _on(self._call, copies), 0
        for _ in range(CHECKS):
            self._launch(original, copies)
            different += not copies.equal(expected, bits=False)
        return Check(than, CHECKS, different)

    def _launch(self, call: LaunchCall, copies: Copies) -> None:
        """To its end, on copies of what the script's tensors hold; what is only written holds no numbers before."""
        copies.begin(poison=True)
        call()
        self._sees_end("a launch")

    def _with_copies(
        self, calls: list[tuple[Change, LaunchCall]], tried: Tried
    ) -> tuple[list[tuple[Change, LaunchCall]], Copies]:
        """Launches, without those that may write further than there is memory for, and copies for them.

        Raises `UsageError` if there is no memory for any.
        """
        names = argument_names(self._compiled)
        stored = write_only(Module(self._compiled.asm["ttgir"]))
        copies = partial(
            Copies,
            self._call.arguments,
            free_bytes=self._gpu.free_bytes(),
            only_written=[place for place, name in enumerate(names) if name in stored],
        )
        reaches = sorted({self._reach(change) for change, _ in calls})
        while True:
            reach = reaches.pop()
            try:
                return [one for one in calls if self._reach(one[0]) <= reach], copies(reach=reach)
            except UsageError as error:
                if not reaches:
                    raise
                for change, _ in calls:
                    if self._reach(change) == reach:
                        tried.drop(change, str(error))

    def _measure(self, calls: list[tuple[Change, LaunchCall]], copies: Copies, tried: Tried) -> None:
        original = _on(self._call, copies)
        copies.begin(poison=True)
        original()
        self._sees_end("one launch")
        if copies.untouched():
            raise UsageError("this launch changes no tensor, so nothing shows whether a change computes the same")
        expected = copies.results()
        copies.begin(poison=True)
        original()
        repeats = copies.equal(expected, bits=True)
        if not repeats and not copies.equal(expected, bits=False):
            raise UsageError("it does not compute the same twice")
        right = []
        for change, call in calls:
            here = _on(call, copies)
            copies.begin(poison=True)
            try:
                here()
                self._sees_end("a launch")
            except UsageError:
                tried.drop(change, f"there was no time left to check it ({LIMIT_S:.0f} s a kernel)")
                continue
            except Exception as error:  # the driver refuses it
                tried.drop(change, _why(error))
                continue
            if copies.equal(expected, bits=repeats and set(change) == {"num_stages"}):
                right.append((change, here))
            else:
                tried.drop(change, "it computes something else than the original")
        expected.clear()
        if right:
            self._time(original, right, copies, tried)

    def _time(
        self,
        original: LaunchCall,
        changed: Sequence[tuple[Change, LaunchCall]],
        copies: Copies,
        tried: Tried,
    ) -> None:
        """Rounds of all, in every second one in the reverse order, after one that warms them up."""
        calls = [original, *(call for _, call in changed)]
        times: list[list[float]] = [[] for _ in calls]
        for number in range(-1, ROUNDS):
            order = range(len(calls)) if number % 2 else reversed(range(len(calls)))
            taken = {}
            for place in order:
                copies.begin()
                if (took := self._timed(calls[place])) is None:
                    break
                taken[place] = took
            if len(taken) < len(calls):
                break
            for place, took in taken.items():
                times[place] += [took] if number >= 0 else []
        for (change, _), changed_ms in zip(changed, times[1:], strict=True):
            if len(changed_ms) < LEAST_ROUNDS:
                tried.drop(change, f"there was no time left for {LEAST_ROUNDS} rounds ({LIMIT_S:.0f} s a kernel)")
            else:
                tried.measured.append(Measured(dict(change), times[0], changed_ms))

    def _timed(self, call: LaunchCall) -> float | None:
        """Milliseconds of a launch with the host ahead of it; None when there is no time left."""
        self._gpu.spin(call.stream)
        start = self._gpu.mark(call.stream)
        call()
        end = self._gpu.mark(call.stream)
        return self._gpu.milliseconds(start, end) if self._is_over(end) else None

    def _sees_end(self, awaited: str) -> None:
        if not self._is_over(self._gpu.mark(self._call.stream)):
            raise UsageError(f"there was no time left to wait for {awaited} ({LIMIT_S:.0f} s a kernel)")

    def _is_over(self, mark: Mark) -> bool:
        while not self._gpu.is_over(mark):
            if device.own_seconds() > self._deadline:
                return False
            time.sleep(_POLL_S)
        return device.own_seconds() <= self._deadline

    def _refuse_what_cannot_be_repeated(self) -> None:
        """Raises `UsageError` for a kernel of which another launch is not like the script's."""
        if python_function(self._compiled) is None or "ttgir" not in self._compiled.asm:
            raise UsageError("it was not compiled here from its source, so it cannot be compiled again")
        if getattr(self._compiled.metadata, "launch_cooperative_grid", False):
            raise UsageError("all of its CTAs have to run at once, and with another configuration they may not")
        if why := why_not_repeated(self._compiled):
            raise UsageError(why)

    def _tiles(self, change: Change) -> dict[str, int]:
        """The constexprs among what is changed."""
        constexprs = constexprs_of(self._compiled)
        return {name: value for name, value in change.items() if name in constexprs}

    def _reach(self, change: Change) -> int:
        """How many times as far as the kernel's own a launch with other tiles may write, at most."""
        own: Mapping[str, int] = constexprs_of(self._compiled)
        ratios = (max(value / own[name], own[name] / value) for name, value in self._tiles(change).items())
        return math.ceil(math.prod(ratios))

    def _why_fixed(self, change: Change) -> str | None:
        """Why these constexprs of the kernel cannot be changed here; None if they can."""
        if not self._tiles(change):
            return None
        if self._made_by is None or not callable(self._made_by.grid):
            return "its grid is no function of the meta-parameters, so its tiles are fixed"
        if any(str(kind).startswith("tensordesc") for kind in self._compiled.src.signature.values()):
            return "its tensor descriptors have the boxes of its tiles"
        if any(op.name == "tt.assert" for op in Module(self._compiled.asm["ttgir"]).walk()):
            return "its assertions may not hold with other tiles, and one that fails ends the script"
        return None

    def _bound(self, change: Change) -> dict[str, Any]:
        """The arguments by name, with what is changed and what the script computes from that."""
        arguments = dict(zip(argument_names(self._compiled), self._call.arguments, strict=True))
        bound = arguments | self._tiles(change)
        for name, value in (self._made_by.heuristics if self._made_by is not None else {}).items():
            bound[name] = value(bound)
        return bound

    def _compile_one(self, change: Change) -> CompiledKernel:
        tiles = self._tiles(change)
        options = options_of(self._compiled) | {name: value for name, value in change.items() if name not in tiles}
        bound = self._bound(change) if tiles else {}
        source = source_with(self._compiled, {name: bound[name] for name in constexprs_of(self._compiled) if bound})
        return triton.compile(source, target=self._compiled.metadata.target, options=options)

    def _changed_call(self, change: Change, kernel: CompiledKernel) -> LaunchCall:
        """The script's launch with another configuration; raises what the script's function of a grid raises."""
        call = self._call
        if self._tiles(change) and self._made_by is not None:
            bound = self._bound(change)
            grid = self._made_by.grid_of(bound)
            if not min(grid):
                raise UsageError("its grid would be empty")
            call = call.elsewhere(grid, tuple(bound.values()))
        return call.of(kernel, own_launch(kernel))

    def _compile_apart(self, changes: Sequence[Change]) -> list[str]:
        """Compile each into our cache, in a process of its own; of each why that failed, or an empty string."""
        waiting = list(range(len(changes)))
        running: dict[int, int] = {}
        why = [f"there was no time left to compile it ({LIMIT_S:.0f} s a kernel)"] * len(changes)
        try:
            while waiting or running:
                if device.own_seconds() > self._deadline:
                    break
                while waiting and len(running) < len(os.sched_getaffinity(0)):
                    place = waiting.pop(0)
                    running[self._fork(changes[place], self._answer(place))] = place
                for process, place in list(running.items()):
                    if (status := _status(process)) is not None:
                        del running[process]
                        why[place] = self._ended(place, status)
                time.sleep(_POLL_S * 10)
        finally:
            for process in running:
                _kill(process)
        return why

    def _answer(self, place: int) -> Path:
        return self._folder / f"candidate{place}.json"

    def _ended(self, place: int, status: int) -> str:
        try:
            return str(json.loads(self._answer(place).read_text()))
        except (OSError, ValueError):
            number = os.waitstatus_to_exitcode(status)
            return f"its compiler ended with {signal.Signals(-number).name if number < 0 else f'status {number}'}"

    def _fork(self, change: Change, answer: Path) -> int:
        """A process that compiles a configuration and writes why it cannot, if so; returns its number."""
        answer.unlink(missing_ok=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # other threads: none of them compiles meanwhile
            process = os.fork()
        if process:
            return process
        status = 1
        try:
            os.setsid()
            gc.disable()  # a tensor of the script's that is garbage would be freed in a GPU that is not this process's
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            nowhere = os.open(os.devnull, os.O_RDWR)
            for descriptor in range(3):
                os.dup2(nowhere, descriptor)
            why = ""
            try:
                with own_cache(self._folder):
                    self._compile_one(change)
            except Exception as error:
                why = _why(error)
            answer.write_text(json.dumps(why))
            status = 0
        finally:
            os._exit(status)


def _on(call: LaunchCall, copies: Copies) -> LaunchCall:
    """A launch on the copies."""
    return call.elsewhere(call.grid, copies.of(call.arguments))


def _code(kernel: CompiledKernel) -> Any:
    return kernel.asm["cubin" if "cubin" in kernel.asm else "hsaco"]


def _may_be_wrong(kernel: CompiledKernel) -> bool:
    """Whether one of its loops uses a buffer too early; a launch that is right does not show that all are."""
    return any(True for _ in races(Module(kernel.asm["ttgir"])))


def _status(process: int) -> int | None:
    """How a process ended; None as long as it runs. A status that somebody else has taken counts as no answer."""
    try:
        ended, status = os.waitpid(process, os.WNOHANG)
    except ChildProcessError:  # the script lets the system forget its children
        return 0 if not Path(f"/proc/{process}").exists() else None
    return status if ended else None


def _kill(process: int) -> None:
    """End a process and those that it started."""
    for end in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            end(process, signal.SIGKILL)
    with suppress(ChildProcessError):
        os.waitpid(process, 0)


def _why(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines and not isinstance(error, LookupError | AssertionError) else type(error).__name__
