"""A launch's tensors in memory of our own: other configurations write there, and never into the script's tensors.

What lies before and after a tensor is ours too: a tile that reaches beyond its tensor does no harm, and is found out.
"""

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch

from kperf.errors import UsageError
from kperf.trace.capture.check import tensors_of

Likeness = Literal["equal bits", "within tolerance", "different"]
"""Of two tensors, the most alike first."""

_ALIGNMENT = 512
"""Bytes: torch's allocations begin at their multiples."""
_MARGIN = 4096
"""Bytes before and after a tensor, where no more are asked for."""
_UNTOUCHED = 0xA5
"""What the margins hold."""
_POISON = 0xFF
"""A byte of what a kernel only writes, before it is checked: as floats these are NaN."""
_CHUNK = 1 << 24
_WORK = 16 * _CHUNK
"""Bytes that are compared at a time, and what that takes at most."""
_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 2**-9,
    torch.bfloat16: 2**-6,
    torch.float8_e4m3fn: 2**-3,
    torch.float8_e4m3fnuz: 2**-3,
    torch.float8_e5m2: 2**-2,
    torch.float8_e5m2fnuz: 2**-2,
}
"""Of a number, and of the root mean square of all: another order of a sum's terms, and two roundings of the type."""


@dataclass(frozen=True, eq=False)
class _Storage:
    """The script's bytes and ours, with what lies before and after; `dtype` is that of the arguments in them."""

    script: torch.Tensor
    whole: torch.Tensor
    start: int
    dtype: torch.dtype
    poisoned: bool

    @property
    def ours(self) -> torch.Tensor:
        return self.whole[self.start : self.start + self.script.numel()]

    @property
    def margins(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.whole[: self.start], self.whole[self.start + self.script.numel() :]

    def view(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the script's as it lies in our bytes."""
        offset = self.start // tensor.itemsize + tensor.storage_offset()
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(self.whole.untyped_storage(), offset, tensor.size(), tensor.stride())


class Copies:
    """Copies of all tensors among the arguments of a launch, each storage once."""

    def __init__(
        self, arguments: Sequence[Any], *, free_bytes: int, reach: int = 1, only_written: Collection[int] = ()
    ) -> None:
        """`only_written`: arguments through which nothing is read.

        `reach`: how many times as far as the script's a launch on the copies may write. A kernel without masks writes
        beyond a tensor with a larger tile, and one that stores a number for each CTA with a smaller one.

        Raises `UsageError` if there is no memory for them, if they lie on several devices, if one is an address, or if
        two have memory in common that torch does not know as one storage.
        """
        tensors = list(tensors_of(arguments))
        if any(hasattr(each, "data_ptr") and not list(tensors_of([each])) for each in arguments):
            raise UsageError("an argument is memory and no tensor")
        if len({tensor.device for tensor in tensors}) > 1:
            raise UsageError("its tensors lie on several devices")
        if _overlap(tensors):
            raise UsageError("two of its tensors have memory in common, and are no views of one tensor")
        views: dict[int, list[torch.Tensor]] = {}
        for tensor in tensors:
            views.setdefault(_begin(tensor), []).append(tensor)
        read = {
            _begin(tensor)
            for place, argument in enumerate(arguments)
            if place not in only_written
            for tensor in tensors_of([argument])
        }
        sizes = {begin: tensors_of_it[0].untyped_storage().nbytes() for begin, tensors_of_it in views.items()}
        margin = {begin: _MARGIN + (reach - 1) * size for begin, size in sizes.items()}
        needed = sum(2 * size + 2 * (margin[begin] + _ALIGNMENT) for begin, size in sizes.items()) + _WORK
        if needed > free_bytes:
            raise UsageError(
                f"copies of its tensors take {needed >> 20} MB of GPU memory, and {free_bytes >> 20} MB are free"
            )
        try:
            self._storages = {
                begin: _allocated(tensors_of_it, margin[begin], poisoned=begin not in read)
                for begin, tensors_of_it in views.items()
            }
        except torch.OutOfMemoryError:
            raise UsageError(f"there are no {needed >> 20} MB of GPU memory for copies of its tensors") from None
        self._changed = list(self._storages.values())

    def of(self, arguments: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments with our tensors in the place of the script's."""
        return tuple(map(self._moved, arguments))

    def begin(self, *, poison: bool = False) -> None:
        """Let the copies hold what the script's tensors hold; with `poison` what is only written holds no numbers."""
        for storage in self._changed:
            if poison and storage.poisoned:
                storage.ours.fill_(_POISON)
            else:
                storage.ours.copy_(storage.script)

    def untouched(self) -> bool:
        """Whether the last launch changed no byte of what `begin` with `poison` had put there."""
        return all(
            all(bool((part == _POISON).all()) for part in storage.ours.split(_CHUNK))
            if storage.poisoned
            else _equal(storage.ours, storage.script)
            for storage in self._changed
        )

    def results(self) -> list[torch.Tensor]:
        """What the last launch left in the storages that it changed; from now on only these are set by `begin`."""
        self._changed = [
            storage
            for storage in self._storages.values()
            if storage.poisoned or not _equal(storage.ours, storage.script)
        ]
        return [storage.ours.clone() for storage in self._changed]

    def equal(self, expected: Sequence[torch.Tensor], *, bits: bool) -> bool:
        """Whether the last launch wrote what `expected` says and nothing else: its bits, or numbers near enough."""
        for storage in self._storages.values():
            if any((part != _UNTOUCHED).any() for margin in storage.margins for part in margin.split(_CHUNK)):
                return False
            if storage not in self._changed and not _equal(storage.ours, storage.script):
                return False
        return all(
            _equal(storage.ours, contents) or (not bits and near(storage.ours, contents, storage.dtype))
            for storage, contents in zip(self._changed, expected, strict=True)
        )

    def _moved(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return self._storages[_begin(argument)].view(argument)
        if isinstance(argument, tuple | list):
            parts = map(self._moved, argument)
            return type(argument)(*parts) if hasattr(argument, "_fields") else type(argument)(parts)
        base = getattr(argument, "base", None)  # a tensor descriptor's
        if not isinstance(base, torch.Tensor):
            return argument
        moved = copy.copy(argument)
        moved.base = self._moved(base)
        return moved


def _begin(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _overlap(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether two storages have bytes in common, as where another library's memory became two tensors."""
    storages = sorted({(_begin(each), _begin(each) + each.untyped_storage().nbytes()) for each in tensors})
    return any(end > begin for (_, end), (begin, _) in pairwise(storages))


def _allocated(views: Sequence[torch.Tensor], margin: int, *, poisoned: bool) -> _Storage:
    """Ours begins as far behind a multiple of `_ALIGNMENT` as the script's: the kernel was compiled for that."""
    device, storage = views[0].device, views[0].untyped_storage()
    script = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    size = script.numel() + 2 * margin + _ALIGNMENT
    whole = torch.full((size,), _UNTOUCHED, dtype=torch.uint8, device=device)
    start = margin + (script.data_ptr() - whole.data_ptr() - margin) % _ALIGNMENT
    dtypes = {view.dtype for view in views}
    return _Storage(script, whole, start, dtypes.pop() if len(dtypes) == 1 else torch.uint8, poisoned)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return all(map(torch.equal, a.split(_CHUNK), b.split(_CHUNK)))


def likeness(computed: torch.Tensor, expected: torch.Tensor) -> Likeness:
    """How alike two tensors are: by type, shape and bits, else by their numbers within the tolerance of the type."""
    if computed.dtype != expected.dtype or computed.shape != expected.shape:
        return "different"
    a, b = (tensor.contiguous().view(-1).view(torch.uint8) for tensor in (computed, expected))
    if torch.equal(a, b):
        return "equal bits"
    return "within tolerance" if near(a, b, computed.dtype) else "different"


def near(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether bytes are the same numbers of a type, within its tolerance."""
    real = dtype.to_real() if dtype.is_complex else dtype
    tolerance = _TOLERANCE.get(real)
    if tolerance is None or a.numel() % real.itemsize or a.data_ptr() % real.itemsize:
        return False
    squares = count = 0.0
    for _, expected in _numbers(a, b, real):
        finite = expected[expected.isfinite()]
        squares, count = squares + float(finite.square().sum()), count + finite.numel()
    scale = (squares / count) ** 0.5 if count else 0.0
    for computed, expected in _numbers(a, b, real):
        same = (computed == expected) | (computed.isnan() & expected.isnan())
        near_by = (computed - expected).abs() <= tolerance * (expected.abs() + scale)
        if not bool((same | near_by & expected.isfinite()).all()):  # any is within a share of an infinite one
            return False
    return True


def _numbers(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both as numbers, a part after the other."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    for pair in zip(a.split(_CHUNK), b.split(_CHUNK), strict=True):
        first, second = (part.view(dtype).to(wide) for part in pair)
        yield first, second
