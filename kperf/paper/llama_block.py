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
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import torch
from pydantic import Field, TypeAdapter, model_validator
from rich.console import Console
from rich.table import Table
from torch.nn.functional import scaled_dot_product_attention

from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.bench.intervals import around, median_interval, ratio_spread
from kperf.bench.points import Settling
from kperf.bench.turns import capture_graph, time_in_turn
from kperf.errors import MeasurementError, UsageError, first_line
from kperf.integrations.operator import attention, why_not
from kperf.record.store import DeviceStates, Layout, a_line_each
from kperf.studies.inductor_program import blocks
from kperf.studies.records import Common, Row, measured_or_recorded

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
Call = Callable[[], tuple[Tensor, ...]]
_Error = Annotated[float, Field(ge=0)]


class BlockRow(Row):
    """A block with one implementation of attention. samples_ms: a call, of each round; or `message` says why none is.

    backward: whether the backward pass belongs to the call. error: of the output against float32, relative, over all
    elements; gradient_error: the largest of the gradients' of x and of the weights, with a backward pass. places: in
    the order of each round; ceiling_ms: cuBLAS bfloat16 8192^3 in turn with them; device_states, other_processes (on
    the GPU), idle_share (None in old records), settling: as in the points of Fig. 12.
    """

    schema_version: Literal[2] = 2  # type: ignore[assignment]
    sizes: dict[str, int]
    implementation: str
    backward: bool
    status: Literal["ok", "wrong", "unsupported", "failed"]
    error: _Error | None = None
    gradient_error: _Error | None = None
    samples_ms: tuple[Annotated[float, Field(gt=0)], ...] = ()
    places: tuple[int, ...] = ()
    ceiling_ms: tuple[Annotated[float, Field(gt=0)], ...] = ()
    device_states: DeviceStates | None = None
    settling: Settling | None = None
    other_processes: int = 0
    idle_share: Annotated[float, Field(ge=0, le=1)] | None = None
    message: str = ""

    @property
    def median_ms(self) -> float | None:
        """Of the samples, None without."""
        return statistics.median(self.samples_ms) if self.samples_ms else None

    @property
    def ci95_ms(self) -> tuple[float, float] | None:
        """Where the median of a second run falls 19 times in 20."""
        return median_interval(self.samples_ms) if self.samples_ms else None

    @model_validator(mode="after")
    def _has_samples_that_are_right_or_a_reason(self) -> Self:
        if not (self.status == "ok") == bool(self.samples_ms) == (not self.message):
            raise ValueError("samples_ms: samples of what is ok, or a message, and not both")
        states = self.device_states or ()
        if not len(self.samples_ms) == len(self.places) == len(self.ceiling_ms) == len(states):
            raise ValueError("samples_ms: a round has a sample, a place, a ceiling and a state of the GPU each")
        if self.samples_ms and (self.error is None or (self.gradient_error is None) == self.backward):
            raise ValueError("error: of the output, and with a backward pass of the gradients, of what has samples")
        return self


ROWS: Layout[BlockRow] = a_line_each(TypeAdapter(BlockRow), 2)


@dataclass
class _Candidate:
    """A right block, as `time_in_turn` takes it; `call` keeps alive what the graph reads."""

    implementation: str
    call: Call
    graph: torch.cuda.CUDAGraph
    errors: dict[str, float | None]
    samples_ms: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


def run(console: Console, results: Path, *, rounds: int, require_gpu: bool) -> None:
    """Measure, or read what is recorded, and print it.

    Raises `UsageError` if nothing is recorded, `MeasurementError` for a block that is wrong or fails.
    """
    measure_here = partial(measure, rounds=rounds)
    found = measured_or_recorded(console, results, NAME, ROWS, measure_here, require_gpu=require_gpu)
    console.print(table(found.rows, found.stamp))
    for line in said(found.rows):
        console.print(line)
    if failed := [row for row in found.rows if row.status in {"wrong", "failed"}]:
        raise MeasurementError(f"the block with {failed[0].implementation} {_PASS[failed[0].backward]} has no time")


def measure(common: Common, *, rounds: int) -> Iterator[BlockRow]:
    """A row for each implementation: of the forward pass, then with the backward pass."""
    torch.manual_seed(_SEED)
    block, inputs = blocks().make("llama", "cuda", torch.bfloat16)
    d_output = torch.randn_like(inputs[0])
    in_float32 = copy.deepcopy(block).float(), [one.float() for one in inputs]
    for backward in (False, True):
        exact = _call(*in_float32, _in_float32, d_output.float() if backward else None)()
        fields = common | {"sizes": blocks().SIZES["llama"], "backward": backward}
        candidates: list[_Candidate] = []
        without_time: list[BlockRow] = []
        for key in COMPARED:
            try:
                candidates.append(_prepare(key, block, inputs, d_output if backward else None, exact))
            except torch.AcceleratorError:
                raise  # the GPU's context is broken
            except Exception as error:  # whatever a compiler or a library raises is this implementation's failure
                without_time.append(BlockRow(**fields, implementation=key, **_told(error)))
        if candidates:
            timed = time_in_turn(candidates, rounds)
        for one in candidates:
            yield BlockRow(
                **fields,
                **one.errors,
                implementation=one.implementation,
                status="ok",
                samples_ms=tuple(one.samples_ms),
                places=tuple(one.places),
                ceiling_ms=tuple(timed.ceiling_ms),
                device_states=DeviceStates.of(timed.states),
                settling=timed.settling,
                other_processes=timed.other_processes,
                idle_share=timed.idle_share,
            )
        yield from without_time


def _told(error: Exception) -> dict[str, Any]:
    """What a row says of a block without time."""
    message = first_line(error)[:200]
    if isinstance(error, _WrongError):
        return {"status": "wrong", "message": message, **error.errors}
    return {"status": "unsupported" if isinstance(error, UsageError) else "failed", "message": message}


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


def _prepare(
    key: str, block: torch.nn.Module, inputs: Sequence[Tensor], d_output: Tensor | None, exact: Sequence[Tensor]
) -> _Candidate:
    """Compile, capture, and check what the graph writes into poisoned memory.

    Raises `UsageError` where the operator would fall back, `_WrongError` for what is off, and what torch raises.
    """
    if key != TORCH and (reason := _falls_back(key, inputs[0])):
        raise UsageError(reason)
    call = _call(torch.compile(block, fullgraph=True), inputs, attend_with(key), d_output)
    graph, output = capture_graph(call, 1)
    for tensor in output:
        tensor.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    return _Candidate(key, call, graph, checked(output, exact))


def _falls_back(key: str, x: Tensor) -> str | None:
    """Why the operator would have torch compute this block's attention, None if it does not."""
    sizes = blocks().SIZES["llama"]
    q = x.new_empty(sizes["batch"], sizes["heads"], sizes["seq_len"], sizes["head_dim"])
    k = q[:, : sizes["kv_heads"]]
    return why_not(q, k, k, True, key)


def checked(output: Sequence[Tensor], exact: Sequence[Tensor]) -> dict[str, float | None]:
    """`error` and `gradient_error` of a row. Raises `_WrongError` where one is too large, or not a number."""
    error, *gradient_errors = (
        float((one.float() - other).norm() / other.norm()) for one, other in zip(output, exact, strict=True)
    )
    if not error <= MAX_ERROR:
        raise _WrongError(f"the output is off by {error:.2e} from float32, more than {MAX_ERROR:g}", error)
    if not gradient_errors:
        return {"error": error, "gradient_error": None}
    gradient_error = math.nan if any(map(math.isnan, gradient_errors)) else max(gradient_errors)
    if not gradient_error <= MAX_GRADIENT_ERROR:
        limit = f"from float32, more than {MAX_GRADIENT_ERROR:g}"
        raise _WrongError(f"a gradient is off by {gradient_error:.2e} {limit}", error, gradient_error)
    return {"error": error, "gradient_error": gradient_error}


class _WrongError(Exception):
    """A block that runs and is wrong; carries its errors, as a record may have them."""

    def __init__(self, message: str, error: float, gradient_error: float | None = None) -> None:
        super().__init__(message)
        found = {"error": error, "gradient_error": gradient_error}
        self.errors = {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def speedup(ours: BlockRow, theirs: BlockRow) -> tuple[float, float, float]:
    """Of the whole block, with the 95 % interval in which a second run's lies. Both have samples of the same rounds."""
    ratio = statistics.median(theirs.samples_ms) / statistics.median(ours.samples_ms)
    return ratio, *around(ratio, ratio_spread(ours.samples_ms, theirs.samples_ms))


def table(rows: Sequence[BlockRow], stamp: str) -> Table:
    """A row a pass and implementation."""
    sizes = ", ".join(f"{name} {size}" for name, size in rows[0].sizes.items())
    made = Table(title=f"compiled Llama block {sizes}; {stamp}", title_justify="left")
    for column in ("pass", "attention", "ms", "95 %", "speed-up", "95 %", "error", "of gradients"):
        made.add_column(column, justify="left" if column in {"pass", "attention"} else "right")
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


def said(rows: Sequence[BlockRow]) -> list[str]:
    """What has no time and why, and what had not settled."""
    lines = [
        f"{_label(row.implementation)}, {_PASS[row.backward]}, has no time: {row.message}"
        for row in rows
        if row.message
    ]
    unsettled = {row.backward for row in rows if row.settling and not row.settling.settled}
    return lines + [f"{_PASS[backward]}: the clock had not settled when its rounds began" for backward in unsettled]
