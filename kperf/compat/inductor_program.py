"""A program that torch.compile wrote, as processes hand it on."""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter


@dataclass(frozen=True)
class Counts:
    """Of one launch. Among `flops` are `products`, `functions`, and those of reductions, `reduced`.

    The machine has several instructions for a function, and threads that reduce together add some of their own.
    """

    flops: int = 0
    products: int = 0
    functions: int = 0
    reduced: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Kernel:
    """One launch. name: Inductor's for a kernel of Triton's, the function's for a library. operands: its shapes."""

    name: str
    kind: Literal["triton", "extern"]
    operands: str
    counts: Counts


@dataclass
class Program:
    """`code`: what Inductor wrote. `sources`: kernel of Triton's -> its source, as it stands in there."""

    kernels: list[Kernel] = field(default_factory=list)
    code: str = ""
    sources: dict[str, str] = field(default_factory=dict)


PROGRAM: TypeAdapter[Program] = TypeAdapter(Program)
"""Reads what `dataclasses.asdict` gave."""
