"""The driver that Triton asks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver


def active_device() -> torch.device:
    """Where the tensors of kernels that are launched now lie. Raises `RuntimeError` if Triton finds no driver."""
    device: torch.device = driver.active.get_active_torch_device()
    return device


def active_target() -> GPUTarget:
    """What kernels that are launched now are compiled for. Raises `RuntimeError` if Triton finds no driver."""
    return driver.active.get_current_target()


@contextmanager
def driver_in_place(stand_in: Any) -> Iterator[None]:
    """Within it, Triton asks `stand_in` and no GPU's driver."""
    before = driver._active, driver._default
    driver._active = driver._default = stand_in
    try:
        yield
    finally:
        driver._active, driver._default = before
