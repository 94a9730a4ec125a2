"""`make llama-block`: how much faster a whole Llama block is with our attention in it than with torch's.

The block of `make inductor` (Llama 3 8B's sizes, random weights, bfloat16) through torch.compile(fullgraph=True), once
with torch's scaled_dot_product_attention, whose back end torch chooses, and with each implementation behind the
operator `kperf::attention`. The forward pass as in inference, and the forward pass with the backward pass, whose
attention is cuDNN's for all, from what the forward pass saved. Each is a CUDA graph of one call, whose output,
and gradients of x and of all weights, are held against float32; the graphs are then timed in turn, as Fig. 12 is.
"""

import copy
import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, Self, cast

import torch
from pydantic import TypeAdapter, model_validator
from rich.console import Console
from rich.table import Table
from torch.nn.functional import scaled_dot_product_attention

from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.bench.intervals import median_interval
from kperf.console import titled_table
from kperf.errors import MeasurementError, UsageError
from kperf.integrations.operator import attention, why_not
from kperf.record.store import Layout, a_line_each
from kperf.studies.inductor_program import blocks
from kperf.studies.interleaved import Call, Candidate, Error, TimedRow, WrongError, relative_error, show, speedup, timed
from kperf.studies.records import Common, measured_or_recorded

NAME = "llama-block"
TORCH = "sdpa"
OURS = "improved_plus"
COMPARED = (TORCH, "fa3", OURS)
"""Attention of the block; all but torch's own through the operator."""

MAX_ERROR = 1e-2
MAX_GRADIENT_ERROR = 2.5e-2
"""Of the block's output, and of its gradients, against float32: as far apart as `make attention` has the two."""

_PASS = {False: "forward", True: "forward and backward"}
_LABEL = {TORCH: "torch's"} | {key: IMPLEMENTATIONS[key].label for key in COMPARED if key != TORCH}
_SEED = 15

Tensor = torch.Tensor
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class BlockRow(TimedRow):
    """A block with one implementation of attention.

    backward: whether the backward pass belongs to the call. gradient_error: the largest of the gradients' of x and of
    the weights against float32, with a backward pass.
    """

    schema_version: Literal[2] = 2  # type: ignore[assignment]
    sizes: dict[str, int]
    backward: bool
    gradient_error: Error | None = None

    @model_validator(mode="after")
    def _has_the_errors_of_its_passes(self) -> Self:
        if self.samples_ms and (self.gradient_error is None) == self.backward:
            raise ValueError("gradient_error: of what has samples and a backward pass")
        return self


ROWS: Layout[BlockRow] = a_line_each(TypeAdapter(BlockRow), 2)


def run(console: Console, results: Path, *, rounds: int, require_gpu: bool) -> None:
    """Measure, or read what is recorded, and print it.

    Raises `UsageError` if nothing is recorded, `MeasurementError` for a block that is wrong or fails.
    """
    measure_here = partial(measure, rounds=rounds)
    found = measured_or_recorded(console, results, NAME, ROWS, measure_here, require_gpu=require_gpu)
    if failed := show(console, found, table, sentences):
        raise MeasurementError(f"the block with {failed.implementation} {_PASS[failed.backward]} has no time")


def measure(common: Common, *, rounds: int) -> Iterator[BlockRow]:
    """A row for each implementation: of the forward pass, then with the backward pass."""
    torch.manual_seed(_SEED)
    block, inputs = blocks().make("llama", "cuda", torch.bfloat16)
    d_output = torch.randn_like(inputs[0])
    in_float32 = copy.deepcopy(block).float(), [one.float() for one in inputs]
    for backward in (False, True):
        exact = _call(*in_float32, _in_float32, d_output.float() if backward else None)()
        fields = common | {"sizes": blocks().SIZES["llama"], "backward": backward}
        candidates = [
            Candidate(
                fields | {"implementation": key},
                partial(_compiled, key, block, inputs, d_output if backward else None),
                partial(checked, exact=exact),
            )
            for key in COMPARED
        ]
        yield from timed(BlockRow, candidates, rounds)


def attend_with(key: str) -> Attend:
    """The block's causal attention: torch's own, or an implementation behind the operator."""
    if key == TORCH:
        return cast(Attend, blocks().sdpa)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, causal=True, implementation=key)

    return attend


def _in_float32(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """torch's own for all heads: with fewer of k and v it has float32 in O(seq_len^2) memory only."""
    group = q.shape[1] // k.shape[1]
    k, v = (tensor.repeat_interleave(group, 1) for tensor in (k, v))
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def _call(
    block: Callable[..., Tensor], inputs: Sequence[Tensor], attend: Attend, d_output: Tensor | None = None
) -> Call:
    """One that gives the block's output and, with `d_output`, the gradients of x and of the weights."""
    x, *angles = inputs
    if d_output is None:
        return torch.no_grad()(lambda: (block(x, *angles, attend),))
    leaves = (x.detach().requires_grad_(), *cast(torch.nn.Module, block).parameters())

    def both() -> tuple[Tensor, ...]:
        y = block(leaves[0], *angles, attend)
        return y.detach(), *torch.autograd.grad(y, leaves, d_output)

    return both


def _compiled(key: str, block: torch.nn.Module, inputs: Sequence[Tensor], d_output: Tensor | None) -> Call:
    """Raises `UsageError` where the operator would fall back."""
    if key != TORCH and (reason := _falls_back(key, inputs[0])):
        raise UsageError(reason)
    return _call(torch.compile(block, fullgraph=True), inputs, attend_with(key), d_output)


def _falls_back(key: str, x: Tensor) -> str | None:
    """Why the operator would have torch compute this block's attention, None if it does not."""
    sizes = blocks().SIZES["llama"]
    q = x.new_empty(sizes["batch"], sizes["heads"], sizes["seq_len"], sizes["head_dim"])
    k = q[:, : sizes["kv_heads"]]
    return why_not(q, k, k, True, key)


def checked(output: Sequence[Tensor], exact: Sequence[Tensor]) -> dict[str, float | None]:
    """`error` and `gradient_error` of a row. Raises `WrongError` where one is too large, or not a number."""
    error, *gradient_errors = map(relative_error, output, exact)
    if not error <= MAX_ERROR:
        raise WrongError(f"the output is off by {error:.2e} from float32, more than {MAX_ERROR:g}", error=error)
    if not gradient_errors:
        return {"error": error, "gradient_error": None}
    gradient_error = math.nan if any(map(math.isnan, gradient_errors)) else max(gradient_errors)
    if not gradient_error <= MAX_GRADIENT_ERROR:
        limit = f"from float32, more than {MAX_GRADIENT_ERROR:g}"
        message = f"a gradient is off by {gradient_error:.2e} {limit}"
        raise WrongError(message, error=error, gradient_error=gradient_error)
    return {"error": error, "gradient_error": gradient_error}


def table(rows: Sequence[BlockRow], stamp: str) -> Table:
    """A row a pass and implementation."""
    sizes = ", ".join(f"{name} {size}" for name, size in rows[0].sizes.items())
    words, numbers = ("pass", "attention"), ("ms", "95 %", "speed-up", "95 %", "error", "of gradients")
    made = titled_table(f"compiled Llama block {sizes}; {stamp}", *words, *numbers, left=words)
    for row in rows:
        cells = [row.message]
        if row.samples_ms:
            low, high = median_interval(row.samples_ms)
            cells = [f"{statistics.median(row.samples_ms):.3f}", f"{low:.3f} to {high:.3f}", *_against_torch(row, rows)]
            cells += ["-" if value is None else f"{value:.1e}" for value in (row.error, row.gradient_error)]
        made.add_row(_PASS[row.backward], _label(row.implementation), *cells)
    return made


def _label(key: str) -> str:
    """What an implementation is called; its key for one that this program does not know."""
    return _LABEL.get(key, key)


def _against_torch(row: BlockRow, rows: Sequence[BlockRow]) -> tuple[str, str]:
    theirs = next((one for one in rows if (one.implementation, one.backward) == (TORCH, row.backward)), None)
    if row is theirs or theirs is None or not theirs.samples_ms:
        return "-", "-"
    ratio, low, high = speedup(row, theirs)
    return f"{ratio:.3f} x", f"{low:.3f} to {high:.3f}"


def sentences(rows: Sequence[BlockRow]) -> list[str]:
    """What has no time and why, and what had not settled."""
    lines = [
        f"{_label(row.implementation)}, {_PASS[row.backward]}, has no time: {row.message}"
        for row in rows
        if row.message
    ]
    unsettled = {row.backward for row in rows if row.settling and not row.settling.settled}
    return lines + [f"{_PASS[backward]}: the clock had not settled when its rounds began" for backward in unsettled]
