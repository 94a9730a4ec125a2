"""`make varlen`: how fast attention is over sequences of different lengths, beside as many of equal lengths.

q, k and v hold sequences one after the other, 32768 tokens in all, with 32 heads of q and 8 of k and v. Each set of
lengths has a counterpart: the same number of sequences, of one length. Improved+ (`attention_varlen`), FA3's
flash_attn_varlen_func and torch's varlen_attn compute both; on equal lengths the operator `attention` computes the same
without `cu_seqlens`. Each is a CUDA graph of one call whose output is held against float32; the graphs of a set and of
its counterpart are timed interleaved, as Fig. 12 is.
"""

import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import torch
from pydantic import Field, TypeAdapter
from rich.console import Console
from rich.table import Table

from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.inputs import draw
from kperf.attention.workload import Dtype
from kperf.bench.points import MAX_REL_ERROR
from kperf.bench.reference import reference
from kperf.console import titled_table
from kperf.errors import MeasurementError, UsageError
from kperf.integrations import operator, varlen
from kperf.record.store import Layout, a_line_each
from kperf.studies.interleaved import Call, Candidate, TimedRow, WrongError, relative_error, show, speedup, timed
from kperf.studies.records import Common, measured_or_recorded

NAME = "varlen"
OURS, FA3, TORCH, DENSE = "improved_plus", "fa3", "varlen_attn", "improved_plus_views"
COMPARED = (OURS, FA3, TORCH)

TOTAL = 32768
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
"""Llama 3 8B's."""
_SEED = 17

_LABEL = {
    OURS: "Improved+",
    FA3: IMPLEMENTATIONS[FA3].label,
    TORCH: "torch's varlen_attn",
    DENSE: "Improved+ without cu_seqlens",
}

Tensor = torch.Tensor
SeqLens = tuple[int, ...]


def _scaled(lengths: np.ndarray[Any, np.dtype[np.float64]]) -> SeqLens:
    """As whole numbers of `TOTAL` in all, each at least 1."""
    ends = np.rint(np.cumsum(lengths) / lengths.sum() * (TOTAL - len(lengths))).astype(int)
    return tuple(int(length) + 1 for length in np.diff(ends, prepend=0))


CASES: dict[str, SeqLens] = {
    "uniform": _scaled(np.random.default_rng(_SEED).uniform(size=16)),
    "long-tailed": _scaled(np.random.default_rng(_SEED).lognormal(size=32)),
    "one long": (*(1024,) * 15, 17408),
    "short": _scaled(np.random.default_rng(_SEED).uniform(size=128)),
}
"""Lengths whose sum is `TOTAL`, and whose number divides it."""


class VarlenRow(TimedRow):
    """One implementation on sequences of these lengths.

    case: the key in `CASES`, of the counterpart of equal lengths too. seq_lens: of q as of k and v, in order.
    """

    case: str
    seq_lens: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
    heads: Annotated[int, Field(ge=1)]
    kv_heads: Annotated[int, Field(ge=1)]
    head_dim: Annotated[int, Field(ge=1)]
    causal: bool
    dtype: Dtype

    @property
    def equal(self) -> bool:
        """Whether all sequences have one length."""
        return len(set(self.seq_lens)) == 1

    @property
    def flops(self) -> int:
        """Of the two matrix products of each sequence, as `Workload.flops`: half of them under a causal mask."""
        full = 4 * self.heads * self.head_dim * sum(length**2 for length in self.seq_lens)
        return full // 2 if self.causal else full

    @property
    def tflops(self) -> float | None:
        """At the median, None without a time."""
        return self.flops / self.median_ms / 1e9 if self.median_ms else None


ROWS: Layout[VarlenRow] = a_line_each(TypeAdapter(VarlenRow), 1)


class Operands(NamedTuple):
    """q [total, heads, head_dim], k, v [total, kv_heads, head_dim], and where sequences begin, int32 [batch + 1]."""

    q: Tensor
    k: Tensor
    v: Tensor
    begins: Tensor


def run(console: Console, results: Path, *, rounds: int, require_gpu: bool) -> None:
    """Measure, or read what is recorded, and print it.

    Raises `UsageError` if nothing is recorded, `MeasurementError` for an implementation that is wrong or fails.
    """
    measure_here = partial(measure, rounds=rounds)
    found = measured_or_recorded(console, results, NAME, ROWS, measure_here, require_gpu=require_gpu)
    if failed := show(console, found, table, sentences):
        raise MeasurementError(f"{_label(failed.implementation)} has no time for {_named(failed)}")


def measure(common: Common, *, rounds: int) -> Iterator[VarlenRow]:
    """A row for each implementation on each set of lengths and on its counterpart, without a mask and causal."""
    for (case, seq_lens), causal in itertools.product(CASES.items(), (False, True)):
        equal = (TOTAL // len(seq_lens),) * len(seq_lens)
        candidates: list[Candidate] = []
        for lengths, keys in ((seq_lens, COMPARED), (equal, (*COMPARED, DENSE))):
            operands = make_operands(lengths)
            check = partial(checked, exact=exact(operands, lengths, causal))
            fields = common | {
                "case": case, "seq_lens": lengths, "causal": causal, "dtype": "bfloat16",
                "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM,
            }  # fmt: skip
            candidates += [
                Candidate(fields | {"implementation": key}, partial(_CALLS[key], operands, lengths, causal), check)
                for key in keys
            ]
        yield from timed(VarlenRow, candidates, rounds)


def make_operands(seq_lens: SeqLens) -> Operands:
    """Normal numbers in bfloat16."""
    q, k, v = draw("normal", (1, HEADS, sum(seq_lens), HEAD_DIM), torch.bfloat16, _SEED, "cuda", KV_HEADS)
    q, k, v = (tensor[0].transpose(0, 1).contiguous() for tensor in (q, k, v))
    return Operands(q, k, v, torch.tensor([0, *itertools.accumulate(seq_lens)], dtype=torch.int32, device=q.device))


def exact(operands: Operands, seq_lens: SeqLens, causal: bool) -> Tensor:
    """o [total, heads, head_dim] in float32, sequence by sequence."""
    made = []
    for begin, end in itertools.pairwise([0, *itertools.accumulate(seq_lens)]):
        q, k, v = (tensor[begin:end].transpose(0, 1)[None] for tensor in operands[:3])
        o, _ = reference(q, k, v, causal, HEAD_DIM**-0.5)
        made.append(o[0].transpose(0, 1))
    return torch.cat(made)


def checked(output: Sequence[Tensor], exact: Tensor) -> dict[str, float | None]:
    """`error` of a row. Raises `WrongError` where it is too large, or not a number."""
    error, limit = relative_error(output[0].reshape(exact.shape), exact), MAX_REL_ERROR["bfloat16"]
    if not error <= limit:
        raise WrongError(f"the output is off by {error:.2e} from float32, more than {limit:g}", error=error)
    return {"error": error}


def _ours(operands: Operands, seq_lens: SeqLens, causal: bool) -> Call:
    q, k, v, begins = operands
    longest = max(seq_lens)
    if reason := varlen.why_not(q, k, v, begins, begins, longest, causal):
        raise UsageError(reason)
    return lambda: (varlen.attention_varlen(q, k, v, begins, begins, longest, longest, causal=causal),)


def _fa3(operands: Operands, seq_lens: SeqLens, causal: bool) -> Call:
    if reason := IMPLEMENTATIONS[FA3].missing():
        raise UsageError(reason)
    from fa3_fwd_interface import flash_attn_varlen_func

    q, k, v, begins = operands
    longest = max(seq_lens)
    return lambda: (flash_attn_varlen_func(q, k, v, begins, begins, longest, longest, causal=causal),)


def _torch(operands: Operands, seq_lens: SeqLens, causal: bool) -> Call:
    from torch.nn.attention.varlen import varlen_attn

    q, k, v, begins = operands
    longest = max(seq_lens)
    window = (-1, 0) if causal else (-1, -1)

    def call() -> tuple[Tensor, ...]:
        o = varlen_attn(q, k, v, begins, begins, longest, longest, window_size=window)
        return (cast(Tensor, o),)

    return call


def _dense(operands: Operands, seq_lens: SeqLens, causal: bool) -> Call:
    q, k, v = (tensor.unflatten(0, (len(seq_lens), seq_lens[0])).transpose(1, 2) for tensor in operands[:3])
    if reason := operator.why_not(q, k, v, causal):
        raise UsageError(reason)
    return lambda: (operator.attention(q, k, v, causal=causal).transpose(1, 2),)


_CALLS: dict[str, Callable[[Operands, SeqLens, bool], Call]] = {OURS: _ours, FA3: _fa3, TORCH: _torch, DENSE: _dense}


def over_equal(row: VarlenRow, equal: VarlenRow) -> tuple[float, float, float]:
    """TFLOPS over those of the same implementation on equal lengths, with the 95 % interval of a second run."""
    work = row.flops / equal.flops
    ratio, low, high = speedup(row, equal)
    return work * ratio, work * low, work * high


def counterpart(row: VarlenRow, rows: Sequence[VarlenRow], implementation: str, *, equal: bool) -> VarlenRow | None:
    """The row with a time of an implementation, of the same case and mask, on the lengths themselves or equal ones."""
    return next(
        (
            one
            for one in rows
            if (one.case, one.causal, one.equal, one.implementation) == (row.case, row.causal, equal, implementation)
            and one.samples_ms
        ),
        None,
    )


def table(rows: Sequence[VarlenRow], stamp: str) -> Table:
    """A row a set of lengths, mask and implementation."""
    first = rows[0]
    shape = f"{sum(first.seq_lens)} tokens, {first.heads} heads of q and {first.kv_heads} of k and v, {first.dtype}"
    words, numbers = ("lengths", "mask", "implementation"), ("ms", "TFLOPS", "over FA3", "95 %", "over equal", "error")
    made = titled_table(f"sequences of different lengths: {shape}; {stamp}", *words, *numbers, left=words)
    for row in rows:
        cells = [row.message]
        if row.samples_ms:
            fa3 = counterpart(row, rows, FA3, equal=row.equal)
            equal = counterpart(row, rows, row.implementation, equal=True)
            over_fa3 = ["-", "-"]
            if fa3 is not None and fa3 is not row:
                ratio, low, high = speedup(row, fa3)
                over_fa3 = [f"{ratio:.3f} x", f"{low:.3f} to {high:.3f}"]
            over = "-" if row.equal or equal is None else f"{over_equal(row, equal)[0]:.3f}"
            cells = [f"{statistics.median(row.samples_ms):.3f}", f"{row.tflops:.0f}", *over_fa3, over]
            cells.append(f"{row.error:.1e}")
        made.add_row(_lengths(row), "causal" if row.causal else "full", _label(row.implementation), *cells)
    return made


def sentences(rows: Sequence[VarlenRow]) -> list[str]:
    """What has no time and why, and what had not settled."""
    lines = [
        f"{_label(row.implementation)} has no time for {_named(row)}: {row.message}" for row in rows if row.message
    ]
    unsettled = dict.fromkeys(_named(row) for row in rows if row.settling and not row.settling.settled)
    return lines + [f"{name}: the clock had not settled when the rounds began" for name in unsettled]


def _label(key: str) -> str:
    """What an implementation is called; its key for one that this program does not know."""
    return _LABEL.get(key, key)


def _named(row: VarlenRow) -> str:
    return f"{_lengths(row)} ({'causal' if row.causal else 'full'})"


def _lengths(row: VarlenRow) -> str:
    """`16 x 2048`, or `uniform: 16 of 20 to 4023`."""
    if row.equal:
        return f"{len(row.seq_lens)} x {row.seq_lens[0]}"
    return f"{row.case}: {len(row.seq_lens)} of {min(row.seq_lens)} to {max(row.seq_lens)}"
