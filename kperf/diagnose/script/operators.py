"""What torch computes around launches: passes over whole tensors in the function that launches a kernel.

Tensors are known by their memory, which is not kept. A script's own checks and inputs are no passes: these are in other
functions, or end in one number.
"""

import inspect
import threading
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from kperf.compat.torch import OperatorCall, noted_operators

_LEAST_BYTES = 4 << 20
"""Of a tensor: a pass over fewer takes no longer than its launch."""
_MOST_STEPS = 25_000
"""Operators and launches that are kept, with some kilobytes each: what comes later is not known."""
_COPIES = {"_to_copy", "copy_", "cat", "stack", "clone"}
_FILLS = {"zeros", "ones", "full", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"}
_FILLS |= {"zero_", "fill_"}
_ALLOCATIONS = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_VECTOR = 16
"""Bytes, of which the rows of what torch joins have to be multiples: else it copies element by element."""
_BYTES_OF_ELEMENT = 16
"""That an H200's memory moves in the time of one such element: 570 million of a `cat`
took 1.97 ms by FBGEMM's commit e28a15162, which does not name its GPU."""
_BETWEEN = ("triton", "torch", "kperf.compat", "kperf.diagnose", "kperf.ir")
"""Packages whose functions stand between the function that launches a kernel and its launch."""


@dataclass(frozen=True)
class Pass:
    """Operators of torch, one after another, over whole tensors of a launch, in the function that launches it.

    when: `after` the launch, over what it stores; `before`, to make what it loads; a `fill` before, of what it stores.
    Nothing else reads these tensors as they are. arguments: of the launch. operators: in words. bytes: that they move.
    takes: bytes that memory moves in their time; more than `bytes` where they are slow.
    kept: bytes of their results (after), or of what they are computed of (before), which the kernel moves in place of
    its arguments if it does their work.
    """

    when: str
    arguments: frozenset[str]
    operators: tuple[str, ...]
    bytes: int
    takes: int
    kept: int = 0


@dataclass(eq=False)
class _Memory:
    """Of tensors. made: numbers of the calls that were going on then. death: when it was freed; None if it was not."""

    storage: "weakref.ref[torch.UntypedStorage]"
    made: tuple[int, ...]
    uses: "list[_Operator | _Launch]" = field(default_factory=list)
    death: int | None = None


@dataclass(frozen=True)
class _View:
    """A tensor.

    inner: the dimension, from the last one, along which elements lie side by side; None without one. row: bytes along
    the last dimension.
    """

    memory: _Memory
    first: int
    elements: int
    bytes: int
    inner: int | None
    row: int
    dtype: torch.dtype
    device: torch.device

    @property
    def is_large(self) -> bool:
        return self.bytes >= _LEAST_BYTES

    def is_all_of(self, other: "_View") -> bool:
        """Whether both are the same bytes of memory."""
        return (self.memory, self.first, self.bytes) == (other.memory, other.first, other.bytes)


@dataclass(eq=False)
class _Operator:
    """calls: numbers of the calls that it is within. is_asked: whether it is what a script asks for numbers."""

    time: int
    calls: tuple[int, ...]
    name: str
    reads: Sequence[_View]
    writes: Sequence[_View]
    is_elementwise: bool = False
    is_asked: bool = False

    @property
    def is_fill(self) -> bool:
        return self.name in _FILLS

    @property
    def is_check(self) -> bool:
        """Whether it makes one number or conditions of what it reads, as tests do."""
        return self.is_asked or all(one.elements == 1 or one.dtype == torch.bool for one in self.writes)

    @property
    def is_pass(self) -> bool:
        """Whether it goes over whole tensors, each element of the result of one place of them, in a like order."""
        if not (self.is_elementwise or self.name in _COPIES) or self.is_check or not self.reads or not self.writes:
            return False
        largest, result = max(self.reads, key=lambda one: one.elements), self.writes[0]
        on_one = {one.device for one in (*self.reads, *self.writes) if one.elements > 1}
        return result.elements >= largest.elements and result.inner == largest.inner and len(on_one) == 1

    @property
    def bytes(self) -> int:
        """That it moves."""
        return sum(one.bytes for one in (*self.reads, *self.writes))

    @property
    def takes(self) -> int:
        """Bytes that memory moves in its time."""
        is_joined = self.name in ("cat", "stack") and any(one.row % _VECTOR for one in self.reads)
        slow = sum(one.elements for one in self.writes) * _BYTES_OF_ELEMENT if is_joined else 0
        return max(self.bytes, slow)

    @property
    def is_in_place(self) -> bool:
        return any(one.is_all_of(other) for one in self.writes for other in self.reads)

    @property
    def words(self) -> str:
        """Its name as a script writes it."""
        if self.name == "_to_copy":
            return f"to({self.writes[0].dtype})"
        return {"clone": "contiguous or clone"}.get(self.name, self.name.strip("_"))


@dataclass(eq=False)
class _Launch:
    """call: the number of the call of the function that launches; None of a module. ended: when that call was over."""

    time: int
    call: int | None
    arguments: Mapping[str, _View]
    ended: int | None = None

    def keeps(self, memory: _Memory) -> bool:
        """Whether a memory is there after the function that launches, which thus returns it, or was given it."""
        return memory.death is None or self.ended is None or memory.death > self.ended


class Operators:
    """All that torch computes, and all launches, in a thread, while they are `noted`; nothing else costs anything."""

    def __init__(self) -> None:
        """Nothing is noted yet."""
        self._thread: int | None = None
        self._steps = 0
        self._time = 0
        self._calls = 0
        self._stack: list[tuple[FrameType, int]] = []
        self._going_on: tuple[int, ...] = ()
        self._memories: dict[int, _Memory] = {}
        self._running: list[_Launch] = []
        self._first: dict[Hashable, _Launch] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Within it operators are noted."""
        self._thread = threading.get_ident()
        try:
            with noted_operators(self._note):
                yield
        finally:
            self._thread = None
            self._follow(None)

    def note_asked(self, value: Any) -> None:
        """A script asks for a tensor's numbers."""
        if self._is_noting() and isinstance(value, torch.Tensor):
            self._note(OperatorCall("item", [value], [], is_elementwise=False), is_asked=True)

    def note_launch(self, keys: Iterable[Hashable], tensors: Mapping[str, torch.Tensor]) -> None:
        """A launch; of the launches of each key `passes` knows the first."""
        if not self._is_noting():
            return
        self._follow(inspect.currentframe())
        arguments = {name: view for name, one in tensors.items() if (view := self._view(one)) is not None}
        frame, call = next((one for one in reversed(self._stack) if _is_of_script(one[0])), (None, None))
        is_function = frame is not None and frame.f_code.co_flags & inspect.CO_OPTIMIZED
        launch = _Launch(self._time, call if is_function else None, arguments)
        self._running.append(launch)
        for key in keys:
            self._first.setdefault(key, launch)
        for memory in {view.memory for view in arguments.values()}:
            memory.uses.append(launch)

    def passes(self, key: Hashable) -> tuple[Pass, ...]:
        """Those around the first launch of a key, if the function that launches was given what it computes of."""
        launch = self._first.get(key)
        if launch is None or launch.call is None or not _is_given(launch):
            return ()
        return (*_after(launch), *_before(launch))

    def _is_noting(self) -> bool:
        return self._thread == threading.get_ident() and self._steps < _MOST_STEPS

    def _note(self, call: OperatorCall, *, is_asked: bool = False) -> None:
        if not self._is_noting():
            return
        self._follow(inspect.currentframe())
        reads, writes = ([view for one in many if (view := self._view(one))] for many in (call.reads, call.writes))
        if call.name in _ALLOCATIONS:
            return
        operator = _Operator(self._time, self._going_on, call.name, reads, writes, call.is_elementwise, is_asked)
        for memory in {view.memory for view in (*reads, *writes)}:
            memory.uses.append(operator)

    def _follow(self, frame: FrameType | None) -> None:
        """A step of time: number the calls that are new in this frame's stack, and end those that are not in it.

        The frames of the last step are kept, so that none of the next one has the same address.
        """
        self._time += 1
        self._steps += 1
        frames = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        frames.reverse()
        alike = 0
        while alike < min(len(frames), len(self._stack)) and frames[alike] is self._stack[alike][0]:
            alike += 1
        new = range(self._calls + 1, self._calls + 1 + len(frames) - alike)
        self._calls += len(new)
        self._stack[alike:] = zip(frames[alike:], new, strict=True)
        self._going_on = tuple(number for _, number in self._stack)
        for launch in self._running:
            if launch.call not in self._going_on:
                launch.ended = self._time
        self._running = [launch for launch in self._running if launch.ended is None]
        self._time += 1

    def _view(self, tensor: torch.Tensor) -> _View | None:
        """None of a tensor without a memory of its own, as sparse ones."""
        try:
            storage = tensor.untyped_storage()
            size, elements, shape = tensor.element_size(), tensor.numel(), tuple(tensor.shape)
            first, strides = int(tensor.storage_offset()) * size, tensor.stride()
        except (NotImplementedError, RuntimeError):
            return None
        key = storage._cdata
        memory = self._memories.get(key)
        if memory is None or memory.storage() is not storage:
            memory = self._memories[key] = self._new(storage)
        steps = reversed([*zip(strides, shape, strict=True)])
        inner = next((at for at, (stride, length) in enumerate(steps) if stride == 1 and length > 1), None)
        row = shape[-1] * size if shape else size
        return _View(memory, first, elements, elements * size, inner, row, tensor.dtype, tensor.device)

    def _new(self, storage: torch.UntypedStorage) -> _Memory:
        def free(_: object) -> None:
            memory.death = self._time

        memory = _Memory(weakref.ref(storage, free), self._going_on)
        return memory


def _is_of_script(frame: FrameType) -> bool:
    name = f"{frame.f_globals.get('__name__', '')}."
    return not name.startswith(tuple(f"{package}." for package in _BETWEEN))


def _is_given(launch: _Launch) -> bool:
    """Whether the function that launches was given a tensor of the launch, or computes one of what it was given."""
    memories, known = [view.memory for view in launch.arguments.values()], set()
    while memories:
        memory = memories.pop()
        if launch.call not in memory.made:
            return True
        known.add(memory)
        makers = [use for use in memory.uses[:1] if isinstance(use, _Operator)]
        memories += [one.memory for use in makers for one in use.reads if one.memory not in known]
    return False


def _after(launch: _Launch) -> Iterator[Pass]:
    """Those over what a launch stores."""
    of_pass: dict[_Operator, set[str]] = {}
    for name, view in launch.arguments.items():
        following = _only_reader(launch, view, launch.time)
        if following is not None:
            of_pass.setdefault(following, set()).add(name)
    for first, names in of_pass.items():
        handed = [launch.arguments[name] for name in names]
        if not any(view.is_large for view in handed):
            continue
        chain = [first]
        if not _knows_others(launch, first, handed) or _is_checked(launch, first):
            continue
        while (following := _only_reader(launch, chain[-1].writes[0], chain[-1].time)) is not None:
            if not _knows_others(launch, following, chain[-1].writes):
                break
            chain.append(following)
        others = [one for step in chain for one in step.reads if one.memory not in {*_memories(handed)}]
        made = {*_memories(view for step in chain for view in step.writes)}
        kept = chain[-1].writes[0].bytes + sum(one.bytes for one in others if one.memory not in made)
        yield Pass("after", frozenset(names), *_told(chain), kept)


def _only_reader(launch: _Launch, view: _View, since: int) -> _Operator | None:
    """The pass over all of a tensor in the function that launches, if nothing else uses the tensor after that time."""
    uses = [use for use in view.memory.uses if use.time > since]
    first = uses[0] if uses else None
    if not isinstance(first, _Operator) or not first.is_pass or launch.call not in first.calls:
        return None
    if not any(view.is_all_of(one) for one in first.reads):
        return None
    in_place = any(view.memory is one.memory for one in first.writes)
    return first if in_place or (len(uses) == 1 and not launch.keeps(view.memory)) else None


def _knows_others(launch: _Launch, operator: _Operator, handed: Sequence[_View]) -> bool:
    """Whether all else that an operator reads was there before the launch."""
    others = [one for one in operator.reads if not any(one.is_all_of(view) for view in handed)]
    return not any(launch.time < use.time < operator.time for one in others for use in _writes_to(one))


def _writes_to(view: _View) -> Iterator["_Operator | _Launch"]:
    """What may have written a tensor."""
    for use in view.memory.uses:
        if isinstance(use, _Launch) or any(one.memory is view.memory for one in use.writes):
            yield use


def _is_checked(launch: _Launch, operator: _Operator) -> bool:
    """Whether the function that launches makes conditions, or one number, of the results, with passes between."""
    operators, known = [operator], {operator}
    while operators:
        last = operators.pop()
        uses = [use for one in last.writes for use in one.memory.uses if use.time > last.time]
        readers = {use for use in uses if isinstance(use, _Operator) and launch.call in use.calls} - known
        if any(one.is_check for one in readers):
            return True
        known |= readers
        operators += [one for one in readers if one.is_pass]
    return False


def _before(launch: _Launch) -> Iterator[Pass]:
    """Those that make what a launch loads, or fill what it stores."""
    for name, view in launch.arguments.items():
        earlier = [use for use in view.memory.uses if use.time < launch.time]
        last = earlier[-1] if earlier else None
        if not isinstance(last, _Operator) or launch.call not in last.calls or not view.is_large:
            continue
        if not any(view.is_all_of(one) for one in last.writes):
            continue
        if last.is_fill:
            yield Pass("fill", frozenset({name}), *_told([last]))
        elif chain := _made_by(launch, view):
            sources = [one for one in chain[0].reads if one.is_large]
            yield Pass("before", frozenset({name}), *_told(chain), sum(one.bytes for one in sources))


def _made_by(launch: _Launch, view: _View) -> list[_Operator]:
    """The passes that make an argument for the launch alone, the first one first, of what the function was given.

    Empty of a tensor with other uses, or of other origin.
    """
    chain: list[_Operator] = []
    user: _Operator | _Launch = launch
    while launch.call in view.memory.made:
        made, *others = [use for use in view.memory.uses if use is not user] or [launch]
        if not isinstance(made, _Operator) or not made.is_pass or made.is_in_place or others:
            return []
        sources = [one for one in made.reads if one.is_large]
        if launch.call not in made.calls or launch.keeps(view.memory) or len(sources) != 1:
            return []
        chain.insert(0, made)
        user, view = made, sources[0]
    return chain


def _memories(views: Iterable[_View]) -> Iterator[_Memory]:
    return (view.memory for view in views)


def _told(chain: Sequence[_Operator]) -> tuple[tuple[str, ...], int, int]:
    """Their names, their bytes, and what they take."""
    return tuple(one.words for one in chain), sum(one.bytes for one in chain), sum(one.takes for one in chain)
