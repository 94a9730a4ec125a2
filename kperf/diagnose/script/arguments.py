"""What a launch gives a kernel's function, by the name of the argument."""

from typing import Any

import torch

from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.launches import LaunchCall
from kperf.compat.triton.sources import argument_names
from kperf.diagnose.script.places import end_of, near_tensors, place_of

_MULTIPLE = 16
"""Triton specialises a kernel for arguments that are multiples of it."""


def named_arguments(kernel: CompiledKernel, call: LaunchCall) -> list[tuple[str, Any]]:
    """All of them, with their names; none where a launch leaves some out."""
    names = argument_names(kernel)
    return list(zip(names, call.arguments, strict=True)) if len(names) == len(call.arguments) else []


def numbers_of(kernel: CompiledKernel, call: LaunchCall) -> dict[str, int]:
    """The integers that a launch gives a kernel's function, by name; none where it leaves some arguments out."""
    named = named_arguments(kernel, call)
    return {name: value for name, value in named if isinstance(value, int) and not isinstance(value, bool)}


def tensors_of(kernel: CompiledKernel, call: LaunchCall) -> dict[str, torch.Tensor]:
    """The tensors that a launch gives a kernel's function, by name; none where it leaves some arguments out."""
    return {name: value for name, value in named_arguments(kernel, call) if isinstance(value, torch.Tensor)}


def lengths_of(kernel: CompiledKernel, call: LaunchCall) -> dict[str, int]:
    """Elements of the tensors that a launch gives a kernel's function, by name; none where it leaves arguments out."""
    return {name: tensor.numel() for name, tensor in tensors_of(kernel, call).items()}


def aliases_of(kernel: CompiledKernel, call: LaunchCall) -> frozenset[frozenset[str]]:
    """Pairs of a launch's arguments that are tensors of the same memory, of which one begins before the other ends."""
    tensors = tensors_of(kernel, call)
    places = {name: place_of(tensor) for name, tensor in tensors.items()}
    return frozenset(
        frozenset((one, two))
        for one, two in near_tensors(places)
        if max(places[one].first, places[two].first) < min(end_of(tensors[one]), end_of(tensors[two]))
    )


def multiples_of(kernel: CompiledKernel, call: LaunchCall) -> frozenset[str]:
    """Integers that are multiples of 16 in a launch, and tensors that begin at multiples of 16 bytes, by name."""
    begins = {name: place_of(tensor).first for name, tensor in tensors_of(kernel, call).items()}  # torch aligns memory
    return frozenset(name for name, number in (begins | numbers_of(kernel, call)).items() if number % _MULTIPLE == 0)
