"""mma.sync on Hopper, where wgmma would do it at nearly twice the rate."""

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kperf.arch import H200, SM_90A
from kperf.console import agreeing
from kperf.diagnose.analyses.waves import memory_bounds
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, TMA_LOADS, loops_around, mma_element, mma_shape
from kperf.diagnose.reading.options import scaled, with_option
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding, Level

_ROWS = 64
"""Of a wgmma (PTX ISA, "wgmma.mma_async")."""
_COLUMNS = 16
"""From which on Triton takes wgmma (3.6, compiled): an MMA itself has at least 8 columns."""
_SMALL = 64 * 64
"""Elements of a tile that keeps the tensor cores waiting for its operands either way."""
_WARPS = 4
"""A warp group, which issues it."""
_SYNC_COST = 1 / 0.6
"""Times as long as wgmma that mma.sync takes (arXiv 2402.13499)."""
_BUSY = 0.75
"""Of the SMs, that larger tiles leave busy: those of a decoding step that gained 1.35 x (H100) leave 128 of 132."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of an MMA whose result has the layout of MMA version 2.

    Where device memory takes longer for the launch's bytes than mma.sync for the MMAs, only fewer loads give anything.
    """
    for op in kernel.named("tt.dot"):
        types = tensor_types(op.rest.partition(" : ")[2])
        shape, element = mma_shape(op), mma_element(op)
        version = kernel.layouts.parameters(types[-1].layout).get("versionMajor") if types else None
        if version != [2] or shape is None or element == "f64":
            continue
        rows, columns, _ = shape
        severity: Level = "high" if loops_around(op) else "medium"
        candidates: list[dict[str, int]] = []
        fewer_loads = 1.0
        axis = _axis_of_rows(kernel, op, rows) if rows < _ROWS else ""
        if not axis and memory_bounds(kernel, _SYNC_COST):
            continue
        if axis:
            severity = "medium"
            why = (
                f"its tile has {rows} rows, and wgmma needs at least {_ROWS}; the CTAs along axis {axis} of the grid "
                "multiply other rows by the same second operand"
            )
            advice = (
                f"let a CTA have {_ROWS} rows, and launch {_ROWS // rows} times fewer CTAs along axis {axis}: the "
                "second operand is then also loaded less often"
            )
            candidates = scaled(kernel, (rows,), _ROWS / rows)
            fewer_loads = _ROWS / rows
        elif rows < _ROWS:
            severity = "low" if rows <= 16 else "medium"
            why = f"its tile has {rows} rows, and wgmma needs at least {_ROWS}"
            advice = (
                f"use tiles of {_ROWS} or 128 rows; if the problem has few rows, swap the operands (compute the "
                "transpose)"
            )
        elif columns < _COLUMNS:
            severity = "medium" if any(_axes(kernel, op, moved=1)) else "low"
            number = f"{columns} {agreeing(columns, 'column', 'columns')}"
            why = f"its tile has {number}, and Triton takes wgmma from {_COLUMNS} on"
            advice = (
                f"if there are more columns, let a CTA multiply {_COLUMNS} at once, which takes little longer: those "
                "of CTAs that load the same first operand, or of later iterations"
            )
        elif kernel.num_warps % _WARPS:
            why = f"num_warps={kernel.num_warps}, and wgmma needs a multiple of {_WARPS} warps"
            advice = f"{with_option(kernel, f'num_warps={_WARPS}')}, or 8 for tiles of 128 rows"
            candidates = [{"num_warps": _WARPS}]
            if rows * columns <= _SMALL:
                severity = "medium"  # 1.15 x were measured of 64 x 64 (H200)
        else:
            why = f"{element} operands of {rows}x{columns} do not have a layout that wgmma takes"
            advice = (
                "give the second operand with K (the dimension over which the MMA sums) contiguous, and use 2-D "
                "operands"
            )
        yield kernel.finding(
            RULE.id,
            op,
            severity,
            f"the MMA runs as mma.sync, not as wgmma: {why}",
            advice,
            {"rows": rows, "columns": columns, "num_warps": kernel.num_warps, "operand": element},
            candidates=candidates,
            estimate=_gain(severity, fewer_loads),
        )


def _gain(severity: Level, fewer_loads: float) -> tuple[float, float, float]:
    """Between nothing and what fewer loads of the second operand give, where the CTAs take more rows.

    Of a quarter of the loads 1.35 x were measured (mla_decode) and 2.83 x (tree_attention) on an H100.
    """
    if fewer_loads > 1:
        return math.sqrt(fewer_loads), 1.0, fewer_loads
    return (1.6, 1.1, 2.5) if severity == "high" else (1.3, 1.0, 2.0)


def _axis_of_rows(kernel: Kernel, mma: Operation, rows: int) -> str:
    """The axis of the grid whose CTAs have other rows and the same second operand, where fewer CTAs have enough rows.

    Empty if there is none, or if the CTAs that are left would leave SMs without work.
    """
    if kernel.grid is None or math.prod(kernel.grid) * rows < _ROWS * H200.sms * _BUSY:
        return ""
    return next((axis for axis, ctas in _axes(kernel, mma, moved=0) if ctas * rows >= _ROWS), "")


def _axes(kernel: Kernel, mma: Operation, *, moved: int) -> Iterator[tuple[str, int]]:
    """The axes of the grid whose CTAs have another operand `moved` and the same other one, and how many these are."""
    loads, others = _loads(kernel, mma, moved), _loads(kernel, mma, 1 - moved)
    for axis, ctas in zip("xyz", kernel.grid or (), strict=False):
        if ctas > 1 and loads and others and _moves(kernel, loads, axis) and not _moves(kernel, others, axis):
            yield axis, ctas


def _loads(kernel: Kernel, mma: Operation, place: int) -> list[int]:
    """The places, among the kernel's accesses, of the loads of which an operand is made; none if one is not known."""
    made = [op for op in kernel.values.sources(mma, place) if op.name in (*LOADS, *TMA_LOADS)]
    known = {one.operation.line: number for number, one in enumerate(kernel.accesses) if not one.value.loaded}
    return [known[op.line] for op in made] if all(op.line in known for op in made) else []


def _moves(kernel: Kernel, loads: list[int], axis: str) -> bool:
    """Whether the next CTA along an axis loads other addresses."""
    next_cta = replace(kernel, next_along=axis).values
    here = [kernel.accesses[one] for one in loads]
    there = [next_cta.operand(one.operation, 0) for one in here]
    return any(b is None or not np.array_equal(a.value.numbers, b.numbers) for a, b in zip(here, there, strict=True))


RULE = Rule("wgmma-unused", "mma.sync where wgmma fits", check, targets=(SM_90A.name,), by_options=True)
