"""Where in memory tensors are, and which of them are in the same memory."""

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

import torch

from kperf.compat.torch import writes_of


@dataclass(frozen=True)
class Place:
    """Where a tensor's numbers are, without a GPU too: its memory, which is not kept, and the byte where it begins.

    writes: of torch to this memory; None where torch does not count them. bytes: of its elements.
    """

    memory: "weakref.ref[torch.UntypedStorage]"
    first: int
    writes: int | None
    bytes: int

    def is_near(self, other: "Place") -> bool:
        """Whether both are in the same memory."""
        return (memory := self.memory()) is not None and memory is other.memory()

    def is_unwritten_since(self, other: "Place") -> bool:
        """Whether both are in the same memory, which torch has not written between."""
        return self.is_near(other) and self.writes is not None and self.writes == other.writes

    def is_same_as(self, other: "Place") -> bool:
        """Whether both begin at the same byte of memory, which torch has not written between."""
        return self.first == other.first and self.is_unwritten_since(other)

    def is_among(self, others: "Sequence[Place]") -> bool:
        """Whether it was one of these, and torch has not written its memory since."""
        return any(self.is_unwritten_since(other) for other in others)

    def is_all_of(self, other: "Place") -> bool:
        """Whether both are the same bytes of memory, which torch has not written between."""
        return self.bytes == other.bytes and self.is_same_as(other)


def place_of(tensor: torch.Tensor) -> Place:
    """Of a tensor that has a memory of its own."""
    first = int(tensor.storage_offset()) * tensor.element_size()
    size = tensor.numel() * tensor.element_size()
    return Place(weakref.ref(tensor.untyped_storage()), first, writes_of(tensor), size)


def end_of(tensor: torch.Tensor) -> int:
    """The byte of its memory behind a tensor's last element; where it begins if it has none."""
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return place_of(tensor).first + ((last + 1) * tensor.element_size() if tensor.numel() else 0)


def all_tensors() -> list[Place]:
    """Where the tensors are that there are now; not those without a memory of their own, as sparse ones."""
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    found = []
    for tensor in tensors:
        with suppress(NotImplementedError, RuntimeError):
            found.append(place_of(tensor))
    return found


def pairs(
    places: dict[str, Place], others: dict[str, Place], alike: Callable[[Place, Place], bool]
) -> frozenset[tuple[str, str]]:
    """The names in both that are alike."""
    return frozenset((name, other) for name in places for other in others if alike(places[name], others[other]))


def near_tensors(places: dict[str, Place]) -> Iterator[tuple[str, str]]:
    """Tensors of a launch that are in the same memory."""
    return ((one, other) for one, other in combinations(places, 2) if places[one].is_near(places[other]))
