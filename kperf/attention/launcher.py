"""Launches of one compiled kernel, whose first arguments are TMA descriptors, with little Python."""

from collections.abc import Sequence
from typing import Any

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from kperf.attention.bounded import Bounded
from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.launches import direct_launch

Shape = tuple[int, ...]

_MOST_ENCODED = 1024
_ADDRESS = torch.Tensor.data_ptr


class _Descriptor(TensorDescriptor):  # type: ignore[misc]
    """One whose shape and strides were checked beforehand: checking takes longer than a launch."""

    def __post_init__(self) -> None:
        pass


class Launcher:
    """`kernel[n_ctas, 1, 1]` on tensors whose descriptors have the given shapes, strides and boxes; loads the kernel.

    Where nobody watches launches, descriptors are encoded once an address, whatever lies there, and put together once
    for addresses that come together.
    """

    def __init__(self, kernel: CompiledKernel, descriptors: Sequence[tuple[Shape, Shape, Shape]] = ()) -> None:
        """descriptors: shape, strides and box of each."""
        self.descriptors = tuple(descriptors)
        self._kernel, self._direct = kernel, direct_launch(kernel)
        self._encoded: Bounded[tuple[int, int], tuple[Any, ...]] = Bounded(_MOST_ENCODED)
        self._together: Bounded[tuple[int, ...], tuple[Any, ...]] = Bounded(_MOST_ENCODED)

    def __call__(self, device: torch.device, n_ctas: int, tensors: Sequence[torch.Tensor], *arguments: Any) -> None:
        """Launch on a device, the current one; arguments: after the descriptors of `tensors`."""
        grid = (n_ctas, 1, 1)
        if self._direct is None or not self._direct.usable():
            self._kernel[grid](*map(self._described, range(len(tensors)), tensors), *arguments)
            return
        addresses = tuple(map(_ADDRESS, tensors))
        together = self._together.get(addresses)
        if together is None:
            together = self._together[addresses] = self._put_together(addresses, tensors)
        self._direct(device.index, grid, *together, *arguments)

    def _described(self, place: int, tensor: torch.Tensor) -> TensorDescriptor:
        return _Descriptor(tensor, *self.descriptors[place])

    def _put_together(self, addresses: tuple[int, ...], tensors: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        flat: list[Any] = []
        for place, (address, tensor) in enumerate(zip(addresses, tensors, strict=True)):
            flat += self._encoded.get((place, address)) or self._encode(place, tensor)
        return tuple(flat)

    def _encode(self, place: int, tensor: torch.Tensor) -> tuple[Any, ...]:
        assert self._direct is not None
        encoded = self._direct.encoded(place, self._described(place, tensor))
        self._encoded[place, tensor.data_ptr()] = encoded
        return encoded
