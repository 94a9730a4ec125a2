"""The memory that a launch's arguments name: copied, put back, and compared bit for bit."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kperf.errors import UsageError


class Memory:
    """All bytes behind the tensors and tensor descriptors among `arguments`, each storage once.

    What a kernel reaches through a table of addresses is not among them.
    """

    def __init__(self, arguments: Sequence[Any]) -> None:
        """Nothing is copied yet."""
        storages = {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors_of(arguments)}
        self._bytes = [
            torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            for tensor in storages.values()
        ]

    def copy(self) -> list[torch.Tensor]:
        """The bytes as they are. Raises `UsageError` if there is no memory for a copy."""
        try:
            return [tensor.clone() for tensor in self._bytes]
        except torch.OutOfMemoryError:
            size = sum(tensor.numel() for tensor in self._bytes)
            raise UsageError(f"--check copies {size >> 20} MB of arguments, for which there is no GPU memory") from None

    def restore(self, copies: Sequence[torch.Tensor]) -> None:
        """Put the bytes back."""
        for tensor, copy in zip(self._bytes, copies, strict=True):
            tensor.copy_(copy)

    def equals(self, copies: Sequence[torch.Tensor]) -> bool:
        """Whether the bytes are those of the copies."""
        return all(map(torch.equal, self._bytes, copies))


def tensors_of(arguments: Sequence[Any]) -> Iterator[torch.Tensor]:
    """The tensors among the arguments of a launch, those of tensor descriptors and in tuples too."""
    for argument in arguments:
        value = getattr(argument, "base", argument)  # a tensor descriptor's
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_of(value)
